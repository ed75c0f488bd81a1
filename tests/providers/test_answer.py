"""The reader of answers: one reply out of whatever chunks a server sends, streamed or whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teaagentd.providers.answer import Answer
from teaagentd.providers.calls import read_json
from teaagentd.types import ToolCall, Usage


def delta(content: dict[str, Any] | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish}]}


def piece(arguments: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk with one piece of a call."""
    name = fields.pop("name", None)
    function = {"name": name, "arguments": arguments}
    given = {key: value for key, value in function.items() if value is not None}
    return delta({"tool_calls": [{**fields, "function": given}]})


def read(*chunks: dict[str, Any]) -> Answer:
    answer = Answer()
    for chunk in chunks:
        answer.add(chunk)
    answer.end()
    return answer


def calls(*chunks: dict[str, Any], whole: bool = True) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in read(*chunks).tool_calls(whole=whole)]


def test_text_is_joined_and_given_out_as_it_comes() -> None:
    answer = Answer()
    said = [answer.add(delta({"content": text}))[0] for text in ("Hel", "", "lo")]
    assert said == ["Hel", "", "lo"]
    assert answer.content == "Hello"


# apache/maka#1976, huggingface/smolagents#1958
@pytest.mark.parametrize("ids", [("a", "b"), (None, None)])
def test_two_calls_under_one_index_are_two(ids: tuple[str | None, str | None]) -> None:
    found = calls(
        *(
            piece(f'{{"path":"{n}"}}', index=0, name="read_file", **({"id": i} if i else {}))
            for n, i in enumerate(ids)
        )
    )
    assert found == [("read_file", {"path": "0"}), ("read_file", {"path": "1"})]


def test_two_whole_objects_in_a_row_are_two_calls() -> None:
    found = calls(
        piece('{"path":"1"', index=0, id="a", name="read_file"),
        piece('}{"path":', index=0),
        piece('"2"}', index=0),
    )
    assert found == [("read_file", {"path": "1"}), ("read_file", {"path": "2"})]


def test_an_empty_object_before_the_real_one_is_no_call() -> None:
    found = calls(piece("{}", index=0, id="a", name="f"), piece('{"x": 1}', index=0))
    assert found == [("f", {"x": 1})]


def test_the_same_call_without_arguments_may_come_twice() -> None:
    assert calls(*[piece("{}", index=0, name="f")] * 2) == [("f", {}), ("f", {})]


def test_a_new_name_opens_a_new_call() -> None:
    found = calls(
        piece("", index=0, name="one"),
        piece("{}", index=0, name="two"),
    )
    assert found == [("one", {}), ("two", {})]


def test_pieces_that_repeat_id_and_name_are_one_call() -> None:
    found = calls(
        piece('{"path":', index=0, id="a", name="read_file"),
        piece(' "x', index=0, id="a", name="read_file"),
        piece('y"}', index=0, id="a", name="read_file"),
    )
    assert found == [("read_file", {"path": "xy"})]


def test_parallel_calls_may_be_interleaved() -> None:
    found = calls(
        piece('{"a":', index=0, id="a", name="f"),
        piece('{"b":', index=1, id="b", name="g"),
        piece("1}", index=0),
        piece("2}", index=1),
    )
    assert found == [("f", {"a": 1}), ("g", {"b": 2})]


def test_indices_and_ids_may_drift_or_be_missing() -> None:
    assert calls(piece('{"a":', id="x", name="f"), piece("1}")) == [("f", {"a": 1})]
    assert calls(piece('{"a":', index=0, id="x", name="f"), piece("1}", index=7)) == [
        ("f", {"a": 1})
    ]
    assert calls(piece('{"a":', index=0, id="x", name="f"), piece("1}", index=0, id="y")) == [
        ("f", {"a": 1})
    ]


def test_arguments_may_come_as_an_object_or_encoded_twice() -> None:
    plain = {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}]}
    twice = {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '"{\\"x\\": 1}"'}}]}
    assert calls(delta(plain)) == calls(delta(twice)) == [("f", {"x": 1})]


def whole(*found: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, "tool_calls": list(found)}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def both_ways(*found: dict[str, Any]) -> list[tuple[ToolCall, ...]]:
    """The same calls, streamed and not."""
    streamed = [delta({"tool_calls": [{"index": n, **one}]}) for n, one in enumerate(found)]
    return [
        read(*streamed, delta({}, "tool_calls")).tool_calls(whole=True),
        read(whole(*found)).tool_calls(whole=True),
    ]


# HKUDS/nanobot#4442, #4059, can1357/oh-my-pi#2055
def test_the_same_call_twice_under_one_id_is_one() -> None:
    for found in both_ways(call("a", "f", '{"x": 1}'), call("a", "f", '{"x":1}')):
        assert [(c.id, c.arguments) for c in found] == [("a", {"x": 1})]


def test_another_call_under_a_known_id_gets_its_own() -> None:
    for found in both_ways(call("a", "f", '{"x": 1}'), call("a", "f", '{"x": 2}')):
        assert [c.arguments for c in found] == [{"x": 1}, {"x": 2}]
        assert found[0].id == "a"
        assert found[1].id not in ("", "a")


def test_empty_ids_are_minted() -> None:
    for found in both_ways(call("", "f", '{"x": 1}'), call("", "f", '{"x": 1}')):
        assert len({c.id for c in found} - {""}) == 2


