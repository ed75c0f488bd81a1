"""A scripted, strict model server: OpenAI chat completions that refuse illegal messages.

In a process of its own (the first line of its output is the port):

    python -m tests.strict_server --port 0 [--script FILE] [--log FILE] [--latency-ms 50]
        [--chunk-ms 0] [--chunks 20] [--key KEY] [--keep 100000] [--lean] [--with-stdin]

From a test: `with ServerProcess(chunks=20) as server:` (own process, ends with the test), or,
inside an event loop, `async with StrictServer(replies=[...]) as server:`. Both have `url` (a
`base_url` for adapters), `requests`, `script(replies)` and `stats`.

Options
  --latency-ms   silence between a request and the first byte of its answer
  --chunk-ms     silence between two chunks (0: they leave in successive turns of the event loop)
  --chunks       content chunks per answer
  --key          the bearer key to demand; any other is answered 401
  --log          file to which each request is appended at once, one JSON object per line: it
                 survives a kill
  --keep         requests kept in memory for GET /requests, the newest ones
  --lean         no parsing, checking or keeping: a fixed answer of `chunks` chunks, for benchmarks
  --wants-reasoning   refuse a call that is replayed without its reasoning_content
  --with-stdin   end when standard input closes, that is, with the parent

Routes: POST /v1/chat/completions; POST /v1/messages (the same script and marks in Anthropic's
dialect; a reply may have a `signature` and `redacted` thoughts); GET /requests[?since=N] →
[{n, at, refused, status, aborted, body}]; GET /stats → {requests, illegal, live, aborted}; POST
/script (a JSON array of replies, replaces what is left of the script); POST /reset (forgets
requests and script); GET /v1/models.

Without a script each answer is `echo: ` and what the user said since the last answer (several
messages are joined by ` | `), then `; results: ` and the tool results of this round, if any.
Marks in the user's text ask for more, once per message:
  [[tool:NAME]] [[tool:NAME {"a": 1}]]   a call first (several marks: several calls), then the text
  [[beside:TEXT]]   text beside those calls      [[wait:MS]]   that long before the first byte
  [[status:N]]      an error of that status      [[hang]]      headers, then silence
  [[say:TEXT]]      exactly TEXT as the answer   [[chunks:N]] [[chunk-ms:N]]   as the options
A request whose `response_format` holds a schema gets `{"action": "answer", "text": …}` around
the text, and `{"action": …, "arguments": …}` for the first mark.

A script is a list of replies. A request takes the first one left that fits; when none fits it is
answered as without a script. Each is a string (an answer) or an object with any of:
  match      a substring of the last message's content; without it the reply fits every request
  times      how many requests it serves (1); 0 for all that come
  text, reasoning, calls ([{id, name, arguments: object or raw text}]), finish, usage (null: none)
  chunks, latency_ms, chunk_ms      as the options
  status, headers, body             an error or any plain answer; body is text or JSON
  events     the `data:` payloads to send instead (objects or raw text); [DONE] follows, unless
             `done` is false
  raw        the whole body, sent as it is, of `content_type` (text/event-stream)
  write      send the body in pieces of so many bytes, each a write of its own
  stall      after so many chunks or events fall silent; `ping_s`: comments are sent meanwhile
  cut        after so many chunks or events (of a raw body: bytes) close without an end
  hang       true: not even headers
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httptools
import orjson

from tests import strict_dialect, strict_messages
from tests.strict_dialect import Reply, echo, illegal, pictures_of, pieces, text_of, whole


@dataclass(slots=True)
class Record:
    """One request as it was received. `refused` is why it was illegal, or None."""

    n: int
    at: float
    body: dict[str, Any]
    headers: dict[str, str]
    refused: str | None = None
    status: int | None = None
    aborted: bool = False
    """The client closed the connection before the answer was whole."""

    def as_json(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "at": self.at,
            "refused": self.refused,
            "status": self.status,
            "aborted": self.aborted,
            "body": self.body,
        }


@dataclass(slots=True, kw_only=True)
class Options:
    chunks: int = 20
    latency_ms: float = 0
    chunk_ms: float = 0
    key: str | None = None
    log: str | None = None
    keep: int = 100_000
    lean: bool = False
    refuse: dict[str, str] = field(default_factory=dict)
    """Fields of a request that are refused, and with which words."""
    wants_reasoning: bool = False
    """Refuse a call that is replayed without its `reasoning_content`; else one that has it."""
    blind: str | None = None
    """The words in which every picture is refused."""


@dataclass(slots=True)
class State:
    """What the server knows: its script, what it was asked, how it went."""

    options: Options
    replies: list[dict[str, Any]] = field(default_factory=list)
    requests: deque[Record] = field(default_factory=deque)
    count: int = 0
    illegal: int = 0
    live: int = 0
    aborted: int = 0
    log: int | None = None

    def load(self, replies: Sequence[Reply]) -> None:
        self.replies = [
            {"times": 1, **({"text": reply} if isinstance(reply, str) else reply)}
            for reply in replies
        ]

    def next_reply(self, messages: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The first scripted reply that fits, used up once."""
        last = text_of(messages[-1].get("content")) if messages else ""
        for index, reply in enumerate(self.replies):
            if reply.get("match", "") in last:
                if reply["times"]:
                    reply["times"] -= 1
                    if not reply["times"]:
                        del self.replies[index]
                return reply
        return None

    def keep(self, record: Record) -> None:
        self.requests.append(record)
        while len(self.requests) > self.options.keep:
            self.requests.popleft()
        if self.log is not None:
            os.write(self.log, orjson.dumps(record.as_json()) + b"\n")

    def stats(self) -> dict[str, int]:
        return {
            "requests": self.count,
            "illegal": self.illegal,
            "live": self.live,
            "aborted": self.aborted,
        }


