"""Totals since the file was made: turns by outcome, requests and tokens by model. What was added up
once is not read again, so that looking costs as much as what is new."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

BUCKETS_S = (1, 2, 5, 15, 60, 300, 1800)
"""Upper bounds of a turn's duration, in seconds."""
_KINDS = ("input", "cached", "output", "reasoning")
_SETTLED = "SELECT coalesce(min(number) - 1, :most) FROM turns WHERE state = 'running'"
_MOST = "SELECT coalesce(max(number), 0) FROM turns"
_TURNS = f"""
    SELECT outcome, {", ".join(f"sum(ended_at - started_at <= {s * 1000})" for s in BUCKETS_S)},
        count(*), sum(ended_at - started_at)
    FROM turns WHERE number > ? AND number <= ? AND state = 'done' GROUP BY outcome
"""
_USAGE = """
    SELECT provider, model, purpose, iif(error IS NULL, 'answered', 'failed'), count(*),
        sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(reasoning_tokens), max(id)
    FROM usage WHERE id > ? GROUP BY 1, 2, 3, 4
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Durations:
    """How long the turns of one outcome took: how many up to each of `BUCKETS_S`, how many in
    all, and milliseconds together."""

    up_to: tuple[int, ...]
    count: int
    total_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Everything counted, by its labels."""

    turns: Mapping[str, Durations]
    """By outcome."""
    requests: Mapping[tuple[str, str, str, str], int]
    """By provider, model, purpose, and `answered` or `failed`."""
    tokens: Mapping[tuple[str, str, str], int]
    """By provider, model and kind; what no server told is not in it."""


class Counting:
    """Adds up. Used by one reader at a time."""

    def __init__(self) -> None:
        self._settled = 0
        self._booked = 0
        self._turns: dict[str, list[int]] = {}
        self._requests: Counter[tuple[str, str, str, str]] = Counter()
        self._tokens: Counter[tuple[str, str, str]] = Counter()

    def count(self, connection: sqlite3.Connection) -> Totals:
        """The totals now."""
        (most,) = connection.execute(_MOST).fetchone()
        (settled,) = connection.execute(_SETTLED, {"most": most}).fetchone()
        _add(self._turns, connection, self._settled, settled)
        self._settled = max(self._settled, settled)
        turns = {outcome: list(sums) for outcome, sums in self._turns.items()}
        _add(turns, connection, self._settled, most)
        self._add_usage(connection)
        return Totals(
            turns={
                outcome: Durations(up_to=tuple(up_to), count=count, total_ms=total_ms)
                for outcome, (*up_to, count, total_ms) in turns.items()
            },
            requests=dict(self._requests),
            tokens=dict(self._tokens),
        )

    def _add_usage(self, connection: sqlite3.Connection) -> None:
        newest = self._booked
        for row in connection.execute(_USAGE, (self._booked,)).fetchall():
            provider, model, purpose, outcome, count, *tokens, last = row
            self._requests[provider, model, purpose, outcome] += count
            for kind, amount in zip(_KINDS, tokens, strict=True):
                if amount is not None:
                    self._tokens[provider, model, kind] += amount
            newest = max(newest, last)
        self._booked = newest


def _add(
    turns: dict[str, list[int]], connection: sqlite3.Connection, after: int, upto: int
) -> None:
    for outcome, *sums in connection.execute(_TURNS, (after, upto)).fetchall():
        before = turns.get(outcome) or [0] * len(sums)
        turns[outcome] = [a + b for a, b in zip(before, sums, strict=True)]
