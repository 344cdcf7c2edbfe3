"""Words of actions and plans: titles, steps with their cost, the way back, readings, and the table of actions.

`inverse_of` makes the typed acts that take an act back, from the targets as shown before it. They restore what was
declared, not what was lost: a drained node takes work again, but stopped work has lost what no checkpoint saved. An
action that cannot be taken back has no inverse.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.model.errors import SpecError
from engine.model.quantities import counted, shortlist
from engine.model.spec_parts import Autoscaling, changed_settings
from runbooks.actions.catalogue import CATALOG, find
from runbooks.actions.declaration import Action, lost, state_of, subject, workload_facts
from runbooks.actions.nodes import LIMITS
from runbooks.actions.workloads import PUT_BACK
from runbooks.plans.amounts import size, span
from runbooks.plans.typed_plan import Act, ActionName, ScalingChange, Target, Tier


def inverse_of(act: Act, shown: tuple[Target, ...]) -> tuple[Act, ...]:
    """The acts that take `act` back, in the order in which they are done. `shown`: its targets before it, in its order.
    Empty when it cannot be taken back."""
    back = find(act.action).back
    return tuple(back(act, shown)) if back is not None else ()


def why_not_inverse(act: Act, shown: tuple[Target, ...], rollback: tuple[Act, ...]) -> str:
    """The first reason that `rollback` does not take `act` back; empty when it covers exactly the targets, restores
    exactly what was shown, and uses the actions that do that."""
    expected = inverse_of(act, shown)
    if not expected:
        return f"{act.action} cannot be rolled back here, by {rollback[0].action} or otherwise" if rollback else ""
    wanted = _effects_of(act, shown, expected)
    try:
        given = _effects_of(act, shown, rollback)
    except SpecError as error:
        return f"it cannot run: {error.problem}"
    for id_, effects in given.items():
        if id_ not in wanted:
            return f"{effects[0][0]} {id_} is not part of the rollback of {act.action}"
    left = tuple(id_ for id_ in wanted if id_ not in given)
    if left:
        return f"it does not roll back {shortlist(left)}"
    for id_, effects in given.items():
        ours, theirs = (" then ".join(action for action, _ in some) for some in (wanted[id_], effects))
        if ours != theirs:
            return f"{theirs} {id_} does not roll back {act.action}: {ours} does"
        if wanted[id_] != effects:
            return f"{theirs} {id_} sets a value other than the one it had"
    return ""


# -- what a rollback comes to, for comparison -------------------------------------------------------------------------


def _effects_of(
    act: Act, shown: tuple[Target, ...], rollback: tuple[Act, ...]
) -> dict[str, list[tuple[ActionName, object]]]:
    """Target -> the (action, value) pairs of a rollback in order, however they are split into acts. Raises SpecError
    for settings that do not exist."""
    before = {target.id: target for target in shown}
    found: dict[str, list[tuple[ActionName, object]]] = {}
    for back in rollback:
        for id_ in back.targets:
            found.setdefault(id_, []).append((back.action, _value(act, back, before.get(id_))))
    return found


def _value(act: Act, back: Act, was: Target | None) -> object:
    """The fields of a rollback's act that the action alone does not determine. Evidence text does not count. A field
    without a meaning for the action counts, so that it is a difference."""
    fields: dict[str, object] = {
        field: value
        for field in Act.__struct_fields__
        if field not in ("action", "targets") and (value := getattr(back, field)) not in (None, (), "")
    }
    if back.queue is not None and back.queue.over in ("keep", "refuse"):
        # Neither stops anything.
        fields["queue"] = (back.queue.was, back.queue.to)
    if back.resize is not None:
        of = next((group for group, _ in was.asks), "") if was is not None and not back.resize.group else ""
        fields["resize"] = (back.resize.group or of, tuple(sorted(back.resize.request.items())))
    if back.scaling is not None and was is not None:
        fields["scaling"] = _scaled(act, back.scaling, was)
    return fields


def _scaled(act: Act, back: ScalingChange, was: Target) -> object:
    """The settings after both, where there were some; else what is given."""
    change = act.scaling or ScalingChange()
    if was.autoscaling is not None:
        changed: Autoscaling = changed_settings(was.autoscaling, change.preset, change.settings)
        return changed_settings(changed, back.preset, back.settings), back.targets, _limits(back)
    if was.size is not None and was.size.scaling is not None:
        limits = [
            next(v for v in (there, here, getattr(was.size.scaling, field)) if v is not None)
            for field, there, here in zip(LIMITS, _limits(back), _limits(change), strict=True)
        ]
        return limits, tuple(sorted(back.targets)), back.preset, dict(back.settings)
    return back


def _limits(change: ScalingChange) -> list[int | None]:
    return [getattr(change, field) for field in LIMITS]


def title(act: Act) -> str:
    """Rendered from the typed plan: "Drain 2 nodes", "Set quota of queue research", "Set policy to easy"."""
    action = find(act.action)
    if action.title is not None:
        return action.title(act)
    if action.kind in ("policy", "scaling", "review"):
        return f"{action.verb} {act.targets[0]}"
    return f"{action.verb} {subject(action, act)}"


def inverse(act: Act, targets: tuple[Target, ...]) -> str:
    """The way back of a plan, in a sentence."""
    action = find(act.action)
    them = act.targets[0] if len(act.targets) == 1 else f"the same {len(act.targets)} {action.kind}s"
    if action.no_way_back and not inverse_of(act, targets):
        return action.no_way_back.format(them=them)
    said = action.inverse.format(them=them, was=instead(act, targets))
    if action.kind not in ("node", "queue") or action.was is not None or said.startswith("Cannot"):
        return said
    return by_state(act, targets, said)


def by_state(act: Act, targets: tuple[Target, ...], said: str) -> str:
    """The way back where it goes by the state that was shown: `said`, unless that differs from target to target."""
    back = inverse_of(act, targets)
    if len(back) == 1 and back[0].targets == act.targets and said.startswith(find(back[0].action).verb):
        return said
    rest = said.partition("; ")[2] if stops_residents(act) else ""
    if any(map(stops_residents, back)):
        rest = "work running there until then is stopped"
    named = " and ".join(f"{find(one.action).verb.lower()} {shortlist(one.targets)}" for one in back)
    named = named[:1].upper() + named[1:] if named else "Nothing to undo: still out of service"
    return f"{named}; {rest}" if rest else named


def stops_residents(act: Act) -> bool:
    return "stops_residents" in find(act.action).impact


def instead(act: Act, targets: tuple[Target, ...]) -> str:
    """The value that the plan replaces, for sentences that name it."""
    action = find(act.action)
    if action.was is not None:
        return action.was(act, targets)
    if action.change is not None:
        return "; ".join(action.change(act, target)[0] for target in targets)
    return targets[0].state


def steps(act: Act, targets: tuple[Target, ...], work: Mapping[str, Target]) -> list[str]:
    """The lines of a plan: each target with what is done and its cost, then the work that is stopped. `work` holds the
    workloads named by `Target.work`."""
    action = find(act.action)
    if action.kind == "node" and action.steps is None:
        return [f"{action.name} {target.id} ({node_facts(action, target, work)})" for target in targets]
    return [*own_steps(action, act, targets, work), *stopped_lines(action, work)]


def own_steps(action: Action, act: Act, targets: tuple[Target, ...], work: Mapping[str, Target]) -> list[str]:
    """The lines about the targets themselves."""
    if action.steps is not None:
        return action.steps(action, act, targets)
    if action.change is not None:
        changes = [(target.id, *action.change(act, target)) for target in targets]
        return [f"{action.word} {id_}: {was} -> {to}" for id_, was, to in changes]
    if action.kind == "policy":
        return [f"set policy {target.id} (now {target.state})" for target in targets]
    if action.kind == "queue":
        return [f"{action.word} {target.id} ({queue_facts(action, target, work)})" for target in targets]
    return [f"{action.name} {target.id} ({workload_facts(action, target)})" for target in targets]


def stopped_lines(action: Action, work: Mapping[str, Target]) -> list[str]:
    """A line for each workload that is stopped besides the targets."""
    return [f"{PUT_BACK} {held.id} ({workload_facts(action, held)})" for held in work.values()]


def left_above(target: Target) -> str:
    """The line of a workload that runs on above its queue's new quota."""
    whose = f" of {target.tenant}" if target.tenant else ""
    return f"{target.id}{whose} ({size(target.gpu_milli, target.cpu_milli)}) runs on above the quota; may be preempted"


