"""`teaagentd config`, and how every command ends when the configuration is broken."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.cli.commands import command


def written(home: Path, text: str) -> Path:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(text)
    (home / "config.toml").chmod(0o600)
    return home / "config.toml"


def test_check_of_a_good_file(home: Path) -> None:
    file = written(home, '[provider]\ntype = "local"\n')
    done = command("config", "check", home=home)
    assert (done.code, done.out, done.err) == (0, f"{file} can be used.\n", "")


def test_check_writes_nothing(home: Path) -> None:
    assert command("config", "check", home=home).code == 0
    assert not home.exists()


@pytest.mark.parametrize(
    "verb", [["config", "check"], ["config", "show"], ["run"], ["chat"], ["ask", "x"]]
)
def test_a_broken_file_is_one_line_and_code_78_wherever_it_is_read(
    home: Path, verb: list[str]
) -> None:
    file = written(home, "[agent]\nname = 'a',\n")
    done = command(*verb, home=home)
    assert (done.code, done.out) == (78, "")
    assert done.err == (
        f"teaagentd: {file}: is not valid TOML: Expected newline or end of document after a "
        "statement (at line 2, column 11); nothing was changed\n"
    )
    assert [path.name for path in home.iterdir()] == ["config.toml"]


def test_check_warns_of_what_nobody_reads(home: Path) -> None:
    written(home, '[provider]\ntype = "local"\n[agent]\nmax_iteration = 3\n')
    done = command("config", "check", home=home)
    assert done.code == 0
    assert "did you mean agent.max_iterations?" in done.err


def test_check_refuses_a_plugin_that_is_not_installed(home: Path) -> None:
    file = written(home, '[provider]\ntype = "gpt"\n')
    for verb in (["config", "check"], ["run"], ["ask", "x"]):
        done = command(*verb, home=home)
        assert done.code == 78
        assert f"{file}: provider.type: there is no provider 'gpt'; installed" in done.err
    done = command("config", "check", home=home, TEAAGENTD_PROVIDER__TYPE="ai")
    assert "TEAAGENTD_PROVIDER__TYPE: provider.type: there is no provider 'ai'" in done.err


@pytest.mark.parametrize(
    ("provider", "key", "wrong"),
    [
        ('type = "local"\nmodel = "/nowhere/x.gguf"', "provider.model", "cannot be read"),
        ('type = "local"\nmodel = "config.toml"', "provider.model", "cannot be read"),
        ('type = "openai"', "provider.api_key", "is missing"),
        ('type = "anthropic"', "provider.api_key", "Anthropic answers nobody without one"),
    ],
)
def test_check_refuses_a_model_that_cannot_be_used(
    home: Path, provider: str, key: str, wrong: str
) -> None:
    file = written(home, f"[provider]\n{provider}\n")
    done = command("config", "check", home=home)
    assert done.code == 78
    assert done.err.startswith(f"teaagentd: {file}: {key}: ")
    assert wrong in done.err
    assert len(done.err.splitlines()) == 1


def test_show_masks_secrets_and_says_where_values_come_from(home: Path) -> None:
    file = written(home, '[provider]\ntype = "openai"\napi_key = "${MY_KEY}"\n')
    done = command(
        "config", "show", home=home, MY_KEY="canary-0123456789", TEAAGENTD_AGENT__NAME="Ada"
    )
    assert done.code == 0
    assert "canary" not in done.out + done.err
    shown = tomllib.loads(done.out)
    assert shown["agent"]["name"] == "Ada"
    assert "# TEAAGENTD_AGENT__NAME" in done.out
    assert f"# {file}" in done.out


def test_the_home_can_stand_before_and_after_the_verb(home: Path) -> None:
    other = home.parent / "other"
    written(other, '[agent]\nname = "Other"\n')
    for line in (
        ["--home", str(other), "config", "show"],
        ["config", "--home", str(other), "show"],
        ["config", "show", "--home", str(other)],
        ["--home", str(home), "config", "show", "--home", str(other)],
    ):
        assert 'name = "Other"' in command(*line, home=home).out


def test_a_wrong_command_line_is_code_2(home: Path) -> None:
    for line in (["frobnicate"], ["send", "x"], ["ask"], ["config", "frobnicate"]):
        assert command(*line, home=home).code == 2


@pytest.mark.parametrize(
    "line", [["status"], ["stop"], ["stop", "--session", "x"], ["send", "hello", "--session", "x"]]
)
def test_without_a_daemon_a_client_ends_with_code_69_and_writes_nothing(
    home: Path, line: list[str]
) -> None:
    done = command(*line, home=home)
    assert (done.code, done.out) == (69, "")
    assert done.err.startswith("teaagentd: no daemon is running here")
    assert "teaagentd run" in done.err
    assert not home.exists()
