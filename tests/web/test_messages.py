"""`POST /v1/messages` and `/v1/inbox`: what is accepted, and what is refused how."""

from __future__ import annotations

from pathlib import Path

import anyio
import orjson
import pytest

from teaagentd.store.values import Closed, NewTurn
from teaagentd.testing import MemoryChannel, ScriptedModel
from teaagentd.types import SessionKey
from tests.web.rig import Rig, serving, until, wire

pytestmark = pytest.mark.anyio

MIB = 1 << 20


async def test_an_accepted_message_is_durable_and_named(idle: Rig) -> None:
    answer = await idle.post("hello", "tea", sender_id="mira", external_id="m-1")
    assert answer.status_code == 202
    assert answer.json() == {"id": 1, "session_key": "api:tea", "duplicate": False}
    (row,) = await idle.daemon.store.pending_rows(SessionKey(channel="api", chat_id="tea"))
    assert row.message.content == "hello"
    assert (row.message.sender_id, row.message.external_id) == ("mira", "m-1")


async def test_the_same_external_id_is_taken_once(idle: Rig) -> None:
    first = (await idle.post("hello", external_id="m-1")).json()
    again = await idle.post("hello", external_id="m-1")
    assert again.status_code == 202
    assert again.json() == {**first, "duplicate": True}
    assert (await idle.post("hello", "other", external_id="m-1")).json()["duplicate"] is False


async def test_the_same_external_id_with_another_body_is_a_conflict(idle: Rig) -> None:
    await idle.accepted("hello", external_id="m-1")
    answer = await idle.post("good-bye", external_id="m-1")
    assert answer.status_code == 409
    problem = answer.json()
    assert (problem["type"], problem["field"]) == ("/problems/external-id-conflict", "external_id")
    assert "m-1" in problem["detail"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"content": "x"}, "chat_id"),
        ({"chat_id": "", "content": "x"}, "chat_id"),
        ({"chat_id": 7, "content": "x"}, "chat_id"),
        ({"chat_id": "i" * 513, "content": "x"}, "chat_id"),
        ({"chat_id": "c"}, "content"),
        ({"chat_id": "c", "content": None}, "content"),
        ({"chat_id": "c", "content": 42}, "content"),
        ({"chat_id": "c", "content": ["x"]}, "content"),
        ({"chat_id": "c", "content": " \n\t "}, "content"),
        ({"chat_id": "c", "content": "x", "channel": "pigeon"}, "channel"),
        ({"chat_id": "c", "content": "x", "channel": ""}, "channel"),
        ({"chat_id": "c", "content": "x", "channel": {}}, "channel"),
        ({"chat_id": "c", "content": "x", "sender_id": 7}, "sender_id"),
        ({"chat_id": "c", "content": "x", "external_id": ""}, "external_id"),
        ({"chat_id": "c", "content": "x", "external_id": "i" * 513}, "external_id"),
        ({"chat_id": "c", "content": "x", "externalid": "m-1"}, "externalid"),
    ],
)
async def test_what_cannot_be_used_is_named(idle: Rig, body: object, field: str) -> None:
    answer = await idle.client.post("/v1/messages", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == 422
    assert problem["field"] == field
    assert problem["detail"].startswith(f"{field}: ")
    assert (await idle.daemon.store.depths()).inbox == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b'{"chat_id": "c", "content": NaN}',
        b'{"content": "\xff"}',
        b"[" * 5000,
        b'{"chat_id": "\\ud800", "content": NaN}',
        b'["\\ud800", ' + b"[" * 50_000,
    ],
)
async def test_what_is_not_json_is_refused(idle: Rig, body: bytes) -> None:
    answer = await idle.client.post("/v1/messages", content=body)
    assert answer.status_code == 400
    assert answer.json()["type"] == "/problems/not-json"


@pytest.mark.parametrize("body", [b"[]", b'"hello"', b"null", b"3"])
async def test_what_is_no_object_is_refused(idle: Rig, body: bytes) -> None:
    answer = await idle.client.post("/v1/messages", content=body)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "the body must be a JSON object"


