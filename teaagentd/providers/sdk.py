"""The SDKs of the vendors as the exchange uses them: a request out, the events of its answer in.

Importing one of the modules that use this one imports an SDK, which takes half a second of CPU:
it is done in a worker thread, when a provider that needs it is first used.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import httpx2

from teaagentd.providers.calls import read_json
from teaagentd.providers.wire import Pieces

Event = tuple[str, str]
"""The name and the data of one server-sent event."""
HEADERS = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
"""Beside those of the SDK."""


class TooLong(Exception):
    """The body passed the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the answer is longer than {limit} bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """What an SDK raises: of any kind, when there is no connection, when the server refuses."""

    any: type[Exception]
    connection: type[Exception]
    status: type[Exception]


class Sdk(Protocol):
    """One vendor's client. `post` returns when the headers of a good answer are there, and raises
    what the SDK raises."""

    errors: Errors

    async def post(self, content: bytes | Pieces, headers: dict[str, str]) -> httpx2.Response: ...

    def move(self, base_url: str) -> None: ...

    async def aclose(self) -> None: ...


class SdkClient:
    """A client for one server."""

    def __init__(self, sdk: Sdk) -> None:
        self._sdk = sdk

    def move(self, base_url: str) -> None:
        """The server is at another address from now on."""
        self._sdk.move(base_url)

    async def post(self, content: bytes | Pieces, max_bytes: int) -> Reply:
        """Send `content`, and return when the headers of a good answer are there."""
        headers = dict(HEADERS)
        if isinstance(content, Pieces):
            headers["Content-Length"] = str(content.length)
        return Reply(await self._sdk.post(content, headers), max_bytes)

    def failure(self, problem: Exception) -> Failure:
        """What an exception of `post`, or of the reply's events, says."""
        return Failure(problem, self._sdk.errors)

    async def aclose(self) -> None:
        await self._sdk.aclose()


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

    def __init__(self, problem: Exception, errors: Errors) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body: object = None
        self.passing = isinstance(
            problem, errors.any | httpx2.HTTPError | ssl.SSLError | OSError | TooLong
        )
        """Whether another try may go better."""
        cause = problem
        if isinstance(problem, errors.connection) and isinstance(problem.__cause__, Exception):
            cause = problem.__cause__
        self.text = str(cause) or type(cause).__name__
        self.unsent = isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout)
        """Whether the server never saw the request."""
        response = getattr(problem, "response", None)
        if isinstance(problem, errors.status) and isinstance(response, httpx2.Response):
            self.status = response.status_code
            self.headers = {name.lower(): value for name, value in response.headers.items()}
            self.body = _body_of(response)


def _body_of(response: httpx2.Response) -> object:
    """The body of a refusal: JSON, else text; nothing of an HTML page."""
    text = response.text.strip()
    try:
        return read_json(text)
    except ValueError:
        return "" if text.startswith("<") else text
