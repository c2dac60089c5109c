"""An objective at given logits, tried out: its shapes, whether it compiles, whether it has a gradient."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax

from opselect._tensorflow import tf
from opselect.estimators import InvalidShapeError

__all__ = ["Subject", "draw", "first_line", "generator"]

Tensor = Any
Array = np.ndarray

_CALL_ROWS = 2**14  # the most evaluations (N * B) in one call of the objective, and the most weights,
_CALL_FLOATS = 2**20  # as long as one estimate fits


@dataclass(frozen=True)
class Subject:
    """An objective at given logits, and what is known of it.

    Attributes:
        objective: from weights [N, *shape] to losses [N] or [N, B].
        shape: of the logits as the user gave them.
        logits: [B, D, K] float32.
        probabilities: [B, D, K] float64.
        compiled: whether it can run inside a `tf.function`.
        no_gradient: why relaxations don't apply; None where they do.
    """

    objective: Callable[[Tensor], Any]
    shape: tuple[int, ...]
    logits: Array
    probabilities: Array
    compiled: bool = False
    no_gradient: str | None = None

    @property
    def batch(self) -> int:
        """B."""
        return self.logits.shape[0]

    @property
    def decisions(self) -> int:
        """D."""
        return self.logits.shape[1]

    @property
    def operations(self) -> int:
        """K."""
        return self.logits.shape[2]

    @property
    def chunk(self) -> int:
        """How many N go into one call."""
        return max(1, min(_CALL_ROWS // self.batch, _CALL_FLOATS // self.logits.size))

    @staticmethod
    def of(objective: Callable[[Tensor], Any], logits: Any, seed: int) -> Subject:
        """Checks the logits and tries the objective out.

        Raises:
            InvalidShapeError: logits or losses of the wrong shape.
            ValueError: logits that are not finite, losses that differ from call to call.
            TypeError: losses that are not real numbers.
        """
        array = np.asarray(logits, np.float32)
        if array.ndim not in (1, 2, 3) or array.size == 0:
            raise InvalidShapeError(f"logits must be [K], [D, K] or [B, D, K], got shape {array.shape}")
        if array.shape[-1] < 2:
            raise InvalidShapeError(f"logits must offer at least K = 2 operations, got shape {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"logits must be finite, got {array[~np.isfinite(array)][0]}")
        full = array.reshape((1,) * (3 - array.ndim) + array.shape)
        subject = Subject(objective, array.shape, full, softmax(full.astype(np.float64), axis=-1))
        # N differs from B, D and K, so no axis can be taken for another.
        n = next(n for n in itertools.count(3) if n not in array.shape)
        hard = subject.one_hots(draw(generator(seed, 0), subject.probabilities, n))
        first, again = subject.evaluate(hard), subject.evaluate(hard)
        if not _alike(first, again):
            raise ValueError(
                "objective returned different losses for the same weights; hold its noise fixed (a constant seed, no"
                " dropout), or no bias can be told from it"
            )
        soft = np.broadcast_to(subject.probabilities, (n, *full.shape)).astype(np.float32)
        try:
            at_soft: Array | None = subject.evaluate(soft)
        except Exception:  # a black box may accept one-hots only
            at_soft = None
        # At soft weights, too: a graph may simplify a NaN away that eager mode shows.
        compiled = subject.compiles_to(hard, first) and (at_soft is None or subject.compiles_to(soft, at_soft))
        return dataclasses.replace(subject, compiled=compiled, no_gradient=subject.why_no_gradient(soft))

    def losses_shape(self, count: int) -> list[int]:
        """The shape of N losses: [N, B], or [N] for logits without rows."""
        return [count, self.batch] if len(self.shape) == 3 else [count]

    def losses(self, weights: Tensor) -> Tensor:
        """Losses [N, B] or [N] of weights [N, *shape], eagerly or in a graph, checked."""
        losses = tf.convert_to_tensor(self.objective(weights))
        if not (losses.dtype.is_floating or losses.dtype.is_integer or losses.dtype.is_bool):
            raise TypeError(f"objective must return real losses, got dtype {losses.dtype.name}")
        wanted = self.losses_shape(weights.shape[0])
        if not losses.shape.is_compatible_with(wanted):
            raise InvalidShapeError(
                f"objective returned losses of shape {losses.shape} for weights {weights.shape}; they must be"
                f" {'[N]' if len(wanted) == 1 else '[N, B]'} = {tuple(wanted)}"
            )
        return tf.ensure_shape(losses, wanted)  # a py_function's shape is only known at run time

    def losses_in_step(self, weights: Tensor) -> Tensor:
        """The same in float32, where what can't be compiled runs eagerly within a graph."""
        if self.compiled or tf.executing_eagerly():
            return tf.cast(self.losses(weights), tf.float32)
        losses = tf.py_function(lambda w: tf.cast(self.losses(w), tf.float32), [weights], tf.float32)
        return tf.ensure_shape(losses, self.losses_shape(weights.shape[0]))

    def evaluate(self, weights: Array) -> Array:
        """Losses [N, B] float64 of weights [N, B, D, K], eagerly, in as many calls as it takes."""
        parts = [
            self.losses(self._inputs(weights[i : i + self.chunk])).numpy() for i in range(0, len(weights), self.chunk)
        ]
        return np.concatenate(parts).astype(np.float64).reshape(len(weights), self.batch)

    def one_hots(self, codes: Array) -> Array:
        """One-hots [..., K] of choices [...]."""
        return np.eye(self.operations, dtype=np.float32)[codes]

    def compiles_to(self, weights: Array, losses: Array) -> bool:
        """Whether the objective gives the same losses inside a `tf.function`, as Python side effects might not."""
        inputs = self._inputs(weights)
        try:
            compiled = tf.function(self.losses, autograph=False).get_concrete_function(inputs)(inputs)
        except Exception:  # whatever a black box raises on a symbolic tensor
            return False
        return _alike(compiled.numpy().astype(np.float64).reshape(losses.shape), losses)

    def why_no_gradient(self, weights: Array) -> str | None:
        """Why the objective can't be differentiated at soft weights, or None if it can."""
        inputs = self._inputs(weights)
        try:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                losses = self.losses(inputs)
            gradient = tape.gradient(losses, inputs) if losses.dtype.is_floating else None
        except Exception as error:
            return f"the objective fails at soft weights ({first_line(error)})"
        return "the objective has no gradient in the weights" if gradient is None else None

    def _inputs(self, weights: Array) -> Tensor:
        """Weights [N, B, D, K] as the objective takes them."""
        return tf.constant(weights.reshape(-1, *self.shape), tf.float32)


def _alike(a: Array, b: Array) -> bool:
    finite = np.abs(b[np.isfinite(b)])
    return np.allclose(a, b, rtol=1e-4, atol=1e-6 * float(finite.max(initial=0.0)), equal_nan=True)


def first_line(error: BaseException) -> str:
    """The class of an error and the first line of its message."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:200]}"


def generator(seed: int, stream: int) -> np.random.Generator:
    """NumPy's generator of any seed, which may be negative here; one independent stream per number."""
    return np.random.default_rng([seed & 0x7FFFFFFF, (seed >> 31) & 0x7FFFFFFF, stream])


def draw(rng: np.random.Generator, probabilities: Array, count: int) -> Array:
    """Choices [count, B, D] by inverse transform; none of probability 0."""
    cumulative = probabilities.cumsum(-1)
    u = rng.random((count, *probabilities.shape[:-1], 1))
    return (cumulative / cumulative[..., -1:] <= u).sum(-1)
