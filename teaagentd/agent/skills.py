"""SkillCatalog: names and descriptions of the skills in the workspace."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from teaagentd.agent.file_cache import FileCache
from teaagentd.transcript import one_line

FOLDER_LIMIT = 200
"""Entries that are looked at in one folder."""
_MAX_FRONT_MATTER = 8 * 1024
_MAX_DESCRIPTION = 1024
_NAME = re.compile(r"[^\W_][\w.-]{0,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Skill:
    """What the catalog says of one skill; its text is read on demand."""

    name: str
    description: str


class _Loader(yaml.SafeLoader):
    """Plain values only, and no aliases: a few of them expand without a limit."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def parse_skill(text: str) -> Skill | str:
    """The skill that a SKILL.md declares in its front matter, or in words why it does not."""
    front = re.match(r"---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", text, re.DOTALL | re.MULTILINE)
    if front is None:
        return "it does not begin with front matter between two lines of ---"
    if len(front[1]) > _MAX_FRONT_MATTER:
        return f"its front matter is longer than {_MAX_FRONT_MATTER // 1024} KiB"
    try:
        declared = yaml.load(front[1], Loader=_Loader)
    except Exception as error:
        # The parser lets errors of many types through (bad dates, huge numbers, deep nesting),
        # and one bad skill must not hide the others.
        return f"its front matter is not valid YAML ({one_line(str(error), 120)})"
    if not isinstance(declared, dict):
        return "its front matter is not a mapping"
    name, description = declared.get("name"), declared.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "its name is not a word of at most 64 letters, digits, '.', '_' and '-'"
    if not isinstance(description, str) or not description.strip():
        return "its description is missing or not text"
    return Skill(name=name, description=one_line(description, _MAX_DESCRIPTION))


class SkillCatalog:
    """Reads `<folder>/<name>/SKILL.md` through a `FileCache`; parses only what has changed."""

    def __init__(self, folder: str, files: FileCache) -> None:
        self._folder = folder
        self._files = files
        self._parsed: dict[str, tuple[str, Skill | str]] = {}

    def read(self, problems: dict[str, str]) -> Iterator[Skill]:
        """The usable skills in the order of their folders; `problems` gets the others by path."""
        parsed: dict[str, tuple[str, Skill | str]] = {}
        names: set[str] = set()
        for entry in list_folder(self._folder, problems, folders=True):
            path = os.path.join(self._folder, entry, "SKILL.md")
            skill = self._parse(path, parsed)
            if isinstance(skill, Skill) and skill.name.casefold() in names:
                skill = f"another skill is named {skill.name!r} too"
            if isinstance(skill, str):
                problems[path] = skill
                continue
            names.add(skill.name.casefold())
            yield skill
        self._parsed = parsed

    def _parse(self, path: str, parsed: dict[str, tuple[str, Skill | str]]) -> Skill | str:
        file = self._files.read(path)
        if file is None:
            return "there is no such file"
        if file.text is None:
            return file.problem or "unreadable"
        if file.cut:
            return "it is longer than 64 KiB"
        known = self._parsed.get(path)
        if known is None or known[0] != file.text:
            known = (file.text, parse_skill(file.text))
        parsed[path] = known
        return known[1]


def list_folder(folder: str, problems: dict[str, str], *, folders: bool) -> list[str]:
    """The folders, or the `.md` files, in `folder` in name order, without hidden ones; empty if
    there is no such folder. What cannot be listed is added to `problems`."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if not entry.name.startswith(".")
                and (_maybe_folder(entry) if folders else entry.name.endswith(".md"))
            )
    except FileNotFoundError:
        return []
    except OSError as error:
        problems[folder] = error.strerror or type(error).__name__
        return []
    if len(names) > FOLDER_LIMIT:
        problems[folder] = f"it holds {len(names)} entries; only the first {FOLDER_LIMIT} are used"
    return names[:FOLDER_LIMIT]


def _maybe_folder(entry: os.DirEntry[str]) -> bool:
    """Links count whether or not they lead anywhere, so that a broken one is reported."""
    return entry.is_dir() or entry.is_symlink()
