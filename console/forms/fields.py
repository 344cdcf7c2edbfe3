"""Fields and points in time as people write them in files and flags: `cpu: 4`, `estimate: 6h`, `apart: app=db:rack`,
`+6h`.

Each form names a raw field of `engine.model.specs` and the conversion to its value; raw fields are accepted as well.
Times are `now`, `+6h` or `2026-03-01T14:30` (UTC). For a misspelt word the nearest known one is suggested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from console.text.terminal_text import read_value
from engine.model.errors import Misfit, nearest
from engine.model.quantities import cpu_milli, duration_ms, gpu_milli, memory_mib, money_microusd, shown
from engine.model.specs import LEVELS, PROFILES, Autoscaling, HealthSettings, PoolSpec, ScalingSpec, WorkloadSpec
from runbooks.untrusted.strict_formats import type_at, with_words

if TYPE_CHECKING:
    from console.client.protocol import Client


Now = Callable[[], int]
"""Cell time in Unix milliseconds, asked for only where a time is given relative to it."""


def clock_of(client: Client) -> Now:
    """The cell's clock, read once when first needed, so that times given together refer to the same moment."""
    return cache(lambda: client.health().now_ms)


def moment_ms(value: Any, now: Now) -> int:
    """Unix milliseconds of cell time. Raises ValueError that says what was expected."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a time; write it like +6h or 2026-03-01T14:30 (UTC)")
    if value == "now":
        return now()
    if value.startswith("+"):
        return now() + duration_ms(value[1:])
    return read_value("time", value)


Forms = dict[str, tuple[str, Callable[[Any], Any]]]
"""Key as people write it -> raw field, and how its value becomes the raw one. Both keys are the same where only the
value has a shorter form; then raw values pass unchanged."""

_RANGE = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?(?:%(\d+))?")


def _listed(value: Any) -> Any:
    """`H100` means `[H100]`."""
    return value if value is None or isinstance(value, list | dict) else [value]


def _text(value: Any) -> Any:
    """A whole number, true or false as the text it was; other numbers may have lost digits."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        raise ValueError(f"{value} is a number here; put it in quotes to mean text")
    return str(value) if isinstance(value, int) else value


def _labels(value: Any) -> Any:
    """`{gen: 4}` means `{gen: "4"}`; from flags, `gen=4`, one or several."""
    return {key: _text(one) for key, one in _mapping(value).items()} if _is_mapping(value) else value


def _conditions(value: Any) -> Any:
    """`{zone: a}` means `{zone: [a]}`; from flags, `zone=a,b`, and `ssd` for any value."""
    if not _is_mapping(value):
        return value
    found = {}
    for key, one in _mapping(value, "*").items():
        words = one.split(",") if isinstance(one, str) and not isinstance(value, dict) else _listed(one)
        found[key] = [_text(word) for word in words] if isinstance(words, list) else words
    return found


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)
    )


def _mapping(value: Any, alone: str = "") -> dict[str, Any]:
    """A mapping, or the words `key=value` of a flag. `alone`: the value of a key without one; there must be one where
    that is empty."""
    if isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for word in value:
        key, equals, text = word.partition("=")
        if not equals and not alone:
            raise ValueError(f"{shown(word)} is not KEY=VALUE")
        if key in found:
            raise ValueError(f"{shown(key)} is given twice")
        found[key] = text if equals else alone
    return found


def _tolerations(value: Any) -> Any:
    """`dedicated` and `dedicated=db`, one or a list, besides raw tolerations."""
    return [
        dict(zip(("key", "value"), item.split("=", 1), strict=False)) if isinstance(item, str) else item
        for item in (value if isinstance(value, list) else [value])
    ]


def _taints(value: Any) -> Any:
    """`dedicated=db` and `old:PreferNoSchedule`, one or a list, besides raw taints."""
    found: list[Any] = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            name, colon, effect = item.partition(":")
            taint = dict(zip(("key", "value"), name.split("=", 1), strict=False))
            found.append(taint | {"effect": effect} if colon else taint)
        else:
            found.append(item)
    return found


def _spread(value: Any) -> Any:
    """`zone`, or `zone:2` for a difference of two, besides a raw spread."""
    if not isinstance(value, str):
        return value
    level, colon, skew = value.partition(":")
    if colon and not skew.isdecimal():
        raise ValueError(f"{shown(value)} is not a level such as zone, or zone:2 for a difference of two tasks")
    return {"level": level, "max_skew": int(skew)} if colon else {"level": level}


def _capacity(value: Any) -> Any:
    """`any` besides the raw words."""
    return "" if value == "any" else value