def node_facts(action: Action, target: Target, work: Mapping[str, Target]) -> str:
    if not target.work:
        return f"{target.state}, no work there"
    if not action.stops_others:
        return f"{target.state}, leaves {counted(len(target.work), 'workload')} running"
    held = [work[id_] for id_ in target.work if id_ in work]
    gpu, cpu = sum(w.gpu_milli for w in held), sum(w.cpu_milli for w in held)
    return f"{target.state}, {PUT_BACK}s {shortlist(target.work)}, {size(gpu, cpu)}, {lost(action, held)} lost"


def queue_facts(action: Action, target: Target, work: Mapping[str, Target]) -> str:
    held = [work[id_] for id_ in target.work if id_ in work]
    return (
        f"{target.state}, {PUT_BACK}s {counted(len(held), 'workload')}, {lost(action, held)} lost"
        if held
        else target.state
    )


def check(act: Act, before: Target, now: Target, *, in_time: bool = False) -> str:
    """The reading of a target after execution: "verified: …", "not yet: …" while time is left, or "NOT verified: …"."""
    action = find(act.action)
    done = action.is_done(act, before, now)
    found = found_now(action, before, now, done=done)
    if done:
        return f"verified: {found}"
    return f"not yet: {found}" if action.waits and in_time else f"NOT verified: {found} after {action.name}"


