"""A process that proposes, approves, executes and takes back, and is going to be killed: at a boundary of its own
choice, or from outside at any moment."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from agreement import states
from cells import small_cell, submit, workload
from gate_cells import HOUR, MINUTE, START
from gates import ME, gate_of
from sqlalchemy import Connection, event, select

from engine.control import Engine
from engine.model.commands import AnyCommand, Receipt
from engine.model.errors import MusterError
from runbooks.audit.log import record_table
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import SOLO
from runbooks.gate.run_limits import ByTier, PolicyLimits
from runbooks.plans import typed_plan
from runbooks.plans.checks import Check
from runbooks.plans.typed_plan import Act, Note, Outcome, Proposal, Request, StepRequest

T = TypeVar("T")

MANY = 10**6
WIDE = msgspec.structs.replace(
    SOLO,
    limits=PolicyLimits(
        executions_per_hour=ByTier(T0=MANY, T1=MANY, T2=MANY, T3=MANY), nodes_least=MANY, gpus_least=MANY,
        workloads_per_hour=MANY, proposals_per_author_hour=MANY,
    ),
    channels=(("chat", "log:"),),
)  # fmt: skip
"""One person may approve everything, as often as they like: limits are tested elsewhere."""
NODES = tuple(f"g{i}" for i in range(8))
WAITING = tuple(f"big{i}" for i in range(6))
UNTOUCHED = {**dict.fromkeys(NODES, "ready"), **dict.fromkeys(WAITING, "queued"), "a": "open", "b": "open"}
"""What plans act on, and its state before any."""


def make_cell(path: Path | str) -> None:
    """A journal with eight nodes, work that runs, and work that waits because it is too large."""
    engine = Engine.open(path, cell=small_cell(gpu_nodes=8), seed=11)
    runs = [workload(f"r{i}", gpu=8000, run=100 * HOUR, estimate=100 * HOUR, queue="b") for i in range(3)]
    waits = [workload(name, count=8, gpu=8000, queue="b") for name in WAITING]
    engine.command(submit(*runs, *waits))
    gate_of(engine, WIDE, lambda: START)
    engine.close()


@contextlib.contextmanager
def opened(path: str | Path, at_ms: int = START, kind: Any = Engine) -> Iterator[tuple[Any, Gate]]:
    """What the journal has, going on at that wall time."""
    engine = kind.open(path)
    try:
        yield engine, gate_of(engine, WIDE, lambda: at_ms)
    finally:
        engine.close()


def steps(*acts: tuple[str, Sequence[str]], **fields: Any) -> Request:
    """A request of one step for each (action, targets). `fields` are of each step."""
    note = Note(text="it is being worked on")
    made = [
        Act(action=action, targets=tuple(targets), note=note if action in ("notify", "open_review") else None)  # type: ignore[arg-type]
        for action, targets in acts
    ]
    return Request(steps=tuple(StepRequest(act=act, **fields) for act in made))


# -- at a boundary ----------------------------------------------------------------------------------------------------


class Ending(Engine):
    """An engine whose process ends at one of the boundaries of its transactions: with everything written and not
    committed yet, or just committed. Those that write nothing are no boundaries."""

    at = -1
    """Boundary at which it ends; -1: it only tells them."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.passed: list[str] = []
        super().__init__(*args, **more)

    def record(self, change: Callable[[Connection], T]) -> T:
        wrote: list[str] = []

        def inside(connection: Connection) -> T:
            head, writes = _newest(connection), _writes(connection)
            result = change(connection)
            if writes:
                newest = _newest(connection)
                wrote.append("checkpoint" if newest == head else newest[1])
                self._pass(f"in {wrote[0]}")
            return result

        result = super().record(inside)
        for name in wrote:
            self._pass(f"after {name}")
        return result

    def command(self, command: AnyCommand, *, audit: Any = None, beside: Any = None) -> Receipt:
        if beside is None:
            return super().command(command, audit=audit)
        self._pass(f"before {audit.action}")

        def inside(connection: Connection) -> None:
            self._pass(f"engine's part of {audit.action}")
            beside(connection)
            self._pass(f"in {audit.action}")

        receipt = super().command(command, audit=audit, beside=inside)
        self._pass(f"after {audit.action}")
        return receipt

    def _pass(self, name: str) -> None:
        self.passed.append(name)
        if len(self.passed) - 1 == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def _newest(connection: Connection) -> tuple[int, str]:
    """Number and type of the last record."""
    newest = select(record_table.c.seq, record_table.c.type).order_by(record_table.c.seq.desc()).limit(1)
    seq, type_ = connection.execute(newest).one()
    return int(seq), str(type_)


def _writes(connection: Connection) -> list[str]:
    """Grows with each statement from now on that changes rows."""
    writes: list[str] = []

    def note(_: Any, cursor: Any, statement: str, *more: Any) -> None:
        if not statement.startswith("SELECT") and cursor.rowcount > 0:
            writes.append(statement)

    event.listen(connection, "after_cursor_execute", note)
    return writes


def play_until(path: str, boundary: int) -> list[str]:
    """Play the script and end at a boundary. Returns the names of all where there is no such one."""
    with opened(path, kind=Ending) as (engine, gate):
        engine.passed, engine.at = [], boundary
        play(gate)
    return list(engine.passed)


def recover_until(path: str, boundary: int) -> list[str]:
    """Open what a process left, and end at a boundary of the recovery. Returns the names of all where there is no such
    one."""
    Ending.at = boundary
    with opened(path, kind=Ending) as (engine, gate):
        gate.tick()
    return list(engine.passed)


