"""Bringing a file of an earlier version up to date: a copy of it first, then step by step."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import structlog

from teaagentd.errors import StoreUnavailable

log = structlog.get_logger()

COPIES_KEPT = 2
"""Copies of before an upgrade; older ones are taken away by the next."""
FAILED = "state.db.upgrade-failed"
"""Beside a file whose upgrade failed: why, for the owner to be told of by the next start."""
_VACUUM_ROOM = 3
"""Times its size that must be free on the disk for the file to be written anew."""


def migrations() -> tuple[tuple[int, str], ...]:
    """The numbered migrations with their SQL, in order."""
    folder = files("teaagentd.store") / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple((int(name[:4]), (folder / name).read_text("utf-8")) for name in names)


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Apply what is missing, each step with its version number in one transaction. Raises
    `sqlite3.Error`; the steps before stand."""
    for number, sql in migrations():
        if number <= version:
            continue
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE;\n{sql}\nPRAGMA user_version = {number};\nCOMMIT;"
            )
        except sqlite3.Error:
            if connection.in_transaction:
                connection.rollback()
            raise


def upgrade(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """The same for a file that holds something, with a copy of it made before. Raises
    `StoreUnavailable` where that fails: the file is then as it was, or at a step between, which
    this version of the program goes on from."""
    if version >= migrations()[-1][0]:
        return
    copy = path.with_name(f"{path.name}.before-{version}-to-{migrations()[-1][0]}")
    try:
        _copy(connection, copy)
        log.info("store_copied", path=str(copy), version=version)
        migrate(connection, version)
        _write_anew(connection, path)
    except (sqlite3.Error, OSError) as error:
        text = (
            f"{path}: could not be brought up to date ({error}). Nothing that was said is lost. "
            f"Mend the cause and start again, or go back: install the version of before and, if "
            f"{copy.name} is there, move it to the place of {path.name}"
        )
        log.error("store_upgrade_failed", path=str(path), error=str(error))
        _note(path.with_name(FAILED), text)
        raise StoreUnavailable(text) from error
    log.info("store_upgraded", path=str(path), version=migrations()[-1][0])
    _prune(copy)


def _copy(connection: sqlite3.Connection, copy: Path) -> None:
    """A whole, checked and synced copy; one of an earlier try is replaced when it is."""
    draft = copy.with_name(f"{copy.name}.new")
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft)) as target:
        draft.chmod(0o600)
        connection.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")
        (problem,) = target.execute("PRAGMA integrity_check(1)").fetchone()
        if problem != "ok":
            raise sqlite3.DatabaseError(f"the copy is not sound: {problem}")
    descriptor = os.open(draft, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.replace(copy)


def _write_anew(connection: sqlite3.Connection, path: Path) -> None:
    """Files of before could not give room back to the disk: write them anew, once, if there is
    room for it. That they cannot is no reason not to start."""
    (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    if mode or shutil.disk_usage(path.parent).free < _VACUUM_ROOM * path.stat().st_size:
        return
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("VACUUM")
    except sqlite3.OperationalError as error:
        log.warning("store_not_written_anew", error=str(error))


def _note(marker: Path, text: str) -> None:
    try:
        marker.write_text(text, encoding="utf-8")
    except OSError as error:
        log.warning("upgrade_failure_not_noted", error=str(error))


def _prune(newest: Path) -> None:
    """Take away all but the newest copies. One that cannot be is only logged."""
    base = newest.name.partition(".before-")[0]
    copies = sorted(newest.parent.glob(f"{base}.before-*"), key=lambda one: one.stat().st_mtime_ns)
    for old in copies[:-COPIES_KEPT]:
        try:
            old.unlink()
        except OSError as error:
            log.warning("copy_not_removed", path=str(old), error=str(error))


def failed_before(path: Path) -> str | None:
    """Why an upgrade of the file at `path` failed before this start, told once."""
    marker = path.with_name(FAILED)
    try:
        text = marker.read_text(encoding="utf-8")
        marker.unlink()
    except OSError:
        return None
    return text
