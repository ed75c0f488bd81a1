"""Short ways to take a message through the store, for the tests of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

from teaagentd.store import Store
from teaagentd.store.values import Begun, Closed, Commanded, CommandEffect, Folded, NewTurn
from teaagentd.types import (
    Address,
    Attempt,
    InboundMessage,
    InboxRow,
    LLMMessage,
    OutboundMessage,
    Planned,
    SessionKey,
    ToolCall,
    ToolResult,
    TurnOrigin,
    Usage,
)

KEY = SessionKey(channel="api", chat_id="k")
_numbers = count(1)


class ManualClock:
    """Wall time that moves when it is told to."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def said(content: str, chat_id: str = "k", channel: str = "api", **more: str) -> InboundMessage:
    return InboundMessage(channel=channel, chat_id=chat_id, content=content, **more)  # type: ignore[arg-type]


def no_note(row: InboxRow) -> str | None:
    return None


def new_turn(
    key: SessionKey = KEY,
    origin: TurnOrigin = "bus",
    opening: str | None = None,
    deliver_to: Address | None = None,
    turn_id: str | None = None,
) -> NewTurn:
    return NewTurn(
        id=turn_id or f"turn-{next(_numbers)}",
        key=key,
        origin=origin,
        opening=None if opening is None else LLMMessage(role="user", content=opening),
        deliver_to=deliver_to,
    )


async def begin(
    store: Store, turn: NewTurn | None = None, *, upto: int | None = None, budget: int | None = None
) -> Begun:
    begun = await store.begin(
        turn or new_turn(), upto=upto, budget_tokens=budget, note=lambda row: f"note {row.id}"
    )
    assert begun is not None
    return begun


async def started(store: Store, *contents: str, key: SessionKey = KEY) -> Begun:
    """A bus turn that has claimed `contents`."""
    for content in contents:
        await store.accept(said(content, chat_id=key.chat_id, channel=key.channel))
    return await begin(store, new_turn(key))


def answer(text: str) -> LLMMessage:
    return LLMMessage(role="assistant", content=text)


async def close_or_fold(
    store: Store,
    turn_id: str,
    text: str,
    *,
    may_fold: bool = True,
    upto: int | None = None,
    budget: int | None = None,
    attempts: tuple[Attempt, ...] = (),
) -> Folded | Closed:
    return await store.close_or_fold(
        turn_id,
        answer(text),
        attempts=attempts,
        may_fold=may_fold,
        upto=upto,
        budget_tokens=budget,
        note=no_note,
    )


async def decide(store: Store, turn_id: str, *call_ids: str, notice: str | None = None) -> None:
    calls = tuple(ToolCall(id=call_id, name="tool", arguments={"n": 1}) for call_id in call_ids)
    message = LLMMessage(role="assistant", content=notice or "", tool_calls=calls)
    await store.decide(turn_id, message, notice=notice, attempts=())


def result(call_id: str, content: str = "done") -> ToolResult:
    return ToolResult(call_id=call_id, name="tool", content=content)


async def command(
    store: Store,
    effect: CommandEffect,
    key: SessionKey = KEY,
    message: InboundMessage | None = None,
) -> Commanded:
    return await store.command(
        message,
        key,
        effect,
        lambda outcome: f"{effect} done, {outcome.still_pending} wait",
        "Stopped.",
        no_note,
    )


def planned(cost: int | None = 1000) -> Planned:
    return Planned(
        provider="scripted",
        model="m",
        purpose="turn",
        input_tokens=20,
        output_tokens=30,
        cost=cost,
        input_cost=None if cost is None else cost // 5,
        started_at=1,
    )


def attempt(input_tokens: int | None = 10, output_tokens: int | None = 5) -> Attempt:
    return Attempt(
        provider="p",
        model="m",
        purpose="turn",
        usage=Usage(
            input_tokens=input_tokens,
            cached_tokens=0,
            output_tokens=output_tokens,
            reasoning_tokens=0,
        ),
        error=None,
        started_at=1,
        duration_ms=2,
    )


async def texts(store: Store, key: SessionKey = KEY) -> list[tuple[str, str, tuple[int, ...]]]:
    """What stands in the session's outbox: kind, content, answered messages."""
    return [
        (reply.kind, reply.content, reply.message_ids)
        for reply in await store.replies(key, after=0, limit=1000)
    ]


def spoken(outbound: tuple[OutboundMessage, ...]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(text.address.chat_id, text.kind, text.message_ids) for text in outbound]


def told(messages: tuple[LLMMessage, ...]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as another program sees it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection
