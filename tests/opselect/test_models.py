"""`SelectorModel`: its gradients against formulas, its metrics by hand, and what Keras promises around it."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest

from opselect._tensorflow import keras, tf
from opselect.estimators import ESTIMATORS, Exact, LeaveOneOut, MovingAverageReinforce
from opselect.layers import OperationSelector
from opselect.models import SelectorModel
from opselect.policy import InvalidLogitsError

NAMES = ["neg", "square", "exp"]
X = np.array([[0.5], [-1.0], [2.0], [0.1], [1.7]], np.float32)
Y = np.array([[0.3], [1.0], [-2.0], [1.0], [0.0]], np.float32)
VALUES = np.stack([-X[:, 0], X[:, 0] ** 2, np.exp(X[:, 0])], -1)  # [N, K]
LOGITS = np.array([0.2, -0.3, 0.5])
P = np.exp(LOGITS) / np.exp(LOGITS).sum()


def one_selector(estimator, **kwargs):
    """A model whose only selector has the logits LOGITS for every row."""
    inputs = keras.Input((1,))
    selector = OperationSelector(NAMES, estimator, seed=0, **kwargs)
    model = SelectorModel(inputs, selector(inputs))
    selector.head.kernel.assign(tf.zeros_like(selector.head.kernel))
    selector.head.bias.assign(LOGITS)
    return model


def step_of(model, x=X, y=Y, weight=None, batch_size=None):
    """What one step of SGD with rate 1 subtracts from the bias of the logits."""
    bias = model.selectors[0].head.bias
    before = bias.numpy().copy()
    model.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=model.run_eagerly)
    model.fit(x, y, sample_weight=weight, batch_size=batch_size or len(x), verbose=0, shuffle=False)
    moved = before - bias.numpy()
    bias.assign(before)
    return moved


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [None, np.array([1.0, 0.0, 2.0, 0.5, 3.0])])
def test_exact_is_the_gradient_of_the_expected_loss(weight):
    losses = (VALUES - Y) ** 2
    w = np.ones(5) if weight is None else weight
    expected = (w[:, None] * P * (losses - (losses @ P)[:, None])).mean(0)  # J f, weighted, averaged over rows
    np.testing.assert_allclose(step_of(one_selector("exact"), weight=weight), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["reinforce", "reinforce-ema", "reinforce-self-critical", "reinforce-rloo"])
def test_sampling_estimators_average_to_it(name):
    # Rows repeated many times average the estimates of one step; five standard errors.
    n = 4000
    losses = (VALUES - Y) ** 2
    expected = (P * (losses - (losses @ P)[:, None])).mean(0)
    moved = step_of(one_selector(name), np.tile(X, (n, 1)), np.tile(Y, (n, 1)))
    np.testing.assert_allclose(moved, expected, atol=5 * losses.max() / math.sqrt(5 * n))
    assert np.abs(moved).max() > 0.1


def test_the_mixture_has_its_own_gradient():
    mean = VALUES @ P
    expected = (2 * (mean - Y[:, 0])[:, None] * P * (VALUES - mean[:, None])).mean(0)
    np.testing.assert_allclose(step_of(one_selector("soft-mixture")), expected, rtol=1e-4, atol=1e-5)


def chain(estimator, seed=0):
    """Two selectors, the second of which decides on what the first has made."""
    inputs = keras.Input((1,))
    first = OperationSelector(NAMES, estimator, seed=seed, name="first")
    second = OperationSelector(["neg", "double", "half"], estimator, seed=seed + 1, name="second")
    middle = first(inputs)
    model = SelectorModel(inputs, second(middle))
    for layer, kernel in ((first, [0.3, -0.2, 0.1]), (second, [0.05, 0.1, -0.1])):
        layer.head.kernel.assign([kernel])
        layer.head.bias.assign([0.1, 0.2, -0.1])
    return model


def test_exact_enumerates_decisions_that_follow_each_other():
    model = chain("exact")
    first, second = model.selectors
    k1, b1, k2, b2 = (tf.Variable(v.numpy()) for v in (*first.head.weights, *second.head.weights))
    # By hand: sum over the nine paths of the product of their probabilities and their loss.
    with tf.GradientTape() as tape:
        p1 = tf.nn.softmax(X @ k1 + b1)
        total = 0.0
        for i, j in itertools.product(range(3), range(3)):
            middle = VALUES[:, i : i + 1]
            p2 = tf.nn.softmax(middle @ k2 + b2)
            end = [-middle, 2 * middle, middle / 2][j]
            total += p1[:, i] * p2[:, j] * (end - Y)[:, 0] ** 2
        loss = tf.reduce_mean(total)
    expected = tape.gradient(loss, [k1, b1, k2, b2])
    before = [v.numpy() for v in (*first.head.weights, *second.head.weights)]
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    history = model.fit(X, Y, batch_size=5, verbose=0).history
    for was, variable, gradient in zip(before, (*first.head.weights, *second.head.weights), expected, strict=True):
        np.testing.assert_allclose((was - variable.numpy()) * 1e3, gradient, rtol=2e-3, atol=2e-3)
    assert history["soft_loss"][0] == pytest.approx(float(loss), rel=1e-5)


QUICK = ("reinforce-rloo", "reinforce-value", "gumbel-softmax-st", "disarm")  # the others in CI's second step


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in ESTIMATORS])
def test_every_estimator_trains_a_chain(name):
    model = chain(name)
    model.compile("adam", "mse")
    if not ESTIMATORS[name].sequential:
        with pytest.raises(ValueError, match="decisions made at once, so a model may have one such selector, but .* 2"):
            model.fit(X, Y, verbose=0)
        return
    history = model.fit(X, Y, batch_size=2, epochs=2, verbose=0).history  # the last batch has one row
    assert all(np.isfinite(v).all() for v in history.values())
    assert all(np.abs(w.numpy()).max() < 2 for w in model.trainable_weights)


def test_parameters_behind_a_selector_get_their_ordinary_gradient():
    # y = scale * selected value; the exact estimator's gradient in scale is that of the expected loss.
    inputs = keras.Input((1,))
    selector = OperationSelector(NAMES, "exact", seed=0)
    scale = keras.layers.Dense(1, use_bias=False)
    model = SelectorModel(inputs, scale(selector(inputs)))
    selector.head.kernel.assign([[0.0] * 3])
    selector.head.bias.assign(LOGITS)
    scale.kernel.assign([[0.5]])
    model.compile(keras.optimizers.SGD(1e-2), "mse")
    model.fit(X, Y, batch_size=5, verbose=0)
    expected = ((2 * (0.5 * VALUES - Y) * VALUES) @ P).mean()
    assert (0.5 - scale.kernel.numpy()[0, 0]) / 1e-2 == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_a_learned_baseline_is_trained_beside_the_policy():
    model = one_selector("reinforce-value")
    rate = keras.optimizers.schedules.CosineDecay(1.0, 150)
    model.selectors[0].head.trainable = False
    model.compile(keras.optimizers.Adam(rate), "mse")
    x, y = np.tile(X, (50, 1)), np.tile(Y, (50, 1))
    model.fit(x, y, batch_size=250, epochs=150, verbose=0)
    # With a fixed policy the best linear prediction of the loss from x is its least-squares fit.
    losses = ((VALUES - Y) ** 2) @ P
    slope, offset = np.polyfit(X[:, 0], losses, 1)
    np.testing.assert_allclose(model.selectors[0].value_head.kernel.numpy().item(), slope, rtol=0.3)
    np.testing.assert_allclose(model.selectors[0].value_head.bias.numpy().item(), offset, rtol=0.3)


def test_the_moving_average_is_kept_between_steps_and_files(tmp_path):
    model = one_selector(MovingAverageReinforce(decay=0.5))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(X, Y, batch_size=5, verbose=0)
    average, weight = (v.numpy() for v in model.selectors[0].state_variables)
    assert weight == 0.5
    assert average > 0
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras").selectors[0]
    np.testing.assert_array_equal([v.numpy() for v in again.state_variables], [average, weight])


# --- metrics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eagerly", [True, False])
def test_metrics_by_hand(eagerly):
    model = one_selector("exact")
    model.compile("sgd", "mse", metrics=["mae"], run_eagerly=eagerly)
    report = model.evaluate(X, Y, batch_size=2, verbose=0, return_dict=True)  # batches of 2, 2 and 1
    losses = (VALUES - Y) ** 2
    hard, soft = losses[:, 2].mean(), (losses @ P).mean()
    assert report["hard_loss"] == pytest.approx(hard, rel=1e-5)
    assert report["soft_loss"] == pytest.approx(soft, rel=1e-5)
    assert report["gap"] == pytest.approx(hard - soft, rel=1e-4)
    assert report["loss"] == pytest.approx(hard, rel=1e-5)
    assert report["mae"] == pytest.approx(np.abs(VALUES[:, 2] - Y[:, 0]).mean(), rel=1e-5)


def test_evaluation_is_repeatable_and_leaves_training_alone():
    def trained(evaluate):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((1,))
        hidden = keras.layers.BatchNormalization()(keras.layers.Dense(4)(inputs))
        model = SelectorModel(inputs, OperationSelector(NAMES, seed=0)(inputs, features=hidden))
        model.compile("adam", "mse")
        for _ in range(3):
            model.fit(X, Y, batch_size=2, verbose=0, shuffle=False)
            if evaluate:
                one, other = (model.evaluate(X, Y, verbose=0) for _ in range(2))
                assert one == other
        return model

    for one, other in zip(trained(False).weights, trained(True).weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_several_outputs_with_weights_of_their_own():
    inputs = keras.Input((1,))
    selector = OperationSelector(NAMES, "exact", name="a")
    a = selector(inputs)
    b = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="b")(a)
    model = SelectorModel(inputs, {"a": a, "b": b})
    selector.head.kernel.assign([[0.0] * 3])
    selector.head.bias.assign(LOGITS)
    model.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights={"a": 1.0, "b": 0.5})
    report = model.evaluate(X, {"a": Y, "b": Y}, verbose=0, return_dict=True)
    losses = (VALUES - Y) ** 2 + 0.5 * np.abs(VALUES - Y)
    assert report["soft_loss"] == pytest.approx((losses @ P).mean(), rel=1e-5)
    assert report["hard_loss"] == pytest.approx(losses[:, 2].mean(), rel=1e-5)


def test_weights_per_row_and_per_entry():
    # Three numbers per row, weighted per row and per number, as Keras does it.
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 4, 3)).astype(np.float32)
    for weight in (None, rng.uniform(size=4), rng.uniform(size=(4, 1))):
        inputs = keras.Input((3,))
        outputs = OperationSelector(NAMES, "soft-mixture")(inputs)
        model, plain = SelectorModel(inputs, outputs), keras.Model(inputs, outputs)
        for each in (model, plain):
            each.compile("sgd", keras.losses.MeanSquaredError())
        expected = plain.evaluate(x, y, sample_weight=weight, verbose=0)
        found = model.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)
        assert found["hard_loss"] == pytest.approx(expected, rel=1e-5)


def test_evaluation_draws_other_numbers_for_every_batch():
    model = one_selector("reinforce")
    model.compile("sgd", "mse")
    x, y = np.tile(X, (800, 1)), np.tile(Y, (800, 1))
    losses = (VALUES - Y) ** 2
    expected = (losses @ P).mean()
    error = math.sqrt((losses**2 @ P).mean() / len(x))
    for batch_size in (5, 100):
        found = model.evaluate(x, y, batch_size=batch_size, verbose=0, return_dict=True)["soft_loss"]
        assert found == pytest.approx(expected, abs=4 * error)


def test_metrics_of_a_step_are_those_before_it():
    model = one_selector("exact")
    model.compile(keras.optimizers.SGD(0.3), "mse")
    before = model.evaluate(X, Y, verbose=0, return_dict=True)
    history = model.fit(X, Y, batch_size=5, verbose=0).history
    for name in ("hard_loss", "soft_loss", "gap"):
        assert history[name][0] == pytest.approx(before[name], rel=1e-5)
    assert model.evaluate(X, Y, verbose=0, return_dict=True)["soft_loss"] != pytest.approx(
        before["soft_loss"], rel=1e-3
    )


@pytest.mark.parametrize("estimator", ["soft-mixture", "exact"])
def test_row_clip_is_in_units_of_a_row(estimator):
    # One row four times over: the mean of equal gradients, each clipped to 0.001.
    moved = step_of(one_selector(estimator, row_clip=1e-3), np.tile(X[:1], (4, 1)), np.tile(Y[:1], (4, 1)))
    assert np.linalg.norm(moved) == pytest.approx(1e-3, rel=1e-3)


def test_keras_masks_are_honoured():
    # With one evaluation per row, losses and gradients must be those of keras.Model.
    results = []
    for kind in (keras.Model, SelectorModel):
        inputs = keras.Input((4, 1))
        masked = keras.layers.Masking()(inputs)
        dense = keras.layers.Dense(1, kernel_initializer="ones", name="dense")(masked)
        chosen = OperationSelector(NAMES, "soft-mixture", seed=0)(keras.layers.Flatten()(inputs))
        model = kind(inputs, [dense, chosen])
        model.compile(keras.optimizers.SGD(0.1), ["mse", "mse"])
        x = np.array([[[1.0], [2.0], [0.0], [0.0]], [[3.0], [0.0], [0.0], [0.0]]], np.float32)
        targets = [x + 1, np.zeros((2, 4), np.float32)]
        evaluated = model.evaluate(x, targets, verbose=0, return_dict=True)
        if kind is SelectorModel:
            assert evaluated["hard_loss"] == pytest.approx(evaluated["loss"], rel=1e-5)
        model.fit(x, targets, verbose=0)
        results.append([w.numpy() for w in model.get_layer("dense").weights])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


# --- what Keras promises ----------------------------------------------------------------------------------------------


def test_datasets_callbacks_and_validation(tmp_path):
    keras.utils.set_random_seed(0)
    model = one_selector("reinforce-rloo", hidden=(8,))
    model.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError(), weighted_metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices((X, Y, np.ones(5, np.float32))).repeat(7).batch(4)
    history = model.fit(
        data,
        epochs=4,
        verbose=0,
        validation_data=(X, Y),
        callbacks=[
            keras.callbacks.EarlyStopping("val_hard_loss", mode="min", patience=10, restore_best_weights=True),
            keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "val_gap", save_best_only=True, mode="min"),
            keras.callbacks.ReduceLROnPlateau("val_soft_loss", mode="min", patience=1),
        ],
    ).history
    assert {"loss", "hard_loss", "soft_loss", "gap", "mae", "val_hard_loss", "val_soft_loss", "val_gap"} <= set(history)
    assert (tmp_path / "best.keras").exists()


@pytest.mark.parametrize("estimator", ["reinforce-rloo", "gumbel-softmax"])
def test_saving_loading_and_going_on(tmp_path, estimator):
    model = one_selector(estimator, hidden=(4,), entropy=keras.optimizers.schedules.CosineDecay(0.1, 20))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(X, Y, epochs=3, verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, SelectorModel)
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    # It goes on as the original does: the optimiser, the schedules and the random numbers are where they were.
    for each in (model, loaded):
        each.fit(X, Y, epochs=3, verbose=0, shuffle=False)
    for one, other in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_loading_in_a_fresh_process(tmp_path):
    model = one_selector("reinforce-rloo")
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    code = f"import opselect; print(type(opselect.load_model({str(tmp_path / 'model.keras')!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "SelectorModel"


def test_copies():
    model = one_selector("reinforce-rloo")
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), keras.models.clone_model(model)):
        assert isinstance(other, SelectorModel)
        assert [s.names for s in other.selectors] == [NAMES]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X, verbose=0), model.predict(X, verbose=0))


def test_frozen_models_and_targets_of_other_dtypes():
    model = one_selector("reinforce-rloo")
    model.trainable = False
    model.compile("sgd", lambda y, p: (y - p) ** 2)
    before = [w.numpy() for w in model.selectors[0].head.weights]
    history = model.fit(X, Y.astype(int), verbose=0).history
    assert np.isfinite(history["hard_loss"]).all()
    for was, weight in zip(before, model.selectors[0].head.weights, strict=True):
        np.testing.assert_array_equal(was, weight.numpy())


def test_a_selector_that_is_called_twice():
    def shared(estimator):
        inputs = keras.Input((1,))
        selector = OperationSelector(["neg", "half"], estimator, seed=0)
        model = SelectorModel(inputs, selector(selector(inputs)))
        model.compile("adam", "mse")
        return model

    model = shared("reinforce-rloo")
    model.fit(X, Y, batch_size=1, verbose=0)
    assert int(model.selectors[0].iterations) == 5
    with pytest.raises(ValueError, match="called more than once"):
        shared("exact").fit(X, Y, verbose=0)


def test_an_exported_model_evaluates_one_operation_per_row(tmp_path):
    calls = []

    def counted(name, function):
        def operation(x):
            tf.numpy_function(lambda x: calls.append((name, len(x))), [x], [])
            return function(x)

        operation.__name__ = name
        return operation

    keras.utils.set_random_seed(0)
    inputs = keras.Input((1,))
    operations = [counted("neg", tf.negative), counted("square", tf.square), counted("exp", tf.exp)]
    selector = OperationSelector(operations, hidden=(16,), seed=0)
    model = SelectorModel(inputs, selector(inputs))
    model.compile(keras.optimizers.Adam(0.02), "mae")
    x = np.linspace(-2, 2, 200, dtype=np.float32)[:, None]
    y = np.where(x < 0, -x, np.exp(x))
    model.fit(x, y, epochs=60, batch_size=50, verbose=0)
    model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported")
    chosen = model.choices(x)[selector.name].ravel()
    calls.clear()
    result = served.serve(x)
    assert sum(rows for _, rows in calls) == len(x)
    assert dict(calls) == {n: int((chosen == n).sum()) for n in np.unique(chosen)}
    assert len(calls) == len(np.unique(chosen)) >= 2
    np.testing.assert_allclose(result, model.predict(x, verbose=0), rtol=1e-6)
    assert served.serve(x[:3]).shape == (3, 1)


def test_inference_compiled_by_xla():
    model = chain("reinforce-rloo")
    compiled = tf.function(lambda x: model(x, training=False), jit_compile=True)
    np.testing.assert_allclose(compiled(X), model.predict(X, verbose=0), rtol=1e-6)


def test_mixed_precision_stays_finite():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        inputs = keras.Input((1,))
        hidden = keras.layers.Dense(8, "tanh")(inputs)
        chosen = OperationSelector(["exp", "square", "inv"], seed=0)(inputs, features=hidden)
        model = SelectorModel(inputs, keras.layers.Dense(1, dtype="float32")(chosen))
        model.compile(keras.optimizers.Adam(0.01), "mae")
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        x = np.array([[0.0], [1e-5], [12.0], [80.0], [300.0], [-4.0]], np.float32)
        history = model.fit(x, np.ones_like(x), epochs=3, verbose=0).history
    finally:
        keras.config.set_dtype_policy("float32")
    assert all(np.isfinite(v).all() for v in history.values())
    assert all(np.isfinite(w.numpy()).all() for w in model.trainable_weights)


def test_subclassed_and_wrapped_models():
    class Model(SelectorModel):
        def __init__(self):
            super().__init__()
            self.trunk, self.selector = keras.layers.Dense(6, "relu"), OperationSelector(NAMES, seed=0)

        def call(self, x, training=None):
            return self.selector(x, features=self.trunk(x), training=training)

    wrapped = SelectorModel.of(
        keras.Sequential([keras.Input((1,)), OperationSelector(NAMES, seed=0), keras.layers.Dense(1)])
    )
    for model in (Model(), wrapped):
        model.compile("adam", "mse")
        history = model.fit(X, Y, epochs=2, batch_size=2, verbose=0).history
        assert {"hard_loss", "soft_loss", "gap"} <= set(history)


def test_choices_of_the_whole_model():
    model = chain("reinforce-rloo")
    chosen = model.choices(X)
    assert set(chosen) == {"first", "second"}
    expected = np.array(NAMES)[np.argmax(X @ np.array([[0.3, -0.2, 0.1]]) + [0.1, 0.2, -0.1], -1)]
    assert chosen["first"][:, 0].tolist() == expected.tolist()
    with pytest.raises(InvalidLogitsError, match="row 1"):
        model.choices(np.array([[1.0], [math.nan]], np.float32))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_mistakes_are_named():
    inputs = keras.Input((1,))
    no_selector = SelectorModel(inputs, keras.layers.Dense(1)(inputs))
    no_selector.compile("sgd", "mse")
    with pytest.raises(ValueError, match="no OperationSelector"):
        no_selector.fit(X, Y, verbose=0)

    middle = OperationSelector(NAMES, LeaveOneOut(samples=2), name="one")(inputs)
    different = SelectorModel(inputs, OperationSelector(NAMES, LeaveOneOut(samples=3), name="two")(middle))
    different.compile("sgd", "mse")
    with pytest.raises(ValueError, match="same estimator, but one has .*samples=2.* and two has .*samples=3"):
        different.fit(X, Y, verbose=0)

    too_many = one_selector(Exact(cap=2))
    too_many.compile("sgd", "mse")
    with pytest.raises(ValueError, match="cap=2"):
        too_many.fit(X, Y, verbose=0)

    middle = OperationSelector(NAMES, "exact")(inputs)
    unequal = SelectorModel(inputs, OperationSelector(["neg", "exp"], "exact")(middle))
    unequal.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"\[2, 3\]; use a sampling estimator"):
        unequal.fit(X, Y, verbose=0)


def test_losses_that_do_not_compare_rows_are_named():
    model = one_selector("reinforce-rloo")
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
    with pytest.raises(ValueError, match="reduction='sum'"):
        model.fit(X, Y, verbose=0)
    model.compile("sgd", lambda y, p: tf.reduce_mean((y - p) ** 2))
    with pytest.raises(ValueError, match="one per row"):
        model.fit(X, Y, verbose=0)
    model = one_selector("reinforce-rloo")
    model.compile("sgd")
    with pytest.raises(ValueError, match="needs a loss"):
        model.fit(X, Y, verbose=0)


# --- several outputs, callbacks ---------------------------------------------------------------------------------------


def test_fit_tells_the_hard_loss_of_each_output():
    inputs = keras.Input((1,))
    chosen = OperationSelector(NAMES, "exact", seed=0)(inputs)
    model = SelectorModel(inputs, {"p": chosen, "q": keras.layers.Dense(1, name="q")(chosen)})
    model.compile(keras.optimizers.SGD(0.0), loss={"p": "mse", "q": "mae"})
    told = model.fit(X, {"p": Y, "q": Y}, batch_size=5, verbose=0).history
    measured = model.evaluate(X, {"p": Y, "q": Y}, batch_size=5, verbose=0, return_dict=True)
    for name in ("p_loss", "q_loss"):
        assert told[name][0] == pytest.approx(measured[name], rel=1e-5) and told[name][0] > 0.1
    assert told["hard_loss"][0] == pytest.approx(told["p_loss"][0] + told["q_loss"][0], rel=1e-5)


@pytest.mark.parametrize("monitor", ["hard_loss", "val_hard_loss", "soft_loss", "val_gap"])
def test_callbacks_know_that_less_is_better(monitor, tmp_path):
    model = one_selector("reinforce-rloo")
    model.compile(keras.optimizers.SGD(0.0), "mse")
    stopping = keras.callbacks.EarlyStopping(monitor, patience=1, min_delta=1e-3)
    saving = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor, save_best_only=True)
    ran = model.fit(X, Y, validation_data=(X, Y), epochs=30, verbose=0, callbacks=[stopping, saving]).epoch
    assert len(ran) < 30 and (tmp_path / "best.keras").exists()
