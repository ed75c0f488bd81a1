"""`GET /metrics`: queues, ages, turns, requests and tokens in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import anyio.to_thread
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from teaagentd import __version__
from teaagentd.store.totals import BUCKETS_S, Totals
from teaagentd.store.values import Depths
from teaagentd.transcript import clean_text
from teaagentd.types import AlertKind
from teaagentd.web.served import Served

CONTENT_TYPE = CONTENT_TYPE_LATEST


async def render(daemon: Served) -> bytes:
    """All metrics now. Counters are since the database was made: they go on over restarts."""
    depths, totals = await daemon.store.depths(), await daemon.store.totals()
    registry = CollectorRegistry()
    registry.register(_Collected((*_of_daemon(daemon), *_of_queues(depths), *_of_totals(totals))))
    return await anyio.to_thread.run_sync(generate_latest, registry)


class _Collected(Collector):
    """Metrics that were gathered before."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _of_daemon(daemon: Served) -> Iterable[Metric]:
    yield InfoMetricFamily("teaagentd", "What runs.", {"version": __version__})
    uptime_s = max(daemon.clock.now_ms() - daemon.started_at, 0) / 1000
    yield GaugeMetricFamily("teaagentd_uptime_seconds", "Since the start.", uptime_s)
    slots = GaugeMetricFamily("teaagentd_slots", "Turns at work and waiting.", labels=["state"])
    for state in ("limit", "held", "waiting", "parked"):
        slots.add_metric([state], getattr(daemon.gate, state))
    yield slots
    alerts = GaugeMetricFamily("teaagentd_alerts", "What the owner was told of.", labels=["kind"])
    for kind in get_args(AlertKind):
        alerts.add_metric([kind], len(daemon.alerts.of(kind)))
    yield alerts
    channels = GaugeMetricFamily(
        "teaagentd_channel_up", "1 for a channel that receives.", labels=["channel"]
    )
    for status in daemon.dispatcher.channel_status():
        channels.add_metric([clean_text(status.name)], status.state == "running")
    yield channels


def _of_queues(depths: Depths) -> Iterable[Metric]:
    depth = GaugeMetricFamily("teaagentd_queue_depth", "What waits.", labels=["queue"])
    age = GaugeMetricFamily(
        "teaagentd_queue_oldest_age_seconds", "How long the oldest waits.", labels=["queue"]
    )
    for queue, count, oldest_ms in (
        ("inbox", depths.inbox, depths.inbox_oldest_ms),
        ("outbox", depths.outbox, depths.outbox_oldest_ms),
    ):
        depth.add_metric([queue], count)
        age.add_metric([queue], (oldest_ms or 0) / 1000)
    yield depth
    yield age
    dead = GaugeMetricFamily("teaagentd_dead", "What was given up.", labels=["queue"])
    dead.add_metric(["inbox"], depths.dead_rows)
    dead.add_metric(["outbox"], depths.dead_letters)
    yield dead


def _of_totals(totals: Totals) -> Iterable[Metric]:
    turns = HistogramMetricFamily(
        "teaagentd_turn_duration_seconds", "Turns by how they ended.", labels=["outcome"]
    )
    for outcome, durations in sorted(totals.turns.items()):
        bounds = [*(str(float(bound)) for bound in BUCKETS_S), "+Inf"]
        counts = [*durations.up_to, durations.count]
        buckets = list(zip(bounds, counts, strict=True))
        turns.add_metric([outcome], buckets, sum_value=durations.total_ms / 1000)
    yield turns
    requests = CounterMetricFamily(
        "teaagentd_provider_requests",
        "Requests to model servers.",
        labels=["provider", "model", "purpose", "outcome"],
    )
    for request, count in sorted(totals.requests.items()):
        requests.add_metric(list(request), count)
    yield requests
    tokens = CounterMetricFamily(
        "teaagentd_tokens",
        "Tokens that servers told of.",
        labels=["provider", "model", "kind"],
    )
    for labels, count in sorted(totals.tokens.items()):
        tokens.add_metric(list(labels), count)
    yield tokens
