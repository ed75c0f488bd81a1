"""Attachments: files that came with messages, kept beside the database and not in it.

A file is named by the digest of its content, so that the same one sent again is kept once, and it
never changes. It is synced before a message that names it is accepted.
"""

from __future__ import annotations

import base64
import hashlib
import mimetypes
import os
import re
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import structlog

from teaagentd import pictures
from teaagentd.errors import FileRefused, StoreUnavailable
from teaagentd.transcript import clean_text
from teaagentd.types import Attachment, LLMMessage, Picture, Shown

log = structlog.get_logger()

MAX_BYTES: Final = 20 << 20
"""Of one file; most chat services carry no larger ones."""
MOST_PICTURES: Final = 20
"""Pictures in one request at most, the newest ones. Vendors take some more, but not in the 20 or
30 MB that they allow a request to have."""
_STEP = 10
"""So many of the older ones are left out at once: each time costs the cached prefix."""
_KEPT_S = 900.0
"""A file that no message names is kept for so long after it was handed in."""
_LONGEST_NAME = 200
_FILE = re.compile(r"[0-9a-f]{64}\.[a-z0-9]{1,8}")
_UNKNOWN = "application/octet-stream"
_TYPES = mimetypes.MimeTypes()
"""The same on every machine, whatever it has installed."""
for _type, _suffix in (
    ("text/markdown", ".md"),
    ("application/yaml", ".yaml"),
    ("application/yaml", ".yml"),
    ("application/toml", ".toml"),
    ("application/x-ndjson", ".jsonl"),
    ("image/avif", ".avif"),
    ("image/webp", ".webp"),
):
    _TYPES.add_type(_type, _suffix)
_ENDINGS = {"image/jpeg": "jpg", "image/tiff": "tiff", "text/plain": "txt", _UNKNOWN: "bin"}
_TYPE = re.compile(r"[a-z0-9.+-]{1,64}/[a-z0-9.+-]{1,64}")


