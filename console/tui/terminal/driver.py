"""How the console drives a terminal: as Textual does, but Esc is known at once and only what changes is sent.

Textual looks for a lone Esc ten times a second, which a person who goes back feels. Terminals that tell keys apart by
the Kitty protocol need no waiting at all; for the others the wait is `ESC_S`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from codecs import getincrementaldecoder
from collections.abc import Iterable
from types import FrameType

from textual import constants
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.events import AppFocus, Key, Resize
from textual.message import Message

from console.text.ascii_fallback import signs_for
from console.tui.terminal.restore import watch
from console.tui.terminal.terminal_diff import TerminalDiff

ESC_S = 0.010
"""Longest wait after Esc for the rest of a sequence, unless `ESCDELAY` (milliseconds) says otherwise: a terminal writes
a sequence at once, and links rarely part what was written at once."""
LOOK_S = 0.1
"""How often it is looked whether the program ends, while no key comes."""
TICK_S = 0.001
READ_BYTES = 4096
REDRAW = "ctrl+l"
"""The key after which nothing is taken for granted of what the terminal shows."""
_ESC = b"\x1b"


class TerminalDriver(LinuxDriver):
    """Textual's driver, with those differences; and no sign is written that the terminal does not have."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self._thrift = TerminalDiff()
        self._signs = signs_for(self._file.encoding)
        self._entered = False
        if "ESCDELAY" not in os.environ:
            constants.ESCAPE_DELAY = ESC_S  # type: ignore[misc]

    def process_message(self, message: Message) -> None:
        if isinstance(message, Resize | AppFocus) or (isinstance(message, Key) and message.key == REDRAW):
            self._thrift.forget()
        super().process_message(message)

    def _get_terminal_size(self) -> tuple[int, int]:
        """What the terminal itself says. Textual asks `COLUMNS` and `LINES` first: who has them in the environment, as
        under `watch` or in a CI job, would have a console of that size for ever, whatever becomes of the window."""
        for stream in (self.fileno, self._file.fileno()):
            with contextlib.suppress(OSError, ValueError):
                width, height = os.get_terminal_size(stream)
                if width and height:
                    return width, height
        return super()._get_terminal_size()

    @property
    def behind(self) -> bool:
        """Whether the terminal has not yet taken all that was written: the link is slow, or somebody holds it."""
        return self._writer_thread is not None and not self._writer_thread._queue.empty()

    def write(self, data: str) -> None:
        written = self._thrift.passed_on(data)
        super().write(written if self._signs is None else written.translate(self._signs))

    def start_application_mode(self) -> None:
        self._entered = True
        if (found := watch()) is not None:
            found.entered()
            self._loop.add_reader(found.lifeline, self._unwatched)
        super().start_application_mode()
        resized = signal.getsignal(signal.SIGWINCH)

        def forget_first(number: int, frame: FrameType | None) -> None:
            self._thrift.forget()
            if callable(resized):
                resized(number, frame)

        signal.signal(signal.SIGWINCH, forget_first)

    def _unwatched(self) -> None:
        """The process that the shell waited for was killed: this one is no longer wanted."""
        if (found := watch()) is not None:
            self._loop.remove_reader(found.lifeline)
        self._app.exit()

    def close(self) -> None:
        super().close()
        self._entered = False
        # All is written.
        if (found := watch()) is not None:
            found.left()

    def _sigcont_application(self, *_: object) -> None:
        """Somebody may have stopped the process without asking: then nothing was taken back, and nothing is to be set
        up anew."""
        if self._entered:
            self._thrift.forget()
        else:
            super()._sigcont_application()

    def run_input_thread(self) -> None:
        """Read keys until the end. A lone Esc is one as soon as nothing followed it for a moment."""
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            wait = LOOK_S
            while not self.exit_event.is_set():
                data = b""
                if selector.select(wait):
                    data = self._read()
                    if not data:
                        # The terminal is gone.
                        self._loop.call_soon_threadsafe(self._app.exit)
                        return
                    self._tell(parser.feed(decode(data)))
                wait = constants.ESCAPE_DELAY + TICK_S if data.endswith(_ESC) else LOOK_S
                self._tell(parser.tick())

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, READ_BYTES)
        except OSError:
            return b""

    def _tell(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.process_message(message)
