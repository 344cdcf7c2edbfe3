"""The gate: the only way an action reaches the engine. Propose shows what would happen; approve makes it so, once.

A proposal is resolved to explicit ids, simulated on a fork and bound to the digest of its plan. Approval names that
digest. Before it acts the gate looks again: what the proposal showed of its targets must still hold. A change
elsewhere does not matter. Nothing is simulated on, or written to, the live engine until then.

One thread at a time, like the engine. Proposals live in memory: after a restart they must be made again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.errors import NotFoundError, RefusedError, SpecError
from engine.events import AuditEntry
from engine.model import RESOURCES, ReservationSpec, check_id
from engine.money import usd
from engine.query import Overview, Query, Term, WorkloadDetail
from runbooks import catalog, sizes, wording
from runbooks.amounts import amount, listed, utc, whole, workloads
from runbooks.catalog import Action, Target
from runbooks.plan import (
    Effect,
    MoneyChange,
    Outcome,
    Plan,
    Proposal,
    QueueChange,
    RequestChange,
    ScalingChange,
    WorkloadMove,
)
from runbooks.specs import differences

if TYPE_CHECKING:
    from engine.control import Engine

EXPIRY_MS = 5 * 60_000
MAX_OPEN = 256
MAX_EXECUTED = 256
"""How many executed proposals are remembered, so that a second approval can be told when and by whom."""
MAX_TARGETS = 1_000
MAX_REASON = 500
MAX_PERSON = 128
CLOCK_TOLERANCE_MS = 1_000
"""A wall clock that falls back further than this expires what is open: it could otherwise revive a proposal."""
SHOWN_STARTS = 1_000
"""Fresh starts compared by name, before and after."""
MOST_ROWS = 10_000
"""Rows asked for at a time."""
LOSERS = {"cancel": "Cancelled with work done", "suspend": "Suspended from running", "consolidate": "Moved"}
"""By action, what becomes of the work that it stops."""
STOPS = frozenset(("requeued", "suspended", "finished", "failed", "cancelled"))
"""What ends an attempt, in a workload's history."""


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal that waits, with what it showed of its targets."""

    proposal: Proposal
    shown: tuple[Target, ...]


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    at_ms: int
    approver: str


def wall_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


class Gate:
    """Proposals for one engine. `clock` gives wall time in Unix milliseconds."""

    def __init__(self, engine: Engine, clock: Callable[[], int] = wall_ms) -> None:
        self._engine = engine
        self._clock = clock
        self._latest_ms = clock()
        self._count = 0
        self._open: dict[str, Open] = {}
        self._executed: dict[str, Executed] = {}

    def propose(
        self,
        action: str,
        targets: Sequence[str],
        reason: str = "",
        requester: str = "",
        *,
        queue: QueueChange | None = None,
        reservation: ReservationSpec | None = None,
        moves: tuple[WorkloadMove, ...] = (),
        resize: RequestChange | None = None,
        money: MoneyChange | None = None,
        scaling: ScalingChange | None = None,
    ) -> Proposal:
        """Resolve, simulate on a fork, and show. Changes nothing. `queue` and what follows it as in Plan.

        Raises SpecError for an unknown action or malformed targets, NotFoundError naming every unknown target, and
        RefusedError naming every target the action does not apply to, and why.
        """
        now_ms = self._now()
        row = catalog.find(action)
        ids = members(self._engine, row, checked_targets(row, targets))
        check_text(reason, "reason", MAX_REASON)
        check_text(requester, "requester", MAX_PERSON)
        plan = Plan(
            action=row.name,
            targets=ids,
            queue=queue,
            reservation=reservation,
            moves=moves,
            resize=resize,
            money=money,
            scaling=scaling,
            reason=reason,
            requester=requester,
        )
        catalog.command(plan)
        shown = read(self._engine, row, plan)
        refuse_inapplicable(row, shown)
        refuse_outdated(plan, shown)
        overview = self._engine.overview()
        work = read_work(self._engine, row, shown)
        digest = plan.digest()
        self._count += 1
        proposal = Proposal(
            id=f"P-{self._count}-{digest[:6]}",
            plan=plan,
            digest=digest,
            tier=catalog.tier(row, shown, pool_nodes(overview), bound(overview)),
            title=wording.title(plan),
            steps=tuple(wording.steps(plan, shown, work)),
            effects=simulate(self._engine, row, plan, stopped(row, shown, work)),
            inverse=wording.inverse(plan, shown),
            version=overview.version,
            expires_ms=now_ms + EXPIRY_MS,
        )
        self._keep(Open(proposal=proposal, shown=shown))
        return proposal

    def plan(self, proposal_id: str) -> Plan | None:
        """Of a proposal that is kept and not executed."""
        kept = self._open.get(proposal_id)
        return None if kept is None else kept.proposal.plan

    def approve(self, proposal_id: str, digest: str, approver: str) -> Outcome:
        """Execute exactly the plan whose digest was shown, at most once, and read back what it did.

        Raises NotFoundError for a proposal that is not kept, and RefusedError when it was executed already, has
        expired, the digest is another, or a target is no longer as shown. Errors of the engine (such as a journal that
        cannot be written) pass through; the proposal then stays open, because nothing happened.
        """
        now_ms = self._now()
        if not approver:
            raise SpecError("approver", "is empty", "Say who approves")
        check_text(approver, "approver", MAX_PERSON)
        kept = self._find(proposal_id, now_ms)
        plan = kept.proposal.plan
        canonical = msgspec.json.encode(plan, order="sorted")
        if digest != kept.proposal.digest or digest != hashlib.sha256(canonical).hexdigest():
            raise RefusedError(
                f"the digest given is not that of {proposal_id}", "Look at the proposal again and approve what it shows"
            )
        row = catalog.find(plan.action)
        self._refuse_stale(row, kept)
        entry = AuditEntry(at_wall_ms=now_ms, actor=approver, action=plan.action, digest=digest, plan=canonical)
        receipt = self._engine.command(catalog.command(plan), audit=entry)
        # From here on it has happened, whatever the reading below finds.
        del self._open[proposal_id]
        self._remember(proposal_id, Executed(at_ms=now_ms, approver=approver))
        after = {target.id: target for target in read(self._engine, row, plan, executed=True)}
        return Outcome(
            proposal=proposal_id,
            digest=digest,
            version=receipt.version,
            changed=receipt.changed,
            verified=tuple(wording.check(row, before, after[before.id]) for before in kept.shown),
        )

    def _now(self) -> int:
        now_ms = self._clock()
        if now_ms < self._latest_ms - CLOCK_TOLERANCE_MS:
            self._open.clear()
            self._latest_ms = now_ms
        self._latest_ms = max(self._latest_ms, now_ms)
        return self._latest_ms

    def _keep(self, kept: Open) -> None:
        now_ms = self._latest_ms
        self._open = {id_: old for id_, old in self._open.items() if now_ms < old.proposal.expires_ms}
        if len(self._open) >= MAX_OPEN:
            # The oldest gives way: refusing the new one would let a flood lock out the person on call.
            del self._open[next(iter(self._open))]
        self._open[kept.proposal.id] = kept

    def _remember(self, proposal_id: str, executed: Executed) -> None:
        if len(self._executed) >= MAX_EXECUTED:
            del self._executed[next(iter(self._executed))]
        self._executed[proposal_id] = executed

    def _find(self, proposal_id: str, now_ms: int) -> Open:
        executed = self._executed.get(proposal_id)
        if executed is not None:
            raise RefusedError(
                f"{proposal_id} was executed at {utc(executed.at_ms)}, approved by {executed.approver}",
                "Propose it again if it is wanted once more",
            )
        kept = self._open.get(proposal_id)
        if kept is None:
            shown = proposal_id[:40].encode("unicode_escape").decode()
            raise NotFoundError(
                f"there is no open proposal '{shown}'", "It expired long ago or the engine restarted; propose it again"
            )
        if now_ms >= kept.proposal.expires_ms:
            raise RefusedError(f"{proposal_id} expired at {utc(kept.proposal.expires_ms)}", "Propose it again")
        return kept

    def _refuse_stale(self, row: Action, kept: Open) -> None:
        try:
            now = read(self._engine, row, kept.proposal.plan)
        except (NotFoundError, RefusedError) as gone:
            raise stale(kept.proposal.id, [gone.problem]) from gone
        found = [text for old, new in zip(kept.shown, now, strict=True) if (text := difference(row, old, new))]
        overview = self._engine.overview()
        tier = catalog.tier(row, now, pool_nodes(overview), bound(overview))
        if tier > kept.proposal.tier:
            found.append(f"it was {kept.proposal.tier} and is {tier} now")
        if found:
            raise stale(kept.proposal.id, found)


def stale(proposal_id: str, found: list[str]) -> RefusedError:
    return RefusedError(
        f"{proposal_id} is stale, nothing was done: {'; '.join(found)}", "Propose it again to see what it would do now"
    )


def difference(row: Action, shown: Target, now: Target) -> str:
    """How a target differs, in what the proposal showed and the action depends on; empty when it does not."""
    if shown.queue is not None and now.queue is not None and now.queue != shown.queue:
        return changed_meanwhile(shown.id, QueueChange(was=shown.queue, to=now.queue))
    if (now.price_microusd_hour, now.budget) != (shown.price_microusd_hour, shown.budget):
        return f"{shown.id} was changed meanwhile"
    if shown.autoscaling != now.autoscaling or (
        shown.size is not None
        and now.size is not None
        and (shown.size.scaling, shown.size.set_for) != (now.size.scaling, now.size.set_for)
    ):
        return f"{shown.id} was changed meanwhile"
    if now.reservation != shown.reservation:
        return f"{shown.id} was shown as another reservation"
    if now.state != shown.state and row.name != "set_quota":
        return f"{shown.id} was shown as {shown.state} and is {now.state} now"
    if now.attempts != shown.attempts:
        return f"{shown.id} was shown in attempt {shown.attempts} and is in attempt {now.attempts} now"
    if row.name == "resize" and now.asks != shown.asks:
        return f"{shown.id} was shown with another request"
    if row.name == "consolidate" and now.nodes != shown.nodes:
        return f"{shown.id} was shown on {listed(shown.nodes)} and is on {listed(now.nodes)} now"
    if row.name in ("drain", "interrupt", "drain_queue", "set_quota"):
        # Work that left since makes it milder than was approved; work that arrived would be stopped unseen.
        seen = set(shown.work)
        arrived = tuple(id_ for id_ in now.work if id_ not in seen)
        return f"{shown.id} has work now that was not shown: {listed(arrived)}" if arrived else ""
    return ""


def changed_meanwhile(name: str, change: QueueChange) -> str:
    """As in "research was changed meanwhile: nominal gpu 32 GPU -> 48 GPU"."""
    found = (f"{what} {was} -> {to}" for what, was, to in differences(change.was, change.to))
    return f"{name} was changed meanwhile: {', '.join(found)}"


def checked_targets(row: Action, targets: Sequence[str]) -> tuple[str, ...]:
    """Explicit ids in the order given, without repeats. Patterns are not ids, so "all" cannot be said by accident."""
    if isinstance(targets, str):
        raise SpecError("targets", "is one text", "Give a list of ids")
    ids = tuple(dict.fromkeys(targets))
    if not ids:
        raise SpecError("targets", "is empty", f"Name each {row.kind}")
    if len(ids) > MAX_TARGETS:
        raise too_many(len(ids))
    for i, id_ in enumerate(ids):
        check_id(id_, f"targets[{i}]")
    return ids


def members(engine: Engine, row: Action, ids: tuple[str, ...]) -> tuple[str, ...]:
    """The ids with that of an array replaced by those of its members that the action applies to, so that a plan names
    each workload it touches. An array none of whose members it applies to stays, and is refused by name."""
    if row.kind != "workload":
        return ids
    known = read_workloads(engine, ids)
    states = tuple(Term("state", "=", state) for state in sorted(row.states))
    found: dict[str, None] = {}
    for id_ in ids:
        if id_ in known:
            found[id_] = None
            continue
        where = (Term("array", "=", id_), *states)
        page = engine.query(Query(kind="workloads", columns=("id",), where=where, limit=MAX_TARGETS))
        if page.matched > MAX_TARGETS:
            raise SpecError("targets", f"{id_} has {page.matched:,} such members", "Name some of them")
        found |= dict.fromkeys([values[0] for values in page.rows] or [id_])
    if len(found) > MAX_TARGETS:
        raise too_many(len(found))
    return tuple(found)


def too_many(count: int) -> SpecError:
    return SpecError("targets", f"{count:,} targets", f"Give at most {MAX_TARGETS:,} at a time")


def check_text(value: str, where: str, most: int) -> None:
    """Kept in the audit for ever and shown on terminals: one printable line of bounded length."""
    if len(value) > most:
        raise SpecError(where, f"{len(value):,} characters", f"Give at most {most}")
    if not value.isprintable():
        raise SpecError(where, "has characters that cannot be printed", "Give one line of plain text")


def refuse_inapplicable(row: Action, targets: tuple[Target, ...]) -> None:
    found = [text for target in targets if (text := catalog.why_not(row, target))]
    if found:
        raise RefusedError(f"cannot {row.name}: {'; '.join(found)}", row.otherwise)


def refuse_outdated(plan: Plan, targets: tuple[Target, ...]) -> None:
    """A change of a queue is refused when it starts from what the queue no longer has, and when it changes nothing. A
    move is refused when the workload is no longer where it was to be moved from."""
    for move, target in zip(plan.moves, targets, strict=False):
        if not set(target.nodes).issubset(move.was):
            raise RefusedError(
                f"{move.id} was to be moved from {listed(move.was)} and is on {listed(target.nodes)} now",
                "Plan the moves again: muster consolidate",
            )
    if plan.resize is not None:
        refuse_same_request(plan.resize, targets)
    if plan.money is not None and (plan.money.price_microusd_hour, plan.money.budget) in (
        (targets[0].price_microusd_hour, None),
        (None, targets[0].budget),
    ):
        raise RefusedError(f"{targets[0].id} has exactly that", "Nothing needs doing")
    if plan.scaling is not None and len(set(sizes.was_and_to(plan, targets[0].size, targets[0].autoscaling))) == 1:
        raise RefusedError(f"{targets[0].id} has exactly that", "Nothing needs doing")
    approved = [target.id for target in targets if plan.action == "approve_spending" and target.approved]
    if approved:
        raise RefusedError(f"the spending of {listed(tuple(approved))} is approved already", "Leave it out")
    if plan.queue is None:
        return
    present = targets[0].queue
    if present is not None and present != plan.queue.was:
        text = changed_meanwhile(targets[0].id, QueueChange(was=plan.queue.was, to=present))
        raise RefusedError(text, "Look at the queue again, then ask for the change again")
    if plan.queue.to == plan.queue.was:
        raise RefusedError(f"{targets[0].id} has exactly that", "Nothing needs doing")


def refuse_same_request(change: RequestChange, targets: tuple[Target, ...]) -> None:
    """Raises RefusedError naming the workloads that ask for exactly that."""
    same = [
        target.id
        for target in targets
        for group, request in target.asks
        if change.group in ("", group) and request | change.request == request
    ]
    if same:
        raise RefusedError(f"{listed(tuple(same))} asks for exactly that", "Leave it out; nothing needs doing")


def read(engine: Engine, row: Action, plan: Plan, *, executed: bool = False) -> tuple[Target, ...]:
    """The targets as they are now, in the order given. Raises NotFoundError naming every one that does not exist, and
    RefusedError when the engine refuses what the plan does with a queue. `executed`: the plan is done, and what it
    would do once more does not matter."""
    ids = plan.targets
    match row.kind:
        case "policy":
            return (Target(id=ids[0], state=engine.overview().policy),)
        case "reservation":
            absent_is_well = row.name == "reserve" or executed
            return tuple(read_reservation(engine, id_, absent_is_well) for id_ in ids)
        case "queue":
            found = read_queues(engine, plan, executed)
        case "workload":
            found = read_workloads(engine, ids)
        case "node":
            found = read_nodes(engine, ids)
        case "pool":
            pools = {pool.name: pool.price_microusd_hour for pool in engine.overview().pools}
            found = {id_: Target(id=id_, state="priced", price_microusd_hour=pools[id_]) for id_ in ids if id_ in pools}
        case "scaling":
            found = read_sizes(engine, row)
        case "budget":
            found = read_budgets(engine, ids)
            if row.name == "set_budget" or executed:
                found |= {id_: Target(id=id_, state="not set") for id_ in ids if id_ not in found}
    missing = [id_ for id_ in ids if id_ not in found]
    if missing:
        kind = "pool" if row.kind == "scaling" else row.kind
        raise NotFoundError(f"no such {kind}: {', '.join(missing)}", f"Check the ids against the {kind} list")
    return tuple(found[id_] for id_ in ids)


def read_queues(engine: Engine, plan: Plan, executed: bool) -> dict[str, Target]:
    """Name -> reading, for those that exist."""
    found: dict[str, Target] = {}
    for name in plan.targets:
        try:
            queue = engine.queue(name)
        except NotFoundError:
            continue
        work: tuple[str, ...] = ()
        if plan.action == "drain_queue":
            work = bound_work(engine, queue.leaves)
        elif plan.queue is not None and plan.queue.over != "keep" and not executed:
            work = evicted(engine, plan)
        found[name] = Target(id=name, state=queue.mode, work=work, queue=queue.spec)
    return found


def bound_work(engine: Engine, queues: tuple[str, ...]) -> tuple[str, ...]:
    """Ids of the placed and running workloads of these queues."""
    states = tuple(Term("state", "=", state) for state in sorted(catalog.BOUND))
    found: list[str] = []
    for name in queues:
        where = (Term("queue", "=", name), *states)
        query = Query(kind="workloads", columns=("id",), where=where, limit=MOST_ROWS)
        page = engine.query(query)
        found += [row[0] for row in page.rows]
        while page.rows and len(found) < page.matched:
            page = engine.query(msgspec.structs.replace(query, offset=len(found)))
            found += [row[0] for row in page.rows]
    return tuple(found)


def evicted(engine: Engine, plan: Plan) -> tuple[str, ...]:
    """Ids of the workloads that would lose their places to a change of a queue, as a fork finds."""
    return engine.fork().command(catalog.command(plan)).changed[len(plan.targets) :]


def read_reservation(engine: Engine, name: str, absent_is_well: bool) -> Target:
    """Raises NotFoundError for one that is not made, unless that is well."""
    try:
        reservation = engine.reservation(name)
    except NotFoundError:
        if not absent_is_well:
            raise
        return Target(id=name, state="not made")
    return Target(id=name, state="made", reservation=reservation)


def read_workloads(engine: Engine, ids: Sequence[str]) -> dict[str, Target]:
    """Id -> reading, for those that exist."""
    found: dict[str, Target] = {}
    for id_ in ids:
        try:
            work = engine.workload(id_)
        except NotFoundError:
            continue
        found[id_] = Target(
            id=id_,
            state=work.state,
            attempts=work.attempts,
            gpu_milli=sum(group.count * group.gpu_milli for group in work.groups),
            cpu_milli=sum(group.count * group.cpu_milli for group in work.groups),
            unsaved_ms=work.loss_ms,
            worked_ms=worked(work),
            nodes=tuple(sorted({place.node for place in work.placement})),
            approved=work.spending_approved,
            asks=tuple((group.name, {name: getattr(group, name) for name in RESOURCES}) for group in work.groups),
        )
    return found


def worked(work: WorkloadDetail) -> int:
    """Milliseconds a workload has run in all its attempts, by its history."""
    total, since = 0, None
    for item in work.history:
        if item.what in STOPS and since is not None:
            total += item.at_ms - since
            since = None
        elif item.what == "running":
            since = item.at_ms
    return total if since is None else total + work.now_ms - since


def read_nodes(engine: Engine, ids: Sequence[str]) -> dict[str, Target]:
    """Id -> reading, for those that exist."""
    found: dict[str, Target] = {}
    for id_ in ids:
        try:
            node = engine.node(id_)
        except NotFoundError:
            continue
        found[id_] = Target(id=id_, state=node.state, pool=node.pool, work=tuple(work for work, _ in node.workloads))
    return found


def read_sizes(engine: Engine, row: Action) -> dict[str, Target]:
    """Name -> reading, of all pools; or of the autoscaler."""
    report = engine.scaling()
    if row.name == "set_autoscaling":
        return {sizes.AUTOSCALER: Target(id=sizes.AUTOSCALER, state="set", autoscaling=report.settings)}
    return {
        size.pool: Target(id=size.pool, state="fixed" if size.scaling is None else "growing", size=size)
        for size in report.pools
    }


def read_budgets(engine: Engine, names: Sequence[str]) -> dict[str, Target]:
    """Name -> reading, for those that are set."""
    specs = {line.spec.name: line.spec for line in engine.budgets().budgets}
    return {name: Target(id=name, state="set", budget=specs[name]) for name in names if name in specs}


def read_work(engine: Engine, row: Action, targets: tuple[Target, ...]) -> dict[str, Target]:
    """The workloads that would be stopped besides the targets. A gang on several nodes is read, and counted, once."""
    if row.name not in ("drain", "interrupt", "drain_queue", "set_quota"):
        return {}
    return read_workloads(engine, tuple(dict.fromkeys(id_ for target in targets for id_ in target.work)))


def stopped(row: Action, targets: tuple[Target, ...], work: dict[str, Target]) -> list[Target]:
    """The workloads whose work is stopped or thrown away."""
    return [target for target in (*targets, *work.values()) if catalog.loses_work(row, target)]


def pool_nodes(overview: Overview) -> dict[str, int]:
    return {pool.name: pool.nodes for pool in overview.pools}


def bound(overview: Overview) -> int:
    """Workloads that hold capacity."""
    return sum(overview.states.get(state, 0) for state in catalog.BOUND)


def simulate(engine: Engine, row: Action, plan: Plan, stops: list[Target]) -> tuple[Effect, ...]:
    """What the plan and one scheduling cycle change, on a fork.

    The fork runs a cycle before it is looked at: what was about to start anyway is not the plan's doing.
    """
    fork = engine.fork()
    fork.settle()
    overview, started, excess, spent = fork.overview(), starts(fork), over(fork, plan), spending(fork, row, plan)
    fork.command(catalog.command(plan))
    fork.settle()
    after = fork.overview()
    effects = compare(overview, after)
    if plan.moves:
        effects.append(Effect(label="GPU fragmentation", before=fragmented(overview), after=fragmented(after)))
    if excess != over(fork, plan):
        effects.append(Effect(label="Above what it may use", before=excess, after=over(fork, plan)))
    effects += [
        Effect(label=label, before=before, after=after)
        for (label, before), (_, after) in zip(spent, spending(fork, row, plan), strict=True)
    ]
    if stops:
        label = LOSERS.get(row.name, "Requeued")
        effects.append(Effect(label=label, before="none", after=workloads(len(stops))))
        effects.append(Effect(label="Work lost, if now", before="none", after=catalog.lost(row, stops)))
    names, count = starts(fork)
    # What is moved starts anew, but it ran before.
    others = tuple(id_ for id_ in names if not (plan.moves and id_ in plan.targets))
    effects += compare_starts(started, (others, count - len(names) + len(others)))
    return tuple(effects)


def over(fork: Engine, plan: Plan) -> str:
    """What the queue of the plan draws above what it may."""
    if plan.queue is None:
        return "none"
    excess = fork.queue(plan.queue.to.name).over
    pairs = ((key.rpartition("/"), quantity) for key, quantity in excess.items())
    return ", ".join(f"{pool}{slash}{amount(name, quantity)}" for (pool, slash, name), quantity in pairs) or "none"


def spending(fork: Engine, row: Action, plan: Plan) -> list[tuple[str, str]]:
    """Of the budgets that the plan changes: what is spent, and what waits because of that."""
    if row.kind != "budget":
        return []
    lines = {line.spec.name: line for line in fork.budgets().budgets}
    found = []
    for name in plan.targets:
        line = lines.get(name)
        spent, waiting = "no budget", 0
        if line is not None:
            spent = f"{usd(line.spent_microusd)} of {usd(line.spec.limit_microusd)}, {line.stage}"
            waiting = line.waiting
        found += [(f"Spent of {name}", spent), (f"Wait for {name}", workloads(waiting) if waiting else "none")]
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
    return f"{bound(overview):,}"


def nodes_ready(overview: Overview) -> str:
    return f"{sum(pool.ready for pool in overview.pools):,}"


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
    waits_for_executor = (Term("state", "=", "placed"),)
    runs_already = (Term("state", "=", "running"), Term("started", ">=", fork.now_ms))
    pages = [
        fork.query(Query(kind="workloads", columns=("id",), where=where, limit=SHOWN_STARTS))
        for where in (waits_for_executor, runs_already)
    ]
    return tuple(row[0] for page in pages for row in page.rows), sum(page.matched for page in pages)


def compare_starts(before: tuple[tuple[str, ...], int], after: tuple[tuple[str, ...], int]) -> list[Effect]:
    (old, old_count), (new, new_count) = before, after
    if len(old) < old_count or len(new) < new_count:
        # Cut lists cannot be told apart by name.
        return [Effect(label="Starts now", before=f"{old_count:,}", after=f"{new_count:,}")]
    was, is_ = set(old), set(new)
    gained, missed = tuple(id_ for id_ in new if id_ not in was), tuple(id_ for id_ in old if id_ not in is_)
    effects = []
    if gained:
        effects.append(Effect(label="Starts because of it", before="none", after=listed(gained)))
    if missed:
        effects.append(Effect(label="No longer starts now", before=listed(missed), after="none"))
    return effects
