"""T2 and T3: decisions and calls stand in the transcript as a provider must be given them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from teaagentd.errors import StoreError, TurnEnded
from teaagentd.store import Store
from teaagentd.transcript import legal
from teaagentd.types import Attachment, LLMMessage, ToolCall, ToolResult
from tests.store.steps import (
    KEY,
    ManualClock,
    attempt,
    close_or_fold,
    command,
    database,
    decide,
    no_note,
    result,
    spoken,
    started,
    told,
)

pytestmark = pytest.mark.anyio


async def test_results_stand_in_the_order_of_the_calls_whenever_they_came(store: Store) -> None:
    turn = await started(store, "go")
    await decide(store, turn.turn_id, "a", "b", "c")
    for call_id in ("c", "a", "b"):
        await store.start_call(turn.turn_id, call_id)
    for call_id in ("b", "c", "a"):
        await store.finish_call(turn.turn_id, result(call_id, f"output of {call_id}"))
    assert told(await store.transcript(KEY))[2:] == [
        ("tool", "output of a"),
        ("tool", "output of b"),
        ("tool", "output of c"),
    ]


async def test_a_notice_goes_to_the_people_at_once_and_answers_nothing(store: Store) -> None:
    turn = await started(store, "go")
    message = LLMMessage(
        role="assistant",
        content="I look.",
        tool_calls=(ToolCall(id="a", name="tool", arguments={}),),
    )
    told_now = await store.decide(turn.turn_id, message, notice="I look.", attempts=(attempt(),))
    assert spoken(told_now) == [("k", "notice", ())]
    assert told_now[0].content == "I look."


async def test_a_call_is_started_once_and_has_one_result(store: Store) -> None:
    turn = await started(store, "go")
    with pytest.raises(StoreError):
        await store.start_call(turn.turn_id, "never decided")
    await decide(store, turn.turn_id, "a", "b")
    await store.start_call(turn.turn_id, "a")
    with pytest.raises(StoreError):
        await store.start_call(turn.turn_id, "a")
    await store.finish_call(turn.turn_id, result("a"))
    for again in (
        store.finish_call(turn.turn_id, result("a", "a second result")),
        store.start_call(turn.turn_id, "a"),
    ):
        with pytest.raises(StoreError):
            await again
    assert [content for _, content in told(await store.transcript(KEY))[2:]] == ["done"]


async def test_an_id_twice_in_one_decision_is_paired_by_position(store: Store) -> None:
    # HKUDS/nanobot#4442, can1357/oh-my-pi#2055
    turn = await started(store, "go")
    await decide(store, turn.turn_id, "x", "x")
    for content in ("first", "second"):
        await store.start_call(turn.turn_id, "x")
        await store.finish_call(turn.turn_id, result("x", content))
    assert told(await store.transcript(KEY))[2:] == [("tool", "first"), ("tool", "second")]


async def test_ids_may_come_round_again_in_later_rounds(store: Store) -> None:
    # NousResearch/hermes-agent#11722, QwenLM/qwen-code#8382
    turn = await started(store, "go")
    for content in ("one", "two"):
        await decide(store, turn.turn_id, "t:0")
        await store.start_call(turn.turn_id, "t:0")
        await store.finish_call(turn.turn_id, result("t:0", content))
    await decide(store, turn.turn_id, "t:0")
    await store.close(turn.turn_id, text="stop", outcome="stopped", attempts=())
    tools = [content for role, content in told(await store.transcript(KEY)) if role == "tool"]
    assert tools == ["one", "two", "[not run: the turn was interrupted before this call started]"]


async def test_a_new_decision_closes_what_the_last_one_left_open(store: Store) -> None:
    turn = await started(store, "go")
    await decide(store, turn.turn_id, "a")
    await decide(store, turn.turn_id, "b")
    history = (await store.transcript(KEY))[1:]
    assert [message.role for message in history] == ["assistant", "tool", "assistant"]


async def test_a_decision_comes_back_as_the_model_made_it(store: Store, path: Path) -> None:
    message = LLMMessage(
        role="assistant",
        content="beside",
        tool_calls=(
            ToolCall(
                id="a",
                name="tool",
                arguments={
                    "text": "naïve ☃ 😀 \0",
                    "big": 2**70,
                    "nested": [{"deep": [1, 2.5, None, True]}],
                },
            ),
            ToolCall(id="b", name="other", arguments={}, problem="cut off"),
        ),
        raw='{"tool": "tool"}',
        reasoning="because",
        model="m-1",
    )
    turn = await started(store, "go")
    await store.decide(turn.turn_id, message, notice=None, attempts=())
    await store.aclose()
    again = await Store.open(path, clock=ManualClock())
    (_, kept) = await again.transcript(KEY)
    assert (kept.tool_calls, kept.raw, kept.reasoning, kept.model) == (
        message.tool_calls,
        message.raw,
        message.reasoning,
        message.model,
    )
    await again.aclose()


async def test_lone_surrogates_never_reach_the_file(store: Store) -> None:
    # agent0ai/agent-zero#1773, NousResearch/hermes-agent#84281
    turn = await started(store, "go")
    bad = LLMMessage(
        role="assistant",
        content="\ud83d",
        tool_calls=(ToolCall(id="i\udc00", name="n", arguments={"k\udcff": ["\udcff"]}),),
        raw="\ud83d",
        reasoning="\ud83d",
        model="\ud83d",
        attachments=(Attachment(path="\udcff", media_type="t", name="n", size=1),),
    )
    await store.decide(turn.turn_id, bad, notice="n\ud83d", attempts=(attempt(),))
    await store.start_call(turn.turn_id, "i\udc00")
    await store.finish_call(
        turn.turn_id, ToolResult(call_id="i\udc00", name="n", content="out\udc97")
    )
    await close_or_fold(store, turn.turn_id, "a\ud83d\ude00\ud83d")
    transcript = await store.transcript(KEY)
    for message in transcript:
        str(message).encode()
    assert transcript[1].tool_calls[0].arguments == {"k�": ["�"]}
    assert told(transcript)[2:] == [("tool", "out�"), ("assistant", "a😀�")]
    assert (await store.replies(KEY, after=0))[-1].content == "a😀�"


async def test_a_row_that_cannot_be_read_names_itself_and_hides_no_other(
    store: Store, path: Path, clock: ManualClock
) -> None:
    # PrimeIntellect-ai/prime-agent#1785
    turn = await started(store, "go")
    await decide(store, turn.turn_id, "a")
    await store.finish_call(turn.turn_id, result("a"))
    await close_or_fold(store, turn.turn_id, "answer")
    with database(path) as other:
        other.execute("UPDATE messages SET tool_calls = '[{\"id\": 1' WHERE role = 'assistant'")
        other.execute("UPDATE messages SET content = CAST(x'6869ff' AS TEXT) WHERE role = 'user'")
    await store.aclose()
    store = await Store.open(path, clock=clock)
    following = await started(store, "still there?")
    contents = [content for _, content in told(following.history)]
    assert contents[0] == "hi�"
    assert "cannot be read" in contents[1]
    assert contents[2] == "done"
    assert contents[3].startswith("answer")
    assert contents[-1] == "still there?"
    assert legal(following.history)[0].role == "user"
    assert len(await store.transcript(KEY)) == 5
    await store.aclose()


async def test_only_the_last_round_of_what_is_saved_may_be_open(store: Store, path: Path) -> None:
    """Whatever the order of steps, each earlier call has its one result."""
    turn = await started(store, "go")
    for number in range(3):
        await decide(store, turn.turn_id, f"a{number}", f"b{number}")
        await store.start_call(turn.turn_id, f"b{number}")
    assert _open_rounds(path) == 1
    await store.resume(turn.turn_id, notice=None, failed="f")
    assert _open_rounds(path) == 0
    await decide(store, turn.turn_id, "last")
    await command(store, "stop")
    assert _open_rounds(path) == 0
    with pytest.raises(TurnEnded):
        await store.fold(turn.turn_id, upto=None, budget_tokens=None, note=no_note)


def _open_rounds(path: Path) -> int:
    with database(path) as other:
        other.row_factory = sqlite3.Row
        calls = other.execute("SELECT place FROM calls WHERE state <> 'finished'").fetchall()
    return len({row["place"] for row in calls})
