"""Arguments of actions, in the shell as in the `:` bar: made from their declarations, and read by them.

Loads nothing heavy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from console.forms.command_arguments import count, integer, positive, ratio, reach
from engine.model.errors import SpecError
from runbooks.actions.catalogue import CATALOG
from runbooks.actions.declaration import METAVARS, Action, Argument, Form

if TYPE_CHECKING:
    from console.forms.fields import Now
    from console.forms.shell_parser import ShellParser


NOTHING = "none"
"""In place of quantities, weights or a schedule: there are none. As a quantity: the resource is no longer named."""
WORDS: dict[str, bool] = {"yes": True, "true": True, "no": False, "false": False}


def declared(name: str) -> Action:
    """Action by the name that people type."""
    return CATALOG[name.replace("-", "_")]


def metavar_of(action: Action) -> str:
    """Placeholder of the action's targets; empty where none are typed."""
    return METAVARS[action.kind] if action.metavar is None else action.metavar


def typed_arguments(action: Action) -> tuple[Argument, ...]:
    """All arguments behind the action's name. Its targets are ids, unless the action declares arguments by place."""
    if not metavar_of(action) or any(not argument.name.startswith("-") for argument in action.arguments):
        return action.arguments
    target = next((parameter.type for parameter in action.parameters.values() if parameter.target), None)
    return (Argument("ids", metavar=metavar_of(action), many=True, of=target), *action.arguments)


def action_arguments(target: argparse.ArgumentParser, action: Action) -> None:
    """Add the action's arguments to a parser."""
    groups: dict[str, Any] = {}
    for argument in typed_arguments(action):
        where: Any = target
        if argument.apart:
            where = groups.get(argument.apart) or target.add_mutually_exclusive_group(
                required=argument.apart.endswith("!")
            )
            groups[argument.apart] = where
        where.add_argument(argument.name, **_keywords(action, argument))


def action_command(target: argparse.ArgumentParser, name: str) -> None:
    """Give a command of the shell the arguments of the action of that name, and those that all actions have."""
    action_arguments(target, declared(name))
    target.add_argument("--reason", default="", help="kept with the action")
    target.add_argument("--suggestion", default="", metavar="ID", help="that this follows, such as R-k3vq7")
    target.add_argument("--yes", action="store_true", help="do not ask; needed where nobody can be asked")
    target.add_argument("--dry-run", action="store_true", help="show the plan and its effect, do nothing")
    target.set_defaults(action=name)
    reach(target, sub=True)


def noun_actions(noun: ShellParser) -> None:
    """Add the actions that are declared for a noun of the shell."""
    for action in CATALOG.values():
        of, _, verb = action.shell.rpartition(" ")
        if noun.prog == f"muster {of}":
            runs = (
                "console.commands.capacity:consolidate"
                if action.name == "consolidate"
                else "console.commands.acting:act"
            )
            noun.add(verb, action.summary, runs, partial(action_command, name=action.word))


def _keywords(action: Action, argument: Argument) -> dict[str, Any]:
    """As `argparse` wants it described."""
    is_flag = argument.name.startswith("-")
    found: dict[str, Any] = {
        "type": _NUMBERS.get(argument.form), "metavar": argument.metavar, "help": argument.help,
        "choices": argument.choices, "default": argument.default,
    }  # fmt: skip
    if is_flag and argument.required:
        found["required"] = True
    if argument.many:
        found["nargs"] = 1 if argument.name == "ids" and action.most == 1 else "+" if argument.required else "*"
        if is_flag:
            found["nargs"] = "+"
    return {name: value for name, value in found.items() if value is not None}


def typed(action: Action, arguments: argparse.Namespace, now: Now) -> dict[str, Any]:
    """Values that were typed, by argument name and converted to the argument's form. Raises SpecError naming the
    argument."""
    found: dict[str, Any] = {}
    for argument in typed_arguments(action):
        value = getattr(arguments, argument.key)
        read = _READERS.get(argument.form)
        if value == [] and read is not None:
            # argparse's word for a list by its place that was not given.
            value = None
        if value is not None and read is not None:
            label = argument.name if argument.name.startswith("-") else argument.metavar or argument.name
            value = read(value, label, now)
        found[argument.key] = value
    return found


# -- forms ------------------------------------------------------------------------------------------------------------

_NUMBERS: Mapping[Form, Callable[[str], Any]] = {
    "count": count, "positive": positive, "integer": integer, "ratio": ratio, "percent": count,
}  # fmt: skip
"""Those that the parser itself reads."""


def _converted(convert: Callable[[Any], Any], text: Any, label: str) -> Any:
    """Raises SpecError naming the argument for what is not as it is written."""
    try:
        return convert(text)
    except ValueError as error:
        raise SpecError(label, str(error)) from None


def _duration(text: str, label: str, now: Now) -> int:
    from engine.model.quantities import duration_ms

    return int(_converted(duration_ms, text, label))


