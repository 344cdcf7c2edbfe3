"""External schedulers as sections: the mirror of a Slurm cluster, one of its jobs, and intents with their answers.

The mirror's sections tell freshness, cost to Slurm, omissions, limits and fair share. An intent is a change sent to the
deciding scheduler; it is shown with its history and the answers a person can give. All names and texts of the other
scheduler are untrusted and pass `printable`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from console.actions.key_map import key_of
from console.text.terminal_text import NONE, cut, duration, mebibytes, printable, timestamp, wrap
from console.views.lists import RETURNED
from console.views.proposal import hanging, name_of
from console.views.sections import Line, Section, fact, section_lines, text_line
from console.views.what_if import forecast_facts
from engine.external.mirror_report import FollowedKind, Mirrored, MirrorReport, ModelAgreement
from engine.external.slurm.limits import JOBS, SUBMITTED, TIME, Limit
from engine.external.slurm.records import JobStep, Share
from engine.model.external_cells import FarLook, IntentsReport, IntentView
from engine.model.quantities import counted, shortlist
from engine.model.twin_queries import StartForecast
from runbooks.plans.queries import IntentDetail

_NAMES = {"cpu": "CPUs", "node": "nodes", "gres/gpu": "GPUs", "billing": "billing units"}
_SCOPES = {
    "all": "of all its running jobs together",
    "user": "of each user's running jobs",
    "account": "of each account's running jobs",
    "job": "in one job",
}


_COUNTED = {JOBS: "running jobs", SUBMITTED: "jobs submitted at once"}
_WHOSE = {"all": "together", "user": "of one user", "account": "of one account"}


def amount(limit: Limit, value: int) -> str:
    """An amount of a limited resource, with its unit."""
    if limit.over == "mem":
        return f"{mebibytes(value)} of memory"
    if limit.over == TIME:
        return duration(value * 1000)
    kind = limit.over.removeprefix("gres/").replace("gpu:", "GPUs ")
    return f"{value:,} {_NAMES.get(limit.over, kind)}"


def limit_sentence(limit: Limit) -> str:
    """The limit, who uses it, and what of it the job that is asked about would take too much."""
    text = f"{limit.of}: at most {amount(limit, limit.most)} {_SCOPES.get(limit.scope, limit.scope)}"
    if limit.over in _COUNTED:
        text = f"{limit.of}: at most {limit.most:,} {_COUNTED[limit.over]} {_WHOSE.get(limit.scope, limit.scope)}"
    if limit.scope != "job":
        text += f"; {_bare(limit, limit.used)} in use"
        by = [
            f"{use.user} {_bare(limit, use.amount)}"
            + ("" if limit.over in _COUNTED else f" in {counted(use.jobs, 'job')}")
            for use in limit.by
        ]
        text += f" ({', '.join(by)})" if by else ""
    if limit.wanted:
        text += f"; this job asks for {_bare(limit, limit.wanted)}"
    if limit.is_over and limit.wanted:
        text += f", {_bare(limit, limit.used + limit.wanted - limit.most)} too many" if limit.over != TIME else ""
    return printable(text)


def _bare(limit: Limit, value: int) -> str:
    return amount(limit, value) if limit.over in ("mem", TIME) else f"{value:,}"


def limit_lines(limits: Sequence[Limit], width: int) -> Iterator[Line]:
    """A line per limit, exhausted ones first."""
    for limit in sorted(limits, key=lambda each: (-(each.used / each.most) if each.most else 0, each.of)):
        full = limit.scope != "job" and limit.used >= limit.most
        yield Line(((cut(limit_sentence(limit), width), "warn" if full else ""),))


def share_lines(shares: Sequence[Share], width: int) -> Iterator[Line]:
    """Accounts, with their users under them: share, part of the usage, and the factor that priority goes by."""
    for each in shares:
        name = f"  {each.user}" if each.user else each.account
        share = NONE if each.shares_normalized is None else f"{each.shares_normalized:.0%}"
        used = NONE if each.usage_effective is None else f"{each.usage_effective:.0%}"
        factor = NONE if each.factor is None else f"{each.factor:.3f}"
        under = each.level is not None and 0 < each.level < 1
        told = f"share {share:>4}  used {used:>4}  factor {factor:>5}"
        yield Line(
            ((f"{cut(printable(name), 16):<17}", ""), (cut(told, max(8, width - 17)), "warn" if under else "dim"))
        )


MIRROR_TONES = {"following": "ok", "starting": "warn", "lost": "bad", "none": "dim"}
MIRROR_GLYPHS = {"following": "●", "starting": "◌", "lost": "✗", "none": "○"}
WIDTH = 100
"""Cells of the sections in the shell."""
LATE_S = 8.0
MAX_STEPS = 6
"""Steps of a job that are shown."""
MAX_LIMITS = 3
"""Limits of a job that are shown."""
ABILITIES = {
    "update_job": "change jobs", "update_node": "drain, resume and power nodes",
    "update_partition": "state of partitions", "reservation_write": "make reservations", "job_states": "job states",
    "shares": "fair shares", "history": "accounting", "topology": "switches",
}  # fmt: skip
"""Abilities a connection may lack, in an operator's words where the ability's own name does not do."""


def mirror_columns(
    report: MirrorReport, width: int, wall_s: Callable[[], float] = time.time
) -> tuple[list[Section], list[Section]]:
    """Left: how it follows, and what Slurm has to do for it. Right: what is not mirrored, and what cannot be done."""
    if report.state == "none":
        return [Section("Mirror", tuple(map(text_line, wrap(NOBODY, width))))], []
    if report.scheduler == "Kubernetes":
        return kubernetes_columns(report, width, wall_s())
    left = [Section("Mirror", tuple(_standing(report, width, wall_s())))]
    left.append(Section("Load on Slurm", tuple(fact(name, text) for name, text in cost_facts(report))))
    if report.shares:
        left.append(Section("Fair share", tuple(share_lines(report.shares, width)), "of accounts and their users"))
    limits = [Section("Limits", tuple(limit_lines(report.limits, width)), "Slurm's; forecasts ignore them")]
    return left, [*(limits if report.limits else []), _left_out(report, width), *_lacks(report, width)]


NOBODY = (
    "This cell mirrors no other scheduler; Muster schedules it. Mirror a cluster with: muster serve --cell NAME "
    "--slurm WHERE, or --kubernetes [CONTEXT]"
)


def kubernetes_columns(report: MirrorReport, width: int, now_s: float) -> tuple[list[Section], list[Section]]:
    """Left: how the cluster is followed, kind by kind. Right: where the model of Kueue decides otherwise, and what is
    not mirrored."""
    left = [Section("Mirror", tuple(_standing(report, width, now_s)))]
    left.append(Section("Followed", tuple(map(_kind_line, report.kinds)), "kind, objects, last heard of"))
    right = [_agreement(report.agreement, width, now_s)] if report.agreement is not None else []
    return left, [*right, _left_out(report, width), *_lacks(report, width)]


def _kind_line(kind: FollowedKind) -> Line:
    late = kind.age_s > KIND_LATE_S
    tone = "bad" if kind.state in ("lost", "denied", "refused") else "warn" if late or kind.state != "following" else ""
    heard = f"{duration(round(kind.age_s * 1000))} ago" if kind.age_s >= 0 else "never"
    told = f"{kind.objects:>9,}  {heard:>12}" + ("" if kind.state == "following" else f"  {kind.state}")
    return Line(((f"{printable(kind.resource):<24}", ""), (told, tone or "dim")))


def _agreement(found: ModelAgreement, width: int, now_s: float) -> Section:
    """Decisions of Kueue that the model would not make, counted and by name."""
    wrong = found.kept + found.started
    share = f", {wrong / found.compared:.1%}" if found.compared else ""
    lines = [
        fact("compared", f"{found.compared:,} decisions"),
        fact("disagree", f"{wrong:,}{share}", "warn" if wrong else "ok"),
        fact("", f"{found.kept:,} kept waiting that the model would start"),
        fact("", f"{found.started:,} started that the model would not"),
    ]
    for each in found.last[:MAX_DISAGREEMENTS]:
        ago = duration(max(0, round((now_s - each.at_s) * 1000)))
        lines.append(Line(((cut(printable(each.workload), max(8, width)), ""),), link=f"workload {each.workload}"))
        lines += [text_line("  " + part, "dim") for part in wrap(printable(f"{each.text}, for {ago}"), width - 2)]
    return Section("Our model and Kueue", tuple(lines), "since the engine started")


KIND_LATE_S = 180.0
"""An API server says at least once a minute up to where a kind is known."""
MAX_DISAGREEMENTS = 8


def _standing(report: MirrorReport, width: int, now_s: float) -> list[Line]:
    tone = "warn" if is_late(report, now_s) else MIRROR_TONES[report.state]
    since = f"  for {duration(round(max(0.0, now_s - report.since_s) * 1000))}"
    lines = [Line(((f"{MIRROR_GLYPHS[report.state]} {report.state}", tone), (since, "dim")))]
    lines += [text_line(part, "bad") for part in wrap(printable(report.error), width)] if report.error else []
    lines += [text_line(part, "bad") for part in wrap(_acting(report), width)] if report.trouble else []
    lines += [fact(name, cut(text, max(10, width - 11))) for name, text in standing_facts(report, now_s)]
    return lines


def _acting(report: MirrorReport) -> str:
    return f"changes cannot be sent to {report.scheduler}: {printable(report.trouble)}"


def is_late(report: MirrorReport, now_s: float) -> bool:
    """True where an answer is awaited for longer than usual. slurmrestd waits half a minute for a slurmctld that is
    down."""
    return report.state == "following" and now_s - report.looked_s > max(LATE_S, 2 * report.every_s)


def mirror_trouble(report: MirrorReport, now_s: float) -> str:
    """Reason why the mirror is behind; empty while it follows or has yet to begin."""
    if report.state == "lost":
        of = f"data of {timestamp(round(report.looked_s * 1000), date=False)}" if report.looked_s else ""
        said = f"{report.scheduler} does not answer" if report.where else ""
        return " · ".join(word for word in (said, of, printable(report.error)) if word)
    if is_late(report, now_s):
        return f"{report.scheduler} has not answered for {duration(round((now_s - report.looked_s) * 1000))}"
    return ""


def standing_facts(report: MirrorReport, now_s: float) -> list[tuple[str, str]]:
    """(name, what is so) of the cluster and of how fresh it is seen."""
    ago = duration(round(max(0.0, now_s - report.looked_s) * 1000)) + " ago" if report.looked_s else "not yet"
    name, kubernetes = report.scheduler, report.scheduler == "Kubernetes"
    spoken = f"{name} {report.release or '?'}, REST {report.dialect or '?'}"
    if kubernetes:
        spoken = f"{name} {report.release or '?'}, " + (f"Kueue {report.dialect}" if report.dialect else "no Kueue")
    return [
        ("cluster", printable(report.where)),
        ("version", printable(spoken) + (f" as {printable(report.user)}" if report.user else "")),
        ("mode", f"acts on {name}, through the gate" if report.acts else f"read-only: changes nothing in {name}"),
        ("last heard" if kubernetes else "last poll", ago),
        ("workloads" if kubernetes else "jobs", f"{report.jobs:,} on {counted(report.nodes, 'node')}"),
        *([("listed in", f"{report.asked_s:,.1f} s; {report.rpcs:,} requests since")] if kubernetes else []),
    ]


def cost_facts(report: MirrorReport) -> list[tuple[str, str]]:
    """(name, what is so) of what the mirror takes, from Slurm and from the cell."""
    share = f", {report.own_rpcs:,} of them by this user" if report.rpcs else ""
    return [
        ("full list", f"{report.asked_s * 1000:,.0f} ms in Slurm, {report.told_s * 1000:,.0f} ms in the cell"),
        ("interval", f"{report.every_s:,.1f} s at most; {report.looks:,} polls"),
        (
            "slurmctld",
            f"main cycle {report.cycle_mean_us / 1000:,.1f} ms, backfill {report.backfill_last_us / 1000:,.1f} ms",
        ),
        ("requests", f"{report.rpcs:,} since its statistics reset{share}" if report.rpcs else NONE),
    ]


def _left_out(report: MirrorReport, width: int) -> Section:
    if not report.left_out:
        return Section("Not mirrored", (text_line(f"everything {report.scheduler} shows is in the cell", "ok"),))
    lines: list[Line] = []
    for each in report.left_out:
        lines += [text_line(part, "" if n else "warn") for n, part in enumerate(wrap(printable(each.text), width))]
        if each.examples:
            more = f" and {each.count - len(each.examples):,} more" if each.count > len(each.examples) else ""
            lines.append(text_line(cut(f"  {', '.join(map(printable, each.examples))}{more}", width), "dim"))
    return Section("Not mirrored", tuple(lines), counted(len(report.left_out), "thing"))


def _lacks(report: MirrorReport, width: int) -> list[Section]:
    lines: list[Line] = []
    for text in _lack_texts(report):
        first, *rest = wrap(text, width - 2)
        lines += [text_line(first), *(text_line("  " + part, "dim") for part in rest)]
    return [Section("Not available here", tuple(lines))] if lines else []


def _lack_texts(report: MirrorReport) -> list[str]:
    return [f"{printable(ABILITIES.get(what, what))}: {printable(why)}" for what, why in sorted(report.lacks.items())]


def mirror_lines(report: MirrorReport, now_s: float) -> list[str]:
    """The mirror's sections as text for the shell."""
    left, right = mirror_columns(report, WIDTH, lambda: now_s)
    return section_lines([*left, *right])


