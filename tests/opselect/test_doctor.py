"""The gradient doctor names the one operation that is to blame, and finds nothing where nothing is wrong."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import rich.console

import opselect
from opselect._tensorflow import keras, tf
from opselect.doctor import GradientCheckError, WrongGradientError, check_gradients

INF = math.inf
EVERY = ("eager", "graph", "xla")


def guarded(fn, good):
    """`fn` behind a single where, the way it is commonly and wrongly done."""
    return lambda x: tf.where(good(x), fn(x), 0.0)


def one_hot_argmax(x):
    return tf.one_hot(tf.argmax(x), 3)


def softmax_by_hand(x):
    weights = tf.exp(x)
    return weights / tf.reduce_sum(weights)


def entropy(logits):
    return -tf.reduce_sum(tf.nn.softmax(logits) * tf.nn.log_softmax(logits))


def entropy_by_hand(probabilities):
    return -tf.reduce_sum(probabilities * tf.math.log(probabilities))


def step_in_a_loop(x):
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.floor(1.5 * y)), (0, x), maximum_iterations=3)[1]


def log_of_log(x):
    for _ in tf.range(3):
        x = tf.math.log(x)
    return x


@tf.function
def compiled_log(x):
    return tf.where(x > 0, tf.math.log(x), 0.0)


# The function, its inputs, and (input, kind, operation type, offending operands) of each thing that is wrong.
BAD = {
    "overflow in the branch not taken": (
        lambda a: tf.where(a < 15, a, 10.0 ** tf.exp(a)),
        ([10.0],),
        [("a", "nan", "Pow", {(10.0, 22030.0)})],
    ),
    "division behind a where": (
        lambda x, y: tf.where(y == 0, 0.0, x / y),
        ([1.0, 2.0], [0.0, 3.0]),
        [("x", "nan", "RealDiv", {(1.0, 0.0)}), ("y", "nan", "RealDiv", {(1.0, 0.0)})],
    ),
    "division masked by multiplication": (
        lambda x, y: (x / y) * tf.cast(y != 0, tf.float32),
        ([1.0, 2.0], [0.0, 3.0]),
        [
            *(("x", "nan", "RealDiv", {(1.0, 0.0)}), ("y", "nan", "RealDiv", {(1.0, 0.0)})),
            ("output", "output", "RealDiv", {(1.0, 0.0)}),
        ],
    ),
    "root as a power": (lambda x: x**0.5, ([0.0, 1.0],), [("x", "inf", "Pow", {(0.0, 0.5)})]),
    "0 to the power 0": (tf.pow, ([0.0, 2.0], [0.0, 1.0]), [("x", "nan", "Pow", {(0.0, 0.0)})]),
    "length of nothing": (lambda x: tf.norm(x), ([0.0, 0.0],), [("x", "nan", "Sqrt", {(0.0,)})]),
    "log": (guarded(tf.math.log, lambda x: x > 0), ([0.0, 2.0],), [("x", "nan", "Log", {(0.0,)})]),
    "1/x": (guarded(lambda x: 1 / x, lambda x: x != 0), ([0.0, 2.0],), [("x", "nan", "RealDiv", {(1.0, 0.0)})]),
    "exp": (guarded(tf.exp, lambda x: x < 80), ([1e3, 2.0],), [("x", "nan", "Exp", {(1e3,)})]),
    "acos": (guarded(tf.acos, lambda x: x < 1), ([1.0, 0.5],), [("x", "nan", "Acos", {(1.0,)})]),
    "asin": (guarded(tf.asin, lambda x: x < 1), ([1.0, 0.5],), [("x", "nan", "Asin", {(1.0,)})]),
    "atanh": (guarded(tf.atanh, lambda x: x < 1), ([1.0, 0.5],), [("x", "nan", "Atanh", {(1.0,)})]),
    "acosh": (guarded(tf.acosh, lambda x: x > 1), ([1.0, 2.0],), [("x", "nan", "Acosh", {(1.0,)})]),
    "sinh": (guarded(tf.sinh, lambda x: x < 80), ([1e3, 2.0],), [("x", "nan", "Sinh", {(1e3,)})]),
    "lgamma": (guarded(tf.math.lgamma, lambda x: x > 0), ([0.0, 2.0],), [("x", "nan", "Lgamma", {(0.0,)})]),
    "mod": (
        lambda x, y: tf.where(y != 0, tf.math.floormod(x, y), 0.0),
        ([1.0, 3.0], [0.0, 2.0]),
        [("y", "nan", "FloorMod", {(1.0, 0.0)})],
    ),
    "entropy of masked logits": (
        entropy,
        ([0.0, 0.0, -INF],),
        [("logits", "nan", "Mul", {(0.0, -INF)}), ("output", "output", "Mul", {(0.0, -INF)})],
    ),
    "entropy of probabilities": (
        entropy_by_hand,
        ([0.0, 1.0],),
        [("probabilities", "nan", "Log", {(0.0,)}), ("output", "output", "Log", {(0.0,)})],
    ),
    "softmax by hand": (
        softmax_by_hand,
        ([1e3, 0.0],),
        [("x", "nan", "Exp", {(1e3,)}), ("output", "output", "Exp", {(1e3,)})],
    ),
    "two kinds at once": (
        tf.sqrt,
        ([0.0, -1.0, 4.0],),
        [("x", "nan", "Sqrt", {(-1.0,)}), ("x", "inf", "Sqrt", {(0.0,)}), ("output", "output", "Sqrt", {(-1.0,)})],
    ),
    "argmax": (one_hot_argmax, ([1.0, 3.0, 2.0],), [("x", "none", "ArgMax", {(1.0,), (3.0,), (2.0,)})]),
    "argmax alone": (lambda x: tf.argmax(x), ([1.0, 3.0],), [("x", "none", "ArgMax", {(1.0,), (3.0,)})]),
    "top k": (
        lambda x: tf.one_hot(tf.math.top_k(x, 1).indices, 2),
        ([1.0, 3.0],),
        [("x", "none", "TopKV2", {(1.0,), (3.0,)})],
    ),
    "threshold": (
        lambda x: tf.cast(x > 0, tf.float32),
        ([-1.0, 2.0],),
        [("x", "none", "Greater", {(-1.0, 0.0), (2.0, 0.0)})],
    ),
    "where of constants": (lambda x: tf.where(x > 0, 1.0, 0.0), ([2.0],), [("x", "none", "Greater", {(2.0, 0.0)})]),
    "floor": (tf.floor, ([0.5],), [("x", "none", "Floor", {(0.5,)})]),
    "round": (lambda x: 2 * tf.round(x * x), ([0.5],), [("x", "none", "Round", {(0.25,)})]),
    "cast to int": (
        lambda x: tf.cast(tf.cast(x, tf.int32), tf.float32),
        ([0.5],),
        [("x", "none", "Cast", {(0.5,)})],
    ),
    "stop_gradient": (lambda x: tf.stop_gradient(x) * 2, ([0.5],), [("x", "none", "StopGradient", {(0.5,)})]),
    "numpy_function": (
        lambda x: tf.numpy_function(lambda a: 2 * a, [x], tf.float32),
        ([0.5],),
        [("x", "none", "PyFunc", {(0.5,)})],
    ),
    "step in a loop": (step_in_a_loop, ([1.0],), [("x", "none", "Floor", {(1.5,)})]),
    "cond on the input": (
        lambda x: tf.cond(x > 0, lambda: 1.0, lambda: 2.0),
        (1.0,),
        [("x", "none", "Greater", {(1.0, 0.0)})],
    ),
    "argmax after a statistic that stops gradients": (
        lambda x: tf.one_hot(tf.argmax((x - tf.reduce_mean(x)) / tf.stop_gradient(1.0 + tf.norm(x))), 2),
        ([3.0, 4.0],),
        [("x", "none", "ArgMax", {(-0.08333,), (0.08333,)})],
    ),
    "a list of NaN": (lambda x: 2 * x, ([np.nan, 1.0],), [("output", "output", None, set())]),
    "two steps side by side": (
        lambda x: tf.round(x) * tf.cast(x > 0, tf.float32),
        ([1.5],),
        [("x", "none", "Round", {(1.5,)})],
    ),
    "unused": (lambda x, y: 2 * x, (1.0, [3.0]), [("y", "none", None, set())]),
    "clip": (
        lambda x: tf.clip_by_value(x, 0.0, 1.0),
        ([2.0, 3.0],),
        [("x", "zero", "Minimum", {(2.0, 1.0), (3.0, 1.0)})],
    ),
    "sign": (tf.sign, ([2.0, -3.0],), [("x", "zero", "Sign", {(2.0,), (-3.0,)})]),
    "dead relu": (tf.nn.relu, ([-2.0, -3.0],), [("features", "zero", "Relu", {(-2.0,), (-3.0,)})]),
    "zero mask": (lambda x: x * tf.zeros(2), ([2.0, 3.0],), [("x", "zero", "Mul", {(2.0, 0.0), (3.0, 0.0)})]),
    "never the largest": (
        lambda x: tf.reduce_max(tf.stack([x, x * 0.0 + 9.0]), 0),
        ([2.0],),
        [("x", "zero", "Max", {(2.0,), (9.0,)}), ("x", "zero", "Mul", {(2.0, 0.0)})],
    ),
    "never selected of a stack": (
        lambda x, y: tf.reduce_sum(tf.stack([x, y * y], -1) * tf.constant([1.0, 0.0]), -1),
        ([2.0], [3.0]),
        [("y", "zero", "Mul", {(2.0, 1.0), (9.0, 0.0)})],
    ),
    "sum of a softmax": (
        lambda x: tf.reduce_sum(tf.nn.softmax(x)),
        ([0.0, 0.0],),
        [("x", "zero", "Softmax", {(0.0,)})],
    ),
    "contributions that cancel": (lambda x: x - x, ([2.0],), [("x", "zero", None, set())]),
    "log in a loop": (
        log_of_log,
        ([1.0, 20.0],),
        [("x", "nan", "Log", {(0.0,)}), ("output", "output", "Log", {(0.0,)})],
    ),
    "inside a map": (
        lambda x: tf.map_fn(lambda v: tf.where(v > 0, tf.math.log(v), 0.0), x),
        ([0.0, 2.0],),
        [("x", "nan", "Log", {(0.0,)})],
    ),
    "inside a tf.function": (lambda x: 2 * compiled_log(x), ([0.0, 2.0],), [("x", "nan", "Log", {(0.0,)})]),
    "float16 overflows": (
        tf.exp,
        (np.array([12.0, 1.0], np.float16),),
        [("x", "inf", "Exp", {(12.0,)}), ("output", "output", "Exp", {(12.0,)})],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_the_culprit_is_exactly_one_operation(case):
    fn, inputs, expected = BAD[case]
    report = check_gradients(fn, *inputs)
    assert not report.ok
    rounded = [{tuple(float(f"{v:.4g}") for v in row) for row in f.operands} for f in report.findings]
    found = [(f.input, f.kind, f.op_type, o) for f, o in zip(report.findings, rounded, strict=True)]
    assert found == expected


def straight_through(x):
    @tf.custom_gradient
    def rounded(x):
        return tf.round(x), lambda upstream: upstream

    return rounded(x)


def squares_to_a_hundred(x):
    while tf.reduce_sum(x) < 100.0:
        x = x * x
    return x


def dense():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])


TABLE = tf.Variable(np.arange(6.0).reshape(3, 2), dtype=tf.float32, name="table")
ROWS = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
GOOD = {
    "softmax": (tf.nn.softmax, [1.0, 2.0, 3.0]),
    "double where": (lambda x: tf.where(x > 0, tf.sqrt(tf.where(x > 0, x, 1.0)), 0.0), [0.0, -1.0, 4.0]),
    "stationary point": (lambda x: (x - 3) ** 2, [3.0]),
    "relu, partly active": (tf.nn.relu, [-1.0, 2.0]),
    "matmul": (lambda a, b: a @ b, ROWS, ROWS.T),
    "layer norm": (keras.layers.LayerNormalization(), ROWS),
    "embedding": (keras.layers.Embedding(5, 2), np.array([1, 2])),
    "gather": (lambda i: tf.gather(TABLE, i), np.array([2, 0])),
    "straight through": (straight_through, [0.3, 1.7]),
    "logsumexp": (tf.reduce_logsumexp, [1000.0, 2.0]),
    "cumsum": (tf.cumsum, [1.0, 2.0]),
    "while": (squares_to_a_hundred, [2.0, 3.0]),
    "cond": (lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x * x, lambda: -x), [1.0, 2.0]),
    "nest": (lambda d, s: [d["a"] * 2, {"z": d["b"][0] + s}], {"a": 1.0, "b": [np.ones(2, np.float32)]}, 1.5),
    "float64": (tf.sin, np.array([1.0, 2.0])),
    "float16": (tf.sin, np.array([1.0, 2.0], np.float16)),
    "bfloat16": (tf.sin, tf.constant([1.0, 2.0], tf.bfloat16)),
    "huber": (keras.losses.huber, [1.0, 2.0], [0.0, 5.0]),
    "conv": (keras.layers.Conv2D(2, 2), ROWS.reshape(1, 4, 3, 1)),
    "argmax beside": (lambda x: x + x * tf.one_hot(tf.argmax(x), 3), [1.0, 3.0, 2.0]),
    "abs": (tf.abs, [1.0, -2.0]),
    "dense": (dense(), ROWS),
    "dropout": (lambda x: keras.ops.relu(x) + tf.random.uniform([3]), ROWS),
    "scan": (lambda x: tf.scan(lambda a, b: a * b, x), [1.0, 2.0, 3.0]),
    "products at 0": (lambda x, y: x * y, 0.0, 0.0),
    "masked log-softmax": (tf.nn.log_softmax, [0.0, 0.0, -INF]),
    "axis and flags": (lambda x, axis, keep: tf.reduce_sum(x, axis, keepdims=keep), [[1.0, 2.0]], 1, True),
    "ragged": (lambda r: tf.reduce_sum(r * r, 1), tf.ragged.constant([[1.0, 2.0], [3.0]])),
    "complex": (lambda x: tf.math.real(tf.exp(tf.complex(x, x))), [1.0, 2.0]),
    "py_function": (lambda x: tf.py_function(lambda a: a * a, [x], tf.float32), [1.0, 2.0]),
    "saturated": (tf.sigmoid, [1000.0]),  # a note, not a finding
}


@pytest.mark.parametrize("case", GOOD)
def test_nothing_is_found_where_nothing_is_wrong(case):
    fn, *inputs = GOOD[case]
    report = check_gradients(fn, *inputs)
    assert report.ok, str(report)
    assert report.checked
    report.raise_if_wrong()


HEALED = {
    "where": (lambda x: opselect.where(x > 0, tf.sqrt, 0.0, x), [0.0, -1.0, 4.0]),
    "divide": (opselect.divide, [1.0, 2.0], [0.0, 3.0]),
    "pow": (lambda x: opselect.pow(x, 0.5), [0.0, 1.0]),
    "norm": (lambda x: opselect.norm(x) + x[0], [0.0, 0.0]),
    "log": (opselect.log, [0.0, 2.0]),
    "entropy": (opselect.softmax_entropy, [0.3, 0.0, -INF]),
    "mask": (lambda x: opselect.mask(x), [-1.0, 2.0]),
    "floor": (opselect.with_surrogate_gradient(tf.floor, "identity"), [0.5]),
    "argmax": (opselect.one_hot_argmax, [1.0, 3.0, 2.0]),
}


@pytest.mark.parametrize("case", HEALED)
def test_what_is_advised_instead_is_healthy(case):
    fn, *inputs = HEALED[case]
    report = check_gradients(fn, *inputs)
    assert report.ok, str(report)


def test_a_root_behind_a_where_is_nan_under_xla_only():
    """TensorFlow's kernel of SqrtGrad gives 0 for an upstream gradient of 0; XLA multiplies 0 by infinity."""

    def root(x):
        return tf.where(x > 0, tf.sqrt(x), 0.0)

    x = tf.constant([0.0, -1.0, 4.0])

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = root(x)
        return tape.gradient(y, x)

    ways = {"eager": gradient, "graph": tf.function(gradient), "xla": tf.function(gradient, jit_compile=True)}
    truth = tuple(mode for mode, way in ways.items() if np.isnan(way(x)).any())
    assert truth == ("xla",)

    (finding,) = check_gradients(root, x).findings
    assert (finding.kind, finding.modes, finding.op_type) == ("nan", truth, "Sqrt")
    assert finding.operands == ((0.0,), (-1.0,))
    assert finding.positions == ((0,), (1,))
    assert finding.values == (0.0, -1.0)


