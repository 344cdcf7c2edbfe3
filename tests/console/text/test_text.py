"""Text that is safe to draw, and units in both directions."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.style import Style
from textual.strip import Strip

from console.text.terminal_text import (
    LONGEST,
    cut,
    cut_name,
    duration,
    fit,
    fit_name,
    mebibytes,
    milli,
    permille,
    printable,
    read_value,
    show,
    timestamp,
    wrap,
)
from console.text.tones import drawn
from engine.model.quantities import usd
from tests.console.fake_client import HOSTILE
from tests.support.hostile_text import PAYLOADS, drawn_text


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("plain", "plain"),
        ("line\nbreak\ttab", "line break tab"),
        ("\x1b]52;c;eA==\x07", r"\x1b]52;c;eA==\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("\x7f", r"\x7f"),
        ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
        ("a\u200bb\ufeff", r"a\u200bb\ufeff"),
        ("\u2028\x85", r"\u2028\x85"),
        ("\U000e0041\ufe0f\u3164\u115f\u2800", r"\U000e0041\ufe0f\u3164\u115f\u2800"),
        ("\ud800\ue0b0\U0010ffff", r"\ud800\ue0b0\U0010ffff"),
        ("a\xa0b\u3000c", "a b c"),
        ("[@click=app.quit]x[/]", "[@click=app.quit]x[/]"),
        ("日本", "日本"),
        ("e\u0301", "\xe9"),
        ("z" + "\u0335" * 90 + "!", "z" + "\u0335" * 3 + "!"),
        ("\u0336struck x \u0336y", r"\u0336struck x \u0336y"),
        ("नमस्ते", "नमस्ते"),
        ("[x](https://e.x) WWW.e.x mailto:a@e.x", "[x](https[:]//e.x) WWW[.]e.x mailto[:]a@e.x"),
    ],
)
def test_printable(raw: str, safe: str) -> None:
    assert printable(raw) == safe


@given(st.text(alphabet=st.characters(codec=None)))
@settings(deadline=None, derandomize=True)
def test_nothing_printable_can_act(raw: str) -> None:
    safe = printable(raw)
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 or 0xD800 <= ord(char) < 0xE000 for char in safe)
    assert not any(unicodedata.category(char) in ("Cf", "Cn", "Co", "Zl", "Zp") for char in safe)
    safe.encode()
    assert unicodedata.is_normalized("NFC", safe)
    assert printable(safe) == safe


@pytest.mark.parametrize("flood", ["\u0301\u0316", "\u0301", "\u200b", "\U000e0041", "www.", "://"])
def test_a_flood_takes_no_time(flood: str) -> None:
    started = time.process_time()
    for count in range(20):
        assert len(printable("a" * count + flood * LONGEST)) <= LONGEST
    assert time.process_time() - started < 1


def test_a_mark_never_lies_on_what_stands_before_the_text() -> None:
    for mark in ("\u0300", "\u0338", "\u20dd", "\u093f", "\u0489"):
        assert printable(mark + "x").isascii()


def test_a_million_characters_cost_nothing() -> None:
    assert len(printable("x" * 1_000_000)) == LONGEST


@given(st.text(max_size=40), st.integers(0, 30))
@settings(deadline=None, derandomize=True)
def test_fit_is_exactly_as_wide_as_asked(raw: str, width: int) -> None:
    text = printable(raw)
    assert cell_len(cut(text, width)) <= width
    assert cell_len(fit(text, width)) == width
    assert cell_len(fit(text, width, right=True)) == width


def test_cut_shows_that_something_is_missing() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert cut("日本語テキスト", 6) == "日本…"


def test_names_that_differ_at_their_end_still_differ_when_cut() -> None:
    names = [f"labs/agents: {what}" for what in ("Wait, mean", "Wait, p95", "Waiting at the end")]
    assert [cut_name(name, 15) for name in names] == ["labs…Wait, mean", "labs… Wait, p95", "labs…at the end"]
    assert cut_name("train-2026-000123", 17) == "train-2026-000123"
    assert cut_name("train-2026-000123", 12) == "tra…6-000123"
    assert [cut_name("abcdef", width) for width in (0, 1, 4, 5)] == ["", "…", "abc…", "a…def"]
    assert cut_name("研究/ビジョン-7", 9) == "研…ョン-7"


@given(st.text(), st.integers(0, 30))
def test_a_cut_name_is_never_too_wide(name: str, width: int) -> None:
    assert cell_len(fit_name(printable(name), width)) == width


def test_wrap_breaks_at_spaces_and_inside_words_only_where_it_must() -> None:
    assert wrap("asks for 64 GPU", 8) == ["asks for", "64 GPU"]
    assert "".join(wrap("x" * 25, 10)) == "x" * 25
    assert wrap("", 10) == [""]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (45_999, "45s"), (250_000, "4m 10s"), (720_000, "12m"), (11_100_000, "3h 5m"), (273_600_000, "3d 4h")],
)
def test_duration(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_quantities() -> None:
    assert (milli(8_000), milli(250), milli(12_345_000)) == ("8", "0.25", "12,345")
    assert (mebibytes(512), mebibytes(65_536), mebibytes(1_572_864)) == ("512 MiB", "64 GiB", "1.5 TiB")
    assert (permille(999), permille(1000)) == ("99%", "100%")
    assert usd(12_500_000) == "$12.50"
    assert timestamp(1_772_366_400_000) == "2026-03-01 12:00:00"
    assert timestamp(10**18) == f"{10**18} ms"


def test_show_by_unit() -> None:
    assert show("gpu", 8_000) == "8"
    assert show("text", None) == "–"
    assert show("text", "a\x1bb") == r"a\x1bb"


@pytest.mark.parametrize(
    ("unit", "text", "value"),
    [
        ("gpu", "8", 8_000),
        ("cpu", "500m", 500),
        ("memory", "64g", 65_536),
        ("memory", "1.5TiB", 1_572_864),
        ("duration", "2h30m", 9_000_000),
        ("duration", "0", 0),
        ("time", "2026-03-01T12:00", 1_772_366_400_000),
        ("permille", "80%", 800),
        ("money", "$1.5", 1_500_000),
        ("count", "12", 12),
    ],
)
def test_read_value(unit: str, text: str, value: int) -> None:
    assert read_value(unit, text) == value


@pytest.mark.parametrize(
    ("unit", "text"),
    [("gpu", "x"), ("memory", "64"), ("duration", "5"), ("duration", "2y"), ("time", "noon"), ("count", "1.5")],
)
def test_what_cannot_be_read_says_how_to_write_it(unit: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"write|expected|number"):
        read_value(unit, text)


def test_hostile_names_become_harmless() -> None:
    for name in HOSTILE:
        assert "\x1b" not in printable(name)


@pytest.mark.parametrize("name", PAYLOADS)
def test_what_a_page_forgets_is_drawn_harmlessly(name: str) -> None:
    drawn_text([Strip([drawn(PAYLOADS[name], Style(bold=True))])])
