"""From a name, or an environment's id, to a task."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import gymnasium

from opselect_envs.challenges import CHALLENGES, Challenge
from opselect_envs.naming import nearest
from opselect_envs.tasks import TASKS, InvalidTaskError, Task

__all__ = ["UnknownParameterError", "as_task", "task_of", "task_with"]


class UnknownParameterError(InvalidTaskError, TypeError):
    """A parameter that tasks do not have; a TypeError too, as of any function that gets an unknown keyword.

    TorchRL's GymEnv passes ``frameskip`` and takes it back when told so in these words.
    """


def as_task(task: str | Task) -> Task:
    """The standard task or the suite's of that name, or the task itself.

    Raises:
        InvalidTaskError: the name is unknown; the nearest known one is suggested.
    """
    if isinstance(task, Task):
        return task
    if task in TASKS:
        return TASKS[task]
    if task in CHALLENGES:
        return CHALLENGES[task].task
    near = nearest(task, [*TASKS, *CHALLENGES])
    known = f"{', '.join(TASKS)}, and the suite's {', '.join(CHALLENGES)}"
    raise InvalidTaskError(f"unknown task {task!r}; did you mean {near!r}? Known: {known}")


def task_of(env_id: str | Challenge) -> Task:
    """The task that an environment of this package poses.

    Args:
        env_id: such as ``"opselect/ScalarOp-v0"``, with or without ``opselect_envs:`` before it; a task's name; or a
            challenge of the suite.

    Raises:
        InvalidTaskError: there is no such environment here; the nearest id is suggested.
    """
    if isinstance(env_id, Challenge):
        return env_id.task
    if not isinstance(env_id, str):
        raise InvalidTaskError(f"env_id must be an id such as 'opselect/ScalarOp-v0', got {env_id!r}")
    if env_id in TASKS or env_id in CHALLENGES:
        return as_task(env_id)
    ours = [i for i, spec in gymnasium.registry.items() if i.startswith(("opselect/", "opselect-suite/"))]
    plain = env_id.removeprefix("opselect_envs:")
    if plain not in ours:
        raise InvalidTaskError(f"env_id {env_id!r} is not of this package; did you mean {nearest(plain, ours)!r}?")
    return as_task(gymnasium.registry[plain].kwargs["task"])


def task_with(task: str | Task, parameters: dict[str, Any]) -> Task:
    """A standard task, or the one given, with some parameters replaced.

    Raises:
        InvalidTaskError: an unknown parameter (the nearest is suggested), one the kind of task fixes, or a bad value.
    """
    base = as_task(task)
    known = [f.name for f in fields(Task) if f.init and f.name != "goal"]
    if base.horizon == 1:
        known.remove("horizon")
    for name, value in parameters.items():
        if name == "horizon" and base.horizon == 1:
            raise UnknownParameterError(
                f"unknown parameter horizon={value!r} of a task of one decision; OpChain has it"
            )
        if name == "goal":
            raise UnknownParameterError(
                f"unknown parameter goal={value!r}: the id decides whether the target is shown; ScalarOpGoal shows it"
            )
        if name not in known:
            near = nearest(name, known)
            raise UnknownParameterError(
                f"unknown parameter {name}={value!r}; did you mean {near!r}? Known: {', '.join(known)}"
                f" (got an unexpected keyword argument {name!r})"
            )
    if base.rule is None and parameters.get("rule") is not None:
        parameters = {"regions": Task.regions, **parameters}  # a task without a rule counts one region
    if not parameters:
        return base
    task = replace(base, **parameters)
    if parameters.get("regions", task.regions) != task.regions:
        has = "there is no rule" if task.rule is None else f"the rule names {task.regions} operations, one per region"
        raise InvalidTaskError(f"regions={parameters['regions']!r} does not hold, as {has}; leave it out")
    return task
