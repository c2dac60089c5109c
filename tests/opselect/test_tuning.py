"""The search for settings: what it tries, that it continues, and that the best is judged on fresh seeds."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest

from opselect.experiments import tuning
from opselect.experiments.many import Interrupted
from opselect.experiments.tuning import Choice, Range, TuneError, as_code, search_space, tune
from opselect.learners import LEARNERS, Learner
from opselect_envs.tasks import TASKS

TASK = TASKS["ScalarOp"]
RLOO = LEARNERS["reinforce-rloo"]


def quality(config):
    """How good settings are supposed to be: best at a learning rate of 0.03 and no entropy, whatever the samples."""
    rate, entropy = config.learner.learning_rate.start, config.learner.entropy.start
    return 0.9 - 0.1 * abs(np.log10(rate / 0.03)) - 0.5 * entropy


class Engine:
    """Answers at once; keeps what it has answered, as the files on disk do."""

    def __init__(self, make_result, lucky=0.0, stop_after=None, diverges=lambda config: False):
        self.make_result, self.lucky, self.diverges = make_result, lucky, diverges
        self.known, self.ran, self.batches, self.stop_after = {}, [], [], stop_after

    def __call__(self, runs, folder, watcher=None):
        self.batches.append(len(runs))
        results, failures = [], {}
        for config in runs:
            if self.diverges(config):
                failures[config.name, config.learner.name] = "not finite"
                continue
            if config.folder not in self.known:
                if len(self.ran) == self.stop_after:
                    raise Interrupted(results, failures)
                self.ran.append(config)
                result = self.make_result(learner=config.learner.name, seeds=config.seeds)
                final = quality(config) + 0.001 * np.arange(len(config.seeds)) + self.lucky * (0 in config.seeds)
                result.hard[:, -1] = final
                self.known[config.folder] = result
            results.append(self.known[config.folder])
        return results, failures


def test_only_what_a_learner_has_is_searched():
    space = search_space(RLOO, TASK)
    assert set(space) == {"learning_rate", "entropy", "entropy_until", "samples", "width", "depth"}
    assert space["learning_rate"] == Range(0.01, 1e-3, 1e-1, log=True)
    assert space["samples"] == Choice(4, (2, 4, 8))  # one sample has no others to be compared with
    annealed = search_space(LEARNERS["gumbel-softmax"], TASK)
    assert set(annealed) - set(space) == {"temperature", "cooling", "row_clip"}
    assert annealed["cooling"].default == 0.3
    assert "samples" not in search_space(LEARNERS["exact"], TASK)
    odd = dataclasses.replace(RLOO, hidden=(48,), row_clip=50.0)
    assert search_space(odd, TASK)["width"] == Choice(48, (32, 48, 64, 128, 256))
    assert search_space(odd, TASK)["row_clip"] == Range(50.0, 0.01, 50.0, log=True)


@pytest.mark.parametrize("name", [n for n, learner in LEARNERS.items() if not learner.environments_only])
def test_every_learner_can_be_tuned_and_written_as_code(name):
    for task in TASKS.values():
        if LEARNERS[name].why_not(task) is not None:
            continue
        settings = {
            k: v.values[0] if isinstance(v, Choice) else v.low for k, v in search_space(LEARNERS[name], task).items()
        }
        learner = tuning._with(LEARNERS[name], task, settings, "mine")
        assert learner.hidden_for(task) == (32,)
        assert learner.learning_rate.end == pytest.approx(5e-6)
        made = {}
        exec(as_code(learner), made)
        assert made["learner"] == learner
        assert isinstance(made["learner"], Learner)


def test_the_search_finds_better_settings_and_judges_them_on_fresh_seeds(make_result, tmp_path):
    engine = Engine(make_result, lucky=0.05)
    found = tune("ScalarOp", TASK, RLOO, tmp_path, trials=24, seeds=2, steps=80, engine=engine)
    assert engine.batches == [4] * 6 + [2]
    assert engine.ran[0].learner == RLOO and engine.ran[0].seeds == (0, 1) and engine.ran[0].steps == 80
    default = quality(engine.ran[0])
    assert found.default.score == pytest.approx(default + 0.0505)
    assert found.best.score == max(t.score for t in found.trials) > default + 0.1
    # Equally many evaluations, whatever the samples.
    assert {t.settings["samples"] for t in found.trials} == {2, 4, 8}
    assert all(t.steps == 80 * 4 / t.settings["samples"] for t in found.trials)
    assert len({t.evaluations for t in found.trials}) == 1
    # The luck of the seeds that were tuned on is not in the final word.
    assert found.fresh_seeds == [2, 3, 4, 5, 6]
    assert np.mean(found.fresh["default"]) == pytest.approx(default + 0.002)
    assert np.mean(found.fresh["best"]) == pytest.approx(found.best.score - 0.0505 + 0.002)
    assert re.match(r"on fresh seeds the best settings gain 0\.\d+ .*: use them", found.verdict())
    written = json.loads((tmp_path / "tune.json").read_text())
    assert len(written["trials"]) == 24 and written["best"]["score"] == found.best.score
    assert written["code"] == as_code(found.tuned)
    assert found.tuned.learning_rate.start == found.best.settings["learning_rate"]


def test_a_search_continues_and_repeats_itself(make_result, tmp_path):
    whole = Engine(make_result)
    tune("ScalarOp", TASK, RLOO, tmp_path / "whole", trials=14, seeds=1, engine=whole)
    cut = Engine(make_result, stop_after=9)
    with pytest.raises(Interrupted):
        tune("ScalarOp", TASK, RLOO, tmp_path / "cut", trials=14, seeds=1, engine=cut)
    cut.stop_after = None
    tune("ScalarOp", TASK, RLOO, tmp_path / "cut", trials=6, seeds=1, engine=cut)
    tune("ScalarOp", TASK, RLOO, tmp_path / "cut", trials=14, seeds=1, engine=cut)
    trained = [[c for c in engine.ran if c.seeds == (0,)] for engine in (whole, cut)]
    assert [c.folder for c in trained[0]] == [c.folder for c in trained[1]]  # each once
    files = [(tmp_path / d / "tune.json").read_bytes() for d in ("whole", "cut")]
    assert files[0] == files[1]
    other = Engine(make_result)
    tune("ScalarOp", TASK, RLOO, tmp_path / "other", trials=14, seeds=1, seed=1, engine=other)
    assert {c.folder for c in other.ran} & {c.folder for c in trained[0]} == {trained[0][0].folder}


def test_trials_that_diverge_are_left_out(make_result, tmp_path):
    engine = Engine(make_result, diverges=lambda c: c.learner.learning_rate.start > 0.012)
    found = tune("ScalarOp", TASK, RLOO, tmp_path, trials=12, seeds=1, engine=engine)
    failed = [t for t in found.trials if not t.scores]
    assert failed and all(t.settings["learning_rate"] > 0.012 and t.reason == "not finite" for t in failed)
    assert found.best.scores
    with pytest.raises(TuneError, match="none of the 4 trials came to an end; the first: not finite"):
        tune("ScalarOp", TASK, RLOO, tmp_path, trials=4, engine=Engine(make_result, diverges=lambda c: True))


def test_when_nothing_beats_the_default(make_result, tmp_path):
    found = tune("ScalarOp", TASK, RLOO, tmp_path, trials=1, engine=Engine(make_result))
    assert found.tuned is RLOO
    assert found.fresh["best"] == found.fresh["default"]
    assert found.verdict() == "none of the trials did better than the default settings: keep them"
    with pytest.raises(ValueError, match="trials must be an integer >= 1, got 0"):
        tune("ScalarOp", TASK, RLOO, tmp_path, trials=0)


def test_verdicts(make_result, tmp_path):
    found = tune("ScalarOp", TASK, RLOO, tmp_path, trials=8, engine=Engine(make_result))

    def verdict(default, best):
        return dataclasses.replace(found, fresh={"default": default, "best": best}).verdict()

    # Standard errors by hand: variances of 0.01 and of 0.01, over two seeds: sqrt(0.02 / 2) = 0.1.
    low, high = 0.5 - 0.1 / 2**0.5, 0.5 + 0.1 / 2**0.5
    assert "differ by +0.1900 (standard error 0.1000)" in verdict([low, high], [low + 0.19, high + 0.19])
    assert "gain 0.2100 (standard error 0.1000): use them" in verdict([low, high], [low + 0.21, high + 0.21])
    assert "lose 0.2100" in verdict([low, high], [low - 0.21, high - 0.21])
    assert "keep the default" in verdict([low, high], [])
    assert "use the best" in verdict([], [low, high])


def test_without_optuna_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(tuning.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TuneError, match=r"pip install 'opselect\[tune\]'"):
        tune("ScalarOp", TASK, RLOO, tmp_path)


# --- the command ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ScalrOp", "exact"], "TASK: unknown name 'ScalrOp'; did you mean 'ScalarOp'?"),
        (["ScalarOp", "exat"], "LEARNER: unknown name 'exat'; did you mean 'exact'?"),
        (["OpChain", "disarm"], "LEARNER: 'disarm' does not apply to OpChain: it estimates"),
        (["ScalarOp", "exact", "--trials", "0"], "--trials: must be from 1 to 10000, got 0"),
        (["ScalarOp", "exact", "--engine", "rya"], "--engine: unknown name 'rya'; did you mean 'ray'?"),
        (["ScalarOp", "exact", "--address", "auto"], "--address: 'auto' needs --engine ray"),
    ],
)
def test_mistakes_get_one_clear_line(arguments, message, opselect):
    done = opselect("tune", *arguments, status=2)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_tuning_from_the_command_line(opselect, tmp_path):
    arguments = ("tune", "ScalarOp", "reinforce", "--trials", 2, "--seeds", 1, "--steps", 20, "--out", tmp_path)
    done = opselect(*arguments)
    assert re.search(r"learning_rate +0\.01 +0\.\d+", done.stdout)
    assert re.search(r"score, 1 seeds tuned on +-?0\.\d{4} +-?0\.\d{4}", done.stdout)
    assert re.search(r"score, 5 fresh seeds +-?0\.\d{4} +-?0\.\d{4}", done.stdout)
    assert "the fresh seeds are the fair judge" in done.stdout
    assert "learner = Learner(" in done.stdout
    assert done.stderr == ""
    written = (tmp_path / "tune.json").read_bytes()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("result.npz")}
    assert 3 <= len(before) <= 4  # two trials; fresh seeds for the default and the best, which may be one
    assert opselect(*arguments).stdout == done.stdout
    assert (tmp_path / "tune.json").read_bytes() == written
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("result.npz")} == before