def test_a_report_says_what_where_and_what_instead():
    def ratio(diff, total):
        share = diff / total
        return tf.where(total == 0, 0.0, share)

    report = check_gradients(ratio, [1.0, 2.0], [4.0, 0.0])
    assert [f.input for f in report.findings] == ["diff", "total"]
    assert all(f.modes == EVERY for f in report.findings)
    text = str(report)
    assert text.startswith("ratio: 2 things are wrong")
    for part in (
        "tf.divide (/)",
        "test_doctor.py:",
        "share = diff / total",
        "at (2, 0)",
        "diff[1] = 2",
        "total[1] = 0",
        "Instead: opselect.divide(x, y)",
        "every mode",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) < 200
    with pytest.raises(WrongGradientError, match=r"share = diff / total"):
        report.raise_if_wrong()


def test_a_report_in_the_terminal_has_the_same_words():
    report = check_gradients(lambda x: tf.floor(x), [0.5])
    shown = io.StringIO()
    rich.console.Console(width=200, file=shown).print(report)
    assert "tf.floor" in shown.getvalue()
    assert "with_surrogate_gradient(tf.floor, 'identity')" in shown.getvalue()


def test_many_findings_are_told_in_few_lines():
    weights = [tf.Variable(1.0, name=f"weight{i}") for i in range(40)]
    report = check_gradients(lambda x: tf.sqrt(x * 0 * tf.add_n(weights)), [1.0])
    assert len(report.findings) == 41
    text = str(report)
    assert len(text.splitlines()) < 30
    assert "... and 29 more" in text
    assert "... and 36 more likewise" in text


