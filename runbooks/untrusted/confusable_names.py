"""Names that could be taken for one another: by characters nobody sees, letters of two scripts, letters alike."""

from __future__ import annotations

import unicodedata

from runbooks.untrusted.strict_yaml import unseen

_ALIKE = str.maketrans({
    **dict(zip("аβвсԁеғɡһіјкӏмпоԛрѕтυѵѡху", "abbcdefghljklmnoqpstuvwxy", strict=True)),
    **dict(zip("αερηικνοτχωϲγнгԝ", "aepnlkvotxwcyhrw", strict=True)),
    **dict(zip("01|i5", "ollls", strict=True)),
})  # fmt: skip
"""Cyrillic and Greek small letters by the Latin one they are drawn like, then what is alike within ASCII."""
_LETTERS = {code: letter for code, letter in _ALIKE.items() if code > 127}
_PAIRS = (("rn", "m"), ("vv", "w"))
_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "GEORGIAN", "HEBREW", "ARABIC")


def skeleton(name: str) -> str:
    """The same for two names that look alike: compatibility forms folded, case and marks dropped, letters that are
    drawn alike made one, and `.`, `_`, `-` and blanks left out."""
    folded = unicodedata.normalize("NFKD", name).casefold()
    plain = "".join(char for char in folded if not unicodedata.combining(char) and char not in "._- ")
    text = plain.translate(_ALIKE)
    for pair, one in _PAIRS:
        text = text.replace(pair, one)
    return text


def drawn_alike(text: str) -> str:
    """The text in small letters, each Cyrillic and Greek one as the Latin one it is drawn like. As long as it was, so
    that what is found in it is found in the text."""
    small = text.lower()
    if len(small) != len(text):
        small = "".join(char.lower() if len(char.lower()) == 1 else char for char in text)
    return small if small.isascii() else small.translate(_LETTERS)


def why_confusing(name: str) -> str:
    """What makes a name unreadable or misleading by itself; empty when nothing does."""
    hidden = unseen(name)
    if hidden:
        return f"holds {hidden}"
    if unicodedata.normalize("NFKC", name) != name or not name.strip() or name != name.strip():
        return "is not in its plain form (NFKC, without blanks around it)"
    for word in name.split():
        scripts = {script for char in word if (script := _script(char))}
        if len(scripts) > 1:
            return f"mixes {' and '.join(sorted(script.capitalize() for script in scripts))} letters in one word"
    return ""


def _script(char: str) -> str:
    name = unicodedata.name(char, "") if char.isalpha() else ""
    return next((script for script in _SCRIPTS if name.startswith(script)), "")
