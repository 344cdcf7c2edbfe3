"""What is asked of Slurm about things that exist is done to what was meant, read back, and looked at once more."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from cells import small_cell, workload
from made_up_slurm import EngineLedger, MadeUpSlurm, outside_cell

from engine.control import Engine
from engine.external.intent_carrier import GIVE_UP_MS
from engine.external.observed_changes import intend, new_intent
from engine.external.slurm.capabilities import SlurmRefused, SlurmUnavailable
from engine.external.slurm.change_carrier import AGAIN_WITHIN_MS, BOOT_EVERY_S, MAX_AGAIN, SlurmCarrier
from engine.external.slurm.names import check_name
from engine.external.slurm.records import Job, JobList, JobRequest, Node
from engine.external.slurm.submission_carrier import SAFE_S
from engine.model import commands as cmd
from engine.model.commands import AnyCommand
from engine.model.errors import RefusedError, SpecError
from engine.model.specs import RunSpec
from engine.state.external_cell import ENDED_KEPT, Intent, Phase


class Acting(MadeUpSlurm):
    """With what acts use."""

    def __init__(self) -> None:
        super().__init__(random.Random(1), runs=False)
        self.node_named = {"n1": Node(name="n1", state="IDLE"), "n2": Node(name="n2", state="MIXED")}
        self.done: list[str] = []
        self.lose_next_answer = False
        self.requeueable: set[int] = set()

    def _did(self, what: str) -> None:
        self._refuse_when_down()
        self.done.append(what)

    def _answer(self) -> None:
        if self.lose_next_answer:
            self.lose_next_answer = False
            raise SlurmUnavailable("no answer")

    def cancel(self, id_: int, /) -> None:
        self._did(f"cancel {id_}")
        super().cancel(id_)
        self._answer()

    def hold(self, id_: int, /) -> None:
        self._did(f"hold {id_}")
        self._put(msgspec.structs.replace(self.jobs[id_], held=True))
        self._answer()

    def release(self, id_: int, /) -> None:
        self._did(f"release {id_}")
        self._put(msgspec.structs.replace(self.jobs[id_], held=False))

    def update_job(self, id_: int, /, **change: Any) -> None:
        self._did(f"set {change} of {id_}")
        self._put(msgspec.structs.replace(self.jobs[id_], **change))

    def put_back(self, id_: int, /) -> None:
        self._did(f"requeue {id_}")
        job = self.jobs[id_]
        if id_ not in self.requeueable:
            raise SlurmRefused(2032, "Requested operation is presently disabled")
        self._put(msgspec.structs.replace(job, state="PENDING", restarts=job.restarts + 1, submit_s=int(self.now)))

    def update_node(self, name: str, /, state: str, reason: str = "") -> None:
        self._did(f"{state} {name} {reason}".strip())
        flags = frozenset(("DRAIN",)) if state == "DRAIN" else frozenset[str]()
        self.node_named[name] = msgspec.structs.replace(self.node_named[name], flags=flags, reason=reason)

    def node(self, name: str, /) -> Node:
        self._refuse_when_down()
        check_name("node", name)
        return self.node_named[name]

    def add(self, *, requeueable: bool = False, **fields: Any) -> Job:
        id_ = self._take(JobRequest(name="job", script=""))
        if requeueable:
            self.requeueable.add(id_)
        self.jobs[id_] = msgspec.structs.replace(self.jobs[id_], **fields)
        return self.jobs[id_]

    def jobs_answer(self, since: int | None = None) -> JobList:
        return JobList(list=self.jobs_list())


class Far:
    def __init__(self, slurm: Acting) -> None:
        self._slurm = slurm

    def __getattr__(self, name: str) -> Any:
        return self._slurm.jobs_answer if name == "jobs" else getattr(self._slurm, name)


class Room:
    """A cell, its made-up Slurm, and the actor between them. Workload `w<id>` is job `<id>`."""

    def __init__(self) -> None:
        self.slurm = Acting()
        self.engine = outside_cell()
        self.meant: dict[str, Job] = {}
        self.coming: set[str] = set()
        """Workloads whose submission is under way."""
        self.knows = True
        """Whether Slurm's list of jobs was seen."""
        self.crash_before_boot = False
        self.forbidden = ""
        """Why nothing may be done again by itself."""
        self.new_actor()

    def new_actor(self) -> None:
        """As after a restart of Muster."""
        self.actor = SlurmCarrier(
            Far(self.slurm), EngineLedger(self.engine), self.meant.get, clock=self.slurm.clock, wall_ms=self.now_ms,
            is_coming=lambda workload: workload in self.coming, knows_jobs=lambda: self.knows,
            forbidden=lambda number: self.forbidden,
        )  # fmt: skip

    def now_ms(self) -> int:
        return self.engine.now_ms

    def job(self, **fields: Any) -> Job:
        job = self.slurm.add(**fields)
        self.meant[f"w{job.id}"] = job
        return job

    def want(self, command: AnyCommand) -> int:
        """Past the check at the door, which asks the mirrored state."""
        self.engine.advance(self.slurm.wall_ms())
        with self.engine._turn():
            number = self.engine.state.intents.issued
            self.engine._emit(new_intent(number, command))
        return number

    def turn(self, seconds: float = 0.0) -> None:
        self.slurm.pass_time(seconds)
        self.engine.advance(self.slurm.wall_ms())
        self.actor.turn()

    def found(self, number: int) -> Intent:
        intents = self.engine.state.intents
        return intents.open.get(number) or next(i for i in intents.ended if i.number == number)

    def phase(self, number: int) -> tuple[Phase, str]:
        found = self.found(number)
        return Phase(found.phase), found.text


