"""What actions mean where Slurm decides: what cannot be asked of it is refused before anybody votes; success needs what
was read there, and what the cell shows since."""

from __future__ import annotations

from contextlib import nullcontext

import msgspec
import pytest
from cells import workload
from gates import Person, gate_of
from made_up_slurm import outside_cell

from engine.control import Engine
from engine.model import commands as cmd
from engine.model import external_cells as seen
from engine.model.errors import RefusedError, SpecError
from engine.model.specs import NodeSpec, PoolSpec, QueueSpec, Resources, Taint
from engine.state.external_cell import Intent, Phase
from runbooks.actions import catalogue, target_readings, wording
from runbooks.actions.taints import read_taint
from runbooks.actions.wording import inverse_of
from runbooks.gate.approval_policy import SOLO
from runbooks.plans.typed_plan import Act, QueueChange, Target
from tests.support.mirrored_kubernetes import CELL

HOLD = Act(action="hold", targets=("w",))
QUEUED, HELD = Target(id="w", state="queued"), Target(id="w", state="held")


def intent(phase: Phase, text: str = "") -> Intent:
    return Intent(3, "token", 0, msgspec.msgpack.encode(catalogue.command(HOLD)), phase=phase, text=text)


@pytest.mark.parametrize(
    ("phase", "now", "in_time", "verdict"),
    [
        (Phase.OPEN, QUEUED, True, "inconclusive"),
        (Phase.SENT, HELD, True, "inconclusive"),  # it may be somebody else's hold
        (Phase.ACCEPTED, QUEUED, True, "inconclusive"),  # read there, not seen here
        (Phase.ACCEPTED, HELD, True, "success"),
        (Phase.DONE, HELD, False, "success"),
        (Phase.NEEDLESS, HELD, True, "success"),
        (Phase.ACCEPTED, QUEUED, False, "failure"),
        (Phase.REFUSED, HELD, True, "failure"),
        (Phase.EXPIRED, QUEUED, True, "failure"),
        (Phase.IN_DOUBT, HELD, True, "failure"),
    ],
)
def test_a_verdict_needs_what_was_read_there_and_what_is_seen_here(
    phase: Phase, now: Target, in_time: bool, verdict: str
) -> None:
    assert target_readings.verdict(intent(phase), HOLD, QUEUED, now, in_time=in_time) == verdict


def test_what_the_cell_does_not_hold_is_shown_by_what_was_read_there() -> None:
    act = Act(action="power_up", targets=("n",))
    node = Target(id="n", state="ready")
    assert target_readings.verdict(intent(Phase.ACCEPTED), act, node, node, in_time=True) == "success"
    assert target_readings.verdict(intent(Phase.SENT), act, node, node, in_time=True) == "inconclusive"


@pytest.mark.parametrize(
    ("act", "was", "verdict"),
    [
        # What waits has a rank behind its class, which is nobody's wish.
        (Act(action="set_qos", targets=("w",), to="high"), "high", "success"),
        (Act(action="set_qos", targets=("w",), to="high"), "normal", "inconclusive"),
        (Act(action="set_qos", targets=("w",), to="high"), "", "success"),  # QOS do not preempt: no class tells one
        (Act(action="set_priority", targets=("w",), to="high.tier-1.03"), "high.tier-1.01", "success"),
        (Act(action="set_priority", targets=("w",), to="high.tier-1"), "normal.tier-1.01", "inconclusive"),
    ],
)
def test_the_qos_of_what_waits_is_read_from_its_class(act: Act, was: str, verdict: str) -> None:
    before, now = (Target(id="w", state="queued", was=told) for told in ("old", was))
    assert target_readings.verdict(intent(Phase.ACCEPTED), act, before, now, in_time=True) == verdict


