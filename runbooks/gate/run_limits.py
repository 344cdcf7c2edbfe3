"""Limits on when and how much plans run: freeze windows and hourly limits.

A freeze is weekly in a time zone, or lasts from one moment until another. Hourly limits count all that ran within the
hour, runs, or is approved.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import msgspec

from engine.model.errors import SpecError
from engine.model.quantities import utc
from engine.model.spec_parts import check_id
from runbooks.plans.identity import Scope
from runbooks.plans.typed_plan import TIERS, Blast, Tier

MAX_REASON = 200
MAX_WINDOWS = 50
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIME = r"([01][0-9]|2[0-3]):([0-5][0-9])"
_WEEKLY = re.compile(rf"({'|'.join(DAYS)}) {_TIME} - ({'|'.join(DAYS)}) (?:{_TIME}|(24):(00))")
_DAILY = re.compile(rf"daily {_TIME} - (?:{_TIME}|(24):(00))")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)", re.ASCII)


class FreezeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plans of this tier and above that touch this do not begin, and do not go on to their next step, while it lasts.

    Either `weekly` or `from_ms` and `until_ms` are given.
    """

    name: str
    tier: Tier = "T1"
    """The lowest tier it stops."""
    scope: Scope = Scope()
    weekly: tuple[str, ...] = ()
    """Such as "fri 16:00 - mon 08:00" or "daily 22:00 - 06:00", by the clocks of `zone`."""
    zone: str = "UTC"
    """IANA name, such as Europe/Berlin."""
    from_ms: int | None = None
    until_ms: int | None = None
    """Wall clock, Unix ms; the window ends just before `until_ms`."""
    reason: str = ""


class Freeze(msgspec.Struct, frozen=True, kw_only=True):
    """A freeze as it stands."""

    spec: FreezeSpec
    by: str
    """Subject that set it by hand; empty: it is the policy's."""
    holds: bool
    """It stops plans now."""


def holds(spec: FreezeSpec, at_ms: int, tier: Tier, touched: Scope) -> bool:
    """True when it stops a plan at that moment (Unix ms). A window whose zone is no longer known holds."""
    if TIERS.index(tier) < TIERS.index(spec.tier) or not spec.scope.meets(touched):
        return False
    if spec.from_ms is not None and spec.until_ms is not None:
        return spec.from_ms <= at_ms < spec.until_ms
    try:
        zone = zone_of(spec.zone, "zone")
        windows = [_window(text, "weekly") for text in spec.weekly]
    except SpecError:
        return True
    return any(_holds_weekly(window, zone, at_ms) for window in windows)


def freeze_words(spec: FreezeSpec) -> str:
    """As in "T2 and above on pools h100, fri 16:00 - mon 08:00 (Europe/Berlin)"."""
    tiers = "everything" if spec.tier == "T0" else spec.tier if spec.tier == "T3" else f"{spec.tier} and above"
    where = "" if spec.scope == Scope() else f" on {spec.scope.words()}"
    if spec.from_ms is not None and spec.until_ms is not None:
        return f"{tiers}{where}, {utc(spec.from_ms)} - {utc(spec.until_ms)}"
    return f"{tiers}{where}, {' and '.join(spec.weekly)} ({spec.zone})"


def check_freeze(spec: FreezeSpec, where: str = "freeze") -> None:
    """Raises SpecError for a window that nobody could read, and for names that are none."""
    check_id(spec.name, f"{where}.name")
    for name in (*spec.scope.pools, *spec.scope.queues, *spec.scope.tenants):
        check_id(name, f"{where}.scope")
    if len(spec.reason) > MAX_REASON or not spec.reason.isprintable():
        raise SpecError(
            f"{where}.reason", f"is not one line of at most {MAX_REASON} characters", "Use plain one-line text"
        )
    if len(spec.weekly) > MAX_WINDOWS:
        raise SpecError(f"{where}.weekly", f"has {len(spec.weekly)} windows", f"At most {MAX_WINDOWS}")
    once = spec.from_ms is not None or spec.until_ms is not None
    if once == bool(spec.weekly):
        raise SpecError(where, "must be either weekly or between two times", "Give one of the two")
    if once:
        if spec.from_ms is None or spec.until_ms is None or not 0 <= spec.from_ms < spec.until_ms < 2**53:
            raise SpecError(where, "needs a start, and an end after it", "Give both")
        return
    zone_of(spec.zone, f"{where}.zone")
    for i, text in enumerate(spec.weekly):
        _window(text, f"{where}.weekly[{i}]")


