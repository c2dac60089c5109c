"""The challenges of the capability suite: named tasks along axes of difficulty, which show what an agent can't do.

Each challenge turns one difficulty up and leaves the rest easy, so a low score has one likely reason. The idea is that
of bsuite (Osband et al. 2020). Ids are ``opselect-suite/<name>-v0``; a challenge whose task changes gets a new version,
so that scores stay comparable.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from opselect_envs.tasks import Task

__all__ = ["AXES", "CHALLENGES", "Axis", "Challenge"]


@dataclass(frozen=True)
class Axis:
    """One kind of difficulty.

    Attributes:
        name: the plain name, such as ``"noise"``.
        level: what a challenge's level counts.
        asks: what an agent must be able to do.
    """

    name: str
    level: str
    asks: str


@dataclass(frozen=True)
class Challenge:
    """A task of the suite.

    Attributes:
        axis: the name of its axis.
        level: how hard, in the axis's unit.
        parameters: of the `Task`.
        quick: whether it stands for its axis in a quick look.
        version: raised when the task changes.
    """

    axis: str
    level: int
    parameters: Callable[[int], dict[str, Any]]
    quick: bool = False
    version: int = 0

    @property
    def name(self) -> str:
        """Such as ``"operations-64"``."""
        return f"{self.axis}-{self.level}"

    @property
    def id(self) -> str:
        """The environment's id."""
        return f"opselect-suite/{self.name}-v{self.version}"

    @functools.cached_property
    def task(self) -> Task:
        """The task; made when it is first asked for."""
        return Task(**self.parameters(self.level))


AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis("basic", "regions", "tell a few operations apart where everything is easy"),
        Axis("operations", "operations", "search many operations, of which few are right"),
        Axis("regions", "regions", "follow a rule that changes often along x"),
        Axis("noise", "% of rewards replaced by noise", "learn from rewards that are mostly noise"),
        Axis("sparse", "decisions", "learn from a reward that is 0 unless the target is hit"),
        Axis("ties", "operations", "tell the best operation from a decoy that is second best everywhere"),
        Axis(
            "blending", "% of the second operation in the target", "commit to one operation where a mixture fits better"
        ),
        Axis("partial", "operations that are undefined in places", "avoid operations that are undefined at x"),
        Axis("horizon", "decisions", "plan several decisions"),
        Axis("distractors", "distractors", "ignore observations without any bearing"),
        Axis("shifting", "regions", "unlearn: the rule changes half way through training"),
    )
}

_EASY = ("neg", "square", "sin", "exp")
_MANY = ("sin", "cos", "square", "exp", "tanh", "neg", "increment", "half")
_CHAIN = ("neg", "sin", "square", "exp", "sqrt", "inv")
_PARTIAL = ("log", "sqrt", "acosh", "asin", "log1p", "inv", "atanh", "acos")


def _ruled(operations: tuple[str, ...], regions: int, **more: Any) -> dict[str, Any]:
    return {"operations": operations, "low": -3.0, "high": 3.0, "regions": regions, "rule": 0, **more}


def _operations(k: int) -> dict[str, Any]:
    # A fixed spacing: however many there are, as few are nearly right.
    shifts = tuple(f"shift({c:g})" for c in 0.5 * (np.arange(k) - (k - 1) / 2))
    return _ruled(shifts, 4, value_limit=float(k + 10))


def _ties(k: int) -> dict[str, Any]:
    # In region g the right operation adds the region's middle c to x. The decoy doubles x: off by |x - c|, which is
    # less than the next best, and in the middle of a region nothing at all.
    middles = [f"shift({c:g})" for c in -2.0 + 4.0 * (np.arange(k) + 0.5) / k]
    return {"operations": (*middles, "double"), "low": -2.0, "high": 2.0, "rule": tuple(middles)}


def _chain(horizon: int, **more: Any) -> dict[str, Any]:
    shape = {"operations": _CHAIN, "low": -3.0, "high": 3.0, "goal": True, "rule": None, "mask_actions": True}
    return shape | {"horizon": horizon} | more


_CHALLENGES = (
    Challenge("basic", 4, lambda g: _ruled(_EASY, g), quick=True),
    *(Challenge("operations", k, _operations, quick=k == 64) for k in (4, 16, 64, 256, 1024)),
    *(Challenge("regions", g, lambda g: _ruled(_MANY, g), quick=g == 32) for g in (2, 8, 16, 32, 64)),
    *(Challenge("noise", p, lambda p: _ruled(_EASY, 4, reward_noise=p / 100), quick=p == 98) for p in (10, 50, 90, 98)),
    *(Challenge("sparse", t, lambda t: _chain(t, reward="sparse"), quick=t == 2) for t in (1, 2, 3)),
    *(Challenge("ties", k, _ties, quick=k == 8) for k in (4, 8, 16)),
    *(Challenge("blending", p, lambda p: _ruled(_EASY, 4, blend=p / 100), quick=p == 40) for p in (10, 25, 40)),
    *(Challenge("partial", k, lambda k: _ruled(("neg", "tanh", *_PARTIAL[:k]), 8), quick=k == 4) for k in (2, 4, 8)),
    *(Challenge("horizon", t, lambda t: _chain(t), quick=t == 2) for t in (1, 2, 3, 5, 10)),
    *(Challenge("distractors", d, lambda d: _ruled(_EASY, 4, distractors=d), quick=d == 16) for d in (1, 4, 16)),
    *(
        Challenge("shifting", g, lambda g: _ruled(_EASY, g, rule_after=1, shift_after=10_000), quick=g == 4)
        for g in (4, 12)
    ),
)
CHALLENGES: dict[str, Challenge] = {challenge.name: challenge for challenge in _CHALLENGES}
