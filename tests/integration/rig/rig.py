# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command line of the rig: ``python3 tests/integration/rig/rig.py --help``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.modules.pop("rig", None)

from rig import RigError  # noqa: E402
from rig.cluster import Rig  # noqa: E402
from rig.prepare import prepare  # noqa: E402

FAULTS = {  # verb: what it takes
    "sshd-stop": "HOST",
    "sshd-start": "HOST",
    "link-down": "HOST",
    "link-up": "HOST",
    "docker-stop": "HOST",
    "docker-kill": "HOST",
    "docker-start": "HOST",
    "docker-pause": "HOST",
    "docker-resume": "HOST",
    "freeze": "HOST",
    "thaw": "HOST",
    "partition": "HOST HOST",
    "heal": "",
    "slow-link": "HOST [RATE]",
    "disk-fill": "HOST [DIRECTORY]",
    "disk-free": "HOST [DIRECTORY]",
    "kill-host": "HOST",
    "start": "HOST",
    "reset": "[HOST]",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; exit status 1 and one line on stderr when it cannot be done."""
    parser = argparse.ArgumentParser(prog="rig.py", description="N real hosts on this machine, for integration tests")
    commands = parser.add_subparsers(dest="command", required=True)
    default = os.environ.get("AORTA_RIG_DIR", "/tmp/aorta-rig")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        if name != "prepare":
            made.add_argument("--dir", default=default, help="the rig's directory (default: %(default)s)")
        return made

    command("prepare", "install the Debian packages that are missing and make the image store (once)")
    up = command("up", "start hosts and wait until sshd and Docker answer")
    up.add_argument("--hosts", type=int, default=2)
    up.add_argument("--user", default="root", choices=["root", "bench"], help="ssh user of the inventory")
    up.add_argument("--subnet", type=int, metavar="N", help="10.203.N.0/24; default: the first free")
    up.add_argument("--disk", default="1g", help="size of a host's root file system (memory)")
    up.add_argument("--data", default="256m", help="size of a host's /data (memory)")
    up.add_argument("--bind", action="append", default=[], metavar="SOURCE:TARGET[:rw]", help="seen on every host")
    up.add_argument("--owner", type=int, metavar="PID", help="the rig may be removed once this process is gone")
    down = command("down", "remove the rig and all that belongs to it")
    down.add_argument("--all", action="store_true", help="every rig of this machine")
    command("status", "list rigs and hosts")
    run = command("exec", "run a command as root on a host, without ssh")
    run.add_argument("host")
    run.add_argument("argv", nargs=argparse.REMAINDER)
    fault = command("fault", "; ".join(f"{verb} {takes}".strip() for verb, takes in FAULTS.items()))
    fault.add_argument("verb", choices=FAULTS)
    fault.add_argument("argv", nargs="*")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        if options.command == "prepare":
            done = prepare() or ["nothing to do"]
            print(f"{'; '.join(done)} ({time.monotonic() - began:.1f} s)")
        elif options.command == "up":
            rig = Rig.up(
                options.dir,
                options.hosts,
                user=options.user,
                number=options.subnet,
                owner=options.owner,
                disk=options.disk,
                data=options.data,
                binds=options.bind,
            )
            print(f"{len(rig.hosts)} hosts up in {time.monotonic() - began:.1f} s; next: . {rig.directory}/env.sh")
        elif options.command == "down":
            wanted = str(Path(options.dir).resolve())
            for rig in Rig.all():
                if options.all or rig.directory == wanted:
                    rig.down()
                    print(f"{rig.directory}: removed")
        elif options.command == "status":
            for rig in Rig.all():
                print(f"{rig.directory}  10.203.{rig.number}.0/24  user {rig.user}{'  dead' if rig.dead else ''}")
                for host in rig.hosts:
                    print(f"  {host.name}  {host.address}  pid {host.pid}  {len(host.pids())} processes")
        elif options.command == "exec":
            host = Rig.load(options.dir).host(options.host)
            return host.popen(options.argv[options.argv[:1] == ["--"] :] or ["bash"]).wait()
        else:
            takes = FAULTS[options.verb].split()
            needed = sum(not word.startswith("[") for word in takes)
            if not needed <= len(options.argv) <= len(takes):
                raise RigError(f"fault {options.verb} takes: {' '.join(takes) or 'nothing'}")
            getattr(Rig.load(options.dir), options.verb.replace("-", "_"))(*options.argv)
    except RigError as error:
        print(f"rig: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
