"""Models of PyTorch's modules: what makes them is imported where there is one to make."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from glnn.errors import ModelError, extra


def imported(module: Any, example: Any, dynamic: bool, name: str | None) -> Any:
    """See `Model.from_torch`. Raises ModelError where PyTorch is missing, too."""
    try:
        importing = import_module("glnn.torch.importing")
    except ImportError as error:
        raise ModelError(
            f"Model.from_torch needs {error.name}, which is not installed: {extra('torch')}"
        ) from None
    return importing.from_torch(module, example, dynamic, name)
