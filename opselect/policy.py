"""From an observation to a choice: a Keras network that returns logits, and the categorical distribution over them.

R replicas (independent seeds) live in one network whose kernels are stacked [R, in, out], so one compiled step trains
all of them; `replica` takes one out as an ordinary Keras model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opselect._tensorflow import keras, tf, tfp

__all__ = [
    "InvalidLogitsError",
    "StackedDense",
    "build_network",
    "check_choice",
    "clip_gradient",
    "distribution",
    "mask_logits",
    "network_output",
    "replica",
]

Tensor = Any
MASKED = -1e9
"""The logit of a masked operation: its probability is exactly 0 in float32, and entropy and gradients stay finite."""


class InvalidLogitsError(ValueError):
    """Logits that hold NaN or +inf, or a mask that leaves no operation."""


@keras.saving.register_keras_serializable(package="opselect")
class StackedDense(keras.layers.Layer):
    """R dense layers side by side: [R, N, in] -> [R, N, units] with kernels [R, in, units].

    Attributes:
        units: the output width.
        replicas: R.
        activation: a Keras activation's name or None.
        scale: multiplies the initial Glorot-uniform kernels.
        seeds: [R] integers; replica r starts from its own seed, whichever replicas it is trained beside.
    """

    kernel: Any
    bias: Any

    def __init__(
        self,
        units: int,
        *,
        replicas: int,
        activation: str | None = None,
        scale: float = 1.0,
        seeds: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units, self.replicas, self.scale = units, replicas, scale
        self.activation = keras.activations.get(activation)
        self.seeds = list(range(replicas)) if seeds is None else [int(s) for s in seeds]
        if len(self.seeds) != replicas:
            raise ValueError(f"seeds must have one seed per replica ({replicas}), got {len(self.seeds)}")

    def initial_kernel(self, width: int) -> np.ndarray:
        """The starting kernels [R, in, units] for the present seeds."""
        kernels = [keras.initializers.GlorotUniform(seed=seed)((width, self.units)).numpy() for seed in self.seeds]
        return (self.scale * np.stack(kernels)).astype(np.float32)

    def build(self, input_shape: Any) -> None:
        """Makes kernel [R, in, units] and bias [R, 1, units]."""
        width = int(input_shape[-1])
        initial = self.initial_kernel(width)
        self.kernel = self.add_weight(
            shape=initial.shape, initializer=lambda *_, **__: tf.constant(initial), name="kernel"
        )
        self.bias = self.add_weight(shape=(self.replicas, 1, self.units), initializer="zeros", name="bias")
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        """[R, N, in] -> [R, N, units]."""
        return self.activation(tf.linalg.matmul(inputs, self.kernel) + self.bias)

    def columns(self, inputs: Tensor) -> Tensor:
        """[R, in, N] -> [R, units, N]: `call` with the rows along the last axis."""
        products = tf.linalg.matmul(self.kernel, inputs, transpose_a=True)
        return self.activation(products + tf.linalg.matrix_transpose(self.bias))

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """[R, N, units]."""
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        """For Keras' serialisation."""
        return super().get_config() | {
            "units": self.units,
            "replicas": self.replicas,
            "activation": keras.activations.serialize(self.activation),
            "scale": self.scale,
            "seeds": self.seeds,
        }


def build_network(
    inputs: int,
    outputs: int,
    *,
    hidden: Sequence[int] = (64, 64),
    replicas: int = 1,
    seeds: Sequence[int] | None = None,
    activation: str = "tanh",
    output_scale: float = 0.01,
) -> Any:
    """A Keras model [R, N, inputs] -> [R, N, outputs]: a multilayer perceptron per replica.

    A small `output_scale` makes the first policy close to uniform.
    """
    seeds = range(replicas) if seeds is None else seeds
    layers = [keras.Input(batch_shape=(replicas, None, inputs))]
    widths = [*hidden, outputs]
    for depth, width in enumerate(widths):
        last = depth == len(widths) - 1
        layers.append(
            StackedDense(
                width,
                replicas=replicas,
                activation=None if last else activation,
                scale=output_scale if last else 1.0,
                seeds=[1000 * seed + depth for seed in seeds],
                name=f"dense_{depth}",
            )
        )
    return keras.Sequential(layers)


