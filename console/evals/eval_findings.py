"""The command `muster eval findings`: generated cell days with and without a fault are looked at as in production.

Every five cell minutes after a fault, and every ten without one, all findings on the live cell are asked for
(`console.service.advisor`, and those on reservations). A fault is found when a finding of its kind names one of its
objects within an hour. A finding that appears in a stretch without a fault, or before the fault, is false, whatever it
says. Findings that are no alarm (runs past their likes, savings) are counted apart; those of the history are not looked
for: the days have none.

The rule drafter is asked about what was found, and about a flood in plain words too. What it drafts is carried out on
a fork, and the symptom of the next hour is compared with that of a fork on which nothing is done.

Thresholds were tuned on the development seeds alone; the kept-back seeds are reported beside them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from console.commands.show import write_json, write_lines
from console.evals.finding_days import HOUR_MS, MINUTE_MS, SCENES, FindingDay, Stretch
from console.service.advisor import Advisor
from console.service.drafting import finding_of
from console.service.forecasts import cell_now
from console.text.plain_tables import table
from console.text.terminal_text import printable
from engine.control import Engine
from engine.model.errors import MusterError, SpecError
from engine.traces.progress import counted
from recommender.findings.history_findings import stale_reservations
from recommender.findings.kinds import KINDS, incident_of
from recommender.findings.suggestions import Suggestion
from runbooks.drafts import symptom_rules, symptoms
from runbooks.drafts.solver import done
from runbooks.drafts.symptoms import CellScene
from runbooks.drafts.typed_draft import ReportedFinding

if TYPE_CHECKING:
    from engine.loop import EngineLoop

FAULTS = QUIET = 60
PARTS = {"development": 1_000, "held": 9_000}
"""First seed of the stretches of each part."""
MIN_RECALL, MAX_FALSE_A_DAY, MAX_MINUTES = 0.9, 1.0, 15.0
ALARMS = frozenset(("late", "loss", "spend"))
QUIET_STEPS = 2
"""Every second step is looked at where nothing is to be found in time: findings stand for longer than that."""
WORSE = 1.02
"""So many times the symptom of doing nothing is worse; below it is what another order of starts may do."""
T = TypeVar("T")


class StretchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one stretch."""

    kind: str
    seed: int
    fault: bool
    hours: float
    """Without a fault: of the whole stretch, or up to the fault."""
    false: tuple[str, ...]
    """Findings in those hours, each once: cell time, kind and text. Of incidents that are alarms (ALARMS)."""
    told: tuple[str, ...] = ()
    """The others: unusual runs and savings, which nobody is called for."""
    found_min: float | None = None
    """Cell minutes from the fault to its finding; None when it was not found, or there is none."""
    drafted: int = 0
    """Answers of the drafter with acts that were tried."""
    worse: tuple[str, ...] = ()
    """Those of them after which the symptom was worse than without."""
    look_cpu_ms: float = 0.0
    """CPU time of one look, on average."""


