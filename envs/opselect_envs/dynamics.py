"""What happens in an episode: inputs, hidden rule, operations, reward and observation, each written once.

Every function is pure and written over an array namespace ``xp``: the gymnasium environments call them with NumPy, the
in-graph trainer with TensorFlow, so the two cannot drift apart. What differs between tasks of one shape comes as
``data``, see `opselect_envs.tasks.Task.data`. Shapes: [...] any batch of episodes, K operations, T decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opselect_envs.operations import evaluate, evaluate_together

if TYPE_CHECKING:
    from opselect_envs.tasks import Task

__all__ = [
    "Options",
    "State",
    "branches",
    "draw",
    "noisy_reward",
    "observe",
    "one_hot",
    "options",
    "quasi_random",
    "reset",
    "reward",
    "start",
    "step",
]

Array = Any


class State(NamedTuple):
    """Episodes under way. All arrays are float32 [...]."""

    value: Array
    """The scalar that operations are applied to."""
    target: Array
    """Where the episode should end."""
    alive: Array
    """1 while every operation picked was available, 0 after one that was not; in between for soft mixtures."""
    nuisance: Array
    """Uniform in [0, 1) and without bearing on anything: distractor features are made of it (all ones without any)."""


class Options(NamedTuple):
    """What the operations would do at a state."""

    values: Array
    """[..., K] float32: op(state) where available, the state itself elsewhere."""
    available: Array
    """[..., K] float32: 1 where the operation is defined and its value stays within the task's limit, else 0."""


def quasi_random(rows: int, dimensions: int) -> np.ndarray:
    """[rows, dimensions] float64 points spread evenly over the unit cube (Roberts' R-sequence, a Kronecker lattice)."""
    phi = 2.0
    for _ in range(64):  # the root of phi**(d + 1) = phi + 1
        phi = (1.0 + phi) ** (1.0 / (dimensions + 1))
    steps = phi ** -np.arange(1, dimensions + 1)
    return np.minimum((0.5 + np.arange(1, rows + 1)[:, None] * steps) % 1.0, 1.0 - 2.0**-24)


def reset(xp: Any, task: Task, data: Mapping[str, Array], uniforms: Array) -> State:
    """Starts episodes from uniform draws [..., 1 + T] in [0, 1): x from the first, the target's path from the rest."""
    return start(xp, task, data, uniforms)[0]


def start(xp: Any, task: Task, data: Mapping[str, Array], uniforms: Array) -> tuple[State, Options]:
    """`reset`, and the options at the states it starts from, which it has to work out anyway."""
    x = data["low"] + (data["high"] - data["low"]) * uniforms[..., 0]
    x = xp.minimum(x, data["high"])  # the sum may round to just above it
    likely = _rule_rows(xp, data, data["rule"], x)
    first = choices = options(xp, task, data, x)
    y = x
    for decision in range(task.horizon):
        if decision:
            choices = options(xp, task, data, y)
        chosen = likely * choices.available
        some = xp.sum(chosen, -1) > 0
        if xp is not np or task.rule is None or not some.all():  # else one is left, and NumPy is spared the draw
            # Where the rule's operation has a hole finer than `Task` can see, any available one sets the target.
            allowed = xp.where(some[..., None], chosen, choices.available)
            chosen = draw(xp, allowed, uniforms[..., 1 + decision])
        y = xp.sum(chosen * choices.values, -1)
    if task.blend:
        other = _rule_rows(xp, data, data["other_rule"], x) * first.available
        y = y + data["blend"] * (xp.sum(other * first.values, -1) - xp.sum(other, -1) * y)
    alive = xp.ones_like(x)
    return State(x, y, alive, uniforms[..., 1 + task.horizon] if task.distractors else alive), first


def draw(xp: Any, weights: Array, uniforms: Array) -> Array:
    """One-hots [..., K] drawn in proportion to weights [..., K] of 0 and 1, by inverse transform of draws [...]."""
    cumulative = _cumulative(xp, weights)
    below = _as_float(xp, cumulative <= (uniforms * cumulative[..., -1])[..., None])
    return xp.concatenate([xp.ones_like(below[..., :1]), below[..., :-1]], -1) - below


def _rule_rows(xp: Any, data: Mapping[str, Array], rule: Array, x: Array) -> Array:
    """The row [..., K] of a rule [G, K] for each x's region: one operation, or all in the one region of no rule."""
    if xp is np:
        edges = data["inner_edges"]
        if np.isinf(edges[0]):  # a single region
            return rule[0]
        if len(edges) < 256:  # counting has no branches to mispredict: at random inputs three times as fast as a search
            region = np.less_equal.outer(edges, x).view(np.uint8).sum(0, dtype=np.uint8)
        else:
            region = np.searchsorted(edges, x, side="right")
        return one_hot(rule.argmax(-1)[region], rule.shape[-1])
    # As a telescoping sum: one small product and no gather.
    passed = _as_float(xp, x[..., None] >= data["inner_edges"])
    return rule[0] + xp.matmul(passed, rule[1:] - rule[:-1])


# NumPy is fast along memory, and a batch is longer than K: its arrays [..., K] are views of arrays stored as [K, ...].


def one_hot(indices: np.ndarray, depth: int) -> np.ndarray:
    """[..., K] float32: 1 at the index [...], 0 elsewhere; NumPy only."""
    return _last(np.equal.outer(np.arange(depth), indices).astype(np.float32))


def _last(a: np.ndarray) -> np.ndarray:
    """A view with the first axis moved to the end."""
    return a.transpose(*range(1, a.ndim), 0)


