"""Other processes at the daemon's database: writers, a long reader, copies, open and close by hand.
(NousResearch/hermes-agent#109841, #101064, #73721, #22032)"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess

MESSAGES = 60
WRITER = """
import sqlite3, sys, os
for number in range(100):
    descriptor = os.open(sys.argv[1], os.O_RDONLY)
    os.close(descriptor)
    file = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)
    file.execute("BEGIN IMMEDIATE")
    file.execute("UPDATE store SET swept_at = swept_at")
    file.execute("COMMIT")
    file.close()
"""


def sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as file:
        return file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.timeout(180)
def test_whatever_others_do_at_the_file_nothing_is_lost_or_said_twice(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    state = daemon.home / "state.db"
    daemon.ask("anna", "the first")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(state)])
    ids: list[int] = []
    talker = threading.Thread(
        target=lambda: ids.extend(
            daemon.post(f"chat-{number % 5}", f"message {number}") for number in range(MESSAGES)
        )
    )
    with closing(sqlite3.connect(state)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM inbox").fetchone() == (1,)
        talker.start()
        while talker.is_alive():
            os.close(os.open(state, os.O_RDONLY))
            talker.join(0.02)
        for number in range(5):
            daemon.answer(f"api:chat-{number}", ids[-5 + number])
        assert reader.execute("SELECT count(*) FROM inbox").fetchone() == (1,), "as it began"
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("state.db", "state.db-wal"):
            shutil.copy(daemon.home / name, copy / name)
    assert writer.wait(60) == 0
    assert sound(copy / "state.db"), "at rest, both files together are a copy"
    daemon.kill()
    assert sound(state)
    daemon.start()
    answers: Counter[int] = Counter()
    for number in range(5):
        for reply in daemon.all_replies(f"api:chat-{number}"):
            answers.update(reply["message_ids"])
    assert len(ids) == MESSAGES
    assert answers == Counter(ids)
    assert "database is locked" not in daemon.log()
