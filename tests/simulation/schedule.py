"""Schedules: what happens from outside, and when. Made from a seed, shrunk by leaving out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from teaagentd.store.commits import COMMITS

CHATS = (("api", "anna"), ("api", "bert"), ("push", "carl"), ("dedup", "dora"), ("push", "emma"))
_KINDS = (
    ("say", 60),
    ("burst", 8),
    ("redeliver", 5),
    ("stop", 6),
    ("new", 5),
    ("compact", 5),
    ("stop_from_outside", 3),
    ("direct", 8),
    ("direct_given_up", 3),
    ("ephemeral", 3),
    ("reload", 6),
    ("revoke", 2),
    ("disk", 3),
    ("jump", 3),
    ("crash", 7),
    ("crash_at_commit", 9),
    ("restart", 5),
    ("retry_dead", 4),
    ("drop", 2),
    ("delete", 3),
    ("erase", 3),
    ("sweep", 4),
    ("retry_letter", 4),
    ("drop_letter", 2),
)


KINDS = frozenset(kind for kind, _ in _KINDS)
NOT_PLAYED = ("A6.raise_alert", "A7.clear_alert", "A9.choose")
"""Commits of what runs beside the core, which no life has."""

CAUSES = {
    "T0.retry": "retry_dead",
    "T7.command": "new",
    "T7.revoke": "revoke",
    "T8.compact": "compact",
    "A1.drop_row": "drop",
    "A2.retry_letter": "retry_letter",
    "A3.drop_letter": "drop_letter",
    "A4.delete_session": "delete",
    "A5.erase": "erase",
    "A8.sweep": "sweep",
}
"""Which action leads to a commit that is rare without."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing at one moment. `number` names it in the trace, and is what its own dice are made
    of, so that leaving out others does not change it."""

    at: float
    kind: str
    number: int
    chat: tuple[str, str]

    def dice(self, seed: str) -> random.Random:
        return random.Random(f"{seed}/action/{self.number}")

    def __str__(self) -> str:
        return f"{self.at:9.2f} s  {self.kind} {':'.join(self.chat)} (action {self.number})"


def make(seed: str) -> tuple[Action, ...]:
    """The schedule of a seed."""
    dice = random.Random(f"{seed}/schedule")
    kinds, weights = zip(*_KINDS, strict=True)
    count = dice.randint(4, 22)
    busy = dice.choice((0.05, 0.5, 3.0, 20.0))
    actions = []
    at = 0.0
    for number in range(count):
        at += dice.expovariate(1 / busy)
        (kind,) = dice.choices(kinds, weights)
        if number < 2:
            kind = "say"
        actions.append(Action(at, kind, number, dice.choice(CHATS)))
    return tuple(actions)


def commit_to_die_at(dice: random.Random) -> tuple[str, str]:
    """A commit's name, and on which side of it."""
    names = [name for name in COMMITS if name not in NOT_PLAYED]
    # Few lives have what it needs: a message that was set aside.
    names += ["T0.retry"] * 3
    return dice.choice(names), dice.choice(("before", "after"))


def without(actions: Sequence[Action], start: int, end: int) -> tuple[Action, ...]:
    return (*actions[:start], *actions[end:])
