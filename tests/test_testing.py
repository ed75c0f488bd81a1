"""The shipped doubles: they must be as strict as what they stand for."""

from __future__ import annotations

import anyio
import pytest

from teaagentd.abc import Channel, Clock, LLMAdapter
from teaagentd.errors import (
    DeliveryDelayed,
    DeliveryRefused,
    ProviderUnavailable,
    RequestRefused,
)
from teaagentd.testing import (
    Broken,
    FakeClock,
    MemoryChannel,
    Scripted,
    ScriptedModel,
    ScriptExhausted,
)
from teaagentd.types import (
    Address,
    Attachment,
    InboundMessage,
    LLMMessage,
    LLMRequest,
    LLMResponse,
    Part,
    ToolCall,
)

pytestmark = pytest.mark.anyio

CALL = ToolCall(id="c1", name="find", arguments={"q": "x"})
USER = LLMMessage(role="user", content="hello")
ASKS = LLMMessage(role="assistant", tool_calls=(CALL,))
RESULT = LLMMessage(role="tool", tool_call_id="c1", name="find", content="found")


def asking(*messages: LLMMessage, json: bool = False) -> LLMRequest:
    schema = {"type": "object"} if json else None
    return LLMRequest(messages=messages or (USER,), response_schema=schema)


async def test_replies_come_in_order_and_requests_are_kept() -> None:
    model = ScriptedModel(["one", CALL, [CALL, CALL], LLMResponse(content="as it is")])
    adapter: LLMAdapter = model
    replies = [await adapter.complete(asking()) for _ in range(4)]
    assert [reply.content for reply in replies] == ["one", "", "", "as it is"]
    assert [len(reply.tool_calls) for reply in replies] == [0, 1, 2, 0]
    assert [reply.finish_reason for reply in replies[:2]] == ["stop", "tool_calls"]
    assert model.requests == [asking()] * 4
    assert len(replies[0].attempts) == 1
    assert replies[0].usage.input_tokens
    with pytest.raises(ScriptExhausted):
        await adapter.complete(asking())


async def test_text_is_streamed_in_pieces_that_make_it_up() -> None:
    pieces: list[str] = []
    await ScriptedModel(["a longer text"], chunk=4).complete(asking(), pieces.append)
    assert pieces == ["a lo", "nger", " tex", "t"]


async def test_a_request_for_json_gets_json() -> None:
    model = ScriptedModel(["hi", CALL, '{"action": "raw"}'], native_tools=False)
    replies = [await model.complete(asking(json=True)) for _ in range(3)]
    assert [reply.content for reply in replies] == [
        '{"action":"answer","text":"hi"}',
        '{"action":"find","arguments":{"q":"x"}}',
        '{"action": "raw"}',
    ]
    assert not any(reply.tool_calls for reply in replies)


async def test_errors_are_raised_and_booked() -> None:
    pieces: list[str] = []
    model = ScriptedModel(
        [ProviderUnavailable("gone"), Broken(text="half", error=ProviderUnavailable("cut"))]
    )
    with pytest.raises(ProviderUnavailable) as raised:
        await model.complete(asking())
    assert (raised.value.provider, len(raised.value.attempts)) == ("scripted", 1)
    with pytest.raises(ProviderUnavailable, match="cut"):
        await model.complete(asking(), pieces.append)
    assert pieces == ["half"]


async def test_a_reply_can_be_held_back() -> None:
    gate = anyio.Event()

    async def held(request: LLMRequest) -> Scripted:
        await gate.wait()
        return f"to {request.messages[-1].content}"

    model = ScriptedModel([held], default="and so on")
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            assert (await model.complete(asking())).content == "to hello"

        group.start_soon(ask)
        assert await model.wait_asked(1) == asking()
        gate.set()
    assert (await model.complete(asking())).content == "and so on"


@pytest.mark.parametrize(
    "messages",
    [
        (ASKS, RESULT),
        (USER, RESULT),
        (USER, ASKS),
        (USER, ASKS, USER),
        (USER, ASKS, RESULT, RESULT),
        (USER, ASKS, RESULT, ASKS, RESULT),
        (USER, LLMMessage(role="assistant")),
        (LLMMessage(role="user"),),
        (USER, LLMMessage(role="system", content="late")),
        (LLMMessage(role="system", content="alone"),),
    ],
)
async def test_illegal_messages_are_refused(messages: tuple[LLMMessage, ...]) -> None:
    model = ScriptedModel(["never"])
    with pytest.raises(RequestRefused):
        await model.complete(asking(*messages))
    assert len(model.refused) == 1
    legal = (LLMMessage(role="system", content="s"), USER, ASKS, RESULT, USER)
    assert (await model.complete(asking(*legal))).content == "never"


def part(key: str = "k1", chat: str = "chat") -> Part:
    address = Address(channel="memory", chat_id=chat)
    return Part(outbound_id=1, index=0, address=address, content="hi", idempotency_key=key)


async def test_a_channel_keeps_what_was_sent_and_fails_as_told() -> None:
    channel = MemoryChannel(failures=[DeliveryDelayed("wait", wait_s=1), None, DeliveryRefused("")])
    abstract: Channel = channel
    with pytest.raises(DeliveryDelayed):
        await abstract.send(part())
    await abstract.send(part())
    with pytest.raises(DeliveryRefused):
        await abstract.send(part())
    await abstract.send(part())
    assert len(channel.sent) == 4
    assert len(await channel.wait_arrived(2)) == 2


async def test_an_idempotent_channel_shows_a_key_once() -> None:
    channel = MemoryChannel(idempotent=True)
    for key in ("a", "b", "a"):
        await channel.send(part(key))
    assert [one.idempotency_key for one in channel.arrived] == ["a", "b"]


async def test_a_channel_publishes_what_a_person_posts() -> None:
    published: list[InboundMessage] = []

    class Collects:
        async def publish(self, message: InboundMessage) -> object:
            published.append(message)
            return len(published)

        async def keep(
            self, data: bytes, *, name: str = "", media_type: str | None = None
        ) -> Attachment:
            raise AssertionError("no file comes with a message here")

    channel = MemoryChannel("chatty")
    async with anyio.create_task_group() as group:
        group.start_soon(channel.run, Collects())
        assert await channel.post("hello", chat_id="7", external_id="e1") == 1
        group.cancel_scope.cancel()
    (message,) = published
    assert (message.channel, message.chat_id, message.external_id) == ("chatty", "7", "e1")


def test_a_clock_stands_still_until_it_is_told() -> None:
    fake = FakeClock(now_ms=1000, monotonic=5.0)
    clock: Clock = fake
    fake.advance(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (2500, 6.5)
    fake.jump(-1)
    assert (clock.now_ms(), clock.monotonic()) == (1500, 6.5)
