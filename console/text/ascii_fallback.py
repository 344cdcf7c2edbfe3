"""What is drawn, for a terminal whose character set has not all of it: a sign of the set in the place of each, as wide.

The locale says the set. Where it says C or nothing Python takes the terminal for one of UTF-8, as they are. Where it
says another set, a sign that is not in it would else be written as an escape, which is six cells instead of one.
"""

from __future__ import annotations

import codecs

from rich.cells import cell_len

_SIGNS = {
    **dict.fromkeys("█▇▆▅", "#"), **dict.fromkeys("▓▄▃", "@"), **dict.fromkeys("▒▂", "%"), **dict.fromkeys("░▁", ";"),
    **dict.fromkeys("─┄╌┈", "-"), **dict.fromkeys("│┃║╎┊┆", "|"), **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛╔╗╚╝", "+"),
    **dict.fromkeys("━═‗", "="), **dict.fromkeys("●◉◆■▪", "*"), **dict.fromkeys("○◌◇◔◑◐◒◓□▫", "o"),
    **dict.fromkeys("▲△▴↑⇧", "^"), **dict.fromkeys("▼▽▾↓", "v"), **dict.fromkeys("▌▐➤▶▸→›»❯", ">"),
    **dict.fromkeys("◀◂←‹«↵⏎⌫❮", "<"), **dict.fromkeys("✗✘✕×", "x"), **dict.fromkeys("✓✔", "y"),
    **dict.fromkeys("–—−", "-"), **dict.fromkeys("·•∙", "."), **dict.fromkeys("‘’", "'"), **dict.fromkeys("“”", '"'),
    **dict.fromkeys("★☆", "*"), "☐": "o", "☑": "y", "⊘": "/", "╳": "X",
    "…": "~", "╱": "/", "╲": "\\", "‖": "|", "⚠": "!", "²": "2", "°": "o", "±": "~", "≥": ">", "≤": "<", "µ": "u",
}  # fmt: skip


class AsciiSigns(dict[int, str]):
    """For `str.translate`: what to write instead of what the set does not have."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    def __missing__(self, code: int) -> str:
        sign = chr(code)
        try:
            sign.encode(self._encoding)
        except UnicodeEncodeError:
            sign = _SIGNS.get(sign) or "?" * cell_len(sign)
        self[code] = sign
        return sign


def signs_for(encoding: str | None) -> AsciiSigns | None:
    """None for a terminal that has everything."""
    try:
        name = codecs.lookup(encoding or "ascii").name
    except LookupError:
        name = "ascii"
    return None if name.startswith("utf") else AsciiSigns(name)
