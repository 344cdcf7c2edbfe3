"""Finds ways of a text onto a screen, into a toast, a title, the clipboard or a terminal that do not lead through the
door: `console.text.terminal_text.printable`, and what is built on it. Reads programs as syntax trees and runs nothing
of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOORS = frozenset({"printable", "remedy_text", "visible", "pasteable"})
SAFE = DOORS | {
    # of console.text.terminal_text: from numbers and moments, or texts that have been through the door
    "duration", "mebibytes", "milli", "money", "permille", "timestamp", "show", "cut", "fit", "key_label",
    # of the language: numbers and literals of Python, which escape
    "len", "int", "float", "round", "repr", "ascii", "sum", "max", "min", "getpid", "counted",
}  # fmt: skip
OPEN = {"cut", "fit", "max", "min", "sum"}
"""Of those, what is only as clean as what it is given."""
IMPORTS = {
    "rich": {"rich.cells", "rich.segment", "rich.style", "rich.text"},
    "textual.widgets": {"Input", "Static"},
    "textual.command": {"DiscoveryHit", "Hit", "Hits", "Provider"},
}
"""All that may be had from where texts are drawn and markup is read. The rest of Textual draws nothing by itself."""
NEVER = (
    "textual.content",
    "textual.markup",
    "textual.visual",
    "textual.renderables",
    "textual.widgets._",
    "textual.demo",
)
WIDGETS = {"Static", "Label", "Button", "Checkbox", "RadioButton", "Switch", "Collapsible", "Link", "Markdown",
           "Digits",
           "DataTable", "Tree", "OptionList", "Option", "SelectionList", "ListItem", "Tab", "TabPane", "Tabs", "Log",
           "RichLog", "TextArea", "Pretty", "Header", "Footer", "Select", "Rule", "Welcome", "Placeholder", "Tooltip",
           "MarkdownViewer", "DirectoryTree", "MaskedInput", "Toast"}  # fmt: skip
TITLES = {"border_title", "border_subtitle", "tooltip", "placeholder", "sub_title", "label", "renderable"}
DRAWN_BY_TEXTUAL = {
    "add_row", "add_column", "add_option", "add_leaf", "write_line", "set_label", "update_cell", "update_cell_at",
    "replace_option_prompt",
}  # fmt: skip
ESCAPE = "\x1b"


class Violation(NamedTuple):
    where: str
    line: int
    what: str


def violations(
    folder: Path, *, segments_in: str = "text/tones.py", raw_in: str = "text/guarded_streams.py"
) -> list[Violation]:
    """Of every module below the folder. Segments are made in one of them, and raw streams written to in another."""
    found: list[Violation] = []
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [Violation(name, line, what) for line, what in _of(tree, name, name == segments_in, name == raw_in)]
    return found


def _of(tree: ast.Module, name: str, segments: bool, raw: bool) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _import(node)
        elif isinstance(node, ast.Call):
            yield from _call(node, segments=segments, made_here=raw or name == "commands/show.py")
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            yield from _assign(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name in ("render", "__rich__", "__rich_console__", "render_str", "__textual__"):
                yield node.lineno, f"def {node.name}: what it gives is read as markup; draw lines with `drawn`"
        elif isinstance(node, ast.Attribute) and not raw:
            if node.attr in ("__stdout__", "__stderr__", "_driver", "set_window_title"):
                yield node.lineno, f".{node.attr}: past the guarded streams"
            elif node.attr == "buffer" and ast.unparse(node.value) in ("sys.stdout", "sys.stderr"):
                yield node.lineno, "the bytes beneath a guarded stream"


def _import(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[int, str]]:
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    names = [alias.name for alias in node.names]
    modules = [module] if module else names
    for each in modules:
        if each.startswith(NEVER):
            yield node.lineno, f"import of {each}: reads markup"
        elif each == "rich" or (each.startswith("rich.") and each not in IMPORTS["rich"]):
            yield node.lineno, f"import of {each}: draws, or reads markup"
        elif each in ("textual.widgets", "textual.command"):
            for name in names if module else ["*"]:
                if name not in IMPORTS[each]:
                    yield node.lineno, f"import of {each}.{name}: draws texts of its own accord"


def _call(node: ast.Call, *, segments: bool, made_here: bool) -> Iterator[tuple[int, str]]:
    name, receiver = _called(node)
    first = node.args[0] if node.args else None
    words = {word.arg: word.value for word in node.keywords if word.arg}
    if name == "Segment" and not segments:
        yield node.lineno, "Segment(…): use theme.drawn"
    elif name in ("from_markup", "from_rich_text", "render_markup", "to_content", "from_ansi"):
        yield node.lineno, f"{name}(…): reads markup or escapes"
    elif name == "Text" and not (first is None or _clean(first)):
        yield node.lineno, "Text(…) of a text that did not pass printable"
    elif name in WIDGETS and name != "Text":
        plain = isinstance(words.get("markup"), ast.Constant) and words["markup"].value is False  # type: ignore[attr-defined]
        if not plain or not all(isinstance(arg, ast.Constant) for arg in node.args):
            yield node.lineno, f"{name}(…): only with a literal and markup=False"
    elif name == "notify" and receiver:
        plain = isinstance(words.get("markup"), ast.Constant) and words["markup"].value is False  # type: ignore[attr-defined]
        if not plain:
            yield node.lineno, "notify(…) without markup=False"
        if first is None or not _clean(first) or not _clean(words.get("title", ast.Constant(""))):
            yield node.lineno, "notify(…) of a text that did not pass printable"
    elif name == "copy_to_clipboard" and not (first is not None and _clean(first)):
        yield node.lineno, "copy_to_clipboard(…) of a text that did not pass visible"
    elif name in ("Hit", "DiscoveryHit"):
        shown = node.args[1] if name == "Hit" and len(node.args) > 1 else first
        if "help" in words or not (isinstance(shown, ast.Call) and _called(shown)[0] in ("Text", "_shown")):
            yield node.lineno, f"{name}(…): words of the palette are markup, unless a Text"
    elif name == "update" and first is not None and (_texts(first) or "query" in receiver) and not _clean(first):
        yield node.lineno, "update(…) with a text that did not pass printable"
    elif name in DRAWN_BY_TEXTUAL:
        yield node.lineno, f"{name}(…): a widget that reads markup"
    elif name in ("print", "write", "writelines") and not made_here and any(map(_escapes, ast.walk(node))):
        yield node.lineno, "an escape sequence of its own; guarded.write_over is the one there is"
    elif name == "print" and not receiver:
        if not all(_clean(arg) for arg in node.args):
            yield node.lineno, f"print of what did not pass printable: {ast.unparse(node)[:90]}"
    elif name in ("write", "writelines") and receiver in ("sys.stdout", "sys.stderr") and not made_here:
        yield node.lineno, f"{receiver}.{name}: use write_lines or write_json"
    elif name == "write" and receiver == "os" and isinstance(first, ast.Constant) and first.value in (1, 2):
        yield node.lineno, "os.write past the guarded streams"
    elif (
        name == "open" and isinstance(first, ast.Constant) and first.value in ("/dev/tty", "/dev/stdout", "/dev/stderr")
    ):
        yield node.lineno, f"open({first.value!r}) past the guarded streams"
    for word in TITLES & words.keys():
        if receiver != "argparse" and not _clean(words[word]) and name[:1].isupper():
            yield node.lineno, f"{name}({word}=…) of a text that did not pass printable"


def _assign(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[tuple[int, str]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        if isinstance(target, ast.Attribute) and target.attr in TITLES and node.value is not None:
            drawn = target.attr != "label" or not (isinstance(target.value, ast.Name) and target.value.id == "self")
            if drawn and not _clean(node.value):
                yield node.lineno, f".{target.attr} = a text that did not pass printable"


def _called(node: ast.Call) -> tuple[str, str]:
    """Name of what is called, and of what it is called on."""
    if isinstance(node.func, ast.Name):
        return node.func.id, ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr, ast.unparse(node.func.value)
    return "", ""


def _escapes(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and ESCAPE in node.value


def _texts(node: ast.expr) -> bool:
    """Whether it can only be a text."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if isinstance(node, ast.BinOp):
        return _texts(node.left) or _texts(node.right)
    return isinstance(node, ast.JoinedStr)


