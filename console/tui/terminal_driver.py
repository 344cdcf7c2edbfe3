"""The console's driver of a terminal: Esc is known at once, and only changes are sent, in signs the terminal has."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import selectors
import signal
from codecs import getincrementaldecoder
from collections.abc import Iterable
from functools import lru_cache
from types import FrameType
from typing import NamedTuple

from rich.cells import cell_len
from textual import constants
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.events import AppFocus, Key, Resize
from textual.message import Message

from console.tui.terminal_guard import watch

_PART = re.compile("(\x1b\\[[0-9;]*[mH])")
_FRAME = re.compile("\x1b\\[[0-9]+;[0-9]+H")
_LONG = ("38", "48")
"""What begins a colour of several numbers."""


class StyledRun(NamedTuple):
    """Text of one style in one line."""

    begin: int
    end: int
    """Cells, the first one after it."""
    text: str
    style: str
    """Parameters of the SGR sequence; empty for none."""


class TerminalDiff:
    """What one terminal shows, so that it is not sent again. Not for several threads, but for `forget`.

    Textual sends whole regions, each piece of text with its full style. Of these only the pieces that differ from what
    stands on the terminal are passed on, with the shortest change of style. A page takes 10.7 kB, and 24.8 kB without
    this (budget 15 kB); a move of the cursor 0.64 and 0.88 kB (budget 1 kB). It costs half a millisecond of CPU a key
    (2026-11-23, 140x45, `console_bench.py --nodes 5000 --workloads 50000`).
    """

    def __init__(self) -> None:
        self._shown: dict[int, list[StyledRun]] = {}
        """Line -> the pieces that are on it, as far as known, from left to right."""
        self._forgotten = False

    def forget(self) -> None:
        """What the terminal shows is no longer known: it was resized, or another program wrote on it."""
        self._forgotten = True

    def passed_on(self, data: str) -> str:
        """What is to be sent instead of this. What is no frame passes as it is."""
        if "\x1b[?1049" in data:
            self.forget()
        if _FRAME.match(data) is None:
            return data
        parts = _PART.split(data)
        if self._forgotten or data.count("\x1b") != len(parts) // 2:
            self._forgotten = False
            self._shown.clear()
            if data.count("\x1b") != len(parts) // 2:
                return data
        return self._differing(parts)

    def _differing(self, parts: list[str]) -> str:
        out = _Out()
        line = column = 0
        style = ""
        pieces: list[StyledRun] = []
        for sequence, text in zip(parts[1::2], parts[2::2], strict=True):
            if sequence[-1] == "H":
                self._settle(line, pieces, out)
                below, _, right = sequence[2:-1].partition(";")
                line, column, pieces = int(below), int(right), []
            else:
                style = sequence[2:-1]
                style = "" if style == "0" else style
            text = text.rstrip("\n")
            if text:
                end = column + (len(text) if text.isascii() else cell_len(text))
                pieces.append(StyledRun(column, end, text, style))
                column = end
        self._settle(line, pieces, out)
        return out.finish(line, column)

    def _settle(self, line: int, pieces: list[StyledRun], out: _Out) -> None:
        """Send of a stretch of a line what is not there already, and remember it."""
        if not pieces:
            return
        shown = self._shown.get(line, [])
        there = set(shown)
        for piece in pieces:
            if piece not in there:
                out.write(line, piece)
        begin, end = pieces[0].begin, pieces[-1].end
        before = [piece for piece in shown if piece.end <= begin]
        after = [piece for piece in shown if piece.begin >= end]
        self._shown[line] = [*before, *pieces, *after]


class _Out:
    """Sequences for one frame."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._at = (0, 0)
        self._pen = ""

    def write(self, line: int, piece: StyledRun) -> None:
        if self._at != (line, piece.begin):
            self._parts.append(f"\x1b[{line};{piece.begin}H")
        if self._pen != piece.style:
            self._parts.append(_turn(self._pen, piece.style))
            self._pen = piece.style
        self._parts.append(piece.text)
        # A terminal may have its own opinion of how wide such text is: then where it stands is not known.
        self._at = (line, piece.end) if piece.end - piece.begin == len(piece.text) else (0, 0)

    def finish(self, line: int, column: int) -> str:
        """All of it; the cursor is left where Textual wants it."""
        if self._pen:
            self._parts.append("\x1b[0m")
        return "".join([*self._parts, f"\x1b[{line};{column}H"])


@lru_cache(4096)
def _turn(before: str, after: str) -> str:
    """The shortest sequence from one style to another."""
    if not after:
        return "\x1b[0m"
    (attributes, front, back), (_attributes, _front, _back) = _style(after), _style(before)
    whole = f"\x1b[0;{after}m" if before else f"\x1b[{after}m"
    if attributes != _attributes or (_front and not front) or (_back and not back):
        return whole
    changes = [new for new, old in ((front, _front), (back, _back)) if new != old]
    return f"\x1b[{';'.join(changes)}m"