@pytest.fixture
def room() -> Room:
    return Room()


def test_an_act_is_done_read_back_and_settled_when_it_lasts(room: Room) -> None:
    job = room.job()
    number = room.want(cmd.Hold(ids=(f"w{job.id}",)))
    room.turn()
    assert room.phase(number)[0] == Phase.ACCEPTED
    assert room.slurm.jobs[job.id].held
    room.turn(SAFE_S + 1)
    assert room.phase(number)[0] == Phase.DONE
    assert room.slurm.done == [f"hold {job.id}"]


def test_what_slurm_cannot_be_asked_for_does_not_keep_up_what_comes_after_it(room: Room) -> None:
    """Named `ALL` it would be every node of the cluster."""
    first, then = room.want(cmd.Cordon(ids=("ALL",))), room.want(cmd.Cordon(ids=("n1",)))
    room.turn()
    assert room.phase(first)[0] == Phase.REFUSED
    assert room.phase(first)[1].startswith("ALL: ")
    assert room.phase(then)[0] == Phase.ACCEPTED


def test_an_answer_that_was_lost_does_not_have_it_done_twice(room: Room) -> None:
    job = room.job()
    number = room.want(cmd.Hold(ids=(f"w{job.id}",)))
    room.slurm.lose_next_answer = True
    room.turn()
    assert room.phase(number)[0] == Phase.SENT
    room.turn(2)
    assert room.phase(number)[0] in (Phase.ACCEPTED, Phase.NEEDLESS)
    assert room.slurm.done == [f"hold {job.id}"]


def test_a_job_that_got_the_id_of_the_one_that_was_meant_is_left_alone(room: Room) -> None:
    job = room.job()
    room.slurm.jobs[job.id] = msgspec.structs.replace(job, submit_s=job.submit_s + 7, name="other")
    number = room.want(cmd.Cancel(ids=(f"w{job.id}",)))
    room.turn()
    assert room.phase(number) == (Phase.NEEDLESS, f"job {job.id} is now a different job")
    assert room.slurm.done == []


def test_a_cancel_that_a_crash_forgot_is_done_again(room: Room) -> None:
    job = room.job()
    room.slurm.pass_time(6)
    number = room.want(cmd.Cancel(ids=(f"w{job.id}",)))
    room.turn()
    room.slurm.crash()
    room.slurm.restart()
    assert room.slurm.jobs[job.id].state == "PENDING"
    room.turn(SAFE_S + 1)
    room.turn(1)
    assert room.slurm.jobs[job.id].state == "CANCELLED"
    room.turn(SAFE_S + 1)
    assert room.phase(number)[0] == Phase.DONE


@pytest.mark.parametrize("restarted", [False, True])
def test_an_act_whose_job_a_crash_forgot_is_done_to_the_job_that_is_submitted_anew(room: Room, restarted: bool) -> None:
    room.job()
    room.coming.add("w1")
    hold, cancel = room.want(cmd.Hold(ids=("w1",))), room.want(cmd.Cancel(ids=("w1",)))
    room.turn()
    room.slurm.crash()  # before anything was saved
    room.slurm.restart()
    if restarted:
        room.new_actor()
    for _ in range(30):
        room.turn(1.0)
    assert [room.phase(hold)[0], room.phase(cancel)[0]] == [Phase.DONE, Phase.SENT]
    room.meant["w1"] = again = room.slurm.add(submit_s=int(room.slurm.now))
    room.coming.clear()
    for _ in range(30):
        room.turn(1.0)
    assert room.slurm.jobs[again.id].state == "CANCELLED"
    assert room.phase(cancel)[0] == Phase.DONE


