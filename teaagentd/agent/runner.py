"""AgentRunner: decide, call tools, check limits, until the run is closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import orjson
import structlog

from teaagentd.abc import RunJournal, SpendingGate, Watcher
from teaagentd.agent import wording
from teaagentd.agent.accounts import Account
from teaagentd.agent.decisions import FinalAnswer, ToolCalls, is_blank
from teaagentd.agent.dialects import INVALID_DECISION
from teaagentd.agent.engine import Decided, ModelDecisionEngine, Unwatched
from teaagentd.agent.execution import RunPlace
from teaagentd.agent.toolbox import Finished, Toolbox
from teaagentd.errors import ContextOverflow, ProviderError, SpendingRefused, TurnEnded
from teaagentd.transcript import PICTURE_TOKENS, estimate_request_tokens, estimate_tokens
from teaagentd.types import Attempt, LLMMessage, Phase, ToolCall, ToolResult, Usage

log = structlog.get_logger()

RunStatus = Literal["answered", "limit", "failed", "ended"]
"""`ended`: someone else closed the turn, and the run stopped without a word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLimits:
    """When a run stops using tools. Iterations are replies of the model, repairs included."""

    max_iterations: int = 50
    max_tool_calls: int = 200
    max_repetitions: int = 5
    """Rounds in a row that bring nothing but what an earlier round has brought, the first
    included."""
    max_overflows: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOutcome:
    """How a run ended. `usage` sums the replies that told theirs; `unknown_usages` counts those
    that did not."""

    status: RunStatus
    text: str
    iterations: int
    tool_calls: int
    usage: Usage
    unknown_usages: int
    prompt_tokens: int | None
    """What the first request came to: prompt, tools and the history as it was given."""
    context_tokens: int
    """What the history came to at the end: by the last usage that is known, which counts prompt
    and tools, and by an estimate of what came after it, or of all. 0 with an unknown window."""


