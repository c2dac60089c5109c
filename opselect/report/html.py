"""The comparison as one self-contained page that a stranger can read: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from opselect.experiments.results import RunResult, write_atomically
from opselect.report import plots
from opselect.report.page import chips, origin, page, score_cell, scrolled, with_minus_signs
from opselect.report.tables import DASH, best_rows, by_task, human, seconds
from opselect.report.verdict import describe, verdict

__all__ = ["render_report", "write_report"]

Row = Mapping[str, Any]
_ZOOM = 0.8
_PLANE = (
    "Each dot is a held-out episode: input x across, target y upwards (on an asinh axis: even near 0, logarithmic far"
    " from it)."
)


def write_report(
    path: str | os.PathLike[str],
    summary: Mapping[str, Sequence[Row]],
    results: Sequence[RunResult],
    command: str,
    versions: Mapping[str, str],
    problems: Sequence[str] = (),
) -> None:
    """Writes the page of `render_report`, whole or not at all."""
    page = render_report(summary, results, command, versions, problems)
    write_atomically(pathlib.Path(path), lambda file: file.write(page.encode()))


def render_report(
    summary: Mapping[str, Sequence[Row]],
    results: Sequence[RunResult],
    command: str,
    versions: Mapping[str, str],
    problems: Sequence[str] = (),
) -> str:
    """A comparison as an HTML page.

    Args:
        summary: from `opselect.comparison.summarise`.
        results: what was summarised.
        command: what reproduces the results.
        versions: name -> version of what computed them.
        problems: a sentence for each thing that went wrong.
    """
    rows = by_task(summary["rows"])
    learners = list(dict.fromkeys(row["learner"] for row in summary["rows"]))
    styles = {name: index for index, name in enumerate(learners)}
    of_task = {task: [r for r in results if r.task == task] for task in rows}
    runs = {task: some for task, some in of_task.items() if some}
    sections = [
        '<section><h2>In short</h2><div class="verdicts">',
        *(_verdict(task, some, of_task[task]) for task, some in rows.items()),
        "</div></section>",
        f"<section><h2>Figures</h2>{_table(rows)}{_columns()}</section>",
        _curves(runs, styles),
        *(_pictures(task, some, rows[task]) for task, some in runs.items()),
        _configuration(results),
        origin(command, versions),
    ]
    intro = (
        "<p>A network must choose one operation out of several. Each learner below trains the same network to choose,"
        " on the same tasks, with another estimate of the gradient that a choice does not have. A <b>score</b> of 0 is"
        " what choosing uniformly at random earns, 1 what an oracle earns.</p>"
    )
    return page("Which learner selects the right operation?", intro, sections, problems)


# --- sections ---------------------------------------------------------------------------------------------------------


def _verdict(task: str, rows: Sequence[Row], results: Sequence[RunResult]) -> str:
    about = describe(results[0].config.get("task")) if results else ""
    return (
        f'<article><h3>{escape(task)}</h3><p class="about">{escape(with_minus_signs(about))}</p>'
        f"<p>{escape(with_minus_signs(verdict(rows)))}</p></article>"
    )


def _table(rows: Mapping[str, Sequence[Row]]) -> str:
    heads = (
        "learner",
        "hard score",
        "soft score",
        "gap",
        "optimal",
        "evaluations",
        "steps to 0.95",
        "seconds",
        "seeds",
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = []
    for task, some in rows.items():
        best = best_rows(some)
        body.append(
            f'<tbody><tr><th scope="rowgroup" colspan="{len(heads)}" class="task"><span>{escape(task)}</span></th></tr>'
        )
        for index, row in enumerate(some):
            kind = ' class="best"' if index in best else ""
            cells = "".join(f"<td>{cell}</td>" for cell in _cells(row))
            body.append(f'<tr{kind}><th scope="row">{escape(row["learner"])}</th>{cells}</tr>')
        body.append("</tbody>")
    notes = [
        f"<li>{escape(row['learner'])} on {escape(row['task'])}: {escape(row['why_not'])}</li>"
        for some in rows.values()
        for row in some
        if "why_not" in row
    ]
    why = f'<div class="notes"><p>Why there are dashes:</p><ul>{"".join(notes)}</ul></div>' if notes else ""
    return (
        scrolled(f'<table class="figures"><thead><tr>{head}</tr></thead>{"".join(body)}</table>', "Figures")
        + f'<p class="notes">Bold: the best hard score of the task. Below each score: its 95% interval.</p>{why}'
    )


def _cells(row: Row) -> list[str]:
    if row["hard_score"]["iqm"] is None:
        return [DASH] * 7 + [str(row["seeds"]) if row["seeds"] else DASH]
    steps = row["steps_to_95"]
    return [
        score_cell(row["hard_score"]),
        score_cell(row["soft_score"]),
        score_cell(row["gap"], sign="+"),
        f"{100 * row['optimal_rate']:.1f}%",
        human(row["evaluations"]),
        "never" if steps is None else f"{steps:,g}" if steps < 1e6 else human(steps),
        seconds(row["seconds"]),
        str(row["seeds"]),
    ]


def _columns() -> str:
    meanings = {
        "hard score": "the policy made to decide: the operation with the highest probability, applied alone, on"
        " held-out episodes that are the same for all. This is what counts in use. 0 is uniform random, 1 the oracle.",
        "soft score": "what the learner trains: the mixture of all operations' values, or the sampled policy.",
        "gap": "soft minus hard, seed by seed. Far above 0, the learner does well by blending operations, not by"
        " choosing one; its training curve misleads. Below 0, its samples still explore.",
        "optimal": "the share of held-out episodes in which the hard policy loses nothing to the oracle.",
        "evaluations": "how often the reward function was evaluated in training, per seed: the fair measure of cost.",
        "steps to 0.95": "the first evaluated training step at which a seed's hard score reaches 0.95; the median over"
        " seeds, or never, if half of them or more do not.",
        "seconds": "wall time of all seeds together, compilation included, while the next learner compiles beside it.",
        "small print": "95% intervals: percentile bootstrap over seeds. With few seeds they are too narrow. Scores, gap"
        " and optimal are interquartile means over seeds: the best and the worst quarter are left out (rounded down, so"
        " one seed of 5 at each end).",
    }
    items = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in meanings.items())
    return f"<h3>What the columns mean</h3><dl>{items}</dl>"


def _curves(runs: Mapping[str, Sequence[RunResult]], styles: Mapping[str, int]) -> str:
    if not runs:
        return ""
    seen = {result.learner for some in runs.values() for result in some}
    blocks = []
    for task, some in runs.items():
        figures = [_figure(plots.learning_curves(some, styles), "The whole range")]
        if max(float(np.max(result.hard)) for result in some) > _ZOOM + 0.02:
            close = plots.learning_curves(some, styles, low=_ZOOM)
            figures.append(_figure(close, f"Its upper end: the score axis begins at {_ZOOM}"))
        blocks.append(f'<h3>{escape(task)}</h3><div class="pair">{"".join(figures)}</div>')
    return (
        f"<section><h2>Learning curves</h2>{chips({name: index for name, index in styles.items() if name in seen})}"
        "<p>Solid: hard score, with a band from the worst seed to the best. Dashed: soft score. Lines are interquartile"
        f" means over seeds. The dotted line is at 0.95.</p>{''.join(blocks)}</section>"
    )


def _pictures(task: str, results: Sequence[RunResult], rows: Sequence[Row]) -> str:
    """What the first seed of each learner chose."""
    kind = plots.picture_kind(results[0])
    seeds = sorted({result.seeds[0] for result in results})
    whose = f"one trained policy per learner, of seed {seeds[0]}" if len(seeds) == 1 else "the first seed's policy each"
    if kind == "strips":
        colours = plots.operation_colours(results)
        figures = "".join(
            f'<div class="{name}">{plots.choice_strips(results, colours, width=width)}</div>'
            for name, width in (("wide", 1040), ("narrow", 350))
        )
        text = (
            f"Along x: the operation that the hidden rule asks for, and what each learner picks ({whose})."
            " Marks below a strip show where its choice costs reward."
        )
        body = f"{_operation_legend(colours)}{figures}"
    elif kind == "choices":
        colours, limits = plots.operation_colours(results), plots.plane_limits(results)
        figures = [
            _figure(plots.choice_plane(results[0], colours, limits, right=True), "<b>the right operation</b><br>&nbsp;")
        ]
        for result in results:
            share = 100 * float(np.mean(~plots.on_target(result.picture)))
            note = f"<b>{escape(result.learner)}</b><br>{share:.1f}% wrong"
            figures.append(_figure(plots.choice_plane(result, colours, limits), note))
        text = (
            f"{_PLANE} Its colour is the operation picked ({whose}); a cross is a choice that costs reward. Where"
            " several operations reach the target, any of them is right."
        )
        body = f'{_operation_legend(colours)}<div class="grid">{"".join(figures)}</div>'
    else:
        limits = plots.plane_limits(results)
        figures = []
        for result in results:
            share = 100 * float(np.mean(plots.on_target(result.picture)))
            note = f"<b>{escape(result.learner)}</b><br>{share:.1f}% on target"
            figures.append(_figure(plots.reward_plane(result, limits), note))
        text = f"{_PLANE} Its colour is the reward reached ({whose}); 1 is exactly on target."
        stops = ", ".join(plots.REWARD_COLOURS)
        scale = f'<p class="scale">reward 0 <i style="background: linear-gradient(90deg, {stops})"></i> 1</p>'
        body = f'{scale}<div class="grid">{"".join(figures)}</div>'
    return f"<section><h2>What was chosen: {escape(task)}</h2><p>{text}</p>{body}</section>"


def _operation_legend(colours: Mapping[str, str]) -> str:
    items = "".join(f'<li><i style="background: {c}"></i> {escape(name)}</li>' for name, c in colours.items())
    return f'<ul class="legend">{items}</ul>'


def _figure(svg: str, caption: str) -> str:
    return f"<figure><figcaption>{caption}</figcaption>{svg}</figure>"


def _configuration(results: Sequence[RunResult]) -> str:
    """All settings, each said once: for all runs, for a task, for a learner, or for one run."""
    if not results:
        return ""
    flat = {(r.task, r.learner): _flatten(r.config) for r in results}
    everywhere = _shared(flat.values())
    parts = [_settings("All runs", everywhere)]
    said = {cell: dict(everywhere) for cell in flat}
    for place in (0, 1):
        for name in dict.fromkeys(cell[place] for cell in flat):
            cells = [cell for cell in flat if cell[place] == name]
            common = _shared({k: v for k, v in flat[cell].items() if k not in said[cell]} for cell in cells)
            # What one learner has on its only task belongs to the learner, not to the task.
            if place == 0 and len(cells) == 1:
                common = {k: v for k, v in common.items() if k.startswith(("task.", "name"))}
            parts.append(_settings(name, common))
            for cell in cells:
                said[cell] |= common
    for cell, settings in flat.items():
        rest = {k: v for k, v in settings.items() if k not in said[cell]}
        parts.append(_settings(" on ".join(reversed(cell)), rest))
    return f"<section><h2>Configuration</h2>{''.join(parts)}</section>"


def _settings(title: str, settings: Mapping[str, Any]) -> str:
    if not settings:
        return ""
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(_value(value))}</td></tr>'
        for name, value in settings.items()
    )
    return f'<details><summary>{escape(title)}</summary><div class="scroll"><table>{lines}</table></div></details>'


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _shared(settings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = settings
    return {k: v for k, v in first.items() if all(k in other and other[k] == v for other in others)}


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
