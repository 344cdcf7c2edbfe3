"""Facts: typed readings of the cell that a draft may rest on and a model may be told.

`gather` reads what bears on a question in short turns on the engine's thread: kept counts, windows of lists, the fronts
of waiting groups, and single objects. It adds a few objects that an act might be about although nothing names them:
nodes that came back, work on hold, idle queues, running work that could give way. The cost is the same on a cell of a
million workloads.

Facts hold names of objects. They hold text written by strangers only in the metrics that `runbooks.drafts.vocabulary`
marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from engine.model.columns import view
from engine.model.errors import NotFoundError
from engine.model.list_queries import Kind, Query, Term
from engine.model.specs import NodeState, WorkloadState
from runbooks.drafts.typed_draft import MAX_FACTS, Excerpt, Fact, ReportedFinding
from runbooks.drafts.vocabulary import METRICS as METRICS
from runbooks.drafts.vocabulary import Names, fact, snake
from runbooks.plans.check_readings import READINGS
from runbooks.plans.checks import CheckName
from runbooks.procedures.compiler import zones

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.model.overviews import Overview
    from engine.model.reports import BudgetLine
    from runbooks.procedures.registry import EngineCall


DAY_MS = 24 * 3_600_000
MOST = 6
"""Of one sort."""
MAX_WAITING = 10
MIN_LOST = 3
"""Nodes of a zone that are down from which on it may be the zone."""
BLOCK = 50_000
"""Workloads that are looked through at a time, from the last one on."""
MAX_QUEUES_SEARCHED = 10_000
"""Queues beyond which idle ones are not looked for."""


def nodes(engine: Engine) -> tuple[str, ...]:
    """Nodes that were lost within a day, the last first, and the ready nodes of zones that lose nodes."""
    state, c = engine.state, engine.state.capacity
    since_ms = engine.now_ms - DAY_MS
    lost = sorted(
        ((losses[-1], row) for row, losses in state.failures.losses.items() if losses and losses[-1] > since_ms),
        reverse=True,
    )
    found = [c.node_ids[row] for _, row in lost if c.state[row] == NodeState.READY][:MOST]
    down = view(c.zone)[view(c.state) == NodeState.DOWN]
    zones, counts = np.unique(down[down >= 0], return_counts=True)
    for zone in zones[counts >= MIN_LOST][:MOST].tolist():
        left = np.flatnonzero((view(c.zone) == zone) & (view(c.state) == NodeState.READY))
        found += [c.node_ids[row] for row in left[:MOST].tolist()]
    return tuple(dict.fromkeys(found))


def waiting(engine: Engine) -> tuple[str, ...]:
    """The first of each group that waits alike, and those behind them, the oldest first; then what is on hold or
    suspended."""
    state, w = engine.state, engine.state.workloads
    found: dict[int, None] = {}
    for group in sorted(state.pending.groups.values(), key=lambda group: w.submitted[group.rows[group.front]]):
        found |= dict.fromkeys(islice(group.rows, group.front, group.front + MOST))
        if len(found) >= MAX_WAITING:
            break
    rows = [row for row in found if w.state[row] == WorkloadState.QUEUED][:MAX_WAITING]
    if w.ids:
        states = view(w.state)
        for kept_back in (WorkloadState.HELD, WorkloadState.SUSPENDED):
            rows += np.flatnonzero(states == kept_back)[:MOST].tolist()
    return tuple(w.ids[row] for row in rows)


def giving_way(engine: Engine) -> tuple[str, ...]:
    """While something waits, running work of the lowest priority that there is, what was submitted last first."""
    state, w = engine.state, engine.state.workloads
    values = {value for counts in state.workloads_of_queue for value, count in counts.items() if count > 0}
    if not state.pending.groups or not values:
        return ()
    low = np.flatnonzero(np.array(w.priority_value) == min(values))
    found: list[int] = []
    for end in range(len(w.ids), 0, -BLOCK):
        part = slice(max(0, end - BLOCK), end)
        there = (view(w.state)[part] == WorkloadState.RUNNING) & np.isin(view(w.priority)[part], low)
        found += (np.flatnonzero(there)[::-1] + part.start).tolist()
        if len(found) >= MOST:
            break
    return tuple(w.ids[row] for row in found[:MOST])


def idle_queues(engine: Engine) -> tuple[str, ...]:
    """While something waits, queues with a quota of which nothing is used and nothing waits."""
    state = engine.state
    if not state.pending.groups or len(state.queues.specs) > MAX_QUEUES_SEARCHED:
        return ()
    busy = {group_key[1] for group_key in state.pending.groups}
    idle = (
        spec.name for row, spec in enumerate(state.queues.specs)
        if any(spec.nominal.values()) and row not in busy and not state.queues.running[row]
    )  # fmt: skip
    return tuple(islice(idle, MOST))


MAX_QUEUES = 8
MAX_POOLS = 8
MAX_ROWS = 1_000
"""Queues that are looked through: one list costs what another does, however short."""
MAX_NODES = 8
MAX_WORKLOADS = 6
MAX_FINDINGS = 8
"""Besides the one that is asked about."""
MAX_NAMED = 12
"""Objects that a text names, of those that are read."""
MAX_LOOKED_AT = 4_000
"""Words of a text that are looked up as names."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


