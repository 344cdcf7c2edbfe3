"""Incidents and the alerts that open them: what sources report, and how an incident is told to clients.

A source reports in the form of Alertmanager's webhook (version 4) or in a plain one; `reported` brings both into the
same kept form. Labels and texts are strangers' words: they are bounded here and neutralised where they are shown.
Loads nothing heavy.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple, cast, get_args

import msgspec

from engine.model.errors import NotFoundError, SpecError

ObjectKind = Literal["queue", "pool", "node", "workload"]
Severity = Literal["critical", "warning", "info"]
AlertState = Literal["firing", "resolved"]
IncidentState = Literal["open", "claimed", "resolved", "closed"]
EntryKind = Literal["opened", "fired", "resolved", "reopened", "claimed", "handed_over", "noted", "proposed", "closed"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""The least urgent first."""
UNCLOSED: tuple[IncidentState, ...] = ("open", "claimed", "resolved")
LABELS: dict[str, ObjectKind] = {
    "queue": "queue", "local_queue": "queue", "localqueue": "queue", "cluster_queue": "queue", "clusterqueue": "queue",
    "queue_name": "queue", "partition": "queue",
    "pool": "pool", "node_pool": "pool", "nodepool": "pool", "resource_flavor": "pool", "flavor": "pool",
    "node": "node", "node_name": "node", "nodename": "node", "instance": "node", "host": "node", "hostname": "node",
    "workload": "workload", "workload_id": "workload", "job_id": "workload", "jobid": "workload",
    "job_name": "workload",
}  # fmt: skip
"""Label of an alert, in lower case and without "exported_" -> kind of object it names. `job` is not among them:
Prometheus gives every series that name for its scrape job."""

MAX_REPORT_BYTES = 1 << 20
MAX_ALERTS = 500
"""Alerts of one report, and of one incident."""
MAX_LABELS = 40
MAX_NAME = 100
MAX_VALUE = 300
MAX_ANNOTATION = 1_000
MAX_TITLE = 160
MAX_OBJECTS = 50
"""Objects of an incident, and label values that name nothing."""
MAX_NOTE = 500
_ID = re.compile("I-([1-9][0-9]{0,10})")
_FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")
_CRITICAL = frozenset(("critical", "crit", "page", "error", "fatal", "emergency", "high", "p1", "sev1"))
_INFO = frozenset(("info", "information", "informational", "none", "low", "notice", "p4", "p5", "sev4", "sev5"))
_KEPT_ANNOTATIONS = ("summary", "description", "message", "runbook_url")


# -- what a source reports --------------------------------------------------------------------------------------------


class ReportedAlert(msgspec.Struct, frozen=True, kw_only=True, rename={
    "starts_at": "startsAt", "ends_at": "endsAt", "generator_url": "generatorURL",
}):  # fmt: skip
    """An alert as Alertmanager's webhook tells it. Other fields are left aside."""

    status: AlertState = "firing"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    starts_at: str = ""
    """RFC 3339; empty: now."""
    ends_at: str = ""
    generator_url: str = ""
    fingerprint: str = ""


class AlertReport(msgspec.Struct, frozen=True, kw_only=True, rename={
    "group_key": "groupKey", "group_labels": "groupLabels", "common_labels": "commonLabels",
    "common_annotations": "commonAnnotations", "truncated_alerts": "truncatedAlerts", "starts_at": "startsAt",
}):  # fmt: skip
    """A notification of Alertmanager (payload version 4), or the plain form: a title, with what else is known. Other
    fields are left aside."""

    version: str = "4"
    status: AlertState = "firing"
    receiver: str = ""
    group_key: str = ""
    group_labels: dict[str, str] = {}
    common_labels: dict[str, str] = {}
    common_annotations: dict[str, str] = {}
    alerts: tuple[ReportedAlert, ...] = ()
    truncated_alerts: int = 0
    """Alerts of the group that the sender left out."""
    title: str = ""
    """Plain form: what is wrong, in a line."""
    severity: str = ""
    key: str = ""
    """Plain form: reports with the same key are about the same incident; empty: those with the same title and labels.
    """
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    starts_at: str = ""


class AlertReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a report."""

    incident: str
    """Such as I-12; empty: it resolves what is not known here."""
    change: Literal["opened", "reopened", "updated", "resolved", "unchanged", "ignored"]
    state: str = ""


# -- what is kept and told --------------------------------------------------------------------------------------------


class AlertLine(msgspec.Struct, frozen=True, kw_only=True):
    """An alert of an incident as it is kept. Labels and texts are a stranger's."""

    fingerprint: str
    state: AlertState
    labels: dict[str, str]
    texts: dict[str, str] = {}
    """Annotations of the names in `_KEPT_ANNOTATIONS`."""
    url: str = ""
    """Where the source shows it; never followed."""
    starts_ms: int
    """Wall clock, Unix ms."""
    ends_ms: int = 0
    """0: it fires."""

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "") or self.texts.get("summary", "") or self.fingerprint


