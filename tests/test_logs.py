"""Logs: one path for every line, and no secret on it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teaagentd.logs import MASK, Masks, wants_json

SECRET = "canary/with+odd&signs=é\"\\'"


def test_a_log_file_that_cannot_be_written_is_said_once() -> None:
    """On a full disk each line would cost two tracebacks."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pathlib, structlog; from teaagentd.logs import configure_logging\n"
            "configure_logging(level='info', form='console', secrets=[],"
            " file=pathlib.Path('/dev/full'))\n"
            "for _ in range(5): structlog.get_logger().info('hello')\n",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stderr.count("/dev/full cannot be written") == 1
    assert len(done.stderr.splitlines()) == 1


def logged(
    program: str, *, form: str = "console", level: str = "info", environ: Mapping[str, str] = {}
) -> str:
    """What a process that runs `program` with logging configured writes to standard error."""
    source = f"""
import logging, warnings, structlog
from teaagentd.logs import configure_logging
configure_logging(level={level!r}, form={form!r}, secrets=[{SECRET!r}, "second-canary-0123456789"])
log = structlog.get_logger()
secret = {SECRET!r}
{program}
"""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stderr


class TestLines:
    def test_a_line_for_people_has_event_level_and_fields(self) -> None:
        line = logged('log.info("turn_begun", attempt=1)')
        assert "info" in line
        assert "turn_begun" in line
        assert "attempt=1" in line

    def test_a_line_of_json_has_them_as_keys(self) -> None:
        line = json.loads(logged('log.warning("turn_begun", attempt=1)', form="json"))
        assert line["event"] == "turn_begun"
        assert line["level"] == "warning"
        assert line["attempt"] == 1
        assert line["timestamp"].endswith("Z")

    def test_turn_and_session_are_bound_to_every_line_beneath(self) -> None:
        program = """
with structlog.contextvars.bound_contextvars(session="api:anna", turn="t1"):
    log.info("one")
    logging.getLogger("foreign").warning("two")
"""
        for line in logged(program, form="json").splitlines():
            assert json.loads(line)["session"] == "api:anna"
            assert json.loads(line)["turn"] == "t1"

    def test_foreign_loggers_take_the_same_path(self) -> None:
        line = json.loads(logged('logging.getLogger("x.y").error("bad %s", 1)', form="json"))
        assert line["event"] == "bad 1"
        assert line["logger"] == "x.y"

    def test_warnings_of_libraries_do_too(self) -> None:
        assert '"event"' in logged('warnings.warn("old")', form="json")

    @pytest.mark.parametrize("name", ["httpx2", "uvicorn.access", "httpcore2.http11", "openai"])
    def test_libraries_that_tell_of_every_request_are_quiet(self, name: str) -> None:
        program = f'logging.getLogger({name!r}).info("GET /"); log.info("ours")'
        assert "GET" not in logged(program, level="debug")

    def test_what_is_below_the_level_is_not_written(self) -> None:
        assert logged('log.info("a"); log.warning("b")', level="warning").count("\n") == 1

    def test_a_traceback_is_whole_and_without_local_values(self) -> None:
        program = """
def f():
    local = "value-of-a-local"
    raise ValueError("what")
try:
    f()
except ValueError:
    log.exception("failed")
"""
        for form in ("console", "json"):
            text = logged(program, form=form)
            assert "ValueError: what" in text
            assert "value-of-a-local" not in text

    @pytest.mark.parametrize(
        ("form", "environ", "expected"),
        [
            ("auto", {}, False),
            ("auto", {"INVOCATION_ID": "x"}, True),
            ("auto", {"JOURNAL_STREAM": "1:2"}, True),
            ("console", {"INVOCATION_ID": "x"}, False),
            ("json", {}, True),
        ],
    )
    def test_are_json_under_systemd_or_where_asked_for(
        self, form: str, environ: dict[str, str], expected: bool
    ) -> None:
        assert wants_json(form, environ) is expected  # type: ignore[arg-type]  # a literal

    def test_a_file_is_closed_to_others_and_bounded(self, tmp_path: Path) -> None:
        file = tmp_path / "x.log"
        source = f"""
import structlog, pathlib
import teaagentd.logs as logs
logs.LOG_FILE_BYTES = 10_000
logs.configure_logging(
    level="info", form="json", secrets=["s3cret-s3cret-s3cret"], file=pathlib.Path({str(file)!r})
)
log = structlog.get_logger()
for number in range(2000):
    log.info("x" * 50, number=number, key="s3cret-s3cret-s3cret")
"""
        subprocess.run([sys.executable, "-c", source], check=True, timeout=30)
        files = list(tmp_path.iterdir())
        assert sum(path.stat().st_size for path in files) < 50_000
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
        assert json.loads(file.read_text().splitlines()[-1])["number"] == 1999
        assert "s3cret" not in file.read_text()


