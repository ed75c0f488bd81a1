"""Short stories that reach every commit point. Each can be cut off anywhere: what it waits for
is excused when the daemon falls, and it goes on with whatever the next start makes of it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.crash.world import World
from tests.strict_dialect import Reply

LONG = (
    "First a line about tea that fills a part.\n\nThen a second one that fills another part.\n\n"
    "And a third one, so that the order of parts can be seen."
)
FILLER = "word " * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`play` against a daemon that is armed with `first`, then with the point under test."""

    name: str
    play: Callable[[World], None]
    commits: tuple[str, ...]
    """The commit points that it is the proof for."""
    nth: tuple[int, ...] = (1,)
    """Which occurrences of them."""
    first: tuple[str, ...] = ()
    """Fail points of earlier starts, on the way to the one under test."""
    replies: tuple[Reply, ...] = ()
    environ: tuple[tuple[str, str], ...] = field(default=())


def plain(world: World) -> None:
    """Three messages, one after the other."""
    for number in range(3):
        world.send("anna", f"#anna/{number}# hello")
        world.settle()


def tool_round(world: World) -> None:
    """Two calls at once with a text beside them, then the answer, then another message."""
    world.send(
        "anna",
        '#anna/0# [[tool:count {"token": "a"}]] [[tool:count {"token": "b"}]] '
        "[[beside:One moment.]]",
    )
    world.settle()
    world.send("anna", '#anna/1# [[tool:count {"token": "c"}]]')
    world.settle()


def steering_between_rounds(world: World) -> None:
    """Messages that arrive while a call runs are folded before the next request."""
    world.send("anna", '#anna/0# [[tool:hold {"name": "gate"}]]')
    world.wait("the call runs", lambda: world.did("hold gate"))
    world.send("anna", "#anna/1# and this")
    world.send("anna", "#anna/2# and that")
    world.release("gate")
    world.settle()


def steering_at_the_end(world: World) -> None:
    """A message that arrives while the answer is written: an interim answer, then a final one."""
    world.send("anna", "#anna/0# [[wait:1200]]")
    world.wait("the model is asked", lambda: world.asked("#anna/0#"))
    world.send("anna", "#anna/1# and this")
    world.settle()


def stop_while_it_hangs(world: World) -> None:
    """A stop ends a turn whose provider hangs; what waited is answered next."""
    world.send("anna", "#anna/0# [[hang]]")
    world.wait("the model is asked", lambda: world.asked("#anna/0#"))
    world.send("anna", "/stop")
    world.send("anna", "#anna/1# go on")
    world.settle()


def stop_in_a_call(world: World) -> None:
    """A stop while a call runs: the call gets its result, the next request is legal."""
    world.send("anna", '#anna/0# [[tool:count {"token": "a"}]] [[tool:hold {"name": "never"}]]')
    world.wait("the call runs", lambda: world.did("hold never"))
    world.send("anna", "/stop")
    world.send("anna", "#anna/1# go on")
    world.settle()


def new_conversation(world: World) -> None:
    """A new conversation begins while the old one hangs."""
    world.send("anna", "#anna/0# hello")
    world.settle()
    world.send("anna", "#anna/1# [[hang]]")
    world.wait("the model is asked", lambda: world.asked("#anna/1#"))
    world.send("anna", "/new")
    world.send("anna", "#anna/2# hello again")
    world.settle()


def compacted(world: World) -> None:
    """A conversation is summarised; the next request begins with the summary, or as before."""
    for number in range(2):
        world.send("anna", f"#anna/{number}# {FILLER} [[say:ok]]")
        world.settle()
    world.send("anna", "/compact")
    world.wait(
        "it is summarised, or the daemon fell",
        lambda: world.daemon.query("SELECT 1 FROM messages WHERE position = -1"),
    )
    world.settle()
    world.send("anna", "#anna/2# go on")
    world.settle()


def sender_revoked(world: World) -> None:
    """Who is at work for someone learns that he may no longer speak, and ends."""
    world.send("bob", "#bob/0# [[hang]]", channel="filebox")
    world.wait("the model is asked", lambda: world.asked("#bob/0#"))
    world.configure('[channels.filebox]\nallow_from = ["eve"]\n')
    answered = "SELECT 1 FROM inbox WHERE state = 'done'"
    world.wait("the turn is stopped", lambda: world.daemon.query(answered))
    world.settle()


