"""`GET /v1/events`: what a watcher sees, and that watching leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from anyio.lowlevel import checkpoint

from teaagentd.errors import ProviderUnavailable
from teaagentd.testing import Broken, ScriptedModel
from teaagentd.types import Delta, SessionKey
from tests.web.rig import Rig, connect, second_server, serving, settled, wire

pytestmark = pytest.mark.anyio

Events = AsyncIterator[tuple[str, Any]]
KEY = SessionKey(channel="api", chat_id="c")


async def _until_done(events: Events) -> list[tuple[str, Any]]:
    seen: list[tuple[str, Any]] = []
    with anyio.fail_after(10):
        async for name, data in events:
            seen.append((name, data))
            if name == "phase" and data["phase"] == "done":
                return seen
    raise AssertionError(f"the stream ended after {seen}")


async def test_a_turn_is_seen_from_its_first_phase_to_its_last(rig: Rig) -> None:
    async with rig.events(session_key="api:c") as events:
        message_id = await rig.accepted("hello")
        seen = await _until_done(events)
    assert seen[0][1]["phase"] == "context"
    assert "".join(data["text"] for name, data in seen if name == "delta") == "an answer"
    (reply,) = [data for name, data in seen if name == "reply"]
    assert reply["message_ids"] == [message_id]
    assert [reply] == await rig.replies()
    assert {data["session_key"] for _, data in seen} == {"api:c"}
    assert {data["turn_id"] for _, data in seen} == {reply["turn_id"]}


async def test_a_watcher_of_one_session_sees_no_other(rig: Rig) -> None:
    async with rig.events(session_key="api:c") as events, rig.events() as everything:
        await rig.ask("hello", "other")
        await rig.accepted("hello")
        assert {data["session_key"] for _, data in await _until_done(events)} == {"api:c"}
        assert {data["session_key"] for _, data in await _until_done(everything)} == {"api:other"}


async def test_a_reset_voids_what_was_streamed(tmp_path: Path) -> None:
    broken = Broken(text="half an ans", error=ProviderUnavailable("gone", provider="scripted"))
    model = ScriptedModel([broken], default="a whole one")
    async with serving(tmp_path, model) as rig, rig.events() as events:
        await rig.accepted("hello")
        seen = await _until_done(events)
    names = [name for name, _ in seen]
    void, seen = seen[: names.index("reset")], seen[names.index("reset") :]
    assert "".join(data["text"] for name, data in void if name == "delta") == "half an ans"
    (reply,) = [data for name, data in seen if name == "reply"]
    assert reply["content"] == "a whole one"
    assert "".join(data["text"] for name, data in seen if name == "delta") == "a whole one"


async def test_half_a_character_in_a_delta_breaks_no_stream(rig: Rig) -> None:
    async with rig.events() as events:
        rig.daemon.feed.publish(Delta(session_key=KEY, turn_id="t", text="tea \ud83c"))
        with anyio.fail_after(5):
            assert (await anext(events))[1]["text"] == "tea \ufffd"


async def test_a_slow_reader_is_told_how_much_it_missed(rig: Rig) -> None:
    baseline = len(asyncio.all_tasks())
    async with wire(rig.path) as client:
        await client.send(b"GET /v1/events HTTP/1.1\r\nhost: t\r\n\r\n")
        await client.head()
        count = 5000
        for number in range(count):
            delta = Delta(session_key=KEY, turn_id="t", text=f"{number} {'x' * 1000}")
            rig.daemon.feed.publish(delta)
            if number % 20 == 0:
                await checkpoint()
        last = f"{count - 1} ".encode()
        stream = b""
        with anyio.fail_after(20):
            while last not in stream:
                stream += await client.some()
    deltas = stream.count(b"event: delta")
    missed = [
        int(part.partition(b"}")[0])
        for part in stream.split(b'event: dropped\ndata: {"count":')[1:]
    ]
    assert missed
    assert deltas + sum(missed) == count
    await settled(baseline)


async def test_watchers_that_leave_leave_nothing(rig: Rig) -> None:
    await rig.ask("hello")
    baseline = len(asyncio.all_tasks())
    for _ in range(20):
        async with wire(rig.path) as client:
            await client.send(b"GET /v1/events HTTP/1.1\r\nhost: t\r\n\r\n")
            assert (await client.head())[0] == 200
    await settled(baseline)
    assert (await rig.ask("still there?"))["content"] == "an answer"


async def test_a_quiet_stream_says_that_it_is_alive(idle: Rig) -> None:
    async with second_server(idle, keep_alive_s=0.05) as (_, path), wire(path) as client:
        await client.send(b"GET /v1/events HTTP/1.1\r\nhost: t\r\n\r\n")
        status, headers = await client.head()
        assert status == 200
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store"
        stream = b""
        with anyio.fail_after(10):
            while stream.count(b": still here\n\n") < 3:
                stream += await client.some()


async def test_streams_end_with_the_server(idle: Rig) -> None:
    async with idle.events() as events:
        await idle.end_web()
        with anyio.fail_after(5):
            assert [event async for event in events] == []


async def test_a_head_request_does_not_listen(idle: Rig) -> None:
    with anyio.fail_after(5):
        answer = await idle.client.head("/v1/events")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_a_bad_key_is_refused_before_the_stream_begins(idle: Rig) -> None:
    answer = await idle.client.get("/v1/events", params={"session_key": ""})
    assert answer.status_code == 422


async def test_many_watchers_see_the_same(rig: Rig) -> None:
    seen: list[str] = []

    async def watch(ready: anyio.Event) -> None:
        async with connect(rig.path) as client:
            other = Rig(daemon=rig.daemon, client=client, path=rig.path, web=rig.web)
            async with other.events(session_key="api:c") as events:
                ready.set()
                found = await _until_done(events)
                seen.extend(data["content"] for name, data in found if name == "reply")

    async with anyio.create_task_group() as tasks:
        ready = [anyio.Event() for _ in range(50)]
        for one in ready:
            tasks.start_soon(watch, one)
        for one in ready:
            await one.wait()
        await rig.accepted("hello")
    assert seen == ["an answer"] * 50


async def _listen(
    rig: Rig, after: str | None, count: int, key: str | None = "api:c"
) -> list[tuple[str, str, Any]]:
    """The next `count` events behind the id `after`: id, name, data of each."""
    seen: list[tuple[str, str, Any]] = []
    query = {} if key is None else {"session_key": key}
    headers = {} if after is None else {"last-event-id": after}
    with anyio.fail_after(10):
        async with rig.client.sse("/v1/events", params=query, headers=headers) as source:
            async for event in source:
                if event.data:
                    data = orjson.loads(event.data)
                    seen.append((event.id, event.event, data))
                if len(seen) == count:
                    break
    return seen


async def _whole_turn(rig: Rig) -> list[tuple[str, str, Any]]:
    """The events of one turn."""
    seen: list[tuple[str, str, Any]] = []
    with anyio.fail_after(10):
        async with rig.client.sse("/v1/events", params={"session_key": "api:c"}) as source:
            await rig.accepted("hello")
            async for event in source:
                if event.data:
                    seen.append((event.id, event.event, orjson.loads(event.data)))
                if seen and seen[-1][2].get("phase") == "done":
                    return seen
    raise AssertionError("the stream ended")


async def test_who_comes_back_is_given_what_he_missed_once_and_in_order(rig: Rig) -> None:
    """From any event on, what streamed included, and nothing of other sessions."""
    seen = await _whole_turn(rig)
    assert len({event_id for event_id, _, _ in seen}) == len(seen)
    await rig.ask("hello", "other")
    for place, (event_id, _, _) in enumerate(seen[:-1]):
        rest = seen[place + 1 :]
        assert await _listen(rig, event_id, len(rest)) == rest


async def test_what_he_missed_comes_before_what_happens_now(rig: Rig) -> None:
    seen = await _whole_turn(rig)
    while_away = await rig.ask("while you were away")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.ask, "and now")
        found = await _listen(rig, seen[-1][0], 2 * len(seen))
    replies = [data for _, name, data in found if name == "reply"]
    assert replies[0]["id"] == while_away["id"]
    assert [one["id"] for one in replies] == sorted({one["id"] for one in replies})


async def test_after_a_restart_the_replies_are_given(tmp_path: Path) -> None:
    """And that something is missing is said; a second restart does not give them again."""
    async with serving(tmp_path) as rig:
        seen = await _whole_turn(rig)
        missed = [await rig.ask(f"missed {number}") for number in range(3)]
        other = await rig.ask("elsewhere", "other")
    async with serving(tmp_path) as rig:
        (_, name, data), *found = await _listen(rig, seen[-1][0], 4)
        assert (name, data) == ("dropped", {"count": None})
        assert [one[2] for one in found] == missed
        (_, name, _), *every = await _listen(rig, seen[-1][0], 5, None)
        assert [one[2]["id"] for one in every] == [*(one["id"] for one in missed), other["id"]]
    async with serving(tmp_path) as rig:
        (_, name, _), last = await _listen(rig, found[1][0], 2)
        assert (name, last[2]) == ("dropped", missed[2])


@pytest.mark.parametrize("event_id", ["x", "1-2", "-1-1", "a-b-c", "feed-1-9999999999999999999"])
async def test_an_id_that_is_none_is_not_refused(rig: Rig, event_id: str) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.ask, "hello")
        (_, name, data), *_ = await _listen(rig, event_id, 3)
    assert (name, data) == ("dropped", {"count": None})


async def test_what_is_too_long_ago_is_read_from_the_store(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.daemon.feed.recent, "_limit", 3)
    seen = await _whole_turn(rig)
    missed = [await rig.ask(f"missed {number}") for number in range(3)]
    (_, name, _), *found = await _listen(rig, seen[-1][0], 4)
    assert (name, [one[2] for one in found]) == ("dropped", missed)


async def test_who_comes_back_is_not_given_what_was_erased(rig: Rig) -> None:
    seen = await _whole_turn(rig)
    assert (await rig.client.delete("/v1/sessions/api:c")).status_code == 200
    kept = await rig.ask("kept", "other")
    found = await _listen(rig, seen[0][0], 1, None)
    while found[-1][1] != "reply":
        found = await _listen(rig, seen[0][0], len(found) + 1, None)
    assert {data["session_key"] for _, _, data in found} == {"api:other"}
    assert found[-1][2] == kept
