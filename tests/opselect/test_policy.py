"""The policy network and the distribution over operations."""

from __future__ import annotations

import numpy as np
import pytest

from opselect._tensorflow import keras, tf, tfp
from opselect.policy import InvalidLogitsError, build_network, distribution, network_output, replica


def test_a_replica_is_an_ordinary_model_with_the_same_outputs(tmp_path):
    network = build_network(3, 5, hidden=(8, 4), replicas=4, seeds=[7, 8, 9, 10])
    x = np.random.default_rng(0).normal(size=(4, 6, 3)).astype(np.float32)
    together = network(x).numpy()
    assert together.shape == (4, 6, 5)
    for r in range(4):
        model = replica(network, r)
        np.testing.assert_allclose(model(x[r]), together[r], atol=1e-6)
    model.save(tmp_path / "policy.keras")
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "policy.keras")(x[3]), together[3], atol=1e-6)
    network.save(tmp_path / "stacked.keras")
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "stacked.keras")(x), together, atol=1e-6)
    with pytest.raises(ValueError, match=r"index must be in \[0, 3\], got 4"):
        replica(network, 4)


def test_a_replica_starts_from_its_own_seed():
    first = build_network(3, 5, replicas=3, seeds=[1, 2, 3])
    second = build_network(3, 5, replicas=1, seeds=[2])
    x = np.ones((1, 2, 3), np.float32)
    np.testing.assert_array_equal(replica(first, 1)(x[0]), replica(second, 0)(x[0]))
    assert np.abs(replica(first, 0)(x[0]) - replica(first, 1)(x[0])).max() > 1e-4


def test_trajectories_go_through_the_network_row_by_row():
    network = build_network(3, 5, replicas=2, output_scale=1.0)
    x = np.random.default_rng(0).normal(size=(4, 2, 6, 3)).astype(np.float32)
    wanted = np.stack([network(x[s]) for s in range(4)])
    np.testing.assert_allclose(network_output(network, tf.constant(x)), wanted, atol=1e-6)


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_masked_operations_have_probability_zero_and_no_gradient(mode):
    def run(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            d = distribution(logits, tf.constant([[True, True, False]]))
            entropy = d.entropy()
        return d.probs_parameter(), entropy, tape.gradient(entropy, logits), d.sample(1000, seed=[1, 2])

    if mode != "eager":
        run = tf.function(run, jit_compile=mode == "xla", autograph=False)
    p, entropy, gradient, drawn = run(tf.constant([[0.0, 0.0, 5.0]]))
    np.testing.assert_allclose(p, [[0.5, 0.5, 0.0]])
    np.testing.assert_allclose(entropy, [np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(gradient, [[0.0, 0.0, 0.0]], atol=1e-7)
    assert set(np.unique(drawn)) == {0, 1}


def test_the_distribution_is_tfps():
    assert isinstance(distribution([[0.0, 1.0]]), tfp.distributions.Categorical)


@pytest.mark.parametrize(
    ("logits", "mask", "message"),
    [
        ([[0.0, 1.0], [0.0, np.nan]], None, r"logits hold nan at index \(1, 1\)"),
        ([[0.0, np.inf, 0.0]], None, r"logits hold inf at index \(0, 1\)"),
        ([[-np.inf, -np.inf]], None, r"logits are all -inf at index \(0,\)"),
        ([[0.0, 1.0], [0.0, 1.0]], [[1, 1], [0, 0]], r"mask leaves no operation to choose at index \(1,\)"),
        ([[0.0, -np.inf]], [[0, 1]], r"logits are all -inf at index \(0,\)"),
    ],
)
def test_invalid_logits_are_refused(logits, mask, message):
    with pytest.raises(InvalidLogitsError, match=message):
        distribution(tf.constant(logits), mask)


def test_a_mask_of_the_wrong_width_is_refused():
    with pytest.raises(ValueError, match="must agree in their last axis"):
        distribution(tf.zeros([2, 3]), tf.ones([2, 4]))
