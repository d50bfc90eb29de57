# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What bring_up.py compares with: containers started through the Docker SDK over ssh, host by host or in threads.

Runs in an environment of its own that has ``docker`` and ``paramiko``. Reads one line of JSON, ``{"hosts": [address],
"user": …, "image": …, "command": […], "volumes": {…}, "threads": true}``, and prints the seconds until all containers
run, and the CPU seconds of this process.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docker


def start(job: dict[str, Any], host: str) -> tuple[Any, Any]:
    """Connect, look for the image, start the container."""
    client = docker.DockerClient(base_url=f"ssh://{job['user']}@{host}", timeout=60)
    client.ping()
    client.images.get(job["image"])
    container = client.containers.run(
        job["image"],
        job["command"],
        name="bring-up-baseline",
        detach=True,
        init=True,
        network_mode="host",
        ipc_mode="host",
        shm_size="64m",
        devices=["/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri"],
        volumes=job["volumes"],
    )
    container.reload()
    if container.status not in ("running", "exited"):
        raise SystemExit(f"{host}: the container is {container.status}")
    return client, container


def main() -> None:
    job = json.loads(sys.stdin.readline())
    began = time.monotonic()
    if job["threads"]:
        with ThreadPoolExecutor(max_workers=len(job["hosts"])) as pool:
            started = list(pool.map(lambda host: start(job, host), job["hosts"]))
    else:
        started = [start(job, host) for host in job["hosts"]]
    seconds = time.monotonic() - began
    cpu = time.process_time()
    for client, container in started:
        container.remove(force=True)
        client.close()
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu}))


if __name__ == "__main__":
    main()
