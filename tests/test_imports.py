"""What is imported when: the cost of a start is the cost of its imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "openai",
    "xllamacpp",
    "pydantic",
    "pydantic_settings",
    "starlette",
    "uvicorn",
    "prompt_toolkit",
    "httpx2",
    "structlog",
    "rich",
    "sqlite3",
    "asyncio",
    "jsonschema",
)


def imported(program: str) -> set[str]:
    """The modules that a fresh interpreter has after running `program`, output aside."""
    source = f"""
import atexit, os, sys
marker = "modules:"
atexit.register(lambda: os.write(2, (marker + " ".join(sys.modules) + "\\n").encode()))
{program}
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=30, check=False
    )
    return set(done.stderr.rpartition("modules:")[2].split())


def command(*args: str) -> set[str]:
    return imported(f"from teaagentd.cli.app import main; main({list(args)!r})")


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["frobnicate"]])
def test_the_overview_imports_nothing_but_the_argument_parser(args: list[str]) -> None:
    modules = command(*args)
    assert "click" in modules
    assert modules & set(HEAVY) == set()


@pytest.mark.parametrize(
    "args", [["status"], ["stop"], ["send", "hello", "--session", "x"], ["chat", "--help"]]
)
def test_a_mere_client_does_not_import_the_daemon(args: list[str], tmp_path: Path) -> None:
    modules = command(*args, "--home", str(tmp_path))
    assert "teaagentd.cli.client" in modules
    unwanted = {"openai", "xllamacpp", "pydantic", "starlette", "uvicorn", "prompt_toolkit"}
    assert modules & unwanted == set()
    assert "teaagentd.daemon" not in modules


def test_the_daemon_imports_no_provider_before_it_is_configured() -> None:
    modules = imported("import teaagentd.daemon")
    assert modules & {"openai", "xllamacpp", "prompt_toolkit"} == set()
    assert "teaagentd.providers.openai" not in modules
    assert "teaagentd.providers.local" not in modules


def test_the_package_itself_costs_nothing() -> None:
    assert imported("import teaagentd") & set(HEAVY) == set()
