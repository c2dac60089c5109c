"""Searches a learner's settings on a task: the engine behind `opselect tune`.

The search is Optuna's tree-structured Parzen estimator (Bergstra et al., 2011, "Algorithms for hyper-parameter
optimization"), asked and told by hand. Optuna fits better than Ray Tune, which wants to run trials itself, in workers
of its own: here a trial is a `RunConfig` like any other, so every engine runs it, its result is a file named by its
configuration's hash, and a search that was cut off needs no database to go on. It is simply asked again, answers from
the files what was run before, and so comes to the same settings. Optuna is also small: 25 MB, Ray Tune ten times that.

Trials are asked four at a time, whatever the engine, so that a cluster has something to spread and the search goes the
same way everywhere. Poor trials are not cut short: schedules are stretched over the whole of training, and what leads
half way (a fast learning rate, little entropy) often does not at the end.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import pathlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opselect.experiments.blocks import Engine
from opselect.experiments.config import PRESETS, RunConfig, compiling_pays
from opselect.experiments.many import Failures, run_all
from opselect.experiments.results import RunResult, write_atomically
from opselect.experiments.watching import Silent, Watcher
from opselect.learners.base import Learner
from opselect.learners.schedules import Schedule
from opselect_envs.tasks import Task

__all__ = ["Choice", "Range", "Trial", "TuneError", "Tuning", "as_code", "check_available", "search_space", "tune"]

_BATCH = 4
_STARTUP = 8  # so many trials are drawn at random, before there is something to learn from
_FRESH = 5  # the fewest seeds that the best settings are judged on


class TuneError(RuntimeError):
    """Optuna is not installed, or there was nothing to choose from."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, evenly or (`log`) by ratio."""

    default: float
    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Choice:
    """One of a few integers."""

    default: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """Settings that were tried."""

    number: int
    """From 0, which is the learner as it was given."""
    settings: dict[str, float]
    steps: int
    evaluations: int
    """How often the reward function was evaluated, per seed; as good as the same for all trials."""
    scores: list[float]
    """The hard score at the end, by seed; empty if training diverged."""
    reason: str = ""
    """Why there are no scores."""

    @property
    def score(self) -> float | None:
        """The mean over seeds."""
        return float(np.mean(self.scores)) if self.scores else None


@dataclass(frozen=True)
class Tuning:
    """What a search found."""

    task: str
    learner: Learner
    tuned: Learner
    trials: list[Trial]
    best: Trial
    seeds: list[int]
    """Those that were tuned on: the trials' scores are theirs, and the best of many is optimistic."""
    fresh_seeds: list[int]
    """Those that nothing was chosen on."""
    fresh: dict[str, list[float]]
    """Hard scores by fresh seed, of the ``"default"`` and of the ``"best"`` settings."""

    @property
    def default(self) -> Trial:
        """The learner as it was given."""
        return self.trials[0]

    @property
    def code(self) -> str:
        """Python that makes the tuned learner."""
        return as_code(self.tuned)

    def scores(self) -> list[tuple[str, float | None, float | None]]:
        """Mean hard scores as (what, default's, best's): on the seeds that were tuned on, and on the fresh ones."""
        default, best = (float(np.mean(s)) if s else None for s in (self.fresh["default"], self.fresh["best"]))
        return [
            (f"score, {len(self.seeds)} seeds tuned on", self.default.score, self.best.score),
            (f"score, {len(self.fresh_seeds)} fresh seeds", default, best),
        ]

    def verdict(self) -> str:
        """One sentence: what to do, by the fresh seeds."""
        if self.best.number == 0:
            return "none of the trials did better than the default settings: keep them"
        default, best = (np.asarray(self.fresh[kind]) for kind in ("default", "best"))
        if not len(default):
            return "the default settings diverge on the fresh seeds: use the best"
        if not len(best):
            return "the best settings diverge on the fresh seeds: keep the default ones"
        gain = float(best.mean() - default.mean())
        spread = float(np.sqrt((best.var(ddof=1) + default.var(ddof=1)) / len(best)))
        if gain > 2 * spread:
            return f"on fresh seeds the best settings gain {gain:.4f} (standard error {spread:.4f}): use them"
        if gain < -2 * spread:
            return f"on fresh seeds the best settings lose {-gain:.4f} (standard error {spread:.4f}): keep the default"
        return f"on fresh seeds the two differ by {gain:+.4f} (standard error {spread:.4f}): that may be chance"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        from opselect import __version__

        return {
            "version": __version__,
            "task": self.task,
            "learner": self.learner.name,
            "seeds": self.seeds,
            "fresh_seeds": self.fresh_seeds,
            "trials": [_plain(trial) for trial in self.trials],
            "default": _plain(self.default),
            "best": _plain(self.best),
            "fresh": self.fresh,
            "verdict": self.verdict(),
            "code": self.code,
        }

    def save(self, folder: pathlib.Path) -> pathlib.Path:
        """Writes tune.json."""
        path = folder / "tune.json"
        text = json.dumps(self.to_dict(), indent=1)
        write_atomically(path, lambda file: file.write(text.encode()))
        return path


