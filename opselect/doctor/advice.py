"""What an operation is called in a user's code, and what to write instead of it."""

from __future__ import annotations

import re

from opselect._tensorflow import tf

__all__ = ["advice", "composite", "user_name"]

_NAMES = {
    "AddV2": "tf.add (+)",
    "BiasAdd": "tf.nn.bias_add",
    "ClipByValue": "tf.clip_by_value",
    "ConcatV2": "tf.concat",
    "Conv2D": "tf.nn.conv2d",
    "EagerPyFunc": "tf.py_function",
    "FloorDiv": "tf.math.floordiv (//)",
    "FloorMod": "tf.math.floormod (%)",
    "GatherV2": "tf.gather",
    "Greater": "tf.greater (>)",
    "GreaterEqual": "tf.greater_equal (>=)",
    "IdentityN": "tf.custom_gradient",
    "Less": "tf.less (<)",
    "LessEqual": "tf.less_equal (<=)",
    "Equal": "tf.equal (==)",
    "NotEqual": "tf.not_equal (!=)",
    "MatMul": "tf.matmul (@)",
    "BatchMatMulV2": "tf.matmul (@)",
    "Mul": "tf.multiply (*)",
    "Max": "tf.reduce_max",
    "Mean": "tf.reduce_mean",
    "Min": "tf.reduce_min",
    "Neg": "tf.negative (-)",
    "Pack": "tf.stack",
    "Pow": "tf.pow (**)",
    "Prod": "tf.reduce_prod",
    "PyFunc": "tf.numpy_function",
    "RealDiv": "tf.divide (/)",
    "Inv": "tf.math.reciprocal",
    "ResourceGather": "tf.gather",
    "Select": "tf.where",
    "SelectV2": "tf.where",
    "SparseSoftmaxCrossEntropyWithLogits": "tf.nn.sparse_softmax_cross_entropy_with_logits",
    "SoftmaxCrossEntropyWithLogits": "tf.nn.softmax_cross_entropy_with_logits",
    "StridedSlice": "slicing ([])",
    "Sub": "tf.subtract (-)",
    "Sum": "tf.reduce_sum",
    "TopKV2": "tf.math.top_k",
    "Case": "tf.switch_case",
    "StatelessCase": "tf.switch_case",
    "If": "tf.cond",
    "StatelessIf": "tf.cond",
    "Unpack": "tf.unstack",
    "While": "tf.while_loop",
    "StatelessWhile": "tf.while_loop",
}

_STEP = (
    "opselect.mask(x, threshold, surrogate=..., temperature=...) is the same 0/1 mask with a gradient; for any other"
    " step opselect.with_surrogate_gradient(fn, surrogate)"
)
_ROUNDING = "opselect.with_surrogate_gradient({name}, 'identity') rounds all the same and passes the gradient through"
_CHOICE = (
    "opselect.one_hot_argmax(logits) or opselect.layers.OperationSelector choose one and have a gradient;"
    " opselect.estimators has REINFORCE and the relaxations"
)
_CLIP = (
    "opselect.with_surrogate_gradient(lambda x: tf.clip_by_value(x, low, high), 'identity') clips all the same and"
    " passes the gradient through; or keep x in range by its parametrisation (tf.sigmoid, tf.tanh)"
)
_DIVIDE = "opselect.divide(x, y), which is 0 (as is its gradient) where y is 0, or opselect.where with a callable"
_DEAD = "tf.nn.leaky_relu or tf.nn.softplus, or another initialisation or a smaller learning rate of what comes before"

