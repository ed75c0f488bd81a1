"""Status: what the daemon is doing, whether it is well, and its end."""

from __future__ import annotations

import importlib
import os

import anyio
import anyio.to_thread
import structlog
from starlette.requests import Request
from starlette.responses import Response

from teaagentd import __version__
from teaagentd.channels.supervisor import ChannelStatus
from teaagentd.core.turn import Turn
from teaagentd.errors import StoreError
from teaagentd.providers.chain import Link, LinkStatus
from teaagentd.store.values import Depths
from teaagentd.transcript import clean_text
from teaagentd.types import Alert
from teaagentd.web import reading
from teaagentd.web.problems import Problem, invalid
from teaagentd.web.served import Served
from teaagentd.web.usage import cap
from teaagentd.web.views import JSONAnswer, View, maybe_moment, moment

_HEALTH_S = 5.0
"""How long the writer may take to answer."""

log = structlog.get_logger()


class Status:
    """`/v1/status`, `/metrics`, `/healthz` and `/v1/shutdown`."""

    def __init__(self, daemon: Served) -> None:
        self._daemon = daemon

    async def show(self, request: Request) -> Response:
        daemon = self._daemon
        depths = await daemon.store.depths()
        now = daemon.clock.now_ms()
        return JSONAnswer(
            {
                "version": __version__,
                "pid": os.getpid(),
                "started_at": moment(daemon.started_at),
                "uptime_s": max(now - daemon.started_at, 0) // 1000,
                "draining": daemon.draining,
                "configuration": {
                    "generation": daemon.generations,
                    "since": moment(daemon.loaded_at),
                    "problem": daemon.configuration_problem,
                },
                "alerts": [_alert(one) for one in daemon.alerts.open()],
                "provider": _provider(daemon.chain.first()),
                "spending": [cap(one) for one in await daemon.spending.levels()],
                "providers": [_link(one) for one in daemon.chain.status()],
                "turns": [self._turn(turn, now) for turn in daemon.loop.live()],
                "resuming": [
                    {"id": one.id, "session_key": str(one.key)} for one in daemon.loop.line()
                ],
                "slots": {
                    "limit": daemon.gate.limit,
                    "held": daemon.gate.held,
                    "waiting": daemon.gate.waiting,
                    "parked": daemon.gate.parked,
                },
                **_queues(depths),
                "channels": [_channel(one) for one in daemon.dispatcher.channel_status()],
            }
        )

    def _turn(self, turn: Turn, now: int) -> View:
        shown = self._daemon.feed.phase_of(turn.id)
        return {
            "id": turn.id,
            "session_key": str(turn.key),
            "origin": turn.origin,
            "phase": shown.phase if shown else "starting",
            "detail": clean_text(shown.detail) if shown else "",
            "phase_age_ms": max(now - shown.since, 0) if shown else 0,
            "age_ms": max(now - shown.started, 0) if shown else 0,
        }

    async def health(self, request: Request) -> Response:
        """200 if what is written now would be kept."""
        try:
            with anyio.fail_after(_HEALTH_S):
                await self._daemon.store.ping()
        except TimeoutError:
            reason = f"the store has not answered within {_HEALTH_S:g} s"
        except StoreError as error:
            reason = str(error)
        else:
            return JSONAnswer({"status": "ok"})
        log.error("unhealthy", reason=reason)
        raise Problem(503, reason, kind="unhealthy", title="The daemon is not well")

    async def metrics(self, request: Request) -> Response:
        """For Prometheus. The library behind it is imported by the first who asks."""
        module = await anyio.to_thread.run_sync(importlib.import_module, "teaagentd.web.metrics")
        return Response(await module.render(self._daemon), media_type=module.CONTENT_TYPE)

    async def shut_down(self, request: Request) -> Response:
        """202: the daemon ends when it has finished what it began. `force` ends the waiting;
        without it, asking again changes nothing."""
        body = await reading.read_body(request)
        values = reading.parse_object(body) if body.strip() else {}
        force = values.get("force", False)
        if not isinstance(force, bool):
            raise invalid("force", "must be true or false")
        if not self._daemon.draining:
            self._daemon.request_stop()
        if force:
            self._daemon.request_stop()
        return JSONAnswer({"draining": True, "waits_for": self._waits_for()}, 202)

    def _waits_for(self) -> list[str]:
        turns, sends = self._daemon.loop.waiting_for(), self._daemon.dispatcher.waiting_for()
        return [clean_text(line) for line in (*turns, *sends)]


def _queues(depths: Depths) -> View:
    return {
        "inbox": {"depth": depths.inbox, "oldest_age_ms": depths.inbox_oldest_ms},
        "outbox": {"depth": depths.outbox, "oldest_age_ms": depths.outbox_oldest_ms},
        "dead_rows": depths.dead_rows,
        "dead_letters": depths.dead_letters,
    }


def _provider(link: Link) -> View:
    return {"name": link.label, "model": link.adapter.model}


def _link(status: LinkStatus) -> View:
    return {
        "name": status.label,
        "on_request": status.on_request,
        "model": status.model,
        "rests_s": None if status.rests_s is None else round(status.rests_s, 1),
        "reason": None if status.reason is None else clean_text(status.reason),
    }


def _alert(alert: Alert) -> View:
    return {
        "kind": alert.kind,
        "subject": clean_text(alert.subject),
        "text": clean_text(alert.text),
        "since": moment(alert.raised_at),
        "told_at": maybe_moment(alert.told_at),
    }


def _channel(status: ChannelStatus) -> View:
    return {
        "name": status.name,
        "state": status.state,
        "since": moment(status.since),
        "restarts": status.restarts,
        "error": status.error,
        "paused_s": status.paused_s,
    }
