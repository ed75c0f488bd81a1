"""`teaagentd config set`: one key changes and nothing else; what cannot be used is not written."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.cli.commands import command
from tests.cli.test_config import written

FILE = """\
# mine
unread = 1

[agent]   # who it is
name = 'Tea'   # kept
# max_iterations = 50

[provider]
type = "openai"
base_url = "http://127.0.0.1:1/v1"
api_key = "${KEY}"
later = { a = [1,
  2] }
"""
KEY = {"KEY": "sk-very-secret-indeed-12345"}


def test_only_the_key_changes(home: Path) -> None:
    file = written(home, FILE)
    done = command("config", "set", "agent.name", "Ada Lovelace", home=home, **KEY)
    assert (done.code, done.out) == (0, f'agent.name = "Ada Lovelace" is in {file}.\n')
    assert file.read_text() == FILE.replace("'Tea'", '"Ada Lovelace"')
    assert file.stat().st_mode & 0o777 == 0o600
    assert "secret" not in file.read_text() + done.out + done.err


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("agent.max_iterations", "20", 20),
        ("agent.name", "20", "20"),
        ("agent.name", '"in quotes"', "in quotes"),
        ("agent.name", "a\u2028b", "a\u2028b"),
        ("retention.transcripts", "400.5", 400.5),
        ("tools.enabled", '["current_time"]', ["current_time"]),
        ("channels.hook.allow_from", '["anna"]', ["anna"]),
        ('channels."a.b".colour', "red", "red"),
        ("provider.api_key", "${OTHER:-x}", "${OTHER:-x}"),
    ],
)
def test_a_value_is_written_as_its_key_has_it(
    home: Path, key: str, given: str, value: object
) -> None:
    file = written(home, FILE)
    before = tomllib.loads(FILE)
    assert command("config", "set", key, given, home=home, **KEY).code == 0
    found: object = tomllib.loads(file.read_text())
    for name in _names(key):
        assert isinstance(found, dict)
        found = found[name]
    assert found == value
    assert tomllib.loads(file.read_text())["unread"] == before["unread"]
    assert "# mine" in file.read_text()


def _names(key: str) -> list[str]:
    return [name.strip('"').replace("|", ".") for name in key.replace("a.b", "a|b").split(".")]


@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        ("agent.nam", "x", "did you mean agent.name?"),
        ("x", "1", "names no setting"),
        ("agent", "1", "names no setting"),
        ("agent.name.more", "1", "agent.name"),
        ("agent.max_iterations", "none", "must be a whole number"),
        ("agent.max_iterations", "-1", "agent.max_iterations"),
        ("provider.api_key", "${UNSET}", "UNSET"),
        ("channels.hook.allowfrom", "x", "allow_from"),
        ("agent.name = 1\nx", "1", "names no setting"),
    ],
)
def test_what_cannot_be_used_is_not_written(home: Path, key: str, given: str, said: str) -> None:
    file = written(home, FILE)
    done = command("config", "set", key, given, home=home, **KEY)
    assert (done.code, done.out) == (78, "")
    assert said in done.err
    assert "othing was changed" in done.err
    assert file.read_text() == FILE


@pytest.mark.parametrize(
    "data",
    [
        b'[agent]\nname = "a",\n',
        b'[agent\nname = "half',
        b"null",
        b"\xff\xfe",
        b"[agent]\nname = 5\n",
        b'[agent]\nname = "a"\nname = "b"\n',
        b'[provider]\napi_key = "${UNSET}"\ntype = "openai"\n',
    ],
)
def test_a_file_that_cannot_be_read_is_left_to_the_byte(home: Path, data: bytes) -> None:
    # G01: a parse error was read as "no configuration", and the next save wrote over everything.
    file = written(home, "")
    file.write_bytes(data)
    done = command("config", "set", "logging.level", "debug", home=home)
    assert done.code == 78
    assert str(file) in done.err
    assert file.read_bytes() == data
    assert [one.name for one in home.iterdir()] == ["config.toml"]


def test_a_folder_and_a_missing_file_are_refused(home: Path) -> None:
    done = command("config", "set", "agent.name", "x", home=home)
    assert (done.code, home.exists()) == (78, False)
    assert "teaagentd init" in done.err
    (home / "config.toml").mkdir(parents=True)
    assert command("config", "set", "agent.name", "x", home=home).code == 78
    assert (home / "config.toml").is_dir()


@pytest.mark.parametrize("text", [FILE.replace("\n", "\r\n"), "\ufeff" + FILE, FILE.rstrip("\n")])
def test_line_ends_and_marks_stay(home: Path, text: str) -> None:
    file = written(home, "")
    file.write_bytes(text.encode())
    assert command("config", "set", "agent.name", "Ada", home=home, **KEY).code == 0
    assert file.read_bytes() == text.replace("'Tea'", '"Ada"').encode()


def test_a_link_stays_one(home: Path, tmp_path: Path) -> None:
    home.mkdir(mode=0o700)
    real = tmp_path / "dotfiles.toml"
    real.write_text(FILE)
    real.chmod(0o640)
    (home / "config.toml").symlink_to(real)
    assert command("config", "set", "agent.name", "Ada", home=home, **KEY).code == 0
    assert (home / "config.toml").is_symlink()
    assert '"Ada"' in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_secret_is_masked_and_warned_of_and_a_variable_that_overrides_is_named(
    home: Path,
) -> None:
    written(home, FILE)
    secret = "sk-another-secret-67890"
    done = command("config", "set", "provider.api_key", secret, home=home, **KEY)
    assert done.code == 0
    assert secret not in done.out + done.err
    assert "api_key_file" in done.err
    name = {"TEAAGENTD_AGENT__NAME": "Eve", **KEY}
    done = command("config", "set", "agent.name", "Ada", home=home, **name)
    assert "TEAAGENTD_AGENT__NAME is set, and overrides it" in done.err


def test_a_variable_that_nobody_reads_is_warned_of(home: Path) -> None:
    written(home, "")
    done = command("config", "check", home=home, TEAAGENTD_FOO="1")
    assert done.code == 0
    assert "TEAAGENTD_FOO: no section has this name; the variable is ignored" in done.err
