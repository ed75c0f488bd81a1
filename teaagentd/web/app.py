"""The API: which address does what."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from teaagentd.web import reading
from teaagentd.web.desk import Desk
from teaagentd.web.events import KEEP_ALIVE_S, EventStream
from teaagentd.web.files import Files
from teaagentd.web.messages import Messages
from teaagentd.web.models import ModelChoice
from teaagentd.web.problems import HANDLERS
from teaagentd.web.served import Served
from teaagentd.web.sessions import Sessions
from teaagentd.web.status import Status
from teaagentd.web.usage import Usage
from teaagentd.web.waits import LongWaits


class _AnyText(Convertor[str]):
    """What a session key may consist of: slashes, and line breaks too."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any_text", _AnyText())


def create_app(
    daemon: Served, waits: LongWaits, *, keep_alive_s: float = KEEP_ALIVE_S
) -> Starlette:
    """The API of `daemon`. `waits` ends its streams and long polls; an event stream says
    something every `keep_alive_s` seconds."""
    files = Files(daemon)
    messages = Messages(daemon, waits, files)
    sessions = Sessions(daemon)
    status = Status(daemon)
    desk = Desk(daemon)
    models = ModelChoice(daemon)

    async def events(request: Request) -> Response:
        key = reading.key_in_query(request)
        if request.method == "HEAD":
            return Response(media_type=EventStream.media_type)
        return EventStream(
            daemon.feed,
            daemon.store,
            waits,
            session_key=key,
            last_event_id=request.headers.get("last-event-id"),
            keep_alive_s=keep_alive_s,
        )

    get, post = ["GET"], ["POST"]
    app = Starlette(
        routes=[
            Route("/v1/messages", messages.post, methods=post),
            Route("/v1/files", files.keep, methods=post),
            Route("/v1/files/{id}", files.fetch, methods=get),
            Route("/v1/replies", messages.replies, methods=get),
            Route("/v1/events", events, methods=get),
            Route("/v1/sessions", sessions.list, methods=get),
            Route("/v1/sessions/{key:any_text}/stop", sessions.stop, methods=post),
            Route("/v1/sessions/{key:any_text}", sessions.show, methods=get),
            Route("/v1/sessions/{key:any_text}", desk.delete_session, methods=["DELETE"]),
            Route("/v1/turns/{id}", sessions.turn, methods=get),
            Route("/v1/inbox", desk.inbox, methods=get),
            Route("/v1/inbox/dead", messages.dead, methods=get),
            Route("/v1/inbox/{id}/retry", messages.retry, methods=post),
            Route("/v1/inbox/{id}/drop", desk.drop_row, methods=post),
            Route("/v1/outbox", desk.outbox, methods=get),
            Route("/v1/outbox/{id}/retry", desk.retry_letter, methods=post),
            Route("/v1/outbox/{id}/drop", desk.drop_letter, methods=post),
            Route("/v1/search", desk.search, methods=get),
            Route("/v1/erase", desk.erase, methods=post),
            Route("/v1/models", models.list, methods=get),
            Route("/v1/models/choice", models.choose, methods=post),
            Route("/v1/usage", Usage(daemon).show, methods=get),
            Route("/v1/status", status.show, methods=get),
            Route("/v1/shutdown", status.shut_down, methods=post),
            Route("/healthz", status.health, methods=get),
            Route("/metrics", status.metrics, methods=get),
        ],
        exception_handlers=HANDLERS,
    )
    app.router.redirect_slashes = False
    return app
