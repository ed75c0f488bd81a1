"""Playing seeds, shrinking what fails, and saying how to see it again."""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from teaagentd.store.opening import open_writer
from tests.simulation import schedule
from tests.simulation.life import Life
from tests.simulation.parts import Record
from tests.simulation.schedule import Action


@dataclass
class Figures:
    """What many lives came to."""

    lives: int = 0
    messages: int = 0
    requests: int = 0
    commits: int = 0
    seen: set[str] = field(default_factory=set)
    failed: str = ""
    """How the first life that failed did, and how to see it again."""


class Player:
    """Plays lives in a folder in memory."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="teasim", dir=_in_memory()))
        self._template = self._root / "template.db"
        open_writer(self._template).close()
        structlog.configure(processors=[_drop])
        # A process that is killed leaves coroutines that were to begin.
        warnings.filterwarnings("ignore", message=".*was never awaited")
        gc.freeze()  # so that burying a process walks its own objects only

    def play(self, seed: str, actions: Sequence[Action]) -> tuple[Life, Record]:
        """One life; a schedule that breaks the simulation itself is a fault of it."""
        with tempfile.TemporaryDirectory(dir=self._root) as folder:
            (Path(folder) / "workspace").mkdir()
            life = Life(seed, actions, Path(folder), self._template)
            return life, life.play()

    def play_all(self, seeds: Iterable[str]) -> Figures:
        """Lives until one fails."""
        figures = Figures()
        for seed in seeds:
            life, record = self.play(seed, schedule.make(seed))
            figures.lives += 1
            figures.messages += len(life.books.said)
            figures.requests += len(record.requests)
            figures.commits += life.commits
            figures.seen |= record.seen
            if record.faults:
                figures.failed = self.explain(seed, record)
                break
        return figures

    def explain(self, seed: str, record: Record) -> str:
        """The failure of a seed, shrunk as far as it goes."""
        actions = self.shrink(seed, schedule.make(seed))
        _, shorter = self.play(seed, actions)
        numbers = ",".join(str(action.number) for action in actions)
        return "\n".join(
            (
                f"seed {seed} fails: {record.faults[0]}",
                f"shrunk to {len(actions)} actions, which fail with: "
                f"{(shorter.faults or ['nothing: it depends on more'])[0]}",
                *shorter.trace,
                f"again: python -m tests.simulation --seed {seed} --actions {numbers}",
            )
        )

    def shrink(self, seed: str, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        """Leave out runs of actions, shorter and shorter ones, as long as it still fails."""
        size = max(len(actions) // 2, 1)
        while size:
            start = 0
            while start < len(actions):
                fewer = schedule.without(actions, start, start + size)
                if self.play(seed, fewer)[1].faults:
                    actions = fewer
                else:
                    start += size
            size //= 2
        return actions


def _drop(logger: object, method: str, event: object) -> object:
    raise structlog.DropEvent


def _in_memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
