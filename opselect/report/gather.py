"""Collects what comparisons left behind in one directory or several; names and skips what is damaged or foreign."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opselect.comparison import check_result
from opselect.experiments.results import RESULT, DamagedFileError, RunResult, config_hash
from opselect.report.gradients import GRADIENTS, read_gradients
from opselect.report.page import Origin

__all__ = ["COMPARISON", "Gathered", "gather", "identity"]

COMPARISON = "comparison.json"
"""What `opselect compare` writes beside the results: its command, versions, and which results are its own."""


@dataclass
class Gathered:
    """What lies under some directories."""

    results: list[RunResult]
    inapplicable: dict[tuple[str, str], str]
    """(task, learner) -> why there is no result."""
    sources: list[Origin]
    gradients: list[dict[str, Any]] = field(default_factory=list)
    """Rows of gradients.json files."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each thing that went wrong."""
    notes: list[str] = field(default_factory=list)
    """Sentences about what was left out on purpose, or put together."""


def identity(result: RunResult) -> dict[str, str]:
    """What tells a result from all others, as plain JSON values."""
    return {"task": result.task, "learner": result.learner, "config": config_hash(result.config)}


def gather(directories: Sequence[pathlib.Path]) -> Gathered:
    """Reads result files, ``DIR/cells/*/result.npz``, with what ``DIR/comparison.json`` says of them.

    Where a directory has a comparison.json, its results are those listed there, in that order: others are of earlier
    commands. Without one, all results are taken, by the names of their folders. Of several results for one task and
    learner, those that differ in nothing but their seeds become one; else the first directory's is kept. A result
    stands before a reason why there is none.

    Raises:
        FileNotFoundError: a directory does not exist, or there is neither a result nor a gradients.json in any of them.
    """
    merged = Gathered([], {}, [])
    place: dict[tuple[str, str], int] = {}
    folders = list(dict.fromkeys(path.resolve() for path in directories))
    shown = {path.resolve(): path for path in reversed(directories)}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no directory {shown[folder]}")
        one = _gather_one(shown[folder])
        merged.problems += [p for p in one.problems if p not in merged.problems]
        merged.notes += one.notes
        merged.gradients += one.gradients
        if one.results or one.inapplicable:
            name = str(shown[folder]) if len(folders) > 1 else ""
            merged.sources += [dataclasses.replace(source, folder=name) for source in one.sources]
        for cell, reason in one.inapplicable.items():
            merged.inapplicable.setdefault(cell, reason)
        for result in one.results:
            cell = (result.task, result.learner)
            if cell not in place:
                place[cell] = len(merged.results)
                merged.results.append(result)
            else:
                _combine(merged, place[cell], result, shown[folder])
    for cell in place:
        merged.inapplicable.pop(cell, None)
    if not merged.results and not merged.gradients and not merged.inapplicable:
        told = f" ({'; '.join(merged.problems)})" if merged.problems else ""
        raise FileNotFoundError(f"no results under {', '.join(str(shown[folder]) for folder in folders)}{told}")
    return merged


def _gather_one(folder: pathlib.Path) -> Gathered:
    found = Gathered([], {}, [])
    about = _about(folder, found)
    loaded = _results(folder, found)
    if about is None:
        by_cell: dict[tuple[str, str], RunResult] = {}
        for path, result in loaded:
            cell = (result.task, result.learner)
            if cell in by_cell:
                found.problems.append(f"{path}: left out, another result of {cell[1]} on {cell[0]} comes before it")
            else:
                by_cell[cell] = result
        found.results = list(by_cell.values())
        found.sources.append(Origin("", {}))
        if loaded and not (folder / COMPARISON).exists():
            found.notes.append(f"{folder} has no {COMPARISON}: the command and the versions are not known.")
    else:
        known = {json.dumps(identity(result), sort_keys=True): result for _, result in loaded}
        for run in about["runs"]:
            result = known.pop(json.dumps(run, sort_keys=True), None)
            if result is None:
                found.problems.append(f"{folder}: the result of {run['learner']} on {run['task']} is missing")
            else:
                found.results.append(result)
        if known:
            other = f"{len(known)} other result{'s' if len(known) > 1 else ''}"
            found.notes.append(f"{folder} holds {other} of earlier commands, which this one does not show.")
        found.inapplicable = {(one["task"], one["learner"]): one["reason"] for one in about["inapplicable"]}
        found.problems = [*about["problems"], *found.problems]
        found.sources.append(Origin(about["command"], about["versions"]))
    if (folder / GRADIENTS).exists():
        try:
            found.gradients = read_gradients(folder / GRADIENTS)
        except DamagedFileError as error:
            found.problems.append(str(error))
    return found


