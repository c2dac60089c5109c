"""One stream of random numbers per row of a vector environment, read a column at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding

__all__ = ["Ahead", "Streams"]

_BLOCK = 512
_PAD = 16  # keeps the rows' starts off powers of two, which would share cache sets


class Streams:
    """B independent streams of float32 uniforms in [0, 1); row i is what its own NumPy generator would draw.

    Numbers are drawn in blocks, so a step of a large batch costs a few NumPy calls and not B of them. A block is the
    same stream as draws one by one: NumPy's generators keep the unused half of a 64-bit word.
    """

    def __init__(self, rows: int, largest: int) -> None:
        """Makes streams that are not seeded yet, from which at most `largest` numbers are drawn at once."""
        self.block = max(largest, min(_BLOCK, 2**22 // rows))  # bounds the memory of very large batches
        self.generators: list[Any] = [None] * rows  # NumPy generators, once seeded
        self.seeds: list[int | None] = [None] * rows
        self._buffer = np.empty((rows, self.block + _PAD), np.float32)
        self._common: int | None = self.block  # where all rows are, while they are at the same place
        self._at = np.full(rows, self.block)

    def seed(self, seeds: Sequence[int | None], rows: np.ndarray) -> None:
        """Restarts the streams of `rows` [R] from `seeds` [B]; with None a stream goes on, or starts unpredictably."""
        fresh = [row for row in rows.tolist() if seeds[row] is not None or self.generators[row] is None]
        if not fresh:
            return
        for row in fresh:
            self.generators[row], self.seeds[row] = seeding.np_random(seeds[row])
        if len(fresh) == len(self.generators):
            self._common = self.block
        else:
            self._part_ways()
            self._at[fresh] = self.block

    def draw(self, count: int, rows: np.ndarray | None = None) -> np.ndarray:
        """The next `count` numbers of each of `rows` [R] (None: all), as [R, count] float32."""
        if rows is None and self._common is not None:
            if self._common + count > self.block:
                left = self.block - self._common
                numbers = self._buffer[:, : self.block]
                numbers[:, :left] = numbers[:, self._common :].copy()
                for generator, row in zip(self.generators, numbers[:, left:], strict=True):
                    generator.random(out=row, dtype=np.float32)
                self._common = 0
            numbers = np.ascontiguousarray(self._buffer[:, self._common : self._common + count].T)
            self._common += count
            return numbers.T
        self._part_ways()
        if rows is None:
            rows = np.arange(len(self._at))
        for row in rows[self._at[rows] + count > self.block].tolist():
            self._refill(row)
        numbers = self._buffer[rows, self._at[rows] + np.arange(count)[:, None]]
        self._at[rows] += count
        return numbers.T

    def _part_ways(self) -> None:
        if self._common is not None:
            self._at[:] = self._common
            self._common = None

    def _refill(self, row: int) -> None:
        numbers, at = self._buffer[row, : self.block], self._at[row]
        left = self.block - at
        numbers[:left] = numbers[at:]
        self.generators[row].random(out=numbers[left:], dtype=np.float32)
        self._at[row] = 0


class Ahead:
    """One stream of float32 uniforms in [0, 1) that can be looked at before it is used.

    The numbers are those that the generator draws one by one; only the generator itself is ahead.
    """

    def __init__(self, generator: np.random.Generator) -> None:
        """Starts at the generator's next number."""
        self.generator = generator
        self.used = 0
        """How many numbers were taken so far."""
        self._numbers = np.empty(0, np.float32)
        self._at = 0

    def upcoming(self, count: int) -> np.ndarray:
        """The next `count` numbers [count], without taking them."""
        missing = self._at + count - len(self._numbers)
        if missing > 0:
            more = self.generator.random(missing, dtype=np.float32)
            self._numbers, self._at = np.concatenate([self._numbers[self._at :], more]), 0
        return self._numbers[self._at : self._at + count]

    def take(self, count: int) -> np.ndarray:
        """The next `count` numbers [count]."""
        numbers = self.upcoming(count)
        self._at += count
        self.used += count
        return numbers