@pytest.mark.parametrize(("name", "qos"), [("high.tier-10.01", "high"), ("a.b.tier-1", "a.b"), ("tier-10.02", "")])
def test_a_class_of_the_mirror_tells_its_qos(name: str, qos: str) -> None:
    from engine.external.slurm.job_requests import TIER
    from runbooks.actions.workloads import qos_of

    assert qos_of(name) == qos
    found = TIER.fullmatch(name)
    assert (found["qos"] if found else "") == qos


def test_it_is_said_how_an_act_would_be_carried_and_what_is_read_back() -> None:
    engine = outside_cell()
    node = engine.state.capacity.node_ids[0]
    person = Person(gate_of(engine, SOLO))
    assert person.propose("cordon", [node]).carried == (
        "cordon goes to Slurm, which has not answered yet; read back there, and again after 20 s: the node is DRAIN",
    )
    engine.ways, engine.far = {cmd.Cordon: "REST v0.0.42"}, "Slurm 24.11.5 at https://head"
    shown = person.propose("cordon", [node])
    assert shown.carried[0].startswith("cordon goes by REST v0.0.42 to Slurm 24.11.5 at https://head; read back")
    engine.lacks = {cmd.Cordon: "REST v0.0.38 cannot change nodes"}
    found = person.gate.proposal(shown.id)
    assert found.carried == ("cordon cannot be sent now: REST v0.0.38 cannot change nodes",)
    assert found.digest == shown.digest, "how it is carried is no part of the plan"
    assert target_readings.carried(Engine.open(None), (HOLD,)) == ()


def test_every_ability_of_a_cluster_is_told_as_a_way() -> None:
    from engine.external.slurm.capabilities import COMMAND, REST, Capabilities, Capability
    from engine.external.slurm.job_requests import lacks_of, ways_of

    none = Capability("", "read-only")
    can = dict.fromkeys(Capabilities.__struct_fields__, REST) | {"put_back": COMMAND, "reservation_write": none}
    ways = ways_of(Capabilities(**can), "v0.0.42")
    assert ways[cmd.Drain] == "scontrol and REST v0.0.42"
    assert (ways[cmd.Hold], ways[cmd.Requeue]) == ("REST v0.0.42", "scontrol")
    assert lacks_of(Capabilities(**can)).keys() == {cmd.Reserve, cmd.Unreserve}
    assert not ways.keys() & {cmd.Reserve, cmd.Unreserve}


def test_the_line_says_what_slurm_said() -> None:
    assert target_readings.line(intent(Phase.REFUSED, "job 7: no"), "slurm") == "i3 to Slurm is refused: job 7: no"
    assert target_readings.line(None, "slurm") == ""


def test_impossible_actions_are_refused_before_anybody_votes() -> None:
    engine = outside_cell()
    person = Person(gate_of(engine, SOLO))
    with pytest.raises(RefusedError, match=r"set_policy: the order of work is slurm\.conf's"):
        person.propose("set_policy", ["fcfs"])
    engine.acts = False
    with pytest.raises(RefusedError, match="only observes"):
        person.propose("cordon", ["n0"])
    engine.acts, engine.lacks = True, {cmd.Cordon: "REST v0.0.38 cannot change nodes"}
    with pytest.raises(RefusedError, match=r"cordon: REST v0\.0\.38 cannot change nodes"):
        person.propose("cordon", ["n0"])


def test_a_weight_that_would_never_reach_kueue_is_refused_before_anybody_votes() -> None:
    queue = QueueSpec(name="q", nominal={"gpu_milli": 8000})
    engine = Engine.open(None, cell=msgspec.structs.replace(CELL, queues=(queue,)))
    engine.acts = True
    more = msgspec.structs.replace(queue, nominal={"gpu_milli": 16_000})
    for to, refused in ((more, False), (msgspec.structs.replace(more, weight=3), True)):
        act = Act(action="set_quota", targets=("q",), queue=QueueChange(was=queue, to=to))
        with pytest.raises(RefusedError, match=r"not weight of q\. .*kubectl") if refused else nullcontext():
            target_readings.refuse_impossible(engine, [act])


