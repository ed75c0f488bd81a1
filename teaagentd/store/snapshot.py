"""Copies of the database: taken at one moment, also while a daemon writes, and looked over before
one takes the place of another."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from teaagentd.errors import StoreUnavailable
from teaagentd.store.faults import damaged, explain
from teaagentd.store.opening import open_reader, refuse_unknown


def take(path: Path, copy: Path) -> None:
    """Write a whole copy of the database at `path` to `copy`, which is not there yet. Raises
    `StoreDamaged` or `StoreUnavailable`; the database is as it was."""
    try:
        with closing(open_reader(path)) as source, closing(sqlite3.connect(copy)) as target:
            copy.chmod(0o600)
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise explain(error, path, "the copy") from error
    except OSError as error:
        raise StoreUnavailable(f"{copy}: cannot be written ({error.strerror})") from error
    verify(copy)


def verify(path: Path) -> None:
    """Raises `StoreDamaged` or `StoreTooNew` for a file that a daemon could not go on with."""
    try:
        refuse_unknown(path)
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as found:
            (problem,) = found.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        raise explain(error, path, "looking it over") from error
    if problem != "ok":
        raise damaged(path, str(problem))
