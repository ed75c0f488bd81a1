"""What servers refuse that others take: left out or named otherwise, once told, and in JSON.

Faults of this kind: NousResearch/hermes-agent#15353, HKUDS/nanobot#3453, ongridio/ongrid#400.
"""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from teaagentd.agent.decisions import FinalAnswer, ToolCalls
from teaagentd.agent.engine import ModelDecisionEngine
from teaagentd.agent.toolbox import ToolRegistry
from teaagentd.errors import RequestRefused, ToolsRefused
from teaagentd.providers.openai import OpenAIAdapter
from teaagentd.providers.options import ModelOptions
from teaagentd.types import LLMMessage, LLMRequest, ToolSpec
from tests.agent.doubles import saying
from tests.providers.conftest import KEY, Connect
from tests.strict_server import StrictServer

pytestmark = pytest.mark.anyio

USER = LLMMessage(role="user", content="hello")
TOOL = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
NO_TOOLS = "registry.example/m does not support tools"


def asking(**fields: Any) -> LLMRequest:
    return LLMRequest(messages=(USER,), **fields)


def sent(server: StrictServer, name: str) -> list[object]:
    return [request.body.get(name) for request in server.requests]


async def test_the_limit_goes_by_the_name_that_the_model_knows(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    words = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    server.state.options.refuse = {"max_tokens": words}
    with capture_logs() as lines:
        for _ in range(2):
            response = await adapter.complete(asking(max_output_tokens=64))
            assert response.content == "echo: hello"
    assert sent(server, "max_tokens") == [64, None, None]
    assert sent(server, "max_completion_tokens") == [None, 64, 64]
    assert [line["event"] for line in lines].count("provider_option_changed") == 1


async def test_a_limit_that_is_too_large_is_not_taken_for_an_unknown_one(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    server.state.options.refuse = {"max_tokens": "max_tokens is too large: at most 4096"}
    with pytest.raises(RequestRefused, match="too large"):
        await adapter.complete(asking(max_output_tokens=100_000))
    assert len(server.requests) == 1


async def test_all_that_is_refused_is_left_out_one_after_the_other(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    options = ("stream_options", "temperature", "response_format", "reasoning_effort")
    server.state.options.refuse = {name: f"{name}: not supported" for name in options}
    request = asking(temperature=0.2, response_schema={"type": "object"}, reasoning="low")
    for _ in range(2):
        await adapter.complete(request)
    assert len(server.requests) == 6
    assert not {*options} & server.requests[-1].body.keys()


async def test_what_is_not_optional_is_an_error(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    server.state.options.refuse = {"model": "model: no such model"}
    with pytest.raises(RequestRefused, match="no such model"):
        await adapter.complete(asking())


async def test_what_was_thought_before_a_call_is_sent_back_where_it_is_wanted(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    server.state.options.wants_reasoning = True
    calls = [{"id": "a", "name": "look"}]
    server.script(
        [{"reasoning": "Hm, \n", "calls": calls}, {"calls": [{"id": "b", "name": "look"}]}]
    )
    history = [USER]
    for _ in range(2):
        response = await adapter.complete(LLMRequest(messages=tuple(history), tools=(TOOL,)))
        history.append(
            LLMMessage(
                role="assistant", tool_calls=response.tool_calls, reasoning=response.reasoning
            )
        )
        [call] = response.tool_calls
        history.append(LLMMessage(role="tool", tool_call_id=call.id, name="look", content="x"))
    await adapter.complete(LLMRequest(messages=tuple(history), tools=(TOOL,)))
    replayed = [
        [m.get("reasoning_content") for m in request.body["messages"] if m.get("tool_calls")]
        for request in server.requests
    ]
    assert replayed == [[], [None], ["Hm, \n"], ["Hm, \n", ""]]


async def test_it_is_left_out_again_where_it_is_refused(
    server: StrictServer, adapter: OpenAIAdapter, connect: Connect
) -> None:
    called = LLMMessage(
        role="assistant",
        tool_calls=(await _call(server, adapter)).tool_calls,
        reasoning="Hm.",
    )
    result = LLMMessage(role="tool", tool_call_id=called.tool_calls[0].id, content="x")
    request = LLMRequest(messages=(USER, called, result), tools=(TOOL,))
    server.state.options.wants_reasoning = True
    await adapter.complete(request)
    server.state.options.wants_reasoning = False
    await adapter.complete(request)
    await connect().complete(request)
    assert [request.status for request in server.requests] == [200, 400, 200, 400, 200, 200]


async def _call(server: StrictServer, adapter: OpenAIAdapter) -> Any:
    server.script([{"reasoning": "Hm.", "calls": [{"id": "a", "name": "look"}]}])
    return await adapter.complete(asking(tools=(TOOL,)))


def engine(adapter: OpenAIAdapter, **options: Any) -> ModelDecisionEngine:
    return ModelDecisionEngine(
        adapter=adapter, registry=ToolRegistry([saying("look", "a cat")]), **options
    )


async def test_a_model_without_tool_calling_is_asked_for_json(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    server.state.options.refuse = {"tools": NO_TOOLS}
    server.script([{"text": '{"action":"look","arguments":{}}'}])
    asked = engine(adapter)
    first = await asked.decide(system="Be kind.", history=[USER])
    assert isinstance(first.decision, ToolCalls)
    [call] = first.decision.calls
    assert (call.name, [one.error is None for one in first.attempts]) == ("look", [False, True])
    result = LLMMessage(role="tool", tool_call_id=call.id, name="look", content="a cat")
    second = await asked.decide(system="Be kind.", history=[USER, first.message, result])
    assert isinstance(second.decision, FinalAnswer)
    assert [request.status for request in server.requests] == [400, 200, 200]
    assert all("tools" not in request.body for request in server.requests[1:])


async def test_who_insists_on_tool_calling_is_told(
    server: StrictServer, adapter: OpenAIAdapter
) -> None:
    server.state.options.refuse = {"tools": NO_TOOLS}
    with pytest.raises(ToolsRefused, match="does not support tools") as caught:
        await engine(adapter, options=ModelOptions(decisions="native")).decide(
            system="", history=[USER]
        )
    assert len(caught.value.attempts) == 1
    assert KEY not in str(caught.value)
