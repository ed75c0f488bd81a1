"""StoreBooks: what requests to models came to and may come to, and who may still make one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo

from teaagentd.store import ledger
from teaagentd.store.database import Database
from teaagentd.store.spent import Spent, SpentBy, sums
from teaagentd.store.values import Level, Limit, Payer, Reserving
from teaagentd.types import Attempt, Planned


class StoreBooks:
    """The books of a `Store`, which raise as it does. What ends a turn's step is booked by that
    step's own commit."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.on_booked: Callable[[], None] = lambda: None
        """Told, on the event loop, when something was booked."""

    async def reserve(
        self, planned: Planned, ended: Sequence[Attempt], payer: Payer, limits: Sequence[Limit]
    ) -> Reserving:
        """B1, before a request: books `ended`, and sets aside what it may cost, unless one of
        `limits` forbids that."""
        made = await self._database.write(
            "B1.reserve",
            lambda connection: ledger.reserve(connection, planned, ended, payer, limits),
        )
        if ended:
            self.on_booked()
        return made

    async def settle(self, ended: Sequence[Attempt]) -> None:
        """B2: books what has a reservation and is not booked yet."""
        await self._database.write("B2.settle", lambda connection: ledger.book(connection, ended))
        self.on_booked()

    async def resolve(self) -> int:
        """B3, at a start: what the last process left open counts as spent. Returns how many
        requests these were."""
        return await self._database.write("B3.resolve", ledger.resolve)

    async def levels(self, limits: Sequence[Limit], payer: Payer) -> tuple[Level, ...]:
        """How far each of `limits` is used up."""
        return await self._database.read(
            lambda connection: ledger.levels(connection, limits, payer)
        )

    async def spent(
        self, by: SpentBy, *, since_ms: int, zone: tzinfo | None
    ) -> Mapping[str, Spent]:
        """What requests came to from then on, by name. See `spent.sums`."""
        return await self._database.read(
            lambda connection: sums(connection, by, since_ms=since_ms, zone=zone)
        )