# -- one job ----------------------------------------------------------------------------------------------------------


def job_section(job: Mirrored, width: int, starts: StartForecast | None = None) -> Section:
    """Slurm's view of a job, and its start by Slurm's plan and by our forecast; of a workload of Kubernetes, what Kueue
    and the scheduler of pods say."""
    if job.voices:
        return _voices(job, width)
    flags = f" ({', '.join(job.flags)})" if job.flags else ""
    lines = [fact("job", printable(f"{job.job_id}, {job.state}{flags}"))]
    if job.state == "PENDING":
        lines += [fact("reason", printable(job.reason or NONE))]
        lines += [text_line("           " + part, "dim") for part in wrap(job.meaning, max(20, width - 11))]
        for limit in job.limits[:MAX_LIMITS]:
            tone = "warn" if limit.is_over else ""
            first, *rest = wrap(limit_sentence(limit), max(20, width - 11))
            lines += [fact("limit", first, tone), *(text_line("           " + part, tone) for part in rest)]
        if job.helps:
            lines += [Line((("→ ", "ok"), (part, "ok"))) for part in wrap(printable(job.helps), max(20, width - 2))]
        if job.reason_text and job.reason_text != job.reason:
            lines.append(fact("detail", cut(printable(job.reason_text), max(10, width - 11))))
        lines.append(fact("priority", NONE if job.priority is None else f"{job.priority:,}"))
        lines += [fact(name, text) for name, text in start_facts(job, starts, time.time())]
    elif job.exit_status is not None or job.signal is not None:
        ended = f"exit {job.exit_status}" if job.exit_status is not None else f"signal {job.signal}"
        lines.append(fact("ended", f"{ended}{', ' + printable(job.reason) if job.reason else ''}"))
    lines += [fact("step" if not n else "", cut(step_text(each), max(10, width - 11)))
              for n, each in enumerate(job.steps[:MAX_STEPS])]  # fmt: skip
    if len(job.steps) > MAX_STEPS:
        lines.append(text_line(f"           and {len(job.steps) - MAX_STEPS:,} more steps", "dim"))
    if job.requeue is not None:
        lines.append(fact("rerun", "by Slurm (--requeue)" if job.requeue else "not by Slurm (--no-requeue)"))
    if job.restarts:
        lines.append(fact(RETURNED, f"{job.restarts:,} times"))
    if job.stdout:
        lines.append(fact("output", cut(printable(job.stdout), max(10, width - 11))))
    return Section("In Slurm", tuple(lines))


