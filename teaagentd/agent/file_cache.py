"""FileCache: small text files, read again whenever they may have changed."""

from __future__ import annotations

import codecs
import errno
import os
import stat
from dataclasses import dataclass
from typing import TypeAlias

from teaagentd.abc import Clock

LIMIT_BYTES = 64 * 1024
"""What is kept of one file."""
_SETTLED_NS = 2_000_000_000
"""File systems stamp changes in steps of up to two seconds (FAT, some network shares)."""
_STEP_BACK_NS = 1_000_000_000

_Stamp: TypeAlias = tuple[int, int, int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class FileText:
    """What one file holds: `text`, or None and the `problem` why it cannot be used."""

    path: str
    text: str | None = None
    problem: str | None = None
    cut: bool = False
    """Whether the file is longer than `LIMIT_BYTES`, and `text` only its beginning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    stamp: _Stamp
    settled: bool
    file: FileText


class FileCache:
    """Reads files; an unchanged one costs a `stat`. Blocking, and not for two threads at once.

    A reading is kept under the file's (mtime, ctime, size, inode, device). It is used again only
    if both times lay two seconds behind the clock when it was read, so that no later change can
    have left the stamp as it was; and none is used after the clock has stepped back.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._seen: dict[str, _Entry] = {}
        self._ahead_ns: int | None = None

    def begin_pass(self) -> None:
        """Start a round of readings: what the round before did not ask for is forgotten."""
        self._entries, self._seen = self._seen, {}
        ahead = self._clock.now_ms() * 1_000_000 - int(self._clock.monotonic() * 1e9)
        if self._ahead_ns is None or ahead > self._ahead_ns:
            self._ahead_ns = ahead
        elif ahead < self._ahead_ns - _STEP_BACK_NS:
            self._ahead_ns = ahead
            self._entries = {}

    def read(self, path: str) -> FileText | None:
        """The file at `path`, None if there is none. A link that leads nowhere is a problem."""
        try:
            status = os.stat(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                return FileText(path=path, problem=_reason(error))
            if os.path.islink(path):
                return FileText(path=path, problem="a link that leads nowhere")
            return None
        entry = self._entries.get(path)
        if entry is None or not entry.settled or entry.stamp != _stamp(status):
            entry = self._read_anew(path, status)
        self._seen[path] = entry
        return entry.file

    def _read_anew(self, path: str, status: os.stat_result) -> _Entry:
        read_at = self._clock.now_ms() * 1_000_000
        if not stat.S_ISREG(status.st_mode):
            file = FileText(path=path, problem="not a regular file")
            return _Entry(stamp=_stamp(status), settled=False, file=file)
        try:
            # Opening what became a FIFO meanwhile must not wait for its writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(descriptor, "rb") as opened:
                before = os.fstat(descriptor)
                content = opened.read(LIMIT_BYTES + 1)
        except OSError as error:
            file = FileText(path=path, problem=_reason(error))
            return _Entry(stamp=_stamp(status), settled=False, file=file)
        changed_at = max(before.st_mtime_ns, before.st_ctime_ns)
        return _Entry(
            stamp=_stamp(before),
            settled=changed_at < read_at - _SETTLED_NS,
            file=_decoded(path, content),
        )


def _decoded(path: str, content: bytes) -> FileText:
    cut = len(content) > LIMIT_BYTES
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        # A character that the limit cuts in two is left out whole.
        text = decoder.decode(content[:LIMIT_BYTES], final=not cut)
    except UnicodeDecodeError as error:
        return FileText(path=path, problem=f"not UTF-8 text (byte {error.start})")
    return FileText(path=path, text=text, cut=cut)


def _stamp(status: os.stat_result) -> _Stamp:
    return (
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size,
        status.st_ino,
        status.st_dev,
    )


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
