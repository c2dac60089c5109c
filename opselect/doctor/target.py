"""What `opselect doctor` is pointed at: a function in a file, and inputs for it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import itertools
import pathlib
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opselect._tensorflow import keras
from opselect_envs.naming import nearest

__all__ = ["PROBES", "TargetError", "choose_inputs", "load_function"]

PROBES = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
_MOST_PROBED = 3


class TargetError(ValueError):
    """The file, the function or the inputs are not what the user thinks; the message is one line."""


def load_function(path: pathlib.Path, name: str) -> Callable[..., Any]:
    """Runs a Python file and returns what is called `name` in it. The file's folder can be imported from, as in Python.

    Raises:
        TargetError: the file can't be run, or has no callable of this name.
    """
    path = path.resolve()
    loader = importlib.machinery.SourceFileLoader(f"_doctor_{path.stem}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses and AutoGraph look it up there
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise TargetError(f"{path.name} can't be imported: {_what_and_where(error, path)}") from error
    known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
    if not hasattr(module, name):
        own = [n for n in known if getattr(getattr(module, n), "__module__", None) == loader.name]
        hint = f"; did you mean {nearest(name, own or known)!r}?" if known else "; it defines none"
        raise TargetError(f"{path.name} has no function {name!r}{hint}")
    found = getattr(module, name)
    if not callable(found):
        hint = f"; a function in the file is {nearest(name, known)!r}" if known else ""
        raise TargetError(f"{name!r} in {path.name} is not a function, but {type(found).__name__}{hint}")
    return found


def choose_inputs(fn: Callable[..., Any], given: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """The inputs for `fn`: those given, in order; defaults stay; what is left is probed.

    Returns:
        inputs: one for each leading parameter. Probed ones are vectors of all combinations of `PROBES`.
        probed: the names of the parameters that are probed.

    Raises:
        TargetError: more inputs than parameters, or more than three parameters to probe.
    """
    target: Any = fn
    if isinstance(target, keras.layers.Layer):
        target = target.call
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        if given:
            return list(given), []
        raise TargetError("its parameters can't be seen from outside; give --input once for each") from None
    ordered = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    names = ", ".join(p.name for p in parameters)
    if len(given) > len(ordered) and not several:
        raise TargetError(f"--input: given {len(given)} times, but the function takes {len(ordered)} ({names})")
    if several and not given and not ordered:
        raise TargetError(f"the function takes any number of inputs ({names}); give --input once for each")
    bare = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if bare:
        raise TargetError(f"the function needs {bare[0]!r} by keyword, which can't be given here; give it a default")
    probed = [p.name for p in ordered[len(given) :] if p.default is p.empty]
    if len(probed) > _MOST_PROBED:
        raise TargetError(
            f"the function has {len(probed)} parameters without a value ({', '.join(probed)}), and at most"
            f" {_MOST_PROBED} can be probed; give --input for the first {len(probed) - _MOST_PROBED} or more"
        )
    grid = np.array(list(itertools.product(PROBES, repeat=len(probed))), np.float32)
    return [*given, *(np.ascontiguousarray(grid[:, i]) for i in range(len(probed)))], probed


def _what_and_where(error: BaseException, path: pathlib.Path) -> str:
    """An exception and the line of the file that raised it."""
    if isinstance(error, SyntaxError) and error.lineno and error.filename and pathlib.Path(error.filename) == path:
        return f"SyntaxError at line {error.lineno}: {error.msg}"
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f" at line {own[-1].lineno}" if own else ""
    said = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}{where}" + (f": {said}" if said else "")