def test_a_cancel_that_a_crash_forgot_is_done_again_whatever_was_needless_since(room: Room) -> None:
    job = room.job()
    room.slurm.pass_time(6)
    cancel = room.want(cmd.Cancel(ids=(f"w{job.id}",)))
    room.turn()
    release = room.want(cmd.Release(ids=(f"w{job.id}",)))
    room.turn()
    assert room.phase(release)[0] == Phase.NEEDLESS
    room.slurm.crash()
    room.slurm.restart()
    room.turn(SAFE_S + 1)
    room.turn(1)
    assert room.slurm.jobs[job.id].state == "CANCELLED"
    room.turn(SAFE_S + 1)
    assert room.phase(cancel)[0] == Phase.DONE


@pytest.mark.parametrize("restarted", [False, True])
def test_a_hold_that_a_crash_forgot_is_not_done_again_once_its_release_is_settled(room: Room, restarted: bool) -> None:
    room.job()
    hold = room.want(cmd.Hold(ids=("w1",)))
    room.turn()
    room.slurm.crash()  # before anything was saved
    room.slurm.restart()
    room.meant["w1"] = again = room.slurm.add(submit_s=int(room.slurm.now))
    release = room.want(cmd.Release(ids=("w1",)))
    room.turn(1.0)
    assert (room.phase(hold)[0], room.phase(release)[0]) == (Phase.ACCEPTED, Phase.NEEDLESS)
    if restarted:
        room.new_actor()
    for _ in range(40):
        room.turn(1.0)
    assert not room.slurm.jobs[again.id].held
    assert room.phase(hold)[0] == Phase.DONE


def test_a_requeue_that_a_crash_forgot_before_it_was_seen_is_asked_for_again(room: Room) -> None:
    job = room.job(state="RUNNING", nodes=("n2",), start_s=900, requeueable=True)
    room.slurm.pass_time(10.0)
    number = room.want(cmd.Requeue(ids=("w1",)))
    room.slurm.put_back = lambda id_, /: room.slurm._did(f"requeue {id_}")  # type: ignore[method-assign]
    room.turn()
    assert room.phase(number)[0] == Phase.SENT
    del room.slurm.put_back
    for _ in range(30):
        room.turn(1.0)
    assert (room.slurm.jobs[job.id].restarts, room.slurm.done) == (1, ["requeue 1", "requeue 1"])
    assert room.phase(number)[0] == Phase.DONE


def test_a_job_that_began_as_its_requeue_was_wanted_is_requeued(room: Room) -> None:
    """The clock of a busy cell is behind, and Slurm's is not the same."""
    room.job(state="RUNNING", nodes=("n2",), start_s=int(room.slurm.now) + 1, requeueable=True)
    number = room.want(cmd.Requeue(ids=("w1",)))
    room.turn(2.0)
    assert (room.phase(number)[0], room.slurm.done) == (Phase.ACCEPTED, ["requeue 1"])


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_of_slurms_that_is_behind_has_nothing_requeued_twice(room: Room, restarted: bool) -> None:
    job = room.job(state="RUNNING", nodes=("n2",), start_s=900, requeueable=True)
    room.slurm.pass_time(10.0)
    number = room.want(cmd.Requeue(ids=("w1",)))
    room.turn()
    assert room.phase(number)[0] == Phase.ACCEPTED
    room.slurm._put(msgspec.structs.replace(job, state="RUNNING", restarts=1, start_s=950))
    if restarted:
        room.new_actor()
    for _ in range(60):
        room.turn(1.0)
    assert (room.phase(number)[0], room.slurm.done) == (Phase.DONE, ["requeue 1"])


def test_a_job_that_takes_its_time_to_be_put_back_is_not_requeued_again(room: Room) -> None:
    job = room.job(state="RUNNING", nodes=("n2",), start_s=900, requeueable=True)
    room.slurm.pass_time(10.0)
    number = room.want(cmd.Requeue(ids=("w1",)))

    def begin(id_: int, /) -> None:
        room.slurm._did(f"requeue {id_}")
        room.slurm._put(msgspec.structs.replace(job, flags=frozenset(("COMPLETING",)), restarts=1))

    room.slurm.put_back = begin  # type: ignore[method-assign]
    for _ in range(30):
        room.turn(1.0)
    assert (room.phase(number)[0], room.slurm.done) == (Phase.SENT, ["requeue 1"])
    room.slurm._put(msgspec.structs.replace(job, state="PENDING", restarts=1))
    for _ in range(30):
        room.turn(1.0)
    assert (room.phase(number)[0], room.slurm.done) == (Phase.DONE, ["requeue 1"])


