"""What a person says of an intent in doubt is kept, is said once, and has nothing done twice."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from cells import small_cell, workload
from made_up_slurm import Connection, EngineLedger, MadeUpSlurm, OneByOne, live, outside_cell, put_in_doubt

from engine.control import Engine
from engine.external.slurm import submission_carrier
from engine.external.slurm.capabilities import SlurmRefused, SlurmUnavailable
from engine.external.slurm.records import Job, JobList, JobRequest, PastJob, SlurmNodes
from engine.external.slurm.submission_carrier import Submitter
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.specs import RunSpec
from engine.state.cell_state import State
from engine.state.external_cell import DOUBTS_KEPT, ENDED_KEPT, Phase, wanted


def job(name: str) -> cmd.Submit:
    return cmd.Submit(workloads=(msgspec.structs.replace(workload(name), run=RunSpec(argv=("true",))),))


def say(engine: Engine, number: int, outcome: str) -> cmd.Receipt:
    return engine.command(cmd.AnswerIntent(number=number, outcome=outcome, by="person:ann"))  # type: ignore[arg-type]


def phase(engine: Engine, number: int) -> Phase:
    found = engine.state.intents.known(number)
    assert found is not None
    return Phase(found.phase)


@pytest.mark.parametrize(("outcome", "phase_"), [("done", Phase.DONE), ("undone", Phase.UNDONE)])
def test_a_word_settles_a_doubt_once(outcome: str, phase_: Phase) -> None:
    engine = outside_cell()
    node = engine.state.capacity.node_ids[0]
    number = put_in_doubt(engine, cmd.Cordon(ids=(node,)))
    assert engine.intents().in_doubt == 1
    say(engine, number, outcome)
    assert phase(engine, number) == phase_
    assert engine.intents().in_doubt == 0
    words = engine.state.intents.known(number).words  # type: ignore[union-attr]
    assert [Phase(word.phase) for word in words] == [Phase.SENT, Phase.ACCEPTED, Phase.IN_DOUBT, phase_]
    assert "person:ann says" in words[-1].text
    with pytest.raises(RefusedError, match=f"i{number} is {phase_.label}"):
        say(engine, number, "done")


def test_only_a_doubt_waits_for_a_word() -> None:
    engine = outside_cell()
    engine.command(job("w"))
    number = next(iter(engine.state.intents.open))
    with pytest.raises(RefusedError, match="find out the result"):
        say(engine, number, "undone")
    with pytest.raises(NotFoundError, match="i99"):
        say(engine, 99, "done")


def test_an_act_is_not_carried_again_but_proposed_anew_and_that_answers_the_doubt() -> None:
    engine = outside_cell()
    node = engine.state.capacity.node_ids[0]
    number = put_in_doubt(engine, cmd.Cordon(ids=(node,)))
    other = put_in_doubt(engine, cmd.Cordon(ids=(engine.state.capacity.node_ids[1],)))
    with pytest.raises(RefusedError, match="approved for the state at that time"):
        say(engine, number, "retry")
    engine.command(cmd.Cordon(ids=(node,)))
    assert (phase(engine, number), phase(engine, other)) == (Phase.RETRIED, Phase.IN_DOUBT)


def test_the_id_of_a_submission_is_free_once_it_is_said_to_be_undone() -> None:
    engine = outside_cell()
    number = put_in_doubt(engine, job("w"))
    with pytest.raises(SpecError, match="was already requested"):
        engine.command(job("w"))
    say(engine, number, "undone")
    engine.command(job("w"))


@pytest.mark.parametrize("there_after_all", [False, True])
def test_a_submission_that_is_carried_again_is_one_job_in_the_end(there_after_all: bool) -> None:
    """The first copy comes to light when the second is there, too: one of the two is cancelled."""
    engine, slurm = outside_cell(), MadeUpSlurm(random.Random(3), runs=False)
    number = put_in_doubt(engine, job("w"), job=7)
    again = int(say(engine, number, "retry").changed[-1].removeprefix("i"))
    token = engine.state.intents.open[again].token
    assert token == engine.state.intents.known(number).token  # type: ignore[union-attr]
    assert (phase(engine, number), engine.state.intents.open[again].tries) == (Phase.RETRIED, 1)
    if there_after_all:
        slurm._take(JobRequest(name="w", script="", comment=f"muster:{token}"))
    driver = Submitter(
        Connection(slurm), EngineLedger(engine), OneByOne(), clock=slurm.clock, wall_ms=slurm.wall_ms
    )  # fmt: skip
    for _ in range(60):
        engine.advance(slurm.wall_ms())
        driver.turn()
        slurm.pass_time(1.0)
    assert len(live(slurm, token)) == 1
    assert phase(engine, again) == Phase.DONE
    with pytest.raises(SpecError, match="was already requested"):
        engine.command(job("w"))


@pytest.mark.parametrize("why", ["only observes", "no way to submit", "wait for Slurm"])
def test_what_could_not_be_submitted_now_is_not_carried_again_either(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be carried whenever that is possible again, though nobody asks for it then."""
    engine = outside_cell()
    number = put_in_doubt(engine, job("w"))
    if why == "only observes":
        engine.acts = False
    elif why == "no way to submit":
        engine.lacks = {cmd.Submit: why}
    else:
        monkeypatch.setattr("engine.external.observed_changes.MAX_OPEN", 0)
    with pytest.raises(RefusedError, match=why):
        say(engine, number, "retry")
    assert phase(engine, number) == Phase.IN_DOUBT
    say(engine, number, "undone")


