"""The `openai` SDK as the exchange uses it. Importing this module imports the SDK, which takes
half a second of CPU: it is done in a worker thread, when a provider that needs it is first used.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import httpx2
import openai

from teaagentd.providers.answer import read_json
from teaagentd.providers.wire import Pieces

Event = tuple[str, str]
"""The name and the data of one server-sent event."""


class TooLong(Exception):
    """The body passed the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the answer is longer than {limit} bytes")


class SdkClient:
    """A client for one server. `loopback`: no proxy, no TLS, and a connection for each request:
    llama.cpp offers to keep them, and at times closes one right after a streamed answer."""

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

    def move(self, base_url: str) -> None:
        """The server is at another address from now on."""
        self._client.base_url = base_url

    async def post(self, content: bytes | Pieces, max_bytes: int) -> Reply:
        """Send `content`, and return when the headers of a good answer are there."""
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if isinstance(content, Pieces):
            headers["Content-Length"] = str(content.length)
        stream = await self._client.post(
            "/chat/completions",
            cast_to=object,
            content=content,
            options={"headers": headers},
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        return Reply(stream.response, max_bytes)

    def failure(self, problem: Exception) -> Failure:
        """What an exception of `post`, or of the reply's events, says."""
        return Failure(problem)

    async def aclose(self) -> None:
        await self._client.close()


class Reply:
    """The body of a good answer, read once, as events. The SDK's own stream would hide what is
    no event, and parse each one slowly."""

    def __init__(self, response: httpx2.Response, max_bytes: int) -> None:
        self._response = response
        self._body = _Body(response.stream, max_bytes)
        response.stream = self._body
        # Whatever the server calls it: a body that is not a stream of events yields none, and
        # is then looked at as a whole.
        response.headers["content-type"] = "text/event-stream"
        response.encoding = "utf-8"

    async def events(self) -> AsyncIterator[Event]:
        """The events in order; an unfinished last one counts. Raises `TooLong` and what the
        connection raises."""
        source = httpx2.EventSource(self._response, max_event_size=None)
        async for event in source:
            self._body.stop_keeping()
            yield event.event, event.data

    @property
    def eventless(self) -> bytes:
        """The body as far as it was read, when no event was in it."""
        return b"".join(self._body.kept)

    async def aclose(self) -> None:
        await self._response.aclose()


class _Body(httpx2.AsyncByteStream):
    """A body that is kept while no event was seen in it, and that ends with a blank line, so
    that a last event without one is not lost."""

    def __init__(self, inner: object, max_bytes: int) -> None:
        assert isinstance(inner, httpx2.AsyncByteStream)
        self._inner = inner
        self._limit = self._left = max_bytes
        self._keeping = True
        self.kept: list[bytes] = []

    def stop_keeping(self) -> None:
        if self._keeping:
            self._keeping = False
            self.kept.clear()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._left -= len(piece)
            if self._left < 0:
                raise TooLong(self._limit)
            if self._keeping:
                self.kept.append(piece)
            yield piece
        yield b"\n\n"

    async def aclose(self) -> None:
        await self._inner.aclose()


class Failure:
    """What an exception of the SDK, or of the layers below it, says."""

    def __init__(self, problem: Exception) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body: object = None
        self.passing = isinstance(
            problem, openai.APIError | httpx2.HTTPError | ssl.SSLError | OSError | TooLong
        )
        """Whether another try may go better."""
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
