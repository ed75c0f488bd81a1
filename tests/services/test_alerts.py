"""What the owner is told of unasked: once, by a channel that works, over restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from teaagentd.errors import StoreUnavailable
from teaagentd.services.alerts import Alerts
from teaagentd.store import Store
from teaagentd.store.alerts import MOST_TOLD
from teaagentd.testing import FakeClock
from teaagentd.types import Alert, InboundMessage, OutboundMessage, SessionKey

pytestmark = pytest.mark.anyio


class Told:
    """Alerts over a store, and what they said."""

    def __init__(self, store: Store, clock: FakeClock, channels: Collection[str]) -> None:
        self.store = store
        self.channels = set(channels)
        self.said: list[OutboundMessage] = []
        self.alerts = Alerts(
            store=store, clock=clock, announce=self._take, channels=lambda: self.channels
        )

    def _take(self, outbound: Sequence[OutboundMessage]) -> None:
        self.said += outbound

    async def hear(self, channel: str, chat_id: str) -> None:
        message = InboundMessage(channel=channel, chat_id=chat_id, content="hello")
        await self.store.accept(message)

    async def until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            while not holds():
                await anyio.sleep(0.005)

    async def kept(self) -> Sequence[Alert]:
        """What the store holds once everything is written."""
        with anyio.fail_after(10):
            while list(await self.store.admin.open_alerts()) != list(self.alerts.open()):
                await anyio.sleep(0.005)
        return self.alerts.open()


@asynccontextmanager
async def telling(
    folder: Path, *channels: str, clock: FakeClock | None = None
) -> AsyncIterator[Told]:
    clock = clock or FakeClock()
    store = await Store.open(folder / "state.db", clock=clock)
    try:
        async with anyio.create_task_group() as tasks:
            told = Told(store, clock, channels)
            tasks.start_soon(told.alerts.run)
            yield told
            tasks.cancel_scope.cancel()
    finally:
        await store.aclose()


async def test_it_is_told_once_where_the_owner_spoke_last(tmp_path: Path) -> None:
    async with telling(tmp_path, "api", "box") as told:
        await told.hear("api", "old")
        await told.hear("box", "7")
        told.alerts.raised("disk", "/", "the disk is nearly full")
        told.alerts.raised("disk", "/", "the disk is nearly full")
        await told.until(lambda: bool(told.said))
        [said] = told.said
        assert (said.kind, str(said.session_key), said.message_ids) == ("notice", "box:7", ())
        assert said.content == "Attention: the disk is nearly full"
        told.alerts.raised("disk", "/", "the disk is fuller")
        await told.kept()
        assert told.alerts.open()[0].text == "the disk is fuller"
        assert len(told.said) == 1


async def test_a_restart_does_not_tell_it_again_and_a_new_cause_does(tmp_path: Path) -> None:
    async with telling(tmp_path, "api") as told:
        await told.hear("api", "c")
        told.alerts.raised("disk", "/", "full")
        await told.until(lambda: bool(told.said))
    async with telling(tmp_path, "api") as told:
        await told.until(lambda: bool(told.alerts.open()))
        told.alerts.raised("disk", "/", "full")
        await told.kept()
        assert told.said == []
        told.alerts.cleared("disk", "/")
        assert await told.kept() == []
        told.alerts.raised("disk", "/", "full")
        await told.until(lambda: bool(told.said))


async def test_what_is_the_matter_with_a_channel_is_not_told_by_it(tmp_path: Path) -> None:
    async with telling(tmp_path, "api", "box") as told:
        await told.hear("api", "c")
        await told.hear("box", "7")
        told.alerts.raised("dead_letters", "box", "it takes nothing")
        await told.until(lambda: bool(told.said))
        assert [str(one.session_key) for one in told.said] == ["api:c"]


async def test_without_an_address_it_waits_until_there_is_one(tmp_path: Path) -> None:
    async with telling(tmp_path, "api") as told:
        await told.hear("gone", "7")
        told.alerts.raised("disk", "/", "full")
        assert (await told.kept())[0].told_at is None
        await told.hear("api", "c")
        told.alerts.raised("channel", "gone", "it does not stay up")
        await told.until(lambda: len(told.said) == 2)
        assert all(alert.told_at is not None for alert in await told.kept())


async def test_a_storm_is_told_in_part_and_listed_whole(tmp_path: Path) -> None:
    clock = FakeClock()
    async with telling(tmp_path, "api", clock=clock) as told:
        await told.hear("api", "c")
        for number in range(MOST_TOLD + 10):
            told.alerts.raised("summary", f"api:{number}", f"no summary of {number}")
        await told.kept()
        assert len(told.said) == MOST_TOLD
        assert "`teaagentd status` only" in told.said[-1].content
        assert not any("status` only" in one.content for one in told.said[:-1])
        assert len(told.alerts.open()) == MOST_TOLD + 10
        clock.advance(3601)
        told.alerts.raised("disk", "/", "full")
        await told.until(lambda: len(told.said) > MOST_TOLD)


async def test_while_the_store_fails_it_is_shown_and_told_when_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("teaagentd.services.alerts._AGAIN_S", 0.02)
    async with telling(tmp_path, "api") as told:
        await told.hear("api", "c")
        works = told.store.admin.raise_alert
        failures = 0

        async def fail(*details: object) -> None:
            nonlocal failures
            failures += 1
            raise StoreUnavailable("the disk is full")

        monkeypatch.setattr(told.store.admin, "raise_alert", fail)
        told.alerts.raised("disk", "/", "full")
        await told.until(lambda: failures > 2)
        assert [alert.text for alert in told.alerts.open()] == ["full"]
        monkeypatch.setattr(told.store.admin, "raise_alert", works)
        await told.until(lambda: bool(told.said))
        key = SessionKey(channel="api", chat_id="c")
        assert len(await told.store.replies(key, after=0)) == 1