def test_a_word_on_a_doubt_that_an_older_snapshot_has_dropped_does_not_keep_the_engine_from_starting() -> None:
    """Releases before kept no doubts beyond the last 500: where one was answered, their snapshot may be without it."""
    engine = outside_cell()
    number = put_in_doubt(engine, job("w"))
    engine.state.intents.ended.clear()
    with engine._turn():
        engine._emit(ev.IntentAnswered(number, Phase.UNDONE, "said"))
    assert engine.state.intents.known(number) is None


def test_what_was_said_is_the_same_after_a_restart(tmp_path: Path) -> None:
    cell = small_cell()
    cell = msgspec.structs.replace(cell, settings=msgspec.structs.replace(cell.settings, decided_by="slurm"))
    engine = Engine.open(tmp_path / "cell.db", cell=cell)
    engine.acts = True
    for name, outcome in (("a", "done"), ("b", "undone"), ("c", "retry")):
        say(engine, put_in_doubt(engine, job(name)), outcome)
    digest, shown = engine.state.digest(), engine.intents()
    engine.close()
    for use_snapshot in (False, True):
        again = Engine.open(tmp_path / "cell.db", use_snapshot=use_snapshot)
        assert (again.state.digest(), again.intents().items) == (digest, shown.items)
        again.close()


def test_a_submission_whose_name_another_has_by_now_is_not_carried_again() -> None:
    """Tokens of what ended long ago are forgotten, and its name is free; a doubt about it may be older."""
    engine = outside_cell()
    number = put_in_doubt(engine, job("w"))
    doubt = engine.state.intents.known(number)
    assert doubt is not None
    engine.state.intents.free(doubt.token)
    engine.command(job("w"))
    with pytest.raises(RefusedError, match="'w' is now another workload"):
        say(engine, number, "retry")
    assert len(engine.state.intents.open) == 1
    say(engine, number, "undone")
    with pytest.raises(SpecError, match="was already requested"):
        engine.command(job("w"))


def test_a_doubt_is_kept_whatever_else_is_settled() -> None:
    engine = outside_cell()
    number = put_in_doubt(engine, job("w"))
    specs = tuple(job(f"v{i}").workloads[0] for i in range(ENDED_KEPT + 20))
    engine.command(cmd.Submit(workloads=specs))
    done = [cmd.IntentChange(number=each, phase=Phase.DONE) for each in engine.state.intents.open]
    engine.command(cmd.SettleIntents(changes=tuple(done)))
    assert len(engine.state.intents.ended) == ENDED_KEPT + 1
    assert phase(engine, number) == Phase.IN_DOUBT


