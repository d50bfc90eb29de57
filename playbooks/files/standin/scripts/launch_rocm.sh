#!/usr/bin/env bash
# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# launch_rocm.sh [CONFIG [ARGUMENT...]]: one host's training, NPROC ranks (default: one for each device in
# HIP_VISIBLE_DEVICES, else 1). Further arguments go to train.py; Aorta's own script ignores them.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
config=${1:-${root}/config/demo.json}
[ "$#" -eq 0 ] || shift

if [ -z "${NPROC:-}" ]; then
  devices=${HIP_VISIBLE_DEVICES:-0}
  commas=${devices//[^,]/}
  NPROC=$((${#commas} + 1))
fi
if [ -z "${HIP_VISIBLE_DEVICES:-}" ]; then
  HIP_VISIBLE_DEVICES=0
  for ((device = 1; device < NPROC; device++)); do
    HIP_VISIBLE_DEVICES+=",${device}"
  done
fi
export HIP_VISIBLE_DEVICES
export TORCH_DISTRIBUTED_DEBUG=${TORCH_DISTRIBUTED_DEBUG:-DETAIL}

exec python3 "${root}/torchrun" \
  --standalone \
  --nproc_per_node "${NPROC}" \
  "${root}/train.py" \
  --config "${config}" \
  --enable-rocm-metrics \
  "$@"
