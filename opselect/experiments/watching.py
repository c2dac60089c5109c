"""Who is told how the runs of an experiment get on: a progress bar, lines of JSON for logs, TensorBoard, or nobody."""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from opselect.experiments.config import RunConfig
from opselect.experiments.results import RunResult

__all__ = ["Bars", "Lines", "Several", "Silent", "TensorBoard", "Watcher"]


class Watcher(Protocol):
    """What happens to runs, in this order for each; several may be under way at once."""

    def planned(self, runs: Sequence[RunConfig]) -> None:
        """These will be run, or are there already."""

    def started(self, config: RunConfig) -> None:
        """Compiling, or looking for what was done before."""

    def progress(self, config: RunConfig, done: int, hard: float) -> None:
        """So many steps are done; the mean hard score over seeds is that."""

    def finished(self, config: RunConfig, result: RunResult) -> None:
        """The result is on disk."""

    def failed(self, config: RunConfig, reason: str) -> None:
        """There will be no result."""

    def close(self) -> None:
        """No more will come."""


class Silent:
    """Tells nobody."""

    def planned(self, runs: Sequence[RunConfig]) -> None:
        """Nothing."""

    def started(self, config: RunConfig) -> None:
        """Nothing."""

    def progress(self, config: RunConfig, done: int, hard: float) -> None:
        """Nothing."""

    def finished(self, config: RunConfig, result: RunResult) -> None:
        """Nothing."""

    def failed(self, config: RunConfig, reason: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Bars:
    """A bar for all runs, with the time that is left, and one for each that is under way, with its rate.

    Args:
        console: a rich console.
        clock: seconds; for tests.
    """

    def __init__(self, console: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), _Note(), console=console, transient=True
        )
        self._overall: Any = None
        self._current: dict[str, Any] = {}
        self._began: dict[str, tuple[int, float]] = {}  # when the steps that are counted began
        self._work: dict[str, float] = {}
        self._done = 0.0
        self._start = clock()

    def planned(self, runs: Sequence[RunConfig]) -> None:
        """Starts the bars."""
        self._work = {config.folder: _work(config) for config in runs}
        self._overall = self._bars.add_task(f"{len(runs)} runs", total=sum(self._work.values()), note="starting")
        self._bars.start()

    def started(self, config: RunConfig) -> None:
        """Adds a bar."""
        name = f"{config.name} {config.learner.name}"
        self._current[config.folder] = self._bars.add_task(name, total=config.steps, note="compiling")
        self._tell_overall()

    def progress(self, config: RunConfig, done: int, hard: float) -> None:
        """Moves the run's bar."""
        now = self._clock()
        first, began = self._began.setdefault(config.folder, (done, now))
        rate = f", {(done - first) / (now - began):,.0f} steps/s" if done > first and now > began else ""
        self._bars.update(self._current[config.folder], completed=done, note=f"hard score {hard:.3f}{rate}")
        self._tell_overall()

    def finished(self, config: RunConfig, result: RunResult) -> None:
        """Removes the run's bar."""
        self._over(config)

    def failed(self, config: RunConfig, reason: str) -> None:
        """Removes the run's bar."""
        self._over(config)

    def close(self) -> None:
        """Takes the bars away."""
        self._bars.stop()

    def _over(self, config: RunConfig) -> None:
        self._bars.remove_task(self._current.pop(config.folder))
        self._done += self._work[config.folder]
        self._tell_overall()

    def _tell_overall(self) -> None:
        under_way = sum(
            self._work[folder] * self._bars.tasks[self._bars.task_ids.index(bar)].percentage / 100
            for folder, bar in self._current.items()
        )
        done, total, spent = self._done + under_way, sum(self._work.values()), self._clock() - self._start
        left = (
            f"about {_duration(spent * (total - done) / done)} left"
            if done > 0 and spent > 1
            else "time left not known yet"
        )
        self._bars.update(self._overall, completed=done, note=left)


