"""Learning curves, and pictures of what was chosen where, as SVG for an HTML page.

The figures are drawn with matplotlib's object-oriented interface. Lines and text take their colours from CSS variables,
so one figure serves a light and a dark page, and text stays text, in the page's font. Shapes: R seeds, E evaluations,
N held-out episodes, T decisions.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from opselect.comparison import THRESHOLD, iqm
from opselect.experiments.results import Picture, RunResult
from opselect.report.tables import human
from opselect_envs.tasks import OPTIMAL_REGRET

__all__ = [
    "MARKERS",
    "REWARD_COLOURS",
    "choice_plane",
    "choice_strips",
    "css_variables",
    "discretisation_gaps",
    "efficiency_curves",
    "gradient_scatter",
    "improvements",
    "learning_curves",
    "line_style",
    "on_target",
    "operation_colours",
    "picture_kind",
    "plane_limits",
    "profiles",
    "radar",
    "reward_plane",
]

# Petroff (2021), "Accessible color sequences for data visualization": made to be told apart with any colour vision.
_COLOURS = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#92dadd",
)
# The same hues for thin lines: darker on white where they are faint, lighter on black where they are dark.
_LINES_LIGHT = (
    "#2f7fc9", "#d98a00", "#bd1f01", "#6f8280", "#832db6", "#8f5443", "#d45a00", "#8d7f3c", "#555a66", "#2aa3a8",
)  # fmt: skip
_LINES_DARK = (
    "#5aa6ea", "#ffb834", "#f0604a", "#a9b8b6", "#bb7be6", "#c98c79", "#ff8a3c", "#cfc489", "#9aa0ae", "#92dadd",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
"""Learners differ by marker as well as by colour, in this order."""

REWARD_COLOURS = ("#bd1f01", "#ee7d2b", "#c6b88e", "#7fb2dd", "#3f90da")
"""Of rewards evenly spaced from 0 to 1: red to blue, which any colour vision tells apart, on white and on black."""

_MAX_POINTS = 2048
_DENSITY = 144  # pixels per inch of rasterised dots, in a figure laid out at 72: twice as fine
# Placeholder colours that no figure uses otherwise; they become CSS variables in the finished SVG.
_INK, _MUTED, _GRID = "#010203", "#010204", "#010205"
_PLACEHOLDERS = {_INK: "var(--ink)", _MUTED: "var(--muted)", _GRID: "var(--grid)"} | {
    f"#0102{16 + index:02x}": f"var(--line-{index})" for index in range(len(_COLOURS))
}


def line_style(index: int) -> tuple[int, int]:
    """Which colour and which marker the learner with this index has; a hundred differ in one of them."""
    return index % len(_COLOURS), (index + index // len(_COLOURS)) % len(MARKERS)


def _colour(index: int) -> str:
    return f"#0102{16 + line_style(index)[0]:02x}"


def _marker(index: int) -> str:
    return MARKERS[line_style(index)[1]]


def css_variables(dark: bool) -> str:
    """The CSS variables of the learners' lines; the page also defines --ink, --muted and --grid."""
    return " ".join(f"--line-{i}: {c};" for i, c in enumerate(_LINES_DARK if dark else _LINES_LIGHT))


def operation_colours(results: Sequence[RunResult]) -> dict[str, str]:
    """A colour per operation that is right or chosen anywhere in the results of one task, in catalogue order."""
    names = results[0].operations
    used = np.unique(np.concatenate([np.ravel(a) for r in results for a in (r.picture.right, r.picture.choice)]))
    return {names[index]: _shade(place) for place, index in enumerate(used)}


