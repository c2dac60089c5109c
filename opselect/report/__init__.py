"""From statistics to something to look at: tables in the terminal, Markdown, an HTML page, a comparison's files."""

from __future__ import annotations

from opselect.report.files import rebuild, write_files
from opselect.report.html import write_report
from opselect.report.terminal import markdown, print_table
from opselect.report.verdict import across, verdict

__all__ = ["across", "markdown", "print_table", "rebuild", "verdict", "write_files", "write_report"]
