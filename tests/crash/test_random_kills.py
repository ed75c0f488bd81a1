"""The daemon is killed at random moments under load, and loses nothing.

TEAAGENTD_CRASH_SEED plays the kills of an earlier run again; TEAAGENTD_SOAK=1 makes 1000 of them.
"""

from __future__ import annotations

import os
import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.crash.campaign import Campaign

KILLS = 1000 if os.environ.get("TEAAGENTD_SOAK") == "1" else 100
AT_ONCE = 2


@pytest.mark.timeout(KILLS * 6)
def test_random_kills_under_load(capsys: pytest.CaptureFixture[str]) -> None:
    """Each message in one turn and one text, every request legal, whenever it is killed."""
    seed = os.environ.get("TEAAGENTD_CRASH_SEED") or secrets.token_hex(4)
    with capsys.disabled():
        print(f"\n{KILLS} random kills, TEAAGENTD_CRASH_SEED={seed} ", end="", flush=True)
    campaigns = [Campaign(f"{seed}-{number}", KILLS // AT_ONCE) for number in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        worlds = list(pool.map(Campaign.run, campaigns))
    assert sum(campaign.killed for campaign in campaigns) == KILLS
    with capsys.disabled():
        print(f"({sum(len(world.sent) for world in worlds)} messages) ", end="")
    assert all(len(world.sent) > KILLS for world in worlds), "too little load to prove anything"