class Connection(asyncio.Protocol):
    """One client's connection: requests are parsed, answered by a task, and noticed when cut."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Task[None] | None = None
        self.url = b""
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.messages = False
        """Whether the request in hand is in the dialect of the Messages API."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.cancel()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_message_begin(self) -> None:
        self.url, self.headers = b"", {}
        self.body.clear()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        parts = urlsplit(self.url.decode("latin-1"))
        if parts.path.endswith(("/chat/completions", "/v1/messages")):
            self.messages = parts.path.endswith("/messages")
            self.answer = asyncio.get_running_loop().create_task(self.complete(bytes(self.body)))
            return
        try:
            status, answer = self.control(parts.path, parse_qs(parts.query))
        except (ValueError, TypeError) as problem:
            status, answer = 400, {"error": str(problem)}
        self.plain(status, orjson.dumps(answer))

    def control(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        """The routes that tests use."""
        state = self.state
        if path == "/requests":
            since = int(query.get("since", ["0"])[0])
            return 200, [record.as_json() for record in state.requests if record.n >= since]
        if path == "/stats":
            return 200, state.stats()
        if path == "/script":
            state.load(orjson.loads(self.body))
            return 200, {}
        if path == "/reset":
            state.replies.clear()
            state.requests.clear()
            return 200, {}
        if path.endswith("/models"):
            if not self.has_key():
                return 401, {"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}
            return 200, {"object": "list", "data": [{"id": "strict", "object": "model"}]}
        return 404, {"error": {"message": f"no route {path}"}}

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        if not self.transport.is_closing():
            self.transport.write(data)

    def plain(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        lines = [f"HTTP/1.1 {status} Status", f"content-length: {len(body)}"]
        given = {"content-type": "application/json", **(headers or {})}
        lines += [f"{name}: {value}" for name, value in given.items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def complete(self, raw: bytes) -> None:
        """Answer one completion request; cancelled when the client goes away."""
        state = self.state
        state.count += 1
        state.live += 1
        record = Record(state.count, time.time(), {}, self.headers)
        try:
            if state.options.lean:
                await self.stream({"text": "word " * state.options.chunks}, {"stream": True})
            else:
                await self.checked(raw, record)
        except asyncio.CancelledError:
            record.aborted = True
            state.aborted += 1
            if asyncio.current_task() and not self.transport_closing():
                raise
        finally:
            state.live -= 1

    def transport_closing(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def unwanted(self, body: dict[str, Any]) -> str | None:
        """What this server will not have in a request that is legal elsewhere."""
        options = self.state.options
        for name, words in options.refuse.items():
            if name in body:
                return words
        if options.blind and pictures_of(body):
            return options.blind
        if self.messages:
            return None
        calling = [message for message in body["messages"] if message.get("tool_calls")]
        if options.wants_reasoning:
            if any("reasoning_content" not in message for message in calling):
                return "The reasoning_content in the thinking mode must be passed back."
        elif any("reasoning_content" in message for message in calling):
            return "messages: extra field reasoning_content is not permitted"
        return None

    async def checked(self, raw: bytes, record: Record) -> None:
        state = self.state
        try:
            record.body = orjson.loads(raw)
            record.refused = (
                strict_messages.illegal(record.body)
                if self.messages
                else illegal(record.body.get("messages"))
            )
        except (ValueError, AttributeError, TypeError) as problem:
            record.refused = f"the body cannot be read: {problem}"
        if record.refused:
            state.illegal += 1
            record.status = 400
            state.keep(record)
            self.refuse(400, record.refused, "invalid_request_error")
            return
        if not self.has_key():
            record.status = 401
            state.keep(record)
            given = self.given_key()
            self.refuse(401, f"Incorrect API key provided: {given}", "invalid_api_key")
            return
        if refused := self.unwanted(record.body):
            record.status = 400
            state.keep(record)
            self.refuse(400, refused, "invalid_request_error")
            return
        chat = strict_messages.as_chat(record.body) if self.messages else record.body
        reply = state.next_reply(chat["messages"]) or echo(chat)
        record.status = reply.get("status", 200)
        state.keep(record)
        await self.stream(reply, record.body)

    def has_key(self) -> bool:
        key = self.state.options.key
        return not key or self.given_key() == key

    def given_key(self) -> str:
        if self.messages and "x-api-key" in self.headers:
            return self.headers["x-api-key"]
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    def refuse(self, status: int, message: str, code: str) -> None:
        error = {"message": message, "type" if self.messages else "code": code}
        answer = {"type": "error", "error": error} if self.messages else {"error": error}
        self.plain(status, orjson.dumps(answer))

    async def stream(self, reply: dict[str, Any], body: dict[str, Any]) -> None:
        """Send one reply, piece by piece."""
        options = self.state.options
        if latency := reply.get("latency_ms", options.latency_ms):
            await asyncio.sleep(latency / 1000)
        if reply.get("hang"):
            await self.silence(reply)
        if "body" in reply or reply.get("status", 200) >= 300:
            content = reply.get("body", "")
            data = content.encode() if isinstance(content, str) else orjson.dumps(content)
            self.plain(reply.get("status", 200), data, reply.get("headers"))
            return
        if not body.get("stream") and "raw" not in reply:
            form = strict_messages.whole if self.messages else whole
            self.plain(200, orjson.dumps(form(reply, body)))
            return
        kind = reply.get("content_type", "text/event-stream")
        self.send(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: "
            + kind.encode()
            + b"\r\n\r\n"
        )
        pause = reply.get("chunk_ms", options.chunk_ms) / 1000
        form = strict_messages if self.messages else strict_dialect
        sent = form.events(reply, body, options.chunks)
        for index, piece in enumerate(pieces(reply, sent, form.written)):
            if index == reply.get("stall"):
                await self.silence(reply)
            if index == reply.get("cut") and "raw" not in reply:
                self.close()
                return
            if index:
                await asyncio.sleep(pause)
            self.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        if reply.get("stall") is not None:
            await self.silence(reply)
        if reply.get("cut") is not None:
            self.close()
            return
        self.send(b"0\r\n\r\n")

    async def silence(self, reply: dict[str, Any]) -> None:
        """Say nothing (or only comments) until the client goes away."""
        while True:
            await asyncio.sleep(reply.get("ping_s", 3600))
            self.send(b"8\r\n: ping\n\n\r\n")


class StrictServer:
    """The server inside the caller's event loop, as an async context manager."""

    def __init__(self, replies: Sequence[Reply] = (), **options: Any) -> None:
        self.state = State(Options(**options))
        self.state.load(replies)
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def requests(self) -> list[Record]:
        return list(self.state.requests)

    @property
    def stats(self) -> dict[str, int]:
        return self.state.stats()

    def script(self, replies: Sequence[Reply]) -> None:
        self.state.load(replies)

    def _connect(self) -> Connection:
        connection = Connection(self.state)
        self._connections.add(connection)
        return connection

    async def start(self, port: int = 0) -> None:
        if self.state.options.log:
            self.state.log = os.open(
                self.state.options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
            )
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, "127.0.0.1", port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            if connection.answer is not None:
                connection.answer.cancel()
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)
        if self.state.log is not None:
            os.close(self.state.log)
            self.state.log = None

    async def __aenter__(self) -> StrictServer:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


class ServerProcess:
    """The server in a process of its own; it ends with this object or with this process."""

    def __init__(self, replies: Sequence[Reply] = (), *, port: int = 0, **options: Any) -> None:
        self._arguments = ["--port", str(port), "--with-stdin"]
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            self._arguments += [flag] if value is True else [flag, str(value)]
        self._replies = list(replies)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def requests(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("/requests")
        return found

    @property
    def stats(self) -> dict[str, int]:
        found: dict[str, int] = self._call("/stats")
        return found

    def script(self, replies: Sequence[Reply]) -> None:
        self._call("/script", orjson.dumps(list(replies)))

    def reset(self) -> None:
        self._call("/reset", b"")

    def _call(self, path: str, body: bytes | None = None) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, data=body, timeout=10) as answer:
            return orjson.loads(answer.read())

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.strict_server", *self._arguments],
            cwd=Path(__file__).resolve().parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the strict server did not start")
        self.port = int(line)
        if self._replies:
            self.script(self._replies)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()


async def _serve(server: StrictServer, port: int, with_stdin: bool) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await server.start(port)
    print(server.port, flush=True)
    if with_stdin:
        loop.add_reader(0, lambda: ended.set() if not os.read(0, 4096) else None)
    await ended.wait()
    await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.strict_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path)
    parser.add_argument("--log")
    parser.add_argument("--latency-ms", type=float, default=0)
    parser.add_argument("--chunk-ms", type=float, default=0)
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--key")
    parser.add_argument("--keep", type=int, default=100_000)
    parser.add_argument("--lean", action="store_true")
    parser.add_argument("--wants-reasoning", action="store_true")
    parser.add_argument("--with-stdin", action="store_true")
    given = vars(parser.parse_args())
    port, script = given.pop("port"), given.pop("script")
    with_stdin = given.pop("with_stdin")
    server = StrictServer(json.loads(script.read_text()) if script else (), **given)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(server, port, with_stdin))


if __name__ == "__main__":
    main()
