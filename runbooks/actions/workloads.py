"""Actions on workloads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.model.errors import RefusedError, SpecError
from engine.model.quantities import shortlist
from runbooks.actions.declaration import (
    BOUND,
    LARGE_WORK,
    LIVE,
    MINUTES_MS,
    STARTABLE,
    WAITS,
    Action,
    EffectProof,
    Given,
    Parameter,
    PlannedCell,
    SeenCell,
    Typed,
    asked_now,
    by,
    commands,
    consolidation_queries,
    flag,
    former,
    has_given,
    ids,
    leaves,
    number,
    plan,
    request_of,
    required,
    state_of,
    stopped,
    to_former,
    workload_facts,
)
from runbooks.plans.amounts import amount, size

if TYPE_CHECKING:
    from engine.model.commands import AnyCommand
    from engine.model.consolidation_queries import Consolidation, ConsolidationRequest
    from runbooks.plans.typed_plan import Act, ActionName, RequestChange, Target

WORKLOADS = {"workloads": ids("workload_id")}
STARTS = (EffectProof("workload_reason", "==", "none"),)
"""It waits no more."""
LOSES = f"stops running work; {LARGE_WORK}"
GIVES_WAY = "work must be preempted"
PUT_BACK: ActionName = "requeue"
RETURNED = "requeued"
"""The history entry of work that went back to its queue, whoever put it there."""
TO = ("to",)
QOS_CLASS = re.compile(r"(.+)\.tier-\d+(?:\.\d+)?")
"""QOS and tier of a partition, and the rank of what waits, as `engine.external.slurm.mapping` puts them
together."""


def works(act: Act) -> str:
    return f"workload {act.targets[0]}" if len(act.targets) == 1 else f"{len(act.targets)} workloads"


def qos_of(priority_class: str) -> str:
    """The QOS of Slurm that a priority class of a mirror stands for; empty where it stands for none."""
    found = QOS_CLASS.fullmatch(priority_class)
    return found[1] if found else ""


# -- something else than what it has: a queue, a priority -------------------------------------------------------------


def refuse_same(act: Act, targets: tuple[Target, ...]) -> None:
    """Raises RefusedError naming the targets that have what they shall get already."""
    same = tuple(target.id for target in targets if target.was == act.to)
    if same:
        raise RefusedError(f"{shortlist(same)} already has that", "Leave it out: nothing to do")


def steps_to(action: Action, act: Act, targets: tuple[Target, ...]) -> list[str]:
    return [
        f"{action.word} {target.id} ({target.state}, {size(target.gpu_milli, target.cpu_milli)}): "
        f"{target.was} -> {act.to}"
        for target in targets
    ]


# -- resize -----------------------------------------------------------------------------------------------------------


def make_resize(given: Given, cell: PlannedCell) -> Act:
    request = {name: given[name] for name in ("cpu_milli", "memory_mib", "gpu_milli") if name in given}
    change = plan.RequestChange(group=given.get("group", ""), request=request, evidence=given.get("evidence", ""))
    return plan.Act(action="resize", targets=given["workloads"], resize=change)


def read_resize(typed: Typed, cell: SeenCell) -> Act:
    request = {name: quantity for name, quantity in typed["request"].items() if quantity is not None}
    change = plan.RequestChange(group=typed["group"], request=request, evidence=typed["reason"])
    return plan.Act(action="resize", targets=tuple(typed["ids"]), resize=change)


def express_resize(act: Act) -> AnyCommand:
    """Raises SpecError unless the act says what the targets ask for from now on."""
    change = required(act.resize, "resize")
    evidence = change.evidence[: commands.MAX_EVIDENCE]
    return commands.Resize(ids=act.targets, group=change.group, request=change.request, evidence=evidence)


def is_resized(act: Act, before: Target, now: Target) -> bool:
    """True when one group has the requested size."""
    return act.resize is not None and bool(_groups_as(act.resize, now))


def _groups_as(change: RequestChange, target: Target) -> list[str]:
    """Groups whose request is what the change makes of it."""
    return [g for g, request in target.asks if change.group in ("", g) and request | change.request == request]


def resize_back(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """The acts that restore the former request of the changed resources. Running work is restarted once more."""
    if act.resize is None:
        return
    requests = {target.id: asked_now(target, act.resize) for target in shown}
    for request in {tuple(sorted(request.items())): request for request in requests.values()}.values():
        same = tuple(id_ for id_, asked in requests.items() if asked == request)
        yield plan.Act(
            action="resize", targets=same, resize=plan.RequestChange(group=act.resize.group, request=request)
        )


def refuse_same_request(act: Act, targets: tuple[Target, ...]) -> None:
    """Raises RefusedError naming the workloads that ask for exactly that."""
    change = required(act.resize, "resize")
    same = [target.id for target in targets for _ in _groups_as(change, target)]
    if same:
        raise RefusedError(f"{shortlist(tuple(same))} already asks for that", "Leave it out: nothing to do")


def resize_was(act: Act, targets: tuple[Target, ...]) -> str:
    change = required(act.resize, "resize")
    return "; ".join(dict.fromkeys(request_of(target, change) for target in targets))


def resize_steps(action: Action, act: Act, targets: tuple[Target, ...]) -> list[str]:
    change = required(act.resize, "resize")
    to = ", ".join(amount(name, quantity) for name, quantity in change.request.items())
    return [
        f"resize {target.id} ({workload_facts(action, target)}) from {request_of(target, change)} to {to}"
        for target in targets
    ]


def found_request(before: Target, now: Target, done: bool) -> str:
    asks = "; ".join(
        f"{group}: {', '.join(amount(name, quantity) for name, quantity in request.items() if quantity)}"
        for group, request in now.asks
    )
    return f"{state_of(now)} and asks for {asks}"


# -- consolidate ------------------------------------------------------------------------------------------------------


def make_consolidate(given: Given, cell: PlannedCell) -> Act:
    """The moves are looked for now, on forks."""
    request = consolidation_queries.ConsolidationRequest(
        unblock=given.get("unblock", ""), pool=given.get("pool", ""), free_nodes=given.get("free_nodes", 0),
        max_moves=given["max_moves"],
    )  # fmt: skip
    answer = cell.consolidation(request)
    if answer.found is None or not answer.found.worth_it or not answer.found.moves:
        why = answer.why or "no move is needed"
        raise RefusedError(
            f"no moves are proposed: {why}", "See `muster cell fragmentation`; wait, or choose another action"
        )
    return moves_act(answer)


def consolidation_request(typed: Typed) -> ConsolidationRequest:
    """Raises SpecError naming the flag."""
    if typed["pool"] and not typed["free_nodes"]:
        raise SpecError("--pool", "needs --free-nodes", "Give the number of nodes to empty")
    if typed["free_nodes"] and not typed["pool"]:
        raise SpecError("--free-nodes", "needs --pool", "Add --pool")
    if typed["free_nodes"] and typed["unblock"]:
        raise SpecError("--free-nodes", "cannot be combined with --unblock", "Give one of the two")
    return consolidation_queries.ConsolidationRequest(
        unblock=typed["unblock"],
        free_nodes=typed["free_nodes"],
        pool=typed["pool"],
        max_moves=typed["max_moves"],
        least_ratio_permille=round(typed["ratio"] * 1000),
    )


def moves_act(answer: Consolidation) -> Act:
    """The planned moves as an act. Raises RefusedError when there is no plan that is worth its cost."""
    if answer.found is None or not answer.found.worth_it:
        remedy = "Use a lower --ratio" if answer.found is not None else "See `muster cell fragmentation`"
        raise RefusedError(f"no plan: {answer.why}", remedy)
    moves = tuple(
        plan.WorkloadMove(id=move.id, was=tuple(sorted(place.node for place in move.was)), to=move.nodes)
        for move in answer.found.moves
    )
    return plan.Act(action="consolidate", targets=tuple(move.id for move in moves), moves=moves)


def express_consolidate(act: Act) -> AnyCommand:
    """Raises SpecError unless the act says of each target where it goes."""
    if act.targets != tuple(move.id for move in act.moves):
        raise SpecError("moves", "do not match the targets", "Give one move for each target, in their order")
    for i, move in enumerate(act.moves):
        if not move.to or not move.was:
            raise SpecError(f"moves[{i}]", "names no node", "Give its nodes and its new nodes")
    return commands.Migrate(moves=tuple(commands.Move(id=move.id, nodes=move.to) for move in act.moves))


def refuse_elsewhere(act: Act, targets: tuple[Target, ...]) -> None:
    """A move is refused when the workload is no longer where it was to be moved from."""
    for move, target in zip(act.moves, targets, strict=False):
        if not set(target.nodes).issubset(move.was):
            raise RefusedError(
                f"{move.id} was to be moved from {shortlist(move.was)} and is on {shortlist(target.nodes)} now",
                "Plan the moves again: muster cell consolidate",
            )


def consolidate_steps(action: Action, act: Act, targets: tuple[Target, ...]) -> list[str]:
    facts = {target.id: workload_facts(action, target) for target in targets}
    return [
        f"move {move.id} ({facts[move.id]}) from {shortlist(move.was)} to {shortlist(move.to)}" for move in act.moves
    ]


def refuse_approved(act: Act, targets: tuple[Target, ...]) -> None:
    approved = tuple(target.id for target in targets if target.approved)
    if approved:
        raise RefusedError(f"the spending of {shortlist(approved)} is already approved", "Leave it out")


ACTIONS: tuple[Action, ...] = (
    Action(
        name="cancel",
        shell="cancel",
        verb="Cancel",
        summary="end workloads for good",
        past="cancelled",
        key="X",
        footer=True,
        parameters=WORKLOADS,
        kind="workload",
        states=LIVE,
        otherwise="Only work that has not ended can be cancelled",
        tier="T2",
        raised="it runs, or has run: completed work is lost",
        impact=("discards",),
        lost="Cancelled with work done",
        command="Cancel",
        edit="cancel",
        after=("cancelled",),
        verified="is cancelled",
        inverse="Cannot be undone: submit {them} again under a new id; work done so far is lost",
        undoes=(
            PUT_BACK, "resume", "release", "hold", "suspend", "preempt", "move", "set_priority", "resize",
            "approve_spending",
        ),
    ),
    Action(
        name="hold",
        verb="Hold",
        summary="keep queued workloads from starting",
        past="held",
        key="H",
        footer=True,
        parameters=WORKLOADS,
        kind="workload",
        states=("queued", "waiting"),
        otherwise="Only queued or waiting work can be held; requeue running work first",
        tier="T1",
        command="Hold",
        after=("held",),
        verified="is held",
        proof=(EffectProof("workload_state", "==", "held"),),
        inverse="Release {them}",
        back=by("release"),
        undoes=("release",),
    ),
    Action(
        name="release",
        verb="Release",
        summary="let held workloads start",
        past="released",
        key="L",
        footer=True,
        parameters=WORKLOADS,
        kind="workload",
        states=("held",),
        otherwise="Only held work can be released",
        tier="T1",
        command="Release",
        after=STARTABLE,
        done=leaves("held"),
        verified="is no longer held",
        proof=STARTS,
        inverse="Hold {them} while not yet started",
        back=by("hold"),
    ),
    Action(
        name=PUT_BACK,
        verb="Requeue",
        summary="stop running workloads and queue them again",
        past=RETURNED,
        key="R",
        footer=True,
        parameters=WORKLOADS,
        kind="workload",
        states=BOUND,
        otherwise="Only placed or running work can be requeued",
        tier="T2",
        raised=LARGE_WORK,
        impact=("stops_targets",),
        command="Requeue",
        edit="preempt",
        after=STARTABLE,
        done=stopped,
        verified="holds nothing, or runs in a later attempt",
        proof=STARTS,
        inverse="Cannot be undone: work since the last checkpoint is lost; place in the queue is kept",
    ),
    Action(
        name="preempt",
        verb="Preempt",
        summary="preempt running workloads, where the scheduler may do so too",
        past="preempted",
        parameters=WORKLOADS,
        kind="workload",
        states=BOUND,
        otherwise="Only placed or running work can be preempted",
        tier="T2",
        raised=LARGE_WORK,
        impact=("stops_targets",),
        command="Preempt",
        after=STARTABLE,
        done=stopped,
        verified="holds nothing, or runs in a later attempt",
        inverse="Cannot be undone: work since the last checkpoint is lost; place in the queue is kept",
    ),
    Action(
        name="suspend",
        verb="Suspend",
        summary="take workloads off their nodes until they are resumed",
        past="suspended",
        key="S",
        parameters=WORKLOADS,
        kind="workload",
        states=("queued", "waiting", *BOUND),
        otherwise="Only running or waiting work can be suspended; release held work first",
        tier="T1",
        raised=LOSES,
        impact=("stops_targets",),
        lost="Suspended from running",
        command="Suspend",
        after=("suspended",),
        verified="is suspended",
        proof=(EffectProof("workload_state", "==", "suspended"),),
        inverse="Resume {them}; work since the last checkpoint is lost",
        back=by("resume"),
        undoes=("resume",),
    ),
    Action(
        name="resume",
        verb="Resume",
        summary="queue suspended workloads again",
        past="resumed",
        key="E",
        parameters=WORKLOADS,
        kind="workload",
        states=("suspended",),
        otherwise="Only suspended work can be resumed",
        tier="T1",
        command="Resume",
        after=STARTABLE,
        done=leaves("suspended"),
        verified="is no longer suspended",
        proof=STARTS,
        inverse="Suspend {them}",
        back=by("suspend"),
    ),
    Action(
        name="move",
        label="Move to queue",
        verb="Move to another queue",
        summary="move waiting workloads to another queue; they keep their age",
        example=":move ID --to QUEUE",
        parameters={**WORKLOADS, "to": Parameter(type="queue", required=True)},
        arguments=(flag("to", metavar="QUEUE", required=True, of="queue"),),
        kind="workload",
        fields=TO,
        states=WAITS,
        otherwise="Only waiting work can be moved; requeue or suspend it first",
        refuse=refuse_same,
        replaces=lambda work: work.queue,
        tier="T1",
        raised=GIVES_WAY,
        impact=("displaces",),
        command="MoveToQueue",
        express=lambda act: commands.MoveToQueue(ids=act.targets, queue=required(act.to, "to")),
        done=has_given,
        verified="is in the given queue",
        proof=STARTS,
        inverse="Move {them} back to {was}, while not yet started",
        back=to_former,
        title=lambda act: f"Move {works(act)} to queue {act.to}",
        was=former,
        steps=steps_to,
        found=lambda before, now, done: f"{now.id} is in queue {now.was}",
    ),
    Action(
        name="set_priority",
        label="Set priority",
        verb="Set the priority of",
        summary="give workloads another priority class",
        example=":set-priority ID --to CLASS",
        parameters={**WORKLOADS, "to": Parameter(type="name", required=True)},
        arguments=(flag("to", metavar="CLASS", required=True),),
        kind="workload",
        fields=TO,
        states=LIVE,
        otherwise="Only work that has not ended has a priority",
        refuse=refuse_same,
        replaces=lambda work: work.priority_class,
        tier="T1",
        raised=GIVES_WAY,
        impact=("displaces",),
        command="SetPriority",
        express=lambda act: commands.SetPriority(ids=act.targets, priority_class=required(act.to, "to")),
        done=has_given,
        # A class of a mirror is of a QOS; its tier is the partition's, and its rank that of what waits.
        done_outside=lambda act, before, now: qos_of(now.was) == (qos_of(act.to) or act.to),
        verified="has the given class",
        proof=STARTS,
        inverse="Set the priority of {them} back to {was}; work preempted until then waits its turn",
        back=to_former,
        title=lambda act: f"Set the priority of {works(act)} to {act.to}",
        was=former,
        steps=steps_to,
        found=lambda before, now, done: f"{now.id} is of class {now.was}",
    ),
    Action(
        name="resize",
        verb="Resize",
        summary="change the request of workloads' tasks",
        example=":resize ID --request cpu=1 memory=2GiB",
        parameters={
            **WORKLOADS,
            "group": Parameter(type="name"),
            "cpu_milli": number(10**9, 1),
            "memory_mib": number(10**9, 1),
            "gpu_milli": number(10**9, 1),
            # Kept as a fact about a workload, for good.
            "evidence": Parameter(type="text", most=200, for_models=False),
        },
        some=("cpu_milli", "memory_mib", "gpu_milli"),
        arguments=(
            flag("group", metavar="NAME", help="which task group, if there are several", default=""),
            flag(
                "request", "quantities", "RESOURCE=QUANTITY", "of one task, such as cpu=1", many=True, required=True
            ),
        ),
        make=make_resize,
        read=read_resize,
        kind="workload",
        fields=("resize",),
        states=LIVE,
        otherwise="Only work that has not ended can be resized",
        refuse=refuse_same_request,
        depends=("state", "asks"),
        tier="T1",
        raised=LOSES,
        impact=("stops_targets",),
        command="Resize",
        express=express_resize,
        done=is_resized,
        verified="has the given request",
        proof=STARTS,
        inverse="Resize {them} back to {was}",
        back=resize_back,
        was=resize_was,
        steps=resize_steps,
        found=found_request,
    ),
    Action(
        name="approve_spending",
        label="Approve spending",
        verb="Approve the spending of",
        summary="let workloads start although a budget that needs approval is spent",
        past="approved",
        parameters=WORKLOADS,
        kind="workload",
        states=WAITS,
        otherwise="Only the spending of waiting work can be approved; running work does not need it",
        refuse=refuse_approved,
        tier="T1",
        command="ApproveSpending",
        done=lambda act, before, now: now.approved,
        verified="its spending is approved",
        proof=STARTS,
        inverse="Cannot be undone: hold {them} instead",
        found=lambda before, now, done: f"{state_of(now)}, its spending {'' if now.approved else 'not '}approved",
    ),
    Action(
        name="consolidate",
        shell="cell consolidate",
        label="Consolidate",
        verb="Move",
        summary="move running workloads to start others or free nodes",
        example=":consolidate --unblock ID",
        metavar="",
        parameters={
            "unblock": Parameter(type="workload_id"),
            "pool": Parameter(type="pool"),
            "free_nodes": number(1000, 1),
            "max_moves": number(200, 1, required=True, counts=True),
        },
        one_of=(("unblock", "free_nodes"),),
        arguments=(
            flag(
                "unblock", metavar="ID", help="so that this waiting workload starts", default="", of="workload_id"
            ),
            flag("free-nodes", "count", "N", "so that N nodes are empty", default=0),
            flag("pool", metavar="POOL", help="with --free-nodes: of this pool", default=""),
            flag("max-moves", "count", "K", "most workloads to move", default=0),
            flag("ratio", "ratio", "X", "least benefit for its cost (default 0.5; 0: any)", default=0.5),
        ),
        make=make_consolidate,
        read=lambda typed, cell: moves_act(cell.consolidation(consolidation_request(typed))),
        kind="workload",
        fields=("moves",),
        states=BOUND,
        otherwise="Only placed or running work can be moved; plan the moves again",
        refuse=refuse_elsewhere,
        depends=("state", "nodes"),
        tier="T2",
        raised=LARGE_WORK,
        impact=("stops_targets",),
        lost="Moved",
        command="Migrate",
        express=express_consolidate,
        done=lambda act, before, now: now.state in BOUND and now.attempts > before.attempts,
        verified="holds capacity in a later attempt",
        waits=True,
        timeout_ms=MINUTES_MS,
        inverse="Cannot be undone: work since the last checkpoint is lost; moving {them} back would lose more",
        steps=consolidate_steps,
        found=lambda before, now, done: f"{state_of(now)} on {shortlist(now.nodes)}" if now.nodes else "",
    ),
)  # fmt: skip
