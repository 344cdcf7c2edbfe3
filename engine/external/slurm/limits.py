"""Why Slurm lets work wait: limits of QOS and associations, reason codes, and both in words.

`ClusterLimits` tells how much each limit lets run, how much is in use and by whom, and which limits stop a job. Slurm
keeps its own count of usage and does not show it by REST. It is counted here from the jobs that Slurm shows, as
acct_policy.c counts it: what holds nodes now, by QOS, or by account with all accounts below it.

`reason_words` gives the meaning of a reason code and what would help. Sources: squeue(1), JOB REASON CODES;
`job_state_reason` and `job_reason_string` of slurm.h and slurm_protocol_defs.c, 22.05 to 26.05. Codes of limits are put
together by Slurm from the one who limits (association, QOS), the scope (group, user, job) and the resource, so they are
read in parts.

The last functions give the reasons of waiting work in a mirrored cell: Slurm's word first, then the mirror's own view.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from engine.external.slurm.records import Association, Job, Qos, SlurmPartition
from engine.model.details import Reason
from engine.model.specs import WorkloadState

MAX_USERS = 4
"""Of those who use a limit so many are named, the largest first."""
JOBS = "jobs"
SUBMITTED = "submitted jobs"
TIME = "run time"
_SCOPES = {"PerUser": "user", "PerUs": "user", "PerAcc": "account", "PerJob": "job", "PerNode": "node"}
_BY_CODE = {
    "CPU": ("cpu",), "Cpu": ("cpu",), "Mem": ("mem",), "Memory": ("mem",), "Node": ("node",), "GRES": ("gres",),
    "Gres": ("gres",), "Billing": ("billing",), "Jobs": (JOBS,), "Job": (JOBS,), "SubmitJob": (SUBMITTED,),
    "Submit": (SUBMITTED,), "WallDuration": (TIME,), "Wall": (TIME,), "License": ("license",), "BB": ("bb",),
    "Energy": ("energy",),
}  # fmt: skip
_CODE = re.compile(
    r"(?P<by>QOS|Assoc)(?P<what>Grp|Max)(?P<over>CPU|Cpu|Memory|Mem|Node|GRES|Gres|Billing|SubmitJob|Submit|Jobs?|"
    r"WallDuration|Wall|License|BB|Energy)(?P<rest>.*)"
)

if TYPE_CHECKING:
    from engine.state.cell_state import State


MEANS_PENDING = frozenset(["REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"])
"""Flags of a job that say that it waits where its state does not."""
_HELD_FLAGS = frozenset(("REQUEUE_HOLD", "SPECIAL_EXIT"))
_HELD_REASONS = frozenset(("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"))


def is_held(job: Job) -> bool:
    """Return whether the job waits until somebody releases it."""
    return job.held or job.reason in _HELD_REASONS or not job.flags.isdisjoint(_HELD_FLAGS)


def is_limit(reason: str) -> bool:
    """Return whether the reason is a limit of a QOS or an association: room on nodes would not help."""
    return _CODE.match(reason) is not None


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """One user's part of a limit."""

    user: str
    amount: int
    jobs: int


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit and what is in use of it. Names are untrusted."""

    of: str
    """Who sets it, in words: `QOS high`, `account research`."""
    over: str
    """`cpu`, `mem` (MiB), `node`, `gres/gpu`, `jobs`, `submitted jobs`, `run time` (seconds), ..."""
    scope: str
    """`all` running jobs together, or those of one `user` or one `account`; `job`: each job by itself."""
    most: int
    used: int = 0
    by: tuple[Use, ...] = ()
    """The largest first; not of a limit on each job."""
    wanted: int = 0
    """By the job that is asked about."""

    @property
    def is_over(self) -> bool:
        return self.used + self.wanted > self.most


class Cap(msgspec.Struct, frozen=True):
    """A limit on what runs together of one QOS, account or user, by the name that tells it apart."""

    name: str
    most: int


class ClusterLimits:
    """All limits of a cluster, as accounting has them."""

    def __init__(
        self,
        qos: Iterable[Qos],
        associations: Iterable[Association],
        partitions: Iterable[SlurmPartition],
        cluster: str = "",
    ) -> None:
        qos, associations = tuple(qos), tuple(associations)
        self._qos = {each.name: each for each in qos}
        self._partition_qos = {each.name: each.qos for each in partitions if each.qos}
        self._accounts: dict[str, Association] = {}
        self._users: dict[tuple[str, str], Association] = {}
        for each in associations:
            if cluster and each.cluster and each.cluster != cluster:
                continue
            if not each.user:
                self._accounts[each.account] = each
            elif not each.partition or (each.account, each.user) not in self._users:
                self._users[each.account, each.user] = each
        self.made_of = qos, associations, self._partition_qos
        """Equal ones limit alike."""
        self._caps_of: dict[tuple[str, ...], tuple[tuple[Cap, str], ...]] = {}

    def stopping(self, job: Job, jobs: Iterable[Job]) -> tuple[Limit, ...]:
        """Limits that the job's reason is about, those first that it would exceed; none for another reason. `jobs`:
        all that the controller shows."""
        found = _CODE.match(job.reason)
        if found is None or "RunMin" in found["rest"] or "Minutes" in found["rest"]:
            return ()
        kinds = _BY_CODE[found["over"]]
        scope = "all" if found["what"] == "Grp" else next(
            (scope for code, scope in _SCOPES.items() if found["rest"].startswith(code)), "")  # fmt: skip
        by = "QOS" if found["by"] == "QOS" else "A"
        held = list(jobs)
        every = [
            limit
            for limit in self._of(job, held)
            if (limit.of.startswith("QOS") == (by == "QOS")) and limit.over.split("/")[0] in kinds
        ]
        exact = [limit for limit in every if not scope or limit.scope == scope] or every
        return tuple(sorted(exact, key=lambda limit: not limit.is_over))

    def all(self, jobs: Iterable[Job]) -> tuple[Limit, ...]:
        """Return the limits on all running jobs together, with their use; then those on each user, account and job."""
        held = list(jobs)
        found: list[Limit] = []
        for qos in self._qos.values():
            found += self._of_qos(qos, held, None)
        for account in self._accounts.values():
            found += self._of_account(account, held, None)
        return tuple(found)

    def draws(self, job: Job) -> tuple[tuple[str, int], ...]:
        """Limits on what runs together that count the job while it runs, by name, and how much of each it takes."""
        return tuple((cap.name, amount) for cap, over in self.caps(job) if (amount := amount_of(job, over)) > 0)

    def holds_by_cap(self, job: Job) -> bool:
        """Return whether the limit that is the job's reason is one that a cap tells: then it is over when enough has
        ended."""
        found = _CODE.match(job.reason)
        if found is None or "Min" in found["rest"] or found["rest"].startswith(("PerJob", "PerNode")):
            return False
        kinds = _BY_CODE[found["over"]]
        return any(over.split("/")[0] in kinds for _, over in self.caps(job))

    def caps(self, job: Job) -> tuple[tuple[Cap, str], ...]:
        """Return the caps that count the job, each with the resource it limits."""
        key = (job.account, job.user, job.qos, job.partition)
        if key not in self._caps_of:
            self._caps_of[key] = tuple(self._caps(job))
        return self._caps_of[key]

    def _caps(self, job: Job) -> Iterator[tuple[Cap, str]]:
        """Yield the caps that count the job. What a QOS limits is not limited by accounts (acct_policy.c), and a
        partition's QOS goes before the job's."""
        partition = self._partition_qos.get(job.partition.split(",")[0], "")
        done: set[tuple[str, str]] = set()
        for name in dict.fromkeys((partition, job.qos)):
            if (qos := self._qos.get(name)) is not None:
                everybody = {**qos.tres_total, **_counts(qos.jobs_total, None)}
                users = {**qos.tres_per_user, **_counts(qos.jobs_per_user, None)}
                accounts = {**qos.tres_per_account, **_counts(qos.jobs_per_account, None)}
                yield from _as_caps(f"QOS {name}", "", everybody, done, "all")
                yield from _as_caps(f"QOS {name}", f" of user {job.user}", users, done, "user")
                yield from _as_caps(f"QOS {name}", f" of account {job.account}", accounts, done, "account")
        own = self._users.get((job.account, job.user))
        account = self._accounts.get(job.account)
        most = own.jobs_max if own is not None and _is_limit(own.jobs_max) else account.jobs_max if account else None
        mine = f"user {job.user} in account {job.account}"
        yield from _as_caps(mine, "", _counts(most, None), set(done), "user")
        if own is not None:
            yield from _as_caps(mine, "", {**own.tres_total, **_counts(own.jobs_total, None)}, set(done), "all")
        seen: set[str] = set()
        while account is not None and account.account not in seen:
            seen.add(account.account)
            total = {**account.tres_total, **_counts(account.jobs_total, None)}
            yield from _as_caps(f"account {account.account}", "", total, set(done), "all")
            account = self._accounts.get(account.parent)

    def _of(self, job: Job, held: list[Job]) -> Iterator[Limit]:
        names = dict.fromkeys([*(self._partition_qos.get(name, "") for name in job.partition.split(",")), job.qos])
        for name in names:
            if name in self._qos:
                yield from self._of_qos(self._qos[name], held, job)
        own = self._users.get((job.account, job.user))
        if own is not None:
            yield from self._of_user(own, held, job)
        account = self._accounts.get(job.account)
        seen: set[str] = set()
        while account is not None and account.account not in seen:
            seen.add(account.account)
            yield from self._of_account(account, held, job)
            account = self._accounts.get(account.parent)

    def _of_qos(self, qos: Qos, held: list[Job], job: Job | None) -> Iterator[Limit]:
        of = f"QOS {qos.name}"

        def mine(each: Job) -> bool:
            return qos.name in (each.qos, self._partition_qos.get(each.partition))

        yield from _limits(of, "all", {**qos.tres_total, **_counts(qos.jobs_total, None)}, held, mine, job)
        per_user = {**qos.tres_per_user, **_counts(qos.jobs_per_user, qos.submitted_per_user)}
        yield from _limits(
            of, "user", per_user, held, lambda each: mine(each) and (job is None or each.user == job.user), job
        )
        per_account = {**qos.tres_per_account, **_counts(qos.jobs_per_account, qos.submitted_per_account)}
        yield from _limits(
            of,
            "account",
            per_account,
            held,
            lambda each: mine(each) and (job is None or each.account == job.account),
            job,
        )
        yield from _of_each_job(of, qos.tres_per_job, qos.wall_limit_s, job)

    def _of_user(self, own: Association, held: list[Job], job: Job) -> Iterator[Limit]:
        of = f"user {own.user} in account {own.account}"

        def mine(each: Job) -> bool:
            return (each.account, each.user) == (own.account, own.user)

        total = own.jobs_total if _is_limit(own.jobs_total) else own.jobs_max
        submitted = own.submitted_total if _is_limit(own.submitted_total) else own.submitted_max
        yield from _limits(of, "all", {**own.tres_total, **_counts(total, submitted)}, held, mine, job)
        yield from _of_each_job(of, own.tres_per_job, own.wall_limit_s, job)

    def _of_account(self, account: Association, held: list[Job], job: Job | None) -> Iterator[Limit]:
        of = f"account {account.account}"
        below = self._below(account.account)
        total = {**account.tres_total, **_counts(account.jobs_total, account.submitted_total)}
        yield from _limits(of, "all", total, held, lambda each: each.account in below, job)
        if job is None:
            yield from _limits(of, "user", _counts(account.jobs_max, account.submitted_max), held,
                               lambda each: each.account == account.account, job)  # fmt: skip
            yield from _of_each_job(of, account.tres_per_job, account.wall_limit_s, None)

    def _below(self, account: str) -> set[str]:
        """It, and all accounts under it."""
        found, more = {account}, [account]
        while more:
            above = more.pop()
            new = [
                each.account for each in self._accounts.values() if each.parent == above and each.account not in found
            ]
            found.update(new)
            more += new
        return found


def _limits(
    of: str, scope: str, most: dict[str, int], held: list[Job], mine: Callable[[Job], bool], job: Job | None
) -> Iterator[Limit]:
    if not most:
        return
    here = [each for each in held if mine(each)]
    for over, limit in most.items():
        uses: dict[str, list[int]] = {}
        for each in here:
            counts = each.holding or (over == SUBMITTED and each.state == "PENDING")
            amount = amount_of(each, over) if counts else 0
            if amount:
                uses.setdefault(each.user or each.account, []).append(amount)
        by = sorted((Use(user=user, amount=sum(all_), jobs=len(all_)) for user, all_ in uses.items()),
                    key=lambda use: (-use.amount, use.user))  # fmt: skip
        yield Limit(
            of=of,
            over=over,
            scope=scope,
            most=limit,
            # Of a limit on every user or account, with nobody asked about, what the largest has.
            used=sum(use.amount for use in by) if scope == "all" or job else max((use.amount for use in by), default=0),
            by=tuple(by[:MAX_USERS]),
            wanted=0 if job is None or over == SUBMITTED else amount_of(job, over),
        )


def _as_caps(
    of: str, whose: str, most: dict[str, int], done: set[tuple[str, str]], scope: str
) -> Iterator[tuple[Cap, str]]:
    for over, limit in most.items():
        if limit >= 0 and (scope, over) not in done:
            done.add((scope, over))
            yield Cap(f"{of}: {over}{whose}", limit), over


def _of_each_job(of: str, tres: dict[str, int], wall_s: int | None, job: Job | None) -> Iterator[Limit]:
    for over, limit in {**tres, **({TIME: wall_s} if wall_s is not None and wall_s > 0 else {})}.items():
        yield Limit(of=of, over=over, scope="job", most=limit, wanted=0 if job is None else amount_of(job, over))


def amount_of(job: Job, over: str) -> int:
    """Return the amount of a limited resource that the job has, or asks for while it waits."""
    if over in (JOBS, SUBMITTED):
        return 1
    if over == TIME:
        return max(job.time_limit_s or 0, 0)
    tres = job.tres_held if job.holding and job.tres_held else job.tres_wanted
    if over in tres:
        return tres[over]
    if over.startswith("gres/") and ":" not in over:
        return sum(count for name, count in tres.items() if name.startswith(over + ":"))
    return {"cpu": job.cpus, "node": max(len(job.nodes), job.nodes_min), "mem": job.memory_mib or 0}.get(over, 0)


def _is_limit(value: int | None) -> bool:
    return value is not None and value >= 0


def _counts(jobs: int | None, submitted: int | None) -> dict[str, int]:
    given = {JOBS: jobs, SUBMITTED: submitted}
    return {over: most for over, most in given.items() if most is not None and most >= 0}


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
        "its dependency can no longer be met: it will never start", "cancel it, or change its dependency"
    ),
    "BeginTime": ReasonWords(
        "its begin time has not come; after a requeue Slurm sets one itself, two minutes ahead by default"
    ),
    "JobHeldUser": ReasonWords("its user put it on hold", "release it"),
    "JobHeldAdmin": ReasonWords(
        "an administrator put it on hold, or its priority was set to 0", "an administrator releases it"
    ),
    "JobHoldMaxRequeue": ReasonWords(
        "it failed to start too often and was put on hold", "check why it failed, then release it"
    ),
    "JobLaunchFailure": ReasonWords(
        "it could not be launched: a node, a file system or the script's interpreter failed",
        "check slurmd's log on its nodes",
    ),
    "launch_failed_requeued_held": ReasonWords(
        "its launch failed, so it was requeued and put on hold", "check why it failed, then release it"
    ),
    "RaisedSignal:53(Real-time_signal_19)": ReasonWords(
        "its output file or working directory could not be opened", "check that the folder exists and is writable"
    ),
    "NodeDown": ReasonWords("a node that it needs is down"),
    "BadConstraints": ReasonWords("no node can ever meet what it asks for", "change its constraint or its request"),
    "PartitionDown": ReasonWords(
        "its partition is down: jobs are accepted, none are started", "set the partition up again"
    ),
    "PartitionInactive": ReasonWords(
        "its partition is inactive: no jobs are accepted or started", "set the partition up again"
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
    "JobArrayTaskLimit": ReasonWords("its array's limit of running tasks is reached", "raise the limit of the array"),
    "InvalidAccount": ReasonWords("its account is no longer valid", "give it another account"),
    "InvalidQOS": ReasonWords("its QOS is no longer valid", "give it another QOS"),
    "AccountNotAllowed": ReasonWords("its account may not use this partition", "use another partition or account"),
    "QOSNotAllowed": ReasonWords("its QOS may not be used in this partition, or by its account", "give it another QOS"),
    "AccountingPolicy": ReasonWords("a limit of its account stops it"),
    "FrontEndDown": ReasonWords("no front-end node is up"),
    "SchedDefer": ReasonWords("it waits for the main scheduler, which has not reached it yet"),
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


def reason_words(reason: str) -> ReasonWords | None:
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


UNSEEN = "AwaitingEvaluation"
"""The engine's own token where no gate is closed."""
FITS = "FitsNow"
SPEAKERS = {"slurm": "Slurm", "kubernetes": "Kueue"}
"""Who decides -> whose words are shown."""
_WAITS = (WorkloadState.QUEUED, WorkloadState.HELD, WorkloadState.WAITING, WorkloadState.SUSPENDED)
_TOKEN = re.compile(r"[A-Za-z0-9_:.-]{1,64}")