class KindScore(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    faults: int
    found: int
    median_min: float | None
    false: int
    """In its look-alikes."""


class FindingsScore(msgspec.Struct, frozen=True, kw_only=True):
    """The findings over one part."""

    part: str
    faults: int
    found: int
    recall: float
    median_min: float | None
    quiet_days: float
    false: int
    false_a_day: float
    told: int
    """Findings in those days that are no alarm."""
    drafted: int
    worse: int
    look_cpu_ms: float
    kinds: tuple[KindScore, ...]

    @property
    def good(self) -> bool:
        in_time = self.median_min is not None and self.median_min < MAX_MINUTES
        return self.recall >= MIN_RECALL and self.false_a_day <= MAX_FALSE_A_DAY and in_time and not self.worse


class HeldLoop:
    """An engine that nothing else drives, as its loop is asked."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def call(self, ask: Callable[[Engine], T]) -> T:
        return ask(self.engine)


def run(arguments: argparse.Namespace) -> int:
    began_s = time.perf_counter()
    parts = tuple(PARTS) if arguments.part == "all" else (arguments.part,)
    results = {
        part: play(stretches(part, arguments.faults, arguments.quiet, arguments.only), arguments.jobs) for part in parts
    }
    scores = [score(part, found) for part, found in results.items()]
    seconds = time.perf_counter() - began_s
    if arguments.json:
        write_json({"seconds": round(seconds, 1), "scores": scores, "stretches": results})
    else:
        write_lines(report_lines(scores, results, seconds, every=arguments.all))
    return 0 if all(one.good for one in scores) else 1


def stretches(part: str, faults: int, quiet: int, only: Sequence[str] = ()) -> list[Stretch]:
    """The faults and look-alikes of a part, kind after kind, each with a seed of its own. Raises SpecError for a kind
    without scenes."""
    unknown = [kind for kind in only if kind not in SCENES]
    if unknown:
        raise SpecError("only", f"{unknown[0][:40]!a} has no scenes", f"Use one of: {', '.join(SCENES)}")
    kinds = [kind for kind in SCENES if not only or kind in only]
    return [
        Stretch(kinds[i % len(kinds)], PARTS[part] + i, fault)
        for fault, count in ((True, faults), (False, quiet))
        for i in range(count)
    ]


def play(chosen: Sequence[Stretch], jobs: int) -> list[StretchResult]:
    if jobs < 2:
        return [played(each) for each in counted(chosen, "stretches", len(chosen))]
    with ProcessPoolExecutor(jobs) as pool:
        return list(counted(pool.map(played, chosen), "stretches", len(chosen)))


def played(stretch: Stretch) -> StretchResult:
    """Play a stretch, and look every five cell minutes."""
    day = FindingDay(stretch)
    advisor = Advisor(cast("EngineLoop", HeldLoop(day.engine)))
    seen: dict[str, tuple[int, Suggestion]] = {}
    looks, cpu_s, found_min = 0, 0.0, None
    drafted, worse = 0, []
    try:
        for number, now_ms in enumerate(day.steps()):
            if number % QUIET_STEPS and not (stretch.fault and now_ms > day.begins_ms):
                continue
            began_s = time.process_time()
            there = looked(advisor, day.engine)
            cpu_s, looks = cpu_s + time.process_time() - began_s, looks + 1
            for each in there:
                seen.setdefault(each.id, (now_ms, each))
            if stretch.fault and found_min is None and now_ms >= day.begins_ms:
                mine = next((each for each in there if is_of(each, day)), None)
                if mine is not None:
                    found_min = (now_ms - day.begins_ms) / MINUTE_MS
                    for text in questions(mine):
                        harm = drafted_harm(day, mine if text is None else None, text or "")
                        drafted += harm is not None
                        worse += [harm] if harm else []
        until_ms = day.begins_ms if stretch.fault else day.engine.now_ms
        early = [
            (incident_of(each.kind), f"{at // HOUR_MS:02}:{at // MINUTE_MS % 60:02} {each.kind}: {each.finding}")
            for at, each in seen.values()
            if at <= until_ms
        ]
    finally:
        day.close()
    return StretchResult(
        kind=stretch.kind,
        seed=stretch.seed,
        fault=stretch.fault,
        hours=until_ms / HOUR_MS,
        false=tuple(text for incident, text in early if incident in ALARMS),
        told=tuple(text for incident, text in early if incident not in ALARMS),
        found_min=found_min,
        drafted=drafted,
        worse=tuple(worse),
        look_cpu_ms=1000 * cpu_s / max(looks, 1),
    )


def looked(advisor: Advisor, engine: Engine) -> list[Suggestion]:
    """Everything that is found now."""
    now = cell_now(engine)
    waiting = now.waiting_gpu if engine.state.capacity.totals[2] else now.waiting_cpu
    return [*advisor.advice().suggestions, *stale_reservations(now.reservations, now.now_ms, waiting)]


def is_of(found: Suggestion, day: FindingDay) -> bool:
    """True if the finding is of the fault's kind and names one of its objects."""
    named = " ".join((found.about, found.finding, *found.targets))
    return found.kind == day.stretch.kind and any(subject in named for subject in day.subjects)


# -- the drafter ------------------------------------------------------------------------------------------------------


def questions(found: Suggestion) -> Iterator[str | None]:
    """What the drafter is asked: about the finding; and about a flood as the victims would ask too."""
    yield None
    if found.kind == "runaway_tenant":
        yield "jobs of queue open wait and wait, queue is stuck"
        yield f"why does work wait, tenant {found.about} has submitted so much"


def drafted_harm(day: FindingDay, found: Suggestion | None, text: str) -> str | None:
    """What was drafted and made the symptom worse; empty where it did not; None where nothing is done."""
    base = day.engine.fork()
    try:
        base.settle()
        finding: ReportedFinding | None = finding_of(found) if found is not None else None
        question = symptoms.read(base, text, finding)
        option = symptom_rules.answer(CellScene(base, day.engine.agents.report()), question).option
        if option is None:
            return None
        without, after = ahead(day, base, None), ahead(day, base, lambda fork: done(fork, option))
    except MusterError:
        return None
    finally:
        base.forget()
    return f"{option.text}: {without:,} -> {after:,}" if after > WORSE * without else ""


def ahead(day: FindingDay, base: Engine, act: Callable[[Engine], object] | None) -> int:
    """The symptom over the next hour on a fork, summed over its quarters."""
    fork = base.fork()
    try:
        if act is not None:
            act(fork)
            fork.settle()
        total = 0
        for _ in range(4):
            fork.advance(fork.now_ms + HOUR_MS // 4)
            total += day.symptom(fork)
        return total
    finally:
        fork.forget()


# -- score ------------------------------------------------------------------------------------------------------------


def score(part: str, results: Sequence[StretchResult]) -> FindingsScore:
    faults = [each for each in results if each.fault]
    quiet_days = sum(each.hours for each in results) / 24
    false = sum(len(each.false) for each in results)
    return FindingsScore(
        part=part,
        faults=len(faults),
        found=sum(each.found_min is not None for each in faults),
        recall=round(sum(each.found_min is not None for each in faults) / max(len(faults), 1), 3),
        median_min=_median(each.found_min for each in faults),
        quiet_days=round(quiet_days, 1),
        false=false,
        false_a_day=round(false / max(quiet_days, 1e-9), 3),
        told=sum(len(each.told) for each in results),
        drafted=sum(each.drafted for each in results),
        worse=sum(len(each.worse) for each in results),
        look_cpu_ms=round(sum(each.look_cpu_ms for each in results) / max(len(results), 1), 2),
        kinds=tuple(_of_kind(kind, results) for kind in SCENES if any(each.kind == kind for each in results)),
    )


def _of_kind(kind: str, results: Sequence[StretchResult]) -> KindScore:
    mine = [each for each in results if each.kind == kind]
    faults = [each for each in mine if each.fault]
    false = [text for each in results for text in each.false if text.split(" ", 2)[1] == f"{kind}:"]
    return KindScore(
        kind=kind, faults=len(faults), found=sum(each.found_min is not None for each in faults),
        median_min=_median(each.found_min for each in faults), false=len(false),
    )  # fmt: skip


def _median(minutes: Iterable[float | None]) -> float | None:
    """Of those that were found."""
    known = [each for each in minutes if each is not None]
    return float(median(known)) if known else None


def report_lines(
    scores: Sequence[FindingsScore], results: dict[str, list[StretchResult]], seconds: float, *, every: bool = False
) -> list[str]:
    lines = []
    for one in scores:
        rows = [
            (
                kind.kind,
                KINDS[kind.kind].incident,
                f"{kind.found}/{kind.faults}",
                _minutes(kind.median_min),
                str(kind.false),
            )
            for kind in one.kinds
        ]
        lines += [
            f"{one.part}: {one.found} of {one.faults} faults found (recall {one.recall:.3f}, bar {MIN_RECALL}), median "
            f"{_minutes(one.median_min)} min (bar {MAX_MINUTES:g})",
            f"{one.false} false findings in {one.quiet_days:g} days: {one.false_a_day:.2f} a day "
            f"(bar {MAX_FALSE_A_DAY:g}), and {one.told} that are no alarm",
            f"drafts tried {one.drafted}, worse {one.worse} (bar 0)",
            "",
            *table(("KIND", "INCIDENT", "FOUND", "MEDIAN MIN", "FALSE"), rows, (False, False, True, True, True)),
            "",
        ]
        for each in results[one.part]:
            if each.fault and each.found_min is None:
                lines.append(printable(f"not found: {each.kind} {each.seed}"))
            lines += [printable(f"worse: {each.kind} {each.seed}: {text}") for text in each.worse]
            if every:
                lines += [printable(f"false: {each.kind} {each.seed} {text}") for text in each.false]
        lines.append("")
    return [*lines, f"{seconds:,.0f} s, {max((one.look_cpu_ms for one in scores), default=0):.1f} ms of CPU a look"]


def _minutes(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
