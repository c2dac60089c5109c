"""What an operation-selection task poses: its inputs, its hidden rule, its dynamics and its reward, each written once.

Every function here is pure and written over an array namespace ``xp``: the gymnasium environments call them with NumPy,
the in-graph trainer with TensorFlow, so the two cannot drift apart. A task has three kinds:

* ``ScalarOp``: one decision. A hidden rule says which operation is right in which region of x.
* ``ScalarOpGoal``: one decision. The target y is shown: find the operation that maps x to y.
* ``OpChain``: ``horizon`` decisions. The state becomes op(state); reach the target y, which is shown.

All are one thing: start at x, apply ``horizon`` operations, end near y. Every target is reached by some sequence of
available operations, so the oracle's reward is 1. Shapes: [...] any batch of episodes, K operations, T decisions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from opselect_envs.naming import nearest
from opselect_envs.operations import Operation, as_operations, evaluate

__all__ = [
    "OPTIMAL_REGRET",
    "TASKS",
    "InvalidTaskError",
    "Options",
    "State",
    "Task",
    "as_task",
    "best_reward",
    "branches",
    "can_enumerate",
    "noisy_reward",
    "observe",
    "one_hot",
    "options",
    "quasi_random",
    "random_reward",
    "reset",
    "reward",
    "start",
    "step",
]

Array = Any
OPTIMAL_REGRET = 1e-4
"""A choice is called optimal when it costs no more reward than this: float32 rounding, not a second-best operation."""
_REGION_BLOCK = 8  # rules are padded to a multiple of this, so tasks with other rules share a compiled loop
_LOOKAHEAD_CAP = 100_000  # paths per episode that `best_reward` and `random_reward` enumerate at most


class InvalidTaskError(ValueError):
    """A task whose parameters do not describe a well-posed task."""


class State(NamedTuple):
    """Episodes under way. All arrays are float32 [...]."""

    value: Array
    """The scalar that operations are applied to."""
    target: Array
    """Where the episode should end."""
    alive: Array
    """1 while every operation picked was available, 0 after one that was not; in between for soft mixtures."""


class Options(NamedTuple):
    """What the operations would do at a state."""

    values: Array
    """[..., K] float32: op(state) where available, the state itself elsewhere."""
    available: Array
    """[..., K] float32: 1 where the operation is defined and its value stays within the task's limit, else 0."""


