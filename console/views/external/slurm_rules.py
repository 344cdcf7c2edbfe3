"""Limits of a Slurm cluster's QOS and accounts, and their fair share, in words. No Textual in here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from console.text.terminal_text import NONE, cut, duration, mebibytes, printable
from console.views.sections import Line
from engine.external.slurm.accounting import Share
from engine.external.slurm.limits import JOBS, SUBMITTED, TIME, Limit

_NAMES = {"cpu": "CPUs", "node": "nodes", "gres/gpu": "GPUs", "billing": "billing units"}
_SCOPES = {
    "all": "of all its running jobs together",
    "user": "of each user's running jobs",
    "account": "of each account's running jobs",
    "job": "in one job",
}


_COUNTED = {JOBS: "running jobs", SUBMITTED: "jobs submitted at once"}
_WHOSE = {"all": "together", "user": "of one user", "account": "of one account"}


def amount(limit: Limit, value: int) -> str:
    """So much of what is limited, with its unit."""
    if limit.over == "mem":
        return f"{mebibytes(value)} of memory"
    if limit.over == TIME:
        return duration(value * 1000)
    kind = limit.over.removeprefix("gres/").replace("gpu:", "GPUs ")
    return f"{value:,} {_NAMES.get(limit.over, kind)}"


def limit_sentence(limit: Limit) -> str:
    """The limit, who uses it, and what of it the job that is asked about would take too much."""
    text = f"{limit.of}: at most {amount(limit, limit.most)} {_SCOPES.get(limit.scope, limit.scope)}"
    if limit.over in _COUNTED:
        text = f"{limit.of}: at most {limit.most:,} {_COUNTED[limit.over]} {_WHOSE.get(limit.scope, limit.scope)}"
    if limit.scope != "job":
        text += f"; {_bare(limit, limit.used)} in use"
        by = [
            f"{use.user} {_bare(limit, use.amount)}"
            + ("" if limit.over in _COUNTED else f" in {use.jobs:,} job{'s' * (use.jobs != 1)}")
            for use in limit.by
        ]
        text += f" ({', '.join(by)})" if by else ""
    if limit.wanted:
        text += f"; this job asks for {_bare(limit, limit.wanted)}"
    if limit.is_over and limit.wanted:
        text += f", {_bare(limit, limit.used + limit.wanted - limit.most)} too many" if limit.over != TIME else ""
    return printable(text)


def _bare(limit: Limit, value: int) -> str:
    return amount(limit, value) if limit.over in ("mem", TIME) else f"{value:,}"


def limit_lines(limits: Sequence[Limit], width: int) -> Iterator[Line]:
    """One line for each, those that are used up first."""
    for limit in sorted(limits, key=lambda each: (-(each.used / each.most) if each.most else 0, each.of)):
        full = limit.scope != "job" and limit.used >= limit.most
        yield Line(((cut(limit_sentence(limit), width), "warn" if full else ""),))


def share_lines(shares: Sequence[Share], width: int) -> Iterator[Line]:
    """Accounts, with their users under them: share, part of the usage, and the factor that priority goes by."""
    for each in shares:
        name = f"  {each.user}" if each.user else each.account
        share = NONE if each.shares_normalized is None else f"{each.shares_normalized:.0%}"
        used = NONE if each.usage_effective is None else f"{each.usage_effective:.0%}"
        factor = NONE if each.factor is None else f"{each.factor:.3f}"
        under = each.level is not None and 0 < each.level < 1
        told = f"share {share:>4}  used {used:>4}  factor {factor:>5}"
        yield Line(
            ((f"{cut(printable(name), 16):<17}", ""), (cut(told, max(8, width - 17)), "warn" if under else "dim"))
        )
