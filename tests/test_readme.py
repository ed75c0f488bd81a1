"""The README is true: its commands run, its examples work, its files exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest

from teaagentd.abc import Tool
from teaagentd.config.load import load_settings
from teaagentd.home import Home
from teaagentd.types import InboundMessage, Part
from tests.cli.commands import provider
from tests.daemon_process import until
from tests.strict_server import ServerProcess

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for name, text in FENCED.findall(README) if name == language]


BEGIN, TEST, *REST = blocks("sh")
LINES = [line for block in REST for line in block.splitlines()]


def test_the_two_commands_are_one_line_each_and_ci_runs_them_word_for_word() -> None:
    for block in (BEGIN, TEST):
        assert block.count("\n") == 1
    script = (ROOT / ".ci" / "run").read_text()
    assert re.findall(r"^python3 -m venv.*\n", README, re.MULTILINE) == [BEGIN, TEST]
    assert "grep -E '^python3 -m venv' README.md" in script
    assert 'bash -c "$start"' in script
    assert 'bash -c "$tests"' in script


def test_every_file_that_it_links_to_exists() -> None:
    targets = re.findall(r"\]\(([^)]+)\)|^\[[^]]+\]: (\S+)$", README, re.MULTILINE)
    assert targets
    for first, second in targets:
        assert (ROOT / (first or second)).exists()


@pytest.fixture
def shell() -> Iterator[dict[str, str]]:
    """The environment of someone who follows it: a new home, a server for a model."""
    folder = Path(tempfile.mkdtemp(prefix="tea-"))
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    program = bin_folder / "teaagentd"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m teaagentd "$@"\n')
    program.chmod(0o700)
    with ServerProcess() as server:
        yield {
            "HOME": str(folder),
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            **provider(server.url),
        }
    shutil.rmtree(folder)


@pytest.mark.timeout(180)
def test_every_other_command_does_what_it_says(shell: dict[str, str]) -> None:
    """In the order of the page, `teaagentd run &` running from its line on."""
    assert {line.split()[1] for line in LINES if line.startswith("teaagentd")} >= {
        "chat", "run", "ask", "send", "status", "stop", "init", "config",
    }  # fmt: skip
    place = next(number for number, line in enumerate(LINES) if line.endswith("&"))
    for line in LINES[:place]:
        follow(line, shell)
    with started(LINES[place].removesuffix("&").split(), shell) as daemon:
        try:
            for line in LINES[place + 1 :]:
                follow(line, shell)
            assert daemon.wait(30) == 0
        finally:
            daemon.kill()


def follow(line: str, shell: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-ec", line],
        env=shell,
        cwd=shell["HOME"],
        input="hello\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (line, done.stderr)
    assert done.stdout or "init" in line, (line, done.stderr)


def started(command: list[str], shell: dict[str, str]) -> subprocess.Popen[bytes]:
    """A daemon in the background, ready."""
    program = shutil.which(command[0], path=shell["PATH"])
    assert program
    log = Path(shell["HOME"]) / "daemon.log"
    with log.open("wb") as stream:
        daemon = subprocess.Popen([program, *command[1:]], env=shell, stderr=stream)
    until("the daemon is ready", lambda: "ready" in log.read_text())
    return daemon


def module(text: str) -> ModuleType:
    made = ModuleType("example")
    exec(compile(text, "README.md", "exec"), vars(made))
    return made


class TestExamples:
    @pytest.fixture
    def examples(self) -> dict[str, Any]:
        tool, channel = (module(text) for text in blocks("python"))
        return {"tool": tool, "channel": channel}

    def test_pass_the_type_checker(self, tmp_path: Path) -> None:
        for number, text in enumerate(blocks("python")):
            (tmp_path / f"example_{number}.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"),
             *map(str, tmp_path.glob("*.py"))],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout

    def test_the_tool_is_one(self, examples: dict[str, Any]) -> None:
        assert isinstance(examples["tool"].create(), Tool)

    def test_the_channel_receives_and_sends(self, examples: dict[str, Any], tmp_path: Path) -> None:
        channel = examples["channel"].create("letters", {"folder": str(tmp_path)})
        (tmp_path / "one.in").write_text("hello")
        received: list[InboundMessage] = []

        class Inbox:
            async def publish(self, message: InboundMessage) -> None:
                received.append(message)

        async def exchange() -> None:
            with anyio.move_on_after(1):
                await channel.run(Inbox())
            address = received[0].address
            await channel.send(
                Part(outbound_id=1, index=0, address=address, content="hi", idempotency_key="k")
            )

        anyio.run(exchange)
        assert [(m.channel, m.content, m.external_id) for m in received] == [
            ("letters", "hello", "one.in")
        ]
        assert (tmp_path / "k.out").read_text() == "hi"

    def test_the_fallbacks_are_asked_in_their_order(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("ANTHROPIC_API_KEY", "OPENROUTER_API_KEY"):
            monkeypatch.setenv(name, "sk-any")
        fallbacks, caps, *_ = blocks("toml")
        (tmp_path / "config.toml").write_text(fallbacks + caps)
        (tmp_path / "config.toml").chmod(0o600)
        loaded = load_settings(Home(root=tmp_path))
        assert loaded.warnings == ()
        assert [one.type for _, one in loaded.settings.models()] == ["anthropic", "openai", "local"]
        assert loaded.settings.budget.day_cents == 300

    def test_the_settings_are_known(self, tmp_path: Path) -> None:
        *_, points, settings = blocks("toml")
        assert set(tomllib.loads(points)["project"]["entry-points"]) == {
            "teaagentd.tools",
            "teaagentd.channels",
        }
        (tmp_path / "config.toml").write_text(settings)
        (tmp_path / "config.toml").chmod(0o600)
        loaded = load_settings(Home(root=tmp_path))
        assert loaded.warnings == ()
        assert "letterbox" in loaded.settings.channels
