"""Scripted incidents: a cell, its events, the operator's question, and the accepted answers.

They are YAML files (`console/evals/incidents/*.yaml`), read here. `console.evals.incident_replay` plays them on an
engine in memory, and `console.evals.scores` judges the drafts. docs/incidents.md describes the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from console.forms.documents import LocatedDocument, read_document
from console.forms.fields import meant
from console.forms.work_files import cell_of
from console.text.terminal_text import read_value
from engine.elasticity.providers import ProviderFaults
from engine.model.errors import NotFoundError, SpecError
from engine.model.quantities import duration_ms, shown
from engine.model.specs import CellSpec
from runbooks.actions.catalogue import CATALOG
from runbooks.drafts.typed_draft import ReportedFinding
from runbooks.plans.typed_plan import ActionName

FOLDER = Path(__file__).parent / "incidents"
ACTIONS: tuple[str, ...] = get_args(ActionName)
BEGINS = "2026-02-11T02:40"
_COUNTED = re.compile(r"(.*?)(\d+)\.\.(\d+)")
_RANGE = re.compile(r"(\d*)\.\.(\d*)")


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted act: its action, targets and parameters."""

    action: ActionName
    targets: frozenset[str]
    """Those that it may have."""
    least: int
    """So many of them it has to have."""
    most: int
    parameters: dict[str, Any]
    """Parameter -> value, or (least, most). What is not named must stay as it is."""
    optional: bool = False
    """Another act is enough without it."""


Way = tuple[Pattern, ...]
"""Acts that are accepted together; none: nothing should be done."""


class RecoveryCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that a fork must show some time after the acts, and does not show without them."""

    within_ms: int
    checks: tuple[tuple[str, Any], ...]
    """(name of `console.evals.scores.CHECKS`, what it is of)"""


class IncidentLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Allowed side effects of a right answer. Anything else that is stopped, lost or changed is harm."""

    may_stop: tuple[str, ...] = ()
    """Workloads, or nodes whose work, it may stop."""
    may_lose: tuple[str, ...] = ()
    """Ready nodes that it may take out of use."""
    may_delay: tuple[str, ...] = ()
    """Workloads, or queues whose work, that may be later than without it."""
    may_close: tuple[str, ...] = ()
    """Open queues that it may hold or drain."""
    may_cost: int = 0
    """USD an hour that the cell may cost more."""
    out: tuple[str, ...] = ()
    """Nodes that must not take work."""
    hands_off: tuple[str, ...] = ()
    """Workloads, queues, nodes, pools, budgets and reservations that are as they are on purpose."""


class ScriptedIncident(msgspec.Struct, frozen=True, kw_only=True):
    """A fault in a cell, or something that only looks like one."""

    id: str
    title: str
    place: str
    """File and line, for errors."""
    held: bool
    """Kept back: not looked at while a drafter is made better."""
    control: bool
    """Nothing is wrong, and nothing should be done."""
    question: str
    """What the operator types."""
    about: str
    """Id of the object that the question is asked from; empty: from none."""
    finds: str
    """Kind of the recommender's finding that the question is asked from; empty: from none."""
    finding: ReportedFinding | None
    """The same, of a finder that a cell in memory does not have."""
    begins_ms: int
    """Cell time at which the cell is there."""
    cell: CellSpec
    provider: ProviderFaults | None
    script: tuple[tuple[str, Any], ...]
    """(verb of `console.evals.incident_replay`, what it is told), in order."""
    accept: tuple[Way, ...]
    perfect: tuple[tuple[ActionName, dict[str, Any]], ...]
    """Acts of a perfect answer, by the parameters of `runbooks.actions`; none: nothing should be done."""
    words: str
    """What a perfect answer says, in a sentence."""
    recovers: RecoveryCheck | None
    keeps: IncidentLimits
    document: LocatedDocument
    """The file, for errors of the script."""


