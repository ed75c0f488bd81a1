"""A decision when the first provider fails: who is asked instead, what is shown, what is booked."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from teaagentd.agent.accounts import Account
from teaagentd.agent.decisions import FinalAnswer
from teaagentd.agent.engine import Decided, ModelDecisionEngine, RetryPolicy
from teaagentd.agent.toolbox import ToolRegistry
from teaagentd.errors import (
    AuthenticationFailed,
    ContextOverflow,
    ProviderError,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
)
from teaagentd.providers.chain import Chain, Link
from teaagentd.providers.options import ModelOptions
from teaagentd.testing import Broken, Scripted, ScriptedModel
from teaagentd.types import Attempt, LLMRequest, LLMResponse
from tests.agent.doubles import Notes, saying, user

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(wait_s=0.001, jitter_s=0.0, max_wait_s=60.0)
NO_CREDIT = QuotaExhausted("the credit is used up", status=402)


def told_to_wait(error: RateLimited, wait_s: float) -> RateLimited:
    error.retry_after_s = wait_s
    return error


def model(name: str, *replies: Scripted, native_tools: bool = True) -> ScriptedModel:
    return ScriptedModel(replies, name=name, model=f"{name}-1", native_tools=native_tools)


def chained(*models: ScriptedModel, options: Sequence[ModelOptions] = ()) -> ModelDecisionEngine:
    """An engine over a chain of `models`, each a provider of its own."""
    each = [*options, *[ModelOptions()] * (len(models) - len(options))]
    links = [
        Link(adapter=one, provider=one.name, label=one.name, options=given)
        for one, given in zip(models, each, strict=True)
    ]
    registry = ToolRegistry([saying("find", "found")])
    return ModelDecisionEngine(adapter=Chain(links), registry=registry, retry=QUICK)


async def decide(engine: ModelDecisionEngine, watcher: Notes | None = None) -> Decided:
    return await engine.decide(system="", history=[user("hello")], watcher=watcher)


def booked(attempts: Sequence[Attempt]) -> list[tuple[str, str, str | None]]:
    return [(attempt.provider, attempt.model, attempt.error) for attempt in attempts]


@pytest.mark.parametrize(
    "error",
    [
        NO_CREDIT,
        RateLimited("busy"),
        told_to_wait(RateLimited("busy"), 86400),
        AuthenticationFailed("no such key", status=401),
        ProviderUnavailable("overloaded", status=529),
        RequestRefused("no such field", status=400),
        RequestRefused("the content filter withheld it"),
    ],
    ids=repr,
)
async def test_whatever_keeps_one_from_answering_another_is_asked_at_once(
    error: ProviderError,
) -> None:
    first, second = model("first", error), model("second", "hi")
    decided = await decide(chained(first, second))
    assert decided.decision == FinalAnswer(content="hi")
    assert booked(decided.attempts) == [
        ("first", "first-1", type(error).__name__),
        ("second", "second-1", None),
    ]
    assert [len(one.requests) for one in (first, second)] == [1, 1]
    assert len(decided.usages) == 1


async def test_half_an_answer_is_taken_back_and_never_joined_to_another() -> None:
    away = ProviderUnavailable("the connection was cut")
    first, second = model("first", Broken(text="It is four", error=away)), model("second", "Five.")
    notes = Notes()
    decided = await decide(chained(first, second), notes)
    assert (decided.message.content, notes.screen, notes.resets) == ("Five.", "Five.", 1)
    assert ("thinking", "asking second") in notes.phases


async def test_a_rest_is_shared_and_the_first_is_asked_again_after_it() -> None:
    first, second = model("first", NO_CREDIT), model("second", "one", "two")
    engine = chained(first, second)
    await decide(engine)
    again = await decide(engine)
    assert booked(again.attempts) == [("second", "second-1", None)]
    assert len(first.requests) == 1


async def test_a_long_history_is_no_reason_to_ask_another() -> None:
    first, second = model("first", ContextOverflow("too long")), model("second", "hi")
    with pytest.raises(ContextOverflow):
        await decide(chained(first, second))
    assert second.requests == []


async def test_each_is_asked_in_its_own_way() -> None:
    first = model("first", NO_CREDIT)
    second = model("second", "hi", native_tools=False)
    hot = ModelOptions(temperature=1.5, reasoning="high")
    cold = ModelOptions(temperature=0.0, max_output_tokens=99)
    decided = await decide(chained(first, second, options=[hot, cold]))
    [asked_first], [asked_second] = first.requests, second.requests
    assert (asked_first.temperature, asked_first.reasoning) == (1.5, "high")
    assert asked_first.response_schema is None
    assert [tool.name for tool in asked_first.tools] == ["find"]
    assert (asked_second.temperature, asked_second.reasoning) == (0.0, None)
    assert asked_second.max_output_tokens == 99
    assert asked_second.response_schema is not None
    assert asked_second.tools == ()
    assert decided.message.raw == '{"action":"answer","text":"hi"}'


async def test_a_repair_goes_to_whoever_answers_now() -> None:
    unreadable = LLMResponse(content='{"action": ')
    first = model("first", unreadable, NO_CREDIT, native_tools=False)
    second = model("second", "hi")
    decided = await decide(chained(first, second))
    assert decided.message.content == "hi"
    assert [attempt.error for attempt in decided.attempts] == [None, "QuotaExhausted", None]
    assert second.refused == []


async def test_all_are_tried_again_while_a_failure_is_passing() -> None:
    first = model("first", ProviderUnavailable("away"), "late")
    second = model("second", NO_CREDIT)
    decided = await decide(chained(first, second))
    assert [attempt.provider for attempt in decided.attempts] == ["first", "second", "first"]
    assert decided.decision == FinalAnswer(content="late")


async def test_when_nobody_answers_every_request_is_told_of() -> None:
    first, second = model("first", NO_CREDIT), model("second", AuthenticationFailed("no key"))
    with pytest.raises(QuotaExhausted) as caught:
        await decide(chained(first, second))
    assert [attempt.provider for attempt in caught.value.attempts] == ["first", "second"]


async def test_when_all_rest_nobody_is_asked_and_the_wait_is_told() -> None:
    busy = told_to_wait(RateLimited("busy"), 600)
    first, second = model("first", busy), model("second", told_to_wait(RateLimited("busy"), 900))
    engine = chained(first, second)
    for _ in range(3):
        with pytest.raises(RateLimited) as caught:
            await decide(engine)
    assert [len(one.requests) for one in (first, second)] == [1, 1]
    assert 590 < (caught.value.retry_after_s or 0) <= 600
    assert caught.value.attempts == ()


async def test_the_wait_that_is_asked_for_is_waited() -> None:
    first = model("first", told_to_wait(RateLimited("busy"), 0.3), "hi")
    began = anyio.current_time()
    decided = await decide(chained(first))
    assert decided.message.content == "hi"
    assert anyio.current_time() - began >= 0.3


async def test_a_stop_ends_the_wait() -> None:
    first = model("first", told_to_wait(RateLimited("busy"), 59))
    engine = chained(first)
    account = Account()
    stops: list[anyio.CancelScope] = []
    ended: list[bool] = []

    async def ask() -> None:
        with anyio.CancelScope() as scope:
            stops.append(scope)
            await engine.decide(system="", history=[user("hello")], account=account)
        ended.append(scope.cancelled_caught)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await first.wait_asked(1)
        await anyio.sleep(0.05)
        stops[0].cancel()
    assert ended == [True]
    assert [attempt.error for attempt in account.attempts] == ["RateLimited"]
    assert len(first.requests) == 1


async def test_sessions_at_once_do_not_all_ask_who_has_no_credit() -> None:
    gate = anyio.Event()

    async def refuse(request: LLMRequest) -> Scripted:
        await gate.wait()
        return NO_CREDIT

    first, second = model("first", refuse), ScriptedModel(default="hi", name="second")
    engine = chained(first, second)
    answers: list[str] = []

    async def ask() -> None:
        answers.append((await decide(engine)).message.content)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await first.wait_asked(1)
        gate.set()
        await second.wait_asked(1)
        for _ in range(5):
            group.start_soon(ask)
    assert answers == ["hi"] * 6
    assert len(first.requests) == 1
