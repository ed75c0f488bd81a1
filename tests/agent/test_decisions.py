"""What a model's reply means, and what of it is shown while it is being written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from teaagentd.agent.decisions import (
    DecisionContentStreamer,
    FinalAnswer,
    ToolCalls,
    decision_schema,
    is_blank,
    normalise_calls,
    parse_model_decision,
    render_answer,
    render_call,
)
from teaagentd.errors import ToolValidationError
from teaagentd.transcript import clean_text
from teaagentd.types import Json, JsonObject, ToolCall, ToolSpec


def streamed(chunks: list[str]) -> str:
    pieces: list[str] = []
    streamer = DecisionContentStreamer(pieces.append)
    for chunk in chunks:
        streamer(chunk)
    assert all(pieces), "an empty delta was given out"
    assert streamer.text == "".join(pieces)
    return streamer.text


any_text = st.text(st.characters(codec=None), max_size=30)  # lone surrogates too
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=6,
)


@given(text=any_text, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_an_answer_streams_whole_when_each_character_comes_alone(
    text: str, ascii_only: bool, indent: int | None
) -> None:
    reply = json.dumps({"action": "answer", "text": text}, ensure_ascii=ascii_only, indent=indent)
    answer = parse_model_decision(reply)
    assert isinstance(answer, FinalAnswer)
    assert answer.content == clean_text(text)
    assert streamed(list(reply)) == clean_text(text)


@given(text=any_text, ascii_only=st.booleans(), data=st.data())
def test_an_answer_streams_the_same_wherever_it_is_split(
    text: str, ascii_only: bool, data: st.DataObject
) -> None:
    reply = json.dumps({"action": "answer", "text": text}, ensure_ascii=ascii_only)
    for at in range(len(reply) + 1):
        assert streamed([reply[:at], reply[at:]]) == clean_text(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=6)))
    chunks = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    assert streamed(chunks) == clean_text(text)


@given(text=any_text.filter(bool))
def test_the_text_may_come_before_its_action(text: str) -> None:
    assert streamed(list(json.dumps({"text": text, "action": "answer"}))) == clean_text(text)


@given(arguments=st.dictionaries(any_text, json_values, max_size=3), name=any_text)
def test_nothing_of_a_tool_call_is_shown(arguments: dict[str, object], name: str) -> None:
    arguments["text"] = "not for the user"
    arguments["action"] = "answer"
    reply = json.dumps({"action": name + "x", "arguments": arguments, "text": "let me see"})
    assert streamed(list(reply)) == ""
    assert streamed([reply]) == ""


@given(any_text)
def test_what_is_not_json_is_never_shown_and_never_breaks_the_streamer(text: str) -> None:
    shown = streamed(list(text))
    if not text.lstrip().startswith(("{", "`")):
        assert shown == ""


@given(st.text('{}[]",:\\u0dDaction answer text`\n', max_size=60))
def test_broken_json_never_breaks_the_streamer(text: str) -> None:
    streamed(list('{"action": "answer", "text": "' + text))
    streamed([text])


@given(text=any_text, data=st.data())
def test_an_answer_cut_off_has_shown_a_beginning_of_it(text: str, data: st.DataObject) -> None:
    reply = json.dumps({"action": "answer", "text": text})
    cut = data.draw(st.integers(0, len(reply)))
    assert clean_text(text).startswith(streamed(list(reply[:cut])))


def test_escapes_split_over_chunks() -> None:
    head = '{"action":"answer","text":"'
    assert streamed([head + "a\\", "n", "\\u00", "e9\\ud8", "3d\\", 'ude00!"}']) == "a\né😀!"
    assert streamed([head + '\\ud83d"}']) == "�"
    assert streamed([head + '\\ude00\\ud83dx"}']) == "��x"
    assert streamed([head + '\\u005c\\"\\/"}']) == '\\"/'


def test_a_fence_around_the_object_is_taken_off() -> None:
    reply = '```json\n{"action": "answer", "text": "hi"}\n```'
    assert parse_model_decision(reply) == FinalAnswer(content="hi")
    assert streamed(list(reply)) == "hi"


def test_a_call_is_read_with_what_is_said_beside_it() -> None:
    decision = parse_model_decision(
        '{"action": "find", "arguments": {"q": "x"}, "text": "Let me look."}'
    )
    assert isinstance(decision, ToolCalls)
    (call,) = decision.calls
    assert (call.name, call.arguments, decision.notice) == ("find", {"q": "x"}, "Let me look.")
    assert call.id


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "Hello!",
        "[]",
        "null",
        '{"action": "answer"}',
        '{"action": "answer", "text": 3}',
        '{"action": "answer", "text": "x", "arguments": {}}',
        '{"action": 3}',
        '{"action": "", "arguments": {}}',
        '{"action": "find", "arguments": [1]}',
        '{"action": "find", "arguments": {"n": NaN}}',
        '{"action": "answer", "text": "cut o',
        '{"action": "answer", "text": "a"} {"action": "answer", "text": "b"}',
        "[" * 100_000,
    ],
)
def test_anything_else_is_told_apart(reply: str) -> None:
    with pytest.raises(ToolValidationError) as raised:
        parse_model_decision(reply)
    assert len(str(raised.value)) < 200


@given(any_text, st.dictionaries(any_text, json_values, max_size=3))
def test_rendering_and_parsing_are_each_other_s_inverse(
    text: str, arguments: dict[str, object]
) -> None:
    assert parse_model_decision(render_answer(text)) == FinalAnswer(content=clean_text(text))
    decision = parse_model_decision(render_call("find", arguments))  # type: ignore[arg-type]
    assert isinstance(decision, ToolCalls)
    assert decision.calls[0].arguments == arguments


def test_the_schema_names_the_action_first_and_each_tool_in_order() -> None:
    tools = [ToolSpec(name=n, description="", parameters={"type": "object"}) for n in "ab"]
    schema = decision_schema(tools, answer_limit=400)
    forms = schema["anyOf"]
    assert isinstance(forms, list)
    actions = [list(form["properties"]) for form in forms]  # type: ignore[index,call-overload,arg-type]
    assert actions == [["action", "text"], ["action", "arguments"], ["action", "arguments"]]
    only = decision_schema(tools, answer_only=True)
    assert "anyOf" not in only


def test_what_a_tools_schema_says_of_its_own_parts_holds_in_the_whole() -> None:
    """`$ref` counts from the root of the document, which the tool's schema no longer is."""
    properties: dict[str, Json] = {
        "child": {"$ref": "#/$defs/node"},
        "all": {"anyOf": [{"$ref": "#/$defs/node"}, {"const": {"$ref": "#/a"}}]},
    }
    node: dict[str, Json] = {"type": "object", "properties": properties, "required": ["name"]}
    root: dict[str, Json] = {"root": {"$ref": "#"}, **properties}
    number: dict[str, Json] = {"n": {"$ref": "#/$defs/n"}}
    parameters: dict[str, JsonObject] = {
        "plain": {"type": "object"},
        "tree": {**node, "properties": root, "$defs": {"node": node}},
        "apart": {"$id": "x:apart", "properties": number, "$defs": {"n": {"type": "integer"}}},
    }
    tools = [
        ToolSpec(name=name, description="", parameters=schema)
        for name, schema in parameters.items()
    ]
    check = Draft202012Validator(decision_schema(tools))

    def fits(action: str, arguments: object) -> bool:
        return bool(check.is_valid({"action": action, "arguments": arguments}))

    assert fits("tree", {"name": 1, "child": {"name": 2, "child": {"name": 3}}})
    assert not fits("tree", {"name": 1, "child": {"name": 2, "child": {}}})
    assert fits("tree", {"name": 1, "root": {"name": 1}})
    assert not fits("tree", {"name": 1, "root": {}})
    assert fits("tree", {"name": 1, "all": {"$ref": "#/a"}})
    assert not fits("tree", {"name": 1, "all": {"$ref": "#/b"}})
    assert fits("apart", {"n": 1})
    assert not fits("apart", {"n": "1"})


