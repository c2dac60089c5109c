"""Runs many configurations one after the other, with a progress bar; the next one compiles while one trains."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from opselect.experiments.config import RunConfig
from opselect.experiments.results import RESULT, RunResult
from opselect.experiments.run import prepare, run
from opselect.learners.base import TrainingDivergedError

__all__ = ["run_all"]


def run_all(
    runs: Sequence[RunConfig], folder: pathlib.Path, console: Any
) -> tuple[list[RunResult], dict[tuple[str, str], str]]:
    """Runs each configuration in a folder of its own below `folder`.

    Returns:
        The results in the order of `runs`, and for each (task, learner) that failed the reason.
    """
    results: list[RunResult] = []
    failures: dict[tuple[str, str], str] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    to_do = [config for config in runs if not (folder / config.folder / RESULT).exists()]
    following = dict(itertools.pairwise(to_do))
    compiler = ThreadPoolExecutor(1, thread_name_prefix="compile")
    try:
        with Progress(*columns, console=console, transient=True) as bar:
            overall = bar.add_task(f"{len(runs)} runs", total=len(runs), note="")
            for config in runs:
                if config in following:
                    # Errors come up again when that configuration is run.
                    compiler.submit(prepare, following[config])
                current = bar.add_task(f"{config.name} {config.learner.name}", total=config.steps, note="compiling")

                def report(done: int, hard: float, current: Any = current) -> None:
                    bar.update(current, completed=done, note=f"hard score {hard:.3f}")

                try:
                    results.append(run(config, folder / config.folder, report))
                except TrainingDivergedError as error:
                    failures[config.name, config.learner.name] = f"{config.name}: {error}"
                bar.remove_task(current)
                bar.advance(overall)
    finally:
        compiler.shutdown(wait=False, cancel_futures=True)  # what is left is not needed
    return results, failures
