"""Printing to a terminal or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

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
    """A line of output, at once. A pipe gets it as it is, a terminal without control characters."""
    click.echo(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
