"""What every provider's factory is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from teaagentd.abc import Clock, SystemClock
from teaagentd.types import Reasoning

OnProgress = Callable[[str], None]
"""Gets a line for whoever waits ("loading …"), on the event loop's thread. Must not block,
raise, or call back into the adapter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """How one model is asked. None takes the provider's default."""

    decisions: Literal["auto", "native", "json"] = "auto"
    max_output_tokens: int | None = None
    temperature: float | None = None
    reasoning: Reasoning | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderOptions:
    """The settings of one provider. None takes the adapter's own default."""

    type: str
    name: str | None = None
    """The provider's name in the books and the logs; by default its type."""
    table: str = "provider"
    """Where its settings stand, for messages."""
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    context_window: int | None = None
    """Tokens."""
    first_token_timeout_s: float = 300.0
    """Seconds of silence allowed before the first content of an answer."""
    idle_timeout_s: float = 120.0
    """Seconds of silence allowed between two pieces of content."""
    idle_minutes: float = 15.0
    """Minutes after which a model served by a process of ours is unloaded; 0 keeps it."""
    clock: Clock = field(default_factory=SystemClock)
    on_progress: OnProgress | None = None
