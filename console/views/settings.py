"""Settings as sections: value, origin and meaning of each, and a change for the session or the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from console.forms.setting_sources import Setting, shown, subjects
from console.text.terminal_text import cut, fit, printable, wrap
from console.views.sections import Line, Section, text_line
from runbooks.gate.starting_points import FOR_WHOM, one_person

_SIGNS = {"default": ("·", "faint"), "file": ("f", "info"), "environment": ("e", "accent"), "flag": ("-", "warn")}
KEY = "· default  f file  e environment  - flag"
_EFFECTS = {
    "at once": "applies at once",
    "next console": "applies to the next console",
    "next engine": "applies to the next engine started from here",
}


class SettingsPage(NamedTuple):
    """Data of the page."""

    settings: tuple[Setting, ...]
    values: dict[str, str]
    """Name -> value as it may be shown."""
    defaults: dict[str, str]
    path: str
    problem: str
    """Error in the file; empty without one."""


class SettingChange(NamedTuple):
    """A change that was typed."""

    name: str
    value: Any
    """None: out of the file."""


def values_of(settings: Sequence[Setting]) -> tuple[dict[str, str], dict[str, str]]:
    return (
        {each.name: shown(each.value) for each in settings},
        {each.name: shown(each.default) for each in settings},
    )


def pages(told: SettingsPage, wish: SettingChange | None, width: int) -> tuple[list[Section], list[Section]]:
    """Left: what is being changed, the console, the engine, the person. Right: the rest."""
    by_name = {each.name: each for each in told.settings}
    sections = [
        Section(title, tuple(line for name in names for line in _lines(by_name[name], told, width)))
        for title, names in subjects()
    ]
    head = [_head(told, width)]
    if wish is not None:
        head.insert(0, change(told, wish, width))
    return [*head, *sections[:3]], sections[3:]


def _head(told: SettingsPage, width: int) -> Section:
    lines = [text_line(cut(told.path, width), "dim")]
    lines += [text_line(line, "bad") for line in wrap(told.problem, width)] if told.problem else []
    said = "enter changes a value; a flag wins over the environment, and that over the file"
    return Section("Settings", (*lines, *(text_line(line, "dim") for line in wrap(said, width))), KEY)


def _lines(each: Setting, told: SettingsPage, width: int) -> list[Line]:
    """Name, value and origin; beneath what it means, and what is wrong with it."""
    sign, tone = _SIGNS[each.source]
    name = fit(each.name, min(20, max(12, width // 3)))
    value = printable(told.values[each.name])
    spans = (
        (f"{sign} ", tone),
        (name, "link"),
        (" " + cut(value, width - len(name) - 3), "strong" if each.where else ""),
    )
    lines = [Line(spans, f"compose:settings {each.name}=")]
    if each.where:
        also = f"; also in {', '.join(each.also)} (overridden)" if each.also else ""
        lines += _beneath(f"from {each.where}{also}", tone, width)
    if each.problem:
        lines += _beneath(f"wrong value: {each.problem}", "bad", width)
    return [*lines, *_beneath(each.meaning, "dim", width)]


def _beneath(text: str, tone: str, width: int) -> list[Line]:
    return [Line((("    " + line, tone),)) for line in wrap(printable(text), width - 4)]


def change(told: SettingsPage, wish: SettingChange, width: int) -> Section:
    """The effect of a change, and lines that make it."""
    each = next(each for each in told.settings if each.name == wish.name)
    wanted = told.defaults[each.name] if wish.value is None else shown(wish.value)
    lines = [
        Line((("now   ", "dim"), (printable(cut(told.values[each.name], width - 6)), ""))),
        Line((("then  ", "dim"), (printable(cut(wanted, width - 6)), "strong"))),
        *_beneath(f"{_EFFECTS[each.effect]}. {each.meaning}", "dim", width),
    ]
    if each.name == "approval" and wanted in FOR_WHOM:
        lines += [line for pair in one_person(wanted) for line in _beneath(": ".join(pair), "", width)]
    if each.source in ("flag", "environment"):
        lines += _beneath(f"{each.where} sets it too, and wins over the file", "warn", width)
    if each.effect == "at once" and wish.value is not None:
        lines.append(Line((("  for this session only", "link"),), "session:"))
    into = f"remove it from {told.path}" if wish.value is None else f"write it to {told.path}"
    lines.append(Line((("  " + cut(into, width - 2), "link"),), "file:"))
    return Section(f"Change {each.name}", tuple(lines), "enter confirms, esc cancels")
