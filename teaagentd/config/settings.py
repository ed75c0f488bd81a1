"""Settings: what an operator can set, with its limits, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from teaagentd.config.source import ENV_PREFIX, is_secret_name

PermissionMode: TypeAlias = Literal[
    "read-only", "workspace-write", "prompt", "allow", "danger-full-access"
]
Decisions: TypeAlias = Literal["auto", "native", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogFormat: TypeAlias = Literal["auto", "console", "json"]


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


Count: TypeAlias = Annotated[int, BeforeValidator(_no_truth_value), Field(gt=0)]
CountOrZero: TypeAlias = Annotated[int, BeforeValidator(_no_truth_value), Field(ge=0)]
Quantity: TypeAlias = Annotated[
    float, BeforeValidator(_no_truth_value), Field(gt=0, allow_inf_nan=False)
]
QuantityOrZero: TypeAlias = Annotated[
    float, BeforeValidator(_no_truth_value), Field(ge=0, allow_inf_nan=False)
]


def _effort_or_tokens(value: object) -> object:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if value in ("low", "medium", "high") or (type(value) is int and value > 0):
        return value
    raise ValueError("must be low, medium, high or a number of tokens")


Reasoning: TypeAlias = Annotated[
    Literal["low", "medium", "high"] | int, BeforeValidator(_effort_or_tokens)
]


class Section(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class AgentSection(Section):
    """How the assistant works."""

    name: str = Field(default="Tea", min_length=1, description="What the assistant calls itself.")
    timezone: str | None = Field(
        default=None,
        description="The zone of the times that it is told; unset, the machine's.",
        examples=["Europe/Vienna"],
    )
    permission_mode: PermissionMode = Field(
        default="prompt",
        description="What tools may do without asking: read-only, workspace-write, prompt, allow "
        "or danger-full-access.",
    )
    max_concurrent_turns: Count = Field(
        default=8,
        description="How many conversations are worked on at once; the others wait in turn.",
    )
    max_parked_turns: Count = Field(
        default=64,
        description="How many turns may wait for a person without holding one of those places.",
    )
    max_iterations: Count = Field(default=50, description="Questions to the model in one turn.")
    max_tool_calls: Count = Field(default=200, description="Tool calls in one turn.")
    turn_timeout_s: Quantity = Field(
        default=1800, description="Seconds after which a turn is ended, and says so."
    )
    tool_timeout_s: Quantity = Field(
        default=120,
        description="Seconds that one tool call may take, unless the tool says otherwise.",
    )

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, name: str | None) -> str | None:
        if name is not None:
            try:
                ZoneInfo(name)
            except (ZoneInfoNotFoundError, ValueError, OSError):
                raise ValueError("is no known time zone; write one like Europe/Vienna") from None
        return name


class ModelSection(Section):
    """One provider and its model."""

    type: str | None = Field(
        default=None,
        min_length=1,
        description="anthropic, openai (and servers that speak their APIs), or local (a GGUF file "
        "on this machine,\nno key). Unset, the first start picks by the keys it finds in the "
        "environment.",
        examples=["local"],
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        description="The model's name, or for local the path of any .gguf file; unset, the "
        "provider's default.",
        examples=["gpt-5-mini"],
    )
    base_url: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="The API's address, for servers other than the provider's own.",
        examples=["http://127.0.0.1:11434/v1"],
    )
    api_key: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="The key; better taken from the environment than written here.",
        examples=["${OPENAI_API_KEY}"],
    )
    api_key_file: Path | None = Field(
        default=None,
        description="A file that holds the key, instead of api_key. A relative path starts here.",
        examples=["openai.key"],
    )
    api_keys: tuple[SecretStr, ...] = Field(
        default=(),
        description="Further keys, for when the first one is refused or has used up its share.",
        examples=[["${OPENAI_API_KEY_2}"]],
    )

    decisions: Decisions = Field(
        default="auto",
        description="How the model calls tools: native (the server's own way), json (one JSON "
        "object per reply) or auto.",
    )
    context_window: Count | None = Field(
        default=None,
        description="Tokens that the model reads at most; unset, what the provider says.",
        examples=[128000],
    )
    max_output_tokens: Count | None = Field(
        default=None, description="Tokens that it writes at most in one answer.", examples=[4096]
    )
    temperature: QuantityOrZero | None = Field(
        default=None,
        le=2,
        description="How freely it words an answer, from 0 to 2; unset, the provider's default.",
        examples=[0.7],
    )
    reasoning: Reasoning | None = Field(
        default=None,
        description="How much it may think before it answers: low, medium, high, or a number of "
        "tokens; unset,\nthe provider's default. Models that cannot think are not told.",
        examples=["medium"],
    )
    input_price: QuantityOrZero | None = Field(
        default=None,
        description="US dollars for a million tokens that it reads; unset, what the vendor lists. "
        "Servers on this machine cost nothing.",
        examples=[0.25],
    )
    output_price: QuantityOrZero | None = Field(
        default=None,
        description="US dollars for a million tokens that it writes.",
        examples=[2],
    )
    cached_price: QuantityOrZero | None = Field(
        default=None,
        description="US dollars for a million tokens that it reads from its cache; unset, as "
        "input_price.",
        examples=[0.025],
    )
    cache_write_price: QuantityOrZero | None = Field(
        default=None,
        description="US dollars for a million tokens that it writes to its cache; unset, as "
        "input_price.",
        examples=[0.3],
    )
    first_token_timeout_s: Quantity = Field(
        default=300, description="Seconds to wait for the first piece of an answer."
    )
    idle_timeout_s: Quantity = Field(
        default=120,
        description="Seconds of silence after which a started answer counts as broken off.",
    )
    idle_minutes: QuantityOrZero = Field(
        default=15,
        description="local: minutes without use after which the model leaves the memory; 0 keeps "
        "it there.",
    )

    @model_validator(mode="after")
    def _whole_price(self) -> ModelSection:
        prices = (self.input_price, self.output_price)
        if prices.count(None) == 1:
            raise ValueError("input_price and output_price go together; set both or neither")
        if prices == (None, None) and (self.cached_price, self.cache_write_price) != (None, None):
            raise ValueError("cached_price and cache_write_price need input_price, output_price")
        return self

    @field_validator("api_key")
    @classmethod
    def _one_word(cls, key: SecretStr | None) -> SecretStr | None:
        return None if key is None else _word(key)

    @field_validator("api_keys")
    @classmethod
    def _words(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        return tuple(map(_word, keys))

    def all_keys(self) -> list[str]:
        """All keys, in the order in which they are used, each once."""
        found = [self.api_key, *self.api_keys]
        return list(dict.fromkeys(key.get_secret_value() for key in found if key is not None))


def _word(key: SecretStr) -> SecretStr:
    """What no header can hold is refused here, not by each request."""
    text = key.get_secret_value().strip()
    if not (text and text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("must be one word in ASCII, without spaces or line breaks")
    return SecretStr(text)


class ProviderSection(ModelSection):
    """Which model answers."""

    fallbacks: tuple[str, ...] = Field(
        default=(),
        description="Who answers when this one does not, in order: names of [providers.NAME] "
        "tables.",
        examples=[["spare"]],
    )


class BudgetSection(Section):
    """What models may cost. A request that would pass a cap is not made; unset, there is no cap."""

    turn_cents: QuantityOrZero | None = Field(
        default=None, description="US cents for one turn.", examples=[50]
    )
    session_cents: QuantityOrZero | None = Field(
        default=None, description="US cents for one conversation, until /new.", examples=[200]
    )
    day_cents: QuantityOrZero | None = Field(
        default=None,
        description="US cents for a day. It begins at midnight in agent.timezone.",
        examples=[300],
    )
    month_cents: QuantityOrZero | None = Field(
        default=None, description="US cents for a calendar month.", examples=[3000]
    )
    turn_tokens: CountOrZero | None = Field(
        default=None, description="Tokens for one turn, read and written.", examples=[500000]
    )
    session_tokens: CountOrZero | None = Field(
        default=None,
        description="Tokens for one conversation, until /new.",
        examples=[2000000],
    )
    day_tokens: CountOrZero | None = Field(
        default=None, description="Tokens for a day.", examples=[5000000]
    )
    month_tokens: CountOrZero | None = Field(
        default=None, description="Tokens for a calendar month.", examples=[50000000]
    )
    allow_unknown_prices: tuple[str, ...] = Field(
        default=(),
        description="Models that may be used under a cap in cents although their price is not "
        "known, by name; nothing of theirs counts for it.",
        examples=[["some-model"]],
    )


class BusSection(Section):
    """The inbox."""

    max_pending: Count = Field(
        default=1000,
        description="Messages that may wait for an answer; more are refused, none dropped.",
    )


class ToolsSection(Section):
    """What the assistant can do."""

    enabled: tuple[str, ...] = Field(
        default=("current_time",), description="The tools that it is offered, by name."
    )


class LoggingSection(Section):
    """What is written of the work. Never what was said, never a secret."""

    level: LogLevel = Field(default="info", description="debug, info, warning or error.")
    format: LogFormat = Field(
        default="auto",
        description="console, json, or auto: json under systemd, console for people.",
    )


class RetentionSection(Section):
    """How many days what was said is kept; unset, for ever. Older things go once a day."""

    transcripts: Quantity | None = Field(
        default=None,
        description="Conversations: turns that ended so long ago, and the messages they answered. "
        "What was learnt of their cost stays.",
        examples=[365],
    )
    outbox: Quantity | None = Field(
        default=None,
        description="Texts that were delivered, as they went out.",
        examples=[90],
    )
    logs: Quantity | None = Field(
        default=None,
        description="Files in logs/ that nothing was written to since.",
        examples=[30],
    )


class ShutdownSection(Section):
    """How it ends."""

    drain_timeout_s: QuantityOrZero = Field(
        default=30,
        description="Seconds to finish what is being said and sent. A turn that takes longer is "
        "resumed at the next start.",
    )


ChannelOptions: TypeAlias = dict[str, object]


class Settings(BaseSettings):
    """All of it, valid, with no `${…}` left and the secrets in place."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    home: Path
    agent: AgentSection = AgentSection()
    provider: ProviderSection = ProviderSection()
    providers: dict[str, ModelSection] = Field(
        default_factory=dict,
        description="One table for each further provider, with the keys of [provider]: one of the "
        "fallbacks, or one that is asked where /model chose it.",
    )
    budget: BudgetSection = BudgetSection()
    bus: BusSection = BusSection()
    tools: ToolsSection = ToolsSection()
    channels: dict[str, ChannelOptions] = Field(
        default_factory=dict,
        description="One table for each channel that is to run. `type` names the kind; unset, the "
        "table's name is.",
    )
    logging: LoggingSection = LoggingSection()
    retention: RetentionSection = RetentionSection()
    shutdown: ShutdownSection = ShutdownSection()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """`load_settings` merges the sources itself, to know where each value came from."""
        return (init_settings,)

    def models(self) -> Iterator[tuple[str, ModelSection]]:
        """Who is asked, in order, each with the table that it stands in; then those that are asked
        only where they were chosen."""
        yield "provider", self.provider
        for name in dict.fromkeys((*self.provider.fallbacks, *self.providers)):
            yield f"providers.{name}", self.providers[name]

    def secrets(self) -> Iterator[str]:
        """Every secret value, for the log's masks."""
        for section in (self.provider, *self.providers.values()):
            yield from section.all_keys()
        for options in self.channels.values():
            yield from _channel_secrets(options)


def _channel_secrets(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _channel_secrets(value)
        elif isinstance(value, str) and is_secret_name(name):
            yield value
