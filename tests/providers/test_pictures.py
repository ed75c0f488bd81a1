"""Pictures on the wire: to models that see, and never to one that does not. (H10)

Faults of this kind: HKUDS/nanobot#3108, NousResearch/hermes-agent#7213.
"""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import PIL.Image
import pytest

from teaagentd.abc import LLMAdapter, SystemClock
from teaagentd.errors import RequestRefused
from teaagentd.providers.anthropic import AnthropicAdapter
from teaagentd.providers.attached import UNSEEN
from teaagentd.providers.exchange import Timeouts
from teaagentd.providers.openai import OpenAIAdapter
from teaagentd.types import Attachment, LLMMessage, LLMRequest, Picture, ToolCall
from tests.strict_dialect import pictures_of, text_of
from tests.strict_server import StrictServer

pytestmark = pytest.mark.anyio

NO_PICTURES = "This model does not support image input"


def drawn(color: str = "red", kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    PIL.Image.new("RGB", (8, 8), color).save(out, kind)
    return out.getvalue()


RED, BLUE = drawn("red"), drawn("blue")
FILES = {
    "red.png": Attachment(path="red.png", media_type="image/png", name="red.png", size=len(RED)),
    "blue.png": Attachment(path="blue.png", media_type="image/png", name="b.png", size=len(BLUE)),
}
SHOWN = {
    "red.png": Picture(media_type="image/png", data=base64.b64encode(RED).decode()),
    "blue.png": Picture(media_type="image/png", data=base64.b64encode(BLUE).decode()),
}
LOOK = LLMMessage(role="user", content="what is this?", attachments=(FILES["red.png"],))


def asking(*messages: LLMMessage, **fields: Any) -> LLMRequest:
    messages = messages or (LOOK,)
    named = {one.path for message in messages for one in message.attachments}
    shown = {path: one for path, one in SHOWN.items() if path in named}
    return LLMRequest(messages=messages, shown=shown, **fields)


Adapters = Callable[[StrictServer], LLMAdapter]


@pytest.fixture(params=[OpenAIAdapter, AnthropicAdapter], ids=["openai", "anthropic"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Adapters]:
    """Makes adapters of either dialect."""
    async with AsyncExitStack() as opened:

        def make(server: StrictServer) -> LLMAdapter:
            anthropic = request.param is AnthropicAdapter
            adapter: LLMAdapter = request.param(
                name="acme",
                model="m",
                base_url=server.url.removesuffix("/v1") if anthropic else server.url,
                api_key="sk-test",
                clock=SystemClock(),
                timeouts=Timeouts(first_token_s=30.0, idle_s=30.0),
            )
            opened.push_async_callback(adapter.aclose)
            return adapter

        yield make


def last(server: StrictServer) -> dict[str, Any]:
    return server.requests[-1].body


def words(body: dict[str, Any]) -> str:
    return "\n".join(text_of(message["content"]) for message in body["messages"])


async def test_a_model_that_sees_is_shown_the_picture(
    server: StrictServer, connect: Adapters
) -> None:
    adapter = connect(server)
    assert adapter.vision
    await adapter.complete(asking())
    assert pictures_of(last(server)) == [RED]
    assert UNSEEN not in words(last(server))


async def test_a_picture_that_a_tool_brought_is_shown_behind_the_results(
    server: StrictServer, connect: Adapters
) -> None:
    calls = tuple(ToolCall(id=f"c{n}", name="look", arguments={}) for n in (1, 2))
    brought = [
        LLMMessage(
            role="tool", content="found", tool_call_id=f"c{n}", name="look", attachments=(one,)
        )
        for n, one in zip((1, 2), FILES.values(), strict=True)
    ]
    await connect(server).complete(
        asking(
            LLMMessage(role="user", content="look"),
            LLMMessage(role="assistant", content="", tool_calls=calls),
            *brought,
        )
    )
    assert server.state.illegal == 0
    assert pictures_of(last(server)) == [RED, BLUE]


async def test_a_file_that_is_gone_is_told_of(server: StrictServer, connect: Adapters) -> None:
    await connect(server).complete(LLMRequest(messages=(LOOK,)))
    assert pictures_of(last(server)) == []
    assert UNSEEN in words(last(server))
    assert "red.png" not in words(last(server))


async def test_a_text_is_shown_in_its_frame(server: StrictServer, connect: Adapters) -> None:
    notes = Attachment(path="a1.txt", media_type="text/plain", name="notes.txt", size=5)
    said = LLMMessage(role="user", content="read it", attachments=(notes,))
    await connect(server).complete(LLMRequest(messages=(said,), shown={"a1.txt": "12 eggs"}))
    assert "notes.txt" in words(last(server))
    assert "12 eggs" in words(last(server))


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_model_that_refuses_pictures_is_asked_without_and_remembered(
    server: StrictServer, connect: Adapters, streamed: bool
) -> None:
    server.state.options.blind = NO_PICTURES
    adapter = connect(server)

    def heard(text: str) -> None:
        pass

    for _ in range(2):
        response = await adapter.complete(asking(), heard if streamed else None)
        assert response.content.startswith("echo:")
    assert not adapter.vision
    assert [bool(pictures_of(one.body)) for one in server.requests] == [True, False, False]
    assert UNSEEN in words(last(server))


async def test_words_that_say_nothing_are_tried_without_the_picture(
    server: StrictServer, connect: Adapters
) -> None:
    server.state.options.blind = "invalid request"
    adapter = connect(server)
    await adapter.complete(asking())
    assert not adapter.vision
    await adapter.complete(asking())
    assert [bool(pictures_of(one.body)) for one in server.requests] == [True, False, False]


async def test_a_refusal_that_has_nothing_to_do_with_it_blinds_nobody(
    server: StrictServer, connect: Adapters
) -> None:
    server.state.options.refuse = {"messages": "invalid request"}
    adapter = connect(server)
    with pytest.raises(RequestRefused):
        await adapter.complete(asking())
    assert adapter.vision
    server.state.options.refuse = {}
    await adapter.complete(asking())
    assert pictures_of(last(server)) == [RED]


async def test_one_picture_that_cannot_be_read_does_not_blind_the_model(
    server: StrictServer, connect: Adapters
) -> None:
    adapter = connect(server)
    await adapter.complete(asking())
    both = LLMMessage(role="user", content="and this?", attachments=(FILES["blue.png"],))
    answer = LLMMessage(role="assistant", content="red")
    with_both = asking(LOOK, answer, both)
    problem = {"message": "Could not process image", "type": "invalid_request_error"}
    server.script([{"status": 400, "body": {"type": "error", "error": problem}}])
    for _ in range(2):
        await adapter.complete(with_both)
    assert adapter.vision
    sent = [pictures_of(one.body) for one in server.requests]
    assert sent == [[RED], [RED, BLUE], [RED], [RED]]
    await adapter.complete(asking(LOOK))
    assert pictures_of(last(server)) == [RED]
