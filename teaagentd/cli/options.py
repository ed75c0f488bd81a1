"""What several verbs share: `--home` before or after the verb, and running async code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import anyio
import click

from teaagentd.errors import TeaAgentError
from teaagentd.home import HOME_VARIABLE, Home, find_home
from teaagentd.transcript import clean_key
from teaagentd.types import SessionKey

P = ParamSpec("P")
T = TypeVar("T")

_META = "teaagentd.home"


def _remember(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_META] = value


def home_option(function: Callable[P, T]) -> Callable[P, T]:
    """Add `--home DIR`; `current_home` reads it, wherever on the line it stood."""
    return click.option(
        "--home",
        metavar="DIR",
        type=click.Path(file_okay=False),
        expose_value=False,
        callback=_remember,
        help=f"The assistant's folder, instead of {HOME_VARIABLE} or ~/.teaagentd.",
    )(function)


def current_home() -> Home:
    """The home that this command is about."""
    return find_home(click.get_current_context().meta.get(_META))


def session_key(ctx: click.Context, param: click.Parameter, value: str | None) -> SessionKey | None:
    """The callback of `--session KEY`."""
    if value is None:
        return None
    key = clean_key(SessionKey.parse(value))
    if not key.channel or not key.chat_id:
        raise click.BadParameter("it is a chat id, or CHANNEL:CHAT", ctx, param)
    return key


def run_async(function: Callable[[], Awaitable[T]]) -> T:
    """Run `function` to its end."""
    with unwrapped():
        return anyio.run(function)


@contextmanager
def unwrapped() -> Iterator[None]:
    """What a command may end with comes out bare of the task groups that wrapped it."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = _first(group)
        if error is None:
            raise
        raise error from group


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """The one error in nested groups that a command can end with, or None."""
    for error in group.exceptions:
        found = _first(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, TeaAgentError | KeyboardInterrupt | BrokenPipeError):
            return found
    return None
