"""The gradients that TensorFlow itself gives, eagerly, in a tf.function and under XLA."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opselect._tensorflow import quiet_stderr, tf
from opselect.doctor.inputs import Arguments, GradientCheckError, is_differentiable, to_numpy
from opselect.doctor.sources import one_line, user_line

__all__ = ["MODES", "Gradients", "Subject", "quietly"]

MODES = ("eager", "graph", "xla")

Array = Any
Tensor = Any


@dataclasses.dataclass(frozen=True)
class Gradients:
    """What one mode gives: the outputs, and for each source its gradient, or None where TensorFlow gives None."""

    outputs: list[Array]
    gradients: list[Array | None]


class Subject:
    """A function with its inputs, the variables it reads, and the projection of its outputs that is differentiated.

    Every run but the first puts the variables back, so that all runs start from the same state.

    Attributes:
        inputs: which of the arguments' flat tensors are differentiated.
        variables: the variables that are differentiated, those among the inputs first.
        outputs: what the first run returned, flat.
        weights: for each floating output, its weight in the projection.
        refused: what TensorFlow said where it has no gradient for an operation and raised instead of giving None.
    """

    def __init__(self, fn: Callable[..., Any], arguments: Arguments, seed: int) -> None:
        self.fn = fn
        self.arguments = arguments
        self.inputs = [i for i, t in enumerate(arguments.tensors) if is_differentiable(t)]
        given = [v for _, v in arguments.variables]
        first, watched = self._first_run()
        self.captured = [v for v in watched if is_differentiable(v) and all(v is not g for g in given)]
        self.variables = [*(v for v in given if is_differentiable(v)), *self.captured]
        self.outputs = first
        self.refused: list[str] = []
        rng = np.random.default_rng(seed)
        self.weights: list[Tensor] = []
        for output in self.outputs:
            if is_differentiable(output):
                weight = rng.uniform(0.5, 1.5, output.shape)  # positive and uneven: nothing cancels by symmetry
                self.weights.append(tf.cast(tf.constant(weight), output.dtype))
        self._state: list[tuple[Any, Tensor]] = []
        self.remember(())

    def _first_run(self) -> tuple[list[Tensor], Sequence[Any]]:
        with tf.GradientTape() as tape:
            try:
                outputs = self.call(*self.arguments.tensors)
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                line = user_line((f.filename, f.lineno or 0, f.line) for f in reversed(frames))
                where = f" at {line}" if line else ""
                raise GradientCheckError(
                    f"the function raised {type(error).__name__}{where}: {one_line(error)}"
                ) from error
        if not outputs:
            raise GradientCheckError("the function must return a tensor or a structure of tensors, and returned none")
        return outputs, tape.watched_variables()

    def call(self, *tensors: Tensor) -> list[Tensor]:
        """The function as one from flat tensors to flat tensors."""
        return _flatten(self.fn(*self.arguments.rebuild(tensors)))

    def trace(self) -> Any:
        """The function as a ConcreteFunction.

        Raises:
            Exception: whatever is raised where the function can't be traced.
        """
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in self.arguments.tensors]
        traced = quietly(lambda: tf.function(self.call).get_concrete_function(*specs))
        self.remember(traced.graph.variables)
        return traced

    def remember(self, variables: Sequence[Any]) -> None:
        """Notes the values to which `restore` sets the differentiated variables and these."""
        distinct = {id(v): v for v in (*self.variables, *variables)}
        self._state = [(v, tf.identity(v)) for v in distinct.values()]

    def restore(self) -> None:
        """Undoes what runs of the function did to its variables."""
        for variable, value in self._state:
            variable.assign(value)

    def run(self, mode: str, tensors: Sequence[Tensor] | None = None) -> Gradients:
        """The outputs and gradients in a mode, at these values of the arguments' flat tensors or at their own.

        Raises:
            Exception: whatever TensorFlow raises where it can't trace or compile the function.
        """
        given = self.arguments.tensors if tensors is None else tensors
        run: Any = self._differentiate
        if mode != "eager":
            run = tf.function(run, jit_compile=mode == "xla")
        try:
            outputs, gradients = quietly(lambda: run(*given))
            return Gradients([to_numpy(t) for t in outputs], [None if g is None else to_numpy(g) for g in gradients])
        finally:
            self.restore()

    def _differentiate(self, *flat: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
        sources = [*(flat[i] for i in self.inputs), *self.variables]
        try:
            return self._gradients(flat, sources)
        except LookupError:  # TensorFlow has no gradient for some operation; not every source need depend on it
            pass
        outputs: list[Tensor] = []
        found: list[Tensor | None] = []
        for source in sources:
            try:
                outputs, gradients = self._gradients(flat, [source])
                found += gradients
            except LookupError as error:
                self.refused.append(one_line(error))
                found.append(None)
        return outputs or self.call(*flat), found

    def _gradients(self, flat: Sequence[Tensor], sources: list[Any]) -> tuple[list[Tensor], list[Tensor | None]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            outputs = self.call(*flat)
        wanted = [t for t in outputs if is_differentiable(t)]
        if not wanted or not sources:
            return outputs, [None] * len(sources)
        found = tape.gradient(wanted, sources, output_gradients=self.weights)
        return outputs, [None if g is None else tf.convert_to_tensor(g) for g in found]

    def jittered(self, seed: int, sign: float, mode: str) -> Gradients:
        """A mode's gradients a little beside the inputs and the variables, all moved at once.

        With the other sign everything moves the other way, so that one of the two is beyond a border.
        """
        rng = np.random.default_rng(seed)

        def move(tensor: Tensor) -> Tensor:
            value = tf.convert_to_tensor(tensor)
            wide = np.asarray(to_numpy(value), np.complex128 if value.dtype.is_complex else np.float64)
            size = np.where(np.isfinite(wide), 0.01 * np.maximum(np.abs(wide), 1.0), 0.0)
            direction = sign * rng.choice([-1.0, 1.0], wide.shape) * rng.uniform(0.5, 1.5, wide.shape)
            return tf.cast(tf.constant(wide + size * direction), value.dtype)

        tensors = list(self.arguments.tensors)
        for i in self.inputs:
            tensors[i] = move(tensors[i])
        for variable in self.variables:
            variable.assign(move(variable))
        return self.run(mode, tensors)


def quietly(function: Callable[[], Any]) -> Any:
    """Calls it without AutoGraph's warnings and XLA's log lines; the user gets what matters of them as notes."""
    logger = tf.get_logger()
    level, raised = logger.level, None
    logger.setLevel("ERROR")
    try:
        with quiet_stderr():
            try:
                return function()
            except Exception as error:  # kept back: leaving the block with it would print the log after all
                raised = error
        raise raised
    finally:
        logger.setLevel(level)


def _flatten(structure: Any) -> list[Tensor]:
    """The tensors of what a function returned; variables and numbers become tensors, other objects are left out."""

    def read(value: Any) -> Any:
        if isinstance(value, tf.Variable | np.ndarray | np.generic | float):
            return tf.convert_to_tensor(value)
        return tf.convert_to_tensor(value.value) if hasattr(value, "path") and hasattr(value, "value") else value

    flat = tf.nest.flatten(tf.nest.map_structure(read, structure), expand_composites=True)
    return [t for t in flat if isinstance(t, tf.Tensor)]
