"""What the strict server of the tests accepts and how it words its replies; no input or output."""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson
import PIL.Image

Reply = str | dict[str, Any]

ALLOWED = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "reasoning_content"},
    "tool": {"role", "content", "name", "tool_call_id"},
}


def illegal(messages: object) -> str | None:
    """Why a strict provider refuses these messages, or None."""
    if not isinstance(messages, list) or not messages:
        return "messages: must be a list that is not empty"
    seen: set[str] = set()
    waiting: dict[str, int] = {}
    spoken = False
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role")
        if role not in ALLOWED:
            return f"{where}: unknown role {role!r}"
        if extra := set(message) - ALLOWED[role]:
            return f"{where}: unknown fields {sorted(extra)}"
        if problem := _bad_content(
            message.get("content"), allow_none=role == "assistant", with_pictures=role == "user"
        ):
            return f"{where}: {problem}"
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in waiting:
                return f"{where}: a tool message without its call ({call_id!r})"
            waiting[call_id] += 1
            if waiting[call_id] > 1:
                return f"{where}: a second result for call {call_id!r}"
            continue
        if missing := [call_id for call_id, count in waiting.items() if count != 1]:
            return f"{where}: calls without a result before it: {missing}"
        waiting = {}
        if role in ("system", "developer"):
            if spoken:
                return f"{where}: a system message after the first ones"
            continue
        if not spoken and role != "user":
            return f"{where}: the first message must be the user's"
        spoken = True
        if role == "user" and not message.get("content"):
            return f"{where}: an empty user message"
        if role == "assistant":
            calls = message.get("tool_calls")
            if calls is not None and not calls:
                return f"{where}: an empty list of tool calls"
            if not calls and not message.get("content"):
                return f"{where}: an empty assistant message"
            for call in calls or ():
                if problem := _bad_call(call, seen):
                    return f"{where}: {problem}"
                waiting[call["id"]] = 0
    if missing := [call_id for call_id, count in waiting.items() if count != 1]:
        return f"the end: calls without a result: {missing}"
    return None if spoken else "messages: no user message"


def _bad_content(content: object, *, allow_none: bool, with_pictures: bool) -> str | None:
    if content is None:
        return None if allow_none else "content must not be null"
    if isinstance(content, str):
        return None
    if not isinstance(content, list) or not content:
        return "content must be text or a list of blocks"
    for block in content:
        kind = block.get("type")
        if kind == "text" and not block.get("text"):
            return "an empty text block"
        if kind == "image_url":
            if not with_pictures:
                return "image_url is only permitted in a user message"
            if problem := bad_picture(str((block.get("image_url") or {}).get("url"))):
                return problem
        elif kind != "text":
            return f"unknown content type {kind!r}"
    return None


_DATA = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+=*)")
_STARTS = {
    "image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8", "image/webp": b"RIFF",
}  # fmt: skip


def bad_picture(url: str) -> str | None:
    """Why a picture in a data URL is refused, as vendors refuse it, or None."""
    if not (found := _DATA.fullmatch(url)):
        return "image_url: must be a data URL of a PNG, JPEG, GIF or WebP picture in base64"
    data = base64.b64decode(found[2], validate=True)
    if not data.startswith(_STARTS[found[1]]):
        return f"image: the picture does not match its media type {found[1]}"
    try:
        with PIL.Image.open(io.BytesIO(data)) as picture:
            picture.load()
            size = max(picture.size)
    except OSError:
        return "image: could not process image"
    if size > 8000 or len(data) > 5_000_000:
        return "image exceeds 8000 pixels or 5 MB"
    return None


def _bad_call(call: dict[str, Any], seen: set[str]) -> str | None:
    call_id = call.get("id")
    if not call_id or not isinstance(call_id, str):
        return "a call without an id"
    if call_id in seen:
        return f"the call id {call_id!r} is repeated"
    seen.add(call_id)
    function = call.get("function") or {}
    if call.get("type") != "function" or not function.get("name"):
        return f"call {call_id!r} is not a function call with a name"
    try:
        arguments = json.loads(function.get("arguments") or "")
    except (TypeError, ValueError):
        return f"call {call_id!r}: arguments are not JSON"
    return None if isinstance(arguments, dict) else f"call {call_id!r}: arguments are no object"


def pictures_of(body: dict[str, Any]) -> list[bytes]:
    """The pictures of a legal request in either dialect, in order."""
    found: list[bytes] = []

    def look(value: Any) -> None:
        if isinstance(value, list):
            for part in value:
                look(part)
        elif isinstance(value, dict):
            if value.get("type") == "image_url":
                found.append(base64.b64decode(value["image_url"]["url"].partition(",")[2]))
            elif value.get("type") == "image":
                found.append(base64.b64decode(value["source"]["data"]))
            else:
                look(value.get("content"))

    look(body["messages"])
    return found


def text_of(content: object) -> str:
    if isinstance(content, list):
        return "".join(block.get("text", "") for block in content)
    return content if isinstance(content, str) else ""


_MARK = re.compile(r"\[\[(tool|beside|wait|status|hang|say|chunks|chunk-ms)(?::(.*?))?\]\]", re.S)


