"""View models of incidents: the list, and one with its waits over time, what changed before it, what explains it, and
what was drafted and proposed.

Titles, labels and texts of alerts are strangers' words: they stand behind a gutter or as values, never as our own.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from console.forms.filters import parse_filter, quoted
from console.text.terminal_text import cut, duration, fit, printable, timestamp, wall_time
from console.text.tones import state_look
from console.views.curves import WINDOWS, Curve, CurveRequest, curve_chart, drawn_curve, read_curve, subject_words
from console.views.draft import IN_PART
from console.views.lists import Heading, Row, Span
from console.views.proposal import effect_lines, hanging, name_of
from console.views.proposal import framed as quoted_lines
from console.views.sections import Line, Section, text_line
from engine.model.errors import MusterError, UnreachableError
from engine.model.list_queries import Query, Term
from engine.model.quantities import counted
from runbooks.plans.incidents import (
    UNCLOSED,
    AlertLine,
    EntryKind,
    Incident,
    IncidentChange,
    IncidentObject,
    ObjectKind,
)

if TYPE_CHECKING:
    from console.client.protocol import Client
    from engine.model.details import WorkloadDetail
    from engine.model.overviews import PoolOverview
    from recommender.findings.suggestions import Recommendation
    from runbooks.drafts.typed_draft import Draft, DraftRun
    from runbooks.plans.typed_plan import Proposal

MAX_ALERTS, MAX_LABELS = 6, 6
MAX_CHANGES = 16
MAX_DRAFTS = 3
MAX_FINDINGS = 4
MAX_JUDGED = 20
"""Findings, by rank, that are judged for what they explain."""
MAX_LATE = 200
"""Of what waits longest in the cell, where work of the incident's queues is looked for."""
NODE_ACTIONS = ("uncordon", "drain", "cordon")
MAX_EFFECTS = 6
MAX_CURVES = 3
BEFORE_MS = 1_800_000
"""Of the curve, before the incident began."""
LABEL = 10
MARK, OWN = "▸", "▸ on it, or on its pools"
SEVERITY_TONES = {"critical": "bad", "warning": "warn", "info": "info"}
ENTRIES: dict[EntryKind, str] = {
    "opened": "opened by", "fired": "fired, says", "resolved": "resolved, says", "reopened": "fires again, says",
    "claimed": "claimed by", "handed_over": "handed over by", "noted": "note of", "proposed": "proposal by",
    "closed": "closed by",
}  # fmt: skip
LINKS: dict[ObjectKind, str] = {
    "queue": "queue {}", "node": "node {}", "workload": "workload {}", "pool": "nodes pool:{}",
}  # fmt: skip
HEADINGS = (
    Heading("id", "ID", most=8),
    Heading("severity", "SEVERITY", most=8),
    Heading("state", "STATE", most=10),
    Heading("age", "AGE", right=True, most=8),
    Heading("owner", "OWNER", most=14),
    Heading("firing", "FIRING", right=True, most=7),
    Heading("objects", "ABOUT", most=28),
    Heading("title", "TITLE", most=200),
)


class RelatedFinding(NamedTuple):
    finding: Recommendation
    own: bool
    """It is about what the incident is about, or about a pool in which its work could run."""


class IncidentPage(NamedTuple):
    """All that the page of an incident shows."""

    incident: Incident
    now_ms: int
    """Cell time."""
    version: int
    curves: tuple[Curve, ...] = ()
    """Waits of its queues, or of the cell."""
    changes: tuple[IncidentChange, ...] = ()
    findings: tuple[RelatedFinding, ...] = ()
    """What may explain it, the likeliest first."""
    longest: WorkloadDetail | None = None
    """What has waited longest of what waits in its queues."""
    pools: tuple[str, ...] = ()
    """Those in which that could run."""
    drafts: tuple[DraftRun, ...] = ()
    """Newest first."""
    proposals: tuple[Proposal, ...] = ()

    @property
    def proposable(self) -> DraftRun | None:
        """The newest draft whose steps can be put to the vote."""
        made = (run for run in self.drafts if run.rule is not None and run.rule.request is not None)
        return next((run for run in made if not run.proposed), None)


# --- what is asked


