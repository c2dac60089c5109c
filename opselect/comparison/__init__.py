"""From results to statistics: which learner selects the right operation, and how sure that is. Never TensorFlow."""

from __future__ import annotations

from opselect.comparison.pairs import compare_pairs, pair_of
from opselect.comparison.statistics import MIN_SEEDS, THRESHOLD, interval, iqm, steps_to
from opselect.comparison.stratified import probability_of_improvement, profile, stratified_interval
from opselect.comparison.summary import check_result, curves, summarise

__all__ = [
    "MIN_SEEDS",
    "THRESHOLD",
    "check_result",
    "compare_pairs",
    "curves",
    "interval",
    "iqm",
    "pair_of",
    "probability_of_improvement",
    "profile",
    "steps_to",
    "stratified_interval",
    "summarise",
]
