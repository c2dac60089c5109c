"""The operations of a traced graph: in which order, with which bodies and gradients, and run again one by one.

Most of this is public in TensorFlow; what isn't is used here and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from opselect._tensorflow import tf
from opselect.doctor.inputs import is_differentiable

__all__ = ["carries", "execute", "function_graph", "gradient_function", "in_order"]

Tensor = Any
Operation = Any


def carries(tensor: Tensor) -> bool:
    """Whether a tensor may have an adjoint; lists of tensors are variants."""
    return is_differentiable(tensor) or tensor.dtype == tf.variant


def gradient_function(op: Operation) -> Any:
    """What TensorFlow calls for the gradient of an operation, or None where none can pass or none is registered."""
    # It lives beside the public class that registers gradients.
    registry = sys.modules[tf.RegisterGradient.__module__]
    try:
        return registry.get_gradient_function(op)
    except LookupError:
        return None


def function_graph(op: Operation, name: str) -> Any:
    """The FuncGraph of a function that an operation calls."""
    graph = op.graph
    while graph is not None:
        found = graph._get_function(name)
        if found is not None and getattr(found, "graph", None) is not None:
            return found.graph
        graph = getattr(graph, "outer_graph", None)
    raise LookupError(f"the body of {op.type} is not known")


def in_order(graph: Any) -> list[Operation]:
    """A graph's operations, each after those it needs.

    That is the order in which they were made, except where somebody has already differentiated a loop in this graph:
    then the loop got inputs that are younger than it.
    """
    order: list[Operation] = []
    seen: set[Operation] = set()
    for root in graph.get_operations():
        stack = [(root, False)]
        while stack:
            op, ready = stack.pop()
            if ready:
                order.append(op)
            elif op not in seen:
                seen.add(op)
                stack.append((op, True))
                stack += [(t.op, False) for t in op.inputs if t.op not in seen]
    return order


def execute(op: Operation, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Runs an operation of a graph again, eagerly or in the graph that is being traced."""
    if not tf.executing_eagerly():
        # FuncGraphs capture what is eager among the inputs; an attribute is copied as it is, custom gradients aside.
        graph = tf.compat.v1.get_default_graph()
        attributes = {k: v for k, v in op.node_def.attr.items() if not k.startswith("_")}
        kinds = [t.dtype for t in op.outputs]
        made = graph.create_op(op.type, list(inputs), kinds, attrs=attributes, op_def=op.op_def)
        return list(made.outputs)
    if op.type == "Const":
        return [tf.constant(tf.make_ndarray(op.get_attr("value")), op.outputs[0].dtype)]
    attributes = []
    for spec in op.op_def.attr:
        attributes += [spec.name, _plain(op.get_attr(spec.name), spec.type)]
    # tf.raw_ops would do for most, but it renames and reorders arguments.
    runner, context = (sys.modules[f"tensorflow.python.eager.{name}"] for name in ("execute", "context"))
    return list(runner.quick_execute(op.type, len(op.outputs), list(inputs), tuple(attributes), context.context()))


def _plain(value: Any, kind: str) -> Any:
    """An attribute as eager execution takes it."""
    if kind.startswith("list("):
        return [_plain(part, kind[5:-1]) for part in value]
    if kind == "type":
        return tf.as_dtype(value).as_datatype_enum
    if kind == "shape":
        shape = tf.TensorShape(value)
        return None if shape.rank is None else [-1 if d is None else d for d in shape]
    return value.name if kind == "func" else value
