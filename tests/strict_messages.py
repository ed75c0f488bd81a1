"""What the strict server accepts and says in the dialect of Anthropic's Messages API."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from tests.strict_dialect import bad_picture

_TOP = {
    "model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "thinking",
    "temperature", "cache_control", "output_config", "metadata", "stop_sequences",
}  # fmt: skip
_ID = re.compile(r"^[a-zA-Z0-9_-]{1,128}$")
_BLOCKS = {
    "user": {"text", "tool_result", "image"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
}


def signature(thinking: str) -> str:
    """What this server signs a thought with."""
    return "sig-" + hashlib.sha256(thinking.encode("utf-8", "surrogatepass")).hexdigest()


def illegal(body: dict[str, Any]) -> str | None:
    """Why the API refuses this request, or None."""
    if extra := set(body) - _TOP:
        return f"{sorted(extra)[0]}: Extra inputs are not permitted"
    most = body.get("max_tokens")
    if not isinstance(most, int) or most < 1:
        return "max_tokens: Field required"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    if messages[0].get("role") != "user":
        return 'messages: first message must use the "user" role'
    return _illegal_options(body, most) or _illegal_system(body) or _illegal_turns(messages, body)


def _illegal_options(body: dict[str, Any], most: int) -> str | None:
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled":
        if not 1024 <= thinking.get("budget_tokens", 0) < most:
            return "thinking.budget_tokens: must be at least 1024 and less than max_tokens"
    elif thinking and thinking != {"type": "adaptive"}:
        return "thinking: Input tag is not known"
    temperature = body.get("temperature")
    if temperature is not None and (thinking or not 0 <= temperature <= 1):
        return "temperature: may only be 1 when thinking is enabled, and from 0 to 1 else"
    for tool in body.get("tools") or ():
        if set(tool) - {"name", "description", "input_schema"} or not _ID.match(tool["name"]):
            return f"tools: {tool.get('name')!r} is not valid"
    return None


def _illegal_system(body: dict[str, Any]) -> str | None:
    for block in body.get("system") or ():
        if block.get("type") != "text" or not block.get("text", "").strip():
            return "system: text content blocks must contain non-whitespace text"
    return None


def _illegal_turns(messages: list[dict[str, Any]], body: dict[str, Any]) -> str | None:
    seen: set[str] = set()
    waiting: list[str] = []
    for at, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        where = f"messages.{at}"
        if set(message) != {"role", "content"} or role not in _BLOCKS:
            return f"{where}: Extra inputs are not permitted"
        if at and messages[at - 1]["role"] == role:
            return f"{where}: roles must alternate"
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not blocks:
            return f"{where}: all messages must have non-empty content"
        if role == "user" and (problem := _illegal_results(blocks, waiting)):
            return f"{where}: {problem}"
        waiting = []
        for block in blocks:
            if problem := _illegal_block(block, role, seen):
                return f"{where}.content: {problem}"
            if block["type"] == "tool_use":
                waiting.append(block["id"])
    if waiting:
        return "`tool_use` ids were found without `tool_result` blocks immediately after"
    return _unthought(messages, body)


def _illegal_results(blocks: list[dict[str, Any]], waiting: list[str]) -> str | None:
    results = [block for block in blocks if block.get("type") == "tool_result"]
    if [block.get("tool_use_id") for block in results] != waiting:
        return "`tool_use` ids without `tool_result` blocks immediately after, or the reverse"
    if blocks[: len(results)] != results:
        return "tool_result blocks must come first in their message"
    return None


def _illegal_block(block: dict[str, Any], role: str, seen: set[str]) -> str | None:
    kind = block.get("type")
    if kind not in _BLOCKS[role]:
        return f"{kind} is not permitted here"
    if kind == "text" and not block.get("text", "").strip():
        return "text content blocks must contain non-whitespace text"
    if kind == "image" and (problem := _illegal_picture(block)):
        return problem
    if kind == "tool_result":
        for part in block["content"] if isinstance(block.get("content"), list) else ():
            if part.get("type") not in ("text", "image"):
                return f"tool_result.content: {part.get('type')} is not permitted here"
            if part["type"] == "image" and (problem := _illegal_picture(part)):
                return problem
    if kind == "thinking":
        if set(block) != {"type", "thinking", "signature"}:
            return "thinking: Extra inputs are not permitted"
        if block["signature"] != signature(block["thinking"]):
            return "Invalid `signature` in `thinking` block"
    if kind == "tool_use":
        if not _ID.match(block.get("id", "")) or not _ID.match(block.get("name", "")):
            return "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
        if block["id"] in seen:
            return "`tool_use` ids must be unique"
        if not isinstance(block.get("input"), dict):
            return "tool_use.input: Input should be a valid dictionary"
        seen.add(block["id"])
    return None


def _illegal_picture(block: dict[str, Any]) -> str | None:
    source = block.get("source") or {}
    if set(source) != {"type", "media_type", "data"} or source["type"] != "base64":
        return "image.source: Field required"
    return bad_picture(f"data:{source['media_type']};base64,{source['data']}")


def _unthought(messages: list[dict[str, Any]], body: dict[str, Any]) -> str | None:
    """With thinking in tokens, the round that is open must begin with a thought."""
    if (body.get("thinking") or {}).get("type") != "enabled" or len(messages) < 2:
        return None
    last = messages[-2]["content"]
    if not isinstance(last, list) or not any(block["type"] == "tool_use" for block in last):
        return None
    if last[0]["type"] not in ("thinking", "redacted_thinking"):
        return "Expected `thinking` or `redacted_thinking`, but found `tool_use`"
    return None


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The request as the echo of the other dialect reads it."""
    messages: list[dict[str, Any]] = []
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "tool_result":
                messages.append({"role": "tool", "content": block["content"]})
        text = [block for block in blocks if block["type"] == "text"]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if message["role"] == "assistant":
            messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        elif text:
            messages.append({"role": "user", "content": text})
    return {
        "messages": messages,
        "model": body.get("model"),
        "tool_choice": (body.get("tool_choice") or {}).get("type"),
        "response_format": (body.get("output_config") or {}).get("format"),
    }


