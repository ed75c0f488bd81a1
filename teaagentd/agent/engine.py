"""ModelDecisionEngine: one decision from the model, with its repairs, retries and books."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import anyio
import stamina
import stamina.instrumentation
import structlog

from teaagentd.abc import Clock, LLMAdapter, SystemClock, Watcher
from teaagentd.agent import accounts
from teaagentd.agent.accounts import Account
from teaagentd.agent.decisions import FinalAnswer, ToolCalls, is_blank, normalise_calls
from teaagentd.agent.dialects import (
    Ask,
    Dialect,
    JsonDialect,
    NativeDialect,
    invalid_decision,
    plain_text_fallback,
)
from teaagentd.agent.toolbox import ToolRegistry
from teaagentd.attachments import Attachments
from teaagentd.errors import (
    ContextOverflow,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
    RequestRefused,
    ToolsRefused,
    ToolValidationError,
)
from teaagentd.providers.chain import Chain, Link, worth_another_pass
from teaagentd.providers.options import ModelOptions
from teaagentd.transcript import clean_text
from teaagentd.types import (
    Attempt,
    FinishReason,
    LLMMessage,
    LLMRequest,
    LLMResponse,
    Phase,
    Shown,
    ToolCall,
    Usage,
)

log = structlog.get_logger()

# Retries are told of here: stamina's own lines hold the provider's words, which may hold what was
# said, and the first of them would import a metrics library in the middle of a turn.
stamina.instrumentation.set_on_retry_hooks(())

CANCELLED = "Cancelled"
"""The error of an attempt whose request was given up; what it cost is unknown."""


class Unwatched:
    """A `Watcher` for runs that nobody looks at."""

    def phase(self, phase: str, detail: str = "") -> None: ...

    def delta(self, text: str) -> None: ...

    def reset(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How a request that failed in passing is tried again. Waits grow from `wait_s` by doubling
    and are spread by `jitter_s`; what the server asks for is a floor. A wait longer than
    `max_wait_s`, or beyond the deadline of the surrounding cancel scopes, is not begun."""

    attempts: int = 3
    wait_s: float = 0.5
    jitter_s: float = 0.5
    max_wait_s: float = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """One decision. `message` is the assistant message that holds it, `attempts` every request
    made for it, `usages` one for each reply that came."""

    decision: FinalAnswer | ToolCalls
    message: LLMMessage
    attempts: tuple[Attempt, ...]
    usages: tuple[Usage, ...]
    finish_reason: FinishReason = "stop"


