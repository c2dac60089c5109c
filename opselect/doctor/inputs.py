"""What a user hands to the doctor, as a flat list of tensors with names, and the way back to the user's structure."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opselect._tensorflow import keras, tf
from opselect.doctor.sources import one_line

__all__ = ["Arguments", "GradientCheckError", "is_differentiable", "read_arguments", "to_numpy", "variable_names"]

Array = Any
Tensor = Any


class GradientCheckError(RuntimeError):
    """The function can't be checked: it raised, returned no tensor, or was given inputs it can't take."""


@dataclasses.dataclass(frozen=True)
class _Slot:
    """Stands for the flat tensor with this index in the structure that `Arguments.rebuild` walks."""

    index: int


@dataclasses.dataclass(frozen=True)
class _Composite:
    """Stands for a RaggedTensor, SparseTensor, ... made of these flat tensors."""

    template: Any
    slots: tuple[_Slot, ...]


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The inputs of a function, flattened.

    Attributes:
        tensors: everything that was made a tensor, floating or not.
        names: one name for each of `tensors`, such as ``x``, ``x[0]`` or ``batch['image']``.
        variables: the tf.Variables among the inputs, with their names.
    """

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...]
    variables: tuple[tuple[str, Any], ...]
    structure: tuple[Any, ...]

    def rebuild(self, tensors: Sequence[Tensor]) -> list[Any]:
        """The positional arguments of the function with these tensors in place of the original ones."""
        return [_fill(part, tensors) for part in self.structure]


def is_differentiable(value: Any) -> bool:
    """Whether values of this dtype have gradients."""
    return value.dtype.is_floating or value.dtype.is_complex


def to_numpy(tensor: Tensor) -> Array:
    """The tensor's values; bfloat16 as float32, since NumPy's functions don't take it."""
    value = tensor.numpy()
    return value.astype(np.float32) if tensor.dtype == tf.bfloat16 else value


def read_arguments(fn: Callable[..., Any], inputs: Sequence[Any]) -> Arguments:
    """Flattens `inputs` and names each tensor by the parameter of `fn` that receives it.

    Raises:
        GradientCheckError: `fn` can't be called with this many inputs, or an input can't be made a tensor.
    """
    tensors: list[Tensor] = []
    names: list[str] = []
    variables: list[tuple[str, Any]] = []

    def slot(tensor: Tensor, name: str) -> _Slot:
        tensors.append(tensor)
        names.append(name)
        return _Slot(len(tensors) - 1)

    def read(value: Any, name: str) -> Any:
        if isinstance(value, keras.Variable):
            value = value.value
        if isinstance(value, tf.Variable):
            variables.append((name, value))
            return value
        if isinstance(value, tf.Tensor):
            return slot(value, name)
        if isinstance(value, tf.__internal__.CompositeTensor):
            parts = tf.nest.flatten(value, expand_composites=True)
            return _Composite(value, tuple(slot(part, f"{name}.component{i}") for i, part in enumerate(parts)))
        if isinstance(value, float | complex | np.ndarray | np.generic) or _is_numbers(value):
            try:
                return slot(_tensor(value), name)
            except (TypeError, ValueError) as error:
                raise GradientCheckError(f"input {name!r} can't be made a tensor: {one_line(error)}") from error
        if isinstance(value, Mapping):
            return {key: read(part, f"{name}[{key!r}]") for key, part in value.items()}
        if isinstance(value, list | tuple):
            parts = [read(part, f"{name}[{i}]") for i, part in enumerate(value)]
            if isinstance(value, list):
                return parts
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return value  # ints, bools, strings, None and objects of the user's own are settings, not inputs

    structure = tuple(read(v, n) for v, n in zip(inputs, _parameter_names(fn, inputs), strict=True))
    return Arguments(tuple(tensors), tuple(names), tuple(variables), structure)


def variable_names(fn: Callable[..., Any], variables: Sequence[Any]) -> list[str]:
    """A distinct name for each variable: its path, or what the function calls it where it was given no name."""
    called: dict[int, str] = {}
    for name, value in _captured_names(fn):
        called.setdefault(id(value.value if isinstance(value, keras.Variable) else value), name)
    names: list[str] = []
    for variable in variables:
        name = str(variable.name).removesuffix(":0")
        name = called.get(id(variable), name) if name.startswith("Variable") else name
        same = sum(n == name or n.startswith(f"{name} #") for n in names)
        names.append(name if not same else f"{name} #{same + 1}")
    return names


def _captured_names(fn: Any) -> list[tuple[str, Any]]:
    """What a function can see, and what is in its lists and dictionaries and those of its object, by name."""
    function = inspect.unwrap(getattr(fn, "python_function", fn))
    seen: list[tuple[str, Any]] = []
    owner = getattr(function, "__self__", None)
    if owner is not None:
        seen += [(f"{type(owner).__name__}.{n}", v) for n, v in getattr(owner, "__dict__", {}).items()]
    try:
        captured = inspect.getclosurevars(function)
        seen += [*captured.nonlocals.items(), *captured.globals.items()]
    except (TypeError, ValueError):
        pass
    for name, value in list(seen):
        if isinstance(value, list | tuple):
            seen += [(f"{name}[{i}]", part) for i, part in enumerate(value)]
        elif isinstance(value, dict):
            seen += [(f"{name}[{key!r}]", part) for key, part in value.items()]
    return seen


def _fill(part: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(part, _Slot):
        return tensors[part.index]
    if isinstance(part, _Composite):
        return tf.nest.pack_sequence_as(part.template, [tensors[s.index] for s in part.slots], expand_composites=True)
    if isinstance(part, dict):
        return {key: _fill(value, tensors) for key, value in part.items()}
    if isinstance(part, list):
        return [_fill(value, tensors) for value in part]
    if isinstance(part, tuple):
        filled = [_fill(value, tensors) for value in part]
        return type(part)(*filled) if hasattr(part, "_fields") else tuple(filled)
    return part


def _is_numbers(value: Any) -> bool:
    """Whether a nested list holds numbers only, and so means an array; a tuple of ints is a shape or axes."""
    if not isinstance(value, list | tuple) or hasattr(value, "_fields"):
        return False
    leaves = tf.nest.flatten(value)
    if not leaves or not all(isinstance(leaf, bool | int | float | complex | np.generic) for leaf in leaves):
        return False
    return isinstance(value, list) or any(isinstance(leaf, float | complex | np.floating) for leaf in leaves)


def _tensor(value: Any) -> Tensor:
    if isinstance(value, np.ndarray | np.generic):
        return tf.constant(value)
    keeps = any(isinstance(leaf, np.generic) for leaf in tf.nest.flatten(value))
    return tf.constant(np.asarray(value)) if keeps else tf.constant(value)


def _parameter_names(fn: Any, inputs: Sequence[Any]) -> list[str]:
    """The name of the parameter that takes each positional input."""
    # A Keras layer's own __call__ takes (*args, **kwargs); `call` has the names.
    target = fn.call if isinstance(fn, keras.layers.Layer) else fn
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return [f"input {i}" for i in range(len(inputs))]
    try:
        signature.bind(*inputs)
    except TypeError as error:
        wanted = [n for n, p in signature.parameters.items() if p.kind is not p.KEYWORD_ONLY]
        given = f"{len(inputs)} input{'s were' if len(inputs) != 1 else ' was'} given"
        raise GradientCheckError(f"the function takes ({', '.join(wanted)}), but {given}: {error}") from None
    names: list[str] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{name}[{i}]" for i in range(len(inputs) - len(names))]
        elif parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            names.append(name)
    return names[: len(inputs)]
