"""REINFORCE on any gymnasium environment with a Discrete action space, from rollouts of a vector environment.

Each iteration plays one whole episode per row, so that returns are complete: a return is bootstrapped only where an
episode was truncated, from the value of its final observation, and only by a learner that has a value network.
The surrogate is the same estimator's as on the package's own tasks, with losses that are negative returns to go.

Shapes: N rows of the vector environment, L steps of the longest episode, M steps in all, F features of an observation,
K actions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from opselect._tensorflow import keras, tf
from opselect.estimators import (
    PPO,
    Drawn,
    LeaveOneOut,
    MovingAverageReinforce,
    Proposal,
    Reinforce,
    SelfCritical,
    ValueReinforce,
)
from opselect.estimators.base import log_prob
from opselect.learners import LEARNERS, Learner
from opselect.learners.base import TrainingDivergedError
from opselect.learners.episodes import (
    Batch,
    EnvironmentMismatchError,
    actor,
    make_environments,
    play_episodes,
    returns_to_go,
)
from opselect.policy import build_network, distribution, replica
from opselect_envs.naming import nearest

__all__ = ["EnvironmentSettings", "Trained", "train_environment"]

Tensor = Any


@dataclass(frozen=True)
class EnvironmentSettings:
    """How an environment is trained on.

    Attributes:
        rows: N, episodes per iteration, played side by side.
        steps: environment steps in all; the iteration that reaches them is the last.
        discount: gamma, per step.
        learning_rate: Adam's, annealed linearly to a tenth.
        entropy: weight of the policy's entropy, annealed linearly to 0.
        hidden: hidden widths of the policy and of the value network.
        longest: episodes are cut (as a truncation) after this many steps.
    """

    rows: int = 16
    steps: int = 400_000
    discount: float = 0.99
    learning_rate: float = 1e-2
    entropy: float = 0.01
    hidden: tuple[int, ...] = (64, 64)
    longest: int = 2000

    def __post_init__(self) -> None:
        for name in ("rows", "steps", "longest"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be an integer >= 1, got {getattr(self, name)!r}; the nearest is 1")
        if not 0.0 <= self.discount <= 1.0:
            nearest = min(max(self.discount, 0.0), 1.0)
            raise ValueError(f"discount must be in [0, 1], got {self.discount!r}; the nearest is {nearest}")

    @property
    def scale(self) -> float:
        """What returns are multiplied by, so that those of rewards around 1 are around 1 whatever the horizon."""
        return max(1.0 - self.discount, 1.0 / self.longest)


_TRAINING, _EVALUATION = range(2)


def _seed(seed: int, index: int, purpose: int) -> int:
    """A seed below 2**31 for one batch of episodes.

    Neighbouring seeds would not do: vector environments seed row i with seed + i, so that most of a batch would replay
    the batch before.
    """
    return int(np.random.SeedSequence([seed, index, purpose]).generate_state(1)[0] >> 1)


@dataclass(frozen=True)
class Trained:
    """A trained policy: a Keras model from flat observations [N, F] to logits [N, K]."""

    env_id: str
    policy: Any
    history: list[tuple[int, float]]
    """(environment steps so far, mean return of the iteration's episodes)."""
    settings: EnvironmentSettings

    def evaluate(self, episodes: int = 100, seed: int = 0) -> float:
        """The mean undiscounted return of the greedy policy over fresh episodes."""
        rows = min(episodes, 50)
        envs, _ = make_environments(self.env_id, rows)
        try:
            returns: list[float] = []
            act = actor(self.policy, greedy=True)
            while len(returns) < episodes:
                batch = play_episodes(envs, act, _seed(seed, len(returns), _EVALUATION), longest=self.settings.longest)
                returns += list(batch.rewards.sum(0))
            return float(np.mean(returns[:episodes]))
        finally:
            envs.close()


class _Given(NamedTuple):
    """What an estimator is given, however it pairs trajectories up. All arrays start with [S, ...]."""

    losses: np.ndarray
    observations: np.ndarray
    masks: np.ndarray
    actions: np.ndarray
    counted: np.ndarray


def _rows(batch: Batch, losses: np.ndarray, _: np.ndarray | None) -> _Given:
    """Each step is a row with one sample: S = 1, [1, M]."""
    keep = batch.alive
    picked = losses[keep][None]
    return _Given(
        picked, batch.observations[keep][None], batch.masks[keep][None], batch.actions[keep][None], np.ones_like(picked)
    )


def _beside_greedy(batch: Batch, losses: np.ndarray, greedy: np.ndarray | None) -> _Given:
    """S = 2: each step, and the greedy policy's mean loss to go at the same time."""
    rows = _rows(batch, losses, None)
    assert greedy is not None
    padded = np.zeros(len(losses))
    padded[: min(len(greedy), len(losses))] = greedy[: len(losses)]
    at_same_time = np.broadcast_to(padded[:, None], losses.shape)[batch.alive][None]
    return _Given(*(np.concatenate([a, a]) for a in rows))._replace(losses=np.concatenate([rows.losses, at_same_time]))


def _trajectories(batch: Batch, losses: np.ndarray, _: np.ndarray | None) -> _Given:
    """S = N trajectories that are each other's baseline at the same time step: [N, L]. After its end a loss is 0."""
    arrays = (losses, batch.observations, batch.masks | ~batch.alive[..., None], batch.actions, batch.alive)
    return _Given(*(np.swapaxes(a, 0, 1) for a in arrays))


_ARRANGEMENTS: dict[type, Callable[[Batch, np.ndarray, np.ndarray | None], _Given]] = {
    Reinforce: _rows,
    MovingAverageReinforce: _rows,
    ValueReinforce: _rows,
    PPO: _rows,
    SelfCritical: _beside_greedy,
    LeaveOneOut: _trajectories,
}


def _learner(name: str) -> Learner:
    fitting = [n for n, learner in LEARNERS.items() if type(learner.estimator) in _ARRANGEMENTS]
    if name not in fitting:
        near = nearest(name, fitting)
        raise EnvironmentMismatchError(
            f"learner: {name!r} can't learn from an environment's rewards alone; the nearest that can is {near!r}"
            f" (those are: {', '.join(fitting)})"
        )
    return LEARNERS[name]


def train_environment(
    env_id: str,
    learner: str = "reinforce-value",
    *,
    seed: int = 0,
    steps: int | None = None,
    settings: EnvironmentSettings | None = None,
    console: Any = None,
) -> Trained:
    """Trains a REINFORCE learner on a gymnasium environment.

    Args:
        env_id: an id as for `gymnasium.make`, such as ``"CartPole-v1"`` or ``"package:namespace/Id-v0"``.
        learner: a REINFORCE learner's name.
        seed: of the environments, the networks and the actions.
        steps: environment steps, instead of the settings'.
        settings: everything else.
        console: a rich console for a progress bar, or None.

    Raises:
        EnvironmentMismatchError: the id is unknown, the actions are not Discrete, or the learner does not apply.
    """
    settings = settings or EnvironmentSettings()
    total = settings.steps if steps is None else steps
    estimator: Any = _learner(learner).estimator
    envs, k = make_environments(env_id, settings.rows)
    try:
        return _Trainer(env_id, envs, k, estimator, settings, seed, total).train(console)
    finally:
        envs.close()


class _Trainer:
    """Networks, optimiser and the step that joins them to an estimator."""

    def __init__(
        self, env_id: str, envs: Any, k: int, estimator: Any, settings: EnvironmentSettings, seed: int, total: int
    ) -> None:
        self.env_id, self.envs, self.estimator, self.settings = env_id, envs, estimator, settings
        self.seed, self.total, self.k = seed, total, k
        features = gymnasium.spaces.flatdim(envs.single_observation_space)
        self.network = build_network(features, k, hidden=settings.hidden, seeds=[seed])
        self.critic = build_network(features, 1, hidden=settings.hidden, seeds=[seed + 1_000_003], output_scale=1.0)
        self.parameters = list(self.network.trainable_variables)
        if estimator.needs_value:
            self.parameters += self.critic.trainable_variables
        self.optimizer = keras.optimizers.Adam(settings.learning_rate)
        self.optimizer.build(self.parameters)
        self.state = estimator.init(tf.zeros([1, 1, k]))
        self._update = tf.function(self._update_step, autograph=False, reduce_retracing=True)
        self._drawn = tf.function(self._drawn_step, autograph=False, reduce_retracing=True)
        self._value = tf.function(lambda o: self.critic(o[None])[0, :, 0], autograph=False, reduce_retracing=True)

    def train(self, console: Any) -> Trained:
        """Iterates until the budget of environment steps is used."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        act = actor(lambda o: self.network(o[None])[0], greedy=False)
        act_greedily = actor(lambda o: self.network(o[None])[0], greedy=True)
        history: list[tuple[int, float]] = []
        done, iteration = 0, 0
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[note]}"))
        with Progress(*columns, TimeRemainingColumn(), console=console, disable=console is None, transient=True) as bar:
            shown = bar.add_task(self.env_id, total=self.total, note="")
            while done < self.total:
                seed = _seed(self.seed, iteration, _TRAINING)
                batch = play_episodes(self.envs, act, seed, self.settings.longest)
                greedy = None
                if isinstance(self.estimator, SelfCritical):
                    ideal = play_episodes(self.envs, act_greedily, seed, self.settings.longest)
                    greedy = self._losses(ideal).mean(1)
                    done += int(ideal.alive.sum())
                self._learn(batch, greedy, min(1.0, done / self.total))
                done += int(batch.alive.sum())
                iteration += 1
                history.append((done, float(batch.rewards.sum(0).mean())))
                bar.update(shown, completed=done, note=f"return {history[-1][1]:.1f}")
        return Trained(self.env_id, replica(self.network, 0), history, self.settings)

    def _losses(self, batch: Batch) -> np.ndarray:
        """[L, N]: negative returns to go, times `EnvironmentSettings.scale`."""
        gamma, scale = self.settings.discount, self.settings.scale
        after = np.zeros(batch.rewards.shape)
        if self.estimator.needs_value and batch.truncated.any():
            value = -self._value(tf.constant(batch.final)).numpy() / scale
            last = batch.alive.sum(0) - 1
            after[last, np.arange(len(last))] = np.where(batch.truncated, value, 0.0)
        return -scale * returns_to_go(batch.rewards, gamma, after)

    def _learn(self, batch: Batch, greedy: np.ndarray | None, progress: float) -> None:
        given = _ARRANGEMENTS[type(self.estimator)](batch, self._losses(batch), greedy)
        self.optimizer.learning_rate.assign(self.settings.learning_rate * (1 - 0.9 * progress))
        entropy = self.settings.entropy * (1 - progress)
        arrays = [tf.constant(a, tf.bool if a.dtype == bool else None) for a in given]
        arrays = [tf.cast(a, tf.float32) if a.dtype == tf.float64 else a for a in arrays]
        epochs = self.estimator.epochs if isinstance(self.estimator, PPO) else 1
        drawn_with = self._drawn(*arrays[1:]) if epochs > 1 else None
        for _ in range(epochs):
            objective, self.state = self._update(*arrays, tf.constant(entropy, tf.float32), self.state, drawn_with)
            if not np.isfinite(objective.numpy()):
                raise TrainingDivergedError(f"{self.env_id}: the loss of seed {self.seed} was not finite")

    def _propose(self, observations: Tensor, masks: Tensor, actions: Tensor, counted: Tensor) -> tuple[Proposal, Any]:
        """What was done, as a proposal, and the distribution it was drawn from."""
        flat = tf.reshape(observations, [1, -1, observations.shape[-1]])
        logits = tf.reshape(self.network(flat), tf.concat([tf.shape(actions), [self.k]], 0))
        choice = distribution(tf.ensure_shape(logits, [*actions.shape, self.k]), masks)
        # Steps after an episode's end have no say: their logits are cut off from the network.
        used = tf.where(tf.cast(counted, tf.bool)[..., None], choice.logits, tf.stop_gradient(choice.logits))
        return Proposal(tf.one_hot(actions, self.k)[..., None, :], used[..., None, :]), choice

    def _drawn_step(self, observations: Tensor, masks: Tensor, actions: Tensor, counted: Tensor) -> Drawn:
        proposal, _ = self._propose(observations, masks, actions, counted)
        return Drawn(log_prob(proposal), self._values(observations, actions))

    def _values(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The critic's predictions, of the shape of the actions."""
        flat = tf.reshape(observations, [1, -1, observations.shape[-1]])
        return tf.ensure_shape(tf.reshape(self.critic(flat), tf.shape(actions)), actions.shape)

    def _update_step(
        self,
        losses: Tensor,
        observations: Tensor,
        masks: Tensor,
        actions: Tensor,
        counted: Tensor,
        entropy: Tensor,
        state: Any,
        drawn_with: Drawn | None,
    ) -> Any:
        with tf.GradientTape() as tape:
            proposal, choice = self._propose(observations, masks, actions, counted)
            proposal = dataclasses.replace(proposal, record=drawn_with)
            if self.estimator.needs_value:
                proposal = dataclasses.replace(proposal, value=self._values(observations, actions))
            counted = tf.cast(counted, tf.float32)  # [S, ...]
            surrogate, state = self.estimator.surrogate(losses, [proposal], state)
            spread = tf.math.divide_no_nan(tf.reduce_sum(counted * choice.entropy()), tf.reduce_sum(counted))
            # The mean over steps, whichever axis the estimator has already averaged over. Their number is random, which
            # with few episodes puts the mean of the ratio a little off the gradient; that is common practice.
            mean = tf.reduce_sum(surrogate) * tf.cast(tf.shape(losses)[0], tf.float32) / tf.reduce_sum(counted)
            objective = mean - entropy * spread
        self.optimizer.apply(tape.gradient(objective, self.parameters))
        return objective, state
