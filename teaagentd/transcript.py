"""Pure functions on messages: legality, rounds, token estimates, clean text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from teaagentd.types import Attachment, InboundMessage, LLMMessage, SessionKey, ToolCall, ToolSpec

NOT_RUN = "[not run: the turn was interrupted before this call started]"
UNKNOWN_OUTCOME = "[interrupted: this call had started and its outcome is unknown]"
EMPTY = "[empty message]"
SUMMARY_NOTE = "[this program's summary of what was said before]"
"""The note of the message that stands for a history that was summarised."""
LEFT_OUT = "[earlier messages are left out]"

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """`text` without lone surrogates: valid pairs are joined, the rest become U+FFFD."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_key(key: SessionKey) -> SessionKey:
    """`key` without lone surrogates, which no text column can hold."""
    channel, chat_id = clean_text(key.channel), clean_text(key.chat_id)
    if channel is key.channel and chat_id is key.chat_id:
        return key
    return SessionKey(channel=channel, chat_id=chat_id)


def clean_message(message: InboundMessage) -> InboundMessage:
    """`message` without lone surrogates in any of its texts."""
    key = message.session_key
    return replace(
        message,
        channel=clean_text(message.channel),
        chat_id=clean_text(message.chat_id),
        content=clean_text(message.content),
        sender_id=_clean_optional(message.sender_id),
        external_id=_clean_optional(message.external_id),
        attachments=tuple(_clean_attachment(item) for item in message.attachments),
        session_key=None if key is None else clean_key(key),
    )


def spoken(texts: Sequence[str]) -> str:
    """`texts` of one speaker, said one after the other, as one text."""
    return "\n\n".join(texts)


def _clean_optional(text: str | None) -> str | None:
    return None if text is None else clean_text(text)


def _clean_attachment(item: Attachment) -> Attachment:
    return replace(
        item,
        path=clean_text(item.path),
        media_type=clean_text(item.media_type),
        name=clean_text(item.name),
    )


def legal(messages: Sequence[LLMMessage]) -> tuple[LLMMessage, ...]:
    """`messages` as every strict provider accepts them; the one legality function.

    System messages stand first; then a user message. Each assistant message's calls are
    followed at once by exactly one result each, in the order of the calls: missing results are
    filled in, doubled and orphaned ones left out. Call ids are unique in the whole request
    (repeated ones get a suffix by occurrence, so the same history always yields the same
    bytes). No message is empty. A legal history is returned unchanged, so applying it twice
    changes nothing.
    """
    system = [message for message in messages if message.role == "system" and message.content]
    rest = [message for message in messages if message.role != "system"]
    out: list[LLMMessage] = []
    used: dict[str, int] = {}
    index = 0
    while index < len(rest):
        message = rest[index]
        index += 1
        if message.role == "tool":
            continue
        if message.role == "user":
            out.append(message if _speaks(message) else replace(message, content=EMPTY))
            continue
        if not out:
            out.append(LLMMessage(role="user", content=LEFT_OUT))
        if not message.tool_calls:
            if message.content.strip():
                out.append(message)
            continue
        results: list[LLMMessage] = []
        while index < len(rest) and rest[index].role == "tool":
            results.append(rest[index])
            index += 1
        out.extend(_round(message, results, used))
    if not out:
        out.append(LLMMessage(role="user", content=LEFT_OUT))
    return (*system, *out)


def _speaks(message: LLMMessage) -> bool:
    said = message.content.strip() or (message.note and message.note.strip())
    return bool(said or message.attachments)


