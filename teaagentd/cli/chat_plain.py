"""Chat over a pipe: each line is a message, answered before the next one is sent."""

from __future__ import annotations

import signal
import sys

import anyio
import orjson

from teaagentd.cli.client import Client, NoDaemon, Payload, Refused, Reply
from teaagentd.cli.console import put, say
from teaagentd.cli.conversation import Conversation, last_reply_id
from teaagentd.cli.exits import FAILED, INTERRUPTED, OK, exit_code
from teaagentd.cli.stdin import lines
from teaagentd.types import NOT_BEGUN, Phase, SessionKey

_QUIET = frozenset({Phase.CONTEXT, Phase.DONE, Phase.NOTICE})


class Progress:
    """The view of a pipe: what goes on is told on standard error, a line for each change."""

    def __init__(self) -> None:
        self._last = ""
        self.hindrance = ""
        """Why no turn can begin; empty while none tried in vain."""

    def phase(self, turn_id: str, phase: str, detail: str) -> None:
        if phase == Phase.WAITING and detail.startswith(NOT_BEGUN):
            self.hindrance = detail.removeprefix(NOT_BEGUN)
        elif phase not in (Phase.DONE, Phase.CONTEXT):
            self.hindrance = ""
        line = f"{phase}: {detail}" if detail else phase
        if phase in _QUIET:
            return
        if line != self._last:
            say(f"· {line}")
        self._last = line

    def delta(self, turn_id: str, text: str) -> None:
        pass

    def reset(self, turn_id: str) -> None:
        say("· the answer starts over")

    def reply(self, reply: Reply) -> None:
        if reply.kind == "notice":
            say(f"· {reply.content}")

    def connection(self, connected: bool) -> None:
        say("· the daemon is there again" if connected else "· waiting for the daemon")


async def chat_on_pipe(client: Client, key: SessionKey) -> int:
    """Answer every line of standard input on standard output, in order. The first interrupt stops
    the turn and reads no further, the second leaves at once. Returns the exit code: that of the
    last message that was refused or whose turn failed, if any was."""
    conversation = Conversation(client, key, Progress(), seen=await last_reply_id(client, key))
    code = OK
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(conversation.follow)
        interrupts = Interrupts(client, key)
        await tasks.start(interrupts.watch, tasks.cancel_scope)
        if sys.stdin is not None:
            async for line in lines(sys.stdin.fileno()):
                if not line.strip():
                    continue
                try:
                    posted = await conversation.post(line)
                except Refused as refusal:
                    say(f"teaagentd: {refusal}")
                    code = exit_code(refusal)
                    continue
                code = await _put_reply(client, await conversation.answer(posted)) or code
                if interrupts.seen:
                    break
        tasks.cancel_scope.cancel()
    return INTERRUPTED if interrupts.seen else code


async def _put_reply(client: Client, reply: Reply) -> int:
    try:
        turn = await turn_of(client, reply)
    except NoDaemon:
        # It is away just now, which the conversation waits out; the answer is here.
        turn = {}
    if turn.get("outcome") == "stopped":
        # As the person asked, from here or elsewhere.
        put(reply.content)
        return OK
    return put_answer(reply, turn)


async def turn_of(client: Client, reply: Reply) -> Payload:
    """What the daemon says of the turn that a text comes from; nothing of a command's."""
    if reply.turn_id is None:
        return {}
    try:
        return await client.turn(reply.turn_id)
    except Refused:
        return {}


def put_answer(reply: Reply, turn: Payload, *, as_json: bool = False) -> int:
    """Print an answer: that of a turn which failed in one line on standard error. With `as_json`
    the whole result is printed, too. Returns the exit code."""
    outcome = turn.get("outcome")
    failed = reply.kind == "final" and outcome not in (None, "answered")
    if as_json:
        put(orjson.dumps({**reply.raw, "turn": turn or None}).decode())
    if failed:
        say(f"teaagentd: {' '.join(reply.content.split())}")
    elif not as_json:
        put(reply.content)
    return FAILED if failed else OK


class Interrupts:
    """Ctrl-C for a client without a keyboard of its own: stop the turn, then leave."""

    def __init__(self, client: Client, key: SessionKey) -> None:
        self._client = client
        self._key = key
        self.seen = 0

    async def watch(
        self,
        scope: anyio.CancelScope,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Cancel `scope` on the second signal, or on the first one that stopped nothing."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                self.seen += 1
                if self.seen == 1 and number == signal.SIGINT and await self._stop():
                    say("Stopping. Interrupt again to leave at once.")
                    continue
                scope.cancel()
                return

    async def _stop(self) -> bool:
        """Stop what runs; False if nothing did."""
        try:
            stopped = await self._client.stop_session(self._key)
        except (NoDaemon, Refused):
            return False
        return bool(stopped.get("stopped"))
