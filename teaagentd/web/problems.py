"""Problem: what is answered instead of a result, as RFC 9457 has it."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import orjson
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from teaagentd.errors import (
    BusFull,
    ExternalIdConflict,
    FileRefused,
    InvalidMessage,
    SenderRefused,
    StoreDamaged,
    StoreUnavailable,
)
from teaagentd.transcript import clean_text

MEDIA_TYPE = "application/problem+json"
_LATER = {"retry-after": "5"}
"""Seconds, where the same request may succeed by itself."""

log = structlog.get_logger()


class Problem(HTTPException):
    """A request that is not carried out. `kind` is the last part of the problem's `type`, None
    where the status says it all; `field` names the part of the request at fault."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str | None = None,
        title: str | None = None,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, clean_text(detail), headers)
        self.kind = kind
        self.title = title or HTTPStatus(status).phrase
        self.field = None if field is None else clean_text(field)

    def body(self) -> bytes:
        """Its JSON."""
        members: dict[str, object] = {
            "type": "about:blank" if self.kind is None else f"/problems/{self.kind}",
            "title": self.title,
            "status": self.status_code,
            "detail": self.detail,
        }
        if self.field is not None:
            members["field"] = self.field
        return orjson.dumps(members)


def invalid(field: str, problem: str) -> Problem:
    """422: `field` of the body, the query or the path cannot be used."""
    title = "A field cannot be used"
    return Problem(422, f"{field}: {problem}", kind="invalid-field", title=title, field=field)


def _response(problem: Problem) -> Response:
    headers = problem.headers
    return Response(problem.body(), problem.status_code, headers, media_type=MEDIA_TYPE)


async def _answer_http(request: Request, error: Exception) -> Response:
    """Our problems, and what the router refuses: paths and methods that there are none of."""
    assert isinstance(error, HTTPException)
    if isinstance(error, Problem):
        return _response(error)
    detail = {
        404: "there is nothing at this address",
        405: f"{request.method} cannot be done here",
    }.get(error.status_code, error.detail)
    return _response(Problem(error.status_code, detail, headers=error.headers))


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidMessage)
    return _response(invalid(error.field, error.problem))


async def _answer_file(request: Request, error: Exception) -> Response:
    title = "The file cannot be used"
    return _response(Problem(422, str(error), kind="file-refused", title=title))


async def _answer_conflict(request: Request, error: Exception) -> Response:
    title, kind = "The id is taken", "external-id-conflict"
    return _response(Problem(409, str(error), kind=kind, title=title, field="external_id"))


async def _answer_sender(request: Request, error: Exception) -> Response:
    title, kind = "This sender may not speak here", "sender-refused"
    return _response(Problem(403, str(error), kind=kind, title=title, field="sender_id"))


async def _answer_full(request: Request, error: Exception) -> Response:
    title = "The inbox is full"
    return _response(Problem(429, str(error), kind="bus-full", title=title, headers=_LATER))


async def _answer_store(request: Request, error: Exception) -> Response:
    log.error("request_failed", path=request.url.path, error=str(error))
    title, kind = "Nothing can be kept now", "store-unavailable"
    return _response(Problem(503, str(error), kind=kind, title=title, headers=_LATER))


async def _answer_nobody(request: Request, error: Exception) -> Response:
    """The client left while it was sending; this reaches no one."""
    return Response(status_code=400)


async def _answer_broken(request: Request, error: Exception) -> Response:
    """What was raised is raised on, to the server, which logs it; it is never shown."""
    return _response(Problem(500, "the request failed inside the daemon; its log says why"))


HANDLERS = {
    HTTPException: _answer_http,
    InvalidMessage: _answer_invalid,
    FileRefused: _answer_file,
    ExternalIdConflict: _answer_conflict,
    SenderRefused: _answer_sender,
    BusFull: _answer_full,
    StoreUnavailable: _answer_store,
    StoreDamaged: _answer_store,
    ClientDisconnect: _answer_nobody,
    Exception: _answer_broken,
}
"""What answers which exception."""
