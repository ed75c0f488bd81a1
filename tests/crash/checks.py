"""What must hold of a daemon that came to rest, however often it was killed on the way."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any
from urllib.parse import quote

from teaagentd.transcript import NOT_RUN, UNKNOWN_OUTCOME
from tests import daemon_plugin as plugin
from tests.crash.world import Sent, World

POSSIBLE_REPEAT = 2
"""Sends of one part, ever."""


def check(world: World, context: str = "") -> None:
    """Everything. `context` is shown when something does not hold: a seed, a fail point."""
    faults = [
        *answered_once(world),
        *in_one_turn(world),
        *requests_were_legal(world),
        *prefixes_were_kept(world),
        *no_call_ran_twice(world),
        *requests_are_booked(world),
        *parts_arrived(world),
        *file_is_sound(world),
    ]
    assert not faults, "\n".join([context, *faults[:20], f"({len(faults)} faults)"])


def answered_once(world: World) -> list[str]:
    """Each accepted message is in the `message_ids` of exactly one text, as the API tells it."""
    faults: list[str] = []
    by_key: dict[str, list[Sent]] = defaultdict(list)
    for sent in world.sent:
        by_key[sent.key].append(sent)
    for key, messages in by_key.items():
        texts = world.daemon.all_replies(key)
        ids = [text["id"] for text in texts]
        if ids != sorted(set(ids)):
            faults.append(f"{key}: replies out of order or doubled: {ids}")
        answers = Counter(one for text in texts for one in text["message_ids"])
        noticed = [text for text in texts if text["kind"] == "notice" and text["message_ids"]]
        if noticed:
            faults.append(f"{key}: a notice answers messages: {noticed}")
        for sent in messages:
            if answers[sent.id] != 1:
                faults.append(f"{key}: {sent} stands in {answers[sent.id]} texts, not in one")
        again = {world.retried[sent.id] for sent in messages if sent.id in world.retried}
        faults += [
            f"{key}: retry {one} in {answers[one]} texts" for one in again if answers[one] != 1
        ]
        unknown = set(answers) - {sent.id for sent in messages} - again
        if unknown:
            faults.append(f"{key}: texts answer messages that nobody sent: {unknown}")
    return faults


def requests_are_booked(world: World) -> list[str]:
    """Each request that the server saw is in the books, and none of them twice; one that was cut
    off by a kill as an estimate."""
    seen = len(world.requests())
    [(booked, told, left)] = world.daemon.query(
        "SELECT (SELECT count(*) FROM usage), "
        "(SELECT count(*) FROM usage WHERE error IS NULL AND NOT estimated), "
        "(SELECT count(*) FROM reservations)"
    )
    faults = []
    if booked < seen:
        faults.append(f"the server saw {seen} requests, and {booked} are booked")
    if told > seen:
        faults.append(f"the server saw {seen} requests, and {told} answers are booked")
    if left:
        faults.append(f"{left} requests are neither booked nor under way")
    return faults


def in_one_turn(world: World) -> list[str]:
    """Each message stands once in one turn's transcript, the rows in the order of acceptance,
    and a doubled delivery made no second row."""
    faults: list[str] = []
    rows = world.daemon.query(
        "SELECT id, external_id, kind, state, turn FROM inbox WHERE channel <> ''"
    )
    expected = {sent.external_id: sent for sent in world.sent}
    again = set(world.retried.values())
    found = Counter(row[1] for row in rows if row[0] not in again)
    for external_id, sent in expected.items():
        if found[external_id] != 1:
            faults.append(f"{sent} has {found[external_id]} rows")
    for external_id in set(found) - set(expected):
        faults.append(f"a row that nobody was told of: {external_id}")
    placed = world.daemon.query(
        "SELECT m.inbox, m.turn, i.turn, m.content, i.content, s.key FROM messages m "
        "JOIN inbox i ON i.id = m.inbox JOIN sessions s ON s.id = m.session "
        "WHERE m.role = 'user' ORDER BY m.session, m.place"
    )
    times = Counter(row[0] for row in placed)
    for row_id, external_id, kind, state, turn in rows:
        if kind == "message" and times[row_id] != 1:
            faults.append(f"{external_id} ({state}, turn {turn}) is {times[row_id]} times in turns")
    order: dict[str, list[int]] = defaultdict(list)
    for row_id, turn, claimed_by, said, accepted, key in placed:
        order[key].append(row_id)
        if turn != claimed_by or said != accepted:
            faults.append(f"message {row_id} is in turn {turn}, claimed by {claimed_by}: {said!r}")
    for key, ids in order.items():
        if ids != sorted(ids):
            faults.append(f"{key}: messages reached the model out of order: {ids}")
    return faults


def requests_were_legal(world: World) -> list[str]:
    """The strict server refused nothing, and no request holds a message twice or a stranger's."""
    faults = [
        f"request {one['n']} was refused: {one['refused']}"
        for one in world.requests()
        if one["refused"]
    ]
    for one in world.requests():
        said = [
            str(message["content"])
            for message in one["body"]["messages"]
            if message["role"] == "user"
        ]
        for sent in world.sent:
            marker = marker_of(sent)
            most = 1 + (sent.id in world.retried)
            if marker and sum(marker in text for text in said) > most:
                faults.append(f"request {one['n']} says {marker!r} more than once")
        chats = {chat for text in said if (chat := chat_of(text))}
        if len(chats) > 1:
            faults.append(f"request {one['n']} mixes the sessions {chats}")
    return faults


