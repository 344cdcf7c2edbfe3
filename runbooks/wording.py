"""How a plan reads: its title, its steps with what each costs, how it is taken back, and what became of each target."""

from __future__ import annotations

from collections.abc import Mapping

from engine.model import BudgetSpec
from engine.money import usd
from engine.scaling_report import PoolSize
from runbooks import sizes
from runbooks.amounts import amount, hours, listed, size, span, workloads
from runbooks.catalog import Action, find, loses_work, loss_ms, lost
from runbooks.inverse import inverse_of
from runbooks.plan import Act, RequestChange, Target
from runbooks.specs import differences, kept


def title(act: Act) -> str:
    """Rendered from the typed plan: "Drain 2 nodes", "Set quota of queue research", "Set policy to easy"."""
    action = find(act.action)
    match action.name:
        case "move":
            return f"Move {subject(action, act)} to queue {act.to}"
        case "set_priority":
            return f"Set the priority of {subject(action, act)} to {act.to}"
        case "set_qos" | "set_job_priority":
            return f"{action.verb} {subject(action, act)} to {act.to}"
        case "scale_pool":
            return f"{action.verb} {act.targets[0]} to {act.nodes or 0:,} node{'s' if act.nodes != 1 else ''}"
        case "canary":
            return canary_title(act)
        case "notify":
            return f"Tell {listed(act.targets)}"
    if action.kind in ("policy", "scaling", "review"):
        return f"{action.verb} {act.targets[0]}"
    return f"{action.verb} {subject(action, act)}"


def canary_title(act: Act) -> str:
    """As in "Try order fair on 2 queues for 4h"."""
    canary = act.canary
    if canary is None:
        return "Try nothing"
    if canary.policy is not None:
        return f"Try policy {canary.policy} for {span(canary.window_ms)}"
    queues = f"queue {act.targets[0]}" if len(act.targets) == 1 else f"{len(act.targets)} queues"
    return f"Try order {canary.order} on {queues} for {span(canary.window_ms)}"


def subject(action: Action, act: Act) -> str:
    if len(act.targets) == 1:
        return f"{action.kind} {act.targets[0]}"
    return f"{len(act.targets)} {action.kind}s"


def inverse(act: Act, targets: tuple[Target, ...]) -> str:
    """How the plan can be taken back, in a sentence."""
    action = find(act.action)
    them = act.targets[0] if len(act.targets) == 1 else f"the same {len(act.targets)} {action.kind}s"
    said = action.inverse.format(them=them, was=instead(act, targets))
    if action.name == "set_scaling" and not inverse_of(act, targets):
        return f"Cannot be undone: {them} did not grow by itself, and cannot be made so again"
    if action.name == "set_qos" and not inverse_of(act, targets):
        return f"Cannot be undone: nobody said a QOS for {them} before"
    if action.kind not in ("node", "queue") or action.name == "set_quota" or said.startswith("Cannot"):
        return said
    return by_state(act, targets, said)


def by_state(act: Act, targets: tuple[Target, ...], said: str) -> str:
    """The way back where it goes by the state that was shown: `said`, unless that differs from target to target."""
    back = inverse_of(act, targets)
    if len(back) == 1 and back[0].targets == act.targets and said.startswith(find(back[0].action).verb):
        return said
    rest = said.partition("; ")[2] if act.action in ("drain", "drain_queue") else ""
    if any(one.action in ("drain", "drain_queue") for one in back):
        rest = "what runs there by then is stopped"
    named = " and ".join(f"{find(one.action).verb.lower()} {listed(one.targets)}" for one in back)
    named = named[:1].upper() + named[1:] if named else "Nothing to undo: out of use as before"
    return f"{named}; {rest}" if rest else named


def instead(act: Act, targets: tuple[Target, ...]) -> str:
    """What the plan puts an end to, where the way back has to name it."""
    if act.queue is not None:
        return ", ".join(f"{what} {was}" for what, was, _ in differences(act.queue.was, act.queue.to))
    if act.action in ("set_priority", "move", "set_qos"):
        return ", ".join(dict.fromkeys(target.was for target in targets))
    if act.nodes is not None and targets[0].size is not None:
        return f"{sizes.nodes_of(targets[0].size):,}"
    if act.canary is not None:
        return ", ".join(dict.fromkeys(target.queue.order if target.queue else target.state for target in targets))
    if act.resize is not None:
        return "; ".join(dict.fromkeys(request_of(target, act.resize) for target in targets))
    if act.scaling is not None:
        return sizes.was_and_to(act, targets[0].size, targets[0].autoscaling)[0]
    if action_is_money(act):
        return "; ".join(
            usd(target.price_microusd_hour) if act.action == "set_price" else budget_words(target.budget)
            for target in targets
        )
    made = [f"{target.id}: {kept(target.reservation)}" for target in targets if target.reservation is not None]
    return "; ".join(made) or targets[0].state


