"""A schema as a grammar: what is asked of the engine, and what it is spared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from teaagentd.providers.grammar import grammar


def kept(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema within the grammar, without its layout."""
    head, _, text = grammar(schema).partition("%json ")
    assert head == "%llguidance {}\nstart: "
    found: dict[str, Any] = json.loads(text)
    layout = found.pop("x-guidance")
    assert (layout["item_separator"], layout["key_separator"]) == (", ", ": ")
    assert layout["whitespace_flexible"] is False
    return found


def test_the_form_is_kept_in_its_order() -> None:
    answer = {
        "type": "object",
        "properties": {
            "action": {"const": "answer"},
            "text": {"type": "string", "minLength": 1, "maxLength": 400},
        },
        "required": ["action", "text"],
        "additionalProperties": False,
    }
    found = kept({"anyOf": [answer, {"type": "null"}]})
    assert found == {"anyOf": [answer, {"type": "null"}]}
    assert list(found["anyOf"][0]["properties"]) == ["action", "text"]


def test_what_the_engine_may_not_keep_is_not_asked_of_it() -> None:
    loose = {
        "type": "array",
        "items": {"type": "string", "pattern": "^(?!x)", "maxLength": 5.0},
        "uniqueItems": True,
        "maxItems": 100_000,
    }
    assert kept(loose) == {"type": "array", "items": {"type": "string"}}
    assert kept({"type": "number", "maximum": 1e300, "multipleOf": 0.1}) == {"type": "number"}
    assert kept({"$ref": "#/$defs/A"}) == {}


def test_a_property_may_be_called_like_a_keyword() -> None:
    properties = {"pattern": {"type": "string"}, "not": {"type": "integer", "minimum": 1}}
    assert kept({"type": "object", "properties": properties})["properties"] == properties


def test_one_of_several_is_any_of_them() -> None:
    assert kept({"oneOf": [True, False, {"enum": [1]}]}) == {"anyOf": [True, False, {"enum": [1]}]}


def test_no_property_is_made_up() -> None:
    assert kept({"type": "object", "properties": {}})["additionalProperties"] is False


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {}, "additionalProperties": True},
        {"properties": {}, "patternProperties": {"^x": True}, "additionalProperties": False},
        {"properties": {}, "allOf": [{"properties": {"a": True}}]},
        {"properties": {"a": True}, "required": ["b"]},
    ],
)
def test_an_object_that_may_hold_more_stays_open(schema: dict[str, Any]) -> None:
    assert kept(schema).get("additionalProperties", True) is True


def test_a_list_of_fixed_places_is_left_alone() -> None:
    fixed = {"type": "array", "prefixItems": [{"type": "string"}], "items": False}
    assert kept(fixed) == {"type": "array"}
