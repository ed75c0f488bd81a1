"""The legality function: what it gives is accepted by a strict provider, whatever it is given."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teaagentd.transcript import (
    NOT_RUN,
    clean_text,
    estimate_message_tokens,
    estimate_request_tokens,
    estimate_tokens,
    legal,
    open_calls,
)
from teaagentd.types import LLMMessage, ToolCall, ToolSpec
from tests.strict_dialect import illegal


def wire(messages: tuple[LLMMessage, ...]) -> list[dict[str, object]]:
    """The messages in the OpenAI dialect, nothing put right."""
    return [_wire(message) for message in messages]


def _wire(message: LLMMessage) -> dict[str, object]:
    found: dict[str, object] = {"role": message.role, "content": message.content}
    if message.note:
        found["content"] = f"{message.note}\n{message.content}"
    if message.role == "tool":
        found["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return found


def user(content: str) -> LLMMessage:
    return LLMMessage(role="user", content=content)


def calls(*ids: str) -> LLMMessage:
    found = tuple(ToolCall(id=call_id, name="tool", arguments={}) for call_id in ids)
    return LLMMessage(role="assistant", tool_calls=found)


def result(call_id: str | None, content: str = "out") -> LLMMessage:
    return LLMMessage(role="tool", tool_call_id=call_id, name="tool", content=content)


def answer(content: str = "so") -> LLMMessage:
    return LLMMessage(role="assistant", content=content)


_ids = st.sampled_from(["a", "b", "a_2", "a_2_2", "a_3", "call", ""])
_words = st.sampled_from(["", " ", "\n", "words", "é"])
_messages = st.lists(
    st.one_of(
        st.builds(LLMMessage, role=st.just("system"), content=_words),
        st.builds(
            LLMMessage,
            role=st.just("user"),
            content=_words,
            note=st.sampled_from([None, "", " ", "a note"]),
        ),
        st.builds(answer, _words),
        st.builds(lambda ids: calls(*ids), st.lists(_ids, min_size=1, max_size=3)),
        st.builds(result, _ids, _words),
    ),
    max_size=12,
)


@given(_messages)
def test_whatever_it_is_given_is_legal_afterwards(messages: list[LLMMessage]) -> None:
    assert illegal(wire(legal(messages))) is None


@given(_messages)
def test_what_is_legal_is_left_as_it_is(messages: list[LLMMessage]) -> None:
    once = legal(messages)
    assert legal(once) == once
    assert all(a is b for a, b in zip(legal(once), once, strict=True))


@given(st.lists(st.lists(st.tuples(_ids, st.booleans()), min_size=1, max_size=3), max_size=5))
def test_a_growing_history_keeps_its_beginning(rounds: list[list[tuple[str, bool]]]) -> None:
    """Each request starts with the messages of the one before, ids and all (prefix-stable)."""
    history = [user("go")]
    before = legal(history)
    for one in rounds:
        history.append(calls(*(call_id for call_id, _ in one)))
        history += [result(call_id) for call_id, _ in one]
        if any(steered for _, steered in one):
            history.append(user("and this"))
        after = legal(history)
        assert after[: len(before)] == before
        before = after


@given(_messages)
def test_every_call_is_answered_by_its_own_result_or_a_word_that_it_was_not_run(
    messages: list[LLMMessage],
) -> None:
    kept = Counter(m.content for m in messages if m.role == "tool" and m.content)
    out = legal(messages)
    used = Counter(m.content for m in out if m.role == "tool")
    used.subtract({NOT_RUN: used[NOT_RUN], "[no output]": used["[no output]"]})
    assert used <= kept
    assert sum(len(m.tool_calls) for m in out) == sum(len(m.tool_calls) for m in messages)


@given(_messages)
def test_nobody_else_is_silenced(messages: list[LLMMessage]) -> None:
    def said(found: list[LLMMessage] | tuple[LLMMessage, ...]) -> list[str]:
        return [m.content for m in found if m.role in ("user", "assistant") and m.content.strip()]

    out = [content for content in said(legal(messages)) if not content.startswith("[")]
    assert out == said(messages)


def test_the_same_id_twice_in_one_answer_is_told_apart() -> None:
    # HKUDS/nanobot#4442, #4059
    history = [user("go"), calls("x", "x"), result("x", "first"), result("x", "second")]
    out = legal(history)
    assert [call.id for call in out[1].tool_calls] == ["x", "x_2"]
    assert [(m.tool_call_id, m.content) for m in out[2:]] == [("x", "first"), ("x_2", "second")]


def test_ids_that_come_round_again_are_paired_by_position() -> None:
    # NousResearch/hermes-agent#11722, QwenLM/qwen-code#8382
    turn = [user("go"), calls("t:0"), result("t:0", "one"), answer()]
    killed = [user("again"), calls("t:0")]
    third = [user("once more"), calls("t:0"), result("t:0", "three"), answer()]
    out = legal([*turn, *killed, *third])
    ids = [call.id for message in out for call in message.tool_calls]
    results = [(m.tool_call_id, m.content) for m in out if m.role == "tool"]
    assert ids == ["t:0", "t:0_2", "t:0_3"]
    assert results == [("t:0", "one"), ("t:0_2", NOT_RUN), ("t:0_3", "three")]


def test_results_are_put_in_the_order_of_the_calls() -> None:
    out = legal([user("go"), calls("a", "b"), result("b", "B"), result("a", "A")])
    assert [m.content for m in out[2:]] == ["A", "B"]


def test_orphans_and_doubles_are_left_out() -> None:
    out = legal([result("z"), user("go"), calls("a"), result("a", "1"), result("a", "2")])
    assert [m.content for m in out] == ["go", "", "1"]


@pytest.mark.parametrize("history", [[], [result("a")], [answer()], [answer(" ")]])
def test_a_history_without_its_beginning_says_so(history: list[LLMMessage]) -> None:
    system = LLMMessage(role="system", content="be kind")
    out = legal([system, *history])
    assert out[0] == system
    assert out[1].role == "user"
    assert illegal(wire(out)) is None


def test_open_calls_are_those_of_the_last_round_without_a_result() -> None:
    history = [user("go"), calls("a", "b", "a"), result("a")]
    assert [call.id for call in open_calls(history)] == ["b", "a"]
    assert open_calls([*history, result("b"), result("a")]) == ()
    assert open_calls([*history, user("steering")]) == ()
    assert open_calls([]) == ()


@given(st.text(alphabet=st.characters(categories=["Cs", "Ll", "So", "Zs"])))
def test_clean_text_can_always_be_encoded(text: str) -> None:
    # NousResearch/hermes-agent#68254, agent0ai/agent-zero#1773
    clean = clean_text(text)
    clean.encode()
    assert clean_text(clean) == clean
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert clean == text


def test_halves_that_belong_together_are_joined() -> None:
    assert clean_text("\ud83d\ude00 \ud83d \ude00\ud83d a\udc97") == "😀 � �� a�"


@given(st.text(max_size=200), st.text(max_size=200))
def test_an_estimate_grows_with_the_text(first: str, second: str) -> None:
    both = estimate_tokens(first + second)
    assert both >= max(estimate_tokens(first), estimate_tokens(second))
    assert both > len((first + second).encode("utf-8")) // 4 - 1


@pytest.mark.parametrize(
    "text", ["汉字漢字" * 20, "日本語のテキスト" * 10, "😀" * 30, "हिन्दी" * 10]
)
def test_other_scripts_count_at_least_a_token_for_each_character(text: str) -> None:
    assert estimate_tokens(text) >= len(text)


def test_notes_calls_and_tools_count_too() -> None:
    bare = user("hello")
    noted = LLMMessage(role="user", content="hello", note="a long note " * 20)
    assert estimate_message_tokens(noted) > estimate_message_tokens(bare) + 60
    big = LLMMessage(
        role="assistant",
        tool_calls=(ToolCall(id="a", name="tool", arguments={"text": "x" * 300}),),
    )
    assert estimate_message_tokens(big) > 100
    spec = ToolSpec(name="tool", description="d" * 300, parameters={"type": "object"})
    alone = estimate_request_tokens([bare])
    assert estimate_request_tokens([bare], [spec]) > alone + 100
