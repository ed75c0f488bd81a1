"""`teaagentd erase`: what is known of one person or chat goes."""

from __future__ import annotations

import click
import orjson

from teaagentd.cli.client import Payload
from teaagentd.cli.console import put
from teaagentd.cli.desk import desk, put_lines, say_what_is_left, sure
from teaagentd.cli.options import current_home, home_option, run_async, session_key
from teaagentd.cli.sessions import told
from teaagentd.transcript import clean_text
from teaagentd.types import SessionKey


@click.command()
@click.option("--sender", metavar="ID", help="What this sender said, wherever.")
@click.option("--channel", metavar="NAME", help="With --sender: on this channel only.")
@click.option("--chat", metavar="CHANNEL:CHAT", callback=session_key, help="All of this chat.")
@click.option("--session", metavar="KEY", callback=session_key, help="All of this conversation.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print what went as JSON.")
@home_option
def erase(
    sender: str | None,
    channel: str | None,
    chat: SessionKey | None,
    session: SessionKey | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Erase what is known of one person or chat.

    Conversations that are theirs alone go whole. Where others took part go the person's messages,
    all that the assistant said in the turns that took them in, and its summaries. What is deleted
    is overwritten in the file. Not reached: backups, copies of before an upgrade, exports, lines
    typed in `chat`, what others said of the person, what a channel or a model's server keeps, and
    files in the workspace.
    """
    named = [one for one in (sender, chat, session) if one is not None]
    if len(named) != 1 or (channel is not None and sender is None):
        raise click.UsageError(
            "name one of --sender (with --channel, or on all), --chat and --session"
        )
    body: dict[str, object] = {}
    if sender is not None:
        body["sender"] = clean_text(sender)
        if channel is not None:
            body["channel"] = clean_text(channel)
    elif chat is not None:
        body |= {"channel": chat.channel, "chat_id": chat.chat_id}
    else:
        body["session_key"] = str(session)
    home = current_home()

    async def act(only_count: bool) -> Payload:
        async with desk(home) as client:
            return await client.act("POST", "/v1/erase", {**body, "only_count": only_count})

    (who,) = named
    would = run_async(lambda: act(True))
    sure(f"Erase {who}: {_told(would)}?", yes=yes)
    removed = run_async(lambda: act(False))
    if as_json:
        put(orjson.dumps(removed).decode())
    else:
        put_lines(f"{who} is erased: {_told(removed)}.")
    say_what_is_left(home)


def _told(removed: Payload) -> str:
    keys = removed.get("session_keys")
    count = len(keys) if isinstance(keys, list) else 0
    return f"{told(removed)}, in {count} conversations ({removed.get('sessions')} of them whole)"
