"""A JSON Schema as a grammar for llama.cpp, which holds what a model writes to it."""

from __future__ import annotations

from collections.abc import Mapping

from teaagentd.providers.wire import Wire, plain_bytes
from teaagentd.types import Json, JsonObject

_AS_THEY_ARE = ("type", "const", "enum", "required", "format")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum")
_MOST = 1000
"""A longer list that must be counted makes the grammar too large."""
_MORE_PROPERTIES = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"}
    | {"patternProperties", "unevaluatedProperties"}
)
"""What may allow an object properties that are not among its `properties`."""


def grammar(schema: JsonObject) -> str:
    """`schema` as llama.cpp's guidance engine takes it.

    Only what that engine can certainly keep is asked of it. llama.cpp leaves out a grammar with
    a single keyword that it cannot keep, says so in its log alone, and lets the model write
    freely (ggml-org/llama.cpp#19051): one tool's parameters would undo the form of every reply.
    So a reply fits `schema` in its form, but not always in each detail; whoever runs the call
    checks that, and words it better.

    The white space is fixed too, to that of `json.dumps`: left the choice, a small model begins
    lines without end.
    """
    layout: dict[str, Wire] = {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
        "lenient": True,
    }
    text = plain_bytes({**_kept_of(schema), "x-guidance": layout}).decode()
    return f"%llguidance {{}}\nstart: %json {text}"


def _kept(schema: Json) -> Wire:
    """A schema below the first: an object, or true or false."""
    return _kept_of(schema) if isinstance(schema, Mapping) else schema is not False


def _kept_of(schema: JsonObject) -> dict[str, Wire]:
    kept: dict[str, Wire] = {name: schema[name] for name in _AS_THEY_ARE if name in schema}
    for name in _COUNTS:
        if name in schema and _countable(name, value := schema[name]):
            kept[name] = value
    choices = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(choices, list | tuple):
        kept["anyOf"] = [_kept(choice) for choice in choices]
    if "items" in schema and "prefixItems" not in schema:
        kept["items"] = _kept(schema["items"])
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        kept["properties"] = {name: _kept(each) for name, each in properties.items()}
    if not _MORE_PROPERTIES & schema.keys():
        if "additionalProperties" in schema:
            kept["additionalProperties"] = _kept(schema["additionalProperties"])
        elif isinstance(properties, Mapping) and _required(schema) <= properties.keys():
            # Allowed by the schema, but made up: nobody told the model of any other.
            kept["additionalProperties"] = False
    return kept


def _required(schema: JsonObject) -> set[Json]:
    required = schema.get("required")
    return set(required) if isinstance(required, list | tuple) else set()


def _countable(name: str, value: Json) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return abs(value) <= (_MOST if name.endswith("Items") else 10**9)
