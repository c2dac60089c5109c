"""What error messages suggest when a name is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = ["nearest"]


def nearest(name: Any, known: Iterable[str]) -> str:
    """The known name that is most like `name`, however unlike it is; `known` holds at least one."""
    return difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.0)[0]
