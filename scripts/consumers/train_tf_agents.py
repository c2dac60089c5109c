"""Trains the DQN of TF-Agents on opselect/ScalarOp-v0.

    python -m pip install tensorflow tf-keras tensorflow-probability tensorboard gin-config pillow "gym==0.23.0" .
    python -m pip install --no-deps tf-agents==0.19.0
    python scripts/consumers/train_tf_agents.py [--steps N] [--seed N]

TF-Agents 0.19 pins old versions of what it needs and knows only gym, gymnasium's predecessor; with today's versions it
works on Keras 2, and a vector environment is soon told in its terms. Shapes: B rows.
"""

# pyright: reportMissingImports=false
# TF-Agents is in a virtual environment of its own.

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # read when TensorFlow is imported, like the next
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import gymnasium as gym
import numpy as np
import tensorflow as tf
from common import arguments, env_id, evaluate, report
from tf_agents.agents.dqn.dqn_agent import DqnAgent
from tf_agents.drivers.dynamic_step_driver import DynamicStepDriver
from tf_agents.environments.py_environment import PyEnvironment
from tf_agents.environments.tf_py_environment import TFPyEnvironment
from tf_agents.networks.q_network import QNetwork
from tf_agents.replay_buffers.tf_uniform_replay_buffer import TFUniformReplayBuffer
from tf_agents.specs import BoundedArraySpec
from tf_agents.trajectories.time_step import StepType, TimeStep, restart
from tf_agents.utils.common import element_wise_squared_loss, function

ENVIRONMENT = "ScalarOp"
ROWS = 64


class BatchedEnvironment(PyEnvironment):
    """A gymnasium vector environment in mode NEXT_STEP: as here, the step after an episode's last starts the next."""

    def __init__(self, envs: Any, seed: int) -> None:
        super().__init__(handle_auto_reset=False)
        self._envs, self._seed = envs, seed
        self._over = np.zeros(envs.num_envs, bool)

    batched = property(lambda self: True)
    batch_size = property(lambda self: self._envs.num_envs)

    def observation_spec(self) -> BoundedArraySpec:
        space = self._envs.single_observation_space
        return BoundedArraySpec(space.shape, space.dtype, space.low, space.high)

    def action_spec(self) -> BoundedArraySpec:
        return BoundedArraySpec((), np.int64, 0, int(self._envs.single_action_space.n) - 1)

    def _reset(self) -> TimeStep:
        self._over[:] = False
        return restart(self._envs.reset(seed=self._seed)[0], self.batch_size)

    def _step(self, action: np.ndarray) -> TimeStep:
        observations, rewards, terminated, truncated, _ = self._envs.step(action)
        fresh, self._over = self._over, terminated | truncated
        kind = np.where(self._over, StepType.LAST, np.where(fresh, StepType.FIRST, StepType.MID)).astype(np.int32)
        return TimeStep(kind, rewards.astype(np.float32), (~terminated).astype(np.float32), observations)


def train(steps: int, seed: int) -> tuple[DqnAgent, int]:
    """Returns the agent, and how many steps were taken: those that only started episodes are not counted."""
    tf.keras.utils.set_random_seed(seed)
    envs = gym.make_vec(env_id(ENVIRONMENT), num_envs=ROWS, autoreset_mode="NextStep")
    env = TFPyEnvironment(BatchedEnvironment(envs, seed))
    agent = DqnAgent(
        env.time_step_spec(),
        env.action_spec(),
        q_network=QNetwork(env.observation_spec(), env.action_spec(), fc_layer_params=(64, 64)),
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
        epsilon_greedy=0.3,
        td_errors_loss_fn=element_wise_squared_loss,
    )
    agent.initialize()
    buffer = TFUniformReplayBuffer(agent.collect_data_spec, batch_size=ROWS, max_length=2000)
    driver = DynamicStepDriver(env, agent.collect_policy, [buffer.add_batch], num_steps=ROWS)
    drive, learn = function(driver.run), function(agent.train)
    time_step, policy_state = drive()
    samples = iter(buffer.as_dataset(sample_batch_size=256, num_steps=2).prefetch(2))
    taken = ROWS
    while taken < steps:
        time_step, policy_state = drive(time_step=time_step, policy_state=policy_state)
        learn(next(samples)[0])
        taken += ROWS
    return agent, taken


def main() -> int:
    options = arguments(__doc__, steps=100_000).parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    started = time.perf_counter()
    agent, steps = train(options.steps, options.seed)
    seconds = time.perf_counter() - started

    def choose(observations: np.ndarray, _: np.ndarray) -> np.ndarray:
        return agent.policy.action(restart(tf.constant(observations), len(observations))).action.numpy()

    score = evaluate(choose, ENVIRONMENT)
    return report("tf-agents", ENVIRONMENT, "DQN, a PyEnvironment over gym.make_vec", steps, seconds, score)


if __name__ == "__main__":
    sys.exit(main())
