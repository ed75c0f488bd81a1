"""Plugins: from the names in the configuration to what they stand for.

A provider, channel or tool is an entry point, the built-in ones too. It is imported when it is
configured and not before; one that is missing or broken is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

from teaagentd.abc import Channel, Clock, LLMAdapter, Tool
from teaagentd.config.settings import ModelSection, Settings
from teaagentd.errors import ConfigError
from teaagentd.providers.chain import Chain, Link
from teaagentd.providers.options import ModelOptions, OnProgress, ProviderOptions
from teaagentd.providers.prices import Free, Listed, Prices, Stated

Kind = Literal["provider", "channel", "tool"]

_KEYS: dict[Kind, str] = {
    "channel": "channels.{name}.type",
    "tool": "tools.enabled",
}

_DEFAULT = "local"
_OURS = ("enabled", "allow_from")
"""Keys of a channel's table that it is not given."""


def installed(kind: Kind) -> dict[str, EntryPoint]:
    """The plugins of a kind that are installed, by name."""
    return {point.name: point for point in entry_points(group=f"teaagentd.{kind}s")}


def check_installed(settings: Settings) -> None:
    """Raises `ConfigError` for a configured name that no installed plugin has; imports none."""
    for place, section in settings.models():
        _point("provider", section.type or _DEFAULT, f"{place}.type")
    for tool in settings.tools.enabled:
        _point("tool", tool, _KEYS["tool"])
    for name, options in settings.channels.items():
        _point("channel", _channel_kind(name, options), _KEYS["channel"].format(name=name))


def import_all(settings: Settings) -> None:
    """Import every configured plugin, which may take a while. Raises `ConfigError`."""
    for place, section in settings.models():
        _factory("provider", section.type or _DEFAULT, f"{place}.type")
    for tool in settings.tools.enabled:
        _factory("tool", tool, _KEYS["tool"])
    for name, options in settings.channels.items():
        if options.get("enabled", True) is not False:
            _factory("channel", _channel_kind(name, options), _KEYS["channel"].format(name=name))


def load_chain(settings: Settings, *, clock: Clock, on_progress: OnProgress | None) -> Chain:
    """The provider and its fallbacks, in order, each once for every key that it has. Raises
    `ConfigError`."""
    links: list[Link] = []
    for place, section in settings.models():
        kind = section.type or _DEFAULT
        name = place.partition(".")[2] or (kind if kind not in settings.providers else "provider")
        keys: list[str | None] = [*section.all_keys()] or [None]
        for number, key in enumerate(keys, 1):
            options = ProviderOptions(
                type=kind,
                name=name,
                table=place,
                base_url=section.base_url,
                api_key=key,
                model=section.model,
                context_window=section.context_window,
                first_token_timeout_s=section.first_token_timeout_s,
                idle_timeout_s=section.idle_timeout_s,
                idle_minutes=section.idle_minutes,
                clock=clock,
                on_progress=on_progress,
            )
            adapter = load_provider(kind, options, f"{place}.type")
            links.append(
                Link(
                    adapter=adapter,
                    provider=place,
                    prices=_prices(section, adapter.model),
                    name=name,
                    on_request=place.partition(".")[2] not in ("", *settings.provider.fallbacks),
                    label=f"{name}, key {number}" if len(keys) > 1 else name,
                    options=ModelOptions(
                        decisions=section.decisions,
                        max_output_tokens=section.max_output_tokens,
                        temperature=section.temperature,
                        reasoning=section.reasoning,
                    ),
                )
            )
    return Chain(links, clock=clock)


def _prices(section: ModelSection, model: str) -> Prices:
    if section.input_price is not None and section.output_price is not None:
        return Stated(
            input=section.input_price,
            output=section.output_price,
            cached=section.cached_price,
            cache_write=section.cache_write_price,
        )
    kind = section.type or _DEFAULT
    return Free() if kind == "local" else Listed(kind, model, section.base_url)


