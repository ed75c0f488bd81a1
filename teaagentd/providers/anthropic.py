"""The `anthropic` adapter: Claude, and servers that speak its Messages API."""

from __future__ import annotations

from sys import maxsize

from teaagentd.abc import Clock, OnChunk
from teaagentd.errors import ContextOverflow
from teaagentd.providers.anthropic_answer import MESSAGES
from teaagentd.providers.anthropic_wire import messages_body
from teaagentd.providers.exchange import ChatServer, Timeouts
from teaagentd.providers.options import ProviderOptions
from teaagentd.types import LLMRequest, LLMResponse

DEFAULT_BASE_URL = "https://api.anthropic.com"
DEFAULT_MODEL = "claude-haiku-4-5"
"""Used when no model is named."""
WINDOW = 200_000
"""Tokens that every Claude since 3 reads at least."""


class AnthropicAdapter:
    """One model of one server. See `LLMAdapter` for what holds."""

    small = False
    native_tools = True

    def __init__(
        self,
        *,
        name: str,
        model: str,
        base_url: str,
        api_key: str | None,
        clock: Clock,
        timeouts: Timeouts | None = None,
        context_window: int | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.context_window: int | None = context_window or WINDOW
        self._server = ChatServer(
            dialect=MESSAGES,
            provider=name,
            base_url=base_url,
            api_key=api_key,
            clock=clock,
            timeouts=timeouts or Timeouts(),
        )

    @property
    def vision(self) -> bool:
        return self._server.sees(self.model)

    async def warm(self) -> None:
        """Import the SDK and build the client now, in a worker thread, instead of at the first
        request. Idempotent; raises nothing of the network."""
        await self._server.client()

    async def complete(self, request: LLMRequest, on_chunk: OnChunk | None = None) -> LLMResponse:
        body = messages_body(request, model=self.model)
        try:
            return await self._server.complete(body, purpose=request.purpose, on_chunk=on_chunk)
        except ContextOverflow as error:
            if error.limit_tokens:
                self.context_window = min(self.context_window or maxsize, error.limit_tokens)
            raise

    async def aclose(self) -> None:
        await self._server.aclose()


def create(options: ProviderOptions) -> AnthropicAdapter:
    """The adapter for `options`."""
    return AnthropicAdapter(
        name=options.name or options.type,
        model=options.model or DEFAULT_MODEL,
        base_url=options.base_url or DEFAULT_BASE_URL,
        api_key=options.api_key,
        clock=options.clock,
        timeouts=Timeouts(
            first_token_s=options.first_token_timeout_s, idle_s=options.idle_timeout_s
        ),
        context_window=options.context_window,
    )
