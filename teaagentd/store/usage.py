"""The table `usage`: every request to a provider, booked as it ended."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from teaagentd.transcript import clean_text
from teaagentd.types import Attempt, Usage

_ADD = """
    INSERT INTO usage (turn, provider, model, purpose, input_tokens, cached_tokens, output_tokens,
        reasoning_tokens, cache_write_tokens, error, started_at, duration_ms)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_UNKNOWN = Usage()


def book(connection: sqlite3.Connection, attempts: Iterable[Attempt], turn: int | None) -> None:
    """Book `attempts` to `turn`, or to none."""
    for attempt in attempts:
        used = attempt.usage or _UNKNOWN
        connection.execute(
            _ADD,
            (
                turn,
                clean_text(attempt.provider),
                clean_text(attempt.model),
                clean_text(attempt.purpose),
                used.input_tokens,
                used.cached_tokens,
                used.output_tokens,
                used.reasoning_tokens,
                used.cache_write_tokens,
                None if attempt.error is None else clean_text(attempt.error),
                attempt.started_at,
                attempt.duration_ms,
            ),
        )