def incident_page(client: Client, incident_id: str) -> IncidentPage:
    """Blocks. Raises NotFoundError; what else cannot be had is left out."""
    incident, health = client.incident(incident_id), client.health()
    names = {incident.id, *(each.id for each in incident.objects)}
    for queue in incident.named("queue"):
        with _left_out():
            names.update(client.queue(queue).leaves)
    longest, pools = _longest_wait(client, names)
    findings: tuple[RelatedFinding, ...] = ()
    with _left_out():
        findings = _explaining(client, client.recommendations().open, names, pools, incident)
    curves: tuple[Curve, ...] = ()
    with _left_out():
        curves = tuple(_curve(client, name, incident, health.now_ms) for name in _queues(client, incident))
    return IncidentPage(
        incident=incident,
        now_ms=health.now_ms,
        version=health.version,
        curves=curves,
        changes=client.incident_changes(incident_id),
        findings=findings,
        longest=longest,
        pools=pools,
        drafts=tuple(run for run in client.draft_runs() if run.ask.finding in names)[:MAX_DRAFTS],
        proposals=tuple(_proposals_of(client, incident)),
    )


def _proposals_of(client: Client, incident: Incident) -> Iterator[Proposal]:
    for proposal_id in incident.proposals[-MAX_DRAFTS:]:
        with _left_out():
            yield client.proposal(proposal_id)


@contextlib.contextmanager
def _left_out() -> Iterator[None]:
    """Leaves out what cannot be had, but for an engine that is away."""
    try:
        yield
    except UnreachableError:
        raise
    except MusterError:
        return


def _longest_wait(client: Client, names: Collection[str]) -> tuple[WorkloadDetail | None, tuple[str, ...]]:
    """The workload that has waited longest in these queues, and the pools in which it could run."""
    with _left_out():
        where = (Term("state", "=", "queued"),)
        late = Query(kind="workloads", columns=("id", "queue"), where=where, sort=("-wait",), limit=MAX_LATE)
        first = next((id_ for id_, queue in client.query(late).rows if queue in names), "")
        if first:
            work = client.workload(first)
            return work, _pools_for(work, client.overview().pools)
    return None, ()


def _pools_for(work: WorkloadDetail, pools: Sequence[PoolOverview]) -> tuple[str, ...]:
    """By the groups that ask for most; a launcher of some CPU could run anywhere."""
    most = max((group.gpu_milli for group in work.groups), default=0)
    groups = [group for group in work.groups if group.gpu_milli == most]
    return tuple(
        pool.name
        for pool in pools
        if any(pool.name in group.pools or (not group.pools and pool.gpu_model in group.gpu_models) for group in groups)
    )


def _explaining(
    client: Client, found: Sequence[Recommendation], names: Collection[str], pools: Collection[str], incident: Incident
) -> tuple[RelatedFinding, ...]:
    """Findings about the same objects or, by whose remedy work would wait less, about pools in which its work could
    run: those that were so before it began come first. What is merely idle explains no wait."""
    told: list[tuple[bool, RelatedFinding]] = []
    for each in found[:MAX_JUDGED]:
        if is_about(each, names):
            told.append((each.first_ms <= incident.cell_ms, RelatedFinding(each, own=True)))
        elif each.suggestion.benefit.waiting_gpu_milli_h:
            pool, since_ms = _pool_and_since(client, each)
            told.append((since_ms <= incident.cell_ms, RelatedFinding(each, own=pool in pools)))
    told.sort(key=lambda pair: (not pair[1].own, not pair[0]))
    return tuple(related for _, related in told[:MAX_FINDINGS])


def _pool_and_since(client: Client, each: Recommendation) -> tuple[str, int]:
    """Pool that a finding is about, and since when it is so: of nodes since they are in their state."""
    first = each.suggestion.targets[0] if each.suggestion.targets else ""
    if each.suggestion.action in NODE_ACTIONS:
        with _left_out():
            node = client.node(first)
            return node.pool, node.since_ms
    return first, each.first_ms


def _queues(client: Client, incident: Incident) -> tuple[str, ...]:
    """The queues that it is about, those of its workloads too; the whole cell ("") where there are none."""
    names = dict.fromkeys(incident.named("queue"))
    for workload in incident.named("workload")[:MAX_CURVES]:
        with _left_out():
            names[client.workload(workload).queue] = None
    return tuple(names)[:MAX_CURVES] or ("",)


