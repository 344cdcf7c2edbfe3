"""How a plan reads: its title, its steps with what each costs, how it is taken back, and what became of each target."""

from __future__ import annotations

from collections.abc import Mapping

from engine.model import BudgetSpec
from engine.money import usd
from runbooks import sizes
from runbooks.amounts import amount, hours, listed, size, workloads
from runbooks.catalog import Action, Target, find, loses_work, loss_ms, lost
from runbooks.plan import Plan, RequestChange
from runbooks.specs import differences, kept


def title(plan: Plan) -> str:
    """Rendered from the typed plan: "Drain 2 nodes", "Set quota of queue research", "Set policy to easy"."""
    action = find(plan.action)
    if action.kind in ("policy", "scaling"):
        return f"{action.verb} {plan.targets[0]}"
    return f"{action.verb} {subject(action, plan)}"


def subject(action: Action, plan: Plan) -> str:
    if len(plan.targets) == 1:
        return f"{action.kind} {plan.targets[0]}"
    return f"{len(plan.targets)} {action.kind}s"


def inverse(plan: Plan, targets: tuple[Target, ...]) -> str:
    """How the plan can be taken back, in a sentence."""
    action = find(plan.action)
    them = plan.targets[0] if len(plan.targets) == 1 else f"the same {len(plan.targets)} {action.kind}s"
    return action.inverse.format(them=them, was=instead(plan, targets))


def instead(plan: Plan, targets: tuple[Target, ...]) -> str:
    """What the plan puts an end to, where the way back has to name it."""
    if plan.queue is not None:
        return ", ".join(f"{what} {was}" for what, was, _ in differences(plan.queue.was, plan.queue.to))
    if plan.resize is not None:
        return "; ".join(dict.fromkeys(request_of(target, plan.resize) for target in targets))
    if plan.scaling is not None:
        return sizes.was_and_to(plan, targets[0].size, targets[0].autoscaling)[0]
    if action_is_money(plan):
        return "; ".join(
            usd(target.price_microusd_hour) if plan.action == "set_price" else budget_words(target.budget)
            for target in targets
        )
    made = [f"{target.id}: {kept(target.reservation)}" for target in targets if target.reservation is not None]
    return "; ".join(made) or targets[0].state


def action_is_money(plan: Plan) -> bool:
    return find(plan.action).kind in ("pool", "budget")


def steps(plan: Plan, targets: tuple[Target, ...], work: Mapping[str, Target]) -> list[str]:
    """What is done, a line each, with what it costs. `work` holds the workloads named by `Target.work`."""
    action = find(plan.action)
    match action.kind:
        case "policy":
            return [f"set policy {target.id} (now {target.state})" for target in targets]
        case "workload" if plan.moves:
            facts = {target.id: ", ".join(workload_facts(action, target)) for target in targets}
            return [
                f"move {move.id} ({facts[move.id]}) from {listed(move.was)} to {listed(move.to)}" for move in plan.moves
            ]
        case "workload" if plan.resize is not None:
            to = ", ".join(amount(name, quantity) for name, quantity in plan.resize.request.items())
            return [
                f"resize {target.id} ({', '.join(workload_facts(action, target))}) from "
                f"{request_of(target, plan.resize)} to {to}"
                for target in targets
            ]
        case "workload":
            return [f"{action.name} {target.id} ({', '.join(workload_facts(action, target))})" for target in targets]
        case "node":
            return [f"{action.name} {target.id} ({', '.join(node_facts(action, target, work))})" for target in targets]
        case "reservation":
            return [reservation_step(plan, target) for target in targets]
        case "scaling":
            changes = [(target, *sizes.was_and_to(plan, target.size, target.autoscaling)) for target in targets]
            return [f"{command_name(action.name)} {target.id}: {was} -> {to}" for target, was, to in changes]
        case "pool" | "budget":
            return [money_step(plan, target) for target in targets]
        case "queue":
            stops = [f"requeue {held.id} ({', '.join(workload_facts(action, held))})" for held in work.values()]
            return [*queue_steps(plan, targets, work), *stops]


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


def queue_steps(plan: Plan, targets: tuple[Target, ...], work: Mapping[str, Target]) -> list[str]:
    """What happens to the queues themselves."""
    if plan.queue is not None:
        return [f"{plan.queue.to.name}: {d.what} {d.was} -> {d.to}" for d in differences(plan.queue.was, plan.queue.to)]
    found = []
    for target in targets:
        held = [work[id_] for id_ in target.work if id_ in work]
        facts = [target.state, f"requeues {workloads(len(held))}", f"{lost(find(plan.action), held)} lost"]
        found.append(f"{command_name(plan.action)} {target.id} ({', '.join(facts if held else facts[:1])})")
    return found


def reservation_step(plan: Plan, target: Target) -> str:
    reservation = plan.reservation or target.reservation
    return f"{plan.action} {target.id}: {kept(reservation) if reservation else target.state}"


def money_step(plan: Plan, target: Target) -> str:
    """As in "set-price gpu: $20.00 -> $18.50 an hour for each node"."""
    money = plan.money
    if money is not None and money.price_microusd_hour is not None:
        was, to = usd(target.price_microusd_hour), usd(money.price_microusd_hour)
        return f"set-price {target.id}: {was} -> {to} an hour for each node"
    had = budget_words(target.budget)
    to = budget_words(money.budget if money is not None else None)
    return f"{command_name(plan.action)} {target.id}: {had} -> {to}"


def budget_words(spec: BudgetSpec | None) -> str:
    """As in "$500.00 in 720 h for queue research, then hold"."""
    if spec is None:
        return "none"
    return f"{usd(spec.limit_microusd)} in {hours(spec.window_ms)} for {spec.scope} {spec.of}, then {spec.action}"


def command_name(action: str) -> str:
    """The action as people type it: "hold-queue"."""
    return action.replace("_", "-")


def check(action: Action, before: Target, now: Target) -> str:
    """What a target's reading after execution says: "verified: …" or, when the effect is missing, "NOT verified: …"."""
    found = f"policy is {now.state}" if action.kind == "policy" else f"{now.id} is {now.state}"
    if action.kind == "scaling":
        found = f"{now.id} has {'another setting' if action.done(before, now) else 'what it had'}"
    elif action.kind == "pool":
        found = f"a node of {now.id} costs {usd(now.price_microusd_hour)} an hour"
    elif action.kind == "budget":
        found = f"budget {now.id} is {budget_words(now.budget)}"
    elif action.name == "approve_spending":
        found += ", its spending approved" if now.approved else ", its spending not approved"
    if action.name == "set_quota" and before.queue is not None and now.queue is not None:
        changed = [f"{what} {to}" for what, _, to in differences(before.queue, now.queue)]
        found = f"{now.id} has {', '.join(changed) or 'what it had'}"
    if action.name == "resize":
        found += " and asks for " + "; ".join(
            f"{group}: {', '.join(amount(name, quantity) for name, quantity in request.items() if quantity)}"
            for group, request in now.asks
        )
    if action.name == "consolidate" and now.nodes:
        found += f" on {listed(now.nodes)}"
    if now.work and action.name == "interrupt":
        found += f", with {workloads(len(now.work))} until its end"
    if now.work and action.name in ("drain", "drain_queue"):
        found += f" with {workloads(len(now.work))} still there"
    return f"verified: {found}" if action.done(before, now) else f"NOT verified: {found} after {action.name}"
