"""What becomes of each command in a cell that another scheduler decides on: asked of that one, done by Muster alone, or
refused with what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

from engine.model import commands as cmd

CARRIED: tuple[type[cmd.Command], ...] = (
    cmd.Submit, cmd.Cancel, cmd.Hold, cmd.Release, cmd.Requeue, cmd.Preempt, cmd.SetPriority, cmd.SetQos,
    cmd.SetJobPriority, cmd.MoveToQueue, cmd.Cordon, cmd.Uncordon, cmd.Drain, cmd.RestoreNodes, cmd.HoldQueues,
    cmd.DrainQueues, cmd.OpenQueues, cmd.Reserve, cmd.Unreserve, cmd.PowerUp, cmd.PowerDown,
)  # fmt: skip
"""Commands that become intents: what another scheduler can be asked for."""
OURS: tuple[type[cmd.Command], ...] = (
    cmd.SettleIntents, cmd.AnswerIntent, cmd.SetPrice, cmd.SetBudgets, cmd.RemoveBudgets, cmd.ApproveSpending,
    cmd.WatchNodes, cmd.UnwatchNodes, cmd.Define, cmd.SetSettings,
)  # fmt: skip
"""Commands about what Muster alone keeps: done as in any cell."""
WHY_NOT: dict[type[cmd.Command], str] = {
    cmd.Suspend: "Slurm suspends a job on its nodes, where it keeps its memory: hold or requeue it instead",
    cmd.Resume: "nothing is suspended by Muster here",
    cmd.Resize: "Slurm's jobs keep what they asked for: cancel it and submit it anew",
    cmd.Migrate: "Slurm chooses the nodes: drain a node, or requeue the work",
    cmd.SetPolicy: "the order of work is slurm.conf's",
    cmd.OrderQueues: "the order of work is slurm.conf's",
    cmd.ChangeQueue: "limits are those of slurmdbd: use sacctmgr",
    cmd.SetScaling: "nodes are powered by slurmctld: see SuspendTime in slurm.conf",
    cmd.SetTargets: "nodes are powered by slurmctld: power nodes up or down by name",
    cmd.ScalePool: "nodes are powered by slurmctld: power nodes up or down by name",
    cmd.SetAutoscaling: "nodes are powered by slurmctld: see SuspendTime in slurm.conf",
    cmd.Interrupt: "Slurm knows no notice of a provider: drain the nodes",
    cmd.FailNodes: "slurmctld finds out itself which nodes are down: drain them",
    cmd.RemoveNodes: "nodes are those of slurm.conf",
    cmd.AddPools: "nodes are those of slurm.conf",
    cmd.AddNodes: "nodes are those of slurm.conf",
    cmd.AddQueues: "queues are the partitions of slurm.conf",
    cmd.AddPriorityClasses: "they follow from Slurm's partitions and QOS",
    cmd.RemovePriorityClasses: "they follow from Slurm's partitions and QOS",
}
"""Why others cannot be done in a cell that Slurm decides on, and what can."""


def why_not(command: type[cmd.Command], *, acts: bool, lacks: Mapping[type[cmd.Command], str]) -> str:
    """Why it cannot be done in a cell that Slurm decides on; empty when it can. `lacks`: what this release of it, as it
    is reached, cannot be asked for."""
    if command in OURS or command not in (*CARRIED, *WHY_NOT):
        return ""
    if command not in CARRIED:
        return WHY_NOT[command]
    if not acts:
        return "Muster only observes this cluster (muster serve --slurm-act lets it act)"
    return lacks.get(command, "")