def found_now(action: Action, before: Target, now: Target, *, done: bool) -> str:
    """As in "n1 is draining with 2 workloads still there"."""
    found = action.found(before, now, done) if action.found is not None else ""
    return found or (f"policy is {now.state}" if action.kind == "policy" else state_of(now))


class ActionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table of actions."""

    name: ActionName
    targets: str
    """Kind of them, and how many at a time."""
    when: str
    """What must hold of each before it is done."""
    parameters: tuple[str, ...]
    tier: Tier
    raised: str
    """What makes the tier higher; empty when nothing does."""
    inverse: str
    verified: str
    timeout_ms: int


def lines() -> tuple[ActionLine, ...]:
    return tuple(_line(row) for row in CATALOG.values())


def _line(row: Action) -> ActionLine:
    count = "one" if row.most == 1 else f"up to {row.most:,}"
    return ActionLine(
        name=row.name,
        targets=f"{row.kind}, {count}",
        when=" or ".join(sorted(row.states)) if len(row.states) < 6 else "not ended",
        parameters=row.fields,
        tier=row.tier,
        raised=row.raised,
        inverse=row.inverse.format(them="them", was="what was"),
        verified=row.verified,
        timeout_ms=row.timeout_ms,
    )


def markdown(shell: dict[str, str]) -> list[str]:
    """A table for the manual. `shell`: action -> how it is typed."""
    head = ("action", "targets", "tier", "raised by", "rolled back by", "read back", "within")
    rows = [
        (
            f"`{shell[line.name]}`", line.targets, line.tier, line.raised or "-", line.inverse, line.verified,
            span(line.timeout_ms),
        )
        for line in lines()
    ]  # fmt: skip
    cells = [head, ("---",) * len(head), *rows]
    return [f"| {' | '.join(text.replace('|', '/') for text in row)} |" for row in cells]