async def test_half_a_character_is_cleaned_and_not_refused(idle: Rig) -> None:
    body = b'{"chat_id": "c\\ud83d", "content": "tea \\ud83c\\udf75 and \\udf75"}'
    answer = await idle.client.post("/v1/messages", content=body)
    assert answer.status_code == 202
    key = SessionKey.parse(answer.json()["session_key"])
    (row,) = await idle.daemon.store.pending_rows(key)
    assert row.message.content == "tea 🍵 and \ufffd"


async def test_bad_messages_silence_nobody(rig: Rig) -> None:
    for content in (None, 42, "", "x" * 5 * MIB):
        assert (await rig.post(content)).status_code in (413, 422)
    assert (await rig.post("x", channel="pigeon")).status_code == 422
    assert (await rig.ask("hello"))["content"] == "an answer"


# -- size -------------------------------------------------------------------------------


def _body(size: int) -> bytes:
    empty = len(orjson.dumps({"chat_id": "c", "content": ""}))
    return orjson.dumps({"chat_id": "c", "content": "x" * (size - empty)})


async def test_one_mebibyte_is_taken_and_one_byte_more_is_not(idle: Rig) -> None:
    async with wire(idle.path) as client:
        for size, status in ((MIB, 202), (MIB + 1, 413), (200, 202)):
            head = f"POST /v1/messages HTTP/1.1\r\nhost: t\r\ncontent-length: {size}\r\n\r\n"
            await client.send(head.encode() + _body(size))
            found, headers = await client.head()
            assert found == status
            body = orjson.loads(await client.body(headers))
            assert ("id" in body) == (status == 202)
    assert (await idle.daemon.store.depths()).inbox == 2