def _voices(job: Mirrored, width: int) -> Section:
    """Each statement under who says it, in its own words; words that several conditions repeat stand once."""
    lines: list[Line] = []
    speakers: dict[str, dict[str, list[Line]]] = {}
    now_s = time.time()
    for each in job.voices:
        ago = f"  {duration(max(0, round((now_s - each.since_s) * 1000)))} ago" if each.since_s else ""
        head = Line(((printable(f"  {each.about}  {each.reason}".rstrip()), ""), (ago, "dim")))
        speakers.setdefault(each.speaker, {}).setdefault(each.text, []).append(head)
    for speaker, said in speakers.items():
        lines.append(text_line(f"{printable(speaker)} says", "accent"))
        for text, heads in said.items():
            lines += heads
            lines += [text_line("    " + part) for part in wrap(printable(text), max(20, width - 4))]
    if job.disagrees:
        lines += [text_line(part, "warn") for part in wrap(printable(f"Our model disagrees: {job.disagrees}"), width)]
    return Section("In Kubernetes", tuple(lines))


def step_text(step: JobStep) -> str:
    """A step that runs: which, where and since when."""
    named = "" if step.name in ("", step.id) else f" {step.name}"
    where = shortlist(step.nodes, 3)
    since = f" since {timestamp(step.start_s * 1000, date=False)} UTC" if step.start_s else ""
    tasks = f"{counted(step.tasks, 'task')} " if step.tasks else ""
    return printable(f"{step.id}{named}: {tasks}on {where or NONE}{since}")


