"""WaitGraph: who waits for whom, so that nobody waits for ever."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

from teaagentd.errors import DirectTurnDeadlock


class WaitGraph:
    """Which session's turn waits for a direct turn on which other. A ring would wait for ever."""

    def __init__(self) -> None:
        self._edges: dict[str, Counter[str]] = {}

    @contextmanager
    def waiting(self, waiter: str | None, target: str) -> Iterator[None]:
        """Note that the turn on `waiter` waits for one on `target`. Raises `DirectTurnDeadlock`
        when `target` is the waiter itself or waits for it already, through whomever."""
        if waiter is None:
            yield
            return
        path = self._path(target, waiter)
        if path is not None:
            raise DirectTurnDeadlock(target, [waiter, *path])
        targets = self._edges.setdefault(waiter, Counter())
        targets[target] += 1
        try:
            yield
        finally:
            targets[target] -= 1
            if not targets[target]:
                del targets[target]
            if not targets:
                self._edges.pop(waiter, None)

    def _path(self, start: str, goal: str) -> list[str] | None:
        """The keys from `start` to `goal` along the edges, both included, or None."""
        trail = {start: ""}
        queue = deque([start])
        while queue:
            key = queue.popleft()
            if key == goal:
                path = [key]
                while trail[path[0]]:
                    path.insert(0, trail[path[0]])
                return path
            for following in self._edges.get(key, ()):
                if following not in trail:
                    trail[following] = key
                    queue.append(following)
        return None