def test_a_composite_function_is_named_and_advised_on_as_a_whole():
    (finding,) = check_gradients(lambda x: tf.norm(x), [0.0, 0.0]).findings
    assert "inside tf.norm" in finding.reason
    assert finding.advice.startswith("opselect.norm")


def test_the_iteration_of_a_loop_is_named():
    finding = check_gradients(log_of_log, [1.0, 20.0]).findings[0]
    assert finding.context == "iteration 2 of a loop"
    assert finding.line is not None and finding.line.endswith("x = tf.math.log(x)")


def test_captured_variables_are_checked_by_name():
    scale, slope = tf.Variable([1.0, 0.0]), tf.Variable([1.0, 3.0], name="slope")
    counter = tf.Variable(0)

    def fn(x):
        counter.assign_add(1)
        return x * tf.sqrt(scale) + tf.floor(slope)

    report = check_gradients(fn, [1.0, 2.0])
    assert report.checked == ("x", "scale", "slope")
    assert [(f.input, f.kind, f.op_type, f.positions) for f in report.findings] == [
        ("scale", "inf", "Sqrt", ((1,),)),
        ("slope", "none", "Floor", ()),
    ]
    assert counter.numpy() == 1  # every run but the first is undone
    np.testing.assert_array_equal(scale, [1.0, 0.0])


