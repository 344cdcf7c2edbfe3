"""Quantities as people write them in files, flags and edits, and distributions of times given by median and 95th
percentile.

Quantities are read exactly: decimal arithmetic, whole units or an error. Filters read the same units more leniently,
where near enough is good enough.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

_MEMORY_UNITS = {
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_DURATION_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|min|[smhdw])")


def cpu_milli(value: Any) -> int:
    """Milli-CPU of `4`, `0.5`, `"4"` or `"500m"`. Raises ValueError saying what was expected."""
    if isinstance(value, str) and value.endswith("m"):
        return _whole(_number(value[:-1], "a number of cores such as 4, 0.5 or 500m"), "1m, a thousandth of a core")
    return _whole(_number(value, "a number of cores such as 4, 0.5 or 500m") * 1000, "1m, a thousandth of a core")


def gpu_milli(value: Any) -> int:
    """Milli-GPU of `8` or `0.5`. Raises ValueError saying what was expected."""
    return _whole(_number(value, "a number of GPUs such as 8, or a share of one such as 0.5") * 1000, "0.001 of a GPU")


def memory_mib(value: Any) -> int:
    """MiB of `64GiB`, `512MiB`, `1.5TiB`. Raises ValueError saying what was expected."""
    expected = "a size with its unit such as 64GiB or 512MiB"
    match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
    factor = _MEMORY_UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{shown(value)} is not {expected}")
    return _whole(Decimal(match[1]) * factor / 2**20, "1MiB")


def duration_ms(value: Any) -> int:
    """Milliseconds of `6h`, `90m`, `1h30m`, `45s`. Raises ValueError saying what was expected."""
    expected = "a duration with its unit such as 6h, 90m or 1h30m"
    text = value.replace(" ", "") if isinstance(value, str) else ""
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{shown(value)} is not {expected}")
    return _whole(sum(Decimal(number) * _DURATION_UNITS[unit] for number, unit in parts), "1ms")


def money_microusd(value: Any) -> int:
    """Micro-USD of an amount in USD such as `12.5`. Raises ValueError saying what was expected."""
    return _whole(_number(value, "an amount in USD such as 12.5") * 1_000_000, "$0.000001")


def _number(value: Any, expected: str) -> Decimal:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = Decimal(str(value).strip())
        except InvalidOperation:
            number = Decimal("NaN")
        if number.is_finite():
            return number
    raise ValueError(f"{shown(value)} is not {expected}")


def _whole(number: Decimal | int, least: str) -> int:
    """The number, which counts the least amount that there is."""
    if not -(2**63) < number < 2**63:
        raise ValueError("is too large")
    if number != int(number):
        raise ValueError(f"is too fine: the least step is {least}")
    return int(number)


MAX_SPOKEN = 10**12
"""Raw values beyond it are nobody's wish: they are shown as they are."""
_LAST_MS = 253_402_300_799_000
"""The last second of the year 9999; no later one can be written."""
_OF_UNIT: dict[str, Callable[[int], str]] = {
    "overcommit.cpu_milli": lambda value: f"{value / 1000:g}",
    "overcommit.memory_mib": lambda value: f"{value / 1000:g}",
    "cpu_milli": lambda value: f"{value / 1000:,.10g} CPU",
    "gpu_milli": lambda value: f"{value / 1000:,.10g} GPU",
    "_mib": lambda value: f"{value / 1024:,.10g}GiB" if value % 1024 == 0 else f"{value:,}MiB",
    "_permille": lambda value: f"{value / 10:,.10g}%",
    "_microusd": lambda value: _dollars(value),
    "_microusd_hour": lambda value: f"{_dollars(value)} an hour",
    "_ms": lambda value: spelt(value),
}


def with_unit(field: str, value: int) -> str:
    """A raw value as people write it, by the unit at the end of its field's name: 1500 of `cpu_milli` is "1.5 CPU"."""
    if not value or abs(value) > MAX_SPOKEN:
        return str(value)
    return next((told(value) for unit, told in _OF_UNIT.items() if field.endswith(unit)), str(value))


def whole(milli: int) -> str:
    """Thousandths as people write them: "64", "0.25", "130,000"."""
    return f"{milli / 1000:,.12g}"


def usd(microusd: int) -> str:
    """An amount as people write it, to the cent."""
    cents = round(abs(microusd) / 10_000)
    return f"{'-' if microusd < 0 else ''}${cents // 100:,}.{cents % 100:02d}"


def utc(at_ms: int) -> str:
    """A time as people write it, to the second; after the year 9999 its last second."""
    return f"{datetime.fromtimestamp(min(at_ms, _LAST_MS) // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def lasting(ms: int) -> str:
    """About how long: "45 s", "41 min", "3.2 h"."""
    if ms >= 3_600_000:
        return f"{ms / 3_600_000:,.1f} h"
    return f"{ms // 60_000} min" if ms >= 60_000 else f"{ms // 1000} s"


def counted(count: int, what: str) -> str:
    """As in "1 node" and "1,200 nodes"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def shortlist(names: Sequence[str], most: int = 5) -> str:
    """As in "wl-1, wl-2 and 3 more"."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def _dollars(microusd: int) -> str:
    return ("-$" if microusd < 0 else "$") + f"{abs(microusd) / 1_000_000:,.6f}".rstrip("0").rstrip(".")


def spelt(ms: int) -> str:
    """A duration that `duration_ms` reads back as the same."""
    rest, parts = abs(ms), []
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _DURATION_UNITS[unit])
        parts += [f"{count}{unit}"] if count else []
    return ("-" if ms < 0 else "") + ("".join(parts) or "0s")


def shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else text[:39] + "…"


Z95 = 1.6449
"""The 95th percentile of the standard normal distribution."""
MIN_RUNS = 5
"""Values that quantiles and chances need: of fewer they would be made up."""


def lognormal_ms(draw: random.Random, median_ms: int, late_ms: int) -> int:
    """One draw from the lognormal distribution with that median, above 0, and that 95th percentile; rounded down."""
    return int(draw.lognormvariate(math.log(median_ms), math.log(late_ms / median_ms) / Z95))


def quantiles(values: Sequence[int], beyond: int = 0) -> tuple[int | None, int | None, int | None]:
    """p10, p50 and p90 of the values and of `beyond` more that are larger than all of them but not known. A quantile is
    the least value that so many of the others do not exceed. None where it is one of those, and with fewer than
    MIN_RUNS in all."""
    ordered, count = sorted(values), len(values) + beyond

    def at(permille: int) -> int | None:
        place = -(-count * permille // 1000) - 1
        return ordered[place] if count >= MIN_RUNS and place < len(ordered) else None

    return at(100), at(500), at(900)
