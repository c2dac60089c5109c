"""Which line of the user's code is to blame, and what an error of TensorFlow's says in one line."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import re
from collections.abc import Iterable

__all__ = ["one_line", "user_line"]

_NOT_THE_USERS = ("tensorflow", "keras", "tf_keras", "tensorflow_probability", "opselect")
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LONGEST = 240
_NOISE = re.compile(r"(File |Traceback|in user code|Detected at|Stack trace|-{3,})")


def user_line(frames: Iterable[tuple[str, int, str | None]]) -> str | None:
    """``file:line: code`` of the first of the frames (innermost first) that no library owns, or None.

    Frames beyond the doctor's own are those of the code that called the doctor.
    """
    for filename, number, text in frames:
        if filename.startswith(_OURS):
            return None
        if not filename.startswith((*_library_folders(), "<frozen")) and "autograph_generated_file" not in filename:
            code = (text or linecache.getline(filename, number)).strip()
            return f"{os.path.basename(filename)}:{number}: {code}".removesuffix(": ")
    return None


def one_line(error: BaseException) -> str:
    """The line of a message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    if not lines:
        return type(error).__name__
    # An error raised while tracing ends with what was raised; one raised by a kernel begins with it.
    said = lines[-1] if "in user code" in str(error) else lines[0]
    if said.startswith("Exception encountered when calling") and len(lines) > 1:  # Keras puts that before the reason
        said = f"{said} {lines[1]}"
    said = re.sub(r"\s*\[Op:\w+\].*|\{\{[^}]*\}\}\s*| when trying to compile graph \S+ on \S+(?=:)", "", said)
    if len(said) > _LONGEST:
        whole = said[:_LONGEST].rpartition(". ")[0]
        said = f"{whole}." if whole else f"{said[:_LONGEST]}..."
    return said


@functools.cache
def _library_folders() -> tuple[str, ...]:
    specs = [importlib.util.find_spec(name) for name in _NOT_THE_USERS]
    found = [path for spec in specs if spec for path in spec.submodule_search_locations or ()]
    return tuple(os.path.abspath(path) + os.sep for path in found)
