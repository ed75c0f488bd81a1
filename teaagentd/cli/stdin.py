"""Lines of standard input, without a thread that would outlive the command."""

from __future__ import annotations

import codecs
import contextlib
import os
from collections.abc import AsyncIterator

import anyio

_CHUNK = 65536


async def lines(descriptor: int) -> AsyncIterator[str]:
    """Each line as soon as it is there, without its end; the last one may lack it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while True:
        with contextlib.suppress(PermissionError):  # a plain file is always ready, and says so
            await anyio.wait_readable(descriptor)
        chunk = os.read(descriptor, _CHUNK)
        *whole, rest = (rest + decoder.decode(chunk, final=not chunk)).split("\n")
        for line in whole:
            yield line.removesuffix("\r")
        if not chunk:
            if rest:
                yield rest
            return
