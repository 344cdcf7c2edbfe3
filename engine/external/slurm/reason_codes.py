"""Slurm's reason codes in words: what each means for the job, and what would change it.

Sources: squeue(1), JOB REASON CODES; `job_state_reason` and `job_reason_string` of slurm.h, slurm_protocol_defs.c,
22.05 to 26.05. Codes of limits are put together by Slurm from who limits (association, QOS), over what (group, user,
job) and which resource, so they are read in parts instead of being listed.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class ReasonWords(NamedTuple):
    """A reason code in words."""

    text: str
    helps: str = ""
    """What somebody could do; empty where it is a matter of waiting."""


_KNOWN: dict[str, ReasonWords] = {
    "Priority": ReasonWords("others of higher priority wait for the same nodes, and go first"),
    "Resources": ReasonWords("it is the next for its nodes, and waits until enough of them are free"),
    "Dependency": ReasonWords("another job has to start or end first"),
    "DependencyNeverSatisfied": ReasonWords(
        "what it depends on can no longer come true: it waits for ever", "cancel it, or change its dependency"
    ),
    "BeginTime": ReasonWords(
        "its begin time has not come; after a requeue Slurm sets one itself, two minutes ahead by default"
    ),
    "JobHeldUser": ReasonWords("its user put it on hold", "release it"),
    "JobHeldAdmin": ReasonWords(
        "an administrator put it on hold, or its priority was set to 0", "an administrator releases it"
    ),
    "JobHoldMaxRequeue": ReasonWords(
        "it failed to start too often and was put on hold", "look why it failed, then release it"
    ),
    "JobLaunchFailure": ReasonWords(
        "it could not be launched: a node, a file system or the script's interpreter failed",
        "look into slurmd's log on its nodes",
    ),
    "launch_failed_requeued_held": ReasonWords(
        "its launch failed, so it was requeued and put on hold", "look why it failed, then release it"
    ),
    "RaisedSignal:53(Real-time_signal_19)": ReasonWords(
        "its output file or working directory could not be opened", "check that the folder is there and may be written"
    ),
    "NodeDown": ReasonWords("a node that it needs is down"),
    "BadConstraints": ReasonWords("no node can ever meet what it asks for", "change its constraint or its request"),
    "PartitionDown": ReasonWords(
        "its partition is down: jobs are taken, none is started", "set the partition up again"
    ),
    "PartitionInactive": ReasonWords(
        "its partition is inactive: no job is taken or started", "set the partition up again"
    ),
    "PartitionNodeLimit": ReasonWords(
        "it asks for more nodes than the partition has or lets one job have, or for nodes that are down",
        "ask for fewer nodes or use another partition",
    ),
    "PartitionTimeLimit": ReasonWords("its time limit is above that of the partition", "lower the time limit"),
    "ReqNodeNotAvail": ReasonWords(
        "a node it names is down, drained or reserved, or a reservation begins before it would end"
    ),
    "Reservation": ReasonWords("it waits for the reservation it names to begin or to have room"),
    "ReservationDeleted": ReasonWords("the reservation it named is gone", "name another one or none"),
    "Licenses": ReasonWords("the licenses it asks for are in use"),
    "Prolog": ReasonWords("a prolog still runs on its nodes"),
    "Cleaning": ReasonWords("its last attempt is still being cleaned up on its nodes"),
    "NonZeroExitCode": ReasonWords("it ended with an exit code that is not 0"),
    "JobArrayTaskLimit": ReasonWords("its array lets no more of its tasks run at once", "raise the limit of the array"),
    "InvalidAccount": ReasonWords("its account is not valid any more", "give it another account"),
    "InvalidQOS": ReasonWords("its QOS is not valid any more", "give it another QOS"),
    "AccountNotAllowed": ReasonWords("its account may not use this partition", "use another partition or account"),
    "QOSNotAllowed": ReasonWords("its QOS may not be used in this partition, or by its account", "give it another QOS"),
    "AccountingPolicy": ReasonWords("a limit of its account stops it"),
    "FrontEndDown": ReasonWords("no front-end node is up"),
    "SchedDefer": ReasonWords("it asked to be looked at by the regular scheduler, which has not come to it"),
    "DeadLine": ReasonWords("it could not end before its deadline"),
    "TimeLimit": ReasonWords("it ran into its time limit"),
    "SystemFailure": ReasonWords("Slurm, the network or a file system failed"),
    "InactiveLimit": ReasonWords("it was inactive for too long"),
    "FedJobLock": ReasonWords("the clusters of the federation are still agreeing on it"),
    "BurstBufferResources": ReasonWords("the burst buffer has no room for it"),
    "BurstBufferStageIn": ReasonWords("its data is being staged in"),
    "MaxMemPerLimit": ReasonWords(
        "it asks for more memory than its partition lets a CPU or node have", "ask for less memory"
    ),
    "MaxRequeue": ReasonWords("it was requeued as often as the cluster allows", "release it"),
    "ResvInvalid": ReasonWords("the reservation it names is not valid", "name another one or none"),
}
_LIMIT = re.compile(
    r"(?P<by>QOS|Assoc|Association)(?P<what>Grp|Group|Max)?(?P<resource>Billing|BB|CPU|Cpu|Energy|GRES|License|Mem|Memory|"
    r"Node|Jobs?|Submit|SubmitJob|Wall|WallDuration|TimeLimit|Prio|Usage|UsageFactor|Unknown|MinCpu|MinGRES|MinMemory|"
    r"MinNode)?(?P<minutes>RunMin(ute)?s?|Minutes?|Mins?)?(?P<per>PerAccount|PerAcct|PerJob|PerNode|PerUser|MinutesPerJob|"
    r"MinsPerJob)?.*"
)
_RESOURCES = {
    "CPU": "CPUs", "Cpu": "CPUs", "Mem": "memory", "Memory": "memory", "Node": "nodes",
    "GRES": "GPUs and other generic resources",
    "Job": "jobs", "Jobs": "jobs", "Submit": "submitted jobs", "SubmitJob": "submitted jobs",
    "Wall": "wall time", "WallDuration": "wall time", "TimeLimit": "time limits", "License": "licenses",
    "BB": "burst buffer", "Billing": "billing units", "Energy": "energy",
}  # fmt: skip
_PER = {"PerAcc": "of an account", "PerJob": "of one job", "PerNode": "on one node", "PerUse": "of a user"}


def said(reason: str) -> ReasonWords | None:
    """The code in words; None for one that is not known, or for none."""
    if not reason or reason == "None":
        return None
    code = reason.partition(",")[0].strip()
    known = _KNOWN.get(code) or _KNOWN.get(code.rstrip(")").partition("(")[0])
    if known is not None:
        return known
    found = _LIMIT.fullmatch(code)
    if found is None or not (found["what"] or found["resource"]):
        return None
    who = "the QOS" if found["by"] == "QOS" else "its account or user"
    what = _RESOURCES.get(found["resource"] or "", "resources")
    what = f"running minutes of {what}" if found["minutes"] else what
    whose = next((words for key, words in _PER.items() if (found["per"] or "").find(key) >= 0), "")
    if found["what"] in ("Grp", "Group"):
        whose = "of all running jobs together"
    text = " ".join(f"a limit of {who} on the {what} {whose}".split())
    return ReasonWords(f"{text} is reached", "wait until others end, ask for less, or raise the limit")
