"""Reading requests: bodies within their limit, and queries as typed values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NoReturn
from urllib.parse import unquote_to_bytes

import anyio
import orjson
from starlette.requests import ClientDisconnect, Request

from teaagentd.transcript import clean_text
from teaagentd.types import SessionKey
from teaagentd.web.problems import Problem, invalid

MAX_BODY_BYTES = 1 << 20
MAX_ID_CHARACTERS = 512
_HEARD_OUT_BYTES = 8 << 20
_HEARD_OUT_S = 2.0
_MAX_INTEGER = 2**63 - 1
_MAX_PAGE = 1000

Values = Mapping[str, object]


async def read_body(request: Request, most: int = MAX_BODY_BYTES) -> bytes:
    """The body; 413 if it has more than `most` bytes, of which no more is kept than that."""
    declared = _declared_length(request)
    if declared > most:
        await _refuse_large(request, declared, most)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        more = message.get("more_body", False)
        if size > most:
            await _refuse_large(request, size, most, ended=not more)
        if not more and not chunks:
            return chunk
        chunks.append(chunk)
        if not more:
            return b"".join(chunks)


def _declared_length(request: Request) -> int:
    """What the header says, which the server holds the client to; 0 where it says nothing."""
    for name, value in request.scope["headers"]:
        if name == b"content-length":
            return int(value)
    return 0


async def _refuse_large(request: Request, size: int, most: int, *, ended: bool = False) -> NoReturn:
    """Raises the 413. Many clients read nothing before they have sent all, so one that is not
    far from its end, and does not wait to be told to go on, is heard out; any other is cut off."""
    if not ended and "expect" not in request.headers and size <= _HEARD_OUT_BYTES:
        ended = await _hear_out(request)
    raise Problem(
        413,
        f"the body has more than {most} bytes; nothing was kept",
        kind="too-large",
        title="The request is too large",
        headers=None if ended else {"connection": "close"},
    )


async def _hear_out(request: Request) -> bool:
    """Whether the body came to its end, within bounds of size and time. Keeps nothing of it."""
    heard = 0
    with anyio.move_on_after(_HEARD_OUT_S):
        while heard <= _HEARD_OUT_BYTES:
            message = await request.receive()
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return True
            heard += len(message.get("body", b""))
    return False


def parse_object(body: bytes) -> Values:
    """The JSON object that `body` is; 400 if it is not JSON, 422 if it is no object."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        found = _parse_surrogates(body, error)
    if not isinstance(found, dict):
        raise Problem(422, "the body must be a JSON object", kind="not-an-object")
    return found


def _parse_surrogates(body: bytes, error: orjson.JSONDecodeError) -> object:
    """JSON may escape half a character, which cut-off texts contain; the store cleans them."""
    if b"\\ud" in body.lower():
        try:
            return json.loads(body.decode(), parse_constant=_no_constant)
        except (ValueError, RecursionError):
            pass
    raise Problem(400, f"the body is not JSON: {error}", kind="not-json") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def text(values: Values, field: str) -> str | None:
    """A text; None where it is missing or null. 422 for anything else."""
    value = values.get(field)
    if value is None or isinstance(value, str):
        return value
    raise invalid(field, "must be text")


def identifier(values: Values, field: str) -> str | None:
    """A text that names something: neither empty nor longer than `MAX_ID_CHARACTERS`."""
    value = text(values, field)
    if value is None:
        return None
    if not value:
        raise invalid(field, "must not be empty")
    if len(value) > MAX_ID_CHARACTERS:
        raise invalid(field, f"must not have more than {MAX_ID_CHARACTERS} characters")
    return value


def stored_identifier(values: Values, field: str) -> str | None:
    """The same as the store holds it: without halves of characters."""
    value = identifier(values, field)
    return None if value is None else clean_text(value)


def session_key(value: str, field: str = "session_key") -> SessionKey:
    """The session that `value` names."""
    key = SessionKey.parse(value)
    if not value or not key.channel:
        raise invalid(field, "must name a session, as <channel>:<chat id>")
    if max(len(key.channel), len(key.chat_id)) > MAX_ID_CHARACTERS:
        raise invalid(field, f"each part has at most {MAX_ID_CHARACTERS} characters")
    return key


def key_in_query(request: Request) -> SessionKey | None:
    value = request.query_params.get("session_key")
    return None if value is None else session_key(value)


def key_in_path(request: Request, before: bytes, behind: bytes = b"") -> SessionKey | None:
    """The key between `before` and `behind` in the path as it was sent: an escaped slash
    belongs to the key. None if the path does not end with `behind`."""
    raw: bytes = request.scope["raw_path"]
    if not raw.endswith(behind):
        return None
    try:
        value = unquote_to_bytes(raw[len(before) : len(raw) - len(behind)]).decode()
    except UnicodeDecodeError:
        raise invalid("session_key", "must be UTF-8") from None
    return session_key(value)


def integer(request: Request, field: str, default: int) -> int:
    """An integer of the query, from 0 up."""
    value = request.query_params.get(field)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 20):
        raise invalid(field, "must be a whole number from 0 up")
    return min(int(value), _MAX_INTEGER)


def page_size(request: Request, default: int = 100) -> int:
    """How many entries at most are asked for, as `limit`."""
    value = integer(request, "limit", default)
    if not 1 <= value <= _MAX_PAGE:
        raise invalid("limit", f"must be from 1 to {_MAX_PAGE}")
    return value


def seconds(request: Request, field: str, *, most: float) -> float:
    """A time in the query, 0 where there is none; one above `most` counts as `most`."""
    value = request.query_params.get(field, "0")
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise invalid(field, "must be a number of seconds from 0 up")
    return min(found, most)


def row_in_path(request: Request) -> int:
    """The id of a message in the path."""
    value: str = request.path_params["id"]
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise Problem(404, f"there is no message {value!r}")
    return int(value)
