"""`OperationSelector` and `Mask` as layers: what they compute, where they run, how they are saved, what they refuse."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import opselect
from opselect._tensorflow import keras, tf
from opselect.estimators import ESTIMATORS, GumbelSoftmax, LeaveOneOut, SoftMixture
from opselect.layers import Mask, OperationSelector
from opselect.policy import InvalidLogitsError
from opselect_envs import InvalidOperationError, Operation

RELAXATIONS = [
    "soft-mixture",
    "gumbel-softmax",
    "gumbel-softmax-st",
    "straight-through",
    "gumbel-rao",
    "gapped-straight-through",
    "decoupled-st",
    "reinmax",
    "mve",
    "sparsemax-mixture",
    "entmax-mixture",
]


def fixed(names, logits, estimator="soft-mixture", shape=(None, 1), **kwargs):
    """A selector whose logits [D * K] do not depend on its input."""
    selector = OperationSelector(names, estimator, **kwargs)
    selector.build(shape)
    selector.head.kernel.assign(tf.zeros_like(selector.head.kernel))
    selector.head.bias.assign(logits)
    return selector


@keras.saving.register_keras_serializable(package="test")
def half(x):
    return x / 2


# --- what it computes -------------------------------------------------------------------------------------------------


def test_each_number_of_a_row_has_a_decision_of_its_own(in_mode):
    selector = fixed(["neg", "square", "exp"], [1.0, 0, 0, 0, 1, 0, 0, 0, 1], shape=(None, 3))
    x = tf.constant([[2.0, 3.0, 0.0], [-1.0, -2.0, 1.0]])
    np.testing.assert_allclose(in_mode(selector)(x), [[-2, 9, 1], [1, 4, math.e]], rtol=1e-6)
    assert selector.choices(x).tolist() == [["neg", "square", "exp"]] * 2
    np.testing.assert_array_equal(selector.select(x), [[0, 1, 2]] * 2)


def test_the_mixture_in_training(in_mode):
    logits = [0.3, -0.2, 0.9]
    selector = fixed(["neg", "square", "exp"], logits)
    p = np.exp(logits) / np.exp(logits).sum()
    value = in_mode(lambda x: selector(x, training=True))(tf.constant([[2.0], [0.5]]))
    expected = [[p @ [-2, 4, math.exp(2)]], [p @ [-0.5, 0.25, math.exp(0.5)]]]
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_one_decision_per_row(in_mode):
    def reverse(x):
        return tf.reverse(x, [-1])

    selector = OperationSelector([reverse, "neg"], "soft-mixture", per="row")
    selector.build((None, 2))
    selector.head.kernel.assign([[1.0, 0.0], [0.0, 0.0]])  # reverse where the first number is positive
    x = tf.constant([[1.0, 2.0], [-3.0, 4.0]])
    np.testing.assert_allclose(in_mode(selector)(x), [[2, 1], [3, -4]])
    assert selector.choices(x).tolist() == ["reverse", "neg"]
    assert selector.probabilities(x).shape == (2, 1, 2)


def test_several_operands(in_mode):
    selector = fixed(["div", "neg", lambda x, y: x - 2 * y], [0.0, 0.0, 1.0], shape=[(None, 1), (None, 1)])
    x, y = tf.constant([[6.0], [1.0]]), tf.constant([[3.0], [0.0]])
    np.testing.assert_allclose(in_mode(lambda x, y: selector([x, y]))(x, y), [[0], [1]])
    selector.head.bias.assign([1.0, 0.0, 0.0])
    np.testing.assert_allclose(in_mode(lambda x, y: selector([x, y]))(x, y), [[2], [0]])


def test_callables_take_the_operands_they_have_parameters_for(in_mode):
    selector = fixed([tf.sqrt, tf.add, lambda x, y, z=1.0: x * y * z], [1.0, 0, 0], shape=[(None, 1)] * 2)
    x, y = tf.constant([[4.0]]), tf.constant([[3.0]])
    for bias, expected in (([1.0, 0, 0], 2), ([0, 1.0, 0], 7), ([0, 0, 1.0], 12)):
        selector.head.bias.assign(bias)
        np.testing.assert_allclose(in_mode(lambda x, y: selector([x, y]))(x, y), [[expected]])
    assert selector.names == ["sqrt", "add", "<lambda>"]


def test_callables_of_one_name_are_numbered():
    def scaled(by):
        def scale(x):
            return by * x

        return scale

    selector = fixed([scaled(2.0), scaled(3.0)], [0.0, 1.0])
    assert selector.choices(tf.ones([1, 1])).tolist() == [["scale_1"]]


def test_rows_of_another_shape_from_keras_layers(in_mode):
    wide, narrow = keras.layers.Dense(4, name="wide"), keras.layers.Dense(4, use_bias=False, name="narrow")
    selector = OperationSelector([wide, narrow], "soft-mixture", per="row", output_shape=(4,), seed=1)
    inputs = keras.Input((3,))
    model = keras.Model(inputs, selector(inputs))
    assert model.output_shape == (None, 4)
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    choice = selector.select(x).numpy()
    assert 0 < choice.sum() < 16
    expected = np.where(choice[:, None] == 0, wide(x), narrow(x))
    np.testing.assert_allclose(in_mode(lambda x: selector(x))(x), expected, rtol=1e-5, atol=1e-6)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(selector(x, training=True) ** 2)
    assert all(g is not None for g in tape.gradient(loss, model.trainable_weights))
    assert len(model.trainable_weights) == 5


def test_inference_calls_only_what_is_selected(mode, in_mode):
    calls = []

    def counted(name, function):
        def operation(x):
            tf.numpy_function(lambda x: calls.append((name, len(x))), [x], [])
            return function(x)

        operation.__name__ = name
        return operation

    if mode == "xla":
        pytest.skip("shapes are fixed there: every operation is evaluated, on stand-ins where it is not selected")
    selector = fixed([counted("a", tf.negative), counted("b", tf.exp), counted("c", tf.sqrt)], [0.0] * 3)
    selector.head.kernel.assign([[-10.0, 0.0, 0.0]])  # a where x < 0, else b
    selector.head.bias.assign([0.0, 0.5, 0.0])
    x = tf.constant([[-1.0], [2.0], [-3.0], [-0.2]])
    np.testing.assert_allclose(in_mode(selector)(x), [[1], [math.exp(2)], [3], [0.2]], rtol=1e-6)
    assert sorted(calls) == [("a", 3), ("b", 1)]
    assert selector.choices(x).ravel().tolist() == ["a", "b", "a", "a"]


def test_what_is_not_selected_does_not_poison(in_mode):
    selector = fixed([tf.sqrt, tf.math.log, "neg"], [0.0, 0.0, 0.0])
    selector.head.kernel.assign([[1.0, 0.0, -1.0]])

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = selector(x)
        return value, tape.gradient(value, x)

    value, gradient = in_mode(run)(tf.constant([[4.0], [-2.0]]))
    np.testing.assert_allclose(value, [[2], [2]])
    np.testing.assert_allclose(gradient, [[0.25], [-1]])


def test_features_and_hidden_layers():
    selector = OperationSelector(["neg", "exp"], "soft-mixture", hidden=(5, 4))
    x, features = tf.ones([7, 2]), tf.ones([7, 3])
    assert selector(x, features=features).shape == (7, 2)
    assert [w.shape for w in selector.trainable_weights] == [(3, 5), (5,), (5, 4), (4,), (4, 4), (4,)]
    assert selector.logits(x, features).shape == (7, 2, 2)


def test_allowed_operations(in_mode):
    selector = fixed(["neg", "square", "exp"], [0.0, 2.0, 1.0])
    x = tf.constant([[3.0], [2.0]])
    per_row = tf.constant([[1, 0, 1], [1, 0, 0]])
    np.testing.assert_allclose(
        in_mode(lambda x, a: selector(x, allowed=a))(x, per_row), [[math.exp(3)], [-2]], rtol=1e-6
    )
    assert selector.choices(x, allowed=[True, False, False]).tolist() == [["neg"], ["neg"]]
    np.testing.assert_allclose(selector.probabilities(x, allowed=per_row)[1], [[1, 0, 0]])
    with pytest.raises(InvalidLogitsError, match="no operation"):
        selector(x, allowed=tf.constant([[0, 0, 0], [1, 0, 0]]))
    with pytest.raises(ValueError, match=r"K = 3, got shape \(2, 2\)"):
        selector(x, allowed=tf.constant([[0, 1], [1, 0]]))


QUICK = ("soft-mixture", "reinmax")  # the others take their time in CI's second step


@pytest.mark.parametrize(
    "estimator", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in RELAXATIONS]
)
def test_relaxations_train_in_a_plain_model(estimator):
    keras.utils.set_random_seed(0)
    selector = OperationSelector(["neg", "identity"], estimator, hidden=(8,), seed=0)
    model = keras.Sequential([keras.Input((1,)), selector])
    x = np.linspace(-1, 1, 64, dtype=np.float32)[:, None]
    model.compile(keras.optimizers.Adam(0.05), "mse")
    before = model.evaluate(x, np.abs(x), verbose=0)
    model.fit(x, np.abs(x), epochs=40, batch_size=16, verbose=0)
    assert model.evaluate(x, np.abs(x), verbose=0) < 0.3 * before + 1e-3
    assert set(selector.choices(x[[3, 60]]).ravel()) == {"neg", "identity"}


def test_a_subclassed_model():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.trunk = keras.layers.Dense(6, "relu")
            self.selector = OperationSelector(["neg", "exp"], "soft-mixture")

        def call(self, x, training=None):
            return self.selector(x, features=self.trunk(x), training=training)

    model = Model()
    model.compile("adam", "mse")
    history = model.fit(np.ones((10, 2)), np.ones((10, 2)), epochs=2, verbose=0).history
    assert len(history["loss"]) == 2


@pytest.mark.parametrize("estimator", [n for n in ESTIMATORS if n not in RELAXATIONS])
def test_what_a_plain_model_cannot_train_is_said(estimator):
    with pytest.raises(ValueError, match="SelectorModel"):
        OperationSelector(["neg", "exp"], estimator)(tf.ones([4, 1]), training=True)


def test_schedules_move_with_training():
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 4, 0.2)
    selector = OperationSelector(["neg", "exp"], "gumbel-softmax", temperature=schedule)
    x = tf.ones([4, 1])
    seen = []
    for _ in range(5):
        selector(x, training=True)
        selector(x, training=False)
        seen.append(float(selector.current_estimator().temperature))
    np.testing.assert_allclose(seen, [0.8, 0.6, 0.4, 0.2, 0.2], rtol=1e-6)


def test_the_entropy_of_the_policy_is_rewarded():
    selector = fixed(["neg", "exp"], [0.0, math.log(3)], entropy=0.2)
    selector(tf.ones([4, 1]), training=True)
    # p = (1/4, 3/4)
    np.testing.assert_allclose(selector.losses, [-0.2 * (math.log(4) - 0.75 * math.log(3))], rtol=1e-6)
    assert len(selector.losses) == 1


def test_row_clip_bounds_the_gradient_of_a_row_in_its_logits():
    x = tf.constant([[40.0], [1.0]])
    norms = []
    for clip in (None, 0.1):
        selector = fixed(["neg", "exp", "square"], [0.0, 0.0, 0.0], row_clip=clip)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(selector(x, training=True))
        norms.append(float(tf.norm(tape.gradient(loss, selector.head.bias))))
    assert norms[0] > 1e10
    assert norms[1] <= 0.1 + 1e-6  # of a mean over two rows, each at most 0.1 / 2


# --- precision, saving ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_precisions(policy):
    selector = OperationSelector(["exp", "square", "inv", "log"], "gumbel-softmax", dtype=policy, seed=0)
    x = tf.constant([[80.0], [1e-6], [300.0], [-1.0]])
    with tf.GradientTape() as tape:
        soft = selector(x, training=True)
        loss = tf.reduce_sum(tf.cast(soft, tf.float32) * 1e-30)
    assert soft.dtype == selector.compute_dtype
    assert np.isfinite(soft.numpy().astype(np.float64)).all()
    assert np.isfinite(selector(x).numpy().astype(np.float64)).all()
    assert all(np.isfinite(g).all() for g in tape.gradient(loss, selector.trainable_weights))


def test_a_saved_layer_is_the_same(tmp_path):
    own = Operation("twice", 1, lambda xp, x: x + x, lambda xp, x: xp.abs(x) <= 1e30, 1.0, "2{0}")
    schedule = keras.optimizers.schedules.CosineDecay(1.0, 50)
    inputs = keras.Input((2,))
    selector = OperationSelector(
        ["neg", own, half], GumbelSoftmax(temperature=0.7), hidden=(3,), activation="relu", entropy=0.1,
        temperature=schedule, row_clip=2.0, seed=3, name="chooser",
    )  # fmt: skip
    model = keras.Model(inputs, selector(inputs))
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="custom_objects={'twice': the_operation}"):
        keras.models.load_model(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects={"twice": own})
    again = loaded.get_layer("chooser")
    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    np.testing.assert_array_equal(loaded(x), model(x))
    np.testing.assert_array_equal(loaded(x, training=True), model(x, training=True))  # the same samples too
    assert again.get_config() == selector.get_config()
    assert again.estimator == GumbelSoftmax(temperature=0.7)
    assert again.names == ["neg", "twice", "half"]


@dataclasses.dataclass(frozen=True)
class Own:
    """A mixture with an own weight on the loss."""

    scale: float = 2.0
    needs_relaxation = True
    needs_value = False
    sequential = True
    init = SoftMixture.init
    evaluations = SoftMixture.evaluations
    propose = SoftMixture.propose
    surrogate = SoftMixture.surrogate
    temperature = 1.0


def test_an_own_estimator_is_saved_by_name(tmp_path):
    model = keras.Sequential([keras.Input((1,)), OperationSelector(["neg", "exp"], Own(3.0))])
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="estimator 'Own' .*custom_objects={'Own': its class}"):
        keras.models.load_model(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Own": Own})
    assert loaded.layers[-1].estimator == Own(3.0)


def test_a_function_that_could_not_be_loaded_again_is_not_saved(tmp_path):
    model = keras.Sequential([keras.Input((1,)), OperationSelector([tf.sqrt, "neg"], "soft-mixture")])
    with pytest.raises(ValueError, match="take the operation 'sqrt' of the catalogue"):
        model.save(tmp_path / "model.keras")


def test_what_cannot_be_saved_says_so(tmp_path):
    selector = OperationSelector(["neg", lambda x: x + 1], "soft-mixture")
    model = keras.Sequential([keras.Input((1,)), selector])
    with pytest.raises(ValueError, match="register_keras_serializable"):
        model.save(tmp_path / "model.keras")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((["neg", "expp"],), InvalidOperationError, "did you mean 'exp'"),
        ((["neg"],), InvalidOperationError, "at least 2"),
        (("neg",), InvalidOperationError, "sequence"),
        ((["neg", "neg"],), InvalidOperationError, "'neg' more than once"),
        ((["neg", 3],), InvalidOperationError, "got 3"),
        ((["neg", "exp"], "reinforce-rlo"), ValueError, "did you mean 'reinforce-rloo'"),
        ((["neg", "exp"], LeaveOneOut), ValueError, "estimator must be a name or an estimator"),
    ],
)
def test_mistakes_at_construction_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        OperationSelector(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per": "column"}, "per must be 'element' or 'row', got 'column'"),
        ({"temperature": 0.0, "estimator": "gumbel-softmax"}, "temperature must be > 0"),
        ({"temperature": 1.0, "estimator": "reinforce-rloo"}, "LeaveOneOut has none"),
        ({"row_clip": -1.0}, "row_clip must be > 0"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        OperationSelector(["neg", "exp"], **options)


def test_a_callable_that_changes_the_shape_is_named():
    selector = OperationSelector([lambda x: tf.reduce_sum(x), "neg"], "soft-mixture")
    with pytest.raises(ValueError, match=r"returned shape \(\)"):
        selector(tf.ones([3, 1]), training=True)
    with pytest.raises(ValueError, match=r"operands must have one shape, got \(2, 3\) and \(2, 1\)"):
        OperationSelector(["add", "sub"], "soft-mixture")([tf.ones([2, 3]), tf.ones([2, 1])])
    with pytest.raises(InvalidOperationError, match="'div' takes 2 operands"):
        OperationSelector(["div", "neg"], "soft-mixture")(tf.ones([3, 1]), training=True)


# --- Mask -------------------------------------------------------------------------------------------------------------


def test_mask_keeps_what_is_over_the_threshold(in_mode):
    x = tf.constant([[0.5, -1.0], [0.2, 3.0]])
    np.testing.assert_allclose(in_mode(Mask(0.3))(x), [[0.5, 0], [0, 3]])
    np.testing.assert_allclose(in_mode(Mask(0.3, multiply=False))(x), [[1, 0], [0, 1]])
    layer = Mask(0.0)
    np.testing.assert_allclose(in_mode(lambda x, s: layer(x, scores=s))(x, -x), [[0, -1], [0, 0]])


def test_mask_learns_its_threshold_in_a_model():
    # Small numbers are noise: y is x where x > 0.6.
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (512, 1)).astype(np.float32)
    model = keras.Sequential([keras.Input((1,)), Mask(0.2, temperature=0.1, learn_threshold=True)])
    model.compile(keras.optimizers.Adam(0.02), "mse")
    model.fit(x, np.where(x > 0.6, x, 0), epochs=30, batch_size=64, verbose=0)
    assert model.layers[0].threshold.numpy() == pytest.approx(0.6, abs=0.05)


def test_a_mask_out_of_range_is_refused_at_once():
    with pytest.raises(ValueError, match="temperature must be > 0"):
        Mask(temperature=-1.0)
    with pytest.raises(ValueError, match="hardness must be in"):
        Mask(hardness=2.0)


def test_mask_anneals_from_soft_to_hard_and_is_saved(tmp_path):
    hardness = keras.optimizers.schedules.PolynomialDecay(0.0, 2, 1.0)
    model = keras.Sequential([keras.Input((1,)), Mask(0.1, "triangle", 0.5, hardness=hardness, multiply=False)])
    x = tf.constant([[0.6], [-0.4]])
    soft = 1 / (1 + np.exp(-(x.numpy() - 0.1) / 0.5))
    for share in (0.0, 0.5, 1.0, 1.0):
        np.testing.assert_allclose(
            model(x, training=True), share * np.array([[1], [0]]) + (1 - share) * soft, rtol=1e-5
        )
    model.save(tmp_path / "mask.keras")
    loaded = keras.models.load_model(tmp_path / "mask.keras")
    np.testing.assert_array_equal(loaded(x), [[1], [0]])
    assert loaded.layers[0].get_config() == model.layers[0].get_config()
    with pytest.raises(opselect.masks.InvalidSurrogateError, match="'triangle'"):
        Mask(surrogate="triangel")


def unregistered(x):
    return x


@pytest.mark.parametrize(
    "make",
    [
        lambda: opselect.layers.Mask(surrogate=lambda x: tf.tanh(x)),
        lambda: opselect.layers.Mask(surrogate=unregistered),
        lambda: opselect.layers.OperationSelector(["neg", "exp"], "reinforce-rloo", entropy=lambda step: 0.1),
    ],
    ids=["lambda", "function", "entropy"],
)
def test_what_could_not_be_loaded_is_not_saved(make, tmp_path):
    model = keras.Sequential([keras.Input((1,)), make()])
    with pytest.raises(ValueError, match=r"function '.*' can't be saved; wrap it in a function that is decorated with"):
        model.save(tmp_path / "model.keras")
