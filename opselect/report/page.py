"""The shell of the package's HTML pages: one self-contained file each, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from opselect.report import plots
from opselect.report.tables import DASH, number

__all__ = [
    "MINUS",
    "Origin",
    "chips",
    "details",
    "figure",
    "meanings_of",
    "origin",
    "origins",
    "page",
    "score_cell",
    "scrolled",
    "with_minus_signs",
]

MINUS = "\N{MINUS SIGN}"
_MARKERS = "●■▲◆▼✚✖★◀▶"  # the markers of plots.MARKERS as text


@dataclass(frozen=True)
class Origin:
    """Where results come from."""

    command: str
    """What reproduces them; empty when that is not known."""
    versions: Mapping[str, str]
    """Name -> version of what computed them, and of the machine."""
    folder: str = ""
    """Where they lie, where several folders were merged."""


def page(title: str, intro: str, sections: Sequence[str], problems: Sequence[str] = ()) -> str:
    """A whole page.

    Args:
        title: the heading, as text.
        intro: what stands below it, as HTML.
        sections: HTML; empty ones are left out.
        problems: a sentence for each thing that went wrong; they come first.
    """
    short = escape(title[0].lower() + title[1:].rstrip("?"))
    shown = [section for section in (_problems(problems), *sections) if section]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>opselect: {short}</title>\n<style>{_style()}</style>\n</head>\n"
        f"<body>\n<main>\n<header><h1>{escape(title)}</h1>{intro}</header>\n"
        + "\n".join(shown)
        + "\n</main>\n</body>\n</html>\n"
    )


def _problems(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    items = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    return f'<section class="problems"><h2>What went wrong</h2><ul>{items}</ul></section>'


def chips(styles: Mapping[str, int]) -> str:
    """A legend of learners by colour and marker."""
    items = []
    for name, index in styles.items():
        colour, marker = plots.line_style(index)
        sign = f"{_MARKERS[marker]}\N{VARIATION SELECTOR-15}"
        items.append(f'<li><span style="color: var(--line-{colour})">{sign}</span> {escape(name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def details(title: str, body: str) -> str:
    """A part that is folded until it is asked for."""
    return f'<details><summary>{escape(title)}</summary><div class="scroll">{body}</div></details>'


def scrolled(table: str, label: str) -> str:
    """A table that scrolls sideways where the page is too narrow for it."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def figure(svg: str, caption: str) -> str:
    """A figure below its caption, both HTML."""
    return f"<figure><figcaption>{caption}</figcaption>{svg}</figure>"


def meanings_of(meanings: Mapping[str, str], title: str = "What this means") -> str:
    """What columns or figures mean: name -> HTML."""
    items = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in meanings.items())
    return f"<h3>{title}</h3><dl>{items}</dl>"


def score_cell(score: Mapping[str, float | None], sign: str = "") -> str:
    """A score with its interval below it; a dash where there is none. The figure itself comes first in `score`."""
    value, low, high = (score[name] for name in (next(iter(score)), "low", "high"))
    if value is None or low is None or high is None:
        return DASH
    told = [number(figure, sign).replace("-", MINUS) for figure in (value, low, high)]
    return f"{told[0]}<small>{told[1]} to {told[2]}</small>"


def origin(command: str, versions: Mapping[str, str]) -> str:
    """How to reproduce what the page shows."""
    return origins([Origin(command, versions)])


def origins(sources: Sequence[Origin], notes: Sequence[str] = (), merged_by: str = "") -> str:
    """How to reproduce what the page shows, from one source or several.

    Args:
        sources: where the results come from.
        notes: sentences to add, as text.
        merged_by: the command that put several sources together.
    """
    parts = []
    for source in sources:
        lines = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(version))}</td></tr>'
            for name, version in source.versions.items()
        )
        title = f"<h3>{escape(source.folder)}</h3>" if source.folder else ""
        command = f"<pre><code>{escape(source.command)}</code></pre>" if source.command else "<p>Command unknown.</p>"
        table = f'<div class="scroll"><table>{lines}</table></div>' if lines else "<p>Versions unknown.</p>"
        parts.append(f"{title}{command}{table}")
    if merged_by:
        parts.append(f"<h3>Put together by</h3><pre><code>{escape(merged_by)}</code></pre>")
    said = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return (
        f"<section><h2>How to reproduce</h2>{''.join(parts)}{said}"
        "<p>The same seeds give the same scores on the same machine and versions; seconds vary.</p></section>"
    )


def with_minus_signs(text: str) -> str:
    """With a minus sign in front of numbers in place of a hyphen."""
    return re.sub(r"(?<![\w.-])-(?=\d)", MINUS, text)


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
.verdict { max-width: 75ch; }
.verdict p { font-size: 1.1rem; }
.verdict ul { padding-left: 20px; margin: 8px 0; }
.verdict li { margin: 4px 0; }
.problems { border-left: 4px solid #d45a00; padding-left: 16px; margin-top: 24px; }
.problems li { overflow-wrap: anywhere; }
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
.pair { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); gap: 12px 28px; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 200px), 1fr)); gap: 18px 16px; }
figure { margin: 0; min-width: 0; }
.grid figcaption { color: var(--ink); line-height: 1.35; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
svg text { font-variant-numeric: tabular-nums; }
.narrow { display: none; }
.matrix { font-size: 0.8rem; }
.matrix th, .matrix td { padding: 4px 6px; border: 0; white-space: nowrap; }
.matrix td { text-align: center; }
.matrix thead th { writing-mode: vertical-rl; transform: rotate(180deg); vertical-align: top; color: var(--muted); }
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
