"""The channels that a dispatcher serves, changed while it runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from teaagentd.abc import Inbox
from teaagentd.channels import served
from teaagentd.errors import ConfigError
from teaagentd.testing import MemoryChannel
from tests.core.test_dispatcher import posting

pytestmark = pytest.mark.anyio


class Counted(MemoryChannel):
    """Counts how many of its name receive at once."""

    receiving = 0
    most = 0

    async def run(self, inbox: Inbox) -> None:
        Counted.receiving += 1
        Counted.most = max(Counted.most, Counted.receiving)
        try:
            await super().run(inbox)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.02)
            Counted.receiving -= 1


@pytest.fixture(autouse=True)
def none_yet() -> None:
    Counted.receiving = Counted.most = 0


async def test_one_that_is_the_same_goes_on_undisturbed(tmp_path: Path) -> None:
    kept, gone = Counted("kept"), Counted("gone")
    async with posting(tmp_path, kept, gone) as post:
        await post.settled()
        since = post.dispatcher.channel_status()[0].since
        post.dispatcher.use({"kept": kept, "new": Counted("new")})
        await post.until(lambda: Counted.receiving == 2)
        names = [status.name for status in post.dispatcher.channel_status()]
        assert (names, post.dispatcher.channel_status()[0].since) == (["kept", "new"], since)
        assert not post.dispatcher.serves("gone")


async def test_never_two_of_one_name_receive_at_once(tmp_path: Path) -> None:
    """Replaced again before the first replacement began; taken out and put in again."""
    async with posting(tmp_path, Counted()) as post:
        await post.settled()
        for _ in range(3):
            post.dispatcher.use({"memory": Counted()})
        post.dispatcher.use({})
        last = Counted()
        post.dispatcher.use({"memory": last})
        await post.until(lambda: Counted.receiving == 1 and last._inbox is not None)
        assert Counted.most == 1
        await post.reply("one")
        await post.empty()
        assert [part.content for part in last.arrived] == ["one"]


async def test_what_is_being_sent_is_sent_and_the_rest_goes_by_the_new_one(tmp_path: Path) -> None:
    before, after = MemoryChannel(), MemoryChannel()
    before.hold = anyio.Event()
    async with posting(tmp_path, before) as post:
        await post.reply("one", "two")
        await post.until(lambda: len(before.sent) == 1)
        post.dispatcher.use({"memory": after})
        await anyio.sleep(0.05)
        assert after.sent == []
        before.hold.set()
        await post.empty()
    assert [part.content for part in before.arrived] == ["one"]
    assert [(part.content, part.possible_repeat) for part in after.arrived] == [("two", False)]


async def test_texts_for_one_that_is_gone_are_dead_letters(tmp_path: Path) -> None:
    before = MemoryChannel()
    before.hold = anyio.Event()
    async with posting(tmp_path, before) as post:
        await post.reply("one", "two")
        await post.until(lambda: len(before.sent) == 1)
        post.dispatcher.use({})
        before.hold.set()
        await post.empty()
        assert await post.dead() == 1
    assert [part.content for part in before.arrived] == ["one"]


async def test_one_that_will_not_end_holds_up_its_successor_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stubborn(MemoryChannel):
        over = anyio.Event()

        async def run(self, inbox: Inbox) -> None:
            while not self.over.is_set():
                with suppress(anyio.get_cancelled_exc_class()):
                    await self.over.wait()

    monkeypatch.setattr(served.ServedChannel.stop, "__defaults__", (0.05,))
    stubborn, after = Stubborn(), MemoryChannel()
    async with posting(tmp_path, stubborn) as post:
        await post.settled()
        post.dispatcher.use({"memory": after})
        await post.reply("one")
        await post.empty()
        assert [part.content for part in after.arrived] == ["one"]
        assert post.dispatcher.left_behind == ("memory", "memory")
        stubborn.over.set()
        await post.until(lambda: post.dispatcher.left_behind == ("memory",))


async def test_one_that_can_carry_nothing_changes_nothing(tmp_path: Path) -> None:
    kept = MemoryChannel()
    async with posting(tmp_path, kept) as post:
        with pytest.raises(ConfigError, match="0 characters"):
            post.dispatcher.use({"memory": MemoryChannel(limit=0)})
        await post.reply("one")
        await post.empty()
        assert [part.content for part in kept.arrived] == ["one"]
