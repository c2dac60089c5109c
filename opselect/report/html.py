"""The comparison as one self-contained page that a stranger can read: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from opselect.comparison import MIN_SEEDS
from opselect.experiments.results import RunResult, write_atomically
from opselect.report import plots
from opselect.report.aggregate import across_tasks
from opselect.report.page import (
    Origin,
    chips,
    details,
    figure,
    meanings_of,
    origins,
    page,
    score_cell,
    scrolled,
    with_minus_signs,
)
from opselect.report.tables import DASH, best_rows, by_task, human, seconds
from opselect.report.verdict import P_MEANS, across, describe, verdict

__all__ = ["render_report", "write_report"]

Row = Mapping[str, Any]
Summary = Mapping[str, Any]
_ZOOM = 0.8
_PLANE = (
    "Each dot is a held-out episode: input x across, target y upwards (on an asinh axis: even near 0, logarithmic far"
    " from it)."
)


def write_report(path: str | os.PathLike[str], *arguments: Any, **more: Any) -> None:
    """Writes the page of `render_report`, whole or not at all."""
    text = render_report(*arguments, **more)
    write_atomically(pathlib.Path(path), lambda file: file.write(text.encode()))


def render_report(
    summary: Summary,
    results: Sequence[RunResult],
    sources: Sequence[Origin],
    problems: Sequence[str] = (),
    *,
    gradients: Sequence[Row] = (),
    notes: Sequence[str] = (),
    merged_by: str = "",
) -> str:
    """A comparison as an HTML page.

    Args:
        summary: from `opselect.comparison.summarise`.
        results: what was summarised.
        sources: what reproduces the results, and with which versions on which machine.
        problems: a sentence for each thing that went wrong.
        gradients: rows of a gradients.json, see `opselect.report.gradients.read_gradients`.
        notes: sentences about where the results come from.
        merged_by: the command that put several sources together.
    """
    rows = by_task(summary["rows"])
    learners = list(dict.fromkeys(row["learner"] for row in summary["rows"]))
    styles = {name: index for index, name in enumerate(learners)}
    of_task = {task: [r for r in results if r.task == task] for task in rows}
    finite = {task: [r for r in some if np.isfinite([r.hard, r.soft]).all()] for task, some in of_task.items()}
    runs = {task: some for task, some in finite.items() if some}
    sections = [
        _in_short(summary, rows, of_task),
        f"<section><h2>Figures</h2>{_table(rows)}{_columns()}</section>",
        across_tasks(summary, styles),
        _curves(runs, styles),
        _gaps(rows, styles),
        *(_pictures(task, some) for task, some in runs.items()),
        _gradients(gradients, styles),
        _configuration(results),
        origins(sources, notes, merged_by),
    ]
    intro = (
        "<p>A network must choose one operation out of several. Each learner below trains the same network to choose,"
        " on the same tasks, with another estimate of the gradient that a choice does not have. A <b>score</b> of 0 is"
        " what choosing uniformly at random earns, 1 what an oracle earns.</p>"
    )
    return page("Which learner selects the right operation?", intro, sections, problems)


# --- sections ---------------------------------------------------------------------------------------------------------


def _in_short(summary: Summary, rows: Mapping[str, Sequence[Row]], results: Mapping[str, Sequence[RunResult]]) -> str:
    names = list(dict.fromkeys(row["learner"] for row in summary["rows"]))
    said = [_in_bold(escape(with_minus_signs(sentence)), names) for sentence in across(summary)]
    over_all = ""
    if said:
        items = "".join(f"<li>{sentence}</li>" for sentence in said[1:])
        means = f'<p class="notes" style="font-size: 0.9rem">{escape(P_MEANS)} {_CLAIMS}</p>' if len(said) > 1 else ""
        over_all = f'<div class="verdict"><p>{said[0]}</p><ul>{items}</ul>{means}</div><h3>Task by task</h3>'
    articles = "".join(_verdict(task, some, results[task], summary.get("pairs", ())) for task, some in rows.items())
    return f'<section><h2>In short</h2>{over_all}<div class="verdicts">{articles}</div></section>'


def _in_bold(text: str, names: Sequence[str]) -> str:
    """Escaped text with the learners' names in bold, since "exact" and "reinforce" are words as well."""
    longest_first = sorted((escape(name) for name in names), key=len, reverse=True)
    return re.sub(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])", r"<b>\g<0></b>", text)


_CLAIMS = (
    "A difference on a task counts where a rank test (Mann-Whitney, two-sided), adjusted for all pairs and tasks"
    " compared here (Benjamini-Hochberg), is significant at the 5% level; everything else is called noise. Nothing is"
    f" claimed from fewer than {MIN_SEEDS} seeds."
)