def _about(folder: pathlib.Path, found: Gathered) -> dict[str, Any] | None:
    path = folder / COMPARISON
    if not path.exists():
        return None
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        names = [name for run in about["runs"] for name in (run["task"], run["learner"], run["config"])]
        names += [one[key] for one in about["inapplicable"] for key in ("task", "learner", "reason")]
        names += [about["command"], *about["problems"], *about["versions"].values()]
        if not all(isinstance(name, str) for name in names):
            raise TypeError("something that must be text is not")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        found.problems.append(f"{path} is damaged ({error!r}): all results of the folder are taken")
        return None
    return about


def _results(folder: pathlib.Path, found: Gathered) -> list[tuple[pathlib.Path, RunResult]]:
    """Every whole result under a folder; what is none is named in the problems."""
    cells = folder / "cells"
    loaded = []
    for path in sorted(cells.iterdir()) if cells.is_dir() else ():
        if path.name.startswith("."):
            continue
        if not path.is_dir():
            found.problems.append(f"{path}: skipped, it is no folder of a run")
            continue
        try:
            result = RunResult.load(path)
            check_result(result)
        except FileNotFoundError:
            found.problems.append(f"{path}: skipped, the run in it is not finished")
        except DamagedFileError as error:
            found.problems.append(f"skipped: {error}")
        except (ValueError, TypeError, AttributeError) as error:
            found.problems.append(f"{path / RESULT}: skipped, it is no result of a run ({error})")
        else:
            loaded.append((path, result))
    return loaded


def _combine(merged: Gathered, index: int, result: RunResult, folder: pathlib.Path) -> None:
    """Puts a second result for one task and learner to the first, or names it."""
    first = merged.results[index]
    what = f"{result.learner} on {result.task}"
    if identity(first) == identity(result):
        same = all(np.array_equal(getattr(first, name), getattr(result, name)) for name in ("hard", "soft"))
        if not same:
            merged.problems.append(f"{folder}: {what} was run before with the same settings and other scores; left out")
        return
    alike = _without_seeds(first.config) == _without_seeds(result.config)
    grids = all(np.array_equal(getattr(first, name), getattr(result, name)) for name in ("step", "evaluations"))
    if not alike or not grids or first.operations != result.operations:
        merged.problems.append(f"{folder}: {what} was run before with other settings; left out")
        return
    new = [place for place, seed in enumerate(result.seeds) if seed not in first.seeds]
    if len(new) < len(result.seeds):
        merged.problems.append(f"{folder}: {what} has seeds that were there before; those are left out")
    if not new:
        return
    seeds = [*first.seeds, *(result.seeds[place] for place in new)]
    stacked = {
        name: np.concatenate([getattr(first, name), getattr(result, name)[new]]) for name in ("hard", "soft", "optimal")
    }
    seconds = first.seconds + result.seconds * len(new) / len(result.seeds)
    config = {**first.config, "seeds": seeds}
    merged.results[index] = dataclasses.replace(first, seeds=seeds, config=config, seconds=seconds, **stacked)
    merged.notes.append(f"{what}: {len(new)} seeds of {folder} stand beside those from before; seconds are summed.")


def _without_seeds(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in ("seeds", "seeds_per_cell")}