def _shade(place: int) -> str:
    """Ten hues, then the same ten lighter, then darker."""
    rgb = np.array([int(_COLOURS[place % 10][i : i + 2], 16) for i in (1, 3, 5)])
    towards = (0.0, 255.0, 0.0)[place // 10 % 3]
    mixed = rgb if place < 10 else np.rint(0.45 * rgb + 0.55 * towards).astype(int)
    return "#" + "".join(f"{c:02x}" for c in mixed)


def picture_kind(result: RunResult) -> Literal["strips", "choices", "rewards"]:
    """How a task is pictured: strips along x where the target is hidden, else the (x, y) plane."""
    if result.picture.choice.shape[1] > 1:
        return "rewards"
    task = result.config.get("task")
    return "choices" if isinstance(task, Mapping) and task.get("goal") else "strips"


def on_target(picture: Picture) -> np.ndarray:
    """[N] bool: episodes whose choices cost nothing, whether or not they are the ones listed as right."""
    return np.asarray(picture.reward) >= 1.0 - OPTIMAL_REGRET


# --- learning curves --------------------------------------------------------------------------------------------------


def learning_curves(
    results: Sequence[RunResult], styles: Mapping[str, int], *, low: float | None = None, width: int = 430
) -> str:
    """Scores over training steps: IQM over seeds, hard solid with a band from the worst to the best seed, soft dashed.

    Args:
        results: of one task.
        styles: learner -> index of its colour and marker.
        low: where the score axis begins, for a view of its upper end; None shows all there is.
        width: in CSS pixels.

    Returns:
        An SVG element.
    """
    figure, axes = _canvas(width, 290, left=44, right=10, top=10, bottom=38)
    bottom = 0.0
    for result in results:
        index = styles[result.learner]
        colour = _colour(index)
        step, hard, soft = np.asarray(result.step), np.asarray(result.hard), np.asarray(result.soft)
        axes.fill_between(step, hard.min(0), hard.max(0), color=colour, alpha=0.15, linewidth=0)
        axes.plot(step, iqm(soft, axis=0), color=colour, linewidth=1.1, linestyle=(0, (3.5, 2.2)), zorder=2.5)
        axes.plot(
            step, iqm(hard, axis=0), color=colour, linewidth=1.7, marker=_marker(index), markersize=5,
            markevery=_marked(len(step), index, len(styles)), zorder=3,
        )  # fmt: skip
        bottom = min(bottom, float(hard.min()), float(soft.min()))
    top = max([1.0, *(float(np.max(a)) for r in results for a in (r.hard, r.soft))])
    bottom = bottom if low is None else low
    margin = 0.03 * (top - bottom)
    axes.set_ylim(bottom - (margin if low is None else 0), top + margin)
    axes.axhline(THRESHOLD, color=_INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=2)
    if low is None:  # the closer view has a tick there
        axes.annotate(
        f"{THRESHOLD:g}", (0, THRESHOLD), xycoords=("axes fraction", "data"), xytext=(4, -3),
        textcoords="offset points", va="top", color=_MUTED, fontsize=10,
    )  # fmt: skip
    last = max(int(r.step[-1]) for r in results)
    axes.set_xlim(0, last * 1.02 if last else 1)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: human(v)))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_xlabel("training steps", color=_MUTED, fontsize=11)
    axes.set_ylabel("score", color=_MUTED, fontsize=11)
    names = ", ".join(r.learner for r in results)
    return _svg(figure, f"Score over training steps, from {axes.get_ylim()[0]:.2f} to {top:.2f}, of {names}")


