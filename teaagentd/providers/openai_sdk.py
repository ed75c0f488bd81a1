"""The `openai` SDK, for servers that speak chat completions. See `sdk`."""

from __future__ import annotations

import httpx2
import openai

from teaagentd.providers.sdk import Errors, SdkClient
from teaagentd.providers.wire import Pieces


class OpenAISdk:
    """See `Sdk`. `loopback`: no proxy, no TLS, and a connection for each request: llama.cpp
    offers to keep them, and at times closes one right after a streamed answer."""

    errors = Errors(
        any=openai.APIError,
        connection=openai.APIConnectionError,
        status=openai.APIStatusError,
    )

    def __init__(
        self, *, base_url: str, api_key: str | None, connect_s: float, loopback: bool
    ) -> None:
        timeout = httpx2.Timeout(None, connect=connect_s)
        http = None
        if loopback:
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
            http = httpx2.AsyncClient(trust_env=False, verify=False, timeout=timeout, limits=limits)
        self._client = openai.AsyncOpenAI(
            # An empty key would be looked up in the environment, and sent to whatever server.
            api_key=api_key or "none",
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            http_client=http,
        )

    async def post(self, content: bytes | Pieces, headers: dict[str, str]) -> httpx2.Response:
        stream = await self._client.post(
            "/chat/completions",
            cast_to=object,
            content=content,
            options={"headers": headers},
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        return stream.response

    def move(self, base_url: str) -> None:
        self._client.base_url = base_url

    async def aclose(self) -> None:
        await self._client.close()


def connect(*, base_url: str, api_key: str | None, connect_s: float, loopback: bool) -> SdkClient:
    """A client for the server at `base_url`."""
    return SdkClient(
        OpenAISdk(base_url=base_url, api_key=api_key, connect_s=connect_s, loopback=loopback)
    )
