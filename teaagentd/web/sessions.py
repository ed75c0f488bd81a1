"""Sessions and their turns: the list, one transcript, the stop."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from teaagentd.web import reading, views
from teaagentd.web.problems import Problem
from teaagentd.web.served import Served
from teaagentd.web.views import JSONAnswer

_BEFORE_KEY = b"/v1/sessions/"


class Sessions:
    """What stands under `/v1/sessions` and `/v1/turns`."""

    def __init__(self, daemon: Served) -> None:
        self._loop = daemon.loop
        self._store = daemon.store

    async def list(self, request: Request) -> Response:
        """The latest active first. `next` is the `before` of the following page. With `after`
        those made after that one, oldest first, `next` being the `after` that follows."""
        limit = reading.page_size(request)
        if "after" in request.query_params:
            after = reading.integer(request, "after", 0)
            made = await self._store.admin.sessions_as_made(after=after, limit=limit)
            return JSONAnswer(
                {
                    "sessions": [views.session(record) for record in made],
                    "next": made[-1].number if len(made) == limit else None,
                }
            )
        before = request.query_params.get("before")
        records = await self._store.sessions(
            limit=limit, before=None if before is None else reading.session_key(before, "before")
        )
        full = len(records) == limit
        return JSONAnswer(
            {
                "sessions": [views.session(record) for record in records],
                "next": str(records[-1].key) if full else None,
            }
        )

    async def show(self, request: Request) -> Response:
        """The newest messages of one transcript, oldest first; `next` is the `before` of the page
        that stands before this one. With `after` the first ones behind that id, `next` being the
        `after` of the page that follows. 404 for a session that there is not."""
        key = reading.key_in_path(request, _BEFORE_KEY)
        assert key is not None
        limit = reading.page_size(request)
        forward = "after" in request.query_params
        page = await self._store.admin.transcript(
            key,
            limit=limit,
            before=reading.integer(request, "before", 0) or None,
            after=reading.integer(request, "after", 0) if forward else None,
        )
        if page is None:
            raise Problem(404, f"there is no session {key}")
        return JSONAnswer(
            {
                "session_key": str(key),
                "messages": [views.message(message) for message in page.messages],
                "next": page.messages[-1 if forward else 0].id if page.more else None,
            }
        )

    async def stop(self, request: Request) -> Response:
        """Stop the live turn; without one, what waits to begin. It holds once this is answered."""
        key = reading.key_in_path(request, _BEFORE_KEY, b"/stop")
        if key is None:
            raise Problem(405, "POST cannot be done here", headers={"allow": "GET, HEAD"})
        await reading.read_body(request)
        outcome = (await self._loop.stop(key)).outcome
        turn_id = outcome.stopped_turn_id if outcome else None
        waiting = outcome.stopped_waiting if outcome else 0
        return JSONAnswer(
            {
                "session_key": str(key),
                "stopped": turn_id is not None or waiting > 0,
                "stopped_turn_id": turn_id,
                "stopped_waiting": waiting,
                "still_pending": outcome.still_pending if outcome else 0,
            }
        )

    async def turn(self, request: Request) -> Response:
        """One turn, with the sum of its usage."""
        turn_id: str = request.path_params["id"]
        record = await self._store.turn(turn_id)
        if record is None:
            raise Problem(404, f"there is no turn {turn_id!r}")
        return JSONAnswer(views.turn(record))