def provider_refuses(world: World) -> None:
    """A turn that ends without an answer is closed with a text that says so."""
    world.send("anna", "#anna/0# [[status:400]]")
    world.settle()
    world.send("anna", "#anna/1# better now?")
    world.settle()


def provider_comes_back(world: World) -> None:
    """A request that failed in passing is made again; each is booked once."""
    world.send("anna", "#anna/0# [[status:503]]")
    world.settle()
    world.send("anna", "#anna/1# go on")
    world.settle()


def push_in_parts(world: World) -> None:
    """A long answer goes out over a channel that cannot deduplicate, in parts."""
    world.send("bob", f"#bob/0# [[say:{LONG}]]", channel="filebox")
    world.settle()
    world.send("bob", "#bob/1# short", channel="filebox")
    world.settle()


def push_refused(world: World) -> None:
    """One chat is refused for good, another one gets its text."""
    world.send("carl", "#carl/0# [[say:REFUSE this]]", channel="filebox")
    world.send("dora", "#dora/0# hello", channel="filebox")
    world.settle()


def push_delayed(world: World) -> None:
    """The channel asks to wait, then takes the part."""
    world.send("emil", "#emil/0# [[say:DELAY this]]", channel="filebox")
    world.settle()


def parked(world: World) -> None:
    """A planned end while a turn hangs; the next start goes on with it."""
    world.send("anna", "#anna/0# hello")
    world.wait("the model is asked", lambda: world.asked("#anna/0#"))
    world.daemon.signal(signal.SIGTERM)
    world.daemon.wait_exit()
    world.settle()


def condemned(world: World) -> None:
    """Three attempts of a turn are cut off; its message is dead, is listed and can be retried."""
    sent = world.send("anna", '#anna/0# [[tool:count {"token": "a"}]]')
    world.settle()
    rows = world.daemon.query("SELECT state FROM inbox WHERE id = ?", sent.id)
    assert rows == [("dead",)], rows
    world.retry(sent)
    world.settle()


def dead_row_dropped(world: World) -> None:
    """A message that was set aside is listed no longer."""
    sent = world.send("anna", '#anna/0# [[tool:count {"token": "a"}]]')
    world.settle()
    world.operate("POST", f"/v1/inbox/{sent.id}/drop")
    world.settle()
    assert world.daemon.query("SELECT state FROM inbox WHERE id = ?", sent.id) == [("done",)]


def dead_letter_retried_and_dropped(world: World) -> None:
    """A text that was refused is tried again, refused again, and dropped."""
    world.send("carl", "#carl/0# [[say:REFUSE this]]", channel="filebox")
    world.settle()
    [(letter,)] = world.daemon.query("SELECT id FROM outbox WHERE state = 'dead'")
    world.operate("POST", f"/v1/outbox/{letter}/retry")
    world.settle()
    world.operate("POST", f"/v1/outbox/{letter}/drop")
    world.settle()
    reason = world.daemon.query("SELECT reason FROM outbox WHERE id = ?", letter)
    assert reason == [("dropped by the operator",)], reason


def alert_raised_and_cleared(world: World) -> None:
    """The owner is told that a changed configuration cannot be used, until it can."""
    world.send("anna", "#anna/0# hello")
    world.settle()
    world.configure("broken [")
    told = "SELECT 1 FROM alerts WHERE told_at IS NOT NULL"
    world.wait("he is told", lambda: world.daemon.query(told))
    world.configure("# all is well\n")
    world.settle()
    left = "SELECT 1 FROM alerts WHERE cleared_at IS NULL"
    world.wait("it is cleared", lambda: not world.daemon.query(left))
    world.settle()


def swept(world: World) -> None:
    """Old things are looked for; what is new stays."""
    world.send("anna", "#anna/0# hello")
    world.settle()
    world.configure("[retention]\ntranscripts = 30\noutbox = 30\n")
    looked = "SELECT 1 FROM store WHERE swept_at IS NOT NULL"
    world.wait("old things are looked for", lambda: world.daemon.query(looked))
    world.settle()
    world.send("anna", "#anna/1# go on")
    world.settle()


def model_chosen(world: World) -> None:
    """Another model is to be asked first; it is the one that answers either way."""
    world.send("anna", "#anna/0# hello")
    world.settle()
    world.operate("POST", "/v1/models/choice", {"name": "openai", "session_key": "api:anna"})
    world.settle()
    world.send("anna", "#anna/1# go on")
    world.settle()


