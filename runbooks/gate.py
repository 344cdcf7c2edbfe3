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
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from engine.errors import NotFoundError, RefusedError, SpecError
from engine.events import AuditEntry
from engine.model import check_id
from engine.query import Overview, Query, Term, WorkloadDetail
from runbooks import catalog
from runbooks.catalog import Action, Target, whole
from runbooks.plan import Effect, Outcome, Plan, Proposal

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

    def propose(self, action: str, targets: Sequence[str], reason: str = "", requester: str = "") -> Proposal:
        """Resolve, simulate on a fork, and show. Changes nothing.

        Raises SpecError for an unknown action or malformed targets, NotFoundError naming every unknown target, and
        RefusedError naming every target the action does not apply to, and why.
        """
        now_ms = self._now()
        row = catalog.find(action)
        ids = checked_targets(row, targets)
        check_text(reason, "reason", MAX_REASON)
        check_text(requester, "requester", MAX_PERSON)
        plan = Plan(action=row.name, targets=ids, reason=reason, requester=requester)
        shown = read(self._engine, row, ids)
        refuse_inapplicable(row, shown)
        overview = self._engine.overview()
        work = read_work(self._engine, row, shown)
        digest = plan.digest()
        self._count += 1
        proposal = Proposal(
            id=f"P-{self._count}-{digest[:6]}",
            plan=plan,
            digest=digest,
            tier=catalog.tier(row, shown, pool_nodes(overview)),
            title=catalog.title(plan),
            steps=tuple(catalog.step(row, target, work) for target in shown),
            effects=simulate(self._engine, row, plan, stopped(row, shown, work)),
            inverse=catalog.inverse(plan, shown),
            version=overview.version,
            expires_ms=now_ms + EXPIRY_MS,
        )
        self._keep(Open(proposal=proposal, shown=shown))
        return proposal

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
        after = {target.id: target for target in read(self._engine, row, plan.targets)}
        return Outcome(
            proposal=proposal_id,
            digest=digest,
            version=receipt.version,
            changed=receipt.changed,
            verified=tuple(catalog.check(row, before, after[before.id]) for before in kept.shown),
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
            now = read(self._engine, row, kept.proposal.plan.targets)
        except NotFoundError as gone:
            raise stale(kept.proposal.id, [gone.problem]) from gone
        found = [text for old, new in zip(kept.shown, now, strict=True) if (text := difference(row, old, new))]
        tier = catalog.tier(row, now, pool_nodes(self._engine.overview()))
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
    if now.state != shown.state:
        return f"{shown.id} was shown as {shown.state} and is {now.state} now"
    if now.attempts != shown.attempts:
        return f"{shown.id} was shown in attempt {shown.attempts} and is in attempt {now.attempts} now"
    if row.name == "drain":
        # Work that left since makes the drain milder than was approved; work that arrived would be stopped unseen.
        seen = set(shown.work)
        arrived = tuple(id_ for id_ in now.work if id_ not in seen)
        return f"{shown.id} has work now that was not shown: {catalog.listed(arrived)}" if arrived else ""
    return ""


def checked_targets(row: Action, targets: Sequence[str]) -> tuple[str, ...]:
    """Explicit ids in the order given, without repeats. Patterns are not ids, so "all" cannot be said by accident."""
    if isinstance(targets, str):
        raise SpecError("targets", "is one text", "Give a list of ids")
    ids = tuple(dict.fromkeys(targets))
    if not ids:
        raise SpecError("targets", "is empty", f"Name each {row.kind}")
    if len(ids) > MAX_TARGETS:
        raise SpecError("targets", f"{len(ids):,} targets", f"Give at most {MAX_TARGETS:,} at a time")
    for i, id_ in enumerate(ids):
        check_id(id_, f"targets[{i}]")
    if row.kind == "policy":
        row.command(ids)
    return ids


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


def read(engine: Engine, row: Action, ids: tuple[str, ...]) -> tuple[Target, ...]:
    """The targets as they are now, in the order given. Raises NotFoundError naming every one that does not exist."""
    match row.kind:
        case "policy":
            return (Target(id=ids[0], state=engine.overview().policy),)
        case "workload":
            found = read_workloads(engine, ids)
        case "node":
            found = read_nodes(engine, ids)
    missing = [id_ for id_ in ids if id_ not in found]
    if missing:
        raise NotFoundError(f"no such {row.kind}: {', '.join(missing)}", f"Check the ids against the {row.kind} list")
    return tuple(found[id_] for id_ in ids)


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
            unsaved_ms=unsaved(work),
            worked_ms=worked(work),
        )
    return found