@lru_cache(1024)
def _style(style: str) -> tuple[str, str, str]:
    """Attributes, foreground and background."""
    attributes: list[str] = []
    front = back = ""
    numbers = style.split(";") if style else []
    while numbers:
        number = numbers.pop(0)
        if number in _LONG and numbers:
            count = 4 if numbers[0] == "2" else 2
            colour = ";".join([number, *numbers[:count]])
            del numbers[:count]
        elif number.isdigit() and (30 <= int(number) <= 49 or 90 <= int(number) <= 107):
            colour = number
        else:
            attributes.append(number)
            continue
        is_front = int(number) < 40 or 90 <= int(number) < 100
        front, back = (colour, back) if is_front else (front, colour)
    return ";".join(attributes), front, back


_SIGNS = {
    **dict.fromkeys("█▇▆▅", "#"), **dict.fromkeys("▓▄▃", "@"), **dict.fromkeys("▒▂", "%"), **dict.fromkeys("░▁", ";"),
    **dict.fromkeys("─┄╌┈", "-"), **dict.fromkeys("│┃║╎┊┆▐", "|"), **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛╔╗╚╝", "+"),
    **dict.fromkeys("━‗", "="), "═": "+", "≡": "%",
    **dict.fromkeys("⠉⠒⠤⣀", "-"), **dict.fromkeys("●◉◆■▪", "*"), **dict.fromkeys("○◌◇◔◑◐◒◓□▫", "o"),
    **dict.fromkeys("▲△▴↑⇧", "^"), **dict.fromkeys("▼▽▾↓", "v"), **dict.fromkeys("▌➤▶▸→›»❯", ">"),
    **dict.fromkeys("◀◂←‹«↵⏎⌫❮", "<"), **dict.fromkeys("✗✘✕×", "x"), **dict.fromkeys("✓✔", "y"),
    **dict.fromkeys("–—−", "-"), **dict.fromkeys("·•∙", "."), **dict.fromkeys("‘’", "'"), **dict.fromkeys("“”", '"'),
    **dict.fromkeys("★☆", "*"), "☐": "o", "☑": "y", "⊘": "/", "╳": "X",
    "…": "~", "╱": "/", "╲": "\\", "‖": "|", "⚠": "!", "²": "2", "°": "o", "±": "~", "≥": ">", "≤": "<", "µ": "u",
}  # fmt: skip


def _dots(code: int) -> str:
    """For a sign of braille, of which curves consist, one as dense; empty for another."""
    return " ..::**##"[(code - 0x2800).bit_count()] if 0x2800 <= code < 0x2900 else ""


class AsciiSigns(dict[int, str]):
    """For `str.translate`: what to write instead of what a character set does not have, as wide.

    The locale names the set. Where it says C or nothing Python takes the terminal for one of UTF-8, as they are. In
    another set Textual would write a sign that is not in it as an escape, which is six cells instead of one.
    """

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    def __missing__(self, code: int) -> str:
        sign = chr(code)
        try:
            sign.encode(self._encoding)
        except UnicodeEncodeError:
            sign = _SIGNS.get(sign) or _dots(code) or "?" * cell_len(sign)
        self[code] = sign
        return sign


def signs_for(encoding: str | None) -> AsciiSigns | None:
    """None for a terminal that has everything."""
    try:
        name = codecs.lookup(encoding or "ascii").name
    except LookupError:
        name = "ascii"
    return None if name.startswith("utf") else AsciiSigns(name)


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
    """Textual's driver, with those differences.

    Textual looks for a lone Esc ten times a second. From Esc to the page below it takes 53 ms here, and 145 ms there
    (budget 50 ms for key p99; 2026-11-23, 140x45, `console_bench.py --nodes 5000 --workloads 50000`).
    """

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self._diff = TerminalDiff()
        self._signs = signs_for(self._file.encoding)
        self._entered = False
        if "ESCDELAY" not in os.environ:
            constants.ESCAPE_DELAY = ESC_S  # type: ignore[misc]

    def process_message(self, message: Message) -> None:
        if isinstance(message, Resize | AppFocus) or (isinstance(message, Key) and message.key == REDRAW):
            self._diff.forget()
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
        written = self._diff.passed_on(data)
        super().write(written if self._signs is None else written.translate(self._signs))

    def start_application_mode(self) -> None:
        self._entered = True
        if (found := watch()) is not None:
            found.entered()
            self._loop.add_reader(found.lifeline, self._unwatched)
        super().start_application_mode()
        resized = signal.getsignal(signal.SIGWINCH)

        def forget_first(number: int, frame: FrameType | None) -> None:
            self._diff.forget()
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
            self._diff.forget()
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