def test_the_same_call_twice_is_one_and_another_under_its_id_is_two() -> None:
    # HKUDS/nanobot#4442, can1357/oh-my-pi#2055
    a = ToolCall(id="x", name="find", arguments={"q": 1})
    b = ToolCall(id="x", name="find", arguments={"q": 2})
    assert normalise_calls([a, a], set()) == (a,)
    first, second = normalise_calls([a, b], set())
    assert first == a
    assert second.arguments == {"q": 2}
    assert second.id not in ("", "x")


def test_missing_ids_are_made_and_ids_of_earlier_answers_are_made_anew() -> None:
    # NousResearch/hermes-agent#11722
    nameless = ToolCall(id="", name="find", arguments={})
    made = normalise_calls([nameless, nameless], set())
    assert len({call.id for call in made} - {""}) == 2
    again = normalise_calls([ToolCall(id="t:0", name="find", arguments={})], {"t:0"})
    assert again[0].id != "t:0"


def test_what_cannot_be_sent_back_or_stored_is_mended_or_named() -> None:
    odd = ToolCall(id="1", name="functions.find it", arguments={"q": "\ud800"})
    (mended,) = normalise_calls([odd], set())
    assert (mended.name, mended.arguments, mended.problem) == (
        "functions_find_it",
        {"q": "�"},
        None,
    )
    (too_large,) = normalise_calls([ToolCall(id="1", name="f", arguments={"n": 2**70})], set())
    assert too_large.arguments == {}
    assert too_large.problem


@pytest.mark.parametrize("text", ["", " \n\t", "\u200b", "\ufeff \u200d", "\u2060\x00"])
def test_what_cannot_be_seen_is_blank(text: str) -> None:
    assert is_blank(text)
    assert not is_blank(text + "·")