def outside_token(state: State, row: int) -> str:
    """The scheduler's word, as far as it can stand in a list; empty where it says nothing or the work does not wait."""
    word = state.outside.word_of(row) if state.outside.word else ""
    if not word or state.workloads.state[row] not in _WAITS:
        return ""
    found = _TOKEN.match(word)
    return found[0] if found else ""


def outside_reasons(state: State, row: int) -> tuple[Reason, ...]:
    """One, or none. The text holds the scheduler's own words: untrusted."""
    token = outside_token(state, row)
    if not token:
        return ()
    word, speaker = state.outside.word_of(row), SPEAKERS[state.settings.decided_by]
    known = reason_words(word) if state.settings.decided_by == "slurm" else None
    if known is None:
        return (Reason(token=token, text=f"{speaker} says {word}"),)
    return (Reason(token=token, text=f"Slurm says {word}: {known.text}", unblock=known.helps),)


def not_foretold(state: State, row: int) -> str:
    """The limit of the scheduler that holds it, where no forecast knows when that lets go; empty for all others."""
    word = outside_token(state, row)
    if not word or state.workloads.state[row] != WorkloadState.WAITING or not is_limit(word):
        return ""
    return (
        f"{word} holds it, which no forecast knows: it tells no start, and there is none before that limit or what is "
        "asked for is changed, or what it counts has decayed"
    )


def without_cycle(own: tuple[Reason, ...], decided_by: str) -> tuple[Reason, ...]:
    """The mirror waits for no cycle of its own: where it sees nothing in the way it says so."""
    who = SPEAKERS[decided_by]
    text = f"as far as the mirror sees, it would fit now: a rule of {who}'s holds it, or {who} has not looked yet"
    return tuple(Reason(token=FITS, text=text) if reason.token == UNSEEN else reason for reason in own)