def _curve(client: Client, queue: str, incident: Incident, now_ms: int) -> Curve:
    """The waits so far of what waits; of what started, where nothing waited. It begins before the incident did."""
    back_ms = now_ms - incident.cell_ms + BEFORE_MS
    window = next((name for name, length_ms, _ in WINDOWS if length_ms >= back_ms), WINDOWS[-1][0])
    asked = CurveRequest(f"queue:{queue}" if queue else "cell", "age", window)
    curve = read_curve(client, asked)
    if any(point.count for point in curve.series[0].points):
        return curve
    return read_curve(client, asked._replace(name="wait"))


# --- the list


def parse_words(text: str) -> tuple[tuple[Term, ...], tuple[str, ...]]:
    """Terms of a filter, and the states to ask for: all of them where the filter says `all` or names states, else those
    that are not closed. Raises FilterError."""
    every = re.search(r"(?<!\S)all(?!\S)", text)
    terms = parse_filter("incidents", text if every is None else f"{text[: every.start()]}   {text[every.end() :]}")
    return terms, () if every or any(term.column == "state" for term in terms) else UNCLOSED


def row_of(incident: Incident, now_ms: int) -> Row:
    """`now_ms`: cell time."""
    glyph, tone = incident_look(incident)
    cells: tuple[Span, ...] = (
        (incident.id, ""),
        (incident.severity, SEVERITY_TONES[incident.severity]),
        (f"{glyph} {incident.state}", tone),
        (duration(max(0, now_ms - incident.cell_ms)), "dim"),
        (name_of(incident.owner) if incident.owner else "–", "" if incident.owner else "faint"),
        (f"{incident.firing:,}" if incident.firing else "–", "" if incident.firing else "faint"),
        (printable(", ".join(each.id for each in incident.objects)) or "–", "dim"),
        (printable(incident.title), ""),
    )
    return Row(incident.id, cells, incident.state)


def incident_look(incident: Incident) -> tuple[str, str]:
    """Glyph and tone of its state: one that nobody has claimed is the most urgent."""
    if incident.state == "open":
        return "!", "bad" if incident.severity == "critical" else "warn"
    return {"claimed": ("◔", "info"), "resolved": ("✓", "ok"), "closed": ("✓", "dim")}[incident.state]


# --- the page


def chart(page: IncidentPage, width: int, rows: int) -> list[Section]:
    """The waits of its first queue over time, with a mark where it began."""
    curve = page.curves[0] if page.curves else None
    if curve is None or not any(point.count for point in curve.series[0].points):
        return []
    return [curve_chart(curve, width, rows, began_at(curve, page.incident))]


def began_at(curve: Curve, incident: Incident) -> int | None:
    """The step in which it began; None where the window does not reach back so far."""
    points = curve.series[0].points
    at = (incident.cell_ms - points[0].at_ms) // curve.step_ms if points else -1
    return min(at, len(points) - 1) if at >= 0 else None


def incident_columns(page: IncidentPage, width: int) -> tuple[list[Section], list[Section]]:
    """Left: how it stands, its alerts, what they are about, what people did. Right: what led to it and what helps."""
    left = [_state(page, width), _objects(page, width), _alerts(page.incident, width), _history(page.incident, width)]
    right = [_changes(page, width), _findings(page, width), _drafts(page, width)]
    if page.proposals:
        right.append(_proposals(page, width))
    return left, right


def _state(page: IncidentPage, width: int) -> Section:
    incident = page.incident
    glyph, tone = incident_look(incident)
    lines = [Line(((f"{glyph} {incident.state}", tone), (f"  {incident.severity}", SEVERITY_TONES[incident.severity])))]
    lines += quoted_lines(incident.title, width)
    lines += hanging(fit("owner", LABEL), name_of(incident.owner) or "nobody", width)
    ago = duration(max(0, page.now_ms - incident.cell_ms))
    lines += hanging(fit("began", LABEL), f"{timestamp(incident.cell_ms)} UTC, {ago} ago", width)
    reported = f"{wall_time(incident.opened_ms)} by {name_of(incident.source)}"
    lines += hanging(fit("reported", LABEL), reported, width)
    lines += [line for curve in page.curves for line in _wait_line(curve, incident, width)]
    if incident.follows:
        text = f"{incident.follows}, of the same alerts, was closed"
        lines.append(Line(((fit("before", LABEL), "dim"), (text, "link")), f"incident {incident.follows}"))
    return Section(f"Incident {incident.id}", tuple(lines), f"{incident.firing} of {incident.alert_count} alerts fire")


