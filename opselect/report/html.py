"""The comparison as one self-contained page that a stranger can read: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from opselect.experiments.results import RunResult, write_atomically
from opselect.report import plots
from opselect.report.tables import DASH, best_rows, by_task, human, number, seconds
from opselect.report.verdict import describe, verdict

__all__ = ["render_report", "write_report"]

Row = Mapping[str, Any]
_ZOOM = 0.8
_MARKERS = "●■▲◆▼✚✖★◀▶"  # the markers of plots.MARKERS as text
_MINUS = "\N{MINUS SIGN}"
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
        _problems(problems),
        '<section><h2>In short</h2><div class="verdicts">',
        *(_verdict(task, some, of_task[task]) for task, some in rows.items()),
        "</div></section>",
        f"<section><h2>Figures</h2>{_table(rows)}{_columns()}</section>",
        _curves(runs, styles),
        *(_pictures(task, some, rows[task]) for task, some in runs.items()),
        _configuration(results),
        _origin(command, versions),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>opselect: which learner selects the right operation</title>\n<style>{_style()}</style>\n</head>\n"
        "<body>\n<main>\n<header><h1>Which learner selects the right operation?</h1>"
        "<p>A network must choose one operation out of several. Each learner below trains the same network to choose,"
        " on the same tasks, with another estimate of the gradient that a choice does not have. A <b>score</b> of 0 is"
        " what choosing uniformly at random earns, 1 what an oracle earns.</p></header>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


# --- sections ---------------------------------------------------------------------------------------------------------


def _problems(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    items = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    return f'<section class="problems"><h2>What went wrong</h2><ul>{items}</ul></section>'


def _verdict(task: str, rows: Sequence[Row], results: Sequence[RunResult]) -> str:
    about = describe(results[0].config.get("task")) if results else ""
    return (
        f'<article><h3>{escape(task)}</h3><p class="about">{escape(_signs(about))}</p>'
        f"<p>{escape(_signs(verdict(rows)))}</p></article>"
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
        '<div class="scroll" tabindex="0" role="region" aria-label="Figures"><table class="figures">'
        f"<thead><tr>{head}</tr></thead>{''.join(body)}</table></div>"
        f'<p class="notes">Bold: the best hard score of the task. Below each score: its 95% interval.</p>{why}'
    )


def _cells(row: Row) -> list[str]:
    if row["hard_score"]["iqm"] is None:
        return [DASH] * 7 + [str(row["seeds"]) if row["seeds"] else DASH]
    steps = row["steps_to_95"]
    return [
        _score(row["hard_score"]),
        _score(row["soft_score"]),
        _score(row["gap"], sign="+"),
        f"{100 * row['optimal_rate']:.1f}%",
        human(row["evaluations"]),
        "never" if steps is None else f"{steps:,g}" if steps < 1e6 else human(steps),
        seconds(row["seconds"]),
        str(row["seeds"]),
    ]


def _score(score: Mapping[str, float], sign: str = "") -> str:
    value, low, high = (number(score[name], sign).replace("-", _MINUS) for name in ("iqm", "low", "high"))
    return f"{value}<small>{low} to {high}</small>"


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
    chips = "".join(
        f'<li><span style="color: var(--line-{index % 10})">{_MARKERS[index % 10]}\N{VARIATION SELECTOR-15}</span>'
        f" {escape(name)}</li>"
        for name, index in styles.items()
        if name in seen
    )
    blocks = []
    for task, some in runs.items():
        figures = [_figure(plots.learning_curves(some, styles), "The whole range")]
        if max(float(np.max(result.hard)) for result in some) > _ZOOM + 0.02:
            close = plots.learning_curves(some, styles, low=_ZOOM)
            figures.append(_figure(close, f"Its upper end: the score axis begins at {_ZOOM}"))
        blocks.append(f'<h3>{escape(task)}</h3><div class="pair">{"".join(figures)}</div>')
    return (
        f'<section><h2>Learning curves</h2><ul class="legend">{chips}</ul>'
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
    chips = "".join(f'<li><i style="background: {c}"></i> {escape(name)}</li>' for name, c in colours.items())
    return f'<ul class="legend">{chips}</ul>'


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


def _origin(command: str, versions: Mapping[str, str]) -> str:
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(version))}</td></tr>'
        for name, version in versions.items()
    )
    return (
        f"<section><h2>How to reproduce</h2><pre><code>{escape(command)}</code></pre>"
        "<p>The same seeds give the same scores on the same machine and versions; seconds vary.</p>"
        f'<div class="scroll"><table>{lines}</table></div></section>'
    )


def _signs(text: str) -> str:
    """With a minus sign in front of numbers in place of a hyphen."""
    return re.sub(r"(?<![\w.-])-(?=\d)", _MINUS, text)


# --- style ------------------------------------------------------------------------------------------------------------


def _style() -> str:
    light = "--ink: #1c2128; --muted: #59636e; --grid: #e3e7eb; --paper: #ffffff; --raised: #f5f7f9; --accent: #2f7fc9;"
    dark = "--ink: #e6e9ed; --muted: #9aa4af; --grid: #2c333b; --paper: #14181d; --raised: #1d2229; --accent: #5aa6ea;"
    return f"""
