"""One running tool, in a task of its own that can be ended, or left behind when it will not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import anyio
import structlog
from anyio.abc import TaskGroup

from teaagentd.abc import Clock, Tool, Watcher
from teaagentd.attachments import Attachments
from teaagentd.errors import FileRefused, ToolError
from teaagentd.types import Attachment, Phase, SessionKey, ToolCall

log = structlog.get_logger()

Waiting: TypeAlias = Callable[[str], AbstractAsyncContextManager[None]]
"""Around what a call waits for: gives the turn's slot back. Raises `TooManyParked`."""


@asynccontextmanager
async def unslotted(what: str) -> AsyncIterator[None]:
    """The `Waiting` of a run that holds no slot."""
    yield


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlace:
    """Whose run it is: what its calls may know of it. `waiting` comes from the turn."""

    session_key: SessionKey
    turn_id: str
    waiting: Waiting = unslotted


class Deadline:
    """A limit that stands still while its call waits; `scope` is cancelled when it passes."""

    def __init__(self, timeout_s: float) -> None:
        self.scope = anyio.CancelScope()
        self._left_s = timeout_s
        self._waits = 1

    def start(self) -> None:
        self._go_on()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        if self._waits == 0:
            self._left_s = max(self.scope.deadline - anyio.current_time(), 0.0)
            self.scope.deadline = inf
        self._waits += 1
        try:
            yield
        finally:
            self._go_on()

    def _go_on(self) -> None:
        self._waits -= 1
        if self._waits == 0:
            self.scope.deadline = anyio.current_time() + self._left_s


class CallContext:
    """The `ToolContext` of one call."""

    def __init__(
        self,
        *,
        place: RunPlace,
        call: ToolCall,
        watcher: Watcher,
        clock: Clock,
        timeout_s: float,
        files: Attachments | None = None,
    ) -> None:
        self.session_key = place.session_key
        self.turn_id = place.turn_id
        self.call_id = call.id
        self.clock = clock
        self.timeout_s = timeout_s
        self.deadline = Deadline(timeout_s)
        self._name = call.name
        self._waiting = place.waiting
        self._watcher = watcher
        self._files = files
        self.attachments: list[Attachment] = []
        """What the call has brought, for its result."""

    async def attach(
        self, data: bytes, *, name: str = "", media_type: str | None = None
    ) -> Attachment:
        if self._files is None:
            raise ToolError("files cannot be kept here")
        try:
            kept = await self._files.keep(data, name=name, media_type=media_type)
        except FileRefused as error:
            raise ToolError(str(error)) from error
        self.attachments.append(kept)
        return kept

    def progress(self, detail: str) -> None:
        self._watcher.phase(Phase.TOOL, f"{self._name}: {detail}")

    @asynccontextmanager
    async def waiting(self, what: str) -> AsyncIterator[None]:
        with self.deadline.standing_still():
            async with self._waiting(what):
                yield


class Execution:
    """Runs one call in a task of `strays`, the group of whoever owns the toolbox.

    The task is not a child of the turn, because a tool may swallow its cancellation: the turn
    ends all the same, and the group keeps the task until it ends by itself. It is cancelled a
    counted number of times, by the event loop's own means: a cancelled scope would deliver its
    cancellation anew in every step of the loop, and burn a processor, for as long as the tool
    swallows it.
    """

    def __init__(self, tool: Tool, call: ToolCall, context: CallContext) -> None:
        self.tool = tool
        self.call = call
        self.context = context
        self.output: str | None = None
        """What the tool returned, None if it raised or was cancelled."""
        self.error: BaseException | None = None
        """What it raised, other than its cancellation."""
        self._task: asyncio.Task[object] | None = None
        self._cancelled = False
        self._ended = anyio.Event()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def run(self, strays: TaskGroup) -> None:
        """Start it and wait until it has ended or its deadline has passed: look at `ended`.
        When this is cancelled the tool goes on; `end` it then."""
        self.context.deadline.start()
        strays.start_soon(self._body, name=f"tool {self.call.name} {self.call.id}")
        with self.context.deadline.scope:
            await self._ended.wait()

    async def end(self, strays: TaskGroup, *, grace_s: float, insist: bool) -> None:
        """Cancel it and wait at most `grace_s` for its end; what then still runs is left to
        `strays`. With `insist` it is cancelled a second time before that: some code swallows
        one cancellation, and to a well-behaved tool it comes late enough to tidy up."""
        try:
            self._cancel()
            await self._wait(grace_s)
            if insist and not self.ended:
                self._cancel()
                await self._wait(_LAST_WORD_S)
        finally:
            if not self.ended:
                log.warning("tool_call_left_behind", tool=self.call.name, call=self.call.id)
                strays.start_soon(self._see_out, name=f"see out {self.call.id}")

    async def _wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._ended.wait()

    async def _see_out(self) -> None:
        await self._wait(_SEE_OUT_S)
        if not self.ended:
            self._cancel()
        await self._ended.wait()
        log.info("tool_call_ended_late", tool=self.call.name, call=self.call.id)

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None and not self.ended:
            self._task.cancel()

    async def _body(self) -> None:
        self._task = asyncio.current_task()
        try:
            # The group's own cancellation must not reach the tool, for the reason given above:
            # at a shutdown the turn that owns the call ends it.
            with anyio.CancelScope(shield=True):
                if not self._cancelled:
                    self.output = await self.tool.run(self.call.arguments, self.context)
        except asyncio.CancelledError:
            # Asked for by `_cancel`, or the tool's own making: the call has come to nothing.
            self._cancelled = True
        except (Exception, SystemExit, BaseExceptionGroup) as error:
            # The boundary that supervises a plugin; the toolbox words and logs what it raised.
            self.error = error
        finally:
            self._ended.set()


_LAST_WORD_S = 0.2
_SEE_OUT_S = 5.0