class FactReadings(msgspec.Struct, frozen=True, kw_only=True):
    """Facts, with the state version and the time at which they were read."""

    facts: tuple[Fact, ...]
    cell: str
    version: int
    """State version of the first reading; the others are at most moments younger."""
    now_ms: int


Named = tuple[Names, str]
"""(kind, id) of an object."""


def gather(
    call: EngineCall,
    *,
    question: str = "",
    finding: ReportedFinding | None = None,
    findings: Iterable[ReportedFinding] = (),
    about: tuple[str, ...] = (),
    channels: tuple[str, ...] = (),
    excerpts: tuple[Excerpt, ...] = (),
    more: Iterable[Fact] = (),
) -> FactReadings:
    """The facts that bear on a question: the cell as a whole, the objects named in the question, by the finding and in
    `about`, the longest waits, and everything out of order.

    `findings` are the other open findings, `channels` those of the policy, `more` facts that come first, such as those
    of a shift. Objects that only an excerpt names get metrics of their own, such as `node_named_in_excerpt`. At most
    MAX_FACTS; general facts are dropped first.
    """
    overview = call(lambda engine: engine.overview())
    named = dict.fromkeys(names_in(call, question))
    if finding is not None:
        ids = " ".join((finding.about, *finding.targets))
        named |= dict.fromkeys(names_in(call, ids))
    if about:
        named |= dict.fromkeys(names_in(call, " ".join(about)))
    pointed = tuple(named)[:MAX_NAMED]
    told = _FactList()
    told.add(more)
    for one in pointed:
        told.add(call(partial(_object, named=one)))
    told.add(_finding(finding) if finding is not None else ())
    told.add(_cell(overview))
    others = [other for other in findings if finding is None or other.id != finding.id][:MAX_FINDINGS]
    for other in others:
        told.add(_finding(msgspec.structs.replace(other, observed=())))
    told.add(fact("channel_known", channel, "yes") for channel in channels)
    told.add(call(_queues))
    told.add(_pools(overview))
    told.add(call(_sizes))
    told.add(call(_odd_nodes))
    for workload in call(_longest_waiting):
        told.add(call(partial(_object, named=("workload", workload))))
    for node in call(nodes):
        told.add(call(partial(_object, named=("node", node))))
    for queue in call(idle_queues):
        told.add(call(partial(_object, named=("queue", queue))))
    for workload in (*call(waiting), *call(giving_way)):
        work = call(partial(_object, named=("workload", workload)))
        told.add(one for one in work if one.metric in _OF_CANDIDATES)
    told.add(call(_budgets))
    told.add(call(_reservations))
    for excerpt in excerpts:
        for kind, id_ in names_in(call, _ends_of(excerpt.text))[:MAX_NAMED]:
            told.add((fact(f"{kind}_named_in_excerpt", id_, "yes"),), once_per_subject=True)
    return FactReadings(facts=told.numbered(), cell=overview.cell, version=overview.version, now_ms=overview.now_ms)


