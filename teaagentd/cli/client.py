"""A client of the daemon's control socket."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import httpx2
import orjson

from teaagentd.cli.exits import DISK, FAILED, NO_DAEMON, TRY_LATER, Failure
from teaagentd.transcript import clean_text
from teaagentd.types import OutboundKind, SessionKey

_TIMEOUT_S = 30.0
"""For an answer to a request; one that waits by itself gets that much more."""

_LONG_S = 600.0
"""More, for what goes through everything that is kept."""

_SILENCE_S = 120.0
"""After which an event stream, where something is said every 30 s, is taken for dead."""

_LONGEST_PATH = 100
"""Bytes of a socket's path that every system takes."""

Payload = Mapping[str, object]


class NoDaemon(Failure):
    """Nothing listens on the socket, or it went away before it answered."""

    def __init__(self, socket: Path) -> None:
        super().__init__(
            f"no daemon is running here (nothing listens on {socket}); start one with "
            "`teaagentd run`",
            NO_DAEMON,
        )


class Refused(Failure):
    """The daemon's refusal of a request (RFC 9457)."""

    def __init__(self, status: int, title: str, detail: str, kind: str) -> None:
        super().__init__(detail or title or f"the daemon answered {status}", _code(status, kind))
        self.status = status


def _code(status: int, kind: str) -> int:
    if kind.endswith("store-unavailable"):
        return DISK
    return TRY_LATER if status in (429, 503) else FAILED


@dataclass(frozen=True, kw_only=True, slots=True)
class Posted:
    """An accepted message."""

    id: int
    session_key: str
    duplicate: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A text of the assistant; `raw` is the whole object as the daemon gave it."""

    id: int
    turn_id: str | None
    kind: OutboundKind
    message_ids: tuple[int, ...]
    content: str
    raw: Payload = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One server-sent event: `phase`, `delta`, `reset` or `reply`."""

    name: str
    data: Payload

    def text(self, key: str) -> str:
        """A field as text, empty if it has none."""
        value = self.data.get(key)
        return value if isinstance(value, str) else ""


