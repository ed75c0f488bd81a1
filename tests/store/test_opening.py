"""Opening the file: new, old, too new, damaged. What cannot be read is never written over."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from teaagentd.errors import StoreDamaged, StoreError, StoreTooNew, StoreUnavailable
from teaagentd.store import Store
from teaagentd.store.upgrade import migrations
from tests.store.steps import (
    KEY,
    ManualClock,
    close_or_fold,
    database,
    said,
    started,
    texts,
    told,
)

pytestmark = pytest.mark.anyio

MIGRATIONS = migrations()


async def opened(path: Path) -> Store:
    return await Store.open(path, clock=ManualClock(), max_pending=10_000)


async def filled(path: Path, turns: int = 3) -> None:
    store = await opened(path)
    for number in range(turns):
        await close_or_fold(store, (await started(store, f"q{number}")).turn_id, f"a{number}")
    await store.aclose()


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


async def test_a_new_home_is_closed_to_others(path: Path) -> None:
    store = await opened(path)
    await store.accept(said("hi"))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name
    await store.aclose()
    path.chmod(0o644)
    store = await opened(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await store.aclose()
    assert [file.name for file in path.parent.iterdir()] == ["state.db"]


async def test_the_file_is_what_the_design_says(path: Path) -> None:
    store = await opened(path)
    await store.accept(said("hi"))

    def pragmas(connection: sqlite3.Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await store._database.write("T1.park", pragmas) == ["wal", 2, 1, 10_000]
    await store.aclose()
    with database(path) as other:
        tables = other.execute(
            "SELECT name, strict FROM pragma_table_list WHERE schema = 'main' "
            "AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        assert len(tables) == 12
        assert all(strict for _, strict in tables)
        assert other.execute("PRAGMA user_version").fetchone() == (MIGRATIONS[-1][0],)
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_migrations_are_numbered_without_gaps() -> None:
    numbers = [number for number, _ in MIGRATIONS]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_what_is_there_is_found_again(path: Path) -> None:
    await filled(path)
    store = await opened(path)
    assert [text for _, text, _ in await texts(store)] == ["a0", "a1", "a2"]
    await store.aclose()


async def test_a_later_schema_is_refused_untouched(path: Path) -> None:
    await filled(path)
    with database(path) as other:
        other.execute("PRAGMA user_version = 9999")
    before = content(path.parent)
    with pytest.raises(StoreTooNew, match="9999"):
        await opened(path)
    assert content(path.parent) == before


async def test_a_database_of_another_program_is_refused_untouched(path: Path) -> None:
    path.parent.mkdir()
    with database(path) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    before = content(path.parent)
    with pytest.raises(StoreDamaged, match="not a database of this program"):
        await opened(path)
    assert content(path.parent) == before


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 4096, b"\0", b"not a database, whatever its name " * 200, b"SQLite format 3\0"],
    ids=["zero bytes", "NULs", "one NUL", "text", "magic only"],
)
async def test_what_is_no_database_is_refused_and_kept(path: Path, data: bytes) -> None:
    # HKUDS/nanobot#3606, openclaw/openclaw#13186
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(StoreDamaged, match=r"state\.db") as caught:
        await opened(path)
    assert "left as it is" in str(caught.value)
    assert path.read_bytes() == data


async def test_an_emptied_file_does_not_take_its_log_along(path: Path, tmp_path: Path) -> None:
    """SQLite alone would delete the log of a file of zero bytes, and the last messages with it."""
    store = await opened(path)
    await store.accept(said("only in the log"))
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(path.with_name("state.db-wal"), copy)
    await store.aclose()
    log = (copy / "state.db-wal").read_bytes()
    assert b"only in the log" in log
    for emptied in (True, False):
        if emptied:
            (copy / "state.db").touch()
        else:
            (copy / "state.db").unlink()
        with pytest.raises(StoreDamaged):
            await opened(copy / "state.db")
        assert (copy / "state.db-wal").read_bytes() == log


async def test_a_folder_in_its_place_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StoreDamaged, match="folder"):
        await opened(path)
    assert path.is_dir()


async def test_a_truncated_file_is_refused_or_whole_never_emptied(
    path: Path, tmp_path: Path
) -> None:
    await filled(path, turns=10)
    whole = path.read_bytes()
    sizes = [1, 15, 16, 50, 99, 100, 511, 512, 4095, 4096, 4097]
    sizes += [len(whole) * part // 8 for part in range(1, 8)]
    sizes += [len(whole) - 4096, len(whole) - 1]
    for size in sizes:
        copy = tmp_path / f"cut-{size}" / "state.db"
        copy.parent.mkdir()
        copy.write_bytes(whole[:size])
        with pytest.raises(StoreDamaged):
            await opened(copy)
        assert copy.read_bytes() == whole[:size]


async def test_a_torn_log_loses_at_most_what_was_not_committed(path: Path, tmp_path: Path) -> None:
    # PrimeIntellect-ai/prime-agent#1785, NousResearch/hermes-agent#1744
    store = await opened(path)
    sizes = []
    log = path.with_name("state.db-wal")
    for number in range(4):
        await store.accept(said(f"m{number} é"))
        sizes.append(log.stat().st_size)
    files = {name: (path.parent / name).read_bytes() for name in ("state.db", "state.db-wal")}
    await store.aclose()
    cuts = sorted({size + offset for size in sizes for offset in (-4096, -100, -1, 0)})
    for cut in cuts:
        copy = tmp_path / f"cut-{cut}" / "state.db"
        copy.parent.mkdir()
        copy.write_bytes(files["state.db"])
        copy.with_name("state.db-wal").write_bytes(files["state.db-wal"][:cut])
        expected = [f"m{number} é" for number, size in enumerate(sizes) if size <= cut]
        for restart in range(2):
            again = await opened(copy)
            assert [r.message.content for r in await again.pending_rows(KEY)] == expected
            await again.accept(said(f"after {restart}"))
            expected.append(f"after {restart}")
            await again.aclose()


async def test_damage_in_the_middle_is_an_error_that_names_the_file(path: Path) -> None:
    await filled(path, turns=40)
    data = bytearray(path.read_bytes())
    for page in range(4, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)
    with pytest.raises(StoreDamaged, match=r"state\.db"):
        await opened(path)
    assert path.read_bytes() == data


async def test_a_half_made_new_file_is_never_taken_for_the_store(path: Path) -> None:
    path.parent.mkdir()
    for name in ("state.db.new", "state.db.new-wal", "state.db.new-journal"):
        path.with_name(name).write_bytes(b"half made")
    store = await opened(path)
    await store.accept(said("hi"))
    await store.aclose()
    assert [file.name for file in path.parent.iterdir()] == ["state.db"]


async def test_without_a_log_index_it_goes_on_with_a_rollback_journal(path: Path) -> None:
    """As on a network disk: the shared index of the log cannot be made."""
    # NousResearch/hermes-agent#22032
    await filled(path)
    path.with_name("state.db-shm").symlink_to("nowhere")
    with capture_logs() as logs:
        store = await opened(path)
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        ("store_without_wal", "warning")
    ]
    turn = await started(store, "still there?")
    assert told(turn.history)[0] == ("user", "q0")
    await close_or_fold(store, turn.turn_id, "yes")
    assert (await texts(store))[-1][1] == "yes"
    await store.aclose()
    store = await opened(path)
    assert (await texts(store))[-1][1] == "yes"
    await store.aclose()


async def test_a_path_that_cannot_be_made_says_what_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="--home"):
        await opened(tmp_path / "file" / "state.db")


async def test_a_failing_migration_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(path)
    before = path.read_bytes()
    broken = (
        len(MIGRATIONS) + 1,
        "CREATE TABLE extra (id INTEGER); INSERT INTO nowhere VALUES (1);",
    )
    monkeypatch.setattr("teaagentd.store.upgrade.migrations", lambda: (*MIGRATIONS, broken))
    with pytest.raises(StoreError):
        await opened(path)
    assert path.read_bytes() == before
    good = (len(MIGRATIONS) + 1, "CREATE TABLE extra (id INTEGER PRIMARY KEY) STRICT;")
    monkeypatch.setattr("teaagentd.store.upgrade.migrations", lambda: (*MIGRATIONS, good))
    store = await opened(path)
    assert [text for _, text, _ in await texts(store)] == ["a0", "a1", "a2"]
    await store.aclose()


async def test_opening_and_closing_by_hand_is_done_by_nobody(path: Path) -> None:
    """SQLite's locks go when the process closes the file by any other descriptor."""
    # NousResearch/hermes-agent#109841
    import builtins
    import io

    opened_by_hand: list[str] = []
    real_os_open, real_open = os.open, builtins.open

    def watch(file: object) -> None:
        if str(file).startswith(str(path)):
            opened_by_hand.append(str(file))

    def os_open(file: str, *more: int, **named: int) -> int:
        watch(file)
        return real_os_open(file, *more, **named)

    def py_open(file: str, *more: object, **named: object) -> object:
        watch(file)
        return real_open(file, *more, **named)  # type: ignore[call-overload]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", os_open)
        patch.setattr(builtins, "open", py_open)
        patch.setattr(io, "open", py_open)
        await filled(path)
        store = await opened(path)
        await store.sessions()
        await store.aclose()
    assert opened_by_hand == []
