"""The random streams: Threefry's published vectors, uniformity, and one stream per replica in every mode."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from opselect._tensorflow import tf, tfp
from opselect.random import as_seed, fold_in, gumbel, sample_one_hot, substream, threefry, uniform

U32 = np.uint32


# Known answers for Threefry-2x32 with 20 rounds, from the Random123 distribution (Salmon et al. 2011).
@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_known_answers(counter, key, wanted):
    words = threefry(tuple(map(tf.constant, map(U32, key))), tuple(map(tf.constant, map(U32, counter))))
    assert tuple(int(w) for w in words) == wanted


def test_streams_are_the_same_in_every_mode():
    seed = tf.constant([[3, 4], [5, 6]])

    def draw(seed):
        return uniform(fold_in(seed, 9), [7, 2, 5], axis=1)

    eager = draw(seed).numpy()
    for jit in (False, True):
        np.testing.assert_array_equal(tf.function(draw, jit_compile=jit)(seed), eager)


def test_a_replica_keeps_its_stream_whichever_it_is_beside():
    alone = uniform(tf.constant([[5, 6]]), [7, 1, 5], axis=1).numpy()
    beside = uniform(tf.constant([[3, 4], [5, 6], [1, 1]]), [7, 3, 5], axis=1).numpy()
    np.testing.assert_array_equal(beside[:, 1:2], alone)
    assert np.abs(beside[:, 0] - beside[:, 1]).min() > 0


def test_draws_are_uniform_and_inside_the_open_interval():
    draws = uniform(as_seed(11), [200_000]).numpy()
    assert draws.min() > 0.0
    assert draws.max() < 1.0
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    lagged = np.corrcoef(draws[:-1], draws[1:])[0, 1]
    assert abs(lagged) < 4 / np.sqrt(len(draws))


def test_gumbel_draws():
    draws = gumbel(as_seed(12), [100_000]).numpy()
    assert np.isfinite(draws).all()
    assert stats.kstest(draws, "gumbel_r").pvalue > 1e-3


def test_folded_and_numbered_streams_differ():
    seed = as_seed(1)
    seeds = [seed, *(fold_in(seed, i) for i in range(20)), *(substream(seed, i) for i in range(20))]
    pairs = {tuple(s.numpy().tolist()) for s in seeds}
    assert len(pairs) == len(seeds)
    draws = np.stack([uniform(s, [1000]).numpy() for s in seeds])
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlation).max() < 5 / np.sqrt(1000)


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_samples_follow_the_categorical(jit):
    logits = tf.constant([[0.3, -1.0, 2.0, 0.0], [5.0, 0.0, 0.0, -3.0]])

    @tf.function(jit_compile=jit)
    def draw():
        return sample_one_hot(tfp.distributions.Categorical(logits=logits), as_seed(4), 50_000)

    frequency = draw().numpy().mean(0)
    wanted = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    reference = tfp.distributions.Categorical(logits=logits).sample(50_000, seed=[1, 2]).numpy()
    reference = np.stack([(reference == k).mean(0) for k in range(4)], -1)
    error = np.sqrt(wanted * (1 - wanted) / 50_000)
    assert np.all(np.abs(frequency - wanted) < 4.5 * error)
    assert np.all(np.abs(frequency - reference) < 4.5 * np.sqrt(2) * error)


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize("operations", [3, 100, 1024])
def test_an_operation_of_probability_zero_is_never_drawn(mode, operations):
    rng = np.random.default_rng(operations)
    logits = rng.normal(0, 3, (200, operations)).astype(np.float32)
    masked = rng.random((200, operations)) < 0.7
    masked[:, 0] &= rng.random(200) < 0.5
    masked[np.arange(200), rng.integers(0, operations, 200)] = False
    logits[masked] = -1e9

    def draw(logits):
        return sample_one_hot(tfp.distributions.Categorical(logits=logits), as_seed(8), 100)

    if mode != "eager":
        draw = tf.function(draw, jit_compile=mode == "xla")
    weights = draw(tf.constant(logits)).numpy()
    np.testing.assert_array_equal(weights.sum(-1), 1.0)
    assert not (weights * masked).any()


def test_seeds_are_checked():
    with pytest.raises(ValueError, match="got shape"):
        as_seed([1, 2, 3])
    with pytest.raises(ValueError, match="must have the 2 replicas"):
        uniform(tf.constant([[1, 2], [3, 4]]), [3, 5], axis=0)
