"""Where a history may be cut, and how a summary of any length is made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teaagentd.agent.accounts import Account
from teaagentd.agent.compaction import PURPOSE, Summariser, clipped, find_cut
from teaagentd.agent.engine import ModelDecisionEngine, RetryPolicy
from teaagentd.agent.toolbox import ToolRegistry
from teaagentd.errors import CompactionFailed, ContextOverflow
from teaagentd.providers.options import ModelOptions
from teaagentd.testing import Scripted, ScriptedModel
from teaagentd.transcript import estimate_message_tokens, estimate_request_tokens
from teaagentd.types import LLMMessage, LLMRequest, ToolCall

pytestmark = pytest.mark.anyio


def user(text: str) -> LLMMessage:
    return LLMMessage(role="user", content=text)


def answer(text: str) -> LLMMessage:
    return LLMMessage(role="assistant", content=text)


def round_of(*results: str) -> list[LLMMessage]:
    calls = tuple(ToolCall(id=f"c{n}", name="look", arguments={}) for n in range(len(results)))
    return [
        LLMMessage(role="assistant", tool_calls=calls),
        *(
            LLMMessage(role="tool", tool_call_id=call.id, name="look", content=text)
            for call, text in zip(calls, results, strict=True)
        ),
    ]


texts = st.text("word 茶", max_size=60)
histories = st.lists(
    st.one_of(
        texts.map(lambda text: [user(text)]),
        texts.map(lambda text: [answer(text)]),
        st.lists(texts, min_size=1, max_size=3).map(lambda results: round_of(*results)),
    ),
    min_size=1,
    max_size=12,
).map(lambda parts: [user("begin"), *(message for part in parts for message in part)])


@given(histories, st.integers(0, 400))
def test_a_cut_falls_between_rounds_and_what_stays_fits(
    history: list[LLMMessage], keep: int
) -> None:
    cut = find_cut(history, keep)
    rest = history[cut:]
    assert 1 <= cut <= len(history)
    if rest:
        assert rest[0].role != "tool"
        assert sum(estimate_message_tokens(message) for message in rest) <= keep


def test_what_stays_begins_with_what_the_user_said_where_that_is_possible() -> None:
    history = [user("one"), *round_of("a", "b"), answer("x"), user("two"), answer("y")]
    total = sum(estimate_message_tokens(message) for message in history)
    assert find_cut(history, total) == 5
    assert find_cut(history, 0) == len(history)
    assert find_cut([user("one"), *round_of("a"), *round_of("b" * 30)], 60) == 3


def test_long_contents_are_clipped_in_their_middle() -> None:
    long = user("a" * 50 + "b" * 50)
    assert clipped([user("short")], 20) is None
    shorter = clipped([user("short"), long], 20)
    assert shorter is not None
    assert shorter[0].content == "short"
    assert shorter[1].content.startswith("a" * 10 + "\n[80 characters are left out here]\n")
    assert shorter[1].content.endswith("b" * 10)


def summariser(model: ScriptedModel) -> Summariser:
    engine = ModelDecisionEngine(
        adapter=model,
        registry=ToolRegistry([]),
        options=ModelOptions(decisions="native"),
        retry=RetryPolicy(wait_s=0.01, jitter_s=0.01),
    )
    return Summariser(engine=engine, window=lambda: model.context_window)


def limited(window: int) -> ScriptedModel:
    """A model that refuses what is longer than `window`, whatever it says its window is."""

    async def reply(request: LLMRequest) -> Scripted:
        if estimate_request_tokens(request.messages) > window:
            return ContextOverflow("too long")
        return f"summary {len(model.requests)}"

    model = ScriptedModel(default=reply)
    return model


@pytest.mark.parametrize("letter", ["w", "茶", "9"])
async def test_a_history_longer_than_the_window_is_summarised_in_parts(letter: str) -> None:
    """Each part with the summary of those before it, none longer than the window."""
    model = limited(8000)
    model.context_window = 8000
    history = [user(f"{number} " + letter * 3000) for number in range(40)]
    account = Account()
    summary = await summariser(model).summarise(history, account)
    assert summary == f"summary {len(model.requests)}"
    assert len(model.requests) >= 4
    assert len(account.attempts) == len(model.requests)
    assert all(request.purpose == PURPOSE and not request.tools for request in model.requests)
    assert "summary 1" in model.requests[1].messages[-1].content
    assert "39 " in model.requests[-1].messages[-1].content


async def test_parts_get_smaller_where_the_window_is_smaller_than_it_was_said_to_be() -> None:
    model = limited(2000)
    model.context_window = 8000
    history = [user(f"{number} " + "w" * 1500) for number in range(12)]
    assert (await summariser(model).summarise(history, Account())).startswith("summary")


async def test_a_window_that_takes_nothing_is_a_failure_and_no_endless_try() -> None:
    model = limited(10)
    model.context_window = 8000
    with pytest.raises(CompactionFailed):
        await summariser(model).summarise([user("w" * 1500)] * 12, Account())
    assert len(model.requests) < 10


async def test_thoughts_are_no_part_of_a_summary() -> None:
    model = ScriptedModel(["<think>what was it</think>\n\nTea was made."])
    assert await summariser(model).summarise([user("w" * 500)], Account()) == "Tea was made."
