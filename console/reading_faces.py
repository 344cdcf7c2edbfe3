"""What is shown of a cell, over HTTP."""

from __future__ import annotations

from typing import Any

from console.client import Health, RuntimeEstimate
from console.operations import Asked, Number, Operation, Word
from console.output_faces import OUTPUT
from engine.costs import BudgetReport, GoodputReport, Showback, ShowbackRequest
from engine.errors import SpecError
from engine.intent_report import IntentsReport
from engine.query import (
    Consolidation,
    ConsolidationRequest,
    FairnessReport,
    FragmentationReport,
    HeatMap,
    HeatRequest,
    Named,
    NodeDetail,
    Overview,
    Page,
    Query,
    QueueDetail,
    Unblocking,
    WorkloadDetail,
)
from engine.scaling_report import ScalingReport
from engine.slurm.report import Mirrored, MirrorReport
from recommender.placements import PlacementAdvice
from runbooks.intent_shown import IntentDetail


def _of_body(what: str) -> tuple[str, Any]:
    return what, lambda asked: (asked.body,)


def _of_path(what: str, name: str) -> tuple[str, Any]:
    return what, lambda asked: (asked.path[name],)


def _alone(what: str) -> tuple[str, Any]:
    return what, lambda asked: ()


def _number(asked: Asked) -> int:
    """Of an intent. Raises SpecError."""
    said = asked.path["number"]
    if not (said.isascii() and said.isdecimal() and len(said) < 16):
        raise SpecError("number", f"{said[:40]!a} is no number of an intent", "See muster intents")
    return int(said)


def _find(asked: Asked) -> tuple[Named, ...]:
    return asked.client.find(asked.query["name"], asked.query["kinds"], asked.query["limit"])


READING = (
    Operation(
        "GET", "/v1/health", "How the engine is, and what it serves", lambda asked: asked.client.health(), gives=Health
    ),
    Operation("GET", "/v1/overview", "The cell in figures", reads=_alone("overview"), gives=Overview),
    Operation(
        "POST", "/v1/query", "A window onto workloads, nodes, queues, reservations, pools or orders",
        takes=Query, reads=_of_body("query"), gives=Page,
    ),
    Operation(
        "GET", "/v1/workloads/{id:path}/estimate", "How long a workload may run in all",
        lambda asked: asked.client.estimate(asked.path["id"]), gives=RuntimeEstimate | None,
    ),
    Operation(
        "GET", "/v1/workloads/{id:path}/unblocking", "What would let a workload start now",
        lambda asked: asked.client.unblocking(asked.path["id"]), gives=Unblocking, slow=True,
    ),
    Operation(
        "GET", "/v1/workloads/{id:path}/advice", "Where a workload would do best",
        lambda asked: asked.client.advice_on(asked.path["id"]), gives=PlacementAdvice, slow=True,
    ),
    Operation(
        "GET", "/v1/workloads/{id:path}/mirrored", "What an outside scheduler says of a workload's job",
        lambda asked: asked.client.mirrored(asked.path["id"]), gives=Mirrored,
    ),
    *OUTPUT,
    Operation(
        "GET", "/v1/workloads/{id:path}", "A workload, and why it waits",
        reads=_of_path("workload", "id"), gives=WorkloadDetail,
    ),
    Operation("GET", "/v1/nodes/{id:path}", "A node, and what is on it", reads=_of_path("node", "id"),
              gives=NodeDetail),
    Operation(
        "GET", "/v1/queues/{name:path}", "A queue, its quota and who waits",
        reads=_of_path("queue", "name"), gives=QueueDetail,
    ),
    Operation(
        "GET", "/v1/find", "What is called so, and what begins so",
        query=(
            Word("name", "What it is called"),
            Word("kinds", "Kinds of things; none: all", many=True),
            Number("limit", 24, 0, 200, "At most so many"),
        ),
        do=_find, gives=tuple[Named, ...],
    ),
    Operation("GET", "/v1/fairness", "Shares and quotas of the queue tree", reads=_alone("fairness"),
              gives=FairnessReport, slow=True),
    Operation("GET", "/v1/budgets", "What tenants may spend and have spent", reads=_alone("budgets"),
              gives=BudgetReport, slow=True),
    Operation("GET", "/v1/goodput", "How much of the work done will last", reads=_alone("goodput"),
              gives=GoodputReport, slow=True),
    Operation("GET", "/v1/mirror", "How the mirror of an outside scheduler does, and what it leaves out",
              lambda asked: asked.client.mirror(), gives=MirrorReport),
    Operation("GET", "/v1/intents", "What is under way to an outside scheduler, and what came of it",
              query=(Number("limit", 200, 1, 1_000, "At most so many"),),
              do=lambda asked: asked.client.intents(asked.query["limit"]), gives=IntentsReport),
    Operation("GET", "/v1/intents/{number}", "What was wanted, what was said of it, and what is shown of it now",
              lambda asked: asked.client.intent(_number(asked)), gives=IntentDetail, slow=True),
    Operation("GET", "/v1/scaling", "How large pools are and should be", reads=_alone("scaling"),
              gives=ScalingReport, slow=True),
    Operation("GET", "/v1/fragmentation", "Free capacity in pieces too small to use", reads=_alone("fragmentation"),
              gives=FragmentationReport, slow=True),
    Operation("POST", "/v1/topology", "Zones, blocks, racks or nodes as a map", takes=HeatRequest,
              reads=_of_body("topology"), gives=HeatMap),
    Operation("POST", "/v1/showback", "What was spent, by tenant, team, queue or tag", takes=ShowbackRequest,
              reads=_of_body("showback"), gives=Showback, slow=True),
    Operation("POST", "/v1/consolidation", "What would be moved to have larger pieces free",
              takes=ConsolidationRequest, gives=Consolidation, slow=True,
              do=lambda asked: asked.client.consolidation(asked.body)),
)  # fmt: skip
