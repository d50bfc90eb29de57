# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ranks' meeting point: a TCP rendezvous and barrier with the manners of a NCCL process group.

Rank 0 listens on MASTER_ADDR:MASTER_PORT and the others connect, again and again until the rendezvous timeout, so a job
waits for nodes that have not been started. When a rank dies the others do not notice: like ranks in a collective, they
wait until the collective timeout and fail then.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
import time
from collections.abc import Callable

_POLL_S = 0.1
_STOP_GRACE_S = 1.0  # a rank that was told to stop waits this long for the others


class DistError(RuntimeError):
    """A failed rendezvous or collective."""


class World:
    """The process group of one rank.

    stopping: returns True once this rank was told to stop (SIGTERM); waits then end early.
    """

    def __init__(
        self, rank: int, size: int, address: str, port: int, *, collective_timeout: float, stopping: Callable[[], bool]
    ) -> None:
        self.rank = rank
        self.size = size
        self.address = address
        self.port = port
        self._collective_timeout = collective_timeout
        self._stopping = stopping
        self._stop_seen: float | None = None
        self._peers: dict[int, socket.socket] = {}
        self._arrived: dict[int, int] = {}
        self._server: socket.socket | None = None
        self._seq = 0

    def join(self, timeout: float, message: dict[str, int]) -> dict[str, int]:
        """Wait until all ranks are there (timeout in seconds); returns rank 0's message on every rank."""
        if self.size == 1:
            return message
        if self.rank == 0:
            return self._gather(timeout, message)
        return self._connect(timeout)

    def barrier(self, operation: str) -> None:
        """Wait for every rank; raises DistError after the collective timeout, naming the operation."""
        self._seq += 1
        if self.size == 1:
            return
        started = time.monotonic()
        deadline = started + self._collective_timeout
        arrived = self._collect(deadline) if self.rank == 0 else self._ask(deadline)
        if arrived:
            return
        self._raise_if_stopped(operation)
        raise DistError(
            f"[Rank {self.rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={self._seq}, "
            f"OpType={operation}, Timeout(ms)={int(self._collective_timeout * 1000)}) ran for "
            f"{int((time.monotonic() - started) * 1000)} milliseconds before timing out."
        )

    def close(self) -> None:
        """Close all connections."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _expired(self, deadline: float) -> bool:
        now = time.monotonic()
        if self._stopping():
            if self._stop_seen is None:
                self._stop_seen = now
            deadline = min(deadline, self._stop_seen + _STOP_GRACE_S)
        return now >= deadline

    def _raise_if_stopped(self, awaited: str) -> None:
        if self._stopping():
            raise DistError(f"[Rank {self.rank}] stopped while waiting for {awaited}")

    # --- rank 0 ---

    def _listen(self) -> socket.socket:
        last: OSError | None = None
        try:
            infos = socket.getaddrinfo(self.address, self.port, type=socket.SOCK_STREAM)
        except OSError as exc:
            raise DistError(f"MASTER_ADDR {self.address!r} cannot be resolved: {exc}") from exc
        for family, kind, proto, _name, where in infos:
            server = socket.socket(family, kind, proto)
            try:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind(where)
                server.listen(max(128, self.size))
                return server
            except OSError as exc:
                server.close()
                last = exc
        name = errno.errorcode.get(last.errno or 0, "unknown") if last else "unknown"
        hint = "; MASTER_ADDR is no address of rank 0's host" if name == "EADDRNOTAVAIL" else ""
        raise DistError(
            f"The server socket has failed to listen on {self.address}, port: {self.port}, name: {name}, "
            f"message: {last}{hint}"
        )

    def _gather(self, timeout: float, message: dict[str, int]) -> dict[str, int]:
        self._server = server = self._listen()
        deadline = time.monotonic() + timeout
        pending: dict[socket.socket, bytes] = {}
        with selectors.DefaultSelector() as selector:
            server.setblocking(False)
            selector.register(server, selectors.EVENT_READ)
            while len(self._peers) < self.size - 1:
                if self._expired(deadline):
                    self._raise_if_stopped("the other ranks")
                    raise DistError(
                        f"Timed out after {timeout:g} seconds waiting for clients. "
                        f"{len(self._peers) + 1}/{self.size} clients joined."
                    )
                for key, _events in selector.select(_POLL_S):
                    if key.fileobj is server:
                        try:
                            connection, _where = server.accept()
                        except OSError:
                            continue
                        connection.setblocking(False)
                        selector.register(connection, selectors.EVENT_READ)
                        pending[connection] = b""
                        continue
                    connection = key.fileobj  # type: ignore[assignment]
                    line = _read_line(connection, pending)
                    if line is None:
                        continue
                    selector.unregister(connection)
                    del pending[connection]
                    self._admit(connection, line)
        for connection in pending:
            connection.close()
        server.close()
        self._server = None
        answer = json.dumps(message).encode() + b"\n"
        for connection in self._peers.values():
            _send(connection, answer)
        return message

    def _admit(self, connection: socket.socket, line: bytes) -> None:
        try:
            hello = json.loads(line)
            rank, size = int(hello["rank"]), int(hello["world_size"])
        except (ValueError, KeyError, TypeError):
            connection.close()  # a port probe, or no stand-in at all
            return
        problem = None
        if size != self.size:
            problem = f"rank {rank} was started for world size {size}, rank 0 for {self.size}"
        elif not 0 < rank < size or rank in self._peers:
            problem = f"rank {rank} has joined already or is out of range"
        if problem:
            _send(connection, json.dumps({"error": problem}).encode() + b"\n")
            connection.close()
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers[rank] = connection
        self._arrived[rank] = 0

    def _collect(self, deadline: float) -> bool:
        gone: set[int] = set()
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._peers.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while any(count == 0 for count in self._arrived.values()):
                if self._expired(deadline):
                    return False
                if len(gone) == len(self._peers):
                    time.sleep(_POLL_S)
                    continue
                for key, _events in selector.select(_POLL_S):
                    data = _receive(self._peers[key.data])
                    if data:
                        self._arrived[key.data] += data.count(b"\n")
                    elif data is not None:
                        gone.add(key.data)
                        selector.unregister(key.fileobj)
        for rank, connection in self._peers.items():
            self._arrived[rank] -= 1
            _send(connection, b"\n")
        return True

    # --- the other ranks ---

    def _connect(self, timeout: float) -> dict[str, int]:
        deadline = time.monotonic() + timeout
        hello = json.dumps({"rank": self.rank, "world_size": self.size}).encode() + b"\n"
        last: object = "no attempt was made"
        while not self._expired(deadline):
            try:
                connection = socket.create_connection((self.address, self.port), timeout=5)
            except OSError as exc:
                last = exc
                time.sleep(_POLL_S)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
            self._peers[0] = connection
            pending = {connection: b""}
            last = "rank 0 answered, but not all ranks came"
            if _send(connection, hello):
                while not self._expired(deadline):
                    line = _read_line(connection, pending) if _readable(connection) else None
                    if line == b"":
                        last = "rank 0 closed the connection"
                        break
                    if line is not None:
                        answer = json.loads(line)
                        if "error" in answer:
                            raise DistError(f"[Rank {self.rank}] refused by rank 0: {answer['error']}")
                        return answer
            connection.close()
            time.sleep(_POLL_S)
        self._raise_if_stopped("rank 0")
        raise DistError(
            f"The client socket has timed out after {int(timeout * 1000)}ms while trying to connect to "
            f"({self.address}, {self.port}): {last}"
        )

    def _ask(self, deadline: float) -> bool:
        connection = self._peers[0]
        alive = _send(connection, b"\n")
        while not self._expired(deadline):
            if not alive:
                time.sleep(_POLL_S)
            elif _readable(connection):
                data = _receive(connection)
                if data:
                    return True
                alive = data is None
        return False


def _readable(connection: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(_POLL_S))


def _receive(connection: socket.socket) -> bytes | None:
    """Available bytes; b"" when the peer is gone, None when there is nothing now."""
    try:
        return connection.recv(4096)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _read_line(connection: socket.socket, pending: dict[socket.socket, bytes]) -> bytes | None:
    """A whole line; b"" when the peer is gone or sends too much, None when the line is not complete."""
    data = _receive(connection)
    if data is None:
        return None
    pending[connection] += data
    line, newline, _rest = pending[connection].partition(b"\n")
    if newline:
        return line
    return b"" if not data or len(pending[connection]) > 4096 else None


def _send(connection: socket.socket, data: bytes) -> bool:
    """Send a short message; False when the peer is gone."""
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True
