"""Slurm's names and short forms: ids for the cell, names for requests, and lists in a few characters.

`ident` makes an id of a Slurm name. `check_name` checks a name that goes into a request, because Slurm reads some names
as many: `POST node/ALL` changes every node of the cluster, and `NodeName=cpu[001-999]` as many as there are.

The other functions read host lists (`cpu[001-064,070]`), array tasks (`0-9:2%3`), TRES (`cpu=4,mem=400M`) and GRES
(`gpu:h100:2(IDX:0-1)`). All of these come from outside, so each reader bounds what it makes of a few characters, and
raises ValueError and nothing else for what it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from engine.model.errors import SpecError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,255}")
_ODD = re.compile(r"[^A-Za-z0-9._/-]")


def ident(text: str, other: str = "x") -> str:
    """The text as an id that people can type; `other` where nothing of it is left."""
    fitting = _ODD.sub("_", text)[:120].lstrip("._/-")
    return fitting or other


def check_name(kind: str, name: str) -> str:
    """The name of one thing, or SpecError."""
    if not _NAME.fullmatch(name) or name.upper() == "ALL":
        raise SpecError(
            kind, f"{name[:80]!r} is not the name of one {kind}", "Name one, by letters, digits and _ . + -"
        )
    return name


MAX_HOSTS = 1_000_000
"""A list that stands for more names than this is an error: `n[0-999999999]` is thirteen characters."""

_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?$")
_SUFFIX = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_NUMBERED = re.compile(r"(.*?)(\d+)$", re.DOTALL)
_NOTHING = frozenset(["", "(null)", "N/A", "None", "none"])


def split_outside(text: str, opening: str = "[", closing: str = "]") -> Iterator[str]:
    """The parts of a list with commas, where a comma within brackets separates nothing."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        if letter == opening:
            depth += 1
        elif letter == closing:
            depth -= 1
        elif letter == "," and depth == 0:
            if at > start:
                yield text[start:at]
            start = at + 1
    if depth:
        raise ValueError(f"brackets do not match in {text[:80]!r}")
    if start < len(text):
        yield text[start:]


@lru_cache(maxsize=4096)
def hosts(text: str) -> tuple[str, ...]:
    """The names a host list stands for, in its order. Several brackets in one name multiply, the last fastest."""
    if text in _NOTHING:
        return ()
    names: list[str] = []
    for part in split_outside(text):
        names.extend(_expanded(part.strip(), MAX_HOSTS - len(names)))
    return tuple(names)


def _expanded(pattern: str, room: int) -> list[str]:
    pieces = re.split(r"\[([^\[\]]*)\]", pattern)
    if any("[" in piece or "]" in piece for piece in pieces):
        raise ValueError(f"brackets do not match in {pattern[:80]!r}")
    names = [pieces[0]]
    for ranges, after in zip(pieces[1::2], pieces[2::2], strict=True):
        numbers = _numbers(ranges, room)
        if len(names) * len(numbers) > room:
            raise ValueError(f"stands for more than {MAX_HOSTS} hosts: {pattern[:80]!r}")
        names = [name + number + after for name in names for number in numbers]
    return names


def _numbers(ranges: str, room: int) -> list[str]:
    """`001-064,070` as text, with the zeros in front that it is written with."""
    numbers: list[str] = []
    for one in ranges.split(","):
        found = _RANGE.match(one.strip())
        if not found:
            raise ValueError(f"not a range of numbers: {one[:80]!r}")
        first, last = found[1], found[2] or found[1]
        low, high = int(first), int(last)
        if high < low or high - low >= room - len(numbers):
            raise ValueError(f"not a range, or more than {MAX_HOSTS} hosts: {one[:80]!r}")
        numbers.extend(str(number).zfill(len(first)) for number in range(low, high + 1))
    return numbers


def compressed(names: Iterable[str]) -> str:
    """A host list that `hosts` reads back as these names, in order of prefix and number."""
    plain: list[str] = []
    runs: dict[tuple[str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        found = _NUMBERED.match(name)
        if found and len(found[2]) <= 18:
            runs.setdefault((found[1], len(found[2])), []).append(int(found[2]))
        else:
            plain.append(name)
    parts = [_bracketed(prefix, width, sorted(numbers)) for (prefix, width), numbers in sorted(runs.items())]
    return ",".join(parts + plain)


def _bracketed(prefix: str, width: int, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}d}"
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in spans]
    return f"{prefix}[{','.join(texts)}]"


