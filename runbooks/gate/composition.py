"""Composition of a plan: acts resolved to explicit ids, tried in order on one fork, and measured.

`compose` returns everything of a plan that the cell and the request say: steps, tier, effects before and after, and
blast. The blast is what limits are counted in. It never says less than what is touched; where the extent is not known
beforehand, it is the most that may be touched.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from engine.model.columns import view
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.overviews import Overview
from engine.model.quantities import counted, shortlist, usd, whole
from engine.model.specs import MAX_QUANTITY, WorkloadState, check_id
from runbooks.actions import catalogue, declaration, target_readings, wording
from runbooks.actions.catalogue import find
from runbooks.actions.declaration import BOUND, Action, loses_work
from runbooks.actions.workloads import RETURNED
from runbooks.gate.store import RevisionText
from runbooks.plans.amounts import amount
from runbooks.plans.check_readings import evaluate
from runbooks.plans.checks import Check, check_well_formed, vacuous
from runbooks.plans.identity import Scope
from runbooks.plans.typed_plan import (
    MAX_PERSON,
    TIERS,
    Act,
    Blast,
    Effect,
    Limits,
    OwnedWork,
    Request,
    Simulated,
    Step,
    StepRequest,
    Target,
    Tier,
    check_line,
)

if TYPE_CHECKING:
    from engine.control import Engine


SHOWN_STARTS = 1_000
"""Fresh starts compared by name, before and after."""


class ForkTrial:
    """A fork on which the acts of one plan are done in their order.

    The fork runs a cycle before it is looked at: what was about to start anyway is not the plan's doing.
    """

    def __init__(self, engine: Engine) -> None:
        self.fork = engine.fork()
        self.fork.settle()
        self._before = self.fork.overview(brief=True)
        self.after = self._before
        """As the cell is with all done so far."""
        self._started = starts(self.fork)
        self._special: list[Effect] = []
        self._moved: set[str] = set()
        self._lost: dict[str, list[tuple[Action, Target]]] = {}
        self._acted = False

    def close(self) -> None:
        """The fork is not looked at again."""
        self.fork.forget()

    def do(self, row: Action, act: Act, touched: list[Target]) -> None:
        """Raises RefusedError when the engine refuses it there. `touched` are the targets and what it stops besides."""
        fork = self.fork
        if not row.command:
            return
        self._acted = True
        excess, spent = over(fork, act), spending(fork, row, act)
        fragments = fragmented(fork.overview()) if act.moves else ""
        fork.command(catalogue.command(act))
        fork.settle()
        self.after = fork.overview(brief=True)
        if act.moves:
            self._moved.update(act.targets)
            self._note("GPU fragmentation", fragments, fragmented(fork.overview()))
        if excess != over(fork, act):
            self._note("Over limit", excess, over(fork, act))
        for (label, before), (_, after) in zip(spent, spending(fork, row, act), strict=True):
            self._note(label, before, after)
        stops = [(row, target) for target in touched if declaration.loses_work(row, target)]
        if stops:
            self._lost.setdefault(row.lost or RETURNED.capitalize(), []).extend(stops)

    def effects(self) -> tuple[Effect, ...]:
        """The effects of all acts so far; empty when nothing was done to the cell."""
        if not self._acted:
            return ()
        effects = compare(self._before, self.after) + self._special
        for label, stops in self._lost.items():
            by_id = {target.id: (row, target) for row, target in stops}
            effects.append(Effect(label=label, before="none", after=counted(len(by_id), "workload")))
        if self._lost:
            stopped = {target.id: (row, target) for stops in self._lost.values() for row, target in stops}
            effects.append(
                Effect(label="Work lost, if now", before="none", after=declaration.lost_by(stopped.values()))
            )
        names, count = starts(self.fork)
        # What is moved starts anew, but it ran before.
        others = tuple(id_ for id_ in names if id_ not in self._moved)
        effects += compare_starts(self._started, (others, count - len(names) + len(others)))
        return tuple(effects)

    def dearer_microusd_hour(self) -> int:
        """The rise of the cell's cost an hour, in micro-USD."""
        return max(0, self.after.cost_microusd_hour - self._before.cost_microusd_hour)

    def _note(self, label: str, before: str, after: str) -> None:
        self._special.append(Effect(label=label, before=before, after=after))


def over(fork: Engine, act: Act) -> str:
    """The usage of the plan's queue above what it may use."""
    if act.queue is None:
        return "none"
    excess = fork.queue(act.queue.to.name).over
    pairs = ((key.rpartition("/"), quantity) for key, quantity in excess.items())
    return ", ".join(f"{pool}{slash}{amount(name, quantity)}" for (pool, slash, name), quantity in pairs) or "none"


