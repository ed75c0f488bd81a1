"""The slash commands that work outside the queue: what they are, and what they answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from teaagentd.store.values import Choice, CommandEffect, CommandOutcome
from teaagentd.types import SessionKey

HELP = """\
/stop    stop what I am doing; messages that wait are answered next
/new     start a new conversation; the old one is kept, and I no longer see it
/compact make a summary of this conversation, and go on with that; all of it is kept
/status  what I am doing and what is waiting
/usage   what this conversation, the day and the month came to
/model   which model answers here, and /model NAME to have another one
/help    this list
Anything else is for me. What you send while I work is taken into account at once."""

STOPPED = "Stopped."
SUPERSEDED = "This was set aside, as a new conversation was started."


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A recognised command: its name without the slash, and what stands behind it."""

    name: str
    argument: str = ""
    told: str = ""
    """The answer of one that only asks, or chooses."""
    choice: Choice | None = None
    """What it chooses."""

    @property
    def effect(self) -> CommandEffect:
        if self.choice is not None:
            return "choose"
        match self.name:
            case "stop":
                return "stop"
            case "new":
                return "new"
            case _:
                return "none"

    @property
    def closing(self) -> str:
        """The text for the other addresses of a turn that the command closes."""
        return SUPERSEDED if self.name == "new" else STOPPED


Prepare = Callable[[Command, SessionKey], Awaitable[Command]]
"""Fills in what a command answers and chooses in a session."""
_NAMES = frozenset({"stop", "new", "compact", "status", "usage", "model", "help"})
_WITH_WORDS = frozenset({"stop", "model"})


def parse_command(content: str) -> Command | None:
    """The command that `content` is, or None: a known word behind a slash, in any case (chat
    programs append `@name` to it). With more behind it, it is a message, but for `/model` and
    `/stop`: whoever adds a word to that wants it stopped all the same."""
    text = content.strip()
    if not text.startswith("/"):
        return None
    word, *more = text[1:].split(maxsplit=1) or [""]
    name = word.partition("@")[0].lower()
    if name not in _NAMES or (more and name not in _WITH_WORDS):
        return None
    return Command(name=name, argument=more[0] if more else "")


def answer(command: Command, outcome: CommandOutcome) -> str:
    """The reply to `command`."""
    if command.name == "help":
        return HELP
    if command.name in ("status", "usage", "model"):
        return command.told
    if command.name == "compact":
        return "I make a summary of this conversation, and go on with it from my next turn on."
    waiting = _waiting(outcome.still_pending)
    if command.name == "new":
        stopped = " What I was doing was stopped." if outcome.stopped_turn_id else ""
        return f"A new conversation begins.{stopped}{waiting}"
    if outcome.stopped_turn_id:
        return f"{STOPPED}{waiting}"
    if outcome.stopped_waiting:
        return f"Stopped before I began.{waiting}"
    return f"Nothing is running here.{waiting}"


def _waiting(count: int) -> str:
    if not count:
        return ""
    return f" {count} message{'s' if count > 1 else ''} that waited will be answered next."
