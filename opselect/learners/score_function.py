"""The exact policy gradient and the REINFORCE family: they see only the rewards of the operations they try."""

from __future__ import annotations

from opselect.estimators import Exact, LeaveOneOut, MovingAverageReinforce, Reinforce, SelfCritical, ValueReinforce
from opselect.learners.base import Learner

LEARNERS = (
    Learner(
        "exact",
        Exact(),
        "every operation weighted by its probability: the reference, at K evaluations",
        chain_rows=32,  # each row is K**T paths
    ),
    Learner("reinforce", Reinforce(), "one sample, no baseline"),
    Learner("reinforce-ema", MovingAverageReinforce(), "one sample, the moving average of past losses as baseline"),
    Learner("reinforce-value", ValueReinforce(), "one sample, a learned value network as baseline"),
    Learner("reinforce-self-critical", SelfCritical(), "one sample, the greedy choice's loss as baseline"),
    Learner("reinforce-rloo", LeaveOneOut(4), "four samples, each with the mean of the others as baseline"),
)
