"""LongWaits: answers that may take long, and end early with their client or the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from starlette.types import Scope

T = TypeVar("T")

_EXTENSION = "teaagentd.client"


class LongWaits:
    """The long waits of one server, or of one client of it. All belong to its event loop."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()
        self._over = False

    async def attend(self, request: Scope, call: Callable[[], Awaitable[T]]) -> T | None:
        """What `call` returns; None if the client left or the server ends before it does.
        Raises what `call` raises."""
        client = _client_of(request)
        if self._over or client._over:
            return None
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            client._scopes.add(scope)
            try:
                return await call()
            finally:
                self._scopes.discard(scope)
                client._scopes.discard(scope)
        return None

    def extension(self) -> dict[str, dict[object, object]]:
        """The ASGI extension of a client's requests, by which their waits end with it. To wait
        for the message that a client has left would take a task for each request."""
        return {_EXTENSION: {"waits": self}}

    def end(self) -> None:
        """End them all now, and those that come."""
        self._over = True
        for scope in self._scopes:
            scope.cancel()


def _client_of(request: Scope) -> LongWaits:
    client = request["extensions"][_EXTENSION]["waits"]
    assert isinstance(client, LongWaits)
    return client
