# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a small container image for the stand-in workload from this machine's own files, without any registry.

The image holds the Python interpreter that runs this script with its standard library, a shell, the usual small tools,
the shared libraries they need, and the stand-in's torchrun. Paths are those of a merged /usr; an interpreter installed
elsewhere keeps its place and is linked to /usr/bin/python3. The same files give the same archive, byte for byte.

    python3 make_image.py --load aorta-standin:local      into the Docker engine
    python3 make_image.py --output image.tar              for: docker import image.tar TAG

Linux only: libraries are found with ldd.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHANGES = (f"ENV PATH={PATH}", "ENV LANG=C.UTF-8", "WORKDIR /", 'CMD ["/bin/sh"]')
SHELLS = ("sh", "bash")
TOOLS = (
    *("basename", "cat", "chgrp", "chmod", "chown", "cp", "cut", "date", "dd", "df", "dirname", "du", "echo", "env"),
    *("false", "head", "hostname", "id", "kill", "ln", "ls", "mkdir", "mktemp", "mv", "nproc", "printenv", "printf"),
    *("pwd", "readlink", "realpath", "rm", "rmdir", "seq", "setsid", "sleep", "sort", "stat", "tail", "tee"),
    *("timeout", "touch", "tr", "true", "uname", "wc", "whoami"),
    *("find", "grep", "sed", "tar", "gzip", "ps"),
)
# What a step can't do without; other tools are left out where this machine has none.
REQUIRED = frozenset(
    (
        "bash",
        "cat",
        "chown",
        "env",
        "false",
        "head",
        "id",
        "ls",
        "mkdir",
        "rm",
        "sh",
        "sleep",
        "tail",
        "timeout",
        "true",
    )
)
# Of the standard library: tests, graphical parts and build files are not needed in a container.
LEFT_OUT_DIRS = frozenset(
    ("__pycache__", "dist-packages", "ensurepip", "idlelib", "site-packages", "test", "tests", "tkinter", "turtledemo")
)
LEFT_OUT_FILES = re.compile(r"_tkinter\..*|_test.*\.so|_ctypes_test\..*|_xxtestfuzz\..*|.*\.(a|o|pyc|whl)")
# Loaded by name at run time, so that ldd does not show them.
NSS = ("libnss_files.so.2", "libnss_dns.so.2")

FILES = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "/etc/group": "root:x:0:\nvideo:x:44:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
DIRECTORIES = {"/dev": 0o755, "/proc": 0o755, "/sys": 0o755, "/run": 0o755, "/root": 0o755, "/mnt": 0o755}
DIRECTORIES.update({"/tmp": 0o1777, "/var/tmp": 0o1777, "/usr/local/bin": 0o755, "/usr/sbin": 0o755, "/usr/lib": 0o755})
MERGED = ("bin", "sbin", "lib", "lib64", "lib32", "libx32")


class ImageError(Exception):
    """Something that the image needs is missing, or the engine refuses; the message says what."""


def merged(path: str) -> str:
    """The place of a file in the image, where /bin, /lib … are links into /usr."""
    first = PurePosixPath(path).parts[1]
    return "/usr" + path if first in MERGED else path


def libraries(binaries: list[str]) -> dict[str, str]:
    """The shared objects and loaders that ELF files need: path in the image -> file here. Raises ImageError."""
    found: dict[str, str] = {}
    for start in range(0, len(binaries), 50):
        part = binaries[start : start + 50]
        done = subprocess.run(
            ["ldd", *part], capture_output=True, text=True, check=False, env={"PATH": PATH, "LC_ALL": "C"}
        )
        for line in done.stdout.splitlines():
            if "=> not found" in line:
                raise ImageError(f"a shared library is missing on this machine: {line.strip()}")
            match = re.search(r"(?:=> )?(/\S+) \(0x[0-9a-f]+\)$", line)
            if match:
                found[merged(match.group(1))] = match.group(1)
    if not found:
        raise ImageError(f"ldd names no shared library for {binaries[0]}")
    return found


