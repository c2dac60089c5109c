"""Runs many configurations one after the other; the next one compiles while one trains."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from opselect.experiments.config import RunConfig
from opselect.experiments.results import RESULT, RunResult
from opselect.experiments.run import prepare, run
from opselect.experiments.watching import Silent, Watcher
from opselect.learners.base import TrainingDivergedError

__all__ = ["Failures", "Interrupted", "run_all"]

Failures = dict[tuple[str, str], str]
"""(task, learner) -> why there is no result."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C between runs or in one; says what was done before."""

    def __init__(self, results: Sequence[RunResult], failures: Failures) -> None:
        super().__init__()
        self.results, self.failures = list(results), dict(failures)


def run_all(
    runs: Sequence[RunConfig], folder: pathlib.Path, watcher: Watcher | None = None
) -> tuple[list[RunResult], Failures]:
    """Runs each configuration in a folder of its own below `folder`.

    Args:
        runs: what to run, in this order.
        folder: where results are kept and continued.
        watcher: is told how the runs get on.

    Returns:
        The results in the order of `runs`, and for each (task, learner) that failed the reason.

    Raises:
        Interrupted: Ctrl-C; it holds what was finished, and run again this continues.
    """
    watcher = Silent() if watcher is None else watcher
    results: list[RunResult] = []
    failures: Failures = {}
    to_do = [config for config in runs if not (folder / config.folder / RESULT).exists()]
    following = dict(itertools.pairwise(to_do))
    compiler = ThreadPoolExecutor(1, thread_name_prefix="compile")
    watcher.planned(runs)
    try:
        for config in runs:
            if config in following:
                # Errors come up again when that configuration is run.
                compiler.submit(prepare, following[config])
            watcher.started(config)

            def report(done: int, hard: float, config: RunConfig = config) -> None:
                watcher.progress(config, done, hard)

            try:
                result = run(config, folder / config.folder, report)
            except TrainingDivergedError as error:
                failures[config.name, config.learner.name] = f"{config.name}: {error}"
                watcher.failed(config, str(error))
            else:
                results.append(result)
                watcher.finished(config, result)
    except KeyboardInterrupt as error:
        raise Interrupted(results, failures) from error
    finally:
        watcher.close()
        compiler.shutdown(wait=False, cancel_futures=True)  # what is left is not needed
    return results, failures
