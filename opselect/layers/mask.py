"""A Keras layer that keeps or drops, by a hard mask with a surrogate gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from opselect._tensorflow import keras, tf
from opselect.layers.configuration import scheduled, value_config, value_from
from opselect.masks import mask

__all__ = ["Mask"]

Tensor = Any


@keras.saving.register_keras_serializable(package="opselect")
class Mask(keras.layers.Layer):
    """Multiplies its input [N, ...] by a hard mask with a surrogate gradient; see `opselect.mask`.

        x = Mask()(x)                           # x where x > 0, else 0
        x = Mask(learn_threshold=True)(x, scores=s)    # x where s > threshold

    Call arguments:
        inputs: [N, ...].
        scores: what is compared with the threshold, of a shape that broadcasts with the inputs; the inputs when absent.

    In training the mask is `mask(scores, threshold, surrogate, temperature, hardness=hardness)`, in inference hard.
    """

    threshold: Any
    iterations: Any

    def __init__(
        self,
        threshold: float = 0.0,
        surrogate: Any = "sigmoid",
        temperature: Any = 1.0,
        *,
        hardness: Any = 1.0,
        learn_threshold: bool = False,
        multiply: bool = True,
        **kwargs: Any,
    ) -> None:
        """Makes the layer.

        Args:
            threshold: where it starts, or stays.
            surrogate: as in `opselect.mask`; a callable must be registered with Keras to be saved.
            temperature: a number, or a `keras.optimizers.schedules.LearningRateSchedule`.
            hardness: 1 for a hard mask in training, 0 for a soft one, or a schedule from soft to hard.
            learn_threshold: whether the threshold is trained.
            multiply: False returns the mask itself.
            **kwargs: of `keras.layers.Layer`.
        """
        super().__init__(**kwargs)
        # Complains about what is out of range now, and not in the middle of training.
        numbers = {"temperature": temperature, "hardness": hardness}
        mask(np.zeros(1, np.float32), threshold, surrogate, **{k: v for k, v in numbers.items() if not callable(v)})
        self.start, self.surrogate, self.temperature = threshold, surrogate, temperature
        self.hardness, self.learn_threshold, self.multiply = hardness, learn_threshold, multiply

    def build(self, inputs_shape: Any, scores_shape: Any = None) -> None:
        """Makes the threshold."""
        start = keras.initializers.Constant(self.start)
        self.threshold = self.add_weight(
            shape=(), initializer=start, trainable=self.learn_threshold, name="threshold", dtype="float32"
        )
        self.iterations = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="iterations", autocast=False
        )
        self.built = True

    def call(self, inputs: Tensor, scores: Tensor | None = None, training: bool | None = None) -> Tensor:
        """See the class."""
        scores = inputs if scores is None else scores
        temperature, hardness = (scheduled(v, self.iterations) for v in (self.temperature, self.hardness))
        if training:
            self.iterations.assign_add(1)
        kept = mask(scores, self.threshold, self.surrogate, temperature, hardness=hardness if training else 1.0)
        return inputs * tf.cast(kept, inputs.dtype) if self.multiply else kept

    def get_config(self) -> dict[str, Any]:
        """For Keras' serialisation."""
        changing = {"surrogate": self.surrogate, "temperature": self.temperature, "hardness": self.hardness}
        return super().get_config() | {
            "threshold": self.start,
            **{name: value_config(v) for name, v in changing.items()},
            "learn_threshold": self.learn_threshold,
            "multiply": self.multiply,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Mask:
        """The inverse of `get_config`."""
        config = dict(config)
        for name in ("surrogate", "temperature", "hardness"):
            config[name] = value_from(config[name])
        return cls(**config)
