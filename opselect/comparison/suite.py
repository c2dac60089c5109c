"""What the capability suite shows: scores per challenge and per axis, and what a learner can't do."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opselect.comparison.statistics import interval
from opselect.experiments.results import RunResult
from opselect_envs.challenges import AXES, CHALLENGES
from opselect_envs.naming import nearest

__all__ = ["FAILS", "PASSES", "AgentFileError", "read_agents", "summarise_suite"]

PASSES = 0.9
"""An axis is passed from this mean score on."""
FAILS = 0.75
"""An axis is failed below this mean score."""
Row = dict[str, Any]


class AgentFileError(ValueError):
    """A file of other agents' scores that is not what it should be; the message names the line."""


def read_agents(path: pathlib.Path) -> list[Row]:
    """Reads other agents' scores: a line of JSON each, ``{"agent", "challenge", "score", "low", "high"}``.

    What `opselect_envs.suite.score` returns has the last three. Further keys are ignored.

    Raises:
        AgentFileError: the file can't be read, or a line is no such object; nothing of it is used then.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AgentFileError(f"{path} can't be read: {error}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            row = {"agent": str(found["agent"])} | {key: float(found[key]) for key in ("score", "low", "high")}
            challenge = str(found["challenge"])
        except (ValueError, TypeError, KeyError) as error:
            raise AgentFileError(
                f'{path}, line {number}: needs {{"agent", "challenge", "score", "low", "high"}} as JSON; {error!r}'
            ) from error
        if challenge not in CHALLENGES:
            near = nearest(challenge, CHALLENGES)
            raise AgentFileError(f"{path}, line {number}: unknown challenge {challenge!r}; did you mean {near!r}?")
        if not np.isfinite([row["score"], row["low"], row["high"]]).all():
            raise AgentFileError(f"{path}, line {number}: scores must be finite numbers")
        rows.append(row | {"challenge": challenge})
    return rows


def summarise_suite(
    results: Sequence[RunResult],
    inapplicable: Mapping[tuple[str, str], str],
    relaxed: Mapping[str, bool],
    agents: Sequence[Row] = (),
) -> dict[str, list[Row]]:
    """The suite's outcome as plain JSON values.

    Args:
        results: at most one per (challenge, learner).
        inapplicable: why learners do not apply, or failed: (challenge, learner) -> reason. They count as a score of 0.
        relaxed: learner -> whether it differentiates the reward at mixtures.
        agents: from `read_agents`.

    Returns:
        ``{"challenges": [...], "axes": [...]}``. A challenge's row has "challenge", "axis", "level", "learner", "seeds"
        (0 for other agents), "score" and "gap" ({"iqm", "low", "high"}, null where unknown), "best_fixed" (the score of
        the best fixed operation) and, where it has no score, "why_not". An axis' row has "axis", "learner", "relaxed",
        "seeds" (the fewest), "score" (the mean over its challenges of the scores, cut to [0, 1]) and "outcome":
        "passes", "fails" or "between".
    """
    rows: list[Row] = []
    for result in results:
        hard, soft = (np.asarray(a, np.float64)[:, -1] for a in (result.hard, result.soft))
        scores = {"seeds": len(result.seeds), "score": interval(hard), "gap": interval(soft - hard)}
        rows.append(_row(result.task, result.learner) | scores)
    for (challenge, learner), reason in inapplicable.items():
        rows.append(_row(challenge, learner) | {"why_not": reason})
    for agent in agents:
        score = {"iqm": agent["score"], "low": agent["low"], "high": agent["high"]}
        rows.append(_row(agent["challenge"], agent["agent"]) | {"score": score})
    order = {name: place for place, name in enumerate(CHALLENGES)}
    names = list(dict.fromkeys([*relaxed, *(row["learner"] for row in rows)]))
    rows.sort(key=lambda row: (order[row["challenge"]], names.index(row["learner"])))
    axes = []
    for axis in AXES:
        for name in names:
            some = [row for row in rows if row["axis"] == axis and row["learner"] == name]
            if some:
                # One NumPy call on few numbers; a learner that can't be run at all has not passed either.
                score = float(np.mean([0.0 if r["score"] is None else np.clip(r["score"]["iqm"], 0, 1) for r in some]))
                outcome = "passes" if score >= PASSES else "fails" if score < FAILS else "between"
                seeds = min((row["seeds"] for row in some if row["score"] is not None), default=0)
                kind = {"relaxed": relaxed.get(name, False), "seeds": seeds}
                axes.append({"axis": axis, "learner": name, **kind, "score": score, "outcome": outcome})
    return {"challenges": rows, "axes": axes}


def _row(challenge: str, learner: str) -> Row:
    about = CHALLENGES[challenge]
    expected = about.task.at(about.task.shift_after).expected_rewards(noise=False)
    fixed = (expected["best_fixed"] - expected["random"]) / (expected["oracle"] - expected["random"])
    return {
        "challenge": challenge,
        "axis": about.axis,
        "level": about.level,
        "learner": learner,
        "seeds": 0,
        "score": None,
        "gap": None,
        "best_fixed": fixed,
    }