def spending(fork: Engine, row: Action, act: Act) -> list[tuple[str, str]]:
    """Labels and values of the budgets that the plan changes: amount spent, and work that waits for it."""
    if row.kind != "budget":
        return []
    lines = {line.spec.name: line for line in fork.budgets().budgets}
    found = []
    for name in act.targets:
        line = lines.get(name)
        spent, waiting = "no budget", 0
        if line is not None:
            spent = f"{usd(line.spent_microusd)} of {usd(line.spec.limit_microusd)}, {line.stage}"
            waiting = line.waiting
        found += [
            (f"Spent of {name}", spent),
            (f"Wait for {name}", counted(waiting, "workload") if waiting else "none"),
        ]
    return found


def compare(before: Overview, after: Overview) -> list[Effect]:
    """The figures of every plan, and those others that change."""
    unit = scarce(before)[1]
    always = [
        Effect(label="Waiting", before=in_state(before, "queued"), after=in_state(after, "queued")),
        Effect(label="Running", before=running(before), after=running(after)),
        Effect(label=f"{unit} in use", before=in_use(before), after=in_use(after)),
        Effect(label=f"{unit} free", before=free(before), after=free(after)),
    ]
    others = [
        Effect(label="On hold", before=in_state(before, "held"), after=in_state(after, "held")),
        Effect(label="Suspended", before=in_state(before, "suspended"), after=in_state(after, "suspended")),
        Effect(label="Nodes taking work", before=nodes_ready(before), after=nodes_ready(after)),
        Effect(label="Nodes to come", before=to_come(before), after=to_come(after)),
        Effect(label="Cost an hour", before=usd(before.cost_microusd_hour), after=usd(after.cost_microusd_hour)),
    ]
    return always + [effect for effect in others if effect.before != effect.after]


def fragmented(overview: Overview) -> str:
    """Share of the free GPU that the work of the cell could not use."""
    ppm = overview.fragmentation_ppm
    return "unknown" if ppm is None else f"{ppm / 10_000:.1f}%"


def in_state(overview: Overview, state: str) -> str:
    return f"{overview.states.get(state, 0):,}"


def running(overview: Overview) -> str:
    return f"{sum(overview.states.get(state, 0) for state in BOUND):,}"


def nodes_ready(overview: Overview) -> str:
    return f"{sum(pool.ready for pool in overview.pools):,}"


def to_come(overview: Overview) -> str:
    """Nodes that boot or are on order."""
    return f"{sum(pool.booting + pool.ordered for pool in overview.pools):,}"


def scarce(overview: Overview) -> tuple[str, str]:
    """The resource people count in: GPU where the cell has any, else CPU."""
    return ("gpu_milli", "GPU") if overview.capacity.get("gpu_milli") else ("cpu_milli", "CPU")


def in_use(overview: Overview) -> str:
    field, _ = scarce(overview)
    return f"{whole(overview.used.get(field, 0))} of {whole(overview.capacity.get(field, 0))}"


def free(overview: Overview) -> str:
    field, _ = scarce(overview)
    return whole(overview.capacity.get(field, 0) - overview.used.get(field, 0))


def starts(fork: Engine) -> tuple[tuple[str, ...], int]:
    """Workloads given a place at the fork's present time: ids, at most SHOWN_STARTS of a kind, and how many in all."""
    w = fork.state.workloads
    if not w.ids:
        return (), 0
    states = view(w.state)
    waits_for_executor = np.flatnonzero(states == WorkloadState.PLACED)
    runs_already = np.flatnonzero((states == WorkloadState.RUNNING) & (view(w.started) >= fork.now_ms))
    both = (waits_for_executor, runs_already)
    return tuple(w.ids[row] for rows in both for row in rows[:SHOWN_STARTS].tolist()), sum(map(len, both))


def compare_starts(before: tuple[tuple[str, ...], int], after: tuple[tuple[str, ...], int]) -> list[Effect]:
    (old, old_count), (new, new_count) = before, after
    if len(old) < old_count or len(new) < new_count:
        # Cut lists cannot be told apart by name.
        return [Effect(label="Starts now", before=f"{old_count:,}", after=f"{new_count:,}")]
    was, is_ = set(old), set(new)
    gained, missed = tuple(id_ for id_ in new if id_ not in was), tuple(id_ for id_ in old if id_ not in is_)
    effects = []
    if gained:
        effects.append(Effect(label="Starts as a result", before="none", after=shortlist(gained)))
    if missed:
        effects.append(Effect(label="No longer starts now", before=shortlist(missed), after="none"))
    return effects