def echo(body: dict[str, Any]) -> dict[str, Any]:
    """The reply of a server without a script: what the user said, and what the marks ask for."""
    messages = body["messages"]
    start = 1 + max(
        (
            index
            for index, message in enumerate(messages)
            if message["role"] == "assistant" and not message.get("tool_calls")
        ),
        default=-1,
    )
    called = 1 + max(
        (index for index, message in enumerate(messages) if message["role"] == "assistant"),
        default=-1,
    )
    said = [text_of(m.get("content")) for m in messages[start:] if m["role"] == "user"]
    fresh = [text_of(m.get("content")) for m in messages[called:] if m["role"] == "user"]
    results = [text_of(m.get("content")) for m in messages[start:] if m["role"] == "tool"]
    reply: dict[str, Any] = {"text": "echo: " + " | ".join(said)}
    if results:
        reply["text"] += "; results: " + ", ".join(results)
    offered = body.get("tool_choice") != "none"
    schema = bool(body.get("response_format"))
    calls = []
    for kind, value in _MARK.findall("\n".join(fresh)):
        if kind == "tool" and offered:
            name, _, arguments = value.partition(" ")
            calls.append({"name": name, "arguments": json.loads(arguments or "{}")})
        elif kind == "say":
            reply["text"] = value
        elif kind == "wait":
            reply["latency_ms"] = float(value)
        elif kind == "hang":
            reply["stall"] = 0
        elif kind == "status":
            reply.update(status=int(value), body={"error": {"message": "as asked"}})
        elif kind in ("chunks", "chunk-ms"):
            reply[kind.replace("-", "_")] = float(value) if kind == "chunk-ms" else int(value)
        elif kind == "beside":
            reply["beside"] = value
    if schema:
        first = {"action": calls[0]["name"], "arguments": calls[0]["arguments"]} if calls else None
        answer = {"action": "answer", "text": reply["text"]}
        reply["text"] = json.dumps(first or answer, ensure_ascii=False)
    elif calls:
        reply["text"] = reply.pop("beside", "")
        reply["calls"] = calls
    return reply


def written(event: object) -> bytes:
    """An event as it goes over the wire."""
    text = event.encode() if isinstance(event, str) else orjson.dumps(event)
    return b"data: " + text + b"\n\n"


def pieces(
    reply: dict[str, Any], sent: Iterable[Any], write: Callable[[object], bytes]
) -> Iterator[bytes]:
    """The pieces of a streamed body, each of them one write: `sent` unless it says otherwise."""
    if "raw" in reply:
        raw = reply["raw"]
        data = raw if isinstance(raw, bytes) else raw.encode()
        data = data[: reply.get("cut", len(data))]
        size = reply.get("write") or len(data) or 1
        yield from (data[at : at + size] for at in range(0, len(data), size))
        return
    size = reply.get("write")
    for event in reply.get("events", sent):
        line = write(event)
        if size:
            yield from (line[at : at + size] for at in range(0, len(line), size))
        else:
            yield line
    if reply.get("done", write is written):
        yield b"data: [DONE]\n\n"


def events(reply: dict[str, Any], body: dict[str, Any], chunks: int) -> Iterator[Any]:
    """A well-formed stream for `reply`: role, reasoning, text, calls, finish, usage."""
    head = {"id": "chatcmpl-strict", "object": "chat.completion.chunk", "created": 1}
    head["model"] = body.get("model", "strict")

    def delta(content: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": content, "finish_reason": finish}]}

    if reply.get("reasoning"):
        yield delta({"reasoning_content": reply["reasoning"]})
    text = reply.get("text") or ""
    count = max(1, min(reply.get("chunks", chunks), len(text)))
    size = -(-len(text) // count) or 1
    for at in range(0, len(text), size):
        yield delta({"content": text[at : at + size]})
    calls = wire_calls(reply)
    for index, call in enumerate(calls):
        yield delta({"tool_calls": [{"index": index, **call}]})
    yield delta({}, reply.get("finish") or ("tool_calls" if calls else "stop"))
    if (usage := usage_of(reply, body)) and (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": usage}


def wire_calls(reply: dict[str, Any]) -> list[dict[str, Any]]:
    calls = []
    for call in reply.get("calls") or ():
        arguments = call.get("arguments", {})
        calls.append(
            {
                "id": call.get("id") or f"call_{os.urandom(6).hex()}",
                "type": "function",
                "function": {
                    "name": call["name"],
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
        )
    return calls


def usage_of(reply: dict[str, Any], body: dict[str, Any]) -> dict[str, Any] | None:
    if "usage" in reply:
        given: dict[str, Any] | None = reply["usage"]
        return given
    prompt = sum(len(text_of(message.get("content"))) for message in body.get("messages", ())) // 4
    completion = len(reply.get("text") or "") // 4
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def whole(reply: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """The same reply for a client that does not stream."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.get("text") or None}
    calls = wire_calls(reply)
    if calls:
        message["tool_calls"] = calls
    finish = reply.get("finish") or ("tool_calls" if calls else "stop")
    return {
        "id": "chatcmpl-strict",
        "object": "chat.completion",
        "model": body.get("model", "strict"),
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage_of(reply, body),
    }
