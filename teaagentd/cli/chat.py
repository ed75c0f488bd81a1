"""`teaagentd chat`: a conversation in this terminal, or over a pipe."""

from __future__ import annotations

import os
import sys

import click

from teaagentd.cli.attach import attached
from teaagentd.cli.chat_plain import chat_on_pipe
from teaagentd.cli.console import say
from teaagentd.cli.options import current_home, home_option, run_async, session_key
from teaagentd.cli.remembered import Remembered
from teaagentd.types import SessionKey

MAIN_SESSION = "terminal:main"


@click.command()
@click.option(
    "--session",
    "key",
    callback=session_key,
    metavar="KEY",
    default=MAIN_SESSION,
    show_default=True,
    help="The conversation to go on with.",
)
@home_option
def chat(key: SessionKey) -> int:
    """Talk with the assistant in this terminal.

    What you type while it works is taken into account at once. Ctrl-C stops it, a second Ctrl-C
    leaves. With no daemon running it works in this process, for as long as you stay. On a pipe
    each line is a message, and is answered before the next one is sent.
    """
    home = current_home()
    ends = (sys.stdin, sys.stdout)
    at_keyboard = all(end is not None and end.isatty() for end in ends)
    # What cannot move its cursor is served line by line, as a pipe is.
    at_keyboard = at_keyboard and os.environ.get("TERM", "dumb") != "dumb"

    async def talk() -> int:
        async with attached(home, say) as client:
            if not at_keyboard:
                return await chat_on_pipe(client, key)
            # The line editor is costly to import, and a pipe does without.
            from teaagentd.cli.chat_terminal import TerminalChat

            return await TerminalChat(client, key, Remembered(home, key)).run()

    return run_async(talk)