MAX_PLACES = 1_000
"""Nodes of a workload that the engine names; one that lies on more may lie anywhere."""


def blast_of(act: Act, shown: tuple[Target, ...], stops: Sequence[Target] = ()) -> Blast:
    """The blast of one act. `shown`: its targets before it; `stops`: the workloads that it stops besides its targets.

    A node counts when it is newly taken out of use: by name where it is known which, else as one of its pool. Work
    counts where it is stopped. A GPU counts once: those of the nodes, and those of stopped work that are not on them.
    """
    row = find(act.action)
    nodes = {id_: (pool, gpu) for id_, pool, gpu in taken(act, shown)}
    work = {target.id: target for target in (*shown, *stops) if loses_work(row, target)}
    holds = {(id_, node): gpu for id_, target in work.items() for node, gpu in target.holds}
    unnamed, unnamed_gpu = given_back(act, shown)
    return _blast(
        nodes,
        {id_: 0 if lies_on(target, nodes) else target.gpu_milli for id_, target in work.items()},
        holds,
        Counter(pool for pool, _ in nodes.values()) + unnamed,
        unnamed_gpu,
        workloads=len(work),
        tenants={target.tenant for target in work.values() if target.tenant},
        cost_microusd_hour=dearer(act, shown),
    )


def lies_on(work: Target, nodes: Mapping[str, object]) -> bool:
    """True when all of a workload is on these nodes, as far as its nodes are known."""
    return 0 < len(work.nodes) < MAX_PLACES and nodes.keys() >= set(work.nodes)


def total(blasts: Iterable[Blast]) -> Blast:
    """The blast of several acts together. A node, a workload or a GPU that several of them touch counts once."""
    every = tuple(blasts)
    nodes = {id_: (pool, gpu) for blast in every for id_, pool, gpu in blast.named_nodes}
    devices: dict[str, int] = {}
    holds: dict[tuple[str, str], int] = {}
    unnamed: Counter[str] = Counter()
    unnamed_gpu = 0
    for blast in every:
        holds |= {(id_, node): gpu for id_, node, gpu in blast.named_holds}
        own = _lying({(id_, node): gpu for id_, node, gpu in blast.named_holds}, {id_ for id_, *_ in blast.named_nodes})
        for id_, gpu in blast.named_work:
            devices[id_] = max(gpu + own[id_], devices.get(id_, 0))
        unnamed.update(dict(blast.nodes))
        unnamed.subtract(pool for _, pool, _ in blast.named_nodes)
        unnamed_gpu += blast.gpu_milli - sum(gpu for _, _, gpu in blast.named_nodes)
        unnamed_gpu -= sum(gpu for _, gpu in blast.named_work)
    return _blast(
        nodes,
        devices,
        holds,
        Counter(pool for pool, _ in nodes.values()) + unnamed,
        unnamed_gpu,
        workloads=len(devices) + sum(blast.workloads - len(blast.named_work) for blast in every),
        tenants={tenant for blast in every for tenant in blast.tenants},
        cost_microusd_hour=sum(blast.cost_microusd_hour for blast in every),
    )


def added(blasts: Sequence[Blast], more: Blast) -> Blast:
    """The units of the limits by which `more` enlarges the blast of the others: what they touch already adds nothing.
    Without names."""
    before, after = total(blasts), total((*blasts, more))
    counted = Counter(dict(after.nodes)) - Counter(dict(before.nodes))
    return Blast(
        gpu_milli=max(0, after.gpu_milli - before.gpu_milli),
        nodes=tuple(sorted(counted.items())),
        workloads=after.workloads - before.workloads,
        cost_microusd_hour=more.cost_microusd_hour,
    )