def test_what_somebody_else_undid_is_not_done_again(room: Room) -> None:
    number = room.want(cmd.Cordon(ids=("n1",)))
    room.turn()
    room.slurm.update_node("n1", state="RESUME")
    room.turn(SAFE_S + 1)
    phase, text = room.phase(number)
    assert phase == Phase.IN_DOUBT
    assert "somebody undid it" in text
    assert room.slurm.done.count(f"DRAIN n1 muster i{number}: cordon") == 1


def test_what_was_wanted_later_of_the_same_is_no_undoing(room: Room) -> None:
    job = room.job()
    first = room.want(cmd.Hold(ids=(f"w{job.id}",)))
    room.turn()
    second = room.want(cmd.Release(ids=(f"w{job.id}",)))
    room.turn(5)
    room.turn(SAFE_S + 1)
    assert (room.phase(first)[0], room.phase(second)[0]) == (Phase.DONE, Phase.DONE)
    assert not room.slurm.jobs[job.id].held


def test_a_drain_asks_for_the_node_first_and_goes_on_where_a_job_cannot_be_requeued(room: Room) -> None:
    stays, goes = (room.job(state="RUNNING", nodes=("n2",), start_s=900, requeueable=able) for able in (False, True))
    number = room.want(cmd.Drain(ids=("n2",)))
    room.turn()
    phase, text = room.phase(number)
    assert phase == Phase.ACCEPTED
    assert "presently disabled" in text
    assert room.slurm.done == [f"DRAIN n2 muster i{number}: drain", f"requeue {stays.id}", f"requeue {goes.id}"]
    assert room.slurm.jobs[goes.id].state == "PENDING"


def test_a_drain_of_a_node_that_was_drained_at_slurm_puts_its_jobs_back_and_keeps_its_reason(room: Room) -> None:
    room.slurm.node_named["n2"] = Node(name="n2", state="MIXED", flags=frozenset(("DRAIN",)), reason="disk 3")
    job = room.job(state="RUNNING", nodes=("n2",), start_s=900)
    number = room.want(cmd.Drain(ids=("n2",)))
    room.turn()
    assert room.phase(number)[0] == Phase.ACCEPTED
    assert room.slurm.done == [f"requeue {job.id}"]
    assert room.slurm.node_named["n2"].reason == "disk 3"


def test_what_could_not_be_carried_in_time_is_not_done_later(room: Room) -> None:
    job = room.job()
    number = room.want(cmd.Hold(ids=(f"w{job.id}",)))
    room.slurm.up = False
    room.turn()
    room.turn(GIVE_UP_MS / 1000 + 1)
    phase, text = room.phase(number)
    assert phase == Phase.IN_DOUBT
    assert "slurmctld does not answer" in text
    room.slurm.restart()
    room.turn(1)
    assert room.slurm.done == []


def test_a_refusal_names_what_was_refused_and_what_was_done(room: Room) -> None:
    able, not_able = (room.job(state="RUNNING", start_s=900, requeueable=able) for able in (True, False))
    number = room.want(cmd.Requeue(ids=(f"w{able.id}", f"w{not_able.id}")))
    room.turn()
    phase, text = room.phase(number)
    assert phase == Phase.REFUSED
    assert text.startswith(f"w{not_able.id}: Requested operation is presently disabled")
    assert "1 others are done" in text


def test_muster_killed_between_journal_and_answer_finds_out_how_it_stands(room: Room) -> None:
    job = room.job()
    number = room.want(cmd.Hold(ids=(f"w{job.id}",)))
    room.slurm.lose_next_answer = True
    room.turn()
    room.new_actor()
    room.turn(2)
    assert room.phase(number)[0] in (Phase.ACCEPTED, Phase.NEEDLESS)
    assert room.slurm.done == [f"hold {job.id}"]


# -- what slurmctld forgets -------------------------------------------------------------------------------------------


def crash_after(room: Room) -> None:
    """slurmctld ends before it has saved what was done last, and is back at once."""
    room.slurm.crash()
    room.slurm.restart()


def test_a_hold_that_a_crash_forgot_is_done_again_as_soon_as_slurmctld_is_back(room: Room) -> None:
    job = room.job()
    room.slurm.pass_time(6)  # saved
    number = room.want(cmd.Hold(ids=("w1",)))
    room.turn()
    crash_after(room)
    assert not room.slurm.jobs[job.id].held
    room.turn(BOOT_EVERY_S)
    room.turn()
    assert room.slurm.jobs[job.id].held
    room.turn(SAFE_S + 1)
    assert room.phase(number)[0] == Phase.DONE
    assert room.slurm.done == [f"hold {job.id}"] * 2
    assert any("lost" in word.text for word in room.found(number).words)