class TestSecrets:
    @pytest.mark.parametrize("form", ["console", "json"])
    def test_configured_ones_are_in_no_line_however_they_got_there(self, form: str) -> None:
        program = """
from urllib.parse import quote, quote_plus
log.info(f"event {secret}", field=secret, nested={"a": [secret]}, **{f"key {secret}": 1})
log.info("url", url="https://host/" + quote(secret, safe=""), other=quote_plus(secret))
log.info("bytes", value=secret.encode())
logging.getLogger("foreign").error("refused %r", secret)
warnings.warn(secret)
try:
    raise ValueError(f"refused {secret}") from KeyError(secret)
except ValueError:
    log.exception("failed")
    logging.getLogger("foreign").exception("failed")
structlog.contextvars.bind_contextvars(bound=secret)
log.debug("bound")
"""
        text = logged(program, form=form, level="debug")
        assert MASK in text
        for form_ in ("canary", quote("/with+odd", safe=""), "with+odd"):
            assert form_ not in text

    @given(st.integers(0, len("second-canary-0123456789")))
    def test_one_that_was_split_or_cut_is_taken_out_as_far_as_it_goes(self, place: int) -> None:
        secret = "second-canary-0123456789"
        masked = Masks([secret])(f"{secret[:place]} | {secret[place:]}")
        for piece in masked.split(" | "):
            assert len(piece.replace(MASK, "")) < 8

    @given(st.text(min_size=16), st.text(), st.text())
    def test_any_text_is_taken_out_of_any_other(self, secret: str, before: str, after: str) -> None:
        masks = Masks([secret])
        for form in (secret, quote(secret, safe=""), quote_plus(secret)):
            assert form not in masks(f"{before}{form}{after}").replace(MASK, "\0")

    @pytest.mark.parametrize(
        "text",
        [
            "Authorization: Bearer canary1234567890",
            "{'authorization': 'Basic canary1234567890'}",
            '{"x-api-key": "canary1234567890"}',
            "bearer canary1234567890",
            "sk-proj-canary1234567890",
            "ghp_canary1234567890",
            "xoxb-canary1234567890",
            "https://user:canary1234567890@host/",
            "https://api.example/bot123456789:canary_1234567890123456789012345/getMe",
            "bot123456789%3Acanary_1234567890123456789012345/getMe",
        ],
    )
    def test_unknown_ones_are_known_by_their_form(self, text: str) -> None:
        masked = Masks([])(text)
        assert MASK in masked
        assert "canary" not in masked

    @pytest.mark.parametrize(
        "text",
        [
            "turn_begun session=api:anna turn=7fe1 attempt=1",
            "http://127.0.0.1:8080/v1/chat",
            "2026-12-01T00:56:30.168646Z",
            "risk-averse and task-oriented",
            "the basic idea",
        ],
    )
    def test_what_is_none_stays(self, text: str) -> None:
        assert Masks(["unrelated-secret-value"])(text) == text
