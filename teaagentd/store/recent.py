"""RecentHistories: what was read lately, so that a turn reads only what is new of its session."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from teaagentd.store.values import Begun
from teaagentd.types import LLMMessage, SessionKey

LIMIT_CHARACTERS = 4_000_000
_MESSAGE_CHARACTERS = 300
"""What a message takes beside its content, in characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownHistory:
    """A session's history when the turn `turn_id` had begun. It is the beginning of what it is
    now if that turn still has the last of these messages and none before it is gone: messages
    are only ever added behind, and the ids of turns are never used again."""

    turn_id: str
    messages: tuple[LLMMessage, ...]


class RecentHistories:
    """The histories of the sessions that were busy last, up to a size. It is told only what a
    commit has confirmed."""

    def __init__(self, limit_characters: int = LIMIT_CHARACTERS) -> None:
        self._limit = self._room = limit_characters
        self._kept: OrderedDict[SessionKey, tuple[KnownHistory, int]] = OrderedDict()

    def get(self, key: SessionKey) -> KnownHistory | None:
        found = self._kept.get(key)
        return None if found is None else found[0]

    def keep(self, begun: Begun) -> None:
        """Take in what a turn has begun with, and drop the oldest for it."""
        self._drop(begun.key)
        size = _size(begun.history)
        if not begun.history or begun.origin == "ephemeral" or size > self._limit:
            return
        known = KnownHistory(turn_id=begun.turn_id, messages=begun.history)
        self._kept[begun.key] = known, size
        self._room -= size
        while self._room < 0:
            self._drop(next(iter(self._kept)))

    def forget(self, key: SessionKey) -> None:
        """What the session held is no longer there."""
        self._drop(key)

    def _drop(self, key: SessionKey) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._room += found[1]


def _size(messages: Sequence[LLMMessage]) -> int:
    return sum(
        _MESSAGE_CHARACTERS
        + sum(map(len, (message.content, message.raw or "", message.thinking or "")))
        for message in messages
    )
