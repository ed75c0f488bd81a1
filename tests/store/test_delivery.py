"""T6: a text goes through its channel part by part; what is unknown is repeated once, ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from teaagentd.errors import StoreError
from teaagentd.store import Store
from teaagentd.types import OutboundMessage, Receipt, SessionKey
from tests.store.steps import (
    KEY,
    ManualClock,
    close_or_fold,
    command,
    said,
    started,
)

pytestmark = pytest.mark.anyio

CHAT = SessionKey(channel="telegram", chat_id="7")


async def letter(store: Store, *parts: str, key: SessionKey = CHAT) -> OutboundMessage:
    turn = await started(store, "hi", key=key)
    closed = await close_or_fold(store, turn.turn_id, "".join(parts))
    (outbound,) = closed.outbound
    await store.freeze(outbound.id, parts)
    return outbound


async def reopened(store: Store, path: Path) -> Store:
    await store.aclose()
    return await Store.open(path, clock=ManualClock())


async def test_on_a_pull_channel_being_there_is_the_delivery(store: Store) -> None:
    turn = await started(store, "hi")
    closed = await close_or_fold(store, turn.turn_id, "hello")
    assert await store.undelivered("api") == ()
    assert await store.replies(KEY, after=0) == closed.outbound
    assert await store.replies(KEY, after=closed.outbound[0].id) == ()
    assert (await store.depths()).outbox == 0


async def test_a_text_is_sent_once_all_parts_are(store: Store) -> None:
    outbound = await letter(store, "a", "b")
    for index in (0, 1):
        assert len(await store.undelivered("telegram")) == 1
        part = await store.start_part(outbound.id, index, idempotent=False)
        assert part is not None
        assert (part.content, part.address, part.possible_repeat) == (
            "ab"[index],
            outbound.address,
            False,
        )
        await store.finish_part(outbound.id, index, Receipt(external_id=f"x{index}"))
    assert await store.undelivered("telegram") == ()
    assert await store.start_part(outbound.id, 0, idempotent=False) is None
    assert [text.content for text in await store.replies(CHAT, after=0)] == ["ab"]


async def test_the_cut_is_kept_from_the_first_send_on(store: Store, path: Path) -> None:
    outbound = await letter(store, "a", "b")
    await store.freeze(outbound.id, ["cut", "other", "wise"])
    store = await reopened(store, path)
    (found,) = await store.undelivered("telegram")
    assert [(part.index, part.content, part.state) for part in found.parts] == [
        (0, "a", "pending"),
        (1, "b", "pending"),
    ]
    await store.aclose()


async def test_a_text_not_frozen_has_no_parts_to_send(store: Store) -> None:
    turn = await started(store, "hi", key=CHAT)
    (outbound,) = (await close_or_fold(store, turn.turn_id, "hello")).outbound
    (found,) = await store.undelivered("telegram")
    assert (found.outbound, found.parts, found.not_before) == (outbound, (), 0)
    with pytest.raises(StoreError):
        await store.start_part(outbound.id, 0, idempotent=True)
    await store.freeze(outbound.id, [])
    assert await store.undelivered("telegram") == ()


async def test_an_unknown_outcome_is_repeated_once_ever_across_restarts(
    store: Store, path: Path
) -> None:
    # openclaw/openclaw#29106, #124517
    outbound = await letter(store, "a", "b")
    first = await store.start_part(outbound.id, 0, idempotent=False)
    assert first is not None
    assert not first.possible_repeat
    store = await reopened(store, path)
    repeat = await store.start_part(outbound.id, 0, idempotent=False)
    assert repeat is not None
    assert repeat.possible_repeat
    store = await reopened(store, path)
    assert await store.start_part(outbound.id, 0, idempotent=False) is None
    assert await store.undelivered("telegram") == ()
    assert (await store.depths()).dead_letters == 1
    store = await reopened(store, path)
    assert await store.start_part(outbound.id, 0, idempotent=False) is None
    await store.aclose()


async def test_a_channel_that_knows_keys_is_given_the_same_one_again(
    store: Store, path: Path
) -> None:
    outbound = await letter(store, "a", "b")
    keys = set()
    for _ in range(4):
        part = await store.start_part(outbound.id, 0, idempotent=True)
        assert part is not None
        assert not part.possible_repeat
        keys.add(part.idempotency_key)
        store = await reopened(store, path)
    assert len(keys) == 1
    other = await store.start_part(outbound.id, 1, idempotent=True)
    assert other is not None
    assert other.idempotency_key not in keys
    await store.aclose()


async def test_keys_of_two_homes_differ(store: Store, tmp_path: Path) -> None:
    second = await Store.open(tmp_path / "other" / "state.db", clock=ManualClock())
    keys = []
    for home in (store, second):
        part = await home.start_part((await letter(home, "a")).id, 0, idempotent=True)
        assert part is not None
        keys.append(part.idempotency_key)
    assert keys[0] != keys[1]
    await second.aclose()


async def test_a_killed_reply_goes_on_at_the_part_it_was_at(store: Store, path: Path) -> None:
    outbound = await letter(store, "1", "2", "3", "4")
    for index in (0, 1):
        await store.start_part(outbound.id, index, idempotent=False)
        await store.finish_part(outbound.id, index, Receipt())
    await store.start_part(outbound.id, 2, idempotent=False)
    store = await reopened(store, path)
    (found,) = await store.undelivered("telegram")
    assert [part.state for part in found.parts] == ["sent", "sent", "sending", "pending"]
    assert await store.start_part(outbound.id, 1, idempotent=False) is None
    repeated = await store.start_part(outbound.id, 2, idempotent=False)
    fresh = await store.start_part(outbound.id, 3, idempotent=False)
    assert repeated is not None
    assert fresh is not None
    assert (repeated.possible_repeat, fresh.possible_repeat) == (True, False)
    await store.aclose()


async def test_a_delay_is_no_unknown_outcome(store: Store) -> None:
    outbound = await letter(store, "a")
    for _ in range(3):
        part = await store.start_part(outbound.id, 0, idempotent=False)
        assert part is not None
        assert not part.possible_repeat
        await store.delay(outbound.id, 0, until_ms=99)
        (found,) = await store.undelivered("telegram")
        assert (found.not_before, found.parts[0].state) == (99, "pending")


async def test_a_repeat_that_was_put_off_stays_a_possible_repeat(store: Store) -> None:
    outbound = await letter(store, "a")
    await store.start_part(outbound.id, 0, idempotent=False)
    await store.start_part(outbound.id, 0, idempotent=False)
    await store.delay(outbound.id, 0, until_ms=0)
    part = await store.start_part(outbound.id, 0, idempotent=False)
    assert part is not None
    assert part.possible_repeat
    assert await store.start_part(outbound.id, 0, idempotent=False) is None


async def test_a_refusal_sets_the_text_aside_and_the_next_goes_on(store: Store) -> None:
    first = await letter(store, "a")
    second = await letter(store, "b")
    await store.start_part(first.id, 0, idempotent=False)
    await store.refuse(first.id, "chat not found")
    assert [found.outbound.id for found in await store.undelivered("telegram")] == [second.id]
    assert await store.start_part(first.id, 0, idempotent=False) is None
    assert (await store.depths()).dead_letters == 1
    # A refusal that comes late does not bury what was sent.
    await store.start_part(second.id, 0, idempotent=False)
    await store.finish_part(second.id, 0, Receipt())
    await store.refuse(second.id, "too late")
    assert (await store.depths()).dead_letters == 1


async def test_letters_are_listed_by_channel_oldest_first(store: Store) -> None:
    mail = SessionKey(channel="mail", chat_id="ann")
    ids = [(await letter(store, "x", key=key)).id for key in (CHAT, mail, CHAT)]
    assert [found.outbound.id for found in await store.undelivered("telegram")] == [ids[0], ids[2]]
    assert [found.outbound.id for found in await store.undelivered("mail")] == [ids[1]]
    assert sorted(await store.undelivered_channels()) == ["mail", "telegram"]


async def test_depths_say_how_long_the_oldest_waits(store: Store, clock: ManualClock) -> None:
    empty = await store.depths()
    assert (empty.inbox, empty.inbox_oldest_ms, empty.outbox, empty.outbox_oldest_ms) == (
        0,
        None,
        0,
        None,
    )
    await letter(store, "x")
    await store.accept(said("waits"))
    clock.ms += 250
    await command(store, "none", message=said("/status"))
    depths = await store.depths()
    assert (depths.inbox, depths.inbox_oldest_ms) == (1, 250)
    assert (depths.outbox, depths.outbox_oldest_ms) == (1, 250)
