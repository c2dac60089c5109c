"""What a result was made with, for the report. Imports none of the packages it names."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pathlib
import platform

__all__ = ["machine", "versions"]

_PACKAGES = ("opselect", "tensorflow", "tensorflow-probability", "keras", "numpy", "scipy", "gymnasium")


def versions() -> dict[str, str]:
    """Versions by name: Python, the packages that decide a result, and the `machine`."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found | machine()


def machine() -> dict[str, str]:
    """What seconds depend on: the system, the processor with the cores that this process may use, and the memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": f"{_processor()}, {cores} core{'s' if cores > 1 else ''}",
    }
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not on Windows
        found["memory"] = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"
    return found


def _processor() -> str:
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # Linux alone has it
        pass
    return platform.processor() or "unknown processor"
