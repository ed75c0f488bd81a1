"""What an operator does with what is kept."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from teaagentd.errors import StoreError
from teaagentd.store import Store, desk
from teaagentd.store.erasure import ERASED, Target
from teaagentd.store.values import Begun, PendingKey
from teaagentd.types import Address, Alert, Receipt, SessionKey
from tests.store.steps import begin, close_or_fold, database, decide, new_turn, result, said

pytestmark = pytest.mark.anyio

GROUP = SessionKey(channel="box", chat_id="group")
EVE = "eve-of-the-group"
SECRET = "xyzzy-my-secret-word"


async def answered(store: Store, key: SessionKey, *words: str, by: str = "anna") -> Begun:
    """One turn that took in `words` of one sender and repeats them."""
    for text in words:
        await store.accept(said(text, key.chat_id, key.channel, sender_id=by))
    turn = await begin(store, new_turn(key, turn_id=uuid4().hex))
    await decide(store, turn.turn_id, "a", notice=f"noticed {words[0]}")
    await store.start_call(turn.turn_id, "a")
    await store.finish_call(turn.turn_id, result("a"))
    await close_or_fold(store, turn.turn_id, f"you said {words[0]}")
    return turn


async def dead_letter(store: Store, *parts: str) -> int:
    """A text that is given up: its first part is sent, the outcome of the second one unknown."""
    await store.accept(said("ask", "7", "box"))
    turn = await begin(store, new_turn(SessionKey(channel="box", chat_id="7")))
    closed = await close_or_fold(store, turn.turn_id, "".join(parts))
    letter = closed.outbound[0].id
    await store.freeze(letter, list(parts))
    await store.start_part(letter, 0, idempotent=False)
    await store.finish_part(letter, 0, Receipt())
    await store.start_part(letter, 1, idempotent=False)
    await store.refuse(letter, "no such chat")
    return letter


async def test_a_letter_that_is_retried_goes_on_where_it_is_not_known_to_have_arrived(
    store: Store,
) -> None:
    letter = await dead_letter(store, "one", "two", "three")
    [entry] = await store.admin.outbox()
    assert (entry.id, entry.state, entry.reason, entry.parts, entry.sent) == (
        letter,
        "dead",
        "no such chat",
        3,
        1,
    )
    assert await store.admin.retry_letter(letter) == "box"
    assert await store.start_part(letter, 0, idempotent=False) is None
    again = await store.start_part(letter, 1, idempotent=False)
    assert again is not None
    assert (again.content, again.possible_repeat) == ("two", True)
    await store.finish_part(letter, 1, Receipt())
    last = await store.start_part(letter, 2, idempotent=False)
    assert last is not None
    assert (last.content, last.possible_repeat) == ("three", False)
    with pytest.raises(StoreError, match="is pending, not given up"):
        await store.admin.retry_letter(letter)


async def test_a_letter_that_is_dropped_is_neither_sent_nor_listed_nor_counted(
    store: Store,
) -> None:
    letter = await dead_letter(store, "one", "two")
    await store.admin.drop_letter(letter)
    assert await store.admin.outbox() == ()
    assert (await store.depths()).dead_letters == 0
    assert await store.start_part(letter, 1, idempotent=False) is None
    with pytest.raises(StoreError, match="dropped by the operator; there is nothing to drop"):
        await store.admin.drop_letter(letter)
    with pytest.raises(StoreError, match="there is no text 99"):
        await store.admin.drop_letter(99)


async def test_a_message_that_waits_is_answered_when_it_is_dropped(store: Store) -> None:
    first = await store.accept(said("first"))
    second = await store.accept(said("second"))
    key, texts = await store.admin.drop_row(first.id, text="not answered")
    assert (str(key), [text.message_ids for text in texts]) == ("api:k", [(first.id,)])
    assert [entry.id for entry in await store.admin.inbox()] == [second.id]
    with pytest.raises(StoreError, match="was answered already"):
        await store.admin.drop_row(first.id, text="again")
    turn = await begin(store, new_turn())
    assert [row.id for row in turn.claimed] == [second.id]
    with pytest.raises(StoreError, match="is being answered"):
        await store.admin.drop_row(second.id, text="no")


@pytest.mark.parametrize("wanted", ["ÖSTERREICH", "österreich", "Straße", "STRASSE", "tea\u2028x"])
async def test_what_was_said_is_found_in_either_case(store: Store, wanted: str) -> None:
    key = SessionKey(channel="box", chat_id="../a/b")
    await answered(store, key, "Österreich, Straße, tea\u2028x")
    found, following = await store.admin.search(wanted)
    assert following is None
    assert [str(one.key) for one in found] == ["box:../a/b"] * len(found)
    assert found[-1].message.role == "user"
    assert all(one.message.note is None for one in found)


async def test_a_search_goes_on_stretch_by_stretch(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "STRETCH", 3)
    for number in range(4):
        await answered(store, GROUP, f"needle {number}")
    seen: list[int | None] = []
    before = None
    while True:
        found, following = await store.admin.search("NEEDLE", limit=2, before=before)
        assert len(found) <= 2
        seen += [one.message.id for one in found]
        if following is None:
            break
        before = following
    assert len(seen) == len(set(seen)) == 4 * 3
    assert seen == sorted(seen, key=lambda row: -(row or 0))


async def test_pages_are_bounded_by_what_they_hold(store: Store) -> None:
    """Read from either end, or looked for: nothing is missing, nothing comes twice."""
    for number in range(5):
        await answered(store, GROUP, f"{number}" + "x" * 999_999)
    whole = await store.transcript(GROUP, limit=1)
    while (page := await store.admin.transcript(GROUP, before=whole[0].id)) is not None and (
        page.messages
    ):
        assert len(page.messages) <= 3
        whole = (*page.messages, *whole)
    assert len(whole) == 5 * 4
    forward = []
    after: int | None = 0
    while after is not None:
        page = await store.admin.transcript(GROUP, limit=3, after=after)
        assert page is not None
        forward += page.messages
        after = page.messages[-1].id if page.more else None
    assert tuple(forward) == whole
    seen: list[int | None] = []
    before = None
    while True:
        found, before = await store.admin.search("xxx", before=before)
        assert len(found) <= 2
        seen += [one.message.id for one in found]
        if before is None:
            break
    assert seen == sorted((one.id for one in whole if "xxx" in one.content), reverse=True)


async def test_reading_goes_on_where_the_place_it_had_come_to_is_gone(store: Store) -> None:
    for number, by in enumerate(("anna", EVE, "anna")):
        await answered(store, GROUP, f"{number}", by=by)
    eves = (await store.transcript(GROUP))[5]
    await store.admin.erase(Target(sender=EVE))
    before = await store.admin.transcript(GROUP, before=eves.id)
    after = await store.admin.transcript(GROUP, after=eves.id)
    assert before is not None
    assert after is not None
    assert [page.messages[0].content for page in (before, after)] == ["0", "2"]
    assert (*before.messages, *after.messages) == await store.transcript(GROUP)


async def test_a_queue_is_listed_with_the_beginnings_of_its_texts(store: Store) -> None:
    await store.accept(said("y" * (1 << 20)))
    [entry] = await store.admin.inbox()
    assert (entry.content, entry.characters) == ("y" * desk.EXCERPT, 1 << 20)


async def test_what_is_no_text_any_more_hinders_no_search(store: Store, path: Path) -> None:
    await answered(store, GROUP, "needle")
    with database(path) as other:
        other.execute("UPDATE messages SET content = CAST(x'ff41' AS TEXT) WHERE role = 'tool'")
    assert len((await store.admin.search("needle"))[0]) == 3
    assert (await store.admin.search("\ufffda"))[0][0].message.role == "tool"


async def test_a_deleted_session_leaves_nothing_but_what_is_counted(
    store: Store, path: Path
) -> None:
    await answered(store, GROUP, SECRET)
    await store.accept(said("kept", "other", "box", sender_id="bert"))
    await store.accept(said(SECRET, "group", "box", external_id="known"))
    before = await store.totals()
    would = await store.admin.delete_session(GROUP, only_count=True)
    assert (would.messages, would.inbox, would.outbox) == (4, 2, 2)
    removed = await store.admin.delete_session(GROUP)
    assert removed == would
    assert removed.waiting[0].key == GROUP
    for file in path.parent.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file
    assert await store.totals() == before
    assert [str(one.key) for one in await store.sessions()] == ["box:other"]
    again = await store.accept(said(SECRET, "group", "box", external_id="known"))
    assert again.duplicate
    with pytest.raises(StoreError, match="there is no session box:group"):
        await store.admin.delete_session(GROUP)
    await store.accept(said("anew", "group", "box"))
    turn = await begin(store, new_turn(GROUP, turn_id="anew"))
    assert [message.content for message in turn.history] == ["anew"]
    with pytest.raises(StoreError, match="is at work"):
        await store.admin.delete_session(GROUP)
    with database(path) as other:
        assert other.execute("PRAGMA foreign_key_check").fetchall() == []
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_an_alert_about_a_deleted_session_goes_with_it(store: Store) -> None:
    await answered(store, GROUP, "hello")
    for subject in (str(GROUP), "box:other"):
        alert = Alert(kind="summary", subject=subject, text=f"{subject} is long", raised_at=1)
        await store.admin.raise_alert(alert, ())
    await store.admin.delete_session(GROUP)
    assert [alert.subject for alert in await store.admin.open_alerts()] == ["box:other"]


async def test_a_person_is_erased_where_others_took_part(store: Store, path: Path) -> None:
    """Their words stay, and the history stays legal; his alone go whole."""
    own = SessionKey(channel="box", chat_id="own")
    await answered(store, own, SECRET, by=EVE)
    await answered(store, GROUP, "anna's first")
    await answered(store, GROUP, SECRET, by=EVE)
    await store.accept(said("anna beside eve", "group", "box", sender_id="anna"))
    await store.accept(said(SECRET, "group", "box", sender_id=EVE))
    shared = await begin(store, new_turn(GROUP, turn_id="shared"))
    assert len(shared.claimed) == 2
    with pytest.raises(StoreError, match="box:group is at work"):
        await store.admin.erase(Target(sender=EVE))
    await close_or_fold(store, "shared", f"both of you: {SECRET}")
    waits = await store.accept(said(f"waits {SECRET}", "group", "box", sender_id=EVE))
    would = await store.admin.erase(Target(sender=EVE), only_count=True)
    assert await store.admin.erase(Target(sender=EVE)) == would
    assert (would.sessions, len(would.keys)) == (1, 2)
    assert would.waiting == (PendingKey(key=GROUP, ids=(waits.id,)),)
    for file in path.parent.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file
        assert EVE.encode() not in file.read_bytes(), file
    left = [message.content for message in await store.transcript(GROUP)]
    hers = ["anna's first", "noticed anna's first", "done", "you said anna's first"]
    assert left == [*hers, "anna beside eve"]
    assert [str(one.key) for one in await store.sessions()] == ["box:group"]
    await store.accept(said("still there?", "group", "box", sender_id="anna"))
    turn = await begin(store, new_turn(GROUP, turn_id="after"))
    assert [message.content for message in turn.history][-2:] == ["anna beside eve", "still there?"]
    with pytest.raises(StoreError, match="nothing is known of them"):
        await store.admin.erase(Target(sender=EVE))
    with database(path) as other:
        assert other.execute("PRAGMA foreign_key_check").fetchall() == []


async def test_who_has_no_name_is_another_person(store: Store) -> None:
    await store.accept(said("nobody's", "group", "box"))
    turn = await begin(store, new_turn(GROUP))
    await close_or_fold(store, turn.turn_id, "to nobody")
    await answered(store, GROUP, "eve's", by=EVE)
    removed = await store.admin.erase(Target(sender=EVE))
    assert (removed.sessions, removed.inbox) == (0, 1)
    left = [message.content for message in await store.transcript(GROUP)]
    assert left == ["nobody's", "to nobody"]


async def test_a_sender_of_one_channel_is_not_one_of_another(store: Store) -> None:
    await answered(store, GROUP, "in the box", by="7")
    await answered(store, SessionKey(channel="api", chat_id="c"), "elsewhere", by="7")
    removed = await store.admin.erase(Target(sender="7", channel="box"))
    assert [str(key) for key in removed.keys] == ["box:group"]
    removed = await store.admin.erase(Target(chat=Address(channel="api", chat_id="c")))
    assert [str(key) for key in removed.keys] == ["api:c"]


async def test_what_was_given_up_and_is_erased_or_dropped_is_never_sent_again(
    store: Store,
) -> None:
    """Not even as the mark that stands in its place."""
    await answered(store, GROUP, "anna's own")
    await store.accept(said(SECRET, "group", "box", sender_id=EVE))
    turn = await begin(store, new_turn(GROUP, turn_id="theirs"))
    closed = await close_or_fold(store, turn.turn_id, f"you said {SECRET}")
    letter = closed.outbound[0].id
    await store.refuse(letter, "no such chat")
    await store.admin.erase(Target(sender=EVE))
    assert letter not in [entry.id for entry in await store.admin.outbox()]
    with pytest.raises(StoreError, match="dropped"):
        await store.admin.retry_letter(letter)
    assert (await store.replies(GROUP, after=0))[-1].content == ERASED