def start_facts(job: Mirrored, starts: StartForecast | None, now_s: float) -> list[tuple[str, str]]:
    """(who says it, when it starts)"""
    away = duration(max(0, round(job.expected_s - now_s) * 1000))
    own = f"in {away}, {timestamp(job.expected_s * 1000, date=False)} UTC" if job.expected_s else "no start planned yet"
    found = [("squeue", f"{own} (squeue --start)")]
    return [*found, *(("muster", text) for _, text in forecast_facts(starts, starts.at_ms if starts else 0)[:1])]


INTENT_TONES = {
    "in doubt": "bad", "refused": "bad", "expired": "bad", "done": "ok", "needless": "dim", "undone": "warn",
    "retried": "dim",
}  # fmt: skip
NOTHING = "no changes for another scheduler"
IN_DOUBT = (
    "Nobody can tell whether these happened: muster intent show N tells what is known; retry N has it done again, "
    "settle N done|undone says what came of it"
)
MAX_SUBJECTS = 3


def _in_doubt() -> str:
    return (
        f"Nobody can tell whether these happened: ↵ what is known, {key_of('retry_intent')} do it again, "
        f"{key_of('settle_done')} it is done, {key_of('settle_undone')} it is not"
    )


def standing(report: IntentsReport) -> str:
    """As in "3 to send, 5 sent, 40 accepted, 1 in doubt"."""
    told = [
        f"{count:,} {what}"
        for count, what in (
            (report.open, "to send"),
            (report.sent, "sent"),
            (report.accepted, "accepted, not yet saved"),
            (report.in_doubt, "in doubt"),
        )
        if count
    ]
    return ", ".join(told) or "all changes are settled"