def moment_ms(text: str, where: str) -> int:
    """Unix ms of a moment such as 2026-12-20T18:00+01:00 or 2026-12-20T17:00Z. Raises SpecError."""
    if _MOMENT.fullmatch(text):
        with contextlib.suppress(ValueError):
            return int(datetime.fromisoformat(text).timestamp()) * 1000
    raise SpecError(where, f"{text[:40]!a} is not a time", 'Write "2026-12-20T18:00+01:00" or "2026-12-20T17:00Z"')


def zone_of(name: str, where: str) -> ZoneInfo:
    """The time zone. Raises SpecError for one that is not known here."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # KeyError: ZoneInfoNotFoundError
        raise SpecError(where, f"{name[:60]!a} is not a known time zone", "Give an IANA name: Europe/Berlin") from None


class _Window(msgspec.Struct, frozen=True):
    days: tuple[int, ...]
    """On which it begins; Monday is 0."""
    start: time
    length_days: int
    """Midnights between beginning and end."""
    end: time


def _window(text: str, where: str) -> _Window:
    daily = _DAILY.fullmatch(text)
    weekly = _WEEKLY.fullmatch(text)
    if daily:
        h, m, *end = (int(part) for part in daily.groups() if part is not None)
        days, start, length = tuple(range(7)), time(h, m), 0
    elif weekly:
        first, h_, m_, last, *end_ = (part for part in weekly.groups() if part is not None)
        start, end = time(int(h_), int(m_)), [int(part) for part in end_]
        days = (DAYS.index(first),)
        length = (DAYS.index(last) - DAYS.index(first)) % 7
    else:
        raise SpecError(
            where, f"{text[:60]!a} is not a window", 'Write "fri 16:00 - mon 08:00" or "daily 22:00 - 06:00"'
        )
    until = time(end[0] % 24, end[1])
    length += end[0] // 24
    if length == 0 and until <= start:
        length = 1 if daily else 7
    if until == start and length in (0, 1 if daily else 7):
        raise SpecError(where, f"{text!a} never ends", "Give another end, or a freeze between two times")
    return _Window(days, start, length, until)


def _holds_weekly(window: _Window, zone: ZoneInfo, at_ms: int) -> bool:
    """The windows that began in the last eight days and the next are tried: none is longer than a week."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    today = at.astimezone(zone).date()
    for back in range(-1, 9):
        day = today - timedelta(days=back)
        if day.weekday() in window.days:
            begun = min(_moments(day, window.start, zone))
            ended = max(_moments(day + timedelta(days=window.length_days), window.end, zone))
            if begun <= at < ended:
                return True
    return False


