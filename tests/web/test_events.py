"""`GET /v1/events`: what a watcher sees, and that watching leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
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