def test_the_weights_of_a_model_have_their_paths():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="first"), keras.layers.Lambda(tf.floor)])
    report = check_gradients(model, ROWS)
    kernel = model.layers[0].kernel.path
    assert kernel in report.checked
    assert {f.op_type for f in report.findings} == {"Floor"}
    assert [f.input for f in report.findings] == ["inputs", kernel, model.layers[0].bias.path]


def test_a_variable_as_an_input():
    (finding,) = check_gradients(lambda v: tf.sqrt(v), tf.Variable([0.0, 1.0])).findings
    assert (finding.input, finding.kind, finding.op_type) == ("v", "inf", "Sqrt")


def test_entries_of_structures_have_names():
    report = check_gradients(lambda d: d["a"] * tf.sqrt(d["b"][0]), {"a": [1.0], "b": [np.zeros(1, np.float32), 3.0]})
    assert report.checked == ("d['a']", "d['b'][0]", "d['b'][1]")
    assert [(f.input, f.kind) for f in report.findings] == [("d['b'][0]", "inf"), ("d['b'][1]", "none")]


def test_numpy_keeps_its_dtype_and_floats_are_float32():
    seen = []

    def fn(x, y, z, i):
        seen.append((x.dtype, y.dtype, z.dtype, i))
        return tf.cast(x, tf.float32) + y + z

    assert check_gradients(fn, np.ones(2), 1.0, [1.0, 2], 3).ok
    assert seen[0] == (tf.float64, tf.float32, tf.float32, 3)


