"""A Client over made-up data: deterministic, any number of workloads, its clock stands still unless told to move."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from console.client.credentials import NewToken, TokenAsk, TokenLine
from console.client.presence import Here, PresenceAsk, Present
from console.client.protocol import Client, Health, RuntimeEstimate
from console.client.questions import ServiceQuestion, refuse_read_only, wrap_answers
from engine.executors.task_files import AttemptView, OutputPart, OutputRequest, ProcessReport, TaskView
from engine.external.mirror_report import NOT_MIRRORED, Mirrored, MirrorReport
from engine.model.commands import AnyCommand, Receipt
from engine.model.consolidation_queries import (
    Consolidation,
    ConsolidationPlan,
    ConsolidationRequest,
    NodeTasks,
    Relocation,
    Unblocked,
)
from engine.model.details import (
    Burn,
    BurnWindow,
    Counterfactual,
    GroupDetail,
    HistoryItem,
    MigInstance,
    NodeDetail,
    QueueDetail,
    Reason,
    TaskPlace,
    TopologyDetail,
    Unblocking,
    WorkloadDetail,
)
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError, UnreachableError
from engine.model.external_cells import IntentsReport
from engine.model.list_queries import DEFAULT_COLUMNS, Named, Page, Query, Term
from engine.model.overviews import Change, Changes, Overview, PoolOverview
from engine.model.past_queries import (
    CellDifference,
    CountedHappenings,
    DifferenceRequest,
    Happening,
    PastStatus,
    QueueDifference,
    ValueChange,
)
from engine.model.reports import (
    BudgetLine,
    BudgetReport,
    BurstReport,
    DecisionReport,
    FairnessReport,
    GoodputReport,
    HeatMap,
    HeatRequest,
    HeatTile,
    PoolSize,
    ScalingReport,
    Showback,
    ShowbackLine,
    ShowbackRequest,
    TenantGoodput,
    VertexReport,
)
from engine.model.spec_parts import Autoscaling, ScalingSpec
from engine.model.specs import BudgetSpec, QueueSpec
from engine.model.twin_queries import (
    Ask,
    Figure,
    Interval,
    Outlook,
    RunStatus,
    ScoreReport,
    StartFigure,
    StartForecast,
    Unit,
)
from recommender.estimates.queries import (
    Coverage,
    Forecast,
    ForecastRequest,
    HourAhead,
    MemberSkill,
    Need,
    PlacementAdvice,
    PlacementOption,
    Quantiles,
    QuantileSpread,
    Quote,
    QuoteOption,
    QuoteRequest,
    RunTime,
    SizedKind,
    SizingReport,
    SizingRequest,
)
from recommender.findings.suggestions import (
    Benefit,
    Evidence,
    Recommendation,
    Recommendations,
    Suggestion,
    SuggestionTrial,
    Track,
    grouped,
)
from recommender.history.metrics import (
    History,
    HistoryPoint,
    HistoryRequest,
    ImportReceipt,
    RunBatch,
    SampleBatch,
    SeriesKey,
)
from runbooks.actions.catalogue import CATALOG
from runbooks.drafts.typed_draft import DraftAsk, Drafter, DraftRun, ModelStanding
from runbooks.gate.approval_policy import Caller, Candidate, PolicyChange, PolicyCheck, PolicyView, PolicyVote, Verdict
from runbooks.gate.run_limits import Freeze, FreezeSpec
from runbooks.plans.identity import Signed
from runbooks.plans.incidents import Incident, IncidentChange, NewIncident, number_of
from runbooks.plans.queries import (
    AuditPage,
    AuditPart,
    AuditQuery,
    AuditRange,
    AuditState,
    Chosen,
    IntentAnswer,
    IntentDetail,
    RunbookAsk,
    RunbookLine,
    RunbookRun,
    RunbookView,
    RunbookVote,
)
from runbooks.plans.typed_plan import (
    Act,
    Blast,
    Effect,
    Outcome,
    Party,
    Plan,
    Proposal,
    Request,
    Review,
    Source,
    Step,
    Tier,
)
from runbooks.plans.typed_plan import Simulated as Fork
from tests.console import fake_gate, fake_incidents, fake_policy

NOW_MS = 1_772_366_400_000
"""2026-03-01 12:00:00 UTC."""
MINUTE = 60_000
_LAYOUT = (("1g.10gb", True), ("1g.10gb", False), ("2g.20gb", True), ("3g.40gb", False))
HOSTILE = (
    "\x1b]52;c;cm0gLXJm\x07 clipboard",
    "\x1b]0;owned\x07title",
    "\x1b[31mred\x1b[0m",
    "c1 \x9b2J\x90payload\x9c",
    "[@click=app.quit]click me[/]",
    "[bold red]markup[/x] [/",
    "\u202egnp.exe\u202c bidi \u2066iso\u2069",
    "zero\u200bwidth\u2060joined\ufeff",
    "line\nbreak\ttab\rreturn",
    "lone \ud800 surrogate",
    "日本語の名前 とても長い" * 8,
    "x" * 5_000,
)
"""Names a stranger may give his work."""

_STATES = ("running", "queued", "finished", "running", "queued", "held", "finished", "placed", "failed", "cancelled")
_QUEUES = ("research/train", "research/eval", "prod/serve", "batch")
_TENANTS = ("acme", "globex", "initech")
_REASONS = ("InsufficientCapacity", "BehindInQueue", "WaitingForQuota", "WaitingForReservation")
_NAMES = ("llama pretrain", "eval sweep", "serve chat", "tokenise", "render")
_NEXT_STATE = {
    "cancel": "cancelled", "hold": "held", "release": "queued", "requeue": "queued", "cordon": "cordoned",
    "uncordon": "ready", "drain": "draining", "suspend": "suspended", "resume": "queued", "hold_queue": "held",
    "drain_queue": "draining", "open_queue": "open", "interrupt": "draining",
}  # fmt: skip
_ALLOWED = {
    "cancel": {"queued", "held", "placed", "running"}, "hold": {"queued"}, "release": {"held"},
    "requeue": {"placed", "running"}, "cordon": {"ready"}, "uncordon": {"cordoned", "draining"},
    "drain": {"ready", "cordoned"}, "suspend": {"queued", "placed", "running"}, "resume": {"suspended"},
    "hold_queue": {"open"}, "drain_queue": {"open", "held"}, "open_queue": {"held", "draining"},
    "interrupt": {"ready", "cordoned"},
}  # fmt: skip
_DISRUPTIVE = ("cancel", "requeue", "drain", "drain_queue")


_MEASURED = {
    "wait_p95_s": [i * 3e3 for i in range(10)], "quota_gpu": [8e3] * 6 + [12e3] * 4, "capacity_gpu": [12e3] * 10,
    "quota_cpu": [64e3] * 10, "nodes_down": [0.0] * 7 + [3.0] * 3,
}  # fmt: skip
"""Ten steps of a metric. Of others the step's number, in thousands."""


