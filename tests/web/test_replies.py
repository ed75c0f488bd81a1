"""`GET /v1/replies`: paging, long polls, and how they end."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from teaagentd.testing import ScriptedModel
from teaagentd.types import LLMRequest
from tests.web.rig import Rig, serving, settled, until, wire

pytestmark = pytest.mark.anyio


class Held:
    """A model that answers when it is let."""

    def __init__(self) -> None:
        self.released = anyio.Event()
        self.model = ScriptedModel(default=self._reply)

    async def _reply(self, request: LLMRequest) -> str:
        await self.released.wait()
        return f"re: {request.messages[-1].content}"


async def test_a_reply_says_what_it_answers(rig: Rig) -> None:
    message_id = await rig.accepted("hello")
    (reply,) = await rig.replies(wait=10)
    assert set(reply) == {
        "id", "session_key", "turn_id", "kind", "message_ids", "content", "created_at"
    }  # fmt: skip
    assert reply["session_key"] == "api:c"
    assert reply["kind"] == "final"
    assert reply["message_ids"] == [message_id]
    assert reply["content"] == "an answer"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", reply["created_at"])
    turn = (await rig.client.get(f"/v1/turns/{reply['turn_id']}")).json()
    assert turn["outcome"] == "answered"


async def test_pages_follow_one_another(rig: Rig) -> None:
    for number in range(5):
        await rig.ask(f"question {number}")
    everything = await rig.replies()
    assert len(everything) == 5
    assert [reply["id"] for reply in everything] == sorted(reply["id"] for reply in everything)
    first = await rig.replies(limit=2)
    rest = await rig.replies(after=first[-1]["id"])
    assert first + rest == everything
    assert await rig.replies(after=everything[-1]["id"]) == []


async def test_a_session_sees_only_its_own(rig: Rig) -> None:
    await rig.ask("hello", "one")
    assert await rig.replies("api:two") == []
    assert len(await rig.replies("one")) == 1  # without a channel: the default one


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({}, "session_key"),
        ({"session_key": ""}, "session_key"),
        ({"session_key": ":c"}, "session_key"),
        ({"session_key": "api:" + "i" * 513}, "session_key"),
        ({"session_key": "c", "after": "x"}, "after"),
        ({"session_key": "c", "after": "-1"}, "after"),
        ({"session_key": "c", "after": "9" * 5000}, "after"),
        ({"session_key": "c", "wait": "soon"}, "wait"),
        ({"session_key": "c", "wait": "nan"}, "wait"),
        ({"session_key": "c", "wait": "inf"}, "wait"),
        ({"session_key": "c", "wait": "-1"}, "wait"),
        ({"session_key": "c", "limit": "0"}, "limit"),
        ({"session_key": "c", "limit": "1001"}, "limit"),
    ],
)
async def test_a_query_that_cannot_be_used_is_named(
    idle: Rig, query: dict[str, str], field: str
) -> None:
    answer = await idle.client.get("/v1/replies", params=query)
    assert answer.status_code == 422
    assert answer.json()["field"] == field


async def test_without_a_reply_the_poll_ends_when_its_time_has_passed(idle: Rig) -> None:
    with anyio.fail_after(10):
        assert await idle.replies(wait=0.05) == []
        assert await idle.replies(after=2**62, wait=0.05) == []


async def test_a_poll_that_waits_is_woken_by_the_reply(tmp_path: Path) -> None:
    held = Held()
    async with serving(tmp_path, held.model) as rig, anyio.create_task_group() as tasks:
        found: list[Any] = []

        async def poll() -> None:
            found.extend(await rig.replies(wait=60))

        await rig.accepted("hello")
        await held.model.wait_asked(1)
        tasks.start_soon(poll)
        await anyio.sleep(0.1)
        assert not found
        held.released.set()
        await until(lambda: found)
    assert found[0]["content"] == "re: hello"


async def test_many_polls_at_once_each_get_their_reply(tmp_path: Path) -> None:
    held = Held()
    async with serving(
        tmp_path, held.model, settings={"agent": {"max_concurrent_turns": 50}}
    ) as rig:
        found: dict[int, list[str]] = {}

        async def poll(number: int) -> None:
            replies = await rig.replies(f"chat-{number // 2}", wait=60)
            found[number] = [reply["content"] for reply in replies]

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for number in range(100):
                    tasks.start_soon(poll, number)
                for number in range(50):
                    await rig.accepted(f"hello {number}", f"chat-{number}")
                await held.model.wait_asked(50)
                held.released.set()
        assert found == {number: [f"re: hello {number // 2}"] for number in range(100)}


async def test_a_conversation_of_posts_and_polls_misses_nothing(rig: Rig) -> None:
    with anyio.fail_after(30):
        after = 0
        for number in range(50):
            message_id = await rig.accepted(f"message {number}")
            (reply,) = await rig.replies(after=after, wait=60)
            assert reply["message_ids"] == [message_id]
            after = reply["id"]


async def test_a_client_that_leaves_is_waited_for_no_longer(idle: Rig) -> None:
    await idle.replies()
    baseline = len(asyncio.all_tasks())
    for _ in range(5):
        async with wire(idle.path) as client:
            await client.send(b"GET /v1/replies?session_key=c&wait=60 HTTP/1.1\r\nhost: t\r\n\r\n")
            await until(lambda: len(asyncio.all_tasks()) > baseline)
    await settled(baseline)


async def test_polls_end_with_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path, work=False) as rig, anyio.create_task_group() as tasks:
        found: list[Any] = []

        async def poll() -> None:
            found.append(await rig.replies(wait=60))

        for _ in range(10):
            tasks.start_soon(poll)
        await anyio.sleep(0.2)
        await rig.end_web()
        await until(lambda: len(found) == 10)
    assert found == [[]] * 10


async def test_a_poll_during_the_last_sends_does_not_come_back_at_once(idle: Rig) -> None:
    """Or its client would ask again, and again, for as long as the sends take."""
    await idle.daemon.dispatcher.drain(0)
    found: list[Any] = []

    async def poll() -> None:
        found.append(await idle.replies(wait=60))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poll)
        await anyio.sleep(0.2)
        assert not found
        await idle.end_web()
    assert found == [[]]
