"""Plugins: what is configured is found by name and imported; what is not, is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from teaagentd import plugins
from teaagentd.abc import SystemClock
from teaagentd.config import ProviderSection, Settings
from teaagentd.config.settings import ModelSection, ToolsSection
from teaagentd.errors import ConfigError
from teaagentd.providers.chain import Chain
from teaagentd.providers.options import ModelOptions, ProviderOptions
from tests.daemon_process import plugin_folder

POINTS: Mapping[str, Mapping[str, str]] = {
    "teaagentd.providers": {
        "scripted": "plugins_under_test:provider",
        "missing_library": "plugins_under_test.missing:provider",
        "number": "plugins_under_test:NUMBER",
        "nothing": "plugins_under_test:nothing",
        "raising": "plugins_under_test:raising",
    },
    "teaagentd.channels": {
        "memory": "plugins_under_test:channel",
        "nothing": "plugins_under_test:nothing",
        "raising": "plugins_under_test:raising",
    },
    "teaagentd.tools": {
        "echo": "plugins_under_test:echo",
        "several": "plugins_under_test:several",
        "nothing": "plugins_under_test:nothing",
    },
}

SOURCE = """
from teaagentd.errors import ConfigError
from teaagentd.testing import MemoryChannel, ScriptedModel
from teaagentd.tools.clock import CurrentTime
from teaagentd.types import ToolSpec

NUMBER = 5
asked = []

def provider(options):
    asked.append(options)
    return ScriptedModel(["hello"])

def nothing(*given):
    return None

def raising(*given):
    raise RuntimeError("the plugin is broken")

def channel(name, options):
    if "token" not in options:
        raise ConfigError(f"channels.{name}.token is not set")
    asked.append((name, options))
    return MemoryChannel(name)

class Echo:
    timeout_s = None

    def __init__(self, name):
        self.spec = ToolSpec(name=name, description="Echo.", parameters={"type": "object"})

    async def run(self, arguments, context):
        return "echo"

def echo():
    return Echo("echo")

def several():
    return [Echo("one"), Echo("two"), Echo("echo")]