def names_in(call: EngineCall, text: str) -> tuple[Named, ...]:
    """The objects of the cell that a text names, as (kind, id), in the order they stand there. A word may name several:
    a tenant and its queue. Ids of nodes and workloads are taken as they stand, other names in any case of letters."""
    words = dict.fromkeys(word.rstrip("._/-") for word in _ID.findall(text)[:MAX_LOOKED_AT])

    def look(engine: Engine) -> tuple[Named, ...]:
        state = engine.state
        few: dict[str, list[Named]] = {}

        def take(kind: Names, names: Iterable[str]) -> None:
            for name in names:
                few.setdefault(name.lower(), []).append((kind, name))

        take("queue", (spec.name for spec in state.queues.specs))
        take("pool", (pool.name for pool in state.capacity.pools))
        take("tenant", (name for name in state.workloads.tenants.names if name))
        take("zone", zones(engine))
        take("reservation", (one.spec.name for one in state.bookings.reservations))
        take("budget", (line.spec.name for line in engine.budgets().budgets))
        found: dict[Named, None] = {}
        for word in words:
            if word in state.capacity.row_of:
                found["node", word] = None
            if word in state.workloads.row_of:
                found["workload", word] = None
            found |= dict.fromkeys(few.get(word.lower(), ()))
        return tuple(found)

    return call(look)


