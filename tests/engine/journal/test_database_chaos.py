"""Engines and their PostgreSQL server, killed and held up at random while work comes in. Afterwards everything that was
acknowledged is there once, nothing that was refused is there, and journal and audit verify."""

from __future__ import annotations

import collections
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import postgres
import pytest
from database_chaos_worker import NOTES, make_cell
from sqlalchemy import select

from engine.control import Engine
from engine.journal.database import Schema, place_of
from engine.model.events import Submitted, SubmittedMany
from runbooks.audit import verify
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not())

WORKER = Path(__file__).parents[2] / "support" / "database_chaos_worker.py"
"""From the end of an engine to the next one taking work, where the database answers."""


class Team:
    """Two engines at a time: one that works, one that stands by."""

    def __init__(self, url: str, folder: Path, server: postgres.Server) -> None:
        self.url = url
        self.server = server
        self.told = folder / "told"
        self.told.touch()
        self.log = folder / "log"
        self._hosts = 0
        self.workers: list[subprocess.Popen[bytes]] = []
        self.longest_s = 0.0
        """From the end of a working engine to the first thing that the next was told is kept."""

    def keep_two(self) -> None:
        for worker in [worker for worker in self.workers if worker.poll() is not None]:
            assert worker.returncode in (-signal.SIGKILL, 3), self.log.read_text()[-3000:]
            self.workers.remove(worker)
        while len(self.workers) < 2:
            self.workers.append(self._start())

    def _start(self) -> subprocess.Popen[bytes]:
        # Every other one as if on a machine of its own: whether it lives is then only known from its lease.
        self._hosts += 1
        host = [f"host{self._hosts}"] if self._hosts % 2 else []
        roots = f"{WORKER.parents[2]}{os.pathsep}{WORKER.parent}"
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, str(WORKER), self.url, str(self.told), *host], stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": roots, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def working(self) -> subprocess.Popen[bytes] | None:
        """Who has the lease, if it is one of these."""
        held = self._holders("lease")
        return next((one for one in self.workers if f'"pid":{one.pid},' in held), None)

    def wait_for_standby(self) -> None:
        """Until the other one stands by: before that nobody can take over."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(f'"pid":{one.pid},' in self._holders("standby") for one in self.workers):
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            self.keep_two()
            time.sleep(0.05)

    def _holders(self, table: str) -> str:
        import psycopg

        place = place_of(self.url)
        assert isinstance(place, Schema)
        try:
            with psycopg.connect(place.conninfo, connect_timeout=2) as connection:
                rows = connection.execute(f'SELECT holder FROM "{place.name}".{table}').fetchall()
        except psycopg.OperationalError:
            return ""
        return " ".join(holder for (holder,) in rows)

    def wait_for_work(self, count: int = 1) -> float:
        """Until so many more things are acknowledged. Returns how long that took."""
        size = self.told.stat().st_size
        began = time.monotonic()
        while True:
            with open(self.told, "rb") as file:
                file.seek(size)
                if sum(line[:1] in b"SRB" for line in file.read().splitlines()) >= count:
                    return time.monotonic() - began
            assert time.monotonic() - began < PATIENCE_S, self.log.read_text()[-3000:]
            self.keep_two()
            time.sleep(0.02)

    def end(self) -> None:
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)
            worker.kill()
            worker.wait()


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    with postgres.own_server() as server:
        url = server.cell()
        make_cell(url)
        made = Team(url, tmp_path, server)
        try:
            yield made
        finally:
            made.end()


def wreak(team: Team, rng: random.Random, harm: str) -> None:
    """One harm, and the wait until work goes on."""
    if harm in ("engine", "hang"):
        team.wait_for_standby()
    active = team.working()
    if harm == "engine" and active is not None:
        active.kill()
        active.wait()
        team.longest_s = max(team.longest_s, team.wait_for_work())
    elif harm == "hang" and active is not None:
        active.send_signal(signal.SIGSTOP)
        team.longest_s = max(team.longest_s, team.wait_for_work())
        active.send_signal(signal.SIGCONT)
    elif harm == "both" and active is not None:
        team.server.kill()
        active.kill()
        active.wait()
        team.server.start()
        team.wait_for_work()
    elif harm == "stop":
        team.server.stop()
        time.sleep(rng.random())
        team.server.start()
        team.wait_for_work()
    elif harm == "hold":
        team.server.hold()
        time.sleep(rng.random() * 2)
        team.server.go_on()
        team.wait_for_work()
    else:
        team.server.kill()
        time.sleep(rng.random() * rng.choice((0.1, 1, 6)))
        team.server.start()
        team.wait_for_work()


def play(team: Team, seed: int, harms: list[str]) -> None:
    rng = random.Random(seed)
    team.keep_two()
    team.wait_for_work()
    for harm in harms:
        team.wait_for_work(count=rng.randint(20, 60))
        wreak(team, rng, harm)
        team.keep_two()
    team.end()


def check(team: Team) -> collections.Counter[str]:
    """What everybody was told, against what is there."""
    words = [line.split() for line in team.told.read_text().splitlines()]
    told = {name: word for word, *names in words for name in names}
    engine = Engine.open(team.url)
    try:
        assert engine._journal.verify() == engine.version
        submitted = collections.Counter(
            spec for batch in engine._journal.after(0, 0) for event in batch for spec in _submitted(event)
        )
        notes = collections.Counter(
            engine.recorded(lambda connection: connection.execute(select(NOTES.c.name)).scalars().all())
        )
        assert [name for found in (submitted, notes) for name, count in found.items() if count > 1] == []
        for name, word in told.items():
            if word in "SB":
                assert name in submitted, f"{name} was acknowledged and is lost"
            if word in "RB":
                assert name in notes, f"the note {name} was acknowledged and is lost"
            if word == "N":
                assert name not in submitted, f"{name} was refused and is there"
                assert name not in notes, f"the note {name} was refused and is there"
        digest = engine.state.digest()
    finally:
        engine.close()
    again = Engine.open(team.url, use_snapshot=False)
    assert again.state.digest() == digest
    again.close()
    report = verify.check(verify.open_source(team.url))
    assert [str(problem) for problem in report.problems] == []
    audited = sum(word == "R" for word in told.values())
    assert report.records >= audited
    return collections.Counter(told.values())


def _submitted(event: object) -> list[str]:
    """Ids of the workloads that an event submits."""
    if isinstance(event, Submitted):
        return [event.workload.id]
    return [spec.id for spec in event.workloads] if isinstance(event, SubmittedMany) else []


@pytest.mark.thorough
def test_killed_and_held_up_nothing_is_lost_and_nothing_doubled(team: Team) -> None:
    play(team, 1, ["server", "engine", "both"])
    counts = check(team)
    assert counts["S"] + counts["R"] + counts["B"] >= 60


@pytest.mark.slow
def test_a_hundred_times_over(team: Team) -> None:
    rng = random.Random(2)
    harms = rng.choices(
        ("engine", "server", "both", "stop", "hold", "hang"), weights=(35, 35, 12, 8, 8, 6), k=int(
            os.environ.get("MUSTER_TEST_HARMS", "110")
        )
    )  # fmt: skip
    play(team, 2, harms)
    counts = check(team)
    print(f"{len(harms)} harms, {collections.Counter(harms)}; told: {counts}; longest takeover {team.longest_s:.1f} s")