def _verdict(task: str, rows: Sequence[Row], results: Sequence[RunResult], pairs: Sequence[Row]) -> str:
    about = describe(results[0].config.get("task")) if results else ""
    return (
        f'<article><h3>{escape(task)}</h3><p class="about">{escape(with_minus_signs(about))}</p>'
        f"<p>{escape(with_minus_signs(verdict(rows, pairs)))}</p></article>"
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
    return meanings_of(meanings, "What the columns mean")


def _curves(runs: Mapping[str, Sequence[RunResult]], styles: Mapping[str, int]) -> str:
    if not runs:
        return ""
    seen = {result.learner for some in runs.values() for result in some}
    blocks = []
    for task, some in runs.items():
        figures = [figure(plots.learning_curves(some, styles), "The whole range")]
        if max(float(np.max(result.hard)) for result in some) > _ZOOM + 0.02:
            close = plots.learning_curves(some, styles, low=_ZOOM)
            figures.append(figure(close, f"Its upper end: the score axis begins at {_ZOOM}"))
        blocks.append(f'<h3>{escape(task)}</h3><div class="pair">{"".join(figures)}</div>')
    return (
        f"<section><h2>Learning curves</h2>{chips({name: index for name, index in styles.items() if name in seen})}"
        "<p>Solid: hard score, with a band from the worst seed to the best. Dashed: soft score. Lines are interquartile"
        f" means over seeds. The dotted line is at 0.95.</p>{''.join(blocks)}</section>"
    )


def _gaps(rows: Mapping[str, Sequence[Row]], styles: Mapping[str, int]) -> str:
    figures = []
    for task, some in rows.items():
        scored = [row for row in some if row["hard_score"]["iqm"] is not None]
        if scored:
            figures.append(figure(plots.discretisation_gaps(scored, styles), f"<b>{escape(task)}</b>"))
    if not figures:
        return ""
    return (
        "<section><h2>What is trained and what is used</h2><p>Hollow: the soft score, of what the learner trains."
        " Filled: the hard score, of the operations it then picks, with its interval. A hollow circle far to the right"
        " of its filled one is a discretisation gap: training looks better than what comes out of it.</p>"
        f'<div class="pair">{"".join(figures)}</div></section>'
    )


def _gradients(rows: Sequence[Row], styles: Mapping[str, int]) -> str:
    """Bias and variance, where they were measured."""
    measured = [row for row in rows if row["vary"] is None]
    if not measured:
        return ""
    names = list(dict.fromkeys(row["estimator"] for row in measured))
    # A learner's estimator looks as the learner does above; the others follow.
    others = [name for name in names if name not in styles]
    looks = {name: styles[name] if name in styles else len(styles) + others.index(name) for name in names}
    figures, lines = [], ""
    for problem in dict.fromkeys(row["problem"] for row in measured):
        some = [row for row in measured if row["problem"] == problem]
        figures.append(figure(plots.gradient_scatter(some, looks), f"<b>{escape(problem)}</b>"))
        for row in some:
            shown = (f"{row['bias']:.3g}", "yes" if row["biased"] else "not found", f"{row['variance']:.3g}")
            cells = "".join(f"<td>{cell}</td>" for cell in (*shown, row["evaluations"]))
            lines += f'<tr><th scope="row">{escape(problem)}</th><th>{escape(row["estimator"])}</th>{cells}</tr>'
    heads = ("problem", "estimator", "bias", "biased", "variance", "evaluations")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    return (
        "<section><h2>The gradient estimates themselves</h2><p>Bias (against exact enumeration) and variance of a"
        " single estimate on standard problems, from gradients.json. Left is less biased, down is less noisy. Faint: no"
        f" bias was found; the point stands at what it could be at most.</p>{chips(looks)}"
        f'<div class="pair">{"".join(figures)}</div>{details("The same as a table", table)}</section>'
    )


def _pictures(task: str, results: Sequence[RunResult]) -> str:
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
            figure(plots.choice_plane(results[0], colours, limits, right=True), "<b>the right operation</b><br>&nbsp;")
        ]
        for result in results:
            share = 100 * float(np.mean(~plots.on_target(result.picture)))
            note = f"<b>{escape(result.learner)}</b><br>{share:.1f}% wrong"
            figures.append(figure(plots.choice_plane(result, colours, limits), note))
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
            figures.append(figure(plots.reward_plane(result, limits), note))
        text = f"{_PLANE} Its colour is the reward reached ({whose}); 1 is exactly on target."
        stops = ", ".join(plots.REWARD_COLOURS)
        scale = f'<p class="scale">reward 0 <i style="background: linear-gradient(90deg, {stops})"></i> 1</p>'
        body = f'{scale}<div class="grid">{"".join(figures)}</div>'
    return f"<section><h2>What was chosen: {escape(task)}</h2><p>{text}</p>{body}</section>"


def _operation_legend(colours: Mapping[str, str]) -> str:
    items = "".join(f'<li><i style="background: {c}"></i> {escape(name)}</li>' for name, c in colours.items())
    return f'<ul class="legend">{items}</ul>'


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
        for name, value in sorted(settings.items())  # results that come from files have theirs sorted
    )
    return details(title, f"<table>{lines}</table>")


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
