# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_pull
short_description: Pull an image, showing that the pull goes on
version_added: 0.1.0
description:
  - Calls M(community.docker.docker_image_pull) on the host, and while that runs prints every few seconds which host
    is pulling which image for how long.
author:
  - The aorta.automation maintainers (@aorta-automation)
options:
  name:
    description: Name of the image, with a tag or a digest.
    type: str
    required: true
  always:
    description: Whether to ask the registry also when the image is there.
    type: bool
    default: false
  every:
    description: Seconds between two lines.
    type: float
    default: 10
attributes:
  action:
    support: full
    description: Prints on the controller, pulls on the host.
  check_mode:
    support: none
    description: Skipped in check mode.
  diff_mode:
    support: none
    description: Changes nothing that can be shown as a difference.
"""

EXAMPLES = r"""
- name: Pull the image
  aorta.automation.image_pull:
    name: rocm/pytorch:latest
  register: pulled
"""

RETURN = r"""
image:
  description: The image as M(community.docker.docker_image_pull) returns it.
  type: dict
  returned: success
"""
