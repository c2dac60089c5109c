"""A traced function as a straight line of operations: calls inlined, loops unrolled, branches chosen.

The line can be run again, eagerly or under XLA, forwards and backwards, keeping every intermediate value, the adjoint
of each and what each operation adds to the adjoint of each of its inputs. TensorFlow's own gradient functions are used,
called inside the graph in which the operation was traced: the closures of tf.custom_gradient refer to tensors there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from opselect._tensorflow import tf
from opselect.doctor.graphs import carries, execute, function_graph, gradient_function, in_order
from opselect.doctor.inputs import is_differentiable, to_numpy
from opselect.doctor.sources import user_line

__all__ = ["Program", "Replay", "Step", "UnanalysableError"]

Tensor = Any
Operation = Any

# Beyond these a loop is not followed any further; XLA takes long to compile many operations.
MAX_STEPS = 20_000
MAX_COMPILED_STEPS = 3_000

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")


class UnanalysableError(Exception):
    """The program holds something that can't be followed.

    Attributes:
        loop: the outermost loop that runs too many operations, or None if that isn't the reason.
    """

    loop: Step | None = None


@dataclasses.dataclass
class Frame:
    """One execution of one graph: which value each of its tensors has.

    Attributes:
        graph: the FuncGraph.
        ids: from the name of a tensor to the index of its value in the program.
        parent: the execution of the graph around this one.
        context: where this is, such as ``iteration 2 of a loop``.
    """

    graph: Any
    ids: dict[str, int]
    parent: Frame | None
    context: str


@dataclasses.dataclass(frozen=True)
class Step:
    """One executed operation; `inputs` and `outputs` are indices of values."""

    op: Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frame: Frame
    joins: bool = False
    """Whether this only joins the outcome of a branch or a loop (the last input) with what it was decided by."""

    @property
    def key(self) -> tuple[int, str]:
        """The same for every execution of one operation of the source."""
        return id(self.op.graph), self.op.name

    @property
    def line(self) -> str | None:
        """The user's line that made the operation."""
        stack = self.op.traceback
        return user_line((f.filename, f.lineno, f.line) for f in reversed(list(stack))) if stack is not None else None


@dataclasses.dataclass(frozen=True)
class _Local:
    """The gradient of one operation, built beside it in its own graph.

    Attributes:
        seeds: for each output, the placeholder of its adjoint, or None where it has none.
        results: for each input, what is added to its adjoint, or None where no gradient passes.
        graph: what is to be run for them; it captures tensors of the operation's graph.
    """

    seeds: tuple[Tensor | None, ...]
    results: tuple[Tensor | None, ...]
    graph: Any


@dataclasses.dataclass(frozen=True)
class Replay:
    """One run forwards and backwards, as arrays. What is missing has no value, or no gradient (not the same as 0).

    Attributes:
        values: from the index of a differentiable value to the value.
        adjoints: likewise its adjoint.
        edges: from (index of a step, position of an input) to what that step adds to that input's adjoint.

    An adjoint that is no array, because it belongs to a list of tensors, is there as None.
    """

    values: dict[int, Any]
    adjoints: dict[int, Any]
    edges: dict[tuple[int, int], Any]