async def test_a_large_body_in_chunks_is_refused_and_the_connection_goes_on(idle: Rig) -> None:
    async with wire(idle.path) as client:
        await client.send(
            b"POST /v1/messages HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(20):
            await client.send(b"%x\r\n%s\r\n" % (100_000, b"x" * 100_000))
        await client.send(b"0\r\n\r\n")
        status, headers = await client.head()
        assert status == 413
        assert "connection" not in headers
        assert orjson.loads(await client.body(headers))["type"] == "/problems/too-large"
        await client.send(b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n")
        assert (await client.head())[0] == 200


async def test_a_body_without_an_end_is_cut_off(idle: Rig) -> None:
    sent = 0
    async with wire(idle.path) as client:
        await client.send(
            b"POST /v1/messages HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        chunk = b"%x\r\n%s\r\n" % (MIB, b"x" * MIB)
        with anyio.fail_after(20):
            try:
                while sent < 64 * MIB:
                    await client.send(chunk)
                    sent += MIB
            except ConnectionError:
                pass
        status, headers = await client.head()
        assert (status, headers["connection"]) == (413, "close")
    assert sent < 64 * MIB


@pytest.mark.parametrize("expecting", ["", "expect: 100-continue\r\n"])
async def test_a_body_that_is_announced_as_huge_is_not_waited_for(
    idle: Rig, expecting: str
) -> None:
    size = 2 * MIB if expecting else 1 << 40
    async with wire(idle.path) as client:
        head = f"POST /v1/messages HTTP/1.1\r\nhost: t\r\ncontent-length: {size}\r\n{expecting}\r\n"
        await client.send(head.encode())
        status, headers = await client.head()
        assert (status, headers["connection"]) == (413, "close")
        await client.body(headers)
        assert await client.closed()


async def test_a_client_that_leaves_within_its_body_has_sent_nothing(idle: Rig) -> None:
    async with wire(idle.path) as client:
        await client.send(b"POST /v1/messages HTTP/1.1\r\nhost: t\r\ncontent-length: 90\r\n\r\n{")
    assert await idle.accepted("hello") == 1


# -- a full inbox, commands, other channels ------------------------------------------------


async def test_a_full_inbox_says_when_to_come_back(tmp_path: Path) -> None:
    async with serving(tmp_path, work=False, settings={"bus": {"max_pending": 2}}) as rig:
        await rig.accepted("one", external_id="m-1")
        await rig.accepted("two")
        answer = await rig.post("three")
        assert answer.status_code == 429
        assert answer.json()["type"] == "/problems/bus-full"
        assert int(answer.headers["retry-after"]) > 0
        assert (await rig.post("one", external_id="m-1")).json()["duplicate"] is True
        assert (await rig.post("/stop")).status_code == 202
        assert (await rig.post("three")).status_code == 202


async def test_a_command_is_answered_outside_the_queue(idle: Rig) -> None:
    message_id = await idle.accepted("/help")
    (reply,) = await idle.replies()
    assert reply["message_ids"] == [message_id]
    assert "/stop" in reply["content"]


async def test_a_message_may_be_posted_for_a_chat_of_a_push_channel(tmp_path: Path) -> None:
    channel = MemoryChannel("memory")
    async with serving(tmp_path, channels=[channel]) as rig:
        answer = await rig.post("hello", "room/7", channel="memory")
        assert answer.json()["session_key"] == "memory:room/7"
        await until(lambda: channel.sent)
        assert channel.sent[0].content == "an answer"


async def test_many_posts_at_once_are_all_kept(idle: Rig) -> None:
    ids: list[int] = []

    async def post(number: int) -> None:
        ids.append(await idle.accepted(f"message {number}", f"chat-{number % 7}"))

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(post, number)
    assert sorted(ids) == list(range(1, 101))
    assert (await idle.daemon.store.depths()).inbox == 100


async def test_a_message_posted_during_the_drain_waits_for_the_next_start(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        rig.daemon.request_stop()
        message_id = await rig.accepted("after the bell")
        (waiting,) = await rig.daemon.store.pending_keys()
        assert waiting.ids == (message_id,)
    async with serving(tmp_path) as rig:
        with anyio.fail_after(10):
            (reply,) = await rig.replies(wait=10)
        assert reply["message_ids"] == [message_id]


# -- dead messages ------------------------------------------------------------------------


async def _condemn(rig: Rig) -> None:
    """Have the pending message's turn cut off until it is given up."""
    store = rig.daemon.store
    key = SessionKey(channel="api", chat_id="c")
    turn = NewTurn(id="doomed", key=key, origin="bus")
    await store.begin(turn, upto=None, budget_tokens=None, note=lambda row: None)
    while not isinstance(
        await store.resume("doomed", notice=None, failed="I gave up on this."), Closed
    ):
        pass


async def test_a_dead_message_is_listed_and_can_be_retried(tmp_path: Path) -> None:
    model = ScriptedModel(["at last"])
    async with serving(tmp_path, model, work=False) as rig:
        message_id = await rig.accepted("hard")
        await _condemn(rig)
        (dead,) = (await rig.client.get("/v1/inbox/dead")).json()["messages"]
        assert (dead["id"], dead["content"]) == (message_id, "hard")
        assert (dead["session_key"], dead["turn_id"]) == ("api:c", "doomed")
        assert (await rig.client.get("/v1/status")).json()["dead_rows"] == 1
    async with serving(tmp_path, model) as rig:
        answer = await rig.client.post(f"/v1/inbox/{message_id}/retry")
        assert answer.status_code == 202
        again = answer.json()["id"]
        with anyio.fail_after(10):
            replies = await rig.replies(after=1, wait=10)
        assert [(reply["content"], reply["message_ids"]) for reply in replies] == [
            ("at last", [again])
        ]
        assert (await rig.client.get("/v1/inbox/dead")).json() == {"messages": []}
        second = await rig.client.post(f"/v1/inbox/{message_id}/retry")
        assert second.json() == {"id": again, "session_key": "api:c", "duplicate": True}


@pytest.mark.parametrize("row", ["1", "77", "0", "x", "-1", "9" * 30, "١"])
async def test_only_what_is_dead_can_be_retried(idle: Rig, row: str) -> None:
    await idle.accepted("alive")
    assert (await idle.client.post(f"/v1/inbox/{row}/retry")).status_code == 404
