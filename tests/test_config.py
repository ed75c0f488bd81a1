"""Configuration: where a value comes from, what is refused, and in which words."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from teaagentd.config import Loaded, load_settings
from teaagentd.config.choice import choose, ollama_url
from teaagentd.config.settings import Settings
from teaagentd.config.text import example, show, toml_value
from teaagentd.errors import ConfigError
from teaagentd.home import Home, find_home

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def no_foreign_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TEAAGENTD_") or name in (
            "ANTHROPIC_API_KEY",
            "OPENAI_API_KEY",
            "OPENROUTER_API_KEY",
            "OLLAMA_HOST",
        ):
            monkeypatch.delenv(name)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(root=tmp_path / "home")
    made.create()
    return made


def written(home: Home, text: str | bytes) -> Home:
    home.config_file.write_bytes(text.encode() if isinstance(text, str) else text)
    home.config_file.chmod(0o600)
    return home


def load(home: Home, text: str | bytes) -> Loaded:
    return load_settings(written(home, text))


def refusal(home: Home, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        load(home, text)
    assert home.config_file.read_bytes() == (text.encode() if isinstance(text, str) else text)
    return str(caught.value)


class TestHome:
    def test_the_option_comes_before_the_variable_before_the_default(self) -> None:
        environ = {"TEAAGENTD_HOME": "/from/variable"}
        assert find_home("/from/option", environ).root == Path("/from/option")
        assert find_home(None, environ).root == Path("/from/variable")
        assert find_home(None, {"TEAAGENTD_HOME": ""}).root == Path.home() / ".teaagentd"

    def test_a_relative_home_is_made_absolute(self) -> None:
        assert find_home("some/where", {}).root == Path.cwd() / "some/where"

    def test_folders_are_closed_to_others(self, home: Home) -> None:
        for folder in (home.root, home.run_folder, home.workspace, home.logs):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    def test_a_home_that_cannot_be_made_says_why(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match=r"file/home: cannot make this folder .*--home"):
            Home(root=tmp_path / "file" / "home").create()


class TestSources:
    def test_a_missing_file_is_all_defaults(self, home: Home) -> None:
        settings = load_settings(home).settings
        assert settings.agent.max_iterations == 50
        assert settings.bus.max_pending == 1000
        assert settings.agent.permission_mode == "prompt"

    def test_an_empty_file_is_all_defaults(self, home: Home) -> None:
        assert load(home, "").settings == load_settings(home).settings

    def test_the_environment_overrides_the_file_and_the_file_the_default(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TEAAGENTD_AGENT__MAX_ITERATIONS", "7")
        agent = load(home, "[agent]\nmax_iterations = 3\nmax_tool_calls = 4\n").settings.agent
        assert (agent.max_iterations, agent.max_tool_calls) == (7, 4)

    def test_the_thinking_can_be_a_word_or_a_number(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert load(home, '[provider]\nreasoning = "low"').settings.provider.reasoning == "low"
        assert load(home, "[provider]\nreasoning = 2048").settings.provider.reasoning == 2048
        monkeypatch.setenv("TEAAGENTD_PROVIDER__REASONING", "4096")
        assert load(home, "").settings.provider.reasoning == 4096

    def test_a_list_and_a_channel_can_be_set_from_the_environment(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TEAAGENTD_TOOLS__ENABLED", '["a", "b"]')
        monkeypatch.setenv("TEAAGENTD_CHANNELS__HOOK__TOKEN", "t0ken")
        settings = load(home, '[channels.hook]\nurl = "x"\n').settings
        assert settings.tools.enabled == ("a", "b")
        assert settings.channels == {"hook": {"url": "x", "token": "t0ken"}}

    def test_an_empty_variable_overrides_nothing(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TEAAGENTD_AGENT__NAME", "")
        assert load(home, '[agent]\nname = "Ada"').settings.agent.name == "Ada"

    def test_a_byte_order_mark_and_windows_lines_are_read(self, home: Home) -> None:
        text = b'\xef\xbb\xbf[agent]\r\nname = "Ada"\r\n'
        assert load(home, text).settings.agent.name == "Ada"

    def test_a_file_that_others_can_read_is_warned_of(self, home: Home) -> None:
        written(home, "[agent]\n").config_file.chmod(0o644)
        (warning,) = load_settings(home).warnings
        assert "chmod 600" in warning


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("text", "where"),
        [
            ("[agent]\nname = 'a',\n", "line 2, column 11"),
            ("[]", "line 1, column 2"),
            ("null", "line 1, column 5"),
            ('{"agent": {}}', "line 1, column 1"),
            ('[agent]\nname = "Ada', "line 2, column 12"),
            ("[agent]\n[agent]\n", "line 2, column 7"),
        ],
    )
    def test_what_is_no_toml_is_named_with_line_and_column(
        self, home: Home, text: str, where: str
    ) -> None:
        message = refusal(home, text)
        assert message.startswith(f"{home.config_file}: is not valid TOML")
        assert where in message
        assert "nothing was changed" in message

    def test_what_is_no_text_is_named(self, home: Home) -> None:
        assert "is not UTF-8 text (at byte 2)" in refusal(home, b"# \xff")

    def test_a_folder_in_its_place_is_named(self, home: Home) -> None:
        home.config_file.mkdir()
        with pytest.raises(ConfigError, match="is a folder, not a file"):
            load_settings(home)

    def test_a_file_that_may_not_be_read_is_named(self, home: Home) -> None:
        home.config_file.mkdir(mode=0o700)
        home.config_file.rmdir()
        written(home, "[agent]\n").config_file.chmod(0)
        with as_nobody(), pytest.raises(ConfigError, match="cannot be read") as caught:
            load_settings(home)
        assert str(home.config_file) in str(caught.value)


class as_nobody:  # noqa: N801  a context manager, read like a function
    """File permissions count for root too while this is entered."""

    def __enter__(self) -> None:
        self._was_root = os.geteuid() == 0
        if self._was_root:
            os.seteuid(65534)

    def __exit__(self, *error: object) -> None:
        if self._was_root:
            os.seteuid(0)


class TestWrongValues:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("[agent]\nmax_iterations = 0", "agent.max_iterations must be greater than 0, not 0"),
            ("[agent]\nmax_iterations = true", "agent.max_iterations must be a number, not True"),
            ('[agent]\nmax_iterations = "x"', "agent.max_iterations must be a whole number"),
            ("[agent]\nmax_iterations = 1.5", "agent.max_iterations must be a whole number"),
            ('[agent]\npermission_mode = "yes"', "'read-only', 'workspace-write', 'prompt'"),
            ('[provider]\ndecisions = "xml"', "must be 'auto', 'native' or 'json', not 'xml'"),
            ('[provider]\nreasoning = "lots"', "provider.reasoning must be low, medium, high or a"),
            ("[provider]\nreasoning = true", "provider.reasoning must be low, medium, high or a"),
            ("[provider]\nreasoning = 0", "provider.reasoning must be low, medium, high or a"),
            ("[provider]\ntemperature = 3", "provider.temperature must be less than or equal"),
            ('[provider]\nbase_url = "example.org"', "provider.base_url must begin with http://"),
            ('[provider]\ntype = "openai"\napi_key = ""', "provider.api_key must not be empty"),
            ("[budget]\nday_cents = -1", "budget.day_cents must be greater than or equal to 0"),
            ("[budget]\nday_cents = inf", "budget.day_cents must be a finite number"),
            ("[budget]\nday_tokens = 1.5", "budget.day_tokens must be a whole number"),
            ('[provider]\ntype = "openai"\ninput_price = 1', "output_price go together"),
            ('[provider]\ntype = "openai"\ncached_price = 1', "need input_price, output_price"),
            ("agent = 5", "agent must be a table, not 5"),
            ("[agent]\nname = 5", "agent.name must be a text in quotes, not 5"),
            ("tools.enabled = 5", "tools.enabled must be a list, not 5"),
            ("channels = 5", "channels must be a table"),
            ("channels.x = 5", "channels.x must be a table"),
            ('[agent]\ntimezone = "Moon/Sea"', "agent.timezone is no known time zone"),
            (
                "[shutdown]\ndrain_timeout_s = -1",
                "shutdown.drain_timeout_s must be greater than or",
            ),
            ("[agent]\nturn_timeout_s = nan", "agent.turn_timeout_s must be"),
        ],
    )
    def test_the_key_and_what_it_may_be_are_named(self, home: Home, text: str, words: str) -> None:
        message = refusal(home, text)
        assert message.startswith(f"{home.config_file}: ")
        assert words in message

    def test_every_fault_is_told_at_once(self, home: Home) -> None:
        message = refusal(home, "[agent]\nmax_iterations = 0\n[bus]\nmax_pending = 'x'\n")
        assert len(message.splitlines()) == 2

    def test_a_wrong_variable_is_named_as_such(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TEAAGENTD_BUS__MAX_PENDING", "many")
        assert refusal(home, "").startswith("TEAAGENTD_BUS__MAX_PENDING: bus.max_pending must be")

    def test_a_section_in_a_variable_that_is_no_json_is_named(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TEAAGENTD_AGENT", "{")
        assert refusal(home, "").startswith("TEAAGENTD_AGENT: is no valid JSON")

    @pytest.mark.parametrize("key", ["a b", "a\nb", "schlüssel", " ", "a\tb"])
    def test_a_key_that_no_header_can_hold_is_refused_unseen(
        self, home: Home, monkeypatch: pytest.MonkeyPatch, key: str
    ) -> None:
        monkeypatch.setenv("TEAAGENTD_PROVIDER__TYPE", "openai")
        monkeypatch.setenv("TEAAGENTD_PROVIDER__API_KEY", key)
        message = refusal(home, "")
        assert message.startswith("TEAAGENTD_PROVIDER__API_KEY: provider.api_key must be one word")
        assert "schl" not in message

    def test_a_list_in_a_variable_that_is_no_json_is_named(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TEAAGENTD_TOOLS__ENABLED", "current_time")
        assert refusal(home, "").startswith("TEAAGENTD_TOOLS__ENABLED: is no valid JSON; a list")

    def test_a_refused_secret_is_not_repeated(self, home: Home) -> None:
        text = '[provider]\ntype = "openai"\napi_key = ["hunter2-hunter2"]'
        assert "hunter2" not in refusal(home, text)


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("[agent]\nmax_iteration = 3", "did you mean agent.max_iterations?"),
            ("[agnt]\nname = 'x'", "agnt is no known setting and is ignored; did you mean agent?"),
            ("[agent]\nshoe_size = 3", "agent.shoe_size is no known setting and is ignored"),
            ("[web]\nenabled = true", "web is no known setting and is ignored"),
            ("home = '/x'", "home is no known setting and is ignored"),
        ],
    )
    def test_are_warned_of_with_the_nearest(self, home: Home, text: str, words: str) -> None:
        (warning,) = load(home, text).warnings
        assert words in warning

    @pytest.mark.parametrize(
        "text",
        [
            "[agent]\npermision_mode = 'read-only'",
            "[agent]\npermissionmode = 'read-only'",
            "[agent]\npermission-mode = 'read-only'",
            "[provider]\ntype = 'openai'\napikey = 'x'",
            "[provider]\napi_key_fil = 'x'",
            "[provider]\nbaseurl = 'http://x'",
            "[channels.telegram]\nallowfrom = ['1']",
            "[channels.telegram]\nallow_form = ['1']",
            "permission_mod = 'read-only'",
        ],
    )
    def test_that_were_meant_to_guard_something_are_refused(self, home: Home, text: str) -> None:
        assert "not left to chance" in refusal(home, text)

    def test_options_of_a_channel_are_its_own(self, home: Home) -> None:
        loaded = load(home, "[channels.x]\nallow_from = ['1']\ncolour = 'red'\n")
        assert loaded.warnings == ()
        assert loaded.settings.channels["x"] == {"allow_from": ["1"], "colour": "red"}

    def test_a_variable_for_no_section_or_key_is_warned_of(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TEAAGENTD_AGNT__NAME", "x")
        monkeypatch.setenv("TEAAGENTD_AGENT__NAM", "x")
        first, second = load(home, "").warnings
        assert "TEAAGENTD_AGNT__NAME" in first
        assert second.startswith("TEAAGENTD_AGENT__NAM: agent.nam")
        assert "agent.name?" in second


class TestPlaceholders:
    @pytest.fixture(autouse=True)
    def variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TEA_X", "filled")
        monkeypatch.setenv("TEA_EMPTY", "")
        monkeypatch.setenv("TEA_DOLLARS", "a$b${TEA_X}")
        monkeypatch.delenv("TEA_UNSET", raising=False)

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("${TEA_X}", "filled"),
            ("pre${TEA_X}post", "prefilledpost"),
            ("$${TEA_X}", "${TEA_X}"),
            ("$$${TEA_X}", "$${TEA_X}"),
            ("${TEA_UNSET:-b}", "b"),
            ("${TEA_EMPTY:-b}", "b"),
            ("x${TEA_UNSET:-}", "x"),
            ("${TEA_X:-b}", "filled"),
            ("$5 and $TEA_X", "$5 and $TEA_X"),
            ("${TEA_DOLLARS}", "a$b${TEA_X}"),
        ],
    )
    def test_are_filled_in(self, home: Home, text: str, value: str) -> None:
        assert load(home, f"[agent]\nname = '{text}'").settings.agent.name == value

    def test_are_filled_in_in_nested_lists_and_tables(self, home: Home) -> None:
        text = "[channels.x]\na = [['${TEA_X}'], {b = '${TEA_X}'}]\n[channels.x.c]\nd='${TEA_X}'"
        options = load(home, text).settings.channels["x"]
        assert options == {"a": [["filled"], {"b": "filled"}], "c": {"d": "filled"}}

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("[agent]\nname = '${TEA_UNSET}'", ["agent.name", "TEA_UNSET", "is not set"]),
            ("[agent]\nname = '${TEA_EMPTY}'", ["agent.name", "TEA_EMPTY", "is set but empty"]),
            ("[channels.x]\na = [1, '${TEA_UNSET}']", ["channels.x.a[1]", "TEA_UNSET"]),
            ("[agent]\nname = '${'", ["agent.name", "$${"]),
            ("[agent]\nname = '${1X}'", ["agent.name", "$${"]),
            ("[agent]\nname = '${A:?b}'", ["agent.name", "$${"]),
        ],
    )
    def test_that_cannot_be_filled_in_are_named(
        self, home: Home, text: str, words: list[str]
    ) -> None:
        message = refusal(home, text)
        assert all(word in message for word in words)

    def test_are_not_looked_at_where_a_variable_overrides(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TEAAGENTD_AGENT__NAME", "Ada")
        assert load(home, "[agent]\nname = '${TEA_UNSET}'").settings.agent.name == "Ada"


class TestSecretFiles:
    def secret(self, home: Home, text: str, mode: int = 0o600) -> None:
        (home.root / "key").write_text(text)
        (home.root / "key").chmod(mode)

    def test_a_key_is_read_from_a_file_in_the_home(self, home: Home) -> None:
        self.secret(home, "s3cret\n")
        settings = load(home, "[provider]\ntype = 'openai'\napi_key_file = 'key'").settings
        assert settings.provider.api_key is not None
        assert settings.provider.api_key.get_secret_value() == "s3cret"

    def test_so_is_the_secret_of_a_channel(self, home: Home) -> None:
        self.secret(home, "t0ken\n")
        settings = load(home, "[channels.x]\ntoken_file = 'key'\nca_file = 'key'").settings
        assert settings.channels["x"]["token"] == "t0ken"
        assert "ca" not in settings.channels["x"]
        assert list(settings.secrets()) == ["t0ken"]

    @pytest.mark.parametrize("text", ["", " \n"])
    def test_an_empty_one_is_refused(self, home: Home, text: str) -> None:
        self.secret(home, text)
        message = refusal(home, "[provider]\ntype = 'openai'\napi_key_file = 'key'")
        assert "key: is empty; provider.api_key_file names it" in message

    def test_a_missing_one_is_refused(self, home: Home) -> None:
        message = refusal(home, "[provider]\ntype = 'openai'\napi_key_file = 'key'")
        assert "cannot be read (No such file or directory); provider.api_key_file" in message

    def test_key_and_file_together_are_refused(self, home: Home) -> None:
        self.secret(home, "x")
        text = "[provider]\ntype = 'openai'\napi_key = 'y'\napi_key_file = 'key'"
        assert "are both set" in refusal(home, text)

    def test_one_that_others_can_read_is_warned_of(self, home: Home) -> None:
        self.secret(home, "x", 0o644)
        loaded = load(home, "[provider]\ntype = 'openai'\napi_key_file = 'key'")
        assert any("chmod 600" in warning for warning in loaded.warnings)


class TestChoice:
    def test_nothing_set_is_the_local_model_and_costs_nothing(self) -> None:
        choice = choose({})
        assert choice.values == {"type": "local"}
        assert "costs nothing" in choice.reason

    def test_the_first_key_found_counts_and_its_cost_is_said(self) -> None:
        names = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY")
        keys = dict.fromkeys(("OLLAMA_HOST", *names), "x")
        for name in names:
            choice = choose(keys)
            assert name in choice.reason
            assert "costs money" in choice.reason
            assert choice.values["api_key"] == f"${{{name}}}"
            del keys[name]
        assert "Ollama" in choose(keys).reason

    def test_the_key_of_the_choice_is_in_the_settings(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
        loaded = load(home, "")
        assert loaded.choice is not None
        assert loaded.settings.provider.type == "openai"
        assert list(loaded.settings.secrets()) == ["from-the-environment"]

    def test_a_configured_provider_is_no_choice(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        loaded = load(home, "[provider]\ntype = 'local'")
        assert loaded.choice is None
        assert loaded.settings.provider.type == "local"
        assert loaded.settings.provider.api_key is None

    @pytest.mark.parametrize(
        ("text", "kind"),
        [("base_url = 'http://x'", "openai"), ("model = '/m/x.gguf'", "local")],
    )
    def test_an_address_or_a_gguf_file_names_the_type(
        self, home: Home, text: str, kind: str
    ) -> None:
        loaded = load(home, f"[provider]\n{text}")
        assert (loaded.settings.provider.type, loaded.choice) == (kind, None)

    @pytest.mark.parametrize("text", ["api_key = 'x'", "model = 'gpt'", "api_key_file = 'x'"])
    def test_a_key_or_model_for_nobody_is_refused(self, home: Home, text: str) -> None:
        assert "provider.type is not" in refusal(home, f"[provider]\n{text}")

    @pytest.mark.parametrize(
        ("host", "url"),
        [
            ("127.0.0.1", "http://127.0.0.1:11434/v1"),
            ("0.0.0.0:99", "http://127.0.0.1:99/v1"),
            ("http://box:80/", "http://box:80/v1"),
            ("https://box", "https://box:11434/v1"),
        ],
    )
    def test_the_host_of_ollama_may_lack_scheme_and_port(self, host: str, url: str) -> None:
        assert ollama_url(host) == url


class TestShow:
    def test_secrets_are_masked_and_every_key_has_its_source(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TEA_KEY", "canary-one")
        monkeypatch.setenv("TEA_URL", "canary-two")
        monkeypatch.setenv("TEAAGENTD_AGENT__NAME", "Ada")
        text = show(
            load(
                home,
                "[provider]\ntype = 'openai'\napi_key = '${TEA_KEY}'\n"
                "base_url = 'http://me:canary-three@host/${TEA_URL}'\n"
                "[channels.'a b']\nbot_token = 'canary-four'\nurl = 'https://u:canary-five@h'\n",
            )
        )
        assert "canary" not in text
        assert 'name = "Ada"  # TEAAGENTD_AGENT__NAME' in text
        assert f'type = "openai"  # {home.config_file}' in text
        assert "${TEA_URL}" in text

    def test_what_is_shown_is_toml(self, home: Home) -> None:
        text = show(load(home, '[channels."a b"]\nlist = [1, "x"]\ntable = {a = "\\u0001"}\n'))
        shown = tomllib.loads(text)
        assert shown["channels"]["a b"] == {"list": [1, "x"], "table": {"a": "\x01"}}
        assert shown["agent"]["max_iterations"] == 50

    @pytest.mark.parametrize("value", ['a"b\\c\n\x00\x7f\x1b é 🍵', 1, 2.5, True, ["x", ["y"]]])
    def test_values_survive_being_written(self, value: object) -> None:
        assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}


def keys() -> Iterator[tuple[str, str]]:
    for section, field in Settings.model_fields.items():
        if section not in ("home", "channels", "providers"):
            for key in vars(field.annotation)["__pydantic_fields__"]:
                yield section, key


class TestFallbacks:
    SPARE = '[providers.spare]\ntype = "openai"\nbase_url = "http://127.0.0.1:1/v1"\n'
    FIRST = '[provider]\ntype = "local"\nfallbacks = ["spare"]\n'

    def test_each_has_a_table_of_its_own(self, home: Home) -> None:
        loaded = load(home, f"{self.FIRST}{self.SPARE}temperature = 1.5\n")
        assert loaded.warnings == ()
        [first, second] = loaded.settings.models()
        assert (first[0], second[0]) == ("provider", "providers.spare")
        assert (second[1].type, second[1].temperature) == ("openai", 1.5)

    def test_a_variable_sets_a_key_of_it(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TEAAGENTD_PROVIDERS__SPARE__MODEL", "m")
        monkeypatch.setenv("TEAAGENTD_PROVIDERS__OTHER__TYPE", "local")
        settings = load(home, f"{self.FIRST}{self.SPARE}").settings
        assert settings.providers["spare"].model == "m"
        assert settings.providers["other"].type == "local"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (FIRST, "provider.fallbacks names 'spare', and there is no table [providers.spare]"),
            (f"{FIRST}[providers.spare]\nmodel = 'm'", "providers.spare.model is set but"),
            (f"{FIRST}[providers.spare]\n", "providers.spare.type is not set"),
            (f"{FIRST}{SPARE}base_ur = 'x'", "providers.spare.base_url was likely meant"),
            (f"{FIRST}{SPARE}api_kez = 'x'", "providers.spare.api_key was likely meant"),
            (f"{FIRST}{SPARE}api_keys = 'sk-1'", "providers.spare.api_keys must be a list"),
            (f"{FIRST}{SPARE}api_keys = ['sk 1']", "must be one word in ASCII"),
            (f"{FIRST}{SPARE}temperature = 3", "providers.spare.temperature must be less than"),
            (
                "[provider]\ntype = 'local'\nfallbacks = 'spare'",
                "provider.fallbacks must be a list",
            ),
            ("providers = 1", "providers must be a table"),
            ("[providers]\nspare = 1", "providers.spare must be a table"),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_said(self, home: Home, text: str, words: str) -> None:
        message = refusal(home, text)
        assert words in message
        assert "sk-1" not in message

    def test_a_key_that_nobody_reads_is_warned_of(self, home: Home) -> None:
        [warning] = load(home, f"{self.FIRST}{self.SPARE}modle = 'm'").warnings
        assert "providers.spare.modle is no known setting" in warning
        assert "did you mean providers.spare.model?" in warning

    def test_further_keys_are_secrets(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TEA_KEY", "sk-environment")
        (home.root / "spare.key").write_text("sk-file\n")
        (home.root / "spare.key").chmod(0o600)
        loaded = load(
            home,
            "[provider]\ntype = 'openai'\napi_key = 'sk-first'\n"
            "api_keys = ['${TEA_KEY}', 'sk-first']\nfallbacks = ['spare']\n"
            f"{self.SPARE}api_key_file = 'spare.key'",
        )
        assert loaded.settings.provider.all_keys() == ["sk-first", "sk-environment"]
        assert loaded.settings.providers["spare"].all_keys() == ["sk-file"]
        assert {"sk-first", "sk-environment", "sk-file"} <= set(loaded.settings.secrets())
        for text in (show(loaded), repr(loaded)):
            assert "sk-" not in text


class TestExample:
    def test_the_file_in_the_repository_is_the_one_that_is_written(self) -> None:
        assert (ROOT / "config.example.toml").read_text(encoding="utf-8") == example()

    def test_it_loads_as_it_is_and_changes_nothing(self, home: Home) -> None:
        loaded = load(home, example())
        assert loaded.warnings == ()
        assert loaded.settings == load_settings(Home(root=home.root)).settings

    @pytest.mark.parametrize(("section", "key"), list(keys()))
    def test_every_key_is_in_it_and_can_be_uncommented(
        self, home: Home, monkeypatch: pytest.MonkeyPatch, section: str, key: str
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        (home.root / "openai.key").write_text("x")
        (home.root / "openai.key").chmod(0o600)
        table = example().partition(f"[{section}]\n")[2].partition("\n[")[0].partition("\n# [")[0]
        (line,) = [line for line in table.splitlines() if line.startswith(f"# {key} = ")]
        kind = "type = 'openai'\n" if section == "provider" and key != "type" else ""
        pairs = {"input_price": ("output_price",), "output_price": ("input_price",)}
        prices = ("input_price", "output_price") if "cache" in key else pairs.get(key, ())
        kind += "".join(f"{one} = 1\n" for one in prices)
        loaded = load(home, f"[{section}]\n{kind}{line.removeprefix('# ')}\n")
        assert loaded.warnings == ()

    def test_the_chosen_provider_is_set_in_it(self, home: Home) -> None:
        assert load(home, example({"type": "local"})).settings.provider.type == "local"