class FakeClient(Client):
    """Answers with made-up data what the pages ask. `down` makes every call fail, `refuse` with this error."""

    def __init_subclass__(cls) -> None:
        wrap_answers(cls, Client, _as_declared)

    def __init__(
        self, workloads: int = 500, nodes: int = 48, *, hostile: bool = False, read_only: bool = False
    ) -> None:
        self.read_only = read_only
        self.now_ms = NOW_MS
        self.version = 1_000
        self.down = False
        self.refuse: MusterError | None = None
        self.approved: list[str] = []
        self.rejected: dict[str, str] = {}
        self.proposed: list[Act] = []
        self.reasons: list[str] = []
        self.kept: dict[str, Proposal] = {}
        self.me = "person:bob"
        self.here: tuple[Here, ...] = ()
        """Who else is here."""
        self.places: list[tuple[str, str, str]] = []
        """Where this console said that it was: page, thing, what is done there."""
        self.audit_records = 30
        self.written = b""
        """What every workload has written; empty: nothing runs for real."""
        self.ended = False
        """No more of it comes."""
        self.runs_asked: list[RunbookAsk] = []
        self.deeds: list[tuple[str, str]] = []
        """(what was done besides approving, to which proposal)"""
        self.kept_reviews: tuple[Review, ...] = ()
        self.kept_freezes: tuple[Freeze, ...] = ()
        self.queries: list[Query] = []
        self.found: list[str] = []
        """What was looked for by its name, or the beginning of it."""
        self._hostile = hostile
        self._changed = threading.Condition()
        self._events: list[Change] = []
        self._runs: dict[str, RunStatus] = {}
        self._found: tuple[Any, list[dict[str, Any]]] = (None, [])
        self._tables: dict[str, list[dict[str, Any]]] = {
            "workloads": [self._workload(number) for number in range(workloads)],
            "nodes": [self._node(number) for number in range(nodes)],
            "queues": [self._queue(number) for number in range(len(_QUEUES))],
            "reservations": [],
        }
        for number in range(30):
            row = self._tables["workloads"][number % max(1, workloads)] if workloads else {"id": "none"}
            self._event(
                ("submitted", "placed", "running", "finished")[number % 4], row["id"], self._text(number, "3 nodes")
            )

    # --- data

    def _text(self, number: int, plain: str) -> str:
        return HOSTILE[number % len(HOSTILE)] if self._hostile else plain

    def _workload(self, number: int) -> dict[str, Any]:
        state = _STATES[number * 7 % 10]
        tasks = (1, 8, 64, 2)[number % 4]
        age = MINUTE * (1 + number * 37 % 5_000)
        started = state in ("running", "finished", "failed")
        return {
            "id": self._text(number, f"wl-{number:06d}") if self._hostile and number % 3 == 0 else f"wl-{number:06d}",
            "name": self._text(number, _NAMES[number % 5]),
            "state": state,
            "queue": self._text(number + 1, _QUEUES[number % 4]) if self._hostile else _QUEUES[number % 4],
            "priority": (0, 100, 1000)[number % 3],
            "tenant": self._text(number + 2, _TENANTS[number % 3]),
            "team": self._text(number + 3, "core"),
            "tasks": tasks,
            "cpu": tasks * 8_000,
            "memory": tasks * 65_536,
            "gpu": tasks * (0, 1_000, 8_000, 250)[number % 4],
            "reason": (
                self._text(number + 4, _REASONS[number % 4])
                if state == "queued"
                else "OnHold"
                if state == "held"
                else None
            ),
            "wait": age if not started else age // 3,
            "age": age,
            "run": age - age // 3 if started else None,
            "estimate": 0 if number % 5 == 0 else 4 * 60 * MINUTE,
            "submitted": NOW_MS - age,
            "started": NOW_MS - age * 2 // 3 if started else None,
            "ended": NOW_MS - MINUTE if state in ("finished", "failed") else None,
            "attempts": int(started),
            "cost": tasks * age,
            "wasted": 0,
            "array": None,
        }

    def _node(self, number: int) -> dict[str, Any]:
        free = (0, 2, 8, 1)[number % 4] * 1000
        return {
            "id": f"node-{number:05d}",
            "state": ("ready", "ready", "ready", "ready", "ready", "cordoned", "ready", "down")[number % 8],
            "pool": ("h100", "a100", "cpu")[number % 3],
            "zone": "zone-a",
            "block": f"block-{number // 16}",
            "rack": self._text(number, f"rack-{number // 4:02d}"),
            "gpu_model": ("H100-80", "A100-40", "")[number % 3],
            "cpu": 128_000,
            "cpu_free": 16_000 * (number % 5),
            "memory": 1_048_576,
            "memory_free": 131_072,
            "gpu": 0 if number % 3 == 2 else 8_000,
            "gpu_free": 0 if number % 3 == 2 else free,
            "use": 1000 - free // 8,
            "workloads": number % 4,
            "cpu_physical": 128_000,
            "cpu_allocatable": 128_000,
            "memory_physical": 1_048_576,
            "memory_allocatable": 1_048_576,
            "overcommit": 1000,
            "memory_used": 0,
        }

    def _queue(self, number: int) -> dict[str, Any]:
        return {
            "name": self._text(number, _QUEUES[number]),
            "parent": _QUEUES[number].rpartition("/")[0] or None,
            "depth": _QUEUES[number].count("/"),
            "state": ("open", "held", "open", "draining")[number],
            "queued": (120, 14, 0, 66)[number],
            "held": (3, 0, 0, 1)[number],
            "waiting": (7, 0, 0, 0)[number],
            "suspended": (0, 0, 2, 0)[number],
            "running": (41, 8, 120, 31)[number],
            "oldest_wait": (187 * MINUTE, 12 * MINUTE, 0, 45 * MINUTE)[number],
            "gpu_used": (96_000, 12_000, 64_000, 0)[number],
            "gpu_nominal": (128_000, 16_000, 64_000, None)[number],
            "cpu_used": 400_000,
            "cpu_nominal": (None, None, None, 800_000)[number],
            "memory_used": 1_048_576,
            "memory_nominal": None,
            "gpu_borrowed": (0, 4_000, 0, 0)[number],
            "gpu_lent": (4_000, 0, 0, 0)[number],
            "cpu_borrowed": 0,
            "cpu_lent": 0,
            "share": (0, 31, 0, 120)[number],
            "past_share": (8, 12, 0, 90)[number],
            "burst": (None, "burst", None, "cooldown")[number],
            "burst_left": (None, 42 * MINUTE, None, 7 * MINUTE)[number],
            "weight": 1 + number,
            "burn": (4_038, None, 0, None)[number],
            "burn_6h": (1_025, None, 0, None)[number],
        }

    def _event(self, what: str, subject: str, detail: str = "") -> None:
        self.version += 1
        self._events.append(Change(version=self.version, at_ms=self.now_ms, what=what, subject=subject, detail=detail))

    # --- what a test does to the cell

    def happen(self, what: str = "submitted", subject: str = "wl-000001", detail: str = "") -> None:
        """One change that watchers see."""
        with self._changed:
            self._event(what, subject, detail)
            self._changed.notify_all()

    def submit(self, count: int) -> list[str]:
        """New workloads, newest last in creation order."""
        rows = self._tables["workloads"]
        new = [
            self._workload(len(rows) + offset) | {"submitted": self.now_ms + offset, "age": 0}
            for offset in range(count)
        ]
        rows.extend(new)
        for row in new:
            self.happen("submitted", row["id"])
        return [row["id"] for row in new]

    def state_of(self, name: str) -> str:
        return self._find(name)["state"]

    # --- Client

    def _answer(self) -> None:
        if self.down:
            raise UnreachableError("the engine at demo.sock does not answer", "Is it running? See `muster doctor`")
        if self.refuse is not None:
            raise self.refuse

    def health(self) -> Health:
        return Health(
            name="fake",
            cell=self._text(4, "demo-cell"),
            version=self.version,
            now_ms=self.now_ms,
            speed=60,
            paused=False,
            pid=4242,
            journal="demo/journal.db",
            journal_error="",
            software="0.1.0",
        )

    def overview(self) -> Overview:
        states: dict[str, int] = {}
        blocked: dict[str, int] = {}
        for row in self._tables["workloads"]:
            states[row["state"]] = states.get(row["state"], 0) + 1
            if row["state"] == "queued":
                blocked[row["reason"]] = blocked.get(row["reason"], 0) + 1
        pools = tuple(self._pool(name) for name in ("h100", "a100", "cpu"))
        history = tuple((NOW_MS - (240 - i) * MINUTE, 400 + i * 37 % 550, i * i % 90) for i in range(240))
        return Overview(
            version=self.version,
            now_ms=self.now_ms,
            cell="demo-cell",
            policy="easy",
            states=states,
            capacity={"cpu_milli": 6_144_000, "memory_mib": 50_331_648, "gpu_milli": 256_000, "disk_mib": 0},
            used={"cpu_milli": 3_100_000, "memory_mib": 30_331_648, "gpu_milli": 211_000, "disk_mib": 0},
            pools=pools,
            blocked=tuple(sorted(blocked.items(), key=lambda item: -item[1])),
            oldest_wait_ms=187 * MINUTE,
            oldest_waiting="wl-000008",
            wait_p50_ms=4 * MINUTE,
            wait_p95_ms=41 * MINUTE,
            started_last_hour=120,
            finished_last_hour=98,
            history=history,
            burns=(
                Burn(
                    queue=self._text(2, "research/train"), within_ms=60 * MINUTE, objective_permille=900,
                    hour=BurnWindow(started=40, late=9, waiting=12, burn_permille=4_038),
                    six_hours=BurnWindow(started=300, late=20, waiting=12, burn_permille=1_025),
                ),
                Burn(
                    queue="prod/serve", within_ms=5 * MINUTE, objective_permille=990,
                    hour=BurnWindow(started=0, late=0, waiting=0, burn_permille=None),
                    six_hours=BurnWindow(started=70, late=0, waiting=0, burn_permille=0),
                ),
            ),
            borrowed={"gpu_milli": 4_000},
            cost_microusd_hour=812_500_000,
            idle_microusd_hour=90_000_000,
        )  # fmt: skip

    def _pool(self, name: str) -> PoolOverview:
        rows = [row for row in self._tables["nodes"] if row["pool"] == name]
        count = {
            state: sum(row["state"] == state for row in rows) for state in ("ready", "cordoned", "draining", "down")
        }
        capacity = {"gpu_milli": sum(row["gpu"] for row in rows), "cpu_milli": sum(row["cpu"] for row in rows)}
        free = {"gpu_milli": sum(row["gpu_free"] for row in rows), "cpu_milli": sum(row["cpu_free"] for row in rows)}
        return PoolOverview(
            name=name,
            gpu_model="",
            nodes=len(rows),
            capacity=capacity,
            used={key: capacity[key] - free[key] for key in capacity},
            **count,
        )

    def query(self, query: Query) -> Page:
        self.queries.append(query)
        rows = self._matching(query)
        columns = query.columns or DEFAULT_COLUMNS[query.kind]
        window = rows[query.offset : query.offset + query.limit]
        return Page(
            version=self.version,
            at_ms=self.now_ms,
            columns=columns,
            matched=len(rows),
            rows=[[row[name] for name in columns] for row in window],
            total=len(self._tables[query.kind]),
        )

    def _matching(self, query: Query) -> list[dict[str, Any]]:
        key = (query.kind, query.where, query.sort, self.version)
        if self._found[0] == key:
            return self._found[1]
        rows = [row for row in self._tables[query.kind] if _holds(row, query.where)]
        for name in reversed(query.sort):
            field = name.lstrip("-")
            rows.sort(key=lambda row: (row[field] is not None, row[field] or 0), reverse=name.startswith("-"))
        self._found = (key, rows)
        return rows

    def workload(self, workload_id: str) -> WorkloadDetail:
        row = self._find(workload_id, "workloads")
        waits = row["state"] in ("queued", "held")
        reasons = (
            Reason(
                token=row["reason"],
                text=self._text(5, "asks for 64 GPU in one rack; 12 are free, 48 are held by wl-000003 and 3 others"),
                unblock=self._text(6, "wl-000003 ends in about 2h 10m, then 60 GPU are free in rack-02"),
            ),
            Reason(token="BehindInQueue", text="41 workloads of higher priority are before it"),
        )
        runs = row["state"] == "running"
        return WorkloadDetail(
            version=self.version,
            now_ms=self.now_ms,
            id=workload_id,
            name=row["name"],
            state=row["state"],
            since_ms=self.now_ms - row["age"] // 3,
            queue=row["queue"],
            priority_class="normal",
            priority=row["priority"],
            tenant=row["tenant"],
            team=row["team"],
            tags={"cost": self._text(7, "genai"), "user": "ada"},
            groups=(
                GroupDetail(
                    name="main",
                    count=row["tasks"],
                    cpu_milli=8_000,
                    memory_mib=65_536,
                    gpu_milli=1_000,
                    disk_mib=0,
                    gpu_models=("H100-80",),
                    node_labels={self._text(4, "disk"): (self._text(5, "nvme"),)},
                ),
            ),
            topology=TopologyDetail(
                required="block", preferred="rack", within="rack", domains={"rack": 1, "node": 4}, ring_cost=8
            )
            if runs
            else TopologyDetail(required="block", preferred="rack", within=""),
            estimate_ms=row["estimate"],
            checkpoint_interval_ms=30 * MINUTE,
            kept_ms=0,
            submitted_ms=row["submitted"],
            started_ms=row["started"],
            ended_ms=row["ended"],
            attempts=row["attempts"],
            position=42 if waits else None,
            reasons=reasons if waits else (),
            start_not_before_ms=self.now_ms + 130 * MINUTE if waits else None,
            placement=tuple(
                TaskPlace(group="main", node=f"node-{n:05d}", rack="rack-01", tasks=2, devices=(0, 1, 2, 6))
                for n in range(4)
            )
            if runs
            else (),
            placement_total=4 if runs else 0,
            history=(
                HistoryItem(at_ms=row["submitted"], what="submitted", detail=self._text(8, f"to {row['queue']}")),
                HistoryItem(at_ms=row["submitted"] + MINUTE, what="placed", detail="4 nodes"),
                HistoryItem(at_ms=row["submitted"] + 2 * MINUTE, what="running", detail=""),
            )
            if runs
            else (HistoryItem(at_ms=row["submitted"], what="submitted", detail=self._text(8, "")),),
        )

    def start_forecast(self, workload_id: str) -> StartForecast | None:
        if self._find(workload_id, "workloads")["state"] != "queued":
            return None
        return StartForecast(
            at_ms=self.now_ms, kind="quota", p10_ms=self.now_ms + 140 * MINUTE, p50_ms=self.now_ms + 180 * MINUTE,
            p90_ms=self.now_ms + 400 * MINUTE, decides=self._text(10, "quota of its queue; 3 ahead in its queue"),
            line_ms=180 * MINUTE, alike=212, p90_held_permille=912,
        )  # fmt: skip

    def unblocking(self, workload_id: str) -> Unblocking:
        text = self._text(9, f"2 more nodes in pool h100, and {workload_id} gets priority high")
        found = Counterfactual(kind="capacity", text=text, edits=(), starts=workload_id, smallest=True)
        more = self._text(9, "11 more nodes in pool h100")
        line = Counterfactual(
            kind="capacity", text=more, edits=({"do": "add_nodes"},), starts=workload_id, smallest=True
        )
        return Unblocking(version=self.version, found=found, tried=(), forks=3, ahead=9, line=line)

    def node(self, node_id: str) -> NodeDetail:
        row = self._find(node_id, "nodes")
        return NodeDetail(
            version=self.version,
            now_ms=self.now_ms,
            id=node_id,
            state=row["state"],
            since_ms=self.now_ms - 90 * MINUTE,
            pool=row["pool"],
            zone=row["zone"],
            block=row["block"],
            rack=row["rack"],
            gpu_model=row["gpu_model"],
            capacity={"cpu_milli": row["cpu"], "memory_mib": row["memory"], "gpu_milli": row["gpu"], "disk_mib": 0},
            free={"cpu_milli": row["cpu_free"], "memory_mib": row["memory_free"], "gpu_milli": row["gpu_free"]},
            devices=tuple((0, 250, 1000, 0, 0, 500, 1000, 0)[: row["gpu"] // 1000]),
            workloads=(("wl-000003", 8), (self._text(3, "wl-000010"), 1)),
            region="eu",
            nvlink=self._text(11, "nv-07"),
            labels={"disk": "nvme", self._text(10, "gen"): self._text(6, "4")},
            taints=("dedicated=train:NoSchedule", self._text(4, "old:PreferNoSchedule")),
            nvlink_group=4,
            profiles=("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
            instances=((), (), (), (), tuple(MigInstance(profile=p, used=u) for p, u in _LAYOUT)),
        )

    def queue(self, name: str) -> QueueDetail:
        row = self._find(name, "queues")
        return QueueDetail(
            version=self.version,
            now_ms=self.now_ms,
            name=name,
            mode=row["state"],
            closed_by="",
            spec=QueueSpec(name=name, nominal={"gpu_milli": row["gpu_nominal"] or 0}, weight=row["weight"]),
            leaves=(name,),
            over={},
            burn=self.overview().burns[0] if row["burn"] else None,
        )

    def find(self, name: str, kinds: tuple[str, ...] = (), limit: int = 24) -> tuple[Named, ...]:
        self.found.append(name)
        of_rows = [
            Named(kind, row[key], row["state"])
            for kind, rows, key in (
                ("workload", self._tables["workloads"], "id"),
                ("node", self._tables["nodes"], "id"),
                ("queue", self._tables["queues"], "name"),
            )
            for row in rows
        ]
        others = [Named("proposal", each, "awaiting") for each in self.kept]
        hits = [hit for hit in (*of_rows, *others) if hit.id.startswith(name) and (not kinds or hit.kind in kinds)]
        return tuple(sorted(hits, key=lambda hit: hit.id != name))[:limit]

    def showback(self, request: ShowbackRequest) -> Showback:
        idle = ShowbackLine(kind="idle", name="", microusd=7_000_000, permille=700)
        line = ShowbackLine(kind="group", name=self._text(3, "research"), microusd=3_000_000, permille=300)
        return Showback(
            version=self.version, now_ms=self.now_ms, by=request.by, since_ms=0, until_ms=self.now_ms,
            total_microusd=10_000_000, lines=(line, idle),
        )  # fmt: skip

    def scaling(self) -> ScalingReport:
        size = PoolSize(
            pool=self._text(5, "gpu"), scaling=ScalingSpec(least=2, most=40), ready=12, booting=3, other=1, ordered=4,
            asked=19, wanted=8, set_for=((self.now_ms + 3_600_000, 20),), noted_hours=336,
        )  # fmt: skip
        fixed = PoolSize(pool="cpu", scaling=None, ready=8, booting=0, other=0, ordered=0, asked=5, wanted=0)
        return ScalingReport(version=self.version, now_ms=self.now_ms, settings=Autoscaling(), pools=(size, fixed))

    def mirror(self) -> MirrorReport:
        return NOT_MIRRORED

    def intents(self, limit: int = 200) -> IntentsReport:
        return IntentsReport(at_ms=self.now_ms, open=0, sent=0, accepted=0, in_doubt=0, items=())

    def intent(self, number: int) -> IntentDetail:
        raise NotFoundError(f"there is no intent i{number}", "See muster intent list")

    def answer_intent(self, said: IntentAnswer) -> Receipt:
        self.deeds.append((f"intent {said.outcome}", f"i{said.number}"))
        return Receipt(version=self.version, at_ms=self.now_ms, changed=(f"i{said.number}", "i99"))

    def mirrored(self, workload_id: str) -> Mirrored:
        raise NotFoundError(f"Slurm shows no job for workload '{workload_id}'", "")

    def processes(self, workload_id: str) -> ProcessReport:
        self._find(workload_id)
        task = TaskView(
            name="main.0", phase="running", pid=4_242, started_ms=self.now_ms - 5 * MINUTE, cpu_ms=250_000,
            memory_mib=812, peak_mib=1_024, output_bytes=len(self.written), limits="rlimits and watching",
        )  # fmt: skip
        return ProcessReport(
            id=workload_id, attempts=(AttemptView(attempt=1, tasks=(task,), tasks_total=1),) if self.written else (),
            why_none="" if self.written else "this cell runs no real work",
        )  # fmt: skip

    def output(self, request: OutputRequest, wait_s: float = 0.0) -> OutputPart:
        self._find(request.id)
        if not self.written:
            raise RefusedError("this cell runs no real work", "Start an engine that runs work with: muster here")
        end = len(self.written)
        at = max(0, end + request.offset) if request.offset < 0 else request.offset if request.offset <= end else 0
        data = self.written[at : at + request.most]
        return OutputPart(id=request.id, attempt=1, task="main.0", data=data, offset=at, end=end, over=self.ended)

    def goodput(self) -> GoodputReport:
        tenant = TenantGoodput(
            tenant=self._text(3, "acme"), finished=2, charged_microusd=3_000_000, wasted_microusd=1_000_000,
            per_finished_microusd=1_500_000,
        )  # fmt: skip
        return GoodputReport(
            version=self.version, now_ms=self.now_ms, cost_microusd=10_000_000, charged_microusd=3_000_000,
            wasted_microusd=1_000_000, goodput_permille=200, finished=2, per_finished_microusd=5_000_000, turned=1,
            pools=(), tenants=(tenant,),
        )  # fmt: skip

    def budgets(self) -> BudgetReport:
        line = BudgetLine(
            spec=BudgetSpec(name=self._text(4, "research-day"), scope="queue", of="research", limit_microusd=9 * 10**9,
                            window_ms=24 * 60 * MINUTE),
            stage="warned", spent_microusd=7_400_000_000, rate_microusd_hour=512_000_000,
            window_start_ms=self.now_ms - 12 * 60 * MINUTE, window_end_ms=self.now_ms + 12 * 60 * MINUTE,
            forecast_microusd=13_544_000_000, spent_at_ms=self.now_ms + 187 * MINUTE, waiting=0,
        )  # fmt: skip
        return BudgetReport(version=self.version, now_ms=self.now_ms, budgets=(line,))

    def topology(self, request: HeatRequest) -> HeatMap:
        """Four nodes a rack, four racks a block."""
        levels = ("zone", "block", "rack", "id")
        level = "id" if request.level == "node" else request.level
        rows = [row for row in self._tables["nodes"] if all(row[k] == v for k, v in request.within.items())]
        if not rows and request.within:
            raise NotFoundError(f"there is no {next(iter(request.within))} like that")
        lots: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for row in rows:
            lots.setdefault(tuple(row[each] for each in levels[: levels.index(level) + 1]), []).append(row)
        tiles = [self._tile(way, lot) for way, lot in lots.items()]
        return HeatMap(
            version=self.version, now_ms=self.now_ms, level=request.level, within=request.within,
            offset=request.offset, total=len(tiles), dearest_microusd_hour=24_000_000,
            tiles=tuple(tiles[request.offset : request.offset + request.limit]),
        )  # fmt: skip

    def _tile(self, way: tuple[str, ...], rows: list[dict[str, Any]]) -> HeatTile:
        zone, block, rack = (*way, "", "", "")[:3]
        states = [row["state"] for row in rows]
        free = [row["gpu_free"] for row in rows]
        return HeatTile(
            name=way[-1], zone=zone, block=block, rack=rack, nodes=len(rows),
            states={state: states.count(state) for state in sorted(set(states))},
            use_permille=sum(row["use"] for row in rows) // len(rows), gpu_milli=sum(row["gpu"] for row in rows),
            gpu_free_milli=sum(free), split_milli=sum(milli for milli in free if 0 < milli < 8_000),
            price_microusd_hour=sum(24_000_000 if row["gpu"] else 1_500_000 for row in rows),
            spot=sum(row["pool"] == "a100" for row in rows), pool=rows[0]["pool"] if len(way) == 4 else "",
        )  # fmt: skip

    def fairness(self) -> FairnessReport:
        name = self._text(5, "research/train")
        vertex = VertexReport(
            name=name,
            parent="",
            weight=2,
            used={"gpu_milli": 96_000},
            guaranteed={"gpu_milli": 64_000},
            borrowed={"gpu_milli": 32_000},
            lent={},
            burst=BurstReport(state="burst", ends_in_ms=42 * MINUTE),
            share_ppb=62_500_000,
            past_share_ppb=12_000_000,
            deserved={"gpu_milli": 80_000},
        )
        idle = VertexReport(
            name="prod", parent="", weight=1, used={}, guaranteed={}, borrowed={}, lent={"gpu_milli": 32_000},
            burst=None, share_ppb=0, past_share_ppb=0, deserved={},
        )  # fmt: skip
        first = {"at_ms": self.now_ms, "workload": self._text(6, "wl-1"), "queue": name, "band": 500, "priority": 7}
        second = {"next_workload": "wl-2", "next_queue": "prod", "next_band": 400, "next_priority": 5}
        shares = {"shares_ppb": (0, 62_500_000), "next_shares_ppb": (0, 120_000_000)}
        rules = ("band", "waited", "share", "priority", "age")
        return FairnessReport(
            version=self.version,
            now_ms=self.now_ms,
            half_life_ms=24 * 60 * MINUTE,
            past_counts=True,
            queues=(vertex, idle),
            decisions=(
                *(DecisionReport(**first, **second, **shares, rule=rule) for rule in rules),
                DecisionReport(at_ms=0, workload="wl-9", queue="prod", band=0, shares_ppb=(), priority=0, rule="alone"),
            ),
        )

    def estimate(self, workload_id: str) -> RuntimeEstimate | None:
        self._find(workload_id)
        return RuntimeEstimate(
            p10_ms=20 * MINUTE, p50_ms=60 * MINUTE, p90_ms=150 * MINUTE, samples=57, level="tenant and name",
            scored=640, p90_coverage_permille=912, median_abs_log_error=0.4, basis="trees", learnt=5_120,
            within2x_permille=684,
        )  # fmt: skip

    def recommendations(self) -> Recommendations:
        every = [self._recommendation(number) for number in range(3)]
        opened = tuple(each for each in every if each.state == "open")
        return Recommendations(
            version=self.version,
            now_ms=self.now_ms,
            open=opened,
            incidents=grouped(opened, {"late": "230 queued, the oldest for 2.0 h"}),
            aside=tuple(each for each in every if each.state != "open"),
            followed=(),
            unknown=(self._text(3, "12 of 40 running workloads have too few similar finished jobs"),),
        )

    def recommendation(self, rec_id: str) -> Recommendation:
        view = self.recommendations()
        for each in (*view.open, *view.aside):
            if each.suggestion.id == rec_id:
                return each
        raise NotFoundError(f"there is no recommendation '{rec_id}'", "See `muster recommend`")

    def reject_recommendation(self, rec_id: str, reason: str = "") -> Recommendation:
        self.recommendation(rec_id)
        self.rejected[rec_id] = reason
        return self.recommendation(rec_id)

    def _recommendation(self, number: int) -> Recommendation:
        """The first can be proposed and was tried, the second only asks for attention, the third has a record."""
        outlook = self._outlook()
        suggestion = Suggestion(
            kind=("forgotten_cordons", "overrun", "pool_ahead")[number],
            finding=self._text(
                number,
                (
                    "2 cordoned nodes are empty, the newest cordon 2.0 h old",
                    "wl-000003 has run 9.0 h, over 2 x its likes' p90 (2.0 h)",
                    "pool h100 will need 12 nodes at 14:00 and has 9",
                )[number],
            ),
            action=("uncordon", "notify", "set_targets")[number],
            targets=((self._text(5, "node-00005"), "node-00013"), ("wl-000003",), ("h100",))[number],
            parameters=((), (), ("2026-03-01T14:00=12",))[number],
            evidence=(
                Evidence(
                    metric="minimum time cordoned", window="since the cordon", rows=2, value=self._text(6, "2.0 h")
                ),
            ),
            counterfactual="Not suggested if they had been cordoned for less than 60 min or had work",
            alternatives=("Ask who cordoned them", "No action: 16 GPU stay out of use"),
            thin=(self._text(7, "why they were cordoned is not recorded"),) if number == 0 else (),
            benefit=Benefit(waiting_gpu_milli_h=64_000 - number * 20_000),
        )
        reason = self.rejected.get(suggestion.id)
        return Recommendation(
            rank=0 if reason is not None else number + 1,
            state="open" if reason is None else "rejected",
            suggestion=suggestion,
            worth_gpu_milli_h=suggestion.benefit.waiting_gpu_milli_h,
            first_ms=self.now_ms - 90 * MINUTE,
            note="" if reason is None else f"rejected on 2026-03-01 12:00 UTC by ada because {reason}",
            command=() if number == 1 else (*CATALOG[suggestion.action].shell.split(), *suggestion.targets),
            simulated=SuggestionTrial(
                state="done", edits=("uncordon node-00005,node-00013",), version=self.version, at_ms=self.now_ms,
                horizon_ms=outlook.horizon_ms, seeds=outlook.seeds, figures=outlook.figures,
            )
            if number == 0
            else SuggestionTrial(state="none", why="no change"),
            track=Track(
                kind="pool_ahead", acted=6, held=4, partly=1, unknown=1, held_low_permille=376,
                held_high_permille=964, left=3, resolved=1,
            )
            if number == 2
            else None,
        )  # fmt: skip

    def history(self, request: HistoryRequest) -> History:
        keys = tuple(
            SeriesKey(metric=metric, of="queue", subject=self._text(number, _QUEUES[number]),
                      source="cell", step_ms=MINUTE, first_ms=0, last_ms=self.now_ms, stale=number == 2)
            for number, metric in enumerate(("demand_gpu", "running", "waiting"))
        )  # fmt: skip
        times = [self.now_ms - (9 - i) * request.step_ms for i in range(10)]
        values = _MEASURED.get(request.metric, [i * 1e3 for i in range(10)])
        points = tuple(
            HistoryPoint(at_ms, 0, None, None, None, None, None) if i == 4 else HistoryPoint(at_ms, 1, *[value] * 5)
            for i, (at_ms, value) in enumerate(zip(times, values, strict=True))
        )
        return History(
            now_ms=self.now_ms, since_ms=times[0], until_ms=self.now_ms, series=keys, series_count=3, stale_count=1,
            points=points if request.metric else (),
            keep_ms=(2 * 86_400_000, 14 * 86_400_000, 400 * 86_400_000), keep_runs=200_000,
        )  # fmt: skip

    def sizing(self, request: SizingRequest) -> SizingReport:
        kinds = tuple(
            SizedKind(
                kind=f"acme/{self._text(number, 'train')}",
                cpu=Need(asked=16_000, p50=4_000, p95=6_000, recommended=7_000),
                memory=Need(asked=65_536, p50=20_000, p95=30_000, recommended=34_816), samples=2_880, runs=12 * number,
                confidence=0.5 + number, tasks=8, bumped=number, saved_cpu_milli=72_000, saved_memory_mib=245_760,
                saved_microusd_hour=1_500_000,
            )
            for number in range(2)
        )  # fmt: skip
        return SizingReport(version=self.version, kinds=kinds, rightsizing="off", estimate=None, unknown=())

    def advice_on(self, workload_id: str) -> PlacementAdvice:
        options = tuple(
            PlacementOption(
                pool=self._text(number, name),
                gpu_model="H100",
                spot=spot,
                zones=("a", "b"),
                allowed=True,
                rate_microusd_hour=rate,
                run_ms=QuantileSpread(p10=30 * MINUTE, p50=60 * MINUTE, p90=120 * MINUTE),
                cost_microusd=QuantileSpread(p10=rate // 2, p50=rate, p90=2 * rate),
                basis="own runs",
                runs=14,
                compared=3,
                interruption_ppm=120_000 if spot else None,
                interruptions=4,
                node_hours=900.0,
                thin=(),
            )
            for number, (name, spot, rate) in enumerate((("h100-spot", True, 4_000_000), ("h100", False, 9_000_000)))
        )
        return PlacementAdvice(
            version=self.version, workload_id=workload_id, kind="acme/train", options=options,
            said="h100-spot does it for 56 % less than h100", runs=28, unknown=(),
        )  # fmt: skip

    def import_samples(self, batch: SampleBatch) -> ImportReceipt:
        return ImportReceipt(taken=sum(len(row.at_ms) for row in batch.series))

    def import_runs(self, batch: RunBatch) -> ImportReceipt:
        return ImportReceipt(taken=len(batch.runs))

    def quote(self, request: QuoteRequest) -> Quote:
        run_ms = request.run_ms or 6 * 60 * MINUTE
        rate = 55_040_000 * request.nodes
        cost = rate * run_ms // 3_600_000
        option = QuoteOption(
            kind="now", label="now", pool=self._text(0, "h100"), machine_type="p5.48xlarge", region="",
            gpu_model="H100", spot=False, asked_start_ms=self.now_ms, started=7, chance_permille=875,
            looked_ms=24 * 60 * MINUTE,
            start_ms=Quantiles(runs=8, least=self.now_ms, p10=self.now_ms, p50=self.now_ms + 40 * MINUTE, p90=None,
                               most=None),
            reason=self._text(1, "8 GPU more are needed"),
            duration_ms=Quantiles(runs=0, least=run_ms, p10=None, p50=None, p90=None, most=run_ms),
            cost_microusd=Quantiles(runs=0, least=cost, p10=None, p50=None, p90=None, most=cost),
            rate_microusd_hour=rate, interruption_permille=None, interruption_over_ms=run_ms,
            interruption_basis="not looked at", seeds=8,
            basis="run to its start", arrivals=True, notes=(self._text(2, "a note"),),
        )  # fmt: skip
        return Quote(
            version=self.version, at_ms=self.now_ms, nodes=request.nodes, queue=self._text(3, "research/train"),
            run_time=RunTime(p10_ms=run_ms, p50_ms=run_ms, p90_ms=run_ms, told=True, samples=0, level="",
                             p90_coverage_permille=None),
            options=(option,), assumptions=(self._text(4, "run time: as told"),), warnings=(), took_ms=1,
        )  # fmt: skip

    def forecast(self, request: ForecastRequest) -> Forecast:
        of, _, subject = request.subject.partition(":")
        hours = tuple(
            HourAhead(at_ms=self.now_ms + i * 60 * MINUTE, p10=m * 700.0, p50=m * 1000.0, p90=m * 1400.0)
            for i in range(request.hours)
            for m in (40 + 25 * (i % 24 > 8) - i % 7,)
        )
        return Forecast(
            metric=request.metric or "demand_gpu", unit="milli", of=of or "cell", subject=self._text(2, subject),
            now_ms=self.now_ms, made_ms=self.now_ms, known_hours=600, missing_hours=3, stale=False, basis="models",
            now=61_000.0, hours=hours,
            members=(
                MemberSkill(name="ets", weight_permille=600, error=2_100.0),
                MemberSkill(name="season", weight_permille=400, error=2_900.0),
            ),
            coverage=(
                Coverage(
                    hours_ahead=1, scored=120, inside_permille=811, below_permille=90, above_permille=99,
                    mean_error=1_800.0,
                ),
            ),
            notes=(self._text(1, "3 hours were not measured"),),
        )  # fmt: skip

    def ask(self, ask: Ask) -> RunStatus:
        status = RunStatus(
            id=f"T-{len(self._runs) + 1}", ask=ask, version=self.version, at_ms=self.now_ms, state="done",
            progress_permille=1000, answer=self._outlook(), error=None, serial=1,
        )  # fmt: skip
        self._runs[status.id] = status
        return status

    def _outlook(self) -> Outlook:
        """Nothing was run: figures of every unit, of the cell, a queue and a tenant."""

        def over(p10: int, p50: int, p90: int) -> Interval:
            return Interval(runs=8, least=p10, p10=p10, p50=p50, p90=p90, most=p90)

        def figure(name: str, title: str, unit: Unit, of: Literal["cell", "queue", "tenant"], by: int) -> Figure:
            one = {"duration": MINUTE, "money": 1_000_000, "device_time": 60 * MINUTE}.get(unit, 1)
            return Figure(
                name=name, title=title, unit=unit, better="lower", of=of,
                subject="" if of == "cell" else self._text(of == "tenant", "research/train"),
                before=over(10 * one, 12 * one, 15 * one),
                after=over((10 + by) * one, (12 + by) * one, (15 + by) * one),
                change=over(by * one, by * one, by * one),
            )  # fmt: skip

        from engine.twin.what_if import NEVER, start_of  # as the real client, it loads no engine before it is asked

        at = self.now_ms
        return Outlook(
            version=self.version, at_ms=at, horizon_ms=24 * 60 * MINUTE, covered_ms=24 * 60 * MINUTE, seeds=8,
            edits=(self._text(3, "drain node-00001"),),
            figures=(
                figure("wait_mean", "Wait, mean", "duration", "cell", 3),
                figure("evictions", "Evictions", "count", "cell", 2),
                figure("utilisation", "Utilisation", "permille", "cell", -1),
                figure("wait_p95", "Wait, p95", "duration", "queue", 0),
                figure("cost", "Cost", "money", "tenant", -2),
            ),
            starts=(
                StartFigure(
                    id=self._text(4, "wl-000001"), queue="batch", why="later",
                    before=start_of([at] * 5),
                    after=start_of([at + MINUTE, *[at + 9 * MINUTE] * 3, NEVER]),
                ),
            ),
            notes=(self._text(5, "one edit came too late in 2 of 8 seeds"),),
        )  # fmt: skip

    def run(self, run_id: str, after: int = -1, wait_s: float = 0.0) -> RunStatus:
        return self._runs[run_id]

    def cancel_run(self, run_id: str) -> RunStatus:
        return self.run(run_id)

    def runs(self) -> tuple[RunStatus, ...]:
        return tuple(reversed(self._runs.values()))

    def scores(self) -> ScoreReport:
        return ScoreReport(version=self.version, now_ms=self.now_ms, stored=0, open=0, scores=())

    def follow(self, after: int = -1) -> Iterator[Changes]:
        seen = self.version if after < 0 else after
        while True:
            found = self.changes(seen, 1.0)
            seen = found.version
            yield found

    def as_of(self, at_ms: int) -> FakeClient:
        return self

    def past(self, at_ms: int, since_ms: int = 0, wait_s: float = 0.0) -> PastStatus:
        self._answer()
        state: Literal["none", "ready"] = "ready" if at_ms else "none"
        return PastStatus(
            earliest_ms=NOW_MS - 48 * 60 * MINUTE, now_ms=self.now_ms, at_ms=at_ms, state=state, version=900
        )

    def leave_past(self, at_ms: int, since_ms: int = 0) -> None:
        self._answer()

    def difference(self, request: DifferenceRequest) -> CellDifference:
        self._answer()
        at_ms = request.since_ms
        happenings = [
            Happening(
                at_ms=at_ms + i * MINUTE, what=what, subject=self._text(i, f"{kind}-{i:05}"),
                place=self._text(i + 1, "batch"), detail=self._text(i + 2, "drain"), by=self._text(i + 3, "scheduler"),
            )
            for i, (kind, what) in enumerate((("wl", "preempted"), ("wl", "finished"), ("node", "cordoned")))
        ]  # fmt: skip
        preempted, finished, cordoned = (
            CountedHappenings(what=each.what, count=30, latest=(each,)) for each in happenings
        )
        return CellDifference(
            since_ms=at_ms, until_ms=request.until_ms, since_version=800, until_version=self.version,
            queues=tuple(
                QueueDifference(
                    queue=self._text(i, name), submitted=1_200 + i, started=i, evicted=i * 3, running_before=20,
                    running_after=40 + i, queued_before=i, queued_after=1_000,
                )
                for i, name in enumerate(_QUEUES)
            ),
            workloads=(preempted, finished), nodes=(cordoned,),
            rules=(
                ValueChange(
                    at_ms=at_ms, kind="queue", subject=self._text(0, "batch"), field="nominal.gpu_milli",
                    before="64000", after="32000", by=self._text(1, "person:ann, plan 0123456789ab"),
                ),
            ),
            rule_count=1,
        )  # fmt: skip

    def changes(self, after: int, wait_s: float, limit: int = 500) -> Changes:
        with self._changed:
            self._changed.wait_for(lambda: self.version > after or self.down, wait_s)
            self._answer()
            items = [item for item in self._events if item.version > after]
            if not limit:
                return Changes(version=self.version, at_ms=self.now_ms, items=(), missed=0)
            return Changes(
                version=self.version, at_ms=self.now_ms, items=tuple(items[-limit:]), missed=max(0, len(items) - limit)
            )

    def command(self, command: AnyCommand) -> Receipt:
        raise RefusedError("the fake takes no commands")

    def consolidation(self, request: ConsolidationRequest) -> Consolidation:
        there, elsewhere = NodeTasks(node="node-00001", tasks=2), NodeTasks(node="node-00002", tasks=2)
        move = Relocation(
            id="wl-000000", queue="batch", gpu_milli=2000, cpu_milli=16_000, lost_ms=MINUTE, pause_ms=MINUTE,
            was=(there,), to=(elsewhere,), nodes=(elsewhere.node,),
        )  # fmt: skip
        starts = Unblocked(id=request.unblock, tasks=2, gpu_milli=2000, cpu_milli=0, waits_ms=None, gains_ms=MINUTE)
        plan = ConsolidationPlan(
            moves=(move,), unblocks=(starts,), frees=(), unit="gpu", lost_s=120, restart_s=120, gained_s=120,
            ratio_permille=500, worth_it=True, fragmentation_before_ppm=None, fragmentation_after_ppm=None,
        )  # fmt: skip
        return Consolidation(version=self.version, now_ms=self.now_ms, request=request, found=plan, why="")

    def propose(self, request: Request) -> Proposal:
        self.proposed.append(request.steps[0].act)
        try:
            proposal = self.preview(request)
        except RefusedError:
            self.proposed.pop()
            raise
        self.reasons.append(request.reason)
        self.kept[proposal.id] = proposal
        return proposal

    def preview(self, request: Request) -> Proposal:
        if request.rolls_back:
            first = self.proposal(request.rolls_back)
            return msgspec.structs.replace(first, title=f"Roll back {first.id}", covered=True)
        act = request.steps[0].act
        for name in act.targets if act.action in _ALLOWED else ():
            if self._find(name)["state"] not in _ALLOWED[act.action]:
                raise RefusedError(f"{name} is {self._find(name)['state']}", "Choose others")
        evicts = act.queue is not None and act.queue.over == "evict"
        tier: Tier = "T2" if act.action in _DISRUPTIVE or evicts else "T1"
        kind = "node" if act.targets[0].startswith("node") else "workload"
        effects = (
            Effect(label="running workloads", before="150", after=str(150 - len(act.targets))),
            Effect(label=self._text(4, "GPU in use"), before="211", after="147"),
            Effect(label="wait p95", before="41m", after="41m"),
        )
        plan = Plan(
            proposal=f"P-{len(self.proposed)}",
            revision=1,
            author=Party(subject="unix:1000", kind="human", account="unix:1000"),
            origin="person",
            source=Source(kind="operator"),
            steps=(Step(id="1", act=act, shown=(), tier=tier, blast=Blast(), timeout_ms=30_000),),
            tier=tier,
            blast=Blast(),
            simulated=Fork(version=self.version, at_ms=NOW_MS, effects=effects),
            policy_digest="0" * 64,
            expires_ms=NOW_MS + 600_000,
        )
        proposal = Proposal(
            id=plan.proposal,
            plan=plan,
            digest=plan.digest(),
            tier=tier,
            title=f"{act.action.capitalize()} {len(act.targets)} {kind}s",
            steps=tuple(
                f"{act.action} {name} ({self._find(name)['state']}, 64 GPU, 3.2 h lost)"
                for name in (act.targets if act.action in _ALLOWED else ())
            ),
            effects=effects,
            inverse="cannot be undone; submit it again" if act.action == "cancel" else "requeue puts them back",
            version=self.version,
            expires_ms=plan.expires_ms,
            reason=request.reason,
            self_approvable=True,
            typed="digest" if tier == "T2" else "key",
        )
        return proposal

    def revise(self, proposal_id: str, request: Request) -> Proposal:
        was = self.proposal(proposal_id)
        new = self.preview(request)
        self.kept[was.id] = msgspec.structs.replace(new, id=was.id, revision=was.revision + 1)
        return self.kept[was.id]

    def proposals(self, states: tuple[str, ...] = (), limit: int = 200) -> tuple[Proposal, ...]:
        wanted = [kept for kept in self.kept.values() if not states or kept.state in states]
        return tuple(reversed(wanted))[:limit]

    def proposal(self, proposal_id: str) -> Proposal:
        if proposal_id not in self.kept:
            raise NotFoundError(f"there is no proposal '{proposal_id}'")
        return self.kept[proposal_id]

    def approve(self, proposal_id: str, digest: str, comment: str = "", signed: Signed | None = None) -> Outcome:
        act = self.kept[proposal_id].plan.steps[0].act
        verified = tuple(f"{name} is {_NEXT_STATE.get(act.action, 'changed')}" for name in act.targets)
        for name in act.targets if act.action in _NEXT_STATE else ():
            self._find(name)["state"] = _NEXT_STATE[act.action]
            self.happen(_NEXT_STATE[act.action], name)
        self.approved.append(proposal_id)
        self.kept[proposal_id] = msgspec.structs.replace(self.kept[proposal_id], state="verified")
        return Outcome(
            proposal=proposal_id, digest=digest, version=self.version, changed=act.targets, verified=verified
        )

    def vote(
        self, proposal_id: str, digest: str, verdict: Verdict, comment: str = "", signed: Signed | None = None
    ) -> Proposal:
        self.proposal(proposal_id)
        self.deeds.append((verdict, proposal_id))
        return self._moved(proposal_id, {"approve": "approved", "reject": "rejected"}.get(verdict, "awaiting"))

    def execute(self, proposal_id: str) -> Outcome:
        return self._outcome(proposal_id, "execute", "verified")

    def pause(self, proposal_id: str, reason: str = "") -> Proposal:
        self.deeds.append(("pause", proposal_id))
        return self._moved(proposal_id, "paused")

    def resume(self, proposal_id: str, accept: bool = False) -> Outcome:
        return self._outcome(proposal_id, "resume", "verified")

    def confirm(self, proposal_id: str, step: str) -> Outcome:
        return self._outcome(proposal_id, "confirm", "verified")

    def rollback(self, proposal_id: str, reason: str = "") -> Outcome:
        return self._outcome(proposal_id, "rollback", "rolled_back")

    def cancel(self, proposal_id: str, reason: str = "") -> Proposal:
        self.deeds.append(("cancel", proposal_id))
        return self._moved(proposal_id, "cancelled")

    def break_glass(self, proposal_id: str, digest: str, reason: str, signed: Signed | None = None) -> Outcome:
        return self._outcome(proposal_id, "break_glass", "verified")

    def reviews(self) -> tuple[Review, ...]:
        return self.kept_reviews

    def close_review(self, review: int, comment: str) -> None:
        self.deeds.append(("close_review", str(review)))
        self.kept_reviews = tuple(kept for kept in self.kept_reviews if kept.id != review)

    def incidents(self, states: tuple[str, ...] = (), limit: int = 200) -> tuple[Incident, ...]:
        every = (fake_incidents.incident(self.now_ms, self._text, number) for number in (2, 1))
        return tuple(each for each in every if not states or each.state in states)

    def incident(self, incident_id: str) -> Incident:
        return fake_incidents.incident(self.now_ms, self._text, number_of(incident_id))

    def incident_changes(self, incident_id: str) -> tuple[IncidentChange, ...]:
        return fake_incidents.changes(self._text)

    def open_incident(self, new: NewIncident) -> Incident:
        return self._did_to("open", "I-1")

    def claim_incident(self, incident_id: str, over: bool = False) -> Incident:
        return self._did_to("take over" if over else "claim", incident_id)

    def hand_over_incident(self, incident_id: str, to: str, note: str = "") -> Incident:
        return self._did_to(f"hand over to {to}", incident_id)

    def note_incident(self, incident_id: str, text: str) -> Incident:
        return self._did_to(f"note {text}", incident_id)

    def close_incident(self, incident_id: str, found: str) -> Incident:
        return self._did_to(f"close {found}", incident_id)

    def _did_to(self, deed: str, incident_id: str) -> Incident:
        self.deeds.append((deed, incident_id))
        return self.incident(incident_id)

    def freezes(self) -> tuple[Freeze, ...]:
        return self.kept_freezes

    def freeze(self, spec: FreezeSpec) -> None:
        self.kept_freezes += (Freeze(spec=spec, by="unix:1000", holds=True),)

    def thaw(self, name: str) -> None:
        self.kept_freezes = tuple(kept for kept in self.kept_freezes if kept.spec.name != name)

    def stage(self, number: int = 1, **changes: Any) -> Proposal:
        """Put a made-up proposal there (see `fake_gate.proposal`)."""
        made = fake_gate.proposal(number, text=self._text, **changes)
        self.kept[made.id] = made
        return made

    def whoami(self, proved: bool = False) -> Caller:
        return Caller(
            subject=self.me, kind="human", account="unix:1002", roles=("viewer", "operator", "approver"),
            cell_id="cell", now_ms=self.now_ms, keys={self.me: ("SHA256:abc",)},
        )  # fmt: skip

    def tokens(self) -> tuple[TokenLine, ...]:
        return ()

    def create_token(self, ask: TokenAsk) -> NewToken:
        raise refuse_read_only()

    def revoke_token(self, id: str) -> TokenLine:
        raise NotFoundError(f"there is no token {id}", "")

    def present(self, ask: PresenceAsk) -> Present:
        self.places.append((ask.page, ask.thing, ask.doing))
        return Present(serial=0, here=self.here)

    def policy(self) -> PolicyView:
        return fake_policy.view(self._text, self.kept_freezes)

    def check_policy(self, text: str) -> PolicyCheck:
        return PolicyCheck(
            version=2, digest="cd" * 32, mode="team", changes=(), notes=(), two_people="", roles=("viewer",), need=""
        )

    def propose_policy(self, change: PolicyChange) -> Candidate:
        return self.policy().candidates[0]

    def vote_policy(self, vote: PolicyVote) -> Candidate:
        return msgspec.structs.replace(self.policy().candidates[0], state="in_force", needs=0)

    def runbooks(self) -> tuple[RunbookLine, ...]:
        return fake_gate.shelf(self._text)

    def runbook(self, runbook_id: str) -> RunbookView:
        found = next((line for line in self.runbooks() if line.id == runbook_id), None)
        if found is None:
            raise NotFoundError(f"there is no runbook '{runbook_id}'")
        return fake_gate.book(found, self._text)

    def run_runbook(self, ask: RunbookAsk) -> RunbookRun:
        line = self.runbook(ask.id).line
        if "node" not in ask.inputs:
            raise SpecError("node", "is missing", "Give --input node=ID")
        self.runs_asked.append(ask)
        made = fake_gate.proposal(7, text=self._text) if ask.dry_run else self.stage(7)
        chosen = (Chosen(name="node", values=(ask.inputs["node"],), source="given"),)
        return RunbookRun(
            line=line, when=(fake_gate.finding(),), applies=True, inputs=chosen, skipped=(), dry_run=ask.dry_run,
            proposal=made,
        )  # fmt: skip

    def approve_runbook(self, vote: RunbookVote) -> RunbookLine:
        line = self.runbook(vote.id).line
        if vote.sha256 != line.sha256:
            raise RefusedError("the SHA-256 given is not that of the file", "Review it again")
        return msgspec.structs.replace(line, status="approved", note=f"by {self.me}")

    def retire_runbook(self, vote: RunbookVote) -> RunbookLine:
        return msgspec.structs.replace(self.runbook(vote.id).line, status="retired", note=f"by {self.me}")

    def draft(self, ask: DraftAsk) -> DraftRun:
        return msgspec.structs.replace(self.draft_runs()[0], ask=ask)

    def draft_run(self, draft_id: str, after: int = -1, wait_s: float = 0.0) -> DraftRun:
        if draft_id != "D-1":
            raise NotFoundError(f"there is no draft '{draft_id}'")
        return self.draft_runs()[0]

    def cancel_draft(self, draft_id: str) -> DraftRun:
        return self.draft_run(draft_id)

    def draft_runs(self) -> tuple[DraftRun, ...]:
        from tests.console import fake_drafts  # which has a client made of this one

        return (fake_drafts.run(text=self._text),)

    def propose_draft(self, draft_id: str, drafter: Drafter, reason: str = "") -> Proposal:
        return self.stage(4 if drafter == "rule" else 5)

    def model(self) -> ModelStanding:
        from tests.console import fake_drafts

        return fake_drafts.STANDING

    def audit_state(self) -> AuditState:
        return AuditState(
            log="fake", last=self.audit_records, checkpoint="note", covered=self.audit_records - 2,
            key="fake+1+abc",
            key_file="", anchors=("log",), error="",
        )  # fmt: skip

    def audit_page(self, query: AuditQuery) -> AuditPage:
        every = fake_gate.records(self.audit_records, self._text)
        found = [
            row for row in every
            if (not query.seq or row.seq == query.seq) and (not query.proposal or row.proposal == query.proposal)
            and (not query.actor or row.subject == query.actor) and row.type.startswith(query.type)
        ]  # fmt: skip
        rows = [row for row in found if not query.before or row.seq < query.before][-query.limit :]
        return AuditPage(rows=tuple(rows), matched=len(found), last=self.audit_records)

    def audit_part(self, wanted: AuditRange) -> AuditPart:
        raise RefusedError("you may not export: alice is not an auditor or an admin", "Ask somebody with that role")

    def _outcome(self, proposal_id: str, deed: str, state: str) -> Outcome:
        shown = self._moved(proposal_id, state)
        self.deeds.append((deed, proposal_id))
        targets = shown.plan.steps[0].act.targets
        return Outcome(
            proposal=shown.id, digest=shown.digest, version=self.version, changed=targets, verified=(), state=state
        )

    def _moved(self, proposal_id: str, state: str) -> Proposal:
        self.kept[proposal_id] = msgspec.structs.replace(self.proposal(proposal_id), state=state)
        return self.kept[proposal_id]

    def _find(self, name: str, kind: str = "") -> dict[str, Any]:
        for table in [kind] if kind else ["workloads", "nodes", "queues"]:
            for row in self._tables[table]:
                if row["name" if table == "queues" else "id"] == name:
                    return row
        raise NotFoundError(f"there is no {kind.removesuffix('s') or 'object'} '{name}'")


def _as_declared(question: ServiceQuestion, method: Callable[..., Any]) -> Callable[..., Any]:
    """No question is answered while the engine is down, and no change made by who may only look."""

    @functools.wraps(method)
    def answered(self: FakeClient, *arguments: Any, **named: Any) -> Any:
        self._answer()
        if self.read_only and question.changes_with(question.bound(*arguments, **named)):
            raise refuse_read_only()
        return method(self, *arguments, **named)

    return answered


wrap_answers(FakeClient, Client, _as_declared)

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a is not None and (fnmatchcase(a, b) if isinstance(b, str) else a == b),
    "~": lambda a, b: a is not None and b.lower() in str(a).lower(),
    "<": lambda a, b: a is not None and a < b,
    "<=": lambda a, b: a is not None and a <= b,
    ">": lambda a, b: a is not None and a > b,
    ">=": lambda a, b: a is not None and a >= b,
    "!=": lambda a, b: a != b,
    "!~": lambda a, b: a is None or b.lower() not in str(a).lower(),
}


def _holds(row: dict[str, Any], where: tuple[Term, ...]) -> bool:
    either: dict[str, bool] = {}
    for term in where:
        value = f"{row.get('id', '')} {row.get('name', '')}" if term.column == "text" else row[term.column]
        holds = _COMPARE[term.op](value, term.value)
        if term.op in ("=", "~"):
            either[term.column] = either.get(term.column, False) or holds
        elif not holds:
            return False
    return all(either.values())
