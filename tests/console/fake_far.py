"""What a mirror of Slurm, intents to it and a fleet of cells show of themselves: fixed answers for pages that stand
still."""

from __future__ import annotations

from typing import Any

import msgspec

from console.fleet.queries import CellView, FleetEvent, FleetSubmission, FleetView, TenantView
from engine.admission.fleet_routing import CellRow, RoutingDecision
from engine.external.mirror_report import LeftOut, MirrorReport
from engine.model.external_cells import FarLook, IntentsReport, IntentView, IntentWord
from engine.model.specs import TaskGroup, WorkloadSpec
from runbooks.plans.queries import IntentDetail
from runbooks.plans.typed_plan import Act
from tests.console.fake_client import MINUTE, NOW_MS

NOW_S = NOW_MS // 1000
TIB = 1 << 20


def mirror() -> MirrorReport:
    """Far behind nothing: it follows, does not act, and leaves things out."""
    return MirrorReport(
        where="https://head.example.org:6820", state="following", release="24.11.5", dialect="v0.0.42", user="muster",
        since_s=NOW_S - 7_200, looked_s=NOW_S - 1, every_s=4.5, jobs=10_213, nodes=640, looks=1_618, asked_s=1.1,
        told_s=0.2, rpcs=90_412, own_rpcs=3_120, cycle_mean_us=900, backfill_last_us=12_000,
        lacks={
            "history": "slurmrestd runs without slurmdbd",
            "topology": "REST up to v0.0.42 cannot report switches, and Slurm's commands are not installed here",
        },
        left_out=(
            LeftOut(text="licenses: not modelled", count=41, examples=("4711", "4712", "4713")),
            LeftOut(text="constraints with |: taken for none", count=3, examples=("812", "900", "901")),
        ),
    )  # fmt: skip


def intents() -> IntentsReport:
    def one(number: int, what: str, phase: str, text: str, *subjects: str, job: int = 0, tries: int = 0) -> IntentView:
        return IntentView(
            id=f"i{number}", what=what, subjects=subjects, count=len(subjects), phase=phase, job=job, text=text,
            at_ms=NOW_MS - (20 - number) * MINUTE, changed_ms=NOW_MS - (20 - number) * MINUTE + 2_000, tries=tries,
            token=f"m{number:08x}",
        )  # fmt: skip

    return IntentsReport(
        at_ms=NOW_MS, open=1, sent=0, accepted=1, in_doubt=1,
        items=(
            one(19, "drain", "open", "", "cpu001", "cpu002"),
            one(18, "submit", "accepted", "accepted as job 4711", "train-7b", job=4711, tries=1),
            one(17, "submit", "in doubt", "job 4690 left Slurm's list before its end was seen", "evaluate", job=4690),
            one(16, "hold", "done", "job 4688 is PENDING", "4688", job=4688),
            one(15, "set_job_priority", "refused", "slurmctld: Access/permission denied", "4687", job=4687),
        ),
    )  # fmt: skip


