"""What can be typed of actions: their names, and what stands behind each. Loads nothing heavy."""

from __future__ import annotations

import argparse

from console.arguments import count, integer, positive, ratio

ACTIONS = {
    "cancel": ("WORKLOAD", "end workloads for good"),
    "hold": ("WORKLOAD", "keep queued workloads from starting"),
    "release": ("WORKLOAD", "let held workloads start"),
    "requeue": ("WORKLOAD", "stop running workloads and queue them again"),
    "preempt": ("WORKLOAD", "have running workloads give way to others, where the scheduler might do so too"),
    "move": ("WORKLOAD", "waiting workloads wait in another queue, at their age"),
    "set-priority": ("WORKLOAD", "give workloads another priority class"),
    "set-qos": ("WORKLOAD", "give waiting jobs of Slurm another quality of service"),
    "set-job-priority": ("WORKLOAD", "give waiting jobs of Slurm a priority, which then stays"),
    "suspend": ("WORKLOAD", "take workloads off their nodes until they are resumed"),
    "resume": ("WORKLOAD", "let suspended workloads wait again"),
    "cordon": ("NODE", "nodes take no new work"),
    "uncordon": ("NODE", "nodes take work again"),
    "drain": ("NODE", "cordon nodes and move their work away"),
    "interrupt": ("NODE", "nodes get their notice as if the provider took them back"),
    "power-up": ("NODE", "have Slurm start nodes that it powers by need"),
    "power-down": ("NODE", "have Slurm stop nodes that it powers by need"),
    "hold-queue": ("QUEUE", "start nothing more from queues; what runs goes on"),
    "drain-queue": ("QUEUE", "start and take nothing more, and requeue what runs"),
    "open-queue": ("QUEUE", "held or draining queues take and start work again"),
    "set-quota": ("QUEUE", "give a queue another quota, weight, order or burst"),
    "reserve": ("NAME", "keep nodes for named queues or workloads during a window"),
    "unreserve": ("NAME", "take reservations back"),
    "set-policy": ("POLICY", "change how the cell orders and backfills"),
    "canary": ("QUEUE", "try another order of queues, or policy of the cell; keep it only if waits stay as they were"),
    "resize": ("WORKLOAD", "give the tasks of workloads another request"),
    "scale-pool": ("POOL", "nodes that a pool has from now on: the rest is ordered, or given back where it is empty"),
    "set-scaling": ("POOL", "how far a pool grows and shrinks by itself"),
    "set-targets": ("POOL", "nodes that a pool has from some time on, whatever waits"),
    "set-autoscaling": ("", "when the cell orders nodes and gives them back"),
    "set-price": ("POOL", "what a node of a pool costs from now on"),
    "set-budget": ("NAME", "what a tenant, a team or a queue may spend in each window"),
    "remove-budget": ("NAME", "take budgets back"),
    "approve-spending": ("WORKLOAD", "let workloads start whatever is left of budgets that ask for approval"),
    "consolidate": ("", "move running workloads so that others start or nodes come free"),
    "notify": ("CHANNEL", "tell channels of the policy something"),
    "open-review": ("ABOUT", "have a proposal, or anything else with an id, looked at by others"),
}
_TO = {"move": "QUEUE", "set-priority": "CLASS", "set-qos": "QOS", "set-job-priority": "NUMBER"}
"""What workloads get instead of what they have."""
POLICIES = ("fcfs", "easy", "easy-sjbf", "conservative")
ORDERS = ("best_effort", "strict_fifo", "fair")


