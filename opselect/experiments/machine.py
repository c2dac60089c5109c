"""What a result was made with, for the report. Imports none of the packages it names."""

from __future__ import annotations

import importlib.metadata
import os
import platform

__all__ = ["versions"]

_PACKAGES = ("opselect", "tensorflow", "tensorflow-probability", "keras", "numpy", "scipy", "gymnasium")


def versions() -> dict[str, str]:
    """Versions by name: Python, the packages that decide a result, and the machine's kind."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found | {"machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"}
