"""opselect: train networks that choose an operation, see which method works, and trust the answer.

Submodules are imported on first use, so ``import opselect`` is quick and starts no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_SUBMODULES = ("comparison", "estimators", "experiments", "learners", "numerics", "policy", "random", "report")

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"opselect.{name}")
    raise AttributeError(f"module 'opselect' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES])
