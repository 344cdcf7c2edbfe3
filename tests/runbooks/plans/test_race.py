"""Several who want the same, or the opposite, at once: one wins, the others are told why not, and it is done once."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from agreement import check_agreement
from cells import small_cell, submit, workload
from effort import THOROUGH
from gate_cells import HOUR, START, Clock
from gate_crash_worker import WIDE, make_cell, opened, steps
from gates import ME, gate_of
from sqlalchemy import Connection

from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.commands import AnyCommand, Receipt
from engine.model.errors import JournalBusy, JournalError, MusterError, RefusedError
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import Person, Policy, Rule
from runbooks.plans import typed_plan
from runbooks.plans.identity import Actor
from runbooks.plans.typed_plan import Outcome, Proposal
from tests.support.patience import PATIENCE_S

T = TypeVar("T")
EIGHT = range(8)
TWO_STEPS = steps(("cordon", ("g0", "g1")), ("hold", ("w0",)))
UNTOUCHED = {"g0": "ready", "g1": "ready", "g3": "ready", "w0": "queued"}


def crew(approvals: int) -> Policy:
    """Eight people with an account each, any of whom may approve."""
    people = tuple(Person(id=f"p{i}", accounts=(f"unix:{2000 + i}",), roles=("operator", "approver")) for i in EIGHT)
    rule = Rule(tier="T2", approvals=approvals, roles=("operator",), expiry_ms=HOUR, self_ok=("person",))
    return msgspec.structs.replace(WIDE, people=people, rules=(rule,))


def member(number: int) -> Actor:
    return Actor(subject=f"person:p{number}", account=f"unix:{2000 + number}")


class Interleaved(Engine):
    """An engine on which something else is done just before one of somebody's transactions."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.before = -1
        """Number of the transaction."""
        self.other: Callable[[], None] | None = None
        self.transactions = 0
        self.done: list[str] = []
        """Keys of the steps that reached the engine."""
        super().__init__(*args, **more)

    def _count(self) -> None:
        self.transactions += 1
        if self.transactions - 1 == self.before and self.other is not None:
            other, self.other = self.other, None
            other()

    def record(self, change: Callable[[Connection], T]) -> T:
        if self._beside is None:
            self._count()
        return super().record(change)

    def recorded(self, read: Callable[[Connection], T]) -> T:
        self._count()
        return super().recorded(read)

    def command(self, command: AnyCommand, *, audit: Any = None, beside: Any = None) -> Receipt:
        self._count()
        receipt = super().command(command, audit=audit, beside=beside)
        if audit is not None:
            self.done.append(audit.key)
        return receipt


def cell(policy: Policy = WIDE, path: Path | None = None, kind: type[Engine] = Engine) -> tuple[Engine, Gate, Clock]:
    """g0 to g3 are ready and w0 waits, because r0 to r2 run."""
    engine = kind.open(path, cell=small_cell())
    runs = [workload(f"r{i}", gpu=8000, run=100 * HOUR, estimate=100 * HOUR, queue="b") for i in range(3)]
    engine.command(submit(*runs, workload("w0", count=4, gpu=8000, queue="b")))
    clock = Clock(START)
    return engine, gate_of(engine, policy, clock), clock


def approved(gate: Gate) -> Proposal:
    """What anybody may execute now."""
    shown = gate.propose(ME, msgspec.structs.replace(TWO_STEPS, start="asked"))
    gate.approve(ME, shown.id, shown.digest, "seen and wanted")
    return gate.proposal(shown.id)


# -- eight at once ----------------------------------------------------------------------------------------------------


def execute_in_process(path: str, barrier: Any, results: Any) -> None:
    barrier.wait(PATIENCE_S)
    try:
        with opened(path) as (_, gate):
            result = f"won: {gate.execute(ME, 'P-1').state}"
            results.put(result)
            barrier.wait(PATIENCE_S)
    except MusterError as error:
        results.put(f"{type(error).__name__}: {error.problem}")
        barrier.wait(PATIENCE_S)