def _round(
    message: LLMMessage, results: list[LLMMessage], used: dict[str, int]
) -> list[LLMMessage]:
    """One assistant message with its results, paired by position within equal ids."""
    waiting: dict[str, list[LLMMessage]] = {}
    for result in results:
        waiting.setdefault(result.tool_call_id or "", []).append(result)
    calls: list[ToolCall] = []
    paired: list[LLMMessage] = []
    for call in message.tool_calls:
        found = waiting.get(call.id)
        result = (
            found.pop(0)
            if found
            else LLMMessage(role="tool", tool_call_id=call.id, name=call.name, content=NOT_RUN)
        )
        fresh = _fresh_id(call.id or "call", used)
        calls.append(call if fresh == call.id else replace(call, id=fresh))
        if result.tool_call_id != fresh or not result.content:
            result = replace(result, tool_call_id=fresh, content=result.content or "[no output]")
        paired.append(result)
    same = all(a is b for a, b in zip(calls, message.tool_calls, strict=True))
    return [message if same else replace(message, tool_calls=tuple(calls)), *paired]


def _fresh_id(call_id: str, used: dict[str, int]) -> str:
    """`call_id` the first time it is seen, then with the count of its occurrence."""
    count = used[call_id] = used.get(call_id, 0) + 1
    if count == 1:
        return call_id
    candidate = f"{call_id}_{count}"
    while candidate in used:
        count += 1
        candidate = f"{call_id}_{count}"
    used[candidate] = 1
    return candidate


def open_calls(messages: Sequence[LLMMessage]) -> tuple[ToolCall, ...]:
    """The calls of the last round that have no result yet, in order."""
    results: dict[str, int] = {}
    for message in reversed(messages):
        if message.role == "tool":
            results[message.tool_call_id or ""] = results.get(message.tool_call_id or "", 0) + 1
        elif message.role == "assistant":
            missing = []
            for call in message.tool_calls:
                if results.get(call.id, 0):
                    results[call.id] -= 1
                else:
                    missing.append(call)
            return tuple(missing)
        else:
            return ()
    return ()


def estimate_tokens(text: str) -> int:
    """Tokens that `text` may take, erring high: a third of its ASCII letters, one and a half
    for each other character (CJK tokenisers spend up to two on rare ones)."""
    if text.isascii():
        return len(text) // 3 + 1
    wide = sum(1 for character in text if character > "\x7f")
    return (len(text) - wide) // 3 + wide * 3 // 2 + 1


PICTURE_TOKENS = 1700
"""What a picture comes to at most, where the model sees it: it is sent with at most 1568 pixels on
its longer side, and vendors count one token for 750 of them, or less."""


def estimate_message_tokens(message: LLMMessage) -> int:
    """Tokens of one message with its note, calls and framing, erring high; without its pictures."""
    total = 8 + estimate_tokens(message.raw or message.content)
    if message.thinking:
        total += estimate_tokens(message.thinking)
    if message.note:
        total += estimate_tokens(message.note)
    for file in message.attachments:
        total += 40 + (file.size // 2 if file.is_text else 0)
    for call in message.tool_calls:
        total += 16 + estimate_tokens(call.name) + estimate_tokens(str(call.arguments))
    return total


def estimate_request_tokens(messages: Iterable[LLMMessage], tools: Iterable[ToolSpec] = ()) -> int:
    """Tokens of a whole request, tools included, erring high."""
    total = sum(estimate_message_tokens(message) for message in messages)
    for tool in tools:
        total += 16 + estimate_tokens(tool.name + tool.description + str(tool.parameters))
    return total


_BRACKETS = str.maketrans(
    {
        **dict.fromkeys("[［【〔〚⁅⟦❲", "("),
        **dict.fromkeys("]］】〕〛⁆⟧❳", ")"),
    }
)
_ENTITY = re.compile(r"&(?=#?\w{1,31};)")


def one_line(text: str, limit: int) -> str:
    """`text` as a value inside a bracketed line that it can neither end nor forge: one line,
    without square brackets of any script, entities or invisible characters, and at most
    `limit` characters long."""
    text = " ".join(clean_text(text).split()).translate(_BRACKETS)
    text = _ENTITY.sub("&amp;", text)
    if not text.isprintable():
        text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
