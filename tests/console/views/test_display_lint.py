"""No text reaches a screen, a toast, a title, the clipboard or a terminal but through
`console.text.terminal_text.printable`."""

from __future__ import annotations

from pathlib import Path

import pytest

import console
from tests.support.display_lint import violations

FORBIDDEN = {
    "segment": "from rich.segment import Segment\nx = Segment(name, style)",
    "segment of a literal": "from rich.segment import Segment\nx = Segment('fine', style)",
    "static": "from textual.widgets import Static\nx = Static(name, markup=False)",
    "static with markup": "from textual.widgets import Static\nx = Static('fine')",
    "static with markup said": "from textual.widgets import Static\nx = Static('fine', markup=True)",
    "static updated": "screen.query_one('#small', Static).update(name)",
    "static updated with f-string": "self.note.update(f'lost {name}')",
    "label": "from textual.widgets import Label",
    "button": "import textual.widgets\nx = textual.widgets.Button(name)",
    "widgets all at once": "import textual.widgets",
    "private module of a widget": "from textual.widgets._tooltip import Tooltip",
    "data table": "from textual.widgets import DataTable\nt = DataTable()\nt.add_row(name)",
    "cell of a table": "table.update_cell(row, column, name)",
    "tree": "tree.root.add_leaf(name)",
    "option list": "options.add_option(name)",
    "rich log": "log.write_line(name)",
    "markdown": "from textual.widgets import Markdown",
    "notify": "app.notify(name, markup=False)",
    "notify with markup": "app.notify(printable(name))",
    "notify f-string": "app.notify(f'gone: {name}', markup=False)",
    "notify title": "app.notify('fine', title=name, markup=False)",
    "border title": "self.border_title = name",
    "border subtitle": "self.border_subtitle = f'{name}'",
    "tooltip": "widget.tooltip = name",
    "window title": "self.sub_title = name",
    "placeholder": "x = Input(placeholder=name)",
    "content": "from textual.content import Content",
    "markup of textual": "from textual.markup import escape",
    "markup of rich": "from rich.markup import escape",
    "rich console": "from rich.console import Console",
    "rich print": "from rich import print",
    "rich traceback": "import rich.traceback",
    "rich markdown": "from rich.markdown import Markdown",
    "from markup": "x = Content.from_markup(name)",
    "from ansi": "x = Text.from_ansi(name)",
    "text": "x = Text(name)",
    "palette hit": "x = Hit(1.0, title, run)",
    "palette help": "x = DiscoveryHit(Text('x'), run, 'x', help=reason)",
    "clipboard": "app.copy_to_clipboard(name)",
    "render": "class W:\n    def render(self):\n        return self.name",
    "rich protocol": "class W:\n    def __rich_console__(self, console, options):\n        yield self.name",
    "driver": "app._driver.write(name)",
    "raw stdout": "import sys\nsys.__stdout__.write(name)",
    "raw bytes": "import sys\nsys.stdout.buffer.write(name)",
    "stdout": "import sys\nsys.stdout.write(name)",
    "stderr": "import sys\nsys.stderr.writelines(lines)",
    "file descriptor": "import os\nos.write(1, name)",
    "terminal": "open('/dev/tty', 'w')",
    "escape sequence": "print('\\x1b[2K', end='')",
    "escape sequence in an f-string": "print(f'\\033]0;{printable(name)}\\x07')",
    "print": "print(name)",
    "print f-string": "print(f'no node {name}')",
    "print an attribute": "print('node', node.name)",
    "print a sum": "print('node ' + name)",
    "print percent": "print('node %s' % name)",
    "print format": "print('node {}'.format(name))",
    "print joined": "print(', '.join(names))",
    "print joined some": "print(', '.join(cut(name, 3) for name in names))",
    "print an exception": "print(str(error))",
    "print cut": "print(cut(name, 10))",
    "print padded": "print(f'{name:<20}')",
    "print either": "print(printable(name) if name else title)",
    "print json that is not ascii": "print(json.dumps(name, ensure_ascii=False))",
}
FINE = (
    "print('done')", "print(f'{count:,} of {len(rows)}')", "print(printable(name))", "print(json.dumps(name))",
    "print(', '.join(map(printable, names)))", "print(f'no node {printable(name)!r}')",
    "print(cut(printable(name), 3))",
    "app.notify(printable(name), markup=False, title='x')", "known.update({name: 1})", "x = Static('', markup=False)",
    "known.update(found)", "self.label = name", "x = Text(printable(name))", "app.copy_to_clipboard(visible(text))",
    "screen.query_one('#small', Static).update(f'{size.width:d} is too small')",
)  # fmt: skip


def test_the_console_has_one_door() -> None:
    assert violations(Path(console.__file__).parent) == []


@pytest.mark.parametrize("form", FORBIDDEN)
def test_every_other_way_is_found(tmp_path: Path, form: str) -> None:
    (tmp_path / "page.py").write_text(f"import this\n\n{FORBIDDEN[form]}\n")
    found = violations(tmp_path)
    assert found
    assert all(each.where == "page.py" and each.line >= 3 for each in found)


@pytest.mark.parametrize("form", FINE)
def test_what_passes_the_door_is_fine(tmp_path: Path, form: str) -> None:
    (tmp_path / "page.py").write_text(f"{form}\n")
    assert violations(tmp_path) == []


def test_what_a_module_may_do_it_may_do_alone(tmp_path: Path) -> None:
    """Segments are made where `drawn` is, and streams opened up where they are guarded."""
    (tmp_path / "text").mkdir()
    for name, form in (("text/tones.py", "x = Segment(text, style)"), ("text/guarded_streams.py", "print('\\x1b[K')")):
        (tmp_path / name).write_text(form)
        assert violations(tmp_path) == []
        (tmp_path / "screens").mkdir(exist_ok=True)
        misplaced = tmp_path / "screens" / Path(name).name
        misplaced.write_text(form)
        assert violations(tmp_path)
        misplaced.unlink()