class Attachments:
    """The files of one home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Pictures are unfolded one at a time: a large one takes 200 MB.
        self._unfolding = anyio.CapacityLimiter(1)

    async def keep(
        self, data: bytes, *, name: str = "", media_type: str | None = None
    ) -> Attachment:
        """Keep a file; it is durable when this returns, and stays as long as a message names it.
        Its bytes say whether it is a picture, for anything else `media_type` or its `name` says
        what it is. Raises `FileRefused`: then nothing was kept; and `StoreUnavailable`."""
        name = clean_text(name).strip()[:_LONGEST_NAME] or "file"
        try:
            return await anyio.to_thread.run_sync(
                self._keep, data, name, media_type, limiter=self._unfolding
            )
        except FileRefused as error:
            raise FileRefused(f"{name!r} was not kept: {error}") from error
        except OSError as error:
            raise StoreUnavailable(
                f"{error.filename or self._folder}: {error.strerror}; the file was not kept"
            ) from error

    async def find(self, path: str, *, name: str = "") -> Attachment | None:
        """The file that is kept as `path`, under the name that a message gives it; None if it is
        not here."""
        if not _FILE.fullmatch(path):
            return None
        size = await anyio.to_thread.run_sync(self._size, path)
        if size is None:
            return None
        name = clean_text(name).strip()[:_LONGEST_NAME] or "file"
        media_type = _TYPES.guess_type(path)[0] or _UNKNOWN
        return Attachment(path=path, media_type=media_type, name=name, size=size)

    def place(self, one: Attachment) -> Path:
        """Where it lies. Raises `ValueError` for what was not kept here."""
        if not _FILE.fullmatch(one.path):
            raise ValueError(f"{one.path!r} is no file of this folder")
        return self._folder / one.path

    async def shown(self, messages: Iterable[LLMMessage], *, sees: bool) -> Mapping[str, Shown]:
        """What a model is shown of the files that `messages` name, by their paths: the texts, and
        the newest pictures if it `sees`. A file that is gone is left out."""
        named = [one for message in messages for one in message.attachments]
        if not named:
            return {}
        wanted = [one for one in named if one.is_text]
        if sees:
            seen = list(dict.fromkeys(one for one in named if one.is_picture))
            too_many = max(len(seen) - MOST_PICTURES, 0)
            wanted += seen[-(-too_many // _STEP) * _STEP :]
        return await anyio.to_thread.run_sync(self._read, dict.fromkeys(wanted))

    async def sweep(self, named: Iterable[str]) -> int:
        """Remove the files that are not `named` by a message, but for those handed in just now;
        how many. Raises nothing: what cannot be removed is tried again next time."""
        kept = frozenset(named)
        return await anyio.to_thread.run_sync(self._sweep, kept)

    def _keep(self, data: bytes, name: str, media_type: str | None) -> Attachment:
        if not data:
            raise FileRefused("it is empty")
        if len(data) > MAX_BYTES:
            raise FileRefused(
                f"it has {len(data) / 2**20:.1f} MB, and {MAX_BYTES >> 20} are the most"
            )
        said = (media_type or _TYPES.guess_type(name)[0] or _UNKNOWN).split(";")[0].lower()
        copy: bytes | None = None
        if said.startswith("image/") or pictures.looks_like_one(data):
            checked = pictures.check(data)
            said, copy = checked.media_type, checked.copy
        elif not _TYPE.fullmatch(said):
            said = _UNKNOWN
        digest = hashlib.sha256(data).hexdigest()
        path = f"{digest}.{_ending(said)}"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if copy is not None:
            self._write(_copy_of(path), copy)
        self._write(path, data)
        _sync(self._folder)
        return Attachment(path=path, media_type=said, name=name, size=len(data))

    def _size(self, path: str) -> int | None:
        try:
            return (self._folder / path).stat().st_size
        except OSError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        place = self._folder / name
        with suppress(FileNotFoundError):
            # Handed in anew, it is not swept away before a message names it.
            os.utime(place)
            return
        descriptor, draft = tempfile.mkstemp(prefix=".", dir=self._folder)
        try:
            with open(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.rename(draft, place)
        except BaseException:
            os.unlink(draft)
            raise

    def _read(self, wanted: Iterable[Attachment]) -> Mapping[str, Shown]:
        found: dict[str, Shown] = {}
        for one in wanted:
            try:
                shown = self._read_one(one)
            except OSError as error:
                log.warning("attachment_unreadable", path=one.path, error=error.strerror)
            else:
                if shown is not None:
                    found[one.path] = shown
        return found

    def _read_one(self, one: Attachment) -> Shown | None:
        if not _FILE.fullmatch(one.path):
            return None
        if one.is_text:
            return _as_text((self._folder / one.path).read_bytes())
        place = self._folder / _copy_of(one.path)
        if not place.exists():
            place = self._folder / one.path
        data = place.read_bytes()
        kind = "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"
        return Picture(media_type=kind, data=base64.b64encode(data).decode("ascii"))

    def _sweep(self, kept: frozenset[str]) -> int:
        removed = 0
        try:
            found = list(os.scandir(self._folder))
        except FileNotFoundError:
            return 0
        for entry in found:
            name = entry.name.removesuffix(_COPY)
            try:
                if name in kept or time.time() - entry.stat().st_mtime < _KEPT_S:
                    continue
                os.unlink(entry)
            except OSError as error:
                log.warning("attachment_not_removed", path=entry.path, error=error.strerror)
            else:
                removed += name == entry.name
        return removed


_COPY = ".shown"


def _copy_of(path: str) -> str:
    return f"{path}{_COPY}"


def _as_text(data: bytes) -> str | None:
    """UTF-8, with or without a mark; anything else is no text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _ending(media_type: str) -> str:
    guessed = _ENDINGS.get(media_type) or (_TYPES.guess_extension(media_type) or "").lstrip(".")
    return guessed if re.fullmatch(r"[a-z0-9]{1,8}", guessed) else "bin"


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
