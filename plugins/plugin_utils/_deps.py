# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one place that imports what is not in the standard library or ansible-core.

Ansible loads plugin files to read their documentation, also where these packages are not
installed; so the imports are guarded, and C(require()) says in one line what is missing.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

MISSING: dict[str, ImportError] = {}

if TYPE_CHECKING:
    from pydantic import (
        BaseModel,
        BeforeValidator,
        ConfigDict,
        Field,
        TypeAdapter,
        ValidationError,
        field_validator,
        model_validator,
    )
else:
    try:
        from pydantic import (
            BaseModel,
            BeforeValidator,
            ConfigDict,
            Field,
            TypeAdapter,
            ValidationError,
            field_validator,
            model_validator,
        )
    except ImportError as exc:
        MISSING["pydantic>=2.6"] = exc

        class BaseModel:
            """Stands in so that the modules which declare models can be imported."""

        class TypeAdapter:
            """Stands in for pydantic's."""

        class ValidationError(ValueError):
            """Stands in for pydantic's error."""

        def BeforeValidator(*args: Any, **kwargs: Any) -> Any:
            return None

        def ConfigDict(**kwargs: Any) -> Any:
            return kwargs

        def Field(*args: Any, **kwargs: Any) -> Any:
            return None

        def field_validator(*args: Any, **kwargs: Any) -> Any:
            return lambda function: function

        def model_validator(*args: Any, **kwargs: Any) -> Any:
            return lambda function: function


if importlib.util.find_spec("openpyxl") is None:
    MISSING["openpyxl>=3.1"] = ImportError("No module named 'openpyxl'")


def __getattr__(name: str) -> Any:
    # Only the workbook needs it, and loading it takes as long as loading pydantic.
    if name == "openpyxl":
        return None if "openpyxl>=3.1" in MISSING else importlib.import_module(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def require(*names: str) -> None:
    """Raise ImportError naming all missing packages among C(names) (all known ones if none is given).

    The text is meant for the user: action plugins turn it into their failure message.
    """
    missing = [spec for spec in MISSING if not names or spec.split(">=")[0] in names]
    if missing:
        raise ImportError(
            f"Python on the controller lacks {', '.join(missing)}: "
            f"run `pip install {' '.join(repr(item) for item in missing)}`"
        )


__all__ = [
    "MISSING",
    "BaseModel",
    "BeforeValidator",
    "ConfigDict",
    "Field",
    "TypeAdapter",
    "ValidationError",
    "field_validator",
    "model_validator",
    "require",
]