def test_what_only_slurm_has_is_refused_where_muster_decides() -> None:
    engine = Engine.open(None)
    with pytest.raises(RefusedError, match="power_up: Muster schedules"):
        target_readings.refuse_impossible(engine, [Act(action="power_up", targets=("n",))])


def test_an_approved_act_leaves_an_intent_in_the_transaction_of_its_record() -> None:
    engine = outside_cell()
    node = engine.state.capacity.node_ids[0]
    person = Person(gate_of(engine, SOLO))
    shown = person.propose("cordon", [node], "power work")
    assert engine.state.intents.open == {}
    done = person.approve(shown.id, shown.plan.digest())
    assert done.state == "verifying"
    (left,) = engine.state.intents.open.values()
    assert left.command == msgspec.msgpack.encode(cmd.Cordon(ids=(node,)))
    assert engine.node(node).state == "ready"
    assert shown.plan.steps[0].timeout_ms >= target_readings.MIN_MS
    refused = cmd.IntentChange(number=left.number, phase=Phase.REFUSED, text="node is busy")
    engine.command(cmd.SettleIntents(changes=(refused,)))
    person.gate.tick()
    found = person.gate.proposal(shown.id)
    assert found.state == "paused"
    assert "node is busy" in found.note


def drained_by_scontrol() -> Engine:
    """A mirror on which j runs on g0, which was put into drain with Slurm's own command."""
    engine = outside_cell()
    node = NodeSpec(id="g0", pool="gpu", rack="r0", block="b0", zone="z0")
    job = workload("j")
    runs = seen.Holding(node="g0", resources=job.groups[0].request)
    told = (
        seen.NodeSeen(node=node, standing="draining"),
        seen.WorkloadSeen(spec=job, phase="running", holds=(runs,)),
    )
    engine.command(cmd.Observe(seen=told))
    assert (engine.node("g0").state, engine.workload("j").state) == ("draining", "running")
    return engine


def test_a_node_that_slurm_was_told_to_drain_is_emptied_and_stays_drained() -> None:
    engine = drained_by_scontrol()
    person = Person(gate_of(engine, SOLO))
    shown = person.propose("drain", ["g0"])
    assert shown.inverse.startswith("Nothing to undo: still out of service")
    assert [target.id for target in shown.plan.steps[0].stops] == ["j"]
    person.approve(shown.id, shown.plan.digest())
    (left,) = engine.state.intents.open.values()
    assert left.command == msgspec.msgpack.encode(cmd.Drain(ids=("g0",)))


def test_taking_an_uncordon_back_requeues_nothing() -> None:
    """In Slurm a node that drains is one that takes nothing new: its jobs were to run to their end."""
    person = Person(gate_of(drained_by_scontrol(), SOLO))
    shown = person.propose("uncordon", ["g0"])
    assert shown.plan.steps[0].rollback == (Act(action="cordon", targets=("g0",)),)


@pytest.mark.parametrize("told", ["0", "-1", "x", "4294967294", "١٢"])
def test_a_job_priority_is_a_number_that_slurm_takes(told: str) -> None:
    with pytest.raises(SpecError, match=r"^to: "):
        catalogue.command(Act(action="set_job_priority", targets=("w",), to=told))


def test_the_way_back_of_what_only_slurm_has() -> None:
    was = Target(id="w", state="queued", was="normal")
    qos = Act(action="set_qos", targets=("w",), to="high")
    assert inverse_of(qos, (was,)) == (Act(action="set_qos", targets=("w",), to="normal"),)
    assert wording.inverse(qos, (Target(id="w", state="queued"),)).startswith("Cannot be undone")
    power = Act(action="power_down", targets=("n",))
    assert inverse_of(power, (Target(id="n", state="ready"),)) == (Act(action="power_up", targets=("n",)),)


