"""`teaagentd ask`: one question, one answer."""

from __future__ import annotations

import sys
import uuid

import anyio
import click
import orjson

from teaagentd.cli.attach import attached
from teaagentd.cli.chat_plain import Interrupts, Progress
from teaagentd.cli.client import Client, Payload, Refused, Reply
from teaagentd.cli.console import put, say
from teaagentd.cli.conversation import Conversation, last_reply_id
from teaagentd.cli.exits import FAILED, INTERRUPTED, OK, USAGE, Failure
from teaagentd.cli.options import current_home, home_option, run_async
from teaagentd.home import Home
from teaagentd.types import SessionKey

_PATIENCE_S = 60.0
"""How long a daemon that went away may stay away, say to be restarted."""


@click.command()
@click.argument("text")
@click.option("--session", metavar="KEY", help="The conversation to ask in; else a new one.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as one JSON object.")
@home_option
def ask(text: str, session: str | None, as_json: bool) -> int:
    """Ask TEXT and print the answer; `-` reads it from standard input.

    With no daemon running it is answered in this process. Exit code 1: the turn failed, and the
    one line on standard error says why.
    """
    home = current_home()
    question = sys.stdin.read() if text == "-" else text
    if not question.strip():
        raise Failure("there is nothing to ask: the text is empty", USAGE)
    key = SessionKey.parse(session or f"terminal:ask-{uuid.uuid4().hex[:12]}")
    return run_async(lambda: _ask(home, key, question, as_json))


async def _ask(home: Home, key: SessionKey, question: str, as_json: bool) -> int:
    async with attached(home, say, "teaagentd ask") as client:
        asked = await _answer(client, key, question)
        if asked is None:
            return INTERRUPTED
        reply, turn = asked
        outcome = turn.get("outcome") or turn.get("state")
        failed = reply.kind == "final" and outcome not in (None, "answered", "done", "running")
        if as_json:
            put(orjson.dumps({**reply.raw, "turn": turn or None}).decode())
        elif failed:
            say(f"teaagentd: {' '.join(reply.content.split())}")
        else:
            put(reply.content)
        return FAILED if failed else OK


async def _answer(client: Client, key: SessionKey, question: str) -> tuple[Reply, Payload] | None:
    """The reply and what is known of its turn; None if the person interrupted."""
    found: tuple[Reply, Payload] | None = None
    conversation = Conversation(
        client,
        key,
        Progress(),
        seen=await last_reply_id(client, key),
        patience_s=_PATIENCE_S,
    )
    async with anyio.create_task_group() as tasks:
        interrupts = Interrupts(client, key)
        await tasks.start(interrupts.watch, tasks.cancel_scope)
        tasks.start_soon(conversation.follow)
        reply = await conversation.answer(await conversation.post(question))
        if not interrupts.seen:
            found = reply, await _turn(client, reply)
        tasks.cancel_scope.cancel()
    return found


async def _turn(client: Client, reply: Reply) -> Payload:
    if reply.turn_id is None:
        return {}
    try:
        return await client.turn(reply.turn_id)
    except Refused:
        return {}
