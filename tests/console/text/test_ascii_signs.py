"""Terminals that are not of UTF-8 get a sign of their own set for each of ours, as wide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

import console
from console.tui.terminal_driver import signs_for


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "utf-16"])
def test_a_terminal_that_has_everything_gets_it_as_it_is(encoding: str) -> None:
    assert signs_for(encoding) is None


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "koi8-r", "no-such-set", None])
def test_whatever_is_drawn_can_be_written_and_keeps_its_width(encoding: str | None) -> None:
    signs = signs_for(encoding)
    assert signs is not None
    for text in ("█▓▒·━┄⠁⡪⣿ ┌─┐ ✗ ● ◇ ▲ ↵ › … ×4", "日本 завтра é \U0001f600", "\x1b[1;1H\x1b[38;5;12mred\x1b[0m"):
        written = text.translate(signs)
        written.encode("ascii" if encoding in (None, "no-such-set") else encoding)
        assert cell_len(written) == cell_len(text)


def test_full_and_empty_and_every_state_stay_apart() -> None:
    signs = signs_for("ascii")
    assert signs is not None
    for apart in ("━═≡╱┄◇", "⡂⡪⣿", "⠤⡂", "✗●◇▲", "✓✗", "○●", "↑↓", "█▒░╳+o·=:"):
        assert len(set(apart.translate(signs))) == len(apart), apart


def test_every_sign_that_the_console_draws_has_one() -> None:
    signs = signs_for("ascii")
    assert signs is not None
    folder = Path(console.__file__).parent
    files = [*folder.glob("*.py"), *folder.glob("screens/*.py")]
    drawn = set(re.findall(r"[\u2010-\u27bf]", "".join(path.read_text(encoding="utf-8") for path in files)))
    without = {sign for sign in drawn if sign.translate(signs) == "?"}
    assert not without
