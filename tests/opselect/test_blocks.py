"""Seeds in blocks: how they are split, and that what is put together again is the whole run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from opselect.comparison import summarise
from opselect.experiments.blocks import merge, run_in_blocks, split
from opselect.experiments.config import RunConfig
from opselect.experiments.many import Interrupted
from opselect.experiments.results import RunResult
from opselect.learners import LEARNERS
from opselect_envs.tasks import TASKS

WHOLE = RunConfig("ScalarOp", TASKS["ScalarOp"], LEARNERS["exact"], (3, 1, 4, 15, 9), steps=10)


def part(result, seeds):
    """What a run of some of the result's seeds would have left."""
    rows = [result.seeds.index(seed) for seed in seeds]
    return dataclasses.replace(
        result, seeds=list(seeds), hard=result.hard[rows], soft=result.soft[rows], optimal=result.optimal[rows]
    )


def test_blocks_hold_the_seeds_in_order():
    assert [b.seeds for b in split(WHOLE, 2)] == [(3, 1), (4, 15), (9,)]
    assert split(WHOLE, None) == split(WHOLE, 5) == split(WHOLE, 7) == [WHOLE]
    assert len({b.folder for b in split(WHOLE, 1)}) == 5
    for bad in (0, 1.5, True):
        with pytest.raises(ValueError, match="seeds_per_cell must be an integer >= 1, got"):
            split(WHOLE, bad)


def test_merged_blocks_are_the_whole_run(make_result):
    whole = make_result(seeds=WHOLE.seeds)
    blocks = [part(whole, b.seeds) for b in split(WHOLE, 2)]
    merged = merge(WHOLE, blocks, 2)
    for name in ("hard", "soft", "optimal", "step", "evaluations"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    assert merged.seeds == list(WHOLE.seeds)
    assert merged.seconds == 3 * whole.seconds
    assert merged.config == WHOLE.to_dict() | {"seeds_per_cell": 2}
    row, expected = (summarise([r])["rows"][0] | {"seconds": 0} for r in (merged, whole))
    assert row == expected
    with pytest.raises(ValueError, match=r"must hold the seeds \[3, 1, 4, 15, 9\] in this order, got \[4, 15, 3, 1"):
        merge(WHOLE, [blocks[1], blocks[0], blocks[2]], 2)
    with pytest.raises(ValueError, match="evaluated at the same steps"):
        merge(WHOLE, [*blocks[:2], dataclasses.replace(blocks[2], step=blocks[2].step + 1)], 2)


def test_a_run_with_a_failed_block_has_no_result(make_result, tmp_path):
    other = dataclasses.replace(WHOLE, learner=LEARNERS["reinforce"], seeds=(0,))

    def engine(runs, folder, watcher):
        assert [r.seeds for r in runs] == [(3, 1), (4, 15), (9,), (0,)]
        done = [part(make_result(learner=r.learner.name, seeds=r.seeds), r.seeds) for r in runs]
        return (done, {}) if folder == tmp_path / ".blocks" else (done[1:], {("ScalarOp", "exact"): "lost"})

    results, failures = run_in_blocks([WHOLE, other], tmp_path, seeds_per_cell=2, engine=engine)
    assert [(r.learner, len(r.seeds)) for r in results] == [("exact", 5), ("reinforce", 1)]
    assert "seeds_per_cell" not in results[1].config  # one block: the run as it is
    assert not failures
    stored = [RunResult.load(p) for p in sorted(tmp_path.iterdir())]
    assert [r.config for r in stored] == [r.config for r in results]
    results, failures = run_in_blocks([WHOLE, other], tmp_path / "b", seeds_per_cell=2, engine=engine)
    assert [r.learner for r in results] == ["reinforce"]
    assert failures == {("ScalarOp", "exact"): "lost"}


def test_what_is_whole_is_kept_when_interrupted(make_result, tmp_path):
    other = dataclasses.replace(WHOLE, learner=LEARNERS["reinforce"])

    def engine(runs, folder, watcher):
        done = [part(make_result(learner=r.learner.name, seeds=r.seeds), r.seeds) for r in runs[:4]]
        raise Interrupted(done, {})

    with pytest.raises(Interrupted) as stopped:
        run_in_blocks([WHOLE, other], tmp_path, seeds_per_cell=2, engine=engine)
    assert [(r.learner, r.seeds) for r in stopped.value.results] == [("exact", list(WHOLE.seeds))]
