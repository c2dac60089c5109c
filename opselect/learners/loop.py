"""The one training loop: tasks, policy, estimator and optimiser step inside one XLA-compiled function.

R seeds train side by side on a leading axis. What differs between tasks of one shape (rule, ranges, noise) and between
runs (seeds, schedules) is passed as data, so that one compiled loop serves them all.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from opselect._tensorflow import keras, tf
from opselect.learners.base import Learner, TrainingDivergedError
from opselect.learners.rollout import Greedy, rollout
from opselect.namespace import check_gradient, xp
from opselect.policy import StackedDense, build_network, network_output, replica
from opselect.random import fold_in, substream, uniform
from opselect_envs import dynamics
from opselect_envs.dynamics import State, noisy_reward
from opselect_envs.operations import catalogued
from opselect_envs.references import best_reward
from opselect_envs.tasks import OPTIMAL_REGRET, Task

__all__ = ["Evaluation", "Loop", "TrainingDivergedError", "loop_for"]

Tensor = Any
Arrays = dict[str, np.ndarray]
# What each random stream is for; folded into the seed beside the step.
_START, _NOISE, _CHOICES = range(3)  # the choices last: each decision has a stream of its own from there
_MOST_EVALUATED = 2**16  # trajectories per replica that are judged at once


class Evaluation(NamedTuple):
    """How R replicas do on the held-out episodes. All arrays are float32 [R]."""

    hard: np.ndarray
    """The mean reward of the argmax policy."""
    soft: np.ndarray
    """The mean reward of what the learner trains: the sampled policy, or the mixture."""
    optimal: np.ndarray
    """The share of episodes in which the argmax policy loses no reward to the oracle."""


class Loop:
    """A compiled loop for one task shape and one learner, with the variables it trains.

    Hold `in_use` from `restart` to the last look at the variables: `loop_for` hands the same loop to everyone.

    Args:
        task: gives the static shape; any task with the same `Task.static_key` can be run.
        learner: what to train and how.
        replicas: R.
        chunk: the most steps of one compiled call.
        xla: whether to compile with XLA: steps are two to three times as fast, but the first takes seconds longer.
    """

    def __init__(self, task: Task, learner: Learner, replicas: int, chunk: int, xla: bool = True) -> None:
        for op in task.ops:
            if catalogued(op.name) is None:  # the catalogue's are tested
                check_gradient(op)
        self.task, self.learner, self.replicas, self.chunk = task, learner, replicas, chunk
        make = functools.partial(
            build_network, task.observation_size, hidden=learner.hidden_for(task), replicas=replicas
        )
        self.network = make(len(task.ops))
        self.critic = make(1, output_scale=1.0) if learner.estimator.needs_value else None
        self.networks = [self.network] if self.critic is None else [self.network, self.critic]
        self.parameters = [v for n in self.networks for v in n.trainable_variables]
        self.optimizer = keras.optimizers.Adam(1e-3)
        self.optimizer.build(self.parameters)
        rows = learner.rows_for(task)
        logits = tf.zeros([replicas, rows, 1, len(task.ops)])
        self.estimator_state = tf.nest.map_structure(tf.Variable, learner.estimator.init(logits))
        self._lock = threading.Lock()
        self.in_use = threading.Lock()
        self._compile_seconds: float | None = None
        self._train = tf.function(self._chunk_of_steps, jit_compile=xla, autograph=False)
        self._evaluate = tf.function(self._evaluate_held_out, autograph=False)  # run rarely: XLA would compile longer

    # --- state ---

    @property
    def variables(self) -> dict[str, Any]:
        """Everything that training changes, by name."""
        named = {f"parameter/{i}": v for i, v in enumerate(self.parameters)}
        named |= {f"optimizer/{i}": v for i, v in enumerate(self.optimizer.variables)}
        return named | {f"estimator/{i}": v for i, v in enumerate(tf.nest.flatten(self.estimator_state))}

    def restart(self, seeds: Sequence[int]) -> None:
        """Sets all variables to what they are before the first step of these seeds [R]."""
        for variable in self.variables.values():
            variable.assign(tf.zeros_like(variable))
        for which, network in enumerate(self.networks):
            for depth, layer in enumerate(layer for layer in network.layers if isinstance(layer, StackedDense)):
                layer.seeds = [1000 * int(seed) + 100 * which + depth for seed in seeds]
                layer.kernel.assign(layer.initial_kernel(layer.kernel.shape[1]))

    def state(self) -> Arrays:
        """A copy of all variables, for a checkpoint."""
        return {name: np.array(variable.numpy()) for name, variable in self.variables.items()}

    def load(self, state: Arrays) -> None:
        """Continues from what `state` returned.

        Raises:
            ValueError: an array is missing, left over or of another shape.
        """
        variables = self.variables
        if set(state) != set(variables):
            raise ValueError(f"checkpoint holds {sorted(state)}, but the loop has {sorted(variables)}")
        for name, variable in variables.items():
            if state[name].shape != tuple(variable.shape):
                raise ValueError(f"checkpoint's {name} has shape {state[name].shape}, not {tuple(variable.shape)}")
        for name, variable in variables.items():
            variable.assign(state[name])

    # --- running ---

    def warm(self, rows: int) -> float:
        """Compiles everything, if that has not been done; changes no variable. Safe to call from another thread.

        Args:
            rows: N, how many held-out episodes `evaluate` will be called with.

        Returns:
            The seconds that compiling took, whenever it was.
        """
        with self._lock:
            if self._compile_seconds is None:
                began = time.perf_counter()
                seeds = range(self.replicas)
                schedules = tf.ones([3, self.chunk])
                self._train(_tensors(self.task), _seed_pairs(seeds), tf.constant(0), tf.constant(0), schedules)
                self.evaluate(self.task, seeds, 0, 1, rows)
                self._compile_seconds = time.perf_counter() - began
            return self._compile_seconds

    def run(self, task: Task, seeds: Sequence[int], first: int, count: int, total: int) -> np.ndarray:
        """Trains steps first .. first + count - 1 of `total`; returns the mean loss trained on [R].

        Raises:
            ValueError: count exceeds the chunk, or the task has another shape.
            TrainingDivergedError: a loss was not finite.
        """
        if task.static_key() != self.task.static_key():
            raise ValueError("task has another shape than the loop was made for; make one with loop_for")
        if not 1 <= count <= self.chunk:
            raise ValueError(f"count must be in [1, {self.chunk}], got {count!r}")
        schedules = [self.learner.learning_rate, self.learner.entropy, self.learner.temperature]
        values = np.ones((len(schedules), self.chunk), np.float32)
        for row, schedule in enumerate(schedules):
            if schedule is not None:
                values[row, :count] = schedule.values(first, count, total)
        loss = self._train(
            _tensors(task), _seed_pairs(seeds), tf.constant(first), tf.constant(count), tf.constant(values)
        ).numpy()
        if not np.isfinite(loss).all():
            bad = [int(s) for s, ok in zip(seeds, np.isfinite(loss), strict=True) if not ok]
            raise TrainingDivergedError(
                f"{self.learner.name}: the loss of seed(s) {bad} was not finite in steps {first} to {first + count - 1}"
            )
        return loss

    def evaluate(self, task: Task, seeds: Sequence[int], step: int, total: int, rows: int) -> Evaluation:
        """Judges the present policy on the task's `rows` held-out episodes, without reward noise."""
        schedule = self.learner.temperature
        temperature = 1.0 if schedule is None else schedule.values(max(0, step - 1), 1, total)[0]
        start = task.held_out(rows)
        best = best_reward(task, task.data(), start, task.horizon) if task.blend else np.ones(rows, np.float32)
        # An enumeration multiplies each episode by its outcomes: in one go that would take a gigabyte. How many blocks
        # that makes must not depend on R, or a seed's result would depend on those beside it.
        outcomes = self.learner.estimator.evaluations(len(task.ops), task.horizon)
        blocks = np.array_split(np.arange(rows), -(-outcomes * rows // _MOST_EVALUATED))
        totals = np.zeros((len(Evaluation._fields), self.replicas))
        data, heat = _tensors(task), tf.constant(temperature, tf.float32)
        for i, block in enumerate(blocks):
            shape = (self.replicas, len(block))
            episodes = State(*(tf.constant(np.broadcast_to(a[block], shape)) for a in start))
            streams = fold_in(_seed_pairs(seeds), -1 - i)  # never a training step's
            means = self._evaluate(data, streams, episodes, tf.constant(best[block]), heat)
            totals += len(block) / rows * np.stack([m.numpy() for m in means])
        return Evaluation(*totals.astype(np.float32))

    def logits(self, observations: np.ndarray) -> np.ndarray:
        """The policy's logits [R, N, K] for observations [R, N, F]."""
        return self.network(tf.constant(observations, tf.float32)).numpy()

    def policy(self, index: int) -> Any:
        """Replica `index` as an ordinary Keras model from observations [N, F] to logits [N, K]."""
        return replica(self.network, index)

    # --- compiled ---

    def _estimator_at(self, temperature: Tensor) -> Any:
        estimator: Any = self.learner.estimator
        return (
            estimator if self.learner.temperature is None else dataclasses.replace(estimator, temperature=temperature)
        )

    def _functions(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor] | None]:
        critic = self.critic
        return (
            functools.partial(network_output, self.network),
            None if critic is None else lambda observations: network_output(critic, observations)[..., 0],
        )

    def _chunk_of_steps(self, data: Any, seeds: Tensor, first: Tensor, count: Tensor, schedules: Tensor) -> Tensor:
        policy, critic = self._functions()
        rows, task, clip = self.learner.rows_for(self.task), self.task, self.learner.row_clip

        def one_step(i: Tensor, total_loss: Tensor) -> tuple[Tensor, Tensor]:
            learning_rate, entropy_weight, temperature = tf.unstack(schedules[:, i])
            here = fold_in(seeds, first + i)
            draws = uniform(substream(here, _START), [self.replicas, rows, task.uniforms])
            start, first_options = dynamics.start(xp, task, data, draws)
            estimator = self._estimator_at(temperature)
            state = tf.nest.map_structure(lambda v: v.read_value(), self.estimator_state)
            with tf.GradientTape() as tape:
                played = rollout(
                    policy,
                    estimator,
                    state,
                    task,
                    data,
                    start,
                    substream(here, _CHOICES),
                    critic=critic,
                    clip=clip,
                    first=first_options,
                )
                rewards = played.rewards
                if task.reward_noise:
                    noise = uniform(substream(here, _NOISE), [*rewards.shape, 2], axis=1)
                    rewards = noisy_reward(xp, data, rewards, noise)
                losses = 1.0 - rewards
                surrogate, new_state = estimator.surrogate(losses, played.proposals, state)
                # Summed over replicas: each has its own parameters, so each gets its own mean's gradient.
                objective = tf.reduce_sum(tf.reduce_mean(surrogate - entropy_weight * played.entropy, -1))
            gradients = tape.gradient(objective, [v.value for v in self.parameters])
            self.optimizer.learning_rate.assign(learning_rate)
            self.optimizer.apply(gradients)
            tf.nest.map_structure(lambda v, new: v.assign(new), self.estimator_state, new_state)
            return i + 1, total_loss + tf.reduce_mean(surrogate, -1)

        _, total = tf.while_loop(
            lambda i, _: i < count, one_step, (tf.constant(0), tf.zeros([self.replicas])), maximum_iterations=self.chunk
        )
        return total / tf.cast(count, tf.float32)

    def _evaluate_held_out(
        self, data: Any, seeds: Tensor, start: State, best: Tensor, temperature: Tensor
    ) -> tuple[Tensor, ...]:
        policy, critic = self._functions()
        estimator = self._estimator_at(temperature)
        hard = rollout(policy, Greedy(), (), self.task, data, start, seeds).rewards[0]
        optimal = tf.cast(best - hard <= OPTIMAL_REGRET, tf.float32)
        state = tf.nest.map_structure(
            lambda v: tf.zeros(v.shape), self.learner.estimator.init(tf.zeros([*hard.shape, 1, len(self.task.ops)]))
        )
        played = rollout(policy, estimator, state, self.task, data, start, seeds, critic)
        trained_on, _ = estimator.surrogate(1.0 - played.rewards, played.proposals, state)
        return tf.reduce_mean(hard, -1), 1.0 - tf.reduce_mean(trained_on, -1), tf.reduce_mean(optimal, -1)


def _tensors(task: Task) -> dict[str, Tensor]:
    return {name: tf.constant(array) for name, array in task.data().items()}


def _seed_pairs(seeds: Sequence[int]) -> Tensor:
    return tf.constant([[int(s) & 0x7FFFFFFF, 0x5EED ^ (int(s) >> 31 & 0x7FFFFFFF)] for s in seeds], tf.int32)


_LOOPS: dict[Any, Loop] = {}
_LOOPS_LOCK = threading.Lock()
_MOST_LOOPS = 32


def loop_for(task: Task, learner: Learner, replicas: int, chunk: int, xla: bool = True) -> Loop:
    """The compiled loop for this shape of task, made once per process."""
    key = (task.static_key(), learner, replicas, chunk, xla)
    with _LOOPS_LOCK:
        if key not in _LOOPS:
            if len(_LOOPS) >= _MOST_LOOPS:
                del _LOOPS[next(iter(_LOOPS))]
            _LOOPS[key] = Loop(task, learner, replicas, chunk, xla)
        return _LOOPS[key]