MILD = steps(("cordon", ("g0",)), ("open_review", ("g0",)), ("hold", ("big0",)), ("notify", ("chat",)))
HARSH = steps(("requeue", ("r0",)), ("cordon", ("g2",)), ("hold", ("big1",)))
ASKED = steps(("hold", ("big2",)), ("hold_queue", ("a",)), confirm="operator")
FAILS = steps(
    ("cordon", ("g4",)), ("hold", ("big3",)), on_fail="rollback",
    verify=(Check(check="workload_state", of="big3", op="==", value="queued"),),
)  # fmt: skip
"""The second step does what the check after it does not want."""
UNWANTED = steps(("cordon", ("g3",)))


def play(gate: Gate) -> None:
    """Every edge that a step leads along: mild and harsh plans, one that waits for a word at each step, one that is
    taken back, one that fails, one that is rejected, one withdrawn."""
    mild = approve(gate, MILD)
    harsh = gate.propose(ME, HARSH)
    assert (gate.proposal(mild.proposal).tier, harsh.tier) == ("T1", "T2")
    approve(gate, ASKED)
    gate.approve(ME, harsh.id, harsh.digest, "seen and wanted")
    waits = [shown for shown in gate.proposals(("paused",)) if shown.plan.steps[0].confirm != "none"]
    for shown in waits:
        gate.confirm(ME, shown.id, "1")
        gate.confirm(ME, shown.id, "2")
    gate.rollback(ME, mild.proposal, "no longer needed")
    approve(gate, FAILS)
    unwanted = gate.propose(ME, UNWANTED)
    gate.vote(ME, unwanted.id, unwanted.digest, "reject", "not now")
    gate.cancel(ME, gate.propose(ME, UNWANTED).id)
    gate.tick()


def approve(gate: Gate, request: Request) -> Outcome:
    shown = gate.propose(ME, request)
    return gate.approve(ME, shown.id, shown.digest, "seen and wanted")


def go_on(gate: Gate, shown: Proposal) -> None:
    """What a person does with what is left under way: say yes, say go, or let it go on."""
    if shown.state in ("awaiting", "approved"):
        gate.approve(ME, shown.id, shown.digest, "seen and wanted")
    elif shown.state == "verifying":
        gate.tick()
    elif shown.state == "paused" and "waits for confirmation" in shown.note:
        gate.confirm(ME, shown.id, next(step.id for step in shown.standing if step.state == "waiting"))
    elif shown.state in ("paused", "executing"):
        gate.resume(ME, shown.id) if shown.state == "paused" else gate.execute(ME, shown.id)


def bring_to_an_end(gate: Gate) -> None:
    """As people would, step by step."""
    for _ in range(12):
        open_ones = [shown for shown in gate.proposals() if shown.state not in typed_plan.ENDED]
        if not open_ones:
            return
        for shown in open_ones:
            go_on(gate, shown)
    raise AssertionError([(shown.id, shown.state, shown.note) for shown in open_ones])


# -- at any moment ----------------------------------------------------------------------------------------------------


def work(path: str, seed: int, at_ms: int, acknowledged_path: str) -> None:
    """Do random things to several plans at a time until killed. Writes down what became of each, once it was told."""
    acknowledgements = os.open(acknowledged_path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    rng = random.Random(seed)
    with opened(path, at_ms) as (engine, gate):
        os.write(acknowledgements, b"ready\n")
        while True:
            with contextlib.suppress(MusterError):
                name, state = _one(engine, gate, rng)
                os.write(acknowledgements, f"{name} {state}\n".encode())
            if rng.random() < 0.1:
                engine.advance(engine.now_ms + MINUTE)


def _one(engine: Engine, gate: Gate, rng: random.Random) -> tuple[str, str]:
    """One thing that somebody may ask for: the proposal, and the state it was said to be in then."""
    under_way = gate.proposals(("awaiting", "approved", "executing", "verifying", "paused", "failed", "verified"), 4)
    deed = rng.random()
    if not under_way or deed < 0.45:
        shown = gate.propose(ME, _wish(engine, rng))
        if rng.random() < 0.8:
            return shown.id, gate.approve(ME, shown.id, shown.digest, "seen and wanted").state
        return shown.id, shown.state
    shown = rng.choice(under_way)
    if deed < 0.75:
        go_on(gate, shown)
    elif deed < 0.9:
        return shown.id, gate.rollback(ME, shown.id, "no longer needed").state
    elif deed < 0.95:
        return shown.id, gate.revise(ME, shown.id, _wish(engine, rng)).state
    else:
        return shown.id, gate.cancel(ME, shown.id).state
    return shown.id, gate.proposal(shown.id).state


OTHER_WAY = {
    "ready": "cordon", "cordoned": "uncordon", "queued": "hold", "waiting": "hold", "held": "release",
    "open": "hold_queue",
}  # fmt: skip


def _wish(engine: Engine, rng: random.Random) -> Request:
    """One to five steps on different targets."""
    targets = rng.sample((*NODES, *WAITING, "a"), rng.randint(1, 4))
    acts = [(OTHER_WAY[state], (target,)) for target, state in states(engine, targets).items() if state in OTHER_WAY]
    if rng.random() < 0.3:
        acts.append(("open_review", ("cell",)))
    if rng.random() < 0.2:
        acts.insert(0, ("requeue", (f"r{rng.randrange(3)}",)))
    word, on_fail = rng.choice(("none", "none", "none", "none", "operator")), rng.choice(("pause", "rollback"))
    request = steps(*acts, confirm=word, on_fail=on_fail)
    return msgspec.structs.replace(request, start=rng.choice(("approved", "approved", "asked")))
