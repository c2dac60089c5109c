"""Gymnasium environments that pose operation-selection tasks. Needs NumPy and gymnasium, never TensorFlow."""

from __future__ import annotations

from opselect_envs.operations import OPERATIONS, InvalidOperationError, Operation, check_operation
from opselect_envs.tasks import TASKS, InvalidTaskError, Task

__all__ = ["OPERATIONS", "TASKS", "InvalidOperationError", "InvalidTaskError", "Operation", "Task", "check_operation"]
