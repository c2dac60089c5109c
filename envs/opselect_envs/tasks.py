"""What an operation-selection task poses: operations, inputs, hidden rule and reward.

There are three kinds:

* ``ScalarOp``: one decision. A hidden rule says which operation is right in which region of x.
* ``ScalarOpGoal``: one decision. The target y is shown: find the operation that maps x to y.
* ``OpChain``: ``horizon`` decisions. The state becomes op(state); reach the target y, which is shown.

All are one thing: start at x, apply ``horizon`` operations, end near y. Every target is reached by some sequence of
available operations, so the oracle's reward is 1 (unless targets are blended). What happens in an episode is in
`opselect_envs.dynamics`. Shapes: [...] any batch of episodes, K operations, T decisions, G regions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from opselect_envs import dynamics, references
from opselect_envs.dynamics import Options, State
from opselect_envs.naming import nearest
from opselect_envs.operations import Operation, as_operations, together

__all__ = ["OPTIMAL_REGRET", "TASKS", "InvalidTaskError", "Task"]

Array = Any
OPTIMAL_REGRET = 1e-4
"""A choice is called optimal when it costs no more reward than this: float32 rounding, not a second-best operation."""
_REGION_BLOCK = 8  # rules are padded to a multiple of this, so tasks with other rules share a compiled loop


class InvalidTaskError(ValueError):
    """A task whose parameters do not describe a well-posed task."""


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
        blend: how far, in [0, 1], the target lies from the value of the rule's operation towards that of the next
            region's (where that is available). A mixture of operations then fits better than any one; the oracle picks
            the best one.
        distractors: how many scalars without any bearing on the target are observed as well, each with F features.
        rule_after: the rule that holds from an episode on, with as many regions as `rule`; None: the same for ever.
        shift_after: how many episodes `rule` holds before `rule_after` does. The environments count the episodes that
            each row began since it was last seeded.

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
    blend: float = 0.0
    distractors: int = 0
    rule_after: int | tuple[str, ...] | None = None
    shift_after: int = 0
    ops: tuple[Operation, ...] = field(init=False, repr=False, compare=False)
    runs: tuple[tuple[Operation, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_ = functools.partial(object.__setattr__, self)
        set_("ops", as_operations(self.operations, arity=1))
        given = zip(self.operations, self.ops, strict=True)
        set_("operations", tuple(op.name if isinstance(name, str) else name for name, op in given))
        set_("runs", together(self.ops))
        _require_number("low", self.low)
        _require_number("high", self.high)
        if not np.float32(self.low) < np.float32(self.high):
            raise InvalidTaskError(f"low must be below high in float32, got low={self.low!r} and high={self.high!r}")
        _require_integer("horizon", self.horizon, 1, 64)
        _require_integer("regions", self.regions, 1, 4096)
        _require_integer("frequencies", self.frequencies, 0, 16)
        _require_number("reward_noise", self.reward_noise, 0.0, 1.0)
        _require_number("tolerance", self.tolerance, 0.0)
        _require_number("value_limit", self.value_limit, max(abs(self.low), abs(self.high)))
        for name in ("goal", "mask_actions"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise InvalidTaskError(f"{name} must be True or False, got {getattr(self, name)!r}")
            set_(name, bool(getattr(self, name)))
        if self.reward not in ("dense", "sparse"):
            near = nearest(self.reward, ("dense", "sparse"))
            raise InvalidTaskError(f"reward must be 'dense' or 'sparse', got {self.reward!r}; did you mean {near!r}?")
        _require_number("blend", self.blend, 0.0, 1.0)
        _require_integer("distractors", self.distractors, 0, 256)
        _require_integer("shift_after", self.shift_after, 0, 2**53)
        set_("rule", _checked_rule("rule", self.rule))
        set_("rule_after", _checked_rule("rule_after", self.rule_after))
        if isinstance(self.rule, tuple):
            set_("regions", len(self.rule))
        elif self.rule is None:
            set_("regions", 1)
        for name in ("rule_after", "blend"):
            if getattr(self, name) and self.rule is None:
                raise InvalidTaskError(f"{name}={getattr(self, name)!r} needs a rule, but rule is None")
        if isinstance(self.rule_after, tuple) and len(self.rule_after) != self.regions:
            raise InvalidTaskError(
                f"rule_after must have as many regions as rule, {self.regions}, got {len(self.rule_after)}"
            )
        if self.rule_after is None and self.shift_after:
            raise InvalidTaskError(f"shift_after={self.shift_after} needs a rule_after, but that is None")
        if self.rule is None and not self.goal:
            raise InvalidTaskError(
                "rule must be a seed or operation names when goal is False: nothing shows the target"
            )
        if self.rule is not None and self.horizon > 1:
            raise InvalidTaskError(f"rule must be None with horizon {self.horizon}: a chain's targets are drawn")
        self.rule_indices()
        if self.rule_after is not None:
            self.at(self.shift_after)  # checks that rule as well
        _require_a_way_out(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The K operation names, in action order."""
        return tuple(op.name for op in self.ops)

    @property
    def observation_size(self) -> int:
        """The length of an observation: 1 + 2F per observed scalar, and T flags for the decision of a chain."""
        scalars = (2 if self.goal else 1) + self.distractors
        return scalars * (1 + 2 * self.frequencies) + (self.horizon if self.horizon > 1 else 0)

    @property
    def uniforms(self) -> int:
        """How many uniform draws `reset` uses per episode: for x, each step of the target's path, the distractors."""
        return 1 + self.horizon + (self.distractors > 0)

    @property
    def edges(self) -> np.ndarray:
        """[G + 1] float32, the borders of the regions, evenly spaced from low to high."""
        return np.linspace(self.low, self.high, self.regions + 1).astype(np.float32)

    def at(self, episode: int) -> Task:
        """The task as it is in an episode (0-based): the same, with the one rule that holds then and no shift."""
        if self.rule_after is None:
            return self
        rule = self.rule if episode < self.shift_after else self.rule_after
        return replace(self, rule=rule, rule_after=None, shift_after=0)

    def rule_indices(self) -> np.ndarray | None:
        """[G] int: the index of the right operation in each region (at first), or None when there is no rule."""
        return None if self.rule is None else _rule_indices(self)

    def static_key(self) -> tuple[Any, ...]:
        """What a compiled loop is specialised on; tasks with equal keys differ only in `data`."""
        padded = self.data()["rule"].shape
        noisy, blended = self.reward_noise > 0, self.blend > 0
        features = (self.frequencies, self.distractors)
        return (self.ops, self.horizon, self.goal, self.mask_actions, self.reward, noisy, blended, *features, padded)

    def data(self) -> dict[str, Any]:
        """What differs between tasks of one `static_key`, as float32 arrays that `opselect_envs.dynamics` takes."""
        blocks = -(-self.regions // _REGION_BLOCK) * _REGION_BLOCK
        inner = np.full(blocks - 1, np.inf, np.float32)
        inner[: self.regions - 1] = self.edges[1:-1]
        rule = np.ones((blocks, len(self.ops)), np.float32)
        other = np.zeros((blocks, len(self.ops)), np.float32)
        indices = self.rule_indices()
        if indices is not None:
            rule[: self.regions] = np.eye(len(self.ops), dtype=np.float32)[indices]
            other[: self.regions] = np.roll(rule[: self.regions], -1, 0)
        return {
            "low": np.float32(self.low),
            "high": np.float32(self.high),
            "value_limit": np.float32(self.value_limit),
            "inner_edges": inner,
            "rule": rule,
            "other_rule": other,
            "blend": np.float32(self.blend),
            "reward_noise": np.float32(self.reward_noise),
            "tolerance": np.float32(self.tolerance),
        }

    def held_out(self, rows: int) -> State:
        """A fixed, evenly spread set of episodes [rows], the same on every machine: what learners are scored on."""
        draws = dynamics.quasi_random(rows, self.uniforms).astype(np.float32)
        return dynamics.reset(np, self, self.data(), draws)

    def expected_rewards(self, rows: int = 4096, *, noise: bool = True) -> dict[str, float]:
        """The expected rewards of reference agents, with the reward noise or without.

        ``"oracle"``, ``"random"`` (uniform among the available operations if `mask_actions`, else among all) and
        ``"best_fixed"``, which always picks the one operation that is best so. By quasi-Monte-Carlo quadrature over x
        and the target with `rows` points; the K**T choices are enumerated, or sampled (standard error below 0.002)
        where they are more than 100,000.
        """
        clean = {
            "oracle": references.oracle_reward(self, rows),
            "random": references.random_reward_of(self, rows),
            "best_fixed": max(references.fixed_rewards(self, rows)),
        }
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
        rules = {name: _plain_rule(values[name]) for name in ("rule", "rule_after")}
        return values | {"operations": list(self.names)} | rules


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


def _checked_rule(name: str, rule: Any) -> int | tuple[str, ...] | None:
    if rule is None:
        return None
    if isinstance(rule, int | np.integer) and not isinstance(rule, bool):
        if rule < 0:
            raise InvalidTaskError(f"{name} must be a seed >= 0, got {rule!r}; the nearest valid one is 0")
        return int(rule)
    if isinstance(rule, str) or not isinstance(rule, Sequence):
        raise InvalidTaskError(f"{name} must be a seed, a sequence of operation names or None, got {rule!r}")
    if not len(rule):
        raise InvalidTaskError(f"{name} must name at least one operation, got none")
    return tuple(rule)


def _grid_options(task: Task, x: np.ndarray) -> Options:
    return dynamics.options(np, task, {"value_limit": np.float32(task.value_limit)}, x.astype(np.float32))


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
