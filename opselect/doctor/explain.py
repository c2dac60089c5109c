"""From a wrong gradient to a finding: which operation made it, where, and what to write instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from opselect.doctor.advice import advice, composite, user_name
from opselect.doctor.culprits import Culprit, Search
from opselect.doctor.modes import MODES, Subject, quietly
from opselect.doctor.program import Program, Replay, Step, UnanalysableError
from opselect.doctor.report import Finding, number
from opselect.doctor.sources import one_line

__all__ = ["Explainer", "Wrong"]

_MOST_CULPRITS = 4  # of one input and kind
_SHOWN = 3
_VERBS = {
    "none": "lets no gradient through",
    "zero": "has slope 0",
    "nan": "has a slope that is not finite",
    "inf": "has a slope that is not finite",
    "output": "is the first to give a value that is not finite",
}
_WITHOUT_CULPRIT = {
    "independent": "The output does not depend on it.",
    "lost": "On its way to the output the value leaves TensorFlow, as with .numpy(), or becomes a constant.",
    "cancelled": "What its uses contribute adds up to zero.",
    "given": "An input is not finite already.",
    "unknown": "No single operation was found to blame.",
}


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A wrong gradient or output before anything is known of its reason.

    Attributes:
        name: of the input, variable or output.
        index: of the source or of the output.
        kind: as in `Finding`.
        modes: as in `Finding`.
        positions: as in `Finding`.
        values: as in `Finding`.
    """

    name: str
    index: int
    kind: str
    modes: tuple[str, ...]
    positions: tuple[tuple[int, ...], ...] = ()
    values: tuple[float, ...] = ()


class Explainer:
    """Looks for culprits in a function that was traced, or (None) could not be.

    Args:
        subject: the function and its inputs.
        traced: its ConcreteFunction, or None.
        finite: whether all inputs are.
        notes: where to say what could not be found out.
    """

    def __init__(self, subject: Subject, traced: Any, finite: bool, notes: list[str]) -> None:
        self._subject = subject
        self._finite = finite
        self._notes = notes
        self._replays: dict[bool, Replay | None] = {}
        self._program: Program | None = None
        self._search: Search | None = None
        self._sources: list[int | None] = []
        self._loop: Step | None = None
        if traced is not None:
            self._follow(traced)

    def _follow(self, traced: Any) -> None:
        tensors = self._subject.arguments.tensors
        try:
            program = quietly(lambda: Program(traced, tensors))
        except UnanalysableError as error:
            self._loop = error.loop
            self._notes.append(f"the operations could not be followed: {one_line(error)}")
            return
        except Exception as error:
            self._notes.append(f"the operations could not be followed: {one_line(error)}")
            return
        finally:
            self._subject.restore()
        self._program, self._search = program, Search(program)
        self._sources = [program.leaves[i] for i in self._subject.inputs]
        self._sources += [program.handles.get(id(v.handle)) for v in self._subject.variables]

    def findings(self, wrong: Sequence[Wrong]) -> tuple[Finding, ...]:
        """One finding for each input, culprit and kind."""
        merged: dict[tuple[Any, ...], Finding] = {}
        for item in wrong:
            for finding in self._explain(item):
                key = (finding.input, finding.kind, finding.op_type, finding.op_name, finding.line)
                known = merged.setdefault(key, finding)
                modes = tuple(m for m in MODES if m in known.modes or m in finding.modes)
                operands = tuple(dict.fromkeys((*known.operands, *finding.operands)))[:_SHOWN]
                merged[key] = dataclasses.replace(known, modes=modes, operands=operands)
        return tuple(merged.values())

    def _explain(self, item: Wrong) -> list[Finding]:
        if self._search is None or self._program is None:
            loop = None if self._loop is None else Culprit(self._loop, ())
            return [_finding(item, loop, "lost" if item.kind == "none" and self._loop is None else "unknown")]
        if item.kind == "output":
            return [_finding(item, self._first_bad(self._search, item), "unknown" if self._finite else "given")]
        leaf = self._sources[item.index]
        if leaf is None or leaf not in self._search.reaching:
            return [_finding(item, None, "independent")]
        if item.kind == "none":
            return [_finding(item, self._blocking(self._search, leaf), "lost")]
        if item.kind == "zero":
            return self._flat(self._search, item, leaf)
        culprits: list[Culprit] = []
        for replay in self._in_order(item.modes):
            culprits = self._search.poisoning(replay, leaf, item.kind)
            if culprits:
                break
        distinct = list({c.step.key: c for c in reversed(culprits)}.values())[::-1]
        if len(distinct) > _MOST_CULPRITS:
            more = len(distinct) - _MOST_CULPRITS
            self._notes.append(f"{item.name}: {more} more operations have a slope there that is not finite")
        return [_finding(item, c) for c in distinct[:_MOST_CULPRITS]] or [_finding(item, None)]

    def _flat(self, search: Search, item: Wrong, leaf: int) -> list[Finding]:
        culprits: list[Culprit] = []
        for replay in self._in_order(item.modes):
            culprits = search.flattening(replay, leaf)
            if culprits:
                break
        if culprits and all(c.underflow for c in culprits):
            name = user_name(culprits[0].step.op.type)
            self._notes.append(f"{item.name}: the gradient is too small for its dtype and becomes zero at {name}")
            return []
        if not culprits:  # zeros that graph mode fills in where no gradient passes, or contributions that cancel
            return [_finding(item, self._blocking(search, leaf), "cancelled")]
        flat = {c.step.key: c for c in reversed(culprits) if not c.underflow}
        return [_finding(item, c) for c in list(flat.values())[::-1][:_MOST_CULPRITS]]

    def _blocking(self, search: Search, leaf: int) -> Culprit | None:
        try:
            return search.blocking(leaf)
        except Exception as error:  # a gradient function that raises
            self._notes.append(f"the operations could not be followed: {one_line(error)}")
            return None

    def _first_bad(self, search: Search, item: Wrong) -> Culprit | None:
        assert self._program is not None
        for replay in self._in_order(item.modes):
            if item.index < len(self._program.outputs):
                culprit = search.first_bad(replay, self._program.outputs[item.index], not self._finite)
                if culprit is not None:
                    return culprit
        return None

    def _in_order(self, modes: tuple[str, ...]) -> Iterator[Replay]:
        """The runs in which to look: XLA's first only for what shows nowhere else, since compiling takes long.

        What one run doesn't show, such as a NaN that XLA optimises away in one function and not in the other, the other
        may.
        """
        for jit in (True, False) if modes == ("xla",) else (False, True)[: 1 + ("xla" in modes)]:
            if jit not in self._replays:
                self._replays[jit] = self._replay(jit)
            replay = self._replays[jit]
            if replay is not None:
                yield replay

    def _replay(self, jit: bool) -> Replay | None:
        program, weights = self._program, self._subject.weights
        assert program is not None
        try:
            return quietly(lambda: program.replay(jit, weights))
        except Exception as error:
            how = " under XLA" if jit else ""
            self._notes.append(f"the operations could not be followed{how}: {one_line(error)}")
            return None


