"""What requests came to, summed up by day, conversation, model or purpose."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime, tzinfo
from typing import Literal

SpentBy = Literal["day", "session", "model", "purpose"]
_QUARTER_MS = 900_000
"""Days of all zones begin at a quarter of an hour."""
_NAME = {
    "day": f"u.started_at / {_QUARTER_MS} * {_QUARTER_MS}",
    "session": "iif(s.listed, s.key, '')",
    "model": "u.provider || ' / ' || u.model",
    "purpose": "u.purpose",
}
_SUMS = """
    SELECT {name}, count(*), sum(u.error IS NOT NULL), coalesce(sum(u.input_tokens), 0),
        coalesce(sum(u.cached_tokens), 0), coalesce(sum(u.output_tokens), 0),
        coalesce(sum(u.reasoning_tokens), 0), coalesce(sum(u.cost), 0), sum(u.cost IS NULL),
        sum(u.estimated)
    FROM usage u LEFT JOIN sessions s ON s.id = u.session
    WHERE u.started_at >= ? GROUP BY 1
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """The sum of some requests. Tokens and costs are those that are known."""

    requests: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost: int = 0
    """Billionths of a US dollar."""
    unknown: int = 0
    """Requests whose cost is not known, and not in it."""
    estimated: int = 0
    """Requests whose tokens and cost are estimates, and in it."""

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            **{one.name: getattr(self, one.name) + getattr(other, one.name) for one in _FIELDS}
        )


_FIELDS = fields(Spent)


def sums(
    connection: sqlite3.Connection, by: SpentBy, *, since_ms: int, zone: tzinfo | None
) -> dict[str, Spent]:
    """The sums of what was begun from `since_ms` on, by name: days as YYYY-MM-DD in `zone` (None
    is the machine's), conversations by key ("" for those that are gone, and for none)."""
    name: Callable[[object], str] = str
    if by == "day":

        def name(value: object) -> str:
            assert isinstance(value, int)
            return f"{datetime.fromtimestamp(value / 1000, zone):%Y-%m-%d}"

    found: dict[str, Spent] = {}
    for value, *numbers in connection.execute(_SUMS.format(name=_NAME[by]), (since_ms,)):
        label = "" if value is None else name(value)
        spent = Spent(**dict(zip((one.name for one in _FIELDS), numbers, strict=True)))
        found[label] = found.get(label, Spent()) + spent
    return found
