"""A conversation with the real daemon, through its socket and across restarts."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from tests.daemon.conftest import Effects, MakeDaemon, Model, roles, said
from tests.daemon_process import DaemonProcess, until
from tests.strict_dialect import Reply

CALL = {"name": "count", "arguments": {"token": "a"}}


def test_a_message_is_answered_and_remembered(daemon: DaemonProcess, model: Model) -> None:
    assert daemon.ask("anna", "My name is Anna.").endswith("My name is Anna.")
    daemon.ask("anna", "What is my name?")
    assert [len(said(body, "user")) for body in model.requests] == [1, 2]
    shown = daemon.session("api:anna")["messages"]
    assert [one["role"] for one in shown] == ["user", "assistant"] * 2
    assert [one["content"] for one in shown if one["role"] == "user"] == [
        "My name is Anna.",
        "What is my name?",
    ]


def test_a_tool_is_called_and_its_result_is_answered(
    daemon: DaemonProcess, model: Model, effects: Effects
) -> None:
    answer = daemon.ask("anna", '[[tool:count {"token": "a"}]] [[beside:One moment.]]')
    assert answer.endswith("results: counted a")
    assert effects.tokens() == ["a"]
    kinds = [(text["kind"], text["content"]) for text in daemon.all_replies("api:anna")]
    assert kinds == [("notice", "One moment."), ("final", answer)]


def test_a_message_sent_while_the_answer_streams_is_folded(
    daemon: DaemonProcess, model: Model
) -> None:
    """It joins the turn: the overtaken answer is delivered as interim, and one final text
    answers it."""
    first = daemon.post("anna", "first [[wait:1500]]")
    model.wait_asked("first")
    second = daemon.post("anna", "second")
    assert daemon.answer("api:anna", first)["kind"] == "interim"
    final = daemon.answer("api:anna", second)
    assert final["kind"] == "final"
    texts = daemon.all_replies("api:anna")
    assert [text["message_ids"] for text in texts] == [[first], [second]]
    assert len({text["turn_id"] for text in texts}) == 1
    assert roles(model.requests[-1]) == ["system", "user", "assistant", "user"]


def test_messages_sent_while_a_call_runs_follow_its_results(
    daemon: DaemonProcess, model: Model, effects: Effects
) -> None:
    """Each once, in order, after both results of the round. (HKUDS/nanobot#4036,
    microclaw/microclaw#330)"""
    first = daemon.post("anna", '[[tool:count {"token": "a"}]] [[tool:hold {"name": "gate"}]] go')
    effects.wait("hold gate")
    more = [daemon.post("anna", f"more {number} ✓") for number in range(1, 6)]
    effects.release("gate")
    answer = daemon.answer("api:anna", first)
    assert answer["message_ids"] == [first, *more]
    final = model.requests[-1]
    assert roles(final) == ["system", "user", "assistant", "tool", "tool", *["user"] * 5]
    assert [text.partition("\n\n")[2] for text in said(final, "user")[1:]] == [
        f"more {number} ✓" for number in range(1, 6)
    ]


def test_the_prompt_only_grows(make_daemon: MakeDaemon, model: Model, effects: Effects) -> None:
    """Each request starts with the exact bytes of the one before, also after a restart and
    after a kill in the middle of a call."""
    daemon = make_daemon()
    daemon.start()
    daemon.ask("anna", "one")
    daemon.ask("anna", 'two [[tool:count {"token": "a"}]]')
    assert daemon.terminate() == 0
    daemon.start()
    daemon.ask("anna", "three")
    last = daemon.post("anna", 'four [[tool:hold {"name": "gate"}]]')
    effects.wait("hold gate")
    daemon.kill()
    daemon.start()
    daemon.answer("api:anna", last)
    daemon.ask("anna", "five")
    bodies = model.requests
    for before, after in pairwise(bodies):
        held, grown = (
            json.dumps(body["messages"], ensure_ascii=False)[:-1] for body in (before, after)
        )
        assert grown.startswith(held)
        assert before["tools"] == after["tools"]
    assert "outcome is unknown" in said(bodies[-1], "tool")[-1]
    assert effects.tokens() == ["a", "hold gate"]


def test_a_daemon_that_died_in_a_call_answers_at_once_and_runs_nothing_again(
    make_daemon: MakeDaemon, model: Model, effects: Effects
) -> None:
    """The open call is closed as unknown, once; what arrived meanwhile is answered with it.
    (sipeed/picoclaw#2364)"""
    daemon = make_daemon()
    daemon.start()
    first = daemon.post("anna", '[[tool:count {"token": "a"}]] [[tool:hold {"name": "gate"}]]')
    effects.wait("hold gate")
    effects.wait("a")
    second = daemon.post("anna", "hi")
    daemon.kill()
    daemon.start()
    daemon.answer("api:anna", first)
    daemon.answer("api:anna", second)
    shown = daemon.session("api:anna")["messages"]
    results = [one["content"] for one in shown if one["role"] == "tool"]
    assert len(results) == 2
    assert "unknown" in results[1]
    assert sorted(effects.tokens()) == ["a", "hold gate"]
    notices = [one for one in daemon.all_replies("api:anna") if one["kind"] == "notice"]
    assert len(notices) == 1
    daemon.kill()
    daemon.start()
    assert daemon.session("api:anna")["messages"] == shown


def test_events_show_the_turn_as_it_happens(daemon: DaemonProcess, model: Model) -> None:
    """Phases in order, the deltas that make the answer, the reply, and one `done`."""
    seen: list[tuple[str, dict[str, object]]] = []
    with daemon.events("api:anna") as events:
        posted = daemon.post("anna", '[[tool:count {"token": "a"}]] tell me')
        for name, data in events:
            seen.append((name, data))
            if name == "phase" and data["phase"] == "done":
                break
    names = [str(data["phase"]) for name, data in seen if name == "phase"]
    assert names[0] == "context"
    assert names.index("thinking") < names.index("tool") < names.index("done")
    assert names.count("done") == 1
    [reply] = [data for name, data in seen if name == "reply"]
    assert reply["message_ids"] == [posted]
    streamed = "".join(str(data["text"]) for name, data in seen if name == "delta")
    assert streamed == reply["content"]


def test_an_attempt_that_starts_over_is_shown_so(daemon: DaemonProcess, model: Model) -> None:
    """What was streamed of a reply that broke off is void; the rest makes the answer."""
    model.script([{"match": "tell me", "text": "half an answer, cut off here", "cut": 3}])
    shown = ""
    resets = 0
    with daemon.events("api:anna") as events:
        daemon.post("anna", "tell me")
        for name, data in events:
            if name == "delta":
                shown += data["text"]
            elif name == "reset":
                assert shown
                shown, resets = "", resets + 1
            elif name == "reply":
                break
    assert resets == 1
    assert shown == data["content"]
    assert shown.endswith("tell me")


def test_sessions_do_not_mix(make_daemon: MakeDaemon, model: Model) -> None:
    """Names that a careless mapping would join stay apart, and survive a restart.
    (HKUDS/nanobot#4057, sipeed/picoclaw#1330)"""
    channels = '{"a": {"type": "filebox"}, "a:b": {"type": "filebox"}}'
    daemon = make_daemon({"TEAAGENTD_CHANNELS": channels})
    daemon.start()
    chats = [
        *(("api", chat) for chat in ("a_b", "a:b", "A_B", "C1/17.5", "..", "CON", "x" * 300)),
        *(("api", chat) for chat in ("a b", "a%3Ab", "ä/../b", "a\nb", " ")),
        ("a", "b:c"),
        ("a:b", "c"),
    ]
    keys: dict[str, tuple[str, str]] = {}
    for channel, chat in chats:
        answer = daemon.offer(chat, f"I am {channel} {chat}", channel=channel)
        assert answer.status == 202, (chat, answer)
        key = answer.json["session_key"]
        assert key not in keys
        keys[key] = (channel, chat)
        daemon.answer(key, answer.json["id"])
    daemon.kill()
    daemon.start()
    for key, (channel, chat) in keys.items():
        own = [one for one in daemon.session(key)["messages"] if one["role"] == "user"]
        assert [one["content"] for one in own] == [f"I am {channel} {chat}"]
    assert all(len(said(body, "user")) == 1 for body in model.requests)


@pytest.mark.parametrize(
    ("name", "script", "expected"),
    [
        ("empty", [{"calls": [CALL]}, ""], None),
        (
            "only reasoning",
            [
                {"calls": [CALL]},
                {"text": "", "reasoning": "Hm."},
            ],
            None,
        ),
        (
            "text beside the call",
            [
                {"text": "It is done.", "calls": [CALL]},
                "",
            ],
            "It is done.",
        ),
        (
            "blank",
            [{"calls": [CALL]}, " \u200b\n"],
            None,
        ),
    ],
)
def test_an_empty_answer_is_asked_for_once_more(
    daemon: DaemonProcess, model: Model, name: str, script: list[Reply], expected: str | None
) -> None:
    """Without tools, not stored; then the text said earlier, else a report of what was done.
    (HKUDS/nanobot#235, #2580, #4002)"""
    model.script([*script, {"text": "", "times": 1}])
    answer = daemon.ask("anna", "count for me")
    if expected is None:
        assert "count" in answer
    else:
        assert answer == expected
    bodies = model.requests
    assert len(bodies) == 3
    assert bodies[-1]["tool_choice"] == "none"
    assert bodies[-1]["tools"] == bodies[0]["tools"]
    texts = [one for one in daemon.all_replies("api:anna") if one["kind"] != "notice"]
    assert len(texts) == 1
    daemon.ask("anna", "and now?")
    assert model.requests[-1]["messages"][: len(bodies[1]["messages"])] == bodies[1]["messages"]


def test_what_was_said_beside_the_calls_is_sent_once_if_nothing_follows(
    make_daemon: MakeDaemon, model: Model, effects: Effects
) -> None:
    """To a person on a push channel it is a notice when it is said; the answer that repeats it
    counts as sent with it."""
    daemon = make_daemon({"TEAAGENTD_CHANNELS": '{"filebox": {"type": "filebox"}}'})
    daemon.start()
    model.script(
        [
            {"text": "It is half done.", "calls": [CALL]},
            {"text": "It is done.", "calls": [CALL]},
            {"text": "", "times": 2},
            "And that is new.",
        ]
    )
    for text in ("count for me", "and now?"):
        sent = len(effects.notes("sent"))
        daemon.post("bob", text, channel="filebox")
        until("it is answered", lambda sent=sent: len(effects.notes("sent")) > sent)
        until("it is quiet", lambda: not daemon.status()["turns"])
    until("all is sent", lambda: daemon.status()["outbox"]["depth"] == 0)
    told = [one["content"] for one in effects.notes("sent")]
    assert told == ["It is half done.", "It is done.", "And that is new."]
    replies = [one for one in daemon.all_replies("filebox:bob") if one["kind"] != "notice"]
    assert [one["content"] for one in replies] == [
        "It is half done.\n\nIt is done.",
        "And that is new.",
    ]
    assert all(len(one["message_ids"]) == 1 for one in replies)


def test_an_empty_answer_that_is_mended_is_the_answer(daemon: DaemonProcess, model: Model) -> None:
    model.script(["", "Here it is."])
    assert daemon.ask("anna", "hello") == "Here it is."


def test_a_call_without_calls_is_no_round(daemon: DaemonProcess, model: Model) -> None:
    """`finish_reason: tool_calls` with none: an error that is told, not an endless loop."""
    model.script([{"text": "", "finish": "tool_calls", "times": 0}])
    assert daemon.ask("anna", "hello")
    assert len(model.requests) < 10
