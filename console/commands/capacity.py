"""Commands about capacity: `muster queue fairness`, `scaling`, `fragmentation`, `consolidate`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from console.client.attach import connect
from console.commands.show import tell_lines, write_json, write_lines
from console.text.plain_tables import facts, quantity, table
from console.text.terminal_text import NONE, duration, printable, timestamp
from console.views.queues import decision_line, share
from engine.model.errors import NotFoundError
from engine.model.quantities import shortlist
from engine.model.spec_parts import Autoscaling

if TYPE_CHECKING:
    from engine.external.slurm.records import Share
    from engine.model.consolidation_queries import Consolidation, ConsolidationPlan, NodeTasks
    from engine.model.reports import (
        BurstReport,
        FairnessReport,
        FragmentationReport,
        ScalingReport,
        ShapeFragmentation,
        VertexReport,
    )


SHOWN_DECISIONS = 10
_TITLES = ("QUEUE", "WEIGHT", "USED", "QUOTA", "BORROWED", "LENT", "DESERVES", "SHARE", "PAST", "BURST")
_RIGHT = (False, True, True, True, True, True, True, True, True, False)


def fairness(arguments: argparse.Namespace) -> None:
    """Shares now and over the past, and the last starts with what decided between them and the next in line."""
    with closing(connect(arguments)) as client:
        report = client.fairness()
        # Where Slurm decides it is Slurm's shares that decide.
        shares = client.mirror().shares
    if arguments.queue:
        report = only(report, arguments.queue)
    if arguments.json:
        write_json(msgspec.to_builtins(report) | {"slurm_shares": shares} if shares else report)
    else:
        write_lines(fairness_lines(report) + slurm_lines(shares))


def slurm_lines(shares: Sequence[Share]) -> list[str]:
    """Slurm's own fair share of accounts and users, those with the least factor, who go last, at the end; nothing where
    Slurm does not decide."""
    if not shares:
        return []
    ordered = sorted((each for each in shares if each.user), key=lambda each: -(each.factor or 0.0))
    accounts = [each for each in shares if not each.user]
    return [
        "",
        "fair share as Slurm applies it (sshare): accounts, then users, highest priority first",
        *table(
            ("ACCOUNT", "USER", "SHARE", "USED", "FACTOR"),
            [_slurm_row(each) for each in (*accounts, *ordered)],
            (False, False, True, True, True),
        ),
    ]


def _slurm_row(each: Share) -> list[str]:
    return [
        printable(each.account),
        printable(each.user) or NONE,
        NONE if each.shares_normalized is None else f"{each.shares_normalized:.1%}",
        NONE if each.usage_effective is None else f"{each.usage_effective:.1%}",
        NONE if each.factor is None else f"{each.factor:.3f}",
    ]


def only(report: FairnessReport, name: str) -> FairnessReport:
    """The report of one queue and of the starts that it won or lost. Raises NotFoundError."""
    queues = tuple(vertex for vertex in report.queues if vertex.name == name)
    if not queues:
        raise NotFoundError(f"there is no queue '{name}'", "List them with `muster get queues`")
    decisions = tuple(made for made in report.decisions if name in (made.queue, made.next_queue))
    return msgspec.structs.replace(report, queues=queues, decisions=decisions)


def fairness_lines(report: FairnessReport) -> list[str]:
    rows = [_row(vertex) for vertex in report.queues]
    past = "affects the order" if report.past_counts else "is informational"
    lines = [
        *table(_TITLES, rows, _RIGHT),
        "",
        "share: of the cell, in the resource it uses most above its quota, divided by its weight",
        f"past: the same for its average use, halved every {duration(report.half_life_ms)} of age; it {past}",
    ]
    if report.decisions:
        lines += ["", "last starts, and why each went first"]
        lines += [decision_line(made) for made in report.decisions[:SHOWN_DECISIONS]]
    if len(report.decisions) > SHOWN_DECISIONS:
        lines.append(f"  and {len(report.decisions) - SHOWN_DECISIONS:,} more: muster queue fairness --json")
    return lines


def _row(vertex: VertexReport) -> list[str]:
    main = next((name for name in ("gpu_milli", "cpu_milli") if vertex.used.get(name) or name in vertex.guaranteed), "")
    return [
        printable(vertex.name),
        f"{vertex.weight:,}",
        *(_amount(quantities, main) for quantities in (
            vertex.used, vertex.guaranteed, vertex.borrowed, vertex.lent, vertex.deserved,
        )),
        share(vertex.share_ppb),
        share(vertex.past_share_ppb),
        _burst(vertex.burst),
    ]  # fmt: skip


def _amount(quantities: dict[str, int], name: str) -> str:
    return quantity(name, quantities[name]) if quantities.get(name) else NONE


def _burst(burst: BurstReport | None) -> str:
    if burst is None:
        return ""
    return burst.state if burst.state == "idle" else f"{burst.state}, {duration(burst.ends_in_ms)} left"


TITLES = ("POOL", "READY", "BOOTING", "ORDERED", "OTHER", "ASKED", "WANTED", "LEAST", "MOST", "HEADROOM", "PRIORITY")


def scaling(arguments: argparse.Namespace) -> None:
    """Print present and wanted sizes of pools, and the inputs of the autoscaler."""
    with closing(connect(arguments)) as client:
        report = client.scaling()
    write_json(report) if arguments.json else write_lines(lines(report))


def lines(report: ScalingReport) -> list[str]:
    rows = []
    for pool in report.pools:
        scaling = pool.scaling
        own: tuple[str, ...] = ("",) * 5
        if scaling is not None:
            own = tuple(map(str, (pool.wanted, scaling.least, scaling.most, scaling.headroom, scaling.priority)))
        counts = (pool.ready, pool.booting, pool.ordered, pool.other, pool.asked)
        rows.append([printable(pool.pool), *(f"{count:,}" for count in counts), *own])
    told = table(TITLES, rows, (False, *(True,) * (len(TITLES) - 1)))
    for pool in report.pools:
        told += [f"{printable(pool.pool)}: {nodes:,} nodes from {timestamp(at_ms)} on" for at_ms, nodes in pool.set_for]
    settings = [(field, _word(field, report)) for field in Autoscaling.__struct_fields__]
    return [*told, "", *facts([*settings, ("forecast", printable(report.forecast))])]


def _word(field: str, report: ScalingReport) -> str:
    value = getattr(report.settings, field)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value)
    return duration(value) if field.endswith("_ms") else f"{value:,}"


SHOWN_MOVES = 40
SHOWN_NAMES = 4
_KIND_TITLES = ("TASK", "RUNNING", "WAITING", "FREE", "USABLE", "LOST", "FIT", "IF UNFRAGMENTED")
_MOVE_TITLES = ("MOVE", "QUEUE", "SIZE", "LOST WORK", "FROM", "TO")


def fragmentation(arguments: argparse.Namespace) -> None:
    """Print the free GPU that live work could not use, by pool and by kind of task."""
    with closing(connect(arguments)) as client:
        report = client.fragmentation()
    write_json(report) if arguments.json else write_lines(fragmentation_lines(report))


def fragmentation_lines(report: FragmentationReport) -> list[str]:
    if report.ppm is None:
        return [f"no GPU work is waiting or running; {quantity('gpu_milli', report.free_milli)} is free"]
    mix = f"{report.covered_tasks:,} of {report.mix_tasks:,} waiting or running tasks ask for GPU"
    pools = [
        (
            printable(pool.name),
            quantity("gpu_milli", pool.free_milli),
            NONE if pool.ppm is None else stranded_share(pool.ppm),
        )
        for pool in report.pools
    ]
    return [
        f"fragmentation {stranded_share(report.ppm)}: the share of "
        f"{quantity('gpu_milli', report.free_milli)} free that "
        "a task drawn from the mix cannot use",
        f"mix: {mix}, each counted once; by the published rule {stranded_share(report.published_ppm or 0)}",
        "",
        *table(("POOL", "FREE", "FRAGMENTED"), pools, (False, True, True)),
        "",
        *table(_KIND_TITLES, [_kind_row(kind) for kind in report.shapes], (False, *[True] * 7)),
        *_statements(report),
    ]


def stranded_share(ppm: int) -> str:
    """Parts per million as percent: "33.3%"."""
    return f"{ppm / 10_000:.1f}%"


def _kind_row(kind: ShapeFragmentation) -> tuple[str, ...]:
    return (
        _task(kind),
        f"{kind.running:,}",
        f"{kind.waiting:,}",
        quantity("gpu_milli", kind.free_milli),
        quantity("gpu_milli", kind.usable_milli),
        stranded_share(kind.unusable_ppm),
        f"{kind.fits:,}",
        f"{kind.fits_in_one_piece:,}",
    )


def _task(kind: ShapeFragmentation) -> str:
    names = ("gpu_milli", "cpu_milli", "memory_mib", "disk_mib")
    asked = " ".join(quantity(name, getattr(kind, name)) for name in names if getattr(kind, name))
    return f"{asked} in {printable(shortlist(kind.pools, SHOWN_NAMES))}" if kind.pools else f"{asked} nowhere"


def _statements(report: FragmentationReport) -> list[str]:
    """A sentence for each waiting workload that cannot use all that is free."""
    blocked = [kind for kind in report.shapes if kind.waiting and kind.fits < kind.fits_in_one_piece]
    lines = [
        f"free {quantity('gpu_milli', kind.free_milli)}, usable for tasks of {quantity('gpu_milli', kind.gpu_milli)}: "
        f"{quantity('gpu_milli', kind.fits * kind.gpu_milli)} ({kind.fits:,} fit; "
        f"{kind.fits_in_one_piece:,} would if unfragmented)"
        for kind in blocked
    ]
    return ["", *lines, "moves that would help: muster cell consolidate"] if lines else []


# -- consolidation ----------------------------------------------------------------------------------------------------


def consolidate(arguments: argparse.Namespace) -> None:
    """Plan moves, show them and their effect, ask, and do exactly what was shown. Without a plan it says why."""
    from console.actions.request_builder import following
    from console.commands.acting import carry_out, outcome_lines, proposal_lines
    from runbooks.actions.workloads import consolidation_request, moves_act
    from runbooks.plans.typed_plan import Request, StepRequest

    request = consolidation_request(vars(arguments))
    with closing(connect(arguments)) as client:
        answer = client.consolidation(request)
        only_shown = arguments.dry_run or (arguments.json and not arguments.yes)
        if not is_wanted(answer):
            write_json({"consolidation": answer}) if arguments.json else write_lines(consolidation_lines(answer))
            if only_shown:
                return
        step = StepRequest(act=moves_act(answer))
        wanted = following(Request(steps=(step,), reason=arguments.reason), arguments.suggestion)
        proposal = client.preview(wanted) if only_shown else client.propose(wanted)
        if not arguments.json:
            write_lines([*consolidation_lines(answer), "", *proposal_lines(proposal)])
        elif only_shown:
            write_json({"consolidation": answer, "proposal": proposal})
        if only_shown:
            return
        outcome = carry_out(arguments, client, proposal)
    if arguments.json:
        write_json({"consolidation": answer, "outcome": outcome})
        return
    tell_lines(outcome_lines(outcome))


def is_wanted(answer: Consolidation) -> bool:
    """True where a plan is worth its cost."""
    return answer.found is not None and answer.found.worth_it


def consolidation_lines(answer: Consolidation) -> list[str]:
    """The plan, what it costs and brings, or why there is none."""
    lines = [] if answer.found is None else plan_lines(answer.found)
    if not is_wanted(answer):
        lines.append(f"no plan: {printable(answer.why)}")
    return [*lines, *(f"  {printable(text)}" for text in answer.tried)]


def plan_lines(plan: ConsolidationPlan) -> list[str]:
    rows = [
        (
            printable(move.id),
            printable(move.queue),
            quantity("gpu_milli", move.gpu_milli) if move.gpu_milli else quantity("cpu_milli", move.cpu_milli),
            duration(move.lost_ms),
            _places(move.was),
            _places(move.to),
        )
        for move in plan.moves[:SHOWN_MOVES]
    ]
    if len(plan.moves) > SHOWN_MOVES:
        rows.append((f"and {len(plan.moves) - SHOWN_MOVES:,} more", "", "", "", "", ""))
    unit = plan.unit.upper()
    brings = [
        f"{printable(work.id)} ({work.tasks:,} {'task' if work.tasks == 1 else 'tasks'}, {_size(work)}) starts now, "
        + (
            "otherwise at an unknown time"
            if work.waits_ms is None
            else f"instead of in {duration(work.waits_ms)} or later"
        )
        for work in plan.unblocks
    ]
    if plan.frees:
        brings.append(f"empty: {printable(shortlist(plan.frees, SHOWN_NAMES))}")
    return [
        *table(_MOVE_TITLES, rows, (False, False, True, True, False, False)),
        f"costs   {_hours(plan.lost_s + plan.restart_s)} {unit}-h: {_hours(plan.lost_s)} of work repeated, "
        f"{_hours(plan.restart_s)} to stop and restart",
        f"brings  {_hours(plan.gained_s)} {unit}-h: {'; '.join(brings)}",
        f"ratio   {plan.ratio_permille / 1000:.2f} benefit to cost, in shares of the cell",
        f"GPU fragmentation {_known(plan.fragmentation_before_ppm)} -> {_known(plan.fragmentation_after_ppm)}",
    ]


def _size(work: object) -> str:
    gpu, cpu = getattr(work, "gpu_milli", 0), getattr(work, "cpu_milli", 0)
    return quantity("gpu_milli", gpu) if gpu else quantity("cpu_milli", cpu)


def _places(places: tuple[NodeTasks, ...]) -> str:
    return printable(shortlist([place.node for place in places], SHOWN_NAMES))


def _hours(seconds: int) -> str:
    return f"{seconds / 3600:,.2f}"


def _known(ppm: int | None) -> str:
    return "unknown" if ppm is None else stranded_share(ppm)