@pytest.mark.thorough
def test_eight_processes_cannot_have_one_journal(tmp_path: Path) -> None:
    """The one that has it executes, and the others are told which process that is."""
    path = tmp_path / "journal.db"
    make_cell(path)
    with opened(path) as (_, gate):
        shown = gate.propose(ME, msgspec.structs.replace(steps(("cordon", ("g0",))), start="asked"))
        gate.approve(ME, shown.id, shown.digest, "seen and wanted")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.control", "runbooks.gate.approval_gate", "sqlalchemy.dialects.sqlite"])
    barrier, results = context.Barrier(8), context.SimpleQueue()
    processes = [context.Process(target=execute_in_process, args=(str(path), barrier, results)) for _ in EIGHT]
    for process in processes:
        process.start()
    told = sorted(results.get() for _ in processes)
    for process in processes:
        process.join(PATIENCE_S)
    assert told[7] == "won: verified"
    assert all(text.startswith(JournalBusy.__name__) and "in another engine (process " in text for text in told[:7])
    with opened(path) as (engine, _):
        assert check_agreement(engine) == {"cordon": 1}


def at_once(engine: Engine, calls: Sequence[Callable[[Engine], Outcome]]) -> tuple[list[Outcome], list[MusterError]]:
    """What each of the calls, from a thread of its own, gave or was refused with."""
    loop = EngineLoop(engine)
    loop.start()
    barrier = threading.Barrier(len(calls))
    won: list[Outcome] = []
    lost: list[MusterError] = []

    def run(call: Callable[[Engine], Outcome]) -> None:
        barrier.wait(PATIENCE_S)
        try:
            won.append(loop.call(call))
        except MusterError as error:
            lost.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    loop.stop()
    return won, lost


