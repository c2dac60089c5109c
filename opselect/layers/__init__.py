"""Keras layers that choose: `OperationSelector` picks an operation per number or per row, `Mask` keeps or drops."""

from __future__ import annotations

from opselect.layers.mask import Mask
from opselect.layers.selector import OperationSelector, Trajectories

__all__ = ["Mask", "OperationSelector", "Trajectories"]
