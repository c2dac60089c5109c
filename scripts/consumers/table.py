"""Prints the README's table of the libraries whose agents have been trained on our environments.

bash .ci/consumers && python scripts/consumers/table.py [runs/consumers.jsonl]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

RESULTS = pathlib.Path(__file__).parents[2] / "runs" / "consumers.jsonl"
HEADINGS = ("consumer", "version", "environment", "trains", "score against random")
NAMES = {  # where a distribution is not called what people call it
    "torch": "a CleanRL-style loop (PyTorch)",
    "ray": "RLlib (Ray)",
    "torchrl": "TorchRL",
    "tianshou": "Tianshou",
    "tf-agents": "TF-Agents",
}


def table(lines: list[dict[str, Any]]) -> str:
    """A Markdown table of what `common.report` printed, a row per line."""
    rows = [
        (
            NAMES.get(line["consumer"], str(line["consumer"])),
            str(line["version"]).partition("+")[0],  # torch names its build there
            f"`{line['environment']}`",
            f"{line['algorithm']}: {line['steps']:,} steps in {line['seconds']:.0f} s",
            f"{line['score']:.2f}",
        )
        for line in lines
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEADINGS, ("---",) * len(HEADINGS), *rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="?", default=RESULTS)
    results = parser.parse_args().results
    if not results.exists():
        print(f"results must be a file that .ci/consumers wrote, got {str(results)!r}", file=sys.stderr)
        return 1
    print(table([json.loads(line) for line in results.read_text().splitlines()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
