"""`/v1/sessions` and `/v1/turns`: what was said, in whatever session, and the stop."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import anyio
import pytest

from teaagentd.testing import MemoryChannel, ScriptedModel
from teaagentd.types import LLMRequest, SessionKey
from tests.web.rig import Rig, serving

pytestmark = pytest.mark.anyio

KEYS = [
    ("telegram", "a_b"),
    ("telegram", "a:b"),
    ("telegram", "A_B"),
    ("telegram", "a%3Ab"),
    ("a:b", "c"),
    ("a", "b:c"),
    ("a%", "c"),
    ("slack", "C1/17.5"),
    ("slack", "C1/stop"),
    ("slack", "C1"),
    ("slack", "/"),
    ("x", ".."),
    ("x", "../../etc"),
    ("x", "i" * 300),
    ("x", "CON"),
    ("x", "line\nbreak"),
    ("x", "tea 🍵 + ?&#"),
]


async def test_every_key_leads_to_its_own_session(tmp_path: Path) -> None:
    channels = [MemoryChannel(name) for name in sorted({channel for channel, _ in KEYS})]
    async with serving(tmp_path, channels=channels) as rig:
        for number, (channel, chat) in enumerate(KEYS):
            await rig.accepted(f"message {number}", chat, channel=channel)
        for number, (channel, chat) in enumerate(KEYS):
            key = str(SessionKey(channel=channel, chat_id=chat))
            with anyio.fail_after(10):
                (reply,) = await rig.replies(key, wait=10)
            assert reply["session_key"] == key
            address = f"/v1/sessions/{quote(key, safe='')}"
            found = (await rig.client.get(address)).json()
            assert found["session_key"] == key
            assert [one["content"] for one in found["messages"]] == [
                f"message {number}",
                "an answer",
            ]
            stopped = await rig.client.post(f"{address}/stop")
            assert stopped.status_code == 200
            assert stopped.json()["session_key"] == key
        listed = (await rig.client.get("/v1/sessions")).json()["sessions"]
    assert {one["session_key"] for one in listed} == {
        str(SessionKey(channel=channel, chat_id=chat)) for channel, chat in KEYS
    }


async def test_slashes_of_a_key_may_stand_as_they_are(tmp_path: Path) -> None:
    async with serving(tmp_path, channels=[MemoryChannel("slack")]) as rig:
        await rig.accepted("hello", "C1/17.5", channel="slack")
        await rig.replies("slack:C1/17.5", wait=10)
        found = (await rig.client.get("/v1/sessions/slack:C1/17.5")).json()
        assert len(found["messages"]) == 2
        assert (await rig.client.post("/v1/sessions/slack:C1/17.5/stop")).status_code == 200


async def test_sessions_come_in_pages_the_latest_first(rig: Rig) -> None:
    for number in range(5):
        await rig.ask("hello", f"chat-{number}")
    seen: list[str] = []
    before = None
    while True:
        query = {"limit": "2"} | ({"before": before} if before else {})
        page = (await rig.client.get("/v1/sessions", params=query)).json()
        seen += [one["session_key"] for one in page["sessions"]]
        before = page["next"]
        if before is None:
            break
    assert seen == [f"api:chat-{number}" for number in (4, 3, 2, 1, 0)]


async def test_a_transcript_comes_in_pages_the_newest_first(rig: Rig) -> None:
    for number in range(4):
        await rig.ask(f"question {number}")
    seen: list[str] = []
    query: dict[str, str] = {"limit": "3"}
    while True:
        page = (await rig.client.get("/v1/sessions/api:c", params=query)).json()
        seen[:0] = [one["content"] for one in page["messages"]]
        if page["next"] is None:
            break
        query["before"] = str(page["next"])
    assert seen == [text for number in range(4) for text in (f"question {number}", "an answer")]


async def test_notes_are_not_shown(rig: Rig) -> None:
    message_id = await rig.accepted("hello", sender_id="mira")
    await rig.replies(wait=10)
    (asked, answered) = (await rig.client.get("/v1/sessions/api:c")).json()["messages"]
    assert asked == {
        "id": asked["id"],
        "role": "user",
        "content": "hello",
        "message_id": message_id,
    }
    assert answered["role"] == "assistant"


async def test_a_session_that_there_is_not_is_not_found(idle: Rig) -> None:
    answer = await idle.client.get("/v1/sessions/api:nobody")
    assert (answer.status_code, answer.json()["detail"]) == (404, "there is no session api:nobody")


@pytest.mark.parametrize("key", ["%FF", ":c", "api:" + "i" * 513])
async def test_a_key_that_names_no_session_is_refused(idle: Rig, key: str) -> None:
    answer = await idle.client.get(f"/v1/sessions/{key}")
    assert answer.status_code == 422
    assert answer.json()["field"] == "session_key"


async def test_a_stop_ends_the_live_turn_while_the_model_hangs(tmp_path: Path) -> None:
    async def hang(request: LLMRequest) -> str:
        await anyio.sleep_forever()
        return ""

    model = ScriptedModel(default=hang)
    async with serving(tmp_path, model) as rig:
        message_id = await rig.accepted("hello")
        await model.wait_asked(1)
        (live,) = (await rig.client.get("/v1/status")).json()["turns"]
        with anyio.fail_after(5):
            answer = await rig.client.post("/v1/sessions/api%3Ac/stop")
            (reply,) = await rig.replies(wait=5)
        assert answer.json()["stopped"] is True
        assert answer.json()["stopped_turn_id"] == live["id"]
        assert reply["message_ids"] == [message_id]
        turn = (await rig.client.get(f"/v1/turns/{live['id']}")).json()
        assert (turn["state"], turn["outcome"]) == ("done", "stopped")


async def test_a_stop_closes_what_waits_to_begin(idle: Rig) -> None:
    message_id = await idle.accepted("hello")
    answer = (await idle.client.post("/v1/sessions/api:c/stop")).json()
    assert (answer["stopped"], answer["stopped_waiting"]) == (True, 1)
    (reply,) = await idle.replies()
    assert reply["message_ids"] == [message_id]
    again = (await idle.client.post("/v1/sessions/api:c/stop")).json()
    assert again["stopped"] is False


async def test_a_turn_has_its_usage_and_times(rig: Rig) -> None:
    reply = await rig.ask("hello")
    turn = (await rig.client.get(f"/v1/turns/{reply['turn_id']}")).json()
    assert (turn["session_key"], turn["origin"], turn["attempt"]) == ("api:c", "bus", 1)
    assert turn["started_at"] <= turn["ended_at"]
    assert turn["requests"] == 1
    assert set(turn["usage"]) == {
        "input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens"
    }  # fmt: skip
    assert (await rig.client.get("/v1/turns/nothing")).status_code == 404
