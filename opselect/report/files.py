"""The files of a comparison."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from opselect.comparison import curves, summarise
from opselect.experiments.results import RunResult, write_atomically
from opselect.report.html import write_report

__all__ = ["write_files"]


def write_files(
    out_dir: str | os.PathLike[str],
    results: Sequence[RunResult],
    inapplicable: Mapping[tuple[str, str], str],
    command: str,
    versions: Mapping[str, str],
    problems: Sequence[str],
) -> dict[str, Any]:
    """Writes summary.json, curves.csv and report.html, each whole or not at all; equal results give equal files.

    Args:
        out_dir: the folder, made if needed.
        results: at most one per task and learner.
        inapplicable: why learners do not apply to tasks: (task, learner) -> reason.
        command: what reproduces the results.
        versions: name -> version of what computed them.
        problems: a sentence for each thing that went wrong.

    Returns:
        The summary, see `opselect.comparison.summarise`.
    """
    folder = pathlib.Path(out_dir)
    summary = summarise(results, inapplicable)
    text = json.dumps(summary, indent=1, allow_nan=False) + "\n"
    table = curves(results).to_csv(index=False, lineterminator="\n")
    write_atomically(folder / "summary.json", lambda file: file.write(text.encode()))
    write_atomically(folder / "curves.csv", lambda file: file.write(table.encode()))
    write_report(folder / "report.html", summary, results, command, versions, problems)
    return summary