def marker_of(sent: Sent) -> str | None:
    """The part `#chat/number#` of a message that no other one has."""
    parts = sent.content.split("#")
    return f"#{parts[1]}#" if len(parts) > 2 else None


def chat_of(text: str) -> str | None:
    parts = text.split("#")
    return parts[1].rpartition("/")[0] if len(parts) > 2 else None


def prefixes_were_kept(world: World) -> list[str]:
    """Each request of a session's generation begins with the whole of the one before it, unless
    the answer in between came to nothing and the same was asked again."""
    faults: list[str] = []
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for one in world.requests():
        if one["refused"] or one["body"].get("tool_choice") == "none":
            continue
        messages = one["body"]["messages"]
        users = [str(message["content"]) for message in messages if message["role"] == "user"]
        chat = chat_of(users[0])
        if chat is None:
            continue
        generation = (chat, users[0])
        before = last.get(generation)
        if before is not None:
            held = before["body"]["messages"]
            if messages[: len(held)] != held:
                at = next(i for i, m in enumerate(held) if messages[i : i + 1] != [m])
                faults.append(
                    f"request {one['n']} changes message {at} of request {before['n']}: "
                    f"{held[at]} became {messages[at : at + 1]}"
                )
            if one["body"].get("tools") != before["body"].get("tools"):
                faults.append(f"request {one['n']} offers other tools than {before['n']}")
        last[generation] = one
    return faults


def no_call_ran_twice(world: World) -> list[str]:
    """An effect was had at most once, and as often as its call's result says."""
    faults: list[str] = []
    effects = Counter(str(one["token"]) for one in plugin.notes(world.folder, "effects"))
    for token, times in effects.items():
        if times > 1:
            faults.append(f"the call for {token} ran {times} times")
    for content, call_id in world.daemon.query(
        "SELECT content, tool_call_id FROM messages WHERE role = 'tool' AND name = 'count'"
    ):
        if content.startswith("counted ") and effects[content.removeprefix("counted ")] != 1:
            faults.append(f"call {call_id} says {content!r}, but its effect was not had")
    planned = dict(world.daemon.query("SELECT call_id, status FROM calls WHERE started_at IS NULL"))
    for one in plugin.notes(world.folder, "effects"):
        if one["call"] in planned:
            faults.append(f"call {one['call']} ran, but was never marked as started")
    for call_id, content, started in world.daemon.query(
        "SELECT c.call_id, m.content, c.started_at FROM calls c JOIN messages m "
        "ON m.turn = c.turn AND m.place = c.place AND m.tool_call_id = c.call_id"
    ):
        if started is None and content == UNKNOWN_OUTCOME:
            faults.append(f"call {call_id} never started, but its result is 'unknown'")
        if started is not None and content == NOT_RUN:
            faults.append(f"call {call_id} started, but its result is 'not run'")
    left = world.daemon.query("SELECT call_id, state FROM calls WHERE state <> 'finished'")
    if left:
        faults.append(f"calls without a result: {left}")
    return faults


def parts_arrived(world: World) -> list[str]:
    """Each part of a text that was sent arrived, in order, once, or twice with the second one
    marked; a third send never happens."""
    faults: list[str] = []
    sends: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for entry in plugin.notes(world.folder, "sent"):
        sends[entry["outbound"], entry["index"]].append(entry)
    for (outbound, index), entries in sends.items():
        if len(entries) > POSSIBLE_REPEAT:
            faults.append(f"part {index} of text {outbound} was sent {len(entries)} times")
        if entries[0]["repeat"] and len(entries) == POSSIBLE_REPEAT:
            faults.append(f"part {index} of text {outbound} was repeated after a marked repeat")
        if any(not entry["repeat"] for entry in entries[1:]):
            faults.append(f"part {index} of text {outbound} was repeated without its mark")
    states = dict(world.daemon.query("SELECT id, state FROM outbox WHERE channel = 'filebox'"))
    parts = world.daemon.query("SELECT outbox, position, state, repeats FROM parts")
    for outbound, index, state, repeats in parts:
        entries = sends[outbound, index]
        if state == "sent" and not entries:
            faults.append(f"part {index} of text {outbound} is 'sent' and never was")
        elif state == "sent" and bool(repeats) != entries[-1]["repeat"]:
            faults.append(f"part {index} of text {outbound}: {repeats} repeats, sent as {entries}")
        if states[outbound] == "sent" and state != "sent":
            faults.append(f"text {outbound} is 'sent', its part {index} is {state!r}")
    for outbound, state in states.items():
        if state == "sent" and not sends[outbound, 0]:
            faults.append(f"text {outbound} is 'sent' without any part")
    first_sends = [
        (one["chat"], one["outbound"], one["index"])
        for one in plugin.notes(world.folder, "sent")
        if not one["repeat"]
    ]
    by_chat: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for chat, outbound, index in first_sends:
        by_chat[chat].append((outbound, index))
    for chat, order in by_chat.items():
        if order != sorted(order):
            faults.append(f"chat {chat} got its parts out of order: {order}")
    return faults


def file_is_sound(world: World) -> list[str]:
    """SQLite finds no fault in the database."""
    faults = [row[0] for row in world.daemon.query("PRAGMA integrity_check") if row[0] != "ok"]
    return faults + [str(row) for row in world.daemon.query("PRAGMA foreign_key_check")]


def transcript_is_exported(world: World, key: str) -> dict[str, Any]:
    """The session as the API shows it."""
    answer = world.daemon.call("GET", f"/v1/sessions/{quote(key, safe='')}")
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json
    return found