def test_what_xla_refuses_is_a_note():
    report = check_gradients(lambda x: tf.py_function(lambda a: a * a, [x], tf.float32), [1.0])
    assert report.ok
    (note,) = report.notes
    assert note.startswith("XLA can't compile it:")
    assert "EagerPyFunc" in note
    assert "\n" not in note


def test_what_cannot_be_traced_is_checked_eagerly():
    report = check_gradients(lambda x: tf.constant(2 * x.numpy()), [1.0])
    (finding,) = report.findings
    assert (finding.kind, finding.modes, finding.op_type) == ("none", ("eager",), None)
    assert ".numpy()" in finding.advice
    assert "tf.function can't trace it" in report.notes[0]


def test_an_operation_without_a_registered_gradient():
    """Then tape.gradient raises, but the inputs that don't go through it are fine."""
    image = np.ones((1, 4, 4, 1), np.float32)
    report = check_gradients(lambda image, x: tf.image.resize(image, [2, 2], method="area") * x, image, 2.0)
    assert [(f.input, f.kind, f.op_type) for f in report.findings] == [("image", "none", "ResizeArea")]
    assert any("LookupError" in note and "ResizeArea" in note for note in report.notes)


def test_a_loop_too_long_to_follow_is_named():
    def fn(x):
        return tf.while_loop(lambda i, y: i < 4000, lambda i, y: (i + 1, tf.sqrt(0 * y)), (0, x))[1]

    (finding,) = check_gradients(fn, [1.0]).findings
    assert (finding.kind, finding.operation) == ("nan", "tf.while_loop")
    assert finding.line is not None and "tf.while_loop" in finding.line


