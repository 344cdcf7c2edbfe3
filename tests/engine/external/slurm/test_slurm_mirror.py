"""The mirror over a cluster that is scripted here: what is told of it, what is left out, and which job is which.

Over real clusters: `test_slurm_live_mirror`.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import pytest
from scripted_slurm import NOW_S, World, job, running

from console.views.external_scheduler import mirror_trouble
from engine.external.slurm.capabilities import SlurmUnavailable
from engine.external.slurm.limits import reason_words
from engine.external.slurm.mapping import RESUME_TIMEOUT_S
from engine.external.slurm.mirror_watch import Watcher
from engine.external.slurm.records import JobList, Node, PastJob, SlurmNodes
from engine.model.commands import IntentChange, SettleIntents, Submit
from engine.model.list_queries import Query
from engine.model.specs import ArraySpec, NodeState, Resources, RunSpec, TaskGroup, WorkloadSpec
from engine.state.external_cell import Phase
from engine.state.run_times import HistoricRunTimes
from engine.twin.rehearsals import Rehearsal
from tests.support.patience import PATIENCE_S


@pytest.fixture
def world() -> World:
    return World()


def test_partitions_are_queues_and_machines_alike_are_pools(world: World) -> None:
    world.look()
    capacity = world.engine.state.capacity
    assert {pool.name: pool.capacity.vector() for pool in capacity.pools} == {
        "batch-16c62g": (16_000, 64_000, 0, 0),
        "gpu-32c125g-h100x8": (32_000, 128_000, 8000, 0),
    }
    assert sorted(spec.name for spec in world.engine.state.queues.specs) == ["batch", "gpu", "urgent"]
    assert world.engine.node("c1").labels == {"feature/rack1": "yes"}
    assert (world.engine.node("g1").rack, world.engine.node("g1").block) == ("leaf2", "spine")
    assert world.mirror.lacks() == {"QOS": "there is no accounting here"}


def test_a_job_is_a_gang_of_one_task_a_node_with_its_tenant_and_its_reason(world: World) -> None:
    world.look(job(7, nodes_min=2, cpus=8, memory_mib=16_000, gres_wanted={"gpu:h100": 4}, partition="gpu"))
    found = world.engine.workload("7")
    assert (found.state, found.queue, found.tenant, found.team) == ("queued", "gpu", "vision", "ann")
    group = found.groups[0]
    assert (group.count, group.cpu_milli, group.memory_mib, group.gpu_milli) == (2, 4000, 8000, 4000)
    assert (group.gpu_models, group.pools) == (("h100",), ("gpu-32c125g-h100x8",))
    assert found.reasons[0].token == "Priority"
    assert found.reasons[0].text.startswith("Slurm says Priority: others of higher priority")
    # Two nodes with GPUs are asked for, and there is one.
    assert "only 1 of 2" in found.reasons[1].text or "fit" in found.reasons[1].text


def test_a_running_job_has_its_devices_and_uneven_shares(world: World) -> None:
    world.look(
        running(1, "g1", partition="gpu", gpus_on={"g1": (2, 5)}, gres_on={"g1": {"gpu:h100": 2}}, cpus=4),
        running(2, "c1", "c2", cpus=6, cpus_on={"c1": 4, "c2": 2}, memory_on={"c1": 100, "c2": 50}),
    )
    assert list(world.engine.node("g1").devices) == [1000, 1000, 0, 1000, 1000, 0, 1000, 1000]
    assert world.engine.node("c1").free["cpu_milli"] == 12_000
    assert world.engine.node("c2").free["cpu_milli"] == 14_000
    assert world.engine.workload("1").started_ms == (NOW_S - 50) * 1000


def test_elements_of_an_array_are_workloads_of_their_own(world: World) -> None:
    pending = job(10, array_id=10, array_tasks="2-3%2", reason="JobArrayTaskLimit")
    world.look(pending, running(11, "c1", array_id=10, array_task=0), running(12, "c2", array_id=10, array_task=1))
    assert [world.state(f"10/{i}") for i in range(4)] == ["running", "running", "queued", "queued"]
    found = world.mirror.job_of("10/2")
    assert found is not None
    assert found.id == 10

    world.look(
        job(10, state="COMPLETED", array_id=10, array_task=3, end_s=NOW_S),
        running(11, "c1", array_id=10, array_task=0),
        running(13, "c2", array_id=10, array_task=2),
    )
    assert [world.state(f"10/{i}") for i in range(4)] == ["running", "cancelled", "running", "finished"]


def test_an_id_that_is_given_again_is_another_job_and_a_requeue_is_not(world: World) -> None:
    world.look(running(5, "c1"))
    world.look(job(5, restarts=1, submit_s=NOW_S - 10, reason="BeginTime", eligible_s=NOW_S + 120))
    assert world.state("5") == "waiting"
    assert world.engine.workload("5").history[-2].what == "requeued"

    world.now_s += 500
    world.look(job(5, submit_s=NOW_S + 490, user="bob"))
    assert (world.state("5"), world.state("5.2")) == ("cancelled", "queued")
    assert world.engine.workload("5").history[-1].what == "vanished"
    world.restarted().look()
    assert world.state("5.2") == "queued"


def test_after_a_restart_of_the_mirror_what_went_meanwhile_is_gone_and_the_rest_stays(world: World) -> None:
    world.look(running(1, "c1"), job(2))
    version = world.engine.version
    world.restarted().look()
    assert world.engine.version == version
    world.restarted()
    world.look(job(2))
    assert (world.state("1"), world.state("2")) == ("cancelled", "queued")


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({"held": True, "reason": "JobHeldUser"}, "held"),
        ({"reason": "BeginTime", "eligible_s": NOW_S + 60}, "waiting"),
        ({"reason": "Dependency", "dependency": "afterok:99(unfulfilled)"}, "waiting"),
        ({"state": "RUNNING", "flags": frozenset(["CONFIGURING"]), "nodes": ("c1",), "start_s": NOW_S}, "placed"),
        ({"state": "SUSPENDED", "nodes": ("c1",), "start_s": NOW_S - 9}, "suspended"),
        ({"state": "COMPLETED", "start_s": NOW_S - 9, "end_s": NOW_S - 1}, "finished"),
        ({"state": "TIMEOUT", "start_s": NOW_S - 9, "end_s": NOW_S - 1}, "failed"),
        ({"state": "CANCELLED", "end_s": NOW_S - 1}, "cancelled"),
        ({"state": "COMPLETING", "nodes": ("c1",), "start_s": NOW_S - 9}, "running"),
    ],
)
def test_states_of_slurm(world: World, more: dict[str, Any], state: str) -> None:
    world.look(job(1, **more))
    assert world.state("1") == state


def test_a_dependency_on_a_job_that_is_there_ends_with_it_in_a_fork_too(world: World) -> None:
    world.look(running(1, "c1"), job(2, dependency="afterok:1(unfulfilled)", reason="Dependency"))
    assert world.state("2") == "waiting"
    assert [each.id for each in world.engine.workload("2").waits_for] == ["1"]
    fork = world.engine.fork()
    fork.advance(fork.now_ms + 7_200_000)
    assert fork.workload("2").state == "finished"


def test_nodes_drain_fail_and_leave(world: World) -> None:
    world.look(running(1, "c1"))
    first, second, third = world.cluster.all_nodes
    world.cluster.all_nodes = [
        msgspec.structs.replace(first, state="MIXED", flags=frozenset(["DRAIN"])),
        msgspec.structs.replace(second, state="DOWN", flags=frozenset(["NOT_RESPONDING"])),
    ]
    world.look(running(1, "c1"))
    assert [world.engine.node(name).state for name in ("c1", "c2")] == ["draining", "down"]
    assert "g1" not in world.engine.state.capacity.row_of
    assert world.state("1") == "running"
    world.cluster.all_nodes = [first, second, third]
    world.look(running(1, "c1"))
    assert world.engine.node("c2").state == NodeState.READY.label


def test_before_slurms_list_was_seen_nothing_is_known_of_any_job(world: World) -> None:
    world.cluster.away = True
    with pytest.raises(SlurmUnavailable):
        world.mirror.look()
    assert not world.mirror.has_looked()
    world.cluster.away = False
    world.look()
    assert world.mirror.has_looked()


def test_a_cluster_that_is_away_changes_nothing(world: World) -> None:
    world.look(running(1, "c1"))
    version = world.engine.version
    world.cluster.away = True
    with pytest.raises(SlurmUnavailable):
        world.mirror.look()
    assert world.engine.version == version
    world.cluster.away = False
    world.look(running(1, "c1"))
    assert world.engine.version == version


def test_a_glance_asks_for_what_moved_alone(world: World) -> None:
    world.look(*(job(i) for i in range(1, 9)))
    world.cluster.all_jobs[3] = running(4, "c1")
    world.cluster.asked.clear()
    looked = world.mirror.glance(tracked=[7])
    assert looked is not None
    assert world.cluster.asked == ["states", "job 7", "job 4"]
    assert world.state("4") == "running"


def test_what_slurm_goes_by_and_the_mirror_does_not_is_named(world: World) -> None:
    world.look(
        job(1, features="rack1|rack2"),
        job(2, licenses="matlab:1"),
        job(3, partition="hidden"),
        job(4, gres_wanted={"gpu": 1, "shard": 4}),
        job(5, het_id=4),
    )
    told = " / ".join(each.text for each in world.mirror.left_out())
    for part in ("constraints with |", "licenses", "not shown are left out", "'shard'", "heterogeneous"):
        assert part in told
    assert "3" not in world.engine.state.workloads.row_of


def test_a_changed_time_limit_of_what_waits_is_its_estimate(world: World) -> None:
    world.look(job(1, time_limit_s=7200), running(2, "c1", time_limit_s=60))
    version = world.engine.version
    world.look(job(1, time_limit_s=600), running(2, "c1", time_limit_s=60))
    assert world.engine.workload("1").estimate_ms == 600_000
    assert world.engine.version > version
    world.look(job(1, time_limit_s=600), running(2, "c1", time_limit_s=60))
    world.look(running(1, "c2", time_limit_s=600), running(2, "c1", time_limit_s=60))
    assert world.state("1") == "running"


def test_what_a_limit_stops_is_not_foretold_to_start_where_there_is_room(world: World) -> None:
    world.look(job(1, reason="QOSGrpCpuLimit"))
    assert world.state("1") == "waiting"
    assert world.engine.workload("1").reasons[0].token == "QOSGrpCpuLimit"
    world.look(job(1, reason="Priority"))
    assert world.state("1") == "queued"


def test_a_feature_keeps_a_forecast_to_the_nodes_that_have_it(world: World) -> None:
    world.look(job(1, features="rack2", partition="urgent"))
    fork = world.engine.fork()
    fork.settle()
    assert [place.node for place in fork.workload("1").placement] == ["g1"]


def test_a_hostile_name_of_a_job_is_data(world: World) -> None:
    world.look(job(1, name="\x1b[2J$(reboot)\n", user="\x1b]0;x\x07", account="a b;c"))
    found = world.engine.workload("1")
    assert found.name.startswith("\x1b")  # kept as it is; whoever draws it makes it harmless
    assert (found.tenant, found.team) == ("a_b_c", "]0_x_"[1:])


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        ("Resources", "next for its nodes"),
        ("QOSMaxCpuPerUserLimit", "a limit of the QOS on the CPUs of a user"),
        ("AssocGrpGRES", "on the GPUs and other generic resources of all running jobs together"),
        ("ReqNodeNotAvail, UnavailableNodes:c1", "is down, drained or reserved"),
        ("QOSGrpNodeLimit", "a limit of the QOS on the nodes of all running jobs together"),
        ("AssocGrpCPUMinutesLimit", "running minutes of CPUs"),
    ],
)
def test_reasons_of_slurm_in_words(reason: str, part: str) -> None:
    found = reason_words(reason)
    assert found is not None
    assert part in found.text


def test_an_unknown_reason_is_said_as_it_is(world: World) -> None:
    assert reason_words("SomethingNew") is None
    world.look(job(1, reason="SomethingNew"))
    assert world.engine.workload("1").reasons[0].text == "Slurm says SomethingNew"


def test_in_a_fork_a_higher_tier_takes_the_nodes_of_a_lower_one_and_never_of_its_own(world: World) -> None:
    low = [running(1, "c1", cpus=16), running(2, "c2", cpus=16), running(3, "g1", cpus=32, partition="urgent")]
    world.look(*low, job(4, partition="urgent", cpus=16, reason="Resources"), job(5, cpus=16))
    fork = world.engine.fork()
    fork.settle()
    fork.advance(fork.now_ms + 60_000)
    assert fork.workload("4").state == "running"
    assert sorted(fork.workload(name).state for name in ("1", "2")) == ["queued", "running"]
    assert fork.workload("5").state == "queued"


def test_what_waits_is_in_the_order_of_slurm_whatever_came_first(world: World) -> None:
    world.look(job(1, cpus=16, priority=10), job(2, cpus=16, priority=20), job(3, cpus=16, priority=30))
    world.look(
        job(1, cpus=16, priority=90), job(2, cpus=16, priority=80), job(3, cpus=16, priority=30),
        job(4, cpus=16, priority=85),
    )  # fmt: skip
    order = [world.engine.workload(str(n)).position for n in (1, 4, 2, 3)]
    assert order == sorted(order)
    fork = world.engine.fork()
    fork.settle()
    assert [fork.workload(str(n)).state for n in (1, 4, 2, 3)] == ["running", "running", "queued", "queued"]


def test_accounting_tells_how_jobs_ended_that_the_controller_forgot_while_nobody_looked(world: World) -> None:
    world.look(
        running(1, "c1"), running(2, "c2"), running(31, "g1", array_id=30, array_task=4, partition="gpu"), job(9)
    )
    attempt = {"submit_s": NOW_S - 100, "start_s": NOW_S - 50, "end_s": NOW_S - 5, "partition": "batch"}
    world.cluster.accounting = [
        PastJob(id=1, state="COMPLETED", **attempt),
        PastJob(id=2, state="FAILED", submit_s=NOW_S - 90_000, end_s=NOW_S - 80_000),
        PastJob(id=2, state="TIMEOUT", **attempt),
        PastJob(id=31, array_id=30, array_task=4, state="OUT_OF_MEMORY", **attempt),
    ]
    world.restarted()
    world.look()
    assert [world.state(name) for name in ("1", "2", "30/4", "9")] == ["finished", "failed", "failed", "cancelled"]
    assert world.engine.workload("1").ended_ms == (NOW_S - 5) * 1000
    assert world.engine.workload("30/4").history[-1].detail == "out of memory"


def test_a_fault_of_ours_is_said_and_does_not_end_the_mirror(
    world: World, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(since: int | None = None) -> SlurmNodes:
        raise RuntimeError("not foreseen")

    def until(state: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while watcher.report().state != state:
            assert time.monotonic() < end
            watcher.poke()
            time.sleep(0.01)

    watcher = Watcher(world.cluster, world.mirror, where="here")
    monkeypatch.setattr(world.cluster, "nodes", fault)
    watcher.start()
    until("lost")
    assert "not foreseen" in watcher.report().error
    trouble = mirror_trouble(watcher.report(), time.time())
    assert trouble.startswith("Slurm does not answer")
    assert "not foreseen" in trouble
    monkeypatch.undo()
    until("following")
    report = watcher.report()
    watcher.stop()
    assert (report.error, report.nodes, report.lacks["history"]) == ("", 3, "no accounting")
    assert mirror_trouble(report, report.looked_s + 1) == ""
    assert mirror_trouble(report, report.looked_s + 60) == "Slurm has not answered for 1m"
    assert "requeue" not in report.lacks  # it only looks on
    assert "RuntimeError" in capfd.readouterr().err


def submitted(world: World, **more: Any) -> str:
    """Through Muster: the comment that its job carries."""
    world.look()
    world.engine.acts = True
    given = {
        "id": "train/7", "name": "train it", "queue": "batch", "tenant": "acme", "team": "robots",
        "tags": {"fleet": "prod", "user": "somebody"}, "estimate_ms": 600_000, "run": RunSpec(argv=("true",)),
        "groups": (TaskGroup(request=Resources(cpu_milli=4000, memory_mib=8000)),), "priority_class": "",
    }  # fmt: skip
    world.engine.command(Submit(workloads=(WorkloadSpec(**{**given, **more}),)))
    return f"muster:{next(iter(world.engine.state.intents.named))}"


def test_what_was_submitted_through_muster_keeps_what_slurm_does_not_know_of_it(world: World) -> None:
    comment = submitted(world)
    mine = job(40, comment=comment, name="train_it.m12345678", account="")
    world.look(mine, job(41))
    found = world.engine.workload("train/7")
    assert (found.name, found.tenant, found.team, found.queue) == ("train it", "acme", "robots", "batch")
    assert found.tags == {"fleet": "prod", "user": "ann"}  # what Slurm knows too is as Slurm has it
    assert found.estimate_ms == 600_000
    assert world.engine.workload("41").tags == {"user": "ann", "account": "vision"}
    told = world.engine.state.version
    world.restarted().look()
    assert world.engine.workload("train/7").tags == {"fleet": "prod", "user": "ann"}
    assert world.engine.state.version == told


def test_an_array_submitted_through_muster_is_whole_though_one_element_is_seen_first(world: World) -> None:
    comment = submitted(world, id="sweep", array=ArraySpec(first=1, last=3))
    world.look(running(52, "c1", array_id=51, array_task=1, comment=comment))
    world.look(
        running(52, "c1", array_id=51, array_task=1, comment=comment),
        job(51, array_id=51, array_tasks="2-3", comment=comment),
    )
    rows = world.engine.query(Query(kind="workloads", columns=("id", "state", "array", "tenant"))).rows
    assert sorted(map(tuple, rows)) == [
        ("sweep/1", "running", "sweep", "acme"),
        ("sweep/2", "queued", "sweep", "acme"),
        ("sweep/3", "queued", "sweep", "acme"),
    ]


def test_a_job_that_slurm_forgot_and_that_is_submitted_anew_has_not_ended(world: World) -> None:
    comment = submitted(world)

    def settle(phase: Phase, job: int = 0) -> None:
        number = next(iter(world.engine.state.intents.open))
        world.engine.command(SettleIntents(changes=(IntentChange(number=number, phase=phase, job=job),)))

    settle(Phase.SENT)
    settle(Phase.ACCEPTED, 40)
    world.look(job(40, comment=comment))
    world.look(job(40, submit_s=NOW_S - 1))  # a crash, and somebody else has got the id
    assert (world.state("train/7"), world.state("40")) == ("queued", "queued")
    world.restarted()
    world.look(job(40, submit_s=NOW_S - 1))
    assert world.state("train/7") == "queued"
    settle(Phase.OPEN)
    settle(Phase.SENT)
    again = job(41, comment=comment)
    world.look(again)  # seen before its answer
    settle(Phase.ACCEPTED, 41)
    world.look(msgspec.structs.replace(again, state="RUNNING", start_s=NOW_S, nodes=("c1",)))
    assert world.state("train/7") == "running"
    assert "41" not in world.engine.state.workloads.row_of
    settle(Phase.DONE, 41)
    world.look()
    assert world.state("train/7") == "cancelled"


def test_a_job_on_a_powered_down_node_starts_in_a_forecast_once_it_has_booted(world: World) -> None:
    def cloud(*flags: str, state: str = "IDLE") -> None:
        world.cluster.all_nodes[2] = Node(
            name="g1", state=state, flags=frozenset(["CLOUD", *flags]), cpus=32, memory_mib=128_000, partitions=("gpu",)
        )

    def starts_after_s() -> int:
        ahead = Rehearsal(world.engine.fork(), 1, HistoricRunTimes(world.engine.state))
        ahead.advance(ahead.now_ms + 1_000_000)
        found = next(each for each in ahead.workload("1").history if each.what == "running")
        return (found.at_ms - world.engine.now_ms) // 1000

    cloud("POWERED_DOWN")
    world.look(job(1, partition="gpu", reason="Resources"))
    assert abs(starts_after_s() - RESUME_TIMEOUT_S) <= 2

    # Boots that were seen tell better: one of 18 s.
    cloud("POWERING_UP")
    world.look(job(1, partition="gpu", reason="Resources"))
    world.now_s += 18
    cloud()
    world.look(job(1, partition="gpu", reason="Resources"))
    assert starts_after_s() <= 2
    cloud("POWERED_DOWN")
    world.look(job(1, partition="gpu", reason="Resources"))
    assert abs(starts_after_s() - 18) <= 2


def test_a_controller_that_died_is_said_to_be_lost_while_its_answer_is_still_awaited(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    died, asked = threading.Event(), threading.Event()

    def held_for_half_a_minute(since: int | None = None) -> JobList:
        asked.set()
        assert died.wait(PATIENCE_S)
        raise SlurmUnavailable("at last")

    pings = iter((True, False, True, False, False))
    monkeypatch.setattr("engine.external.slurm.mirror_watch.PATIENCE_S", 0.02)
    monkeypatch.setattr(world.cluster, "jobs", held_for_half_a_minute)
    monkeypatch.setattr(world.cluster, "answers", lambda: next(pings), raising=False)
    watcher = Watcher(world.cluster, world.mirror, where="here")
    watcher.start()
    assert asked.wait(PATIENCE_S)
    end = time.monotonic() + PATIENCE_S
    while watcher.report().state != "lost":
        assert time.monotonic() < end
        time.sleep(0.01)
    # One ping without an answer is not believed.
    assert next(pings, None) is None
    assert "ping" in watcher.report().error
    died.set()
    watcher.stop()
