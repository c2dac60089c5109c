"""From results to statistics: which learner selects the right operation, and how sure that is. Never TensorFlow."""

from __future__ import annotations

from opselect.comparison.statistics import THRESHOLD, curves, interval, iqm, steps_to, summarise

__all__ = ["THRESHOLD", "curves", "interval", "iqm", "steps_to", "summarise"]