@pytest.mark.parametrize("gates", [1, 8])
def test_one_of_eight_executors_wins(tmp_path: Path, gates: int) -> None:
    engine, gate, clock = cell(path=tmp_path / "journal.db")
    each = [gate, *(gate_of(engine, WIDE, clock) for _ in range(gates - 1))] * (8 // gates)
    shown = approved(gate)
    won, lost = at_once(engine, [lambda _, gate=gate: gate.execute(ME, shown.id) for gate in each])  # type: ignore[misc]
    assert [outcome.state for outcome in won] == ["verified"]
    assert {error.problem for error in lost} == {f"{shown.id} is verified: it cannot be executed"}
    assert len(lost) == 7
    assert check_agreement(engine, UNTOUCHED) == {"cordon": 1, "hold": 1}
    engine.close()


def test_of_eight_approvers_two_decide_and_the_rest_come_too_late(tmp_path: Path) -> None:
    engine, gate, _ = cell(crew(approvals=2), tmp_path / "journal.db")
    shown = gate.propose(member(0), TWO_STEPS)
    won, lost = at_once(
        engine,
        [lambda _, i=i: gate.approve(member(i), shown.id, shown.digest, "seen and wanted") for i in EIGHT],  # type: ignore[misc]
    )
    assert sorted(outcome.state for outcome in won) == ["awaiting", "verified"]
    assert all(f"{shown.id} was executed at" in error.problem for error in lost)
    assert len(lost) == 6
    assert check_agreement(engine, UNTOUCHED) == {"cordon": 1, "hold": 1}
    assert sum(not vote.counts for vote in gate.proposal(shown.id).votes) == 2
    engine.close()


# -- one between any two transactions of another ----------------------------------------------------------------------


def paused(gate: Gate) -> Proposal:
    """Before its last step, which waits for somebody's word."""
    first, last = TWO_STEPS.steps
    request = msgspec.structs.replace(TWO_STEPS, steps=(first, msgspec.structs.replace(last, confirm="operator")))
    shown = gate.propose(ME, request)
    gate.approve(ME, shown.id, shown.digest, "seen and wanted")
    return gate.proposal(shown.id)


def awaiting(gate: Gate) -> Proposal:
    return gate.propose(ME, TWO_STEPS)


def verified(gate: Gate) -> Proposal:
    shown = awaiting(gate)
    gate.approve(ME, shown.id, shown.digest, "seen and wanted")
    return gate.proposal(shown.id)


Deed = Callable[[Gate, Proposal, Clock], object]
YES = "seen and wanted"


def expire(gate: Gate, shown: Proposal, clock: Clock) -> None:
    clock.now_ms += 30 * HOUR
    gate.tick()


DEEDS: dict[str, Deed] = {
    "execute": lambda gate, shown, _: gate.execute(ME, shown.id),
    "approve": lambda gate, shown, _: gate.approve(ME, shown.id, shown.digest, YES),
    "reject": lambda gate, shown, _: gate.vote(ME, shown.id, shown.digest, "reject", "not now"),
    "cancel": lambda gate, shown, _: gate.cancel(ME, shown.id),
    "revise": lambda gate, shown, _: gate.revise(ME, shown.id, steps(("cordon", ("g3",)))),
    "expire": expire,
    "confirm": lambda gate, shown, _: gate.confirm(ME, shown.id, "2"),
    "resume": lambda gate, shown, _: gate.resume(ME, shown.id),
    "rollback": lambda gate, shown, _: gate.rollback(ME, shown.id, "no longer needed"),
    "propose": lambda gate, shown, _: gate.propose(ME, TWO_STEPS),
}
PAIRS: list[tuple[Callable[[Gate], Proposal], str, str]] = [
    *((approved, "execute", other) for other in ("execute", "cancel", "reject", "revise", "expire", "propose")),
    *((awaiting, "approve", other) for other in ("approve", "cancel", "reject", "revise", "expire")),
    (awaiting, "revise", "approve"),
    (awaiting, "cancel", "approve"),
    *((paused, "confirm", other) for other in ("confirm", "resume", "rollback")),
    (paused, "resume", "rollback"),
    *((paused, "rollback", other) for other in ("rollback", "confirm", "resume")),
    (verified, "rollback", "rollback"),
]


def interleave(start: Callable[[Gate], Proposal], one: str, other: str, before: int) -> bool:
    """Do `other` just before that transaction of `one`. False: there is no such transaction."""
    engine, gate, clock = cell(kind=Interleaved)
    assert isinstance(engine, Interleaved)
    shown = start(gate)
    engine.transactions, engine.before = 0, before
    refused: list[MusterError] = []

    def guarded(deed: str) -> None:
        try:
            DEEDS[deed](gate, shown, clock)
        except JournalError:
            raise
        except MusterError as error:
            refused.append(error)

    engine.other = lambda: guarded(other)
    guarded(one)
    reached = engine.other is None
    if reached:
        name = f"{other} before transaction {before} of {one}"
        assert all(
            shown.id in error.problem or "cannot cordon: g0 is cordoned" in error.problem for error in refused
        ), name
        check_agreement(engine, UNTOUCHED, engine.done)
        gate.tick()
        check_agreement(engine, UNTOUCHED, engine.done)
        assert not {found.state for found in gate.proposals()} & {"executing", "rolling_back", "verifying"}, name
    engine.close()
    return reached


@pytest.mark.parametrize(
    ("start", "one", "other"),
    [pytest.param(*pair, marks=[pytest.mark.thorough] * (i % 5 > 0)) for i, pair in enumerate(PAIRS)],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_whatever_comes_between(start: Callable[[Gate], Proposal], one: str, other: str) -> None:
    """At each transaction, or with `make test` at some, for a few pairs: nothing is done twice, by halves, or
    unapproved, and who is second is told so by name."""
    before = 0 if THOROUGH else PAIRS.index((start, one, other)) % 6
    while interleave(start, one, other, before):
        before += 1 if THOROUGH else 8


def test_expiry_between_the_last_vote_and_the_claim_leaves_everything_as_it_was(tmp_path: Path) -> None:
    engine, gate, clock = cell()
    shown = approved(gate)
    clock.now_ms = shown.expires_ms
    with pytest.raises(RefusedError, match=f"{shown.id} is expired"):
        gate.execute(ME, shown.id)
    assert gate.proposal(shown.id).state in typed_plan.ENDED
    assert check_agreement(engine, UNTOUCHED) == {}
    engine.close()