def array_tasks(text: str) -> tuple[list[range], int | None]:
    """The waiting tasks of an array as ranges, and how many may run at once (None = no limit).

    Slurm cuts long lists and ends them with `...`; what is left is then a part, and a ValueError says so.
    """
    body, _, most = text.partition("%")
    if "..." in text:
        raise ValueError("the list of array tasks is cut short")
    ranges: list[range] = []
    for one in body.strip("[]").split(","):
        span, _, step = one.partition(":")
        found = _RANGE.match(span.strip())
        if not found or (step and not step.isdecimal()) or int(step or 1) < 1:
            raise ValueError(f"not array tasks: {text[:80]!r}")
        ranges.append(range(int(found[1]), int(found[2] or found[1]) + 1, int(step or 1)))
    if most and not most.isdecimal():
        raise ValueError(f"not array tasks: {text[:80]!r}")
    return ranges, int(most) if most else None


@lru_cache(maxsize=4096)
def tres(text: str) -> dict[str, int]:
    """`cpu=4,mem=400M,gres/gpu:h100=2` as counts, `mem` in MiB. The answer is shared: do not change it."""
    counts: dict[str, int] = {}
    if text in _NOTHING:
        return counts
    for one in text.split(","):
        name, equals, count = one.strip().partition("=")
        if not equals:
            raise ValueError(f"not a TRES: {one[:80]!r}")
        size = counted(count, bare="M" if name == "mem" else "")
        counts[name] = size >> 20 if name == "mem" else size
    return counts


def counted(text: str, bare: str = "") -> int:
    """`4`, `62.5G`, `8K` as a whole number; `bare` is the unit of one that has none."""
    found = re.match(r"(\d{1,18}(?:\.\d{1,9})?)([KMGTP]?)i?B?[cn]?$", text.strip())
    if not found:
        raise ValueError(f"not a count: {text[:80]!r}")
    unit = _SUFFIX[found[2] or bare]
    return int(found[1]) * unit if "." not in found[1] else int(float(found[1]) * unit)


@lru_cache(maxsize=4096)
def gres(text: str) -> dict[str, int]:
    """`gpu:h100:8(S:0-1)` as counts by `gpu:h100`; zero counts are left out. Shared: do not change it."""
    return {name: count for name, (count, _) in _gres(text).items() if count}


@lru_cache(maxsize=4096)
def gres_indexes(text: str) -> dict[str, tuple[int, ...]]:
    """`gpu:h100:2(IDX:0,2-3)` as indexes by `gpu:h100`; those without indexes are left out."""
    return {name: indexes for name, (_, indexes) in _gres(text).items() if indexes}


def _gres(text: str) -> dict[str, tuple[int, tuple[int, ...]]]:
    found: dict[str, tuple[int, tuple[int, ...]]] = {}
    if text in _NOTHING:
        return found
    for one in split_outside(text, "(", ")"):
        body, _, inside = one.strip().partition("(")
        name, count = _gres_name(body)
        before, indexes = found.get(name, (0, ()))
        found[name] = (before + count, indexes + _indexes(inside.rstrip(")")))
    return found


def _gres_name(body: str) -> tuple[str, int]:
    """`gres/gpu:h100=2`, `gres:gpu:2`, `gpu:h100:2`, `gpu`: the name with its model, and the count (1 where none)."""
    for prefix in ("gres/", "gres:"):
        body = body.removeprefix(prefix)
    parts = [part for part in body.replace("=", ":").split(":") if part != "no_consume"]
    if not parts or not parts[0]:
        raise ValueError(f"not a GRES: {body[:80]!r}")
    if len(parts) > 1 and parts[-1][:1].isdigit():
        return ":".join(parts[:-1]), counted(parts[-1])
    return ":".join(parts), 1


def _indexes(inside: str) -> tuple[int, ...]:
    """`IDX:0,2-3` as numbers; anything else (`S:0-1`, `IDX:N/A`) has none."""
    if not inside.startswith("IDX:") or inside.endswith("N/A"):
        return ()
    return tuple(int(number) for number in _numbers(inside[4:], 65_536))