def _share(text: str, label: str, now: Now) -> int:
    from console.forms.fields import permille

    return int(_converted(permille, text, label))


def _moment(text: str, label: str, now: Now) -> int:
    from console.forms.fields import moment_ms

    return int(_converted(lambda word: moment_ms(word, now), text, label))


def _money(text: str, label: str, now: Now) -> int:
    from engine.model.quantities import money_microusd, shown

    amount = int(_converted(money_microusd, text.removeprefix("$"), label))
    if amount < 0:
        raise SpecError(label, f"{shown(text)} is negative", "Give an amount from 0 on")
    return amount


def _names(text: str, label: str, now: Now) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _quantities(words: Sequence[str], label: str, now: Now) -> dict[str, int | None]:
    """`gpu=24 memory=1TiB disk=none`; `none` alone is empty."""
    from console.forms.fields import RESOURCE_FORMS
    from engine.model.quantities import shown

    found: dict[str, int | None] = {}
    for word in () if list(words) == [NOTHING] else words:
        name, equals, text = word.partition("=")
        field, convert = RESOURCE_FORMS.get(name, ("", None))
        if convert is None or not equals:
            remedy = f"Write it like gpu=24 memory=1TiB; resources: {', '.join(RESOURCE_FORMS)}"
            raise SpecError(label, f"{shown(word)} is not RESOURCE=QUANTITY", remedy)
        found[field] = None if text == NOTHING else _converted(convert, text, f"{label} {name}")
    return found


def _weights(words: Sequence[str], label: str, now: Now) -> dict[str, int]:
    """Name of a profile, `pack=100 price=50`, or `none`. The engine checks which scores exist."""
    from console.forms.fields import profile
    from engine.model.quantities import shown

    if list(words) == [NOTHING]:
        return {}
    if len(words) == 1 and "=" not in words[0]:
        return dict(_converted(profile, words[0], label))
    found = {}
    for word in words:
        score, equals, weight = word.partition("=")
        if not equals or not weight.isdecimal():
            raise SpecError(label, f"{shown(word)} is not SCORE=WEIGHT", "Write it like pack=100 price=50")
        found[score] = int(weight)
    return found


def _schedule(words: Sequence[str], label: str, now: Now) -> tuple[tuple[int, int], ...]:
    """`+2h=40 2026-03-02T08:00=60`, or `none`."""
    from engine.model.quantities import shown

    found = []
    for word in () if list(words) == [NOTHING] else words:
        at, equals, nodes = word.partition("=")
        if not equals or not nodes.isdecimal():
            raise SpecError(label, f"{shown(word)} is not TIME=NODES", "Write it like +2h=40, or none")
        found.append((_moment(at, label, now), int(nodes)))
    return tuple(found)


def _settings(words: Sequence[str], label: str, now: Now) -> dict[str, int | bool | tuple[str, ...]]:
    """`scan_every=30s predict_permille=900 expanders=price,priority`."""
    from engine.model.quantities import shown
    from engine.model.spec_parts import Autoscaling

    found: dict[str, int | bool | tuple[str, ...]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        field = name if name in Autoscaling.__struct_fields__ else f"{name}_ms"
        if not equals or field not in Autoscaling.__struct_fields__:
            known = ", ".join(known.removesuffix("_ms") for known in Autoscaling.__struct_fields__)
            wrong = f"there is no setting {shown(name)}" if equals else f"{shown(word)} is not SETTING=VALUE"
            raise SpecError(label, wrong, f"Write it like scan_every=30s; settings: {known}")
        found[field] = _setting(
            getattr(Autoscaling(), field), name, text, timed=field.endswith("_ms"), raw=name == field
        )
    return found


def _setting(usual: Any, name: str, text: str, *, timed: bool, raw: bool) -> int | bool | tuple[str, ...]:
    """Value of one autoscaling setting. `raw`: it is named as in the engine, so a bare number is milliseconds;
    otherwise a time needs its unit."""
    from engine.model.quantities import duration_ms, shown

    if isinstance(usual, bool):
        if text not in WORDS:
            raise SpecError(name, f"{shown(text)} is neither yes nor no", f"Write {name}=yes or {name}=no")
        return WORDS[text]
    if isinstance(usual, tuple):
        return tuple(filter(None, text.split(",")))
    if text.isdecimal() and (raw or not timed):
        return int(text)
    if not timed:
        raise SpecError(name, f"{shown(text)} is not a whole number", f"Write it like {name}={usual}")
    return int(_converted(duration_ms, text, name))


_READERS: Mapping[Form, Callable[[Any, str, Now], Any]] = {
    "names": _names, "share": _share, "money": _money, "duration": _duration, "moment": _moment,
    "quantities": _quantities, "weights": _weights, "schedule": _schedule, "settings": _settings,
    "percent": lambda value, label, now: value * 10,
}  # fmt: skip