def _blast(
    nodes: Mapping[str, tuple[str, int]],
    devices: Mapping[str, int],
    holds: Mapping[tuple[str, str], int],
    counted: Mapping[str, int],
    unnamed_gpu: int,
    *,
    workloads: int,
    tenants: Collection[str],
    cost_microusd_hour: int,
) -> Blast:
    """`nodes` (node -> pool, milli-GPU), `devices` (workload -> milli-GPU) and what of those lies where (`holds`):
    what lies on the nodes counts as theirs."""
    on_nodes = _lying(holds, nodes)
    left = {id_: max(0, gpu - on_nodes[id_]) for id_, gpu in devices.items()}
    return Blast(
        gpu_milli=sum(gpu for _, gpu in nodes.values()) + sum(left.values()) + unnamed_gpu,
        nodes=tuple(sorted((pool, count) for pool, count in counted.items() if count)),
        workloads=workloads,
        tenants=tuple(sorted(tenants)),
        cost_microusd_hour=cost_microusd_hour,
        named_nodes=tuple((id_, pool, gpu) for id_, (pool, gpu) in sorted(nodes.items())),
        named_work=tuple(sorted(left.items())),
        named_holds=tuple((id_, node, gpu) for (id_, node), gpu in sorted(holds.items())),
    )


def _lying(holds: Mapping[tuple[str, str], int], nodes: Collection[str]) -> Counter[str]:
    """Workload -> milli-GPU that it holds on these nodes."""
    found: Counter[str] = Counter()
    for (id_, node), gpu in holds.items():
        if node in nodes:
            found[id_] += gpu
    return found


def taken(act: Act, shown: tuple[Target, ...]) -> tuple[tuple[str, str, int], ...]:
    """(node, pool, milli-GPU) of what it takes out of use and was in use until then."""
    if "takes_nodes" in find(act.action).impact:
        return tuple((target.id, target.pool, target.gpu_milli) for target in shown if target.state == "ready")
    return tuple(place for target in shown for place in target.keeps)


def given_back(act: Act, shown: tuple[Target, ...]) -> tuple[Counter[str], int]:
    """Pool -> nodes that it gives back, or lets the autoscaler give back, without naming them; and their milli-GPU."""
    fewer = find(act.action).fewer
    found: Counter[str] = Counter()
    gpu_milli = 0
    for target in shown:
        if fewer is not None and target.size is not None and (count := fewer(act, target.size)):
            found[target.id] += count
            gpu_milli += count * target.gpu_milli
    return found, gpu_milli


def dearer(act: Act, shown: tuple[Target, ...]) -> int:
    """Micro-USD by which an hour of the cell may cost more."""
    row = find(act.action)
    more = sum(row.dearer(act, target) for target in shown) if row.dearer is not None else 0
    if row.more is not None:
        more += sum(row.more(act, target.size) * target.price_microusd_hour for target in shown if target.size)
    return more


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
    own: OwnedWork | None = None
    """None: it touches anything else than the work of one known person."""


def compose(engine: Engine, request: Request, needed: Callable[[Engine, Act], Act | None] | None = None) -> Composed:
    """Resolve and simulate. Changes nothing. The first step is read from the cell itself, each later one from the fork
    on which those before it were done. `needed`: what of an act is still needed where it is looked at; None: nothing.

    Raises SpecError for what is malformed, NotFoundError naming every unknown target, and RefusedError naming every
    target that an action does not apply to, the checks that do not hold, and the limits of the request that it exceeds.
    """
    check_request(request)
    target_readings.refuse_impossible(engine, [step.act for step in request.steps])
    steps: list[Step] = []
    lines: list[str] = []
    why: list[str] = []
    names: set[str] = set()
    with contextlib.closing(ForkTrial(engine)) as trial:
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
                step, timeout_ms=max(step.timeout_ms, target_readings.timeout_ms(engine, step.act))
            )
            if step.id in names:
                raise SpecError(f"steps[{i}].id", f"'{step.id}' is used twice", "Give each step its own id")
            names.add(step.id)
            steps.append(step)
            lines += told if len(request.steps) == 1 else [f"{step.id}: {line}" for line in told]
            why += raised
            trial.do(catalogue.find(step.act.action), step.act, [*step.shown, *step.stops])
        effects, dearer_microusd_hour = trial.effects(), trial.dearer_microusd_hour()
        rollback_tier = tier_of_rollback(trial.fork, steps)
    whole = total(tuple(step.blast for step in steps))
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
        own=owned_by_one(steps),
    )


def check_request(request: Request) -> None:
    """Raises SpecError for a request that is malformed whatever the cell is like."""
    if not request.steps:
        raise SpecError("steps", "are empty", "Give at least one step")
    if len(request.steps) > MAX_STEPS and not request.rolls_back:
        raise SpecError("steps", f"{len(request.steps):,} are given", f"Give at most {MAX_STEPS}")
    check_line(request.reason, "reason", MAX_REASON)
    check_line(request.requester, "requester", MAX_PERSON)
    if request.source is not None:
        if request.source.id:
            check_id(request.source.id, "source.id")
        check_line(request.source.by, "source.by", MAX_PERSON)
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
        raise SpecError(where, f"is {says_nothing}", "Compare with a value that can differ")


