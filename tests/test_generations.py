"""A daemon that takes up one configuration after another holds nothing of those before.
(zeroclaw-labs/zeroclaw#8633, openclaw/openclaw#78187)"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import anyio
import pytest
from blockbuster import BlockBuster

from teaagentd.config import Settings
from teaagentd.daemon import EXIT_CLEAN, Daemon
from tests.strict_server import StrictServer

pytestmark = pytest.mark.anyio


def settings(home: Path, url: str, number: int) -> Settings:
    """Another model each time, and so another client of its server."""
    return Settings.model_validate(
        {
            "home": home,
            "agent": {"name": f"Tea {number}"},
            "provider": {
                "type": "openai",
                "base_url": url,
                "api_key": "key",
                "model": f"m{number}",
            },
        }
    )


def tasks() -> Counter[str]:
    return Counter(task.get_name() for task in asyncio.all_tasks())


async def test_after_five_there_is_one_of_each_thing_that_runs(
    tmp_path: Path, unblocked_loop: BlockBuster
) -> None:
    unblocked_loop.deactivate()  # The start may block: nobody is served yet.
    statuses: list[int] = []
    async with (
        StrictServer() as server,
        Daemon.open(settings(tmp_path, server.url, 0)) as daemon,
        anyio.create_task_group() as group,
    ):

        async def serve(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            statuses.append(await daemon.serve(task_status=task_status))

        await group.start(serve)
        assert await daemon.loop.process_direct("hello", "api:anna")
        await anyio.sleep(0.2)
        before = tasks()
        for number in range(1, 6):
            await daemon.apply(settings(tmp_path, server.url, number))
            assert await daemon.loop.process_direct("hello", "api:anna")
        with anyio.fail_after(20):
            while tasks() != before or daemon._former:
                await anyio.sleep(0.05)
        assert server.requests[-1].body["model"] == "m5"
        daemon.request_stop()
    assert statuses == [EXIT_CLEAN]
