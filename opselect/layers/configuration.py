"""What a selector is made of, checked, and how it is stored in a Keras file."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

from opselect._tensorflow import keras, tf
from opselect.estimators import ESTIMATORS
from opselect_envs.operations import OPERATIONS, InvalidOperationError, Operation, as_operation

__all__ = [
    "as_choosable",
    "estimator_config",
    "estimator_from",
    "name_of",
    "names_of",
    "operands_of",
    "operation_config",
    "operation_from",
    "scheduled",
    "value_config",
    "value_from",
]


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
    for i, operation in enumerate(found):
        if any(operation is other for other in found[:i]):
            raise InvalidOperationError(f"operations holds {name_of(operation)!r} more than once: {names_of(found)}")
    return found


def names_of(operations: Sequence[Any]) -> list[str]:
    """A name for each operation; callables that share one are numbered."""
    names: list[str] = []
    for operation in operations:
        name, count = name_of(operation), 1
        while name in names:
            name, count = f"{name_of(operation)}_{count}", count + 1
        names.append(name)
    return names


def operands_of(operation: Any, given: int) -> int:
    """How many of the given operands a callable takes: its positional parameters without a default."""
    try:
        parameters = inspect.signature(operation.call if isinstance(operation, keras.layers.Layer) else operation)
    except (TypeError, ValueError):  # built in C
        return given
    kinds = parameters.parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in kinds):
        return given
    positional = [p for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return min(given, max(1, len(positional)))


def name_of(operation: Any) -> str:
    """What an operation is called where names are shown."""
    return str(getattr(operation, "name", None) or getattr(operation, "__name__", None) or type(operation).__name__)


def operation_config(operation: Any) -> Any:
    """An operation, as it is stored: the name of an `Operation`, Keras' description of a callable."""
    if isinstance(operation, Operation):
        return operation.name
    name = name_of(operation)
    hint = f"take the operation {name!r} of the catalogue, or " if name in OPERATIONS else ""
    return _keras_config("operation", operation, hint)


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
    if not dataclasses.is_dataclass(estimator):
        raise ValueError(f"estimator {type(estimator).__name__} can't be saved; make it a dataclass")
    name = keras.saving.get_registered_name(type(estimator))
    return {"name": name, "parameters": dataclasses.asdict(estimator)}  # pyright: ignore[reportArgumentType]


def estimator_from(config: Any) -> Any:
    """The inverse of `estimator_config`."""
    name, parameters = config["name"], config["parameters"]
    if name in ESTIMATORS:
        return type(ESTIMATORS[name])(**parameters)
    own = keras.saving.get_registered_object(name)
    if own is None:
        raise ValueError(
            f"estimator {name!r} is not one of the package; load with custom_objects={{{name!r}: its class}}"
        )
    return own(**parameters)


def scheduled(value: Any, step: Any) -> Any:
    """A number, or what a `keras.optimizers.schedules.LearningRateSchedule` says at a step."""
    return tf.cast(value(step), tf.float32) if callable(value) else value


def value_config(value: Any) -> Any:
    """A number as it is; a schedule or a registered function as Keras describes it.

    Raises:
        ValueError: a callable that could not be loaded again.
    """
    return _keras_config("function", value) if callable(value) else value


def _keras_config(kind: str, value: Any, hint: str = "") -> Any:
    try:
        config = keras.saving.serialize_keras_object(value)
        keras.saving.deserialize_keras_object(config)  # what can't be loaded again must not be saved
    except Exception as error:
        raise ValueError(
            f"{kind} {name_of(value)!r} can't be saved; {hint}wrap it in a function that is decorated with"
            " keras.saving.register_keras_serializable()"
        ) from error
    return config


def value_from(config: Any) -> Any:
    """The inverse of `value_config`."""
    return keras.saving.deserialize_keras_object(config) if isinstance(config, dict) else config
