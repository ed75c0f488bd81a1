"""What SQLite reports, as the errors of the project, with what to do about them in words."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from teaagentd.errors import StoreDamaged, StoreError, StoreUnavailable

BUSY_TIMEOUT_S = 10.0
"""How long a statement waits for another process's lock."""

_PASSING = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_INTERRUPT,
    }
)
_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})


def primary_code(error: BaseException) -> int:
    """SQLite's primary result code of `error`; 0 where it has none."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def spoils_transaction(error: BaseException) -> bool:
    """Whether a statement that failed so may have undone more than itself."""
    return isinstance(error, sqlite3.Error) and primary_code(error) in _PASSING | _BROKEN


_SENT = {
    "T0.accept": "the message",
    "T1.begin": "the beginning of the turn",
    "T7.command": "the command",
}
"""What a person hears of, in their words; the other commits are the daemon's own."""


def explain(error: sqlite3.Error, path: Path, doing: str) -> StoreError:
    """The project's error for `error`, met at `doing` on the database at `path`."""
    code = primary_code(error)
    doing = _SENT.get(doing, doing)
    if code in _BROKEN:
        return damaged(path, str(error))
    if code in _PASSING:
        return StoreUnavailable(f"{doing} was not kept: {_cause(code, error, path)}")
    return StoreError(f"{doing} failed and was not kept: {error}")


def damaged(path: Path, problem: str) -> StoreDamaged:
    """The refusal of a database that cannot be read as one."""
    return StoreDamaged(
        f"{path} cannot be used: {problem}. It was left as it is. Move it and the files "
        f"{path.name}-wal and {path.name}-journal beside it to a safe place, then put a backup "
        "there, or start without and begin anew; `sqlite3 FILE .recover` may save what is in it"
    )


def _cause(code: int, error: sqlite3.Error, path: Path) -> str:
    match code:
        case sqlite3.SQLITE_FULL:
            return f"the disk of {path} is full. Free some space; no restart is needed"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return (
                f"another program has kept {path} locked for {BUSY_TIMEOUT_S:.0f} s. "
                "End that program; no restart is needed"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return f"{_closed_door(path)} ({error}). Mend that, or choose another home with --home"
        case sqlite3.SQLITE_NOMEM:
            return "there is no memory left for it"
        case _:
            return f"the disk of {path} failed ({error}). Check the disk and the system's log"


def _closed_door(path: Path) -> str:
    """Why the file cannot be written, as far as the file system says it."""
    folder = path.parent
    if not folder.is_dir():
        return f"the folder {folder} is missing"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {folder} is read-only or closed to this user"
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return f"{path} is read-only or closed to this user"
    return f"{path} cannot be opened for writing"
