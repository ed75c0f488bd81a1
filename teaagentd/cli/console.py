"""Printing to a terminal or a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import click

from teaagentd.cli.exits import Failure

Say = Callable[[str], None]
"""Takes a line for the person at the keyboard."""

_CONTROL = dict.fromkeys((*range(32), 127, *range(128, 160)))
del _CONTROL[ord("\n")], _CONTROL[ord("\t")]


def harmless(text: str) -> str:
    """`text` without the control characters by which it could steer a terminal."""
    return text.translate(_CONTROL)


def say(text: str) -> None:
    """A line to the person at the keyboard, on standard error: never part of the output."""
    click.echo(harmless(text), err=True)


def put(text: str) -> None:
    """A line of output, at once. A pipe gets it as it is, a terminal without control characters.
    Raises `Failure` if nobody can get it, and `BrokenPipeError` if nobody wants it any more."""
    if sys.stdout is None:
        raise Failure("there is no standard output for the answer")
    try:
        click.echo(harmless(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is left in the buffer would fail once more as the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Failure(f"standard output cannot be written: {error.strerror}") from error