def resolve(source: Engine, asked: StepRequest, number: int) -> tuple[Step, list[str], list[str]]:
    """A step resolved for the cell as it is: the step, its lines, and the reasons of a raised tier."""
    row = catalogue.find(asked.act.action)
    ids = target_readings.members(source, row, target_readings.checked_targets(row, asked.act.targets))
    act = msgspec.structs.replace(asked.act, targets=ids)
    catalogue.check(act)
    shown = target_readings.read(source, row, act)
    target_readings.refuse_inapplicable(row, shown)
    target_readings.refuse_outdated(row, act, shown)
    work = target_readings.read_work(source, row, shown)
    refuse_unmet(source, asked, number)
    back = wording.inverse_of(act, shown)
    if asked.rollback is not None:
        wrong = wording.why_not_inverse(act, shown, asked.rollback)
        if wrong:
            raise SpecError(f"steps[{number}].rollback", wrong, "Leave it out, or give the inverse of the step")
        back = asked.rollback
    stops = tuple(work.values())
    tier, why = declaration.tier_and_why(
        row, act, shown, target_readings.pool_nodes(source), target_readings.bound(source)
    )
    step = Step(
        id=asked.id or str(number + 1),
        act=act,
        shown=shown,
        stops=stops,
        tier=tier,
        blast=blast_of(act, shown, stops),
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
            f"step {asked.id or number + 1} cannot run now: {'; '.join(found)}",
            "Its preconditions are not met; see what has changed",
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
        raise RefusedError(f"its steps exceed its own limits: {', '.join(found)}", "Remove some targets")


def tier_of_all(steps: Sequence[Step], whole: Blast, engine: Engine) -> tuple[Tier, tuple[str, ...]]:
    """The highest tier of the steps, and one more where only their sum takes a large share of a pool, or stops a large
    share of the work: many small steps are not milder than one large."""
    highest = max(step.tier for step in steps)
    pools = target_readings.pool_nodes(engine)
    found: list[str] = []
    for pool, count in whole.nodes:
        large = count > 1 and count * 1000 > declaration.LARGE_SHARE_PERMILLE * pools.get(pool, 0)
        alone = any(dict(step.blast.nodes).get(pool, 0) == count for step in steps)
        if large and not alone:
            found.append(f"its steps together take {count:,} of {pools.get(pool, 0):,} nodes of {pool}")
    running = target_readings.bound(engine)
    large = whole.workloads > declaration.MANY and whole.workloads * 1000 > declaration.LARGE_SHARE_PERMILLE * running
    if large and all(step.blast.workloads < whole.workloads for step in steps):
        found.append(f"its steps together stop {whole.workloads:,} of {running:,} workloads")
    raised = TIERS[min(TIERS.index(highest) + bool(found), len(TIERS) - 1)]
    return raised, tuple(found)


def tier_of_rollback(source: Engine, done: Sequence[Step]) -> Tier:
    """The tier of all ways back together, at the end of the plan; T0 when nothing can be taken back, or not at once."""
    acts = [act for step in reversed(done) for act in step.rollback]
    try:
        needed = [left for act in acts if (left := target_readings.needed(source, act)) is not None]
        steps = [resolve(source, StepRequest(act=act), i)[0] for i, act in enumerate(needed)]
    except (NotFoundError, RefusedError):
        return "T0"
    return tier_of_all(steps, total(step.blast for step in steps), source)[0] if steps else "T0"


def title_of(steps: list[Step]) -> str:
    first = wording.title(steps[0].act)
    return first if len(steps) == 1 else f"{first}, and {len(steps) - 1} more step{'s' if len(steps) > 2 else ''}"


def way_back(steps: list[Step]) -> str:
    """The ways back of the plan in a sentence, the last step first."""
    return "; then ".join(dict.fromkeys(wording.inverse(step.act, step.shown) for step in reversed(steps)))


def owned_by_one(steps: Sequence[Step]) -> OwnedWork | None:
    """The work that the steps touch, where all of it is known to be one person's."""
    touched = [target for step in steps for target in (*step.shown, *step.stops)]
    owners = {target.owner or "" for target in touched}
    if len(owners) != 1 or "" in owners or any(catalogue.find(step.act.action).kind != "workload" for step in steps):
        return None
    actions = tuple(dict.fromkeys(step.act.action for step in steps))
    return OwnedWork(owner=owners.pop(), actions=actions, workloads=len({target.id for target in touched}))


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