def test_a_gradient_too_small_for_its_dtype_is_a_note():
    report = check_gradients(tf.exp, [-200.0])
    assert report.ok
    assert "too small for its dtype" in report.notes[0]


def test_a_zero_at_one_point_is_a_note():
    report = check_gradients(lambda x, mask: x * mask, [1.0, 2.0], [0.0, 0.0])
    assert report.ok
    assert report.notes == ("x: the gradient is zero at exactly these inputs, but not around them",)


def test_integers_are_passed_on():
    report = check_gradients(lambda x, i: tf.gather(x, i), [1.0, 2.0], np.array([1]))
    assert report.ok
    assert report.checked == ("x",)
    assert report.notes == ("i is int64: passed on, but it has no gradient",)


@pytest.mark.parametrize(
    ("fn", "inputs", "message"),
    [
        (lambda x: tf.reshape(x, [3]), ([1.0],), r"raised InvalidArgumentError at test_doctor.py:\d+: .*tf.reshape"),
        (lambda x: 1 / 0, ([1.0],), "raised ZeroDivisionError at test_doctor.py"),
        (lambda x: None, ([1.0],), "must return a tensor"),
        (lambda x, y: x, ([1.0],), r"takes \(x, y\), but 1 input was given"),
        (lambda x: x, ([[1.0, 2.0], [3.0]],), "input 'x' can't be made a tensor"),
    ],
)
def test_what_cannot_be_checked_raises_one_clear_error(fn, inputs, message):
    with pytest.raises(GradientCheckError, match=message) as caught:
        check_gradients(fn, *inputs)
    assert "\n" not in str(caught.value)


def test_a_users_function_that_was_differentiated_before():
    """TensorFlow rewrites the loops and branches of a tf.function when it differentiates it."""

    @tf.function
    def fn(x):
        y = x
        for _ in tf.range(2):
            y = tf.floor(y) if tf.reduce_sum(y) > 100 else y + tf.sqrt(x)
        return y

    for _ in range(2):
        with tf.GradientTape() as tape:
            x = tf.constant([0.0, 2.0])
            tape.watch(x)
            y = fn(x)
        tape.gradient(y, x)
        findings = check_gradients(fn, x).findings
        assert {(f.kind, f.op_type) for f in findings} == {("inf", "Sqrt")}