def test_an_intent_is_found_though_an_older_one_was_settled_after_it() -> None:
    engine = outside_cell()
    engine.advance(1000)
    queue = next(iter(engine.state.queues.row_of))
    engine.command(cmd.HoldQueues(names=(queue,)))
    engine.advance(2000)
    act = Act(action="open_queue", targets=(queue,))
    engine.command(catalogue.command(act))
    older, ours = engine.state.intents.open
    for number in (ours, older):
        engine.command(cmd.SettleIntents(changes=(cmd.IntentChange(number=number, phase=Phase.DONE),)))
    found = target_readings.intent_of(engine, act, 1500)
    assert found is not None
    assert found.number == ours


def kubernetes_node(*taints: Taint) -> seen.NodeSeen:
    return seen.NodeSeen(node=NodeSpec(id="n0", pool="p", taints=taints), standing="ready")


def kubernetes_cell() -> Engine:
    pool = PoolSpec(name="p", capacity=Resources(cpu_milli=8000, memory_mib=64_000))
    engine = Engine.open(None, cell=msgspec.structs.replace(CELL, pools=(pool,), nodes=(NodeSpec(id="n0", pool="p"),)))
    engine.acts = True
    return engine


def carry(engine: Engine, person: Person, *taints: Taint) -> cmd.TaintNodes:
    """What the one open intent asks for, done in Kubernetes and seen since."""
    (left,) = engine.state.intents.open.values()
    engine.command(cmd.SettleIntents(changes=(cmd.IntentChange(number=left.number, phase=Phase.DONE),)))
    engine.command(cmd.Observe(seen=(kubernetes_node(*taints),)))
    person.gate.tick()
    return msgspec.msgpack.decode(left.command, type=cmd.TaintNodes)


def test_a_taint_goes_through_the_gate_and_back() -> None:
    engine = kubernetes_cell()
    person = Person(gate_of(engine, SOLO))
    repair = Taint(key="repair", value="psu")
    shown = person.propose("taint", ["n0"], "power work", taint=repair)
    assert shown.plan.steps[0].rollback == (Act(action="untaint", targets=("n0",), taint=repair),)
    person.approve(shown.id, shown.plan.digest())
    assert carry(engine, person, repair) == cmd.TaintNodes(ids=("n0",), taint=repair)
    assert person.gate.proposal(shown.id).state == "verified"
    with pytest.raises(RefusedError, match=r"n0 has repair=psu:NoSchedule"):
        person.propose("taint", ["n0"], taint=Taint(key="repair", value="fan"))
    person.gate.rollback(person.actor, shown.id, "mended")
    assert carry(engine, person) == cmd.TaintNodes(ids=("n0",), taint=repair, remove=True)
    assert person.gate.proposal(shown.id).state == "rolled_back"
    with pytest.raises(RefusedError, match=r"n0 without repair=psu:NoSchedule"):
        person.propose("untaint", ["n0"], taint=repair)


def test_a_taint_is_refused_by_name_where_there_are_none() -> None:
    act = Act(action="taint", targets=("n0",), taint=Taint(key="repair"))
    with pytest.raises(RefusedError, match=r"taint: Muster schedules this cell itself\. Cordon, drain or reserve"):
        target_readings.refuse_impossible(Engine.open(None), [act])
    with pytest.raises(RefusedError, match="taint: Slurm has no taints: drain the node, or reserve it"):
        target_readings.refuse_impossible(outside_cell(), [act])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("repair=psu:NoSchedule-", "Use untaint"),
        ("repair:NoExecute", "Drain the nodes instead"),
        ("repair=psu", "is not KEY"),
        (":NoSchedule", "is not KEY"),
        ("node.kubernetes.io/not-ready:NoSchedule", "by Kubernetes"),
        ("a b:NoSchedule", "taint"),
    ],
)
def test_what_is_no_taint_is_refused(text: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        read_taint(text)


def test_a_taint_is_written_as_kubectl_writes_it() -> None:
    assert [read_taint(text).label for text in ("a=b:NoSchedule", "x.io/a:PreferNoSchedule")] == [
        "a=b:NoSchedule",
        "x.io/a:PreferNoSchedule",
    ]
