"""What a learner is: an estimator, and how its gradient is used."""

from __future__ import annotations

from dataclasses import dataclass, field

from opselect.estimators import Estimator
from opselect.learners.schedules import Schedule
from opselect_envs.tasks import Task

__all__ = ["Learner", "TrainingDivergedError"]


class TrainingDivergedError(RuntimeError):
    """A loss became NaN or infinite."""


@dataclass(frozen=True)
class Learner:
    """How a policy is trained on a task; all learners run the same loop.

    Attributes:
        name: the plain name, such as ``"reinforce-rloo"``.
        estimator: where the gradient comes from.
        summary: one line for listings.
        learning_rate: Adam's step size over training.
        entropy: the weight of the policy's entropy in the objective, in units of the reward's scale. Without it policy
            gradients become certain too early and stall.
        temperature: of a relaxation, over training; None keeps the estimator's own.
        row_clip: the largest norm of one decision's gradient in its logits, per row, or None. The slopes of exp or 1/x
            make a relaxation's gradients heavy-tailed: without this a single row outweighs its batch.
        hidden: the policy network's hidden widths on tasks of one decision.
        rows: B, episodes per step and replica, on tasks of one decision.
        chain_hidden: the hidden widths on tasks of several decisions, which need a larger network.
        chain_rows: B on tasks of several decisions, where a row costs more.
        environments_only: whether it is for gymnasium environments alone, as one that uses episodes again is.
    """

    name: str
    estimator: Estimator
    summary: str
    learning_rate: Schedule = field(default_factory=lambda: Schedule(1e-2, 5e-5, shape="cosine"))
    entropy: Schedule = field(default_factory=lambda: Schedule(0.2, 0.0, until=0.7))
    temperature: Schedule | None = None
    row_clip: float | None = None
    hidden: tuple[int, ...] = (128, 128)
    rows: int = 256
    chain_hidden: tuple[int, ...] = (128, 128, 128)
    chain_rows: int = 128
    environments_only: bool = False

    def __post_init__(self) -> None:
        if self.temperature is not None and not hasattr(self.estimator, "temperature"):
            raise ValueError(f"temperature: the estimator of {self.name!r} has none")
        if self.temperature is not None and not min(self.temperature.start, self.temperature.end) > 0:
            raise ValueError(f"temperature must stay above 0, got {self.temperature!r}")

    def rows_for(self, task: Task) -> int:
        """B on this task."""
        return self.rows if task.horizon == 1 else self.chain_rows

    def hidden_for(self, task: Task) -> tuple[int, ...]:
        """The hidden widths on this task."""
        return self.hidden if task.horizon == 1 else self.chain_hidden

    def why_not(self, task: Task) -> str | None:
        """Why this learner does not apply to the task, or None when it does."""
        if self.estimator.needs_relaxation and task.reward == "sparse":
            return "a sparse reward has no gradient to follow"
        if self.environments_only:
            return "it uses episodes of an environment again; where each step draws afresh it is reinforce-value"
        if task.horizon > 1 and not self.estimator.sequential:
            return "it estimates the gradient of decisions made at once, not of one after the other"
        try:
            self.estimator.evaluations(len(task.ops), task.horizon)
        except ValueError as error:
            return str(error)
        return None
