"""A Keras model whose `fit` trains operation selectors with any estimator.

A score-function estimator asks for the loss of every row at several choices. `SelectorModel` repeats a batch of B rows
S times, side by side in the batch axis, so any network may stand before, between and behind its selectors; it evaluates
the loss per row [S, B] and lets the estimator close.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from opselect._tensorflow import keras, tf
from opselect.estimators import Estimator
from opselect.layers import OperationSelector, Trajectories

__all__ = ["SelectorModel", "load_model"]

Tensor = Any


@keras.saving.register_keras_serializable(package="opselect")
class SelectorModel(keras.Model):
    """A `keras.Model` (functional, or subclassed) that trains its `OperationSelector`s with their estimator.

        model = SelectorModel(inputs, outputs)
        model.compile("adam", loss="mse")
        model.fit(x, y)

    Layers see S batches at once in training, so a stateful layer with a fixed batch size has no place in it.
    Everything else is Keras: callbacks, tf.data, sample weights, validation, saving. Selectors may follow one another;
    all of them need the same estimator. The loss must give one number per row, as every Keras loss does.

    Metrics, beside the compiled ones, in `fit` and `evaluate`:
        hard_loss: the loss of the model that inference runs, where the operation of the largest logit is applied.
        soft_loss: the loss that training sees: of the mixture, or of the sampled operations.
        gap: hard_loss - soft_loss, the discretisation gap: what choosing costs a model that was trained as a mixture.

    `loss` is what the optimiser minimises in `fit` (soft_loss, entropy bonus and regularisation), and the hard loss
    with regularisation in `evaluate`. The compiled metrics see what inference returns, in both.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what `keras.Model` takes: ``SelectorModel(inputs, outputs)``, or nothing in a subclass."""
        functional = len(args) >= 2 or "outputs" in kwargs
        if functional and not isinstance(self, _FUNCTIONAL):
            self.__class__ = _functional(self.__class__)  # pyright: ignore[reportArgumentType]
        super().__init__(*args, **kwargs)
        self.hard_tracker = keras.metrics.Mean(name="hard_loss")
        self.soft_tracker = keras.metrics.Mean(name="soft_loss")
        self.gap_tracker = keras.metrics.Mean(name="gap")

    @classmethod
    def of(cls, model: Any) -> SelectorModel:
        """A `SelectorModel` of the layers of a built Sequential or functional model; the weights are shared.

        Raises:
            ValueError: the model is neither.
        """
        if not getattr(model, "inputs", None):
            raise ValueError(
                f"{getattr(model, 'name', model)!r} has no inputs to build on: begin a Sequential with keras.Input, or"
                " derive a subclassed model from opselect.SelectorModel"
            )
        return cls(model.inputs, model.outputs if len(model.outputs) > 1 else model.outputs[0])

    # --- the selectors ------------------------------------------------------------------------------------------------

    @property
    def selectors(self) -> list[OperationSelector]:
        """The operation selectors anywhere inside the model, in the order of construction."""
        return [layer for layer in self._flatten_layers() if isinstance(layer, OperationSelector)]

    def _estimator(self) -> Estimator:
        """The estimator that all selectors share, at its present temperature.

        Raises:
            ValueError: there is no selector, or they have different estimators.
        """
        selectors = self.selectors
        if not selectors:
            raise ValueError(f"{self.name} has no OperationSelector; use keras.Model, or add one")
        for other in selectors[1:]:
            if other.estimator != selectors[0].estimator:
                raise ValueError(
                    f"all selectors of a model need the same estimator, but {selectors[0].name} has"
                    f" {selectors[0].estimator} and {other.name} has {other.estimator}"
                )
        if len(selectors) > 1 and not selectors[0].estimator.sequential:
            raise ValueError(
                f"{type(selectors[0].estimator).__name__} estimates the gradient of decisions made at once, so a model"
                f" may have one such selector, but {self.name} has {len(selectors)}"
            )
        return selectors[0].current_estimator()

    def _evaluations(self) -> int:
        """S, how often each row is evaluated."""
        decisions = sum(selector.decisions for selector in self.selectors)
        counts = {
            len(selector.operations): selector.estimator.evaluations(len(selector.operations), decisions)
            for selector in self.selectors
        }
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"the estimator needs a number of evaluations that depends on the number of operations, which differs"
                f" between the selectors: {sorted(counts)}; use a sampling estimator such as 'reinforce-rloo'"
            )
        return next(iter(counts.values()))

    @contextmanager
    def _proposing(self, evaluations: int, draw: Tensor | None) -> Iterator[Trajectories]:
        plan = Trajectories(evaluations, draw)
        for selector in self.selectors:
            selector.trajectories = plan
        try:
            yield plan
        finally:
            for selector in self.selectors:
                selector.trajectories = None

    def choices(self, x: Any) -> dict[str, np.ndarray]:
        """For each selector by its name (its path, if names repeat), the operations that inference applies, by name.

        Args:
            x: what the model takes.

        Raises:
            InvalidLogitsError: the logits of a row are NaN.
        """
        chosen: dict[str, np.ndarray] = {}
        for selector in self.selectors:
            selector.on_choice = functools.partial(_record, chosen, selector)
        try:
            self(x, training=False)
        finally:
            for selector in self.selectors:
                selector.on_choice = None
        return chosen

    # --- fit, evaluate ------------------------------------------------------------------------------------------------

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.fit`; callbacks that monitor ``hard_loss``, ``soft_loss`` or ``gap`` take less for better."""
        ours = {tracker.name for tracker in (self.hard_tracker, self.soft_tracker, self.gap_tracker)}
        callbacks = kwargs.get("callbacks")
        for callback in callbacks if isinstance(callbacks, list | tuple) else [callbacks]:
            monitored = str(getattr(callback, "monitor", "")).removeprefix("val_")
            if callback is not None and monitored in ours and callback.mode == "auto":
                callback.mode = "min"  # Keras knows the direction of its own metrics only
        return super().fit(*args, **kwargs)

    def row_losses(self, y: Any, predictions: Any, sample_weight: Any = None) -> Tensor:
        """The compiled loss of each row [N], weighted; its mean over rows is what Keras would report.

        Raises:
            ValueError: no loss is compiled, or one that is not the mean over rows of one value per row.
        """
        if self._compile_loss is None:
            raise ValueError("SelectorModel needs a loss: compile(optimizer, loss=...)")
        if y is None:
            raise ValueError("SelectorModel needs targets: fit(x, y)")
        if not self._compile_loss.built:
            self._compile_loss.build(y, predictions)
        total: Any = 0.0
        # Keras has resolved names, several outputs and their weights; its own call would reduce over the rows.
        for path, loss, weight, _ in self._compile_loss._flat_losses:
            truth, guess = _at(path, y), _at(path, predictions)
            if loss.reduction not in ("sum_over_batch_size", "mean"):
                raise ValueError(
                    f"loss {loss.name!r} has reduction={loss.reduction!r}; rows can be compared only with the usual"
                    " 'sum_over_batch_size'"
                )
            value = loss.call(tf.cast(truth, loss.dtype), tf.cast(guess, loss.dtype))
            if value.shape.rank in (None, 0):
                raise ValueError(f"loss {loss.name!r} returns one number for the batch; it must return one per row")
            factor = _at(path, sample_weight) if keras.tree.is_nested(sample_weight) else sample_weight
            if factor is not None:
                factor = tf.cast(factor, value.dtype)
                if factor.shape.rank > value.shape.rank:
                    factor = tf.squeeze(factor, -1)
                for _ in range(value.shape.rank - factor.shape.rank):
                    factor = factor[..., None]
                value *= factor
            kept = getattr(guess, "_keras_mask", None)
            if kept is not None:  # entries that a Masking layer leaves out count as nothing, and the others for them
                kept = tf.cast(kept, value.dtype)
                value *= kept / tf.maximum(tf.reduce_mean(kept), tf.constant(1e-12, value.dtype))
            value = tf.cast(tf.reduce_mean(value, list(range(1, value.shape.rank))), tf.float32)
            total += value if weight is None else weight * value
        return total

    def _surrogate(self, x: Any, y: Any, weight: Any, training: bool) -> tuple[Tensor, Any]:
        """The estimator's surrogate [B] and its next state."""
        if not all(selector.built for selector in self.selectors):
            self(x, training=False)  # how often rows are repeated depends on the selectors' shapes
        estimator, s = self._estimator(), self._evaluations()
        x, y, weight = keras.tree.map_structure(lambda t: None if t is None else _repeat(t, s), (x, y, weight))
        # Evaluations repeat, and none draws the numbers of another batch: the rows so far start from 0 in each.
        draw = None if training else tf.cast(self.hard_tracker.count, tf.int32)
        with self._proposing(s, draw) as plan:
            predictions = self(x, training=training)
        losses = tf.reshape(self.row_losses(y, predictions, weight), [s, -1])
        return estimator.surrogate(losses, plan.proposals, self.selectors[0].estimator_state())

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step of the optimiser on the estimator's surrogate."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        predictions = self(x, training=False)  # before the step, as the soft loss and Keras' own metrics are
        with tf.GradientTape() as tape:
            surrogate, state = self._surrogate(x, y, weight, training=True)
            soft = tf.reduce_mean(surrogate)
            loss = soft + tf.add_n([tf.cast(extra, tf.float32) for extra in self.losses] or [0.0])
            scaled = self.optimizer.scale_loss(loss / tf.distribute.get_strategy().num_replicas_in_sync)
        if len(self._compile_loss._flat_losses) > 1:
            self._compile_loss(y, predictions, weight)  # which tracks the hard loss of each output
        report = self._report(x, y, weight, predictions, soft, loss)
        if self.trainable_weights:
            gradients = tape.gradient(scaled, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        for variable, value in zip(self.selectors[0].state_variables, tf.nest.flatten(state), strict=True):
            variable.assign(value)
        return report

    def test_step(self, data: Any) -> dict[str, Any]:
        """The hard loss, beside the soft one."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        surrogate, _ = self._surrogate(x, y, weight, training=False)
        predictions = self(x, training=False)
        loss = self.compute_loss(x, y, predictions, weight, training=False)
        return self._report(x, y, weight, predictions, tf.reduce_mean(surrogate), loss)

    def _report(self, x: Any, y: Any, weight: Any, predictions: Any, soft: Tensor, loss: Tensor) -> dict[str, Any]:
        hard = tf.reduce_mean(self.row_losses(y, predictions, weight))
        rows = tf.cast(tf.shape(keras.tree.flatten(x)[0])[0], tf.float32)
        self.hard_tracker.update_state(hard, sample_weight=rows)
        self.soft_tracker.update_state(soft, sample_weight=rows)
        self.gap_tracker.update_state(hard - soft, sample_weight=rows)
        self._loss_tracker.update_state(loss, sample_weight=rows)
        return self.compute_metrics(x, y, predictions, sample_weight=weight)

    def __reduce__(self) -> Any:
        """Pickles as Keras does, by the name of the public class."""
        _, arguments = super().__reduce__()
        return SelectorModel._unpickle_model, arguments


def load_model(path: Any, **kwargs: Any) -> Any:
    """`keras.models.load_model`, with this package's layers and models known to Keras.

    In a fresh process Keras itself knows them only after ``import opselect.models``, since ``import opselect`` waits.

    Args:
        path: a .keras file.
        **kwargs: of `keras.models.load_model`, such as custom_objects for your own operations.
    """
    return keras.models.load_model(path, **kwargs)


_input: Any = keras.Input((1,))
_FUNCTIONAL: Any = type(keras.Model(_input, _input))


@functools.cache
def _functional(cls: Any) -> Any:
    """The same model class on top of Keras' functional model.

    `keras.Model.__init__` would put it into the bases of `SelectorModel` itself, and every subclassed model would be
    taken for a functional one from then on.
    """
    variant: Any = type(cls.__name__, (cls, _FUNCTIONAL), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    package, _, name = keras.saving.get_registered_name(cls).rpartition(">")
    if package:
        keras.saving.register_keras_serializable(package, name)(variant)
    return variant


def _repeat(x: Tensor, times: int) -> Tensor:
    """S copies of a batch [B, ...], one after the other: [S * B, ...]."""
    if isinstance(x, tf.SparseTensor | tf.RaggedTensor):
        raise TypeError(f"SelectorModel repeats its batch and takes dense tensors, got {type(x).__name__}; densify it")
    x = tf.convert_to_tensor(x)
    return tf.tile(x, [times] + [1] * (x.shape.rank - 1))


def _at(path: tuple[Any, ...], structure: Any) -> Any:
    for key in path:
        structure = structure[key]
    return structure


def _record(chosen: dict[str, np.ndarray], selector: OperationSelector, logits: Tensor, choice: Tensor) -> None:
    key = selector.name if selector.name not in chosen else selector.path
    chosen[key] = selector.names_of(logits, choice)
