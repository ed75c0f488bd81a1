"""Every error the project raises on purpose, as one tree.

    TeaAgentError
    ├── ConfigError                 the configuration cannot be used
    ├── InvalidMessage              a message that can never be accepted
    ├── FileRefused                 a file that is not kept
    ├── BusFull                     the inbox is at its limit; send again later
    ├── SenderRefused               who sends it may not speak here
    ├── ExternalIdConflict          a known external id with another body
    ├── StoreError
    │   ├── HomeLocked              another process holds the home
    │   ├── StoreDamaged            the database file is not readable
    │   ├── StoreTooNew             written by a later version
    │   ├── StoreUnavailable        disk full, read-only or failing
    │   └── TurnEnded               the turn was closed by someone else
    ├── DirectTurnDeadlock          a direct turn that would wait for itself
    ├── TooManyParked               too many turns are waiting already
    ├── ShuttingDown                the daemon takes no new work
    ├── TurnNotAnswered             a direct turn ended otherwise than with an answer
    ├── ProviderError               what a model server answered instead of a reply
    │   ├── ContextOverflow
    │   ├── AuthenticationFailed
    │   ├── RateLimited
    │   ├── QuotaExhausted          credit or quota used up; waiting a little does not help
    │   ├── SpendingRefused         the request was not made: it would pass a cap of ours
    │   ├── ProviderUnavailable     transient: worth another try
    │   └── RequestRefused          fatal: the same request will fail again
    │       ├── ToolsRefused        the model has no tool calling of its own
    │       └── ModelMissing        the model cannot be used until someone mends that
    ├── CompactionFailed            a history could not be summarised; it is as it was
    ├── ToolError                   a tool's failure, told to the model
    │   ├── ToolValidationError     a decision or its arguments cannot be understood
    │   └── FatalToolError          the run must not go on after it
    └── DeliveryError               what a channel answered instead of a receipt
        ├── DeliveryRefused         permanent
        ├── DeliveryDelayed         not sent; try again after a wait
        └── DeliveryUnknown         may or may not have been sent

An error carries its data as attributes and words itself; what a person reads says what
happened, what was kept and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from teaagentd.types import Attempt


class TeaAgentError(Exception):
    """Root of the tree."""


class ConfigError(TeaAgentError):
    """The configuration cannot be used. The message names the file, key and mend; raised where
    the file is not known, it begins with the dotted `key`."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class InvalidMessage(TeaAgentError):
    """A message that can never be accepted; `field` is the field at fault."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class FileRefused(TeaAgentError):
    """A file that is not kept: too large, or a picture that cannot be read. The message says why,
    and what to send instead."""


class BusFull(TeaAgentError):
    """The inbox holds `limit` unanswered messages. Nothing was kept; send it again later."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the inbox is full ({limit} messages are waiting); this message was not kept, "
            "send it again later or raise bus.max_pending"
        )
        self.limit = limit


class SenderRefused(TeaAgentError):
    """The sender is not among those that `channel` may be used by. Nothing was kept."""

    def __init__(self, channel: str) -> None:
        super().__init__(
            f"this sender may not speak on {channel}; nothing was kept. Who may is in "
            f"channels.{channel}.allow_from"
        )
        self.channel = channel


class ExternalIdConflict(TeaAgentError):
    """`external_id` was accepted before with another body. The first one stays."""

    def __init__(self, external_id: str, message_id: int) -> None:
        super().__init__(
            f"external id {external_id!r} was already accepted with other content as message "
            f"{message_id}; that one was kept, send the new text under a new id"
        )
        self.external_id = external_id
        self.message_id = message_id


class StoreError(TeaAgentError):
    """The store cannot do what was asked."""


class HomeLocked(StoreError):
    """Another living process holds the lock of this home; `holder` describes it."""

    def __init__(self, home: str, holder: str) -> None:
        super().__init__(
            f"{home} is in use by {holder}; nothing was changed. Stop that process "
            "(`teaagentd stop`) or choose another home with --home"
        )
        self.home = home
        self.holder = holder