def _wait_line(curve: Curve, incident: Incident, width: int) -> list[Line]:
    """Its p95 when the incident began, and now."""
    found = drawn_curve(curve)
    known = [(at, value) for at, value in enumerate(found.high) if value is not None]
    if not known:
        return []
    began = began_at(curve, incident)
    before = [value for at, value in known if began is not None and at <= began]
    then = f"{duration(before[-1])} when it began, " if before else ""
    text = f"p95 of {subject_words(curve.subject)}: {then}{duration(known[-1][1])} now"
    first, *rest = hanging(fit("waits", LABEL), printable(text), width)
    return [Line(first.spans, f"curve {printable(curve.subject)} {curve.name}"), *rest]


def _objects(page: IncidentPage, width: int) -> Section:
    lines = [_object_line(each, width) for each in page.incident.objects]
    for each in page.incident.unmatched:
        text = f"{each.kind} {each.id} ({each.label}): not in this cell"
        lines.append(text_line(cut(printable(text), width), "dim"))
    if not lines:
        lines = [text_line("no label names a queue, pool, node or workload", "dim")]
    return Section("About", tuple(lines))


def _object_line(each: IncidentObject, width: int) -> Line:
    name = quoted(each.id) if each.kind == "pool" else printable(each.id)
    by = f"  by label {each.label}" if each.label else ""
    spans = ((fit(each.kind, LABEL), "dim"), (cut(printable(each.id), width - LABEL - 4), "link"))
    return Line(
        (*spans, (cut(printable(by), max(4, width - LABEL - len(each.id))), "faint")), LINKS[each.kind].format(name)
    )


def _alerts(incident: Incident, width: int) -> Section:
    lines = [line for alert in incident.alerts[:MAX_ALERTS] for line in _alert_lines(alert, width)]
    left = incident.alert_count - min(len(incident.alerts), MAX_ALERTS) + incident.more_alerts
    if incident.alerts and left > 0:
        lines.append(text_line(f"and {left:,} more", "dim"))
    if not lines:
        lines = [text_line("none: a person opened it", "dim")]
    return Section("Alerts", tuple(lines))


def _alert_lines(alert: AlertLine, width: int) -> list[Line]:
    glyph, tone = ("▲", "warn") if alert.state == "firing" else ("✓", "ok")
    since = wall_time(alert.ends_ms or alert.starts_ms)
    head = f"{glyph} {alert.state} since {since}  "
    lines = [Line(((head, tone), (cut(printable(alert.name), max(8, width - len(head))), "strong")))]
    labels = [f"{key}={value}" for key, value in alert.labels.items() if key != "alertname"]
    more = [f"and {len(labels) - MAX_LABELS} more"] if len(labels) > MAX_LABELS else []
    lines += hanging("    ", printable(", ".join((*labels[:MAX_LABELS], *more))), width, "", "dim") if labels else []
    for name in ("description", "message", "runbook_url"):
        if text := alert.texts.get(name, ""):
            lines += quoted_lines(text, width - 4, "    ")[:3]
    return lines


def _history(incident: Incident, width: int) -> Section:
    lines: list[Line] = []
    for entry in incident.entries:
        by = f"{ENTRIES[entry.kind]} {name_of(entry.subject)}"
        to = f" to {name_of(entry.to)}" if entry.kind == "handed_over" else ""
        made = f": {printable(entry.to)}" if entry.kind == "proposed" else ""
        link = f"proposal {printable(entry.to)}" if entry.kind == "proposed" else ""
        spans = ((f"{timestamp(entry.at_ms)}  ", "dim"), (cut(f"{by}{to}{made}", width - 18), ""))
        lines.append(Line(spans, link))
        lines += quoted_lines(entry.text, width - 4, "    ") if entry.text else []
    return Section("So far", tuple(lines), "on the record, UTC (wall)")


def _changes(page: IncidentPage, width: int) -> Section:
    lines = [line for change in page.changes[:MAX_CHANGES] for line in _change_lines(change, page.pools, width)]
    left = len(page.changes) - MAX_CHANGES
    if left > 0:
        lines.append(text_line(f"and {left:,} more: :events", "dim"))
    if not lines:
        lines = [text_line("nothing in the two hours before it, as far as is remembered", "dim")]
    return Section("What changed before it", tuple(lines), OWN)