class _FactList:
    """Facts in the order they are added, each once."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str, str], Fact] = {}
        self._subjects: set[tuple[str, str]] = set()

    def add(self, facts: Iterable[Fact], *, once_per_subject: bool = False) -> None:
        for one in facts:
            if once_per_subject and (one.kind, one.subject) in self._subjects:
                continue
            more = str(one.value) if METRICS[one.metric].value == "text" or one.metric in _SEVERAL else ""
            self._facts.setdefault((one.metric, one.subject, more), one)
            self._subjects.add((one.kind, one.subject))
            self._subjects.add((METRICS[one.metric].value, str(one.value)))

    def numbered(self) -> tuple[Fact, ...]:
        """The facts with their ids, at most MAX_FACTS. Facts named by an excerpt are kept: they may be acted on."""
        named = [one for one in self._facts.values() if one.metric.endswith("_named_in_excerpt")]
        others = [one for one in self._facts.values() if not one.metric.endswith("_named_in_excerpt")]
        kept = (*others[: MAX_FACTS - len(named)], *named)
        return tuple(msgspec.structs.replace(one, id=f"F{i}") for i, one in enumerate(kept, 1))


_OF_CANDIDATES = frozenset(
    ("workload_state", "workload_queue", "workload_tenant", "workload_priority", "workload_gpus", "workload_cpus",
     "workload_run_s", "workload_unsaved_s")
)  # fmt: skip
"""What is told of work that is not what waits longest, and that an act might be about."""
_SEVERAL = frozenset(
    metric for metric in METRICS
    if metric in ("workload_node", "workload_waits_for", "proposal_action", "proposal_approver", "proposal_rejecter")
    or metric.startswith("proposal_on_")
)  # fmt: skip
"""Metrics of which a subject may have several values."""


def _ends_of(text: str) -> str:
    """The beginning and end of a long text, in which names are looked for: a little more than is ever sent."""
    return text if len(text) <= 16_384 else f"{text[:8_192]}\n{text[-8_192:]}"


# -- the readings ------------------------------------------------------------------------------------------------------


def _cell(overview: Overview) -> Iterable[Fact]:
    yield fact("cell_waiting", "", overview.states.get("queued", 0))
    yield fact("cell_running", "", overview.states.get("running", 0) + overview.states.get("placed", 0))
    for label in ("held", "suspended"):
        if overview.states.get(label):
            yield fact(f"cell_{label}", "", overview.states[label])
    if overview.oldest_waiting:
        yield fact("cell_oldest_wait_s", "", overview.oldest_wait_ms // 1000)
        yield fact("cell_oldest_waiting", "", overview.oldest_waiting)
    for token, count in overview.blocked:
        if f"cell_waiting_{snake(token)}" in METRICS:
            yield fact(f"cell_waiting_{snake(token)}", "", count)
    if overview.started_last_hour:
        yield fact("cell_wait_p50_s", "", overview.wait_p50_ms // 1000)
        yield fact("cell_wait_p95_s", "", overview.wait_p95_ms // 1000)
    yield fact("cell_started_hour", "", overview.started_last_hour)
    yield fact("cell_finished_hour", "", overview.finished_last_hour)
    for name in ("gpu", "cpu"):
        if overview.capacity.get(f"{name}_milli"):
            yield fact(f"cell_{name}s", "", overview.capacity[f"{name}_milli"])
            yield fact(f"cell_{name}s_used", "", overview.used[f"{name}_milli"])
    yield fact("cell_suspect", "", overview.suspect)
    if overview.suspect:
        yield fact("cell_mass_suspicion", "", "yes" if overview.mass_suspicion else "no")
    if overview.fragmentation_ppm is not None:
        yield fact("cell_fragmentation_permille", "", overview.fragmentation_ppm // 1000)
    if overview.cost_microusd_hour:
        yield fact("cell_cost_microusd_hour", "", overview.cost_microusd_hour)
        yield fact("cell_idle_microusd_hour", "", overview.idle_microusd_hour)
    if overview.policy in METRICS["cell_policy"].words:
        yield fact("cell_policy", "", overview.policy)


_QUEUE_COLUMNS = (
    "name", "state", "queued", "held", "suspended", "running", "oldest_wait", "gpu_used", "gpu_nominal",
    "gpu_borrowed", "gpu_lent", "cpu_used", "cpu_nominal", "burst", "parent",
)  # fmt: skip


def _queues(engine: Engine) -> tuple[Fact, ...]:
    """Facts of the queues with the longest waits, then of those that are not open."""
    rows = _rows(engine, "queues", _QUEUE_COLUMNS, (), ("-oldest_wait",), MAX_ROWS)
    longest = [row for row in rows if row["queued"]][:MAX_QUEUES]
    closed = [row for row in rows if row["state"] != "open"][:MAX_QUEUES]
    return tuple(told for row in (*longest, *closed) for told in _queue(row))


def _queue(row: dict[str, Any]) -> Iterable[Fact]:
    name = row["name"]
    yield fact("queue_mode", name, row["state"])
    yield fact("queue_waiting", name, row["queued"])
    if row["queued"] and row["oldest_wait"] is not None:
        yield fact("queue_oldest_wait_s", name, row["oldest_wait"] // 1000)
    yield fact("queue_running", name, row["running"])
    for column in ("held", "suspended"):
        if row[column]:
            yield fact(f"queue_{column}", name, row[column])
    for of in ("gpu", "cpu"):
        if row[f"{of}_used"] or row[f"{of}_nominal"]:
            yield fact(f"queue_{of}s", name, row[f"{of}_used"])
        if row[f"{of}_nominal"] is not None:
            yield fact(f"queue_{of}_quota", name, row[f"{of}_nominal"])
    for column in ("borrowed", "lent"):
        if row[f"gpu_{column}"]:
            yield fact(f"queue_gpus_{column}", name, row[f"gpu_{column}"])
    if row["burst"]:
        yield fact("queue_burst", name, row["burst"])
    if row["parent"]:
        yield fact("queue_cohort", name, row["parent"])


def _pools(overview: Overview) -> Iterable[Fact]:
    """Facts of pools, those with nodes out of use first."""
    pools = sorted(overview.pools, key=lambda pool: pool.nodes == pool.ready)[:MAX_POOLS]
    for pool in pools:
        yield fact("pool_nodes", pool.name, pool.nodes)
        yield fact("pool_ready", pool.name, pool.ready)
        for column in ("booting", "ordered", "suspect", "down", "cordoned", "draining"):
            if getattr(pool, column):
                yield fact(f"pool_{column}", pool.name, getattr(pool, column))
        for of in ("gpu", "cpu"):
            if pool.capacity.get(f"{of}_milli"):
                yield fact(f"pool_{of}s", pool.name, pool.capacity[f"{of}_milli"])
                yield fact(f"pool_{of}s_used", pool.name, pool.used[f"{of}_milli"])


_SIZE_COLUMNS = ("name", "least", "most", "backed_off", "failures", "price", "spot")


def _sizes(engine: Engine) -> tuple[Fact, ...]:
    """Bounds and troubles of pools that grow, those that failed first."""
    rows = _rows(engine, "pools", _SIZE_COLUMNS, (), ("-failures",), MAX_POOLS)
    return tuple(told for row in rows for told in _size(row))


def _size(row: dict[str, Any]) -> Iterable[Fact]:
    for column in ("least", "most"):
        if row[column] is not None:
            yield fact(f"pool_{column}", row["name"], row[column])
    if row["failures"]:
        yield fact("pool_failures", row["name"], row["failures"])
    if row["backed_off"] is not None:
        yield fact("pool_backed_off", row["name"], row["backed_off"])
    if row["price"]:
        yield fact("pool_price_microusd_hour", row["name"], row["price"])
    yield fact("pool_spot", row["name"], row["spot"])


def _odd_nodes(engine: Engine) -> tuple[Fact, ...]:
    """Nodes that take no work, the silent and the lost first."""
    found: list[str] = []
    for state in ("suspect", "down", "draining", "cordoned"):
        left = MAX_NODES - len(found)
        found += [row["id"] for row in _rows(engine, "nodes", ("id",), (Term("state", "=", state),), (), left)]
    return tuple(told for id_ in found for told in _node(engine, id_))


def _node(engine: Engine, id_: str) -> Iterable[Fact]:
    node = engine.node(id_)
    yield fact("node_state", id_, node.state)
    yield fact("node_since_s", id_, (node.now_ms - node.since_ms) // 1000)
    yield fact("node_workloads", id_, len(node.workloads))
    yield fact("node_pool", id_, node.pool)
    if node.zone:
        yield fact("node_zone", id_, node.zone)
    if node.capacity.get("gpu_milli"):
        yield fact("node_gpus", id_, node.capacity["gpu_milli"])
        yield fact("node_free_gpus", id_, node.free["gpu_milli"])
    if node.note:
        yield fact("node_note", id_, node.note)
    if node.ends_ms is not None:
        yield fact("node_ends", id_, node.ends_ms)
    losses = engine.state.failures.losses.get(engine.state.capacity.row(id_), ())
    lost = sum(at_ms > node.now_ms - 24 * 3_600_000 for at_ms in losses)
    if lost:
        yield fact("node_losses_day", id_, lost)


def _longest_waiting(engine: Engine) -> tuple[str, ...]:
    """Ids of the first of the groups that wait, the oldest first: like ones share a group, so these differ."""
    w = engine.state.workloads
    fronts = sorted((w.submitted[row], row) for row in (g.rows[g.front] for g in engine.state.pending.groups.values()))
    return tuple(w.ids[row] for _, row in fronts[:MAX_WORKLOADS])


def _workload(engine: Engine, id_: str) -> Iterable[Fact]:
    work = engine.workload(id_)
    of = work.tenant

    def told(metric: str, value: int | str) -> Fact:
        return fact(metric, id_, value, tenant=of)

    yield told("workload_state", work.state)
    if work.reasons:
        yield told("workload_reason", work.reasons[0].token)
        yield told("workload_wait_s", (work.now_ms - work.submitted_ms) // 1000)
        yield told("workload_why", work.reasons[0].text)
    if work.state == "running" and work.started_ms is not None:
        yield told("workload_run_s", (work.now_ms - work.started_ms) // 1000)
        yield told("workload_unsaved_s", work.loss_ms // 1000)
    yield told("workload_queue", work.queue)
    if of:
        yield told("workload_tenant", of)
    yield told("workload_priority", work.priority)
    yield told("workload_tasks", sum(group.count for group in work.groups))
    for column in ("gpu", "cpu"):
        asked = sum(group.count * getattr(group, f"{column}_milli") for group in work.groups)
        if asked:
            yield told(f"workload_{column}s", asked)
    if work.estimate_ms:
        yield told("workload_estimate_s", work.estimate_ms // 1000)
    if work.attempts:
        yield told("workload_attempts", work.attempts)
    if work.failures:
        yield told("workload_failures", work.failures)
    if work.placement_total:
        yield told("workload_nodes", work.placement_total)
        for node in dict.fromkeys(place.node for place in work.placement[:4]):
            yield told("workload_node", node)
    for dependency in work.waits_for[:4]:
        yield told("workload_waits_for", dependency.id)
    if work.promised_start_ms is not None:
        yield told("workload_promised_start", work.promised_start_ms)
    if work.deadline_ms is not None:
        yield told("workload_deadline", work.deadline_ms)


_CHECKED: dict[str, tuple[CheckName, ...]] = {
    "tenant": ("tenant_running", "tenant_waiting", "tenant_gpus"),
    "zone": ("zone_ready", "zone_lost"),
}
"""Readings of checks that are facts too, by kind of object."""


def _checked(engine: Engine, kind: str, name: str) -> Iterable[Fact]:
    for check in _CHECKED[kind]:
        value = READINGS[check](engine, name)
        if isinstance(value, int):
            value *= 1000 if check == "tenant_gpus" else 1
            yield fact(check, name, value, tenant=name if kind == "tenant" else "")


def _budgets(engine: Engine) -> tuple[Fact, ...]:
    """Facts of budgets that warn or are spent."""
    lines = [line for line in engine.budgets().budgets if line.stage != "open" or line.waiting]
    return tuple(told for line in lines[:4] for told in _budget(line))


def _budget(line: BudgetLine) -> Iterable[Fact]:
    name, of = line.spec.name, line.spec.of if line.spec.scope == "tenant" else ""
    told: dict[str, int | str] = {
        "budget_stage": line.stage, "budget_on_spent": line.spec.action, "budget_spent_microusd": line.spent_microusd,
        "budget_limit_microusd": line.spec.limit_microusd, "budget_end": line.window_end_ms,
        "budget_waiting": line.waiting,
    }  # fmt: skip
    for metric, value in told.items():
        yield fact(metric, name, value, tenant=of)
    if line.spec.limit_microusd:
        spent = line.spent_microusd * 1000 // line.spec.limit_microusd
        yield fact("budget_spent_permille", name, spent, tenant=of)
    if line.spent_at_ms is not None:
        yield fact("budget_gone", name, line.spent_at_ms, tenant=of)


def _reservations(engine: Engine) -> tuple[Fact, ...]:
    columns = ("name", "state", "start", "end", "nodes")
    return tuple(told for row in _rows(engine, "reservations", columns, (), ("end",), 4) for told in _reservation(row))


def _reservation(row: dict[str, Any]) -> Iterable[Fact]:
    for column in ("state", "nodes", "start", "end"):
        yield fact(f"reservation_{column}", row["name"], row[column])


def _finding(finding: ReportedFinding) -> Iterable[Fact]:
    yield fact("finding_kind", finding.id, finding.kind)
    if finding.action in METRICS["finding_action"].words:
        yield fact("finding_action", finding.id, finding.action)
    yield fact("finding_text", finding.id, finding.text)
    for one in finding.observed[:8]:
        yield fact("finding_observed", finding.id, f"{one.metric}, {one.window}: {one.value}")


def _object(engine: Engine, named: Named) -> tuple[Fact, ...]:
    """All facts of one object; none when it is gone."""
    kind, id_ = named
    where = (Term("name", "=", id_),)
    found: Iterable[Fact] = ()
    try:
        match kind:
            case "node":
                found = _node(engine, id_)
            case "workload":
                found = _workload(engine, id_)
            case "tenant" | "zone":
                found = _checked(engine, kind, id_)
            case "queue":
                rows = _rows(engine, "queues", _QUEUE_COLUMNS, where, (), 2)
                found = [told for row in rows if row["name"] == id_ for told in _queue(row)]
            case "pool":
                rows = _rows(engine, "pools", _SIZE_COLUMNS, where, (), 2)
                brief = engine.overview(brief=True)
                alone = msgspec.structs.replace(brief, pools=tuple(pool for pool in brief.pools if pool.name == id_))
                found = (*_pools(alone), *(told for row in rows if row["name"] == id_ for told in _size(row)))
            case "reservation":
                rows = _rows(engine, "reservations", ("name", "state", "start", "end", "nodes"), where, (), 2)
                found = [told for row in rows if row["name"] == id_ for told in _reservation(row)]
            case "budget":
                found = [told for line in engine.budgets().budgets if line.spec.name == id_ for told in _budget(line)]
        return tuple(found)
    except NotFoundError:
        return ()


def _rows(
    engine: Engine, kind: Kind, columns: tuple[str, ...], where: tuple[Term, ...], sort: tuple[str, ...], most: int
) -> list[dict[str, Any]]:
    if most <= 0:
        return []
    page = engine.query(Query(kind=kind, columns=columns, where=where, sort=sort, limit=most))
    return [dict(zip(page.columns, row, strict=True)) for row in page.rows]
