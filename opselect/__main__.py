"""``python -m opselect`` and the `opselect` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line, or says what to install for it: ``pip install opselect`` alone brings no typer."""
    try:
        from opselect.cli import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "opselect":
            raise
        print(f"opselect: the command line needs {error.name}; run: pip install 'opselect[tf]'", file=sys.stderr)
        raise SystemExit(2) from None
    run()


if __name__ == "__main__":
    main()
