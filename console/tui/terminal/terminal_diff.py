"""Fewer bytes for the same screen: what a terminal shows already is not sent again.

Textual sends whole regions, each piece of text with its full style. This takes what it would send for a frame, keeps
what stands where on the terminal, and passes on only the pieces that differ, with the shortest change of style. A
slow link and a narrow tmux get a tenth; a fast terminal has less to parse.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len

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
    """Of one terminal. Not for several threads, but for `forget`."""

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