class IncidentObject(msgspec.Struct, frozen=True, order=True):
    """An object of the cell that an alert names, or a label value of such a kind that names nothing here."""

    kind: ObjectKind
    id: str
    label: str = ""
    """Label that named it; empty: a person did."""


class IncidentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of what happened to an incident."""

    at_ms: int
    """Wall clock, Unix ms."""
    kind: EntryKind
    subject: str
    """Who did it; of what alerts did, their source."""
    to: str = ""
    """To whom it was handed over, or the proposal that was made of it."""
    text: str = ""
    """What was written: a stranger's or a person's words."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """An incident. Times are wall clock, Unix ms, unless they say otherwise."""

    id: str
    """I-1, I-2, …"""
    title: str
    """A stranger's words, or those of who opened it."""
    severity: Severity
    state: IncidentState
    owner: str = ""
    """Who has claimed it, or to whom it was handed over."""
    source: str
    """Subject that reported or opened it."""
    follows: str = ""
    """Incident of the same alerts that was closed before."""
    began_ms: int
    """Beginning of its first alert."""
    opened_ms: int
    since_ms: int
    """When it came into its state."""
    cell_ms: int
    """The same moment as `began_ms` on the clock of the cell."""
    objects: tuple[IncidentObject, ...] = ()
    unmatched: tuple[IncidentObject, ...] = ()
    """Named by labels, and not in this cell."""
    firing: int = 0
    """Alerts that fire."""
    alert_count: int = 0
    more_alerts: int = 0
    """Alerts beyond those that are kept, at least."""
    alerts: tuple[AlertLine, ...] = ()
    """Firing ones first. Empty in lists."""
    entries: tuple[IncidentEntry, ...] = ()
    """Oldest first. Empty in lists."""

    @property
    def proposals(self) -> tuple[str, ...]:
        """Ids of the proposals that were made of it."""
        return tuple(dict.fromkeys(entry.to for entry in self.entries if entry.kind == "proposed"))

    def named(self, kind: ObjectKind) -> tuple[str, ...]:
        """Ids of its objects of a kind."""
        return tuple(dict.fromkeys(each.id for each in self.objects if each.kind == kind))


