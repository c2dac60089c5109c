"""The capability suite with the package's own learners: which runs there are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from opselect.experiments.config import Preset, RunConfig
from opselect.learners import LEARNERS
from opselect_envs.challenges import CHALLENGES

__all__ = ["SUITE_PRESETS", "relaxed", "suite_cells"]

# Compiling takes longer than the short training gains, and TensorFlow keeps what it compiled, some 50 MB a loop, to the
# end: with a loop for nearly every pair that is too much. Only where a step works on so many operations it pays.
_XLA_FROM = 256

SUITE_PRESETS: dict[str, Preset] = {
    "default": Preset(
        ("reinforce", "reinforce-rloo", "soft-mixture", "gumbel-softmax", "gumbel-softmax-st"),
        5,
        800,
        320,
        "every challenge, five learners, 5 seeds",
        points=8,
    ),
    "quick": Preset(
        ("reinforce-rloo", "soft-mixture", "gumbel-softmax"),
        5,
        200,
        100,
        "a challenge per axis, three learners, 5 seeds, short training",
        points=4,
    ),
}


def suite_cells(
    axes: Sequence[str] | None,
    learners: Sequence[str] | None,
    *,
    quick: bool = False,
    seeds: int | None = None,
    steps: int | None = None,
) -> tuple[list[RunConfig], dict[tuple[str, str], str]]:
    """The runs of the suite, challenge by challenge, and why the left-out pairs (challenge, learner) do not apply.

    Where the rule shifts, it does so half way through training.

    Args:
        axes: names of `opselect_envs.challenges.AXES`; None: all.
        learners: names of `opselect.learners.LEARNERS`; None: the preset's.
        quick: one challenge per axis, and short training.
        seeds: how many, instead of the preset's.
        steps: optimiser steps, instead of the preset's.
    """
    preset = SUITE_PRESETS["quick" if quick else "default"]
    runs: list[RunConfig] = []
    inapplicable: dict[tuple[str, str], str] = {}
    for name, challenge in CHALLENGES.items():
        if (axes and challenge.axis not in axes) or (quick and not challenge.quick):
            continue
        task = challenge.task
        budget = preset.steps_for(task) if steps is None else steps
        if task.rule_after is not None:
            task = dataclasses.replace(task, shift_after=max(1, budget // 2))
        for learner in (LEARNERS[n] for n in learners or preset.learners):
            reason = learner.why_not(task)
            if reason is None:
                numbers = tuple(range(preset.seeds if seeds is None else seeds))
                xla = len(task.ops) >= _XLA_FROM
                runs.append(RunConfig(name, task, learner, numbers, budget, preset.points, xla=xla))
            else:
                inapplicable[name, learner.name] = reason
    return runs, inapplicable


def relaxed(learners: Sequence[str]) -> dict[str, bool]:
    """Which learners differentiate the reward at mixtures of operations; the others only ever see rewards."""
    return {name: LEARNERS[name].estimator.needs_relaxation for name in learners}
