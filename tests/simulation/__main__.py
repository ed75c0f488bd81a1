"""python -m tests.simulation                     lives from new seeds until stopped or one fails
python -m tests.simulation --seed S [--actions 0,3]   one life again, told step by step
python -m tests.simulation --first N --count M        the seeds N to N+M-1, and a line of JSON

With --broken NAME the daemon has a fault that was made on purpose (see breaks.py)."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from dataclasses import asdict

from tests.simulation import breaks, schedule
from tests.simulation.run import play_many, play_one

_STEP = 500


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets is part of a life that is to be played again.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed")
    parser.add_argument("--actions")
    parser.add_argument("--first", type=int)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--broken", choices=sorted(breaks.BREAKS))
    given = parser.parse_args()
    if given.seed is not None:
        return tell(given.seed, given.actions, given.broken)
    if given.first is not None:
        figures = play_many(given.first, given.count, given.broken)
        print(json.dumps({**asdict(figures), "seen": sorted(figures.seen)}))
        return 1 if figures.failed else 0
    return go_on(given.broken)


def tell(seed: str, chosen: str | None, broken: str | None) -> int:
    actions = schedule.make(seed)
    if chosen is not None:
        numbers = {int(number) for number in chosen.split(",") if number}
        actions = tuple(action for action in actions if action.number in numbers)
    record = play_one(seed, actions, broken)
    print(*record.trace, *(f"WRONG: {fault}" for fault in record.faults), sep="\n")
    return 1 if record.faults else 0


def go_on(broken: str | None) -> int:
    """Until stopped or one fails."""
    new = time.time_ns()
    lives = messages = 0
    for number in itertools.count():
        figures = play_many(new + number * _STEP, _STEP, broken)
        lives += figures.lives
        messages += figures.messages
        print(f"{lives} lives, {messages} messages", flush=True)
        if figures.failed:
            print(figures.failed)
            return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