@dataclass(frozen=True)
class Task:
    """A well-posed task; checked when it is made.

    Attributes:
        operations: names from the catalogue, or `Operation` objects; the action is an index into them.
        low: the lowest input x.
        high: the highest input x. Inputs are uniform on [low, high].
        horizon: T, the number of decisions.
        goal: whether the observation contains the target.
        regions: G, how many regions of x the hidden rule distinguishes (ignored with an explicit rule).
        rule: which operation is right where: a seed, or one operation name per region of equal width. None: the target
            comes from operations drawn uniformly among the available ones.
        reward: ``"dense"``: exp(-|value - target|); ``"sparse"``: 1 within `tolerance` (times 1 + |target|), else 0.
        reward_noise: the probability that the reward is replaced by a uniform draw from [0, 1]. It keeps the reward in
            bounds and the order of all policies, unlike clipped Gaussian noise.
        tolerance: how close counts as reached under the sparse reward.
        value_limit: an operation whose value would leave [-value_limit, value_limit] is not available.
        frequencies: F, the number of Fourier features per observed scalar.
        mask_actions: whether the package's own learners may see which operations are available. The environments
            always report it, as ``info["action_mask"]``.

    Raises:
        InvalidTaskError: a parameter out of range; the message names it, its value and what is allowed.
    """

    operations: tuple[str | Operation, ...]
    low: float
    high: float
    horizon: int = 1
    goal: bool = False
    regions: int = 8
    rule: int | tuple[str, ...] | None = 0
    reward: str = "dense"
    reward_noise: float = 0.0
    tolerance: float = 1e-3
    value_limit: float = 100.0
    frequencies: int = 6
    mask_actions: bool = False
    ops: tuple[Operation, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_ = functools.partial(object.__setattr__, self)
        set_("ops", as_operations(self.operations, arity=1))
        set_("operations", tuple(self.operations))
        _require_number("low", self.low)
        _require_number("high", self.high)
        if not np.float32(self.low) < np.float32(self.high):
            raise InvalidTaskError(f"low must be below high in float32, got low={self.low!r} and high={self.high!r}")
        _require_integer("horizon", self.horizon, 1, 64)
        _require_integer("regions", self.regions, 1, 4096)
        _require_integer("frequencies", self.frequencies, 0, 16)
        _require_number("reward_noise", self.reward_noise, 0.0, 1.0)
        _require_number("tolerance", self.tolerance, 0.0)
        _require_number("value_limit", self.value_limit, 0.0)
        if self.reward not in ("dense", "sparse"):
            near = nearest(self.reward, ("dense", "sparse"))
            raise InvalidTaskError(f"reward must be 'dense' or 'sparse', got {self.reward!r}; did you mean {near!r}?")
        if max(abs(self.low), abs(self.high)) > self.value_limit:
            raise InvalidTaskError(
                f"value_limit must be at least the largest |x|, {max(abs(self.low), abs(self.high))},"
                f" got {self.value_limit!r}"
            )
        if self.rule is not None and not isinstance(self.rule, int | np.integer):
            if isinstance(self.rule, str) or not isinstance(self.rule, Sequence):
                raise InvalidTaskError(f"rule must be a seed, a sequence of operation names or None, got {self.rule!r}")
            if not len(self.rule):
                raise InvalidTaskError("rule must name at least one operation, got none")
            set_("rule", tuple(self.rule))
            set_("regions", len(self.rule))
        elif self.rule is None:
            set_("regions", 1)
        elif self.rule < 0:
            raise InvalidTaskError(f"rule must be a seed >= 0, got {self.rule!r}; the nearest valid one is 0")
        if self.rule is None and not self.goal:
            raise InvalidTaskError(
                "rule must be a seed or operation names when goal is False: nothing shows the target"
            )
        if self.rule is not None and self.horizon > 1:
            raise InvalidTaskError(f"rule must be None with horizon {self.horizon}: a chain's targets are drawn")
        self.rule_indices()
        _require_a_way_out(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The K operation names, in action order."""
        return tuple(op.name for op in self.ops)

    @property
    def observation_size(self) -> int:
        """The length of an observation: 1 + 2F per observed scalar, and T flags for the decision of a chain."""
        scalars = 2 if self.goal else 1
        return scalars * (1 + 2 * self.frequencies) + (self.horizon if self.horizon > 1 else 0)

    @property
    def uniforms(self) -> int:
        """How many uniform draws `reset` uses per episode: one for x and one per step of the target's path."""
        return 1 + self.horizon

    @property
    def edges(self) -> np.ndarray:
        """[G + 1] float32, the borders of the regions, evenly spaced from low to high."""
        return np.linspace(self.low, self.high, self.regions + 1).astype(np.float32)

    def rule_indices(self) -> np.ndarray | None:
        """[G] int: the index of the right operation in each region, or None when there is no rule."""
        return None if self.rule is None else _rule_indices(self)

    def static_key(self) -> tuple[Any, ...]:
        """What a compiled loop is specialised on; tasks with equal keys differ only in `data`."""
        padded = self.data()["rule"].shape
        noisy = self.reward_noise > 0
        return (self.ops, self.horizon, self.goal, self.mask_actions, self.reward, noisy, self.frequencies, padded)

    def data(self) -> dict[str, Any]:
        """What differs between tasks of one `static_key`, as float32 arrays that the functions of this module take."""
        blocks = -(-self.regions // _REGION_BLOCK) * _REGION_BLOCK
        inner = np.full(blocks - 1, np.inf, np.float32)
        inner[: self.regions - 1] = self.edges[1:-1]
        rule = np.ones((blocks, len(self.ops)), np.float32)
        indices = self.rule_indices()
        if indices is not None:
            rule[: self.regions] = np.eye(len(self.ops), dtype=np.float32)[indices]
        return {
            "low": np.float32(self.low),
            "high": np.float32(self.high),
            "value_limit": np.float32(self.value_limit),
            "inner_edges": inner,
            "rule": rule,
            "reward_noise": np.float32(self.reward_noise),
            "tolerance": np.float32(self.tolerance),
        }

    def held_out(self, rows: int) -> State:
        """A fixed, evenly spread set of episodes [rows], the same on every machine: what learners are scored on."""
        return reset(np, self, self.data(), quasi_random(rows, self.uniforms).astype(np.float32))

    def expected_rewards(self, rows: int = 4096, *, noise: bool = True) -> dict[str, float]:
        """The expected rewards of the oracle and of a uniform-random agent, with the reward noise or without.

        By quasi-Monte-Carlo quadrature over x and the target with `rows` points; the K**T choices are enumerated, or
        sampled (standard error below 0.002) where they are more than 100,000. A uniform-random agent picks among the
        available operations if `mask_actions`, else among all.
        """
        clean = {"oracle": 1.0, "random": _random_reward_of(self, rows)}
        replaced = self.reward_noise if noise else 0.0
        return {agent: (1 - replaced) * expected + replaced / 2 for agent, expected in clean.items()}

    def score(self, mean_reward: Array, rows: int = 4096, *, noise: bool = True) -> Array:
        """A mean reward [...] normalised so that 0 is the uniform-random agent and 1 the oracle.

        Raises:
            InvalidTaskError: nothing can be told apart, because a uniform-random agent does as well as the oracle.
        """
        expected = self.expected_rewards(rows, noise=noise)
        if expected["oracle"] - expected["random"] < 1e-6:
            raise InvalidTaskError(
                f"the oracle and a uniform-random agent both expect the reward {expected['oracle']:g}, so no score can"
                f" be given: the operations {list(self.names)} agree on [{self.low:g}, {self.high:g}], or reward_noise"
                f" ({self.reward_noise:g}) hides all of it"
            )
        return (mean_reward - expected["random"]) / (expected["oracle"] - expected["random"])

    def to_dict(self) -> dict[str, Any]:
        """The parameters as plain JSON values; operations by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return values | {"operations": list(self.names), "rule": _plain_rule(self.rule)}


def _plain_rule(rule: int | tuple[str, ...] | None) -> int | list[str] | None:
    if rule is None:
        return None
    return list(rule) if isinstance(rule, tuple) else int(rule)


def _require_number(name: str, value: Any, low: float = -1e30, high: float = 1e30) -> None:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not low <= value <= high:  # false for NaN as well
        clipped = np.clip(value, low, high) if number and value == value else None
        nearest = f"; the nearest valid value is {float(clipped)}" if clipped is not None else ""
        raise InvalidTaskError(f"{name} must be a number in [{low:g}, {high:g}], got {value!r}{nearest}")


def _require_integer(name: str, value: Any, low: int, high: int) -> None:
    integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not integer or not low <= value <= high:
        nearest = f"; the nearest valid value is {min(max(int(value), low), high)}" if integer else ""
        raise InvalidTaskError(f"{name} must be an integer in [{low}, {high}], got {value!r}{nearest}")


def _grid_options(task: Task, x: np.ndarray) -> Options:
    return options(np, task, {"value_limit": np.float32(task.value_limit)}, x.astype(np.float32))


@functools.lru_cache(maxsize=256)
def _rule_indices(task: Task) -> np.ndarray:
    """The rule as indices, checked: the operation of each region is available everywhere in it."""
    edges = task.edges
    everywhere = np.stack(
        [_grid_options(task, np.linspace(a, b, 257)).available.all(0) for a, b in itertools.pairwise(edges)]
    )
    if isinstance(task.rule, tuple):
        known = task.names
        for region, name in enumerate(task.rule):
            if name not in known:
                near = nearest(name, known)
                raise InvalidTaskError(f"rule names {name!r}, which is not among the operations; nearest: {near!r}")
            if not everywhere[region, known.index(name)]:
                raise InvalidTaskError(
                    f"rule gives region {region}, x in [{edges[region]:g}, {edges[region + 1]:g}], the operation"
                    f" {name!r}, which is not available everywhere in it; available are "
                    f"{[n for n, ok in zip(known, everywhere[region], strict=True) if ok]}"
                )
        return np.array([known.index(name) for name in task.rule])
    if not everywhere.any(1).all():
        region = int(np.flatnonzero(~everywhere.any(1))[0])
        raise InvalidTaskError(
            f"operations: none of {list(task.names)} is available everywhere in region {region},"
            f" x in [{edges[region]:g}, {edges[region + 1]:g}]"
        )
    # Operations that fit few regions first, so that those defined on a part of the range are used; neighbours differ.
    rng = np.random.default_rng(task.rule)
    rule: list[int] = []
    used = np.zeros(len(task.ops))
    for region in range(task.regions):
        fits = everywhere[region].astype(bool)
        if rule and fits.sum() > 1:
            fits[rule[-1]] = False
        scarcity = used + everywhere.mean(0) + 1e-3 * rng.random(len(task.ops))
        rule.append(int(np.argmin(np.where(fits, scarcity, np.inf))))
        used[rule[-1]] += 1
    return np.array(rule)


def _require_a_way_out(task: Task) -> None:
    """At every state a task can reach, at least one operation must be available."""
    reach = max(abs(task.low), abs(task.high)) if task.horizon == 1 else task.value_limit
    low, high = (task.low, task.high) if task.horizon == 1 else (-reach, reach)
    grid = np.unique(np.concatenate([np.linspace(low, high, 4001), [0.0]]))
    grid = grid[(grid >= low) & (grid <= high)]
    stuck = ~_grid_options(task, grid).available.astype(bool).any(-1)
    if stuck.any():
        raise InvalidTaskError(
            f"operations: none of {list(task.names)} is available at {float(grid[stuck][0]):g}, which the task can"
            " reach; add one that is defined everywhere, such as 'neg'"
        )


# --- the task's dynamics, over xp -------------------------------------------------------------------------------------


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
    likely = _rule_rows(xp, data, x)
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
            chosen = _draw(xp, allowed, uniforms[..., 1 + decision])
        y = xp.sum(chosen * choices.values, -1)
    return State(x, y, xp.ones_like(x)), first


def _draw(xp: Any, weights: Array, uniforms: Array) -> Array:
    """One-hots [..., K] drawn in proportion to weights [..., K] of 0 and 1, by inverse transform of draws [...]."""
    cumulative = _cumulative(xp, weights)
    below = _as_float(xp, cumulative <= (uniforms * cumulative[..., -1])[..., None])
    return xp.concatenate([xp.ones_like(below[..., :1]), below[..., :-1]], -1) - below


def _rule_rows(xp: Any, data: Mapping[str, Array], x: Array) -> Array:
    """The rule's row [..., K] of each x's region: one operation, or all of them in the one region of no rule."""
    if xp is np:
        edges = data["inner_edges"]
        if np.isinf(edges[0]):  # a single region
            return data["rule"][0]
        if len(edges) < 256:  # counting has no branches to mispredict: at random inputs three times as fast as a search
            region = np.less_equal.outer(edges, x).view(np.uint8).sum(0, dtype=np.uint8)
        else:
            region = np.searchsorted(edges, x, side="right")
        return one_hot(data["rule"].argmax(-1)[region], data["rule"].shape[-1])
    # As a telescoping sum: one small product and no gather.
    passed = _as_float(xp, x[..., None] >= data["inner_edges"])
    return data["rule"][0] + xp.matmul(passed, data["rule"][1:] - data["rule"][:-1])


# NumPy is fast along memory, and a batch is longer than K: its arrays [..., K] are views of arrays stored as [K, ...].


def one_hot(indices: np.ndarray, depth: int) -> np.ndarray:
    """[..., K] float32: 1 at the index [...], 0 elsewhere; NumPy only."""
    return _last(np.equal.outer(np.arange(depth), indices).astype(np.float32))


def _last(a: np.ndarray) -> np.ndarray:
    """A view with the first axis moved to the end."""
    return a.transpose(*range(1, a.ndim), 0)


def _stack(xp: Any, parts: Sequence[Array]) -> Array:
    return _last(np.array(parts)) if xp is np else xp.stack(parts, -1)


def _cumulative(xp: Any, x: Array) -> Array:
    if xp is not np:
        return xp.cumsum(x, -1)
    sums = [x[..., 0]]
    for k in range(1, x.shape[-1]):
        sums.append(sums[-1] + x[..., k])
    return _stack(np, sums)


def _as_float(xp: Any, condition: Array) -> Array:
    if xp is np:
        return condition.astype(np.float32)
    return xp.where(condition, np.float32(1.0), np.float32(0.0))


def options(xp: Any, task: Task, data: Mapping[str, Array], value: Array) -> Options:
    """What each of the K operations would make of the values [...]."""
    extent = (float(value.min()), float(value.max())) if xp is np and value.size else None
    evaluated = [evaluate(xp, op, value, extent=extent) for op in task.ops]
    results, defined = (_stack(xp, a) for a in zip(*evaluated, strict=True))
    available = _as_float(xp, defined & (xp.abs(results) <= data["value_limit"]))
    # All of `results` is finite, so a product selects exactly; on a batch it is several times as fast as `where`.
    return Options(available * results + (1.0 - available) * value[..., None], available)


def step(xp: Any, choices: Options, state: State, weights: Array) -> State:
    """Applies operations by weight [..., K]: a one-hot applies one, a mixture blends their values.

    Weight on operations that are not available takes the episode's reward away in proportion.
    """
    value = xp.sum(weights * choices.values, -1)
    return State(value, state.target, state.alive * xp.sum(weights * choices.available, -1))


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


# --- exact references -------------------------------------------------------------------------------------------------


def _lookahead(task: Task, data: Mapping[str, Array], state: State, remaining: int, best: bool) -> np.ndarray:
    """Enumerates what `remaining` decisions can lead to; NumPy only."""
    if remaining == 0:
        return reward(np, task, data, state)
    choices = options(np, task, data, state.value)
    values = _lookahead(task, data, branches(state, choices), remaining - 1, best)
    if best:
        return values.max(-1)
    weights = _random_weights(task, choices)
    return (values * weights).sum(-1) / weights.sum(-1)


def branches(state: State, choices: Options) -> State:
    """The K states [..., K] that one decision can lead to; NumPy only."""
    return State(
        choices.values,
        np.broadcast_to(state.target[..., None], choices.values.shape),
        state.alive[..., None] * choices.available,
    )


def _random_weights(task: Task, choices: Options) -> np.ndarray:
    """[..., K]: 1 for each operation that the uniform-random agent may pick."""
    return choices.available if task.mask_actions else np.ones_like(choices.available)


def can_enumerate(task: Task, remaining: int) -> bool:
    """Whether the K**remaining paths are few enough for `best_reward` and `random_reward`."""
    return len(task.ops) ** remaining <= _LOOKAHEAD_CAP


def _check_lookahead(task: Task, remaining: int) -> None:
    if not can_enumerate(task, remaining):
        paths = len(task.ops) ** remaining
        raise InvalidTaskError(f"horizon: {len(task.ops)}**{remaining} = {paths} paths are too many to enumerate")


def best_reward(task: Task, data: Mapping[str, Array], state: State, remaining: int) -> np.ndarray:
    """The highest noise-free reward [...] still reachable with `remaining` decisions, by enumeration of all paths."""
    _check_lookahead(task, remaining)
    return _lookahead(task, data, state, remaining, best=True)


def random_reward(task: Task, data: Mapping[str, Array], state: State, remaining: int) -> np.ndarray:
    """The expected noise-free reward [...] of uniform-random choices from `state` on, by enumeration of all paths."""
    _check_lookahead(task, remaining)
    return _lookahead(task, data, state, remaining, best=False)


@functools.lru_cache(maxsize=256)
def _random_reward_of(task: Task, rows: int) -> float:
    if not can_enumerate(task, task.horizon):
        return _random_play(task, max(rows, 1 << 16))
    data, start = task.data(), task.held_out(rows)
    block = max(1, 2_000_000 // len(task.ops) ** task.horizon)
    parts = [
        random_reward(task, data, State(*(a[i : i + block] for a in start)), task.horizon)
        for i in range(0, rows, block)
    ]
    return float(np.concatenate(parts).astype(np.float64).mean())


def _random_play(task: Task, rows: int) -> float:
    """The uniform-random agent's mean reward over `rows` simulated episodes."""
    rng, data = np.random.default_rng(0), task.data()
    state = task.held_out(rows)
    for _ in range(task.horizon):
        choices = options(np, task, data, state.value)
        picks = _draw(np, _random_weights(task, choices), rng.random(rows, np.float32))
        state = step(np, choices, state, picks)
    return float(reward(np, task, data, state).astype(np.float64).mean())


# --- the standard tasks -----------------------------------------------------------------------------------------------

TASKS: dict[str, Task] = {
    "ScalarOp": Task(
        operations=("sin", "cos", "square", "exp", "log", "sqrt", "inv", "tanh", "neg", "asin"),
        low=-3.0,
        high=3.0,
        regions=12,
        rule=0,
    ),
    "ScalarOpGoal": Task(
        operations=("sin", "cos", "square", "exp", "log", "sqrt", "inv", "tanh", "neg", "asin"),
        low=-3.0,
        high=3.0,
        goal=True,
        rule=None,
    ),
    "OpChain": Task(
        operations=("neg", "sin", "square", "exp", "sqrt", "inv"),
        low=-3.0,
        high=3.0,
        horizon=3,
        goal=True,
        rule=None,
        mask_actions=True,
    ),
}


def as_task(task: str | Task) -> Task:
    """Returns the standard task of that name, or the task itself.

    Raises:
        InvalidTaskError: the name is unknown; the nearest known one is suggested.
    """
    if isinstance(task, Task):
        return task
    if task not in TASKS:
        near = nearest(task, TASKS)
        raise InvalidTaskError(f"unknown task {task!r}; did you mean {near!r}? Known: {', '.join(TASKS)}")
    return TASKS[task]
