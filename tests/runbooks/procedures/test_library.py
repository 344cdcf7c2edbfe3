"""Every runbook of the library: sound, told in words that can be followed, and doing on a cell what it promises."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from console.cli.main import parser
from engine.control import Engine
from engine.executors.agent_reports import SampleOf
from engine.model.commands import Cordon, FailNodes, Interrupt, Reserve, RestoreNodes, SetBudgets
from engine.model.specs import (
    Autoscaling,
    BudgetSpec,
    CellSpec,
    NodeSpec,
    PoolSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    ScalingSpec,
    Settings,
)
from runbooks.plans.queries import RunbookAsk, RunbookRun, RunbookVote
from runbooks.procedures.linter import lint_file
from runbooks.procedures.program import LIBRARY, parse
from runbooks.procedures.registry import RunbookRegistry
from tests.support.cells import CLASSES, submit, workload
from tests.support.gates import ME, gate_of

MINUTE, HOUR = 60_000, 3_600_000
FILES = sorted(LIBRARY.glob("*.md"))
NODE = Resources(cpu_milli=64_000, memory_mib=512_000, gpu_milli=8000)


def cell() -> CellSpec:
    """Six 8-GPU nodes in two zones, a spot pool, a pool that grows; queues for production, research and batch."""
    growing = ScalingSpec(least=0, most=20)
    pools = (
        PoolSpec(name="gpu", capacity=NODE, gpu_model="H100", price_microusd_hour=20_000_000),
        PoolSpec(
            name="spot", capacity=NODE, gpu_model="H100", price_microusd_hour=6_000_000, spot=True, scaling=growing
        ),
        PoolSpec(name="burst", capacity=NODE, gpu_model="H100", price_microusd_hour=25_000_000, scaling=growing),
    )
    nodes = [NodeSpec(id=f"g{i}", pool="gpu", zone=f"z{i // 3}") for i in range(6)]
    nodes += [NodeSpec(id=f"s{i}", pool="spot", zone="z1") for i in range(4)]
    queues = (
        QueueSpec(name="root"),
        QueueSpec(name="prod", parent="root", nominal={"gpu_milli": 32_000}, lending_limit={"gpu_milli": 0}),
        QueueSpec(name="research", parent="root", nominal={"gpu_milli": 16_000}, borrowing_limit={"gpu_milli": 0}),
        QueueSpec(name="batch"),
    )
    # Nothing grows by itself in these scenes; looking every ten seconds of a day would only take time.
    settings = Settings(autoscaling=Autoscaling(scan_every_ms=HOUR))
    return CellSpec(
        name="night", pools=pools, nodes=tuple(nodes), queues=queues, priority_classes=CLASSES, settings=settings
    )


class Night:
    """A cell in trouble, and the shelf beside it."""

    def __init__(self) -> None:
        self.engine = Engine.open(None, cell=cell())
        self.engine.advance(MINUTE)
        self.shelf = RunbookRegistry(self.engine, gate_of(self.engine))

    def work(self, name: str, gpu: int = 8000, **options: object) -> None:
        given = {"queue": "batch", "run": 9 * HOUR, "estimate": 9 * HOUR, "pools": ("gpu",), "tenant": "t"} | options
        self.engine.command(submit(workload(name, gpu=gpu, **given)))  # type: ignore[arg-type]

    def where(self, name: str) -> str:
        return self.engine.workload(name).placement[0].node

    def try_(self, id_: str, **inputs: str) -> RunbookRun:
        return self.shelf.run(ME, RunbookAsk(id=id_, inputs=inputs))

    def do(self, id_: str, **inputs: str) -> RunbookRun:
        """Approve it, run it, and have all of its steps done that need nobody's go in between."""
        line = next(line for line in self.shelf.lines() if line.id == id_)
        if line.status != "approved":
            self.shelf.approve(ME, RunbookVote(id=id_, sha256=line.sha256))
        made = self.shelf.run(ME, RunbookAsk(id=id_, inputs=inputs, dry_run=False))
        assert made.proposal is not None
        return made


@pytest.fixture
def night() -> Night:
    return Night()


