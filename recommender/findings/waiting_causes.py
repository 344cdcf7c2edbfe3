"""Findings on why work waits, of a reading of the cell: nodes out of service, floods, quota, what can never start,
labels, and pools that do not grow. Each says what it would take, and is quiet where the cause would not help."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from engine.model.quantities import counted, lasting, shortlist, whole
from recommender.findings.cell_reading import ROOM, CellReading, PoolState, QuotaLack, WaitingKind
from recommender.findings.suggestions import CPUS_OF_A_GPU, MAX_TARGETS, Benefit, Evidence, Expected, Suggestion

FORGOTTEN_MS = 10 * 60_000
"""Out of service for so long, while work waits that fits: somebody should be asked."""
QUOTA_WAIT_MS = STUCK_MS = 10 * 60_000
"""A wait for quota, or for a pool to grow, longer than this is a finding."""
BOOT_TIMES = 3
"""An order or a boot that has taken so many times its usual is stuck."""
CHECK_MS = 2 * 3_600_000
DAY_MS = 24 * 3_600_000
NOTHING = "No action: they start when other work ends"


def out_of_service(reading: CellReading) -> list[Suggestion]:
    """Nodes that were drained or cordoned, are empty, and would take work that waits for room."""
    forgotten = {
        row: node for row, node in reading.idle_nodes.items() if reading.now_ms - node.since_ms >= FORGOTTEN_MS
    }
    helped: list[WaitingKind] = []
    useful: dict[int, int] = {}
    """Row -> tasks that it would take at most."""
    for lot in reading.lots:
        rooms = [(row, room) for row, room in lot.out_rooms if row in forgotten]
        if rooms and lot.token in ROOM and sum(room for _, room in rooms) >= lot.missing_tasks:
            helped.append(lot)
            useful |= {row: max(room, useful.get(row, 0)) for row, room in rooms}
    if not helped:
        return []
    nodes = [forgotten[row] for row in sorted(useful, key=lambda row: (forgotten[row].since_ms, row))]
    count, longest = sum(lot.count for lot in helped), max(lot.wait_ms for lot in helped)
    oldest = max(reading.now_ms - node.since_ms for node in nodes)
    gpus, cpus = sum(node.gpu_milli for node in nodes), sum(node.cpu_milli for node in nodes)
    capacity = f"{whole(gpus)} GPU" if gpus else f"{whole(cpus)} CPU"
    milli = min(gpus or cpus // CPUS_OF_A_GPU, _asked(helped))
    states = "/".join(sorted({node.state for node in nodes}))
    return [
        Suggestion(
            kind="forgotten_cordons",
            about="cell",
            finding=f"{counted(len(nodes), 'node')} {states} and empty for up to {lasting(oldest)}, "
            f"while {count:,} waiting would fit",
            action="uncordon",
            targets=tuple(node.id for node in nodes[:MAX_TARGETS]),
            evidence=(
                Evidence(metric="waiting that would fit", window="now", rows=count, value=f"{count:,}"),
                Evidence(metric="longest of their waits", window="now", rows=count, value=lasting(longest)),
                Evidence(metric="out of service", window=lasting(oldest), rows=len(nodes), value=capacity),
            ),
            counterfactual=f"Not suggested within {lasting(FORGOTTEN_MS)} of the drain, or if nothing waiting fitted",
            alternatives=("Ask who took them out, and why", f"No action: {capacity} stay out of service"),
            thin=("whether they are healthy is not known here: ask whoever took them out",),
            severity=longest / 3_600_000,
            benefit=Benefit(waiting_gpu_milli_h=milli * DAY_MS // 3_600_000),
            cost_delta_microusd_hour=0,
            expected=_fewer_waiting(reading, min(count, sum(useful.values()))),
        )
    ]


def reserved(reading: CellReading) -> list[Suggestion]:
    """Reservations that began FORGOTTEN_MS ago, have no work on their nodes and none of their own queues waiting, while
    others wait that would fit there."""
    found = []
    for each in reading.reservations.values():
        lots = [lot for lot in reading.lots if each.name in lot.kept_by and lot.token in ROOM]
        held_ms, left_ms = reading.now_ms - each.start_ms, each.end_ms - reading.now_ms
        if not lots or each.owners_wait or held_ms < FORGOTTEN_MS or left_ms < FORGOTTEN_MS:
            continue
        count, longest = sum(lot.count for lot in lots), max(lot.wait_ms for lot in lots)
        milli = min(each.gpu_milli or each.cpu_milli // CPUS_OF_A_GPU, _asked(lots))
        found.append(
            Suggestion(
                kind="stale_reservation",
                finding=f"reservation {each.name} keeps {counted(len(each.nodes), 'node')} and nothing runs on them, "
                f"while {count:,} waiting would fit",
                action="unreserve",
                targets=(each.name,),
                evidence=(
                    Evidence(metric="nodes with work", window=lasting(held_ms), rows=len(each.nodes), value="0"),
                    Evidence(metric="longest wait of what would fit", window="now", rows=count, value=lasting(longest)),
                ),
                counterfactual="Not suggested if something ran on its nodes, its own queues waited, or nothing fitted",
                alternatives=(
                    "Ask its owner whether it is still needed",
                    f"No action: it lasts {lasting(left_ms)} more",
                ),
                thin=("its owner may come late",),
                severity=longest / 3_600_000,
                benefit=Benefit(waiting_gpu_milli_h=milli * min(left_ms, DAY_MS) // 3_600_000),
                expected=_fewer_waiting(reading, count),
            )
        )
    return found


def flooded(reading: CellReading) -> list[Suggestion]:
    """Tenants and teams whose new work is most of the line, in the way of others."""
    found = []
    for flood, ids, lowest in reading.floods:
        usual = f"{flood.usual:,}" if flood.usual else "none"
        held = f", and holds {flood.held_permille / 10:g} % of the cell" if flood.held_permille else ""
        queues = {lot.queue for lot in reading.lots if lot.tenant == flood.name}
        alone = flood.of == "tenant" and len(queues) == 1
        shared = queues & {lot.queue for lot in reading.lots if lot.tenant != flood.name}
        hold_queue = alone and not shared and flood.waiting > MAX_TARGETS
        trial = () if hold_queue or not lowest else (f"priority {','.join(ids)} {lowest}",)
        found.append(
            Suggestion(
                kind="runaway_tenant",
                about=flood.name,
                finding=f"{flood.of} {flood.name} floods the line: {flood.waiting:,} of {flood.line:,} waiting, "
                f"{counted(len(flood.hurt), 'workload')} of others behind{held}",
                action="hold_queue" if hold_queue else "hold",
                targets=tuple(queues) if hold_queue else ids,
                trial=trial,
                evidence=(
                    Evidence(
                        metric="share of the line",
                        window="now",
                        rows=flood.line,
                        value=f"{100 * flood.waiting // flood.line} %",
                    ),
                    Evidence(
                        metric="submitted in its densest hour",
                        window="last 6 hours",
                        rows=flood.arrived,
                        value=f"{flood.arrived:,}",
                        baseline=f"{usual} in the day before",
                    ),
                ),
                counterfactual="Not suggested if it had submitted as much before, or if nobody else waited",
                alternatives=(
                    "Ask it whether the work can wait",
                    "Lower its priority: it then starts last",
                    "No action: quota, priority and fair sharing decide what starts first",
                ),
                severity=flood.waiting,
                benefit=Benefit(waiting_gpu_milli_h=_day_of(_others(reading, flood.name))),
                expected=_others_start(reading, flood.name),
            )
        )
    return found


def misquota(reading: CellReading) -> list[Suggestion]:
    """One for each queue whose work waits for quota beside neighbours with idle quota, where nodes have room."""
    stuck: dict[str, list[WaitingKind]] = defaultdict(list)
    for lot in reading.lots:
        if lot.lack is not None and lot.wait_ms > QUOTA_WAIT_MS:
            stuck[lot.queue].append(lot)
    return [_misquota(reading, queue, lots) for queue, lots in stuck.items()]


def _misquota(reading: CellReading, queue: str, lots: list[WaitingKind]) -> Suggestion:
    lack = lots[0].lack
    assert lack is not None
    count, longest = sum(lot.count for lot in lots), max(lot.wait_ms for lot in lots)
    asked = sum(lot.count * (lot.gpu_milli if lack.resource == "gpu_milli" else lot.cpu_milli) for lot in lots)
    more = -(-min(asked, sum(spare for _, spare in lack.idle), lack.free) // 1000)
    word = lack.resource.partition("_")[0]
    neighbours = shortlist([f"{name} ({whole(spare)} {word.upper()})" for name, spare in lack.idle], 3)
    at, flag, quantity = _limit_of(reading, lack, more, word)
    nominal = reading.queues[queue].nominal.get(lack.resource)
    return Suggestion(
        kind="quota_beside_idle",
        about=queue,
        finding=f"{count:,} in queue {queue} {'waits' if count == 1 else 'wait'} for quota while {neighbours} "
        f"{'is' if len(lack.idle) == 1 else 'are'} idle",
        action="set_quota",
        targets=(at,),
        parameters=(flag, f"{word}={quantity}"),
        trial=() if nominal is None else (f"quota {queue} {word}={nominal // 1000 + more}",),
        evidence=(
            Evidence(metric="longest wait for quota", window="now", rows=count, value=lasting(longest)),
            Evidence(metric="idle quota beside it", window="now", rows=len(lack.idle), value=neighbours),
        ),
        counterfactual=f"Not suggested if none had waited over {lasting(QUOTA_WAIT_MS)}, or if no neighbour were idle",
        alternatives=(
            f"Raise the quota of {queue}, or lower that of an idle neighbour: a longer-term change",
            "No action: they start when work of their own queue ends",
        ),
        thin=("a single reading: the neighbours may be idle only now",),
        severity=longest / 3_600_000,
        benefit=Benefit(waiting_gpu_milli_h=_day_of(lots)),
        expected=_fewer_waiting(reading, count, queue, sum(lot.count for lot in reading.lots if lot.queue == queue)),
    )


def _limit_of(reading: CellReading, lack: QuotaLack, more: int, word: str) -> tuple[str, str, int]:
    """(queue, flag, quantity) of the mildest change: borrow, be lent, own quota."""
    spec = reading.queues[lack.queue]
    if lack.resource in spec.borrowing_limit:
        return spec.name, "--borrowing-limit", spec.borrowing_limit[lack.resource] // 1000 + more
    for name, spare in lack.idle:
        lender = reading.queues[name]
        if lender.lending_limit.get(lack.resource, spare) < spare:
            to = min(lender.lending_limit[lack.resource] // 1000 + more, spare // 1000)
            return name, "--lending-limit", to
    return spec.name, "--nominal", spec.nominal.get(lack.resource, 0) // 1000 + more


def never_fits(reading: CellReading) -> list[Suggestion]:
    """One for each queue and cause of work that cannot start in this cell as it is."""
    found: dict[tuple[str, str], list[WaitingKind]] = defaultdict(list)
    for lot in reading.lots:
        if lot.never:
            found[lot.queue, lot.never].append(lot)
    suggestions = []
    for (queue, why), lots in found.items():
        ids = tuple(id_ for lot in lots for id_ in lot.ids)[:MAX_TARGETS]
        count = sum(lot.count for lot in lots)
        named = ids[0] if count == 1 else f"{ids[0]} and {count - 1:,} more of queue {queue}"
        suggestions.append(
            Suggestion(
                kind="never_fits",
                about=f"{queue}: {ids[0]}",
                finding=f"{named} can never start: {why}",
                action="notify",
                targets=ids,
                evidence=(
                    Evidence(
                        metric="waiting in vain",
                        window="now",
                        rows=count,
                        value=lasting(max(lot.wait_ms for lot in lots)),
                        baseline=why,
                    ),
                ),
                counterfactual="Not suggested if the cell, empty, could hold it",
                alternatives=(
                    "Its owner asks for less, or for other nodes",
                    "Add nodes or quota, if it is meant to run here",
                    "No action: it will never start",
                ),
                severity=max(lot.wait_ms for lot in lots) / 3_600_000,
                benefit=Benefit(waiting_gpu_milli_h=_day_of(lots)),
            )
        )
    return suggestions


def mislabelled(reading: CellReading) -> list[Suggestion]:
    """One for each label that waiting work asks for, that no node has, and that nodes with room lack."""
    found: dict[tuple[str, int, tuple[str, ...]], list[WaitingKind]] = defaultdict(list)
    for lot in reading.lots:
        if lot.unlabelled is not None:
            found[lot.unlabelled].append(lot)
    return [
        Suggestion(
            kind="mislabelled_pool",
            about=f"{label}: {' '.join(pools)}",
            finding=f"{sum(lot.count for lot in lots):,} wait for label {label}, which no node has; "
            f"{counted(nodes, 'node')} of {shortlist(pools, 2)} with room would do",
            action="notify",
            targets=tuple(id_ for lot in lots for id_ in lot.ids)[:MAX_TARGETS],
            evidence=(
                Evidence(metric="nodes with room that lack the label", window="now", rows=nodes, value=f"{nodes:,}"),
                Evidence(
                    metric="longest wait for it",
                    window="now",
                    rows=sum(lot.count for lot in lots),
                    value=lasting(max(lot.wait_ms for lot in lots)),
                ),
            ),
            counterfactual="Not suggested if any node had the label, even a busy one",
            alternatives=(
                "Correct the label of the pool's nodes, if it was lost or changed",
                "Its owner corrects the request, if that is wrong",
                "No action: it will never start",
            ),
            severity=max(lot.wait_ms for lot in lots) / 3_600_000,
            benefit=Benefit(waiting_gpu_milli_h=_day_of(lots)),
        )
        for (label, nodes, pools), lots in found.items()
    ]


def autoscaler_stuck(reading: CellReading) -> list[Suggestion]:
    """One for each growing pool that would hold waiting work, and why it does not grow."""
    wanting: dict[str, list[WaitingKind]] = defaultdict(list)
    for lot in reading.lots:
        if lot.token in ROOM and not lot.never and lot.wait_ms > STUCK_MS:
            for pool in lot.pools:
                wanting[pool].append(lot)
    pools = {pool.spec.name: pool for pool in reading.pools}
    stuck = [(name, lots, why) for name, lots in wanting.items() if (why := _stuck(reading, pools[name]))]
    moving = {name for name in wanting if not _stuck(reading, pools[name])}
    # What another pool is growing for is not held up by this one.
    return [
        _autoscaler(reading, pools[name], lots, why)
        for name, lots, why in stuck
        if any(moving.isdisjoint(lot.pools) for lot in lots)
    ]


def _stuck(reading: CellReading, pool: PoolState) -> str:
    scaling = pool.spec.scaling
    assert scaling is not None
    boot_ms = max(scaling.boot_ms[1], 60_000)
    if not reading.autoscaling:
        return "the autoscaler is off"
    if pool.failures >= 2:
        return f"its provider failed to deliver {pool.failures} times in a row"
    if pool.nodes + pool.due >= scaling.most and not pool.due and not pool.booting_since_ms:
        return f"it is at its maximum of {scaling.most:,} nodes"
    if pool.booting_since_ms and reading.now_ms - pool.booting_since_ms > BOOT_TIMES * boot_ms:
        return f"nodes have been booting for {lasting(reading.now_ms - pool.booting_since_ms)}"
    if pool.oldest_order_ms and reading.now_ms - pool.oldest_order_ms > max(BOOT_TIMES * boot_ms, STUCK_MS):
        return f"an order has been open for {lasting(reading.now_ms - pool.oldest_order_ms)}"
    return ""


def _autoscaler(reading: CellReading, pool: PoolState, lots: list[WaitingKind], why: str) -> Suggestion:
    name, scaling = pool.spec.name, pool.spec.scaling
    assert scaling is not None
    count, longest = sum(lot.count for lot in lots), max(lot.wait_ms for lot in lots)
    size = pool.spec.offered
    unit = size.gpu_milli or size.cpu_milli
    wanted = sum(lot.count * (lot.gpu_milli if size.gpu_milli else lot.cpu_milli) for lot in lots)
    more = max(1, min(-(-wanted // max(unit, 1)), max(scaling.most, 1)))
    off, full = not reading.autoscaling, "maximum" in why
    return Suggestion(
        kind="autoscaler_stuck",
        about=name,
        finding=f"pool {name} does not grow for {count:,} waiting: {why}",
        action="set_autoscaling" if off else "set_scaling" if full else "notify",
        targets=() if off else (name,),
        parameters=("enabled=yes",) if off else ("--most", str(scaling.most + more)) if full else (),
        trial=(f"resize {name} {pool.nodes + more}",) if off or full else (),
        evidence=(
            Evidence(metric="waiting that its nodes would hold", window="now", rows=count, value=f"{count:,}"),
            Evidence(metric="longest of their waits", window="now", rows=count, value=lasting(longest)),
            Evidence(
                metric="nodes", window="now", rows=1, value=f"{pool.nodes:,}", baseline=f"{scaling.most:,} at most"
            ),
        ),
        counterfactual=f"Not suggested within {lasting(STUCK_MS)}, or while nodes are on their way",
        alternatives=(
            "Let the work use another pool",
            "Look at the provider: quota, stock, credentials",
            NOTHING,
        ),
        severity=longest / 3_600_000,
        benefit=Benefit(waiting_gpu_milli_h=_day_of(lots)),
        cost_delta_microusd_hour=more * pool.spec.price_microusd_hour if off or full else None,
        expected=_fewer_waiting(reading, count),
    )


# -- worth ------------------------------------------------------------------------------------------------------------


def _fewer_waiting(reading: CellReading, count: int, queue: str = "", was: int = 0) -> Expected:
    """The promise that so many fewer wait: of the cell, or of one queue."""
    of, subject, now = ("queue", queue, was) if queue else ("cell", "", reading.waiting)
    to = max(now - count, 0)
    return Expected(metric="waiting", of=of, subject=subject, was=float(now), to=float(to), within_ms=CHECK_MS)


def _others_start(reading: CellReading, flooding: str) -> Expected | None:
    """The promise that what waits in the queue hurt most starts; None where the flood is in all such queues, as that
    less of it waits once it is held says nothing."""
    its = {lot.queue for lot in reading.lots if lot.tenant == flooding}
    waiting: Counter[str] = Counter()
    for lot in _others(reading, flooding):
        waiting[lot.queue] += lot.count * (lot.queue not in its)
    queue, count = max(waiting.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    return _fewer_waiting(reading, count, queue, count) if count else None


def _day_of(lots: Iterable[WaitingKind]) -> int:
    """The worth of ending these waits, in GPU milli-hours: as long again as they have waited, at most a day."""
    return sum(
        lot.count * (lot.gpu_milli or lot.cpu_milli // CPUS_OF_A_GPU) * min(lot.wait_ms, DAY_MS) // 3_600_000
        for lot in lots
    )


def _asked(lots: Iterable[WaitingKind]) -> int:
    """Milli-GPU that they ask for, cores where there are no GPUs."""
    return sum(lot.count * (lot.gpu_milli or lot.cpu_milli // CPUS_OF_A_GPU) for lot in lots)


def _others(reading: CellReading, tenant: str) -> list[WaitingKind]:
    return [lot for lot in reading.lots if lot.tenant != tenant]
