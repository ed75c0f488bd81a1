"""Models: which of the configured ones is asked first, in one conversation or in all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from teaagentd.commands import Command
from teaagentd.providers.chain import Chain
from teaagentd.store import Store
from teaagentd.store.values import Choice
from teaagentd.types import SessionKey

AS_CONFIGURED = "default"
"""The name that takes a choice back."""
_HELP = (
    "/model NAME asks that one first in this conversation, /model NAME all in every one; "
    f"/model {AS_CONFIGURED} goes back to what is configured."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEntry:
    """One configured model. `chosen` says that it is asked first."""

    name: str
    model: str
    context_window: int | None
    on_request: bool
    chosen: bool
    rests_s: float | None


class UnknownModel(ValueError):
    """There is no model of that name; the message lists those that there are."""


class Models:
    """Reads and words choices; what is chosen is kept in the store."""

    def __init__(self, *, chain: Callable[[], Chain], store: Store) -> None:
        self._chain = chain
        self._store = store

    async def entries(self, key: SessionKey | None) -> Sequence[ModelEntry]:
        """The configured models in their order, as they stand for a session, or for those that
        have chosen none."""
        chain = self._chain()
        choice = await self._store.chosen(key)
        found: dict[str, ModelEntry] = {}
        for link, status in zip(chain.links, chain.status(), strict=True):
            entry = ModelEntry(
                name=link.name,
                model=link.adapter.model,
                context_window=link.adapter.context_window,
                on_request=link.on_request,
                chosen=False,
                rests_s=status.rests_s,
            )
            known = found.setdefault(link.name, entry)
            if known.rests_s is not None:
                # Any key of it that may be asked will do.
                found[link.name] = entry
        first = choice if choice in found else chain.links[0].name
        return [replace(entry, chosen=entry.name == first) for entry in found.values()]

    def choice(self, name: str, *, for_all: bool) -> Choice:
        """The choice of `name`. Raises `UnknownModel`."""
        if name == AS_CONFIGURED:
            return Choice(model=None, for_all=for_all)
        names = list(dict.fromkeys(link.name for link in self._chain().links))
        if name not in names:
            known = ", ".join([*names, AS_CONFIGURED])
            raise UnknownModel(
                f"There is no model {name!r} in the configuration; there is {known}."
            )
        return Choice(model=name, for_all=for_all)

    async def prepare(self, command: Command, key: SessionKey) -> Command:
        """`/model`, with what it chooses and what it answers."""
        name, *more = command.argument.split()[:2] or [""]
        if not name:
            return replace(command, told=_listed(await self.entries(key)))
        if len(command.argument.split()) > 2 or (more and more != ["all"]):
            return replace(command, told=f"I did not understand that; nothing has changed. {_HELP}")
        try:
            choice = self.choice(name, for_all=bool(more))
        except UnknownModel as error:
            return replace(command, told=f"{error} Nothing has changed.")
        return replace(command, told=self.told(choice), choice=choice)

    def told(self, choice: Choice) -> str:
        """What was chosen, in words."""
        chain = self._chain()
        where = "in every conversation" if choice.for_all else "in this conversation"
        order = [link for link in chain.links if link.name == choice.model]
        order += [link for link in chain.links if link.name != choice.model and not link.on_request]
        names = list(dict.fromkeys(f"{link.name} ({link.adapter.model})" for link in order))
        first, *others = names
        begins = "As configured, I" if choice.model is None else "I"
        behind = f" When it does not answer, I ask {', then '.join(others)}." if others else ""
        return f"{begins} ask {first} {where} from the next turn on.{behind}"


def _listed(entries: Sequence[ModelEntry]) -> str:
    lines = [_line(entry) for entry in entries]
    return "\n".join([*lines, _HELP])


def _line(entry: ModelEntry) -> str:
    window = f", reads {entry.context_window:,} tokens" if entry.context_window else ""
    asked = ", only where it is chosen" if entry.on_request else ""
    rests = f", rests for {entry.rests_s:.0f} s" if entry.rests_s is not None else ""
    mark = "*" if entry.chosen else " "
    return f"{mark} {entry.name}: {entry.model}{window}{asked}{rests}"