def effects(made: RunbookRun) -> dict[str, tuple[str, str]]:
    assert made.applies, made.when
    assert made.proposal is not None, made.refused
    return {effect.label: (effect.before, effect.after) for effect in made.proposal.effects}


# -- every one of them ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_sound_and_named_as_its_file(path: Path) -> None:
    assert lint_file(path.read_bytes(), path.name) == ()
    assert parse(path.read_bytes(), path.name).front.id == path.stem


def test_there_are_those_that_a_night_on_call_needs() -> None:
    assert len(FILES) >= 15
    assert {path.stem for path in FILES} == set(SCENES), "each has a scene below"


def test_every_command_that_they_tell_can_be_typed() -> None:
    shell = parser()
    for path in FILES:
        for command in re.findall(r"`(muster [^`]*)`", re.sub(r"\s+", " ", path.read_text())):
            try:
                shell.parse_args(shlex.split(command)[1:])
            except SystemExit:
                pytest.fail(f"{path.name}: not a command: {command}")


# -- a scene for each -------------------------------------------------------------------------------------------------


def drain_failing_node(night: Night) -> None:
    night.work("a")
    night.work("b")
    node = night.where("a")
    made = night.try_("drain-failing-node", node=node)
    found = effects(made)
    assert found["Nodes taking work"] == ("10", "9")
    assert found["Requeued"] == ("none", "1 workload")
    assert made.proposal is not None
    assert made.proposal.tier == "T2"
    assert any("requeues a" in step for step in made.proposal.steps)
    assert night.engine.node(node).state == "ready", "a dry run changes nothing"
    # A node without work is not drained by it: there is nothing to save.
    assert not night.try_("drain-failing-node", node="g5").applies


def gpu_ecc_rising(night: Night) -> None:
    night.work("a")
    made = night.try_("gpu-ecc-rising", node=night.where("a"))
    assert effects(made)["Nodes taking work"] == ("10", "9")
    assert made.proposal is not None
    assert [step.act.action for step in made.proposal.plan.steps] == ["cordon", "drain", "open_review"]
    assert made.proposal.plan.steps[1].confirm == "operator"


def queue_wait_over_slo(night: Night) -> None:
    for name in ("a", "b", "c"):
        night.work(name, queue="research")
    assert not night.try_("queue-wait-over-slo", queue="research", pool="gpu", gpus="8").applies
    night.engine.advance(night.engine.now_ms + HOUR)
    made = night.try_("queue-wait-over-slo", queue="research", pool="gpu", gpus="8", slo="30m")
    found = effects(made)
    assert (found["Waiting"], found["Starts as a result"]) == (("1", "0"), ("none", "c"))
    assert made.proposal is not None
    assert made.proposal.plan.steps[0].rollback[0].queue is not None
    assert night.try_("queue-wait-over-slo", queue="research", pool="gpu", gpus="400").proposal is None


def spot_storm(night: Night) -> None:
    asked = {"spot": "spot", "fallback": "burst", "nodes": "3", "spot_most": "1"}
    assert not night.try_("spot-storm", **asked).applies
    night.engine.command(Interrupt(ids=("s0", "s1", "s2"), notice_ms=HOUR))
    made = night.try_("spot-storm", **asked)
    effects(made)
    assert made.proposal is not None
    stop, more = (step.act for step in made.proposal.plan.steps)
    assert stop.scaling is not None
    assert (stop.targets, stop.scaling.most, more.targets, more.nodes) == (("spot",), 1, ("burst",), 3)
    assert made.proposal.plan.blast.cost_microusd_hour >= 0


def stuck_gang(night: Night) -> None:
    night.work("gang", count=2)
    assert not night.try_("stuck-gang", gang="gang").applies
    night.engine.advance(night.engine.now_ms + 2 * HOUR)
    made = night.try_("stuck-gang", gang="gang", silent_for="1h")
    assert effects(made)["Requeued"] == ("none", "1 workload")
    assert made.rollback == ("restart: cannot be rolled back",)


