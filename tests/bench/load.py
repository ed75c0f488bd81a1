"""The load: sessions that post a message, wait for its reply, and post the next.

    python -m tests.bench.load SOCKET [--sessions 1] [--messages 1] [--at-once 1]
        [--prefix NAME] [--characters 40]

A process of its own on bare sockets, so that it takes little of the machine and nothing of the
daemon's figures. Prints one JSON object: elapsed_s and, for each message, the milliseconds from
the post to the moment its reply was here.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import time
from dataclasses import dataclass, field

_WAIT_S = 60


@dataclass(slots=True)
class Session:
    """One client on one kept-alive connection: post, read the replies, post again."""

    path: str
    chat: str
    left: int
    text: str
    connection: socket.socket = field(init=False)
    buffer: bytes = b""
    after: int = 0
    posted: int | None = None
    started: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)

    def open(self) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.connect(self.path)
        self.post()

    def post(self) -> None:
        self.left -= 1
        self.posted = None
        body = json.dumps({"chat_id": self.chat, "content": self.text}).encode()
        head = (
            "POST /v1/messages HTTP/1.1\r\nhost: teaagentd\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self.started = time.perf_counter()
        self.connection.sendall(head.encode() + body)

    def listen(self) -> None:
        target = f"/v1/replies?session_key=api:{self.chat}&after={self.after}&wait={_WAIT_S}"
        self.connection.sendall(f"GET {target} HTTP/1.1\r\nhost: teaagentd\r\n\r\n".encode())

    def on_readable(self) -> bool:
        """Take what has come and say the next thing; True when this session is over."""
        data = self.connection.recv(65536)
        if not data:
            raise SystemExit(f"the daemon closed the connection of {self.chat}")
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        status = int(head[9:12])
        length = next(
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        if len(rest) < length:
            return False
        self.buffer = rest[length:]
        if status not in (200, 202):
            raise SystemExit(f"the daemon answered {status}: {rest[:length].decode()}")
        return self._answered(json.loads(rest[:length]))

    def _answered(self, body: object) -> bool:
        if self.posted is None:
            assert isinstance(body, dict)
            self.posted = body["id"]
            self.listen()
            return False
        assert isinstance(body, list)
        here = any(self.posted in reply["message_ids"] for reply in body)
        if body:
            self.after = body[-1]["id"]
        if not here:
            self.listen()
            return False
        self.latencies_ms.append((time.perf_counter() - self.started) * 1000)
        if self.left:
            self.post()
            return False
        self.connection.close()
        return True


def run(sessions: list[Session], at_once: int) -> float:
    """Serve `at_once` sessions at a time until all are over; the seconds it took."""
    waiting = list(reversed(sessions))
    live = 0
    started = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        while waiting or live:
            while waiting and live < at_once:
                session = waiting.pop()
                session.open()
                selector.register(session.connection, selectors.EVENT_READ, session)
                live += 1
            events = selector.select(_WAIT_S)
            if not events:
                raise SystemExit(f"nothing came for {_WAIT_S} s")
            for key, _ in events:
                descriptor = key.fd
                if key.data.on_readable():
                    selector.unregister(descriptor)
                    live -= 1
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.load", description=__doc__)
    parser.add_argument("socket")
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--messages", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--prefix", default="bench")
    parser.add_argument("--characters", type=int, default=40)
    given = parser.parse_args()
    text = ("Please tell me something of use about tea. " * (given.characters // 40 + 1))[
        : given.characters
    ].strip()
    sessions = [
        Session(given.socket, f"{given.prefix}-{n}", given.messages, text)
        for n in range(given.sessions)
    ]
    elapsed_s = run(sessions, given.at_once)
    latencies = [ms for session in sessions for ms in session.latencies_ms]
    print(json.dumps({"elapsed_s": elapsed_s, "latencies_ms": latencies}))


if __name__ == "__main__":
    main()