def action_is_money(act: Act) -> bool:
    return find(act.action).kind in ("pool", "budget")


def steps(act: Act, targets: tuple[Target, ...], work: Mapping[str, Target]) -> list[str]:
    """What is done, a line each, with what it costs. `work` holds the workloads named by `Target.work`."""
    action = find(act.action)
    match action.kind:
        case "channel" | "review":
            text = act.note.text if act.note is not None else ""
            return [f"{command_name(action.name)} {target.id}: {text}" for target in targets]
        case "canary":
            return [*canary_steps(act, targets), *stopped_lines(action, work)]
        case "scaling" if act.nodes is not None:
            return [f"scale-pool {target.id}: {had(target)} -> {act.nodes:,}" for target in targets]
        case "workload" if act.to:
            facts = {
                target.id: ", ".join((target.state, size(target.gpu_milli, target.cpu_milli))) for target in targets
            }
            lines = [f"{command_name(action.name)} {t.id} ({facts[t.id]}): {t.was} -> {act.to}" for t in targets]
            return [*lines, *stopped_lines(action, work)]
        case "policy":
            return [
                *(f"set policy {target.id} (now {target.state})" for target in targets),
                *stopped_lines(action, work),
            ]
        case "workload" if act.moves:
            facts = {target.id: ", ".join(workload_facts(action, target)) for target in targets}
            return [
                f"move {move.id} ({facts[move.id]}) from {listed(move.was)} to {listed(move.to)}" for move in act.moves
            ]
        case "workload" if act.resize is not None:
            to = ", ".join(amount(name, quantity) for name, quantity in act.resize.request.items())
            return [
                f"resize {target.id} ({', '.join(workload_facts(action, target))}) from "
                f"{request_of(target, act.resize)} to {to}"
                for target in targets
            ]
        case "workload":
            return [f"{action.name} {target.id} ({', '.join(workload_facts(action, target))})" for target in targets]
        case "node":
            return [f"{action.name} {target.id} ({', '.join(node_facts(action, target, work))})" for target in targets]
        case "reservation":
            return [reservation_step(act, target) for target in targets]
        case "scaling":
            changes = [(target, *sizes.was_and_to(act, target.size, target.autoscaling)) for target in targets]
            return [f"{command_name(action.name)} {target.id}: {was} -> {to}" for target, was, to in changes]
        case "pool" | "budget":
            return [money_step(act, target) for target in targets]
        case "queue":
            return [*queue_steps(act, targets, work), *stopped_lines(action, work)]


def stopped_lines(action: Action, work: Mapping[str, Target]) -> list[str]:
    """What is stopped besides the targets, a line each."""
    return [f"requeue {held.id} ({', '.join(workload_facts(action, held))})" for held in work.values()]


def left_above(target: Target) -> str:
    """Of work that a change of a queue leaves running above what the queue may use."""
    whose = f" of {target.tenant}" if target.tenant else ""
    return f"{target.id}{whose} ({size(target.gpu_milli, target.cpu_milli)}) runs on above the quota; may be preempted"


def had(target: Target) -> str:
    return nodes_now(target.size) if target.size is not None else "unknown"


def canary_steps(act: Act, targets: tuple[Target, ...]) -> list[str]:
    """What is tried, and by what it is judged."""
    canary = act.canary
    if canary is None:
        return []
    judged = (
        f"then for {span(canary.window_ms)}: taken back if the p95 of waits is above "
        f"{canary.worst_permille / 10:,.12g}% of what it was, or fewer than {canary.least_starts:,} start"
    )
    if canary.policy is not None:
        return [f"{targets[0].id}: policy {targets[0].state} -> {canary.policy}, {judged}"]
    return [
        f"{target.id}: order {target.queue.order if target.queue else '?'} -> {canary.order}, {judged}"
        for target in targets
    ]


def request_of(target: Target, change: RequestChange) -> str:
    """What a task of the group asks for now of what the change names, as in "4 CPU, 2 GiB memory"."""
    asked = next((request for group, request in target.asks if change.group in ("", group)), {})
    return ", ".join(amount(name, asked.get(name, 0)) for name in change.request)


def workload_facts(action: Action, target: Target) -> list[str]:
    facts = [target.state, size(target.gpu_milli, target.cpu_milli)]
    if loses_work(action, target):
        facts.append(f"{hours(loss_ms(action, target))} of work lost")
    return facts


def node_facts(action: Action, target: Target, work: Mapping[str, Target]) -> list[str]:
    if not target.work:
        return [target.state, "no work there"]
    held = [work[id_] for id_ in target.work if id_ in work]
    if action.name not in ("drain", "interrupt"):
        return [target.state, f"leaves {workloads(len(target.work))} running"]
    gpu, cpu = sum(w.gpu_milli for w in held), sum(w.cpu_milli for w in held)
    return [target.state, f"requeues {listed(target.work)}", size(gpu, cpu), f"{lost(action, held)} lost"]


