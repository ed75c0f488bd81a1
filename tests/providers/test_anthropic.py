"""Anthropic's dialect: requests that a strict server takes, answers read whole, thinking kept.

Faults of this kind: openclaw/openclaw#97645, earendil-works/pi#9391, anomalyco/opencode#41738.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import orjson
import pytest

from teaagentd.abc import SystemClock
from teaagentd.errors import (
    AuthenticationFailed,
    ContextOverflow,
    ProviderUnavailable,
    RateLimited,
    RequestRefused,
)
from teaagentd.providers.anthropic import AnthropicAdapter, create
from teaagentd.providers.exchange import Timeouts
from teaagentd.providers.options import ProviderOptions
from teaagentd.transcript import SUMMARY_NOTE, legal
from teaagentd.types import LLMMessage, LLMRequest, LLMResponse, ToolCall, ToolSpec, Usage
from tests.providers.conftest import KEY
from tests.strict_messages import signature
from tests.strict_server import StrictServer

pytestmark = pytest.mark.anyio

LOOK = ToolSpec(name="look", description="Looks.", parameters={"type": "object", "properties": {}})
SYSTEM = LLMMessage(role="system", content="Be kind.")
USER = LLMMessage(role="user", content="hello")
CALL = {"id": "toolu_1", "name": "look", "arguments": {"where": "außen"}}


@pytest.fixture
async def claude(server: StrictServer) -> AsyncIterator[AnthropicAdapter]:
    server.state.options.key = KEY
    adapter = AnthropicAdapter(
        name="anthropic",
        model="claude-x",
        base_url=server.url,
        api_key=KEY,
        clock=SystemClock(),
        timeouts=Timeouts(first_token_s=5.0, idle_s=0.5),
    )
    yield adapter
    await adapter.aclose()


def asking(*messages: LLMMessage, **fields: Any) -> LLMRequest:
    return LLMRequest(messages=legal(messages or (SYSTEM, USER)), **fields)


def answered(response: LLMResponse, *, content: str = "") -> LLMMessage:
    return LLMMessage(
        role="assistant",
        content=response.content or content,
        tool_calls=response.tool_calls,
        reasoning=response.reasoning,
        thinking=response.thinking,
        model=response.model,
    )


def result(call_id: str = "toolu_1", content: str = "rain") -> LLMMessage:
    return LLMMessage(role="tool", tool_call_id=call_id, name="look", content=content)


def body(server: StrictServer, at: int = -1) -> dict[str, Any]:
    return server.requests[at].body


def kinds(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


async def test_an_answer_streams_and_is_booked(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    server.script([{"text": "Guten Tag 🍵", "chunks": 5}])
    shown: list[str] = []
    response = await claude.complete(asking(), shown.append)
    assert response.content == "".join(shown) == "Guten Tag 🍵"
    assert len(shown) > 1
    assert response.finish_reason == "stop"
    assert response.usage == Usage(input_tokens=10, output_tokens=5)
    assert response.model == "claude-x"
    assert [attempt.usage for attempt in response.attempts] == [response.usage]
    sent = body(server)
    assert sent["system"] == [{"type": "text", "text": "Be kind."}]
    assert sent["cache_control"] == {"type": "ephemeral"}


async def test_what_was_read_from_and_written_to_the_cache_is_input(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    # agno-agi/agno#9537, browser-use/browser-use#5305
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 1000,
        "cache_creation_input_tokens": 200,
        "output_tokens": 5,
    }
    server.script([{"text": "a", "usage": usage}, {"text": "b", "usage": None}])
    response = await claude.complete(asking())
    assert response.usage == Usage(
        input_tokens=1210, cached_tokens=1000, output_tokens=5, cache_write_tokens=200
    )
    assert (await claude.complete(asking())).usage == Usage()


async def test_a_round_with_thinking_goes_on_byte_for_byte(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    thought = 'It may "rain" — \u2028 or not 🍵'
    server.script(
        [
            {"reasoning": thought, "redacted": ["c2VjcmV0"], "text": "I look.", "calls": [CALL]},
            "It rains.",
            "As I said.",
        ]
    )
    first = await claude.complete(asking(SYSTEM, USER, tools=(LOOK,), reasoning=2048))
    assert first.finish_reason == "tool_calls"
    assert first.reasoning == thought
    assert first.tool_calls == (ToolCall(id="toolu_1", name="look", arguments={"where": "außen"}),)
    history = [SYSTEM, USER, answered(first), result()]
    second = await claude.complete(asking(*history, tools=(LOOK,), reasoning=2048))
    assert second.content == "It rains."
    turn = body(server)["messages"][1]
    assert kinds(turn) == ["thinking", "redacted_thinking", "text", "tool_use"]
    assert turn["content"][0] == {
        "type": "thinking",
        "thinking": thought,
        "signature": signature(thought),
    }
    assert body(server)["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    # What went before stays as it was, in the next turn too: the prefix is cached.
    history += [answered(second), LLMMessage(role="user", content="sure?")]
    await claude.complete(asking(*history, tools=(LOOK,), reasoning=2048))
    sent = [orjson.dumps(request.body["messages"])[:-1] for request in server.requests]
    assert sent[1].startswith(sent[0])
    assert sent[2].startswith(sent[1])


async def test_results_come_first_and_what_one_side_says_is_one_message(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    calls = tuple(ToolCall(id=name, name="look", arguments={}) for name in ("a", "b:0"))
    history = (
        USER,
        LLMMessage(role="assistant", tool_calls=calls),
        result("a"),
        result("b:0", "warm"),
        LLMMessage(role="user", content="and?", note="[It is noon.]"),
        LLMMessage(role="user", content="well?"),
    )
    await claude.complete(asking(*history, tools=(LOOK,)))
    messages = body(server)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert kinds(messages[2]) == ["tool_result", "tool_result", "text", "text"]
    assert messages[2]["content"][2]["text"] == "[It is noon.]\n\nand?"
    # Ids of other servers are made such that this one takes them, ever the same.
    [_, named] = messages[1]["content"]
    assert named["id"].startswith("b_0_")
    await claude.complete(asking(*history, tools=(LOOK,)))
    assert body(server)["messages"] == messages


async def test_a_last_pass_keeps_the_tools(server: StrictServer, claude: AnthropicAdapter) -> None:
    await claude.complete(asking(tools=(LOOK,), tool_choice="none"))
    assert body(server)["tool_choice"] == {"type": "none"}
    assert len(body(server)["tools"]) == 1


async def test_thoughts_of_another_model_are_left_out_and_thinking_rests_in_that_round(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    thought = [{"type": "thinking", "thinking": "hm", "signature": signature("hm")}]
    message = LLMMessage(
        role="assistant",
        tool_calls=(ToolCall(id="a", name="look", arguments={}),),
        thinking=orjson.dumps(thought).decode(),
        model="claude-y",
    )
    await claude.complete(asking(USER, message, result("a"), tools=(LOOK,), reasoning=4096))
    assert kinds(body(server)["messages"][1]) == ["tool_use"]
    assert "thinking" not in body(server)
    dated = replace(message, model="claude-x-20260101")
    await claude.complete(asking(USER, dated, result("a"), tools=(LOOK,), reasoning=4096))
    assert kinds(body(server)["messages"][1]) == ["thinking", "tool_use"]
    assert body(server)["thinking"]["budget_tokens"] == 4096


async def test_after_a_summary_only_the_present_round_keeps_its_thoughts(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    def thoughtful(call_id: str) -> LLMMessage:
        block = {"type": "thinking", "thinking": call_id, "signature": signature(call_id)}
        return LLMMessage(
            role="assistant",
            tool_calls=(ToolCall(id=call_id, name="look", arguments={}),),
            thinking=orjson.dumps([block]).decode(),
            model="claude-x",
        )

    summary = LLMMessage(role="user", content="They talked.", note=SUMMARY_NOTE)
    history = [USER, thoughtful("a"), result("a"), LLMMessage(role="assistant", content="ok")]
    now = [LLMMessage(role="user", content="more"), thoughtful("b"), result("b")]
    steering = LLMMessage(role="user", content="hurry")

    def thinking() -> list[int]:
        messages = body(server)["messages"]
        return [at for at, one in enumerate(messages) if "thinking" in kinds(one)]

    await claude.complete(asking(*history, *now, tools=(LOOK,)))
    assert thinking() == [1, 5]
    await claude.complete(asking(summary, *history, *now, tools=(LOOK,)))
    assert thinking() == [5]
    await claude.complete(asking(summary, *history, *now, steering, tools=(LOOK,)))
    assert thinking() == [5]


async def test_a_signature_that_is_refused_does_not_poison_the_session(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    bad = [{"type": "thinking", "thinking": "shortened", "signature": signature("longer")}]
    message = LLMMessage(
        role="assistant", content="so", thinking=orjson.dumps(bad).decode(), model="claude-x"
    )
    response = await claude.complete(asking(USER, message, USER))
    assert response.content.startswith("echo: ")
    assert [attempt.error is None for attempt in response.attempts] == [False, True]
    # It is a matter of that history: another one keeps its thoughts.
    good = [{"type": "thinking", "thinking": "t", "signature": signature("t")}]
    await claude.complete(
        asking(USER, replace(message, thinking=orjson.dumps(good).decode()), USER)
    )
    assert kinds(body(server)["messages"][1]) == ["thinking", "text"]


async def test_thinking_is_asked_for_in_the_way_that_the_model_knows(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    await claude.complete(asking(reasoning="low", max_output_tokens=100))
    assert body(server)["thinking"] == {"type": "adaptive"}
    assert body(server)["output_config"] == {"effort": "low"}
    assert body(server)["max_tokens"] == 2148
    refusal = {"type": "error", "error": {"message": "thinking: adaptive is not supported"}}
    server.script([{"status": 400, "body": refusal}])
    for _ in range(2):
        await claude.complete(asking(reasoning="medium"))
    assert [request.body["thinking"]["type"] for request in server.requests[1:]] == [
        "adaptive",
        "enabled",
        "enabled",
    ]
    assert body(server)["thinking"]["budget_tokens"] == 8192
    assert "output_config" not in body(server)


async def test_a_model_that_cannot_think_is_asked_without(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    refusal = {"type": "error", "error": {"message": "thinking: not supported by this model"}}
    server.script([{"status": 400, "body": refusal, "times": 2}])
    await claude.complete(asking(reasoning=2048))
    assert "thinking" not in body(server)


async def test_a_limit_above_the_model_s_is_lowered_to_it(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    words = "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens"
    server.script([{"status": 400, "body": {"type": "error", "error": {"message": words}}}])
    for _ in range(2):
        await claude.complete(asking())
    assert [request.body["max_tokens"] for request in server.requests] == [8192, 4096, 4096]


@pytest.mark.parametrize("finish", ["tool_use", "max_tokens", "end_turn", "pause_turn"])
async def test_cut_arguments_are_never_a_call_that_runs(
    server: StrictServer, claude: AnthropicAdapter, finish: str
) -> None:
    cut = {**CALL, "arguments": '{"where": "au'}
    server.script([{"calls": [cut], "finish": finish}])
    response = await claude.complete(asking(tools=(LOOK,)))
    [call] = response.tool_calls
    assert call.problem
    assert call.arguments == {}


async def test_blocks_may_be_counted_wrongly_or_not_at_all(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    def start(at: int | None, **block: Any) -> dict[str, Any]:
        return {"type": "content_block_start", "index": at, "content_block": block}

    def delta(at: int | None, **fields: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": at, "delta": fields}

    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
    for first, second in ((0, 0), (None, None), (3, 3)):
        events = [
            {"type": "message_start", "message": {"usage": {"input_tokens": "9"}}},
            start(first, type="tool_use", id="a", name="look", input={}),
            delta(first, type="input_json_delta", partial_json='{"n": 1}'),
            start(second, type="tool_use", id="b", name="look", input={"n": 2}),
            start(second, type="text", text="Hi"),
            delta(second, type="text_delta", text=" there"),
            end,
        ]
        server.script([{"events": events}])
        response = await claude.complete(asking(tools=(LOOK,)))
        assert [(call.id, call.arguments) for call in response.tool_calls] == [
            ("a", {"n": 1}),
            ("b", {"n": 2}),
        ]
        assert response.content == "Hi there"
        assert response.usage.input_tokens == 9


async def test_a_thought_without_a_signature_is_not_sent_back(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    server.script([{"reasoning": "hm", "signature": "", "text": "so"}])
    response = await claude.complete(asking())
    assert (response.reasoning, response.thinking) == ("hm", None)


async def test_an_answer_that_is_not_streamed_is_understood(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    whole = {
        "type": "message",
        "model": "claude-x",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t", "name": "look", "input": {"n": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
    server.script([{"body": whole}])
    response = await claude.complete(asking(tools=(LOOK,)))
    assert response.content == "I look."
    assert response.tool_calls == (ToolCall(id="t", name="look", arguments={"n": 1}),)
    assert response.usage == Usage(input_tokens=3, output_tokens=4)
    assert response.thinking is not None


async def test_it_arrives_whole_byte_by_byte(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    server.script([{"text": "北京 🍵\u2028\x85", "reasoning": "思", "calls": [CALL], "write": 1}])
    response = await claude.complete(asking(tools=(LOOK,)))
    assert response.content == "北京 🍵\u2028\x85"
    assert response.reasoning == "思"
    assert response.tool_calls[0].arguments == {"where": "außen"}


@pytest.mark.parametrize("after", ["", "Partial"])
async def test_an_error_in_the_stream_is_one(
    server: StrictServer, claude: AnthropicAdapter, after: str
) -> None:
    # farzaa/clicky#132
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}
    text = {"type": "content_block_delta", "index": 0, "delta": {"text": after}}
    overload = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    server.script([{"events": [*([start, text] if after else []), overload]}])
    shown: list[str] = []
    with pytest.raises(ProviderUnavailable) as raised:
        await claude.complete(asking(), shown.append)
    assert raised.value.streamed == bool(after)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (
            401,
            {"type": "authentication_error", "message": "invalid x-api-key"},
            AuthenticationFailed,
        ),
        (429, {"type": "rate_limit_error", "message": "slow down"}, RateLimited),
        (529, {"type": "overloaded_error", "message": "Overloaded"}, ProviderUnavailable),
        (
            400,
            {
                "type": "invalid_request_error",
                "message": "prompt is too long: 210000 tokens > 200000 maximum",
            },
            ContextOverflow,
        ),
        (413, {"type": "request_too_large", "message": "Request exceeds"}, ContextOverflow),
        (400, {"type": "invalid_request_error", "message": "no such thing"}, RequestRefused),
    ],
)
async def test_refusals_are_typed(
    server: StrictServer,
    claude: AnthropicAdapter,
    status: int,
    error: dict[str, str],
    kind: type[Exception],
) -> None:
    server.script([{"status": status, "body": {"type": "error", "error": error}}])
    with pytest.raises(kind) as raised:
        await claude.complete(asking())
    assert type(raised.value) is kind
    assert KEY not in str(raised.value)


async def test_half_an_answer_is_none_and_silence_is_limited(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    server.script([{"text": "one two three", "cut": 5}, {"text": "one two three", "stall": 5}])
    for words in ("middle|broke off", "fell silent"):
        with pytest.raises(ProviderUnavailable, match=words):
            await claude.complete(asking())


async def test_cancelling_closes_the_connection(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    server.script([{"hang": True}])
    with anyio.move_on_after(0.2):
        await claude.complete(asking())
    with anyio.fail_after(5):
        while server.stats["live"]:
            await anyio.sleep(0.01)
    assert server.stats["aborted"] == 1


async def test_a_form_is_asked_for_where_there_is_one(
    server: StrictServer, claude: AnthropicAdapter
) -> None:
    response = await claude.complete(asking(response_schema={"type": "object"}))
    assert orjson.loads(response.content)["action"] == "answer"


async def test_the_factory_needs_a_key_only() -> None:
    adapter = create(ProviderOptions(type="anthropic", api_key=KEY))
    assert adapter.model.startswith("claude-")
    assert adapter.context_window == 200_000
    await adapter.aclose()
