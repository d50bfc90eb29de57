# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket
import threading
import time

import pytest
from ansible_collections.aorta.automation.plugins.modules import rendezvous_probe as probe


def test_the_listener_of_the_run_answers_and_leaves_the_port_free():
    port = probe.listen("127.0.0.1", 0, "run-1", peers=2, timeout=20)
    for _host in range(2):
        probe.connect("127.0.0.1", port, "run-1", 5)
    limit = time.monotonic() + 5
    while True:  # the process ends on its own after the last peer
        try:
            with socket.socket() as server:
                server.bind(("127.0.0.1", port))
            break
        except OSError:
            assert time.monotonic() < limit
            time.sleep(0.05)


def test_another_runs_listener_is_found_out():
    port = probe.listen("127.0.0.1", 0, "run-1", peers=1, timeout=3)
    with pytest.raises((ValueError, OSError)):
        probe.connect("127.0.0.1", port, "run-2", 1)


def test_something_that_echoes_is_found_out():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo():
            peer, _address = server.accept()
            with peer:
                peer.sendall(peer.recv(100))

        threading.Thread(target=echo, daemon=True).start()
        with pytest.raises(ValueError, match="something else"):
            probe.connect("127.0.0.1", server.getsockname()[1], "run-1", 5)


def test_a_port_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="in use"):
        probe.listen("127.0.0.1", server.getsockname()[1], "run-1", peers=0, timeout=1)


def test_an_address_of_another_machine_is_an_error():
    with pytest.raises(OSError):
        probe.listen("192.0.2.1", 0, "run-1", peers=0, timeout=1)
