"""What a terminal would show of the bytes written to it, and which of its modes they left on.

As much of an xterm as the console uses: positions, erasing, text of one or two cells, private modes, the stack of the
Kitty keyboard protocol. Colours are skipped. Fast enough to read along while latencies are measured.
"""

from __future__ import annotations

import re

from rich.cells import cell_len

_TOKEN = re.compile(
    r"\x1b\[(?P<mark>[?<>=]?)(?P<args>[0-9;:]*)(?P<mid>[ $]?)(?P<final>[@-~])"
    r"|\x1b\](?P<osc>[^\x07\x1b]*)(?:\x07|\x1b\\)"
    r"|\x1b[()][0-9A-Za-z]|\x1b[=>78cM]"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f])"
    r"|(?P<text>[^\x00-\x1f\x7f]+)"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[?<>=]?[0-9;:]*[ $]?|\][^\x07\x1b]*\x1b?|[()]?)?$")
WIDE_TAIL = ""
"""What stands in the second cell of a wide character."""


class ScreenModel:
    """The main screen is not kept: what is written to it goes to `main_text`."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.lines = self._blank()
        self.x = self.y = 0
        self.modes: set[int] = set()
        """Private modes that were set and not reset, such as 1049 (alternate screen) and 1000 (mouse)."""
        self.cursor_shown = True
        self.keyboard_stack = 0
        """How many times the Kitty keyboard protocol was pushed and not popped."""
        self.frames = 0
        """Synchronised updates (mode 2026) that have ended."""
        self.main_text = ""
        """What was written while the alternate screen was off, without escapes."""
        self.clipboard: list[str] = []
        """Payloads of OSC 52."""
        self._rest = ""

    def _blank(self) -> list[list[str]]:
        return [[" "] * self.width for _ in range(self.height)]

    @property
    def text(self) -> list[str]:
        """The lines as they are read."""
        return ["".join(line) for line in self.lines]

    def left_on(self) -> list[str]:
        """What a program should have taken back before it ended; empty when all is as at first."""
        left = [f"mode {mode}" for mode in sorted(self.modes)]
        left += [] if self.cursor_shown else ["hidden cursor"]
        return left + (["keyboard protocol"] if self.keyboard_stack else [])

    def resize(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.lines = self._blank()

    def feed(self, text: str) -> None:
        """Take what was written. A sequence may come in parts."""
        text = self._rest + text
        unfinished = _UNFINISHED.search(text)
        self._rest = unfinished[0] if unfinished else ""
        at, end = 0, len(text) - len(self._rest)
        while at < end:
            token = _TOKEN.match(text, at, end)
            if token is None:
                at += 1
                continue
            at = token.end()
            if token["text"]:
                self._write(token["text"])
            elif token["final"]:
                self._sequence(token["mark"], token["args"], token["final"])
            elif token["control"]:
                self._control(token["control"])
            elif token["osc"] and token["osc"].startswith("52;"):
                self.clipboard.append(token["osc"])

    def _write(self, text: str) -> None:
        if 1049 not in self.modes:
            self.main_text += text
            return
        if not 0 <= self.y < self.height:
            return
        line = self.lines[self.y]
        if text.isascii():
            room = max(0, self.width - self.x)
            line[self.x : self.x + len(text)] = text[:room]
            self.x += len(text)
            return
        for char in text:
            cells = cell_len(char)
            if 0 <= self.x < self.width and cells:
                line[self.x] = char
                if cells == 2 and self.x + 1 < self.width:
                    line[self.x + 1] = WIDE_TAIL
            self.x += cells

    def _control(self, char: str) -> None:
        if 1049 not in self.modes:
            self.main_text += char if char == "\n" else ""
        elif char == "\n":
            self.y += 1
        elif char == "\r":
            self.x = 0
        elif char == "\b":
            self.x = max(0, self.x - 1)

    def _sequence(self, mark: str, args: str, final: str) -> None:
        numbers = [int(part) if part.isdigit() else 0 for part in re.split("[;:]", args)]
        if mark == "?" and final in "hl":
            for mode in numbers:
                self._mode(mode, final == "h")
        elif mark == ">" and final == "u":
            self.keyboard_stack += 1
        elif mark == "<" and final == "u":
            self.keyboard_stack = max(0, self.keyboard_stack - (numbers[0] or 1))
        elif mark == "" and final in "Hf":
            self.y = (numbers[0] or 1) - 1
            self.x = (numbers[1] if len(numbers) > 1 and numbers[1] else 1) - 1
        elif mark == "" and final == "J":
            self.lines = self._blank()
        elif mark == "" and final == "K" and 0 <= self.y < self.height:
            self.lines[self.y][self.x :] = [" "] * max(0, self.width - self.x)
        elif mark == "" and final in "ABCD":
            step = numbers[0] or 1
            self.x += {"C": step, "D": -step}.get(final, 0)
            self.y += {"B": step, "A": -step}.get(final, 0)

    def _mode(self, mode: int, on: bool) -> None:
        if mode == 25:
            self.cursor_shown = on
        elif mode == 2026:
            self.frames += not on
        elif mode == 7:
            # Line wrap is on at first: off is what is to be taken back.
            self.modes.discard(7) if on else self.modes.add(7)
        elif on:
            if mode == 1049:
                self.lines = self._blank()
            self.modes.add(mode)
        else:
            self.modes.discard(mode)
