"""The closed set of actions a plan may name: what each applies to, how risky it is, how it reads, how it is taken
back, which engine command it becomes, and what must be true afterwards.

Tiers: T1 reversible, T2 disruptive, T3 hard to undo. An action's own tier is a floor; the state of its targets may
raise it and nothing lowers it. For now a single operator may approve their own plan at any tier; who else must
agree, and from which tier on, is the approval policy of issue 7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import msgspec

from engine.commands import AnyCommand, Cancel, Cordon, Drain, Hold, Release, Requeue, SetPolicy, Uncordon
from engine.errors import SpecError
from engine.model import Policy
from runbooks.plan import ActionName, Plan

Kind = Literal["workload", "node", "policy"]
Tier = Literal["T0", "T1", "T2", "T3"]

TIERS: tuple[Tier, ...] = get_args(Tier)
POLICIES: tuple[Policy, ...] = get_args(Policy)
BOUND = frozenset(("placed", "running"))
"""States in which a workload holds capacity, so that stopping it loses work."""
LARGE_SHARE_PERMILLE = 100
"""Taking more than this share of a pool (and more than one node) out of use is a tier riskier."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One target as the engine's state has it at the moment it was read."""

    id: str
    """Id of a workload or node; for `set_policy` the name of the policy asked for."""
    state: str
    """Label of its state; for `set_policy` the policy in force."""
    attempts: int = 0
    """How often a workload was started: tells a restarted one from the run that was shown."""
    gpu_milli: int = 0
    cpu_milli: int = 0
    unsaved_ms: int = 0
    """Time a bound workload has run since its last checkpoint, or its start; else 0."""
    worked_ms: int = 0
    """Time a workload has run in all its attempts."""
    pool: str = ""
    work: tuple[str, ...] = ()
    """Workloads with a task on a node."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the catalogue."""

    name: ActionName
    kind: Kind
    verb: str
    tier: Tier
    """The least tier a plan with this action can have."""
    states: frozenset[str]
    """States of a target in which the action makes sense. Not used for policies."""
    otherwise: str
    """What a person can do when a target is in another state."""
    inverse: str
    """How it is taken back; `{them}` stands for the targets, `{was}` for the policy in force."""
    command: Callable[[tuple[str, ...]], AnyCommand]
    done: Callable[[Target, Target], bool]
    """True when the second reading shows the action's effect; the first is from before execution."""


def set_policy_command(names: tuple[str, ...]) -> AnyCommand:
    """Raises SpecError unless there is exactly one name and it is a known policy."""
    for policy in POLICIES:
        if names == (policy,):
            return SetPolicy(policy=policy)
    raise SpecError("targets", f"{', '.join(names)} is not one policy", f"Give one of {', '.join(POLICIES)}")


