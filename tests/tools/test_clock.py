"""What the model is told of the time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from teaagentd.abc import Tool
from teaagentd.agent.execution import CallContext, RunPlace
from teaagentd.errors import ToolError
from teaagentd.testing import FakeClock
from teaagentd.tools.clock import create
from teaagentd.types import JsonObject, SessionKey
from tests.agent.doubles import Notes, call

pytestmark = pytest.mark.anyio

JULY = FakeClock(now_ms=1_784_894_400_000)  # 2026-07-24 12:00:00 UTC


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


async def told(arguments: JsonObject, clock: FakeClock = JULY) -> str:
    place = RunPlace(session_key=SessionKey(channel="api", chat_id="1"), turn_id="t")
    context = CallContext(
        place=place, call=call("current_time"), watcher=Notes(), clock=clock, timeout_s=1
    )
    return await create().run(arguments, context)


async def test_the_time_in_a_zone() -> None:
    assert isinstance(create(), Tool)
    tokyo = await told({"timezone": "Asia/Tokyo"})
    assert tokyo == "It is 21:00 on Friday, 24 July 2026 (Asia/Tokyo, UTC+09:00)."
    assert (
        await told({"timezone": "utc"}) == "It is 12:00 on Friday, 24 July 2026 (UTC, UTC+00:00)."
    )


async def test_the_time_here(in_berlin: None) -> None:
    assert await told({}) == "It is 14:00 on Friday, 24 July 2026 (CEST)."
    winter = FakeClock(now_ms=JULY.now_ms() - 180 * 86_400_000)
    assert await told({}, winter) == "It is 13:00 on Sunday, 25 January 2026 (CET)."
    assert await told({"timezone": " "}) == await told({})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Tokyo", "Did you mean Asia/Tokyo?"),
        ("Europe/Berln", "Europe/Berlin"),
        ("America", "Use an IANA name"),
        ("new york", "America/New_York"),
        ("../../etc/passwd", "Use an IANA name"),
        ("/etc/passwd", "Use an IANA name"),
        ("\x00", "Use an IANA name"),
        ("qqqq", "leave timezone out"),
    ],
)
async def test_a_zone_that_is_not_known_is_told_with_help(name: str, hint: str) -> None:
    with pytest.raises(ToolError) as raised:
        await told({"timezone": name})
    assert hint in str(raised.value)