def load_provider(name: str, options: ProviderOptions, key: str = "provider.type") -> LLMAdapter:
    """The model server that the provider type `name`, set as `key`, stands for. Raises
    `ConfigError`."""
    create = _factory("provider", name, key)
    adapter = _call("provider", name, lambda: create(options))
    if not callable(getattr(adapter, "complete", None)):
        raise _wrong("provider", name, "an LLMAdapter", adapter)
    return adapter  # type: ignore[return-value]  # checked as far as a foreign object can be


def load_tools(names: Iterable[str]) -> tuple[Tool, ...]:
    """The tools that `tools.enabled` names, in its order. A plugin may bring several.
    Raises `ConfigError`, also when two have the same name."""
    tools: dict[str, Tool] = {}
    for name in names:
        create = _factory("tool", name, _KEYS["tool"])
        made = _call("tool", name, create)
        for tool in made if isinstance(made, Sequence) else (made,):
            if not isinstance(tool, Tool):
                raise _wrong("tool", name, "a Tool", tool)
            if tool.spec.name in tools:
                raise ConfigError(
                    f"tools.enabled: {name!r} brings a tool {tool.spec.name!r}, and so does one "
                    "before it; take one of them out",
                    key=_KEYS["tool"],
                )
            tools[tool.spec.name] = tool
    return tuple(tools.values())


def load_channels(
    sections: Mapping[str, Mapping[str, object]], known: Mapping[str, Channel] | None = None
) -> tuple[Mapping[str, Channel], tuple[ConfigError, ...]]:
    """The channels that are configured and not disabled, by name, those that are `known` not
    made anew; and the faults of those that cannot be made: a bad section costs its own channel
    only."""
    channels: dict[str, Channel] = {}
    faults: list[ConfigError] = []
    for name, section in sections.items():
        if section.get("enabled", True) is False:
            continue
        if known and name in known:
            channels[name] = known[name]
            continue
        try:
            channels[name] = _channel(name, section)
        except ConfigError as fault:
            faults.append(fault)
    return channels, tuple(faults)


def channel_options(section: Mapping[str, object]) -> Mapping[str, object]:
    """What of a channel's table is its own affair: the daemon sees to the rest."""
    return {key: value for key, value in section.items() if key not in _OURS}


def _channel(name: str, section: Mapping[str, object]) -> Channel:
    kind = _channel_kind(name, section)
    create = _factory("channel", kind, _KEYS["channel"].format(name=name))
    options = {key: value for key, value in channel_options(section).items() if key != "type"}
    channel = _call("channel", kind, lambda: create(name, options))
    if not callable(getattr(channel, "send", None)):
        raise _wrong("channel", kind, "a Channel", channel)
    return channel  # type: ignore[return-value]  # checked as far as a foreign object can be


def _channel_kind(name: str, section: Mapping[str, object]) -> str:
    kind = section.get("type", name)
    if not isinstance(kind, str):
        key = f"channels.{name}.type"
        raise ConfigError(f"{key}: must be a text in quotes", key=key)
    return kind


def _point(kind: Kind, name: str, key: str) -> EntryPoint:
    points = installed(kind)
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise ConfigError(f"{key}: there is no {kind} {name!r}; installed are: {known}", key=key)
    return points[name]


def _factory(kind: Kind, name: str, key: str) -> Callable[..., object]:
    """The function behind an entry point, imported now."""
    point = _point(kind, name, key)
    try:
        found: object = point.load()
    except Exception as error:  # a plugin's import may raise anything
        raise ConfigError(_broken(kind, name, point, "imported", error)) from error
    if not callable(found):
        raise _wrong(kind, name, "a function", found)
    return found


def _call(kind: Kind, name: str, create: Callable[[], object]) -> object:
    try:
        return create()
    except ConfigError:
        raise
    except Exception as error:  # a plugin's factory may raise anything
        raise ConfigError(_broken(kind, name, installed(kind)[name], "made", error)) from error


def _broken(kind: Kind, name: str, point: EntryPoint, what: str, error: Exception) -> str:
    origin = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    return (
        f"the {kind} {name!r} ({point.value}{origin}) cannot be {what}: "
        f"{type(error).__name__}: {error}"
    )


def _wrong(kind: Kind, name: str, expected: str, found: object) -> ConfigError:
    return ConfigError(f"the {kind} {name!r} gave {type(found).__name__}, not {expected}")
