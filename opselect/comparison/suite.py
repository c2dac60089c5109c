"""What the capability suite shows: scores per challenge and per axis, and what a learner can't do."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from opselect.comparison.statistics import MIN_SEEDS, interval
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


def read_agents(*paths: pathlib.Path, taken: Collection[str] = ()) -> list[Row]:
    """Reads other agents' scores: a line of JSON each, ``{"agent", "challenge", "score", "low", "high"}``.

    What `opselect_envs.suite.score` returns has the last three. A challenge is a name or an id. Further keys are
    ignored.

    Args:
        *paths: the files.
        taken: names that no agent may have, those of the learners.

    Raises:
        AgentFileError: a file can't be read or has nothing, a line is no such object, or there are two lines for one
            agent and challenge; nothing is used then.
    """
    rows: dict[tuple[str, str], Row] = {}
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise AgentFileError(f"{path} can't be read: {error}") from error
        if not any(map(str.strip, lines)):
            raise AgentFileError(f"{path} is empty; it needs a line of JSON for each agent and challenge")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = _agent_row(line, taken)
                key = row["agent"], row["challenge"]
                if key in rows:
                    raise ValueError(f"there is a line for agent {key[0]!r} and challenge {key[1]!r} already")
            except ValueError as error:
                raise AgentFileError(f"{path}, line {number}: {error}") from error
            rows[key] = row
    return list(rows.values())


_IDS = {challenge.id: name for name, challenge in CHALLENGES.items()}


def _agent_row(line: str, taken: Collection[str]) -> Row:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is no JSON ({error})") from error
    keys = ("agent", "challenge", "score", "low", "high")
    missing = [key for key in keys if key not in found] if isinstance(found, dict) else list(keys)
    if missing:
        raise ValueError(f"needs an object with {', '.join(keys)}; missing: {', '.join(missing)}")
    for key in keys[:2]:
        if not isinstance(found[key], str):
            raise ValueError(f"{key} must be a string, got {found[key]!r}")
    for key in keys[2:]:
        if isinstance(found[key], bool) or not isinstance(found[key], int | float) or not np.isfinite(found[key]):
            raise ValueError(f"{key} must be a finite number, got {found[key]!r}")
    row: Row = {key: float(found[key]) if key in keys[2:] else found[key] for key in keys}
    if not row["low"] <= row["score"] <= row["high"]:
        raise ValueError(f"low <= score <= high must hold, got {row['low']}, {row['score']} and {row['high']}")
    if row["agent"] in taken:
        raise ValueError(
            f"agent {row['agent']!r} has the name of a learner; give it another, such as 'my-{row['agent']}'"
        )
    row["challenge"] = _IDS.get(row["challenge"].removeprefix("opselect_envs:"), row["challenge"])
    if row["challenge"] not in CHALLENGES:
        near = nearest(row["challenge"], CHALLENGES)
        raise ValueError(f"unknown challenge {row['challenge']!r}; did you mean {near!r}?")
    return row


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
        "passes", "fails", "between" or, from fewer than MIN_SEEDS seeds, "no verdict".
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
                if 0 < seeds < MIN_SEEDS:  # other agents have 0: their interval is theirs to answer for
                    outcome = "no verdict"
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
