"""Splits the seeds of runs into blocks that are run by themselves, and puts the blocks' results together again.

One configuration trains all its seeds side by side, which is quickest on one machine. Blocks are what can be spread:
a cell of a comparison is (task, learner, block of seeds), with a folder, a checkpoint and a result of its own. With the
same blocks every engine gives the same result, bit for bit; blocks of another size are arrays of another shape, whose
sums may be rounded otherwise.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from opselect.experiments.config import RunConfig
from opselect.experiments.many import Failures, Interrupted, run_all
from opselect.experiments.results import RunResult, folder_of
from opselect.experiments.run import finished
from opselect.experiments.watching import Watcher

__all__ = ["Engine", "merge", "run_in_blocks", "split"]

BLOCKS = ".blocks"
"""The folder of the blocks' own folders, beside those of whole runs."""


class Engine(Protocol):
    """What runs configurations: `opselect.experiments.many.run_all`, or `run_on_ray` of the module `cluster`."""

    def __call__(
        self, runs: Sequence[RunConfig], folder: pathlib.Path, watcher: Watcher | None = None, /
    ) -> tuple[list[RunResult], Failures]:
        """The results in the order of `runs`, and for each (task, learner) that failed the reason."""
        ...


def split(config: RunConfig, seeds_per_cell: int | None) -> list[RunConfig]:
    """The run in blocks of at most `seeds_per_cell` seeds, in their order; None: all in one.

    Raises:
        ValueError: `seeds_per_cell` is no integer >= 1.
    """
    if seeds_per_cell is None:
        return [config]
    if not isinstance(seeds_per_cell, int) or isinstance(seeds_per_cell, bool) or seeds_per_cell < 1:
        raise ValueError(f"seeds_per_cell must be an integer >= 1, got {seeds_per_cell!r}; the nearest is 1")
    starts = range(0, len(config.seeds), seeds_per_cell)
    return [dataclasses.replace(config, seeds=config.seeds[i : i + seeds_per_cell]) for i in starts]


def merge(config: RunConfig, blocks: Sequence[RunResult], seeds_per_cell: int) -> RunResult:
    """One result of all seeds from those of its blocks.

    Args:
        config: the run before it was split.
        blocks: the results of its blocks; together they hold its seeds, in order.
        seeds_per_cell: how it was split; the merged result's configuration says so.

    Returns:
        Scores [R, E] of all R seeds; the seconds of all blocks, one after the other; the first seed's picture.

    Raises:
        ValueError: the blocks are not those of `config`, or were evaluated at other steps.
    """
    seeds = [seed for block in blocks for seed in block.seeds]
    if seeds != list(config.seeds):
        raise ValueError(f"blocks must hold the seeds {list(config.seeds)} in this order, got {seeds}")
    first = blocks[0]
    for block in blocks:
        same = (block.task, block.learner) == (config.name, config.learner.name)
        if not same or not np.array_equal(block.step, first.step):
            raise ValueError(
                f"blocks must be of {config.learner.name!r} on {config.name!r}, evaluated at the same steps; got"
                f" {block.learner!r} on {block.task!r} at {block.step.tolist()}"
            )
    return dataclasses.replace(
        first,
        config=config.to_dict() | {"seeds_per_cell": seeds_per_cell},
        seeds=seeds,
        hard=np.concatenate([block.hard for block in blocks]),
        soft=np.concatenate([block.soft for block in blocks]),
        optimal=np.concatenate([block.optimal for block in blocks]),
        seconds=round(sum(block.seconds for block in blocks), 3),
    )


def run_in_blocks(
    runs: Sequence[RunConfig],
    folder: pathlib.Path,
    watcher: Watcher | None = None,
    *,
    seeds_per_cell: int | None = None,
    engine: Engine = run_all,
) -> tuple[list[RunResult], Failures]:
    """Runs configurations with an engine, in blocks of seeds, each block in a folder of its own below `folder`.

    Args:
        runs: what to run, each (task, learner) once.
        folder: where results are kept and continued.
        watcher: is told how the blocks get on.
        seeds_per_cell: how many seeds a block has at most; None: blocks are whole runs.
        engine: what runs the blocks.

    Returns:
        The results in the order of `runs`, and for each (task, learner) that failed the reason. Where a block failed,
        there is no result of the whole run; what its other blocks did stays on disk.

    Raises:
        Interrupted: Ctrl-C; it holds the runs all of whose blocks were finished.
    """
    cells = [split(config, seeds_per_cell) for config in runs]
    if all(len(blocks) == 1 for blocks in cells):
        return engine(runs, folder, watcher)
    blocks = list(itertools.chain.from_iterable(cells))
    try:
        done, failures = engine(blocks, folder / BLOCKS, watcher)
    except Interrupted as error:
        raise Interrupted(_whole(runs, cells, error.results, folder), error.failures) from error
    return _whole(runs, cells, done, folder), failures


def _whole(
    runs: Sequence[RunConfig], cells: Sequence[Sequence[RunConfig]], done: Sequence[RunResult], folder: pathlib.Path
) -> list[RunResult]:
    """The results of those runs that have all their blocks, each written into a folder as that of any run."""
    by_cell: dict[tuple[str, str], list[RunResult]] = {}
    for result in done:
        by_cell.setdefault((result.task, result.learner), []).append(result)
    results = []
    for config, blocks in zip(runs, cells, strict=True):
        found = by_cell.get((config.name, config.learner.name), [])
        if len(found) < len(blocks):
            continue
        result = found[0] if len(blocks) == 1 else merge(config, found, len(blocks[0].seeds))
        own = folder / folder_of(config.name, config.learner.name, result.config)
        if finished(own, result.config) is None:
            result.save(own)
        results.append(result)
    return results