class Program:
    """The straight line.

    Attributes:
        steps: the executed operations in order.
        values: every value as an eager tensor.
        leaves: the values of the function's flat tensors, in order.
        handles: from the id of a variable's handle to the value that stands for the variable.
        outputs: the values that the function returned.
    """

    def __init__(self, traced: Any, tensors: Sequence[Tensor]) -> None:
        self._traced = traced  # a tf.py_function lives as long as the function it was traced into
        self.steps: list[Step] = []
        self.values: list[Tensor] = []
        self._orders: dict[int, tuple[Any, list[Operation]]] = {}
        self._locals: dict[tuple[int, str], _Local] = {}
        self.leaves = [self._new(t) for t in tensors]
        captured = [self._new(t) for t in traced.captured_inputs]
        self.handles = {id(t): i for t, i in zip(traced.captured_inputs, captured, strict=True)}
        with tf.GradientTape(watch_accessed_variables=False):  # a tf.py_function prepares its gradient only under one
            self.outputs = self._interpret(traced.graph, [*self.leaves, *captured], None, "")

    def _new(self, value: Tensor) -> int:
        self.values.append(value)
        return len(self.values) - 1

    # Forwards, once, eagerly: this decides branches and the number of iterations.

    def _interpret(self, graph: Any, arguments: Sequence[int], parent: Frame | None, context: str) -> list[int]:
        frame = Frame(graph, {}, parent, context)
        for placeholder, value in zip(graph.inputs, arguments, strict=True):
            frame.ids[placeholder.name] = value
        if id(graph) not in self._orders:
            self._orders[id(graph)] = (graph, in_order(graph))
        for op in self._orders[id(graph)][1]:
            if op.type == "Placeholder":
                continue
            inputs = tuple(self._resolve(frame, t) for t in op.inputs)
            # A branch that was differentiated before may return more than its operation has outputs.
            for tensor, value in zip(op.outputs, self._outputs(op, inputs, frame), strict=False):
                frame.ids[tensor.name] = value
        return [self._resolve(frame, t) for t in graph.outputs]

    def _outputs(self, op: Operation, inputs: tuple[int, ...], frame: Frame) -> Sequence[int]:
        def body(attribute: str) -> Any:
            return function_graph(op, op.get_attr(attribute).name)

        if op.type in _CALLS:
            return self._interpret(body("f"), inputs, frame, frame.context)
        if op.type in _BRANCHES:
            chosen = int(self.values[inputs[0]].numpy())
            if "If" in op.type:
                graph = body("then_branch" if chosen else "else_branch")
            else:
                branches = op.get_attr("branches")
                graph = function_graph(op, branches[chosen if 0 <= chosen < len(branches) else -1].name)
            made = self._interpret(graph, inputs[1:], frame, frame.context)
            return [self._join(op, (inputs[0], value), frame) for value in made]
        if op.type in _LOOPS:
            try:
                return self._unroll(op, inputs, frame)
            except UnanalysableError as error:
                if error.loop is not None:  # the last to say so is the outermost
                    error.loop = Step(op, inputs, (), frame)
                raise
        if not op.outputs and "Assign" not in op.type:
            return ()  # prints and assertions; they have been heard when the function ran
        made = execute(op, [self.values[i] for i in inputs])
        outputs = tuple(self._new(t) for t in made)
        self.steps.append(Step(op, inputs, outputs, frame))
        return outputs

    def _unroll(self, op: Operation, inputs: tuple[int, ...], frame: Frame) -> list[int]:
        condition, body = (function_graph(op, op.get_attr(part).name) for part in ("cond", "body"))
        carried, decided, count = list(inputs), [], 0
        while len(self.steps) < MAX_STEPS:
            (going,) = self._interpret(condition, carried, frame, frame.context)
            decided.append(going)
            if not bool(self.values[going].numpy()):
                return [self._join(op, (*decided, value), frame) for value in carried]
            count += 1
            inside = f"iteration {count} of a loop" + (f" in {frame.context}" if frame.context else "")
            carried = self._interpret(body, carried, frame, inside)
        error = UnanalysableError(f"a loop runs more than {MAX_STEPS} operations")
        error.loop = Step(op, inputs, (), frame)
        raise error

    def _join(self, op: Operation, inputs: tuple[int, ...], frame: Frame) -> int:
        output = self._new(self.values[inputs[-1]])
        self.steps.append(Step(op, inputs, (output,), frame, joins=True))
        return output

    def _resolve(self, frame: Frame, tensor: Tensor) -> int:
        """The value of a tensor that occurs in the frame's graph, which may come from a graph around it."""
        if tensor.graph is not frame.graph:
            if frame.parent is None:
                raise UnanalysableError(f"{tensor.name} belongs to another graph")
            return self._resolve(frame.parent, tensor)
        if tensor.name not in frame.ids:
            for external, internal in frame.graph.captures:
                if internal is tensor:
                    if tf.is_symbolic_tensor(external):
                        known = self._resolve(frame.parent or frame, external)
                    else:
                        known = self.handles.get(id(external))
                    frame.ids[tensor.name] = self._new(external) if known is None else known
                    break
            else:
                raise UnanalysableError(f"{tensor.name} has no value")
        return frame.ids[tensor.name]

    # Backwards.

    def local(self, step: Step) -> _Local:
        """The gradient of the step's operation.

        Raises:
            UnanalysableError: its gradient function failed.
        """
        if step.key not in self._locals:
            self._locals[step.key] = self._build(step.op)
        return self._locals[step.key]

    def passes(self, step: Step, position: int) -> bool:
        """Whether any gradient can pass from the step's outputs to this input."""
        if step.joins:
            return position == len(step.inputs) - 1
        return self.local(step).results[position] is not None

    def _build(self, op: Operation) -> _Local:
        nothing = _Local((None,) * len(op.outputs), (None,) * len(op.inputs), None)
        gradient = gradient_function(op)
        if gradient is None or not any(carries(t) for t in op.outputs):
            return nothing
        with op.graph.as_default():
            # In a graph of its own inside the operation's, for that one belongs to the user's tf.function.
            inner = type(op.graph)("gradient")
        with inner.as_default():
            seeds = [tf.compat.v1.placeholder(t.dtype, t.shape) if carries(t) else None for t in op.outputs]
            try:
                found = gradient(op, *seeds)
            except Exception as error:
                raise UnanalysableError(f"the gradient function of {op.type} raised {error!r}") from error
            found = list(found) if isinstance(found, list | tuple) else [found]
            found += [None] * (len(op.inputs) - len(found))
            # What a gradient function passes on untouched may be a tensor of the outer graph: identity captures it.
            results = [None if g is None else tf.identity(tf.convert_to_tensor(g)) for g in found]
        return _Local(tuple(seeds), tuple(results), inner)

    def replay(self, jit: bool, weights: Sequence[Tensor]) -> Replay:
        """Runs forwards and backwards, from these adjoints of the floating outputs.

        Raises:
            Exception: whatever TensorFlow raises where it can't compile the line.
        """
        floating = [i for i, v in enumerate(self.values) if is_differentiable(v)]
        if not jit:
            values = dict(enumerate(self.values))
            adjoints, edges = self._backward(values, weights)
            return _replay(floating, values, adjoints, edges)
        if len(self.steps) > MAX_COMPILED_STEPS:
            raise UnanalysableError(f"it runs more than {MAX_COMPILED_STEPS} operations")
        made = {o for s in self.steps for o in s.outputs if not self._frozen(s)}
        given = [i for i in floating if i not in made]
        keys: list[Any] = []

        @tf.autograph.experimental.do_not_convert
        def compiled(*tensors: Tensor) -> list[Tensor]:
            values = dict(zip(given, tensors, strict=True))
            for step in self.steps:
                if any(o in made for o in step.outputs):
                    arguments = [values.get(i, self.values[i]) for i in step.inputs]
                    results = arguments[-1:] if step.joins else execute(step.op, arguments)
                    values.update(zip(step.outputs, results, strict=True))
            values = {i: values.get(i, v) for i, v in enumerate(self.values)}
            adjoints, edges = self._backward(values, weights)
            found = {("value", i): values[i] for i in floating}
            found |= {("adjoint", i): t for i, t in adjoints.items()}
            found |= {("edge", e): t for e, t in edges.items()}
            keys[:] = [(*key, is_differentiable(t)) for key, t in found.items()]
            return [t for t in found.values() if is_differentiable(t)]

        results = iter(tf.function(compiled, jit_compile=True)(*(self.values[i] for i in given)))
        parts: dict[str, dict[Any, Tensor]] = {"value": {}, "adjoint": {}, "edge": {}}
        for part, key, fetched in keys:
            parts[part][key] = next(results) if fetched else None
        return _replay(floating, parts["value"], parts["adjoint"], parts["edge"])

    def _frozen(self, step: Step) -> bool:
        """Whether the recorded value is taken: integers (XLA wants them constant), what is random, what is read.

        Booleans are computed anew, so that XLA compiles the selections they make.
        """
        if step.joins:
            return False
        kinds = [self.values[o].dtype for o in step.outputs]
        if step.op.type == "ReadVariableOp" or not all(k.is_floating or k.is_complex or k.is_bool for k in kinds):
            return not any(k == tf.variant for k in kinds)
        return step.op.op_def.is_stateful and all(r is None for r in self.local(step).results)

    def _backward(
        self, values: dict[int, Tensor], weights: Sequence[Tensor]
    ) -> tuple[dict[int, Tensor], dict[tuple[int, int], Tensor]]:
        sums: dict[int, Tensor] = {}
        edges: dict[tuple[int, int], Tensor] = {}

        def add(index: int, tensor: Tensor) -> None:
            sums[index] = tf.add_n([sums[index], tensor]) if index in sums else tensor

        floating = [i for i in self.outputs if is_differentiable(self.values[i])]
        for index, weight in zip(floating, weights, strict=True):
            add(index, weight)
        for number, step in reversed(list(enumerate(self.steps))):
            if not any(o in sums for o in step.outputs):
                continue
            for position, tensor in self._pull(step, values, sums):
                edges[number, position] = tensor
                add(step.inputs[position], tensor)
        return sums, edges

    def _pull(self, step: Step, values: dict[int, Tensor], sums: dict[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
        """What a step adds to the adjoints of its inputs."""
        if step.joins:
            yield len(step.inputs) - 1, sums[step.outputs[0]]
            return
        local = self.local(step)
        if local.graph is None:
            return
        here: dict[str, Tensor] = {}
        for seed, output in zip(local.seeds, step.outputs, strict=True):
            if seed is not None:
                here[seed.name] = sums[output] if output in sums else tf.zeros_like(values[output])
        frame = Frame(local.graph, {}, step.frame, "")

        def value(tensor: Tensor) -> Tensor:
            if tensor.name in here:
                return here[tensor.name]
            index = self._resolve(frame, tensor)
            return values.get(index, self.values[index])

        for op in local.graph.get_operations():
            if op.type != "Placeholder" and op.outputs:
                for tensor, result in zip(op.outputs, execute(op, [value(t) for t in op.inputs]), strict=True):
                    here[tensor.name] = result
        for position, result in enumerate(local.results):
            if result is not None:
                yield position, value(result)


def _replay(floating: list[int], values: Any, adjoints: Any, edges: Any) -> Replay:
    def arrays(tensors: dict[Any, Tensor]) -> dict[Any, Any]:
        return {k: None if t is None or not is_differentiable(t) else to_numpy(t) for k, t in tensors.items()}

    return Replay(arrays({i: values[i] for i in floating}), arrays(adjoints), arrays(edges))
