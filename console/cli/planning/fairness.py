"""The command `muster fairness`: what each queue holds, deserves, borrows and lends, and who went first and why."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from console.cli.show import write_json, write_lines
from console.processes.attach import connect
from console.text.plain_tables import quantity, table
from console.text.terminal_text import NONE, duration, printable
from console.views.work.queue import decision_line, share
from engine.model.errors import NotFoundError

if TYPE_CHECKING:
    from engine.external.slurm.accounting import Share
    from engine.model.queries import BurstReport, FairnessReport, VertexReport

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
        "fair share in Slurm, which decides: accounts, then users, first who goes first by it (sshare)",
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
    past = "counts in the order" if report.past_counts else "is shown only"
    lines = [
        *table(_TITLES, rows, _RIGHT),
        "",
        "share: of the cell, in the resource of which it takes most above its quota, divided by its weight",
        f"past: the same of its average use, half as much for every {duration(report.half_life_ms)} ago; it {past}",
    ]
    if report.decisions:
        lines += ["", "last starts, and why not the next in line"]
        lines += [decision_line(made) for made in report.decisions[:SHOWN_DECISIONS]]
    if len(report.decisions) > SHOWN_DECISIONS:
        lines.append(f"  and {len(report.decisions) - SHOWN_DECISIONS:,} more: muster fairness --json")
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
