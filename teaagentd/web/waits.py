"""LongWaits: answers that may take long, and end early with their client or the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from starlette.types import Receive

from teaagentd.errors import TeaAgentError

T = TypeVar("T")


class LongWaits:
    """Every long wait of one server. All belong to its event loop."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()
        self._over = False

    async def attend(self, receive: Receive, call: Callable[[], Awaitable[T]]) -> T | None:
        """What `call` returns; None if the client left or the server ends before it does.
        Raises what `call` raises."""
        if self._over:
            return None
        result: T | None = None
        failure: TeaAgentError | None = None
        async with anyio.create_task_group() as tasks:
            self._scopes.add(tasks.cancel_scope)
            try:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                result = await call()
            except TeaAgentError as error:
                # Raised outside, as the task group would wrap it.
                failure = error
            finally:
                self._scopes.discard(tasks.cancel_scope)
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return result

    def end(self) -> None:
        """End them all now, and those that come."""
        self._over = True
        for scope in self._scopes:
            scope.cancel()


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
