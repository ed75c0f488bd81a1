"""The first start: said, written once, never over anything."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.cli.commands import command, provider
from tests.strict_server import ServerProcess

FILES = ["config.toml"] + [
    f"workspace/{name}" for name in ("AGENTS.md", "SOUL.md", "USER.md", "HEARTBEAT.md")
]


def contents(home: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()
    }


def test_init_says_what_it_writes_and_writes_it_for_its_owner_only(home: Path) -> None:
    done = command("init", home=home)
    assert (done.code, done.out) == (0, "")
    assert str(home) in done.err
    for name in FILES:
        assert name in done.err
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert sorted(contents(home)) == sorted(FILES)


def test_a_second_init_changes_nothing(home: Path) -> None:
    command("init", home=home)
    (home / "config.toml").write_text('[agent]\nname = "Ada"\n')
    before = contents(home)
    done = command("init", home=home)
    assert done.code == 0
    assert "nothing was changed" in done.err
    assert contents(home) == before


def test_init_writes_what_is_missing_beside_what_is_there(home: Path) -> None:
    (home / "workspace").mkdir(parents=True)
    (home / "workspace" / "SOUL.md").write_text("mine")
    done = command("init", home=home)
    assert "SOUL.md" not in done.err
    assert (home / "workspace" / "SOUL.md").read_text() == "mine"
    assert (home / "config.toml").exists()


def test_a_first_start_with_a_configuration_of_ones_own_makes_the_rest(
    home: Path, server: ServerProcess
) -> None:
    home.mkdir(mode=0o755)
    (home / "config.toml").write_text('[agent]\nname = "Ada"\n')
    done = command("ask", "hello", home=home, **provider(server.url))
    assert (done.code, done.out) == (0, "Hello to you.\n")
    assert (home / "config.toml").read_text() == '[agent]\nname = "Ada"\n'
    assert "SOUL.md" in done.err
    assert "which others can open too" in done.err
    (home / "workspace" / "SOUL.md").unlink()
    assert "SOUL.md" not in command("ask", "hello", home=home, **provider(server.url)).err
    assert not (home / "workspace" / "SOUL.md").exists()


def test_a_broken_configuration_is_not_written_over(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[agent")
    command("init", home=home)
    assert (home / "config.toml").read_text() == "[agent"


def test_a_dangling_link_is_not_written_through(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").symlink_to(home.parent / "elsewhere")
    command("init", home=home)
    assert not (home.parent / "elsewhere").exists()


@pytest.mark.parametrize(
    ("variable", "provider", "words"),
    [
        ("", 'type = "local"', "costs nothing"),
        ("ANTHROPIC_API_KEY", 'type = "anthropic"', "costs money"),
        ("OPENAI_API_KEY", 'api_key = "${OPENAI_API_KEY}"', "costs money"),
        ("OPENROUTER_API_KEY", 'api_key = "${OPENROUTER_API_KEY}"', "costs money"),
        ("OLLAMA_HOST", 'base_url = "http://127.0.0.1:11434/v1"', "costs nothing"),
    ],
)
def test_the_provider_is_picked_said_and_written_down(
    home: Path, variable: str, provider: str, words: str
) -> None:
    more = {variable: "127.0.0.1"} if variable else {}
    done = command("init", home=home, **more)
    assert words in done.err
    assert variable in done.err
    text = (home / "config.toml").read_text()
    assert provider in text.splitlines()
    assert command("config", "check", home=home, **more).code == 0


def test_a_key_that_turns_up_later_does_not_change_who_answers(home: Path) -> None:
    command("init", home=home)
    shown = command("config", "show", home=home, OPENAI_API_KEY="a-key-for-something-else")
    assert 'type = "local"' in shown.out


def test_a_home_that_cannot_be_made_is_one_line_and_code_78(home: Path) -> None:
    home.write_text("a file")
    done = command("init", home=home)
    assert done.code == 78
    assert "cannot" in done.err.splitlines()[-1]
