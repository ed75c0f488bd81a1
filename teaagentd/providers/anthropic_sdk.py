"""The `anthropic` SDK, for servers that speak its Messages API. See `sdk`."""

from __future__ import annotations

import anthropic
import httpx2

from teaagentd.providers.sdk import Errors, SdkClient
from teaagentd.providers.wire import Pieces


class AnthropicSdk:
    """See `Sdk`."""

    errors = Errors(
        any=anthropic.APIError,
        connection=anthropic.APIConnectionError,
        status=anthropic.APIStatusError,
    )

    def __init__(self, *, base_url: str, api_key: str | None, connect_s: float) -> None:
        self._client = anthropic.AsyncAnthropic(
            # Without a key the SDK would look for one in the environment and in files.
            api_key=api_key or "none",
            base_url=_root(base_url),
            max_retries=0,
            timeout=httpx2.Timeout(None, connect=connect_s),
        )

    async def post(self, content: bytes | Pieces, headers: dict[str, str]) -> httpx2.Response:
        stream = await self._client.post(
            "/v1/messages",
            cast_to=object,
            content=content,
            options={"headers": {"Content-Type": "application/json", **headers}},
            stream=True,
            stream_cls=anthropic.AsyncStream[object],
        )
        return stream.response

    def move(self, base_url: str) -> None:
        self._client.base_url = _root(base_url)

    async def aclose(self) -> None:
        await self._client.close()


def _root(base_url: str) -> str:
    """The address as the SDK wants it: without the version, which many write."""
    return base_url.rstrip("/").removesuffix("/v1")


def connect(*, base_url: str, api_key: str | None, connect_s: float, loopback: bool) -> SdkClient:
    """A client for the server at `base_url`. There are none of this dialect among our own."""
    assert not loopback
    return SdkClient(AnthropicSdk(base_url=base_url, api_key=api_key, connect_s=connect_s))
