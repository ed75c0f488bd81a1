"""The `local` adapter: a model that llama.cpp serves in a child process; no key, no network."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import anyio
import anyio.to_thread
import structlog

from teaagentd.abc import Clock, OnChunk
from teaagentd.errors import ModelMissing, ProviderError, ProviderUnavailable
from teaagentd.providers import model_file
from teaagentd.providers.answer import CHAT
from teaagentd.providers.exchange import ChatServer, Timeouts
from teaagentd.providers.grammar import grammar
from teaagentd.providers.llama_process import LlamaProcess, NotServing, settled
from teaagentd.providers.llama_server import Order
from teaagentd.providers.options import OnProgress, ProviderOptions
from teaagentd.providers.wire import Body, request_body
from teaagentd.types import LLMRequest, LLMResponse

log = structlog.get_logger()

_SLOTS = 2
"""Answers worked on at once; each can have the whole window."""
_CACHE_MIB = 256
_LOAD_S = 600.0
_TELL_S = 2.0
"""So often whoever waits is told that the model is still loading."""
_GOOD_WHILE_S = 60.0
"""A child that lived so long was a good one: the next wait is the first again."""
_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 60.0
_LONGEST_WAIT_S = 5.0
"""A longer wait is not waited out in the middle of a request: the request fails."""
_STOP_S = 3.0
_OUTPUT_TOKENS = 2048
"""Limit where the request has none: a small model may never stop by itself."""


class LocalAdapter:
    """One GGUF file, loaded at the first request, unloaded after `idle_minutes` (0: never).

    When its process dies, the request that it was working on fails as a passing failure and the
    next one starts it again, after a wait that doubles from death to death.
    """

    native_tools = False

    def __init__(
        self,
        *,
        name: str,
        model: str | None,
        clock: Clock,
        timeouts: Timeouts | None = None,
        context_window: int | None = None,
        idle_minutes: float = 15.0,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.name = name
        self.model = model_file.model_name(model)
        self.small = model is None
        self.vision = False
        self._window = context_window or model_file.DEFAULT_WINDOW
        self.context_window = context_window if model else self._window
        self._path = model
        self._clock = clock
        self._idle_s = idle_minutes * 60
        self._on_progress = on_progress
        self._key = secrets.token_urlsafe(32)
        self._server = ChatServer(
            dialect=CHAT,
            provider=name,
            base_url="http://127.0.0.1:1/v1",
            api_key=self._key,
            clock=clock,
            timeouts=timeouts or Timeouts(),
            loopback=True,
        )
        self._process: LlamaProcess | None = None
        self._ending: list[LlamaProcess] = []
        self._starting = anyio.Lock()
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None
        self._pointed_at: LlamaProcess | None = None
        self._deaths = 0
        self._next_start = 0.0
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The child's process id while there is one."""
        return self._process.pid if self._process and self._process.alive else None

    async def warm(self) -> None:
        """Import the SDK and build the client now. The model is loaded at the first request."""
        await self._server.client()

    async def complete(self, request: LLMRequest, on_chunk: OnChunk | None = None) -> LLMResponse:
        with self._in_use():
            process = await self._serving()
            body = self._body(request)
            try:
                response = await self._server.complete(
                    body, purpose=request.purpose, on_chunk=on_chunk
                )
            except ProviderUnavailable as problem:
                if not await self._has_died(process):
                    raise
                raise self._died(process, problem) from None
            if "grammar" in body and not response.content.startswith("{"):
                log.warning("local_form_not_kept", model=self.model)
            return response

    def _body(self, request: LLMRequest) -> Body:
        body = request_body(replace(request, reasoning=None), model=self.model)
        body.setdefault("temperature", 0.0)
        body.setdefault("max_tokens", _OUTPUT_TOKENS)
        # Measured with the embedded model: without any penalty it repeats itself to the limit,
        # and from 1.1 on it avoids the words of the decision's form.
        body["repeat_penalty"] = 1.05
        if body.pop("response_format", None) and request.response_schema is not None:
            body["grammar"] = grammar(request.response_schema)
        return body

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """The model stays loaded while this is held, and for the idle time after."""
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            yield
        finally:
            self._users -= 1
            if not self._users and self._idle_s and not self._closed:
                loop = asyncio.get_running_loop()
                self._idle = loop.call_later(self._idle_s, self._unload)

    def _unload(self) -> None:
        self._idle = None
        process, self._process = self._process, None
        if process is not None:
            log.info("local_unloaded", model=self.model)
            self._let_go(process)

    def _let_go(self, process: LlamaProcess) -> None:
        process.stop()
        self._ending = [other for other in self._ending if other.alive]
        self._ending.append(process)

    async def _serving(self) -> LlamaProcess:
        """The child, ready; started if there is none."""
        async with self._starting:
            if self._closed:
                raise ProviderUnavailable(f"{self.name} is closed", provider=self.name)
            process = self._process
            if process is not None and not process.alive:
                self._count_death(process)
                process = None
            try:
                if process is None:
                    process = await self._start()
                await self._until_ready(process)
            except ProviderError as problem:
                problem.provider = self.name
                raise
            return process

    async def _start(self) -> LlamaProcess:
        await self._back_off()
        file = await anyio.to_thread.run_sync(model_file.find, self._path)
        if self._closed:
            raise ProviderUnavailable(f"{self.name} is closed")
        size = f"{file.size / 2**20:.0f} MiB"
        self._tell(f"loading {self.model} ({size})")
        process = LlamaProcess(
            Order(
                model=str(file.path),
                alias=self.model,
                key=self._key,
                context=self._window * _SLOTS,
                slots=_SLOTS,
                cache_mib=_CACHE_MIB,
                threads=_threads(),
            ),
            clock=self._clock,
        )
        self._process = process
        process.start()
        return process

    async def _until_ready(self, process: LlamaProcess) -> None:
        """Wait for the child, telling of it; then point the client at it."""
        if process is self._pointed_at:
            return
        if not process.ready.done():
            began = self._clock.monotonic()
            with anyio.move_on_after(_LOAD_S):
                while not process.ready.done():
                    with anyio.move_on_after(_TELL_S):
                        await settled(process.ready)
                        break
                    passed_s = self._clock.monotonic() - began
                    self._tell(f"still loading {self.model} ({passed_s:.0f} s)")
            if not process.ready.done():
                process.kill()
                raise ProviderUnavailable(f"{self.model} was not loaded within {_LOAD_S:.0f} s")
        try:
            served = process.ready.result()
        except NotServing as problem:
            process.stop()
            with anyio.move_on_after(_STOP_S):
                await settled(process.ended)
            raise self._not_loaded(str(problem), process) from None
        self.context_window = min(served["window"], self._window)
        self._server.move(f"http://127.0.0.1:{served['port']}/v1")
        self._pointed_at = process
        self._tell(f"{self.model} is loaded")

    def _not_loaded(self, reason: str, process: LlamaProcess) -> ProviderError:
        if "No module named 'xllamacpp'" in reason:
            return ModelMissing(
                "the local model needs the package xllamacpp; run: pip install xllamacpp"
            )
        if reason.startswith("it ended"):
            return ProviderUnavailable(f"the process that loads {self.model} is gone: {reason}")
        said = [line for line in process.last_lines if " E " in line]
        log.warning("local_not_loaded", model=self.model, reason=reason, said=said[:3])
        return ModelMissing(
            f"llama.cpp cannot load {self.model} ({reason}); set its model to another .gguf file"
        )

    def _count_death(self, process: LlamaProcess) -> None:
        """A child ended that was not told to: the next start has to wait."""
        self._process = None
        self._deaths = 1 if process.lived_s >= _GOOD_WHILE_S else self._deaths + 1
        wait_s = min(_BACKOFF_S * 2 ** (self._deaths - 1), _LONGEST_BACKOFF_S)
        self._next_start = process.ended_at + wait_s
        log.warning(
            "local_died",
            model=self.model,
            status=process.ended.result(),
            lived_s=round(process.lived_s, 1),
            deaths=self._deaths,
            wait_s=wait_s,
        )

    async def _back_off(self) -> None:
        wait_s = self._next_start - self._clock.monotonic()
        if wait_s <= 0:
            return
        if wait_s > _LONGEST_WAIT_S:
            raise ProviderUnavailable(
                f"{self.model} ended unexpectedly {self._deaths} times in a row; "
                f"it is started again in {wait_s:.0f} s",
                provider=self.name,
            )
        self._tell(f"starting {self.model} again in {max(wait_s, 1):.0f} s")
        await anyio.sleep(wait_s)

    async def _has_died(self, process: LlamaProcess) -> bool:
        """Whether `process` is gone, or goes at once: a broken connection may be seen first."""
        if process.alive:
            with anyio.move_on_after(0.5):
                await settled(process.ended)
        return not process.alive

    def _died(self, process: LlamaProcess, problem: ProviderUnavailable) -> ProviderUnavailable:
        return ProviderUnavailable(
            f"the process that serves {self.model} ended unexpectedly "
            f"(status {process.ended.result()}); the next request starts it again",
            provider=self.name,
            attempts=problem.attempts,
            streamed=problem.streamed,
        )

    def _tell(self, line: str) -> None:
        if self._on_progress is not None:
            self._on_progress(line)

    async def aclose(self) -> None:
        """End the child and see that it has ended; close the client."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        process, self._process = self._process, None
        if process is not None:
            self._let_go(process)
        with anyio.CancelScope(shield=True):
            await self._see_them_end()
            await self._server.aclose()

    async def _see_them_end(self) -> None:
        """Wait for the children that were told to end; kill those that do not."""
        for last in (False, True):
            with anyio.move_on_after(_STOP_S):
                for process in self._ending:
                    await settled(process.ended)
            self._ending = [process for process in self._ending if process.alive]
            for process in self._ending:
                if last:
                    log.error("local_left_behind", pid=process.pid)
                else:
                    process.kill()


def _threads() -> int:
    """Threads that compute: one for each core that this process may use, but one. They wait for
    each other after every step; where something else takes a core for itself, one thread too
    many costs nine tenths of the speed (measured on two cores: 4 tokens/s instead of 46)."""
    return max(1, _cores() - 1)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def create(options: ProviderOptions) -> LocalAdapter:
    """The adapter for `options`; its model is looked for when it is first used."""
    return LocalAdapter(
        name=options.name or options.type,
        model=options.model,
        clock=options.clock,
        timeouts=Timeouts(
            first_token_s=options.first_token_timeout_s, idle_s=options.idle_timeout_s
        ),
        context_window=options.context_window,
        idle_minutes=options.idle_minutes,
        on_progress=options.on_progress,
    )