ROWS: tuple[Action, ...] = (
    Action(
        name="cancel",
        kind="workload",
        verb="Cancel",
        tier="T2",
        states=frozenset(("queued", "held", "placed", "running")),
        otherwise="Only work that has not ended can be cancelled",
        inverse="Cannot be undone: submit {them} again under a new id; work done so far is lost",
        command=lambda ids: Cancel(ids=ids),
        done=lambda before, now: now.state == "cancelled",
    ),
    Action(
        name="hold",
        kind="workload",
        verb="Hold",
        tier="T1",
        states=frozenset(("queued",)),
        otherwise="Only queued work can be held; requeue running work first",
        inverse="Release {them}",
        command=lambda ids: Hold(ids=ids),
        done=lambda before, now: now.state == "held",
    ),
    Action(
        name="release",
        kind="workload",
        verb="Release",
        tier="T1",
        states=frozenset(("held",)),
        otherwise="Only held work can be released",
        inverse="Hold {them} while not yet started",
        command=lambda ids: Release(ids=ids),
        done=lambda before, now: now.state != "held",
    ),
    Action(
        name="requeue",
        kind="workload",
        verb="Requeue",
        tier="T2",
        states=BOUND,
        otherwise="Only placed or running work can be requeued",
        inverse="Cannot be undone: work since the last checkpoint is lost; place in the queue is kept",
        command=lambda ids: Requeue(ids=ids),
        # A scheduling cycle may have started it again already: then it is a later attempt.
        done=lambda before, now: now.state not in BOUND or now.attempts > before.attempts,
    ),
    Action(
        name="cordon",
        kind="node",
        verb="Cordon",
        tier="T1",
        states=frozenset(("ready",)),
        otherwise="Only ready nodes can be cordoned",
        inverse="Uncordon {them}",
        command=lambda ids: Cordon(ids=ids),
        done=lambda before, now: now.state == "cordoned",
    ),
    Action(
        name="uncordon",
        kind="node",
        verb="Uncordon",
        tier="T1",
        states=frozenset(("cordoned", "draining")),
        otherwise="Only cordoned or draining nodes can be uncordoned",
        inverse="Cordon {them}",
        command=lambda ids: Uncordon(ids=ids),
        done=lambda before, now: now.state == "ready",
    ),
    Action(
        name="drain",
        kind="node",
        verb="Drain",
        tier="T2",
        states=frozenset(("ready", "cordoned")),
        otherwise="Only ready or cordoned nodes can be drained",
        inverse="Uncordon {them}; work since the last checkpoint is lost and does not return by itself",
        command=lambda ids: Drain(ids=ids),
        done=lambda before, now: now.state in ("draining", "cordoned") and not now.work,
    ),
    Action(
        name="set_policy",
        kind="policy",
        verb="Set policy to",
        tier="T1",
        states=frozenset(),
        otherwise="Nothing needs doing",
        inverse="Set policy to {was}",
        command=set_policy_command,
        done=lambda before, now: now.state == now.id,
    ),
)

CATALOG: Mapping[str, Action] = {row.name: row for row in ROWS}


def find(name: str) -> Action:
    """The catalogue's row. Raises SpecError when there is no such action."""
    row = CATALOG.get(name)
    if row is None:
        shown = name[:40].encode("unicode_escape").decode()
        raise SpecError("action", f"'{shown}' is not in the catalogue", f"Give one of {', '.join(CATALOG)}")
    return row


def command(plan: Plan) -> AnyCommand:
    """The one engine command a plan stands for. Raises SpecError for what no command can express."""
    return find(plan.action).command(plan.targets)


def why_not(action: Action, target: Target) -> str:
    """Why the action does not apply to a target in its present state; empty when it does."""
    if action.kind == "policy":
        return f"{target.id} is in force already" if target.id == target.state else ""
    return "" if target.state in action.states else f"{target.id} is {target.state}"


def tier(action: Action, targets: tuple[Target, ...], pool_nodes: Mapping[str, int]) -> Tier:
    """The tier of acting on these targets now. `pool_nodes` is pool name -> how many nodes it has."""
    floor = TIERS.index(action.tier)
    raises = discards_work(action, targets) or takes_large_share(action, targets, pool_nodes)
    return TIERS[min(floor + raises, len(TIERS) - 1)]


def discards_work(action: Action, targets: tuple[Target, ...]) -> bool:
    """True when a cancel ends work that runs, or throws away what earlier attempts did."""
    return action.name == "cancel" and any(target.state in BOUND or target.worked_ms for target in targets)


def takes_large_share(action: Action, targets: tuple[Target, ...], pool_nodes: Mapping[str, int]) -> bool:
    """True when a cordon or drain takes a large share of any one pool out of use."""
    if action.name not in ("cordon", "drain"):
        return False
    taken = Counter(target.pool for target in targets)
    return any(n > 1 and n * 1000 > LARGE_SHARE_PERMILLE * pool_nodes.get(pool, 0) for pool, n in taken.items())


def title(plan: Plan) -> str:
    """Rendered from the typed plan: "Drain 2 nodes", "Cancel workload wl-17", "Set policy to easy"."""
    action = find(plan.action)
    return f"{action.verb} {plan.targets[0]}" if action.kind == "policy" else f"{action.verb} {subject(action, plan)}"


def subject(action: Action, plan: Plan) -> str:
    if len(plan.targets) == 1:
        return f"{action.kind} {plan.targets[0]}"
    return f"{len(plan.targets)} {action.kind}s"


