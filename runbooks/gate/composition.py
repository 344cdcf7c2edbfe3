"""From what is asked for to what is voted on: acts resolved to explicit ids, tried in their order on one fork."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.specs import MAX_QUANTITY, check_id
from runbooks.actions import blast_radius as blast
from runbooks.actions import catalogue, external_actions, risk, rollback, target_readings, wording
from runbooks.gate import simulation
from runbooks.gate.store import RevisionText
from runbooks.people.identity import Scope
from runbooks.plans.checks import Check, check_well_formed, evaluate, vacuous
from runbooks.plans.typed_plan import TIERS, Act, Blast, Limits, Request, Simulated, Step, StepRequest, Tier

if TYPE_CHECKING:
    from engine.control import Engine

MAX_STEPS = 32
MAX_CHECKS = 16
"""Before, and after, one step."""
MAX_REASON = 500
MAX_EVIDENCE = 64
SHA256 = re.compile("[0-9a-f]{64}")


class Composed(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of a plan that the cell and the request say."""

    steps: tuple[Step, ...]
    tier: Tier
    blast: Blast
    rollback_tier: Tier
    """Of taking it back right after it is done."""
    simulated: Simulated
    words: RevisionText
    scope: Scope


def compose(engine: Engine, request: Request, needed: Callable[[Engine, Act], Act | None] | None = None) -> Composed:
    """Resolve and simulate. Changes nothing. The first step is read from the cell itself, each later one from the fork
    on which those before it were done. `needed`: what of an act is still needed where it is looked at; None: nothing.

    Raises SpecError for what is malformed, NotFoundError naming every unknown target, and RefusedError naming every
    target that an action does not apply to, the checks that do not hold, and the limits of the request that it exceeds.
    """
    check_request(request)
    external_actions.refuse_impossible(engine, [step.act for step in request.steps])
    steps: list[Step] = []
    lines: list[str] = []
    why: list[str] = []
    names: set[str] = set()
    with contextlib.closing(simulation.ForkTrial(engine)) as trial:
        for i, asked in enumerate(request.steps):
            source = trial.fork if steps else engine
            if needed is not None:
                act = needed(source, asked.act)
                if act is None:
                    continue
                asked = msgspec.structs.replace(asked, act=act)
            step, told, raised = resolve(source, asked, i)
            # Later steps are read from a fork, which decides itself: how long they take is said by the cell.
            step = msgspec.structs.replace(
                step, timeout_ms=max(step.timeout_ms, external_actions.timeout_ms(engine, step.act))
            )
            if step.id in names:
                raise SpecError(f"steps[{i}].id", f"'{step.id}' is there twice", "Give each step its own id")
            names.add(step.id)
            steps.append(step)
            lines += told if len(request.steps) == 1 else [f"{step.id}: {line}" for line in told]
            why += raised
            trial.do(catalogue.find(step.act.action), step.act, [*step.shown, *step.stops])
        effects, dearer_microusd_hour = trial.effects(), trial.dearer_microusd_hour()
        rollback_tier = tier_of_rollback(trial.fork, steps)
    whole = blast.total(tuple(step.blast for step in steps))
    whole = msgspec.structs.replace(whole, cost_microusd_hour=max(whole.cost_microusd_hour, dearer_microusd_hour))
    refuse_beyond(request.limits, whole)
    tier, raised_whole = tier_of_all(steps, whole, engine)
    return Composed(
        steps=tuple(steps),
        tier=tier,
        blast=whole,
        rollback_tier=rollback_tier,
        simulated=Simulated(version=engine.version, at_ms=engine.now_ms, effects=effects),
        words=RevisionText(
            title=title_of(steps),
            steps=tuple(lines),
            inverse=way_back(steps),
            why_tier=(*dict.fromkeys(why), *raised_whole),
        ),
        scope=scope_of(steps),
    )


