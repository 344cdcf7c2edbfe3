"""The command `muster scaling`, and what is typed to change how pools grow and shrink."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from console.attach import connect
from console.moments import moment_ms
from console.plain import facts, table
from console.show import write_json, write_lines
from console.text import duration, printable, timestamp
from engine.errors import SpecError
from engine.measures import duration_ms, shown
from engine.scaling import Autoscaling
from runbooks.plan import ScalingChange

if TYPE_CHECKING:
    from console.moments import Now
    from engine.scaling_report import ScalingReport

TITLES = ("POOL", "READY", "BOOTING", "ORDERED", "OTHER", "ASKED", "WANTED", "LEAST", "MOST", "HEADROOM", "PRIORITY")
NOTHING = "none"
WORDS: dict[str, bool] = {"yes": True, "true": True, "no": False, "false": False}


def scaling(arguments: argparse.Namespace) -> None:
    """How large each pool is and should be, and what the autoscaler goes by."""
    with closing(connect(arguments)) as client:
        report = client.scaling()
    write_json(report) if arguments.json else write_lines(lines(report))


def lines(report: ScalingReport) -> list[str]:
    rows = []
    for pool in report.pools:
        scaling = pool.scaling
        own: tuple[str, ...] = ("",) * 5
        if scaling is not None:
            own = tuple(map(str, (pool.wanted, scaling.least, scaling.most, scaling.headroom, scaling.priority)))
        counts = (pool.ready, pool.booting, pool.ordered, pool.other, pool.asked)
        rows.append([printable(pool.pool), *(f"{count:,}" for count in counts), *own])
    told = table(TITLES, rows, (False, *(True,) * (len(TITLES) - 1)))
    for pool in report.pools:
        told += [f"{printable(pool.pool)}: {nodes:,} nodes from {timestamp(at_ms)} on" for at_ms, nodes in pool.set_for]
    settings = [(field, _word(field, report)) for field in Autoscaling.__struct_fields__]
    return [*told, "", *facts([*settings, ("forecast", printable(report.forecast))])]


def _word(field: str, report: ScalingReport) -> str:
    value = getattr(report.settings, field)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value)
    return duration(value) if field.endswith("_ms") else f"{value:,}"


def size_change(arguments: argparse.Namespace) -> ScalingChange:
    """Raises SpecError when nothing is given."""
    given = {field: getattr(arguments, field) for field in ("least", "most", "headroom", "priority")}
    if all(value is None for value in given.values()):
        raise SpecError("", "nothing is given", "Give --least, --most, --headroom or --priority")
    return ScalingChange(**given)


def targets_change(arguments: argparse.Namespace, now: Now) -> ScalingChange:
    """`+2h=40 2026-03-02T08:00=60`, or `none`. Raises SpecError naming the word."""
    if arguments.targets == [NOTHING]:
        return ScalingChange()
    found = []
    for word in arguments.targets:
        at, equals, nodes = word.partition("=")
        if not equals or not nodes.isdecimal():
            raise SpecError("TIME=NODES", f"{shown(word)} is not TIME=NODES", "Write for example +2h=40, or none")
        try:
            found.append((moment_ms(at, now), int(nodes)))
        except ValueError as error:
            raise SpecError("TIME=NODES", str(error)) from None
    return ScalingChange(targets=tuple(found))


def settings_change(arguments: argparse.Namespace) -> ScalingChange:
    """`scan_every=30s predict_permille=900 expanders=price,priority`. Raises SpecError naming the word."""
    if not arguments.preset and not arguments.settings:
        raise SpecError("", "nothing is given", "Give --preset, or SETTING=VALUE")
    found: dict[str, int | bool | tuple[str, ...]] = {}
    for word in arguments.settings:
        name, equals, text = word.partition("=")
        field = name if name in Autoscaling.__struct_fields__ else f"{name}_ms"
        if not equals or field not in Autoscaling.__struct_fields__:
            known = ", ".join(known.removesuffix("_ms") for known in Autoscaling.__struct_fields__)
            raise SpecError("SETTING=VALUE", f"{shown(word)} is no setting with a value", f"Settings: {known}")
        found[field] = _value(field, text, raw=name == field)
    return ScalingChange(preset=arguments.preset, settings=found)


def _value(field: str, text: str, *, raw: bool) -> int | bool | tuple[str, ...]:
    """`raw`: the setting is named as in the engine, so that a bare number is milliseconds; else a time has its unit."""
    usual = getattr(Autoscaling(), field)
    if isinstance(usual, bool):
        if text not in WORDS:
            raise SpecError(field, f"{shown(text)} is neither yes nor no", "Write yes or no")
        return WORDS[text]
    if isinstance(usual, tuple):
        return tuple(filter(None, text.split(",")))
    if text.isdecimal() and (raw or not field.endswith("_ms")):
        return int(text)
    if not field.endswith("_ms"):
        raise SpecError(field, f"{shown(text)} is no number", "Write a whole number")
    try:
        return duration_ms(text)
    except ValueError as error:
        raise SpecError(field, str(error)) from None