def worked(work: WorkloadDetail) -> int:
    """Milliseconds a workload has run in all its attempts, by its history."""
    total, since = 0, None
    for item in work.history:
        if since is not None:
            total += item.at_ms - since
        since = item.at_ms if item.what == "running" else None
    return total if since is None else total + work.now_ms - since


def unsaved(work: WorkloadDetail) -> int:
    """Milliseconds a bound workload has run that no checkpoint has saved."""
    if work.state not in catalog.BOUND or work.started_ms is None:
        return 0
    ran = work.now_ms - work.started_ms
    if not work.checkpoint_interval_ms:
        return ran
    return (work.kept_ms + ran) % work.checkpoint_interval_ms


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


def read_work(engine: Engine, row: Action, targets: tuple[Target, ...]) -> dict[str, Target]:
    """The workloads a drain would stop. A gang on several of the nodes is read, and later counted, once."""
    if row.name != "drain":
        return {}
    return read_workloads(engine, tuple(dict.fromkeys(id_ for target in targets for id_ in target.work)))


def stopped(row: Action, targets: tuple[Target, ...], work: dict[str, Target]) -> list[Target]:
    """The workloads whose work is stopped or thrown away."""
    return [target for target in (*targets, *work.values()) if catalog.loses_work(row, target)]


def pool_nodes(overview: Overview) -> dict[str, int]:
    return {pool.name: pool.nodes for pool in overview.pools}


def simulate(engine: Engine, row: Action, plan: Plan, stops: list[Target]) -> tuple[Effect, ...]:
    """What the plan and one scheduling cycle change, on a fork.

    The fork runs a cycle before it is looked at: what was about to start anyway is not the plan's doing.
    """
    fork = engine.fork()
    fork.settle()
    overview, started = fork.overview(), starts(fork)
    fork.command(catalog.command(plan))
    fork.settle()
    effects = compare(overview, fork.overview())
    if stops:
        label = "Cancelled with work done" if row.name == "cancel" else "Requeued"
        effects.append(Effect(label=label, before="none", after=catalog.workloads(len(stops))))
        effects.append(Effect(label="Work lost, if now", before="none", after=catalog.lost(row, stops)))
    effects += compare_starts(started, starts(fork))
    return tuple(effects)


def compare(before: Overview, after: Overview) -> list[Effect]:
    """The figures of every plan, and those others that change."""
    unit = scarce(before)[1]
    always = [
        Effect(label="Waiting", before=waiting(before), after=waiting(after)),
        Effect(label="Running", before=running(before), after=running(after)),
        Effect(label=f"{unit} in use", before=in_use(before), after=in_use(after)),
        Effect(label=f"{unit} free", before=free(before), after=free(after)),
    ]
    others = [
        Effect(label="On hold", before=held(before), after=held(after)),
        Effect(label="Nodes taking work", before=nodes_ready(before), after=nodes_ready(after)),
    ]
    return always + [effect for effect in others if effect.before != effect.after]


def waiting(overview: Overview) -> str:
    return f"{overview.states.get('queued', 0):,}"


def held(overview: Overview) -> str:
    return f"{overview.states.get('held', 0):,}"


def running(overview: Overview) -> str:
    return f"{sum(overview.states.get(state, 0) for state in catalog.BOUND):,}"


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
        effects.append(Effect(label="Starts because of it", before="none", after=catalog.listed(gained)))
    if missed:
        effects.append(Effect(label="No longer starts now", before=catalog.listed(missed), after="none"))
    return effects


def utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