def load(only: Iterable[str] = (), part: str = "all", folder: Path = FOLDER) -> tuple[ScriptedIncident, ...]:
    """All incidents of the folder, or those of these ids or of one part (`open`, `held`, `all`), in the order of files
    and places. Raises SpecError naming file, line and field, and NotFoundError for an unknown id."""
    found: dict[str, ScriptedIncident] = {}
    for path in sorted(folder.glob("*.yaml")):
        for incident in incidents_of(read_document(str(path))):
            if incident.id in found:
                raise SpecError(incident.place, f"incident '{incident.id}' appears twice", "Give it another id")
            found[incident.id] = incident
    wanted = tuple(only)
    for id_ in wanted:
        if id_ not in found:
            raise NotFoundError(f"there is no incident {shown(id_)}{meant(id_, found)}", "See `--list`")
    return tuple(
        one
        for one in found.values()
        if (not wanted or one.id in wanted) and (part == "all" or one.held == (part == "held"))
    )


_KEYS = (
    "id", "title", "held", "control", "asked", "about", "finds", "finding", "begins", "cell", "provider", "script",
    "accept", "perfect", "words", "recovers", "keeps",
)  # fmt: skip


def incidents_of(document: LocatedDocument) -> Iterator[ScriptedIncident]:
    """Incidents of a file, which is a list of them. Raises SpecError."""
    if not isinstance(document.value, list):
        document.fail("", "is not a list of incidents", "Start each with '- id: NAME'")
    for i, raw in enumerate(document.value):
        if not isinstance(raw, dict):
            document.fail(f"[{i}]", "is not an incident", "Start it with '- id: NAME'")
        yield _incident(document, raw, f"[{i}]")


def _incident(document: LocatedDocument, raw: dict[str, Any], at: str) -> ScriptedIncident:
    for key in raw:
        if key not in _KEYS:
            document.fail(f"{at}.{key}", f"unknown key {shown(key)}{meant(key, _KEYS)}", "")
    for key in ("id", "title", "cell"):
        if key not in raw:
            document.fail(at, f"has no {key}", "Add it")
    control = raw.get("control", False)
    if control == ("accept" in raw or "recovers" in raw):
        document.fail(
            at, "is a control with an action, or a fault without one", "Give `control: true`, or accept and recovers"
        )
    place = document.place(f"{at}.id")
    accept = tuple(_way(document, way, f"{at}.accept[{i}]") for i, way in enumerate(raw.get("accept", ())))
    perfect = raw.get("perfect", [])
    finding = raw.get("finding")
    try:
        return ScriptedIncident(
            id=raw["id"],
            title=raw["title"],
            place=place,
            held=raw.get("held", False),
            control=control,
            question=raw.get("asked", ""),
            about=raw.get("about", ""),
            finds=raw.get("finds", ""),
            finding=None
            if finding is None
            else msgspec.convert({"id": "R-other", "text": "", **finding}, ReportedFinding),
            begins_ms=read_value("time", raw.get("begins", BEGINS)),
            cell=_cell(document, raw["cell"], f"{at}.cell"),
            provider=None if "provider" not in raw else msgspec.convert(raw["provider"], ProviderFaults),
            script=tuple(_verbs(document, raw.get("script", []), f"{at}.script")),
            accept=accept or ((),),
            perfect=tuple(_perfect(document, one, f"{at}.perfect[{i}]") for i, one in enumerate(perfect)),
            words=raw.get("words", raw["title"]),
            recovers=_recovers(document, raw["recovers"], f"{at}.recovers") if "recovers" in raw else None,
            keeps=msgspec.convert(_named(raw.get("keeps", {})), IncidentLimits),
            document=document,
        )
    except (msgspec.ValidationError, ValueError, TypeError, KeyError) as error:
        raise SpecError(place, str(error), "See how the others are written") from None


def _cell(document: LocatedDocument, raw: Any, at: str) -> CellSpec:
    """Content of a cell file; nodes may be counted, as in `id: gx-01..08`."""
    if not isinstance(raw, dict):
        document.fail(at, "is not a cell", "Write a mapping with pools and queues")
    nodes = [{**node, "id": id_} for node in raw.get("nodes", ()) for id_ in expanded(node["id"])]
    values = raw | ({"nodes": nodes} if nodes else {})
    return cell_of(LocatedDocument(f"{document.place(at)} cell", values, document.marks))


