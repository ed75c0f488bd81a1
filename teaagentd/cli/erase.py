"""`teaagentd erase`: what is known of one person or chat goes."""

from __future__ import annotations

import click

from teaagentd.cli.client import Payload
from teaagentd.cli.desk import desk, put_lines, sure
from teaagentd.cli.options import current_home, home_option, run_async, session_key
from teaagentd.cli.sessions import told
from teaagentd.types import SessionKey


@click.command()
@click.option("--sender", metavar="ID", help="What this sender said, wherever.")
@click.option("--channel", metavar="NAME", help="With --sender: on this channel only.")
@click.option("--chat", metavar="CHANNEL:CHAT", callback=session_key, help="All of this chat.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_option
def erase(sender: str | None, channel: str | None, chat: SessionKey | None, yes: bool) -> None:
    """Erase what is known of one person or chat.

    Conversations that are theirs alone go whole. Where others took part go the person's messages,
    all that the assistant said in the turns that took them in, and its summaries. What is deleted
    is overwritten in the file. Not reached: backups, exports, what a channel or a model's server
    keeps, and files in the workspace.
    """
    if (sender is None) == (chat is None) or (channel is not None and sender is None):
        raise click.UsageError("name either --sender (with --channel, or on all) or --chat")
    body: dict[str, object] = {}
    if sender is not None:
        body["sender"] = sender
        if channel is not None:
            body["channel"] = channel
    if chat is not None:
        body |= {"channel": chat.channel, "chat_id": chat.chat_id}
    home = current_home()

    async def act(only_count: bool) -> Payload:
        async with desk(home) as client:
            return await client.act("POST", "/v1/erase", {**body, "only_count": only_count})

    who = sender if sender is not None else str(chat)
    would = run_async(lambda: act(True))
    sure(f"Erase {who}: {_told(would)}?", yes=yes)
    put_lines(f"{who} is erased: {_told(run_async(lambda: act(False)))}.")


def _told(removed: Payload) -> str:
    keys = removed.get("session_keys")
    count = len(keys) if isinstance(keys, list) else 0
    return f"{told(removed)}, in {count} conversations ({removed.get('sessions')} of them whole)"
