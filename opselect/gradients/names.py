"""Which estimators a report compares, and the name of each."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from opselect.estimators import ESTIMATORS, Estimator, Exact, as_estimator

__all__ = ["named_estimators"]


def named_estimators(estimators: Any, cap: int) -> dict[str, Estimator]:
    """Names and estimators of what `gradient_report` accepts; 'exact' given by name enumerates up to `cap` outcomes.

    Raises:
        ValueError: none, two of one name, or an unknown name (the nearest one is given).
        TypeError: something that is not an estimator.
    """
    if isinstance(estimators, Mapping):
        named = [(str(name), e) for name, e in estimators.items()]
    else:
        if estimators is None:
            estimators = ESTIMATORS
        elif isinstance(estimators, str | Estimator):
            estimators = (estimators,)
        named = [(e, _by_name(e, cap)) if isinstance(e, str) else (_name_of(e), e) for e in estimators]
    if not named:
        raise ValueError("estimators must name at least one")
    for name, e in named:
        if isinstance(e, type) or not isinstance(e, Estimator):
            raise TypeError(f"estimators must be names or Estimator instances, got {e!r} for {name!r}")
    name, times = Counter(name for name, _ in named).most_common(1)[0]
    if times > 1:
        raise ValueError(f"estimators must have different names, got {name!r} twice; use a mapping to name them")
    return dict(named)


def _by_name(name: str, cap: int) -> Estimator:
    estimator = as_estimator(name)
    return dataclasses.replace(estimator, cap=cap) if isinstance(estimator, Exact) else estimator


def _name_of(estimator: Any) -> str:
    """Its name in the registry, or its class with the parameters that are not defaults."""
    for name, known in ESTIMATORS.items():
        if type(known) is type(estimator) and repr(known) == repr(estimator):
            return name
    if not dataclasses.is_dataclass(estimator):
        return type(estimator).__name__
    changed = [
        f"{field.name}={getattr(estimator, field.name)!r}"
        for field in dataclasses.fields(estimator)
        if repr(getattr(estimator, field.name)) != repr(field.default)
    ]
    return f"{type(estimator).__name__}({', '.join(changed)})"