def test_what_is_settled_is_remembered_however_much_is_in_doubt() -> None:
    """A gate reads there what came of a step; 500 submissions may come into doubt together."""
    engine = outside_cell()
    specs = tuple(job(f"v{i}").workloads[0] for i in range(DOUBTS_KEPT + 20))
    engine.command(cmd.Submit(workloads=specs))
    lost = [cmd.IntentChange(number=each, phase=Phase.IN_DOUBT) for each in engine.state.intents.open]
    engine.command(cmd.SettleIntents(changes=tuple(lost)))
    assert engine.intents().in_doubt == DOUBTS_KEPT
    engine.command(job("w"))
    number = next(iter(engine.state.intents.open))
    engine.command(cmd.SettleIntents(changes=(cmd.IntentChange(number=number, phase=Phase.DONE),)))
    assert phase(engine, number) == Phase.DONE
    for each in [intent.number for intent in engine.state.intents.ended if intent.phase == Phase.IN_DOUBT]:
        say(engine, each, "undone")
    assert engine.intents().in_doubt == 0
    put_in_doubt(engine, job("x"))
    assert len(engine.state.intents.ended) == ENDED_KEPT + 1
    again = State()
    again.load(engine.state.dump())
    assert (again.intents.doubts, again.digest()) == (1, engine.state.digest())


# -- what Slurm shows of it -------------------------------------------------------------------------------------------


class Far:
    """A Slurm with these jobs, of which no command is at hand."""

    commands, acts_as = None, ""

    def __init__(self, *jobs: Job, past: tuple[PastJob, ...] | None = None, up: bool = True) -> None:
        self._jobs, self._past, self._up = jobs, past, up

    def diag(self) -> object:
        if not self._up:
            raise SlurmUnavailable("slurmctld does not answer")
        from engine.external.slurm.records import Diag

        return Diag(since_s=900)

    def jobs(self) -> JobList:
        return JobList(list=self._jobs)

    def job(self, id_: int) -> Job:
        return next(job for job in self._jobs if job.id == id_)

    def boot(self) -> str:
        return ""

    def spool(self) -> str:
        return ""

    def nodes(self, since: int | None = None) -> SlurmNodes:
        return SlurmNodes()

    def history(self, since_s: int) -> tuple[PastJob, ...]:
        if self._past is None:
            raise SlurmRefused(0, "slurmrestd runs without slurmdbd")
        return self._past


def test_evidence_of_a_submission_goes_by_its_token() -> None:
    engine = outside_cell()
    intent = engine.state.intents.known(put_in_doubt(engine, job("w"), job=7))
    assert intent is not None
    assert isinstance(wanted(intent), cmd.Submit)
    ours = Job(id=9, name="w", comment=f"muster:{intent.token}", user="muster", submit_s=5)
    others = Job(id=7, name="theirs", user="bob", submit_s=6)

    def look(*jobs: Job, past: tuple[PastJob, ...] | None = None, up: bool = True) -> tuple[str, str]:
        found = submission_carrier.look(Far(*jobs, past=past, up=up), intent, lambda _: None, 0)
        return found.shows, found.error or "; ".join(found.lines)

    shows, told = look(ours, others)
    assert shows == "done"
    assert "job 9 of muster carries its token" in told
    shows, told = look(others)
    assert shows == ""
    assert "job 7, the id it was given, does not carry its token: theirs of bob" in told
    assert "without slurmdbd" in told
    assert look(others, past=())[0] == "undone"
    ended = PastJob(id=9, name="w", comment=f"muster:{intent.token}", state="COMPLETED", submit_s=5)
    assert look(others, past=(ended,))[0] == "done"
    assert look(up=False) == ("", "slurmctld does not answer")


def test_a_job_of_somebody_else_that_carries_the_token_is_no_evidence() -> None:
    """Everybody can read the token, and write it into comments of theirs."""
    engine = outside_cell()
    intent = engine.state.intents.known(put_in_doubt(engine, job("w"), job=7))
    assert intent is not None
    token = f"muster:{intent.token}"
    theirs = Job(id=7, name="w", comment=token, user="mallory", submit_s=5)
    past = PastJob(id=8, name="w", comment=token, user="mallory", state="COMPLETED", submit_s=5)
    far = Far(theirs, past=(past,))
    far.acts_as = "muster"
    found = submission_carrier.look(far, intent, lambda _: None, 0)
    told = "; ".join(found.lines)
    assert found.shows == "undone", told
    assert "job 7, the id it was given, carries its token, but is mallory's" in told
    far.acts_as = ""  # as whom Muster asks is not known: whose they are is said, for a person to judge
    found = submission_carrier.look(far, intent, lambda _: None, 0)
    assert found.shows == "done"
    assert "job 7 of mallory carries its token" in found.lines[0]