class StoreDamaged(StoreError):
    """The database file cannot be read as one; it was left or kept aside, never overwritten."""


class StoreTooNew(StoreError):
    """The database was written by a later version of the program."""


class StoreUnavailable(StoreError):
    """The disk is full, read-only or failing; the transaction was not kept."""


class TurnEnded(StoreError):
    """The turn is no longer running in the store: stopped, or its session begun anew."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"turn {turn_id} has ended; what came after was not kept")
        self.turn_id = turn_id


class DirectTurnDeadlock(TeaAgentError):
    """A direct turn on `key` would wait for the turn that asks for it."""

    def __init__(self, key: str, ring: Sequence[str]) -> None:
        path = " → ".join(ring)
        super().__init__(f"a direct turn on {key} would wait for itself ({path})")
        self.key = key
        self.ring = tuple(ring)


class TooManyParked(TeaAgentError):
    """`limit` turns already wait without a slot; this one may not join them."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} turns are waiting already; try again when one has gone on")
        self.limit = limit


class ShuttingDown(TeaAgentError):
    """The daemon is draining and takes no new direct turn."""

    def __init__(self) -> None:
        super().__init__("the daemon is shutting down and takes no new direct turn")


class TurnNotAnswered(TeaAgentError):
    """A direct turn ended with `outcome` instead of an answer; `text` says what happened."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome
        self.text = text


class ProviderError(TeaAgentError):
    """What a model server answered instead of a reply.

    `attempts` are the requests that were made for it, for the books. `streamed` says
    whether some text had already been handed to `on_chunk`, `unbilled` that no server takes money
    for it.
    """

    unbilled: bool = False

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        status: int | None = None,
        attempts: Sequence[Attempt] = (),
        streamed: bool = False,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.status = status
        self.attempts = tuple(attempts)
        self.streamed = streamed


class ContextOverflow(ProviderError):
    """The request does not fit the model's window; `limit_tokens` if the server said it."""

    limit_tokens: int | None = None


class AuthenticationFailed(ProviderError):
    """The key is missing, wrong or not allowed to use this model."""


class RateLimited(ProviderError):
    """Too many requests or tokens; `retry_after_s` is the floor that the server gave, or None."""

    retry_after_s: float | None = None


class QuotaExhausted(ProviderError):
    """The account's credit or quota is used up. `retry_after_s` is when it begins anew, in
    seconds, if the server said so."""

    retry_after_s: float | None = None


class SpendingRefused(ProviderError):
    """The request was not made: a cap on spending is reached, or cannot be kept. The message names
    it, what is left and when it begins anew."""

    unbilled = True


class ProviderUnavailable(ProviderError):
    """A passing failure: network, overload, a stalled or broken stream; `retry_after_s` is the
    floor that the server gave, or None."""

    retry_after_s: float | None = None


class RequestRefused(ProviderError):
    """The server will refuse this request every time."""


class ToolsRefused(RequestRefused):
    """The model has no tool calling of its own. Its adapter's `native_tools` is False by now, so
    that `decisions = "auto"` asks for JSON instead."""


class ModelMissing(RequestRefused):
    """The model's file or its server's package is missing or unusable; the text says the mend."""

    unbilled = True


class CompactionFailed(TeaAgentError):
    """No usable summary came of a history, which is as it was."""


class ToolError(TeaAgentError):
    """A tool failed; the text is given to the model as the call's result."""


class ToolValidationError(ToolError):
    """A decision or a call's arguments cannot be understood or are not allowed by the schema."""


class FatalToolError(ToolError):
    """A tool failed so that the run must not go on. The other calls of the same decision still
    get their results; then the run ends with this text."""


class DeliveryError(TeaAgentError):
    """What a channel answered instead of a receipt."""


class DeliveryRefused(DeliveryError):
    """A permanent refusal: the same part to the same chat will never be taken."""


class DeliveryDelayed(DeliveryError):
    """Not sent. Try again after `wait_s` seconds (None: after the dispatcher's backoff)."""

    def __init__(self, message: str, *, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class DeliveryUnknown(DeliveryError):
    """The part may or may not have been sent."""
