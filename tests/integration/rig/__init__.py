# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""N real hosts on one Linux machine, for integration tests; see tests/integration/README.md."""


class RigError(Exception):
    """One line that says why the rig cannot do what was asked."""
