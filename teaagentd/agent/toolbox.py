"""The tools of a run, and the path of one call: prepare, approve, execute, record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from teaagentd.abc import Clock, RunJournal, SystemClock, Tool, ToolContext, Watcher
from teaagentd.agent.decisions import ANSWER
from teaagentd.agent.execution import CallContext, Execution, RunPlace
from teaagentd.attachments import Attachments
from teaagentd.errors import (
    ConfigError,
    FatalToolError,
    StoreError,
    TeaAgentError,
    ToolError,
    ToolValidationError,
)
from teaagentd.transcript import clean_text
from teaagentd.types import (
    Attachment,
    Effect,
    JsonObject,
    Phase,
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolStatus,
)

log = structlog.get_logger()

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_PROBLEMS = 5
_PROBLEM_CHARS = 300


Problems = Callable[[JsonObject], list[str]]
"""What keeps arguments from fitting a schema, worded for the model; empty if they fit."""


class _Registered:
    """A tool with the validator of its arguments, compiled when it is first needed."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self._problems: Problems | None = None

    async def problems(self, arguments: JsonObject) -> list[str]:
        if self._problems is None:
            # The first import takes 80 ms of CPU, which the event loop need not stand still for.
            self._problems = await anyio.to_thread.run_sync(compile_schema, self.tool.spec)
        return self._problems(arguments)


def compile_schema(spec: ToolSpec) -> Problems:
    """Raises `ToolError` when the schema itself is wrong."""
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(spec.parameters)
    except SchemaError as error:
        log.error("tool_schema_invalid", tool=spec.name, error=error.message)
        raise ToolError("this tool is broken: its schema is invalid; do not use it") from error
    validator = Draft202012Validator(spec.parameters)

    def problems(arguments: JsonObject) -> list[str]:
        found = []
        for error in validator.iter_errors(arguments):
            where = ".".join(str(step) for step in error.absolute_path) or "arguments"
            found.append(_clip(f"{where}: {error.message}", _PROBLEM_CHARS))
            if len(found) == _MAX_PROBLEMS:
                break
        return found

    return problems


