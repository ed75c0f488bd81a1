"""What a chat looks like: answers as they stream, above the line that is being typed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from teaagentd.cli.client import Reply
from teaagentd.cli.console import harmless
from teaagentd.transcript import spoken
from teaagentd.types import Phase

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_TAIL_ROWS = 8
"""Rows of an unfinished paragraph that are shown above the prompt."""


def _fitting(*texts: str) -> str:
    """The first of `texts`, from the longest to the shortest, that the terminal has room for."""
    room = shutil.get_terminal_size().columns
    return next((text for text in texts if len(text) <= room), texts[-1])


class Paper(Protocol):
    """Where finished lines go; they scroll away and are never touched again."""

    def write(self, data: str) -> object: ...


@dataclass(slots=True)
class _Stream:
    """The answer of a turn as far as it has streamed; `printed` characters are on paper."""

    text: str = ""
    printed: int = 0

    @property
    def tail(self) -> str:
        return self.text[self.printed :]


class Screen:
    """The view of a terminal. Whole lines go to paper; the unfinished one and the present phase
    are drawn by the prompt, which `changed` has redrawn."""

    def __init__(
        self, paper: Paper, *, changed: Callable[[], None], shown: Callable[[int], None]
    ) -> None:
        """`shown` is told the id of each reply that is on paper."""
        self._paper = paper
        self._changed = changed
        self._shown = shown
        self._streams: dict[str, _Stream] = {}
        self._notices: dict[str, list[str]] = {}
        self._busy: dict[str, tuple[str, float]] = {}
        self._connected = True

    @property
    def busy(self) -> bool:
        """Whether a turn is at work."""
        return bool(self._busy)

    def tail(self) -> str:
        """The end of the unfinished line, as much as fits above the prompt."""
        text = "".join(stream.tail for stream in self._streams.values())
        room = _TAIL_ROWS * shutil.get_terminal_size().columns - 2
        return text if len(text) <= room else f"…{text[-room:]}"

    def line(self, now: float) -> str:
        """One line on what goes on, as much of it as fits; `now` is `time.monotonic()`."""
        if not self._connected:
            return _fitting(
                "the daemon is gone; what you type is sent when it is back · Ctrl-D leaves, and "
                "chat or run starts it again",
                "the daemon is gone · Ctrl-D leaves, and chat starts it again",
                "the daemon is gone · Ctrl-D leaves",
            )
        if not self._busy:
            return _fitting("Ctrl-C twice or Ctrl-D leaves · /help", "Ctrl-D leaves · /help")
        what, since = next(reversed(self._busy.values()))
        time_s = f"{now - since:.0f} s"
        return _fitting(
            f"{what} · {time_s} · type to steer · Ctrl-C stops",
            f"{what} · {time_s} · Ctrl-C stops",
            f"{what.partition(':')[0]} · {time_s} · Ctrl-C stops",
            f"{time_s} · Ctrl-C stops",
        )

    def note(self, text: str) -> None:
        """A line that is not part of the conversation."""
        self._paper.write(f"{_DIM}{harmless(text)}{_PLAIN}\n")

    def phase(self, turn_id: str, phase: str, detail: str) -> None:
        if phase == Phase.DONE:
            self._busy.pop(turn_id, None)
            self._notices.pop(turn_id, None)
            stream = self._streams.pop(turn_id, None)
            if stream is not None and stream.printed:
                self.note("(that was all of it)")
        elif phase != Phase.NOTICE:
            what = f"{phase}: {harmless(detail)}" if detail else phase
            since = self._busy[turn_id][1] if turn_id in self._busy else time.monotonic()
            self._busy[turn_id] = what.replace("\n", " "), since
        self._changed()

    def delta(self, turn_id: str, text: str) -> None:
        stream = self._streams.setdefault(turn_id, _Stream())
        stream.text += harmless(text)
        end = stream.text.rfind("\n") + 1
        if end > stream.printed:
            self._paper.write(stream.text[stream.printed : end])
            stream.printed = end
        self._changed()

    def reset(self, turn_id: str) -> None:
        stream = self._streams.pop(turn_id, None)
        if stream is not None and stream.printed:
            self.note("(the above is void: the answer starts over)")
        self._changed()

    def reply(self, reply: Reply) -> None:
        if not self._is_told(reply):
            self._put(reply)
        self._shown(reply.id)
        self._changed()

    def _is_told(self, reply: Reply) -> bool:
        """Whether `reply` only says what the notices of its turn said."""
        if reply.kind == "notice":
            self._notices.setdefault(reply.turn_id or "", []).append(reply.content)
            return False
        notices = self._notices.get(reply.turn_id or "")
        return notices is not None and reply.content == spoken(notices)

    def _put(self, reply: Reply) -> None:
        text = harmless(reply.content)
        stream = self._streams.pop(reply.turn_id or "", None) or _Stream()
        if stream.text and text.startswith(stream.text[: stream.printed]):
            text = text[stream.printed :]
        elif stream.printed:
            self.note("(the above is void; in its place:)")
        before = _DIM if reply.kind == "notice" and not stream.printed else ""
        self._paper.write(f"{before}{text.rstrip()}{_PLAIN if before else ''}\n\n")

    def connection(self, connected: bool) -> None:
        self._connected = connected
        if not connected:
            self._busy.clear()
            for turn_id in list(self._streams):
                self.reset(turn_id)
        self._changed()