def _verbs(document: LocatedDocument, raw: Any, at: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(raw, list):
        document.fail(at, "is not a list", "Write one step per line, as in `- pass: 30m`")
    for i, step in enumerate(raw):
        if not isinstance(step, dict) or len(step) != 1:
            document.fail(f"{at}[{i}]", "is not one step", "Write one verb and its arguments")
        yield from step.items()


# -- what is accepted -------------------------------------------------------------------------------------------------


def _way(document: LocatedDocument, raw: Any, at: str) -> Way:
    """`{drain: {nodes: [n1]}, cordon?: {...}}`, or a list of such where an action is in it twice."""
    parts = raw if isinstance(raw, list) else [raw]
    return tuple(_pattern(document, name, terms, at) for part in parts for name, terms in dict(part).items())


def _pattern(document: LocatedDocument, name: str, terms: Any, at: str) -> Pattern:
    action: Any = name.removesuffix("?")
    if action not in ACTIONS:
        document.fail(at, f"there is no action {shown(action)}{meant(action, ACTIONS)}", "")
    targets, least, most, parameters = frozenset[str](), 0, 0, {}
    of_target = next((key for key, one in CATALOG[action].parameters.items() if one.target), "moves")
    for key, value in dict(terms).items():
        if key == of_target:
            subset = value if isinstance(value, dict) else {"of": value}
            names = expanded(subset["of"])
            targets = frozenset(names)
            least, most = subset.get("least", len(targets)), subset.get("most", len(targets))
            if isinstance(value, dict) and "least" not in subset:
                least = 1
        else:
            parameters[key] = _bounds(value)
    return Pattern(
        action=action, targets=targets, least=least, most=most, parameters=parameters, optional=name.endswith("?")
    )


def _bounds(value: Any) -> Any:
    """`8..24`, `8..` and `..24` are ranges; anything else is itself."""
    match = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    return int(match[1] or 0), int(match[2] or 2**62)


def _perfect(document: LocatedDocument, raw: Any, at: str) -> tuple[ActionName, dict[str, Any]]:
    if not isinstance(raw, dict) or len(raw) != 1:
        document.fail(at, "is not one action", "Write `- drain: {nodes: [n1]}`")
    ((action, given),) = raw.items()
    if action not in ACTIONS:
        document.fail(at, f"there is no action {shown(action)}{meant(action, ACTIONS)}", "")
    values: dict[str, Any] = {}
    for name, value in given.items():
        parameter = CATALOG[action].parameters.get(name)
        if parameter is None:
            known = ", ".join(CATALOG[action].parameters)
            document.fail(f"{at}.{action}.{name}", f"is not a parameter of {action}", f"Use {known}")
        if parameter.many:
            values[name] = expanded(value)
        else:
            values[name] = duration_ms(value) if parameter.type == "duration" else value
    return action, values


def _recovers(document: LocatedDocument, raw: Any, at: str) -> RecoveryCheck:
    if not isinstance(raw, dict) or "within" not in raw or len(raw) < 2:
        document.fail(at, "lacks the expected check and its time", "Write `within: 20m` and a check")
    checks = tuple((name, told) for name, told in raw.items() if name != "within")
    return RecoveryCheck(within_ms=duration_ms(raw["within"]), checks=checks)


def _named(raw: dict[str, Any]) -> dict[str, Any]:
    """Lists of names expanded."""
    return {key: expanded(value) if isinstance(value, list) else value for key, value in raw.items()}


def expanded(names: Any) -> tuple[str, ...]:
    """One name or several; `gx-01..08` stands for eight."""
    found: list[str] = []
    for name in names if isinstance(names, list | tuple) else [names]:
        match = _COUNTED.fullmatch(str(name))
        if match is None:
            found.append(str(name))
            continue
        stem, first, last = match.groups()
        found += [f"{stem}{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return tuple(found)
