"""What a selector is made of, checked, and how it is stored in a Keras file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from opselect._tensorflow import keras
from opselect.estimators import ESTIMATORS
from opselect_envs.operations import OPERATIONS, InvalidOperationError, Operation, as_operation

__all__ = ["as_choosable", "estimator_config", "estimator_from", "name_of", "operation_config", "operation_from"]


def as_choosable(operations: Any) -> list[Any]:
    """Looks up names and checks that all can be called."""
    if isinstance(operations, str) or not isinstance(operations, Sequence):
        raise InvalidOperationError(f"operations must be a sequence of operations, got {operations!r}")
    found = [as_operation(o) if isinstance(o, str | Operation) else o for o in operations]
    for operation in found:
        if not callable(operation):
            raise InvalidOperationError(f"operations must be names, Operations or callables, got {operation!r}")
    if len(found) < 2:
        raise InvalidOperationError(f"operations must hold at least 2 operations to choose from, got {len(found)}")
    names = [name_of(o) for o in found]
    for name in names:
        if names.count(name) > 1 and name != "<lambda>":
            raise InvalidOperationError(f"operations holds {name!r} more than once: {names}")
    return found


def name_of(operation: Any) -> str:
    """What an operation is called where names are shown."""
    return str(getattr(operation, "name", None) or getattr(operation, "__name__", None) or type(operation).__name__)


def operation_config(operation: Any) -> Any:
    """An operation, as it is stored: the name of an `Operation`, Keras' description of a callable."""
    if isinstance(operation, Operation):
        return operation.name
    try:
        return keras.saving.serialize_keras_object(operation)
    except Exception as error:
        raise ValueError(
            f"operation {name_of(operation)!r} can't be saved; decorate it with"
            " keras.saving.register_keras_serializable()"
        ) from error


def operation_from(config: Any) -> Any:
    """The inverse of `operation_config`."""
    if not isinstance(config, str):
        return keras.saving.deserialize_keras_object(config)
    if config in OPERATIONS:
        return config
    own = keras.saving.get_registered_object(config)
    if own is None:
        raise ValueError(
            f"operation {config!r} is not of the catalogue; load with custom_objects={{{config!r}: the_operation}}"
        )
    return own


def estimator_config(estimator: Any) -> Any:
    """An estimator, as it is stored: its plain name and its parameters."""
    for name, known in ESTIMATORS.items():
        if type(known) is type(estimator):
            return {"name": name, "parameters": dataclasses.asdict(estimator)}
    return keras.saving.serialize_keras_object(estimator)


def estimator_from(config: Any) -> Any:
    """The inverse of `estimator_config`."""
    if set(config) == {"name", "parameters"}:
        estimator: Any = ESTIMATORS[config["name"]]
        return dataclasses.replace(estimator, **config["parameters"])
    return keras.saving.deserialize_keras_object(config)
