"""The commands `muster fragmentation` and `muster consolidate`: what free GPU is of no use, and which moves help."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from console.cli.show import tell_lines, write_json, write_lines
from console.processes.attach import connect
from console.text.plain_tables import quantity, table
from console.text.terminal_text import NONE, duration, printable

if TYPE_CHECKING:
    from engine.model.queries import (
        Consolidation,
        ConsolidationPlan,
        FragmentationReport,
        NodeTasks,
        ShapeFragmentation,
    )

SHOWN_MOVES = 40
SHOWN_NAMES = 4
_KIND_TITLES = ("TASK", "RUNNING", "WAITING", "FREE", "USABLE", "LOST", "FIT", "IN ONE PIECE")
_MOVE_TITLES = ("MOVE", "QUEUE", "SIZE", "WORK LOST", "FROM", "TO")


def fragmentation(arguments: argparse.Namespace) -> None:
    """How much of the free GPU the live mix of work could not use, by pool and by kind of task."""
    with closing(connect(arguments)) as client:
        report = client.fragmentation()
    write_json(report) if arguments.json else write_lines(fragmentation_lines(report))


def fragmentation_lines(report: FragmentationReport) -> list[str]:
    if report.ppm is None:
        return [f"nothing that asks for GPU waits or runs; {quantity('gpu_milli', report.free_milli)} is free"]
    mix = f"{report.covered_tasks:,} of {report.mix_tasks:,} tasks that wait or run ask for GPU"
    pools = [
        (printable(pool.name), quantity("gpu_milli", pool.free_milli), NONE if pool.ppm is None else share(pool.ppm))
        for pool in report.pools
    ]
    return [
        f"fragmentation {share(report.ppm)}: so much of the {quantity('gpu_milli', report.free_milli)} that is free "
        "could not be used by a task drawn from the mix",
        f"the mix: {mix}, each counts once; by the published rule {share(report.published_ppm or 0)}",
        "",
        *table(("POOL", "FREE", "FRAGMENTED"), pools, (False, True, True)),
        "",
        *table(_KIND_TITLES, [_kind_row(kind) for kind in report.shapes], (False, *[True] * 7)),
        *_statements(report),
    ]


def share(ppm: int) -> str:
    """Parts per million as percent: "33.3%"."""
    return f"{ppm / 10_000:.1f}%"


def _kind_row(kind: ShapeFragmentation) -> tuple[str, ...]:
    return (
        _task(kind),
        f"{kind.running:,}",
        f"{kind.waiting:,}",
        quantity("gpu_milli", kind.free_milli),
        quantity("gpu_milli", kind.usable_milli),
        share(kind.unusable_ppm),
        f"{kind.fits:,}",
        f"{kind.fits_in_one_piece:,}",
    )


def _task(kind: ShapeFragmentation) -> str:
    names = ("gpu_milli", "cpu_milli", "memory_mib", "disk_mib")
    asked = " ".join(quantity(name, getattr(kind, name)) for name in names if getattr(kind, name))
    pools = ", ".join(printable(name) for name in kind.pools[:SHOWN_NAMES])
    more = f" and {len(kind.pools) - SHOWN_NAMES} more" if len(kind.pools) > SHOWN_NAMES else ""
    return f"{asked} in {pools}{more}" if pools else f"{asked} nowhere"


def _statements(report: FragmentationReport) -> list[str]:
    """Of what waits and cannot use all that is free, in a sentence each."""
    blocked = [kind for kind in report.shapes if kind.waiting and kind.fits < kind.fits_in_one_piece]
    lines = [
        f"free {quantity('gpu_milli', kind.free_milli)}, usable for tasks of {quantity('gpu_milli', kind.gpu_milli)}: "
        f"{quantity('gpu_milli', kind.fits * kind.gpu_milli)} ({kind.fits:,} fit, in one piece "
        f"{kind.fits_in_one_piece:,} would)"
        for kind in blocked
    ]
    return ["", *lines, "moves that would help: muster consolidate"] if lines else []


# -- consolidation ----------------------------------------------------------------------------------------------------


def consolidate(arguments: argparse.Namespace) -> None:
    """Plan moves, show them and their effect, ask, and do exactly what was shown. Without a plan it says why."""
    from console.actions.request_builder import following
    from console.cli.acting import carry_out, outcome_lines, proposal_lines
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
    """Whether there is a plan that is worth what it costs."""
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
        + ("not known when otherwise" if work.waits_ms is None else f"instead of in {duration(work.waits_ms)} or later")
        for work in plan.unblocks
    ]
    if plan.frees:
        more = f" and {len(plan.frees) - SHOWN_NAMES:,} more" if len(plan.frees) > SHOWN_NAMES else ""
        brings.append(f"empty: {', '.join(printable(name) for name in plan.frees[:SHOWN_NAMES])}{more}")
    return [
        *table(_MOVE_TITLES, rows, (False, False, True, True, False, False)),
        f"costs   {_hours(plan.lost_s + plan.restart_s)} {unit}-h: {_hours(plan.lost_s)} of work done again, "
        f"{_hours(plan.restart_s)} to stop and start anew",
        f"brings  {_hours(plan.gained_s)} {unit}-h: {'; '.join(brings)}",
        f"ratio   {plan.ratio_permille / 1000:.2f} of benefit to cost, by shares of the cell",
        f"GPU fragmentation {_known(plan.fragmentation_before_ppm)} -> {_known(plan.fragmentation_after_ppm)}",
    ]


def _size(work: object) -> str:
    gpu, cpu = getattr(work, "gpu_milli", 0), getattr(work, "cpu_milli", 0)
    return quantity("gpu_milli", gpu) if gpu else quantity("cpu_milli", cpu)


def _places(places: tuple[NodeTasks, ...]) -> str:
    more = f" and {len(places) - SHOWN_NAMES:,} more" if len(places) > SHOWN_NAMES else ""
    return ", ".join(printable(place.node) for place in places[:SHOWN_NAMES]) + more


def _hours(seconds: int) -> str:
    return f"{seconds / 3600:,.2f}"


def _known(ppm: int | None) -> str:
    return "unknown" if ppm is None else share(ppm)
