"""A cell that another scheduler decides: what is seen of it leads the state there; only forks decide."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from engine.control import Engine, recover
from engine.journal.event_journal import Journal
from engine.model import external_cells as seen
from engine.model.commands import Define, Observe, SetPrice, Submit
from engine.model.errors import RefusedError
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    Settings,
    Taint,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
)
from engine.state.invariants import faults_of

START_MS = 1_000_000
NODES = tuple(f"n{i}" for i in range(6))
MIRROR = CellSpec(name="mirror", settings=Settings(decided_by="slurm"))
MACHINES: tuple[seen.AnySeen, ...] = (
    seen.PriorityClassSeen(priority_class=PriorityClassSpec(name="tier-1", value=1)),
    seen.QueueSeen(queue=QueueSpec(name="batch")),
    seen.PoolSeen(
        pool=PoolSpec(name="c8", capacity=Resources(cpu_milli=8000, memory_mib=1000, gpu_milli=2000), gpu_model="h100")
    ),
    *(seen.NodeSeen(node=NodeSpec(id=name, pool="c8")) for name in NODES),
)


def mirror(path: Path | None = None) -> Engine:
    engine = Engine.open(path)
    engine.advance(START_MS)
    engine.command(Define(cell=MIRROR))
    engine.command(Observe(seen=MACHINES))
    return engine


def job(
    name: str, phase: seen.Phase = "queued", *on: str, cpus: int = 4, gpus: int = 0, **more: object
) -> seen.WorkloadSeen:
    request = Resources(cpu_milli=cpus * 1000, memory_mib=100, gpu_milli=gpus * 1000)
    spec = WorkloadSpec(
        id=name,
        queue="batch",
        priority_class="tier-1",
        groups=(TaskGroup(count=max(len(on), 1), request=request),),
        estimate_ms=600_000,
    )
    holds = tuple(seen.Holding(node=node, resources=request) for node in on)
    return seen.WorkloadSeen(spec=spec, phase=phase, holds=holds, **more)  # type: ignore[arg-type]


def state_of(engine: Engine, name: str) -> str:
    return engine.workload(name).state


def test_it_follows_a_job_from_its_submission_to_its_end_at_the_true_times() -> None:
    engine = mirror()
    engine.command(Observe(seen=(job("7", submitted_ms=START_MS - 5000, word="Priority"),)))
    assert state_of(engine, "7") == "queued"
    assert engine.state.outside.word_of(0) == "Priority"

    engine.advance(START_MS + 10_000)
    engine.command(Observe(seen=(job("7", "running", "n1", "n2", started_ms=START_MS + 9000),)))
    found = engine.workload("7")
    assert (found.state, found.submitted_ms, found.started_ms) == (
        "running",
        START_MS - 5000,
        START_MS + 9000,
    )
    assert engine.node("n1").free["cpu_milli"] == 4000

    engine.advance(START_MS + 100_000)
    engine.command(
        Observe(seen=(job("7", "failed", ended_ms=START_MS + 90_000, cause="max runtime", word="TimeLimit"),))
    )
    found = engine.workload("7")
    assert (found.state, found.ended_ms) == ("failed", START_MS + 90_000)
    assert engine.node("n1").free["cpu_milli"] == 8000
    assert not faults_of(engine.state)


def test_a_mirror_starts_nothing_by_itself_and_a_fork_does() -> None:
    engine = mirror()
    engine.command(Observe(seen=(job("1"), job("2", "running", "n0", started_ms=START_MS))))
    engine.advance(START_MS + 3_600_000)
    assert (state_of(engine, "1"), state_of(engine, "2")) == ("queued", "running")

    before = engine.state.digest()
    fork = engine.fork()
    fork.settle()
    fork.advance(START_MS + 10 * 3_600_000)
    assert (state_of(fork, "1"), state_of(fork, "2")) == ("finished", "finished")
    assert engine.state.digest() == before


def test_seeing_the_same_twice_changes_nothing() -> None:
    engine = mirror()
    told = (job("1", word="Resources"), job("2", "running", "n0", "n3", gpus=1, started_ms=START_MS - 50))
    engine.command(Observe(seen=told))
    version = engine.version
    receipt = engine.command(Observe(seen=(*MACHINES, *told)))
    assert (receipt.changed, engine.version) == ((), version)


def test_more_than_a_node_has_is_counted_as_far_as_there_is_room_and_named() -> None:
    engine = mirror()
    receipt = engine.command(
        Observe(
            seen=(
                job("1", "running", "n0", cpus=6, gpus=2, started_ms=START_MS),
                job("2", "running", "n0", "n1", cpus=6, gpus=1, started_ms=START_MS),
            )
        )
    )
    assert len(receipt.left_out) == 1
    assert "workload '2' has more cpu_milli, gpu_milli on 'n0'" in receipt.left_out[0]
    free = engine.node("n0").free
    assert (free["cpu_milli"], free["gpu_milli"]) == (0, 0)
    assert engine.node("n1").free["cpu_milli"] == 2000
    assert not faults_of(engine.state)


def test_what_cannot_be_taken_is_named_and_the_rest_is_taken() -> None:
    engine = mirror()
    bad = job("bad id")
    astray = job("3", "running", "nowhere", started_ms=START_MS)
    receipt = engine.command(Observe(seen=(bad, astray, job("4"))))
    assert state_of(engine, "4") == "queued"
    assert any("'bad id' is not a valid id" in line for line in receipt.left_out)
    assert any("runs on 'nowhere', which is not known" in line for line in receipt.left_out)


def test_a_job_that_is_put_back_and_starts_elsewhere_between_two_looks() -> None:
    engine = mirror()
    engine.command(Observe(seen=(job("1", "running", "n0", started_ms=START_MS),)))
    engine.advance(START_MS + 60_000)
    engine.command(Observe(seen=(job("1", "running", "n5", started_ms=START_MS + 30_000, restarts=1),)))
    assert engine.node("n0").free["cpu_milli"] == 8000
    assert engine.node("n5").free["cpu_milli"] == 4000
    assert engine.workload("1").attempts == 2


def test_a_cell_that_muster_decides_takes_no_observations_and_a_fork_of_a_mirror_neither() -> None:
    with pytest.raises(RefusedError, match="scheduled by Muster"):
        Engine.open(None).command(Observe(seen=MACHINES))
    with pytest.raises(RefusedError):
        mirror().fork().command(Observe(seen=MACHINES))


def test_a_job_of_a_few_seconds_is_seen_only_when_it_has_ended() -> None:
    engine = mirror()
    engine.advance(START_MS + 60_000)
    engine.command(
        Observe(
            seen=(
                job(
                    "1",
                    "finished",
                    submitted_ms=START_MS + 50_000,
                    started_ms=START_MS + 51_000,
                    ended_ms=START_MS + 53_000,
                ),
            )
        )
    )
    found = engine.workload("1")
    assert (found.state, found.started_ms, found.ended_ms) == ("finished", START_MS + 51_000, START_MS + 53_000)


def test_work_goes_on_where_its_node_gets_other_labels_and_taints(tmp_path: Path) -> None:
    engine = mirror(tmp_path / "journal.db")
    wide = job("8").spec
    wide = msgspec.structs.replace(wide, groups=(msgspec.structs.replace(wide.groups[0], count=10),))
    runs = job("7", "running", "n1", "n2", started_ms=START_MS)
    engine.command(Observe(seen=(runs, seen.WorkloadSeen(spec=wide))))
    before = engine.workload("7")
    assert state_in_fork(engine, "8") == "running"
    node = NodeSpec(id="n1", pool="c8", labels={"rack": "r"}, taints=(Taint(key="repair", value="psu"),))
    bad = NodeSpec(id="n2", pool="c8", labels={"": ""})
    told = engine.command(Observe(seen=(seen.NodeSeen(node=node), seen.NodeSeen(node=bad))))
    assert len(told.left_out) == 1
    assert "n2" in told.left_out[0]
    assert msgspec.structs.replace(engine.workload("7"), version=before.version) == before
    assert (engine.node("n1").taints, engine.node("n1").labels) == (("repair=psu:NoSchedule",), {"rack": "r"})
    assert state_in_fork(engine, "8") == "queued"
    digest = engine.state.digest()
    engine.close()
    for use_snapshot in (True, False):
        again = Engine.open(tmp_path / "journal.db", use_snapshot=use_snapshot)
        assert again.state.digest() == digest
        again.command(Observe(seen=(seen.NodeSeen(node=NodeSpec(id="n1", pool="c8")),)))
        assert state_in_fork(again, "8") == "running"
        again.close()
        digest = again.state.digest()


def state_in_fork(engine: Engine, name: str) -> str:
    fork = engine.fork()
    fork.settle()
    return state_of(fork, name)


PHASES: tuple[seen.Phase, ...] = (
    "queued", "held", "waiting", "starting", "running", "suspended", "finished", "failed", "cancelled",
)  # fmt: skip


def at_random(random: Random, now_ms: int) -> seen.AnySeen:
    """Anything that a scheduler might show, sense or none."""
    kind = random.random()
    if kind < 0.06:
        standing = random.choice(("ready", "cordoned", "draining", "down"))
        labels = {"rack": "r"} if random.random() < 0.2 else {}
        taints = (Taint(key="repair", value=random.choice(("psu", "fan"))),) if random.random() < 0.3 else ()
        node = NodeSpec(id=random.choice(NODES), pool="c8", zone=random.choice(("", "", "a", "b")), labels=labels)
        return seen.NodeSeen(node=msgspec.structs.replace(node, taints=taints), standing=standing)
    if kind < 0.09:
        return seen.NodeGone(id=random.choice(NODES))
    if kind < 0.12:
        nodes = tuple(random.sample(NODES, 2))
        start_ms = now_ms + random.randint(-5000, 5000)
        spec = ReservationSpec(
            name=f"r{random.randint(0, 2)}", nodes=nodes, start_ms=start_ms, end_ms=start_ms + 60_000
        )
        return seen.ReservationSeen(reservation=spec)
    if kind < 0.14:
        return seen.ReservationGone(name=f"r{random.randint(0, 2)}")
    if kind < 0.16:
        return seen.QueueSeen(queue=QueueSpec(name="batch", weight=random.randint(1, 3)), open=random.random() < 0.7)
    name = str(random.randint(1, 25))
    if kind < 0.2:
        return seen.WorkloadGone(id=name)
    phase = random.choice(PHASES)
    on = random.sample((*NODES, "nowhere"), random.randint(0, 4))
    return job(
        name,
        phase,
        *on,
        cpus=random.randint(1, 12),
        gpus=random.randint(0, 3),
        submitted_ms=now_ms - random.randint(-1000, 50_000),
        started_ms=now_ms - random.randint(-1000, 30_000),
        ended_ms=now_ms - random.randint(-1000, 10_000),
        wake_ms=random.choice((-1, now_ms + 5000, now_ms - 5000)),
        restarts=random.randint(0, 3),
        word=random.choice(("", "Priority", "Resources", "\x1b[31mred")),
        cause=random.choice(("", "node lost", "out of memory", "no such cause")),
    )


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_seen_the_state_is_sound_and_the_journal_leads_there(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    engine = mirror(tmp_path / "journal.db")
    try:
        for _ in range(25):
            engine.advance(engine.now_ms + random.randint(0, 20_000))
            told = tuple(at_random(random, engine.now_ms) for _ in range(random.randint(1, 12)))
            engine.command(Observe(seen=told))
            assert not faults_of(engine.state)
        fork = engine.fork()
        fork.advance(fork.now_ms + 60_000)
        assert not faults_of(fork.state)
        digest = engine.state.digest()
    finally:
        engine.close()
    for use_snapshot in (True, False):
        again = Engine.open(tmp_path / "journal.db", use_snapshot=use_snapshot)
        assert again.state.digest() == digest
        again.close()


def test_an_array_is_one_submission_whose_members_are_seen_each_by_itself() -> None:
    engine = mirror()
    from msgspec.structs import replace

    from engine.model.specs import ArraySpec

    whole = job("50", submitted_ms=START_MS - 10)
    array = seen.WorkloadSeen(
        spec=replace(whole.spec, array=ArraySpec(first=0, last=3, max_running=2)), submitted_ms=START_MS - 10
    )
    engine.command(Observe(seen=(array, job("50/2", "running", "n0", started_ms=START_MS))))
    assert [state_of(engine, f"50/{i}") for i in range(4)] == ["queued", "queued", "running", "queued"]
    fork = engine.fork()
    fork.settle()
    states = fork.state.workloads.state
    assert list(states).count(WorkloadState.RUNNING) == 2


def test_a_mirror_refuses_work_of_its_own() -> None:
    engine = mirror()
    with pytest.raises(RefusedError):
        engine.command(Submit(workloads=(job("1").spec,)))


def _gang(random: Random, number: int) -> seen.WorkloadSeen:
    """New work in any state; what it says to have may be more than there is, or on nodes that nobody knows."""
    request = Resources(
        cpu_milli=random.choice([500, 3000]), memory_mib=100, gpu_milli=random.choice([0, 0, 300, 1000, 2000])
    )
    count = random.randint(1, 4)
    spec = WorkloadSpec(
        id="bad id" if not number % 13 else f"g{number}",
        queue=random.choice(["batch", "batch", "batch", "nowhere"]),
        priority_class="tier-1",
        groups=(TaskGroup(name="main", count=count, request=request),),
        retries=random.choice([0, 0, 0, 3]),
        elastic=not random.randrange(9),
    )
    phase = random.choice(("queued", "held", "starting", "running", "running"))
    places = [random.choice([*NODES, "unknown"]) for _ in range(random.randint(0, count))]
    group = random.choice(["main", "main", "main", ""]) if number > 40 else "main"
    holds = tuple(seen.Holding(node=node, resources=request, group=group, count=places.count(node))
                  for node in sorted(set(places)))  # fmt: skip
    share = (seen.QuotaShare(resources=request),) if not random.randrange(3) else ()
    return seen.WorkloadSeen(
        spec=spec,
        phase=phase,
        holds=holds if phase in ("starting", "running") else (),
        submitted_ms=random.choice([0, START_MS - 9000, START_MS + 9000]),
        started_ms=random.choice([0, START_MS - 20_000, START_MS - 3000]),
        word=random.choice(["", "so it is"]),
        reserves=share,
    )


def _as_it_stands(engine: Engine) -> list[object]:
    state = engine.state
    w, a = state.workloads, state.allocations
    found: list[object] = [state.capacity.free_vector(node) for node in range(len(NODES))]
    found += [list(state.capacity.device_free), list(state.capacity.whole), state.queues.used_vector(0)]
    columns = (w.state, w.since, w.submitted, w.started, w.rated, w.tasks, w.attempts, w.confirmed, w.done, w.ended)
    for name, row in sorted(w.row_of.items()):
        held = [(a.group[i], a.node[i], a.count[i], a.devices[i]) for i in a.of_workload(w.first_allocation[row])]
        story, entry = [], w.history[row]
        while entry >= 0:
            story.append((w.history_what[entry], w.history_at[entry], w.history_detail[entry]))
            entry = w.history_previous[entry]
        said = state.outside.word_of(row), state.held_quota.of.get(row), engine.workload(name).cost_microusd
        found.append((name, w.class_at(row).groups, [column[row] for column in columns], held, story, said))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_new_work_that_is_told_together_is_as_if_told_one_by_one(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    work = [_gang(random, number) for number in range(random.choice([9, 40, 60]))]
    # Who comes first has the room: those on nodes come last, and last of them those that can be told together.
    work.sort(key=lambda each: (bool(each.holds), not each.spec.elastic and not each.spec.retries))
    together, singly = mirror(tmp_path / "together.db"), mirror()
    for engine in (together, singly):
        engine.command(SetPrice(pool="c8", price_microusd_hour=9_000_000))
        engine.advance(START_MS + 1000)
    left = together.command(Observe(seen=tuple(work))).left_out
    assert set(left) == {line for each in work for line in singly.command(Observe(seen=(each,))).left_out}
    assert faults_of(together.state) == []
    for engine in (together, singly):
        engine.advance(START_MS + 3_600_000)
    for one, other in zip(_as_it_stands(together), _as_it_stands(singly), strict=True):
        assert one == other
    digest = together.state.digest()
    together.close()
    journal = Journal(tmp_path / "together.db", 0)
    assert recover(journal, use_snapshot=False).digest() == digest
    journal.close()
