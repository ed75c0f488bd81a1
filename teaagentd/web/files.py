"""Files: handing one in before the message that names it, and fetching it again."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from teaagentd.attachments import MAX_BYTES
from teaagentd.types import Attachment
from teaagentd.web import reading, views
from teaagentd.web.problems import Problem, invalid
from teaagentd.web.served import Served
from teaagentd.web.views import JSONAnswer

MOST_FILES = 20
"""Of one message."""


class Files:
    """What stands under `/v1/files`."""

    def __init__(self, daemon: Served) -> None:
        self._files = daemon.intake.files

    async def keep(self, request: Request) -> Response:
        """201 once the body is kept as a file, durably; its `id` is for a message."""
        data = await reading.read_body(request, MAX_BYTES)
        name = request.query_params.get("name", "")
        media_type = request.headers.get("content-type")
        return JSONAnswer(
            views.attachment(await self._files.keep(data, name=name, media_type=media_type)), 201
        )

    async def fetch(self, request: Request) -> Response:
        """The file as it came. It is never shown in place: it may be anything."""
        found = await self._files.find(request.path_params["id"])
        if found is None:
            raise Problem(404, "there is no such file here")
        return FileResponse(
            self._files.place(found),
            media_type=found.media_type,
            headers={
                "content-disposition": f"attachment; filename*=utf-8''{quote(found.path)}",
                "content-security-policy": "sandbox",
                "x-content-type-options": "nosniff",
            },
        )

    async def named(self, values: reading.Values) -> tuple[Attachment, ...]:
        """The files of a message that is posted: `attachments`, each with the `id` under which it
        was handed in and a `name`. 422 for one that is not here."""
        listed = values.get("attachments")
        if listed is None:
            return ()
        if not isinstance(listed, list) or len(listed) > MOST_FILES:
            raise invalid("attachments", f"must be a list of at most {MOST_FILES} files")
        found = []
        for item in listed:
            if not isinstance(item, dict):
                raise invalid("attachments", "must be objects with an id and a name")
            path, name = item.get("id"), item.get("name", "")
            if not isinstance(path, str) or not isinstance(name, str):
                raise invalid("attachments", "must be objects with an id and a name")
            one = await self._files.find(path, name=name)
            if one is None:
                raise invalid("attachments", f"there is no file {path!r}; hand it in again")
            found.append(one)
        return tuple(found)
