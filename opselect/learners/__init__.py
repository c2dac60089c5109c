"""Learners: what is optimised and how, by plain name, and the loop that trains them."""

from __future__ import annotations

from opselect.learners import relaxation, score_function
from opselect.learners.base import Learner

LEARNERS: dict[str, Learner] = {learner.name: learner for learner in (*score_function.LEARNERS, *relaxation.LEARNERS)}

__all__ = ["LEARNERS", "Learner"]