"""


@pytest.fixture(autouse=True)
def installed_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin_folder(tmp_path, POINTS)
    package = tmp_path / "plugins_under_test"
    package.mkdir()
    (package / "__init__.py").write_text(SOURCE)
    (package / "missing.py").write_text("import a_library_that_is_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("plugins_under_test")]:
        monkeypatch.delitem(sys.modules, name)


def chain(**sections: Any) -> Chain:
    settings = Settings(home=Path("/nowhere"), **sections)
    return plugins.load_chain(settings, clock=SystemClock(), on_progress=None)


def configured(channel: dict[str, object]) -> Settings:
    return Settings(
        home=Path("/nowhere"),
        provider=ProviderSection(type="raising"),
        tools=ToolsSection(enabled=("echo",)),
        channels={"x": channel},
    )


def options(kind: str) -> ProviderOptions:
    return ProviderOptions(type=kind)


class TestProviders:
    def test_the_configured_one_is_made_with_its_settings(self) -> None:
        section = ProviderSection(
            type="scripted", model="m", base_url="http://x", api_key=SecretStr("k"), idle_minutes=3
        )
        [link] = chain(provider=section).links
        assert type(link.adapter).__name__ == "ScriptedModel"
        (given,) = sys.modules["plugins_under_test"].asked
        assert (given.model, given.base_url, given.api_key) == ("m", "http://x", "k")
        assert given.idle_minutes == 3

    def test_there_is_one_for_each_key_and_each_fallback_in_order(self) -> None:
        first = ProviderSection(
            type="scripted",
            api_key=SecretStr("k"),
            api_keys=(SecretStr("l"), SecretStr("k")),
            fallbacks=("spare",),
        )
        spare = ModelSection(type="scripted", model="m", temperature=0.5, decisions="json")
        found = chain(provider=first, providers={"spare": spare, "unused": spare})
        assert [link.label for link in found.links] == [
            "scripted, key 1",
            "scripted, key 2",
            "spare",
            "unused",
        ]
        given = sys.modules["plugins_under_test"].asked
        assert [one.api_key for one in given] == ["k", "l", None, None]
        assert [one.name for one in given] == ["scripted", "scripted", "spare", "unused"]
        assert found.links[2].options == ModelOptions(decisions="json", temperature=0.5)
        assert found.links[0].options == ModelOptions()
        assert [link.on_request for link in found.links] == [False, False, False, True]

    def test_the_table_of_a_fallback_is_named(self) -> None:
        first = ProviderSection(type="scripted", fallbacks=("spare",))
        with pytest.raises(ConfigError, match=r"providers\.spare\.type: there is no provider"):
            chain(provider=first, providers={"spare": ModelSection(type="gpt")})

    def test_an_unknown_one_is_named_with_those_that_are_installed(self) -> None:
        with pytest.raises(ConfigError) as caught:
            plugins.load_provider("gpt", options("gpt"))
        message = str(caught.value)
        assert message.startswith("provider.type: there is no provider 'gpt'")
        assert "local" in message
        assert "openai" in message

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("missing_library", "cannot be imported: ModuleNotFoundError: No module named 'a_lib"),
            ("raising", "cannot be made: RuntimeError: the plugin is broken"),
            ("nothing", "gave NoneType, not an LLMAdapter"),
            ("number", "gave int, not a function"),
        ],
    )
    def test_a_broken_one_is_named_with_its_fault(self, name: str, words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            plugins.load_provider(name, options(name))
        assert repr(name) in str(caught.value)
        assert words in str(caught.value)

    def test_the_distribution_of_a_broken_one_is_named(self) -> None:
        with pytest.raises(ConfigError, match=r"of teaagentd-under-test 1\.0"):
            plugins.load_provider("raising", options("raising"))


class TestTools:
    def test_come_in_the_order_of_the_configuration(self) -> None:
        tools = plugins.load_tools(["several", "current_time"])
        assert [tool.spec.name for tool in tools] == ["one", "two", "echo", "current_time"]

    def test_none_configured_is_none_loaded(self) -> None:
        assert plugins.load_tools([]) == ()

    def test_two_of_one_name_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"'several' brings a tool 'echo', and so does one"):
            plugins.load_tools(["echo", "several"])

    def test_what_is_no_tool_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="gave NoneType, not a Tool"):
            plugins.load_tools(["nothing"])

    def test_an_unknown_one_is_named(self) -> None:
        with pytest.raises(ConfigError, match=r"tools.enabled: there is no tool 'echoo'"):
            plugins.load_tools(["echoo"])


class TestChannels:
    def test_are_named_by_their_section_and_made_by_its_type(self) -> None:
        channels, faults = plugins.load_channels(
            {
                "memory": {"token": "a"},
                "second": {"type": "memory", "token": "b", "enabled": True, "colour": "red"},
                "third": {"type": "memory", "enabled": False},
            }
        )
        assert list(channels) == ["memory", "second"]
        assert faults == ()
        assert sys.modules["plugins_under_test"].asked == [
            ("memory", {"token": "a"}),
            ("second", {"token": "b", "colour": "red"}),
        ]

    def test_a_bad_section_disables_that_channel_only(self) -> None:
        channels, faults = plugins.load_channels(
            {
                "good": {"type": "memory", "token": "a"},
                "incomplete": {"type": "memory"},
                "unknown": {},
                "broken": {"type": "raising"},
                "wrong": {"type": 5},
                "also_good": {"type": "memory", "token": "b"},
            }
        )
        assert list(channels) == ["good", "also_good"]
        assert len(faults) == 4
        for fault, name in zip(faults, ("incomplete", "unknown", "raising", "wrong"), strict=True):
            assert name in str(fault)


class TestLaziness:
    def test_only_what_is_configured_is_imported(self) -> None:
        source = (
            "import sys; from teaagentd import plugins; plugins.load_tools(['current_time']);"
            "print(*[name for name in ('openai', 'xllamacpp', 'teaagentd.providers.local',"
            " 'teaagentd.providers.openai') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True)
        assert done.stdout.strip() == b""

    def test_checking_that_plugins_exist_imports_none(self) -> None:
        plugins.check_installed(configured({"type": "memory"}))
        assert "plugins_under_test" not in sys.modules
        with pytest.raises(ConfigError, match=r"channels\.x\.type: there is no channel 'x'"):
            plugins.check_installed(configured({}))
