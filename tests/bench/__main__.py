"""`python -m tests.bench [--json] [--quick]`: measure, and print every figure with its bound.

Nothing here fails for being slow: a bound that does not hold is marked, and the exit status is 0.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from tests.bench.figures import QUICK, Effort, Figure, idling, starting, turns
from tests.bench.months import months


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines")
    parser.add_argument("--quick", action="store_true", help="one short round, to see it work")
    parser.add_argument(
        "--only", choices=("starting", "idling", "turns", "months"), help="one group"
    )
    given = parser.parse_args()
    effort = QUICK if given.quick else Effort()
    figures: list[Figure] = []
    for group in (starting, idling, turns, months):
        if given.only in (None, group.__name__):
            for figure in group(effort):
                print(f"{figure.name}: {_number(figure.daemon)} {figure.unit}", file=sys.stderr)
                figures.append(figure)
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    if given.json:
        lines = [{**asdict(figure), "holds": figure.holds} for figure in figures]
        print(json.dumps({"machine": machine, "effort": asdict(effort), "figures": lines}))
    else:
        Console(width=None if sys.stdout.isatty() else 140).print(table(figures, machine))


def table(figures: list[Figure], machine: str) -> Table:
    found = Table(title=f"teaagentd beside a bare call ({machine})")
    for heading in ("figure", "daemon", "bare", "unit", "ratio", "bound", "holds", "note"):
        right = heading in ("daemon", "bare", "ratio", "bound")
        found.add_column(heading, justify="right" if right else "left")
    for figure in figures:
        found.add_row(
            figure.name,
            _number(figure.daemon),
            _number(figure.bare),
            figure.unit,
            _number(figure.ratio),
            _bound(figure),
            {None: "", True: "yes", False: "NO"}[figure.holds],
            figure.note,
        )
    return found


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _bound(figure: Figure) -> str:
    if figure.at_most is not None:
        return f"≤ {figure.at_most:g}"
    return "" if figure.at_least is None else f"≥ {figure.at_least:g}"


if __name__ == "__main__":
    main()
