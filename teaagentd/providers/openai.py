"""The `openai` adapter: any server that speaks chat completions, by its `base_url`."""

from __future__ import annotations

from sys import maxsize
from urllib.parse import urlsplit

from teaagentd.abc import Clock, OnChunk
from teaagentd.errors import ConfigError, ContextOverflow, RequestRefused, ToolsRefused
from teaagentd.providers.answer import CHAT
from teaagentd.providers.exchange import ChatServer, Timeouts
from teaagentd.providers.habits import refuses_tools
from teaagentd.providers.options import ProviderOptions
from teaagentd.providers.wire import request_body
from teaagentd.types import LLMRequest, LLMResponse

DEFAULT_BASE_URL = "https://api.openai.com/v1"
LEAST_WINDOW = 1024
"""Tokens; a server that states fewer is not believed."""
DEFAULT_MODEL = "gpt-4.1-mini"
"""Used with OpenAI itself, when no model is named."""


class OpenAIAdapter:
    """One model of one server. See `LLMAdapter` for what holds."""

    small = False

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
        self.context_window = context_window
        self.native_tools = True
        self._server = ChatServer(
            dialect=CHAT,
            provider=name,
            base_url=base_url,
            api_key=api_key,
            clock=clock,
            timeouts=timeouts or Timeouts(),
        )
        self._most_read = 0
        self._limit_name = "max_completion_tokens" if _is_openai(base_url) else "max_tokens"
        self._router = _is_at(base_url, "openrouter.ai")

    @property
    def vision(self) -> bool:
        return self._server.sees(self.model)

    async def warm(self) -> None:
        """Import the SDK and build the client now, in a worker thread, instead of at the first
        request. Idempotent; raises nothing of the network."""
        await self._server.client()

    async def complete(self, request: LLMRequest, on_chunk: OnChunk | None = None) -> LLMResponse:
        body = request_body(
            request, model=self.model, limit_name=self._limit_name, router=self._router
        )
        try:
            response = await self._server.complete(body, purpose=request.purpose, on_chunk=on_chunk)
        except ContextOverflow as error:
            # The server knows its window best, but not below what it has read before.
            if error.limit_tokens:
                stated = max(error.limit_tokens, self._most_read, LEAST_WINDOW)
                self.context_window = min(self.context_window or maxsize, stated)
            raise
        except RequestRefused as error:
            if not request.tools or not refuses_tools(error):
                raise
            self.native_tools = False
            raise ToolsRefused(
                str(error),
                provider=error.provider,
                status=error.status,
                attempts=error.attempts,
            ) from error
        self._most_read = max(self._most_read, response.usage.input_tokens or 0)
        return response

    async def aclose(self) -> None:
        await self._server.aclose()


def _is_openai(base_url: str) -> bool:
    return _is_at(base_url, "api.openai.com")


def _is_at(base_url: str, name: str) -> bool:
    host = urlsplit(base_url).hostname or ""
    return host == name or host.endswith(f".{name}")


def create(options: ProviderOptions) -> OpenAIAdapter:
    """The adapter for `options`. Raises `ConfigError` when no model is named."""
    base_url = options.base_url or DEFAULT_BASE_URL
    model = options.model or (DEFAULT_MODEL if _is_openai(base_url) else None)
    if not model:
        raise ConfigError(
            f"{options.table}.model is not set, and {base_url} has no default; "
            "name one of its models"
        )
    return OpenAIAdapter(
        name=options.name or options.type,
        model=model,
        base_url=base_url,
        api_key=options.api_key,
        clock=options.clock,
        timeouts=Timeouts(
            first_token_s=options.first_token_timeout_s, idle_s=options.idle_timeout_s
        ),
        context_window=options.context_window,
    )