def network_output(network: Any, observations: Tensor) -> Tensor:
    """Applies a network of `build_network` to observations [S, R, B, F]: [S, R, B, outputs]."""
    s, r, b, f = observations.shape
    # With the rows along the last axis, which XLA keeps together in memory, what is done to K logits or F features of
    # a row is done to many rows at once: a compiled step takes two thirds of the time.
    if s == 1:  # a transposition that XLA can see through; it would copy what the general case reshapes
        columns = tf.transpose(observations[0], [0, 2, 1])
    else:
        columns = tf.reshape(tf.transpose(observations, [1, 3, 0, 2]), [r, f, s * b])
    for layer in network.layers:
        columns = layer.columns(columns)
    if s == 1:
        return tf.transpose(columns, [0, 2, 1])[None]
    return tf.transpose(tf.reshape(columns, [r, columns.shape[1], s, b]), [2, 0, 3, 1])


def replica(network: Any, index: int) -> Any:
    """One replica of a stacked network as an ordinary Keras model [N, inputs] -> [N, outputs] of Dense layers."""
    stacked = [layer for layer in network.layers if isinstance(layer, StackedDense)]
    count = stacked[0].replicas
    if not 0 <= index < count:
        raise ValueError(f"index must be in [0, {count - 1}], got {index!r}")
    dense = [
        keras.layers.Dense(layer.units, activation=keras.activations.serialize(layer.activation), name=layer.name)
        for layer in stacked
    ]
    model = keras.Sequential([keras.Input(shape=(stacked[0].kernel.shape[1],)), *dense])
    for layer, source in zip(dense, stacked, strict=True):
        kernel, bias = (w.numpy() for w in (source.kernel, source.bias))
        layer.set_weights([kernel[index], bias[index, 0]])
    return model


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits [..., K] with those of masked operations (mask [..., K] false or 0) at `MASKED`."""
    if mask is None:
        return logits
    return tf.where(tf.cast(mask, tf.bool), logits, tf.constant(MASKED, logits.dtype))


def clip_gradient(logits: Tensor, norm: Any) -> Tensor:
    """The logits [..., K] themselves, with a gradient whose norm over K is at most `norm` in every row.

    The slopes of exp or 1/x make a relaxation's gradients heavy-tailed: without this one row outweighs its batch.
    """

    @tf.custom_gradient
    def identity(x: Tensor) -> Any:
        return tf.identity(x), lambda upstream: tf.clip_by_norm(upstream, norm, axes=[-1])

    return identity(logits)


def distribution(logits: Tensor, mask: Tensor | None = None) -> Any:
    """The `tfp.distributions.Categorical` over K operations, with masked operations at probability 0.

    Args:
        logits: [..., K].
        mask: [..., K], true or 1 where an operation may be chosen.

    Raises:
        InvalidLogitsError: in eager mode, when a logit is NaN or +inf or a mask leaves nothing to choose; TFP would
            draw the index K, which is no operation. Inside a compiled function nothing can be raised: the training loop
            checks its losses between chunks instead.
        ValueError: mask and logits differ in their last axis.
    """
    logits = tf.convert_to_tensor(logits)
    allowed: Any = None if mask is None else tf.cast(mask, tf.bool)
    if allowed is not None and allowed.shape[-1] != logits.shape[-1]:
        raise ValueError(f"mask {allowed.shape} and logits {logits.shape} must agree in their last axis, K operations")
    if tf.executing_eagerly():
        check_choice(logits, allowed)
    return tfp.distributions.Categorical(logits=mask_logits(logits, allowed))


def check_choice(logits: Tensor, mask: Tensor | None) -> None:
    """Raises InvalidLogitsError where `distribution` must not be sampled from: logits [..., K] and mask as there."""
    values = np.asarray(logits, np.float64)
    considered = np.ones(values.shape, bool) if mask is None else np.broadcast_to(np.asarray(mask), values.shape)
    if not considered.any(-1).all():
        row = tuple(int(i) for i in np.argwhere(~considered.any(-1))[0])
        raise InvalidLogitsError(f"mask leaves no operation to choose at index {row}; at least one must be allowed")
    wrong = considered & (np.isnan(values) | np.isposinf(values))
    if wrong.any():
        row = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InvalidLogitsError(f"logits hold {values[row]} at index {row}; they must be finite (or -inf)")
    dead = ~(considered & (values > -np.inf)).any(-1)
    if dead.any():
        row = tuple(int(i) for i in np.argwhere(dead)[0])
        raise InvalidLogitsError(f"logits are all -inf at index {row}; no operation could be chosen")
