"""Gymnasium environments that pose operation-selection tasks. Needs NumPy and gymnasium, never TensorFlow."""

from __future__ import annotations

import gymnasium

from opselect_envs.challenges import CHALLENGES
from opselect_envs.operations import FAMILIES, OPERATIONS, Family, InvalidOperationError, Operation, check_operation
from opselect_envs.scalar_op import OpSelectEnv, OpSelectVectorEnv
from opselect_envs.tasks import TASKS, InvalidTaskError, Task

__all__ = [
    "CHALLENGES",
    "FAMILIES",
    "OPERATIONS",
    "TASKS",
    "Family",
    "InvalidOperationError",
    "InvalidTaskError",
    "OpSelectEnv",
    "OpSelectVectorEnv",
    "Operation",
    "Task",
    "check_operation",
]

_IDS = {f"opselect/{name}-v0": name for name in TASKS}
_IDS |= {challenge.id: challenge.name for challenge in CHALLENGES.values()}
for _id, _name in _IDS.items():
    if _id not in gymnasium.registry:  # not twice when the module is reloaded
        gymnasium.register(
            id=_id,
            entry_point="opselect_envs.scalar_op:OpSelectEnv",
            vector_entry_point="opselect_envs.scalar_op:OpSelectVectorEnv",
            kwargs={"task": _name},
        )
