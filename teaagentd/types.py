"""The values that travel between the parts: frozen, keyword-only, and nothing but values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Literal, TypeAlias
from urllib.parse import quote, unquote

Json: TypeAlias = "Mapping[str, Json] | list[Json] | str | int | float | bool | None"
JsonObject: TypeAlias = Mapping[str, Json]

DEFAULT_CHANNEL = "api"


NOT_BEGUN = "to try again: "
"""How the detail of `Phase.WAITING` begins for a turn that could not begin; then why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """A place where a reply can be read: one chat of one channel."""

    channel: str
    chat_id: str


@lru_cache(maxsize=64)
def _quoted(channel: str) -> str:
    return quote(channel, safe=" /@+,;=!$&()*")


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionKey:
    """The name of one conversation. Its text form is `<channel>:<chat id>`, and reversible:
    `%` and `:` in the channel's name are percent-encoded, the chat id stands as it is."""

    channel: str
    chat_id: str

    def __str__(self) -> str:
        return f"{_quoted(self.channel)}:{self.chat_id}"

    @classmethod
    def parse(cls, text: str) -> SessionKey:
        """The key that `text` names; without a colon it is a chat of the default channel."""
        channel, colon, chat_id = text.partition(":")
        if not colon:
            return cls(channel=DEFAULT_CHANNEL, chat_id=text)
        return cls(channel=unquote(channel), chat_id=chat_id)


MAX_SHOWN_TEXT = 64 << 10
"""Bytes of a text file that a model is shown."""
_TEXT = re.compile(r"text/.*|application/(?:.*\+)?(?:json|xml|yaml|toml|javascript|x-sh|x-ndjson)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """A file that came with a message; it is on disk and synced before the message is accepted."""

    path: str
    media_type: str
    name: str
    size: int
    """Bytes."""

    @property
    def is_picture(self) -> bool:
        """Whether a model that sees can be shown it."""
        return self.media_type.startswith("image/")

    @property
    def is_text(self) -> bool:
        """Whether any model can be shown it."""
        return self.size <= MAX_SHOWN_TEXT and _TEXT.fullmatch(self.media_type) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A picture as a model is shown it: PNG or JPEG, as base64."""

    media_type: str
    data: str


Shown: TypeAlias = "Picture | str"
"""What a model is shown of a file: the picture, or the text in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InboundMessage:
    """What a channel publishes. `session_key` defaults to the chat itself."""

    channel: str
    chat_id: str
    content: str
    sender_id: str | None = None
    external_id: str | None = None
    attachments: tuple[Attachment, ...] = ()
    session_key: SessionKey | None = None

    @property
    def key(self) -> SessionKey:
        return self.session_key or SessionKey(channel=self.channel, chat_id=self.chat_id)

    @property
    def address(self) -> Address:
        return Address(channel=self.channel, chat_id=self.chat_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class InboxRow:
    """An accepted message: the inbound one with its id and time of acceptance."""

    id: int
    message: InboundMessage
    accepted_at: int
    """Milliseconds since the epoch, UTC."""


OutboundKind = Literal["final", "interim", "notice"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboundMessage:
    """One text in the outbox. `message_ids` are the accepted messages that it answers."""

    id: int
    address: Address
    session_key: SessionKey
    turn_id: str | None
    kind: OutboundKind
    message_ids: tuple[int, ...]
    content: str
    created_at: int
    """Milliseconds since the epoch, UTC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A piece of an outbound message that a channel carries in one send."""

    outbound_id: int
    index: int
    address: Address
    content: str
    idempotency_key: str
    possible_repeat: bool = False
    """The outcome of an earlier send is unknown: this may be its second copy, marked so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """A channel's word that a part was taken; `external_id` is the channel's name for it."""

    external_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One call that the model asks for. With `problem` set the arguments could not be read
    (cut off, not an object): it is never executed, and the problem is its result."""

    id: str
    name: str
    arguments: JsonObject
    problem: str | None = None


ToolStatus = Literal["ok", "error", "timeout", "interrupted", "not_run", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """What one call came to; `content` is the text that the model reads."""

    call_id: str
    name: str
    content: str
    status: ToolStatus = "ok"
    attachments: tuple[Attachment, ...] = ()


Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LLMMessage:
    """One message of a transcript or a request."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    """The tool's name, on a `tool` message."""
    note: str | None = None
    """On a `user` message: what was rendered once beside it (time, channel, memories). It is
    sent before the content, never exported."""
    raw: str | None = None
    """On an `assistant` message of the `json` dialect: the reply as the model wrote it."""
    reasoning: str | None = None
    thinking: str | None = None
    """On an `assistant` message: the thinking as its provider signed it, in the provider's own
    form. It goes back to the same model, whole or not at all, and is never touched."""
    model: str | None = None
    attachments: tuple[Attachment, ...] = ()
    id: int | None = None
    """The row in the transcript, when it has one."""
    inbox_id: int | None = None


class Effect(StrEnum):
    """What a tool can do to the world; approval policies are written against it."""

    NONE = "none"
    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    NETWORK = "network"


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """What a model is told of a tool. `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: JsonObject
    effects: frozenset[Effect] = frozenset({Effect.NONE})


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens of one request; `input_tokens` includes the cached ones. None is unknown, not zero."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_tokens: int | None = None
    """Of the input: what was written to the provider's cache, where that has a price."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One request to a provider, as it is booked."""

    provider: str
    model: str
    purpose: str
    usage: Usage | None
    error: str | None
    started_at: int
    """Milliseconds since the epoch, UTC."""
    duration_ms: int
    cost: int | None = None
    """Billionths of a US dollar; None is unknown, not zero."""
    estimated: bool = False
    """Whether nobody told the usage, so that it and the cost are estimates that err high."""
    reservation: int | None = None
    """What was set aside for it, and those before it of the same reply, by a `SpendingGate`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A request that is about to be made, and what it may come to at most."""

    provider: str
    model: str
    purpose: str
    input_tokens: int
    output_tokens: int
    cost: int | None
    """Billionths of a US dollar, for input and output together; None is unknown."""
    input_cost: int | None
    """Of it, what the input alone comes to."""
    started_at: int
    """Milliseconds since the epoch, UTC."""


ToolChoice = Literal["auto", "none"]
Effort = Literal["low", "medium", "high"]
Reasoning: TypeAlias = "Effort | int"
"""How much a model may think before it answers: in words, or in tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LLMRequest:
    """One request for a completion. `messages` are legal (see `transcript.legal`)."""

    messages: tuple[LLMMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = "auto"
    response_schema: JsonObject | None = None
    """A JSON Schema that constrains the reply, on servers that can."""
    max_output_tokens: int | None = None
    temperature: float | None = None
    reasoning: Reasoning | None = None
    purpose: str = "turn"
    cache_key: str | None = None
    """The session, for servers that route by it to keep a prefix cached."""
    shown: Mapping[str, Shown] = field(default_factory=dict)
    """What is shown of the messages' attachments, by their paths; of the others it is said that
    they were there."""


FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "other"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LLMResponse:
    """A provider's whole answer, normalised."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    thinking: str | None = None
    """See `LLMMessage.thinking`."""
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)
    provider: str = ""
    model: str = ""
    attempts: tuple[Attempt, ...] = ()
    restated: bool = False
    """What `on_chunk` was given does not belong to `content`, and is to be taken back."""


