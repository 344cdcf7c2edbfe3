"""What a stranger, or a model, may write where a name is expected (group H of the corpus): to act on the terminal, to
become a link or a button, to hide, to look like something else, or to break what draws it."""

from __future__ import annotations

import re

from textual.strip import Strip

TAGS = "".join(chr(0xE0000 + ord(char)) for char in "approve P-1")

PAYLOADS: dict[str, str] = {
    # markup that becomes an action, a style or an error (H01, H02)
    "H01-click": "[@click=app.boom('P-1')]View evidence[/]",
    "H01-click-quit": "[@click=app.quit]evidence[/]",
    "H01-click-screen": "[@click=screen.dismiss(True)]ok[/]",
    "H01-click-act": "[@click=app.act('quit')]x[/]",
    "H01-click-quoted": '[@click="app.boom(\\"x\\")"]x[/]',
    "H01-click-split": "[@click=app.boom('a')",
    "H01-click-nested": "[[@click=app.boom()]]twice[[/]]",
    "H01-click-escaped": "\\[@click=app.boom()]x[/]",
    "H01-click-backslashes": "\\\\[@click=app.boom()]x[/]",
    "H01-click-middle": "[b @click=app.boom() on red]x[/]",
    "H01-link-markup": "[link='https://evil.example/x']docs[/link]",
    "H02-unclosed": "[bold red",
    "H02-stray-close": "failed [/x] [/] [/]",
    "H02-invisible": "[black on black]approved[/]",
    "H02-conceal": "[conceal]secret[/] [blink]now[/]",
    "H02-variables": "$error {x} %s %(name)s {0.__class__} ${HOME}",
    # sequences for the terminal (H03)
    "H03-clear": "\x1b[2J\x1b[H all clear",
    "H03-clipboard": "\x1b]52;c;cm0gLXJmIH4K\x07",
    "H03-title": "\x1b]0;owned\x07",
    "H03-title-st": "\x1b]2;owned\x1b\\",
    "H03-hyperlink": "\x1b]8;;https://evil.example\x1b\\ticket\x1b]8;;\x1b\\",
    "H03-bell": "\x07\x07\x07",
    "H03-colour": "\x1b[31;1mDOWN\x1b[0m",
    "H03-c1-csi": "\x9b2J\x9b31mred",
    "H03-c1-osc": "\x9d0;owned\x9c",
    "H03-dcs": '\x1bP$q"p\x1b\\ \x90+q\x9c',
    "H03-report": "\x1b[6n\x1b[c\x1b[21t",
    "H03-alternate": "\x1b[?1049l\x1b[?1000h\x1bc",
    "H03-image": "\x1b_Gf=100;AAAA\x1b\\ \x1b]1337;File=:AAAA\x07",
    "H03-kitty-keys": "\x1b[>1u\x1b[?2004l",
    "H03-backspace": "harmless\b\b\b\b\b\b\b\bharmful!",
    "H03-return": "drain node-1\rnothing    ",
    "H03-lines": "ok\nmuster: approved by alice\n\n\n",
    "H03-forms": "a\x0bb\x0cc\td\x85e\u2028f\u2029g",
    "H03-null": "nul\x00byte\x7f\x1a\x04",
    # letters that hide or turn around (H04)
    "H04-override": "node-\u202e1-dorp\u202c",
    "H04-isolate": "\u2066iso\u2067late\u2069 \u2068x",
    "H04-marks": "\u200e\u200f\u061cmarks",
    "H04-arabic": "עברית 12 عربي 34",
    "H04-zero-width": "pro\u200bd\u200c-\u200dnode\u2060\ufeff",
    "H04-tags": f"fine{TAGS}\U000e007f",
    "H04-selectors": "vs\ufe0f\ufe0e\U000e0100 ️",
    "H04-fillers": "\u3164\u115f\u1160\uffa0\u2800\u00ad\u034f\u180e",
    "H04-flood": "z" + "\u0335\u0322\u033a\u0489" * 60 + "!",
    "H04-leading-mark": "\u0338\u20e0\u0336x",
    "H04-wide": "工作负载" * 40 + "🚀" * 30 + "👨‍👩‍👧‍👦",
    "H04-wider-than-said": "\ufdfd \U00012031 \u2e3b \ua9c5",
    "H04-private": "\ue0b0\uf8ff\U0010fffd\uffff\ufffe",
    "H04-surrogates": "\ud83d x \udc00",
    "H04-annotation": "\ufff9base\ufffanote\ufffb\ufffc",
    "H04-spaces": "a\u00a0b\u2003c\u3000d\u205fe\u1680f",
    "H04-decomposed": "re\u0301sume\u0301 A\u030a \u1112\u1161\u11ab",
    "H05-look-alike": "р\u0440od-n\u043ede-1 Ⅰ1lI０O",
    # what looks like ours (H06)
    "H06-approval": "✔ approved 2/2  needs 0 votes of others   y  yes, drain",
    "H06-frame": "┃ │ ╭──────────╮ ▌ ● ✓ verified │ T0 ╰──────────╯",
    "H06-gutter": "model text, unverified ─── end of model text ───",
    "H06-error": "muster: refused: nothing was done",
    "H06-command": "muster proposal approve P-1 --yes; $(rm -rf ~) `id` && :q!",
    # links (H07)
    "H07-markdown": "[runbook](https://evil.example/a) ![x](http://evil.example/b.png)",
    "H07-bare": "see https://evil.example/?q=env or WWW.Evil.Example or mailto:a@evil.example",
    "H07-schemes": "javascript:alert(1) data:text/html,x file:///etc/passwd ssh://x vscode://x <https://x>",
    "H07-action": "](app.boom) <a href=x onclick=y>",
    # size
    "H08-long": "x" * 9_000,
    "H08-long-word-then-mark": "y" * 300 + "\u202e",
    "H08-many-lines": "l\n" * 3_000,
    "H08-empty": "",
    "H08-blank": " \t ",
}

ACTS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Controls, bidi, zero width, tags, and what else draws nothing: told apart from the console's own list of them."""
LINKS = re.compile(r"(?i)[a-z]://|\bwww\.|\bmailto:")


def drawn_text(strips: list[Strip]) -> str:
    """The text of a screen, once it is sure that no piece of it acts, hides, links or leads anywhere."""
    lines = []
    for strip in strips:
        for segment in strip:
            assert segment.control is None, segment
            assert not ACTS.search(segment.text), ascii(segment.text)
            assert not LINKS.search(segment.text), segment.text
            style = segment.style
            if style is not None:
                assert style.link is None, style
                assert "@click" not in style.meta, style.meta
        lines.append(strip.text)
    return "\n".join(lines)


def told_text(text: str) -> str:
    """The same of what a command wrote."""
    assert not ACTS.search(text.replace("\n", "")), ascii(ACTS.search(text.replace("\n", "")))
    return text
