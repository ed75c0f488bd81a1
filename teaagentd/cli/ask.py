"""`teaagentd ask`: one question, one answer."""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass, field

import anyio
import click

from teaagentd.cli.attach import attached
from teaagentd.cli.chat_plain import Interrupts, Progress, put_answer, turn_of
from teaagentd.cli.client import Client, NoDaemon, Payload, Reply
from teaagentd.cli.console import say
from teaagentd.cli.conversation import Conversation, last_reply_id
from teaagentd.cli.exits import DISK, INTERRUPTED, USAGE, Failure
from teaagentd.cli.options import current_home, home_option, run_async, session_key, unwrapped
from teaagentd.home import Home
from teaagentd.types import SessionKey

_RESTART_S = 5.0
"""How long a daemon may be away, to be restarted, before this process takes its place."""
_PATIENCE_S = 60.0
"""After which a daemon that goes away once more is the end of it."""
_HINDERED_S, _LOOK_S = 10.0, 0.5


@click.command()
@click.argument("text")
@click.option(
    "--session",
    callback=session_key,
    metavar="KEY",
    help="The conversation to ask in; else a new one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as one JSON object.")
@home_option
def ask(text: str, session: SessionKey | None, as_json: bool) -> int:
    """Ask one thing and print the answer.

    TEXT may be `-`: it is then read from standard input. With no daemon running it is answered in
    this process. Exit code 1: the turn failed, and the one line on standard error says why.
    """
    home = current_home()
    question = sys.stdin.read() if text == "-" else text
    if not question.strip():
        raise Failure("there is nothing to ask: the text is empty", USAGE)
    key = session or SessionKey(channel="terminal", chat_id=f"ask-{uuid.uuid4().hex[:12]}")
    return run_async(lambda: _ask(home, key, question, as_json))


async def _ask(home: Home, key: SessionKey, question: str, as_json: bool) -> int:
    """The answer, from whichever daemon is there; if it goes away, this process takes its
    place."""
    asked = _Asked(key=key, question=question)
    deadline = anyio.current_time() + _PATIENCE_S
    while True:
        async with attached(home, say) as client:
            try:
                with unwrapped():
                    await asked.ask(client)
            except NoDaemon:
                if anyio.current_time() > deadline:
                    raise
                continue
            return _print(asked, as_json)


@dataclass(kw_only=True, slots=True)
class _Asked:
    """One question under one id, asked again where the daemon went away; then its answer."""

    key: SessionKey
    question: str
    external_id: str = field(default_factory=lambda: f"ask-{uuid.uuid4().hex}")
    seen: int | None = None
    reply: Reply | None = None
    turn: Payload | None = None

    async def ask(self, client: Client) -> None:
        """Leaves `reply` None if the person interrupted. Raises `NoDaemon` if it went away and
        stays away for some seconds, `Refused` if it will not have the question."""
        if self.seen is None:
            self.seen = await last_reply_id(client, self.key)
        progress = Progress()
        conversation = Conversation(
            client, self.key, progress, seen=self.seen, patience_s=_RESTART_S
        )
        async with anyio.create_task_group() as tasks:
            interrupts = Interrupts(client, self.key)
            await tasks.start(interrupts.watch, tasks.cancel_scope)
            tasks.start_soon(conversation.follow)
            posted = await conversation.post(self.question, self.external_id)
            tasks.start_soon(_give_up, progress)
            reply = await conversation.answer(posted)
            if not interrupts.seen:
                self.turn = await turn_of(client, reply)
                self.reply = reply
            tasks.cancel_scope.cancel()


async def _give_up(progress: Progress) -> None:
    """Raises `Failure` once nothing could be begun for a while: whoever asks once is not there to
    free a disk."""
    hindered_s = 0.0
    while hindered_s < _HINDERED_S:
        await anyio.sleep(_LOOK_S)
        hindered_s = hindered_s + _LOOK_S if progress.hindrance else 0.0
    raise Failure(
        f"{progress.hindrance}. The question was kept, and is answered once that is mended", DISK
    )


def _print(asked: _Asked, as_json: bool) -> int:
    """Print what was asked for; returns the exit code."""
    reply, turn = asked.reply, asked.turn or {}
    if reply is None:
        return INTERRUPTED
    return put_answer(reply, turn, as_json=as_json)