def _plain(trial: Trial) -> dict[str, Any]:
    return dataclasses.asdict(trial) | {"score": trial.score}


def check_available() -> None:
    """Looks whether Optuna is installed.

    Raises:
        TuneError: it is not; the message says what to install.
    """
    if importlib.util.find_spec("optuna") is None:
        raise TuneError("Optuna is not installed; run: pip install 'opselect[tune]'")


def search_space(learner: Learner, task: Task) -> dict[str, Range | Choice]:
    """What can be tuned of a learner on a task, with its own settings as defaults; only what the learner has.

    ``"learning_rate"``, ``"entropy"`` (the bonus) and ``"entropy_until"`` (when it ends), ``"width"`` and ``"depth"``
    of the network; for relaxations ``"temperature"``, ``"cooling"`` (its end as a share of its start) and
    ``"row_clip"``; and the estimator's ``"samples"``.
    """
    estimator: Any = learner.estimator
    space: dict[str, Range | Choice] = {
        "learning_rate": _range(learner.learning_rate.start, 1e-3, 1e-1, log=True),
        "entropy": _range(learner.entropy.start, 0.0, 0.5),
        "entropy_until": _range(learner.entropy.until, 0.3, 1.0),
    }
    if hasattr(estimator, "temperature"):
        fixed = Schedule(float(estimator.temperature), float(estimator.temperature))
        schedule = learner.temperature or fixed
        space["temperature"] = _range(schedule.start, 0.1, 3.0, log=True)
        space["cooling"] = _range(schedule.end / schedule.start, 0.1, 1.0, log=True)
    if learner.row_clip is not None:
        space["row_clip"] = _range(learner.row_clip, 0.01, 10.0, log=True)
    if isinstance(getattr(estimator, "samples", None), int):
        valid = [n for n in (1, 2, 4, 8) if _applies(learner, task, n)]
        space["samples"] = _choice(estimator.samples, valid)
    hidden = learner.hidden_for(task)
    if hidden:
        space["width"] = _choice(hidden[0], (32, 64, 128, 256))
        space["depth"] = _choice(len(hidden), (1, 2, 3))
    return space


def _range(default: float, low: float, high: float, log: bool = False) -> Range:
    return Range(default, min(low, default), max(high, default), log)


def _choice(default: int, values: Sequence[int]) -> Choice:
    return Choice(default, tuple(sorted({*values, default})))


def _applies(learner: Learner, task: Task, samples: int) -> bool:
    try:
        return _with(learner, task, {"samples": samples}, learner.name).why_not(task) is None
    except ValueError:
        return False


