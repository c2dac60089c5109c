"""The files of a comparison: written when it has been run, and rebuilt from the results alone."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from opselect.comparison import curves, summarise
from opselect.experiments.results import DamagedFileError, RunResult, write_atomically
from opselect.report.gather import COMPARISON, Gathered, gather, identity
from opselect.report.gradients import GRADIENTS, read_gradients
from opselect.report.html import write_report
from opselect.report.page import Origin
from opselect.report.terminal import markdown

__all__ = ["rebuild", "write_files"]


def write_files(
    out_dir: str | os.PathLike[str],
    results: Sequence[RunResult],
    inapplicable: Mapping[tuple[str, str], str],
    command: str,
    versions: Mapping[str, str],
    problems: Sequence[str],
) -> dict[str, Any]:
    """Writes a comparison's files, each whole or not at all; equal results give equal files.

    They are summary.json, summary.md, curves.csv, report.html, and comparison.json: what `rebuild` must know besides
    the results. Where the folder holds a gradients.json, the report shows it.

    Args:
        out_dir: the folder, made if needed.
        results: at most one per task and learner.
        inapplicable: why learners do not apply to tasks: (task, learner) -> reason.
        command: what reproduces the results.
        versions: name -> version of what computed them, and of the machine.
        problems: a sentence for each thing that went wrong.

    Returns:
        The summary, see `opselect.comparison.summarise`.
    """
    folder = pathlib.Path(out_dir)
    about = {
        "command": command,
        "versions": dict(versions),
        "runs": [identity(result) for result in results],
        "inapplicable": [{"task": t, "learner": n, "reason": why} for (t, n), why in inapplicable.items()],
        "problems": list(problems),
    }
    text = json.dumps(about, indent=1) + "\n"
    write_atomically(folder / COMPARISON, lambda file: file.write(text.encode()))
    found = Gathered(list(results), dict(inapplicable), [Origin(command, dict(versions))], problems=list(problems))
    if (folder / GRADIENTS).exists():
        try:
            found.gradients += read_gradients(folder / GRADIENTS)
        except DamagedFileError as error:
            found.problems.append(str(error))
    return _write(folder, found)


def rebuild(
    directories: Sequence[str | os.PathLike[str]], out_dir: str | os.PathLike[str], command: str = ""
) -> tuple[dict[str, Any], Gathered]:
    """Writes a comparison's files anew from the results that lie under the directories; see `gather`.

    From one directory that is as `compare` left it, equal files come out.

    Args:
        directories: one or several, merged in this order.
        out_dir: the folder, made if needed.
        command: what puts several directories together, for the report.

    Returns:
        The summary, and what was found.
    """
    found = gather([pathlib.Path(directory) for directory in directories])
    summary = _write(pathlib.Path(out_dir), found, command if len(directories) > 1 else "")
    return summary, found


def _write(folder: pathlib.Path, found: Gathered, merged_by: str = "") -> dict[str, Any]:
    summary = summarise(found.results, found.inapplicable)
    commands = [source.command for source in found.sources if source.command]
    texts = {
        "summary.json": json.dumps(summary, indent=1, allow_nan=False) + "\n",
        "summary.md": markdown(summary, [*commands, *([merged_by] if merged_by else [])], found.problems),
        "curves.csv": curves(found.results).to_csv(index=False, lineterminator="\n"),
    }
    for name, text in texts.items():
        write_atomically(folder / name, lambda file, text=text: file.write(text.encode()))
    write_report(
        folder / "report.html",
        summary,
        found.results,
        found.sources,
        found.problems,
        gradients=found.gradients,
        notes=found.notes,
        merged_by=merged_by,
    )
    return summary
