"""Generation: everything that is made from one state of the configuration.

A turn keeps the generation it began with. What has not changed is taken over from the generation
before: a model stays loaded, a channel connected, a prompt's bytes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from zoneinfo import ZoneInfo

from anyio.abc import TaskGroup

from teaagentd.abc import Channel, Clock, SpendingGate
from teaagentd.agent.budget import Caps
from teaagentd.agent.dialects import JsonDialect
from teaagentd.agent.engine import ModelDecisionEngine
from teaagentd.agent.execution import RunPlace
from teaagentd.agent.runner import AgentRunner, RunLimits
from teaagentd.agent.toolbox import CallLimits, Toolbox, ToolRegistry
from teaagentd.attachments import Attachments
from teaagentd.config import Settings
from teaagentd.config.settings import AgentSection
from teaagentd.core.context import ContextBuilder
from teaagentd.core.turn import Turn
from teaagentd.errors import ConfigError
from teaagentd.home import Home
from teaagentd.plugins import (
    channel_options,
    load_chain,
    load_channels,
    load_tools,
)
from teaagentd.providers.chain import Chain
from teaagentd.providers.options import ModelOptions

_BRIEF = JsonDialect(brief=True, answer_limit=400)
"""For very small models. Measured with the embedded one: told more, it calls tools at random;
unbounded, it does not stop talking."""


class Generation:
    """Made by `make`; nothing of it changes afterwards."""

    def __init__(
        self,
        settings: Settings,
        *,
        chain: Chain,
        registry: ToolRegistry,
        channels: Mapping[str, Channel],
        context: ContextBuilder,
        senders: Mapping[str, frozenset[str]],
        clock: Clock,
        strays: TaskGroup,
        files: Attachments,
    ) -> None:
        self.settings = settings
        self.chain = chain
        self.registry = registry
        self.channels = channels
        self.context = context
        self.senders = senders
        """Who may speak, on each channel that is not open to everyone."""
        self.toolbox = Toolbox(
            registry=registry,
            strays=strays,
            limits=CallLimits(timeout_s=settings.agent.tool_timeout_s),
            clock=clock,
            files=files,
        )
        self._engine = ModelDecisionEngine(
            adapter=chain, registry=registry, small_dialect=_BRIEF, clock=clock, files=files
        )
        # A summary is asked for without tools, in plain words whatever the dialect.
        self.words = ModelDecisionEngine(
            adapter=chain,
            registry=ToolRegistry([]),
            options=ModelOptions(decisions="native"),
            clock=clock,
        )
        self.caps = _caps(settings)
        """What requests may come to."""
        self._limits = RunLimits(
            max_iterations=settings.agent.max_iterations,
            max_tool_calls=settings.agent.max_tool_calls,
        )

    def window(self, choice: str | None = None) -> int | None:
        """Tokens that the model reads at most that is asked now, as far as that is known."""
        return self.chain.first(choice).adapter.context_window

    def sees(self, choice: str | None = None) -> bool:
        """Whether that model is shown pictures."""
        return self.chain.first(choice).adapter.vision

    def make_runner(self, turn: Turn, gate: SpendingGate | None = None) -> AgentRunner:
        """The agent's run behind a turn of this generation, with its requests asked for at
        `gate`."""
        return AgentRunner(
            engine=self._engine,
            toolbox=self.toolbox,
            journal=turn,
            place=RunPlace(session_key=turn.key, turn_id=turn.id, waiting=turn.waiting),
            watcher=turn.watcher,
            limits=self._limits,
            window=self.window,
            sees=self.sees,
            gate=gate,
        )


def make(
    settings: Settings,
    before: Generation | None,
    *,
    clock: Clock,
    strays: TaskGroup,
    files: Attachments,
    on_progress: Callable[[str], None],
) -> tuple[Generation, Sequence[ConfigError]]:
    """A generation for `settings`, and the faults of the channels that it has to do without.
    Raises `ConfigError` for anything else that cannot be made; nothing is in use then."""
    senders = allowed_senders(settings.channels)
    channels, faults = load_channels(settings.channels, _unchanged(settings, before))
    registry = ToolRegistry(load_tools(settings.tools.enabled))
    if before is not None and settings.tools == before.settings.tools:
        registry = before.registry
    if before is not None and (settings.provider, settings.providers) == (
        before.settings.provider,
        before.settings.providers,
    ):
        chain = before.chain
    else:
        chain = load_chain(settings, clock=clock, on_progress=on_progress)
    made = Generation(
        settings,
        chain=chain,
        registry=registry,
        channels=channels,
        context=_context(settings, before, clock),
        senders=senders,
        clock=clock,
        strays=strays,
        files=files,
    )
    return made, faults


def _unchanged(settings: Settings, before: Generation | None) -> Mapping[str, Channel]:
    """The channels that may go on as they are. Who may speak is not their affair."""
    if before is None:
        return {}
    then = before.settings.channels
    return {
        name: before.channels[name]
        for name, section in settings.channels.items()
        if name in before.channels and channel_options(section) == channel_options(then[name])
    }


def _caps(settings: Settings) -> Caps:
    budget = settings.budget.model_dump(exclude={"allow_unknown_prices"})
    return Caps(
        **budget,
        allow_unknown_prices=frozenset(settings.budget.allow_unknown_prices),
        zone=_zone(settings.agent),
    )


def _zone(agent: AgentSection) -> ZoneInfo | None:
    return ZoneInfo(agent.timezone) if agent.timezone else None


def _context(settings: Settings, before: Generation | None, clock: Clock) -> ContextBuilder:
    agent = settings.agent
    if before is not None:
        then = before.settings.agent
        if (agent.name, agent.timezone) == (then.name, then.timezone):
            return before.context
    return ContextBuilder(
        workspace=Home(root=settings.home).workspace,
        clock=clock,
        name=agent.name,
        zone=_zone(agent),
    )


def allowed_senders(
    channels: Mapping[str, Mapping[str, object]],
) -> Mapping[str, frozenset[str]]:
    """Who may speak, for each channel that has an `allow_from`; on the others the channel
    decides. Raises `ConfigError` for a list that holds anything but ids."""
    allowed: dict[str, frozenset[str]] = {}
    for name, section in channels.items():
        if "allow_from" not in section:
            continue
        listed = section["allow_from"]
        if not isinstance(listed, list) or any(
            isinstance(one, bool) or not isinstance(one, str | int) for one in listed
        ):
            key = f"channels.{name}.allow_from"
            raise ConfigError(f"{key}: must be a list of sender ids", key=key)
        allowed[name] = frozenset(str(one) for one in listed)
    return allowed