class AgentRunner:
    """Drives one run through its journal. Every step is in the journal before the next begins,
    and every exit but a cancellation closes it; after a cancellation its owner decides."""

    def __init__(
        self,
        *,
        engine: ModelDecisionEngine,
        toolbox: Toolbox,
        journal: RunJournal,
        place: RunPlace,
        watcher: Watcher | None = None,
        limits: RunLimits | None = None,
        window: Callable[[str | None], int | None] = lambda choice: None,
        sees: Callable[[str | None], bool] = lambda choice: False,
        gate: SpendingGate | None = None,
    ) -> None:
        """`window` is that of the model that is asked where one was chosen, in tokens: a request
        that will not fit is not made; neither is one that the `gate` refuses. `sees`: whether
        that model is shown pictures, which then count."""
        self._engine = engine
        self._toolbox = toolbox
        self._journal = journal
        self._place = place
        self._watcher = watcher or Unwatched()
        self._limits = limits or RunLimits()
        self._window = window
        self._sees = sees
        self._account = Account(gate=gate)

    def choose(self, model: str | None) -> None:
        """Have a model asked first, by its name in the chain; None is as configured."""
        self._account.choice = model

    def unbooked(self) -> Sequence[Attempt]:
        """The requests to the model that are not in the journal yet; after a cancellation its
        owner books them."""
        return tuple(self._account.attempts)

    async def run(
        self, *, system: str, history: Sequence[LLMMessage], measured: tuple[int, int] = (0, 0)
    ) -> RunOutcome:
        """Go on from `history`, whose last message is the user's or a tool's. `measured` is what
        an earlier request came to, in tokens, and how many of these messages it had. Raises only
        what the journal raises, but for `TurnEnded`."""
        tokens, count = measured
        run = _Run(
            limits=self._limits,
            system=system,
            messages=list(history),
            measured=tokens,
            measured_at=count,
            picture_tokens=PICTURE_TOKENS if self._sees(self._account.choice) else 0,
        )
        try:
            try:
                await self._work(run)
            except ProviderError as error:
                await self._fail(run, error)
        except TurnEnded:
            # A journal books what it is told also when it refuses the rest.
            self._account.attempts.clear()
            run.end("ended", "")
        return run.outcome(measured=self._window(self._account.choice) is not None)

    async def _work(self, run: _Run) -> None:
        while run.status is None:
            decided = await self._decide(run)
            if isinstance(decided.decision, ToolCalls):
                await self._call(run, decided.message, decided.decision)
            else:
                await self._answer(run, _marked(decided), decided.decision)

    async def _decide(self, run: _Run, nudge: str | None = None) -> Decided:
        """The next decision; the last pass keeps the tools and may use none. A history that does
        not fit is made shorter first."""
        run.last_pass = run.last_pass or run.exhausted() is not None
        if not self._fits(run):
            await self._shorten(run)
        while True:
            history = list(run.messages)
            if self._account.gate is not None:
                self._account.prompt_tokens = run.context_tokens()
            if nudge is not None:
                history.append(LLMMessage(role="user", content=nudge))
            try:
                decided = await self._engine.decide(
                    system=run.system,
                    history=history,
                    watcher=self._watcher,
                    answer_only=run.last_pass or nudge is not None,
                    cache_key=str(self._place.session_key),
                    account=self._account,
                )
            except ProviderError as error:
                if isinstance(error, ContextOverflow) and await self._shorten(run):
                    continue
                raise
            run.count(decided)
            return decided

    def _fits(self, run: _Run) -> bool:
        window = self._window(self._account.choice)
        return window is None or run.context_tokens() <= window - min(window // 8, 4096)

    async def _shorten(self, run: _Run) -> bool:
        if run.overflows >= self._limits.max_overflows:
            return False
        run.overflows += 1
        self._watcher.phase(Phase.COMPACTING)
        shorter = await self._journal.overflow()
        if shorter is None:
            return False
        run.messages = list(shorter)
        run.measured, run.measured_at = 0, 0
        return True

    async def _call(self, run: _Run, message: LLMMessage, decision: ToolCalls) -> None:
        """One round: the decision, its calls side by side, then what arrived meanwhile."""
        await self._journal.decided(message, decision.notice, self.unbooked())
        self._account.attempts.clear()
        run.decided(message, decision.notice)
        allowed = self._limits.max_tool_calls - run.tool_calls
        finished = await self._toolbox.run(
            decision.calls[:allowed],
            journal=self._journal,
            watcher=self._watcher,
            place=self._place,
        )
        left_out = await self._leave_out(decision.calls[allowed:])
        run.finished((*finished, *left_out))
        for one in finished:
            if one.fatal:
                text = wording.fatal(one.call.name, one.result.content.removeprefix("error: "))
                await self._close(run, text, "failed")
                return
        if run.exhausted() is None:
            run.take_in(await self._journal.fold())

    async def _leave_out(self, calls: Sequence[ToolCall]) -> tuple[Finished, ...]:
        """Results for the calls beyond the limit."""
        text = f"[not run: only {self._limits.max_tool_calls} tool calls are allowed at a time]"
        out = []
        for call in calls:
            result = ToolResult(call_id=call.id, name=call.name, content=text, status="not_run")
            await self._journal.finished(result)
            out.append(Finished(call=call, result=result))
        return tuple(out)

    async def _answer(self, run: _Run, message: LLMMessage, answer: FinalAnswer) -> None:
        """The model speaks to the user: that ends the run, unless more has arrived meanwhile."""
        invalid = answer.metadata.get("decision_fallback") == INVALID_DECISION
        blank = is_blank(answer.content)
        if run.last_pass and (invalid or blank):
            await self._close(run, wording.limit(run.exhausted() or ""), "limit")
            return
        if invalid:
            await self._close(run, wording.NOT_UNDERSTOOD, "failed")
            return
        if blank:
            message = await self._ask_again(run)
        folded = await self._journal.close_or_fold(
            message, self.unbooked(), rounds_left=run.exhausted() is None
        )
        self._account.attempts.clear()
        run.answered(message)
        if folded:
            run.take_in(folded)
        else:
            run.end("answered", message.content)

    async def _ask_again(self, run: _Run) -> LLMMessage:
        """Once more without tools after an empty answer; then what was said or done counts."""
        decided = await self._decide(run, wording.ANSWER_IN_WORDS)
        answer = decided.decision
        assert isinstance(answer, FinalAnswer), "an engine asked for an answer gives one"
        if answer.metadata.get("decision_fallback") == INVALID_DECISION or is_blank(answer.content):
            log.info("answer_stayed_empty", turn=self._place.turn_id)
            return LLMMessage(role="assistant", content=run.report())
        return _marked(decided)

    async def _fail(self, run: _Run, error: ProviderError) -> None:
        log.warning("run_failed", kind=type(error).__name__, status=error.status)
        reached = run.exhausted()
        if isinstance(error, SpendingRefused):
            await self._close(run, wording.failure(error), "limit")
        elif run.last_pass and reached is not None:
            await self._close(run, wording.limit(reached), "limit")
        else:
            await self._close(run, wording.failure(error), "failed")

    async def _close(self, run: _Run, text: str, status: Literal["limit", "failed"]) -> None:
        await self._journal.close(text, status, self.unbooked())
        self._account.attempts.clear()
        run.end(status, text)


def _marked(decided: Decided) -> LLMMessage:
    """The message of an answer, with a mark when the provider cut it off."""
    if decided.finish_reason != "length" or is_blank(decided.message.content):
        return decided.message
    return replace(decided.message, content=decided.message.content + wording.CUT_OFF, raw=None)


@dataclass(kw_only=True, slots=True)
class _Run:
    """Where one run stands."""

    limits: RunLimits
    system: str
    messages: list[LLMMessage]
    status: RunStatus | None = None
    text: str = ""
    last_pass: bool = False
    iterations: int = 0
    tool_calls: int = 0
    overflows: int = 0
    usages: list[Usage] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    seen: set[tuple[str, bytes, str]] = field(default_factory=set)
    repetitions: int = 1

    def exhausted(self) -> str | None:
        """Which limit ends the use of tools, in words."""
        if self.iterations >= self.limits.max_iterations:
            return f"I reached the limit of {self.limits.max_iterations} steps"
        if self.tool_calls >= self.limits.max_tool_calls:
            return f"I reached the limit of {self.limits.max_tool_calls} tool calls"
        if self.repetitions >= self.limits.max_repetitions:
            return "the same tool call brought the same result again and again"
        return None

    measured: int = 0
    """Tokens of the first `measured_at` messages, prompt and tools included, by a known usage."""
    measured_at: int = 0

    picture_tokens: int = 0
    """What each of its pictures comes to."""

    def context_tokens(self) -> int:
        new = self.messages[self.measured_at :]
        fresh = estimate_request_tokens(new)
        if self.picture_tokens:
            seen = (file for message in new for file in message.attachments if file.is_picture)
            fresh += self.picture_tokens * sum(1 for _ in seen)
        return self.measured + fresh if self.measured else fresh + estimate_tokens(self.system)

    def count(self, decided: Decided) -> None:
        self.usages.extend(decided.usages)
        read = decided.usages[-1].input_tokens
        if read:
            self.measured, self.measured_at = read, len(self.messages)
        self.iterations += len(decided.usages)

    def decided(self, message: LLMMessage, notice: str | None) -> None:
        self.messages.append(message)
        if notice:
            self.notices.append(notice)

    def finished(self, finished: Sequence[Finished]) -> None:
        repeated = True
        for one in finished:
            call, result = one.call, one.result
            self.messages.append(
                LLMMessage(
                    role="tool",
                    tool_call_id=call.id,
                    name=call.name,
                    content=result.content,
                    attachments=result.attachments,
                )
            )
            if result.status == "not_run":
                continue
            self.tool_calls += 1
            self.done[call.name] += 1
            self.failed[call.name] += result.status != "ok"
            arguments = orjson.dumps(call.arguments, option=orjson.OPT_SORT_KEYS)
            sight = (call.name, arguments, result.content)
            repeated = repeated and sight in self.seen
            self.seen.add(sight)
        self.repetitions = self.repetitions + 1 if repeated else 1

    def answered(self, message: LLMMessage) -> None:
        self.messages.append(message)
        self.notices.clear()
        self.done.clear()
        self.failed.clear()

    def take_in(self, messages: Sequence[LLMMessage]) -> None:
        self.messages.extend(messages)
        if messages:
            self.repetitions = 1
            self.seen.clear()

    def report(self) -> str:
        return wording.report(self.notices, self.done, self.failed)

    def end(self, status: RunStatus, text: str) -> None:
        self.status = status
        self.text = text

    def outcome(self, *, measured: bool) -> RunOutcome:
        assert self.status is not None
        return RunOutcome(
            status=self.status,
            text=self.text,
            iterations=self.iterations,
            tool_calls=self.tool_calls,
            usage=_sum(self.usages),
            prompt_tokens=self.usages[0].input_tokens if self.usages else None,
            context_tokens=self.context_tokens() if measured else 0,
            unknown_usages=sum(
                usage.input_tokens is None or usage.output_tokens is None for usage in self.usages
            ),
        )


def _sum(usages: Sequence[Usage]) -> Usage:
    def total(counts: Iterable[int | None]) -> int | None:
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    return Usage(
        input_tokens=total(usage.input_tokens for usage in usages),
        cached_tokens=total(usage.cached_tokens for usage in usages),
        output_tokens=total(usage.output_tokens for usage in usages),
        reasoning_tokens=total(usage.reasoning_tokens for usage in usages),
    )