class NewIncident(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An incident that a person opens."""

    title: str
    severity: Severity = "warning"
    objects: tuple[str, ...] = ()
    """As in "queue:research", "node:n-17"."""


# -- from the one to the other ----------------------------------------------------------------------------------------


class Reported(NamedTuple):
    """A report in the form that is kept."""

    key: str
    """By which a repetition is known: SHA-256, hex."""
    title: str
    severity: Severity
    alerts: tuple[AlertLine, ...]
    more: int
    over: bool
    """The source says that nothing of it fires any more."""


def reported(report: AlertReport, now_ms: int) -> Reported:
    """Raises SpecError for a report that says nothing, too much, or in another version."""
    if report.version not in ("", "4"):
        raise SpecError("version", f"is {report.version[:20]!a}", "Send Alertmanager's payload of version 4")
    if len(report.alerts) > MAX_ALERTS:
        raise SpecError("alerts", f"{len(report.alerts):,} alerts", f"Set max_alerts: {MAX_ALERTS} at the receiver")
    given = report.alerts or (_plain(report),)
    alerts = {alert.fingerprint: alert for alert in (_kept(each, now_ms) for each in given)}
    if not report.title and not any(alert.labels or alert.texts for alert in alerts.values()):
        raise SpecError("title", "is missing, and there are no labels", "Say in a line what is wrong")
    return Reported(
        key=_key(report, alerts),
        title=_title(report, tuple(alerts.values())),
        severity=worst(_severity(report.severity or alert.labels.get("severity", "")) for alert in alerts.values()),
        alerts=tuple(alerts.values()),
        more=max(0, report.truncated_alerts),
        over=report.status == "resolved",
    )


def _plain(report: AlertReport) -> ReportedAlert:
    texts = {**report.annotations, **({"summary": report.title} if report.title else {})}
    return ReportedAlert(
        status=report.status, labels=report.labels, annotations=texts, starts_at=report.starts_at,
    )  # fmt: skip


def _kept(alert: ReportedAlert, now_ms: int) -> AlertLine:
    labels = bounded(alert.labels, MAX_VALUE)
    begins = min(time_ms(alert.starts_at, "startsAt") or now_ms, now_ms)
    ends = min(time_ms(alert.ends_at, "endsAt") or now_ms, now_ms) if alert.status == "resolved" else 0
    is_id = _FINGERPRINT.fullmatch(alert.fingerprint) is not None
    texts = {name: text for name, text in alert.annotations.items() if name in _KEPT_ANNOTATIONS}
    return AlertLine(
        fingerprint=alert.fingerprint if is_id else _digest(labels, texts.get("summary", ""))[:16],
        state=alert.status,
        labels=labels,
        texts=bounded(texts, MAX_ANNOTATION),
        url=alert.generator_url[:MAX_ANNOTATION],
        starts_ms=begins,
        ends_ms=ends,
    )


def bounded(words: Mapping[str, str], most: int) -> dict[str, str]:
    """At most MAX_LABELS of them, in the order of their names, each cut to its length."""
    return {name[:MAX_NAME]: words[name][:most] for name in sorted(words)[:MAX_LABELS]}


def _digest(labels: Mapping[str, str], text: str) -> str:
    return hashlib.sha256(msgspec.json.encode([sorted(labels.items()), text])).hexdigest()


def _key(report: AlertReport, alerts: Mapping[str, AlertLine]) -> str:
    """By group, else by the key that was given, else by the alerts themselves."""
    text = f"group {report.group_key}" if report.group_key else f"key {report.key}" if report.key else ""
    return hashlib.sha256((text or " ".join(sorted(alerts))).encode()).hexdigest()


def _title(report: AlertReport, alerts: tuple[AlertLine, ...]) -> str:
    """The summary of the one alert or of all of them; else the name of the alert with the labels of the group."""
    common = report.common_annotations.get("summary", "")
    one = alerts[0].texts.get("summary", "") if len(alerts) == 1 else ""
    if report.title or common or one:
        return one_line(report.title or common or one)
    names = dict.fromkeys(alert.labels.get("alertname", "") for alert in alerts)
    name = ", ".join(filter(None, names)) or "alert"
    where = report.group_labels or report.common_labels or alerts[0].labels
    rest = ", ".join(f"{key} {where[key]}" for key in sorted(where) if key not in ("alertname", "severity"))
    return one_line(f"{name}: {rest}" if rest else name)


def one_line(text: str) -> str:
    """A title of printable characters, without line ends."""
    words = "".join(char if char.isprintable() else " " for char in text[: MAX_TITLE * 4])
    return " ".join(words.split())[:MAX_TITLE] or "alert"


def _severity(word: str) -> Severity:
    plain = word.strip().lower()
    return "critical" if plain in _CRITICAL else "info" if plain in _INFO else "warning"


def worst(severities: Iterable[Severity]) -> Severity:
    return max(severities, key=SEVERITIES.index, default="warning")


def time_ms(text: str, where: str) -> int:
    """An RFC 3339 time as Unix ms; 0 for none, and for Go's zero time. Raises SpecError."""
    if not text or text.startswith("0001-"):
        return 0
    try:
        found = datetime.fromisoformat(text)
        whole = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return max(0, int(whole.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise SpecError(where, f"{text[:40]!a} is no time", "Write it as in 2026-11-23T03:12:00Z") from None


def objects_in(alerts: Iterable[AlertLine], more: Mapping[str, ObjectKind]) -> tuple[IncidentObject, ...]:
    """The objects that labels of these alerts name, whether or not there are such: at most twice MAX_OBJECTS. `more`:
    labels besides those of `LABELS`."""
    table = {**LABELS, **more}
    found: dict[IncidentObject, None] = {}
    for alert in alerts:
        for label, value in alert.labels.items():
            kind = table.get(label.lower().removeprefix("exported_"))
            if kind is not None and value and len(found) < 2 * MAX_OBJECTS:
                found[IncidentObject(kind, value, label)] = None
    return tuple(found)


def spellings(named: IncidentObject) -> tuple[str, ...]:
    """Ids that a label value may mean, the likeliest first: of a node also without its port and its domain."""
    if named.kind != "node":
        return (named.id,)
    host = named.id.rpartition(":")[0] if re.search(r":\d{1,5}$", named.id) else named.id
    return tuple(dict.fromkeys((named.id, host, host.partition(".")[0])))


def label_table(lines: Iterable[str], where: str) -> dict[str, ObjectKind]:
    """Labels as settings add them, each as in "slurm_part=queue". Raises SpecError."""
    found: dict[str, ObjectKind] = {}
    for line in lines:
        label, _, kind = (part.strip() for part in line.partition("="))
        if not label or kind not in get_args(ObjectKind):
            raise SpecError(where, f"{line[:60]!a} is not LABEL=KIND", "Write it like slurm_part=queue")
        found[label.lower()] = cast("ObjectKind", kind)
    return found


class IncidentChange(msgspec.Struct, frozen=True, kw_only=True):
    """Something that changed shortly before an incident began."""

    before_ms: int
    """So long before; below 0: after."""
    what: str
    who: str = ""
    """Subject that did it, where that is known."""
    subject: str = ""
    """Object that it happened to."""
    proposal: str = ""
    pools: tuple[str, ...] = ()
    """Pools whose nodes it is about."""
    own: bool = False
    """It is about an object of the incident."""


# -- the id of an incident --------------------------------------------------------------------------------------------


def number_of(incident_id: str) -> int:
    """Raises NotFoundError for what is not the id of an incident."""
    found = _ID.fullmatch(incident_id) if isinstance(incident_id, str) else None
    if found is None:
        raise unknown(incident_id)
    return int(found[1])


def unknown(incident_id: str) -> NotFoundError:
    return NotFoundError(f"there is no incident {str(incident_id)[:40]!a}", "See `muster incident list`")
