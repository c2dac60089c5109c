"""Runs many configurations one after the other, with a progress bar; the next one compiles while one trains."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from opselect.experiments.config import RunConfig
from opselect.experiments.results import RESULT, RunResult
from opselect.experiments.run import prepare, run
from opselect.learners.loop import TrainingDivergedError

__all__ = ["run_all"]


def run_all(runs: Sequence[RunConfig], folder: pathlib.Path, console: Any) -> tuple[list[RunResult], list[str]]:
    """Runs each configuration in a folder of its own below `folder`.

    Returns:
        The results in the order of `runs`, and a sentence for each run that failed.
    """
    results: list[RunResult] = []
    problems: list[str] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    to_do = [config for config in runs if not (folder / config.folder / RESULT).exists()]
    with (
        Progress(*columns, console=console, transient=True) as bar,
        ThreadPoolExecutor(1, thread_name_prefix="compile") as compiler,
    ):
        overall = bar.add_task(f"{len(runs)} runs", total=len(runs), note="")
        for config in runs:
            if config in to_do[:-1]:
                # Errors come up again when that configuration is run.
                compiler.submit(prepare, to_do[to_do.index(config) + 1])
            label = f"{config.name} {config.learner.name}"
            current = bar.add_task(label, total=config.steps, note="compiling")

            def report(done: int, hard: float, current: Any = current) -> None:
                bar.update(current, completed=done, note=f"hard score {hard:.3f}")

            try:
                results.append(run(config, folder / config.folder, report))
            except TrainingDivergedError as error:
                problems.append(f"{config.name}: {error}")
            bar.remove_task(current)
            bar.advance(overall)
    return results, problems
