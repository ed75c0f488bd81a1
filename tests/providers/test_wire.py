"""Requests as they are written: the dialect's form, the same bytes each time, no broken text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from teaagentd.providers.wire import Pieces, encode, plain_bytes, request_body
from teaagentd.types import LLMMessage, LLMRequest, ToolCall, ToolSpec
from tests.strict_dialect import illegal

TOOL = ToolSpec(name="look", description="Looks.", parameters={"type": "object", "properties": {}})
HISTORY = (
    LLMMessage(role="system", content="Be kind."),
    LLMMessage(role="user", content="What now?", note="[It is noon.]"),
    LLMMessage(
        role="assistant",
        content="",
        tool_calls=(
            ToolCall(id="a", name="look", arguments={"where": "außen"}),
            ToolCall(id="b", name="look", arguments={}),
        ),
    ),
    LLMMessage(role="tool", tool_call_id="a", name="look", content="rain"),
    LLMMessage(role="tool", tool_call_id="b", name="look", content="warm"),
    LLMMessage(role="assistant", content="It rains.", reasoning="hm", model="m", id=7),
)


def written(request: LLMRequest, **options: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(plain_bytes(request_body(request, model="m", **options)))
    return body


def test_a_history_is_legal_in_the_dialect() -> None:
    messages = written(LLMRequest(messages=HISTORY))["messages"]
    assert illegal(messages) is None
    assert messages[1] == {"role": "user", "content": "[It is noon.]\n\nWhat now?"}
    [first, _] = messages[2]["tool_calls"]
    assert json.loads(first["function"]["arguments"]) == {"where": "außen"}
    assert messages[5] == {"role": "assistant", "content": "It rains."}


@pytest.mark.parametrize(
    ("reasoning", "effort"),
    [
        ("low", "low"),
        ("high", "high"),
        (1024, "low"),
        (2048, "low"),
        (8000, "medium"),
        (9000, "high"),
    ],
)
def test_the_thinking_that_is_asked_for_is_said_in_the_server_s_terms(
    reasoning: Any, effort: str
) -> None:
    request = LLMRequest(messages=HISTORY, reasoning=reasoning)
    assert written(request)["reasoning_effort"] == effort
    routed = written(request, router=True)
    name = "max_tokens" if isinstance(reasoning, int) else "effort"
    assert routed["reasoning"] == {name: reasoning}
    assert "reasoning_effort" not in routed


def test_only_what_was_asked_for_is_sent() -> None:
    assert set(written(LLMRequest(messages=HISTORY))) == {
        "model",
        "messages",
        "stream",
        "stream_options",
    }
    full = written(
        LLMRequest(
            messages=HISTORY,
            tools=(TOOL,),
            tool_choice="none",
            response_schema={"type": "object"},
            max_output_tokens=5,
            temperature=0.0,
        ),
        limit_name="max_completion_tokens",
    )
    assert full["tools"][0]["function"]["name"] == "look"
    assert full["tool_choice"] == "none"
    assert full["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert full["max_completion_tokens"] == 5
    assert full["temperature"] == 0.0


def test_a_longer_history_begins_with_the_bytes_of_the_shorter() -> None:
    def messages(count: int) -> bytes:
        request = LLMRequest(messages=HISTORY[:count], tools=(TOOL,))
        return encode({"messages": request_body(request, model="m")["messages"]})

    assert messages(6).startswith(messages(5).removesuffix(b"]}"))


# NousResearch/hermes-agent#68254, agent0ai/agent-zero#1773
def test_lone_surrogates_are_written_as_replacement_marks() -> None:
    broken = LLMMessage(role="user", content="a\ud83d", note="\ud83d\ude00")
    call = ToolCall(id="a", name="look", arguments={"\udfff": ["\ud800"]})
    request = LLMRequest(messages=(broken, LLMMessage(role="assistant", tool_calls=(call,))))
    [user, assistant] = written(request)["messages"]
    assert user["content"] == "😀\n\na\ufffd"
    arguments = assistant["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"\ufffd": ["\ufffd"]}


def test_a_large_request_is_written_piece_by_piece_with_the_same_bytes() -> None:
    texts = ("a", "b" * 700_000, 'c "messages":[ \ud800', "d" * 400_000)
    messages = tuple(LLMMessage(role="user", content=text, note="n") for text in texts)
    request = LLMRequest(messages=messages)
    body = request_body(request, model='m "messages":[')
    pieces = encode(body)
    assert isinstance(pieces, Pieces)
    written = b"".join(pieces.written())
    assert len(written) == pieces.length
    assert written == plain_bytes(body)
    assert b"".join(pieces.written()) == written, "it can be sent again"
    assert max(map(len, pieces.written())) < 1_000_000