def _finding(item: Wrong, culprit: Culprit | None, otherwise: str = "unknown") -> Finding:
    if culprit is None:
        return Finding(
            *(item.name, item.kind, item.modes, None, None, None, None, "", ()),
            *(item.positions, item.values, _WITHOUT_CULPRIT[otherwise], advice(item.kind, None, reason=otherwise)),
        )
    op, context = culprit.step.op, culprit.step.frame.context
    return Finding(
        input=item.name,
        kind=item.kind,
        modes=item.modes,
        operation=user_name(op.type),
        op_type=op.type,
        op_name=op.name,
        line=culprit.step.line,
        context=context,
        operands=culprit.operands,
        positions=item.positions,
        values=item.values,
        reason=_reason(item.kind, culprit),
        advice=advice(
            item.kind,
            op.type,
            op.name,
            overflows=bool(culprit.operands) and bool(np.isfinite([v for row in culprit.operands for v in row]).all()),
        ),
    )


def _reason(kind: str, culprit: Culprit) -> str:
    op, context = culprit.step.op, culprit.step.frame.context
    around = composite(op.name)
    if not culprit.step.outputs:  # a loop that was given up
        return f"{user_name(op.type)} ({op.name}) runs too many operations to look at each; one of them is the reason."
    rows = [", ".join(number(v) for v in row) for row in culprit.operands]
    several = any(len(row) > 1 for row in culprit.operands)
    at = f" at {', '.join(f'({row})' if several else row for row in rows)}" if rows else ""
    return (
        f"{user_name(op.type)} ({op.name}){f' inside {around}' if around else ''} {_VERBS[kind]}{at}"
        f"{f', in {context}' if context else ''}."
    )