def check_request(request: Request) -> None:
    """Raises SpecError for a request that is malformed whatever the cell is like."""
    if not request.steps:
        raise SpecError("steps", "are none", "Say what shall be done")
    if len(request.steps) > MAX_STEPS and not request.rolls_back:
        raise SpecError("steps", f"{len(request.steps):,} are given", f"Give at most {MAX_STEPS}")
    target_readings.check_text(request.reason, "reason", MAX_REASON)
    target_readings.check_text(request.requester, "requester", target_readings.MAX_PERSON)
    if request.source is not None:
        if request.source.id:
            check_id(request.source.id, "source.id")
        target_readings.check_text(request.source.by, "source.by", target_readings.MAX_PERSON)
    for i, step in enumerate(request.steps):
        if step.id:
            # It is shown before what the step does, so it must not be able to say anything itself.
            check_id(step.id, f"steps[{i}].id")
        for field in ("pre", "verify"):
            checks = getattr(step, field)
            if len(checks) > MAX_CHECKS:
                raise SpecError(f"steps[{i}].{field}", "has too many checks", f"Give at most {MAX_CHECKS}")
            for k, check in enumerate(checks):
                check_check(check, f"steps[{i}].{field}[{k}]")
    if len(request.evidence) > MAX_EVIDENCE:
        raise SpecError("evidence", f"{len(request.evidence):,} are given", f"Give at most {MAX_EVIDENCE}")
    for i, one in enumerate(request.evidence):
        check_id(one.id, f"evidence[{i}].id")
        if SHA256.fullmatch(one.sha256) is None:
            raise SpecError(f"evidence[{i}].sha256", "is not a SHA-256 in hex", "Give 64 digits, a-f in lower case")
    for field in request.limits.__struct_fields__:
        most = getattr(request.limits, field)
        if most is not None and not 0 <= most <= MAX_QUANTITY:
            raise SpecError(f"limits.{field}", f"{most} is out of range", f"Give 0 to {MAX_QUANTITY}")


def check_check(check: Check, where: str) -> None:
    """Raises SpecError for a check that could not be looked at when its time has come, or that cannot fail."""
    check_well_formed(check, where)
    if check.of:
        check_id(check.of, f"{where}.of")
    if isinstance(check.value, int) and abs(check.value) > MAX_QUANTITY:
        raise SpecError(f"{where}.value", f"{check.value} is out of range", f"Give at most {MAX_QUANTITY}")
    says_nothing = vacuous(check)
    if says_nothing:
        raise SpecError(where, f"is {says_nothing}", "Ask something that may be otherwise")


def resolve(source: Engine, asked: StepRequest, number: int) -> tuple[Step, list[str], list[str]]:
    """One step as the cell is: the step, how it reads, and what raised its tier."""
    row = catalogue.find(asked.act.action)
    ids = target_readings.members(source, row, target_readings.checked_targets(row, asked.act.targets))
    act = msgspec.structs.replace(asked.act, targets=ids)
    catalogue.check(act)
    shown = target_readings.read(source, row, act)
    target_readings.refuse_inapplicable(row, shown)
    target_readings.refuse_outdated(row, act, shown)
    work = target_readings.read_work(source, row, shown)
    refuse_unmet(source, asked, number)
    back = rollback.inverse_of(act, shown)
    if asked.rollback is not None:
        wrong = rollback.why_not_inverse(act, shown, asked.rollback)
        if wrong:
            raise SpecError(f"steps[{number}].rollback", wrong, "Leave it out, or give the inverse of the step")
        back = asked.rollback
    stops = tuple(work.values())
    tier, why = risk.tier_and_why(row, act, shown, target_readings.pool_nodes(source), target_readings.bound(source))
    step = Step(
        id=asked.id or str(number + 1),
        act=act,
        shown=shown,
        stops=stops,
        tier=tier,
        blast=blast.blast_of(act, shown, stops),
        pre=asked.pre,
        verify=asked.verify,
        rollback=back,
        # What is only tried is taken back when it fails, whoever asks for it.
        on_fail="rollback" if act.canary is not None else asked.on_fail,
        confirm=asked.confirm,
        timeout_ms=max(catalogue.timeout_ms(act), *(check.within_ms for check in asked.verify), 0),
    )
    return step, [*wording.steps(act, shown, work), *left_above(source, act)], list(why)


def left_above(source: Engine, act: Act) -> list[str]:
    """The work that goes on above what its queue may use after a change of it, a line each: it may have to give way."""
    if act.queue is None or act.queue.over != "keep":
        return []
    evicting = msgspec.structs.replace(act, queue=msgspec.structs.replace(act.queue, over="evict"))
    found = target_readings.read_workloads(source, target_readings.evicted(source, evicting))
    return [wording.left_above(target) for target in found.values()]


