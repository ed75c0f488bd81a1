"""ContextBuilder: the system prompt from files, and the note beside each message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path

import anyio.to_thread

from teaagentd.abc import Clock
from teaagentd.agent.notes import MAX_MEMORY, MAX_NAME, bracketed, spoken_time
from teaagentd.agent.static_prompt import StaticPrompt
from teaagentd.transcript import one_line
from teaagentd.types import InboxRow, LLMMessage

_LATE_MS = 10 * 60_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemPrompt:
    """The prompt of one turn. `static` keeps its bytes while the files keep theirs; `volatile`
    is the note of this message, which a turn of the loop stores beside the message instead."""

    static: str
    volatile: str = ""

    def __str__(self) -> str:
        return f"{self.static}\n\n{self.volatile}" if self.volatile else self.static


class ContextBuilder:
    """Builds prompts from the files of one workspace, safe for many turns at once."""

    def __init__(
        self,
        *,
        workspace: Path,
        clock: Clock,
        name: str = "Tea",
        persona: str = "",
        rules: Sequence[str] = (),
        zone: tzinfo | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        """`rules` are added to the operating rules; `zone` None is the machine's own; `places`
        says of a channel how its replies are read ("spoken aloud"), else its name stands."""
        self._clock = clock
        self._zone = zone
        self._places = dict(places or {})
        self._static = StaticPrompt(
            workspace=workspace, clock=clock, name=name, persona=persona, rules=rules
        )

    @property
    def problems(self) -> Mapping[str, str]:
        """Files and folders that the last prompt leaves out in whole or part: path to reason."""
        return self._static.problems

    async def system_prompt(
        self,
        history: Sequence[LLMMessage],
        current: LLMMessage | str,
        *,
        place: str = "",
        memories: Sequence[str] = (),
    ) -> SystemPrompt:
        """The prompt for a turn that answers `current`. Files are looked at in a worker thread;
        one that cannot be read is left out and named in a warning. The note repeats no memory
        that `history` or `current` holds."""
        static = await anyio.to_thread.run_sync(self._static.read, abandon_on_cancel=True)
        noted = [message.note for message in history if message.note]
        asked = current if isinstance(current, str) else current.content
        fresh = [
            memory
            for memory in memories
            if memory not in asked
            and not any(one_line(memory, MAX_MEMORY) in note for note in noted)
        ]
        return SystemPrompt(static=static, volatile=self.opening_note(place=place, memories=fresh))

    def note(
        self, row: InboxRow, *, memories: Sequence[str] = (), others: Sequence[str] = ()
    ) -> str:
        """The note beside an accepted message: when it is read (and was sent, if that is long
        ago), where the reply will be read, who wrote it, who else listens, what is remembered.
        Quick, reads nothing but the clock; no content can end or forge it."""
        now = self._clock.now_ms()
        message = row.message
        facts = [self._time(now)]
        if now - row.accepted_at >= _LATE_MS:
            facts.append(f"sent {self._time(row.accepted_at)}")
        facts.append(f"via {self._place(message.channel)}")
        if message.sender_id:
            facts.append(f"from {one_line(message.sender_id, MAX_NAME)}")
        return bracketed(facts, memories, others)

    def opening_note(
        self, *, place: str = "", memories: Sequence[str] = (), others: Sequence[str] = ()
    ) -> str:
        """The note of a turn that no accepted message began; `place` as `scheduled`."""
        facts = [self._time(self._clock.now_ms())]
        if place:
            facts.append(self._place(place))
        return bracketed(facts, memories, others)

    def _place(self, channel: str) -> str:
        return one_line(self._places.get(channel, channel), MAX_NAME)

    def _time(self, at_ms: int) -> str:
        return spoken_time(at_ms, self._zone)
