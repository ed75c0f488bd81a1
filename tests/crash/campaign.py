"""Random kills under load: seeded clients that never stop talking, and a killer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.crash.checks import check
from tests.crash.world import World
from tests.daemon_process import Unreachable

CHATS = (("anna", "api"), ("bob", "filebox"), ("carl", "api"), ("dora", "filebox"))
_ALIVE_S = (0.05, 1.5)
"""How long a daemon that is ready is let live."""
_STARTING = 0.15
"""The share of kills that come before the daemon is ready."""


class Campaign:
    """`kills` kills of one daemon under the load of four chats, from one seed."""

    def __init__(self, seed: str, kills: int) -> None:
        self.seed = seed
        self.kills = kills
        self.killed = 0
        self._over = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> World:
        """Play it and check everything; the world is returned for its figures, ended. Raises
        AssertionError with the seed."""
        environ = {
            "TEAAGENTD_AGENT__MAX_CONCURRENT_TURNS": "2",
            "TEAAGENTD_BUS__MAX_PENDING": "12",
        }
        with World(environ=environ) as world, ThreadPoolExecutor(len(CHATS)) as pool:
            talkers = [pool.submit(self._talk, world, *chat) for chat in CHATS]
            try:
                self._kill_at_random(world)
            finally:
                self._over.set()
            for talker in talkers:
                talker.result(timeout=300)
            world.settle()
            check(world, f"seed {self.seed}, {self.kills} kills")
            world.daemon.kill()
        return world

    # -- the killer ---------------------------------------------------------------------

    def _kill_at_random(self, world: World) -> None:
        dice = random.Random(f"{self.seed}/killer")
        while self.killed < self.kills:
            early = dice.random() < _STARTING
            alive_s = dice.uniform(*_ALIVE_S)
            starting_s = dice.uniform(0.0, 1.0)
            world.launch()
            if early:
                time.sleep(starting_s)
            else:
                try:
                    world.daemon.wait_ready()
                except Unreachable as error:
                    raise AssertionError(
                        f"it did not start:\n{world.daemon.log()[-8000:]}"
                    ) from error
                time.sleep(alive_s)
            world.daemon.kill()
            self.killed += 1
        world.revive()

    # -- the clients --------------------------------------------------------------------

    def _talk(self, world: World, chat: str, channel: str) -> None:
        """One person: messages at random, sometimes before the last is answered, sometimes a
        command, sometimes the same message again though it was accepted."""
        dice = random.Random(f"{self.seed}/{chat}")
        number = 0
        while not self._over.is_set():
            for _ in range(dice.randint(1, 3)):
                text = _something(dice, chat, number)
                number += 1
                sent = world.send(chat, text, channel=channel, patient=True)
                if dice.random() < 0.1:
                    world.redeliver(sent, chat, channel)
            time.sleep(dice.uniform(0.0, 0.4))


def _something(dice: random.Random, chat: str, number: int) -> str:
    """What a person says next."""
    mark = f"#{chat}/{number}#"
    kinds: list[tuple[int, Callable[[], str]]] = [
        (6, lambda: f"{mark} hello"),
        (4, lambda: f"{mark} [[wait:{dice.randint(20, 250)}]]"),
        (4, lambda: f'{mark} [[tool:count {{"token": "{mark}"}}]]'),
        (
            3,
            lambda: (
                f'{mark} [[tool:count {{"token": "{mark}a"}}]] '
                f'[[tool:count {{"token": "{mark}b"}}]] [[beside:One moment.]]'
            ),
        ),
        (2, lambda: f"{mark} [[chunks:8]] [[chunk-ms:{dice.randint(2, 20)}]]"),
        (1, lambda: f"{mark} [[status:400]]"),
        (1, lambda: f"{mark} " + "A long line that makes several parts of it. " * 4),
        (1, lambda: "/stop"),
        (1, lambda: "/new"),
        (1, lambda: "/status"),
        (1, lambda: "/compact"),
    ]
    (_, make) = dice.choices(kinds, [weight for weight, _ in kinds])[0]
    return make()