def test_functions_that_are_told_to_run_eagerly_are_compiled_all_the_same():
    tf.config.run_functions_eagerly(True)
    try:
        (finding,) = check_gradients(lambda x: tf.where(x > 0, tf.sqrt(x), 0.0), [0.0, 4.0]).findings
        assert tf.config.functions_run_eagerly()
    finally:
        tf.config.run_functions_eagerly(False)
    assert finding.modes == ("xla",)


def test_the_seed_changes_the_projection_and_not_the_findings():
    reports = [check_gradients(tf.sqrt, [0.0, -1.0], seed=seed) for seed in (0, 0, 1)]
    assert str(reports[0]) == str(reports[1])
    assert [(f.kind, f.op_type) for f in reports[0].findings] == [(f.kind, f.op_type) for f in reports[2].findings]


def test_every_operation_is_named_and_advised_on():
    from opselect.doctor import advice

    for op_type in {**advice._NOT_FINITE, **advice._BLOCKED}:
        assert advice.user_name(op_type).startswith(("tf.", "slicing"))
        for kind in ("none", "zero", "nan", "inf", "output"):
            assert len(advice.advice(kind, op_type)) > 20
    assert advice.user_name("SelectV2") == "tf.where"
    assert advice.user_name("ArgMax") == "tf.argmax"
    assert advice.user_name("LogSoftmax") == "tf.nn.log_softmax"
    assert "callable branch" in advice.advice("nan", "SomethingRare")
    assert "with_surrogate_gradient" in advice.advice("none", "SomethingRare")


# --- modes that disagree, and advice that fits ------------------------------------------------------------------------


@tf.custom_gradient
def forgetful(x):
    """Sends a gradient back in eager mode only."""
    eager = tf.executing_eagerly()
    return x * 1.0, lambda g: g if eager else tf.zeros_like(g)


@tf.custom_gradient
def twice_in_graphs(x):
    factor = 1.0 if tf.executing_eagerly() else 2.0
    return x * 1.0, lambda g: factor * g


def test_a_gradient_that_is_zero_in_graphs_only_is_found():
    report = check_gradients(forgetful, [1.0, 2.0])
    [finding] = report.findings
    assert (finding.kind, finding.modes) == ("zero", ("graph", "xla"))


def test_gradients_that_differ_between_modes_are_noted():
    report = check_gradients(twice_in_graphs, [1.0, 2.0])
    assert report.ok
    assert [n for n in report.notes if "is not the eager one" in n] == [
        "x: the gradient in a tf.function (graph) is not the eager one",
        "x: the gradient in a tf.function (xla) is not the eager one",
    ]
    assert check_gradients(lambda x: tf.sin(x) * x, [1.0, 2.0]).notes == ()


@tf.custom_gradient
def broken(x):
    return x * 1.0, lambda g: g * float("nan")


@pytest.mark.parametrize(
    ("fn", "x", "kind", "advised"),
    [
        (lambda x: tf.reduce_mean(x * x), tf.constant([300.0, 300.0], tf.float16), "output", "a wider dtype here"),
        (lambda x: tf.norm(x), [1e20, 1.0], "output", "opselect.norm(x)"),
        (lambda x: tf.math.angle(tf.complex(x, x)), [0.0, 1.0], "nan", "opselect.atan2(tf.math.imag(z)"),
        (broken, [1.0], "nan", "a finite gradient from the function under tf.custom_gradient"),
        (lambda x: x * (1 / x), [0.0, 1.0], "output", "opselect.divide(x, y)"),
        (lambda x: tf.linalg.cholesky(tf.linalg.diag(x)), [1.0, 0.0], "output", "small multiple of the identity"),
    ],
    ids=["overflow", "norm", "angle", "custom gradient", "pole", "cholesky"],
)
def test_the_advice_fits_the_case(fn, x, kind, advised):
    told = [f.advice for f in check_gradients(fn, x).findings if f.kind == kind]
    assert told and advised in told[0]


def test_keras_errors_come_with_their_reason():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(GradientCheckError, match=r"raised .*: .*(expected|incompatible).*"):
        check_gradients(model, [[1.0, 2.0]])