:root {{ color-scheme: light dark; {light} {plots.css_variables(False)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {dark} {plots.css_variables(True)} }} }}
{_CSS}"""


_CSS = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", "Noto Sans", "DejaVu Sans", sans-serif; -webkit-text-size-adjust: 100%; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 24px 64px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 16px 0 8px; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 48px 0 12px; padding-top: 16px; border-top: 1px solid var(--grid); }
h3 { font-size: 1.05rem; margin: 28px 0 8px; }
p { margin: 8px 0; }
header p, section > p, dl, .notes { max-width: 75ch; }
.about, .notes, figcaption, .scale { color: var(--muted); font-size: 0.9rem; }
.notes ul { margin: 4px 0; padding-left: 20px; }
.verdicts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 16px; }
article { background: var(--raised); border-radius: 8px; padding: 14px 18px; overflow-wrap: anywhere; }
article h3 { margin: 0; }
.problems { border-left: 4px solid #d45a00; padding-left: 16px; margin-top: 24px; }
.problems h2 { border: 0; padding: 0; margin: 0 0 8px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 12px 5px 0; text-align: left; border-bottom: 1px solid var(--grid); vertical-align: top; }
th { font-weight: 400; }
.figures { width: 100%; white-space: nowrap; }
.figures th + td, .figures td, .figures thead th + th { text-align: right; padding: 5px 0 5px 16px; }
.figures thead th { color: var(--muted); vertical-align: bottom; }
.figures tbody th[scope=row] { position: sticky; left: 0; background: var(--paper); padding-right: 8px; }
.figures .task { font-weight: 600; padding-top: 18px; }
.figures .task span { position: sticky; left: 0; }
.best th, .best th + td { font-weight: 700; }
small { display: block; color: var(--muted); font-size: 0.75rem; font-weight: 400; line-height: 1.2; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 6px 18px; font-size: 0.93rem; margin: 8px 0; }
dt { font-weight: 600; }
dd { margin: 0; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0; padding: 0; }
.legend { font-size: 0.9rem; }
.legend span { font-size: 1.05em; }
.legend i, .scale i { display: inline-block; width: 13px; height: 13px; border-radius: 3px; vertical-align: -1px; }
.scale i { width: 160px; margin: 0 4px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 12px 28px; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 200px), 1fr)); gap: 18px 16px; }
figure { margin: 0; min-width: 0; }
.grid figcaption { color: var(--ink); line-height: 1.35; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
svg text { font-variant-numeric: tabular-nums; }
.narrow { display: none; }
details { border-bottom: 1px solid var(--grid); }
summary { cursor: pointer; padding: 8px 0; }
details .scroll { padding: 0 0 12px 18px; }
pre { background: var(--raised); border-radius: 8px; padding: 12px 16px; overflow-x: auto; }
code { font: 0.9rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (max-width: 640px) {
  main { padding: 12px 16px 48px; }
  h1 { font-size: 1.5rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 8px; }
  .grid { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px 10px; }
  .wide { display: none; }
  .narrow { display: block; }
}
@media print { details > .scroll { display: block; } }
"""
