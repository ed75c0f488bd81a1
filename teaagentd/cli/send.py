"""`teaagentd send`: one message to the running daemon."""

from __future__ import annotations

import sys
import time

import click

from teaagentd.cli.chat_plain import put_answer, turn_of
from teaagentd.cli.client import Client, Posted
from teaagentd.cli.console import put
from teaagentd.cli.exits import OK, TRY_LATER, USAGE, Failure
from teaagentd.cli.options import current_home, home_option, run_async, session_key
from teaagentd.types import SessionKey


@click.command()
@click.argument("text")
@click.option(
    "--session",
    "key",
    callback=session_key,
    metavar="KEY",
    required=True,
    help="Whom it is from: a chat id of the api, or CHANNEL:CHAT.",
)
@click.option(
    "--id",
    "external_id",
    metavar="ID",
    help="Your id for it: sent again under the same id it is not taken twice.",
)
@click.option(
    "--wait",
    "wait_s",
    metavar="S",
    type=click.FloatRange(min=0),
    help="Wait so many seconds for the answer and print it.",
)
@home_option
def send(text: str, key: SessionKey, external_id: str | None, wait_s: float | None) -> int:
    """Hand a message to the running daemon.

    TEXT may be `-`: it is then read from standard input. Prints the id under which it was
    accepted, or with --wait the answer.
    """
    home = current_home()
    content = sys.stdin.read() if text == "-" else text
    if not content.strip():
        raise Failure("there is nothing to send: the text is empty", USAGE)

    async def go() -> int:
        async with Client(home.socket) as client:
            posted = await client.post(key, content, external_id=external_id)
            if wait_s is None:
                put(str(posted.id))
            else:
                return await _print_answer(client, key, posted, wait_s)
        return OK

    return run_async(go)


async def _print_answer(client: Client, key: SessionKey, posted: Posted, wait_s: float) -> int:
    """The text that answers the message; the exit code. Raises `Failure` if none came within
    `wait_s`."""
    end = time.monotonic() + wait_s
    after = 0
    while True:
        left = end - time.monotonic()
        replies = await client.replies(key, after=after, wait_s=max(0.0, min(left, 30.0)))
        for reply in replies:
            after = reply.id
            if posted.id in reply.message_ids:
                return put_answer(reply, await turn_of(client, reply))
        if not replies and left <= 0:
            raise Failure(
                f"no answer within {wait_s:g} s; message {posted.id} was accepted and will be "
                "answered",
                TRY_LATER,
            )