def fragmented_gang(night: Night) -> None:
    # Two small ones on each node: 6 free everywhere, and a task of 8 fits nowhere.
    for i in range(6):
        night.work(f"small{i}", gpu=1000, queue="batch", run=9 * HOUR, checkpoint=MINUTE)
    engine = night.engine
    nodes = [night.where(f"small{i}") for i in range(6)]
    assert set(nodes) == {nodes[0]}, "they are packed, so each is moved to a node of its own below"
    from engine.model.commands import Migrate, Move

    engine.command(Migrate(moves=tuple(Move(id=f"small{i}", nodes=(f"g{i}",)) for i in range(6))))
    night.work("gang", count=4)
    assert engine.workload("gang").reasons[0].token == "Fragmented"
    made = night.try_("fragmented-gang", gang="gang")
    assert effects(made)["Starts as a result"] == ("none", "gang")
    assert made.proposal is not None
    assert set(made.proposal.plan.steps[0].act.targets) <= {f"small{i}" for i in range(6)}


def runaway_tenant(night: Night) -> None:
    for i in range(5):
        night.work(f"sweep{i}", tenant="wild")
        night.engine.advance(night.engine.now_ms + 1000)
    night.work("kind", tenant="calm")
    night.work("late", tenant="wild", count=6)
    made = night.try_("runaway-tenant", tenant="wild", most_gpus="16")
    found = effects(made)
    assert found["Suspended"] == ("0", "5")
    assert found["On hold"] == ("0", "1")
    chosen = {one.name: one for one in made.inputs}
    assert chosen["running"].values[0] == "sweep4", "the newest first"
    assert "selected: running workloads of tenant wild" in chosen["running"].source
    assert not night.try_("runaway-tenant", tenant="calm", most_gpus="16", running="kind").applies
    # Nothing of it waits: then that step is left out, and said to be.
    quiet = night.try_("runaway-tenant", tenant="calm", most_gpus="1", running="kind")
    assert quiet.skipped == ("hold-what-waits",)


def quota_rebalance(night: Night) -> None:
    for name in ("a", "b", "c"):
        night.work(name, queue="research")
    made = night.try_(
        "quota-rebalance", donor="prod", donor_gpus="24", receiver="research", receiver_gpus="24"
    )  # fmt: skip
    assert effects(made)["Starts as a result"] == ("none", "c")
    assert made.proposal is not None
    assert made.proposal.tier == "T1"
    # What the donor uses is not taken from it.
    night.work("p", queue="prod", count=4)
    made = night.try_(
        "quota-rebalance", donor="prod", donor_gpus="8", receiver="research", receiver_gpus="40"
    )  # fmt: skip
    assert made.proposal is None
    assert "work to stop: 'p'" in made.refused


def zone_loss(night: Night) -> None:
    asked = {"zone": "z1", "batch": "batch"}
    assert not night.try_("zone-loss", **asked).applies
    night.engine.command(FailNodes(ids=("g3", "g4", "s0")))
    made = night.try_("zone-loss", **asked)
    assert effects(made)["Nodes taking work"] == ("7", "3")
    left = next(one for one in made.inputs if one.name == "left")
    assert set(left.values) == {"g5", "s1", "s2", "s3"}
    night.work("later")
    night.engine.advance(night.engine.now_ms + 1000)
    assert made.rollback[-1].startswith("keep-for-production: ")


def pre_scale(night: Night) -> None:
    made = night.try_("pre-scale", pool="burst", nodes="5", lasts="2h")
    effects(made)
    assert made.proposal is not None
    change = made.proposal.plan.steps[0].act.scaling
    now = night.engine.now_ms
    assert change is not None
    assert change.targets == ((now, 5), (now + 2 * HOUR, 0))
    assert not night.try_("pre-scale", pool="burst", nodes="50").applies, "it may not grow so far"


def stale_reservation(night: Night) -> None:
    now = night.engine.now_ms
    spec = ReservationSpec(name="demo", nodes=("g0", "g1"), start_ms=now, end_ms=now + 4 * HOUR)
    night.engine.command(Reserve(reservation=spec))
    night.work("big", count=6)
    made = night.try_("stale-reservation", reservation="demo")
    assert effects(made)["Starts as a result"] == ("none", "big")
    assert made.proposal is not None
    assert made.proposal.plan.steps[0].rollback[0].reservation == spec


