# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints what a training might print, and worse; what it is to print stands in $OMP_LIVE, "part:argument" a part.

    stamps:N    N lines with the time, 0.7 s apart
    odd:        a line of 1 MB, bytes that are no UTF-8, a carriage return, an empty line
    slow:N      N numbered lines, 50 ms apart
    flood:N     N numbered lines within about ten seconds
    chat:S      200 lines a second for S seconds

The last line, without a line feed, is the SHA-256 of all bytes before it.
"""

import hashlib
import os
import time

digest = hashlib.sha256()


def write(data: bytes) -> None:
    digest.update(data)
    while data:
        data = data[os.write(1, data) :]


for part in os.environ["OMP_LIVE"].split():
    kind, _, argument = part.partition(":")
    number = int(argument or 0)
    if kind == "stamps":
        for _ in range(number):
            write(f"stamp {time.time():.3f}\n".encode())
            time.sleep(0.7)
    elif kind == "odd":
        write(b"x" * 1_000_000 + b"\n\xff\xfe\x80 no UTF-8\n 10%\r 20%\r\n\n\xe2\x82\xac\n")
    elif kind == "slow":
        for index in range(number):
            write(b"slow %d\n" % index)
            time.sleep(0.05)
    elif kind == "flood":
        begin = time.monotonic()
        for index in range(0, number, 1000):
            write(b"".join(b"flood %d of many, as long as a usual line\n" % i for i in range(index, index + 1000)))
            time.sleep(max(0, begin + 10 * index / number - time.monotonic()))
    elif kind == "chat":
        begin = time.monotonic()
        for index in range(0, number * 200, 10):
            write(b"".join(b"chat %d loss=0.693147 lr=0.000200 overlap=1.23ms\n" % i for i in range(index, index + 10)))
            time.sleep(max(0, begin + index / 200 - time.monotonic()))
write(b"sha256 " + digest.hexdigest().encode())
