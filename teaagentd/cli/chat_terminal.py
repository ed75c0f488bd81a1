"""Chat at a keyboard: line editing, history, commands, and typing while the agent works."""

from __future__ import annotations

import signal
import time

import anyio
from anyio.abc import TaskGroup
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import StdoutProxy
from prompt_toolkit.styles import Style

from teaagentd.cli.chat_screen import Screen
from teaagentd.cli.client import Client, NoDaemon, Refused
from teaagentd.cli.conversation import Conversation, last_reply_id
from teaagentd.cli.exits import INTERRUPTED, NO_DAEMON, OK
from teaagentd.cli.remembered import Remembered
from teaagentd.types import SessionKey

COMMANDS = {
    "/stop": "stop what it is doing",
    "/new": "begin a new conversation",
    "/compact": "summarise the conversation and go on with that",
    "/status": "what it is doing and what waits",
    "/usage": "what it cost",
    "/model": "which model answers, and another one",
    "/help": "the commands",
    "/quit": "leave",
}
_LEAVE = frozenset({"/quit", "/exit"})
_TICK_S = 1.0
_ARMED_S = 5.0
_PAPER_DELAY_S = 0.02
_TYPED_AHEAD = 1000
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse ansibrightblack"})


class TerminalChat:
    """One chat at one terminal."""

    def __init__(self, client: Client, key: SessionKey, remembered: Remembered) -> None:
        self._client = client
        self._key = key
        self._remembered = remembered
        self._paper = StdoutProxy(raw=True, sleep_between_writes=_PAPER_DELAY_S)
        self._screen = Screen(self._paper, changed=self._redraw, shown=remembered.remember)
        self._prompt = self._make_prompt()
        self._send, self._typed = anyio.create_memory_object_stream[str](_TYPED_AHEAD)
        self._at_work = anyio.Event()
        self._unsent = 0
        self._armed_until = 0.0
        """Until then the next Ctrl-C leaves, in `time.monotonic()`."""

    async def run(self) -> int:
        """Talk until the person leaves. Returns the exit code."""
        with self._paper, self._send, self._typed:
            conversation = Conversation(
                self._client, self._key, self._screen, seen=await self._last_seen()
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(conversation.follow)
                tasks.start_soon(self._post_typed, conversation)
                tasks.start_soon(self._tick)
                tasks.start_soon(self._leave_on_signal)
                code = await self._read_lines(tasks)
                tasks.cancel_scope.cancel()
            if self._unsent:
                self._screen.note(f"{self._unsent} of your messages could not be sent.")
                code = code or NO_DAEMON
        return code

    async def _last_seen(self) -> int:
        """The last reply shown here. In a first chat that is the last there is, and it is noted
        at once: an answer that comes after a crash is shown at the next start."""
        seen = self._remembered.seen()
        if seen is None:
            seen = await last_reply_id(self._client, self._key)
            self._remembered.remember(seen)
        elif await self._client.replies(self._key, after=seen):
            self._screen.note("Since you were last here:")
        return seen

    async def _read_lines(self, tasks: TaskGroup) -> int:
        """Take lines until the person leaves."""
        stop = KeyBindings()

        @stop.add("c-c")
        def interrupt(event: KeyPressEvent) -> None:
            if time.monotonic() < self._armed_until:
                event.app.exit(exception=KeyboardInterrupt)
                return
            self._armed_until = time.monotonic() + _ARMED_S
            event.current_buffer.reset()
            if self._screen.busy:
                tasks.start_soon(self._stop)
            else:
                self._screen.note("Ctrl-C again leaves.")

        while True:
            try:
                line = await self._prompt.prompt_async(
                    self._above_and_prompt, key_bindings=stop, set_exception_handler=False
                )
            except EOFError:
                return OK
            except KeyboardInterrupt:
                return INTERRUPTED
            self._armed_until = 0.0
            if line.strip().lower() in _LEAVE:
                return OK
            if line.strip():
                self._unsent += 1
                await self._send.send(line)

    async def _post_typed(self, conversation: Conversation) -> None:
        """Send what was typed, in its order; none overtakes one that waits for the daemon."""
        async for line in self._typed:
            try:
                await conversation.post(line)
            except Refused as refusal:
                self._screen.note(f"Not sent: {refusal}")
            self._unsent -= 1

    async def _stop(self) -> None:
        try:
            stopped = await self._client.stop_session(self._key)
        except (NoDaemon, Refused) as error:
            self._screen.note(f"It could not be stopped: {error}")
            return
        if not stopped.get("stopped"):
            self._screen.note("Nothing is running. Ctrl-C again leaves.")

    async def _leave_on_signal(self) -> None:
        """A request to end, or a closed terminal, leaves as the person would."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            async for _ in signals:
                if self._prompt.app.is_running:
                    self._prompt.app.exit(exception=EOFError)

    async def _tick(self) -> None:
        """Let the seconds of the present phase go on; sleeps while nothing is at work."""
        while True:
            await self._at_work.wait()
            self._at_work = anyio.Event()
            while self._screen.busy:
                await anyio.sleep(_TICK_S)
                self._prompt.app.invalidate()

    def _redraw(self) -> None:
        if self._screen.busy:
            self._at_work.set()
        self._prompt.app.invalidate()

    def _above_and_prompt(self) -> FormattedText:
        """The line that still streams, and the prompt; once a line was entered, only that."""
        tail = "" if self._prompt.app.is_done else self._screen.tail()
        return FormattedText([("", f"{tail}\n\n" if tail else ""), ("bold", "> ")])

    def _make_prompt(self) -> PromptSession[str]:
        file = self._remembered.history_file()
        history: History = FileHistory(str(file)) if file else InMemoryHistory()
        slash = Condition(lambda: self._prompt.default_buffer.text.startswith("/"))
        return PromptSession(
            history=history,
            completer=WordCompleter(list(COMMANDS), meta_dict=COMMANDS, sentence=True),
            complete_while_typing=slash,
            bottom_toolbar=lambda: self._screen.line(time.monotonic()),
            style=_STYLE,
            reserve_space_for_menu=0,
        )