def action_arguments(target: argparse.ArgumentParser, name: str) -> None:
    """What stands behind an action's name, in the shell as in the `:` bar of the console."""
    metavar, _ = ACTIONS[name]
    if name == "set-quota":
        _quota_arguments(target)
    elif name == "reserve":
        target.add_argument("name", metavar=metavar)
        target.add_argument("--nodes", required=True, metavar="NODES", help="ids with commas between")
        target.add_argument("--start", default="now", metavar="WHEN", help="now, +2h or 2026-03-01T14:30 (UTC)")
        target.add_argument("--end", required=True, metavar="WHEN")
        target.add_argument("--queues", default="", metavar="QUEUES", help="whose work may use the nodes meanwhile")
    elif name == "resize":
        target.add_argument("ids", nargs="+", metavar=metavar)
        target.add_argument("--group", default="", metavar="NAME", help="which tasks, where there are several groups")
        target.add_argument(
            "--request", nargs="+", required=True, metavar="RESOURCE=QUANTITY", help="of one task, such as cpu=1"
        )
    elif name == "set-policy":
        target.add_argument("policy", choices=POLICIES)
    elif name in _TO:
        target.add_argument("ids", nargs="+", metavar=metavar)
        target.add_argument("--to", required=True, metavar=_TO[name])
    elif name == "scale-pool":
        target.add_argument("pool", metavar=metavar)
        target.add_argument("nodes", type=count, metavar="NODES")
    elif name == "canary":
        target.add_argument("ids", nargs="*", metavar=metavar, help="none with --policy")
        tried = target.add_mutually_exclusive_group(required=True)
        tried.add_argument("--order", choices=ORDERS, help="of these queues")
        tried.add_argument("--policy", choices=POLICIES, help="of the whole cell")
        target.add_argument("--window", default="1h", metavar="TIME", help="of the cell, after which it is judged (1h)")
        target.add_argument("--worst-percent", type=count, default=110, metavar="N", help="waits in percent (110)")
        target.add_argument("--least-starts", type=count, default=20, metavar="N", help="that a verdict needs (20)")
    elif name in ("notify", "open-review"):
        target.add_argument("ids", nargs="+" if name == "notify" else 1, metavar=metavar)
        target.add_argument("--text", required=True, help="one line")
    elif name == "set-scaling":
        target.add_argument("pool", metavar=metavar)
        for field, told in (
            ("least", "nodes it never shrinks below"),
            ("most", "nodes it never grows above"),
            ("headroom", "whole nodes that are kept free"),
        ):
            target.add_argument(f"--{field}", type=count, metavar="N", help=told)
        target.add_argument("--priority", type=integer, metavar="N", help="pools of a higher one are tried first")
    elif name == "set-targets":
        target.add_argument("pool", metavar=metavar)
        target.add_argument("targets", nargs="+", metavar="TIME=NODES", help="as +2h=40; none: takes them all back")
    elif name == "set-autoscaling":
        target.add_argument("--preset", default="", metavar="NAME", help="seed or ca; what is given besides changes it")
        target.add_argument("settings", nargs="*", metavar="SETTING=VALUE", help="as scan_every=30s enabled=no")
    elif name == "set-price":
        target.add_argument("pool", metavar=metavar)
        target.add_argument("price", metavar="PRICE", help="in USD per hour, such as 12.5")
    elif name == "set-budget":
        _budget_arguments(target)
    elif name == "consolidate":
        target.add_argument("--unblock", default="", metavar="ID", help="so that this waiting workload starts")
        target.add_argument("--free-nodes", type=count, default=0, metavar="N", help="so that N nodes are empty")
        target.add_argument("--pool", default="", metavar="POOL", help="with --free-nodes: of this pool")
        target.add_argument("--max-moves", type=count, default=0, metavar="K", help="most workloads to move")
        target.add_argument(
            "--ratio", type=ratio, default=0.5, metavar="X", help="least benefit for its cost (default 0.5; 0: any)"
        )
    else:
        target.add_argument("ids", nargs="+", metavar=metavar)


def _budget_arguments(target: argparse.ArgumentParser) -> None:
    """What is not given stays as it is."""
    target.add_argument("name", metavar="NAME")
    whose = target.add_mutually_exclusive_group()
    whose.add_argument("--tenant", default="")
    whose.add_argument("--team", default="")
    whose.add_argument("--queue", default="", help="with all queues below it")
    target.add_argument("--limit", metavar="USD", help="that may be spent in each window")
    target.add_argument("--window", metavar="TIME", help="such as 1d, 7d or 30d (default); windows follow each other")
    target.add_argument(
        "--then",
        choices=("warn", "hold", "approve"),
        help="when all is spent: show it (default), start nothing more of it, or only what somebody approves",
    )
    target.add_argument("--warn-percent", type=count, metavar="N", help="of the limit, shown from then on (80)")


def _quota_arguments(target: argparse.ArgumentParser) -> None:
    """What is not given stays as it is."""
    amounts = {"nargs": "+", "metavar": "RESOURCE=QUANTITY"}
    target.add_argument("queue", metavar="QUEUE")
    target.add_argument("--nominal", **amounts, help="its own quota, such as gpu=24 memory=1TiB; none removes one")
    target.add_argument("--borrowing-limit", **amounts, help="most it may use above that")
    target.add_argument("--lending-limit", **amounts, help="most of its idle quota that others may use")
    target.add_argument("--weight", type=positive, metavar="N", help="share it deserves beside its siblings")
    target.add_argument("--order", choices=ORDERS, help="within the queue")
    target.add_argument("--reclaim", choices=("never", "lower_priority", "any"), help="whose work it may preempt")
    target.add_argument("--burst", **amounts, help="most it may use in all for a while; none for no burst")
    target.add_argument("--burst-window", metavar="TIME", help="how long a burst lasts")
    target.add_argument("--burst-cooldown", metavar="TIME", help="pause before the next")
    target.add_argument("--min-runtime", metavar="TIME", help="its work is not preempted before")
    target.add_argument(
        "--disruptions", type=integer, metavar="N", help="most preemptions in a window; -1 for no limit"
    )
    target.add_argument("--disruption-window", metavar="TIME")
    target.add_argument("--start-within", metavar="TIME", help="objective: its work starts within it; 0 for none")
    target.add_argument("--objective", metavar="PERCENT", help="how much of its work should, such as 95%%")
    target.add_argument(
        "--placement", nargs="+", metavar="PROFILE|SCORE=WEIGHT", help="how its nodes are chosen; none: as pools say"
    )
    target.add_argument(
        "--over",
        choices=("refuse", "keep", "evict"),
        default="refuse",
        help="if more is in use: name what would have to go (default), let it run out, or requeue it",
    )
