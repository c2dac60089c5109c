"""opselect: train networks that choose an operation, see which method works, and trust the answer.

Submodules are imported on first use, so ``import opselect`` is quick and starts no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_SUBMODULES = (
    "comparison",
    "doctor",
    "estimators",
    "experiments",
    "gradients",
    "layers",
    "learners",
    "masks",
    "models",
    "namespace",
    "numerics",
    "policy",
    "random",
    "report",
)
# What a TensorFlow or Keras user writes as opselect.<name>, by the submodule that holds it.
_HOMES = {
    "doctor": ("check_gradients",),
    "gradients": ("gradient_report",),
    "layers": ("OperationSelector",),
    "models": ("SelectorModel", "load_model"),
    "masks": ("mask", "mask_gap", "one_hot_argmax", "soft_mask", "with_surrogate_gradient"),
    "numerics": (
        "acos",
        "acosh",
        "apply",
        "asin",
        "atan2",
        "atanh",
        "cbrt",
        "cosh",
        "divide",
        "entmax15",
        "exp",
        "expm1",
        "hypot",
        "log",
        "log1p",
        "logsumexp",
        "mod",
        "norm",
        "pow",
        "sinh",
        "softmax_entropy",
        "sparsemax",
        "sqrt",
        "where",
    ),
}
_ATTRIBUTES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"opselect.{name}")
    if name in _ATTRIBUTES:
        value = getattr(importlib.import_module(f"opselect.{_ATTRIBUTES[name]}"), name)
        globals()[name] = value  # found directly from now on
        return value
    from opselect_envs.naming import nearest

    near = nearest(name, (*_ATTRIBUTES, *_SUBMODULES))
    raise AttributeError(f"module 'opselect' has no attribute {name!r}; did you mean {near!r}?")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES, *_ATTRIBUTES])