class _Note(ProgressColumn):
    """What the bar says, and how long it has been there."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        return Text(f"{task.fields['note']}, {_duration(task.elapsed or 0.0)}", style="dim")


class Lines:
    """A line of JSON for whatever happens, for logs: ``{"event", "seconds", "task", "learner", ...}``.

    Args:
        write: takes a line; standard output by default.
    """

    def __init__(self, write: Callable[[str], Any] | None = None) -> None:
        self._write = write or (lambda line: print(line, file=sys.stdout, flush=True))
        self._start = time.monotonic()

    def planned(self, runs: Sequence[RunConfig]) -> None:
        """``"planned"``, with how many ``"runs"``."""
        self._tell("planned", runs=len(runs))

    def started(self, config: RunConfig) -> None:
        """``"started"``."""
        self._tell("started", config, steps=config.steps)

    def progress(self, config: RunConfig, done: int, hard: float) -> None:
        """``"progress"``, with the ``"step"`` and the mean ``"hard_score"``."""
        self._tell("progress", config, step=done, hard_score=round(hard, 6))

    def finished(self, config: RunConfig, result: RunResult) -> None:
        """``"finished"``, with the mean final ``"hard_score"``."""
        self._tell("finished", config, hard_score=round(float(np.mean(result.hard[:, -1])), 6))

    def failed(self, config: RunConfig, reason: str) -> None:
        """``"failed"``, with the ``"reason"``."""
        self._tell("failed", config, reason=reason)

    def close(self) -> None:
        """Nothing."""

    def _tell(self, event: str, config: RunConfig | None = None, **more: Any) -> None:
        line: dict[str, Any] = {"event": event, "seconds": round(time.monotonic() - self._start, 3)}
        if config is not None:
            line |= {"task": config.name, "learner": config.learner.name, "seeds": list(config.seeds)}
        self._write(json.dumps(line | more))


class TensorBoard:
    """Scalars by learner and task: the mean hard score as it goes, and at the end what each seed's curves are.

    Args:
        folder: where the event files go, one folder per run.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def planned(self, runs: Sequence[RunConfig]) -> None:
        """Nothing."""

    def started(self, config: RunConfig) -> None:
        """Nothing."""

    def progress(self, config: RunConfig, done: int, hard: float) -> None:
        """``<task>/hard_score`` at the step."""
        self._write(config, {"hard_score": hard}, done)
        self._writers[config.folder].flush()

    def finished(self, config: RunConfig, result: RunResult) -> None:
        """``<task>/hard_score/seed_<n>``, ``soft_score`` and ``optimal`` at every evaluation."""
        curves = {"hard_score": result.hard, "soft_score": result.soft, "optimal": result.optimal}
        for point, step in enumerate(result.step.tolist()):
            values = {f"{n}/seed_{s}": c[r, point] for n, c in curves.items() for r, s in enumerate(result.seeds)}
            self._write(config, values, step)
        self._writers.pop(config.folder).close()

    def failed(self, config: RunConfig, reason: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Closes what was not finished."""
        while self._writers:
            self._writers.popitem()[1].close()

    def _write(self, config: RunConfig, values: Mapping[str, float], step: int) -> None:
        from opselect._tensorflow import tf

        if config.folder not in self._writers:
            self._writers[config.folder] = tf.summary.create_file_writer(
                str(self._folder / f"{config.learner.name}-{config.name}")
            )
        with self._writers[config.folder].as_default():
            for name, value in values.items():
                tf.summary.scalar(f"{config.name}/{name}", value, step=step)


class Several:
    """Tells several."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self.watchers = watchers

    def planned(self, runs: Sequence[RunConfig]) -> None:
        """Tells all."""
        for watcher in self.watchers:
            watcher.planned(runs)

    def started(self, config: RunConfig) -> None:
        """Tells all."""
        for watcher in self.watchers:
            watcher.started(config)

    def progress(self, config: RunConfig, done: int, hard: float) -> None:
        """Tells all."""
        for watcher in self.watchers:
            watcher.progress(config, done, hard)

    def finished(self, config: RunConfig, result: RunResult) -> None:
        """Tells all."""
        for watcher in self.watchers:
            watcher.finished(config, result)

    def failed(self, config: RunConfig, reason: str) -> None:
        """Tells all."""
        for watcher in self.watchers:
            watcher.failed(config, reason)

    def close(self) -> None:
        """Tells all."""
        for watcher in self.watchers:
            watcher.close()


def _work(config: RunConfig) -> float:
    """How much there is to do, in evaluations of the reward; compiling counts as some steps."""
    return (config.steps + 200) * config.evaluations_per_step * config.task.horizon


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