def queue_steps(act: Act, targets: tuple[Target, ...], work: Mapping[str, Target]) -> list[str]:
    """What happens to the queues themselves."""
    if act.queue is not None:
        return [f"{act.queue.to.name}: {d.what} {d.was} -> {d.to}" for d in differences(act.queue.was, act.queue.to)]
    found = []
    for target in targets:
        held = [work[id_] for id_ in target.work if id_ in work]
        facts = [target.state, f"requeues {workloads(len(held))}", f"{lost(find(act.action), held)} lost"]
        found.append(f"{command_name(act.action)} {target.id} ({', '.join(facts if held else facts[:1])})")
    return found


def reservation_step(act: Act, target: Target) -> str:
    reservation = act.reservation or target.reservation
    return f"{act.action} {target.id}: {kept(reservation) if reservation else target.state}"


def money_step(act: Act, target: Target) -> str:
    """As in "set-price gpu: $20.00 -> $18.50 an hour for each node"."""
    money = act.money
    if money is not None and money.price_microusd_hour is not None:
        was, to = usd(target.price_microusd_hour), usd(money.price_microusd_hour)
        return f"set-price {target.id}: {was} -> {to} an hour for each node"
    had = budget_words(target.budget)
    to = budget_words(money.budget if money is not None else None)
    return f"{command_name(act.action)} {target.id}: {had} -> {to}"


def budget_words(spec: BudgetSpec | None) -> str:
    """As in "$500.00 in 720 h for queue research, then hold"."""
    if spec is None:
        return "none"
    return f"{usd(spec.limit_microusd)} in {hours(spec.window_ms)} for {spec.scope} {spec.of}, then {spec.action}"


def command_name(action: str) -> str:
    """The action as people type it: "hold-queue"."""
    return action.replace("_", "-")


def check(act: Act, before: Target, now: Target, *, in_time: bool = False) -> str:
    """What a target reads after execution: "verified: …"; "NOT verified: …" when the effect is missing, or "not yet: …"
    where it takes its time and some is left."""
    action = find(act.action)
    done = action.done(act, before, now)
    found = found_now(action, before, now, done=done)
    if done:
        return f"verified: {found}"
    return f"not yet: {found}" if action.waits and in_time else f"NOT verified: {found} after {action.name}"


def found_now(action: Action, before: Target, now: Target, *, done: bool) -> str:
    """As in "n1 is draining with 2 workloads still there"."""
    found = f"policy is {now.state}" if action.kind == "policy" else f"{now.id} is {now.state}"
    match action.name:
        case "scale_pool" if now.size is not None:
            return f"{now.id} has {nodes_now(now.size)}"
        case "canary":
            order = f"orders by {now.queue.order}" if now.queue is not None else f"schedules by {now.state}"
            return f"{now.id} {order}"
        case "set_priority":
            return f"{now.id} is of class {now.was}"
        case "set_qos":
            return f"{now.id} has QOS {now.was or 'none'}"
        case "move":
            return f"{now.id} is in queue {now.was}"
        case "notify":
            return f"{now.id} is told"
        case "open_review":
            return f"a review of {now.id} is open"
        case "approve_spending":
            return f"{found}, its spending {'' if now.approved else 'not '}approved"
        case "set_quota" if before.queue is not None and now.queue is not None:
            changed = [f"{what} {to}" for what, _, to in differences(before.queue, now.queue)]
            return f"{now.id} has {', '.join(changed) or 'what it had'}"
        case "resize":
            asks = "; ".join(
                f"{group}: {', '.join(amount(name, quantity) for name, quantity in request.items() if quantity)}"
                for group, request in now.asks
            )
            return f"{found} and asks for {asks}"
        case "consolidate" if now.nodes:
            return f"{found} on {listed(now.nodes)}"
        case "interrupt" if now.work:
            return f"{found}, with {workloads(len(now.work))} until its end"
        case "drain" | "drain_queue" if now.work:
            return f"{found} with {workloads(len(now.work))} still there"
    match action.kind:
        case "scaling":
            return f"{now.id} has {'another setting' if done else 'what it had'}"
        case "pool":
            return f"a node of {now.id} costs {usd(now.price_microusd_hour)} an hour"
        case "budget":
            return f"budget {now.id} is {budget_words(now.budget)}"
    return found


def nodes_now(size: PoolSize) -> str:
    """As in "4 nodes, 2 more boot, 1 more on order"."""
    there = size.ready + size.other
    more = [f"{count:,} more {what}" for count, what in ((size.booting, "boot"), (size.ordered, "on order")) if count]
    return ", ".join([f"{there:,} node{'s' if there != 1 else ''}", *more])
