"""What months leave behind: a home of many sessions and messages beside a new one, alternating."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

from teaagentd.store.opening import open_writer
from tests.bench.figures import Effort, Figure, load
from tests.bench.processes import cpu_s
from tests.daemon_process import Box, DaemonProcess
from tests.strict_server import ServerProcess

KNOWN = 1000
"""Sessions that the daemon has served since it was started, and that are idle."""
BUSY_MESSAGES, BUSY_CHARACTERS = 1000, 8000
_FILL = """
    WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {count})
    INSERT INTO {table} {values} FROM number
"""
_WORDS = "printf('Please tell me something of use about tea, number %d. ', n)"
_TABLES = {
    "sessions (id, key, listed, created_at, active_at)": (
        "sessions",
        "SELECT n, printf('api:month-%d', n), 1, n, n",
    ),
    "turns (number, id, session, generation, origin, state, outcome, started_at, ended_at)": (
        "turns",
        "SELECT n, printf('turn-%d', n), 1 + n % {sessions}, 1, 'bus', 'done', 'answered', n, n",
    ),
    "outbox (id, session, turn, channel, chat_id, kind, content, message_ids, state, created_at)": (
        "turns",
        "SELECT n, 1 + n % {sessions}, n, 'api', printf('month-%d', 1 + n % {sessions}), 'final', "
        f"{_WORDS}, printf('[%d]', n), 'available', n",
    ),
    "inbox (id, session, kind, channel, chat_id, external_id, content, state, turn, answer, "
    "accepted_at)": (
        "turns",
        "SELECT n, 1 + n % {sessions}, 'message', 'api', printf('month-%d', 1 + n % {sessions}), "
        f"printf('e-%d', n), {_WORDS}, 'done', n, n, n",
    ),
    "messages (session, turn, place, position, role, content, inbox, created_at)": (
        "turns",
        f"SELECT 1 + n % {{sessions}}, n, 2 * n, 0, 'user', {_WORDS}, n, n",
    ),
    "messages (session, turn, place, position, role, content, model, created_at)": (
        "turns",
        f"SELECT 1 + n % {{sessions}}, n, 2 * n + 1, 0, 'assistant', {_WORDS}, 'strict', n",
    ),
    "usage (turn, provider, model, purpose, input_tokens, output_tokens, started_at, "
    "duration_ms)": (
        "turns",
        "SELECT n, 'openai', 'strict', 'turn', 1000, 20, n, 5",
    ),
}


def fill(path: Path, *, sessions: int, messages: int) -> None:
    """A database as months would leave it: each message a row, a turn's two of them."""
    counts = {"sessions": sessions, "turns": messages // 2}
    with closing(open_writer(path)) as connection:
        for table, (kind, values) in _TABLES.items():
            connection.execute(
                _FILL.format(
                    table=table, count=counts[kind], values=values.format(sessions=sessions)
                )
            )
            connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def months(effort: Effort) -> Iterator[Figure]:
    """CPU of a turn and of a start beside a new home; memory while a busy session is told much."""
    with Box() as box, ServerProcess(lean=True) as server:
        old = box.root / "old"
        old.mkdir()
        fill(old / "state.db", sessions=effort.stored_sessions, messages=effort.stored_messages)
        homes = [DaemonProcess(home, provider=server.url) for home in (box.root / "new", old)]
        starts: list[list[float]] = [[], []]
        for _ in range(effort.rounds + 1):
            for daemon, found in zip(homes, starts, strict=True):
                with daemon:
                    daemon.start()
                    found.append(cpu_s(daemon.pid))
                    daemon.terminate()
        spent = _turns(homes, effort)
    what = f"{effort.stored_sessions} sessions, {effort.stored_messages} messages"
    (new, old_ms) = map(median, spent)
    yield Figure(
        name="CPU per turn after months",
        unit="ms",
        daemon=old_ms,
        bare=new,
        ratio=old_ms / new,
        at_most=1.1,
        note=f"{what}, {min(KNOWN, effort.stored_sessions)} known; bare: a new home",
    )
    ready, ready_old = (median(found[1:]) for found in starts)
    yield Figure(
        name="start to ready after months, CPU",
        unit="s",
        daemon=ready_old,
        bare=ready,
        ratio=ready_old - ready,
        at_most=0.3,
        note="the bound is on the difference to a new home",
    )
    yield _busy()


def _turns(homes: list[DaemonProcess], effort: Effort) -> list[list[float]]:
    """Milliseconds of CPU per turn in each round, of each home."""
    spent: list[list[float]] = [[], []]
    new, old = homes
    with new, old:
        new.start()
        old.start()
        load(new, sessions=10, prefix="warm")
        load(old, sessions=min(KNOWN, effort.stored_sessions), prefix="month", at_once=4)
        for number in range(2 * effort.rounds):
            for daemon, found in zip(homes, spent, strict=True):
                before = cpu_s(daemon.pid)
                load(daemon, sessions=effort.turns, prefix=f"m{number}")
                found.append((cpu_s(daemon.pid) - before) * 1000 / effort.turns)
    return spent


def _busy() -> Figure:
    """The most memory while one session is sent much that the next request then holds."""
    texts = [f"{number:04} ".ljust(BUSY_CHARACTERS, "x") for number in range(BUSY_MESSAGES)]
    size = BUSY_MESSAGES * BUSY_CHARACTERS / 1e6
    with Box() as box, ServerProcess(lean=True, latency_ms=6000) as server:
        daemon = DaemonProcess(box.home, provider=server.url)
        with daemon:
            daemon.start()
            daemon.ask("warm", "Hello.")
            Path(f"/proc/{daemon.pid}/clear_refs").write_text("5")
            before = _most(daemon.pid)
            ids = [daemon.post("busy", text) for text in texts]
            while not any(ids[-1] in one["message_ids"] for one in daemon.all_replies("api:busy")):
                time.sleep(0.1)
            grown = _most(daemon.pid) - before
    return Figure(
        name="memory that 1,000 messages to one busy session take",
        unit="MB",
        daemon=grown,
        bare=size,
        ratio=grown / size,
        at_most=2,
        note="bare: their size; the most that was resident, the request to the model included",
    )


def _most(pid: int) -> float:
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024 / 1e6
