"""The exact policy gradient and the REINFORCE family: they see only the rewards of the operations they try."""

from __future__ import annotations

from opselect.estimators import (
    PPO,
    RELAX,
    DisARM,
    Exact,
    IndeCateR,
    LeaveOneOut,
    MovingAverageReinforce,
    OptimalReinforce,
    Reinforce,
    SelfCritical,
    SumAndSample,
    UnorderedSet,
    ValueReinforce,
)
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
    Learner("ppo", PPO(), "reinforce-value that uses each episode four times, clipped", environments_only=True),
    Learner("reinforce-self-critical", SelfCritical(), "one sample, the greedy choice's loss as baseline"),
    Learner("reinforce-rloo", LeaveOneOut(4), "four samples, each with the mean of the others as baseline"),
    Learner("reinforce-optimal", OptimalReinforce(), "one sample, the best constant baseline, at K evaluations"),
    Learner("indecater", IndeCateR(), "every operation of each decision, the other decisions sampled"),
    Learner("sum-and-sample", SumAndSample(), "the likeliest operations summed, one sample of the rest"),
    Learner("unordered-set", UnorderedSet(), "several operations without replacement, each other's baseline"),
    Learner("disarm", DisARM(), "antithetic samples, each the other's baseline"),
    Learner("relax", RELAX(), "one sample, a learned control variate"),
)