def subjects(intent: IntentView) -> str:
    more = f" and {intent.count - MAX_SUBJECTS:,} more" if intent.count > MAX_SUBJECTS else ""
    return ", ".join(map(printable, intent.subjects[:MAX_SUBJECTS])) + more


def said(intent: IntentView) -> str:
    """Known result of an intent."""
    parts = [f"job {intent.job}"] if intent.job else []
    parts += [f"sent {intent.tries + 1} times"] if intent.tries else []
    parts += [printable(intent.text)] if intent.text else []
    return "; ".join(parts)


def intent_lines(report: IntentsReport) -> list[str]:
    """For the shell: a line each, the newest of each kind first."""
    if not report.items:
        return [NOTHING]
    rows = [("ID", "STATE", "AGE", "WHAT", "TARGET", "RESULT")]
    rows += [
        (
            printable(intent.id), printable(intent.phase), duration(report.at_ms - intent.at_ms),
            printable(intent.what.replace("_", "-")), subjects(intent), said(intent),
        )
        for intent in report.items
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ["  ".join([*map(str.ljust, row[:5], widths), row[5]]).rstrip() for row in rows]
    return [standing(report), *lines, *([IN_DOUBT] if report.in_doubt else [])]


def intent_columns(report: IntentsReport, width: int) -> tuple[list[Section], list[Section]]:
    """Left: what is not settled or needs a person. Right: what came of the others."""
    if not report.items:
        return [Section("Intents", (text_line(NOTHING, "dim"),))], []
    urgent = [intent for intent in report.items if intent.phase in ("open", "sent", "accepted", "in doubt")]
    others = [intent for intent in report.items if intent not in urgent]
    left = Section("In progress", tuple(_lines(urgent, report.at_ms, width)) or (text_line("nothing", "dim"),))
    warning = (
        [Section("In doubt", tuple(text_line(part, "warn") for part in wrap(_in_doubt(), width)))]
        if report.in_doubt
        else []
    )
    right = [Section("Settled", tuple(_lines(others, report.at_ms, width)))] if others else []
    return [left._replace(note=standing(report)), *warning], right


def _lines(intents: list[IntentView], now_ms: int, width: int) -> list[Line]:
    lines = []
    for intent in intents:
        head = printable(f"{intent.id}  {intent.what.replace('_', '-')} ") + subjects(intent)
        tone = INTENT_TONES.get(intent.phase, "")
        spans = ((cut(head, max(10, width - 22)), ""), (f"  {printable(intent.phase)}", tone))
        lines.append(Line(spans, f"intent {printable(intent.id)}"))
        told = f"{duration(now_ms - intent.at_ms)} ago  {said(intent)}"
        lines += [text_line("   " + part, "dim") for part in wrap(told, width - 3)]
    return lines


DOUBT = "in doubt"
SHOWS = {
    "done": ("this shows that it was done", "ok"),
    "undone": ("this shows that it was not done", "warn"),
    "": ("this does not show whether it was done", "warn"),
}


def detail_columns(detail: IntentDetail, width: int) -> tuple[list[Section], list[Section]]:
    """Left: what was wanted, and what is shown of it now. Right: what was said of it, and what can be done."""
    return [_wanted(detail, width), _now(detail, width)], [_said(detail, width), *_ways(detail, width)]


def detail_lines(detail: IntentDetail) -> list[str]:
    """The sections of an intent as text for the shell."""
    left, right = detail_columns(detail, WIDTH)
    return section_lines([*left, *right])


def title_of(view: IntentView) -> str:
    return printable(f"{view.id}  {view.what.replace('_', '-')} ") + subjects(view)


def _wanted(detail: IntentDetail, width: int) -> Section:
    view = detail.view
    lines = [text_line(printable(view.phase), INTENT_TONES.get(view.phase, ""))]
    lines += hanging("asked     ", f"{timestamp(view.at_ms)} UTC{_asker(detail)}", width)
    if detail.proposal:
        name = printable(detail.proposal)
        told = f"{name}, approved by {', '.join(map(name_of, detail.agreed)) or 'nobody'}"
        first, *rest = hanging("proposal  ", told, width)
        lines += [Line(first.spans, f"proposal {name}"), *rest]
    lines += [line for told in detail.wants for line in hanging("          ", printable(told), width)]
    if view.job:
        lines += hanging("job       ", f"{view.job}, as Slurm answered", width)
    if view.tries:
        lines += hanging("sent      ", f"{view.tries + 1} times", width)
    lines += hanging("token     ", printable(view.token), width)
    return Section(title_of(view), tuple(lines))


def _asker(detail: IntentDetail) -> str:
    if detail.by:
        return f" by {name_of(detail.by)}"
    return "" if detail.act is not None else "; who submitted it is not recorded"


def _said(detail: IntentDetail, width: int) -> Section:
    lines = [
        line
        for word in detail.words
        for line in hanging(f"{timestamp(word.at_ms, date=False)}  ", _word(word.phase, word.text), width)
    ]
    return Section("Progress (UTC)", tuple(lines) or (text_line("nothing yet", "dim"),))


def _word(phase: str, text: str) -> str:
    return printable(f"{phase}: {text}" if text else phase)


def _now(detail: IntentDetail, width: int) -> Section:
    far = detail.far
    where = f"In {detail.scheduler} now"
    if far is None:
        return Section(where, (text_line("this engine has no address of the cluster", "warn"),))
    if far.error:
        return Section(where, tuple(_toned(f"does not answer: {printable(far.error)}", width, "bad")))
    lines = [line for told in far.lines for line in _toned(printable(told), width, "")]
    told, tone = SHOWS.get(far.shows, SHOWS[""])
    lines += _toned(told, width, tone)
    return Section(f"{where} ({timestamp(far.at_ms)} UTC)", (*lines, *_restarts(detail, far, width)))


def _restarts(detail: IntentDetail, far: FarLook, width: int) -> list[Line]:
    """A slurmctld that was started since may have forgotten what it had taken."""
    if not far.since_ms:
        return []
    told = f"slurmctld is up since {timestamp(far.since_ms)} UTC ({printable(far.since_by)})"
    if far.since_ms <= detail.view.at_ms:
        return _toned(f"{told}: not restarted since this was sent", width, "dim")
    return _toned(f"{told}: restarted after this was sent, so it may have lost it", width, "warn")


def _ways(detail: IntentDetail, width: int) -> list[Section]:
    if detail.view.phase != DOUBT:
        return []
    name = printable(detail.view.id)
    again = (
        "proposes the same action again: the approval was for the state at that time, and a step runs once"
        if detail.act is not None
        else "sends it again with the same token: if the first copy turns up, one of the two is cancelled"
    )
    ways = (
        (f"muster intent retry {name} --reason WHY", again),
        (f"muster intent settle {name} done --reason WHY", f"it took effect in {detail.scheduler}"),
        (f"muster intent settle {name} undone --reason WHY", _undone(detail)),
    )
    lines = [
        line for way, told in ways for line in (*hanging("", way, width), *hanging("    ", told, width, tone="dim"))
    ]
    return [Section("Needs a person", tuple(lines))]


def _undone(detail: IntentDetail) -> str:
    if detail.act is None:
        return "it had no effect; the name of the workload is free again"
    return "it had no effect, and is not wanted any more"


def answer_text(detail: IntentDetail, outcome: str) -> str:
    """Meaning of a yes."""
    name = printable(detail.view.id)
    if outcome == "retry":
        return f"{name} is sent to {detail.scheduler} again. If the first one did run, it runs twice."
    told = "was done" if outcome == "done" else "was not done, and will not be"
    return f"You state that {name} {told}. This is recorded under your name."


def _toned(text: str, width: int, tone: str) -> list[Line]:
    return hanging("", text, width, tone=tone)