def test_an_engine_that_was_started_anew_does_again_what_a_crash_forgot(room: Room) -> None:
    job = room.job()
    room.slurm.pass_time(6)
    number = room.want(cmd.Hold(ids=("w1",)))
    room.turn()
    crash_after(room)
    room.new_actor()
    room.turn()
    room.turn()
    assert room.slurm.jobs[job.id].held
    room.turn(SAFE_S + 1)
    assert room.phase(number)[0] == Phase.DONE


def test_what_is_undone_while_slurmctld_runs_on_is_left_to_a_person(room: Room) -> None:
    room.job()
    room.slurm.pass_time(6)
    number = room.want(cmd.Hold(ids=("w1",)))
    room.turn()
    room.slurm.release(1)
    room.turn(SAFE_S + 1)
    phase, text = room.phase(number)
    assert (phase, room.slurm.done) == (Phase.IN_DOUBT, ["hold 1", "release 1"])
    assert "somebody undid it: slurmctld has not restarted since" in text


def test_where_nothing_tells_of_a_crash_what_is_undone_is_left_to_a_person(room: Room) -> None:
    room.slurm.says_boot = False
    room.job()
    room.slurm.pass_time(6)
    number = room.want(cmd.Hold(ids=("w1",)))
    room.turn()
    crash_after(room)
    room.turn(SAFE_S + 1)
    assert room.phase(number)[0] == Phase.IN_DOUBT
    assert room.slurm.done == ["hold 1"]


def test_a_setting_that_is_neither_ours_nor_the_one_from_before_is_left_alone(room: Room) -> None:
    room.job(qos="low")
    room.slurm.pass_time(6)
    number = room.want(cmd.SetQos(ids=("w1",), qos="high"))
    room.turn()
    crash_after(room)
    room.slurm.update_job(1, qos="medium")
    room.turn(BOOT_EVERY_S)
    phase, text = room.phase(number)
    assert (phase, room.slurm.jobs[1].qos) == (Phase.IN_DOUBT, "medium")
    assert "nothing shows that it was done before: medium" in text


