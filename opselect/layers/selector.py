"""A Keras layer that learns which operation to apply, to each number or to each row.

A selector trains through any of the package's estimators. The relaxations work in every Keras model; the score-function
estimators evaluate the loss several times per row and need a model that knows about it, `opselect.SelectorModel`.

Shapes: N rows, D decisions per row, K operations.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opselect import numerics
from opselect._tensorflow import in_xla, keras, tf
from opselect.estimators import Estimator, Proposal, as_estimator
from opselect.estimators.base import occupancy
from opselect.layers.configuration import (
    as_choosable,
    estimator_config,
    estimator_from,
    names_of,
    operands_of,
    operation_config,
    operation_from,
    scheduled,
    value_config,
    value_from,
)
from opselect.namespace import shape_of, xp
from opselect.numerics import check_temperature
from opselect.policy import InvalidLogitsError, clip_gradient, mask_logits
from opselect.random import as_seed, fold_in, substream
from opselect_envs.operations import InvalidOperationError, Operation, evaluate

__all__ = ["OperationSelector", "Trajectories"]

Tensor = Any
Choosable = str | Operation | Callable[..., Any]


@dataclass
class Trajectories:
    """What the selectors of a model propose while it evaluates every row S times, side by side in the batch axis.

    Attributes:
        evaluations: S.
        draw: which random numbers to draw, an integer; None in training, where each selector counts its steps.
        called: the selectors that have been called, by id.
        proposals: one per decision so far.
    """

    evaluations: int
    draw: Any = None
    called: set[int] = field(default_factory=set)
    proposals: list[Proposal] = field(default_factory=list)


@keras.saving.register_keras_serializable(package="opselect")
class OperationSelector(keras.layers.Layer):
    """Applies to each number, or to each row, one of K operations that it learns to select.

        selector = OperationSelector(["neg", "exp", "log"], estimator="soft-mixture", hidden=(64, 64))
        y = selector(x)                     # decides on x itself
        y = selector(x, features=h)         # decides on h

    In training the estimator proposes: a mixture of all operations, or one-hot samples. In inference the operation of
    the largest logit is applied, and each operation is evaluated on the rows that select it, nowhere else. (Keras does
    not compile a model with this layer by XLA. In a tf.function of your own that does, shapes are fixed, and operations
    are evaluated on stand-ins elsewhere.) Operations of the catalogue are evaluated inside their domain only, and are
    finite everywhere.

    Call arguments:
        operands: [N, ...], or a list of them; an operation takes as many, from the first on, as its arity, and a
            callable as many as it has parameters without a default.
        features: [N, F] what to decide on; the operands themselves when absent.
        allowed: [N, K], [N, D, K] or [K] of 0 and 1 or booleans: which operations may be selected; None for all. A row
            that allows none is an error when the layer is called eagerly, and may select any otherwise.

    Returns:
        [N, ...] like the first operand, or [N, *output_shape]. NaN where a logit is NaN.
    """

    head: Any
    iterations: Any

    def __init__(
        self,
        operations: Sequence[Choosable],
        estimator: str | Estimator = "reinforce-rloo",
        *,
        per: str = "element",
        hidden: Sequence[int] = (),
        activation: str = "tanh",
        entropy: Any = 0.0,
        temperature: Any = None,
        row_clip: float | None = None,
        output_shape: Sequence[int] | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Makes the layer.

        Args:
            operations: K >= 2 operations: catalogue names, `opselect_envs.Operation`s or callables of tensors [M, ...]
                (Keras layers too). A callable gets the operands it is selected for; with a relaxation, all of them, so
                it must be finite everywhere: prefer ``"log"`` to ``tf.math.log``.
            estimator: a name in `opselect.estimators.ESTIMATORS` or an estimator.
            per: ``"element"``: each number of a row gets a decision of its own (D numbers, D decisions); ``"row"``: one
                decision for the whole row.
            hidden: widths of the hidden layers between features and logits.
            activation: of the hidden layers.
            entropy: weight of the policy's entropy, which is added to the objective so that the policy stays undecided
                long enough: a number in units of the loss, or a `keras.optimizers.schedules.LearningRateSchedule`.
            temperature: of a relaxation, in place of the estimator's own: a number or a schedule.
            row_clip: the largest norm of one decision's gradient in its logits, in units of one row's loss, or None.
            output_shape: the shape of a row of results, where callables return another one than the operands'.
            seed: of the samples; None draws one.
            **kwargs: of `keras.layers.Layer`.

        Raises:
            InvalidOperationError: an unknown or wrong operation, or fewer than two; the nearest name is suggested.
            ValueError: an unknown estimator or another argument out of range.
        """
        super().__init__(autocast=False, **kwargs)
        # XLA can't evaluate an operation on just the rows that select it.
        self.supports_jit = False
        self.operations = as_choosable(operations)
        self.names = names_of(self.operations)
        self.estimator = as_estimator(estimator)
        if per not in ("element", "row"):
            raise ValueError(f"per must be 'element' or 'row', got {per!r}")
        if temperature is not None and not hasattr(self.estimator, "temperature"):
            raise ValueError(f"temperature: the estimator {type(self.estimator).__name__} has none")
        check_temperature(temperature)
        if row_clip is not None and not row_clip > 0:
            raise ValueError(f"row_clip must be > 0 or None, got {row_clip!r}")
        self.per, self.row_clip = per, row_clip
        # Drawn as Keras draws its own, so that keras.utils.set_random_seed governs it.
        self.seed = random.randint(1, 10**9) if seed is None else int(seed)
        self.entropy, self.temperature = entropy, temperature
        self.widths, self.activation = tuple(hidden), keras.activations.get(activation)
        self.row_shape = None if output_shape is None else tuple(output_shape)
        self.sublayers = [operation for operation in self.operations if isinstance(operation, keras.layers.Layer)]
        self.trajectories: Trajectories | None = None
        self.on_choice: Callable[[Tensor, Tensor], None] | None = None

    # --- building -----------------------------------------------------------------------------------------------------

    def build(self, operands_shape: Any, features_shape: Any = None, allowed_shape: Any = None) -> None:
        """Makes the projection from features to D * K logits, and a value for estimators that want one."""
        first = _first_shape(operands_shape)
        if len(first) < 1 or any(n is None for n in first[1:]):
            raise ValueError(f"operands must be [N, ...] with a known shape per row, got {first}")
        self.decisions = math.prod(first[1:]) if self.per == "element" else 1
        for shape in _all_shapes(operands_shape)[1:] if self.per == "element" else ():
            if tuple(shape[1:]) != first[1:]:
                raise ValueError(f"operands must have one shape, got {first} and {tuple(shape)}")
        shapes = [features_shape] if features_shape is not None else _all_shapes(operands_shape)
        if features_shape is not None and any(n is None for n in features_shape[1:]):
            raise ValueError(f"features must be [N, F] with a known shape per row, got {tuple(features_shape)}")
        width = sum(math.prod(shape[1:]) for shape in shapes)
        k = len(self.operations)
        self.hidden_layers = []
        for units in self.widths:
            layer = keras.layers.Dense(units, activation=self.activation, dtype="float32")
            layer.build((None, width))
            self.hidden_layers.append(layer)
            width = units
        # A small start makes the first policy nearly uniform.
        small = keras.initializers.VarianceScaling(1e-4, "fan_avg", "uniform")
        self.head = keras.layers.Dense(self.decisions * k, kernel_initializer=small, dtype="float32", name="logits")
        self.head.build((None, width))
        self.value_head = None
        if self.estimator.needs_value:
            self.value_head = keras.layers.Dense(1, dtype="float32", name="value")
            self.value_head.build((None, width))
        self.iterations = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="iterations", autocast=False
        )
        # A state of the estimator belongs to a batch whatever its size, so it may be made from a single row.
        self.state_variables = [
            self.add_weight(
                shape=t.shape,
                # Keras draws weights in a place of its own, where only NumPy values are known.
                initializer=functools.partial(_constant, np.array(t)),
                trainable=False,
                name="estimator_state",
                dtype="float32",
            )
            for t in tf.nest.flatten(self._first_state())
        ]
        self.built = True

    def estimator_state(self) -> Any:
        """The estimator's state, such as a moving average."""
        return tf.nest.pack_sequence_as(self._first_state(), [tf.convert_to_tensor(v) for v in self.state_variables])

    def _first_state(self) -> Any:
        with tf.init_scope():  # concrete values, also while a graph is traced
            return self.estimator.init(tf.zeros([1, self.decisions, len(self.operations)]))

    def compute_output_shape(self, operands_shape: Any, features_shape: Any = None, allowed_shape: Any = None) -> Any:
        """[N, ...]."""
        first = _first_shape(operands_shape)
        return first if self.row_shape is None else (first[0], *self.row_shape)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def logits(self, operands: Any, features: Any = None, allowed: Any = None) -> Tensor:
        """The logits [N, D, K] float32, those of operations that are not allowed at -1e9."""
        several = _as_list(operands)
        if not self.built:
            shapes = [tuple(x.shape) for x in several]
            self.build(shapes if len(shapes) > 1 else shapes[0], None if features is None else np.shape(features))
        return self._decide(several, features, allowed)[0]

    def _decide(self, operands: list[Tensor], features: Any, allowed: Any) -> tuple[Tensor, Tensor | None]:
        inputs = operands if features is None else [tf.convert_to_tensor(features)]
        rows = [tf.reshape(tf.cast(x, tf.float32), [-1, math.prod(x.shape[1:])]) for x in inputs]
        hidden = rows[0] if len(rows) == 1 else tf.concat(rows, -1)
        for layer in self.hidden_layers:
            hidden = layer(hidden)
        logits = tf.reshape(self.head(hidden), [-1, self.decisions, len(self.operations)])
        if allowed is not None:
            allowed = self._check_allowed(tf.cast(allowed, tf.bool))
        value = None if self.value_head is None else self.value_head(hidden)[:, 0]
        return mask_logits(logits, allowed), value

    def _check_allowed(self, allowed: Tensor) -> Tensor:
        k = len(self.operations)
        if allowed.shape.rank not in (1, 2, 3) or allowed.shape[-1] != k:
            raise ValueError(f"allowed must be [K], [N, K] or [N, D, K] with K = {k}, got shape {allowed.shape}")
        if allowed.shape.rank == 3 and allowed.shape[1] not in (1, self.decisions):
            raise ValueError(f"allowed has shape {allowed.shape}, but there are D = {self.decisions} decisions per row")
        if tf.executing_eagerly() and not bool(tf.reduce_all(tf.reduce_any(allowed, -1))):
            raise InvalidLogitsError("allowed leaves a row no operation to select; at least one must be allowed")
        return allowed[:, None] if allowed.shape.rank == 2 else allowed

    def probabilities(self, operands: Any, features: Any = None, allowed: Any = None) -> Tensor:
        """The policy's probabilities [N, D, K], those of operations that are not allowed 0."""
        return tf.nn.softmax(self.logits(operands, features, allowed))

    def select(self, operands: Any, features: Any = None, allowed: Any = None) -> Tensor:
        """The index of the operation that inference applies: int32 [N, ...] like the first operand, or [N] per row."""
        operands = _as_list(operands)
        choice = _greedy(self.logits(operands, features, allowed))
        return tf.reshape(choice, shape_of(operands[0]) if self.per == "element" else [-1])

    def choices(self, operands: Any, features: Any = None, allowed: Any = None) -> np.ndarray:
        """The name of the operation that inference applies: an array of strings [N, ...], or [N] per row.

        Raises:
            InvalidLogitsError: a logit is NaN, so that nothing is selected.
        """
        operands = _as_list(operands)
        logits = self.logits(operands, features, allowed)
        names = self.names_of(logits, _greedy(logits))
        return names.reshape(operands[0].shape) if self.per == "element" else names[:, 0]

    def names_of(self, logits: Tensor, choice: Tensor) -> np.ndarray:
        """The names [N, D] of chosen operations [N, D].

        Raises:
            InvalidLogitsError: logits [N, D, K] hold NaN, so that nothing is chosen.
        """
        missing = np.isnan(np.asarray(logits)).any((1, 2))
        if missing.any():
            raise InvalidLogitsError(f"the logits of row {int(missing.argmax())} are NaN, so nothing is selected there")
        return np.array(self.names)[np.asarray(choice)]

    def current_estimator(self) -> Estimator:
        """The estimator, at the temperature that the schedule has reached."""
        if self.temperature is None:
            return self.estimator
        estimator: Any = self.estimator
        return dataclasses.replace(estimator, temperature=scheduled(self.temperature, self.iterations))

    # --- evaluating ---------------------------------------------------------------------------------------------------

    def call(self, operands: Any, features: Any = None, allowed: Any = None, training: bool | None = None) -> Tensor:
        """See the class."""
        several = _as_list(operands)
        logits, value = self._decide(several, features, allowed)
        if training or self.trajectories is not None:
            result = self._proposed(several, logits, value, bool(training))
        else:
            choice = _greedy(logits)
            if self.on_choice is not None:
                self.on_choice(logits, choice)
            result = self._hard(several, choice)
        missing = tf.reduce_any(tf.math.is_nan(logits), [1, 2])
        missing = tf.reshape(missing, [-1] + [1] * (result.shape.rank - 1))
        return tf.where(missing, tf.constant(float("nan"), result.dtype), result)

    def _proposed(self, operands: list[Tensor], logits: Tensor, value: Tensor | None, training: bool) -> Tensor:
        """What the estimator proposes, evaluated."""
        plan = self.trajectories
        # Evaluation must not move the state of training, so its draws are numbered by the model.
        count = self.iterations if training or plan is None else -1 - plan.draw
        seed = fold_in(as_seed(self.seed), count)
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            seed = fold_in(seed, replica.replica_id_in_sync_group)
        proposal, weights, reach = self._propose(logits, value, seed)
        if training:
            if plan is None or id(self) not in plan.called:  # a step, however often the layer is called in it
                self.iterations.assign_add(1)
            if callable(self.entropy) or self.entropy:
                spread = tf.reduce_sum(numerics.softmax_entropy(proposal.logits), -1)  # [N], or [S, N] per past
                bonus = tf.reduce_mean(tf.reduce_sum(reach * spread, 0) if spread.shape.rank == 2 else spread)
                self.add_loss(-scheduled(self.entropy, self.iterations) * bonus)
        if plan is not None:
            plan.called.add(id(self))
        if self.estimator.needs_relaxation:
            return self._soft(operands, weights)
        return self._hard(operands, tf.argmax(weights, -1, output_type=tf.int32))

    def _propose(self, logits: Tensor, value: Tensor | None, seed: Tensor) -> tuple[Proposal, Tensor, Any]:
        """A proposal, its weights [N, D, K] for the rows of this batch, and how much each past counts."""
        estimator, plan = self.current_estimator(), self.trajectories
        if plan is None:
            if not estimator.needs_relaxation or estimator.evaluations(len(self.operations), self.decisions) != 1:
                raise ValueError(
                    f"{self.name}: the estimator {type(estimator).__name__} evaluates the loss of every row itself, so"
                    " it trains inside an opselect.SelectorModel; build the outermost model as"
                    " opselect.SelectorModel(inputs, outputs), or take a relaxation such as 'soft-mixture'"
                )
            proposal = estimator.propose(self._row_clipped(logits, 1), self.estimator_state(), seed)
            return proposal, proposal.weights[0], 1.0
        decision, s, k = len(plan.proposals), plan.evaluations, logits.shape[-1]
        # Rows are S blocks of the batch; blocks of one past share their logits, and the first of them decides.
        blocks = tf.reshape(logits, [s, -1, self.decisions, k])
        past = plan.proposals[-1].weights.shape[0] if decision else 1
        own = self._row_clipped(blocks[:: max(1, s // past)] if decision else blocks[0], past)
        reach = occupancy(plan.proposals) if decision else 1.0
        proposal = estimator.propose(own, self.estimator_state(), substream(seed, decision), decision=decision)
        if s % proposal.weights.shape[0]:
            raise ValueError(
                f"{self.name} is called more than once in a model whose estimator, {type(estimator).__name__},"
                " enumerates; use a sampling estimator such as 'reinforce-rloo'"
            )
        if value is not None:
            values = tf.reshape(value, [s, -1])
            proposal = dataclasses.replace(proposal, value=values[:: max(1, s // past)] if decision else values[0])
        plan.proposals.append(proposal)
        weights = tf.repeat(proposal.weights, s // proposal.weights.shape[0], axis=0)
        return proposal, tf.reshape(weights, [-1, self.decisions, k]), reach

    def _row_clipped(self, logits: Tensor, pasts: int) -> Tensor:
        """Logits [..., N, D, K] whose gradient is clipped row by row, if that is wanted."""
        if self.row_clip is None:
            return logits
        # The loss is a mean over pasts and rows, so a row's own gradient arrives divided by their number.
        return clip_gradient(logits, self.row_clip / tf.cast(pasts * tf.shape(logits)[-3], tf.float32))

    def _soft(self, operands: list[Tensor], weights: Tensor) -> Tensor:
        """The mixture of all operations, weighted by weights [N, D, K]."""
        per_element = self.per == "element"
        inputs = [self._flat(x) if per_element else self._working(x) for x in operands]
        total: Any = 0.0
        for i, operation in enumerate(self.operations):
            value = self._evaluate(operation, *inputs)
            weight = tf.cast(weights[..., i], value.dtype)
            weight = tf.reshape(weight, [-1] if per_element else [-1] + [1] * (value.shape.rank - 1))
            total += weight * value
        return self._shaped(total, operands[0])

    def _hard(self, operands: list[Tensor], choice: Tensor) -> Tensor:
        """The selected operations: choice [N, D] int32."""
        inputs = [self._flat(x) if self.per == "element" else self._working(x) for x in operands]
        choice = tf.reshape(choice, [-1])
        return self._shaped((self._everywhere if in_xla() else self._where_selected)(inputs, choice), operands[0])

    def _where_selected(self, inputs: list[Tensor], choice: Tensor) -> Tensor:
        """Evaluates each operation on the rows that select it; one that no row selects is not called."""
        places, results = [], []
        tail = self._tail(inputs[0])
        for i, operation in enumerate(self.operations):
            place = tf.where(choice == i)[:, 0]
            rows = [tf.gather(x, place) for x in inputs]
            result = tf.cond(
                tf.size(place) > 0,
                lambda operation=operation, rows=rows: self._evaluate(operation, *rows),
                lambda: tf.zeros([0, *tail], inputs[0].dtype),
            )
            places.append(tf.cast(place, tf.int32))
            results.append(result)
        return tf.dynamic_stitch(places, results)

    def _everywhere(self, inputs: list[Tensor], choice: Tensor) -> Tensor:
        """The same with fixed shapes: each operation is evaluated everywhere, on stand-ins where it is not selected."""
        total: Any = 0.0
        for i, operation in enumerate(self.operations):
            selected = tf.reshape(choice == i, [-1] + [1] * (inputs[0].shape.rank - 1))
            branch = functools.partial(self._evaluate, operation)
            if self.row_shape is None:
                total += numerics.where(selected, branch, 0.0, inputs)
                continue
            # The results' shape is not the operands', so operands and results are selected one after the other.
            value = branch(*(numerics.where(selected, tf.identity, 0.0, x) for x in inputs))
            selected = tf.reshape(selected, [-1] + [1] * len(self.row_shape))
            total += tf.where(selected, value, tf.zeros_like(value))
        return total

    def _evaluate(self, operation: Any, *rows: Tensor) -> Tensor:
        if isinstance(operation, Operation):
            if len(rows) < operation.arity:
                raise InvalidOperationError(
                    f"operation {operation.name!r} takes {operation.arity} operands, but {len(rows)} is given"
                )
            return evaluate(xp, operation, *rows[: operation.arity])[0]
        value = tf.cast(operation(*rows[: operands_of(operation, len(rows))]), rows[0].dtype)
        expected = [rows[0].shape[0], *self._tail(rows[0])]
        if value.shape.rank != len(expected) or not value.shape.is_compatible_with(expected):
            name = self.names[self.operations.index(operation)]
            raise ValueError(
                f"operation {name!r} returned shape {value.shape} for operands {rows[0].shape}; expected"
                f" {tuple(expected)} (see output_shape)"
            )
        return value

    def _tail(self, rows: Tensor) -> list[Any]:
        return list(self.row_shape) if self.row_shape is not None else rows.shape[1:].as_list()

    def _working(self, x: Tensor) -> Tensor:
        """Half precision would overflow inside the operations' domains, which are those of float32."""
        return tf.cast(x, tf.float64 if self.compute_dtype == "float64" else tf.float32)

    def _flat(self, x: Tensor) -> Tensor:
        return tf.reshape(self._working(x), [-1])

    def _shaped(self, result: Tensor, operand: Tensor) -> Tensor:
        tail = operand.shape[1:].as_list() if self.row_shape is None else list(self.row_shape)
        shaped = tf.reshape(result, [-1, *tail])
        return shaped if shaped.dtype == self.compute_dtype else tf.saturate_cast(shaped, self.compute_dtype)

    # --- saving -------------------------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """For Keras' serialisation. An own `Operation` is stored by name: load with `custom_objects={name: it}`."""
        return super().get_config() | {
            "operations": [operation_config(operation) for operation in self.operations],
            "estimator": estimator_config(self.estimator),
            "per": self.per,
            "hidden": list(self.widths),
            "activation": keras.activations.serialize(self.activation),
            "entropy": value_config(self.entropy),
            "temperature": value_config(self.temperature),
            "row_clip": self.row_clip,
            "output_shape": None if self.row_shape is None else list(self.row_shape),
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> OperationSelector:
        """The inverse of `get_config`."""
        config = dict(config)
        config.pop("autocast", None)
        config["operations"] = [operation_from(c) for c in config["operations"]]
        config["estimator"] = estimator_from(config["estimator"])
        for name in ("entropy", "temperature"):
            config[name] = value_from(config[name])
        return cls(**config)


def _constant(value: np.ndarray, shape: Any, dtype: Any) -> Tensor:
    return tf.constant(value, dtype)


def _greedy(logits: Tensor) -> Tensor:
    """The index of the largest logit [..., K], the first of equals; NaN is never the largest, in any mode."""
    lowest = tf.constant(-np.inf, logits.dtype)
    return tf.argmax(tf.where(tf.math.is_nan(logits), lowest, logits), -1, output_type=tf.int32)


def _as_list(operands: Any) -> list[Tensor]:
    return [tf.convert_to_tensor(x) for x in (operands if isinstance(operands, list | tuple) else [operands])]


def _all_shapes(shapes: Any) -> list[Any]:
    nested = isinstance(shapes, list | tuple) and len(shapes) > 0 and isinstance(shapes[0], list | tuple)
    return list(shapes) if nested else [shapes]


def _first_shape(shapes: Any) -> tuple[Any, ...]:
    return tuple(_all_shapes(shapes)[0])