def intent(number: int) -> IntentDetail:
    """The one in doubt: of the submission, or with another number of a drain."""
    view = next(each for each in intents().items if each.phase == "in doubt")
    act = None
    if number != 17:
        view = msgspec.structs.replace(view, id=f"i{number}", what="drain", subjects=("node-00001",), job=0)
        act = Act(action="drain", targets=("node-00001",))
    said = (("sent", ""), ("accepted", ""), ("in doubt", view.text))
    lines = (
        "no job in Slurm's list carries its token",
        "job 4690, the id it was given, does not carry its token: nightly of bob, RUNNING, submitted 2026-03-01",
        "accounting: slurmrestd runs without slurmdbd",
    )
    return IntentDetail(
        version=7, now_ms=NOW_MS, view=view, wants=("queue research", "runs python3 evaluate.py"), act=act,
        words=tuple(
            IntentWord(at_ms=view.at_ms + i * MINUTE // 2, phase=phase, text=text)
            for i, (phase, text) in enumerate(said)
        ),
        proposal="P-1" if act else "", by="person:alice" if act else "", agreed=("person:bob",) if act else (),
        far=FarLook(
            at_ms=NOW_MS, lines=lines, since_ms=view.at_ms + MINUTE // 2, since_by="scontrol show config"
        ),
    )  # fmt: skip


def _work(name: str, gpu: int) -> WorkloadSpec:
    return WorkloadSpec(
        id=name, queue="research", tenant="acme", groups=(TaskGroup(request={"gpu_milli": 1000 * gpu}),)
    )  # fmt: skip


def submission(name: str = "train-7b") -> FleetSubmission:
    """It waits: one cell is full, one is down."""
    rows = (
        CellRow(
            cell="east", start_p50_ms=45 * MINUTE, start_p90_ms=90 * MINUTE, runs=8, cost_microusd=54_200_000,
            used_permille=960, crowded=True, score_microusd=57_950_000, note="room for 2 now",
        ),
        CellRow(cell="west", why_not="does not answer for 4m"),
        CellRow(cell="lab", why_not="keeps no data of residency us", for_good=True),
    )  # fmt: skip
    return FleetSubmission(
        seq=12, id=name, state="waiting", spec=_work(name, 8), asked={"gpu_milli": 8000}, by="unix:1000",
        submitted_ms=NOW_MS - 3 * MINUTE, changed_ms=NOW_MS - MINUTE, why="no cell starts it within 10m",
        waits="room", decision=RoutingDecision(why="no cell starts it within 10m", waits="room", rows=rows),
    )  # fmt: skip


def fleet() -> FleetView:
    east = CellView(
        name="east", state="up", connect="/run/muster/east/engine.sock", region="us-east", residency=("us",),
        datasets=("images",), seen_ms=NOW_MS, version=8_120,
        capacity={"gpu_milli": 512_000, "cpu_milli": 8_192_000}, used={"gpu_milli": 491_000, "cpu_milli": 5_000_000},
        nodes=64, ready=63, running=211, queued=40, wait_p95_ms=41 * MINUTE, cost_microusd_hour=1_240_000_000,
        fleet_open=14,
    )  # fmt: skip
    west = CellView(
        name="west", state="down", why="nobody answers at https://west.example.org:7373", region="eu-west",
        connect="https://west.example.org:7373", residency=("eu",), seen_ms=NOW_MS - 4 * MINUTE, version=402,
        decided_by="slurm", capacity={"gpu_milli": 256_000}, used={"gpu_milli": 100_000}, nodes=32, ready=32,
        running=60, queued=2, fleet_open=3, unsettled=1,
    )  # fmt: skip
    lab = CellView(
        name="lab", state="closed", why="upgrade until noon", connect="/run/muster/lab/engine.sock", seen_ms=NOW_MS,
        version=77, capacity={"cpu_milli": 64_000}, used={"cpu_milli": 8_000}, nodes=1, ready=1, running=2,
    )  # fmt: skip
    acme = TenantView(
        name="acme", weight=2, quota={"gpu_milli": 128_000}, held={"gpu_milli": 96_000, "cpu_milli": 900_000},
        share_ppm=125_000, waiting=1, by_cell={"east": {"gpu_milli": 96_000}},
    )  # fmt: skip
    clinic = TenantView(name="clinic", weight=1, quota={}, held={"gpu_milli": 8_000}, share_ppm=10_400, waiting=0)
    told = (
        ("down", "west", "nobody answers at https://west.example.org:7373"),
        ("unsettled", "fold-3", "in west: the answer did not come"),
        ("routed", "tokenize-9", "to east: starts at once"),
        ("submitted", "train-7b", "by unix:1000"),
    )
    return FleetView(
        name="prod", now_ms=NOW_MS, pid=4_242, software="1", cells=(east, west, lab), tenants=(acme, clinic),
        counts={"waiting": 1, "sending": 1, "routed": 16, "ended": 812}, waiting=(submission(),),
        recent=tuple(
            FleetEvent(seq=9 - n, at_ms=NOW_MS - n * MINUTE, what=what, subject=subject, detail=detail)
            for n, (what, subject, detail) in enumerate(told)
        ),
    )  # fmt: skip


class FakeFleet:
    """What a page asks of a fleet."""

    def view(self) -> FleetView:
        return fleet()

    def submission(self, name: str) -> FleetSubmission:
        return submission(name)

    def close(self) -> None:
        """Nothing is open."""


WRITTEN = b"".join(b"step %d  loss %.4f\n" % (n, 3 / (1 + n / 20)) for n in range(0, 1_200, 20)) + b"saved to out/\n"


def staged_far(client: Any) -> Any:
    """The fake client, of a cell that mirrors and acts, and whose work writes."""
    client.mirror, client.intents, client.intent = mirror, lambda limit=200: intents(), intent
    client.written, client.ended = WRITTEN, True
    return client
