"""One provider fails over a real socket and another answers, whichever dialects they speak.

Faults of this kind: farzaa/clicky#132, openclaw/openclaw#45663, #99097, earendil-works/pi#8331.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from teaagentd.abc import SystemClock
from teaagentd.agent.decisions import FinalAnswer, ToolCalls
from teaagentd.agent.engine import ModelDecisionEngine, RetryPolicy
from teaagentd.agent.toolbox import ToolRegistry
from teaagentd.errors import ContextOverflow, RateLimited
from teaagentd.providers.anthropic import AnthropicAdapter
from teaagentd.providers.chain import Chain, Link
from teaagentd.providers.exchange import Timeouts
from teaagentd.providers.openai import OpenAIAdapter
from teaagentd.types import LLMMessage
from tests.agent.doubles import Notes, saying, user
from tests.providers.conftest import KEY
from tests.strict_server import StrictServer

pytestmark = pytest.mark.anyio

ADAPTERS = {"openai": OpenAIAdapter, "anthropic": AnthropicAdapter}


class Pair:
    """Two servers, and an engine that asks the first one first."""

    def __init__(self, first: StrictServer, second: StrictServer, kinds: tuple[str, str]) -> None:
        self.first, self.second = first, second
        self.links = [
            Link(
                adapter=ADAPTERS[kind](
                    name=name,
                    model="m",
                    base_url=server.url,
                    api_key=KEY,
                    clock=SystemClock(),
                    timeouts=Timeouts(first_token_s=0.5, idle_s=0.5),
                ),
                provider=name,
                label=name,
            )
            for name, kind, server in zip(("one", "two"), kinds, (first, second), strict=True)
        ]
        self.chain = Chain(self.links)
        self.engine = ModelDecisionEngine(
            adapter=self.chain,
            registry=ToolRegistry([saying("look", "a cat")]),
            retry=RetryPolicy(attempts=1),
        )

    async def aclose(self) -> None:
        await self.chain.aclose()
        for server in (self.first, self.second):
            assert [request.refused for request in server.requests if request.refused] == []
            assert server.state.live == 0


@pytest.fixture(
    params=[
        ("openai", "openai"),
        ("openai", "anthropic"),
        ("anthropic", "openai"),
        ("anthropic", "anthropic"),
    ],
    ids="-".join,
)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as opened:
        first = await opened.enter_async_context(StrictServer(chunks=4))
        second = await opened.enter_async_context(StrictServer(chunks=4))
        made = Pair(first, second, request.param)
        opened.push_async_callback(made.aclose)
        yield made


BUSY = {"error": {"message": "busy", "type": "overloaded_error"}}
FAILURES: dict[str, dict[str, Any]] = {
    "no credit": {"status": 402, "body": {"error": {"message": "insufficient credits"}}},
    "rate limit": {"status": 429, "headers": {"Retry-After": "600"}, "body": BUSY},
    "no key": {"status": 401, "body": {"error": {"message": "invalid key"}}},
    "overload": {"status": 529, "body": BUSY},
    "odd refusal": {"status": 400, "body": {"error": {"message": "your request is not nice"}}},
    "an error for an answer": {"events": [{"type": "error", **BUSY}], "done": False},
    "a web page": {"raw": "<html>log in</html>", "content_type": "text/html"},
    "headers only": {"text": "Half an answer", "stall": 0},
    "no headers": {"hang": True},
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_the_other_one_answers(pair: Pair, failure: str) -> None:
    pair.first.script([FAILURES[failure]])
    pair.second.script(["Fine."])
    notes = Notes()
    decided = await pair.engine.decide(system="Be kind.", history=[user("hello")], watcher=notes)
    assert decided.decision == FinalAnswer(content="Fine.")
    assert notes.screen == "Fine."
    assert [attempt.provider for attempt in decided.attempts] == ["one", "two"]
    assert [attempt.error is None for attempt in decided.attempts] == [False, True]
    assert [len(server.requests) for server in (pair.first, pair.second)] == [1, 1]


@pytest.mark.parametrize("broken", ["cut", "stall"])
async def test_half_an_answer_is_taken_back(pair: Pair, broken: str) -> None:
    pair.first.script([{"text": "Half an answer is here", "chunks": 8, broken: 6}])
    pair.second.script(["Fine."])
    notes = Notes()
    decided = await pair.engine.decide(system="", history=[user("hello")], watcher=notes)
    assert (decided.message.content, notes.screen, notes.resets) == ("Fine.", "Fine.", 1)


async def test_a_round_of_one_is_gone_on_with_by_the_other_and_back(pair: Pair) -> None:
    """Ids, results and thinking are sent to each as it takes them."""
    calls = [{"id": "t:0", "name": "look", "arguments": {"a": 1}}]
    pair.first.script([{"reasoning": "Hm.", "calls": calls, "text": "I look."}])
    pair.second.script([{"reasoning": "So.", "calls": calls}])
    history: list[LLMMessage] = [user("hello")]
    await rounds(pair, history)
    pair.first.script([{"status": 503, "body": BUSY}])
    await rounds(pair, history)
    pair.chain.worked(pair.links[0])
    pair.first.script([{"status": 200, "text": "Two cats."}])
    decided = await pair.engine.decide(system="", history=history)
    assert decided.message.content == "Two cats."
    assert [attempt.provider for attempt in decided.attempts] == ["one"]
    assert [request.status for request in pair.second.requests] == [200]


async def rounds(pair: Pair, history: list[LLMMessage]) -> None:
    decided = await pair.engine.decide(system="", history=history)
    assert isinstance(decided.decision, ToolCalls)
    [call] = decided.decision.calls
    history += [
        decided.message,
        LLMMessage(role="tool", tool_call_id=call.id, name="look", content="a cat"),
    ]


async def test_a_long_history_is_compacted_not_passed_on(pair: Pair) -> None:
    words = "prompt is too long: 9000 tokens > 8192 maximum"
    pair.first.script([{"status": 400, "body": {"error": {"message": words}}}])
    with pytest.raises(ContextOverflow) as caught:
        await pair.engine.decide(system="", history=[user("hello")])
    assert caught.value.limit_tokens == 8192
    assert pair.second.requests == []


async def test_all_told_to_wait_are_left_alone(pair: Pair) -> None:
    for server in (pair.first, pair.second):
        server.script([{**FAILURES["rate limit"], "times": 0}])
    for _ in range(3):
        with pytest.raises(RateLimited) as caught:
            await pair.engine.decide(system="", history=[user("hello")])
        assert 500 < (caught.value.retry_after_s or 0) <= 600
    assert [len(server.requests) for server in (pair.first, pair.second)] == [1, 1]