def inverse(plan: Plan, targets: tuple[Target, ...]) -> str:
    """How the plan can be taken back, in a sentence."""
    action = find(plan.action)
    them = plan.targets[0] if len(plan.targets) == 1 else f"the same {len(plan.targets)} {action.kind}s"
    return action.inverse.format(them=them, was=targets[0].state)


def step(action: Action, target: Target, work: Mapping[str, Target]) -> str:
    """One line for one target, with what it costs. `work` holds the workloads named by `target.work`."""
    match action.kind:
        case "policy":
            return f"set policy {target.id} (now {target.state})"
        case "workload":
            return f"{action.name} {target.id} ({', '.join(workload_facts(action, target))})"
        case "node":
            return f"{action.name} {target.id} ({', '.join(node_facts(action, target, work))})"


def workload_facts(action: Action, target: Target) -> list[str]:
    facts = [target.state, size(target.gpu_milli, target.cpu_milli)]
    if loses_work(action, target):
        facts.append(f"{hours(loss_ms(action, target))} of work lost")
    return facts


def node_facts(action: Action, target: Target, work: Mapping[str, Target]) -> list[str]:
    if not target.work:
        return [target.state, "no work there"]
    held = [work[id_] for id_ in target.work if id_ in work]
    if action.name != "drain":
        return [target.state, f"leaves {workloads(len(target.work))} running"]
    gpu, cpu = sum(w.gpu_milli for w in held), sum(w.cpu_milli for w in held)
    return [target.state, f"requeues {listed(target.work)}", size(gpu, cpu), f"{lost(action, held)} lost"]


def check(action: Action, before: Target, now: Target) -> str:
    """What a target's reading after execution says: "verified: …" or, when the effect is missing, "NOT verified: …"."""
    found = f"policy is {now.state}" if action.kind == "policy" else f"{now.id} is {now.state}"
    if now.work and action.name == "drain":
        found += f" with {workloads(len(now.work))} still there"
    return f"verified: {found}" if action.done(before, now) else f"NOT verified: {found} after {action.name}"


def loses_work(action: Action, target: Target) -> bool:
    """Whether acting on this workload can lose work done."""
    match action.name:
        case "cancel":
            return target.state in BOUND or target.worked_ms > 0
        case "requeue" | "drain":
            return target.state in BOUND
        case _:
            return False


def loss_ms(action: Action, target: Target) -> int:
    """Run time lost if it happened now: all of it when cancelled, else what no checkpoint has saved."""
    return target.worked_ms if action.name == "cancel" else target.unsaved_ms


def lost(action: Action, stopped: list[Target]) -> str:
    """Work lost when the action stops these: device hours, or core hours where none has devices."""
    gpu = sum(work.gpu_milli * loss_ms(action, work) for work in stopped)
    if gpu:
        return f"{gpu / 3_600_000_000:,.1f} GPU-h"
    return f"{sum(work.cpu_milli * loss_ms(action, work) for work in stopped) / 3_600_000_000:,.1f} CPU-h"


def size(gpu_milli: int, cpu_milli: int) -> str:
    """As in "64 GPU", or "8 CPU" for work that asks for no device."""
    return f"{whole(gpu_milli)} GPU" if gpu_milli else f"{whole(cpu_milli)} CPU"


def whole(milli: int) -> str:
    """Thousandths as people write them: "64", "0.25", "130,000"."""
    return f"{milli / 1000:,.12g}"


def hours(ms: int) -> str:
    """As in "3.2 h"; minutes below one hour."""
    return f"{ms / 3_600_000:,.1f} h" if ms >= 3_600_000 else f"{ms // 60_000} min"


def workloads(count: int) -> str:
    return "1 workload" if count == 1 else f"{count:,} workloads"


def listed(ids: tuple[str, ...], most: int = 5) -> str:
    """As in "wl-1, wl-2 and 3 more"."""
    rest = len(ids) - most
    return ", ".join(ids[:most]) + (f" and {rest:,} more" if rest > 0 else "")
