"""Schedules of scalars over training, computed on the host and handed to the compiled loop as data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Schedule"]


@dataclass(frozen=True)
class Schedule:
    """From `start` to `end` over the first `until` of training, then constant.

    Attributes:
        start: the value at step 0.
        end: the value from ``until * steps`` on.
        until: a fraction of training in (0, 1].
        shape: ``"linear"``, ``"geometric"`` (constant ratio; both ends must be positive) or ``"cosine"``.
    """

    start: float
    end: float
    until: float = 1.0
    shape: str = "linear"

    def __post_init__(self) -> None:
        if self.shape not in ("linear", "geometric", "cosine"):
            raise ValueError(f"shape must be 'linear', 'geometric' or 'cosine', got {self.shape!r}")
        if not 0.0 < self.until <= 1.0:
            raise ValueError(f"until must be in (0, 1], got {self.until!r}")
        if self.shape == "geometric" and not (self.start > 0 and self.end > 0):
            raise ValueError(f"a geometric schedule needs positive ends, got {self.start!r} and {self.end!r}")

    def values(self, first: int, count: int, total: int) -> np.ndarray:
        """[count] float32: the values at steps first, first + 1, ... of `total`."""
        progress = np.clip((first + np.arange(count)) / max(1.0, self.until * total), 0.0, 1.0)
        if self.shape == "geometric":
            values = self.start * (self.end / self.start) ** progress
        else:
            eased = progress if self.shape == "linear" else (1 - np.cos(np.pi * progress)) / 2
            values = self.start + (self.end - self.start) * eased
        return values.astype(np.float32)
