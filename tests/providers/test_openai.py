"""The `openai` adapter over real sockets, against a server that misbehaves as told."""

from __future__ import annotations

import json
import traceback
from typing import Any

import anyio
import pytest
import structlog

from teaagentd.abc import SystemClock
from teaagentd.errors import (
    AuthenticationFailed,
    ConfigError,
    ContextOverflow,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
    RequestRefused,
)
from teaagentd.providers import openai
from teaagentd.providers.openai import OpenAIAdapter
from teaagentd.providers.options import ProviderOptions
from teaagentd.types import LLMMessage, LLMRequest, LLMResponse, ToolSpec, Usage
from tests.providers.conftest import KEY, Connect
from tests.strict_server import StrictServer

pytestmark = pytest.mark.anyio

TOOL = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})


def asking(text: str = "hello", **fields: Any) -> LLMRequest:
    return LLMRequest(messages=(LLMMessage(role="user", content=text),), **fields)


def delta(content: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish}]}


async def failing(adapter: OpenAIAdapter, request: LLMRequest | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await adapter.complete(request or asking())
    error = caught.value
    assert error.provider == "acme"
    [attempt] = error.attempts
    assert attempt.error == str(error)
    assert KEY not in "".join(traceback.format_exception(error))
    return error


async def test_an_answer_streams_and_is_booked(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    server.script(
        [{"text": "Good morning!", "usage": {"prompt_tokens": 9, "completion_tokens": 2}}]
    )
    pieces: list[str] = []
    before = SystemClock().now_ms()
    response = await adapter.complete(asking(purpose="title"), pieces.append)
    assert response.content == "".join(pieces) == "Good morning!"
    assert len(pieces) == 4
    assert response.finish_reason == "stop"
    assert response.usage == Usage(input_tokens=9, output_tokens=2)
    [attempt] = response.attempts
    assert (attempt.provider, attempt.model, attempt.purpose) == ("acme", "m", "title")
    assert attempt.usage == response.usage
    assert attempt.error is None
    assert before <= attempt.started_at <= SystemClock().now_ms()
    [request] = server.requests
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["stream"] is True


async def test_tool_calls_come_with_the_text_beside_them(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    server.script([{"text": "One moment.", "calls": [{"id": "a", "name": "look"}]}])
    response = await adapter.complete(asking(tools=(TOOL,)))
    [call] = response.tool_calls
    assert (call.id, call.name, call.arguments, call.problem) == ("a", "look", {}, None)
    assert response.content == "One moment."
    assert response.finish_reason == "tool_calls"
    assert server.requests[0].body["tools"][0]["function"]["name"] == "look"


async def test_missing_usage_is_unknown_and_not_zero(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    server.script([{"text": "Hi", "usage": None}])
    response = await adapter.complete(asking())
    assert response.usage == Usage()
    assert response.attempts[0].usage is None


async def test_reasoning_is_captured_and_not_shown(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    server.script([{"reasoning": "Hm.", "text": "Yes."}])
    pieces: list[str] = []
    response = await adapter.complete(asking(), pieces.append)
    assert (response.reasoning, response.content, "".join(pieces)) == ("Hm.", "Yes.", "Yes.")


async def test_thinking_once_shown_is_taken_back_and_then_held(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    server.script([{"text": "plan plan</think>answer", "chunks": 8, "times": 2}])
    shown: list[str] = []
    first = await adapter.complete(asking(), shown.append)
    assert (first.content, first.reasoning, first.restated) == ("answer", "plan plan", True)
    assert "".join(shown) == "plan plananswer"
    shown.clear()
    second = await adapter.complete(asking(), shown.append)
    assert (second.content, second.reasoning, second.restated) == ("answer", "plan plan", False)
    assert "".join(shown) == "answer"


async def test_a_server_that_does_not_stream_is_understood(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    message = {"role": "assistant", "content": "Whole."}
    body = {
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    server.script([{"body": body}])
    response = await adapter.complete(asking())
    assert response.content == "Whole."
    assert response.usage == Usage(input_tokens=3, output_tokens=1)


async def test_one_connection_serves_many_requests(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    for _ in range(5):
        await adapter.complete(asking())
    assert len(server._connections) == 1


async def test_a_refused_option_is_left_out_ever_after(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    refusal = {"error": {"message": "Unrecognized request argument: stream_options"}}
    server.script([{"status": 400, "body": refusal}])
    response = await adapter.complete(asking())
    assert response.content == "echo: hello"
    assert [attempt.error is None for attempt in response.attempts] == [False, True]
    await adapter.complete(asking())
    sent = ["stream_options" in request.body for request in server.requests]
    assert sent == [True, False, False]


# katanemo/plano#980, florimondmanca/httpx-sse#34, OpenMetadata#29532
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_text_arrives_whole_byte_by_byte(
    server: StrictServer, adapter: OpenAIAdapter, end: str
) -> None:
    text = "🙂 北京 a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"
    events = [delta({"content": text}), delta({}, "stop")]
    lines = [f"data: {json.dumps(event, ensure_ascii=False)}" for event in events]
    server.script([{"raw": (end * 2).join(lines), "write": 1}])
    pieces: list[str] = []
    response = await adapter.complete(asking(), pieces.append)
    assert response.content == "".join(pieces) == json.loads(json.dumps(text))


async def test_an_event_may_have_several_data_lines(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    lines = json.dumps(delta({"content": "Hi"}, "stop"), indent=1).split("\n")
    server.script([{"raw": "".join(f"data: {line}\n" for line in lines) + "\n"}])
    assert (await adapter.complete(asking())).content == "Hi"


# XSpoonAi/spoon-core#179
async def test_usage_that_follows_the_end_is_read(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    events = [{"choices": []}, delta({"content": "Hi"}), delta({}, "stop"), usage]
    server.script([{"events": events}, {"events": events, "done": False}])
    for _ in range(2):
        response = await adapter.complete(asking())
        assert response.content == "Hi"
        assert response.usage == Usage(input_tokens=9, output_tokens=2)


async def test_an_open_connection_after_the_end_is_not_waited_for(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    server.script([{"events": [delta({"content": "Hi"}, "stop")], "stall": 1}])
    assert (await adapter.complete(asking())).content == "Hi"


@pytest.mark.parametrize(
    "reply",
    [
        {"events": [{"type": "error", "error": {"type": "overloaded_error"}}]},
        {"raw": 'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'},
        {"raw": "event: error\ndata: upstream went away\n\n"},
        {"events": [{"error": {"message": "busy", "code": 502}}]},
        {"body": {"id": "g", "error": {"code": 502}}},
        {"body": {"choices": None}},
        {"body": {"choices": []}},
        {"body": "not JSON"},
        {"raw": ": PROCESSING\n\n: PROCESSING\n\n"},
        {"raw": "data: [DONE]\n\n"},
        {"raw": ""},
        {"raw": "<html><body>Please log in</body></html>"},
        {"events": [delta({"content": None, "tool_calls": []}, "tool_calls")]},
        {"events": [delta({}, "error")]},
        {"status": 500, "body": "<html>oh no</html>"},
        {"status": 529, "body": {"error": {"message": "overloaded"}}},
    ],
)
async def test_an_answer_that_is_none_is_a_passing_failure(
    server: StrictServer, adapter: OpenAIAdapter, reply: dict[str, Any]
) -> None:
    server.script([reply])
    assert isinstance(await failing(adapter), ProviderUnavailable)
    assert (await adapter.complete(asking())).content == "echo: hello"


async def test_what_cannot_be_an_api_is_named_by_its_address(
    server: StrictServer, connect: Connect
) -> None:
    """Without the password that may be in it."""
    server.script([{"raw": "<html><body>Please log in</body></html>"}])
    with_password = server.url.replace("://", "://anna:secret@")
    page = str(await failing(connect(base_url=with_password)))
    assert f"at {server.url} " in page
    assert "is base_url the address of its API?" in page
    nobody = str(await failing(connect(base_url="http://anna:secret@127.0.0.1:9/v1")))
    assert "at http://127.0.0.1:9/v1 cannot be reached" in nobody
    assert "secret" not in page + nobody


@pytest.mark.parametrize(
    "rest",
    [
        [{"type": "error", "error": {"type": "overloaded_error"}}],
        [{"error": {"message": "busy"}}],
        [],
    ],
)
async def test_half_an_answer_is_no_answer(
    server: StrictServer, adapter: OpenAIAdapter, rest: list[dict[str, Any]]
) -> None:
    server.script([{"events": [delta({"content": "Partial"}), *rest], "done": False}])
    pieces: list[str] = []
    with pytest.raises(ProviderUnavailable) as caught:
        await adapter.complete(asking(), pieces.append)
    assert pieces == ["Partial"]
    assert caught.value.streamed


async def test_a_connection_that_breaks_in_the_middle_is_a_passing_failure(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    server.script([{"text": "word " * 10, "cut": 2}, {"calls": [{"name": "look"}], "cut": 1}])
    assert isinstance(await failing(adapter), ProviderUnavailable)
    assert isinstance(await failing(adapter), ProviderUnavailable)


async def test_an_error_written_raw_into_a_stream_is_understood(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    # lemonade-sdk/lemonade#2975
    server.script([{"raw": '{"error":{"message":"6009 tokens exceed 4096"}}'}])
    error = await failing(adapter)
    assert isinstance(error, ContextOverflow)
    assert error.limit_tokens == 4096


async def test_refusals_are_typed(server: StrictServer, adapter: OpenAIAdapter) -> None:
    overflow = {"error": {"code": "context_length_exceeded", "message": "too long"}}
    server.script(
        [
            {"status": 400, "body": overflow},
            {"status": 401, "body": {"error": {"message": f"Incorrect API key provided: {KEY}"}}},
            {"status": 429, "headers": {"retry-after": "7"}, "body": {}},
            {"status": 429, "headers": {"retry-after": "soon"}, "body": ""},
            {"status": 404, "body": {"error": {"message": "no such model"}}},
            {"status": 503, "headers": {"retry-after": "7"}, "body": {}},
            {"status": 529, "headers": {"retry-after": "-1"}, "body": {}},
        ]
    )
    errors = [await failing(adapter) for _ in range(7)]
    assert [type(error) for error in errors] == [
        ContextOverflow,
        AuthenticationFailed,
        RateLimited,
        RateLimited,
        RequestRefused,
        ProviderUnavailable,
        ProviderUnavailable,
    ]
    passing = [error for error in errors if isinstance(error, RateLimited | ProviderUnavailable)]
    assert [error.retry_after_s for error in passing] == [7.0, None, 7.0, None]
    assert [error.status for error in errors] == [400, 401, 429, 429, 404, 503, 529]
    assert "no such model" in str(errors[4])


async def test_an_illegal_request_is_told_apart(adapter: OpenAIAdapter) -> None:
    """The strict server speaks up, so the tests above do send legal requests."""
    request = LLMRequest(messages=(LLMMessage(role="assistant", content="Hi"),))
    assert isinstance(await failing(adapter, request), RequestRefused)


# earendil-works/pi#8331, MoonshotAI/kimi-code#1799
@pytest.mark.parametrize(
    "reply",
    [
        {"hang": True},
        {"text": "never", "stall": 0},
        {"text": "never", "stall": 0, "ping_s": 0.02},
        {"events": [{"choices": []}] * 200, "chunk_ms": 20},
    ],
)
async def test_silence_before_the_first_content_is_limited(
    server: StrictServer, connect: Connect, reply: dict[str, Any]
) -> None:
    server.script([reply])
    error = await failing(connect(first_token_s=0.3))
    assert isinstance(error, ProviderUnavailable)
    assert "0.3 s" in str(error)
    await closed_by_client(server)


@pytest.mark.parametrize("pings", [{}, {"ping_s": 0.02}])
async def test_silence_in_the_middle_is_limited(
    server: StrictServer, connect: Connect, pings: dict[str, Any]
) -> None:
    server.script([{"text": "one two three four", "stall": 2, **pings}])
    adapter = connect(idle_s=0.3)
    pieces: list[str] = []
    with pytest.raises(ProviderUnavailable) as caught:
        await adapter.complete(asking(), pieces.append)
    assert len(pieces) == 2
    assert caught.value.streamed
    await closed_by_client(server)


async def test_a_slow_answer_that_lives_is_left_alone(
    server: StrictServer, connect: Connect
) -> None:
    server.script([{"text": "slowly but surely", "chunks": 16, "chunk_ms": 100}])
    adapter = connect(first_token_s=1.2, idle_s=1.2)
    assert (await adapter.complete(asking())).content == "slowly but surely"


async def test_thinking_is_content_to_the_clock(server: StrictServer, connect: Connect) -> None:
    thoughts = [delta({"reasoning_content": "."})] * 16
    server.script([{"events": [*thoughts, delta({"content": "Yes"}, "stop")], "chunk_ms": 100}])
    assert (await connect(first_token_s=1.2, idle_s=1.2).complete(asking())).content == "Yes"


@pytest.mark.parametrize(
    "reply",
    [
        {"hang": True},
        {"text": "never", "stall": 0},
        {"text": "one two three four", "stall": 2},
        {"text": "one two three four", "stall": 2, "ping_s": 0.02},
        {"text": "one two three four", "chunk_ms": 20_000},
    ],
)
async def test_cancelling_closes_the_connection(
    server: StrictServer, adapter: OpenAIAdapter, reply: dict[str, Any]
) -> None:
    server.script([reply])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(adapter.complete, asking())
        while not server.stats["live"]:
            await anyio.sleep(0.01)
        await anyio.sleep(0.1)
        with anyio.fail_after(10):  # far less than the silence to come
            tasks.cancel_scope.cancel()
            await closed_by_client(server, shield=True)


async def closed_by_client(server: StrictServer, *, shield: bool = False) -> None:
    """Returns once the server has seen the client hang up on its one request."""
    with anyio.CancelScope(shield=shield), anyio.fail_after(5):
        while not server.stats["aborted"]:
            await anyio.sleep(0.01)
    assert server.stats["live"] == 0


async def test_many_requests_run_at_once(server: StrictServer, adapter: OpenAIAdapter) -> None:
    answers: dict[int, LLMResponse] = {}

    async def ask(number: int) -> None:
        answers[number] = await adapter.complete(asking(f"number {number} [[wait:50]]"))

    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(ask, number)
    assert all(f"number {number} " in answers[number].content for number in range(30))


async def test_a_server_that_is_not_there_is_a_passing_failure(connect: Connect) -> None:
    adapter = connect(base_url="http://127.0.0.1:1/v1")
    assert isinstance(await failing(adapter), ProviderUnavailable)


async def test_a_name_that_does_not_resolve_is_a_passing_failure(connect: Connect) -> None:
    adapter = connect(base_url="http://nowhere.invalid/v1")
    assert isinstance(await failing(adapter), ProviderUnavailable)


async def test_a_url_that_is_none_is_refused(connect: Connect) -> None:
    for url in ("nonsense", "ftp://127.0.0.1/v1"):
        error = await failing(connect(base_url=url))
        assert isinstance(error, RequestRefused | ProviderUnavailable)


async def test_warm_makes_ready_and_closing_is_final(adapter: OpenAIAdapter) -> None:
    await adapter.warm()
    await adapter.warm()
    await adapter.aclose()
    await adapter.aclose()
    assert isinstance(await failing(adapter), ProviderUnavailable)


async def test_the_key_stays_out_of_logs_and_errors(
    server: StrictServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """HKUDS/OpenHarness#241, openclaw/openclaw#75101"""
    caplog.set_level("DEBUG")
    server.script(
        [
            {"status": 401, "body": {"error": {"message": f"bad key {KEY}"}}},
            {"status": 500, "body": f"trace: Authorization: Bearer {KEY}"},
            {"raw": f"<p>{KEY}</p>"},
            {"events": [{"error": {"message": KEY}}]},
            "fine",
        ]
    )
    adapter = connect()
    with structlog.testing.capture_logs() as logs:
        for _ in range(4):
            await failing(adapter)
        await adapter.complete(asking())
        await failing(connect(base_url="http://127.0.0.1:1/v1"))
    assert logs
    assert KEY not in f"{logs} {caplog.text} {adapter!r}"


async def test_the_factory_names_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"provider\.model"):
        openai.create(ProviderOptions(type="openai", base_url="http://127.0.0.1:1/v1"))
    adapter = openai.create(ProviderOptions(type="openai", api_key=KEY))
    assert adapter.model == openai.DEFAULT_MODEL
    assert adapter.name == "openai"
    assert adapter.native_tools
    assert KEY not in repr(ProviderOptions(type="openai", api_key=KEY))
