"""What is sent to a terminal instead of whole frames shows the same screen, and is less."""

from __future__ import annotations

import random

import pytest

from console.tui.terminal_driver import TerminalDiff
from tests.support.screen_model import ScreenModel

WORDS = ("run", "● queued", "漢字", "gpu", "…", "x" * 9, "   ", "é", "─" * 4, "n")
STYLES = (
    "", "1", "38;2;1;2;3", "38;2;1;2;3;48;2;9;9;9", "1;38;5;4;48;5;7", "31;42", "39;49", "97;107", "1;2;3",
    "48;2;9;9;9",
)  # fmt: skip


def drawn(line: int, column: int, pieces: list[tuple[str, str]]) -> str:
    """As Textual draws a stretch of a line."""
    text = "".join(f"\x1b[{style}m{word}\x1b[0m" if style else word for word, style in pieces)
    return f"\x1b[{line};{column}H{text}"


def frame(rng: random.Random, lines: int) -> str:
    stretches = [
        drawn(
            rng.randrange(1, lines + 1),
            rng.choice((1, 1, 5, 20)),
            [(rng.choice(WORDS), rng.choice(STYLES)) for _ in range(rng.randrange(1, 5))],
        )
        for _ in range(rng.randrange(1, 6))
    ]
    return "\n".join(stretches) + "\x1b[1;1H"


class Styled(ScreenModel):
    """Knows of every cell also the style it has."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__(width, height)
        self.cells: dict[tuple[int, int], tuple[str, str, str, str]] = {}
        self._pen = ("", "", "")
        self.feed("\x1b[?1049h")

    def _sequence(self, mark: str, args: str, final: str) -> None:
        super()._sequence(mark, args, final)
        if final == "m":
            self._pen = pen(self._pen, args)

    def _write(self, text: str) -> None:
        y, before = self.y, self.x
        super()._write(text)
        for x in range(before, min(self.x, self.width)):
            self.cells[y, x] = (self.lines[y][x], *self._pen)


def pen(now: tuple[str, str, str], args: str) -> tuple[str, str, str]:
    """Attributes, foreground and background after a sequence, told the slow way."""
    attributes, front, back = now
    numbers = args.split(";")
    while numbers:
        number = numbers.pop(0)
        if number in ("", "0"):
            attributes, front, back = "", "", ""
        elif number in ("38", "48"):
            count = 4 if numbers[0] == "2" else 2
            colour = ";".join([number, *numbers[:count]])
            del numbers[:count]
            front, back = (colour, back) if number == "38" else (front, colour)
        elif 30 <= int(number) <= 39 or 90 <= int(number) <= 97:
            front = number
        elif 40 <= int(number) <= 49 or 100 <= int(number) <= 107:
            back = number
        else:
            attributes += f";{number}"
    return attributes, front, back


@pytest.mark.parametrize("seed", range(20))
def test_the_screen_is_the_same_as_if_all_had_been_sent(seed: int) -> None:
    rng = random.Random(seed)
    diff, whole, changed = TerminalDiff(), Styled(40, 6), Styled(40, 6)
    for _ in range(40):
        sent = frame(rng, 6)
        if rng.random() < 0.1:
            diff.forget()
        whole.feed(sent)
        changed.feed(diff.passed_on(sent))
        assert changed.cells == whole.cells
        assert (changed.x, changed.y) == (whole.x, whole.y)


def test_what_is_there_already_is_not_sent_again() -> None:
    diff = TerminalDiff()
    row = [("a row", "38;2;1;2;3"), (" 1m 5s", "1"), (" and more", "")]
    first = diff.passed_on(drawn(3, 1, row) + "\x1b[1;1H")
    assert "a row" in first
    assert diff.passed_on(drawn(3, 1, row) + "\x1b[1;1H") == "\x1b[1;1H"
    later = [row[0], (" 1m 6s", "1"), row[2]]
    assert diff.passed_on(drawn(3, 1, later) + "\x1b[1;1H") == "\x1b[3;6H\x1b[1m 1m 6s\x1b[0m\x1b[1;1H"


def test_after_something_else_was_written_nothing_is_taken_for_granted() -> None:
    diff = TerminalDiff()
    row = drawn(2, 1, [("here", "31")]) + "\x1b[1;1H"
    diff.passed_on(row)
    assert "here" not in diff.passed_on(row)
    assert diff.passed_on("\x1b[?1049h") == "\x1b[?1049h"
    assert "here" in diff.passed_on(row)
    erased = "\x1b[1;1H\x1b[2Jgone\x1b[1;1H"
    assert diff.passed_on(erased) == erased, "what is not a filter passes as it is"
    assert "here" in diff.passed_on(row)


def test_what_is_no_frame_passes_as_it_is() -> None:
    for other in ("\x1b[?25l", "\x1b]52;c;aGk=\x07", "\x1b[>1u", "", "\x07"):
        assert TerminalDiff().passed_on(other) == other
