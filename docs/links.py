"""Links the names that docstrings have in single backticks to the reference: an extension of griffe's."""

from __future__ import annotations

import ast
import collections
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import griffe

ROOT = pathlib.Path(__file__).parents[1]
_NAME = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")


def _defined() -> Iterator[tuple[str, str]]:
    """(name, module) of whatever a module defines at its top and lists in its ``__all__``."""
    for base in (ROOT, ROOT / "envs"):
        for path in [p for package in base.glob("opselect*") for p in package.rglob("*.py")]:
            names, public = [], set()
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    names.append(node.name)
                for target in getattr(node, "targets", [getattr(node, "target", None)]):
                    if isinstance(target, ast.Name) and target.id == "__all__":
                        public = set(ast.literal_eval(node.value))
                    elif isinstance(target, ast.Name):
                        names.append(target.id)
            module = ".".join(p for p in path.relative_to(base).with_suffix("").parts if p != "__init__")
            yield from ((name, module) for name in names if name in public)


class Links(griffe.Extension):
    """Makes `name` a link where one module alone defines it, or the docstring's own."""

    def __init__(self) -> None:
        self.modules: dict[str, list[str]] = collections.defaultdict(list)
        for name, module in _defined():
            self.modules[name].append(module)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring."""
        if obj.docstring is not None:
            # A parameter or a field of that name is what is meant.
            own = {p.name for p in getattr(obj, "parameters", ())} | set(obj.members if obj.is_class else ())
            if obj.parent is not None and obj.parent.is_class:
                own |= set(obj.parent.members)
            obj.docstring.value = _NAME.sub(lambda m: self._link(m[1], obj.module.path, own), obj.docstring.value)

    def _link(self, written: str, here: str, own: set[str]) -> str:
        plain = f"`{written}`"
        name = re.sub(r"^opselect(_envs)?\.(\w+\.)*?(?=[^.]+(\.[a-z_]\w*)?$)", "", written)
        first, _, attribute = name.partition(".")
        modules = self.modules.get(first, [])
        module = here if here in modules else modules[0] if len(modules) == 1 else None
        if module is None or written in own or "." in attribute:
            return plain
        path = ".".join(part for part in (module, first, attribute) if part)
        return f'<autoref identifier="{path}" optional><code>{written}</code></autoref>'
