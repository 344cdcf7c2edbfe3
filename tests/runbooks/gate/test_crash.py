"""kill -9 of a process that executes plans: at every boundary of its transactions, and at any moment.

Afterwards each effect was had once or not at all, the engine, the gate and the audit tell the same, nothing that a
person must look at has gone on by itself, and everything can be brought to its end."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gate_crash_worker as worker
import postgres
import pytest
from agreement import check_agreement
from effort import THOROUGH
from gate_cells import MINUTE, START
from gate_crash_worker import UNTOUCHED
from on_postgres import is_server, kept
from sqlalchemy import select

from engine.control import Engine
from engine.journal.database import place_of
from engine.journal.outside_readers import read
from runbooks.gate.approval_gate import Gate
from runbooks.gate.store import PROPOSAL
from runbooks.plans import typed_plan
from tests.support.patience import PATIENCE_S

CHOSEN = {
    True: ("after proposal.claimed", "after requeue", "in release", "after uncordon"),
    False: ("in proposal.submitted", "after cordon", "after exec.confirmed"),
}
"""Of the boundaries, those that the quick test tries when it goes on at once, and when it goes on later: amid a mild
plan, behind a step of a harsh one, on the way back."""
MORE = 5
"""Every so manieth is tried too where there is time."""


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal on which the script has not been played yet."""
    path = tmp_path_factory.mktemp("cell") / "journal.db"
    worker.make_cell(path)
    return path


@pytest.fixture(scope="module")
def boundaries(cell: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of all: the same on every database."""
    return worker.play_until(str(shutil.copy(cell, tmp_path_factory.mktemp("whole") / "journal.db")), -1)


def copied(cell: Path, folder: Path) -> str:
    """Where there is a journal like it now."""
    if not is_server():
        return str(shutil.copy(cell, folder / "journal.db"))
    url = postgres.new_url()
    worker.make_cell(url)
    return url


def run_and_kill(function: Callable[..., Any], *arguments: object, after: Callable[[], None] | None = None) -> None:
    """Run a worker that ends itself; or that is killed once `after` returns."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.control", "runbooks.gate.approval_gate", "sqlalchemy.dialects.sqlite"])
    process = context.Process(target=function, args=arguments)
    process.start()
    if after is not None:
        after()
        process.kill()
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL, "the worker ended otherwise"


def left(path: Path | str) -> dict[str, tuple[str, str, int]]:
    """Proposal -> (tier, state, next step), as a killed process left them."""
    columns = (PROPOSAL.c.number, PROPOSAL.c.tier, PROPOSAL.c.state, PROPOSAL.c.cursor)
    rows = read(place_of(path), lambda connection: connection.execute(select(*columns)).all())
    return {f"P-{number}": (tier, state, cursor) for number, tier, state, cursor in rows}


def check_left(before: dict[str, tuple[str, str, int]], gate: Gate, *, fresh: bool) -> None:
    """What went on by itself when the engine was started again, and what waits for a person."""
    for name, (tier, state, cursor) in before.items():
        now = gate.proposal(name)
        done = sum(standing.state != "waiting" for standing in now.standing)
        if state == "rolling_back":
            assert now.state == "rolled_back"
        elif state not in ("approved", "executing", "verifying") or (
            state == "approved" and not (fresh and tier <= "T1")
        ):
            assert (now.state, done) == (state, cursor), f"{name} went on by itself"
        elif fresh and tier <= "T1":
            assert now.state in ("verified", "rolled_back") or "waits for confirmation" in now.note, (
                f"{name} did not go on"
            )
        else:
            assert done == cursor, f"{name} went on by itself"
            assert now.state == "paused" or done == len(now.standing), f"{name} is {now.state}"


def kill_at(cell: Path, boundaries: list[str], chosen: Iterable[int], folder: Path, *, fresh: bool) -> None:
    for boundary in chosen:
        path = copied(cell, folder)
        run_and_kill(worker.play_until, path, boundary)
        before = left(path)
        try:
            with worker.opened(path, START if fresh else START + 10 * MINUTE) as (engine, gate):
                gate.tick()
                check_agreement(engine, UNTOUCHED)
                check_left(before, gate, fresh=fresh)
                worker.bring_to_an_end(gate)
                check_agreement(engine, UNTOUCHED)
        except AssertionError as error:
            raise AssertionError(f"killed {boundaries[boundary]} ({boundary}): {error}") from error
        clear(folder)


@pytest.mark.both_databases
@pytest.mark.parametrize("fresh", [True, False])
def test_killed_at_some_boundaries(cell: Path, boundaries: list[str], tmp_path: Path, fresh: bool) -> None:
    chosen = {boundaries.index(name) for name in CHOSEN[fresh]}
    more = range(fresh, len(boundaries), MORE) if THOROUGH and not is_server() else ()
    kill_at(cell, boundaries, sorted({*chosen, *more}), tmp_path, fresh=fresh)


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [True, False])
def test_killed_at_every_boundary(cell: Path, boundaries: list[str], tmp_path: Path, fresh: bool) -> None:
    kill_at(cell, boundaries, range(len(boundaries)), tmp_path, fresh=fresh)