def _stack(xp: Any, parts: Sequence[Array]) -> Array:
    return _last(np.array(parts)) if xp is np else xp.stack(parts, -1)


def _side_by_side(xp: Any, task: Task, parts: Sequence[Array]) -> Array:
    """Lays out what the runs of operations gave as [..., K]."""
    if len(parts) == len(task.ops):
        return _stack(xp, parts)
    if xp is np:  # a run is [n, ...]
        wide = [a if len(run) > 1 else a[None] for a, run in zip(parts, task.runs, strict=True)]
        return _last(np.concatenate(wide))
    return xp.concatenate([a if len(run) > 1 else a[..., None] for a, run in zip(parts, task.runs, strict=True)], -1)


def _cumulative(xp: Any, x: Array) -> Array:
    if xp is not np:
        return xp.cumsum(x, -1)
    return _last(np.cumsum(np.moveaxis(x, -1, 0), axis=0, dtype=x.dtype))


def _as_float(xp: Any, condition: Array) -> Array:
    if xp is np:
        return condition.astype(np.float32)
    return xp.where(condition, np.float32(1.0), np.float32(0.0))


def options(xp: Any, task: Task, data: Mapping[str, Array], value: Array) -> Options:
    """What each of the K operations would make of the values [...]."""
    extent = (float(value.min()), float(value.max())) if xp is np and value.size else None
    evaluated = [
        evaluate(xp, run[0], value, extent=extent) if len(run) == 1 else evaluate_together(xp, run, value)
        for run in task.runs
    ]
    results, defined = (_side_by_side(xp, task, a) for a in zip(*evaluated, strict=True))
    available = _as_float(xp, defined & (xp.abs(results) <= data["value_limit"]))
    # All of `results` is finite, so a product selects exactly; on a batch it is several times as fast as `where`.
    return Options(available * results + (1.0 - available) * value[..., None], available)


def step(xp: Any, choices: Options, state: State, weights: Array) -> State:
    """Applies operations by weight [..., K]: a one-hot applies one, a mixture blends their values.

    Weight on operations that are not available takes the episode's reward away in proportion.
    """
    value = xp.sum(weights * choices.values, -1)
    return state._replace(value=value, alive=state.alive * xp.sum(weights * choices.available, -1))


def reward(xp: Any, task: Task, data: Mapping[str, Array], state: State) -> Array:
    """The noise-free reward [...] in [0, 1] of episodes that end at `state`."""
    error = xp.abs(state.value - state.target)
    if task.reward == "sparse":
        near = error <= data["tolerance"] * (1.0 + xp.abs(state.target))
        return state.alive * _as_float(xp, near)
    return state.alive * xp.exp(-error)


def noisy_reward(xp: Any, data: Mapping[str, Array], clean: Array, uniforms: Array) -> Array:
    """Rewards [...] as an agent sees them, from uniform draws [..., 2]."""
    return xp.where(uniforms[..., 0] < data["reward_noise"], uniforms[..., 1], clean)


def observe(xp: Any, task: Task, data: Mapping[str, Array], state: State, decision: int | Array) -> Array:
    """The observation [..., task.observation_size] float32 in [-1, 1] before a decision (0-based; an int or [...])."""
    if task.horizon == 1:
        middle, half = (data["high"] + data["low"]) / 2, (data["high"] - data["low"]) / 2
        scaled = (state.value - middle) / half
    else:
        scaled = _squash(xp, data, state.value)
    parts = _features(xp, task, scaled)
    if task.goal:
        parts += _features(xp, task, _squash(xp, data, state.target))
    for i in range(task.distractors):
        spread = (2 * i + 1) * state.nuisance  # odd multiples, wrapped: uniform each, and uncorrelated
        parts += _features(xp, task, 2.0 * (spread - xp.floor(spread)) - 1.0)
    if task.horizon > 1:
        yes, no = xp.ones_like(state.value), xp.zeros_like(state.value)
        parts += [xp.where(decision == now, yes, no) for now in range(task.horizon)]
    if xp is not np:
        return xp.clip(xp.stack(parts, -1), -1.0, 1.0)
    rows = np.empty((*np.shape(state.value), len(parts)), np.float32)  # what np.stack does, with less ado
    for i, part in enumerate(parts):
        rows[..., i] = part
    return np.clip(rows, -1.0, 1.0, out=rows)


def _squash(xp: Any, data: Mapping[str, Array], value: Array) -> Array:
    """Compresses [-value_limit, value_limit] to [-1, 1], with the resolution near 0 where most values are."""
    return xp.arcsinh(value) / xp.arcsinh(data["value_limit"])


def _features(xp: Any, task: Task, scaled: Array) -> list[Array]:
    """1 + 2F features [...] of a scalar: itself in [-1, 1], then sin and cos of pi * 2**j times it for j < F.

    Rounding may take a sine past 1; `observe` clips.
    """
    scaled = xp.clip(scaled, -1.0, 1.0)
    parts = [scaled]
    sine, cosine = xp.sin(np.float32(np.pi) * scaled), xp.cos(np.float32(np.pi) * scaled)
    for octave in range(task.frequencies):
        if octave:
            sine, cosine = 2.0 * sine * cosine, 1.0 - 2.0 * sine * sine  # double angle
        parts += [sine, cosine]
    return parts


def branches(state: State, choices: Options) -> State:
    """The K states [..., K] that one decision can lead to; NumPy only."""
    shape = choices.values.shape
    return State(
        choices.values,
        np.broadcast_to(state.target[..., None], shape),
        state.alive[..., None] * choices.available,
        np.broadcast_to(state.nuisance[..., None], shape),
    )
