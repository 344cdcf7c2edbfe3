"""From words to a proposal: quotas and reservations as they are typed, in the shell and in the `:` bar."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from console.actions.request_builder import SeenThrough, parse, propose
from console.forms.action_arguments import declared, typed
from engine.model.consolidation_queries import ConsolidationRequest
from engine.model.errors import RefusedError, SpecError
from engine.model.specs import PROFILES, BurstSpec, QueueSpec, ReservationSpec
from runbooks.actions.catalogue import CATALOG
from runbooks.actions.queues import quota_change, read
from runbooks.actions.workloads import moves_act
from runbooks.plans.typed_plan import QueueChange, WorkloadMove
from tests.console.fake_client import NOW_MS, FakeClient

HOUR = 3_600_000
WAS = QueueSpec(
    name="q", parent="root", nominal={"gpu_milli": 32_000, "cpu_milli": 8_000}, borrowing_limit={"gpu_milli": 8_000},
    burst=BurstSpec(limit={"gpu_milli": 48_000}, window_ms=HOUR),
)  # fmt: skip


def values(name: str, line: str) -> dict[str, Any]:
    """What a line of the `:` bar says, at NOW_MS."""
    return typed(declared(name), parse(name, line), lambda: NOW_MS)


def queue_change(was: QueueSpec, line: str) -> QueueChange:
    return quota_change(was, values("set-quota", line))


def reservation(line: str) -> ReservationSpec | None:
    return read(values("reserve", line), SeenThrough(FakeClient())).reservation


def changed(line: str, was: QueueSpec = WAS) -> dict[str, Any]:
    """The fields that the line gives another value."""
    change = queue_change(was, f"q {line}")
    assert change.was == was
    fields = ((name, getattr(change.to, name)) for name in QueueSpec.__struct_fields__)
    return {name: value for name, value in fields if value != getattr(was, name)}


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("gpu=24", {"nominal": {"gpu_milli": 24_000, "cpu_milli": 8_000}}),
        ("cpu=none memory=1TiB", {"nominal": {"gpu_milli": 32_000, "memory_mib": 2**20}}),
        ("--weight 3 gpu=24 memory=none", {"nominal": {"gpu_milli": 24_000, "cpu_milli": 8_000}, "weight": 3}),
        ("--borrowing-limit gpu=none", {"borrowing_limit": {}}),
        ("--lending-limit gpu=0.5", {"lending_limit": {"gpu_milli": 500}}),
        ("--weight 3 --order fair --reclaim never", {"weight": 3, "order": "fair", "reclaim": "never"}),
        ("--min-runtime 1h30m --disruptions 2", {"min_runtime_ms": 5_400_000, "disruptions": 2}),
        ("--burst none", {"burst": None}),
        ("--placement gpu", {"placement": PROFILES["gpu"]}),
        ("--placement pack=100 price=5", {"placement": {"pack": 100, "price": 5}}),
        ("--burst-window 2h", {"burst": BurstSpec(limit={"gpu_milli": 48_000}, window_ms=2 * HOUR)}),
        ("", {}),
    ],
)
def test_what_is_not_given_stays_as_it_is(line: str, fields: dict[str, Any]) -> None:
    assert changed(line) == fields


def test_placement_can_be_left_to_the_pools_again() -> None:
    assert changed("--placement none", QueueSpec(name="q", placement={"pack": 1})) == {"placement": {}}


def test_a_burst_can_be_given_to_a_queue_that_had_none() -> None:
    plain = QueueSpec(name="q")
    assert changed("--burst gpu=16 --burst-window 30m", plain) == {
        "burst": BurstSpec(limit={"gpu_milli": 16_000}, window_ms=1_800_000)
    }
    with pytest.raises(SpecError, match="--burst: is missing"):
        changed("--burst-window 30m", plain)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("gpu", "QUOTA: 'gpu' is not RESOURCE=QUANTITY"),
        (
            "tpu=8",
            "QUOTA: 'tpu=8' is not RESOURCE=QUANTITY. Write it like gpu=24 memory=1TiB; resources: cpu, ",
        ),
        ("gpu=many", "QUOTA gpu: 'many' is not a number of GPUs"),
        ("--borrowing-limit memory=1", "--borrowing-limit memory: '1' is not a size"),
        ("--min-runtime soon", "--min-runtime: 'soon' is not a duration"),
        ("--order random", "there is no 'random'; choose from"),
        ("--placement gpus", "--placement: there is no profile 'gpus', did you mean 'gpu'?"),
        ("--placement pack=1 price", "--placement: 'price' is not SCORE=WEIGHT"),
        ("--weight x", "argument --weight: 'x' is not a whole number"),
        ("--colour red", "there is no option '--colour'"),
        ("'gpu=1", "No closing quotation"),
    ],
)
def test_a_slip_of_the_fingers_is_told_by_its_flag(line: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        changed(line)
    assert told in str(caught.value)


def test_the_excess_is_refused_unless_something_else_is_said() -> None:
    assert queue_change(WAS, "q gpu=8").over == "refuse"
    assert queue_change(WAS, "q gpu=8 --over evict").over == "evict"


def test_reservations_are_given_in_cell_time() -> None:
    line = "m --nodes n1,n2 --start +2h --end 2026-03-01T16:00 --queues a,b"
    assert reservation(line) == ReservationSpec(
        name="m", nodes=("n1", "n2"), start_ms=NOW_MS + 2 * HOUR, end_ms=NOW_MS + 4 * HOUR, queues=("a", "b")
    )
    at_once = reservation("m --nodes n1 --end +1h")
    assert at_once is not None
    assert (at_once.start_ms, at_once.end_ms, at_once.queues) == (NOW_MS, NOW_MS + HOUR, ())
    with pytest.raises(SpecError, match="--end: 'tomorrow' is not a time"):
        reservation("m --nodes n1 --end tomorrow")


LINES = {
    "set-quota": "research/train --weight 2", "reserve": "m --nodes n1 --end +1h", "unreserve": "m",
    "set-policy": "fcfs", "hold-queue": "batch research/train", "drain-queue": "research/train",
    "open-queue": "research/eval", "cordon": "node-00000", "uncordon": "node-00005", "drain": "node-00000",
    "interrupt": "node-00000",
    "cancel": "wl-000000", "hold": "wl-000003", "release": "wl-000005", "requeue": "wl-000000",
    "suspend": "wl-000000", "resume": "wl-000005",
    "consolidate": "--unblock wl-000003", "resize": "wl-000003 --request cpu=1 memory=2GiB",
    "set-scaling": "gpu --least 2 --most 40 --headroom 1 --priority -5", "set-targets": "gpu +2h=40 +6h=0",
    "set-autoscaling": "--preset ca scan_every=30s enabled=no expanders=price,priority predict_permille=900",
    "set-price": "gpu 12.5", "set-budget": "team --tenant ai --limit 500 --window 7d --then hold",
    "remove-budget": "team", "approve-spending": "wl-000003", "preempt": "wl-000000",
    "move": "wl-000003 --to research/eval", "set-priority": "wl-000003 wl-000005 --to high", "scale-pool": "gpu 12",
    "canary": "research/train --order fair --window 4h --worst-percent 120 --least-starts 5",
    "set-qos": "wl-000003 --to high", "set-job-priority": "wl-000003 --to 5000", "power-up": "node-00000",
    "power-down": "node-00000", "taint": "node-00000 --taint repair=psu:NoSchedule",
    "untaint": "node-00000 --taint repair=psu:NoSchedule",
    "notify": "ops --text 'the pool is short'", "open-review": "P-7 --text 'why twice?'",
}  # fmt: skip
MOVED = "wl-000000"
"""What makes room in a consolidation: that is what the plan names, not what starts."""


@pytest.mark.parametrize("name", sorted(action.word for action in CATALOG.values()))
def test_every_action_of_the_shell_is_proposed_under_its_name(name: str) -> None:
    client = FakeClient(100)
    for row in client._tables["queues"]:
        row["state"] = "held" if name == "open-queue" else "open"
    client._find("wl-000003")["state"] = "queued"
    client._find("wl-000005")["state"] = "suspended" if name == "resume" else "held"
    proposal = propose(client, name, parse(name, LINES[name]), "a reason")
    assert proposal.plan.steps[0].act.action == name.replace("-", "_")
    assert proposal.reason == "a reason"
    target = {"consolidate": MOVED, "set-autoscaling": "autoscaler"}.get(name, LINES[name].split()[0])
    assert proposal.plan.steps[0].act.targets[0] == target
    moves = (WorkloadMove(id=MOVED, was=("node-00001",), to=("node-00002",)),)
    assert proposal.plan.steps[0].act.moves == (moves if name == "consolidate" else ())


def test_a_consolidation_that_is_not_worth_it_or_not_found_is_not_proposed() -> None:
    client = FakeClient(100)
    answer = client.consolidation(ConsolidationRequest(unblock="wl-000003"))
    assert answer.found is not None
    dear = msgspec.structs.replace(answer.found, worth_it=False)
    for found, why in ((None, "nothing may be moved"), (dear, "it costs more than it brings")):
        with pytest.raises(RefusedError, match=why):
            moves_act(msgspec.structs.replace(answer, found=found, why=why))


def test_consolidation_goals_that_exclude_each_other_are_told() -> None:
    for line in ("--unblock w --free-nodes 2 --pool p", "--free-nodes 2", "--pool p"):
        with pytest.raises(SpecError, match=r"--free-nodes|--pool"):
            propose(FakeClient(100), "consolidate", parse("consolidate", line))
    with pytest.raises(SpecError, match="--ratio"):
        parse("consolidate", "--ratio much")