def clear(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def test_the_boundaries_are_those_of_every_edge(boundaries: list[str]) -> None:
    """So that a new edge is not left out of the kills by accident."""
    told = {name.split(" ", 1)[1] for name in boundaries}
    events = {event for _, event in typed_plan.EDGES}
    elsewhere = {
        "simulated", "acted", "denied", "expired", "superseded", "staled", "revised", "broke_glass", "failed",
        "rollback_failed", "fell_short", "finished",
    }  # fmt: skip
    assert {f"proposal.{event}" for event in events - elsewhere} <= told
    assert {"checkpoint", "exec.confirmed", "cordon", "uncordon", "requeue", "release"} <= told


@pytest.mark.slow
@pytest.mark.about_files("a file that was left behind is copied before each recovery")
def test_killed_while_it_recovers(cell: Path, boundaries: list[str], tmp_path: Path) -> None:
    """At every boundary of the recovery from a kill in the midst of a plan, and of its way back."""
    for first, name in enumerate(boundaries):
        if name not in ("after proposal.claimed", "after cordon", "after release"):
            continue
        killed = copied(cell, tmp_path)
        run_and_kill(worker.play_until, killed, first)
        for file in tmp_path.iterdir():
            file.rename(tmp_path / file.name.replace("journal", "killed"))
        again = 0
        while True:
            path = tmp_path / "journal.db"
            for suffix in ("", "-wal"):
                shutil.copy(f"{tmp_path / 'killed.db'}{suffix}", f"{path}{suffix}")
            if again == 0:
                told = worker.recover_until(str(path), -1)
            else:
                run_and_kill(worker.recover_until, str(path), again - 1)
                with worker.opened(path) as (engine, gate):
                    gate.tick()
                    check_agreement(engine, UNTOUCHED)
                    worker.bring_to_an_end(gate)
                    check_agreement(engine, UNTOUCHED)
            for file in tmp_path.glob("journal*"):
                file.unlink()
            again += 1
            if again > len(told):
                break
        clear(tmp_path)


def test_a_message_whose_sending_was_cut_short_is_sent_again_under_its_key(cell: Path, tmp_path: Path) -> None:
    """Nobody can know whether it went out: whoever receives it can, by the key."""
    sent: list[tuple[str, str]] = []

    def cut_short(channel: str, key: str, text: str) -> None:
        sent.append((channel, key))
        raise KeyboardInterrupt

    path = copied(cell, tmp_path)
    with worker.opened(path) as (_, gate):
        worker.approve(gate, worker.steps(("notify", ("chat",))))
        gate.outbox.send = cut_short
        with pytest.raises(KeyboardInterrupt):
            gate.tick()
    with worker.opened(path) as (engine, gate):
        gate.outbox.send = lambda channel, key, text: sent.append((channel, key))
        gate.tick()
        gate.tick()
        check_agreement(engine)
    assert len(sent) == 2
    assert sent[0] == sent[1]


# -- at any moment ----------------------------------------------------------------------------------------------------


def random_kills(path: Path | str, rounds: int, folder: Path) -> Counter[str]:
    """Kill `rounds` workers one after another on the same journal, checking each time; more of them where none came to
    have an effect, as on a busy machine. Returns what was seen."""
    worker.make_cell(path)
    rng = random.Random(2026)
    seen: Counter[str] = Counter()
    final: dict[str, str] = {}
    effects: Counter[str] = Counter()
    for seed in range(5 * rounds):
        if seed >= rounds and effects:
            break
        at_ms = START + seed * 15 * MINUTE
        told = folder / f"told-{seed}"
        run_and_kill(worker.work, str(path), seed, at_ms, str(told), after=lambda told=told: some_time(told, rng))  # type: ignore[misc]
        acknowledged = [line.split() for line in told.read_text().split("\n")[1:-1]]
        final |= {name: state for name, state in acknowledged if state in ("rolled_back", "cancelled")}
        before = left(path)
        seen.update(f"killed while {state}" for _, state, _ in before.values() if state in typed_plan.LIVE)
        fresh = rng.random() < 0.7
        with worker.opened(path, at_ms if fresh else at_ms + 10 * MINUTE) as (engine, gate):
            gate.tick()
            had, effects = effects, check_agreement(engine, UNTOUCHED)
            assert had <= effects, "an effect is gone"
            states = {shown.id: shown.state for shown in gate.proposals(limit=10**6)}
            assert {name: states[name] for name in final} == final, "what was acknowledged is gone"
            assert not {"executing", "rolling_back"} & set(states.values())
            digest = engine.state.digest()
        seen["acknowledged"] += len(acknowledged)
        if seed % 10 == 9:
            again = Engine.open(path, use_snapshot=False)
            assert again.state.digest() == digest, "the events alone lead elsewhere"
            again.close()
    seen.update(effects=effects.total(), proposals=len(states))
    return seen


def some_time(told: Path, rng: random.Random) -> None:
    """Until it has begun, or has acknowledged one thing or two, and then for any time at all."""
    lines, moment = rng.choice((0, 1, 2, 3)), rng.uniform(0.0, 0.2)
    while not told.exists() or told.read_bytes().count(b"\n") < lines:
        time.sleep(0.002)
    time.sleep(moment)  # the random moment itself, not a wait for something


@pytest.mark.both_databases
def test_killed_at_any_moment(tmp_path: Path) -> None:
    rounds = 6 if is_server() else 40 if THOROUGH else 5
    seen = random_kills(kept(tmp_path / "journal.db"), rounds, tmp_path)
    assert seen["effects"]


@pytest.mark.slow
def test_killed_at_two_hundred_moments(tmp_path: Path) -> None:
    seen = random_kills(kept(tmp_path / "journal.db"), 220, tmp_path)
    print("\n220 kills:", dict(seen))
    assert seen["killed while executing"] + seen["killed while verifying"] > 5