def _marked(count: int, index: int, learners: int) -> list[int]:
    """Which of so many points carry a marker: a few, at places that differ between learners, and the last."""
    stride = max(1, count // 4)
    offset = min(count - 1, index * stride // max(1, learners))
    return sorted({*range(offset, count, stride), count - 1})


# --- across tasks -----------------------------------------------------------------------------------------------------


def profiles(rows: Sequence[Mapping[str, Any]], styles: Mapping[str, int], *, width: int = 430) -> str:
    """Performance profiles: the share of runs above each score, with its band.

    Args:
        rows: "profiles" of one scope, from `opselect.comparison.summarise`.
        styles: learner -> index of its colour and marker.
        width: in CSS pixels.

    Returns:
        An SVG element.
    """
    figure, axes = _canvas(width, 290, left=44, right=10, top=10, bottom=38)
    for row in rows:
        index, tau = styles[row["learner"]], row["tau"]
        axes.fill_between(tau, row["low"], row["high"], color=_colour(index), alpha=0.15, linewidth=0, step="post")
        axes.plot(
            tau, row["value"], color=_colour(index), linewidth=1.6, drawstyle="steps-post", marker=_marker(index),
            markersize=5, markevery=_marked(len(tau), index, len(styles)), zorder=3,
        )  # fmt: skip
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.03, 1.03)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_xlabel("hard score \N{GREEK SMALL LETTER TAU}", color=_MUTED, fontsize=11)
    axes.set_ylabel("share of runs above it", color=_MUTED, fontsize=11)
    return _svg(figure, f"Share of runs above each score, of {', '.join(row['learner'] for row in rows)}")


def efficiency_curves(
    rows: Sequence[Mapping[str, Any]], styles: Mapping[str, int], label: str, *, width: int = 430
) -> str:
    """The IQM over tasks against what was spent, on a logarithmic axis, with its band.

    Args:
        rows: "efficiency" of one scope and kind, from `opselect.comparison.summarise`.
        styles: learner -> index of its colour and marker.
        label: of what was spent.
        width: in CSS pixels.

    Returns:
        An SVG element.
    """
    figure, axes = _canvas(width, 290, left=44, right=14, top=10, bottom=38)
    bottom, top = 0.0, 1.0
    for row in rows:
        index, at = styles[row["learner"]], np.asarray(row["at"], np.float64)
        axes.fill_between(at, row["low"], row["high"], color=_colour(index), alpha=0.15, linewidth=0)
        axes.plot(
            at, row["iqm"], color=_colour(index), linewidth=1.7, marker=_marker(index), markersize=5,
            markevery=_marked(len(at), index, len(styles)), zorder=3,
        )  # fmt: skip
        bottom, top = min(bottom, *row["low"]), max(top, *row["high"])
    axes.set_ylim(bottom - 0.03 * (top - bottom), top + 0.03 * (top - bottom))
    first, last = min(row["at"][0] for row in rows), max(row["at"][-1] for row in rows)
    axes.set_xscale("log")
    axes.set_xlim(first / 1.05, last * 1.05)
    axes.xaxis.set_major_locator(FixedLocator(_round_numbers(first, last)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: human(v)))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_xlabel(label, color=_MUTED, fontsize=11)
    axes.set_ylabel("hard score, IQM over tasks", color=_MUTED, fontsize=11)
    return _svg(figure, f"Hard score over {label}, of {', '.join(row['learner'] for row in rows)}")


def _round_numbers(low: float, high: float) -> list[float]:
    """A few of 1, 2, 5, 10, 20, ... that lie in a range."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        marks = [m * 10.0**p for p in powers for m in mantissas if low / 1.05 <= m * 10.0**p <= high * 1.05]
        if len(marks) <= 7:
            break
    return marks if len(marks) > 1 else [low, high]  # type: ignore[possibly-undefined]


def _a_line_each(axes: Any, names: Sequence[str]) -> None:
    """Names down the left side, from the top, and no axis there."""
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.tick_params(axis="y", length=0, labelcolor=_INK)
    axes.spines["left"].set_visible(False)
    axes.grid(color=_GRID, linewidth=0.8, axis="x")


def improvements(pairs: Sequence[Mapping[str, Any]], styles: Mapping[str, int], *, width: int = 430) -> str:
    """P(X > Y) of one learner X against each of the others, a line each, with its interval.

    Args:
        pairs: of `opselect.comparison.summarise`, all seen from the same X.
        styles: learner -> index of its colour and marker.
        width: in CSS pixels.

    Returns:
        An SVG element.
    """
    left = 12 + 7 * max(len(pair["y"]) for pair in pairs)
    figure, axes = _canvas(width, 56 + 24 * len(pairs), left=min(left, width // 2), right=14, top=8, bottom=40)
    for place, pair in enumerate(pairs):
        chance, index = pair["probability"], styles[pair["y"]]
        axes.plot([chance["low"], chance["high"]], [place, place], color=_colour(index), linewidth=2.2)
        axes.plot(chance["value"], place, color=_colour(index), marker=_marker(index), markersize=7, clip_on=False)
    axes.axvline(0.5, color=_INK, linewidth=0.9, linestyle=(0, (1, 2)))
    axes.set_xlim(0, 1)
    _a_line_each(axes, [pair["y"] for pair in pairs])
    x = pairs[0]["x"]
    axes.set_xlabel(f"P({x} scores higher)", color=_MUTED, fontsize=11, parse_math=False)
    told = ", ".join(f"{pair['y']} {pair['probability']['value']:.2f}" for pair in pairs)
    return _svg(figure, f"How probable it is that a run of {x} scores higher than one of each other learner: {told}")


def discretisation_gaps(rows: Sequence[Mapping[str, Any]], styles: Mapping[str, int], *, width: int = 430) -> str:
    """From the soft score, hollow, to the hard score, filled, with the hard score's interval; a line per learner.

    Args:
        rows: of one task, from `opselect.comparison.summarise`, those with scores.
        styles: learner -> index of its colour and marker.
        width: in CSS pixels.

    Returns:
        An SVG element.
    """
    left = 12 + 7 * max(len(row["learner"]) for row in rows)
    figure, axes = _canvas(width, 52 + 24 * len(rows), left=min(left, width // 2), right=14, top=8, bottom=36)
    for place, row in enumerate(rows):
        index, hard, soft = styles[row["learner"]], row["hard_score"], row["soft_score"]["iqm"]
        colour = _colour(index)
        axes.plot([hard["low"], hard["high"]], [place, place], color=colour, linewidth=5, alpha=0.3)
        axes.plot([soft, hard["iqm"]], [place, place], color=colour, linewidth=1.4)
        axes.plot(soft, place, color=colour, marker="o", markersize=7, fillstyle="none", clip_on=False)
        axes.plot(hard["iqm"], place, color=colour, marker="o", markersize=6, clip_on=False, zorder=3)
    low = min([0.0, *(min(row["hard_score"]["low"], row["soft_score"]["iqm"]) for row in rows)])
    axes.set_xlim(low, max([1.0, *(max(row["hard_score"]["high"], row["soft_score"]["iqm"]) for row in rows)]))
    _a_line_each(axes, [row["learner"] for row in rows])
    axes.set_xlabel("score", color=_MUTED, fontsize=11)
    told = "; ".join(
        f"{row['learner']} {row['soft_score']['iqm']:.2f} to {row['hard_score']['iqm']:.2f}" for row in rows
    )
    return _svg(figure, f"Soft score and hard score: {told}")


def gradient_scatter(rows: Sequence[Mapping[str, Any]], styles: Mapping[str, int], *, width: int = 430) -> str:
    """Variance against bias of gradient estimators on one problem, logarithmic; faint where no bias was found.

    Args:
        rows: of one problem, of gradients.json, with figures; an unbiased estimator stands at what its bias could be.
        styles: estimator -> index of its colour and marker.
        width: in CSS pixels.

    Returns:
        An SVG element.
    """
    figure, axes = _canvas(width, 290, left=58, right=14, top=10, bottom=38)
    least = 1e-9 * max(row["variance"] for row in rows)  # so small a variance beside the largest is rounding
    floor = 0.3 * min((row["variance"] for row in rows if row["variance"] > least), default=1.0)
    for row in rows:
        index = styles[row["estimator"]]
        axes.plot(
            max(row["bias"], row["bias_se"], 1e-7), row["variance"] if row["variance"] > least else floor,
            marker=_marker(index), color=_colour(index), linestyle="", markersize=7, alpha=1 if row["biased"] else 0.45,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log")
    if any(row["variance"] <= least for row in rows):
        axes.axhline(floor, color=_GRID, linewidth=0.9, zorder=0)
        axes.annotate(
            "variance 0", (1, floor), xycoords=("axes fraction", "data"), xytext=(-2, 8), textcoords="offset points",
            ha="right", color=_MUTED, fontsize=10,
        )  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_xlabel("bias", color=_MUTED, fontsize=11)
    axes.set_ylabel("variance", color=_MUTED, fontsize=11)
    return _svg(figure, f"Variance against bias of {', '.join(row['estimator'] for row in rows)}")


# --- the capability suite ---------------------------------------------------------------------------------------------


def radar(axes_names: Sequence[str], scores: Mapping[str, Sequence[float | None]], styles: Mapping[str, int]) -> str:
    """Scores from 0 in the middle to 1 at the rim, an axis of the suite per spoke.

    Args:
        axes_names: the spokes.
        scores: learner -> a score per spoke, None where there is none.
        styles: learner -> index of its colour and marker.

    Returns:
        An SVG element.
    """
    size = 420
    figure = Figure(figsize=(size / 72, size / 72), dpi=72)
    FigureCanvasSVG(figure)
    axes = figure.add_axes((0.16, 0.14, 0.68, 0.72), projection="polar")
    axes.patch.set_alpha(0)
    angles = np.linspace(0, 2 * np.pi, len(axes_names), endpoint=False)
    for name, values in scores.items():
        index = styles[name]
        colour = _colour(index)
        radii = np.array([np.nan if v is None else v for v in values], float)
        axes.plot(
            np.append(angles, angles[0]), np.append(radii, radii[0]), color=colour, linewidth=1.6,
            marker=_marker(index), markersize=5, clip_on=False, zorder=3,
        )  # fmt: skip
    axes.set_theta_offset(np.pi / 2)  # type: ignore[attr-defined]
    axes.set_theta_direction(-1)  # type: ignore[attr-defined]
    axes.set_ylim(0, 1)
    axes.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "0.5", "", "1"], color=_MUTED, fontsize=9)
    axes.set_xticks(angles, axes_names, color=_INK, fontsize=11)
    axes.tick_params(axis="x", pad=12)
    axes.set_rlabel_position(180 / len(axes_names))  # type: ignore[attr-defined]  # between two spokes
    axes.grid(color=_GRID, linewidth=0.8)
    axes.spines["polar"].set_color(_GRID)
    told = "; ".join(
        f"{name}: " + ", ".join(f"{a} {v:.2f}" for a, v in zip(axes_names, values, strict=True) if v is not None)
        for name, values in scores.items()
    )
    return _svg(figure, f"Mean score per axis. {told}")


# --- one decision, hidden target: strips along x ----------------------------------------------------------------------


def choice_strips(results: Sequence[RunResult], colours: Mapping[str, str], *, width: int) -> str:
    """Strips along x: the right operation, then what each learner picks, with marks below wherever that costs reward.

    Args:
        results: of one task of one decision.
        colours: of the operations, see `operation_colours`.
        width: in CSS pixels.

    Returns:
        An SVG element.
    """
    names, first = results[0].operations, results[0].picture
    row, head, foot, left, right = 44, 66, 34, 8, 8
    height = head + row * len(results) + foot
    figure, axes = _canvas(width, height, left=left, right=right, top=0, bottom=foot)
    low, high = _input_range(results)
    axes.set_xlim(low, high)
    axes.set_ylim(foot - height, 0)  # one unit is one pixel, so the layout below is in pixels from the top
    per_x = (width - left - right) / (high - low)

    axes.text(low, -4, "the right operation", va="top", fontsize=12, fontweight="bold", color=_INK)
    runs = _draw_runs(axes, first.x, first.right[:, 0], names, colours, top=21, height=32, span=(low, high))
    for start, end, index in runs:
        name = names[index]
        pixels = (end - start) * per_x
        upright = 6.6 * len(name) + 4 > pixels
        if pixels < 11 or (upright and 6.6 * len(name) > 40):
            continue  # the legend names it
        axes.text(
            (start + end) / 2, -37, name, ha="center", va="center", rotation=90 if upright else 0,
            rotation_mode="anchor", fontsize=9 if upright else 11, color=_readable_on(colours[name]),
            parse_math=False,
        )  # fmt: skip
    for place, result in enumerate(results):
        top, picture = head + row * place, result.picture
        correct = on_target(picture)
        axes.text(low, -top - 1, result.learner, va="top", fontsize=12, color=_INK, parse_math=False)
        share = 100 * float(np.mean(~correct))
        note = "all right" if share == 0 else f"{share:.1f}% wrong"
        axes.text(high, -top - 1, note, va="top", ha="right", fontsize=12, color=_MUTED)
        _draw_runs(axes, picture.x, picture.choice[:, 0], names, colours, top=top + 17, height=14, span=(low, high))
        wrong = [(a, b) for a, b, is_wrong in _runs(picture.x, ~correct, (low, high)) if is_wrong]
        axes.broken_barh([(a, max(b - a, 1.0 / per_x)) for a, b in wrong], (-top - 37, 5), facecolors=_INK, linewidth=0)
    axes.set_yticks([])
    axes.set_xlabel("x", color=_MUTED, fontsize=11, labelpad=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(7))
    return _svg(
        figure, f"The right operation along x, and the choices of {', '.join(r.learner for r in results)}", True
    )


def _draw_runs(
    axes: Axes,
    x: np.ndarray,
    values: np.ndarray,
    names: Sequence[str],
    colours: Mapping[str, str],
    *,
    top: float,
    height: float,
    span: tuple[float, float],
) -> list[tuple[float, float, int]]:
    """Draws a strip and returns its runs."""
    runs = _runs(x, values, span)
    axes.broken_barh(
        [(start, end - start) for start, end, _ in runs],
        (-top - height, height),
        facecolors=[colours[names[index]] for _, _, index in runs],
        linewidth=0,
    )
    return runs


def _runs(x: np.ndarray, values: np.ndarray, span: tuple[float, float]) -> list[tuple[float, float, int]]:
    """(start, end, value) of the stretches of x [N] with equal values [N], meeting halfway between neighbours."""
    order = np.argsort(x, kind="stable")
    x, values = np.asarray(x, np.float64)[order], np.asarray(values)[order]
    changes = np.flatnonzero(values[1:] != values[:-1])
    borders = [span[0], *((x[changes] + x[changes + 1]) / 2), span[1]]
    return list(zip(borders[:-1], borders[1:], values[[0, *(changes + 1)]].tolist(), strict=True))


def _input_range(results: Sequence[RunResult]) -> tuple[float, float]:
    task, x = results[0].config.get("task"), results[0].picture.x
    if isinstance(task, Mapping) and "low" in task and "high" in task:
        return float(task["low"]), float(task["high"])
    return float(x.min()), float(x.max())


# --- the (x, y) plane -------------------------------------------------------------------------------------------------


def choice_plane(
    result: RunResult, colours: Mapping[str, str], limits: tuple[float, float], *, right: bool = False, width: int = 195
) -> str:
    """Episodes in the (x, y) plane, coloured by the operation: dots, and crosses where the choice costs reward.

    Args:
        result: of a task of one decision whose target is shown.
        colours: of the operations, see `operation_colours`.
        limits: of y.
        right: draw the right operations in place of the learner's.
        width: in CSS pixels.

    Returns:
        An SVG element.
    """
    picture, shown = result.picture, _evenly(len(result.picture.x))
    operation = (picture.right if right else picture.choice)[shown, 0]
    correct = np.ones(len(operation), bool) if right else on_target(picture)[shown]
    figure, axes = _plane(result, limits, width)
    face = np.array([colours[result.operations[index]] for index in operation])
    x, y = picture.x[shown], picture.target[shown]
    axes.scatter(x[correct], y[correct], s=5, c=face[correct], linewidths=0, rasterized=True)
    axes.scatter(x[~correct], y[~correct], s=18, c=face[~correct], marker="x", linewidths=1.2, rasterized=True)
    what = "The right operation" if right else f"What {result.learner} picks"
    return _svg(figure, f"{what} for input x and target y")


def reward_plane(result: RunResult, limits: tuple[float, float], *, width: int = 195) -> str:
    """Episodes of a chain in the (x, y) plane, coloured by the reward that the learner reached.

    Args:
        result: of a task of several decisions.
        limits: of y.
        width: in CSS pixels.

    Returns:
        An SVG element.
    """
    picture, shown = result.picture, _evenly(len(result.picture.x))
    shown = shown[np.argsort(-picture.reward[shown], kind="stable")]  # failures last, so on top
    figure, axes = _plane(result, limits, width)
    table = LinearSegmentedColormap.from_list("reward", REWARD_COLOURS)
    axes.scatter(
        picture.x[shown], picture.target[shown], s=6, c=picture.reward[shown], cmap=table, vmin=0, vmax=1,
        linewidths=0, rasterized=True,
    )  # fmt: skip
    return _svg(figure, f"The reward that {result.learner} reaches from input x to target y")


def plane_limits(results: Sequence[RunResult]) -> tuple[float, float]:
    """The range of y that the planes of one task share."""
    y = results[0].picture.target
    return float(y.min()), float(y.max())


def _plane(result: RunResult, limits: tuple[float, float], width: int) -> tuple[Figure, Axes]:
    figure, axes = _canvas(width, width, left=33, right=11, top=20, bottom=32)
    low, high = _input_range([result])
    axes.set_xlim(low, high)
    ends = np.arcsinh(limits)
    margin = max(0.03 * (ends[1] - ends[0]), 0.05)
    ends = np.sinh([ends[0] - margin, ends[1] + margin])
    axes.set_yscale("asinh", linear_width=1.0)
    axes.set_ylim(*ends)
    wide = max(abs(ends)) > 30
    marks = np.array([0, 1, 10, 100, 1000, 10**4, 10**6] if wide else [0, 1, 3, 10, 30])
    marks = np.unique(np.concatenate([-marks, marks]))
    axes.yaxis.set_major_locator(FixedLocator([float(m) for m in marks if ends[0] <= m <= ends[1]]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: human(v).replace("-", "\N{MINUS SIGN}")))
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 3, 5, 10]))
    axes.set_xlabel("x", color=_MUTED, fontsize=11, labelpad=0)
    axes.text(0, 1.03, "y", color=_MUTED, fontsize=11, ha="center", va="baseline", transform=axes.transAxes)
    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    return figure, axes


def _evenly(count: int) -> np.ndarray:
    """Indices [<= _MAX_POINTS] spread over `count` episodes."""
    return np.unique(np.linspace(0, count - 1, min(count, _MAX_POINTS)).astype(int))


# --- drawing ----------------------------------------------------------------------------------------------------------


def _canvas(width: int, height: int, *, left: int, right: int, top: int, bottom: int) -> tuple[Figure, Axes]:
    """A figure of so many CSS pixels with one pair of axes at these margins."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    FigureCanvasSVG(figure)
    box = (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    axes = figure.add_axes(box)
    axes.patch.set_alpha(0)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(_MUTED)
        spine.set_linewidth(0.8)
    axes.tick_params(colors=_MUTED, labelsize=10.5, length=3, width=0.8)
    return figure, axes


def _readable_on(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    luminance = sum(w * c**2.2 for w, c in zip((0.2126, 0.7152, 0.0722), (red, green, blue), strict=True))
    return "#ffffff" if luminance < 0.2 else "#101010"


def _svg(figure: Figure, label: str, crisp: bool = False) -> str:
    """The figure as one SVG element to stand inside an HTML page: no prolog, no names of its own, no outside links."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "opselect"}):
        figure.savefig(buffer, format="svg", dpi=_DENSITY, transparent=True, metadata={"Date": None})
    text = buffer.getvalue().decode()
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    _, _, width, height = re.search(r'viewBox="([^"]+)"', body).group(1).split()  # type: ignore[union-attr]
    body = body[body.index(">") + 1 : body.rindex("</svg>")]
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)  # it would style the whole page
    # Ids would clash between the figures of a page.
    prefix = "f" + hashlib.sha256(body.encode()).hexdigest()[:8]
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'href="#', f'href="#{prefix}-', body)
    body = body.replace("url(#", f"url(#{prefix}-")
    for placeholder, variable in _PLACEHOLDERS.items():
        body = body.replace(placeholder, variable)
    title = label.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    sharp = ' shape-rendering="crispEdges"' if crisp else ""
    size = f'viewBox="0 0 {width} {height}" style="max-width: {2 * float(width):g}px"'
    return f'<svg {size} role="img" stroke-linejoin="round" aria-label="{title}"{sharp}>{body}</svg>'
