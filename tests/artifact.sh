#!/usr/bin/env bash
# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Tests what users get: builds the collection, installs the artifact into a clean place, runs ansible-test
# sanity and units on it there, and the validate phase by the collection's name.
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD
# Outside the checkout: ansible-test asks git which files there are, and git ignores build directories
build=$(mktemp -d "${TMPDIR:-/tmp}/aorta-artifact.XXXXXX")
trap 'rm -rf "$build"' EXIT
python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')

ansible-galaxy collection build --output-path "$build" --force
ansible-galaxy collection install "$build"/aorta-automation-*.tar.gz -p "$build/clean" --no-deps --force
installed=$build/clean/ansible_collections/aorta/automation
for unwanted in collections .ci .venv tests/integration Makefile; do
  if [ -e "$installed/$unwanted" ]; then echo "the artifact holds $unwanted" >&2; exit 1; fi
done

# ansible-test fetches a script to bootstrap pip into its environments; this one needs only the wheel of pip.
export HOME="$build/home"
mkdir -p "$HOME/.ansible/test/cache"
python3 -m pip download -q --disable-pip-version-check --no-deps pip==24.2 -d "$build/wheels"
cat > "$HOME/.ansible/test/cache/get_pip_24_2.py" <<EOF
import runpy
import sys

wheel = "$(echo "$build"/wheels/pip-24.2-*.whl)"
sys.path.insert(0, wheel)
sys.argv = ["pip", "install", "--disable-pip-version-check", "-q", wheel]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
EOF
unset ANSIBLE_CONFIG
cd "$installed"
ansible-test sanity --python "$python" --local --color no
ansible-test units --python "$python" --venv --requirements --color no

# By its name, from a directory that knows nothing of the checkout, without an inventory
mkdir "$build/elsewhere"
cd "$build/elsewhere"
PYTHONPATH='' python3 "$checkout/tests/unit/make_traces.py" "$build/elsewhere/traces" --ranks 2
ANSIBLE_COLLECTIONS_PATH=$build/clean ansible-playbook aorta.automation.aorta --tags validate \
  -e aorta_trace_dir="$build/elsewhere/traces" -e '{"aorta_expected_results": {"min_compute_ratio": 0.01}}'
test -s aorta-runs/latest/report.html
echo "artifact: built, installed, tested, run"