def straggler(night: Night) -> None:
    night.work("gang", count=5, queue="batch")
    engine = night.engine
    engine.advance(engine.now_ms + 15 * MINUTE)
    engine.agents.open()
    nodes = sorted({place.node for place in engine.workload("gang").placement})
    registered = engine.agents.register(nodes)
    of_task = {place.rank: place.node for place in engine.workload("gang").placement}
    engine.advance(engine.now_ms + 30_000)
    for sample in range(1, 4):
        for task, node in sorted(of_task.items()):
            i = nodes.index(node)
            done = (12 if node == nodes[2] else 20) * sample
            engine.agents.status(registered.rows[i], registered.epochs[i], sample, [SampleOf("gang", task, done)])
    assert not night.try_("straggler", node=nodes[0], gang="gang").applies
    made = night.try_("straggler", node=nodes[2], gang="gang")
    found = effects(made)
    assert found["Requeued"] == ("none", "1 workload")
    assert made.proposal is not None
    assert made.proposal.plan.blast.workloads == 1


def node_flapping(night: Night) -> None:
    assert not night.try_("node-flapping", node="g0").applies
    for _ in range(2):
        night.engine.command(FailNodes(ids=("g0",)))
        night.engine.advance(night.engine.now_ms + MINUTE)
        night.engine.command(RestoreNodes(ids=("g0",)))
    made = night.try_("node-flapping", node="g0")
    assert effects(made)["Nodes taking work"] == ("10", "9")
    night.engine.advance(night.engine.now_ms + 25 * HOUR)
    assert not night.try_("node-flapping", node="g0").applies, "a day later it is forgotten"


def hand_back_nodes(night: Night) -> None:
    night.engine.command(Cordon(ids=("g0", "g1")))
    night.work("big", count=6)
    made = night.try_("hand-back-nodes", nodes="g0,g1")
    found = effects(made)
    assert (found["Nodes taking work"], found["Starts as a result"]) == (("8", "10"), ("none", "big"))
    assert not night.try_("hand-back-nodes", nodes="g0,g2").applies, "g2 was never out"


def nodes_to_maintenance(night: Night) -> None:
    night.work("a")
    made = night.try_("nodes-to-maintenance", nodes=f"{night.where('a')},g4,g5")
    assert effects(made)["Nodes taking work"] == ("10", "7")
    assert made.proposal is not None
    assert made.proposal.tier >= "T2", "half of a pool is more than a small thing"


def budget_nearly_spent(night: Night) -> None:
    night.work("a", tenant="wild", count=2)
    spec = BudgetSpec(name="wild-usd", scope="tenant", of="wild", limit_microusd=100_000_000, window_ms=24 * HOUR)
    night.engine.command(SetBudgets(budgets=(spec,)))
    assert not night.try_("budget-nearly-spent", budget="wild-usd", usd="10").applies
    night.engine.advance(night.engine.now_ms + 2 * HOUR + 15 * MINUTE)
    made = night.try_("budget-nearly-spent", budget="wild-usd", usd="1000")
    assert effects(made)["Spent of wild-usd"][1].endswith("of $1,100.00, open")


SCENES: dict[str, Callable[[Night], None]] = {
    scene.__name__.replace("_", "-"): scene
    for scene in (
        drain_failing_node, gpu_ecc_rising, queue_wait_over_slo, spot_storm, stuck_gang, fragmented_gang,
        runaway_tenant, quota_rebalance, zone_loss, pre_scale, stale_reservation, straggler, node_flapping,
        hand_back_nodes, nodes_to_maintenance, budget_nearly_spent,
    )
}  # fmt: skip


@pytest.mark.parametrize("id_", sorted(SCENES))
def test_a_dry_run_shows_the_effect_that_it_promises(id_: str, night: Night) -> None:
    version = night.engine.version
    SCENES[id_](night)
    assert night.engine.version >= version