def _change_lines(change: IncidentChange, pools: Collection[str], width: int) -> list[Line]:
    own = change.own or not set(change.pools).isdisjoint(pools)
    when = f"{duration(change.before_ms)} before" if change.before_ms >= 0 else "just after"
    who = f", {name_of(change.who)}" if change.who else ""
    name = f"{change.proposal} " if change.proposal else ""
    head = f"{MARK if own else ' '} {fit(when, 15)} "
    link = f"proposal {printable(change.proposal)}" if change.proposal else ""
    first, *rest = hanging(head, printable(f"{name}{change.what}{who}"), width, "warn" if own else "dim")
    return [Line(first.spans, link), *rest]


def _findings(page: IncidentPage, width: int) -> Section:
    lines: list[Line] = []
    work = page.longest
    if work is not None and work.reasons:
        waited, reason = duration(max(0, page.now_ms - work.since_ms)), work.reasons[0]
        head = f"{MARK} {printable(work.id)}  "
        first, *rest = hanging(head, printable(f"waits for {waited}: {reason.text}"), width, "warn")
        lines += [Line(first.spans, f"why {printable(work.id)}"), *rest]
    for each, own in page.findings:
        head = f"{MARK if own else ' '} {each.suggestion.id}  "
        first, *rest = hanging(head, printable(each.suggestion.finding), width, "warn" if own else "dim")
        lines += [Line(first.spans, "recommendations"), *rest]
    told = tuple(lines) or (text_line("nothing that stands out in the cell now makes work wait", "dim"),)
    return Section("What may explain it", told, OWN)


def is_about(each: Recommendation, names: Collection[str]) -> bool:
    """True when a finding is about one of these objects."""
    return not {*each.suggestion.targets, each.suggestion.about}.isdisjoint(names)


def _drafts(page: IncidentPage, width: int) -> Section:
    lines: list[Line] = []
    for run in page.drafts:
        lines += _draft_lines(run, width)
    if not lines:
        lines = [text_line("none yet: a draft says what to do, tried on a fork", "dim")]
    keys = "d drafts, A proposes" if page.proposable is not None else "d drafts"
    return Section("Drafts", tuple(lines), "", keys)


def _draft_lines(run: DraftRun, width: int) -> list[Line]:
    link = f"draft {printable(run.id)}"
    draft = run.rule
    if draft is None:
        told = "on its way …" if run.rule_state == "drafting" else printable(run.rule_why) or "no draft"
        return [Line(((f"{run.id}  ", "strong"), (cut(told, width - 8), "dim")), link)]
    if draft.undecided:
        return _choice_lines(run, draft, width)
    steps = [printable(step.line) for step in draft.steps] or ["nothing should be done"]
    first, *rest = hanging(f"{run.id}  ", "; ".join(steps), width, "strong")
    lines = [Line(first.spans, link), *rest]
    if "target_missed" in draft.flags:
        lines += hanging("    ! ", IN_PART, width, "warn", "warn")
    effects = draft.effects or (draft.preview.effects if draft.preview is not None else ())
    shown = [effect for effect in effects if effect.before != effect.after][:MAX_EFFECTS]
    indented = effect_lines(shown, max(20, width - 4)) if shown else []
    lines += [Line((("    ", ""), *line.spans)) for line in indented]
    for _, proposal in run.proposed:
        lines.append(
            Line((("    proposed as ", "dim"), (printable(proposal), "link")), f"proposal {printable(proposal)}")
        )
    return lines


def _choice_lines(run: DraftRun, draft: Draft, width: int) -> list[Line]:
    """A draft that asks first what is meant: each choice leads to the draft for it."""
    lines = [Line(((f"{run.id}  ", "strong"), ("pick what is meant:", "warn")), f"draft {printable(run.id)}")]
    for number, choice in enumerate(draft.choices[:MAX_EFFECTS], 1):
        first, *rest = hanging(f"    {number}  ", printable(choice.text), width, "strong")
        lines += [Line(first.spans, f"draft --pick {number} {printable(run.id)}"), *rest]
    return lines


def _proposals(page: IncidentPage, width: int) -> Section:
    lines = []
    for each in page.proposals:
        glyph, tone = state_look(each.state)
        text = cut(printable(f"{each.id}  {each.title}"), max(8, width - 14))
        lines.append(Line(((fit(f"{glyph} {each.state}", 13), tone), (text, "")), f"proposal {printable(each.id)}"))
    return Section("Proposed of it", tuple(lines), counted(len(lines), "proposal"))
