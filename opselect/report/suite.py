"""The capability suite's report: a radar plot, a table per axis, and in words what a learner can't do."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opselect.comparison.suite import FAILS, PASSES
from opselect.experiments.results import write_atomically
from opselect.report import plots
from opselect.report.page import chips, origin, page, score_cell, scrolled
from opselect.report.tables import DASH, number
from opselect.report.verdict import MIN_SEEDS, listed
from opselect_envs.challenges import AXES, CHALLENGES

__all__ = ["findings", "print_suite", "write_suite"]

Row = Mapping[str, Any]
Summary = Mapping[str, Sequence[Row]]

# Why learners of a kind fail on an axis: (axis, whether they differentiate the reward at mixtures) -> the reason.
_WHY = {
    (
        "operations",
        True,
    ): "the mixture of so many operations begins far from most targets, where the reward is flat",
    ("operations", False): "among so many operations a sample hardly ever hits one of the few that are right",
    (
        "regions",
        True,
    ): "between two regions a mixture of both operations is trained, and its argmax is wrong",
    ("regions", False): "each region is so narrow that too few samples fall into it",
    (
        "noise",
        False,
    ): "a sampled reward that is mostly noise says little about the operation, while a relaxation"
    " differentiates the reward and keeps its slope wherever the noise left it",
    ("noise", True): "few rewards have a slope left, and sampled weights add noise of their own",
    ("sparse", True): "a reward that is 0 or 1 has no gradient to follow, so there is nothing to train on",
    ("sparse", False): "nothing is learned until a sampled chain hits the target by chance",
    ("ties", True): "a mixture with the decoy fits nearly as well, and keeps the most weight on it",
    ("ties", False): "the best operation's advantage over the decoy drowns in the sampling error",
    ("blending", True): "a mixture fits the target better than any operation, so training ends at a mixture, and its"
    " argmax is whichever weighs most",
    ("blending", False): "the operations' rewards are close to each other",
    ("horizon", True): "a mixture's value at one decision is a state that no operation leads to, and what follows is"
    " trained there",
    ("horizon", False): "the reward comes after the last decision and says little about each one",
    ("distractors", True): "the network follows observations without any bearing",
    ("distractors", False): "the network follows observations without any bearing",
    ("shifting", True): "once the weights are certain, hardly any gradient reaches the other operations",
    ("shifting", False): "once the policy is certain, it hardly ever samples the operation that has become right",
    ("partial", True): "a mixture may lean on an operation that is undefined at x",
    ("partial", False): "picking an undefined operation ends the episode without saying what would have been right",
}


def findings(summary: Summary) -> list[str]:
    """A sentence or two per axis: who passes, who fails and why."""
    sentences = []
    for axis in AXES:
        rows = [row for row in summary["axes"] if row["axis"] == axis]
        if not rows:
            continue
        few = [row for row in rows if row["outcome"] == "no verdict"]
        judged = [row for row in rows if row not in few]
        passing, failing = ([r for r in judged if r["outcome"] == outcome] for outcome in ("passes", "fails"))
        parts = []
        if not judged:
            parts.append(f"no verdict from fewer than {MIN_SEEDS} seeds")
        elif len(passing) == len(judged) and len(judged) > 1 and not few:
            parts.append("everyone passes")
        else:
            best = max(judged, key=lambda row: row["score"])
            if passing:
                parts.append(f"{_scored(passing)} {'pass' if len(passing) > 1 else 'passes'}")
            else:
                parts.append(f"nobody {'judged ' if few else ''}passes; best is {_scored([best])}")
        for kind in (False, True):
            some = [row for row in failing if row["relaxed"] == kind]
            if some:
                verb = "fail" if len(some) > 1 else "fails"
                why = _WHY.get((axis, kind), f"it asks to {AXES[axis].asks}")
                parts.append(f"{_scored(some)} {verb}: {why}")
        if few and judged:
            names = listed([row["learner"] for row in few])
            parts.append(f"no verdict on {names} from fewer than {MIN_SEEDS} seeds")
        sentences.append(f"{axis}: {'; '.join(parts)}.")
    return sentences


def _scored(rows: Sequence[Row]) -> str:
    return listed([f"{row['learner']} ({row['score']:.2f})" for row in rows])


def print_suite(summary: Summary, console: Console | None = None) -> None:
    """Prints a line per challenge with the learners side by side, then the `findings`."""
    console = Console() if console is None else console
    learners = list(dict.fromkeys(row["learner"] for row in summary["challenges"]))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("challenge", no_wrap=True)
    table.add_column("best fixed", justify="right", overflow="fold", min_width=6)
    for name in learners:
        table.add_column(name.replace("-", " "), justify="right", overflow="fold", min_width=6)
    for challenge in dict.fromkeys(row["challenge"] for row in summary["challenges"]):
        rows = {row["learner"]: row for row in summary["challenges"] if row["challenge"] == challenge}
        cells = [Text(_short(rows[name])) if name in rows else Text("") for name in learners]
        scores = {n: r["score"]["iqm"] for n, r in rows.items() if r["score"] is not None}
        for name, cell in zip(learners, cells, strict=True):
            if name in scores and scores[name] < FAILS:
                cell.stylize("red")
            elif name in scores and scores[name] == max(scores.values()):
                cell.stylize("bold")
        table.add_row(challenge, number(next(iter(rows.values()))["best_fixed"]), *cells)
    console.print(table)
    console.print(Text(f"Score: 0 = uniform random, 1 = oracle; red: below {FAILS}. {DASH}: does not apply.", "dim"))
    console.print()
    for sentence in findings(summary):
        axis, _, rest = sentence.partition(":")
        console.print(Text.assemble((f"{axis}:", "bold"), rest))


def _short(row: Row) -> str:
    return DASH if row["score"] is None else number(row["score"]["iqm"])


def write_suite(
    out_dir: str | os.PathLike[str],
    summary: Summary,
    command: str,
    versions: Mapping[str, str],
    problems: Sequence[str] = (),
) -> None:
    """Writes suite.json and suite.html, each whole or not at all.

    Args:
        out_dir: the folder, made if needed.
        summary: from `opselect.comparison.suite.summarise_suite`.
        command: what reproduces the results.
        versions: name -> version of what computed them.
        problems: a sentence for each thing that went wrong.
    """
    folder = pathlib.Path(out_dir)
    told = {"findings": findings(summary), **summary}
    text = json.dumps(told, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / "suite.json", lambda file: file.write(text.encode()))
    page_text = _render(summary, command, versions, problems)
    write_atomically(folder / "suite.html", lambda file: file.write(page_text.encode()))


def _render(summary: Summary, command: str, versions: Mapping[str, str], problems: Sequence[str]) -> str:
    learners = list(dict.fromkeys(row["learner"] for row in summary["axes"]))
    styles = {name: index for index, name in enumerate(learners)}
    axes = [axis for axis in AXES if any(row["axis"] == axis for row in summary["axes"])]
    scores = {
        name: [
            next((r["score"] for r in summary["axes"] if (r["axis"], r["learner"]) == (axis, name)), None)
            for axis in axes
        ]
        for name in learners
    }
    said = "".join(
        f"<li><b>{escape(sentence.partition(':')[0])}</b>:{escape(sentence.partition(':')[2])}</li>"
        for sentence in findings(summary)
    )
    intro = (
        "<p>Each challenge turns one difficulty up and leaves the rest easy. A <b>score</b> of 0 is what choosing"
        f" uniformly at random earns, 1 what an oracle earns; an axis is passed from a mean score of {PASSES} on and"
        f" failed below {FAILS}.</p>"
    )
    radar = f'<figure class="radar">{plots.radar(axes, scores, styles)}</figure>' if len(axes) > 2 else ""
    sections = [
        f'<section><h2>In short</h2><div class="pair"><div>{radar}{chips(styles)}</div><ul>{said}</ul></div></section>',
        "<section><h2>Axis by axis</h2>" + "".join(_axis(axis, summary) for axis in axes) + "</section>",
        origin(command, versions),
    ]
    return page("What can't this learner do?", intro, sections, problems)


def _axis(axis: str, summary: Summary) -> str:
    rows = [row for row in summary["challenges"] if row["axis"] == axis]
    levels = list(dict.fromkeys(row["challenge"] for row in rows))
    learners = list(dict.fromkeys(row["learner"] for row in rows))
    heads = "".join(f'<th scope="col">{CHALLENGES[level].level}</th>' for level in levels)
    fixed = {row["challenge"]: row["best_fixed"] for row in rows}
    reference = "".join(f"<td>{number(fixed[level])}</td>" for level in levels)
    body = f'<tr><th scope="row">always the best fixed operation</th>{reference}</tr>'
    notes = []
    for name in learners:
        cells = []
        for level in levels:
            row = next((r for r in rows if (r["challenge"], r["learner"]) == (level, name)), None)
            cells.append(f"<td>{DASH if row is None or row['score'] is None else score_cell(row['score'])}</td>")
            if row is not None and "why_not" in row:
                notes.append(f"<li>{escape(name)} on {escape(level)}: {escape(row['why_not'])}</li>")
        body += f'<tr><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>'
    table = (
        f'<table class="figures"><thead><tr><th scope="col">{escape(AXES[axis].level)}</th>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
    why = f'<div class="notes"><ul>{"".join(notes)}</ul></div>' if notes else ""
    asks = f"<p>An agent must {escape(AXES[axis].asks)}.</p>"
    return f"<h3>{escape(axis)}</h3>{asks}{scrolled(table, axis)}{why}"