def session_deleted(world: World) -> None:
    """A conversation is deleted; another one, and a new one of the same name, go on."""
    _deleted(world, "DELETE", "/v1/sessions/api%3Aanna")


def chat_erased(world: World) -> None:
    """What is known of a chat is erased."""
    _deleted(world, "POST", "/v1/erase", {"channel": "api", "chat_id": "anna"})


def _deleted(world: World, method: str, target: str, body: object = None) -> None:
    world.send("bert", "#bert/0# hello")
    world.send("anna", "#anna/0# my secret")
    world.settle()
    world.operate(method, target, body)
    world.settle()
    world.forget("api:anna")
    world.send("anna", "#anna/1# who am I?")
    world.send("bert", "#bert/1# go on")
    world.settle()


SCENARIOS = (
    Scenario(name="plain", play=plain, commits=("T0.accept", "T1.begin"), nth=(1, 2)),
    Scenario(name="tool round", play=tool_round, commits=("T2.decide", "T3.start"), nth=(1, 2)),
    Scenario(name="tool round", play=tool_round, commits=("T3.finish",), nth=(1, 2, 3)),
    Scenario(name="tool round", play=tool_round, commits=("T4.close_or_fold",)),
    Scenario(name="steering", play=steering_between_rounds, commits=("T4.fold", "T0.accept")),
    Scenario(
        name="steering at the end",
        play=steering_at_the_end,
        commits=("T4.close_or_fold",),
        nth=(1, 2),
    ),
    Scenario(name="stop", play=stop_while_it_hangs, commits=("T7.command",)),
    Scenario(name="stop in a call", play=stop_in_a_call, commits=("T7.command", "T3.start")),
    Scenario(name="new", play=new_conversation, commits=("T7.command",)),
    Scenario(name="sender revoked", play=sender_revoked, commits=("T7.revoke",)),
    Scenario(name="compacted", play=compacted, commits=("T8.compact",)),
    Scenario(name="refusal", play=provider_refuses, commits=("T5.close",)),
    Scenario(name="plain", play=plain, commits=("B1.reserve",), nth=(1, 2)),
    Scenario(name="tool round", play=tool_round, commits=("B1.reserve",), nth=(2, 3)),
    Scenario(name="compacted", play=compacted, commits=("B1.reserve",), nth=(3,)),
    Scenario(name="passing failure", play=provider_comes_back, commits=("B2.settle",)),
    Scenario(
        name="killed in a request",
        play=plain,
        commits=("B3.resolve",),
        first=("B1.reserve:after:2",),
    ),
    Scenario(name="push", play=push_in_parts, commits=("T6.freeze",)),
    Scenario(name="push", play=push_in_parts, commits=("T6.start", "T6.finish"), nth=(1, 2, 3)),
    Scenario(name="push refused", play=push_refused, commits=("T6.refuse",)),
    Scenario(name="push delayed", play=push_delayed, commits=("T6.delay",)),
    Scenario(
        name="dead row dropped",
        play=dead_row_dropped,
        commits=("A1.drop_row",),
        first=("T3.start:after", "T1.resume:after", "T1.resume:after"),
    ),
    Scenario(
        name="letter retried and dropped",
        play=dead_letter_retried_and_dropped,
        commits=("A2.retry_letter", "A3.drop_letter"),
    ),
    Scenario(
        name="alert",
        play=alert_raised_and_cleared,
        commits=("A6.raise_alert", "A7.clear_alert"),
    ),
    Scenario(name="swept", play=swept, commits=("A8.sweep",)),
    Scenario(name="model chosen", play=model_chosen, commits=("A9.choose",)),
    Scenario(name="session deleted", play=session_deleted, commits=("A4.delete_session",)),
    Scenario(name="chat erased", play=chat_erased, commits=("A5.erase",)),
    Scenario(
        name="resumed",
        play=tool_round,
        commits=("T1.resume",),
        first=("T3.start:after:1",),
    ),
    Scenario(
        name="condemned",
        play=condemned,
        commits=("T1.resume", "T0.retry"),
        first=("T3.start:after", "T1.resume:after", "T1.resume:after"),
    ),
    Scenario(
        name="parked",
        play=parked,
        commits=("T1.park",),
        replies=({"match": "#anna/0#", "hang": True},),
    ),
)
