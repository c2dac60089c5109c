"""The part of a comparison's page that is about several tasks at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from opselect.comparison import pair_of
from opselect.report import plots
from opselect.report.page import chips, details, figure, meanings_of, score_cell, scrolled
from opselect.report.tables import aggregate_rows, by_task, human, scope_title, seconds

__all__ = ["across_tasks"]

Row = Mapping[str, Any]
Summary = Mapping[str, Any]
_SPENT = {"evaluations": "reward evaluations per seed and task", "seconds": "seconds per task"}


def across_tasks(summary: Summary, styles: Mapping[str, int]) -> str:
    """The section of the page: a table, who beats whom, profiles, and scores against what was spent.

    Args:
        summary: from `opselect.comparison.summarise`.
        styles: learner -> index of its colour and marker.

    Returns:
        HTML; nothing where no statistic is about several tasks.
    """
    scopes = [name for name, about in summary.get("scopes", {}).items() if len(about["tasks"]) > 1]
    if not scopes:
        return ""
    blocks = []
    for scope in scopes:
        about, rows = summary["scopes"][scope], aggregate_rows(summary, scope)
        some = {name: styles[name] for name in about["learners"]}
        title = scope_title(summary, scope)
        figures = []
        shares = [row for row in summary["profiles"] if row["scope"] == scope]
        figures.append(figure(plots.profiles(shares, styles), "Performance profile: higher is better"))
        against = _against(summary["pairs"], rows[0]["learner"], [row["learner"] for row in rows[1:]])
        if against:
            caption = f"How probable it is that {escape(rows[0]['learner'])} scores higher: 0.5 is even"
            figures.append(figure(plots.improvements(against, styles), caption))
        for kind, label in _SPENT.items():
            curves = [row for row in summary["efficiency"][kind] if row["scope"] == scope]
            if curves:
                caption = "Sample efficiency" if kind == "evaluations" else "Wall clock"
                figures.append(figure(plots.efficiency_curves(curves, styles, label), caption))
        blocks.append(
            f'<h3>{escape(title[0].upper() + title[1:])}</h3><p class="about">{escape(", ".join(about["tasks"]))}</p>'
            f'{_aggregate_table(rows)}{chips(some)}<div class="pair">{"".join(figures)}</div>'
        )
    missing = [
        name
        for name in styles
        if any(pair["x"] == name or pair["y"] == name for pair in summary["pairs"])
        and "all" in summary["scopes"]
        and name not in summary["scopes"]["all"]["learners"]
    ]
    left_out = f"<p>Without scores on some task: {escape(', '.join(missing))}.</p>" if missing else ""
    return (
        f"<section><h2>Across tasks</h2>{left_out}{''.join(blocks)}{meanings_of(_ACROSS)}"
        f"{_matrix(summary['pairs'])}{_budget_table(summary['budgets'])}</section>"
    )


_ACROSS = {
    "hard score": "the interquartile mean of the runs of all tasks and seeds together. Its interval, as all bands here,"
    " is a 95% stratified bootstrap: seeds are resampled within each task (Agarwal et al. 2021).",
    "mean": "the mean over tasks of the mean over seeds: outliers count in full.",
    "falls short by": "how far runs stay below the oracle's score of 1 on average, the optimality gap.",
    "at equal evaluations, seconds": "the hard score after the largest budget that all learners reached on a task,"
    " interpolated between evaluations of the policy. A dash: the first score came later than that.",
    "performance profile": "for each score on the axis, the share of runs that end above it.",
    "sample efficiency, wall clock": "the hard score over tasks against what was spent on each. A curve begins where"
    " all tasks have a score; a task whose training is over keeps its last one. Only a run's total time is measured, of"
    " all seeds together and with compilation: it is spread evenly over its steps.",
}


def _against(pairs: Sequence[Row], x: str, others: Sequence[str]) -> list[Row]:
    seen = [pair_of(pairs, x, other) for other in others]
    return [pair for pair in seen if pair is not None and pair["by_task"]]


def _aggregate_table(rows: Sequence[Row]) -> str:
    heads = (
        "learner",
        "hard score",
        "mean",
        "falls short by",
        "at equal evaluations",
        "at equal seconds",
        "runs",
        "seeds",
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = ""
    for place, row in enumerate(rows):
        cells = [
            score_cell(row["iqm"]),
            score_cell(row["mean"]),
            score_cell(row["optimality_gap"]),
            *(score_cell(row[f"equal_{kind}"]) for kind in _SPENT),
            str(row["runs"]),
            str(row["seeds"]),
        ]
        kind = "" if place else ' class="best"'
        body += f'<tr{kind}><th scope="row">{escape(row["learner"])}</th>{"".join(f"<td>{c}</td>" for c in cells)}</tr>'
    table = f'<table class="figures"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return scrolled(table, "Figures across tasks")


def _matrix(pairs: Sequence[Row]) -> str:
    """P(row > column) of every pair."""
    pairs = [pair for pair in pairs if pair["by_task"]]
    names = list(dict.fromkeys(name for pair in pairs for name in (pair["x"], pair["y"])))
    if len(names) < 3:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = ""
    for x in names:
        cells = ""
        for y in names:
            pair = pair_of(pairs, x, y) if x != y else None
            if pair is None:
                cells += "<td></td>"
                continue
            chance, tasks = pair["probability"], pair["by_task"]
            wins, losses = (sum(task["better"] == who for task in tasks) for who in ("x", "y"))
            told = (
                f"{x} against {y}: {chance['value']:.2f} [{chance['low']:.2f}, {chance['high']:.2f}];"
                f" better on {wins}, worse on {losses} of {len(tasks)} tasks"
            )
            shade = round(60 * max(0.0, 2 * chance["value"] - 1))
            style = f"background: color-mix(in srgb, var(--accent) {shade}%, transparent)"
            cells += f'<td style="{style}" title="{escape(told)}">{chance["value"]:.2f}</td>'
        body += f'<tr><th scope="row">{escape(x)}</th>{cells}</tr>'
    table = f'<table class="matrix"><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>'
    intro = "<p class='notes'>How probable it is that a run of the row's learner scores higher than the column's.</p>"
    return details("Every pair of learners", intro + table)


def _budget_table(budgets: Mapping[str, Sequence[Row]]) -> str:
    body = ""
    for kind, rows in budgets.items():
        for task, some in by_task(rows).items():
            budget = human(some[0]["budget"]) if kind == "evaluations" else seconds(some[0]["budget"])
            for place, row in enumerate(some):
                first = (
                    f'<th scope="rowgroup" rowspan="{len(some)}">{escape(task)}, {budget} {kind}</th>'
                    if not place
                    else ""
                )
                told = escape(row["why_not"]) if "why_not" in row else score_cell(row["score"])
                body += f'<tr>{first}<th scope="row">{escape(row["learner"])}</th><td>{told}</td></tr>'
    return details("Task by task at equal budgets", f"<table>{body}</table>") if body else ""
