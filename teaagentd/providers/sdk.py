"""The `openai` SDK as the exchange uses it. Importing this module imports the SDK, which takes
half a second of CPU: it is done in a worker thread, when a provider that needs it is first used.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import httpx2
import openai

from teaagentd.providers.answer import read_json

Event = tuple[str, str]
"""The name and the data of one server-sent event."""


class TooLong(Exception):
    """The body passed the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the answer is longer than {limit} bytes")


class SdkClient:
    """A client for one server. `loopback`: no proxy, no TLS, and connections are given up
    before the server at the other end, which closes them after five seconds, does."""

    def __init__(
        self, *, base_url: str, api_key: str | None, connect_s: float, loopback: bool
    ) -> None:
        timeout = httpx2.Timeout(None, connect=connect_s)
        http = None
        if loopback:
            limits = httpx2.Limits(max_connections=None, keepalive_expiry=2.0)
            http = httpx2.AsyncClient(trust_env=False, verify=False, timeout=timeout, limits=limits)
        self._client = openai.AsyncOpenAI(
            # An empty key would be looked up in the environment, and sent to whatever server.
            api_key=api_key or "none",
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            http_client=http,
        )

    def move(self, base_url: str) -> None:
        """The server is at another address from now on."""
        self._client.base_url = base_url

    async def post(self, content: bytes, limit: int) -> Reply:
        """Send one request; the reply once its head is there. Its body may be `limit` bytes."""
        stream = await self._client.post(
            "/chat/completions",
            content=content,
            cast_to=object,
            options={"headers": {"Content-Type": "application/json"}},
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        return Reply(stream.response, limit)

    def failure(self, problem: Exception) -> Failure:
        return Failure(problem)

    async def aclose(self) -> None:
        await self._client.close()


class Reply:
    """A body as it arrives. The SDK's own stream would hide what is no event, and parse twice."""

    def __init__(self, response: httpx2.Response, limit: int) -> None:
        self._response = response
        self._limit = limit
        self._head = bytearray()
        self._counted = 0

    @property
    def eventless(self) -> bytes:
        """The body, for one that held no event at all."""
        return bytes(self._head)

    async def events(self) -> AsyncIterator[Event]:
        """Each event in order, one that the end of the body leaves unfinished included. Raises
        `TooLong`, and what the transport raises."""
        body = httpx2.Response(
            200,
            headers={"content-type": "text/event-stream; charset=utf-8"},
            content=self._bytes(),
            request=self._response.request,
        )
        async for event in httpx2.EventSource(body, max_event_size=self._limit):
            self._head.clear()
            yield event.event, event.data

    async def _bytes(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.aiter_bytes():
            self._counted += len(chunk)
            if self._counted > self._limit:
                raise TooLong(self._limit)
            self._head += chunk
            yield chunk
        # Some servers end without the blank line that ends an event.
        yield b"\n\n"

    async def aclose(self) -> None:
        await self._response.aclose()


class Failure:
    """What an exception of the SDK, or of the layers below it, says."""

    def __init__(self, problem: Exception) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body: object = None
        self.passing = isinstance(
            problem, openai.APIError | httpx2.HTTPError | ssl.SSLError | OSError | TooLong
        )
        cause = problem
        if isinstance(problem, openai.APIConnectionError) and isinstance(
            problem.__cause__, Exception
        ):
            cause = problem.__cause__
        self.text = str(cause) or type(cause).__name__
        if isinstance(problem, openai.APIStatusError):
            self.status = problem.status_code
            self.headers = {name.lower(): value for name, value in problem.response.headers.items()}
            self.body = _body_of(problem.response)


def _body_of(response: httpx2.Response) -> object:
    """The body of a refusal: JSON, else text; nothing of an HTML page."""
    text = response.text.strip()
    try:
        return read_json(text)
    except ValueError:
        return "" if text.startswith("<") else text