class Phase(StrEnum):
    """What a turn is busy with; front-ends map these onto whatever they draw."""

    CONTEXT = "context"
    THINKING = "thinking"
    TOOL = "tool"
    COMPACTING = "compacting"
    STEERING = "steering"
    WAITING = "waiting"
    NOTICE = "notice"
    DONE = "done"


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """One phase change of one turn; `detail` is a tool's name, a notice, what is waited for."""

    session_key: SessionKey
    phase: Phase
    detail: str = ""
    turn_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """A piece of a turn's answer, as it streams."""

    session_key: SessionKey
    turn_id: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reset:
    """The deltas since the turn's last request began are void: the answer starts over."""

    session_key: SessionKey
    turn_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A text that was committed to the outbox."""

    message: OutboundMessage

    @property
    def session_key(self) -> SessionKey:
        return self.message.session_key


FeedEvent: TypeAlias = Activity | Delta | Reset | Reply


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveTurn:
    """The present phase of a turn; times in milliseconds since the epoch, UTC."""

    session_key: SessionKey
    turn_id: str
    phase: Phase
    detail: str
    since: int
    """When this phase began."""
    started: int
    """When the turn's first phase began."""


TurnOrigin = Literal["bus", "direct", "cron", "job", "child", "ephemeral"]

TurnOutcome = Literal[
    "answered", "stopped", "failed", "limit", "timeout", "interrupted", "superseded"
]
"""`superseded`: closed by `/new`; `interrupted`: its caller is gone or the daemon was restarted."""

AlertKind = Literal[
    "dead_letters",
    "dead_messages",
    "channel",
    "disk",
    "full",
    "upgrade",
    "database",
    "summary",
    "configuration",
    "watchdog",
    "budget",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """Something that the owner should know. There is one for each `kind` and `subject` at a time,
    however often its cause shows."""

    kind: AlertKind
    subject: str
    text: str
    """What happened, what was kept, what to do."""
    raised_at: int
    """Milliseconds since the epoch, UTC."""
    told_at: int | None = None
    """When it was told in a chat; None if it is in `status` only."""
