"""Runs a function in three modes and finds the gradients and outputs that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from opselect._tensorflow import keras, tf
from opselect.doctor.explain import Explainer, Wrong
from opselect.doctor.inputs import GradientCheckError, is_differentiable, read_arguments, to_numpy, variable_names
from opselect.doctor.modes import MODES, Gradients, Subject
from opselect.doctor.report import GradientCheck
from opselect.doctor.sources import one_line

__all__ = ["check_gradients"]

Array = Any

_SHOWN = 3
_JITTERS = ((1, 1.0), (1, -1.0), (2, 1.0), (2, -1.0))  # (seed, sign)


def check_gradients(fn: Callable[..., Any], *inputs: Any, seed: int = 0) -> GradientCheck:
    """Says whether the gradients of `fn` at these inputs are usable, and if not, which operation is to blame.

    `fn` is run eagerly, in a tf.function and in a tf.function with ``jit_compile=True``. For each floating input, and
    for each trainable variable it reads (the weights of a Keras model, say), the gradient of a random positive
    combination of all its floating outputs may not be None, NaN, infinite, or zero at the input and around it. Nor may
    an output be NaN, or infinite while the inputs are finite. For what is wrong, the traced operations are run again
    one by one, loops unrolled, and the first that makes a wrong value of right ones is named.

    It is about these inputs: give those at which you suspect a mistake, such as zeros, borders and padding.

    Args:
        fn: takes tensors, or lists and dictionaries of tensors, and returns such. It is called a dozen times. Its
            variables are put back after every run but the first.
        *inputs: tensors, variables, NumPy arrays (which keep their dtype), floats and lists of them (float32), and
            nested structures of these. Integer and boolean tensors are passed on but not differentiated; a single
            int, bool or string is passed on as it is.
        seed: of the random combination.

    Returns:
        The report; ``report.ok`` says in one bool whether all is well, and ``print(report)`` says the rest.

    Raises:
        GradientCheckError: `fn` raised an exception, returned no tensor, or can't take these inputs.
    """
    eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(False)  # otherwise all three modes would be eager
    try:
        subject = Subject(fn, read_arguments(fn, inputs), seed)
        try:
            return _Check(subject, seed).report()
        finally:
            subject.restore()
    finally:
        tf.config.run_functions_eagerly(eagerly)


class _Check:
    """One call of `check_gradients`.

    Attributes:
        names: of the sources, which are the floating inputs and the variables.
        values: of the sources.
        notes: for the report.
    """

    def __init__(self, subject: Subject, seed: int) -> None:
        self.subject = subject
        self.seed = seed
        self.notes: list[str] = []
        arguments, captured = subject.arguments, subject.captured
        given = [n for n, v in arguments.variables if is_differentiable(v)]
        self.names = [*(arguments.names[i] for i in subject.inputs), *given, *variable_names(subject.fn, captured)]
        sources = [*(arguments.tensors[i] for i in subject.inputs), *map(tf.identity, subject.variables)]
        self.values = [to_numpy(t) for t in sources]
        self.finite = all(np.isfinite(v).all() for v in self.values)
        self._copies: dict[str, list[Gradients]] = {}  # by mode

    def report(self) -> GradientCheck:
        arguments = self.subject.arguments
        for name, tensor in zip(arguments.names, arguments.tensors, strict=True):
            if not is_differentiable(tensor):
                self.notes.append(f"{name} is {tensor.dtype.name}: passed on, but it has no gradient")
        if not self.names:
            self.notes.append("integers are passed on as they are; what is to be differentiated is written 1.0, not 1")
        traced = self._trace()
        runs = self._run(MODES if traced is not None else MODES[:1])
        self.notes += [f"differentiating raises a LookupError: {said}" for said in dict.fromkeys(self.subject.refused)]
        wrong = [item for source in range(len(self.values)) for item in self._wrong_gradients(source, runs)]
        wrong += self._wrong_outputs(runs)
        if not wrong:
            self._compare(runs)
        findings = Explainer(self.subject, traced, self.finite, self.notes).findings(wrong) if wrong else ()
        return GradientCheck(_name(self.subject.fn), tuple(self.names), findings, tuple(dict.fromkeys(self.notes)))

    def _trace(self) -> Any:
        try:
            return self.subject.trace()
        except Exception as error:
            self.notes.append(f"tf.function can't trace it, so only eager mode was checked: {one_line(error)}")
            return None

    def _run(self, modes: Iterable[str]) -> dict[str, Gradients]:
        runs: dict[str, Gradients] = {}
        for mode in modes:
            try:
                runs[mode] = self.subject.run(mode)
            except Exception as error:
                if mode == "eager":
                    what = f"differentiating the function raised {type(error).__name__}"
                    raise GradientCheckError(f"{what}: {one_line(error)}") from error
                what = "XLA can't compile it" if mode == "xla" else "it can't be differentiated in a tf.function"
                self.notes.append(f"{what}: {one_line(error)}")
        return runs

    def _wrong_gradients(self, source: int, runs: dict[str, Gradients]) -> list[Wrong]:
        name, value = self.names[source], self.values[source]
        gradients = {mode: run.gradients[source] for mode, run in runs.items()}
        missing = [m for m, g in gradients.items() if g is None]
        zero = [m for m, g in gradients.items() if g is not None and g.size and not g.any()]
        found: list[Wrong] = []
        if missing:  # where a loop or a call hides the break, graph mode fills zeros in for None
            found.append(Wrong(name, source, "none", tuple(m for m in gradients if m in missing or m in zero)))
        elif zero and self._stays_zero(source, zero[0]):
            found.append(Wrong(name, source, "zero", tuple(zero)))
        elif zero:
            self.notes.append(f"{name}: the gradient is zero at exactly these inputs, but not around them")
        for kind, test in (("nan", np.isnan), ("inf", np.isinf)):
            bad = {m: test(g) for m, g in gradients.items() if g is not None and test(g).any()}
            if bad:
                places = _places(np.any(list(bad.values()), axis=0))
                found.append(Wrong(name, source, kind, tuple(bad), places, tuple(value[p].item() for p in places)))
        return found

    def _compare(self, runs: dict[str, Gradients]) -> None:
        """Notes gradients on which the modes disagree although they agree on the outputs."""
        eager = runs["eager"]
        for mode, run in runs.items():
            if not all(_close(a, b) for a, b in zip(eager.outputs, run.outputs, strict=True)):
                continue  # random numbers differ between modes
            for name, a, b in zip(self.names, eager.gradients, run.gradients, strict=True):
                if a is not None and b is not None and not _close(a, b):
                    self.notes.append(f"{name}: the gradient in a tf.function ({mode}) is not the eager one")

    def _stays_zero(self, source: int, mode: str) -> bool:
        """Whether a gradient that is zero in a mode is so around the inputs as well, not at a stationary point only."""
        if mode not in self._copies:
            self._copies[mode] = []
            for seed, sign in _JITTERS:
                try:
                    self._copies[mode].append(self.subject.jittered(self.seed + seed, sign, mode))
                except Exception:  # the inputs beside these may be ones the function refuses
                    self.subject.restore()
        beside = [copy.gradients[source] for copy in self._copies[mode]]
        return not any(g is not None and np.isfinite(g).all() and g.any() for g in beside)

    def _wrong_outputs(self, runs: dict[str, Gradients]) -> list[Wrong]:
        """Outputs that are NaN, or infinite although the inputs are not."""

        def test(array: Array) -> Array:
            return ~np.isfinite(array) if self.finite else np.isnan(array)

        found: list[Wrong] = []
        for i, output in enumerate(self.subject.outputs):
            values = {m: run.outputs[i] for m, run in runs.items()} if is_differentiable(output) else {}
            bad = {m: v for m, v in values.items() if test(v).any()}
            if bad:
                value = next(iter(bad.values()))
                places = _places(test(value))
                name = "output" if len(self.subject.outputs) == 1 else f"output[{i}]"
                found.append(Wrong(name, i, "output", tuple(bad), places, tuple(value[p].item() for p in places)))
        return found


def _close(a: Array, b: Array, tolerance: float = 0.02) -> bool:
    """Whether two arrays agree to a share of their largest entry."""
    if a.shape != b.shape or a.dtype.kind not in "fc" or not a.size:
        return a.shape == b.shape
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.all():
        a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    return bool(np.abs(a - b).max() <= tolerance * max(np.abs(a).max(), np.abs(b).max()))


def _places(mask: Array) -> tuple[tuple[int, ...], ...]:
    """The first few indices at which an array of any rank is True."""
    return tuple(tuple(int(i) for i in place) for place in np.argwhere(mask)[:_SHOWN])


def _name(fn: Any) -> str:
    if isinstance(fn, keras.layers.Layer):
        return fn.name
    return getattr(fn, "__name__", type(fn).__name__)
