"""The mirror of one Slurm cluster in one engine: one pass reads what is new there and gives it to the engine.

A pass asks for what may have changed, turns it into observations (`mapping`), and gives the engine those that differ
from the last ones. A look reads the whole list of jobs, a glance only the states of those that moved. The mirror keeps
nothing that another first look would not find again. `mirror_watch` decides when a pass is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from engine.control import Engine
from engine.external.mirror_pass import Call, MirrorPass, live_of, tell
from engine.external.mirror_report import LeftOut, UnsupportedCounts
from engine.external.slurm.capabilities import SlurmGone, SlurmRefused
from engine.external.slurm.job_requests import SKEW_S, Identities, RecordedSubmission, number_of, token_in
from engine.external.slurm.limits import ClusterLimits
from engine.external.slurm.mapping import BootTimes, JobMapping, Machines, Order, machines, tasks_of
from engine.external.slurm.records import (
    OVER_STATES,
    Job,
    JobState,
    Node,
    PastJob,
    Qos,
    SlurmPartition,
    SlurmReservation,
    TopologySwitch,
)
from engine.external.slurm.records import JobList as Listed
from engine.model import external_cells as seen
from engine.model.commands import Submit
from engine.model.errors import MusterError
from engine.model.specs import WorkloadSpec
from engine.state.cell_state import members
from engine.state.external_cell import wanted as wish_in

if TYPE_CHECKING:
    from engine.external.slurm.connection import SlurmConnection


T = TypeVar("T")

MAX_GLANCED = 64
"""Jobs that are asked for one by one in a glance, of those that moved, and of those that are tracked."""
MAX_LOOKED_UP = 64
"""Jobs that accounting is asked about in one look: the others are gone without an end."""
MAX_WANTED = 50_000
"""Submissions through Muster that are kept at hand; then it starts anew."""
MACHINES_EVERY_S = 30.0
"""Partitions, QOS and reservations change when people change them."""
_ORDER = {"finished": 0, "failed": 0, "cancelled": 0, "suspended": 1, "held": 2, "waiting": 2, "queued": 2}
"""What leaves nodes is told before what comes to them."""


class ClusterAnswer(NamedTuple):
    """An answer of the cluster that the engine has not been told yet."""

    began: float
    """Monotonic seconds: what is in it is no older."""
    first: bool
    fresh_machines: bool
    answer: Listed
    took_s: float


class ShownJobs(NamedTuple):
    """Jobs that Slurm showed, by what they stand for."""

    names: dict[int, tuple[Job, tuple[str, ...]]]
    """By job id: its record now, and the workloads it stands for."""
    every: dict[int, tuple[Job, tuple[str, ...]]]
    """The same, with those shown before, unless these are all there are."""
    records: dict[str, Job]
    """By workload id, of every job."""
    arrays: dict[int, list[Job]]
    """By array id: jobs of arrays that were not told as a whole yet."""
    whole: bool
    """These are all jobs there are."""


class Mirror:
    """The mirror of one cluster in one engine. `look`, `take` and `glance` are called by one thread, `ask` by one at a
    time; the rest may be called from any."""

    def __init__(self, connection: SlurmConnection, call: Call, *, wall_s: Callable[[], float] = time.time) -> None:
        self._connection = connection
        self._call = call
        self._wall_s = wall_s
        self._identities = Identities()
        self._order = Order()
        self._ranks: dict[str, int] = {}
        self._told: dict[str, seen.WorkloadSeen | None] = {}
        """By workload id: the last that was told of it; None of what the cell has from before."""
        self._told_machines: dict[tuple[str, str], seen.AnySeen] = {}
        self._limits: ClusterLimits | None = None
        self._limits_new = False
        self._told_caps: dict[str, int] = {}
        self._glanced: dict[int, tuple[float, Job]] = {}
        """By job id: what glances found since the last whole list was asked for, and monotonic seconds when."""
        self._records: dict[str, Job] = {}
        """By workload id."""
        self._names: dict[int, tuple[Job, tuple[str, ...]]] = {}
        """By job id: its last record, and the workloads it stands for."""
        self._nodes: tuple[Node, ...] = ()
        self._partitions: tuple[SlurmPartition, ...] = ()
        self._qos: tuple[Qos, ...] = ()
        self._reservations: tuple[SlurmReservation, ...] = ()
        self._switches: tuple[TopologySwitch, ...] = ()
        self.boots = BootTimes()
        self._machines: Machines | None = None
        self._machines_at = -1e9
        self._jobs_since = 0
        self._nodes_since = 0
        self._left_machines: tuple[LeftOut, ...] = ()
        self._left_jobs: tuple[LeftOut, ...] = ()
        self._left_engine: tuple[str, ...] = ()
        self._lacks: dict[str, str] = {}
        self._missing: frozenset[str] = frozenset()
        """Workloads that Slurm does not know, and that are submitted anew."""
        self._arrays: set[int] = set()
        """Those that were told as a whole, or could not be."""
        self._wanted: dict[str, WorkloadSpec | None] = {}
        """By workload id: what was submitted through Muster; None of what it does not remember any more."""

        self._has_looked = False

    # -- for any thread -----------------------------------------------------------------------------------------------

    def has_looked(self) -> bool:
        """Return whether Slurm's list of jobs was ever seen: before that no job of any workload is known."""
        return self._has_looked

    @property
    def call(self) -> Call:
        """The runner of functions on the engine's thread."""
        return self._call

    def job_of(self, workload_id: str) -> Job | None:
        """The job as Slurm last showed it."""
        return self._records.get(workload_id)

    def missing(self) -> frozenset[str]:
        """Workloads, and arrays, whose jobs were shown and are not any more, while their submission is under way."""
        return self._missing

    def jobs(self) -> list[Job]:
        """All that Slurm last showed; the waiting tasks of an array are one."""
        return [job for job, _ in list(self._names.values())]

    @property
    def qos(self) -> tuple[Qos, ...]:
        return self._qos

    @property
    def partitions(self) -> tuple[SlurmPartition, ...]:
        return self._partitions

    def limit_by(self, limits: ClusterLimits) -> None:
        """Count jobs for these limits from the next look on."""
        if self._limits is None or self._limits.made_of != limits.made_of:
            self._limits, self._limits_new = limits, True

    def machines_changed(self) -> None:
        """Partitions or reservations were changed: they are asked for with the next look."""
        self._machines_at = -1e9

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return the things that Slurm goes by and the mirror does not, and those that could not be taken as they were
        seen."""
        own = tuple(LeftOut(text=text, count=1, examples=()) for text in self._left_engine)
        return (*self._left_jobs, *self._left_machines, *own)

    @property
    def is_new(self) -> bool:
        """Return whether the next look is as the first."""
        return self._machines is None

    def start_over(self) -> None:
        """Have the next look be as the first."""
        self._machines = None

    def lacks(self) -> dict[str, str]:
        """Return the questions that this cluster could not be asked -> why."""
        return dict(self._lacks)

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self, *, whole: bool = False) -> MirrorPass:
        """Ask for what changed and tell it. `whole`: as if for the first time. Raises SlurmUnavailable and
        SlurmRefused where the cluster does not answer, then nothing was told; UnreachableError where the engine is
        gone."""
        return self.take(self.ask(whole=whole))

    def ask(self, *, whole: bool = False) -> ClusterAnswer:
        """Ask for what changed, for `take`. While a long list is awaited on another thread, there may be glances.
        Raises as `look`."""
        began = time.monotonic()
        first = whole or self._machines is None
        fresh_machines = self._ask_machines(first)
        asked = time.monotonic()
        answer = self._connection.jobs(None if first else self._jobs_since or None)
        return ClusterAnswer(asked, first, fresh_machines, answer, time.monotonic() - began)

    def take(self, heard: ClusterAnswer) -> MirrorPass:
        """Tell what was asked for. What a glance has found since is newer. Raises as `look`."""
        began, answer = time.monotonic(), heard.answer
        if heard.first:
            self._forget()
        left = UnsupportedCounts()
        told: list[seen.AnySeen] = []
        if heard.fresh_machines:
            told += self._new_machines()
        if not answer.unchanged or told or self._missing or self._limits_new:
            # On other machines, or under other limits, jobs are other workloads.
            self._limits_new = False
            jobs = [job for job, _ in self._names.values()] if answer.unchanged else self._newest(heard)
            told += self._new_jobs(jobs, left, whole=True)
            for line in answer.malformed:
                left.note("jobs whose record could not be read are left out", line[:80])
            self._left_jobs = left.all()
        self._tell(told)
        # Only now: an engine that was not reached is told again.
        self._jobs_since = answer.last_update or self._jobs_since
        self._has_looked = True
        return MirrorPass(
            at_s=self._wall_s(),
            jobs=len(self._names),
            nodes=len(self._nodes),
            changed=len(told),
            asked_s=heard.took_s,
            told_s=time.monotonic() - began,
            unchanged=answer.unchanged and not told,
        )

    def _newest(self, heard: ClusterAnswer) -> list[Job]:
        """Of the list, with those in place that a glance saw after it was asked for."""
        self._glanced = {job.id: (at, job) for at, job in self._glanced.values() if at >= heard.began}
        if not self._glanced:
            return list(heard.answer.list)
        newer = {id_: job for id_, (_, job) in self._glanced.items()}
        return [job for job in heard.answer.list if job.id not in newer] + list(newer.values())

    def glance(self, tracked: Iterable[int] = (), *, states: bool = True) -> MirrorPass:
        """Ask for the states of jobs alone, and for those that moved or are `tracked`, these first, by themselves:
        cheap where the whole list is long. Without `states` for those that are tracked alone. Raises as `look`."""
        began = time.monotonic()
        states_now = self._connection.job_states() if states else ()
        moved = dict.fromkeys(each.id for each in states_now if self._moved(each))
        asked = dict.fromkeys([job_id for job_id in tracked if job_id in self._names][:MAX_GLANCED])
        asked |= dict.fromkeys(list(moved)[:MAX_GLANCED])
        jobs: list[Job] = []
        for job_id in asked:
            try:
                jobs += self._connection.jobs_of(job_id)
            except SlurmGone:
                continue
        asked_s = time.monotonic() - began
        self._glanced |= {job.id: (began, job) for job in jobs}
        told = self._new_jobs(jobs, UnsupportedCounts(), whole=False)
        self._tell(told)
        return MirrorPass(
            at_s=self._wall_s(),
            jobs=len(self._names),
            nodes=len(self._nodes),
            changed=len(told),
            asked_s=asked_s,
            told_s=time.monotonic() - began - asked_s,
            unchanged=not told,
            behind=sum(job_id not in asked for job_id in moved),
        )

    def _moved(self, now: JobState) -> bool:
        before = self._names.get(now.id)
        if before is None:
            return True
        job = before[0]
        if now.held is not None and now.held != job.held:
            return True
        return (job.state, job.array_tasks) != (now.state, now.array_tasks) or job.flags != now.flags

    def _forget(self) -> None:
        """Forget what was told before. All of it is told anew, and what is not known any more is found in the cell."""
        known = self._call(_known)
        self._identities = Identities(known, self._identities.ours)
        self._order = Order(name for name, _, _ in known)
        self._told = dict.fromkeys(self._call(live_of))
        self._told_machines = {}
        self._told_caps = {}
        self._arrays = set()
        self._names = {}

    def _ask_machines(self, first: bool) -> bool:
        """Return whether there is anything new about nodes, partitions, QOS or reservations."""
        connection, fresh = self._connection, first
        nodes = connection.nodes(None if first else self._nodes_since or None)
        if not nodes.unchanged and len(nodes.list) < len(self._nodes):
            # That nodes are gone is believed only of a list that was asked for as a whole.
            nodes = connection.nodes(None)
        if not nodes.unchanged:
            fresh = True
            self._nodes = tuple(nodes.list)
            self.boots.note(self._nodes, self._wall_s())
            self._nodes_since = nodes.last_update
        if first or time.monotonic() - self._machines_at > MACHINES_EVERY_S:
            before = self._partitions, self._qos, self._reservations, self._switches
            self._partitions = tuple(connection.partitions())
            self._reservations = self._optional("reservations", connection.reservations)
            self._qos = self._optional("QOS", connection.qos)
            self._switches = self._optional("topology", connection.topology)
            self._machines_at = time.monotonic()
            fresh = fresh or before != (self._partitions, self._qos, self._reservations, self._switches)
        return fresh

    def _optional(self, what: str, ask: Callable[[], Iterable[T]]) -> tuple[T, ...]:
        """Ask for a thing that a cluster may lack, such as QOS without accounting. The reason is kept."""
        try:
            found = tuple(ask())
        except SlurmRefused as error:
            self._lacks[what] = str(error)
            return ()
        self._lacks.pop(what, None)
        return found

    def _new_machines(self) -> list[seen.AnySeen]:
        left = UnsupportedCounts()
        classes = set() if self._machines is None else self._machines.classes
        self._machines = machines(
            self._nodes, self._partitions, self._qos, self._reservations, self._switches, left, self.boots
        )
        self._machines.classes.update(classes)
        self._left_machines = left.all()
        now = {_subject(each): each for each in self._machines.told}
        new = [each for subject, each in now.items() if self._told_machines.get(subject) != each]
        gone = self._told_machines.keys() - now.keys()
        if self._told_machines:
            new += [seen.NodeGone(id=name) for kind, name in sorted(gone) if kind == "node"]
            new += [seen.ReservationGone(name=name) for kind, name in sorted(gone) if kind == "reservation"]
        self._told_machines = now
        return new

    def _new_jobs(self, jobs: Iterable[Job], left: UnsupportedCounts, *, whole: bool) -> list[seen.AnySeen]:
        """Return the observations of these jobs that are new to the engine. `whole`: these are all there are."""
        assert self._machines is not None
        mapping = JobMapping(self._machines, left, int(self._wall_s()), self._limits)
        jobs = list(jobs)
        named = self._call(partial(_named, {token for job in jobs if (token := token_in(job))}))
        shown = self._shown(jobs, named, left, whole=whole)
        self._learn_wanted(shown.names.values(), named)
        arrays = self._new_arrays(shown, mapping)
        ranks = self._order.ranks(
            (mapping.tier_of(job), name, job)
            for job, mine in shown.every.values()
            if job.state == "PENDING"
            for name in mine
        )
        facts = self._changed(shown, mapping, ranks)
        gone = self._gone(shown, named) if whole else []
        facts = self._ends_of(gone, shown, mapping) + facts
        for name in gone:
            del self._told[name]
        if whole:
            self._order.keep(shown.records.keys())
        self._names, self._records, self._ranks = shown.every, shown.records, ranks
        # Of what is told to have ended here nothing is lost by saying after it that it is gone.
        caps = self._new_caps(mapping.caps, whole=whole)
        return [*mapping.new_classes, *caps, *arrays, *facts, *(seen.WorkloadGone(id=name) for name in gone)]

    def _shown(
        self, jobs: list[Job], named: dict[str, RecordedSubmission], left: UnsupportedCounts, *, whole: bool
    ) -> ShownJobs:
        """The jobs by the workloads they stand for."""
        names = {job.id: (job, self._names_of(job, named, left)) for job in jobs}
        records: dict[str, Job] = {} if whole else dict(self._records)
        arrays: dict[int, list[Job]] = {}
        for job in jobs:
            records |= dict.fromkeys(names[job.id][1], job)
            if job.array_id and job.array_id not in self._arrays:
                arrays.setdefault(job.array_id, []).append(job)
        return ShownJobs(names, names if whole else self._names | names, records, arrays, whole)

    def _new_arrays(self, shown: ShownJobs, mapping: JobMapping) -> list[seen.WorkloadSeen]:
        """Arrays that are seen for the first time, as wholes; their members take their place in the line."""
        told = []
        for of_it in shown.arrays.values():
            found = self._array(of_it, shown.names[of_it[0].id][1], mapping)
            if found is not None:
                told.append(found)
        for each in told:
            assert each.spec.array is not None
            self._order.note(f"{each.spec.id}/{index}" for index in members(each.spec.array))
        return told

    def _changed(self, shown: ShownJobs, mapping: JobMapping, ranks: dict[str, int]) -> list[seen.WorkloadSeen]:
        """Return the workloads that differ from what was told, in the order in which they are told."""
        facts: list[seen.WorkloadSeen] = []
        # What is left out is told anew from all there are; in a glance those that moved are enough.
        for job, mine in shown.every.values():
            for name in mine:
                if not shown.whole and job.id not in shown.names and self._ranks.get(name) == ranks.get(name):
                    continue
                fact = mapping.told(job, name, shown.records.keys(), ranks.get(name, 0), self._wanted_of(name))
                if fact is not None and self._told.get(name) != fact:
                    facts.append(fact)
        facts.sort(key=lambda fact: _turn(fact, shown.records[fact.spec.id]))
        return facts

    def _gone(self, shown: ShownJobs, named: dict[str, RecordedSubmission]) -> list[str]:
        """Workloads that Slurm shows no more. What a crash made it forget, and is submitted anew, is still to come: it
        has not ended."""
        gone = [name for name in self._told if name not in shown.records]
        under_way = {asked.id for asked in named.values() if asked.under_way} if gone else set()
        coming = {name for name in gone if name in under_way or _array_name(name) in under_way}
        self._missing = frozenset(name if name in under_way else _array_name(name) for name in coming)
        return [name for name in gone if name not in coming]

    def _ends_of(self, gone: list[str], shown: ShownJobs, mapping: JobMapping) -> list[seen.WorkloadSeen]:
        """Return the ends of these workloads as accounting knows them, the last first."""
        facts = [
            mapping.told(job, name, shown.records.keys(), wanted=self._wanted_of(name))
            for name, job in self._ended(gone).items()
        ]
        return [fact for fact in reversed(facts) if fact is not None]

    def _new_caps(self, caps: dict[str, int], *, whole: bool) -> list[seen.AnySeen]:
        """All that count anybody, where one of them is new or another limit than before."""
        if all(self._told_caps.get(name) == most for name, most in caps.items()):
            return []
        self._told_caps = caps if whole else self._told_caps | caps
        return [seen.CapsSeen(most=tuple(sorted(self._told_caps.items())))]

    def _ended(self, gone: list[str]) -> dict[str, Job]:
        """Return the ends, as accounting knows them, of jobs that the controller has forgotten meanwhile."""
        live = set(self._call(live_of)) if gone else set()
        found: dict[str, Job] = {}
        for name in [name for name in gone if name in live][:MAX_LOOKED_UP]:
            try:
                job = ended(name, self._records.get(name), self._connection.past(number_of(name)))
            except SlurmRefused:
                # There is no accounting, or it has not heard of the job.
                break
            except ValueError:
                continue  # it was named by a person, and Slurm has forgotten under which number
            if job is not None:
                found[name] = job
        return found

    def _names_of(self, job: Job, named: dict[str, RecordedSubmission], left: UnsupportedCounts) -> tuple[str, ...]:
        before = self._names.get(job.id)
        if before is not None and before[0] == job and not (named and token_in(job) in named):
            return before[1]
        if not job.array_id:
            return (self._identities.name_of(job, named=named),)
        try:
            tasks = tasks_of(job)
        except ValueError as error:
            left.note(f"arrays whose tasks cannot be read: {error}", str(job.id))
            return ()
        return tuple(self._identities.name_of(job, task, named) for task in tasks)

    def _learn_wanted(self, jobs: Iterable[tuple[Job, tuple[str, ...]]], named: dict[str, RecordedSubmission]) -> None:
        """Learn the specs of jobs that were submitted through Muster. Each is looked for once."""
        asked = {token: named[token].id for job, mine in jobs if mine and (token := token_in(job)) in named
                 and named[token].id in (mine[0], _array_name(mine[0]))}  # fmt: skip
        new = {token: name for token, name in asked.items() if name not in self._wanted}
        if new:
            if len(self._wanted) > MAX_WANTED:
                self._wanted.clear()
            found = self._call(partial(wanted_of, new))
            self._wanted |= {name: found.get(token) for token, name in new.items()}

    def _wanted_of(self, name: str) -> WorkloadSpec | None:
        """Return what was submitted through Muster and became this workload."""
        if name in self._wanted:
            return self._wanted[name]
        whole = self._wanted.get(_array_name(name))
        return whole if whole is not None and whole.array is not None else None

    def _array(self, whole: list[Job], names: tuple[str, ...], mapping: JobMapping) -> seen.WorkloadSeen | None:
        """The array as a whole, the first time it is seen. `names`: of the first of its records."""
        self._arrays.add(whole[0].array_id)
        if not names:
            return None
        name = _array_name(names[0])
        try:
            return mapping.array(whole, name, self._wanted.get(name))
        except ValueError:
            return None

    def _tell(self, told: list[seen.AnySeen]) -> None:
        try:
            self._tell_all(told)
        except BaseException:
            # How far it came is not known: the next look is as the first.
            self._machines = None
            raise

    def _tell_all(self, told: list[seen.AnySeen]) -> None:
        left: list[str] = []
        for part, out in tell(self._call, told):
            left += out
            for each in part:
                if isinstance(each, seen.WorkloadSeen) and each.spec.array is None:
                    self._told[each.spec.id] = each
        if told:
            self._left_engine = tuple(left[:100])


def _subject(each: seen.AnySeen) -> tuple[str, str]:
    """Return the kind and name of the thing that is observed."""
    match each:
        case seen.PoolSeen(pool=pool):
            return "pool", pool.name
        case seen.NodeSeen(node=node):
            return "node", node.id
        case seen.QueueSeen(queue=queue):
            return "queue", queue.name
        case seen.ReservationSeen(reservation=reservation):
            return "reservation", reservation.name
    raise MusterError(f"{type(each).__name__} is about no machines", "")


def _turn(fact: seen.WorkloadSeen, job: Job) -> tuple[int, int, int, int]:
    """Return the place in the order of telling: what leaves nodes first; of what waits, what Slurm would start first,
    since what comes first is older to the engine; what waits for others after all of those."""
    if fact.spec.after:
        # Those depend on older ones alone.
        return 9, 0, job.submit_s, job.id
    return _ORDER.get(fact.phase, 3), -(job.priority or 0), job.submit_s, job.id


def _known(engine: Engine) -> list[tuple[str, int, int]]:
    w = engine.state.workloads
    return [(name, w.submitted[row] // 1000, max(w.attempts[row] - 1, 0)) for row, name in enumerate(w.ids)]


def _named(tokens: Collection[str], engine: Engine) -> dict[str, RecordedSubmission]:
    """Token -> what was submitted through Muster: of these, and of what is under way."""
    intents = engine.state.intents
    found = {token: RecordedSubmission(intents.named[token]) for token in tokens if token in intents.named}
    for intent in (*intents.ended, *intents.open.values()):
        under_way = intent.number in intents.open
        if intent.token in intents.named and (under_way or intent.token in found):
            found[intent.token] = RecordedSubmission(intents.named[intent.token], intent.job, intent.tries, under_way)
    return found


def _array_name(element: str) -> str:
    return element.rpartition("/")[0]


def wanted_of(tokens: Collection[str], engine: Engine) -> dict[str, WorkloadSpec]:
    """Return the submitted workloads by token, as far as the cell still has the intents. Nobody needs it later: a
    workload is what it was when it was first seen, and an intent stays open for longer than that takes."""
    intents = engine.state.intents
    found: dict[str, WorkloadSpec] = {}
    for intent in (*intents.open.values(), *intents.ended):
        if intent.token in tokens:
            command = wish_in(intent)
            if isinstance(command, Submit):
                found[intent.token] = command.workloads[0]
    return found


def ended(name: str, last: Job | None, attempts: Iterable[PastJob]) -> Job | None:
    """The job as it would have been shown at its end; None where accounting does not say. `last`: as it was last shown;
    None after a restart of the mirror, when the newest attempt is taken."""
    task = name.partition("/")[2].partition(".")[0]
    mine = [
        each
        for each in attempts
        if each.state in OVER_STATES
        and (not task or str(each.array_task) == task)
        and (last is None or abs(each.submit_s - last.submit_s) <= SKEW_S)
    ]
    if not mine:
        return None
    past = max(mine, key=lambda each: (each.submit_s, each.end_s))
    return msgspec.structs.replace(
        last or _shown(past),
        state=past.state,
        flags=frozenset(),
        reason=past.reason,
        start_s=past.start_s,
        end_s=past.end_s,
        exit_status=past.exit_status,
        signal=past.signal,
    )


def _shown(past: PastJob) -> Job:
    """Make a job of the fields that both kinds of record have."""
    same = (
        "id", "array_id", "array_task", "name", "user", "account", "partition", "qos", "comment", "submit_s",
        "time_limit_s", "tres_wanted", "tres_held",
    )  # fmt: skip
    cpus = past.tres_wanted.get("cpu", past.tres_held.get("cpu", 1))
    return Job(cpus=cpus, restarts=past.restarts or 0, **{field: getattr(past, field) for field in same})
