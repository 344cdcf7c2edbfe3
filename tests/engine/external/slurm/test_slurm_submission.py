"""Nothing that Muster acknowledged is lost or done twice, whatever Slurm and the line to it do."""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec
import pytest
from cells import workload
from made_up_slurm import Connection, EngineLedger, MadeUpSlurm, OneByOne, live, outside_cell

from engine.control import Engine
from engine.external.slurm.submission_carrier import Submitter
from engine.model.commands import Submit
from engine.model.specs import RunSpec
from engine.state.external_cell import Phase


def job(name: str) -> Submit:
    return Submit(workloads=(msgspec.structs.replace(workload(name), run=RunSpec(argv=("true",)), rerun="always"),))


def submitter(engine: Engine, slurm: MadeUpSlurm, missing: Collection[str] = ()) -> Submitter:
    return Submitter(
        Connection(slurm), EngineLedger(engine), OneByOne(), clock=slurm.clock, wall_ms=slurm.wall_ms,
        missing=lambda: missing,
    )  # fmt: skip


def play(seed: int, jobs: int = 60) -> tuple[Engine, MadeUpSlurm, int]:
    """A day of trouble: submissions, crashes of Slurm and of Muster, faults of the line. Then quiet until all is
    settled. Returns also how many submissions were carried anew."""
    rng = random.Random(seed)
    slurm = MadeUpSlurm(rng, faults=rng.choice((0.0, 0.1, 0.4)))
    engine = outside_cell()
    driver = submitter(engine, slurm)
    wanted = 0
    while wanted < jobs:
        for _ in range(rng.randint(0, 6)):
            engine.advance(slurm.wall_ms())
            engine.command(job(f"w{wanted}"))
            wanted += 1
        chance = rng.random()
        if chance < 0.15:
            slurm.crash()
        elif chance < 0.35:
            slurm.restart()
        elif chance < 0.45:
            driver = submitter(engine, slurm)  # Muster was killed and is back
        elif chance < 0.6:
            slurm.other_submits()
        engine.advance(slurm.wall_ms())
        driver.turn()
        slurm.pass_time(rng.uniform(0, 4))
    slurm.faults = 0.0
    slurm.restart()
    for _ in range(400):
        if not engine.state.intents.open:
            break
        engine.advance(slurm.wall_ms())
        driver.turn()
        slurm.pass_time(1.0)
    return engine, slurm, sum(intent.tries for intent in engine.state.intents.ended)


@pytest.mark.parametrize("seed", range(25))
def test_each_submission_becomes_one_job(seed: int) -> None:
    engine, slurm, _ = play(seed)
    intents = engine.state.intents
    assert not intents.open
    assert len(intents.ended) >= 60
    assert {intent.phase for intent in intents.ended} == {Phase.DONE}
    for intent in intents.ended:
        assert len(live(slurm, intent.token)) + (slurm.finished[intent.token] > 0) >= 1
        assert slurm.finished[intent.token] + sum(j.state != "COMPLETED" for j in live(slurm, intent.token)) == 1


def test_the_made_up_slurm_loses_jobs_and_gives_their_ids_again() -> None:
    """Else the test above shows nothing."""
    tries = again = 0
    for seed in range(12):
        _, slurm, carried_anew = play(seed)
        tries += carried_anew
        again += slurm.given_again
    assert tries > 50
    assert again > 50


@pytest.mark.parametrize("missing", [(), ("w",)])
def test_what_the_mirror_does_not_find_any_more_is_submitted_anew_at_once(missing: tuple[str, ...]) -> None:
    slurm = MadeUpSlurm(random.Random(1), runs=False)
    engine = outside_cell()
    engine.advance(slurm.wall_ms())
    engine.command(job("w"))
    driver = submitter(engine, slurm, missing)
    driver.turn()
    driver.turn()  # read back
    slurm.crash()
    slurm.restart()
    for _ in range(6):
        slurm.pass_time(0.5)
        engine.advance(slurm.wall_ms())
        driver.turn()
    [intent] = engine.state.intents.open.values()
    # Else it is when the job should be safe.
    assert (intent.tries, len(live(slurm, intent.token))) == ((1, 1) if missing else (0, 0))


def test_what_slurm_forgot_is_submitted_anew_however_often_muster_is_killed() -> None:
    slurm = MadeUpSlurm(random.Random(1), runs=False)
    engine = outside_cell()
    engine.advance(slurm.wall_ms())
    engine.command(job("w"))
    driver = submitter(engine, slurm)
    driver.turn()
    driver.turn()  # read back
    slurm.crash()
    slurm.restart()
    for _ in range(3):
        slurm.pass_time(5.0)
        engine.advance(slurm.wall_ms())
        driver = submitter(engine, slurm)  # each lives for less than it takes a job to be safe
        driver.turn()
        driver.turn()
    [intent] = engine.state.intents.open.values()
    assert (intent.tries, len(live(slurm, intent.token))) == (1, 1)


@pytest.mark.parametrize(("ended_kept_s", "phase"), [(86_400.0, Phase.DONE), (0.0, Phase.IN_DOUBT)])
def test_what_is_found_lost_late_is_submitted_anew_where_slurm_keeps_what_ended_for_longer(
    ended_kept_s: float, phase: Phase
) -> None:
    slurm = MadeUpSlurm(random.Random(1), runs=False)
    slurm.says_ended_kept_s = ended_kept_s
    engine = outside_cell()
    engine.advance(slurm.wall_ms())
    engine.command(job("w"))
    driver = submitter(engine, slurm)
    driver.turn()
    driver.turn()  # read back
    slurm.crash()
    slurm.restart()
    slurm.pass_time(400.0)
    for _ in range(60):
        engine.advance(slurm.wall_ms())
        driver.turn()
        slurm.pass_time(1.0)
    [intent] = engine.state.intents.ended
    assert intent.phase == phase
