"""A look at the database from outside, beside a daemon or without one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from teaagentd.store import alerts, inbox, outbox
from teaagentd.store.faults import explain
from teaagentd.store.opening import open_reader, refuse_unknown
from teaagentd.types import Alert

_NEWEST = "SELECT max(accepted_at) FROM inbox"
_SESSIONS = "SELECT count(*) FROM sessions WHERE listed = 1"

_ALERTS_SINCE = 2
"""The version of the schema that has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """What was found. `problem` is SQLite's word for a file that is not sound."""

    problem: str | None
    bytes: int
    sessions: int
    newest_at: int | None
    """When the newest message was accepted, in milliseconds since the epoch, UTC."""
    dead_rows: int
    dead_letters: int
    alerts: tuple[Alert, ...]
    """What the owner was told of and whose cause has not gone; none in a file of before that."""


def look(path: Path) -> Health:
    """Read the whole database once. Raises `StoreDamaged`, `StoreTooNew` or `StoreUnavailable`
    where that cannot be done; changes nothing."""
    try:
        refuse_unknown(path)
        with closing(open_reader(path)) as found:
            (problem,) = found.execute("PRAGMA integrity_check(1)").fetchone()
            (newest,) = found.execute(_NEWEST).fetchone()
            (sessions,) = found.execute(_SESSIONS).fetchone()
            (version,) = found.execute("PRAGMA user_version").fetchone()
            open_alerts = alerts.open_alerts(found) if version >= _ALERTS_SINCE else ()
            rows, letters = inbox.count_dead(found), outbox.count_dead(found)
    except sqlite3.Error as error:
        raise explain(error, path, "looking it over") from error
    return Health(
        problem=None if problem == "ok" else " ".join(str(problem).split()),
        bytes=path.stat().st_size,
        sessions=sessions,
        newest_at=newest,
        dead_rows=rows,
        dead_letters=letters,
        alerts=open_alerts,
    )
