"""`/v1/inbox`, `/v1/outbox`, `/v1/search`, `/v1/erase`: asked wrongly, and while life goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.rig import Rig

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "word"),
    [
        ("GET", "/v1/sessions/api:nobody", None, 404, "there is no session api:nobody"),
        ("DELETE", "/v1/sessions/api:nobody", None, 404, "there is no session api:nobody"),
        ("GET", "/v1/sessions?after=-1", None, 422, "after"),
        ("GET", "/v1/inbox?limit=1001", None, 422, "limit"),
        ("GET", "/v1/search?q=%20", None, 422, "must not be blank"),
        ("GET", "/v1/usage?by=week", None, 422, "must be one of day, session, model, purpose"),
        ("GET", "/v1/usage?days=0", None, 422, "must be from 1 to"),
        ("POST", "/v1/inbox/99/drop", {}, 404, "there is no message 99"),
        ("POST", "/v1/outbox/99/retry", {}, 404, "there is no text 99"),
        ("POST", "/v1/erase", {}, 422, "name a sender"),
        ("POST", "/v1/erase", {"sender": "x", "chat_id": "y"}, 422, "name a sender"),
        ("POST", "/v1/erase", {"sender": "x", "session_key": "y"}, 422, "stands alone"),
        ("POST", "/v1/erase", {"sender": "x", "only_count": "yes"}, 422, "only_count"),
        ("POST", "/v1/erase", {"sneder": "x"}, 422, "there is no such field"),
        ("POST", "/v1/erase", {"session_key": "nobody"}, 404, "there is no session"),
    ],
)
async def test_what_cannot_be_done_is_a_problem_in_words(
    rig: Rig, method: str, path: str, body: Any, status: int, word: str
) -> None:
    answer = await rig.client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert word in answer.json()["detail"]


async def test_half_a_character_is_erased_as_it_is_kept(rig: Rig) -> None:
    head = {"content-type": "application/json"}
    said = b'{"chat_id": "c", "sender_id": "eve\\ud800", "content": "hello"}'
    assert (await rig.client.post("/v1/messages", content=said, headers=head)).status_code == 202
    await rig.replies(wait=10)
    erase = b'{"sender": "eve\\ud800"}'
    answer = await rig.client.post("/v1/erase", content=erase, headers=head)
    assert (answer.status_code, answer.json()["sessions"]) == (200, 1), answer.text


async def test_sessions_in_the_order_of_their_making_are_all_seen_once(rig: Rig) -> None:
    """Though those that were seen, and those that were not, go on meanwhile."""
    for number in range(6):
        await rig.ask(chat=f"{number}")
    seen: list[str] = []
    after = 0
    while after is not None:
        query = {"after": str(after), "limit": "2"}
        page = (await rig.client.get("/v1/sessions", params=query)).json()
        seen += [one["session_key"] for one in page["sessions"]]
        after = page["next"]
        if len(seen) == 2:
            await rig.ask(chat="1")
            await rig.ask(chat="5")
            await rig.client.delete("/v1/sessions/api:1")
    assert seen == [f"api:{number}" for number in range(6)]
