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

__all__ = ["SelectorModel"]

Tensor = Any


@keras.saving.register_keras_serializable(package="opselect")
class SelectorModel(keras.Model):
    """A `keras.Model` (functional, or subclassed) that trains its `OperationSelector`s with their estimator.

        model = SelectorModel(inputs, outputs)
        model.compile("adam", loss="mse")
        model.fit(x, y)

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
        """A `SelectorModel` of the layers of a built Sequential or functional model; the weights are shared."""
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
    def _proposing(self, evaluations: int) -> Iterator[Trajectories]:
        plan = Trajectories(evaluations)
        for selector in self.selectors:
            selector.trajectories = plan
        try:
            yield plan
        finally:
            for selector in self.selectors:
                selector.trajectories = None

    def choices(self, x: Any) -> dict[str, np.ndarray]:
        """For each selector by its name, the names of the operations that inference applies to the rows of x.

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

    # --- fit, evaluate ---------------------------------------------------------------------------------------

    def row_losses(self, y: Any, predictions: Any, sample_weight: Any = None) -> Tensor:
        """The compiled loss of each row [N], weighted; its mean over rows is what Keras would report.

        Raises:
            ValueError: no loss is compiled, or one that is not the mean over rows of one value per row.
        """
        if self._compile_loss is None:
            raise ValueError("SelectorModel needs a loss: compile(optimizer, loss=...)")
        if not self._compile_loss.built:
            self._compile_loss.build(y, predictions)
        total: Any = 0.0
        # Keras has resolved names, several outputs and their weights; its own call would reduce over the rows.
        for path, loss, weight, _ in self._compile_loss._flat_losses:
            truth, guess = _at(path, y), _at(path, predictions)
            if loss.reduction != "sum_over_batch_size":
                raise ValueError(
                    f"loss {loss.name!r} has reduction={loss.reduction!r}; rows can be compared only with the usual"
                    " 'sum_over_batch_size'"
                )
            value = loss.call(tf.convert_to_tensor(truth), guess)
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
            value = tf.cast(tf.reduce_mean(value, list(range(1, value.shape.rank))), tf.float32)
            total += value if weight is None else weight * value
        return total

    def _surrogate(self, x: Any, y: Any, weight: Any, training: bool) -> tuple[Tensor, Any]:
        """The estimator's surrogate [B] and its next state."""
        if not all(selector.built for selector in self.selectors):
            self(x, training=False)  # how often rows are repeated depends on the selectors' shapes
        estimator, s = self._estimator(), self._evaluations()
        x, y, weight = keras.tree.map_structure(lambda t: None if t is None else _repeat(t, s), (x, y, weight))
        with self._proposing(s) as plan:
            predictions = self(x, training=training)
        losses = tf.reshape(self.row_losses(y, predictions, weight), [s, -1])
        return estimator.surrogate(losses, plan.proposals, self.selectors[0].estimator_state())

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step of the optimiser on the estimator's surrogate."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            surrogate, state = self._surrogate(x, y, weight, training=True)
            soft = tf.reduce_mean(surrogate)
            loss = soft + tf.add_n([tf.cast(extra, tf.float32) for extra in self.losses] or [0.0])
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        for variable, value in zip(self.selectors[0].state_variables, tf.nest.flatten(state), strict=True):
            variable.assign(value)
        return self._report(x, y, weight, soft, loss)

    def test_step(self, data: Any) -> dict[str, Any]:
        """The hard loss, beside the soft one."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        surrogate, _ = self._surrogate(x, y, weight, training=False)
        return self._report(x, y, weight, tf.reduce_mean(surrogate), None)

    def _report(self, x: Any, y: Any, weight: Any, soft: Tensor, loss: Tensor | None) -> dict[str, Any]:
        predictions = self(x, training=False)
        hard = tf.reduce_mean(self.row_losses(y, predictions, weight))
        rows = tf.cast(tf.shape(keras.tree.flatten(x)[0])[0], tf.float32)
        self.hard_tracker.update_state(hard, sample_weight=rows)
        self.soft_tracker.update_state(soft, sample_weight=rows)
        self.gap_tracker.update_state(hard - soft, sample_weight=rows)
        if loss is None:
            loss = self.compute_loss(x, y, predictions, weight, training=False)
        self._loss_tracker.update_state(loss, sample_weight=rows)
        return self.compute_metrics(x, y, predictions, sample_weight=weight)


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
    x = tf.convert_to_tensor(x)
    return tf.tile(x, [times] + [1] * (x.shape.rank - 1))


def _at(path: tuple[Any, ...], structure: Any) -> Any:
    for key in path:
        structure = structure[key]
    return structure


def _record(chosen: dict[str, np.ndarray], selector: OperationSelector, logits: Tensor, choice: Tensor) -> None:
    chosen[selector.name] = selector.names_of(logits, choice)