@pytest.mark.parametrize("others", ["low", "medium"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_setting_is_set_again_only_by_who_knows_what_it_was_before(room: Room, restarted: bool, others: str) -> None:
    """An engine that was started anew knows it where it was the same of all."""
    room.job(qos="low")
    room.job(qos=others)
    room.slurm.pass_time(6)
    number = room.want(cmd.SetQos(ids=("w1", "w2"), qos="high"))
    room.turn()
    crash_after(room)
    if restarted:
        room.new_actor()
    for _ in range(30):
        room.turn(1.0)
    expected = (Phase.IN_DOUBT, "low") if restarted and others != "low" else (Phase.DONE, "high")
    assert (room.phase(number)[0], room.slurm.jobs[1].qos) == expected


@pytest.mark.parametrize(("restarted", "phase"), [(False, Phase.IN_DOUBT), (True, Phase.DONE)])
def test_a_node_that_was_drained_and_is_not_is_drained_again_only_after_a_crash(
    room: Room, restarted: bool, phase: Phase
) -> None:
    number = room.want(cmd.Cordon(ids=("n1",)))
    room.turn()
    if restarted:
        crash_after(room)
    room.slurm.node_named["n1"] = Node(name="n1", state="IDLE")
    for _ in range(40):
        room.turn(1.0)
    assert room.phase(number)[0] == phase
    assert len(room.slurm.done) == (2 if restarted else 1)


def test_what_is_forgotten_while_it_is_forbidden_is_left_to_a_person(room: Room) -> None:
    """A freeze that was set since it was approved holds for what nobody asks for now."""
    job = room.job()
    room.slurm.pass_time(6)
    number = room.want(cmd.Hold(ids=("w1",)))
    room.turn()
    room.forbidden = "freeze release holds"
    crash_after(room)
    room.turn(BOOT_EVERY_S)
    room.turn()
    assert room.phase(number)[0] == Phase.IN_DOUBT
    assert room.phase(number)[1].endswith("freeze release holds")
    assert room.slurm.done == [f"hold {job.id}"]
    assert not room.slurm.jobs[job.id].held


def test_what_is_forgotten_again_and_again_is_left_to_a_person(room: Room) -> None:
    room.job()
    room.slurm.pass_time(6)
    number = room.want(cmd.Hold(ids=("w1",)))
    for _ in range(2 * MAX_AGAIN):
        room.turn(BOOT_EVERY_S)
        room.turn()
        if room.phase(number)[0] == Phase.ACCEPTED:
            crash_after(room)
    assert room.phase(number)[0] == Phase.IN_DOUBT
    assert len(room.slurm.done) == MAX_AGAIN + 1


def test_what_was_set_of_something_else_since_does_not_pass_for_what_was_forgotten(room: Room) -> None:
    room.job(qos="low")
    room.slurm.pass_time(6)
    hold = room.want(cmd.Hold(ids=("w1",)))
    room.turn()
    qos = room.want(cmd.SetQos(ids=("w1",), qos="high"))
    room.turn()
    crash_after(room)
    for _ in range(30):
        room.turn(1.0)
    assert (room.slurm.jobs[1].held, room.slurm.jobs[1].qos) == (True, "high")
    assert (room.phase(hold)[0], room.phase(qos)[0]) == (Phase.DONE, Phase.DONE)


def test_a_crash_between_the_act_and_the_word_of_which_slurmctld_it_was_is_noticed(room: Room) -> None:
    """What was read back of one run of slurmctld must not count as of the next."""
    room.job()
    room.slurm.pass_time(6)
    number = room.want(cmd.Hold(ids=("w1",)))
    hold = room.slurm.hold

    def hold_and_crash(id_: int, /) -> None:
        hold(id_)
        room.slurm.hold = hold  # type: ignore[method-assign]
        room.crash_before_boot = True

    room.slurm.hold = hold_and_crash  # type: ignore[method-assign]
    boot = room.slurm.boot

    def crash_then_say() -> str:
        if room.crash_before_boot:
            room.crash_before_boot = False
            crash_after(room)
        return boot()

    room.slurm.boot = crash_then_say  # type: ignore[method-assign]
    for _ in range(40):
        room.turn(1.0)
    assert (room.phase(number)[0], room.slurm.jobs[1].held) == (Phase.DONE, True)


def test_a_node_that_a_new_slurmctld_has_not_heard_of_yet_is_resumed_when_it_has(room: Room) -> None:
    """Before that it refuses to."""
    room.slurm.node_named["n1"] = Node(name="n1", state="UNKNOWN", flags=frozenset(("DRAIN",)))
    number = room.want(cmd.Uncordon(ids=("n1",)))
    room.turn()
    assert (room.phase(number)[0], room.slurm.done) == (Phase.SENT, [])
    room.slurm.node_named["n1"] = Node(name="n1", state="IDLE", flags=frozenset(("DRAIN",)))
    room.turn(1.0)
    assert (room.phase(number)[0], room.slurm.done) == (Phase.ACCEPTED, ["RESUME n1"])


def test_the_same_wanted_twice_outlasts_a_crash_that_forgot_the_first(room: Room) -> None:
    job = room.job()
    room.slurm.pass_time(6)
    first = room.want(cmd.Hold(ids=("w1",)))
    room.turn()
    second = room.want(cmd.Hold(ids=("w1",)))
    room.turn()
    assert room.phase(second)[0] == Phase.NEEDLESS
    crash_after(room)
    for _ in range(30):
        room.turn(1.0)
    assert (room.phase(first)[0], room.slurm.jobs[job.id].held) == (Phase.DONE, True)


def test_what_was_done_without_an_answer_may_be_forgotten_as_well(room: Room) -> None:
    job = room.job()
    room.slurm.pass_time(6)
    number = room.want(cmd.Hold(ids=("w1",)))
    room.slurm.lose_next_answer = True
    room.turn()
    room.turn(1.0)
    assert room.phase(number)[0] == Phase.ACCEPTED
    crash_after(room)
    for _ in range(30):
        room.turn(1.0)
    assert (room.phase(number)[0], room.slurm.jobs[job.id].held) == (Phase.DONE, True)


def test_what_an_earlier_engine_did_before_it_was_killed_may_be_forgotten_as_well(room: Room) -> None:
    job = room.job()
    room.slurm.pass_time(6)
    number = room.want(cmd.Hold(ids=("w1",)))
    room.slurm.lose_next_answer = True
    room.turn()
    room.new_actor()
    room.turn(1.0)
    crash_after(room)
    for _ in range(30):
        room.turn(1.0)
    assert (room.phase(number)[0], room.slurm.jobs[job.id].held) == (Phase.DONE, True)


def test_commands_that_hang_do_not_hold_up_what_rest_can_be_asked_for(room: Room) -> None:
    job = room.job()
    number = room.want(cmd.Hold(ids=("w1",)))

    def hang() -> str:
        raise SlurmUnavailable("scontrol gave no answer in 5 s")

    room.slurm.boot = hang  # type: ignore[method-assign]
    for _ in range(40):
        room.turn(1.0)
    assert (room.phase(number)[0], room.slurm.jobs[job.id].held) == (Phase.DONE, True)


@pytest.mark.parametrize("accepted", [False, True])
def test_an_engine_that_was_started_anew_settles_nothing_before_it_has_seen_slurms_list(
    room: Room, accepted: bool
) -> None:
    job = room.job()
    number = room.want(cmd.Cancel(ids=("w1",)))
    if accepted:
        room.slurm.pass_time(6)
        room.turn()
        crash_after(room)
    known = dict(room.meant)
    room.meant.clear()
    room.knows = False
    room.new_actor()
    room.turn(1.0)
    assert not room.phase(number)[0].settled
    assert "has not been read yet" in room.actor.trouble
    room.meant |= known
    room.knows = True
    for _ in range(40):
        room.turn(1.0)
    assert (room.phase(number)[0], room.slurm.jobs[job.id].state) == (Phase.DONE, "CANCELLED")


def test_an_act_on_a_job_that_is_submitted_anew_is_not_given_up_before_it_has_come(room: Room) -> None:
    room.job()
    room.coming.add("w1")
    cancel = room.want(cmd.Cancel(ids=("w1",)))
    room.turn()
    crash_after(room)  # before anything was saved
    for _ in range(20):
        room.turn(GIVE_UP_MS / 10_000)
    assert not room.phase(cancel)[0].settled
    room.meant["w1"] = again = room.slurm.add(submit_s=int(room.slurm.now))
    room.coming.clear()
    for _ in range(30):
        room.turn(1.0)
    assert (room.slurm.jobs[again.id].state, room.phase(cancel)[0]) == ("CANCELLED", Phase.DONE)


# -- at the door ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (cmd.Suspend(ids=("w",)), "keeps its memory"),
        (cmd.SetPolicy(policy="fcfs"), "slurm.conf"),
        (cmd.FailNodes(ids=("n",)), "drain them"),
    ],
)
def test_what_slurm_cannot_be_asked_for_is_refused_by_name(command: AnyCommand, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        outside_cell().command(command)


def test_a_cell_that_only_observes_says_how_it_could_act() -> None:
    engine = outside_cell()
    engine.acts = False
    with pytest.raises(RefusedError, match="--slurm-act"):
        engine.command(cmd.Submit(workloads=(workload("w"),)))


def test_what_the_release_lacks_is_said_before_anybody_approves_it() -> None:
    engine = outside_cell()
    with pytest.raises(RefusedError, match="too old"):
        intend(engine.state, cmd.Cordon(ids=("n",)), 0, acts=True, lacks={cmd.Cordon: "it is too old"})


def test_an_id_that_was_asked_for_is_taken_until_slurm_refuses_the_job() -> None:
    engine = outside_cell()
    spec = msgspec.structs.replace(workload("w"), run=msgspec.convert({"argv": ["true"]}, type_of_run()))
    engine.command(cmd.Submit(workloads=(spec,)))
    with pytest.raises(SpecError, match="was already requested"):
        engine.command(cmd.Submit(workloads=(spec,)))
    number = next(iter(engine.state.intents.open))
    refused = cmd.IntentChange(number=number, phase=Phase.REFUSED, text="no")
    engine.command(cmd.SettleIntents(changes=(refused,)))
    engine.command(cmd.Submit(workloads=(spec,)))


def type_of_run() -> Any:
    from engine.model.specs import RunSpec

    return RunSpec


def test_intents_are_the_same_after_a_restart_and_leave_forks_alone(tmp_path: Any) -> None:
    cell = small_cell()
    cell = msgspec.structs.replace(cell, settings=msgspec.structs.replace(cell.settings, decided_by="slurm"))
    engine = Engine.open(tmp_path / "journal.db", cell=cell)
    engine.acts = True
    spec = msgspec.structs.replace(workload("w"), run=msgspec.convert({"argv": ["true"]}, type_of_run()))
    engine.command(cmd.Submit(workloads=(spec,)))
    number = next(iter(engine.state.intents.open))
    for change in (
        cmd.IntentChange(number=number, phase=Phase.SENT),
        cmd.IntentChange(number=number, phase=Phase.ACCEPTED, job=7, submit_s=9),
        cmd.IntentChange(number=number, phase=Phase.OPEN, text="forgotten"),
    ):
        engine.command(cmd.SettleIntents(changes=(change,)))
    digest, fork = engine.state.digest(), engine.fork()
    fork.command(cmd.Submit(workloads=(spec,)))
    assert fork.workload("w").state in ("running", "queued")
    assert engine.state.digest() == digest
    engine._journal.close()  # type: ignore[union-attr]
    replayed = Engine.open(tmp_path / "journal.db", use_snapshot=False)
    assert replayed.state.digest() == digest
    replayed.close()
    again = Engine.open(tmp_path / "journal.db")
    assert again.state.digest() == digest
    assert again.intents().items[0].tries == 1
    again.close()


# -- what is not done again without anybody's word --------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("kind", [cmd.Hold, cmd.Cancel])
def test_what_was_wanted_long_ago_is_not_done_again_when_slurmctld_comes_back(
    room: Room, kind: type[cmd.Hold | cmd.Cancel], restarted: bool
) -> None:
    """It was approved for the cell as it was then, as what could not be carried in time."""
    room.job()
    room.slurm.pass_time(6)
    number = room.want(kind(ids=("w1",)))
    room.turn()
    assert room.phase(number)[0] == Phase.ACCEPTED
    room.slurm.crash()
    room.turn(AGAIN_WITHIN_MS / 1000)
    room.slurm.restart()
    if restarted:
        room.new_actor()
    for _ in range(5):
        room.turn(BOOT_EVERY_S)
    phase, text = room.phase(number)
    assert (phase, len(room.slurm.done)) == (Phase.IN_DOUBT, 1)
    assert "too old to be repeated" in text


@pytest.mark.parametrize("settled", [0, ENDED_KEPT])
def test_a_hold_is_not_done_again_after_its_release_whatever_else_was_settled_since(room: Room, settled: int) -> None:
    """The journal's state remembers so many settled ones alone."""
    room.job()
    hold = room.want(cmd.Hold(ids=("w1",)))
    room.turn()
    crash_after(room)  # before anything was saved
    room.meant["w1"] = again = room.slurm.add(submit_s=int(room.slurm.now))
    release = room.want(cmd.Release(ids=("w1",)))
    room.turn(1.0)
    assert (room.phase(hold)[0], room.phase(release)[0]) == (Phase.ACCEPTED, Phase.NEEDLESS)
    specs = tuple(msgspec.structs.replace(workload(f"v{i}"), run=RunSpec(argv=("true",))) for i in range(settled))
    if specs:
        room.engine.command(cmd.Submit(workloads=specs))
        others = [number for number in room.engine.state.intents.open if number > release]
        changes = tuple(cmd.IntentChange(number=number, phase=Phase.DONE) for number in others)
        room.engine.command(cmd.SettleIntents(changes=changes))
    for _ in range(40):
        room.turn(1.0)
    assert not room.slurm.jobs[again.id].held


def test_what_may_have_been_undone_by_a_later_wish_in_doubt_is_not_done_again(room: Room) -> None:
    """The later wish is the one that a person is asked about."""
    cordon = room.want(cmd.Cordon(ids=("n1",)))
    room.turn()
    assert room.phase(cordon)[0] == Phase.ACCEPTED
    uncordon = room.want(cmd.Uncordon(ids=("n1",)))
    update = room.slurm.update_node

    def arrives_unanswered(name: str, /, state: str, reason: str = "") -> None:
        update(name, state, reason)
        raise SlurmUnavailable("no answer")

    room.slurm.update_node = arrives_unanswered  # type: ignore[method-assign]
    room.turn()
    del room.slurm.update_node
    room.slurm.crash()
    for _ in range(GIVE_UP_MS // 1000 + 5):
        room.turn(1.0)
    assert room.phase(uncordon)[0] == Phase.IN_DOUBT
    room.slurm.restart()
    for _ in range(10):
        room.turn(1.0)
    assert room.slurm.node_named["n1"].flags == frozenset()
    assert room.phase(cordon)[0] == Phase.DONE


def test_what_was_set_since_is_found_once_for_all_that_slurmctld_forgot(room: Room) -> None:
    """Else a thousand that were forgotten cost a thousand looks at a thousand."""
    numbers = [room.want(cmd.Hold(ids=(f"w{room.job().id}",))) for _ in range(20)]
    room.slurm.pass_time(6)
    room.turn()
    asked: list[int] = []
    ledger = room.actor._ledger
    carried_since = ledger.carried_since

    def counted(number: int) -> list[Intent]:
        asked.append(number)
        return carried_since(number)

    ledger.carried_since = counted  # type: ignore[method-assign]
    crash_after(room)
    room.turn(BOOT_EVERY_S)
    assert asked == [numbers[0]]
    room.turn()
    assert all(job.held for job in room.slurm.jobs.values())


def test_a_cancelled_job_that_somebody_puts_back_is_not_cancelled_again(room: Room) -> None:
    """`scontrol requeue` takes what was cancelled a moment ago."""
    job = room.job(state="RUNNING", nodes=("n2",), start_s=900, requeueable=True)
    number = room.want(cmd.Cancel(ids=("w1",)))
    room.turn()
    assert room.phase(number)[0] == Phase.ACCEPTED
    room.slurm._put(msgspec.structs.replace(job, state="PENDING", restarts=1))
    for _ in range(40):
        room.turn(1.0)
    phase, text = room.phase(number)
    assert (phase, room.slurm.done) == (Phase.IN_DOUBT, ["cancel 1"])
    assert "somebody undid it: slurmctld has not restarted since" in text
