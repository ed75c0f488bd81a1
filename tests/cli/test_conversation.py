"""What a conversation shows, in which order, however far the outbox is ahead of the stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from teaagentd.cli.client import Client, Event, Reply
from teaagentd.cli.conversation import Conversation
from teaagentd.types import SessionKey

pytestmark = pytest.mark.anyio


class Ahead(Client):
    """Its outbox holds both answers before the stream tells of the first."""

    async def replies(self, key: SessionKey, *, after: int, wait_s: float = 0) -> list[Reply]:
        both = (reply(1, "interim"), reply(2, "final"))
        return [one for one in both if one.id > after]


def reply(number: int, kind: str) -> Reply:
    return Reply(
        id=number,
        turn_id="t",
        kind="interim" if kind == "interim" else "final",
        message_ids=(number,),
        content=f"answer {number}",
        raw={},
    )


class Seen:
    """A view that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def phase(self, turn_id: str, phase: str, detail: str) -> None:
        self.told.append(phase)

    def delta(self, turn_id: str, text: str) -> None:
        self.told.append(f"delta {text}")

    def reset(self, turn_id: str) -> None:
        self.told.append("reset")

    def reply(self, reply: Reply) -> None:
        self.told.append(f"reply {reply.id}")

    def connection(self, connected: bool) -> None: ...


def event(name: str, **data: object) -> Event:
    return Event(name=name, data={"turn_id": "t", **data})


@pytest.mark.parametrize("lost", [False, True])
async def test_an_answer_is_shown_behind_what_streamed_of_it(tmp_path: Path, lost: bool) -> None:
    """Shown before, it would be followed by its own text once more. The end shows what a stream
    that dropped events did not tell of."""
    view = Seen()
    talk = Conversation(Ahead(tmp_path), SessionKey(channel="api", chat_id="c"), view, seen=0)
    await talk._take(event("delta", text="a"))
    await talk._take(event("reply", id=1))
    await talk._take(event("delta", text="b"))
    if not lost:
        await talk._take(event("reply", id=2))
    await talk._take(event("phase", phase="done", detail=""))
    assert view.told == ["delta a", "reply 1", "delta b", "reply 2", "done"]