class Image:
    """The contents of the image: path -> file of this machine, text, or link."""

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}
        self.texts: dict[str, str] = dict(FILES)
        self.links: dict[str, str] = {f"/{name}": f"usr/{name}" for name in ("bin", "sbin", "lib")}
        self.directories: dict[str, int] = dict(DIRECTORIES)

    def add_tools(self) -> None:
        """The shells and tools, under /usr/bin. Raises ImageError when a required one is missing."""
        for name in (*SHELLS, *TOOLS):
            found = shutil.which(name, path=PATH)
            if found is not None:
                self.files[f"/usr/bin/{name}"] = Path(found).resolve()
            elif name in REQUIRED:
                raise ImageError(f"{name} is not on this machine (looked in {PATH})")

    def add_python(self) -> None:
        """This interpreter and its standard library, in their own place, linked from /usr/bin."""
        executable = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
        place = merged(str(executable))
        self.files[place] = executable
        for name in ("python3", "python"):
            if place != f"/usr/bin/{name}":
                self.links[f"/usr/bin/{name}"] = place
        variables = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}
        variables["installed_platbase"] = sys.base_exec_prefix
        for kind in ("stdlib", "platstdlib"):
            self._add_library(Path(sysconfig.get_path(kind, vars=variables)))

    def _add_library(self, root: Path) -> None:
        """A standard library without caches, tests and build configuration. Raises ImageError."""
        if not root.is_dir():
            raise ImageError(f"{root}: the standard library is not there")
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in LEFT_OUT_DIRS and not re.match(r"config-\d", name)]
            for name in names:
                if not LEFT_OUT_FILES.fullmatch(name):
                    path = Path(folder, name)
                    if path.exists():
                        self.files[merged(str(path))] = path.resolve()

    def add_libraries(self) -> None:
        """What the ELF files collected so far need, and the loader that runs them."""
        binaries = sorted(str(path) for path in set(self.files.values()) if _is_elf(path))
        for place, source in libraries(binaries).items():
            self.files[place] = Path(source).resolve()
            if place.startswith("/usr/lib64/"):
                self.links["/lib64"] = "usr/lib64"
        for folder in {PurePosixPath(place).parent for place in self.files if place.endswith("/libc.so.6")}:
            for name in NSS:
                for candidate in (Path(folder, name), Path("/", *folder.parts[2:], name)):
                    if candidate.exists():
                        self.files[str(folder / name)] = candidate.resolve()
                        break

    def add(self, source: Path, place: str) -> None:
        """A file or a directory of the user's. Raises ImageError."""
        if not place.startswith("/") or ".." in PurePosixPath(place).parts:
            raise ImageError(f"--add: {place!r} is no absolute path in the image")
        if source.is_file():
            self.files[merged(place)] = source.resolve()
        elif source.is_dir():
            for path in sorted(source.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    self.files[merged(f"{place.rstrip('/')}/{path.relative_to(source)}")] = path.resolve()
        else:
            raise ImageError(f"--add: {source}: no such file or directory")

    def write(self, stream: IO[bytes]) -> int:
        """Write the archive; returns the size of the unpacked files in bytes."""
        size = 0
        folders = dict(self.directories)
        for path in (*self.files, *self.texts, *self.links):
            for parent in PurePosixPath(path).parents:
                if str(parent) != "/":
                    folders.setdefault(str(parent), 0o755)
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for path, mode in sorted(folders.items()):
                if path not in self.links:
                    archive.addfile(_entry(path, mode, tarfile.DIRTYPE))
            for path, target in sorted(self.links.items()):
                entry = _entry(path, 0o777, tarfile.SYMTYPE)
                entry.linkname = target
                archive.addfile(entry)
            for path, text in sorted(self.texts.items()):
                entry = _entry(path, 0o644)
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
            for path, source in sorted(self.files.items()):
                with source.open("rb") as file:
                    status = os.fstat(file.fileno())
                    entry = _entry(path, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)
                    entry.size = status.st_size
                    size += entry.size
                    archive.addfile(entry, file)
        return size


def _entry(path: str, mode: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.type, entry.mode, entry.mtime = kind, mode, 0
    entry.uname = entry.gname = "root"
    return entry


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def collect(extra: list[tuple[Path, str]]) -> Image:
    """Everything that belongs into the image; extra are (source, place) pairs."""
    image = Image()
    image.add_tools()
    image.add_python()
    torchrun = Path(__file__).resolve().parent / "standin" / "torchrun"
    if torchrun.is_file():
        image.add(torchrun, "/usr/local/bin/torchrun")
    for source, place in extra:
        image.add(source, place)
    image.add_libraries()
    return image


def load(image: Image, tag: str, docker: str) -> int:
    """Import the image into the engine that docker talks to; returns the unpacked size. Raises ImageError."""
    try:
        answer = subprocess.run(
            [docker, "version", "--format", "{{.Server.Version}}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as exc:
        raise ImageError(f"cannot run {docker}: {exc.strerror}") from exc
    if answer.returncode != 0:
        lines = (answer.stderr or answer.stdout).strip().splitlines()
        raise ImageError(f"no container engine answers: {lines[-1] if lines else f'{docker} version failed'}")
    command = [docker, "import", *(word for change in CHANGES for word in ("--change", change)), "-", tag]
    size = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            size = image.write(process.stdin)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        message = process.stderr.read().decode(errors="replace").strip()
    if process.returncode != 0:
        raise ImageError(f"{docker} import {tag} failed: {message}")
    return size


def save(image: Image, path: Path) -> int:
    """Write the archive to a file, whole or not at all; returns the unpacked size."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            size = image.write(stream)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return size


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Make a small image for the stand-in workload from this machine's files"
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--output", type=Path, metavar="FILE.tar", help="write an archive for `docker import`")
    target.add_argument("--load", metavar="TAG", help="import it into the Docker engine under this name")
    parser.add_argument("--docker", default="docker", help="the command that talks to the engine, default: docker")
    parser.add_argument(
        "--add", action="append", default=[], metavar="SOURCE:PLACE", help="a further file or directory"
    )
    args = parser.parse_args(argv)
    extra = []
    for item in args.add:
        source, colon, place = item.rpartition(":")
        if not colon or not source:
            parser.error(f"--add: expected SOURCE:PLACE, got {item!r}")
        extra.append((Path(source), place))
    try:
        image = collect(extra)
        size = load(image, args.load, args.docker) if args.load else save(image, args.output)
    except (ImageError, OSError) as exc:
        print(f"make_image.py: error: {exc}", file=sys.stderr)
        return 1
    print(f"{args.load or args.output}: {len(image.files)} files, {size / 1e6:.1f} MB, Python {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