def _with(learner: Learner, task: Task, settings: Mapping[str, float], name: str) -> Learner:
    """The learner with other settings."""
    changes: dict[str, Any] = {"name": name}
    estimator: Any = learner.estimator
    if "learning_rate" in settings:
        rate, start = learner.learning_rate, settings["learning_rate"]
        end = _rounded(start * rate.end / rate.start)
        changes["learning_rate"] = dataclasses.replace(rate, start=start, end=end)
    if "entropy" in settings:
        changes["entropy"] = dataclasses.replace(
            learner.entropy, start=settings["entropy"], until=settings["entropy_until"]
        )
    if "temperature" in settings:
        start = settings["temperature"]
        changes["temperature"] = Schedule(start, _rounded(start * settings["cooling"]), shape="geometric")
    if "row_clip" in settings:
        changes["row_clip"] = settings["row_clip"]
    if "samples" in settings:
        changes["estimator"] = dataclasses.replace(estimator, samples=int(settings["samples"]))
    if "width" in settings:
        field = "hidden" if task.horizon == 1 else "chain_hidden"
        changes[field] = (int(settings["width"]),) * int(settings["depth"])
    return dataclasses.replace(learner, **changes)


def _rounded(value: float) -> float:
    """To three digits, as one would write it."""
    return float(f"{value:.3g}")