# ahwurm/localharness#77, NousResearch/hermes-agent#7693, nearai/ironclaw#5665
@pytest.mark.parametrize("finish", ["length", "tool_calls", "stop", "max_tokens", None])
def test_cut_arguments_are_a_problem_and_never_arguments(finish: str | None) -> None:
    answer = read(
        piece('{"path":"a.md","content":"# Title\nfirst li', index=0, id="a", name="write_file"),
        delta({}, finish),
    )
    [found] = answer.tool_calls(whole=answer.finish not in (None, "length"))
    assert found.arguments == {}
    assert found.problem is not None
    assert "smaller parts" in found.problem


def test_missing_arguments_are_an_empty_object_only_in_a_whole_answer() -> None:
    chunk = piece("", index=0, id="a", name="current_time")
    assert calls(chunk) == [("current_time", {})]
    [cut] = read(chunk, delta({}, "length")).tool_calls(whole=False)
    assert cut.problem is not None


@pytest.mark.parametrize("arguments", ["[1]", "3", '"text"', "null", "{'a': 1}"])
def test_arguments_that_are_no_object_are_a_problem(arguments: str) -> None:
    [found] = read(piece(arguments, index=0, id="a", name="f")).tool_calls(whole=True)
    assert found.problem is not None


def test_a_call_without_a_name_is_a_problem() -> None:
    [found] = read(piece("{}", index=0, id="a")).tool_calls(whole=True)
    assert found.problem is not None
    assert found.name


# XSpoonAi/spoon-core#179, awslabs/llmeter#34
def test_chunks_without_choices_and_usage_in_every_chunk() -> None:
    answer = read(
        {"choices": []},
        {"choices": None, "usage": None},
        delta(None),
        {"choices": [{"index": 0}]},
        {**delta({"content": "Hi", "tool_calls": None}), "usage": {"prompt_tokens": 9}},
        delta({"content": None}, "stop"),
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
    )
    assert answer.content == "Hi"
    assert answer.usage == Usage(input_tokens=9, output_tokens=2)
    assert answer.finish == "stop"


def test_usage_counts_what_was_cached_and_thought() -> None:
    given_usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 80},
        "completion_tokens_details": {"reasoning_tokens": 15},
    }
    assert read({"usage": given_usage}).usage == Usage(
        input_tokens=100, cached_tokens=80, output_tokens=20, reasoning_tokens=15
    )
    assert read({"usage": {"prompt_cache_hit_tokens": 0}}).usage == Usage(cached_tokens=0)
    # agno-agi/agno#9537, Aider-AI/aider#5516
    assert read({"usage": {"prompt_tokens": "12", "completion_tokens": None}}).usage == Usage(
        input_tokens=12
    )
    more = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 10}}
    assert read({"usage": more}).usage == Usage(input_tokens=9, cached_tokens=9)
    assert read({"usage": {"prompt_tokens": "many", "completion_tokens": -1}}).usage == Usage()


def test_reasoning_is_kept_apart() -> None:
    answer = read(delta({"reasoning_content": "Let me "}), delta({"reasoning": "see"}))
    assert answer.reasoning == "Let me see"
    assert answer.content == ""


def test_content_may_come_in_parts() -> None:
    assert read(delta({"content": [{"type": "text", "text": "Hi"}, {"type": "x"}]})).content == "Hi"


# NousResearch/hermes-agent#68254
def test_half_a_pair_waits_for_its_other_half() -> None:
    answer = Answer()
    said = [answer.add(chunk)[0] for chunk in (delta({"content": "a\ud83d"}), delta({}))]
    said.append(answer.add(delta({"content": "\ude00b\ud83d"}))[0])
    said.append(answer.end())
    assert said == ["a", "", "😀b", "\ufffd"]
    assert answer.content == "a😀b\ufffd"


def test_half_a_pair_in_json_is_read() -> None:
    assert read_json('{"a": "\\ud83d"}') == {"a": "\ud83d"}
    [found] = read(piece('{"a": "\\ud83d"}', index=0, id="i", name="f")).tool_calls(whole=True)
    assert found.arguments == {"a": "\ufffd"}


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(arguments=st.dictionaries(_texts, _texts, max_size=3), data=st.data())
def test_arguments_survive_any_cut_into_pieces(
    arguments: dict[str, str], data: st.DataObject
) -> None:
    text = json.dumps(arguments, ensure_ascii=data.draw(st.booleans()))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=5)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    again = data.draw(st.booleans())
    chunks = [
        piece(part, index=0, **({"id": "a", "name": "f"} if again or n == 0 else {}))
        for n, part in enumerate(parts)
    ]
    assert calls(*chunks) == [("f", arguments)]


@given(length=st.integers(1, 40))
def test_nothing_runs_from_a_call_that_was_cut(length: int) -> None:
    text = '{"path": "a.md", "content": "one {two} three"}'[:length]
    [found] = read(piece(text, index=0, id="a", name="f")).tool_calls(whole=False)
    assert found.problem is not None
    assert found.arguments == {}


@pytest.mark.parametrize("arguments", ["[" * 3000, '"' + "[" * 3000 + '"'])
def test_arguments_nested_too_deeply_are_a_problem_of_their_call(arguments: str) -> None:
    answer = Answer()
    call = {"index": 0, "id": "a", "function": {"name": "read", "arguments": arguments}}
    answer.add({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    [read] = answer.tool_calls(whole=True)
    assert read.problem


def test_an_event_nested_too_deeply_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="deep"):
        read_json("[" * 200_000)
