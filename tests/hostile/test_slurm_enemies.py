"""Other users of a Slurm cluster, and what answers in the place of its slurmrestd, as enemies."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.external.slurm import transport as slurm_line
from engine.external.slurm.answers import decoded, split
from engine.external.slurm.capabilities import SlurmUnreadable
from engine.external.slurm.submission_carrier import JobsByToken
from engine.external.slurm.transport import TokenFile
from engine.model.commands import IntentChange, SettleIntents, Submit
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.specs import RunSpec
from engine.state.external_cell import Phase
from runbooks.gate.approval_policy import Grant
from runbooks.gate.decisions import admit
from runbooks.plans.identity import Scope
from tests.engine.external.slurm.test_slurm_line import connected, playing
from tests.engine.external.slurm.test_slurm_mirror import World, job, running
from tests.support.cells import workload
from tests.support.gates import gate_of
from tests.support.people import actor, person, team


def submitted(world: World, name: str, job_id: int = 0) -> str:
    """The token of a submission through Muster, which Slurm answered with that job."""
    world.look()
    world.engine.acts = True
    spec = msgspec.structs.replace(workload(name, queue="batch"), run=RunSpec(argv=("true",)))
    world.engine.command(Submit(workloads=(spec,)))
    (intent,) = [each for each in world.engine.state.intents.open.values() if not each.job]
    if job_id:
        answered(world, intent.number, job_id)
    return str(intent.token)


def answered(world: World, number: int, job_id: int) -> None:
    change = IntentChange(number=number, phase=Phase.ACCEPTED, job=job_id, submit_s=0, text="")
    world.engine.command(SettleIntents(changes=(change,)))


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_comment_copied_from_another_job_takes_no_workload(first: str) -> None:
    world = World()
    comment = f"muster:{submitted(world, 'train', 20)}"
    jobs = [job(20, comment=comment, user="muster"), running(7, "c1", comment=comment, user="mallory")]
    world.look(*(jobs if first == "ours" else jobs[::-1]))
    assert world.state("train") == "queued"
    assert world.state("7") == "running"
    seen = world.mirror.job_of("train")
    assert seen is not None
    assert seen.id == 20
    # Nor when ours has left Slurm's list, in the next look or in the first after a restart.
    for start in (lambda: world.mirror, world.restarted):
        start()
        world.look(running(7, "c1", comment=comment, user="mallory"))
        assert world.mirror.job_of("train") is None
        assert world.state("7") == "running"


def test_what_was_not_answered_is_the_first_that_was_seen_and_of_our_user() -> None:
    world = World()
    known = f"muster:{submitted(world, 'known', 20)}"
    unanswered = f"muster:{submitted(world, 'lost-answer')}"
    ours = [job(20, comment=known, user="muster"), job(21, comment=unanswered, user="muster")]
    forged = [job(5, comment=unanswered, user="mallory"), job(22, comment=unanswered, user="mallory")]
    world.look(ours[0], *forged)
    assert world.mirror.job_of("lost-answer") is None
    world.look(*forged, *ours)
    seen = world.mirror.job_of("lost-answer")
    assert seen is not None
    assert seen.id == 21


def test_a_list_that_is_searched_for_a_token_is_searched_for_our_user() -> None:
    token = "1-0123456789abcdef0123"
    mine, forged = job(3, comment=f"muster:{token}", user="muster"), job(2, name="x.m01234567", user="mallory")
    assert JobsByToken([forged, mine]).of(token, "muster") == [mine]


@pytest.mark.parametrize("name", ["7", "7/3", "7.2", "7/3.2"])
def test_a_workload_cannot_take_the_name_of_somebodys_job(name: str) -> None:
    world = World()
    with pytest.raises(SpecError, match="a Slurm job id"):
        submitted(world, name)
    world.look(running(7, "c1", user="ann"))
    assert world.state("7") == "running"


def test_tags_lead_no_further_than_the_part_of_the_cell_that_a_role_is_for() -> None:
    """A tag may name another partition and another account of Slurm than queue and tenant do."""
    world = World()
    world.look()
    world.engine.acts = True
    grant = Grant(roles=("submitter",), scope=Scope(queues=("batch",), tenants=("t",)))
    sue = person("sue", uid=2009, scoped=(grant,))
    gate = gate_of(world.engine, team(sue))

    def ask(name: str, **tags: str) -> None:
        spec = msgspec.structs.replace(
            workload(name, queue="batch", tenant="t"), run=RunSpec(argv=("true",)), tags=dict(tags)
        )
        admit(world.engine, gate, actor(sue), Submit(workloads=(spec,)))

    ask("fine", partition="batch", account="t")
    for tags in ({"partition": "urgent"}, {"partition": "batch,urgent"}, {"account": "vision"}):
        with pytest.raises(RefusedError):
            ask("far", **tags)
    assert len(world.engine.state.intents.open) == 1


# -- what answers instead of slurmrestd -------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [b'"x"', b"NaN", b'"\xff"'])
@pytest.mark.parametrize("around", [(b"[", b"]"), (b'{"a":', b"}")])
def test_an_answer_nested_without_end_is_unreadable_and_no_more(inner: bytes, around: tuple[bytes, bytes]) -> None:
    for deep in (50, 200, 500, 900, 950, 970, 985, 995, 1_000, 1_100, 20_000):
        value = around[0] * deep + inner + around[1] * deep
        body = b'{"jobs":' + value + b',"errors":[' + value + b'],"meta":' + value + b"}"
        for ask in (
            lambda body: split(200, body).entries("jobs"),
            lambda body: split(200, body).value("meta"),
            lambda body: [decoded(raw) for raw in split(200, body).entries("jobs")],
        ):
            try:
                ask(body)
            except (MusterError, ValueError):
                continue


def test_an_answer_that_comes_drop_by_drop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_line, "LONGEST_ANSWER_S", -1.0)
    drops = playing("v0.0.42", jobs=(200, {"jobs": []}))
    with drops as played, connected(played.url) as slurm, pytest.raises(SlurmUnreadable, match="for an answer"):
        slurm.jobs()


def test_a_token_that_everybody_can_read_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("a.b.c")
    assert TokenFile(path).token() == "a.b.c"
    path.chmod(0o644)
    with pytest.raises(SpecError, match="everybody") as told:
        TokenFile(path).token()
    assert "a.b.c" not in str(told.value)
