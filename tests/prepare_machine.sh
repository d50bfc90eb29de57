#!/usr/bin/env bash
# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Installs from Debian what the integration tests use, starting no service. Where that is not possible it says
# so and succeeds: those tests are then skipped, visibly.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
  echo "not root on Debian: nothing installed; tests on real hosts and in a browser may be skipped"
  exit 0
fi
if ! command -v chromium > /dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null ||
    echo "chromium could not be installed: the test of the report in a browser is skipped"
fi
python3 tests/integration/rig/rig.py prepare || echo "no rig of real hosts: the tests on it are skipped"
