"""Playing seeds side by side, shrinking what fails, and saying how to see it again."""

from __future__ import annotations

import gc
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import structlog

from teaagentd.store.opening import open_writer
from tests.simulation import breaks, schedule
from tests.simulation.life import Life
from tests.simulation.parts import Record
from tests.simulation.schedule import Action

_AT_ONCE = 25
"""Lives of one process."""
AGAIN = "again: python -m tests.simulation"


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

    def add(self, other: Figures) -> None:
        """Those of other lives."""
        self.lives += other.lives
        self.messages += other.messages
        self.requests += other.requests
        self.commits += other.commits
        self.seen |= other.seen
        self.failed = self.failed or other.failed


def play_many(first: int, count: int, broken: str | None = None) -> Figures:
    """The seeds from `first` on, in processes that each play a few and end: what a life that was
    killed leaves in memory goes with them. With `broken` the daemon has that fault."""
    starts = range(first, first + count, _AT_ONCE)
    parts = [(start, min(_AT_ONCE, first + count - start), broken) for start in starts]
    total = Figures()
    with get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        for figures in pool.imap(_play_some, parts):
            total.add(figures)
            if total.failed:
                break
    return total


def _play_some(part: tuple[int, int, str | None]) -> Figures:
    first, count, broken = part
    if broken is not None:
        breaks.BREAKS[broken]()
    with _folder() as folder:
        return Player(folder).play_all(str(seed) for seed in range(first, first + count))


class Player:
    """Plays lives in folders within `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._template = self._root / "template.db"
        with closing(open_writer(self._template)) as file:
            # Keys of parts are made of it, and dice of those.
            file.execute("UPDATE store SET uid = 'simulated'")
            file.commit()
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
                f"{AGAIN} --seed {seed} --actions {numbers}",
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


@contextmanager
def _folder() -> Iterator[Path]:
    """In memory, where there is such a thing."""
    where = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="teasim", dir=where) as folder:
        yield Path(folder)


def play_one(seed: str, actions: Sequence[Action], broken: str | None = None) -> Record:
    """One life."""
    if broken is not None:
        breaks.BREAKS[broken]()
    with _folder() as folder:
        return Player(folder).play(seed, actions)[1]
