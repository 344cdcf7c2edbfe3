"""The kinds of findings, each declared once: its name, its incident, what finds it and what can be done.

The list, the page, the score (`muster eval findings`) and docs/findings.md are made from these rows. Loads nothing
heavy: clients read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from recommender.findings.cell_reading import CellReading
    from recommender.findings.suggestions import Suggestion

Detector = Callable[["CellReading"], "list[Suggestion]"]
Incident = Literal["late", "loss", "spend", "watch", "waste"]

INCIDENTS: Mapping[Incident, str] = {
    "late": "work waits or is late",
    "loss": "work is lost, slow or at risk",
    "spend": "money is about to hold work, or is charged wrongly",
    "watch": "unusual",
    "waste": "savings",
}
"""In the order in which they are told: what burns first."""


class FindingKind(NamedTuple):
    name: str
    incident: Incident
    finds: str
    remedies: tuple[str, ...]
    """What can be done, mildest first; doing nothing always stands beside them."""
    detector: str = ""
    """`module:function` of a `recommender.findings.cell_reading.CellReading`; empty for those that pages, agents or
    the history show."""


_CAUSES, _RISKS = "recommender.findings.waiting_causes", "recommender.findings.work_at_risk"

_ROWS = (
    FindingKind(
        "forgotten_cordons", "late", "empty nodes out of service, long ago or while work waits that fits them",
        ("uncordon",), f"{_CAUSES}:out_of_service",
    ),
    FindingKind(
        "stale_reservation", "late", "a reservation that keeps idle nodes", ("unreserve",), f"{_CAUSES}:reserved",
    ),
    FindingKind(
        "runaway_tenant", "late", "a tenant or team that floods the line or holds far more than usual",
        ("hold what it has waiting", "lower its priority", "ask it"), f"{_CAUSES}:flooded",
    ),
    FindingKind(
        "quota_beside_idle", "late", "work that waits for quota beside idle quota and free nodes",
        ("let it borrow", "have the neighbour lend", "raise its quota"), f"{_CAUSES}:misquota",
    ),
    FindingKind("fragmented_gangs", "late", "gangs that wait for free but fragmented capacity", ("consolidate",)),
    FindingKind(
        "never_fits", "late", "work that can never start in this cell as it is",
        ("tell its owner", "add nodes or quota"), f"{_CAUSES}:never_fits",
    ),
    FindingKind(
        "mislabelled_pool", "late", "work that waits for a label which nodes with room lack",
        ("correct the label", "tell its owner"), f"{_CAUSES}:mislabelled",
    ),
    FindingKind(
        "autoscaler_stuck", "late", "a pool that should grow for waiting work and does not",
        ("switch the autoscaler on", "raise the pool's maximum", "another pool"), f"{_CAUSES}:autoscaler_stuck",
    ),
    FindingKind("pool_ahead", "late", "a growing pool that is likely to be too small", ("set targets",)),
    FindingKind("overrun", "watch", "runs far past what similar work takes", ("ask the owner", "requeue")),
    FindingKind("straggler", "loss", "a node that slows a gang down", ("drain", "restart the gang elsewhere")),
    FindingKind(
        "failing_node", "loss", "a node lost again and again that still takes work", ("drain", "cordon"),
        f"{_RISKS}:failing_node",
    ),
    FindingKind("flapping", "loss", "nodes kept out because they flapped", ("drain",)),
    FindingKind(
        "retry_storm", "loss", "work of one kind that fails and is tried again and again",
        ("hold it", "tell its owner"), f"{_RISKS}:retry_storm",
    ),
    FindingKind(
        "spot_leaving", "loss", "a spot pool that loses many nodes",
        ("move work to on-demand nodes", "checkpoint"), f"{_RISKS}:spot_leaving",
    ),
    FindingKind("interruptions", "loss", "a spot pool that lost many nodes in a day", ("on-demand share",)),
    FindingKind("mass_suspicion", "loss", "many silent nodes at once", ("check the network",)),
    FindingKind("needs_hands", "loss", "nodes whose repairs failed", ("tell people",)),
    FindingKind("throttled_node", "loss", "a node whose GPUs are throttled", ("drain",)),
    FindingKind("unusual_ecc_errors", "loss", "a node with more memory errors than usual", ("drain",)),
    FindingKind("unusual_xid_errors", "loss", "a node with more driver errors than usual", ("drain",)),
    FindingKind("failing_queue", "loss", "a queue of whose work more fails than before", ("tell people",)),
    FindingKind("interference", "loss", "work that neighbours slow down", ("place it apart",)),
    FindingKind(
        "budget_holds", "spend", "a budget that holds work now, or soon will", ("raise the limit", "spend less"),
        f"{_RISKS}:budget_holds",
    ),
    FindingKind(
        "mispriced_pool", "spend", "a pool whose price does not fit that of its like", ("correct the price",),
        f"{_RISKS}:mispriced",
    ),
    FindingKind("unusual_wait_p95_s", "watch", "a wait far above its usual", ("look why",)),
    FindingKind("unusual_cost_rate", "watch", "a bill far above its usual", ("look who is charged",)),
    FindingKind("unusual_used_gpu", "watch", "use far below its usual", ("look what ended",)),
    FindingKind("clock_skew", "watch", "nodes whose clocks are off", ("correct them",)),
    FindingKind("strangers", "watch", "agents of nodes that nobody ordered", ("add or stop them",)),
    FindingKind(
        "hung_devices", "loss", "work whose GPUs all stopped at once", ("ask the owner", "requeue"),
    ),
    FindingKind("idle_devices", "waste", "GPUs that are allocated and idle", ("ask the owner", "suspend", "cancel")),
    FindingKind("starved_devices", "waste", "GPUs that wait for data", ("more CPUs", "local disks", "fewer GPUs")),
    FindingKind("underused_shape", "waste", "idle GPUs beside used ones of the same work", ("ask for fewer GPUs",)),
    FindingKind("idle_pool", "waste", "nodes of a pool that were never needed at once", ("a smaller minimum",)),
    FindingKind("oversized", "waste", "requests far above what is used", ("resize",)),
    FindingKind("short_of_memory", "loss", "work that uses more memory than it requests", ("resize",)),
)  # fmt: skip
KINDS: Mapping[str, FindingKind] = {row.name: row for row in _ROWS}


def incident_of(kind: str) -> Incident:
    """The incident that a finding belongs to; one of an unknown kind is for people to look at."""
    row = KINDS.get(kind)
    return row.incident if row is not None else "watch"


def table_lines() -> list[str]:
    """The declarations as the table of docs/findings.md."""
    lines = ["| kind | incident | finds | what can be done |", "|---|---|---|---|"]
    return lines + [f"| `{row.name}` | {row.incident} | {row.finds} | {'; '.join(row.remedies)} |" for row in _ROWS]


@cache
def _detectors() -> tuple[Detector, ...]:
    names = [row.detector.partition(":") for row in _ROWS if row.detector]
    return tuple(getattr(import_module(module), function) for module, _, function in names)


def detected(reading: CellReading) -> list[Suggestion]:
    """All that the declared detectors find in a reading."""
    return [found for detector in _detectors() for found in detector(reading)]
