"""The rules of the house that a program can check."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

from teaagentd.cli import exits
from teaagentd.cli.app import VERBS, root
from teaagentd.cli.chat_terminal import COMMANDS
from teaagentd.commands import parse_command

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "teaagentd"
SOURCES = sorted(PACKAGE.rglob("*.py"))
GROUPS = ("teaagentd.providers", "teaagentd.channels", "teaagentd.tools")

SQL = re.compile(
    r"\b(SELECT\s.+\sFROM|INSERT\s+(OR\s+\w+\s+)?INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|CREATE\s+TABLE"
    r"|PRAGMA\s)",
    re.IGNORECASE | re.DOTALL,
)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_the_core_is_small() -> None:
    lines = {named(path): len(path.read_text().splitlines()) for path in SOURCES}
    core = {name: count for name, count in lines.items() if name.startswith("teaagentd/core/")}
    assert sum(core.values()) < 2000, core


@pytest.mark.parametrize("path", SOURCES, ids=named)
class TestEveryModule:
    def test_is_under_600_lines(self, path: Path) -> None:
        assert len(path.read_text(encoding="utf-8").splitlines()) < 600

    def test_says_in_its_first_line_what_it_is_for(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        assert not text.strip() or (ast.get_docstring(parsed(path)) or "").strip()

    def test_has_no_function_over_60_lines_or_7_parameters(self, path: Path) -> None:
        for function in functions(parsed(path)):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            assert lines <= 60, function.name
            positional = [arg.arg for arg in function.args.posonlyargs + function.args.args]
            given = [name for name in positional if name not in ("self", "cls")]
            assert len(given) < 7, function.name

    def test_leaves_nothing_to_do(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\b(TODO|FIXME|XXX|NotImplementedError)\b", text)

    def test_has_sql_only_in_the_store(self, path: Path) -> None:
        if PACKAGE / "store" in path.parents:
            return
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not SQL.search(node.value), node.value

    def test_starts_no_task_without_an_owner(self, path: Path) -> None:
        assert not re.search(r"\b(create_task|ensure_future)\(", path.read_text(encoding="utf-8"))


def test_adapters_import_neither_one_another_nor_a_channel_a_tool() -> None:
    modules = {
        point.module
        for group in GROUPS
        for point in entry_points(group=group)
        if point.dist and point.dist.name == "teaagentd"
    }
    assert len(modules) >= 3
    for module in modules:
        tree = parsed(ROOT / f"{module.replace('.', '/')}.py")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                targets = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                assert targets & modules == set(), module


def test_every_verb_says_the_same_in_the_overview_and_in_its_own_help() -> None:
    context = click.Context(root)
    for name, (_, line) in VERBS.items():
        found = root.get_command(context, name)
        assert found is not None
        assert (found.help or "").split("\n")[0] == line


def test_every_verb_takes_the_home_on_either_side() -> None:
    context = click.Context(root)
    found = [root, *(root.get_command(context, name) for name in VERBS)]
    config = found[-1]
    assert isinstance(config, click.Group)
    found += config.commands.values()
    for item in found:
        assert item is not None
        assert any("--home" in param.opts for param in item.params), item.name


def test_the_commands_that_the_terminal_completes_exist() -> None:
    for command in COMMANDS:
        assert command == "/quit" or parse_command(command) is not None


def test_every_exit_code_has_a_meaning_and_stands_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    codes = {
        value
        for name, value in vars(exits).items()
        if name.isupper() and name != "MEANINGS" and isinstance(value, int)
    }
    assert codes == set(exits.MEANINGS)
    for code in codes:
        assert re.search(rf"^\| {code} \|", readme, re.MULTILINE), code


def test_the_top_level_holds_what_it_should_and_nothing_else() -> None:
    expected = {
        "pyproject.toml",
        "README.md",
        "config.example.toml",
        "teaagentd",
        "tests",
        "deploy",
    }
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert found - {"build", "dist"} - {p.name for p in ROOT.glob("*.egg-info")} == expected


def test_the_tested_set_pins_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    for requirement in wanted:
        name = re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0].lower()
        assert name in pinned, name


def test_no_file_names_a_registry() -> None:
    hosts = re.compile("py" + r"pi\.org|files\.python" + r"hosted|registry\.n" + "pmjs")
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        kept = parts[0] == ".ci" or not parts[0].startswith(".")
        if kept and path.is_file() and path.suffix != ".pyc":
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not hosts.search(text), named(path)
