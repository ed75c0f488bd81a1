"""Opening the database file: created whole, migrated step by step, refused when unreadable.

A new database is made under another name and moved into place, so a file of zero bytes at the
real one is never ours: it lost its content, and is refused like any damaged file. The file is
never opened but by SQLite: closing it by hand would drop every lock this process has on it.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import structlog

from teaagentd.errors import StoreTooNew, StoreUnavailable
from teaagentd.store.faults import BUSY_TIMEOUT_S, damaged, explain, primary_code
from teaagentd.store.upgrade import migrate, migrations, upgrade

log = structlog.get_logger()

APPLICATION_ID = 0x74656161
"""Stands in the file's header: a database of another program is not taken for ours."""
RESCUED = "state.db.rescued"
"""Where a daemon whose file was taken away saves what it held."""
_OPENING = "opening the store"
_LOG_LIMIT_BYTES = 32 * 1024 * 1024
_PRAGMAS = (
    "synchronous = FULL",
    "fullfsync = ON",
    "checkpoint_fullfsync = ON",
    "foreign_keys = ON",
    "trusted_schema = OFF",
    "secure_delete = ON",
    f"journal_size_limit = {_LOG_LIMIT_BYTES}",
)
_NO_INDEX = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL)
_TABLES = (
    "store",
    "sessions",
    "turns",
    "messages",
    "calls",
    "inbox",
    "outbox",
    "usage",
    "reservations",
    "alerts",
)
_PROBES = tuple(f"SELECT max(rowid) FROM {table}" for table in _TABLES)


def open_writer(path: Path) -> sqlite3.Connection:
    """The one connection that writes, on a database that is ready for use.

    Creates folder and file where there is none. Raises `StoreDamaged`, `StoreTooNew` or
    `StoreUnavailable`; what was there is then as it was.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_remains(path)
        if not path.exists():
            _create(path)
        refuse_unknown(path)
        return _prepared(path)
    except sqlite3.Error as error:
        raise explain(error, path, _OPENING) from error
    except OSError as error:
        raise StoreUnavailable(
            f"{_OPENING} failed: {error.strerror} ({error.filename or path}). Nothing was "
            "changed. Mend that, or choose another home with --home"
        ) from error


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that sees what is committed and cannot write. Raises `sqlite3.Error`."""
    connection = _connect(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _refuse_remains(path: Path) -> None:
    """Raise where the file is there in part: SQLite would make an empty database of that."""
    if path.is_dir():
        raise damaged(path, "it is a folder")
    beside = [name for name in (f"{path.name}-wal", f"{path.name}-journal") if _size(path, name)]
    if not path.exists():
        beside += [name for name in (RESCUED,) if _size(path, name)]
        if beside:
            raise damaged(path, f"it is missing, but {beside[0]} is there")
    elif path.is_file() and path.stat().st_size == 0:
        raise damaged(path, "it is empty (0 bytes), so what it held is lost")


def _size(path: Path, name: str) -> int:
    with suppress(FileNotFoundError):
        return path.with_name(name).stat().st_size
    return 0


def _create(path: Path) -> None:
    """Make the database beside `path` and move it there once it is whole and on disk."""
    draft = path.with_name(f"{path.name}.new")
    for leftover in (draft, *(draft.with_name(draft.name + end) for end in ("-wal", "-journal"))):
        leftover.unlink(missing_ok=True)
    with closing(_connect(draft)) as connection:
        _close_to_others(draft)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        migrate(connection, 0)
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _close_to_others(path: Path) -> None:
    """Give the file its mode, by its name; the files that SQLite puts beside it take it over."""
    try:
        path.chmod(0o600)
    except OSError as error:
        log.warning("store_mode_not_set", path=str(path), error=str(error))


def refuse_unknown(path: Path) -> None:
    """Raise for a database that is cut off, of a later version or of another program, having
    written nothing."""
    settled = not any(_size(path, f"{path.name}-{end}") for end in ("wal", "journal"))
    # What is settled is read without a lock: a lock would put files beside it.
    options = "mode=ro&immutable=1" if settled else "mode=ro"
    with closing(
        sqlite3.connect(f"{path.as_uri()}?{options}", uri=True, timeout=BUSY_TIMEOUT_S)
    ) as connection:
        try:
            version, owner = _header(connection)
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        except sqlite3.OperationalError as error:
            # An unsettled file may need writing to be read: that then says what is the matter.
            log.debug("store_not_probed", path=str(path), error=str(error))
            return
    if settled and path.stat().st_size < pages * page_size:
        raise damaged(path, "its end is cut off")
    if owner != APPLICATION_ID:
        raise damaged(path, "it is not a database of this program")
    latest = migrations()[-1][0]
    if version > latest:
        raise StoreTooNew(
            f"{path} was written by a later version of this program (schema {version}, this one "
            f"knows {latest}). Nothing was changed. Install that version again, go back with a "
            f"copy of before{_copies(path)}, or choose another home with --home"
        )


def _copies(path: Path) -> str:
    """The copies that upgrades have made, in words."""
    names = sorted(copy.name for copy in path.parent.glob(f"{path.name}.before-*"))
    return f" ({', '.join(names)}, moved to its place)" if names else ""


def _header(connection: sqlite3.Connection) -> tuple[int, int]:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    return int(version), int(owner)


def _prepared(path: Path) -> sqlite3.Connection:
    _close_to_others(path)
    connection = _journaled(path)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
        version, _ = _header(connection)
        upgrade(connection, path, version)
        for probe in _PROBES:
            connection.execute(probe).fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _journaled(path: Path) -> sqlite3.Connection:
    """A connection in WAL mode, or with a rollback journal where WAL cannot be had."""
    try:
        connection = _connect(path)
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute("PRAGMA user_version").fetchone()
        except BaseException:
            connection.close()
            raise
    except sqlite3.OperationalError as error:
        if primary_code(error) not in _NO_INDEX:
            raise
        connection, mode = _without_wal(path, error), "delete"
    if mode != "wal":
        log.warning("store_without_wal", path=str(path), journal_mode=mode)
    return connection


def _without_wal(path: Path, error: sqlite3.OperationalError) -> sqlite3.Connection:
    """A WAL database where the shared index of the log cannot be made, as on network disks:
    alone with the file, SQLite needs no index, and can leave WAL mode. Raises `error` if not."""
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.OperationalError:
        raise error from None
    finally:
        connection.close()
    if mode != "delete":
        raise error
    return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection
