"""The JSON of what the API shows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import orjson
from starlette.responses import Response

from teaagentd.providers.prices import CENT
from teaagentd.store.values import (
    DeadRow,
    Found,
    InboxEntry,
    OutboxEntry,
    Removed,
    SessionRecord,
    TurnRecord,
)
from teaagentd.types import Attachment, LLMMessage, OutboundMessage, ToolCall

View = Mapping[str, object]


class JSONAnswer(Response):
    """A result."""

    media_type = "application/json"

    def __init__(self, content: object, status_code: int = 200) -> None:
        super().__init__(orjson.dumps(content), status_code)


def moment(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; `ms` counts from the epoch."""
    whole = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def maybe_moment(ms: int | None) -> str | None:
    return None if ms is None else moment(ms)


def reply(message: OutboundMessage) -> View:
    """A text of the outbox, as its readers get it."""
    return {
        "id": message.id,
        "session_key": str(message.session_key),
        "turn_id": message.turn_id,
        "kind": message.kind,
        "message_ids": message.message_ids,
        "content": message.content,
        "created_at": moment(message.created_at),
    }


def session(record: SessionRecord) -> View:
    return {
        "session_key": str(record.key),
        "generation": record.generation,
        "created_at": moment(record.created_at),
        "active_at": moment(record.active_at),
        "messages": record.messages,
        "pending": record.pending,
        "running_turn_id": record.running_turn_id,
    }


def message(one: LLMMessage) -> View:
    """A message of a transcript. Notes are for the model alone, and are left out."""
    view: dict[str, object] = {"id": one.id, "role": one.role, "content": one.content}
    if one.tool_calls:
        view["tool_calls"] = [_call(call) for call in one.tool_calls]
    if one.attachments:
        view["attachments"] = [attachment(item) for item in one.attachments]
    optional = {
        "tool_call_id": one.tool_call_id,
        "name": one.name,
        "model": one.model,
        "reasoning": one.reasoning,
        "message_id": one.inbox_id,
    }
    return view | {name: value for name, value in optional.items() if value is not None}


def _call(call: ToolCall) -> View:
    view: View = {"id": call.id, "name": call.name, "arguments": call.arguments}
    return view if call.problem is None else {**view, "problem": call.problem}


def attachment(item: Attachment) -> View:
    """A file by the id under which it can be fetched."""
    return {"id": item.path, "name": item.name, "media_type": item.media_type, "size": item.size}


def turn(record: TurnRecord) -> View:
    return {
        "id": record.id,
        "session_key": str(record.key),
        "origin": record.origin,
        "parent_turn_id": record.parent_turn_id,
        "state": "running" if record.outcome is None else "done",
        "outcome": record.outcome,
        "attempt": record.attempt,
        "started_at": moment(record.started_at),
        "ended_at": maybe_moment(record.ended_at),
        "requests": record.requests,
        "usage": record.usage,
        "cost_cents": cents(record.cost),
        "estimated": record.estimated,
    }


def cents(cost: int | None) -> float | None:
    """A cost in US cents; None is unknown."""
    return None if cost is None else round(cost / CENT, 4)


def dead_row(row: DeadRow) -> View:
    return {
        "id": row.id,
        "session_key": str(row.key),
        "turn_id": row.turn_id,
        "accepted_at": moment(row.accepted_at),
        "content": row.content,
    }


def inbox_entry(entry: InboxEntry) -> View:
    return {
        "id": entry.id,
        "session_key": str(entry.key),
        "state": entry.state,
        "channel": entry.address.channel,
        "chat_id": entry.address.chat_id,
        "sender_id": entry.sender_id,
        "accepted_at": moment(entry.accepted_at),
        "content": entry.content,
        "characters": entry.characters,
    }


def outbox_entry(entry: OutboxEntry) -> View:
    return {
        "id": entry.id,
        "session_key": str(entry.key),
        "state": entry.state,
        "reason": entry.reason,
        "channel": entry.address.channel,
        "chat_id": entry.address.chat_id,
        "created_at": moment(entry.created_at),
        "parts": entry.parts,
        "sent": entry.sent,
        "content": entry.content,
        "characters": entry.characters,
    }


def found(one: Found) -> View:
    return {
        "session_key": str(one.key),
        "created_at": moment(one.created_at),
        "message": message(one.message),
    }


def removed(what: Removed) -> View:
    return {
        "sessions": what.sessions,
        "messages": what.messages,
        "inbox": what.inbox,
        "outbox": what.outbox,
        "session_keys": [str(key) for key in what.keys],
        "waiting": sum(len(pending.ids) for pending in what.waiting),
    }
