"""A file of an earlier version is brought up to date, with a copy of it made before."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from teaagentd.errors import StoreTooNew, StoreUnavailable
from teaagentd.store import Store, upgrade
from teaagentd.store.opening import APPLICATION_ID, open_writer
from teaagentd.store.values import Begun
from teaagentd.types import SessionKey
from tests.store.steps import ManualClock, begin, close_or_fold, database, new_turn, said

FIRST = Path(__file__).with_name("first_landed.sql")
"""What the first version that was landed wrote: a life with a person, a push channel whose second
part is of unknown outcome, a condemned turn, one cut off in a call, a message that waits."""
LATEST = upgrade.migrations()[-1][0]
ANNA = SessionKey(channel="api", chat_id="anna")


@pytest.fixture
def first(path: Path) -> Path:
    """A file as that version left it."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as file:
        file.executescript(FIRST.read_text("utf-8"))
        file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        file.execute("PRAGMA user_version = 1")
    return path


def schema(path: Path) -> set[tuple[str, str, str]]:
    with database(path) as other:
        rows = other.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
        return {(kind, name, " ".join(sql.split())) for kind, name, sql in rows}


def copies(path: Path) -> list[Path]:
    return sorted(path.parent.glob("state.db.before-*"))


@pytest.mark.anyio
async def test_the_first_landed_file_goes_on_with_nothing_lost_or_doubled(
    first: Path, tmp_path: Path
) -> None:
    store = await Store.open(first, clock=ManualClock())
    said_to_anna = [message.content for message in await store.transcript(ANNA)]
    assert said_to_anna == [
        "My name is Anna.",
        "I look.",
        "It is late.",
        "Hello Anna.",
        "Grüße\u2028und 🍵",
        "Grüße zurück.",
    ]
    again = await store.accept(said("My name is Anna.", "anna", external_id="e0"))
    assert again.duplicate
    assert [row.content for row in await store.dead_rows()] == ["poison"]
    [unfinished] = await store.running_turns()
    resumed = await store.resume(unfinished.id, notice=None, failed="no")
    assert isinstance(resumed, Begun)
    assert "outcome unknown" in resumed.history[-1].content.lower().replace("is unknown", "unknown")
    await close_or_fold(store, unfinished.id, "finished")
    [waiting] = await store.pending_keys()
    await begin(store, new_turn(waiting.key, turn_id="dora"))
    await close_or_fold(store, "dora", "answered")
    letters = await store.undelivered("telegram")
    [letter] = [one for one in letters if one.parts]
    assert [part.state for part in letter.parts] == ["sent", "sending"]
    repeated = await store.start_part(letter.outbound.id, 1, idempotent=False)
    assert repeated is not None
    assert repeated.possible_repeat
    assert (await store.totals()).requests
    await store.aclose()
    fresh = tmp_path / "fresh" / "state.db"
    await (await Store.open(fresh, clock=ManualClock())).aclose()
    assert schema(first) == schema(fresh)
    with database(first) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert other.execute("PRAGMA foreign_key_check").fetchall() == []
        assert other.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        answers = other.execute(
            "SELECT count(*) FROM outbox, json_each(message_ids) GROUP BY value"
        ).fetchall()
    assert set(answers) == {(1,)}


@pytest.mark.anyio
async def test_the_copy_is_whole_and_the_newest_two_are_kept(first: Path) -> None:
    for number in range(3):
        old = first.with_name(f"state.db.before-0-to-{number}")
        old.write_bytes(b"old")
        os.utime(old, (number, number))
    await (await Store.open(first, clock=ManualClock())).aclose()
    kept, newest = copies(first)
    assert (kept.name, newest.name) == ("state.db.before-0-to-2", f"state.db.before-1-to-{LATEST}")
    assert stat.S_IMODE(newest.stat().st_mode) == 0o600
    with closing(sqlite3.connect(newest)) as copy:
        assert copy.execute("PRAGMA user_version").fetchone() == (1,)
        assert copy.execute("SELECT count(*) FROM messages").fetchone()[0] > 6
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    await (await Store.open(first, clock=ManualClock())).aclose()
    assert copies(first) == [kept, newest]


def test_a_step_that_fails_leaves_the_file_and_says_how_to_go_on(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = upgrade.migrations()
    bad = (*good, (LATEST + 1, "CREATE TABLE halfway (x INTEGER) STRICT; SELECT * FROM nowhere;"))
    monkeypatch.setattr(upgrade, "migrations", lambda: bad)
    with pytest.raises(StoreUnavailable, match=r"could not be brought up to date.*nowhere"):
        open_writer(first)
    assert len(copies(first)) == 1
    with database(first) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (LATEST,)
        assert other.execute("SELECT * FROM sqlite_schema WHERE name = 'halfway'").fetchall() == []
    monkeypatch.setattr(upgrade, "migrations", lambda: good)
    assert "nowhere" in (upgrade.failed_before(first) or "")
    assert upgrade.failed_before(first) is None
    open_writer(first).close()


@pytest.mark.anyio
async def test_without_room_for_the_copy_nothing_is_changed(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = first.read_bytes()

    def full(connection: sqlite3.Connection, copy: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(upgrade, "_copy", full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        await Store.open(first, clock=ManualClock())
    with closing(sqlite3.connect(first)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (1,)
        assert "alerts" not in str(file.execute("SELECT name FROM sqlite_schema").fetchall())
    assert len(first.read_bytes()) == len(before)


def test_a_later_file_names_the_copy_to_go_back_with(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_writer(first).close()
    monkeypatch.setattr(
        "teaagentd.store.opening.migrations", lambda: upgrade.migrations()[: LATEST - 1]
    )
    with pytest.raises(StoreTooNew, match=f"state.db.before-1-to-{LATEST}, moved to its place"):
        open_writer(first)


SLOW = """
import sys
from pathlib import Path
from teaagentd.store import opening, upgrade
steps = upgrade.migrations()
fill = "INSERT INTO filler SELECT randomblob(2000) FROM messages a, messages b, messages c "
fill += "LIMIT 2000;"
slow = [(steps[-1][0] + n, f"CREATE TABLE IF NOT EXISTS filler (x BLOB) STRICT; {fill}")
        for n in range(1, 4)]
upgrade.migrations = opening.migrations = lambda: (*steps, *slow)
print("begun", flush=True)
opening.open_writer(Path(sys.argv[1]))
print("done", flush=True)
"""


@pytest.mark.parametrize("after_ms", [0, 5, 15, 30, 60, 100, 150])
def test_killed_in_the_middle_it_is_brought_up_to_date_by_the_next_start(
    first: Path, after_ms: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, str(first)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after_ms / 1000)
        process.send_signal(signal.SIGKILL)
    done = subprocess.run(
        [sys.executable, "-c", SLOW, str(first)], capture_output=True, text=True, check=True
    )
    assert "done" in done.stdout
    with database(first) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (LATEST + 3,)
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert other.execute("SELECT count(*) FROM filler").fetchone() == (6000,)
        assert other.execute("SELECT count(*) FROM messages").fetchone()[0] > 6
    assert copies(first)