class _Show:
    """Hands deltas on, and voids what it has shown."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._shown = False

    def __call__(self, text: str) -> None:
        self._shown = True
        self._watcher.delta(text)

    def void(self) -> None:
        if self._shown:
            self._shown = False
            self._watcher.reset()


@dataclass(kw_only=True, slots=True)
class _Asking:
    """What the requests for one decision share."""

    dialect: Dialect
    watcher: Watcher
    show: _Show
    account: Account
    cache_key: str | None
    purpose: str


class ModelDecisionEngine:
    """Asks a chain of providers for decisions; serves many runs at once, and keeps nothing between
    them but which providers rest.

    An unreadable `json` reply is asked for again at most `max_parse_retries` times; then what
    it says in plain words counts, or else the sentinel of `invalid_decision`. A failure goes to
    the next provider at once; when none is left, a passing one is tried again by `retry`. Text
    shown for a reply that is then void is voided with `watcher.reset()` before the next request,
    and before an error is raised.
    """

    def __init__(
        self,
        *,
        adapter: LLMAdapter | Chain,
        registry: ToolRegistry,
        options: ModelOptions | None = None,
        json_dialect: JsonDialect | None = None,
        small_dialect: JsonDialect | None = None,
        max_parse_retries: int = 2,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        files: Attachments | None = None,
    ) -> None:
        """`options`, if given, are for every link of the chain, instead of each one's own. Without
        `files` no attachment is shown."""
        self.chain = adapter if isinstance(adapter, Chain) else Chain.of(adapter, clock=clock)
        self.max_parse_retries = max_parse_retries
        self._registry = registry
        self._options = options
        self._json = json_dialect or JsonDialect()
        self._small = small_dialect or self._json
        self._retry = retry or RetryPolicy()
        self._clock = clock or SystemClock()
        self._files = files

    def dialect(self, link: Link) -> Dialect:
        """The dialect for `link` now; `auto` follows what its adapter can do."""
        decisions = (self._options or link.options).decisions
        adapter = link.adapter
        native = adapter.native_tools if decisions == "auto" else decisions == "native"
        if native:
            return NativeDialect()
        return self._small if adapter.small else self._json

    async def decide(
        self,
        *,
        system: str,
        history: Sequence[LLMMessage],
        watcher: Watcher | None = None,
        answer_only: bool = False,
        cache_key: str | None = None,
        purpose: str = "turn",
        account: Account | None = None,
    ) -> Decided:
        """The next decision about `history`. With `answer_only` it is a `FinalAnswer`.

        Its content may be blank. Each request is asked for at the gate of `account` before it is
        made, and added to its attempts as it ends, whatever ends it. Raises a `ProviderError`
        whose `attempts` are all that were made here; cancellation ends the open request.
        """
        watcher = watcher or Unwatched()
        ask = Ask(
            system=clean_text(system),
            history=history,
            tools=self._registry.specs,
            answer_only=answer_only,
        )
        account = account or Account()
        attempts = account.attempts
        before = len(attempts)
        asking = _Asking(
            dialect=self.dialect(self.chain.first(account.choice)),
            watcher=watcher,
            show=_Show(watcher),
            account=account,
            cache_key=cache_key,
            purpose=purpose,
        )
        try:
            decision, responses = await self._readable(ask, asking)
        except ProviderError as error:
            error.attempts = tuple(attempts[before:])
            raise
        response = responses[-1]
        if isinstance(decision, ToolCalls):
            decision = replace(decision, calls=_runnable(decision.calls, response, history))
        elif is_blank(decision.content):
            asking.show.void()
        return Decided(
            decision=decision,
            message=asking.dialect.message(response, decision),
            attempts=tuple(attempts[before:]),
            usages=tuple(response.usage for response in responses),
            finish_reason=response.finish_reason,
        )

    async def _readable(
        self, ask: Ask, asking: _Asking
    ) -> tuple[FinalAnswer | ToolCalls, Sequence[LLMResponse]]:
        """A decision, and the replies it took; the last one is the one that holds it."""
        responses: list[LLMResponse] = []
        for tried in range(self.max_parse_retries + 1):
            response = await self._complete(ask, asking)
            responses.append(response)
            try:
                return asking.dialect.read(response, ask), responses
            except ToolValidationError as error:
                log.info("decision_unreadable", tried=tried + 1, problem=str(error))
                asking.show.void()
                repair = asking.dialect.repair(response, str(error))
                ask = replace(ask, history=(*ask.history, *repair))
        decision = plain_text_fallback(responses[-1].content) or invalid_decision()
        log.warning("decision_fallback", kind=decision.metadata["decision_fallback"])
        return decision, responses

    async def _complete(self, ask: Ask, asking: _Asking) -> LLMResponse:
        """One reply, tried again while it fails in passing."""
        asking.watcher.phase(Phase.THINKING)
        try:
            return await self._pass(ask, asking)
        except (ProviderUnavailable, RateLimited) as error:
            failed = error
        # What it had set aside is free for others while this one waits.
        await asking.account.settle()
        return await self._again(ask, asking, failed)

    async def _pass(self, ask: Ask, asking: _Asking) -> LLMResponse:
        """One reply, from the first provider that gives one."""
        failures: list[ProviderError] = []
        tried: frozenset[Link] = frozenset()
        while (link := self.chain.next(tried, asking.account.choice)) is not None:
            if failures:
                log.warning("provider_failed_over", to=link.label, kind=type(failures[-1]).__name__)
                asking.watcher.phase(Phase.THINKING, f"asking {link.label}")
            try:
                response = await self._reply(link, ask, asking)
            except ContextOverflow:
                raise
            except ProviderError as error:
                failures.append(error)
                tried |= self.chain.failed(link, error)
            else:
                self.chain.worked(link)
                return response
        raise worth_another_pass(failures) if failures else self.chain.refusal()

    async def _reply(self, link: Link, ask: Ask, asking: _Asking) -> LLMResponse:
        """One reply of `link`, in JSON instead if it turns out that the model has no tool
        calling."""
        asking.dialect = self.dialect(link)
        try:
            request = await self._request(link, asking, ask)
            return await self._once(link, request, asking)
        except ToolsRefused:
            other = self.dialect(link)
            if isinstance(other, NativeDialect):
                raise
            log.warning("tools_asked_for_in_json", model=link.adapter.model)
            asking.dialect = other
            request = await self._request(link, asking, ask)
            return await self._once(link, request, asking)

    async def _request(self, link: Link, asking: _Asking, ask: Ask) -> LLMRequest:
        options = self._options or link.options
        request = asking.dialect.request(ask)
        shown: Mapping[str, Shown] = {}
        if self._files is not None:
            shown = await self._files.shown(request.messages, sees=link.adapter.vision)
        return replace(
            request,
            shown=shown,
            max_output_tokens=options.max_output_tokens,
            temperature=options.temperature,
            reasoning=options.reasoning,
            cache_key=asking.cache_key,
            purpose=asking.purpose,
        )

    async def _again(
        self, ask: Ask, asking: _Asking, failed: ProviderUnavailable | RateLimited
    ) -> LLMResponse:
        """The tries after one that `failed`. Apart, because making ready for them costs more
        than all else that is done here for a request."""
        policy = self._retry
        next_wait_s = 0.0

        def backoff(error: Exception) -> bool | float:
            if not isinstance(error, ProviderUnavailable | RateLimited):
                return False
            floor_s = error.retry_after_s
            wait_s = max(next_wait_s + policy.jitter_s, floor_s or 0.0)
            if wait_s > policy.max_wait_s:
                return False
            if anyio.current_time() + wait_s >= anyio.current_effective_deadline():
                return False
            return wait_s if floor_s and floor_s > next_wait_s else True

        retrying = stamina.retry_context(
            on=backoff,
            attempts=policy.attempts,
            timeout=None,
            wait_initial=policy.wait_s,
            wait_max=policy.max_wait_s,
            wait_jitter=policy.jitter_s,
        )
        async for attempt in retrying:
            with attempt:
                next_wait_s = attempt.next_wait
                if attempt.num == 1:
                    raise failed
                log.info("request_tried_again", tried=attempt.num, purpose=asking.purpose)
                asking.watcher.phase(Phase.THINKING, f"try {attempt.num} of {policy.attempts}")
                return await self._pass(ask, asking)
        raise AssertionError("a retry context ends by returning or raising")

    async def _once(self, link: Link, request: LLMRequest, asking: _Asking) -> LLMResponse:
        account, adapter = asking.account, link.adapter
        order = await accounts.place(account, link, request, self._clock.now_ms())
        started_at, began = self._clock.now_ms(), self._clock.monotonic()
        attempt = Attempt(
            provider=adapter.name,
            model=adapter.model,
            purpose=request.purpose,
            usage=None,
            error=None,
            started_at=started_at,
            duration_ms=0,
        )

        def ended(error: str | None, usage: Usage | None = None) -> Attempt:
            duration_ms = round((self._clock.monotonic() - began) * 1000)
            return replace(attempt, error=error, usage=usage, duration_ms=duration_ms)

        try:
            response = await adapter.complete(request, asking.dialect.listen(asking.show))
        except anyio.get_cancelled_exc_class():
            account.attempts += accounts.given_up(order, link, ended(CANCELLED))
            raise
        except ProviderError as error:
            asking.show.void()
            name = type(error).__name__
            account.attempts += accounts.failed(order, link, error, ended(name))
            raise
        usage = response.usage if response.usage != Usage() else None
        account.attempts += accounts.answered(order, link, response, ended(None, usage))
        if response.restated:
            asking.show.void()
        if unusable := _unusable(response, request):
            asking.show.void()
            raise unusable
        return replace(
            response,
            content=clean_text(response.content),
            reasoning=None if response.reasoning is None else clean_text(response.reasoning),
        )


def _unusable(response: LLMResponse, request: LLMRequest) -> ProviderError | None:
    """The error that a whole reply amounts to, if it does."""
    if response.tool_calls:
        return None
    offered = request.tools and request.tool_choice == "auto"
    if response.finish_reason == "tool_calls" and offered:
        return ProviderUnavailable(
            "the reply announced tool calls and held none", provider=response.provider
        )
    if response.finish_reason == "content_filter" and is_blank(response.content):
        return RequestRefused(
            "the provider's content filter withheld the reply", provider=response.provider
        )
    return None


def _runnable(
    calls: Sequence[ToolCall], response: LLMResponse, history: Sequence[LLMMessage]
) -> tuple[ToolCall, ...]:
    """`calls` with ids that are new to the history. The last call of a reply that was cut off
    may look like one without arguments, and is not run."""
    if response.finish_reason == "length" and calls and not calls[-1].arguments:
        problem = calls[-1].problem or (
            "the reply was cut off before the arguments were complete; "
            "send less at a time, in several calls"
        )
        calls = (*calls[:-1], replace(calls[-1], problem=problem))
    taken = {call.id for message in history for call in message.tool_calls}
    return normalise_calls(calls, taken)