def tune(
    name: str,
    task: Task,
    learner: Learner,
    folder: pathlib.Path,
    *,
    trials: int = 20,
    seeds: int = 3,
    steps: int | None = None,
    seed: int = 0,
    engine: Engine = run_all,
    watcher: Callable[[], Watcher] = Silent,
) -> Tuning:
    """Searches a learner's settings for the best mean hard score over seeds at the end of training.

    The first trial is the learner as it is. All trials may evaluate the reward equally often: with twice the samples,
    half the steps. The best and the default settings are then trained on fresh seeds, which nothing was chosen on.
    Run again, it continues: finished trials are read from `folder`, and more `trials` go on where fewer ended.

    Args:
        name: the task's name, for tables and folders.
        task: the task.
        learner: the learner whose settings are searched.
        folder: where the trials' results are kept and continued, and tune.json is written.
        trials: how many settings are tried.
        seeds: how many seeds each is trained with, from 0 on.
        steps: optimiser steps of the learner as it is; None: those of `opselect compare`.
        seed: the search's own.
        engine: what runs the trials.
        watcher: makes what is told how a batch of trials gets on.

    Raises:
        TuneError: Optuna is not installed, or every trial diverged.
        ValueError: `trials` or `seeds` is below 1, or the learner does not apply to the task.
        opselect.experiments.many.Interrupted: Ctrl-C; run again, this continues.
    """
    check_available()
    for what, value in (("trials", trials), ("seeds", seeds)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{what} must be an integer >= 1, got {value!r}; the nearest is 1")
    preset = PRESETS["default"]
    budget = preset.steps_for(task) if steps is None else steps
    numbers = tuple(range(seeds))
    base = RunConfig(name, task, learner, numbers, budget, preset.points, xla=compiling_pays(budget))
    space = search_space(learner, task)
    study = _Study(space, seed)
    done: list[Trial] = []
    while len(done) < trials:
        asked = [study.ask() for _ in range(min(_BATCH, trials - len(done)))]
        configs = [_trial_of(base, number, settings) for number, settings in enumerate(asked, len(done))]
        results, failures = engine(configs, folder / "cells", watcher())
        for number, (config, settings) in enumerate(zip(configs, asked, strict=True), len(done)):
            trial = _told(number, settings, config, results, failures)
            done.append(trial)
            study.tell(number, trial.score)
    scored = [trial for trial in done if trial.score is not None]
    if not scored:
        raise TuneError(f"none of the {len(done)} trials came to an end; the first: {done[0].reason}")
    best = max(scored, key=lambda trial: (trial.score or 0.0, -trial.number))
    tuned = learner if best.number == 0 else _with(learner, task, best.settings, f"{learner.name}-tuned")

    fresh_seeds = tuple(range(seeds, seeds + max(_FRESH, seeds)))
    finals = {
        "default": dataclasses.replace(base, seeds=fresh_seeds),
        "best": dataclasses.replace(base, learner=tuned, seeds=fresh_seeds, steps=best.steps),
    }
    results, _ = engine(list(dict.fromkeys(finals.values())), folder / "cells", watcher())
    scores = {result.learner: result.hard[:, -1].astype(float).tolist() for result in results}
    fresh = {kind: scores.get(config.learner.name, []) for kind, config in finals.items()}
    tuning = Tuning(name, learner, tuned, done, best, list(numbers), list(fresh_seeds), fresh)
    tuning.save(folder)
    return tuning


def _trial_of(base: RunConfig, number: int, settings: Mapping[str, float]) -> RunConfig:
    if number == 0:  # also where the settings can't say what it is, as with layers of different widths
        return base
    learner = _with(base.learner, base.task, settings, f"{base.learner.name}-trial-{number}")
    config = dataclasses.replace(base, learner=learner)
    steps = max(1, round(base.steps * base.evaluations_per_step / config.evaluations_per_step))
    return dataclasses.replace(config, steps=steps)


def _told(
    number: int, settings: dict[str, float], config: RunConfig, results: Sequence[RunResult], failures: Failures
) -> Trial:
    scores = next((r.hard[:, -1].astype(float).tolist() for r in results if r.learner == config.learner.name), [])
    reason = failures.get((config.name, config.learner.name), "")
    return Trial(number, settings, config.steps, config.steps * config.evaluations_per_step, scores, reason)


class _Study:
    """Optuna, asked and told. It is seeded, so equal answers lead to equal questions."""

    def __init__(self, space: Mapping[str, Range | Choice], seed: int) -> None:
        optuna: Any = importlib.import_module("optuna")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the option below is called experimental
            # With several trials under way, keeps the next from being like those that have no score yet.
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP, constant_liar=True)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._failed = optuna.trial.TrialState.FAIL
        self._space = {
            name: optuna.distributions.CategoricalDistribution(one.values)
            if isinstance(one, Choice)
            else optuna.distributions.FloatDistribution(one.low, one.high, log=one.log)
            for name, one in space.items()
        }
        self._study.enqueue_trial({name: one.default for name, one in space.items()})
        self._asked: list[Any] = []

    def ask(self) -> dict[str, float]:
        """The next settings."""
        trial = self._study.ask(fixed_distributions=self._space)
        self._asked.append(trial)
        return {name: _rounded(v) if isinstance(v, float) else v for name, v in trial.params.items()}

    def tell(self, number: int, score: float | None) -> None:
        """How good the settings with this number are; None: they failed."""
        if score is None:
            self._study.tell(self._asked[number], state=self._failed)
        else:
            self._study.tell(self._asked[number], score)


def as_code(learner: Learner) -> str:
    """Python that makes the learner: imports, and ``learner = Learner(...)`` with what differs from the defaults."""
    used: dict[str, set[str]] = {}

    def written(value: Any, margin: str = "") -> str:
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return json.dumps(value) if isinstance(value, str) else repr(value)
        kind = type(value)
        home = "opselect.estimators" if kind.__module__.startswith("opselect.estimators.") else kind.__module__
        used.setdefault("opselect.learners" if kind is Learner else home, set()).add(kind.__name__)
        arguments = [
            f"{f.name}={written(getattr(value, f.name))}"
            for f in dataclasses.fields(value)
            if f.init and not _is_default(f, getattr(value, f.name))
        ]
        if not margin:
            return f"{kind.__name__}({', '.join(arguments)})"
        return f"{kind.__name__}(\n" + "".join(f"{margin}{a},\n" for a in arguments) + ")"

    body = f"learner = {written(learner, '    ')}\n"
    imports = "".join(f"from {home} import {', '.join(sorted(names))}\n" for home, names in sorted(used.items()))
    return f"{imports}\n{body}"


def _is_default(field: Any, value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return field.default == value
    return field.default_factory is not dataclasses.MISSING and field.default_factory() == value
