"""`GET /metrics`: what a Prometheus reads, and that it goes on where it was after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from teaagentd import __version__
from teaagentd.errors import AuthenticationFailed
from teaagentd.testing import MemoryChannel, ScriptedModel
from tests.web.rig import Rig, serving

pytestmark = pytest.mark.anyio

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scraped(rig: Rig) -> Samples:
    answer = await rig.client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


async def test_turns_requests_and_tokens_are_counted_over_restarts(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedModel(["one", AuthenticationFailed("no")])) as rig:
        empty = await scraped(rig)
        for text in ("first", "second"):
            await rig.ask(text, "c")
        await scraped(rig)
        samples = await scraped(rig)
    assert ("teaagentd_turn_duration_seconds_count", (("outcome", "answered"),)) not in empty
    assert value(empty, "teaagentd_info", version=__version__) == 1
    count = "teaagentd_turn_duration_seconds_count"
    assert value(samples, count, outcome="answered") == 1
    assert value(samples, count, outcome="failed") == 1
    bucket = "teaagentd_turn_duration_seconds_bucket"
    assert value(samples, bucket, outcome="answered", le="+Inf") == 1
    model = {"provider": "scripted", "model": "scripted-1"}
    requests = "teaagentd_provider_requests_total"
    assert value(samples, requests, purpose="turn", outcome="answered", **model) == 1
    assert value(samples, requests, purpose="turn", outcome="failed", **model) == 1
    assert value(samples, "teaagentd_tokens_total", kind="input", **model) > 0
    async with serving(tmp_path, ScriptedModel(default="again")) as rig:
        await rig.ask("third", "c")
        later = await scraped(rig)
    assert value(later, count, outcome="answered") == 2
    assert value(later, requests, purpose="turn", outcome="answered", **model) == 2


async def test_queues_and_channels_are_shown(tmp_path: Path) -> None:
    channel = MemoryChannel('m "x"')
    async with serving(tmp_path, channels=[channel], work=False) as rig:
        await rig.accepted("waits", "c")
        samples = await scraped(rig)
    assert value(samples, "teaagentd_queue_depth", queue="inbox") == 1
    assert value(samples, "teaagentd_queue_oldest_age_seconds", queue="inbox") >= 0
    assert value(samples, "teaagentd_channel_up", channel='m "x"') == 0
    assert value(samples, "teaagentd_slots", state="held") == 0