def _moments(day: date, clock: time, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """The possible moments of a clock time on that day: two where clocks are set back, two readings where they are set
    forward over it. A window begins at the earlier and ends at the later."""
    local = datetime.combine(day, clock, zone)
    return local.astimezone(UTC), local.replace(fold=1).astimezone(UTC)


class ByTier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A count for each tier."""

    T0: int = 0
    T1: int = 0
    T2: int = 0
    T3: int = 0

    def of(self, tier: Tier) -> int:
        return (self.T0, self.T1, self.T2, self.T3)[TIERS.index(tier)]


class PolicyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Most within any hour. Shares are of the pool, or the cell, as it is."""

    executions_per_hour: ByTier = ByTier(T0=600, T1=240, T2=20, T3=3)
    nodes_permille: int = 50
    nodes_least: int = 1
    """Nodes of a pool taken out of service: its share of the pool, rounded down, within any hour; or, where this is
    more, so many at a time: then a node that is in service again no longer counts, and no small pool is kept from the
    rest of its maintenance."""
    gpus_permille: int = 100
    gpus_least: int = 16
    """GPUs whose work is stopped or that are taken out of use: their share of the cell's, or this if that is more."""
    workloads_per_hour: int = 500
    """Stopped or moved."""
    cost_microusd_hour: int | None = None
    """By how much the cell may come to cost more per hour; None: no limit."""
    proposals_per_author_hour: int = 120


PAIR_LIMITS = PolicyLimits(
    executions_per_hour=ByTier(T0=1_000, T1=500, T2=60, T3=6),
    nodes_permille=100,
    nodes_least=2,
    gpus_permille=150,
    gpus_least=32,
    workloads_per_hour=1_000,
    proposals_per_author_hour=240,
)
SOLO_LIMITS = PolicyLimits(
    executions_per_hour=ByTier(T0=2_000, T1=1_000, T2=200, T3=20),
    nodes_permille=250,
    nodes_least=4,
    gpus_permille=250,
    gpus_least=64,
    workloads_per_hour=5_000,
    proposals_per_author_hour=1_000,
)


class LimitUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The used part of an hour's limits: by plans that are approved or run, and by those that ended within the hour."""

    executions: ByTier = ByTier()
    gpu_milli: int = 0
    nodes: tuple[tuple[str, int], ...] = ()
    """(pool, nodes taken out of service); of the pools that `at_a_time` names, those that are out of it now."""
    workloads: int = 0
    cost_microusd_hour: int = 0


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the cell, of which limits are shares."""

    nodes: Mapping[str, int]
    """By pool."""
    gpu_milli: int


class LimitViolation(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that a plan would exceed."""

    rule: str
    """Its name, such as "limits.nodes"."""
    words: str


def at_a_time(limits: PolicyLimits, size: Size) -> frozenset[str]:
    """Pools so small that their nodes are counted while they are out of service, and not by the hour."""
    return frozenset(pool for pool, nodes in size.nodes.items() if _share(limits, nodes) < limits.nodes_least)


def _share(limits: PolicyLimits, nodes: int) -> int:
    return nodes * limits.nodes_permille // 1000


def over(
    limits: PolicyLimits, used: LimitUsage, tier: Tier, planned: Blast, size: Size, *, factor: int = 1
) -> tuple[LimitViolation, ...]:
    """The limits that `planned` would exceed on top of what is used; `factor` widens them, for break-glass."""
    found: list[LimitViolation] = []

    def check(rule: str, what: str, most: int, have: int, more: int, unit: int = 1, when: str = "this hour") -> None:
        if more > 0 and have + more > most * factor:
            words = f"{what}: {_shown(have, unit)} {when} and {_shown(more, unit)} more, at most "
            found.append(LimitViolation(rule=f"limits.{rule}", words=words + _shown(most * factor, unit)))

    executions = limits.executions_per_hour.of(tier)
    check("executions_per_hour", f"plans of {tier}", executions, used.executions.of(tier), 1)
    gone, small = dict(used.nodes), at_a_time(limits, size)
    for pool, nodes in planned.nodes:
        most = max(limits.nodes_least, _share(limits, size.nodes.get(pool, 0)))
        when = "now" if pool in small else "this hour"
        check("nodes", f"nodes of {pool} taken out of service", most, gone.get(pool, 0), nodes, when=when)
    gpus = max(limits.gpus_least * 1000, size.gpu_milli * limits.gpus_permille // 1000)
    check("gpus", "GPUs disturbed", gpus, used.gpu_milli, planned.gpu_milli, 1000)
    check("workloads", "workloads stopped or moved", limits.workloads_per_hour, used.workloads, planned.workloads)
    if limits.cost_microusd_hour is not None:
        more = planned.cost_microusd_hour
        check("cost", "USD per hour more", limits.cost_microusd_hour, used.cost_microusd_hour, more, 1_000_000)
    return tuple(found)


def tighter(a: PolicyLimits, b: PolicyLimits) -> PolicyLimits:
    """The limits that keep to both."""
    costs = [cost for cost in (a.cost_microusd_hour, b.cost_microusd_hour) if cost is not None]
    executions = ByTier(**{tier: min(a.executions_per_hour.of(tier), b.executions_per_hour.of(tier)) for tier in TIERS})
    names = (
        "nodes_permille", "nodes_least", "gpus_permille", "gpus_least", "workloads_per_hour",
        "proposals_per_author_hour",
    )  # fmt: skip
    return PolicyLimits(
        executions_per_hour=executions,
        cost_microusd_hour=min(costs, default=None),
        **{name: min(getattr(a, name), getattr(b, name)) for name in names},
    )


def _shown(amount: int, unit: int) -> str:
    return f"{amount / unit:,.12g}"