class Client:
    """Speaks to the daemon of one home. Every method raises `NoDaemon` when there is none and
    `Refused` when it says no."""

    def __init__(self, socket: Path, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        """`transport` leads to a daemon that is not behind a socket."""
        self.socket = socket
        self._transport = transport
        self._folder: int | None = None
        self._made: httpx2.AsyncClient | None = None

    def _http(self) -> httpx2.AsyncClient:
        """Made when it is first needed: a long path leads by a folder that a first start makes."""
        if self._made is None:
            self._made = httpx2.AsyncClient(
                transport=self._transport
                or httpx2.AsyncHTTPTransport(uds=self._short_path(), verify=False),
                base_url="http://teaagentd",
                timeout=_TIMEOUT_S,
                trust_env=False,
            )
        return self._made

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._made is not None:
            await self._made.aclose()
        if self._folder is not None:
            os.close(self._folder)

    def _short_path(self) -> str:
        """The socket's path; a long one by way of its open folder, where the system allows."""
        path = str(self.socket)
        if len(os.fsencode(path)) <= _LONGEST_PATH or not sys.platform.startswith("linux"):
            return path
        try:
            self._folder = os.open(self.socket.parent, os.O_PATH | os.O_DIRECTORY)
        except OSError:
            raise NoDaemon(self.socket) from None
        return f"/proc/self/fd/{self._folder}/{self.socket.name}"

    async def post(
        self,
        key: SessionKey,
        content: str,
        *,
        external_id: str | None = None,
        sender_id: str | None = None,
    ) -> Posted:
        """Have a message accepted. With the same `external_id` it may be posted again."""
        body: dict[str, object] = {
            "channel": clean_text(key.channel),
            "chat_id": clean_text(key.chat_id),
            # What is typed or given may be no UTF-8.
            "content": clean_text(content),
        }
        if external_id is not None:
            body["external_id"] = external_id
        if sender_id is not None:
            body["sender_id"] = sender_id
        answer = _object(await self._request("POST", "/v1/messages", body=body))
        return Posted(
            id=_number(answer, "id"),
            session_key=str(answer.get("session_key")),
            duplicate=bool(answer.get("duplicate")),
        )

    async def replies(self, key: SessionKey, *, after: int, wait_s: float = 0) -> list[Reply]:
        """The texts with an id above `after`, oldest first; waits up to `wait_s` for one."""
        answer = await self._request(
            "GET",
            "/v1/replies",
            query={"session_key": str(key), "after": str(after), "wait": f"{wait_s:g}"},
            wait_s=wait_s,
        )
        return [_reply(_object(item)) for item in answer] if isinstance(answer, list) else []

    async def status(self) -> Payload:
        """What `GET /v1/status` says."""
        return _object(await self._request("GET", "/v1/status"))

    async def health(self) -> None:
        """Raises `Refused` if what is written now would not be kept."""
        await self._request("GET", "/healthz")

    async def turn(self, turn_id: str) -> Payload:
        """What is known of a turn."""
        return _object(await self._request("GET", f"/v1/turns/{quote(turn_id, safe='')}"))

    async def get(self, path: str, **query: str) -> Payload:
        """What `GET path` answers."""
        return _object(await self._request("GET", path, query=query))

    async def act(self, method: str, path: str, body: Payload | None = None) -> Payload:
        """Have something done; what is answered. It may take a while."""
        return _object(await self._request(method, path, body=body, wait_s=_LONG_S))

    async def stop_session(self, key: SessionKey) -> Payload:
        """End what runs in a session."""
        path = f"/v1/sessions/{quote(str(key), safe='')}/stop"
        return _object(await self._request("POST", path, body={}))

    async def shut_down(self) -> tuple[str, ...]:
        """Ask the daemon to end. Returns what it waits for, in words."""
        answer = _object(await self._request("POST", "/v1/shutdown", body={}))
        waits_for = answer.get("waits_for")
        return tuple(map(str, waits_for)) if isinstance(waits_for, list) else ()

    @asynccontextmanager
    async def events(self, key: SessionKey) -> AsyncIterator[AsyncIterator[Event]]:
        """The session's events from the time of entering on; ends when the daemon does."""
        timeout = httpx2.Timeout(_TIMEOUT_S, read=_SILENCE_S)
        query = {"session_key": str(key)}
        try:
            async with self._http().sse("/v1/events", params=query, timeout=timeout) as source:
                if source.response.is_error:
                    await source.response.aread()
                    raise _refusal(source.response)
                yield _events(source)
        except httpx2.TransportError:
            raise NoDaemon(self.socket) from None

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Payload | None = None,
        query: Mapping[str, str] | None = None,
        wait_s: float = 0,
    ) -> object:
        try:
            response = await self._http().request(
                method,
                path,
                params=query,
                content=None if body is None else orjson.dumps(body),
                headers={"content-type": "application/json"} if body is not None else None,
                timeout=_TIMEOUT_S + wait_s,
            )
        except httpx2.ReadTimeout:
            raise Failure(
                f"the daemon took longer than {_TIMEOUT_S + wait_s:.0f} s to answer", TRY_LATER
            ) from None
        except httpx2.TransportError:
            raise NoDaemon(self.socket) from None
        if response.is_error:
            raise _refusal(response)
        return orjson.loads(response.content) if response.content else {}


async def _events(source: httpx2.EventSource) -> AsyncIterator[Event]:
    async for event in source:
        if event.data:
            yield Event(name=event.event, data=_object(orjson.loads(event.data)))


def _refusal(response: httpx2.Response) -> Refused:
    try:
        problem = _object(orjson.loads(response.content))
    except (orjson.JSONDecodeError, Failure):
        problem = {}
    return Refused(
        response.status_code,
        title=str(problem.get("title") or ""),
        detail=str(problem.get("detail") or ""),
        kind=str(problem.get("type") or ""),
    )


def _reply(item: Payload) -> Reply:
    ids = item.get("message_ids")
    kind = item.get("kind")
    turn_id = item.get("turn_id")
    return Reply(
        id=_number(item, "id"),
        turn_id=turn_id if isinstance(turn_id, str) else None,
        kind="interim" if kind == "interim" else "notice" if kind == "notice" else "final",
        message_ids=tuple(n for n in ids if isinstance(n, int)) if isinstance(ids, list) else (),
        content=str(item.get("content") or ""),
        raw=item,
    )


def _object(value: object) -> Payload:
    if not isinstance(value, Mapping):
        raise Failure("the daemon's answer cannot be understood; is it of another version?")
    return value


def _number(item: Payload, key: str) -> int:
    value = item.get(key)
    if not isinstance(value, int):
        raise Failure(f"the daemon's answer has no {key}; is it of another version?")
    return value
