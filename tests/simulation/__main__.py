"""python -m tests.simulation                     lives from new seeds until stopped or one fails
python -m tests.simulation --seed S [--actions 0,3]   one life again, told step by step
python -m tests.simulation --first N --count M        the seeds N to N+M-1, and a line of JSON"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from dataclasses import asdict

from tests.simulation import schedule
from tests.simulation.run import Player


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets is part of a life that is to be played again.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed")
    parser.add_argument("--actions")
    parser.add_argument("--first", type=int)
    parser.add_argument("--count", type=int, default=1)
    given = parser.parse_args()
    player = Player()
    if given.seed is not None:
        return tell(player, given.seed, given.actions)
    if given.first is not None:
        seeds = (str(number) for number in range(given.first, given.first + given.count))
        figures = player.play_all(seeds)
        print(json.dumps({**asdict(figures), "seen": sorted(figures.seen)}))
        return 1 if figures.failed else 0
    return go_on(player)


def tell(player: Player, seed: str, chosen: str | None) -> int:
    actions = schedule.make(seed)
    if chosen is not None:
        numbers = {int(number) for number in chosen.split(",") if number}
        actions = tuple(action for action in actions if action.number in numbers)
    _, record = player.play(seed, actions)
    print(*record.trace, *(f"WRONG: {fault}" for fault in record.faults), sep="\n")
    return 1 if record.faults else 0


def go_on(player: Player) -> int:
    """Until stopped or one fails."""
    first = time.time_ns()
    lives = messages = 0
    for number in itertools.count():
        figures = player.play_all(str(first + number * 100 + part) for part in range(100))
        lives += figures.lives
        messages += figures.messages
        print(f"{lives} lives, {messages} messages", flush=True)
        if figures.failed:
            print(figures.failed)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
