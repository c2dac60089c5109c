"""Which operation of a program first makes a gradient None, zero or not finite, found by walking along the replay."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opselect._tensorflow import tf
from opselect.doctor.graphs import carries
from opselect.doctor.inputs import is_differentiable, to_numpy
from opselect.doctor.program import Program, Replay, Step

__all__ = ["Culprit", "Search"]

Array = Any

# They tell a shape, not a value: nobody expects a gradient through them.
_SHAPES = frozenset(
    {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "VariableShape", "BroadcastGradientArgs"}
)
# Their slope is never 0, so a gradient that vanishes at them is too small for its dtype.
_NEVER_FLAT = frozenset(
    {"Exp", "Sigmoid", "Tanh", "LogSoftmax", "Erf", "Erfc", "Softplus", "Elu", "Selu", "Atan", "Log", "Pow"}
)
_PRODUCTS = frozenset({"Mul", "RealDiv"})
_SELECTIONS = ("Select", "SelectV2")  # their first input decides
_STACKS = ("Pack", "ConcatV2")
_MOST_TRIED = 50
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Culprit:
    """An operation to blame.

    Attributes:
        step: the execution of it.
        operands: at a few offending places, the values of its floating operands.
        underflow: whether it only makes a gradient too small for its dtype.
    """

    step: Step
    operands: tuple[tuple[float, ...], ...]
    underflow: bool = False


class Search:
    """Answers the questions about one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
        self.made_by: dict[int, int] = {}
        for number, step in enumerate(program.steps):
            for position, value in enumerate(step.inputs):
                self.uses[value].append((number, position))
            for value in step.outputs:
                self.made_by[value] = number
        self.reaching = self._reaching_outputs(decisions=True)
        self._reaching_by_value = self._reaching_outputs(decisions=False)

    def _reaching_outputs(self, decisions: bool) -> set[int]:
        """The values on which the outputs depend, whether or not through what only decides between other values."""
        found, stack = set(self.program.outputs), list(self.program.outputs)
        while stack:
            number = self.made_by.get(stack.pop())
            if number is not None and self.program.steps[number].op.type not in _SHAPES:
                step = self.program.steps[number]
                inputs = step.inputs
                if not decisions:
                    inputs = inputs[-1:] if step.joins else inputs[step.op.type in _SELECTIONS :]
                fresh = [i for i in inputs if i not in found]
                found.update(fresh)
                stack += fresh
        return found

    def blocking(self, leaf: int) -> Culprit | None:
        """The operation on the way from the leaf to the outputs through which no gradient passes.

        The first such operation on every path, or else the first on any. One that blocks a value goes before one that
        blocks what only decides between values. None where nothing blocks.
        """
        alive = {leaf}
        found: dict[bool, list[int]] = {True: [], False: []}
        for number, step in enumerate(self.program.steps):
            touched = [p for p, i in enumerate(step.inputs) if i in alive]
            if not touched or step.op.type in _SHAPES:
                continue
            blocked = set(step.outputs)
            if any(self.program.passes(step, p) for p in touched):
                passed = {o for o in step.outputs if carries(self.program.values[o])}
                alive |= passed
                blocked -= passed
            by_value = bool(blocked & self._reaching_by_value)
            if by_value or blocked & self.reaching:
                found[by_value].append(number)
        candidates = found[True] or found[False]
        if not candidates:
            return None
        wanted = self._reaching_by_value if found[True] else self.reaching
        unavoidable = (n for n in candidates[:_MOST_TRIED] if not self._reaches_without(leaf, n, wanted))
        step = self.program.steps[next(unavoidable, candidates[0])]
        return Culprit(step, self._first_operands(step))

    def _reaches_without(self, leaf: int, without: int, wanted: set[int]) -> bool:
        """Whether the outputs depend on the leaf by a path around a step."""
        dependent = {leaf}
        for number, step in enumerate(self.program.steps):
            if number != without and step.op.type not in _SHAPES and not dependent.isdisjoint(step.inputs):
                dependent |= {o for o in step.outputs if o in wanted}
        return not dependent.isdisjoint(self.program.outputs)

    def flattening(self, replay: Replay, leaf: int) -> list[Culprit]:
        """The operations that get an adjoint other than 0 and pass on zeros to the leaf."""
        found: dict[int, Culprit] = {}
        for origin in self._origins(replay, leaf, lambda a: a.size == 0 or not a.any()):
            for number, position, part in self._beyond_stacks(replay, origin):
                step = self.program.steps[number]
                underflow = self._underflows(replay, step, position, part)
                found[number] = Culprit(step, self._first_operands(step), underflow)
        return [found[n] for n in sorted(found, reverse=True)]

    def _beyond_stacks(self, replay: Replay, origin: tuple[int, int]) -> list[tuple[int, int, Array]]:
        """The uses that are to blame for zeros that a part of a stack or concatenation gets, and which part that is.

        Stacking passes on each part's adjoint, so it is what is done with the stack, as long as that keeps its shape,
        that makes the zeros in this part of it.
        """
        step = self.program.steps[origin[0]]
        if step.op.type not in _STACKS or replay.values[step.outputs[0]].size == 0:
            return [(*origin, True)]
        values = [self.program.values[i].numpy() for i in step.inputs]
        marks = [np.full(np.shape(v), i == origin[1]) for i, v in enumerate(values)]
        if step.op.type == "Pack":
            mask = np.stack(marks, step.op.get_attr("axis"))
        else:
            mask = np.concatenate(marks[:-1], int(values[-1]))
        found, stack, seen = [], [step.outputs[0]], {step.outputs[0]}
        while stack:
            for number, position in self.uses[stack.pop()]:
                edge = replay.edges.get((number, position))
                if edge is None or edge[mask].any():
                    continue
                for output in self.program.steps[number].outputs:
                    adjoint = replay.adjoints.get(output)
                    if adjoint is None or not adjoint.any():
                        continue
                    if adjoint.shape != mask.shape or adjoint[mask].any():
                        found.append((number, position, mask))
                    elif output not in seen:
                        seen.add(output)
                        stack.append(output)
        return found or [(*origin, True)]

    def _underflows(self, replay: Replay, step: Step, position: int, part: Array) -> bool:
        """Whether a step makes zeros although its slope is not 0 (in the part of its operands that is asked about)."""
        if step.op.type in _PRODUCTS:
            adjoint, other = replay.adjoints[step.outputs[0]], replay.values[step.inputs[1 - position]]
            through = (adjoint != 0) & (other != 0) & np.isfinite(other)
            return bool((through & part).any()) if np.shape(part) in ((), through.shape) else False
        if step.op.type == "Softmax":  # weights that sum to 1 whatever the logits are
            adjoint = replay.adjoints[step.outputs[0]]
            return bool(np.ptp(adjoint, -1).any())
        return step.op.type in _NEVER_FLAT

    def poisoning(self, replay: Replay, leaf: int, kind: str) -> list[Culprit]:
        """The operations that get a finite adjoint and pass on one that is not, where the leaf's is not finite.

        Args:
            replay: the run in which the leaf's adjoint is not finite.
            leaf: the value in question.
            kind: ``nan`` or ``inf``; an operation that only makes NaN can't be the reason for an infinity.
        """
        origins = self._origins(replay, leaf, lambda a: not np.isfinite(a).all())
        wanted = np.isnan if kind == "nan" else np.isinf
        exact = [(n, p) for n, p in origins if wanted(replay.edges[n, p]).any()]
        found = []
        for number, position in exact or (origins if kind == "nan" else []):
            step = self.program.steps[number]
            values = [replay.values[i] for i in step.inputs if i in replay.values]
            source = self._first_bad(replay, step) if any(not np.isfinite(v).all() for v in values) else None
            if source is not None:
                found.append(source)
                continue
            edge = replay.edges[number, position]
            bad = wanted(edge) if wanted(edge).any() else ~np.isfinite(edge)
            found.append(Culprit(step, self._operands(replay, step, position, bad)))
        return found

    def first_bad(self, replay: Replay, output: int, only_nan: bool) -> Culprit | None:
        """The operation that first makes an output not finite, or NaN."""
        return (None if only_nan else self._traced_back(replay, [output], _not_finite)) or self._traced_back(
            replay, [output], np.isnan
        )

    def _first_bad(self, replay: Replay, step: Step) -> Culprit | None:
        """What made the inputs of a step not finite, or the first NaN if the function's own inputs are infinite."""
        return self._traced_back(replay, step.inputs, _not_finite) or self._traced_back(replay, step.outputs, np.isnan)

    def _traced_back(self, replay: Replay, start: Sequence[int], test: Callable[[Array], Array]) -> Culprit | None:
        """The first operation that makes a bad value of good ones, out of those from which badness came to `start`."""

        def bad(values: Sequence[int]) -> list[int]:
            return [i for i in values if i in replay.values and test(replay.values[i]).any()]

        first: int | None = None
        stack, seen = bad(start), set(bad(start))
        while stack:
            value = stack.pop()
            number = self.made_by.get(value)
            if number is None:
                continue
            inputs = self.program.steps[number].inputs
            lists = [i for i in inputs if self.program.values[i].dtype == tf.variant]
            # What is in a list of tensors is not looked at there, but where it got into it.
            further = bad(inputs) or lists
            if self.program.values[value].dtype == tf.variant:
                further = [*bad(inputs), *lists]
            elif not further:
                first = number if first is None else min(first, number)
            stack += [i for i in further if i not in seen]
            seen.update(further)
        if first is None:
            return None
        step = self.program.steps[first]
        mask = next(test(replay.values[o]) for o in bad(step.outputs))
        return Culprit(step, self._operands(replay, step, None, mask))

    def _origins(self, replay: Replay, leaf: int, wrong: Callable[[Array], Any]) -> list[tuple[int, int]]:
        """The uses, reached from the leaf along wrong adjoints only, that make a wrong adjoint of right ones.

        The last operation comes first: backpropagation meets it first.
        """
        found: list[tuple[int, int]] = []
        seen, stack = {leaf}, [leaf]
        while stack:
            for number, position in self.uses[stack.pop()]:
                if (number, position) not in replay.edges:
                    continue
                edge = replay.edges[number, position]
                if edge is not None and not wrong(edge):
                    continue
                outputs = [o for o in self.program.steps[number].outputs if o in replay.adjoints]
                # What is in a list of tensors is not looked at there, but where it comes from the list or gets into it.
                further = [o for o in outputs if replay.adjoints[o] is None or wrong(replay.adjoints[o])]
                # One NaN among the outputs' adjoints explains a NaN; it takes zeros in all to explain zeros.
                if edge is not None and (not further or (len(further) < len(outputs) and wrong(np.zeros(1)))):
                    found.append((number, position))
                stack += [o for o in further if o not in seen]
                seen.update(further)
        return sorted(set(found), reverse=True)

    def _first_operands(self, step: Step) -> tuple[tuple[float, ...], ...]:
        values = [np.asarray(to_numpy(self.program.values[i])) for i in self._numeric(step)]
        if not values:
            return ()
        shape = _common_shape(values)
        if shape is None:
            values, shape = values[:1], values[0].shape
        return _pick(values, shape, np.ones(shape, bool))

    def _numeric(self, step: Step) -> list[int]:
        inputs = step.inputs[-1:] if step.joins else step.inputs
        floating = [i for i in inputs if is_differentiable(self.program.values[i])]
        return floating or [i for i in inputs if self.program.values[i].dtype.is_integer][:1]

    def _operands(self, replay: Replay, step: Step, position: int | None, bad: Array) -> tuple[tuple[float, ...], ...]:
        """The operands at the places where an input's adjoint, or (position None) the output, is bad."""
        values = [replay.values[i] for i in step.inputs if i in replay.values]
        shape = _common_shape(values)
        if shape is not None and _fits(bad.shape, shape):
            telling = self._telling(replay, step) if bad.shape != shape else None
            return _pick(values, shape, np.broadcast_to(bad, shape), telling)
        if position is not None and step.inputs[position] in replay.values:
            return _pick([replay.values[step.inputs[position]]], bad.shape, bad)
        return self._first_operands(step)

    def _telling(self, replay: Replay, step: Step) -> Array | None:
        output = replay.values.get(step.outputs[0])
        return None if output is None else ~np.isfinite(output)


def _not_finite(array: Array) -> Array:
    return ~np.isfinite(array)


def _common_shape(values: Sequence[Array]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*(v.shape for v in values)) if values else None
    except ValueError:
        return None


def _fits(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, into) == into
    except ValueError:
        return False


def _pick(
    values: Sequence[Array], shape: tuple[int, ...], where: Array, telling: Array | None = None
) -> tuple[tuple[float, ...], ...]:
    """The values at the first few places; of an operand that was broadcast, rather where the result tells something."""
    if telling is not None and telling.shape == shape and (telling & where).any():
        where = telling & where
    wide = [np.broadcast_to(v, shape) for v in values]
    places = np.argwhere(where)
    rows = [tuple(w[tuple(place)].item() for w in wide) for place in places[:1000]]
    return tuple(dict.fromkeys(rows))[:_SHOWN]