def _clean(node: ast.expr) -> bool:
    """Whether it is made of literals, numbers and what has been through the door."""
    match node:
        case ast.Constant():
            return True
        case ast.JoinedStr():
            return all(_clean(value) for value in node.values)
        case ast.FormattedValue():
            return _clean(node.value) or node.conversion in (ord("r"), ord("a")) or _numeric(node.format_spec)
        case ast.BinOp(op=ast.Add() | ast.Mod() | ast.Mult()):
            return _clean(node.left) and _clean(node.right)
        case ast.BinOp():
            return True  # a number
        case ast.IfExp():
            return _clean(node.body) and _clean(node.orelse)
        case ast.BoolOp():
            return all(map(_clean, node.values))
        case ast.Name():
            return node.id.isupper()
        case ast.Subscript():
            return _clean(node.value)
        case ast.Starred():
            return _clean(node.value)
        case ast.Call():
            name, receiver = _called(node)
            if name == "join" and node.args:
                return _clean_items(node.args[0])
            if name in ("rstrip", "lower", "upper", "strip", "replace") and isinstance(node.func, ast.Attribute):
                return _clean(node.func.value)
            if name == "dumps":
                return all(word.arg != "ensure_ascii" for word in node.keywords)
            if name == "str" and not receiver:
                return bool(node.args) and _clean(node.args[0])
            return name in SAFE and (name not in OPEN or all(map(_clean, node.args[:1])))
    return False


def _clean_items(node: ast.expr) -> bool:
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return _clean(node.elt)
    if isinstance(node, ast.List | ast.Tuple):
        return all(map(_clean, node.elts))
    if isinstance(node, ast.Call) and _called(node)[0] == "map":
        return isinstance(node.args[0], ast.Name) and node.args[0].id in DOORS
    return False


def _numeric(spec: ast.expr | None) -> bool:
    """A format that takes numbers only, such as `,` or `.1f`."""
    if not isinstance(spec, ast.JoinedStr):
        return False
    text = "".join(part.value for part in spec.values if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return text.endswith((",", "d", "f", "g", "%", "x"))
