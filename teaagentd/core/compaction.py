"""Compactor: keeps histories within the window, by summaries that are made beside the turns and put
in place between them, or within a turn that no longer fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from teaagentd.agent.compaction import Measures, Summariser, clipped, find_cut
from teaagentd.errors import StoreError
from teaagentd.store import Store
from teaagentd.store.transcripts import is_summary
from teaagentd.store.values import Compaction, LiveHistory
from teaagentd.types import LLMMessage, SessionKey

_UNKNOWN_WINDOW = 8192
_MOST_READY = 100

log = structlog.get_logger()


class Compactor:
    """At most one compaction per session at a time. A summary is for the history that it was made
    from: after `/new` or another compaction it is dropped."""

    def __init__(
        self, *, store: Store, summariser: Summariser, window: Callable[[], int | None]
    ) -> None:
        self._store = store
        self._summariser = summariser
        self._window = window
        self._at_work: set[SessionKey] = set()
        self._ready: dict[SessionKey, Compaction] = {}
        self.measures = Measures()
        self._in_vain: dict[SessionKey, int] = {}
        """Sessions whose requests did not fit even after a summary, by generation: not tried
        again until one fits."""

    def fitted(self, key: SessionKey, last_id: int | None, tokens: int | None) -> None:
        """A request with the history up to the message `last_id` came to so many tokens."""
        if tokens:
            self._in_vain.pop(key, None)
        self.measures.keep(key, last_id, tokens)

    def is_due(self, key: SessionKey, tokens: int) -> bool:
        """Whether a history of so many tokens, prompt and tools included, is to be made shorter:
        at three quarters of the window."""
        window = self._window()
        return window is not None and tokens >= window * 3 // 4 and key not in self._at_work

    async def compact(self, key: SessionKey, *, whole: bool = False) -> None:
        """Make a summary of all but the last quarter of a window, or of the `whole` history, and
        put it in place, now or before the next turn. Failure leaves the history as it is."""
        if key in self._at_work:
            return
        self._at_work.add(key)
        try:
            live = await self._store.live_history(key)
            keep = 0 if whole else (self._window() or _UNKNOWN_WINDOW) // 4
            # A turn that is at work is told of when it has ended.
            cut = find_cut(live.messages[: live.settled], keep) if live is not None else 0
            if live is not None and cut > 1:
                await self._make(key, live, cut, turn_id=None, needed=not whole)
        except StoreError as error:
            log.error("compaction_not_kept", session=str(key), error=str(error))
        finally:
            self._at_work.discard(key)

    async def before_turn(self, key: SessionKey) -> None:
        """Put in place what was made meanwhile; called by the session's owner before a turn."""
        made = self._ready.pop(key, None)
        if made is None:
            return
        try:
            await self._store.compact(made)
        except StoreError as error:
            log.error("compaction_not_kept", session=str(key), error=str(error))

    async def within_turn(self, key: SessionKey, turn_id: str) -> Sequence[LLMMessage] | None:
        """A shorter history for the turn that is at work and whose request does not fit. What was
        before it is summarised; if that was done already, or cannot be, long contents are
        clipped for this turn alone. None if nothing helps."""
        live = await self._store.live_history(key)
        if live is None:
            return None
        before = live.settled
        told_already = before == 1 and is_summary(live.messages[0])
        hopeless = self._in_vain.get(key) == live.generation or key in self._at_work
        if before and not told_already and not hopeless:
            self._in_vain[key] = live.generation
            self._at_work.add(key)
            try:
                done = await self._make(key, live, before, turn_id=turn_id)
            except StoreError as error:
                log.error("compaction_not_kept", session=str(key), error=str(error))
                done = False
            finally:
                self._at_work.discard(key)
            if done:
                live = await self._store.live_history(key)
                return None if live is None else live.messages
        self.measures.void(key)
        return clipped(live.messages, (self._window() or _UNKNOWN_WINDOW) // 2)

    async def _make(
        self,
        key: SessionKey,
        live: LiveHistory,
        cut: int,
        *,
        turn_id: str | None,
        needed: bool = True,
    ) -> bool:
        """Have the first `cut` messages summarised, and the summary put in their place, or kept
        until the turn at work has ended. Whether it is in place."""
        first, last = live.messages[0].id, live.messages[cut - 1].id
        assert first is not None
        assert last is not None
        account = self._summariser.account(key, live.model)
        made = None
        try:
            summary = await self._summariser.tell(key, live.messages[:cut], account, needed=needed)
            if summary is not None:
                made = Compaction(
                    key=key,
                    generation=live.generation,
                    first_id=first,
                    last_id=last,
                    count=cut,
                    summary=summary,
                    turn_id=turn_id,
                )
        finally:
            try:
                done = await self._store.compact(made, attempts=account.attempts)
            except StoreError:
                await account.settle()
                raise
        log.info("compacted", session=str(key), messages=cut, done=done)
        if made is not None and not done and turn_id is None:
            if len(self._ready) >= _MOST_READY:
                del self._ready[next(iter(self._ready))]
            self._ready[key] = made
        return done
