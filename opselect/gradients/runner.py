"""Runs one gradient estimator on an objective, as a trainer would, many times side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from opselect._tensorflow import tf
from opselect.estimators import Estimator
from opselect.gradients.objective import Subject, first_line
from opselect.gradients.reference import GROUPS
from opselect.random import as_seed

__all__ = ["InapplicableError", "Runner"]

Tensor = Any
Array = np.ndarray

_WARM_UP = 64  # batches before a stateful estimator is measured, unless its `warm_up` or `decay` says otherwise
_TIMED_SECONDS = 0.2


class InapplicableError(Exception):
    """Why an estimator does not apply to the objective."""


@contextlib.contextmanager
def _foreign_code() -> Iterator[None]:
    """Around an estimator and the objective, which may raise anything at weights they were not written for."""
    try:
        yield
    except InapplicableError:
        raise
    except Exception as error:
        raise InapplicableError(f"failed with {first_line(error)}") from error


class Runner:
    """Makes estimates of one estimator: M at a time, as M replicas of the given batch.

    Attributes:
        draws: whether an estimate depends on the seed or on a state.
        stateful: whether the estimator keeps a state.
        enumerated: whether it evaluates every outcome.

    Every method, and making one, raises an `InapplicableError` where the estimator or the objective fails.
    """

    def __init__(self, subject: Subject, estimator: Estimator, expected: Array) -> None:
        """Tries the estimator out; `expected` [B] is what it gets for a learned value."""
        self.subject, self.estimator = subject, estimator
        self.value = tf.constant(expected, tf.float32)
        self.compiled = True
        self.enumerated = False
        logits = self._logits(1)
        with _foreign_code():
            state = estimator.init(logits)
        self.stateful = bool(tf.nest.flatten(state))
        self.draws = self._reads_seed(logits, state) or self.stateful

    def estimates(self, stream: np.random.Generator, count: int, evaluations: int) -> Iterator[tuple[Array, Array]]:
        """At least `count` estimates, in blocks of gradients [M, B, D, K] and the group [M] in [0, G) of each."""
        most = max(1, self.subject.chunk // evaluations)
        if self.stateful:
            # Many short chains: each pays for its own warm-up, but chains are independent.
            most = min(most, max(2 * GROUPS, math.ceil(count / self._warm_up())))
        calls = math.ceil(count / most)
        replicas = math.ceil(count / calls)
        step, state = self._step(replicas), self.estimator.init(self._logits(replicas))
        for _ in range(self._warm_up()):
            _, state = step(_draw_seed(stream), state)
        for call in range(calls):
            gradient, new = step(_draw_seed(stream), state)
            state = new if self.stateful else state
            place = (call + calls * np.arange(replicas)) / (calls * replicas)
            yield gradient.numpy(), (place * GROUPS).astype(int)

    def microseconds(self) -> float:
        """The median time of a call for one batch, after a first call that traces."""
        step, state = self._step(1), self.estimator.init(self._logits(1))
        seed = as_seed(0)
        step(seed, state)[0].numpy()
        times: list[float] = []
        end = time.perf_counter() + _TIMED_SECONDS
        while len(times) < 3 or (time.perf_counter() < end and len(times) < 200):
            start = time.perf_counter()
            step(seed, state)[0].numpy()
            times.append(time.perf_counter() - start)
        return 1e6 * float(np.median(times))

    def _logits(self, replicas: int) -> Tensor:
        return tf.broadcast_to(tf.constant(self.subject.logits), [replicas, *self.subject.logits.shape])

    def _reads_seed(self, logits: Tensor, state: Any) -> bool:
        """Whether a proposal depends on the seed; read off the graph, as samples may coincide."""

        def propose(seed: Tensor) -> Tensor:
            proposal = self.estimator.propose(logits, state, seed)
            self.enumerated = bool(proposal.enumerated)
            return proposal.weights

        try:
            graph = tf.function(propose, autograph=False).get_concrete_function(tf.TensorSpec([2], tf.int32))
        except Exception:  # an estimator that can't be traced, or not be used
            with _foreign_code():
                propose(as_seed(0))
            return True
        return bool(graph.inputs[0].consumers())

    def _step(self, replicas: int) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
        """From (seed [2], state) to (gradients [M, B, D, K], state), compiled if that works."""
        subject, estimator = self.subject, self.estimator

        def step(seed: Tensor, state: Any) -> tuple[Tensor, Any]:
            logits = self._logits(replicas)
            with tf.GradientTape() as tape:
                tape.watch(logits)
                proposal = estimator.propose(logits, state, seed)
                if estimator.needs_value:
                    value = tf.broadcast_to(self.value, [replicas, subject.batch])
                    proposal = dataclasses.replace(proposal, value=value)
                evaluations = proposal.weights.shape[0]
                weights = tf.reshape(proposal.weights, [evaluations * replicas, *subject.shape])
                losses = tf.reshape(subject.losses_in_step(weights), [evaluations, replicas, subject.batch])
                surrogate, state = estimator.surrogate(losses, [proposal], state)
            gradient = tape.gradient(surrogate, logits)
            if gradient is None:
                raise InapplicableError("its surrogate does not depend on the logits")
            return gradient, state

        concrete: Any = None

        def try_compiled(seed: Tensor, state: Any) -> tuple[Tensor, Any]:
            nonlocal concrete
            if self.compiled:
                try:
                    if concrete is None:  # traced once and by hand: a tf.function per estimator would warn of retracing
                        concrete = tf.function(step, autograph=False).get_concrete_function(seed, state)
                    return concrete(seed, state)
                except Exception:  # its gradient can't be compiled, say; what is really wrong shows again
                    self.compiled = False
            with _foreign_code():
                return step(seed, state)

        return try_compiled

    def _warm_up(self) -> int:
        """The estimator's `warm_up`, or until an average with its `decay` has forgotten 99.9% of its start; batches."""
        if not self.stateful:
            return 0
        warm_up = getattr(self.estimator, "warm_up", None)
        if warm_up is not None:
            return warm_up
        decay = getattr(self.estimator, "decay", None)
        if not isinstance(decay, float) or not 0.0 < decay < 1.0:
            return _WARM_UP
        return min(1000, math.ceil(math.log(1e-3) / math.log(decay)))


def _draw_seed(rng: np.random.Generator) -> Tensor:
    """A fresh seed pair [2] int32."""
    return tf.constant(rng.integers(-(2**31), 2**31, size=2), tf.int32)