class ToolRegistry:
    """The tools that a model is offered, always in the order of their names, so that the same
    tools give the same request. One name, one tool."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, _Registered] = {}
        self.specs: tuple[ToolSpec, ...] = ()
        for tool in tools:
            self.register(tool)

    def register(self, tool: Tool) -> None:
        """Raises `ConfigError` for a name that is taken, reserved or that providers refuse."""
        name = tool.spec.name
        if not _NAME.fullmatch(name) or name == ANSWER:
            raise ConfigError(
                f"a tool cannot be named {name!r}: 1 to 64 letters, digits, '_' or '-', "
                f"and not {ANSWER!r}"
            )
        if name in self._tools:
            raise ConfigError(f"two tools are named {name!r}; switch one of them off")
        if tool.spec.parameters.get("type") != "object":
            raise ConfigError(f"the parameters of tool {name!r} are no schema of an object")
        self._tools[name] = _Registered(tool)
        self.specs = tuple(self._tools[known].tool.spec for known in sorted(self._tools))

    async def find(self, call: ToolCall) -> Tool:
        """The tool that `call` can be given to. Raises `ToolValidationError`, worded for the
        model, when there is none or it does not take these arguments."""
        if call.problem is not None:
            raise ToolValidationError(call.problem)
        registered = self._tools.get(call.name)
        if registered is None:
            known = ", ".join(spec.name for spec in self.specs) or "none"
            raise ToolValidationError(f"there is no tool {call.name!r}; the tools are: {known}")
        if problems := await registered.problems(call.arguments):
            listed = "; ".join(problems)
            raise ToolValidationError(
                f"the arguments do not fit: {listed}. Mend them and call again"
            )
        return registered.tool


class Approval(Protocol):
    """Decides whether a prepared call may run."""

    async def refusal(self, call: ToolCall, spec: ToolSpec, context: ToolContext) -> str | None:
        """None lets it run; else the reason, worded for the model. May wait for a person,
        inside of `context.waiting`."""


class HarmlessOnly:
    """Lets tools run that have no effect on anything."""

    async def refusal(self, call: ToolCall, spec: ToolSpec, context: ToolContext) -> str | None:
        if spec.effects <= {Effect.NONE}:
            return None
        return f"{call.name} is not allowed here; tell the user that it needs permission"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallLimits:
    """What one call, and the calls of one decision, may take.

    A tool that is still running `grace_s` after its deadline (`stop_grace_s` after the turn
    was stopped) is left behind.
    """

    timeout_s: float = 120.0
    """For tools that name no timeout of their own."""
    grace_s: float = 2.0
    stop_grace_s: float = 0.5
    output_bytes: int = 64 * 1024
    parallel: int = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """One call that has its result. `fatal`: the run must not go on."""

    call: ToolCall
    result: ToolResult
    fatal: bool = False


class Toolbox:
    """Runs the calls of decisions. One for all runs; `strays` outlives them all: its owner
    waits in it for tools that were left behind."""

    def __init__(
        self,
        *,
        registry: ToolRegistry,
        strays: TaskGroup,
        approval: Approval | None = None,
        limits: CallLimits | None = None,
        clock: Clock | None = None,
        files: Attachments | None = None,
    ) -> None:
        self._registry = registry
        self._strays = strays
        self._approval = approval or HarmlessOnly()
        self._limits = limits or CallLimits()
        self._clock = clock or SystemClock()
        self._files = files
        self._left_behind: set[Execution] = set()

    @property
    def left_behind(self) -> tuple[str, ...]:
        """The names of tools that did not end when told to and are still at work. `strays` does
        not close before they end; a process that will not wait for them must exit hard."""
        self._left_behind = {one for one in self._left_behind if not one.ended}
        return tuple(sorted(one.call.name for one in self._left_behind))

    async def run(
        self, calls: Sequence[ToolCall], *, journal: RunJournal, watcher: Watcher, place: RunPlace
    ) -> tuple[Finished, ...]:
        """Run `calls` side by side; their results, in the order of the calls.

        Each result is in the journal as soon as its call has ended. Whatever one tool raises
        becomes its own result and touches no other. Raises what the journal raises, after the
        running calls were ended. When this is cancelled it ends the running calls first.
        """
        finished: dict[int, Finished] = {}
        broken: list[Exception] = []
        free = anyio.Semaphore(self._limits.parallel)

        async def one(index: int, call: ToolCall) -> None:
            async with free:
                try:
                    finished[index] = await self._call(call, journal, watcher, place)
                except Exception as error:
                    # Tools cannot raise through here: the journal has failed or met the fence.
                    broken.append(error)
                    group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for index, call in enumerate(calls):
                group.start_soon(one, index, call, name=f"call {call.name} {call.id}")
        if broken:
            raise broken[0]
        return tuple(finished[index] for index in range(len(calls)))

    async def _call(
        self, call: ToolCall, journal: RunJournal, watcher: Watcher, place: RunPlace
    ) -> Finished:
        try:
            execution = await self._prepare(call, watcher, place)
            await self._approve(execution)
        except ToolError as error:
            log.info("tool_call_refused", tool=call.name, call=call.id, kind=type(error).__name__)
            return await self._record(journal, call, f"error: {error}", "error")
        await journal.started(call)
        watcher.phase(Phase.TOOL, call.name)
        return await self._execute(execution, journal)

    async def _prepare(self, call: ToolCall, watcher: Watcher, place: RunPlace) -> Execution:
        tool = await self._registry.find(call)
        timeout_s = self._limits.timeout_s if tool.timeout_s is None else tool.timeout_s
        context = CallContext(
            place=place,
            call=call,
            watcher=watcher,
            clock=self._clock,
            timeout_s=timeout_s,
            files=self._files,
        )
        return Execution(tool, call, context)

    async def _approve(self, execution: Execution) -> None:
        call, spec = execution.call, execution.tool.spec
        try:
            reason = await self._approval.refusal(call, spec, execution.context)
        except Exception as error:
            # A policy is a plugin, and this its boundary: one that fails allows nothing.
            log.exception("approval_failed", tool=call.name, call=call.id)
            raise ToolError("it could not be decided whether this call is allowed") from error
        if reason is not None:
            raise ToolError(reason)

    async def _execute(self, execution: Execution, journal: RunJournal) -> Finished:
        try:
            await execution.run(self._strays)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._stop(execution, journal)
            raise
        timed_out = not execution.ended
        if timed_out:
            await self._end(execution, self._limits.grace_s, insist=True)
            log.warning(
                "tool_call_timed_out",
                tool=execution.call.name,
                call=execution.call.id,
                ended=execution.ended,
            )
        return await self._record_outcome(execution, journal, timed_out=timed_out)

    async def _stop(self, execution: Execution, journal: RunJournal) -> None:
        """The turn is being stopped: end its call. A result that came all the same is kept."""
        if not execution.ended:
            await self._end(execution, self._limits.stop_grace_s, insist=False)
        if execution.output is not None:
            with suppress(StoreError):
                await self._record_outcome(execution, journal, timed_out=False)

    async def _end(self, execution: Execution, grace_s: float, *, insist: bool) -> None:
        self._left_behind.add(execution)
        await execution.end(self._strays, grace_s=grace_s, insist=insist)
        if execution.ended:
            self._left_behind.discard(execution)

    async def _record_outcome(
        self, execution: Execution, journal: RunJournal, *, timed_out: bool
    ) -> Finished:
        call, error, output = execution.call, execution.error, execution.output
        status: ToolStatus = "ok"
        if timed_out:
            status = "timeout"
            text = f"[timed out: stopped after {execution.context.timeout_s:g} s"
            text += "]" if execution.ended else "; it did not stop and may still be at work]"
            if output:
                text += f"\nWhat it gave until then:\n{output}"
        elif isinstance(error, TeaAgentError):
            status, text = "error", f"error: {error}"
        elif error is not None:
            log.error("tool_raised", tool=call.name, call=call.id, exc_info=error)
            status, text = "error", f"error: {type(error).__name__}: {error}"
        elif output is None:
            status, text = "interrupted", "[interrupted: the tool gave up before it had a result]"
        elif not isinstance(output, str):
            log.error("tool_gave_no_text", tool=call.name, kind=type(output).__name__)
            status, text = "error", "error: the tool gave something that is not text"
        else:
            text = output
        fatal = isinstance(error, FatalToolError)
        files = tuple(execution.context.attachments)
        return await self._record(journal, call, text, status, fatal=fatal, files=files)

    async def _record(
        self,
        journal: RunJournal,
        call: ToolCall,
        text: str,
        status: ToolStatus,
        *,
        fatal: bool = False,
        files: tuple[Attachment, ...] = (),
    ) -> Finished:
        content = bounded(clean_text(text), self._limits.output_bytes)
        result = ToolResult(
            call_id=call.id, name=call.name, content=content, status=status, attachments=files
        )
        with anyio.CancelScope(shield=True):
            await journal.finished(result)
        return Finished(call=call, result=result, fatal=fatal)


def bounded(text: str, limit: int) -> str:
    """`text` in at most about `limit` bytes of UTF-8: its head and tail, with a mark between.
    Never empty."""
    data = text.encode()
    if len(data) <= limit:
        return text or "[no output]"
    tail = limit // 4
    head = limit - tail
    left_out = len(data) - limit
    return (
        data[:head].decode(errors="ignore")
        + f"\n[… {left_out} bytes left out …]\n"
        + data[-tail:].decode(errors="ignore")
    )


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "…"
