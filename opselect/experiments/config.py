"""What to run: frozen configurations, and the presets of `opselect compare`."""

from __future__ import annotations

import dataclasses
import hashlib
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opselect.experiments.results import folder_of
from opselect.learners import LEARNERS, Learner
from opselect_envs.operations import catalogued
from opselect_envs.tasks import TASKS, Task

__all__ = ["HEADLINE", "PRESETS", "Preset", "RunConfig", "cells", "compiling_pays"]

HEADLINE = (
    "exact",
    "reinforce",
    "reinforce-value",
    "reinforce-rloo",
    "soft-mixture",
    "gumbel-softmax",
    "reinmax",
)
"""The learners that `opselect compare` runs unless told otherwise: the reference, plain REINFORCE and the two baselines
that help most, and of each kind of relaxation (mixtures, Gumbel samples, hard samples) the one people know or that does
best."""


@dataclass(frozen=True)
class RunConfig:
    """One learner on one task, R seeds side by side.

    Attributes:
        name: the task's name, for tables and folders.
        task: the task.
        learner: the learner.
        seeds: R distinct seeds from 0 to 2**48 - 1.
        steps: optimiser steps.
        points: at most how many evenly spread evaluations.
        held_out: N, how many held-out episodes each evaluation uses.
        xla: whether the loop is compiled with XLA; not worth it for a few hundred steps.
    """

    name: str
    task: Task
    learner: Learner
    seeds: tuple[int, ...]
    steps: int
    points: int = 20
    held_out: int = 2048
    xla: bool = True

    def __post_init__(self) -> None:
        if not all(isinstance(s, int | np.integer) and not isinstance(s, bool) for s in self.seeds):
            raise ValueError(f"seeds must be integers, got {self.seeds!r}")
        object.__setattr__(self, "seeds", tuple(int(s) for s in self.seeds))
        distinct = len(set(self.seeds)) == len(self.seeds) > 0
        if not distinct or not 0 <= min(self.seeds) <= max(self.seeds) < 2**48:
            raise ValueError(f"seeds must be distinct integers from 0 to 2**48 - 1, at least one; got {self.seeds!r}")
        for name in ("steps", "points", "held_out"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be an integer >= 1, got {getattr(self, name)!r}; the nearest is 1")
        reason = self.learner.why_not(self.task)
        if reason is not None:
            raise ValueError(f"learner {self.learner.name!r} does not apply to this task: {reason}")
        self.task.score(1.0, self.held_out, noise=False)  # refuses a task without a scale, before any training

    @property
    def chunk(self) -> int:
        """How many steps run between two evaluations (the last chunk may be shorter)."""
        return -(-self.steps // min(self.points, self.steps))

    @property
    def evaluations_per_step(self) -> int:
        """How often one step evaluates the reward function, per seed: S * B."""
        samples = self.learner.estimator.evaluations(len(self.task.ops), self.task.horizon)
        return samples * self.learner.rows_for(self.task)

    def to_dict(self) -> dict[str, Any]:
        """All that determines the result, as plain JSON values."""
        from opselect import __version__

        estimator = self.learner.estimator
        kind = {"class": type(estimator).__name__} | _own_code(type(estimator))
        return {
            "version": __version__,
            "name": self.name,
            "task": self.task.to_dict() | {"own_operations": _own_operations(self.task)},
            "learner": _plain(self.learner) | {"estimator": kind | _plain(estimator)},
            "seeds": list(self.seeds),
            "steps": self.steps,
            "points": self.points,
            "held_out": self.held_out,
            "xla": self.xla,
        }

    @property
    def folder(self) -> str:
        """The name of the run's folder: readable, and unique by the configuration's hash."""
        return folder_of(self.name, self.learner.name, self.to_dict())


def _own_operations(task: Task) -> dict[str, str]:
    """What tells a user's operations apart when their names do not: a digest of their formulas' code."""
    own = (op for op in task.ops if catalogued(op.name) is None)
    return {op.name: _digest([op.apply, op.domain], op.anchor, op.fill) for op in own}


def _own_code(estimator: type) -> dict[str, str]:
    """The same for a user's estimator; the package's own change with its version."""
    if estimator.__module__.startswith("opselect."):
        return {}
    return {"code": _digest([f for _, f in sorted(vars(estimator).items()) if callable(f)])}


def _digest(functions: Sequence[Any], *more: Any) -> str:
    parts = [*more, *(_traits(function) for function in functions)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _traits(value: Any, within: tuple[int, ...] = ()) -> Any:
    """What a function depends on, the same in every process: code, defaults, what it closes over; no addresses."""
    if id(value) in within:  # a function that calls itself
        return None
    within = (*within, id(value))
    if hasattr(value, "__code__"):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        parts = [value.__code__, value.__defaults__, value.__kwdefaults__, *cells]
        return [_traits(part, within) for part in parts]
    if hasattr(value, "co_code"):
        return [value.co_code, _traits(value.co_consts, within), value.co_names]
    if isinstance(value, tuple | list):
        return [_traits(part, within) for part in value]
    if isinstance(value, set | frozenset):  # in an order that differs between processes
        return sorted(repr(_traits(part, within)) for part in value)
    if isinstance(value, dict):
        return [[_traits(part, within) for part in pair] for pair in value.items()]
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), value.shape, value.tobytes()]
    plain = value is None or isinstance(value, bool | int | float | complex | str | bytes)
    return value if plain else type(value).__name__


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Preset:
    """A budget of `opselect compare`.

    Attributes:
        learners: their names.
        seeds: how many.
        steps: optimiser steps on tasks of one decision.
        chain_steps: optimiser steps on tasks of several decisions.
        summary: one line for help texts.
        points: how many evaluations along training.
    """

    learners: tuple[str, ...]
    seeds: int
    steps: int
    chain_steps: int
    summary: str
    points: int = 20

    def steps_for(self, task: Task) -> int:
        """The budget on this task."""
        return self.steps if task.horizon == 1 else self.chain_steps


_XLA_FROM_STEPS = 1500

PRESETS: dict[str, Preset] = {
    "default": Preset(HEADLINE, 5, 800, 320, "seven learners, 5 seeds, three minutes on 2 cores", points=10),
    "quick": Preset(
        ("exact", "reinforce-rloo", "soft-mixture", "gumbel-softmax"),
        2,
        200,
        60,
        "four learners, 2 seeds, in under a minute: a look that proves nothing",
        points=10,
    ),
    "full": Preset(tuple(LEARNERS), 10, 4000, 5000, "every learner, 10 seeds, to convergence: up to 40 minutes"),
}


def compiling_pays(steps: int) -> bool:
    """Whether a training is so long that its loop should be compiled with XLA.

    Compiling takes 3 to 6 seconds and 30 to 60 MB that TensorFlow never gives back, with 200 MB on top while it lasts;
    a step, of a few milliseconds, then takes half the time or less.
    """
    return steps >= _XLA_FROM_STEPS


def cells(
    tasks: Sequence[str] | None,
    learners: Sequence[str] | None,
    preset: Preset,
    *,
    seeds: int | None = None,
    first_seed: int = 0,
    steps: int | None = None,
) -> tuple[list[RunConfig], dict[tuple[str, str], str]]:
    """The runs of a comparison, task by task, and why the left-out pairs (task, learner) do not apply."""
    runs: list[RunConfig] = []
    inapplicable: dict[tuple[str, str], str] = {}
    count = preset.seeds if seeds is None else seeds
    for name in tasks or TASKS:
        task = TASKS[name]
        for learner in (LEARNERS[n] for n in learners or preset.learners):
            reason = learner.why_not(task)
            if reason is not None:
                inapplicable[name, learner.name] = reason
                continue
            budget = preset.steps_for(task) if steps is None else steps
            numbers = tuple(range(first_seed, first_seed + count))
            xla = compiling_pays(budget)
            runs.append(RunConfig(name, task, learner, numbers, budget, preset.points, xla=xla))
    return runs, inapplicable
