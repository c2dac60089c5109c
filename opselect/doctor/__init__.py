"""The gradient doctor: which operation of a function makes a gradient None, zero or NaN, and what to write instead."""

from __future__ import annotations

from opselect.doctor.check import check_gradients
from opselect.doctor.inputs import GradientCheckError
from opselect.doctor.report import Finding, GradientCheck, WrongGradientError

__all__ = ["Finding", "GradientCheck", "GradientCheckError", "WrongGradientError", "check_gradients"]
