"""gradients.json and gradients.png: what was measured of gradient estimators, as files, without TensorFlow."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from opselect.experiments.results import DamagedFileError, write_atomically
from opselect.report.plots import MARKERS

__all__ = ["GRADIENTS", "gradient_figure", "read_gradients", "write_gradients"]

GRADIENTS = "gradients.json"

_ROUNDING = 1e-9  # a variance so small beside the largest is rounding
_LABELS = {"operations": "operations K", "decisions": "decisions D, made at once", "temperature": "temperature"}


def write_gradients(out: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes gradients.json, ``{"rows": [...]}``, and gradients.png into the folder, each whole or not at all."""
    text = json.dumps({"rows": list(rows)}, indent=1, allow_nan=False) + "\n"
    write_atomically(out / GRADIENTS, lambda file: file.write(text.encode()))
    canvas = FigureCanvasAgg(gradient_figure(rows))
    write_atomically(out / "gradients.png", lambda file: canvas.print_png(file))


def read_gradients(path: pathlib.Path) -> list[dict[str, Any]]:
    """Reads what `write_gradients` wrote.

    Raises:
        DamagedFileError: the file is no such thing; the message names it.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        for row in rows:
            names = [row["problem"], row["estimator"]]
            for name, kind in ((row["vary"], str), (row["reason"], str), (row["biased"], bool)):
                if name is not None and not isinstance(name, kind):
                    raise TypeError(f"{name!r} is not a {kind.__name__}")
            figures = [row[key] for key in ("bias", "bias_se", "variance", "evaluations")]
            if row["reason"] is None and None not in figures and not np.isfinite(figures).all():
                raise ValueError("a figure is not finite")
            if not all(isinstance(name, str) for name in names):
                raise TypeError("names must be text")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DamagedFileError(f"{path} is not what `opselect gradients` writes ({error!r})") from error
    # Without figures there is nothing to draw.
    return [row for row in rows if row["reason"] is None and None not in (row["bias"], row["bias_se"], row["variance"])]


def gradient_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Variance against bias on each problem, and both against what was varied; logarithmic axes."""
    names = list(dict.fromkeys(row["estimator"] for row in rows))
    problems = list(dict.fromkeys(row["problem"] for row in rows if row["vary"] is None))
    varied = [what for what in _LABELS if any(row["vary"] == what for row in rows)]
    curves = [(what, measured) for what in varied for measured in ("variance", "bias")]
    columns = 3
    panels = len(problems) + len(curves)
    height = -(-panels // columns)
    figure = Figure(figsize=(5 * columns, 4 * height + 0.5 + 0.25 * (len(names) // 6)), layout="constrained", dpi=120)
    axes = np.atleast_1d(figure.subplots(height, columns, squeeze=False)).ravel()
    colours = [f"C{i % 10}" for i in range(len(names))]
    markers = [MARKERS[(i + i // 10) % len(MARKERS)] for i in range(len(names))]
    for ax, problem in zip(axes, problems, strict=False):
        _scatter(
            ax, [row for row in rows if row["problem"] == problem and row["vary"] is None], names, colours, markers
        )
        ax.set(title=problem, xlabel="bias (lighter: below what can be told from 0)", ylabel="variance")
    for ax, (what, measured) in zip(axes[len(problems) :], curves, strict=False):
        for i, name in enumerate(names):
            points = _line([r for r in rows if r["vary"] == what and r["estimator"] == name], measured)
            if points:
                ax.plot(*zip(*points, strict=True), marker=markers[i], color=colours[i], ms=4, lw=1)
        told = measured if measured == "variance" else "bias of those that have one"
        ax.set(title=f"{told} against {what}", xlabel=_LABELS[what], ylabel=measured, yscale="log")
        ax.set_xscale("linear" if what == "decisions" else "log", **({} if what == "decisions" else {"base": 2}))
    for ax in axes[panels:]:
        ax.set_axis_off()
    handles = [
        figure.axes[0].plot([], [], marker=m, color=c, ls="", label=n)[0]
        for n, c, m in zip(names, colours, markers, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _line(rows: Sequence[dict[str, Any]], measured: str) -> list[tuple[float, float]]:
    """What was measured of one estimator, where it is not 0: a logarithmic axis has no place for that."""
    known = [row for row in rows if row["reason"] is None and row[measured] is not None]
    if measured == "bias":  # else it would be the sampling error that is drawn
        return [(row["at"], row["bias"]) for row in known if row["biased"] and row["bias"] > 0]
    most = max((row["variance"] for row in known), default=0.0)
    return [(row["at"], row["variance"]) for row in known if row["variance"] > _ROUNDING * most]


def _scatter(ax: Any, rows: Sequence[dict[str, Any]], names: list[str], colours: list[str], markers: list[str]) -> None:
    """Variance against bias. A variance of 0 stands at the lower edge."""
    measured = [row for row in rows if row["reason"] is None and row["bias"] is not None]
    least = _ROUNDING * max((row["variance"] for row in measured), default=1.0)
    floor = 0.3 * min((row["variance"] for row in measured if row["variance"] > least), default=1.0)
    for row in measured:
        i = names.index(row["estimator"])
        ax.plot(
            max(row["bias"], row["bias_se"], 1e-7),
            row["variance"] if row["variance"] > least else floor,
            marker=markers[i],
            color=colours[i],
            ls="",
            alpha=1.0 if row["biased"] else 0.35,
        )
    ax.set(xscale="log", yscale="log")
    if any(row["variance"] <= least for row in measured):
        ax.axhline(floor, color="0.8", lw=0.8, zorder=0)
        ax.annotate(
            "variance 0", (0.98, floor), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8
        )
