"""Whether what a draft would do is a way that an incident accepts: its actions, their targets, and what they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from console.evals.incident_replay import PlayedIncident
from console.evals.incidents import Pattern, Way, expanded
from engine.control import Engine
from engine.model.autoscaling import PRESETS
from engine.model.money import MICROUSD
from engine.model.specs import BudgetSpec, QueueSpec
from runbooks.actions.catalogue import find
from runbooks.drafts.typed_draft import Draft
from runbooks.plans.typed_plan import Act


def acts_of(draft: Draft) -> tuple[Act, ...]:
    """What it would do to the cell: what tells people alone is left out, as it is never wrong, and never enough."""
    if draft.request is None:
        return ()
    return tuple(step.act for step in draft.request.steps if find(step.act.action).command)


def told(act: Act, budgets: Mapping[str, BudgetSpec]) -> dict[str, Any]:
    """What an act changes, by the names that incidents use; quantities in whole devices, cores and nodes. `budgets`:
    those that are set."""
    found: dict[str, Any] = {}
    if act.queue is not None:
        found |= _of_queue(act.queue.was, act.queue.to)
    if act.reservation is not None:
        found |= {"nodes": act.reservation.nodes, "queues": act.reservation.queues}
    if act.resize is not None:
        found |= act.resize.request
    if act.money is not None and act.money.budget is not None:
        found |= _of_budget(budgets.get(act.targets[0]), act.money.budget)
    if act.money is not None and act.money.price_microusd_hour is not None:
        found["microusd_hour"] = act.money.price_microusd_hour
    if act.scaling is not None:
        change = act.scaling
        settings = (
            {**msgspec.to_builtins(PRESETS[change.preset]), **change.settings} if change.preset else change.settings
        )
        found |= {"enabled": settings["enabled"]} if "enabled" in settings else {}
        fields = ("least", "most", "headroom", "priority")
        found |= {name: getattr(change, name) for name in fields if getattr(change, name) is not None}
        if change.targets:
            found["nodes"] = max(nodes for _, nodes in change.targets)
    if act.to:
        found["to"] = act.to
    if act.nodes is not None:
        found["nodes"] = act.nodes
    if act.canary is not None:
        found |= {"order": act.canary.order, "policy": act.canary.policy}
    return {name: value for name, value in found.items() if value is not None}


def _of_budget(was: BudgetSpec | None, to: BudgetSpec) -> dict[str, Any]:
    fields = {"limit_usd": "limit_microusd", "on_spent": "action", "warn_permille": "warn_permille"}
    changed = {
        name: getattr(to, field) for name, field in fields.items() if getattr(was, field, None) != getattr(to, field)
    }
    return changed | ({"limit_usd": changed["limit_usd"] // MICROUSD} if "limit_usd" in changed else {})


_RESOURCES = (("gpu_milli", "gpus", 1000), ("cpu_milli", "cpus", 1000), ("memory_mib", "memory_mib", 1))


def _of_queue(was: QueueSpec, to: QueueSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for limit in ("nominal", "borrowing_limit", "lending_limit"):
        before, after = getattr(was, limit), getattr(to, limit)
        for resource, word, unit in _RESOURCES:
            if before.get(resource) != after.get(resource):
                # A limit that is taken away lets through as much as there is.
                found[f"{limit}_{word}"] = after[resource] // unit if resource in after else 2**40
    for name in ("weight", "order", "burst", "reclaim", "flavors"):
        if getattr(was, name) != getattr(to, name):
            found[name] = getattr(to, name)
    return found


def matches(scene: PlayedIncident, acts: Sequence[Act]) -> tuple[bool, bool, str]:
    """Whether the actions, and whether the acts as a whole, are accepted, and what is wrong with them."""
    incident, budgets = scene.incident, budgets_of(scene.engine)
    if not acts:
        right = () in incident.accept
        return right, right, "" if right else "does nothing"
    why = "nothing should be done"
    action = False
    for way in incident.accept:
        wrong = _wrong_actions(way, acts)
        if wrong:
            why = why if action else wrong
            continue
        action = True
        problem = next((found for act in acts if (found := _wrong(way, act, budgets))), "")
        if not problem:
            return True, True, ""
        why = problem
    return action, False, why


def _wrong_actions(way: Way, acts: Sequence[Act]) -> str:
    there = {act.action for act in acts}
    for act in acts:
        if act.action not in {pattern.action for pattern in way}:
            return f"{act.action} is not what it takes"
    for pattern in way:
        if not pattern.optional and pattern.action not in there:
            return f"{pattern.action} is missing"
    needed = [pattern.action for pattern in way if not pattern.optional]
    if len(acts) < len(needed):
        return "does only part of it"
    return ""


def _wrong(way: Way, act: Act, budgets: Mapping[str, BudgetSpec]) -> str:
    """Why no pattern of the way is of this act; empty when one is."""
    problems = [_why_not(pattern, act, budgets) for pattern in way if pattern.action == act.action]
    return "" if "" in problems else problems[0]


def _why_not(pattern: Pattern, act: Act, budgets: Mapping[str, BudgetSpec]) -> str:
    targets = set(act.targets)
    if pattern.targets:
        others = targets - pattern.targets
        if others:
            return f"{act.action}: {', '.join(sorted(others))} is no target"
        if not pattern.least <= len(targets) <= pattern.most:
            return f"{act.action}: {len(targets)} targets, not {pattern.least} to {pattern.most}"
    said = told(act, budgets)
    for name, value in said.items():
        if name not in pattern.parameters:
            return f"{act.action}: {name} should stay"
        wanted = pattern.parameters[name]
        if not _within(value, wanted):
            return f"{act.action}: {name} {value} is not {_bounds_text(wanted)}"
    # One of several limits is as good as another: a pattern says what may change, the fork shows whether it is enough.
    missing = next(iter(pattern.parameters), "") if not said else ""
    return f"{act.action}: {missing} is not changed" if missing else ""


def _within(value: Any, wanted: Any) -> bool:
    if wanted == "any":
        return True
    if isinstance(wanted, tuple):
        return isinstance(value, int) and wanted[0] <= value <= wanted[1]
    if isinstance(value, tuple):
        return set(value) <= set(expanded(wanted))
    return bool(value == wanted)


def _bounds_text(wanted: Any) -> str:
    return f"{wanted[0]} to {wanted[1]}" if isinstance(wanted, tuple) else str(wanted)


def budgets_of(engine: Engine) -> dict[str, BudgetSpec]:
    """Those that are set, by name."""
    return {line.spec.name: line.spec for line in engine.budgets().budgets}


def line(act: Act, budgets: Mapping[str, BudgetSpec]) -> str:
    """An act in a few words."""
    names = ", ".join(act.targets[:3]) + (f" and {len(act.targets) - 3} more" if len(act.targets) > 3 else "")
    values = " ".join(f"{name}={value}" for name, value in told(act, budgets).items() if not isinstance(value, tuple))
    return f"{act.action} {names} {values}".strip()
