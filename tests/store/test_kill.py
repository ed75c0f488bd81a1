"""Killed at a commit, the file holds exactly what was committed, and the store goes on with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from teaagentd.errors import ConfigError
from teaagentd.store import Store, failpoints
from teaagentd.store.commits import COMMITS
from teaagentd.store.values import Begun
from tests.store.life import dump, killed_at, live_in
from tests.store.steps import ManualClock, database


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, object]]:
    """The name of each commit of the life and what the file held after it."""
    path = tmp_path_factory.mktemp("whole") / "state.db"
    found: list[tuple[str, object]] = []

    def note(name: str, when: str) -> None:
        if when == "after":
            found.append((name, dump(path)))

    asyncio.run(live_in(path, note))
    return found


@pytest.mark.parametrize(("name", "side"), list(product(COMMITS, ("before", "after"))))
def test_a_kill_leaves_what_was_committed_and_no_more(
    states: list[tuple[str, object]], tmp_path: Path, name: str, side: str
) -> None:
    path = tmp_path / "state.db"
    at = [position for position, (found, _) in enumerate(states) if found == name]
    nth = len(at)
    assert killed_at(path, f"{name}:{side}:{nth}")
    last = at[-1] if side == "after" else at[-1] - 1
    assert last < 0 or dump(path) == states[last][1]
    with database(path) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert other.execute("PRAGMA foreign_key_check").fetchall() == []
    asyncio.run(_goes_on(path))


async def _goes_on(path: Path) -> None:
    """After the restart each message comes to stand in exactly one text."""
    store = await Store.open(path, clock=ManualClock())
    for running in await store.running_turns():
        resumed = await store.resume(running.id, notice=None, failed="gave up")
        if isinstance(resumed, Begun):
            await store.close(running.id, text="closed", outcome="interrupted", attempts=())
    for pending in await store.pending_keys():
        await store.command(None, pending.key, "stop", str, "Stopped.", lambda row: None)
    answered: Counter[int] = Counter()
    for session in await store.sessions():
        for text in await store.replies(session.key, after=0):
            answered.update(text.message_ids)
    await store.aclose()
    with database(path) as other:
        accepted = [
            row_id for (row_id,) in other.execute("SELECT id FROM inbox WHERE channel <> ''")
        ]
    assert answered == Counter(accepted)


def test_a_run_without_a_fail_point_is_not_killed(tmp_path: Path) -> None:
    assert not killed_at(tmp_path / "state.db", "")


@pytest.mark.parametrize(
    "text",
    ["T0.accept", "T0.accept:during", "T9.none:after", "T0.accept:after:0", "T0.accept:after:x:1"],
)
def test_a_fail_point_that_never_strikes_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="TEAAGENTD_FAILPOINT"):
        failpoints.from_environment({failpoints.VARIABLE: text})


def test_no_fail_point_is_the_rule() -> None:
    assert failpoints.from_environment({}) is None
    assert failpoints.from_environment({failpoints.VARIABLE: ""}) is None
