"""`/v1/models`: which of the configured models is asked first, and having another one."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from teaagentd.services.models import UnknownModel
from teaagentd.web import reading
from teaagentd.web.problems import invalid
from teaagentd.web.served import Served
from teaagentd.web.views import JSONAnswer

_FIELDS = frozenset({"name", "session_key"})


class ModelChoice:
    """What stands under `/v1/models`."""

    def __init__(self, daemon: Served) -> None:
        self._daemon = daemon

    async def list(self, request: Request) -> Response:
        """The configured models, as they stand for `session_key`, or where none was chosen."""
        key = reading.key_in_query(request)
        entries = await self._daemon.models.entries(key)
        return JSONAnswer({"models": [asdict(entry) for entry in entries]})

    async def choose(self, request: Request) -> Response:
        """Have the model `name` asked first in one session, or without `session_key` in all."""
        values = reading.parse_object(await reading.read_body(request))
        if unknown := values.keys() - _FIELDS:
            raise invalid(min(unknown), "there is no such field")
        name, session = reading.identifier(values, "name"), reading.text(values, "session_key")
        if name is None:
            raise invalid("name", "is missing")
        key = None if session is None else reading.session_key(session)
        models = self._daemon.models
        try:
            choice = models.choice(name, for_all=key is None)
        except UnknownModel as error:
            raise invalid("name", str(error)) from None
        await self._daemon.store.admin.choose(key, choice.model)
        return JSONAnswer({"name": name, "told": models.told(choice)})