def tasks_of(share: Any, count: Any) -> Any:
    """Number of tasks meant by a share such as `30%` of `count`, rounded up; digits alone are a number of tasks. Raises
    ValueError."""
    if not isinstance(share, str):
        return share
    number, percent, rest = share.partition("%")
    if not number.isdecimal() or rest or (percent and (int(number) > 100 or type(count) is not int)):
        raise ValueError(f"{shown(share)} is not a number of tasks, or a share such as 30%")
    return -(-int(number) * count // 100) if percent else int(number)


def _topology(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(
            f"{shown(value)} : required or preferred? Write {{required: {value}}} or {{preferred: {value}}}"
        )
    return value


def _affinities(value: Any) -> Any:
    """`app=db` on one node, `app=db:rack` in one rack, `app=db,tier=hot` with both tags; one or a list, besides raw
    terms."""
    found: list[Any] = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            tags, colon, level = item.partition(":")
            term: dict[str, Any] = {"tags": _mapping(tags.split(","))}
            found.append(term | {"level": level} if colon else term)
        elif isinstance(item, dict) and "tags" in item:
            found.append(item | {"tags": _labels(item["tags"])})
        else:
            found.append(item)
    return found


def profile(value: Any) -> Any:
    """Weights of scores by the name of a profile, besides weights."""
    if not isinstance(value, str):
        return value
    if value not in PROFILES:
        raise ValueError(
            f"there is no profile {shown(value)}{meant(value, PROFILES)}; use {', '.join(PROFILES)}, or weights "
            "by score"
        )
    return PROFILES[value]


def _dependencies(value: Any) -> list[Any]:
    """`prep`, or a list of `prep`, `prep:failed` and raw dependencies."""
    found: list[Any] = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            name, colon, on = item.partition(":")
            found.append({"id": name, "on": on} if colon else {"id": name})
        else:
            found.append(item)
    return found


def _array(value: Any) -> Any:
    """`0-99`, `1-9:2` in steps, `0-99%10` ten at once, or a raw array."""
    if not isinstance(value, str | int):
        return value
    match = _RANGE.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{shown(value)} is not a range such as 0-99, 1-9:2 or 0-99%10")
    first, last, step, at_once = match.groups()
    return {"first": int(first), "last": int(last or first), "step": int(step or 1), "max_running": int(at_once or 0)}


def permille(value: Any) -> int:
    """`1.4` and `140%` are 1400."""
    text = str(value).strip()
    percent = text.endswith("%")
    try:
        if isinstance(value, bool):
            raise InvalidOperation
        found = Decimal(text.removesuffix("%")) * (10 if percent else 1000)
        if found != int(found):
            raise InvalidOperation
    except (ArithmeticError, ValueError):
        raise ValueError(f"{shown(value)} is not a share such as 0.8 or 80%, to a tenth of a percent") from None
    return int(found)


def _service(value: Any) -> Any:
    """`2-20` replicas, besides raw services and their human forms."""
    if isinstance(value, str):
        least, dash, most = value.partition("-")
        if not (dash and least.isdecimal() and most.isdecimal()):
            raise ValueError(f"{shown(value)} is not a number of replicas such as 2-20")
        return {"least": int(least), "most": int(most)}
    return value


def _run(value: Any) -> Any:
    """`[python3, train.py]` is a command alone, besides raw runs and their human forms. A text would need a shell to
    take it apart."""
    if isinstance(value, str):
        raise ValueError(f"{shown(value)} is text; write a list: [python3, train.py], or [bash, -c, {shown(value)}]")
    return {"argv": value} if isinstance(value, list) else value


def _words(value: Any) -> Any:
    """`[sleep, 5]` means `[sleep, "5"]`."""
    return [_text(word) for word in value] if isinstance(value, list) else value


def _boot(value: object) -> list[int]:
    """`[90s, 3m]`: median and 95th percentile; one time is both."""
    times = value if isinstance(value, list) else [value]
    if len(times) not in (1, 2):
        raise ValueError(f"{shown(value)} is not a time such as 90s, or two times such as [90s, 3m]: median and p95")
    return [duration_ms(times[0]), duration_ms(times[-1])]


def _stock(value: object) -> list[list[int]]:
    """`[[0s, 10], [1h, 500]]`: from when on, how many machines; or one number for always."""
    if type(value) is int:
        return [[0, value]]
    if not isinstance(value, list) or not all(isinstance(point, list) and len(point) == 2 for point in value):
        raise ValueError(
            f"{shown(value)} is neither a number of machines nor a list of [time, machines]: [[0s, 10], [1h, 500]]"
        )
    return [[duration_ms(at), machines] for at, machines in value]


def _load(value: Any) -> Any:
    """`[[0s, 2.5], [10m, 8]]`: moments, and how many replicas the load would keep wholly busy."""
    if not isinstance(value, list) or not all(isinstance(point, list) and len(point) == 2 for point in value):
        raise ValueError("is not a list of moments and replicas, such as [[0s, 2.5], [10m, 8]]")
    return [[duration_ms(at), permille(replicas)] for at, replicas in value]


def _amount(value: Any) -> int:
    """`12.5` USD, as micro-USD; nothing costs less than nothing."""
    amount = money_microusd(value)
    if amount < 0:
        raise ValueError(f"{shown(value)} is negative; give an amount from 0 on")
    return amount


def _same(value: Any) -> Any:
    return value


RESOURCE_FORMS: Forms = {
    "cpu": ("cpu_milli", cpu_milli),
    "memory": ("memory_mib", memory_mib),
    "gpu": ("gpu_milli", gpu_milli),
    "disk": ("disk_mib", memory_mib),
}
RATIO_FORMS: Forms = {"cpu": ("cpu_milli", permille), "memory": ("memory_mib", permille)}
SERVICE_FORMS: Forms = {
    "target": ("target_permille", permille),
    "tolerance": ("tolerance_permille", permille),
    "stabilise": ("stabilise_ms", duration_ms),
    "load": ("simulated_load", _load),
}
RUN_FORMS: Forms = {"argv": ("argv", _words), "env": ("env", _labels), "grace": ("grace_ms", duration_ms)}
PRESSURE_FORMS: Forms = {
    "evict_at": ("evict_at_permille", permille),
    "evict_to": ("evict_to_permille", permille),
    "check_every": ("check_every_ms", duration_ms),
    "pause": ("pause_ms", duration_ms),
}
POOL_FORMS: Forms = {
    "price_usd_hour": ("price_microusd_hour", _amount),
    "gpu_memory": ("gpu_memory_mib", memory_mib),
    "labels": ("labels", _labels),
    "taints": ("taints", _taints),
    "placement": ("placement", profile),
}
SCALING_FORMS: Forms = {
    "zones": ("zones", _listed),
    "boot": ("boot_ms", _boot),
    "stock": ("stock", _stock),
    "notice": ("notice_ms", duration_ms),
    "max_age": ("max_age_ms", duration_ms),
}
AUTOSCALING_FORMS: Forms = {
    name.removesuffix("_ms"): (name, duration_ms) for name in Autoscaling.__struct_fields__ if name.endswith("_ms")
} | {"expanders": ("expanders", _listed)}
HEALTH_FORMS: Forms = {
    name.removesuffix("_ms"): (name, duration_ms) for name in HealthSettings.__struct_fields__ if name.endswith("_ms")
} | {"repair": ("repair_ms", _boot)}
BUDGET_FORMS: Forms = {
    "limit_usd": ("limit_microusd", _amount),
    "window": ("window_ms", duration_ms),
    "then": ("action", _same),
}
NODE_FORMS: Forms = {
    "labels": ("labels", _labels),
    "taints": ("taints", _taints),
    **{level: (level, _text) for level in LEVELS[:-1]},
}
QUEUE_FORMS: Forms = {
    "min_runtime": ("min_runtime_ms", duration_ms),
    "disruption_window": ("disruption_window_ms", duration_ms),
    "start_within": ("start_within_ms", duration_ms),
    "objective": ("objective_permille", permille),
    "placement": ("placement", profile),
}
BURST_FORMS: Forms = {"window": ("window_ms", duration_ms), "cooldown": ("cooldown_ms", duration_ms)}
SETTINGS_FORMS: Forms = {
    "fair_half_life": ("fair_half_life_ms", duration_ms),
    "starve_after": ("starve_after_ms", duration_ms),
    "preempt_after": ("preempt_after_ms", duration_ms),
    "try_timeout": ("try_timeout_ms", duration_ms),
}
GROUP_FORMS: Forms = {
    "tasks": ("count", _same),
    "min_tasks": ("min_count", _same),
    "gpu_models": ("gpu_models", _listed),
    "pools": ("pools", _listed),
    "gpu_memory": ("gpu_memory_mib", memory_mib),
    "node_labels": ("node_labels", _conditions),
    "avoid_labels": ("avoid_labels", _conditions),
    "tolerations": ("tolerations", _tolerations),
    "spread": ("spread", _spread),
    "capacity": ("capacity_type", _capacity),
}
ONE_GROUP = (
    "request", "tasks", "min_tasks", "gpu_models", "pools", "gpu_memory", "gpu_memory_mib", "mig", "node_labels",
    "avoid_labels", "tolerations", "spread", "capacity", "capacity_type", "on_demand", "limit",
)  # fmt: skip
"""What a workload may say of its only group of tasks without `groups`."""


def workload_forms(now: Now) -> Forms:
    """Forms of a workload's fields. `now` gives the cell's clock."""

    def moment(value: Any) -> int:
        return moment_ms(value, now)

    return {
        "estimate": ("estimate_ms", duration_ms),
        "max_runtime": ("max_runtime_ms", duration_ms),
        "checkpoint_interval": ("checkpoint_interval_ms", duration_ms),
        "checkpoint_cost": ("checkpoint_cost_ms", duration_ms),
        "restore": ("restore_ms", duration_ms),
        "backoff": ("backoff_ms", duration_ms),
        "simulated_runtime": ("simulated_runtime_ms", duration_ms),
        "simulated_usage": ("simulated_usage_permille", permille),
        "service": ("service", _service),
        "run": ("run", _run),
        "not_before": ("not_before_ms", moment),
        "deadline": ("deadline_ms", moment),
        "after": ("after", _dependencies),
        "array": ("array", _array),
        "priority": ("priority_class", _same),
        "tags": ("tags", _labels),
        "topology": ("topology", _topology),
        "near": ("near", _affinities),
        "apart": ("apart", _affinities),
        "data": ("data", _listed),
    }


_ALL: tuple[Forms, ...] = (
    RESOURCE_FORMS, POOL_FORMS, QUEUE_FORMS, BURST_FORMS, SETTINGS_FORMS, GROUP_FORMS, workload_forms(lambda: 0),
    SERVICE_FORMS, RUN_FORMS, PRESSURE_FORMS, SCALING_FORMS, AUTOSCALING_FORMS, HEALTH_FORMS,
)  # fmt: skip
HUMAN: dict[str, str] = {raw: human for forms in _ALL for human, (raw, _) in forms.items() if raw != human}
"""Raw field -> how people write it."""


# -- words that are wrong ---------------------------------------------------------------------------------------------

POOL_OF_NODES = ("nodes", "region", "zone", "block", "rack", "nvlink")
"""What a pool may say of its nodes instead of listing them."""
_ELSEWHERE = {
    "gpus": "request: {gpu: 8}", "gpu": "request: {gpu: 8}", "cpus": "request: {cpu: 4}", "cpu": "request: {cpu: 4}",
    "memory": "request: {memory: 64GiB}", "count": "tasks", "replicas": "tasks", "parallelism": "tasks",
    "nodeSelector": "node_labels", "node_selector": "node_labels", "constraint": "node_labels", "affinity": "near",
    "anti_affinity": "apart", "antiAffinity": "apart", "labels": "tags", "partition": "queue", "time": "estimate",
    "walltime": "estimate", "dependency": "after", "priorityClassName": "priority", "switches": "topology",
}  # fmt: skip
"""What is called otherwise elsewhere, for workloads."""
_OF_SCALING = {
    "max": "most", "maximum": "most", "max_size": "most", "max_nodes": "most", "min": "least", "minimum": "least",
    "min_size": "least", "min_nodes": "least", "zone": "zones",
}  # fmt: skip
"""What is called otherwise elsewhere, for the scaling of a pool."""
MAX_FIELDS = 24
"""Fields that an error lists; only workloads have more."""
MIN_LIKENESS = 0.7
"""Likeness below which two words are not taken for one with a slip: `kind` is not `id`."""


def meant(word: str, known: Iterable[str]) -> str:
    """As in ", did you mean 'gpu'?"; empty where no known word is like it."""
    near = nearest(word, known, MIN_LIKENESS)
    return f", did you mean '{near}'?" if near else ""


def as_written(wrong: Misfit, kind: type) -> Misfit:
    """What is wrong with a value for `kind`, with the fields and words that would be right there."""
    there = type_at(kind, wrong.path)
    if wrong.field and isinstance(there, msgspec.inspect.StructType):
        return wrong._replace(problem="no such field", remedy=_known_fields(wrong.field, there))
    if missing := re.fullmatch("(.*) is missing", wrong.problem):
        name = HUMAN.get(missing[1], missing[1])
        return wrong._replace(problem=f"{name} is missing", remedy=f"Add '{name}: …'")
    return with_words(wrong, kind)


def _known_fields(word: str, kind: msgspec.inspect.StructType) -> str:
    raw = [field.name for field in kind.fields]
    known = [HUMAN.get(name, name) for name in raw]
    if kind.cls is WorkloadSpec:
        known += ONE_GROUP
        if word in _ELSEWHERE:
            return f"Write {_ELSEWHERE[word]}"
    if kind.cls is PoolSpec:
        known += POOL_OF_NODES
    if kind.cls is ScalingSpec and word in _OF_SCALING:
        return f"Write {_OF_SCALING[word]}"
    near = nearest(word, [*known, *raw], MIN_LIKENESS)
    if near:
        return f"Did you mean '{near}'?"
    more = f" and {len(known) - MAX_FIELDS} more; see muster submit --help" if kind.cls is WorkloadSpec else ""
    return f"Known: {', '.join(known[:MAX_FIELDS])}{more}"
