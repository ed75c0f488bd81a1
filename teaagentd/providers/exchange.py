"""One chat completions server: a request out, an answer in, whatever happens in between.

The adapters are thin shells around `ChatServer`. Everything that a server, the network or the
SDK may do wrong leaves here as a `ProviderError` of the right kind.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread
import structlog

from teaagentd.abc import Clock, OnChunk
from teaagentd.errors import ProviderError, ProviderUnavailable, RequestRefused
from teaagentd.providers.calls import read_json
from teaagentd.providers.failures import Refusal, error_from, mask, read_refusal, retry_after
from teaagentd.providers.habits import (
    DOUBT,
    SIGNATURE,
    Habits,
    pictures_in,
    without_pictures,
    without_thinking,
)
from teaagentd.providers.thoughts import Spoken
from teaagentd.providers.wire import Body, Pieces, encode
from teaagentd.types import Attempt, FinishReason, LLMResponse, ToolCall, Usage

if TYPE_CHECKING:
    from teaagentd.providers.sdk import SdkClient

log = structlog.get_logger()

MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""An answer, its framing included, may not be longer."""
_CONNECT_S = 15.0
_AFTER_END_S = 2.0
"""Once the end was said, usage figures are waited for no longer than this."""
_DRAIN_S = 0.1
"""So long the rest of a finished body is read, so that its connection can serve again."""
_UNKNOWN = Usage()


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Seconds of silence that are borne. Comments and chunks without content are silence."""

    first_token_s: float = 300.0
    idle_s: float = 120.0


class Reading(Protocol):
    """A reply of one dialect as it is put together; made anew for each request."""

    finish: FinishReason | None
    finish_word: str | None
    """The server's own word for the end, while it has said one."""
    over: bool
    """Whether the server said that nothing more comes."""
    model: str | None
    spoken: Spoken

    @property
    def usage(self) -> Usage: ...

    @property
    def thinking(self) -> str | None:
        """See `LLMMessage.thinking`."""

    @property
    def content(self) -> str: ...

    @property
    def reasoning(self) -> str | None: ...

    def add(self, chunk: Mapping[str, object]) -> tuple[str, bool]:
        """Take one chunk, or a whole answer. Returns the text that it adds, and whether it
        brought the answer forward at all (text, reasoning, a piece of a call, the end)."""

    def end(self) -> str:
        """The text that was still held back; called once, after the last chunk."""

    def tool_calls(self, *, whole: bool) -> tuple[ToolCall, ...]:
        """The calls. `whole` says that the answer ended as it should."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How servers of a kind are talked to: by the module that connects to them, imported when
    first needed, and by what reads their answers."""

    sdk: str
    reading: Callable[[bool], Reading]
    """Given whether the model's replies begin within a thought."""


class ChatServer:
    """One server, and the one client that talks to it for the adapter's life.

    The SDK is imported, and the client with its TLS context built, in a worker thread at the
    first use. `loopback` says that the server is a process of ours on this machine.
    """

    def __init__(
        self,
        *,
        dialect: Dialect,
        provider: str,
        base_url: str,
        api_key: str | None,
        clock: Clock,
        timeouts: Timeouts,
        loopback: bool = False,
    ) -> None:
        self.dialect = dialect
        self.provider = provider
        self.secret = api_key
        self.clock = clock
        self.timeouts = timeouts
        self.place = provider if loopback else f"{provider} at {_address(base_url)}"
        """The server as people are told of it."""
        self._base_url = base_url
        self._loopback = loopback
        self._client: SdkClient | None = None
        self._closed = False
        self._connecting = anyio.Lock()
        self._habits: dict[str, Habits] = {}

    async def client(self) -> SdkClient:
        """The one client, built when it is first asked for. Raises `ProviderUnavailable` once
        closed."""
        if self._client is None:
            async with self._connecting:
                if self._closed:
                    raise ProviderUnavailable(f"{self.provider} is closed", provider=self.provider)
                if self._client is None:
                    self._client = await anyio.to_thread.run_sync(self._build)
        return self._client

    def _build(self) -> SdkClient:
        module = importlib.import_module(self.dialect.sdk)
        client: SdkClient = module.connect(
            base_url=self._base_url,
            api_key=self.secret,
            connect_s=_CONNECT_S,
            loopback=self._loopback,
        )
        return client

    def move(self, base_url: str) -> None:
        """The server is at another address from now on."""
        self._base_url = base_url
        if self._client is not None:
            self._client.move(base_url)

    async def aclose(self) -> None:
        """Close the connections, those in use too. Idempotent, and final."""
        async with self._connecting:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def complete(self, body: Body, *, purpose: str, on_chunk: OnChunk | None) -> LLMResponse:
        """The answer to `body`. Raises `ProviderError` only. A model that refuses an option which
        an answer can do without, or has another name for it, is asked again, now and ever after
        in its way."""
        model = str(body["model"])
        habits = self._habits.setdefault(model, Habits())
        attempts: list[Attempt] = []
        doubted: frozenset[str] = frozenset()
        while True:
            sent = habits.fit(body)
            exchange = _Exchange(self, model, habits, purpose, on_chunk)
            try:
                response = await exchange.run(encode(sent))
            except ProviderError as problem:
                attempts.extend(problem.attempts)
                problem.attempts = tuple(attempts)
                option = habits.learn(problem, sent)
                if option is None:
                    raise
                if option == SIGNATURE:
                    body = {**body, "messages": without_thinking(body)}
                elif option == DOUBT:
                    doubted = pictures_in(sent)
                    body = {**body, "messages": without_pictures(body)}
                log.warning(
                    "provider_option_changed", provider=self.provider, model=model, option=option
                )
            else:
                habits.answered(sent)
                if doubted:
                    habits.answered_without(doubted)
                return replace(response, attempts=(*attempts, *response.attempts))

    def sees(self, model: str) -> bool:
        """Whether a model may take pictures, as far as was found out here."""
        habits = self._habits.get(model)
        return habits is None or not habits.blind


