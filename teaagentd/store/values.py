"""What the store's commit points take and return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from teaagentd.types import (
    Address,
    InboxRow,
    LLMMessage,
    OutboundMessage,
    SessionKey,
    TurnOrigin,
    TurnOutcome,
    Usage,
)

NoteRenderer = Callable[[InboxRow], str | None]
"""Renders the note beside one claimed row. Runs inside the transaction: pure and quick."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """T0. `duplicate`: the same external id with the same body was accepted before, as `id`."""

    id: int
    session_key: SessionKey
    duplicate: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class NewTurn:
    """What T1 is told. A bus turn claims rows; any other brings its own `opening` message."""

    id: str
    key: SessionKey
    origin: TurnOrigin
    opening: LLMMessage | None = None
    deliver_to: Address | None = None
    parent_turn_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """A turn that runs: the whole live history of its session, claimed rows last."""

    turn_id: str
    key: SessionKey
    origin: TurnOrigin
    generation: int
    attempt: int
    history: tuple[LLMMessage, ...]
    claimed: tuple[InboxRow, ...]
    outbound: tuple[OutboundMessage, ...] = ()
    """The notices that a resumption told its people."""
    model: str | None = None
    """The model that is asked first, where one was chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveHistory:
    """What the model would be shown of a session now, without what waits."""

    generation: int
    messages: tuple[LLMMessage, ...]
    settled: int
    """How many of them came before the turn that is at work; all, where none is."""
    model: str | None = None
    """The model that is asked first, where one was chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compaction:
    """T8: `summary` tells of `count` messages, from `first_id`, where the live history of
    `generation` began, to `last_id`, which ends a round."""

    key: SessionKey
    generation: int
    first_id: int
    last_id: int
    count: int
    summary: str
    turn_id: str | None
    """The turn that asks for it; None between turns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Folded:
    """T4: the claimed rows as transcript messages, and what was delivered before them."""

    messages: tuple[LLMMessage, ...]
    claimed: tuple[InboxRow, ...]
    outbound: tuple[OutboundMessage, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Closed:
    """T5: the turn is over. `outbound` holds one text for each distinct address."""

    outbound: tuple[OutboundMessage, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningTurn:
    """A turn that the store holds as running, as found at start. `parked` after a planned
    shutdown."""

    id: str
    key: SessionKey
    origin: TurnOrigin
    attempt: int
    parked: bool


CommandEffect = Literal["none", "stop", "new", "choose"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The model that is asked first from now on, by its name in the configuration; None is as
    configured."""

    model: str | None
    for_all: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOutcome:
    """What a command found and did, for its reply's wording."""

    stopped_turn_id: str | None
    stopped_waiting: int
    """Messages that had not begun and were closed by the stop."""
    still_pending: int
    generation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Commanded:
    """T7. `outcome` is None for a duplicate, whose effect was had before."""

    id: int | None
    duplicate: bool
    outcome: CommandOutcome | None
    outbound: tuple[OutboundMessage, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingKey:
    """A session with accepted messages that no turn has claimed."""

    key: SessionKey
    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Depths:
    """How full the queues are; ages in milliseconds, None when empty."""

    inbox: int
    inbox_oldest_ms: int | None
    outbox: int
    outbox_oldest_ms: int | None
    dead_rows: int
    dead_letters: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadRow:
    """An accepted message whose turn failed for good; it can be retried."""

    id: int
    key: SessionKey
    turn_id: str | None
    accepted_at: int
    content: str


PartState = Literal["pending", "sending", "sent"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterPart:
    """One frozen part of a letter. `repeats` counts sends after one of unknown outcome."""

    index: int
    content: str
    state: PartState
    repeats: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Letter:
    """An outbound message that its channel has not taken whole; `parts` is empty until frozen."""

    outbound: OutboundMessage
    parts: tuple[LetterPart, ...]
    not_before: int
    """Milliseconds since the epoch, UTC; 0 for at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRecord:
    """One session as a list shows it."""

    number: int
    """In the order they were made in."""
    key: SessionKey
    generation: int
    created_at: int
    active_at: int
    """When its transcript last grew, or its first message came."""
    messages: int
    """In its live history, that is, since the last `/new`."""
    pending: int
    running_turn_id: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRecord:
    """One turn as the books have it. `outcome` and `ended_at` are None while it runs."""

    id: str
    key: SessionKey
    origin: TurnOrigin
    parent_turn_id: str | None
    outcome: TurnOutcome | None
    attempt: int
    parked: bool
    started_at: int
    ended_at: int | None
    requests: int
    """Attempts booked to it."""
    usage: Usage
    """Their sum; None where one of them is unknown."""
    cost: int | None
    """Their sum, in billionths of a US dollar; None where one of them is unknown."""
    estimated: bool
    """Whether an estimate is among them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Some messages of a transcript, in order."""

    messages: tuple[LLMMessage, ...] = ()
    more: bool = False
    """Whether there may be others beyond it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InboxEntry:
    """An accepted message that waits, or was set aside, as an operator sees it."""

    id: int
    key: SessionKey
    state: Literal["pending", "claimed", "dead"]
    address: Address
    sender_id: str | None
    accepted_at: int
    content: str
    """Its beginning."""
    characters: int
    """Of the whole text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxEntry:
    """A text that its channel has not taken whole, as an operator sees it."""

    id: int
    key: SessionKey
    state: Literal["pending", "dead"]
    reason: str | None
    address: Address
    created_at: int
    parts: int
    """0 until its first send."""
    sent: int
    """How many of the parts were."""
    content: str
    """Its beginning."""
    characters: int
    """Of the whole text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A message of a transcript that holds what was looked for."""

    key: SessionKey
    message: LLMMessage
    created_at: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Removed:
    """What a deletion took, or would take."""

    sessions: int = 0
    """Deleted whole."""
    messages: int = 0
    """Of transcripts, summaries among them."""
    inbox: int = 0
    outbox: int = 0
    keys: tuple[SessionKey, ...] = ()
    """Every session that lost something."""
    waiting: tuple[PendingKey, ...] = ()
    """The accepted messages among them that no turn had claimed."""


LimitScope = Literal["turn", "session", "day", "month"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Payer:
    """For whom a request is made; None is for nobody in particular."""

    turn_id: str | None = None
    key: SessionKey | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A cap on what requests may come to: `most` billionths of a US dollar, or tokens. Those of a
    day or month began from `since_ms` on and before `until_ms`."""

    scope: LimitScope
    unit: Literal["cost", "tokens"]
    most: int
    since_ms: int = 0
    until_ms: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """How far a limit is used up: by requests that are over, and by what is set aside for those
    that are under way."""

    limit: Limit
    spent: int
    held: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reserving:
    """What was set aside, under `id`. None with `refused`: that limit is reached. None without:
    there is no room beside what others have set aside, and to be tried again when some of that
    is booked."""

    id: int | None
    levels: tuple[Level, ...]
    refused: Level | None = None
