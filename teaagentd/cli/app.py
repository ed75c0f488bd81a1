"""The root command: its verbs by name, each imported when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from teaagentd import __version__
from teaagentd.cli.exits import INTERRUPTED, exit_code
from teaagentd.cli.options import home_option
from teaagentd.errors import TeaAgentError

VERBS: dict[str, tuple[str, str]] = {
    "chat": ("teaagentd.cli.chat", "Talk with the assistant in this terminal."),
    "ask": ("teaagentd.cli.ask", "Ask one thing and print the answer."),
    "run": ("teaagentd.cli.run", "Be the daemon, until told to stop."),
    "send": ("teaagentd.cli.send", "Hand a message to the running daemon."),
    "status": ("teaagentd.cli.status", "Show what the daemon is doing."),
    "stop": ("teaagentd.cli.stop", "Stop the daemon, or one conversation's work."),
    "init": ("teaagentd.cli.init", "Write the first configuration and workspace."),
    "sessions": (
        "teaagentd.cli.sessions",
        "List, read, search, export and delete conversations.",
    ),
    "inbox": ("teaagentd.cli.queues", "Messages that wait for an answer, or were set aside."),
    "outbox": ("teaagentd.cli.queues", "Texts that wait to be delivered, or were given up."),
    "models": (
        "teaagentd.cli.models",
        "List the configured models, and choose which one is asked first.",
    ),
    "usage": ("teaagentd.cli.usage", "Show what models came to, in tokens and cents."),
    "export": ("teaagentd.cli.export", "Write every conversation into a new FOLDER."),
    "erase": ("teaagentd.cli.erase", "Erase what is known of one person or chat."),
    "doctor": ("teaagentd.cli.doctor", "Look everything over, and say how to mend it."),
    "backup": ("teaagentd.cli.backup", "Write everything of the home into one file."),
    "restore": ("teaagentd.cli.backup", "Put back what a backup holds."),
    "config": ("teaagentd.cli.config", "Check, show or change the configuration."),
}
"""Verb: the module that has it under its own name, and its line in the overview."""


class LazyGroup(click.Group):
    """A group that imports a verb's module when the verb is called, not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(VERBS[cmd_name][0])
        command: click.Command = vars(module)[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="teaagentd")
@home_option
def root() -> None:
    """A personal assistant that runs on your own machine.

    `teaagentd chat` is the way to begin. What it keeps is in ~/.teaagentd, or where
    TEAAGENTD_HOME or --home says.
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process: one line and a documented code on failure."""
    try:
        code = root.main(args, prog_name="teaagentd", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except TeaAgentError as error:
        click.echo(f"teaagentd: {error}", err=True)
        code = exit_code(error)
    except BrokenPipeError:
        # The reader of our output is gone; so that the interpreter does not complain of it again:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