def _address(base_url: str) -> str:
    """`base_url` without the name and password that may be in it."""
    scheme, _, rest = base_url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


class _Exchange:
    """One request and its answer."""

    def __init__(
        self,
        server: ChatServer,
        model: str,
        habits: Habits,
        purpose: str,
        on_chunk: OnChunk | None,
    ) -> None:
        self._server = server
        self._model = model
        self._habits = habits
        self._purpose = purpose
        self._on_chunk = on_chunk
        self._answer = server.dialect.reading(habits.prefilled)
        self._begun = False
        self._readable = True
        self._streamed = False
        self._closed = False
        """The server said that nothing more will come."""
        self._limit_s = 0.0
        self._borne_at = -math.inf
        self._silence = anyio.CancelScope()
        self._started_at = server.clock.now_ms()
        self._started = server.clock.monotonic()

    async def run(self, content: bytes | Pieces) -> LLMResponse:
        """Send `content`, read the answer, and say how it went."""
        try:
            await self._read_within_limits(content)
            self._emit(self._answer.end())
            # So the next reply of this model need not be shown and taken back.
            self._habits.prefilled = self._answer.spoken.thoughts.unopened
            return self._response()
        except ProviderError as problem:
            problem.provider = self._server.provider
            problem.streamed = self._streamed
            problem.attempts = (self._attempt(str(problem)),)
            raise

    async def _read_within_limits(self, content: bytes | Pieces) -> None:
        client = await self._server.client()
        with self._silence:
            self._bear(self._server.timeouts.first_token_s)
            try:
                await self._read(client, content)
            except ProviderError:
                raise
            except Exception as problem:
                # The SDK and what is below it raise what they like; this edge translates it.
                if self._answer.finish is None:
                    raise self._translated(client, problem) from None
                log.debug("provider_broke_after_end", error=type(problem).__name__)
        if self._silence.cancelled_caught and not self._closed and self._answer.finish is None:
            raise ProviderUnavailable(
                f"{self._server.provider} fell silent: "
                f"{'no more' if self._begun else 'no'} content for {self._limit_s:g} s"
            )

    def _bear(self, seconds: float) -> None:
        """So much silence from now on, and a twentieth of it more: moving the deadline costs
        more than all else that is done with a chunk, and so not every chunk moves it."""
        now, slack_s = self._server.clock.monotonic(), seconds / 20
        if seconds == self._limit_s and now < self._borne_at + slack_s:
            return
        self._limit_s, self._borne_at = seconds, now
        self._silence.deadline = anyio.current_time() + seconds + slack_s

    async def _read(self, client: SdkClient, content: bytes | Pieces) -> None:
        reply = await client.post(content, MAX_ANSWER_BYTES)
        try:
            empty = True
            async for name, data in reply.events():
                if self._closed:
                    continue
                empty = False
                if data.startswith("[DONE]"):
                    self._closed = True
                    self._bear(_DRAIN_S)
                else:
                    self._take(name, data)
            if empty:
                self._take_whole(reply.eventless)
        finally:
            with anyio.CancelScope(shield=True):
                await reply.aclose()

    def _take(self, name: str, data: str) -> None:
        """One event of the stream."""
        try:
            chunk = read_json(data)
        except ValueError:
            if name == "error":
                raise self._refusal(Refusal(status=None, code="", message=data)) from None
            if self._readable:
                log.warning("provider_event_unreadable", provider=self._server.provider)
            self._readable = False
            return
        if not isinstance(chunk, dict):
            return
        if refusal := read_refusal(chunk):
            raise self._refusal(refusal)
        if name == "error":
            raise self._refusal(Refusal(status=None, code="", message=data))
        text, forward = self._answer.add(chunk)
        self._emit(text)
        if self._answer.over:
            self._closed = True
            self._bear(_DRAIN_S)
        elif self._answer.finish is not None:
            self._bear(min(_AFTER_END_S, self._server.timeouts.idle_s))
        elif forward:
            self._begun = True
            self._bear(self._server.timeouts.idle_s)

    def _take_whole(self, body: bytes) -> None:
        """A body without an event: a plain answer, an error, or nothing of use."""
        try:
            whole = read_json(body)
        except ValueError:
            whole = None
        if isinstance(whole, dict):
            if refusal := read_refusal(whole):
                raise self._refusal(refusal)
            text, forward = self._answer.add(whole)
            self._emit(text)
            self._closed = forward
            if forward:
                return
        head = mask(body[:200].decode("utf-8", "replace"), self._server.secret)
        log.warning("provider_said_nothing", provider=self._server.provider, head=head)
        what = f"{self._server.place} ended the answer without a message"
        if body.lstrip()[:1] == b"<":
            what += "; it sent a web page: is base_url the address of its API?"
        raise ProviderUnavailable(what)

    def _emit(self, text: str) -> None:
        if text and self._on_chunk is not None:
            self._streamed = True
            self._on_chunk(text)

    def _response(self) -> LLMResponse:
        """The whole answer; raises when it is not one."""
        answer, provider = self._answer, self._server.provider
        if answer.finish_word == "error":
            raise ProviderUnavailable(f"{provider} broke the answer off with an error")
        if answer.finish is None and not self._closed:
            raise ProviderUnavailable(f"{provider} ended the answer in the middle")
        content = answer.content
        calls = answer.tool_calls(whole=answer.finish not in (None, "length"))
        finish = answer.finish or "other"
        if not calls and not content and (answer.finish is None or finish == "tool_calls"):
            raise ProviderUnavailable(f"{provider} ended the answer without a message")
        if finish in ("tool_calls", "stop", "other"):
            finish = "tool_calls" if calls else "stop"
        return LLMResponse(
            content=content,
            tool_calls=calls,
            reasoning=answer.reasoning,
            thinking=answer.thinking,
            finish_reason=finish,
            usage=answer.usage,
            provider=provider,
            model=answer.model or self._model,
            attempts=(self._attempt(None),),
            restated=answer.spoken.thoughts.restated,
        )

    def _translated(self, client: SdkClient, problem: Exception) -> ProviderError:
        """An exception of the SDK or below as an error of ours."""
        failure = client.failure(problem)
        provider, secret = self._server.provider, self._server.secret
        if failure.status is not None:
            refusal = read_refusal(failure.body, failure.status)
            wait = retry_after(failure.headers, self._server.clock.now_ms())
            error = self._refusal(
                refusal or Refusal(status=failure.status, code="", message=""), wait
            )
            error.unbilled = True
            return error
        text = mask(failure.text, secret)
        if failure.passing:
            if self._begun:
                return ProviderUnavailable(f"{provider} broke off while answering: {text}")
            away = ProviderUnavailable(f"{self._server.place} cannot be reached: {text}")
            away.unbilled = failure.unsent
            return away
        kind = type(problem).__name__
        log.error("provider_failed", provider=provider, error=kind)
        return RequestRefused(f"the request to {provider} could not be made: {kind}: {text}")

    def _refusal(self, refusal: Refusal, wait_s: float | None = None) -> ProviderError:
        return error_from(
            refusal,
            provider=self._server.provider,
            secret=self._server.secret,
            retry_after_s=wait_s,
        )

    def _attempt(self, error: str | None) -> Attempt:
        clock, usage = self._server.clock, self._answer.usage
        return Attempt(
            provider=self._server.provider,
            model=self._answer.model or self._model,
            purpose=self._purpose,
            usage=None if usage == _UNKNOWN else usage,
            error=error,
            started_at=self._started_at,
            duration_ms=round((clock.monotonic() - self._started) * 1000),
        )
