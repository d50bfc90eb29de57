# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rendezvous_probe
short_description: Prove that every host reaches the rendezvous address
version_added: 0.1.0
description:
  - With O(state=listen), on the first host, opens a small listener on the rendezvous address in a process of its own
    and returns at once. It ends when every token has been seen, or after O(timeout) seconds.
  - With O(state=connect), on the other hosts, connects to it and expects an answer that only that listener can give.
    An address that leads elsewhere, or to a machine that merely forwards, is found out.
  - The port is found free by binding it, and is free again when the listener has ended.
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  state:
    description: Which side this host is.
    type: str
    choices: [listen, connect]
    required: true
  address:
    description: The rendezvous address.
    type: str
    required: true
  port:
    description: The port; with O(state=listen), 0 lets the kernel choose a free one.
    type: int
    default: 0
  token:
    description: A text that names the run, so that another run's listener is not taken for this one.
    type: str
    required: true
  peers:
    description: With O(state=listen), how many hosts are going to connect.
    type: int
    default: 0
  timeout:
    description: Seconds that the listener lives, or that a connection may take.
    type: int
    default: 30
attributes:
  check_mode:
    support: none
    description: Does nothing in check mode.
  diff_mode:
    support: none
    description: Changes nothing that can be shown as a difference.
"""

EXAMPLES = r"""
- name: Listen on the first host
  aorta.automation.rendezvous_probe:
    state: listen
    address: 192.0.2.10
    token: "{{ aorta_run.run_id }}"
    peers: 1
  register: probe

- name: Connect from another host
  aorta.automation.rendezvous_probe:
    state: connect
    address: 192.0.2.10
    port: "{{ probe.port }}"
    token: "{{ aorta_run.run_id }}"
"""

RETURN = r"""
port:
  description: The port that was found free.
  type: int
  returned: with state=listen and no problem
problems:
  description: What is wrong, with a remedy.
  type: list
  elements: dict
  returned: always
"""

import hashlib
import os
import socket
import time

from ansible.module_utils.basic import AnsibleModule

REMEDY = "set aorta_multi_node.master_addr, or vpc_ip of the first host, to an address of its own that all hosts reach"


def answer_for(token: str) -> bytes:
    """What the listener answers: derived from the token, so an echo server does not pass."""
    return hashlib.sha256(("aorta.automation " + token).encode()).hexdigest().encode()


def serve(server: socket.socket, token: str, peers: int, deadline: float) -> None:
    """Answer connections that bring the token, until C(peers) have been answered or the deadline has passed."""
    while peers > 0 and time.monotonic() < deadline:
        server.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            peer, _address = server.accept()
        except OSError:
            continue
        with peer:
            try:
                peer.settimeout(2)
                if peer.recv(4096) == token.encode():
                    peer.sendall(answer_for(token))
                    peers -= 1
                    peer.recv(1)  # the other side closes first: the port is left without a TIME_WAIT
            except OSError:
                continue


def listen(address: str, port: int, token: str, peers: int, timeout: int) -> int:
    """Bind, start the serving process, return the port. Raises OSError when the address is not this host's."""
    family, kind, _proto, _name, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    server = socket.socket(family, kind)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(target)
    server.listen(64)
    bound: int = server.getsockname()[1]
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            quiet = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(quiet, descriptor)
            serve(server, token, peers, time.monotonic() + timeout)
        os._exit(0)
    os.wait()
    server.close()
    return bound


def connect(address: str, port: int, token: str, timeout: int) -> None:
    """Raise OSError or ValueError unless the listener of this run answers."""
    with socket.create_connection((address, port), timeout=timeout) as peer:
        peer.sendall(token.encode())
        wanted, got = answer_for(token), b""
        while len(got) < len(wanted):
            piece = peer.recv(4096)
            if not piece:
                break
            got += piece
    if got != wanted:
        raise ValueError("something else answers there")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["listen", "connect"], "required": True},
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "default": 0},
            "token": {"type": "str", "required": True, "no_log": False},
            "peers": {"type": "int", "default": 0},
            "timeout": {"type": "int", "default": 30},
        },
        supports_check_mode=False,
    )
    params = module.params
    address, port = params["address"], params["port"]
    try:
        if params["state"] == "listen":
            found = listen(address, port, params["token"], params["peers"], params["timeout"])
            module.exit_json(changed=False, problems=[], port=found)
        connect(address, port, params["token"], min(params["timeout"], 10))
    except (OSError, ValueError) as exc:
        if params["state"] == "connect":
            message = "the rendezvous %s:%d can't be reached from here: %s" % (address, port, exc)
        elif port:
            message = "can't listen on the rendezvous address %s:%d: %s" % (address, port, exc)
        else:
            message = "%s is not an address of this host, the first of the group: %s" % (address, exc)
        remedy = (
            "leave aorta_multi_node.master_port out: a free port is chosen" if port and "in use" in str(exc) else REMEDY
        )
        module.exit_json(changed=False, problems=[{"check": "rendezvous", "message": message, "remedy": remedy}])
    module.exit_json(changed=False, problems=[])


if __name__ == "__main__":
    main()