def refuse_unmet(source: Engine, asked: StepRequest, number: int) -> None:
    """Raises RefusedError naming every precondition that does not hold where it was looked at."""
    found = [finding.found for check in asked.pre if (finding := evaluate(source, check)).verdict != "success"]
    if found:
        raise RefusedError(
            f"step {asked.id or number + 1} must not be done now: {'; '.join(found)}",
            "Its preconditions do not hold; see what has changed",
        )


def refuse_beyond(limits: Limits, planned: Blast) -> None:
    """Raises RefusedError naming the limits of the plan itself that the sum of its steps exceeds."""
    nodes = sum(count for _, count in planned.nodes)
    found = [
        f"{what} {is_:,} of at most {most:,}"
        for what, is_, most in (
            ("nodes", nodes, limits.nodes),
            ("GPUs", -(-planned.gpu_milli // 1000), limits.gpus),
            ("workloads", planned.workloads, limits.workloads),
        )
        if most is not None and is_ > most
    ]
    if found:
        raise RefusedError(f"its steps together exceed its own limits: {', '.join(found)}", "Take out some targets")


def tier_of_all(steps: Sequence[Step], whole: Blast, engine: Engine) -> tuple[Tier, tuple[str, ...]]:
    """The highest tier of the steps, and one more where only their sum takes a large share of a pool, or stops a large
    share of the work: many small steps are not milder than one large."""
    highest = max(step.tier for step in steps)
    pools = target_readings.pool_nodes(engine)
    found: list[str] = []
    for pool, count in whole.nodes:
        large = count > 1 and count * 1000 > risk.LARGE_SHARE_PERMILLE * pools.get(pool, 0)
        alone = any(dict(step.blast.nodes).get(pool, 0) == count for step in steps)
        if large and not alone:
            found.append(f"its steps together take {count:,} of {pools.get(pool, 0):,} nodes of {pool}")
    running = target_readings.bound(engine)
    large = whole.workloads > risk.MANY and whole.workloads * 1000 > risk.LARGE_SHARE_PERMILLE * running
    if large and all(step.blast.workloads < whole.workloads for step in steps):
        found.append(f"its steps together stop {whole.workloads:,} of {running:,} workloads")
    raised = TIERS[min(TIERS.index(highest) + bool(found), len(TIERS) - 1)]
    return raised, tuple(found)


def tier_of_rollback(source: Engine, done: Sequence[Step]) -> Tier:
    """Of all their ways back together, where they are done; T0 where nothing can be taken back, or not at once."""
    acts = [act for step in reversed(done) for act in step.rollback]
    try:
        needed = [left for act in acts if (left := target_readings.needed(source, act)) is not None]
        steps = [resolve(source, StepRequest(act=act), i)[0] for i, act in enumerate(needed)]
    except (NotFoundError, RefusedError):
        return "T0"
    return tier_of_all(steps, blast.total(step.blast for step in steps), source)[0] if steps else "T0"


def title_of(steps: list[Step]) -> str:
    first = wording.title(steps[0].act)
    return first if len(steps) == 1 else f"{first}, and {len(steps) - 1} more step{'s' if len(steps) > 2 else ''}"


def way_back(steps: list[Step]) -> str:
    """How the plan can be taken back, the last step first."""
    return "; then ".join(dict.fromkeys(wording.inverse(step.act, step.shown) for step in reversed(steps)))


def scope_of(steps: Sequence[Step]) -> Scope:
    """Pools, queues and tenants that the steps touch."""
    pools: dict[str, None] = {}
    queues: dict[str, None] = {}
    tenants: dict[str, None] = {}
    for step in steps:
        row = catalogue.find(step.act.action)
        for target in step.shown:
            if target.pool:
                pools[target.pool] = None
            if row.kind in ("pool", "scaling"):
                pools[target.id] = None
            if row.kind == "queue":
                queues[target.id] = None
        for target in (*step.shown, *step.stops):
            if target.tenant:
                tenants[target.tenant] = None
    return Scope(pools=tuple(pools), queues=tuple(queues), tenants=tuple(tenants))
