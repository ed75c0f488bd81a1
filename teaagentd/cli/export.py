"""`teaagentd export`: every conversation, as files that outlast this program."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

import click
import orjson

from teaagentd.cli.client import Client
from teaagentd.cli.console import put
from teaagentd.cli.desk import desk, pages, put_lines, session_path
from teaagentd.cli.exits import DISK, Failure
from teaagentd.cli.options import current_home, home_option, run_async
from teaagentd.cli.transcripts import as_json_lines, as_markdown, write_new

_LONGEST_NAME = 60


@click.command()
@click.option("--all", "everything", is_flag=True, help="Every conversation.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print where it is, and how much, as JSON.")
@home_option
def export(everything: bool, folder: Path, as_json: bool) -> None:
    """Write every conversation into a new FOLDER.

    Each in two files, one for people (.md) and one for programs (.jsonl, a JSON object on each
    line), and an index of them. `teaagentd sessions export` writes a single one, `teaagentd
    backup` what can be put back.
    """
    if not everything:
        raise click.UsageError("say --all to export everything; `sessions export` takes one")
    home = current_home()
    target = folder.absolute()
    if target.exists():
        raise Failure(f"{target} exists already, and was not written over")
    draft = target.with_name(f".{target.name}.{os.getpid()}"[:200])
    try:
        draft.mkdir(mode=0o700)

        async def copy() -> int:
            async with desk(home) as client:
                return await _write_all(client, draft)

        count = run_async(copy)
        os.rename(draft, target)
    except OSError as error:
        raise Failure(
            f"{error.filename or target}: {error.strerror}; nothing was kept", DISK
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if as_json:
        put(orjson.dumps({"folder": str(target), "conversations": count}).decode())
    else:
        put_lines(f"{count} conversations are in {target}.")


async def _write_all(client: Client, folder: Path) -> int:
    index: list[dict[str, object]] = []
    async for entry in pages(client, "/v1/sessions", "sessions", after="0", limit="500"):
        key = str(entry.get("session_key"))
        name = file_name(key)
        counts = [
            await write_new(
                folder / f"{name}.{ending}",
                pages(client, session_path(key), "messages", after="0", limit="500"),
                write,
            )
            for ending, write in (("jsonl", as_json_lines), ("md", as_markdown))
        ]
        index.append({**entry, "file": name, "exported": counts[0]})
    text = b"".join(orjson.dumps(entry) + b"\n" for entry in index)
    (folder / "index.jsonl").write_bytes(text)
    return len(index)


def file_name(key: str) -> str:
    """A name for a session's files: what can be read of its key, and what makes it the only one."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", key)[:_LONGEST_NAME].strip("_")
    return f"{readable}-{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:12]}"
