"""The published phases of very large clusters, small: counts, gangs, quota and kept work after each of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.control import Engine
from engine.model.commands import Submit
from engine.model.errors import MusterError, SpecError
from engine.model.specs import WorkloadState
from engine.scenarios import fault_drill, gke
from engine.scenarios.gke import MINUTE_MS, EngineStopwatch, PhaseTimes, Training, cell, phases, run, run_phase
from engine.state.invariants import faults_of
from tests.support.invariants import check_quota_kept, check_state


def played(name: str, nodes: int, training: Training = "jobsets", path: Path | None = None) -> list[PhaseTimes]:
    """All phases, with every invariant checked from the ground up after each; the runner checks counts itself."""
    engine = Engine.open(path, cell=cell(nodes))
    clock = EngineStopwatch()
    found = []
    for phase in phases(name, nodes, training=training):
        found.append(run_phase(engine, clock, phase, 0))
        check_state(engine.state)
        check_quota_kept(engine.state)
    assert engine.state.workloads.state_counts[WorkloadState.FAILED] == 0
    engine.close()
    return found


def test_the_published_counts_of_130k_come_out_at_full_size() -> None:
    """65,000 of low priority, training of which 39,000 preempt, a surge of 52,000."""
    full = gke.phases_130k(130_000)
    tasks = [sum(spec.groups[0].count for spec in phase.submits) for phase in full]
    assert tasks == [130_000, 0, 65_000, 104_000, 52_000, 0, 0]
    assert full[3].preempted == 39_000


def test_the_published_counts_of_65k_come_out_at_full_size() -> None:
    full = gke.phases_65k(65_000)
    tasks = [sum(spec.groups[0].count for spec in phase.submits) for phase in full]
    assert tasks == [65_000, 0, 50_000, 15_000, 50_000, 0, 0, 0]
    assert full[4].running == {"high": 65_000}


def test_the_five_phases() -> None:
    met = played("gke-65k", 650)
    assert [phase.tasks for phase in met] == [650, 0, 500, 150, 500, 500, 0, 0]
    up, down = met[4], met[5]
    assert (up.preempted, up.preempted_workloads) == (500, 1), "the training goes as a whole"
    assert 0 < up.lost_ms < gke.CHECKPOINT_MS, "and keeps its work up to the last checkpoint"
    assert down.tasks == 500, "and it comes back as a whole"


@pytest.mark.parametrize(
    ("training", "workloads", "surge"),
    [("jobsets", 120, range(160, 281)), ("one", 120, range(320, 500)), ("singles", 120, range(160, 161))],
)
def test_the_four_phases(training: Training, workloads: int, surge: range) -> None:
    met = played("gke-130k", 400, training)
    assert [phase.tasks for phase in met[:5]] == [400, 0, 200, 320, 160]
    assert (met[3].preempted, met[3].preempted_workloads) == (120, workloads)
    assert met[4].preempted in surge, "the surge takes no more than room for it, gangs whole"
    assert all(phase.waited_max_ms == 0 for phase in met), "what arrives starts in the same instant"
    assert max(phase.lost_ms for phase in met) < gke.CHECKPOINT_MS


def test_a_run_is_the_same_again_and_survives_a_restart(tmp_path: Path) -> None:
    first = Engine.open(tmp_path / "a.db", cell=cell(200))
    run(first, gke.phases_130k(200)[:5])
    first.close()
    again, other = Engine.open(tmp_path / "a.db", use_snapshot=False), Engine.open(None, cell=cell(200))
    run(other, gke.phases_130k(200)[:5])
    assert again.state.digest() == first.state.digest() == other.state.digest()
    again.close()


def test_what_does_not_come_out_is_said() -> None:
    """A phase that leaves other work running than it must is an error that names the phase."""
    engine = Engine.open(None, cell=cell(200))
    half = gke.phases_130k(100)[0]
    wrong = msgspec.structs.replace(half, running={"medium": 200})
    with pytest.raises(MusterError, match=r"phase '1 one gang, all nodes' went wrong: 100 medium run, and not 200"):
        run(engine, [wrong])


@pytest.mark.parametrize(("name", "nodes"), [("gke-65k", 66), ("gke-65k", 13), ("gke-130k", 105)])
def test_numbers_of_nodes_that_cannot_be_divided_are_refused(name: str, nodes: int) -> None:
    with pytest.raises(SpecError, match="multiple of"):
        phases(name, nodes)


def test_the_checks_see_what_is_off() -> None:
    """Each kind of damage, done to a sound state, is named."""
    engine = Engine.open(None, cell=cell(100))
    make = gke.SpecFactory(1)
    engine.command(
        Submit(workloads=(make.gang("gang", 40, "medium", MINUTE_MS), *make.singles("one", 80, "low", 9, 9)))
    )
    state = engine.state
    assert faults_of(state) == []
    allocation = state.workloads.first_allocation[0]
    state.allocations.count[allocation] += 1
    assert any("gangs are neither whole nor off their nodes: gang" in fault for fault in faults_of(state))
    assert any("more cpu_milli is used than there is on" in fault for fault in faults_of(state))
    assert any("charged for other than what is placed" in fault for fault in faults_of(state))
    state.allocations.count[allocation] -= 1
    state.capacity.free_cpu[0] += 1
    assert any(fault.startswith("free cpu_milli is not what is left of n000000") for fault in faults_of(state))
    state.capacity.free_cpu[0] -= 1
    waiting = next(iter(state.pending.groups.values()))
    waiting.rows.append(waiting.rows[-1])
    assert faults_of(state) == ["what is queued is not what waits"]
    waiting.rows.pop()
    state.workloads.state[0] = WorkloadState.QUEUED
    assert len(faults_of(state)) >= 3
    state.workloads.state[0] = WorkloadState.RUNNING
    assert faults_of(state) == []


def test_the_drill_loses_nothing() -> None:
    """A rack, a zone and 40 % of the spot nodes: every invariant after each step; what waits has no room, or would
    delay what has none and is ahead of it."""

    def check(engine: Engine) -> None:
        check_state(engine.state)

    result = fault_drill.bench(650, check=check)
    assert result.lost_nodes["rack"] == gke.RACK
    assert result.lost_nodes["zone"] == 200
    assert result.lost_nodes["spot"] > 50
    high, waiting = result.evicted[-1], sum(each.waiting for each in result.evicted)
    assert (high.priority, high.waiting) == ("high", 0), "whoever counts most runs again"
    assert sum(result.waiting.values()) == waiting > 0
    assert set(result.waiting) <= {"InsufficientCapacity", "WaitingForReservation"}
    assert result.recovered_ms <= fault_drill.NOTICE_MS
    assert result.back_ms == 0, "when the nodes come back all runs again"
    assert result.finished == result.workloads - 150
    assert max(each.lost_ms for each in result.evicted) < gke.CHECKPOINT_MS


def test_gangs_swap_members_in_the_drill() -> None:
    assert fault_drill.bench(1300, seed=2).swapped > 0
