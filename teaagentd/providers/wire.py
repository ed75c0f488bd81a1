"""A request in the chat completions dialect: the same request is always the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import orjson

from teaagentd.transcript import clean_text
from teaagentd.types import JsonObject, LLMMessage, LLMRequest, ToolCall, ToolSpec

Wire: TypeAlias = "dict[str, Wire] | list[Wire] | str | int | float | bool | JsonObject | None"


def encode(body: Mapping[str, Wire]) -> bytes:
    """`body` as UTF-8 JSON. Lone surrogates, which no encoder takes, become U+FFFD."""
    try:
        return orjson.dumps(body, default=dict)
    except orjson.JSONEncodeError:
        return orjson.dumps(_cleaned(body), default=dict)


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(str(name)): _cleaned(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value


def request_body(
    request: LLMRequest, *, model: str, limit_name: str = "max_tokens"
) -> dict[str, Wire]:
    """The body of `request`, always streamed. `limit_name` is the server's word for the limit of
    the output: `max_completion_tokens` at OpenAI, `max_tokens` elsewhere."""
    body: dict[str, Wire] = {
        "model": model,
        "messages": write_messages(request.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        if request.tool_choice != "auto":
            body["tool_choice"] = request.tool_choice
    if request.response_schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": request.response_schema},
        }
    if request.max_output_tokens is not None:
        body[limit_name] = request.max_output_tokens
    if request.temperature is not None:
        body["temperature"] = request.temperature
    return body


def write_messages(messages: Sequence[LLMMessage]) -> list[Wire]:
    """`messages`, legal already, in the dialect's own form."""
    return [_message(message) for message in messages]


def _message(message: LLMMessage) -> dict[str, Wire]:
    if message.role == "tool":
        return {
            "role": "tool",
            "tool_call_id": message.tool_call_id,
            "content": message.content,
        }
    if message.role == "assistant" and message.tool_calls:
        return {
            "role": "assistant",
            "content": message.content or None,
            "tool_calls": [_call(call) for call in message.tool_calls],
        }
    content = message.content
    if message.note:
        content = f"{message.note}\n\n{content}" if content else message.note
    return {"role": message.role, "content": content}


def _call(call: ToolCall) -> dict[str, Wire]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": encode(dict(call.arguments)).decode()},
    }


def _tool(tool: ToolSpec) -> dict[str, Wire]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }
