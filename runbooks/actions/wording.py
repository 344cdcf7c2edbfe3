"""How a plan reads: its title, its steps with what each costs, how it is taken back, and what became of each target."""

from __future__ import annotations

from collections.abc import Mapping

from runbooks.actions.catalogue import find
from runbooks.actions.declaration import Action
from runbooks.actions.phrases import state_of, subject, workload_facts
from runbooks.actions.risk import lost
from runbooks.actions.rollback import inverse_of
from runbooks.plans.amounts import listed, size, workloads
from runbooks.plans.typed_plan import Act, Target


def title(act: Act) -> str:
    """Rendered from the typed plan: "Drain 2 nodes", "Set quota of queue research", "Set policy to easy"."""
    action = find(act.action)
    if action.title is not None:
        return action.title(act)
    if action.kind in ("policy", "scaling", "review"):
        return f"{action.verb} {act.targets[0]}"
    return f"{action.verb} {subject(action, act)}"


def inverse(act: Act, targets: tuple[Target, ...]) -> str:
    """How the plan can be taken back, in a sentence."""
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
        rest = "what runs there by then is stopped"
    named = " and ".join(f"{find(one.action).verb.lower()} {listed(one.targets)}" for one in back)
    named = named[:1].upper() + named[1:] if named else "Nothing to undo: out of use as before"
    return f"{named}; {rest}" if rest else named


def stops_residents(act: Act) -> bool:
    return "stops_residents" in find(act.action).impact


def instead(act: Act, targets: tuple[Target, ...]) -> str:
    """What the plan puts an end to, where the way back has to name it."""
    action = find(act.action)
    if action.was is not None:
        return action.was(act, targets)
    if action.change is not None:
        return "; ".join(action.change(act, target)[0] for target in targets)
    return targets[0].state


def steps(act: Act, targets: tuple[Target, ...], work: Mapping[str, Target]) -> list[str]:
    """What is done, a line each, with what it costs. `work` holds the workloads named by `Target.work`."""
    action = find(act.action)
    if action.kind == "node":
        return [f"{action.name} {target.id} ({node_facts(action, target, work)})" for target in targets]
    return [*own_steps(action, act, targets, work), *stopped_lines(action, work)]


def own_steps(action: Action, act: Act, targets: tuple[Target, ...], work: Mapping[str, Target]) -> list[str]:
    """What happens to the targets themselves."""
    if action.steps is not None:
        return action.steps(action, act, targets)
    if action.change is not None:
        changes = [(target.id, *action.change(act, target)) for target in targets]
        return [f"{action.shell} {id_}: {was} -> {to}" for id_, was, to in changes]
    if action.kind == "policy":
        return [f"set policy {target.id} (now {target.state})" for target in targets]
    if action.kind == "queue":
        return [f"{action.shell} {target.id} ({queue_facts(action, target, work)})" for target in targets]
    return [f"{action.name} {target.id} ({workload_facts(action, target)})" for target in targets]


def stopped_lines(action: Action, work: Mapping[str, Target]) -> list[str]:
    """What is stopped besides the targets, a line each."""
    return [f"requeue {held.id} ({workload_facts(action, held)})" for held in work.values()]


def left_above(target: Target) -> str:
    """Of work that a change of a queue leaves running above what the queue may use."""
    whose = f" of {target.tenant}" if target.tenant else ""
    return f"{target.id}{whose} ({size(target.gpu_milli, target.cpu_milli)}) runs on above the quota; may be preempted"


def node_facts(action: Action, target: Target, work: Mapping[str, Target]) -> str:
    if not target.work:
        return f"{target.state}, no work there"
    if not action.stops_others:
        return f"{target.state}, leaves {workloads(len(target.work))} running"
    held = [work[id_] for id_ in target.work if id_ in work]
    gpu, cpu = sum(w.gpu_milli for w in held), sum(w.cpu_milli for w in held)
    return f"{target.state}, requeues {listed(target.work)}, {size(gpu, cpu)}, {lost(action, held)} lost"


def queue_facts(action: Action, target: Target, work: Mapping[str, Target]) -> str:
    held = [work[id_] for id_ in target.work if id_ in work]
    return f"{target.state}, requeues {workloads(len(held))}, {lost(action, held)} lost" if held else target.state


def check(act: Act, before: Target, now: Target, *, in_time: bool = False) -> str:
    """What a target reads after execution: "verified: …"; "NOT verified: …" when the effect is missing, or "not yet: …"
    where it takes its time and some is left."""
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
