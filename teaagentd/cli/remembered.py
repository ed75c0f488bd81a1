"""What the terminal remembers between two chats: the lines typed, the last reply shown."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from teaagentd.home import Home
from teaagentd.types import SessionKey

_HISTORY_BYTES = 1_000_000


class Remembered:
    """The files of one session's chat in a home, open to their owner only."""

    def __init__(self, home: Home, key: SessionKey) -> None:
        name = hashlib.sha256(str(key).encode()).hexdigest()[:32]
        self._seen = home.terminal / f"{name}.seen"
        self._history = home.terminal / "history"

    def seen(self) -> int | None:
        """The id of the last reply that was shown here; None if that is not known."""
        try:
            return int(self._seen.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def remember(self, reply_id: int) -> None:
        """Keep the id of a reply that was shown. If it cannot be kept, it is shown again."""
        draft = self._seen.with_suffix(".new")
        try:
            with open(draft, "w", encoding="ascii", opener=_closed_to_others) as stream:
                stream.write(str(reply_id))
            os.replace(draft, self._seen)
        except OSError:
            return

    def history_file(self) -> Path | None:
        """Where typed lines are kept, its older half dropped at a megabyte; None if it cannot
        be written."""
        try:
            with open(self._history, "ab+", opener=_closed_to_others) as stream:
                if stream.tell() > _HISTORY_BYTES:
                    stream.seek(-_HISTORY_BYTES // 2, os.SEEK_END)
                    _, _, recent = stream.read().partition(b"\n\n")
                    stream.truncate(0)
                    stream.write(recent)
        except OSError:
            return None
        return self._history


def _closed_to_others(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
