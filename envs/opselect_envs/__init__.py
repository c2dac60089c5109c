"""Gymnasium environments that pose operation-selection tasks. Needs NumPy and gymnasium, never TensorFlow."""

from __future__ import annotations

import gymnasium

from opselect_envs.operations import OPERATIONS, InvalidOperationError, Operation, check_operation
from opselect_envs.scalar_op import OpSelectEnv, OpSelectVectorEnv
from opselect_envs.tasks import TASKS, InvalidTaskError, Task

__all__ = [
    "OPERATIONS",
    "TASKS",
    "InvalidOperationError",
    "InvalidTaskError",
    "OpSelectEnv",
    "OpSelectVectorEnv",
    "Operation",
    "Task",
    "check_operation",
]

for _name in TASKS:
    if f"opselect/{_name}-v0" not in gymnasium.registry:  # not twice when the module is reloaded
        gymnasium.register(
            id=f"opselect/{_name}-v0",
            entry_point="opselect_envs.scalar_op:OpSelectEnv",
            vector_entry_point="opselect_envs.scalar_op:OpSelectVectorEnv",
            kwargs={"task": _name},
        )