def blocks_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """The content of a reply as whole blocks; a thought may be left unsigned."""
    blocks: list[dict[str, Any]] = []
    if (thought := reply.get("reasoning")) is not None:
        signed = reply.get("signature", signature(thought))
        blocks.append({"type": "thinking", "thinking": thought, "signature": signed})
    blocks += [{"type": "redacted_thinking", "data": data} for data in reply.get("redacted", ())]
    if text := reply.get("text"):
        blocks.append({"type": "text", "text": text})
    for number, call in enumerate(reply.get("calls") or ()):
        known = call.get("id") or f"toolu_{hashlib.sha256(repr(call).encode()).hexdigest()[:8]}"
        arguments = call.get("arguments", {})
        blocks.append(
            {"type": "tool_use", "id": f"{known}", "name": call["name"], "input": arguments}
        )
        if not call.get("id"):
            blocks[-1]["id"] = f"{known}_{number}_{len(reply)}"
    return blocks


def usage_of(reply: dict[str, Any]) -> dict[str, Any]:
    default = {"input_tokens": 10, "output_tokens": 5}
    given: dict[str, Any] | None = reply.get("usage", default)
    return {} if given is None else given


def whole(reply: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    calls = bool(reply.get("calls"))
    return {
        "id": "msg_strict",
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": blocks_of(reply),
        "stop_reason": reply.get("finish") or ("tool_use" if calls else "end_turn"),
        "stop_sequence": None,
        "usage": usage_of(reply),
    }


def events(reply: dict[str, Any], body: dict[str, Any], chunks: int) -> Iterator[dict[str, Any]]:
    """A well-formed stream for `reply`."""
    full = whole(reply, body)
    usage = full["usage"]
    start = {**full, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield {"type": "message_start", "message": start if usage else {**start, "usage": {}}}
    yield {"type": "ping"}
    for at, block in enumerate(full["content"]):
        yield from _block_events(at, block, reply.get("chunks", chunks))
    end = {"stop_reason": full["stop_reason"], "stop_sequence": None}
    last = {"output_tokens": usage["output_tokens"]} if "output_tokens" in usage else {}
    yield {"type": "message_delta", "delta": end, "usage": last}
    yield {"type": "message_stop"}


def _block_events(at: int, block: dict[str, Any], chunks: int) -> Iterator[dict[str, Any]]:
    kind = block["type"]
    empty = {
        "text": {"type": "text", "text": ""},
        "thinking": {"type": "thinking", "thinking": "", "signature": ""},
        "tool_use": {**block, "input": {}},
        "redacted_thinking": block,
    }[kind]
    yield {"type": "content_block_start", "index": at, "content_block": empty}

    def delta(**fields: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": at, "delta": fields}

    if kind == "text":
        for piece in _cut(block["text"], chunks):
            yield delta(type="text_delta", text=piece)
    elif kind == "thinking":
        for piece in _cut(block["thinking"], chunks):
            yield delta(type="thinking_delta", thinking=piece)
        yield delta(type="signature_delta", signature=block["signature"])
    elif kind == "tool_use":
        given = block["input"]
        text = given if isinstance(given, str) else json.dumps(given)
        for piece in ("", *_cut(text, chunks)):
            yield delta(type="input_json_delta", partial_json=piece)
    yield {"type": "content_block_stop", "index": at}


def _cut(text: str, chunks: int) -> Iterator[str]:
    size = -(-len(text) // max(1, min(chunks, len(text)))) or 1
    yield from (text[at : at + size] for at in range(0, len(text), size))


def written(event: object) -> bytes:
    """An event as it goes over the wire, its kind in its name."""
    text = event.encode() if isinstance(event, str) else orjson.dumps(event)
    name = event.get("type", "") if isinstance(event, dict) else ""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + text + b"\n\n"