# Where the value or the slope is infinite or NaN.
_NOT_FINITE = {
    "Sqrt": (
        "opselect.sqrt(x), or opselect.where(condition, tf.sqrt, 0.0, x), which never evaluates sqrt where it isn't"
        " selected (for the length of a vector: opselect.norm)"
    ),
    "Rsqrt": "opselect.divide(1.0, opselect.sqrt(x)), or add a small epsilon to x inside tf.math.rsqrt",
    "Pow": "opselect.pow(x, y), or opselect.where(condition, tf.pow, 0.0, (x, y)), evaluated only where selected",
    "RealDiv": _DIVIDE,
    "Div": _DIVIDE,
    "DivNoNan": _DIVIDE,
    "Reciprocal": _DIVIDE,
    "Inv": _DIVIDE,
    "Xdivy": _DIVIDE,
    "Log": (
        "opselect.log(x), or opselect.where(condition, tf.math.log, 0.0, x); for the log of a softmax"
        " tf.nn.log_softmax, for the log of a sum opselect.logsumexp"
    ),
    "Log1p": "opselect.log1p(x), or opselect.where(condition, tf.math.log1p, 0.0, x)",
    "Xlogy": "opselect.where(x > 0, lambda x, y: x * tf.math.log(y), 0.0, (x, y))",
    "Exp": (
        "opselect.exp(x), or opselect.where(condition, tf.exp, 0.0, x); for a softmax tf.nn.softmax, for the log of"
        " a sum opselect.logsumexp"
    ),
    "Expm1": "opselect.where(condition, tf.math.expm1, 0.0, x)",
    "Sinh": "opselect.sinh(x), or opselect.where(condition, tf.sinh, 0.0, x)",
    "Cosh": "opselect.cosh(x), or opselect.where(condition, tf.cosh, 0.0, x)",
    "Acos": "opselect.acos(x), or opselect.where(tf.abs(x) < 1, tf.acos, 0.0, x)",
    "Asin": "opselect.asin(x), or opselect.where(tf.abs(x) < 1, tf.asin, 0.0, x)",
    "Acosh": "opselect.acosh(x), or opselect.where(x > 1, tf.acosh, 0.0, x)",
    "Atanh": "opselect.atanh(x), or opselect.where(tf.abs(x) < 1, tf.atanh, 0.0, x)",
    "Atan2": "opselect.atan2(y, x), whose gradient at the origin is finite",
    "FloorMod": "opselect.mod(x, y), or opselect.where(y != 0, tf.math.floormod, 0.0, (x, y))",
    "Lgamma": "opselect.where(x > 0, tf.math.lgamma, 0.0, x), which never evaluates lgamma at its poles",
    "Digamma": "opselect.where(x > 0, tf.math.digamma, 0.0, x), which never evaluates digamma at its poles",
    "Mul": (
        "0 * inf is NaN, so a mask can't repair a value that isn't finite: select with"
        " opselect.where(mask, fn, 0.0, x), which doesn't evaluate fn elsewhere (for the entropy of"
        " logits: opselect.softmax_entropy)"
    ),
    "Softmax": "check that no row of logits is all -inf or holds +inf or NaN",
    "LogSoftmax": "check that no row of logits is all -inf or holds +inf or NaN",
    "MatMul": "0 * inf is NaN: replace what isn't finite with opselect.where before the product",
    "EuclideanNorm": "opselect.norm(x), whose gradient at 0 is 0",
    "Angle": "opselect.atan2(tf.math.imag(z), tf.math.real(z)), whose gradient at 0 is finite",
    "ComplexAbs": "opselect.hypot(tf.math.real(z), tf.math.imag(z)), whose gradient at 0 is 0",
    "Cholesky": "add a small multiple of the identity to the matrix, which must be positive definite",
    "MatrixInverse": "add a small multiple of the identity, or solve by tf.linalg.lstsq with l2_regularizer",
    "MatrixDeterminant": "add a small multiple of the identity to the matrix, which must not be singular",
    "LogMatrixDeterminant": "add a small multiple of the identity to the matrix, which must not be singular",
    "SelfAdjointEigV2": "use the eigenvalues alone: eigenvectors have no gradient where eigenvalues coincide",
    "Svd": "use the singular values alone: the vectors have no gradient where values coincide",
    "IdentityN": (
        "a finite gradient from the function under tf.custom_gradient: what it returns is not finite there (the guarded"
        " functions, such as opselect.divide, serve inside it too)"
    ),
}
_BLOCKED = {
    "ArgMax": _CHOICE,
    "ArgMin": _CHOICE,
    "OneHot": _CHOICE,
    "TopKV2": _CHOICE,
    "Multinomial": _CHOICE,
    "StatelessMultinomial": _CHOICE,
    "Bucketize": _STEP,
    "Greater": _STEP,
    "GreaterEqual": _STEP,
    "Less": _STEP,
    "LessEqual": _STEP,
    "Equal": _STEP,
    "NotEqual": _STEP,
    "Sign": "opselect.with_surrogate_gradient(tf.sign, 'tanh'), or a smooth function such as tf.tanh",
    "Floor": _ROUNDING,
    "Ceil": _ROUNDING,
    "Round": _ROUNDING,
    "Rint": _ROUNDING,
    "FloorDiv": "opselect.with_surrogate_gradient(tf.floor, 'identity') of x / y",
    "Cast": "keep it floating; if it is meant to be rounded: opselect.with_surrogate_gradient(tf.floor, 'identity')",
    "StopGradient": "leave tf.stop_gradient out where this input is to be trained",
    "PreventGradient": "leave out what forbids the gradient here",
    "PyFunc": "TensorFlow operations, or tf.py_function, or tf.custom_gradient around it",
    "EagerPyFunc": "TensorFlow operations inside the tf.py_function (no .numpy()), or tf.custom_gradient around it",
    "IdentityN": "let the function under tf.custom_gradient return a gradient for this input",
    "ClipByValue": _CLIP,
    "Minimum": _CLIP,
    "Maximum": _CLIP,
    "Relu": _DEAD,
    "Relu6": _DEAD,
    "SelectV2": "nothing of this branch is selected here: opselect.mask with a surrogate lets both branches learn",
    "Select": "nothing of this branch is selected here: opselect.mask with a surrogate lets both branches learn",
    "Mul": "the other factor is 0 everywhere: opselect.mask with a surrogate, or a mask that lets something through",
    "Softmax": "weights that sum to 1 whatever the logits are: use them one by one, not their sum",
}
_LOOP = "run it on fewer iterations, or give the body of the loop to check_gradients"
_BLOCKED |= {"While": _LOOP, "StatelessWhile": _LOOP}
_NOT_FINITE |= {"While": _LOOP, "StatelessWhile": _LOOP}

# What overflows at finite operands; elsewhere such operands are at a pole, or outside the domain.
_SUMS_AND_PRODUCTS = (
    "Add",
    "AddV2",
    "AddN",
    "BatchMatMulV2",
    "Cast",
    "MatMul",
    "Mean",
    "Mul",
    "Prod",
    "Square",
    "Sub",
    "Sum",
)

# Functions of TensorFlow made of several operations, by the scope they open; advice is about the whole.
_COMPOSITES = {
    "clip_by_value": ("tf.clip_by_value", ("none", "zero"), _CLIP),
    "norm": (
        "tf.norm",
        ("nan", "inf", "zero", "output"),
        "opselect.norm(x), whose gradient at 0 is 0 and whose squares neither overflow nor vanish",
    ),
    "reduce_std": ("tf.math.reduce_std", ("nan", "inf"), "opselect.sqrt(tf.math.reduce_variance(x))"),
}
_GENERIC = {
    "finite": (
        "opselect.where(condition, lambda x: ..., 0.0, x) with the operation in the callable branch, which is never"
        " evaluated where it isn't selected"
    ),
    "none": (
        "opselect.with_surrogate_gradient(fn, surrogate) around the step, or one of opselect.estimators for a choice"
    ),
    "zero": (
        "opselect.with_surrogate_gradient(fn, surrogate) around the flat operation, or inputs at which it isn't flat"
    ),
    "independent": "use the input in the function, or leave it out of what is trained",
    "cancelled": "nothing needs to be changed if this is meant; otherwise look at the signs of its uses",
    "given": "look at where this input comes from",
    "unknown": "",
    "overflow": "a wider dtype here (tf.cast to float32 or float64), or smaller numbers: the result is too large",
    "lost": "keep the whole computation in TensorFlow operations, without .numpy() and Python numbers in between",
}


def user_name(op_type: str) -> str:
    """What users call an operation, such as ``tf.where`` for SelectV2."""
    if op_type in _NAMES:
        return _NAMES[op_type]
    snake = "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(op_type))
    for prefix, module in (("tf", tf), ("tf.nn", tf.nn), ("tf.math", tf.math), ("tf.linalg", tf.linalg)):
        for name in (snake, snake.replace("_", "")):
            if hasattr(module, name):
                return f"{prefix}.{name}"
    return f"tf.raw_ops.{op_type}"


def composite(op_name: str) -> str | None:
    """The TensorFlow function that an operation is a part of, by its name, where users know only that function."""
    entry = _composite(op_name)
    return entry[0] if entry else None


def advice(kind: str, op_type: str | None, op_name: str = "", reason: str = "", overflows: bool = False) -> str:
    """One sentence about what to write instead.

    Args:
        kind: of the finding: none, zero, nan, inf or output.
        op_type: the culprit's type, or None where there is none.
        op_name: the culprit's name, which tells of what it is a part.
        reason: where there is no culprit, a key of the generic sentences.
        overflows: whether the culprit's operands are finite numbers, whose result is not.
    """
    general = kind if kind in ("none", "zero") else "finite"
    if op_type is None:
        return _GENERIC[reason] or _GENERIC[general]
    entry = _composite(op_name)
    if entry and kind in entry[1]:
        return entry[2]
    if overflows and kind == "output" and op_type in _SUMS_AND_PRODUCTS:
        return _GENERIC["overflow"]
    table = _NOT_FINITE if general == "finite" else _BLOCKED
    return table.get(op_type, _GENERIC[general]).format(name=user_name(op_type))


def _composite(op_name: str) -> tuple[str, tuple[str, ...], str] | None:
    scopes = [re.sub(r"_\d+$", "", scope) for scope in op_name.split("/")[:-1]]
    return next((_COMPOSITES[s] for s in reversed(scopes) if s in _COMPOSITES), None)
