"""From statistics to something to look at: a table in the terminal, an HTML page, and the files of a comparison."""

from __future__ import annotations

from opselect.report.files import write_files
from opselect.report.html import write_report
from opselect.report.tables import print_table
from opselect.report.verdict import verdict

__all__ = ["print_table", "verdict", "write_files", "write_report"]
