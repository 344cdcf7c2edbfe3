"""The threads that carry intents from the journal to Slurm: one for submissions, one for everything else, so that a
drain does not wait behind a thousand jobs."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from engine.control import Engine
from engine.external.slurm import job_changes
from engine.external.slurm.capabilities import Capabilities, Capability
from engine.external.slurm.carrying.change_carrier import Acted, ChangeCarrier
from engine.external.slurm.carrying.submission_carrier import Submitter
from engine.external.slurm.job_submission import JobDestination, home_of
from engine.journal.event_journal import Beside
from engine.loop import EngineLoop
from engine.model import commands as cmd
from engine.model.commands import IntentChange, SettleIntents
from engine.model.errors import JournalError, UnreachableError
from engine.model.specs import WorkloadSpec
from engine.state.intents import MAYBE_CARRIED, Intent

AT_ONCE = 5
"""Submissions asked for at the same moment: more only lengthen Slurm's answers."""
IDLE_S = 1.0
"""Between turns while something is under way and nothing new comes."""
PAUSE_S = 0.02
"""Least time between turns: what comes together is journalled together."""
TROUBLE_S = 2.0


Recorded = Callable[[Engine, Sequence[IntentChange]], Beside | None]
"""What is to be written in the transaction of such changes; None: nothing."""


Forbidden = Callable[[Engine, int], str]
"""On the engine's thread: why the intent of that number may not be done again by itself now; empty: it may."""


class EngineLedger:
    """The journalled side, on the engine's thread."""

    def __init__(self, loop: EngineLoop, recorded: Recorded = lambda engine, changes: None) -> None:
        self._loop = loop
        self._recorded = recorded

    def new(self, after: int) -> list[Intent]:
        return self._loop.call(lambda engine: newer(engine, after))

    def settle(self, changes: Sequence[IntentChange]) -> None:
        command = SettleIntents(changes=tuple(changes))
        self._loop.call(lambda engine: engine.command(command, beside=self._recorded(engine, command.changes)))

    def carried_since(self, number: int) -> list[Intent]:
        return self._loop.call(lambda engine: carried_since(engine, number))


def carried_since(engine: Engine, number: int) -> list[Intent]:
    """Settled intents with a larger number that are done, or were so already, or may be, as far as they are still
    kept."""
    ended = engine.state.intents.ended
    return [intent for intent in ended if intent.number > number and intent.phase in MAYBE_CARRIED]


def newer(engine: Engine, after: int) -> list[Intent]:
    """Intents under way with a larger number than `after`, in their order."""
    found: list[Intent] = []
    for number, intent in reversed(engine.state.intents.open.items()):
        if number <= after:
            break
        found.append(intent)
    return found[::-1]


def is_under_way(engine: Engine, workload: str) -> bool:
    """Whether the submission of that workload, or of the array it is of, is not settled."""
    intents = engine.state.intents
    names = {workload, workload.rpartition("/")[0]}
    if names.isdisjoint(intents.ids):
        return False
    return any(intents.named.get(intent.token) in names for intent in intents.open.values())


class IntentDriver:
    """`far` is a `SlurmConnection`. `job_of`: the job a workload of the cell is. `missing`: workloads under way that
    the mirror has seen and does not find any more. `knows_jobs`: whether the mirror has seen any list of jobs yet."""

    def __init__(
        self,
        far: Any,
        loop: EngineLoop,
        job_of: job_changes.JobOf,
        *,
        acted: Acted = lambda *, machines: None,
        missing: Callable[[], Collection[str]] = lambda: (),
        knows_jobs: Callable[[], bool] = lambda: True,
        recorded: Recorded = lambda engine, changes: None,
        forbidden: Forbidden = lambda engine, number: "",
        place_of: Callable[[WorkloadSpec], JobDestination] | None = None,
    ) -> None:
        self._far = far
        self._loop = loop
        self._learnt = False
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="slurm-submit")
        ledger = EngineLedger(loop, recorded)

        def job_id(workload: str) -> int:
            job = job_of(workload)
            return 0 if job is None else job.id

        def cell_ms() -> int:
            return loop.engine.now_ms

        def may_act() -> bool:
            lease = loop.engine.lease
            return lease is None or lease.is_held

        self.submitter = Submitter(
            far, ledger, self._pool, place_of=place_of or _by_name(far.acts_as), job_ids=job_id, wall_ms=cell_ms,
            may_act=may_act, missing=missing, user=far.acts_as,
        )  # fmt: skip

        def is_coming(workload: str) -> bool:
            return loop.call(lambda engine: is_under_way(engine, workload))

        self.actor = ChangeCarrier(
            far, ledger, job_of, wall_ms=cell_ms, acted=acted, may_act=may_act, is_coming=is_coming,
            knows_jobs=knows_jobs, forbidden=lambda number: loop.call(lambda engine: forbidden(engine, number)),
        )  # fmt: skip
        self._news = (threading.Event(), threading.Event())
        self._threads = [
            threading.Thread(target=self._submit, name="slurm-submissions", daemon=True),
            threading.Thread(target=self._act, name="slurm-acts", daemon=True),
        ]
        self._end_listening: Callable[[], None] = lambda: None
        self._faults: dict[str, str] = {}
        """What -> why its last turn came to nothing; not those whose turn came to its end."""

    def start(self) -> None:
        self._end_listening = self._loop.on_version(self._on_version)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """What is under way is in the journal: the next process goes on with it."""
        self._stopping.set()
        self._end_listening()
        for event in self._news:
            event.set()
        for thread in self._threads:
            thread.join(timeout=5)
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def trouble(self) -> str:
        """Why nothing can be carried at present; empty when all is well."""
        return next(iter(tuple(self._faults.values())), "") or self.submitter.trouble or self.actor.trouble

    def _on_version(self, version: int) -> None:
        for event in self._news:
            event.set()

    def _learn(self) -> None:
        """What this cluster cannot be asked for, as it is reached: said at the door, before anybody approves it."""
        lacking, ways = lacks_of(self._far.can), ways_of(self._far.can, self._far.api)
        far = f"Slurm {self._far.version} at {self._far.place}"

        def tell(engine: Engine) -> None:
            engine.lacks, engine.ways, engine.far = lacking, ways, far

        self._loop.call(tell)
        self._learnt = True

    def _submit(self) -> None:
        more = False
        while not self._stopping.is_set():
            self._wait(self._news[0], 0.0 if more else IDLE_S)
            more = self._turn("submissions", self.submitter.turn)

    def _act(self) -> None:
        while not self._stopping.is_set():
            self._wait(self._news[1], IDLE_S)
            if not self._learnt:
                self._turn("abilities", self._learn)
            self._turn("acts", self.actor.turn)

    def _wait(self, news: threading.Event, most_s: float) -> None:
        self._stopping.wait(PAUSE_S)
        news.wait(most_s)
        news.clear()

    def _turn(self, what: str, turn: Callable[[], bool | None]) -> bool:
        """A journal that cannot be written, or an engine that ends, holds everything up: nothing is carried that is not
        on record. Any other fault is ours: it is said, and must not end what carries everything else."""
        try:
            more = bool(turn())
        except (JournalError, UnreachableError) as error:
            self._faults[what] = str(error)
        except Exception as error:
            self._faults[what] = f"a defect of Muster's: {type(error).__name__}: {error}"
            traceback.print_exc()
        else:
            self._faults.pop(what, None)
            return more
        self._stopping.wait(TROUBLE_S)
        return False


def _by_name(user: str) -> Callable[[WorkloadSpec], JobDestination]:
    """Of the work of that user, empty: of the account this process runs as."""
    home = home_of(user)
    return lambda spec: place_of_queue(spec, home)


def place_of_queue(spec: WorkloadSpec, workdir: str = "") -> JobDestination:
    """As the mirror names things: a queue is a partition, a tenant an account, and the priority class begins with the
    QOS."""
    found = job_changes.TIER.fullmatch(spec.priority_class)
    return JobDestination(partition=spec.queue, account=spec.tenant, qos=found["qos"] if found else "", workdir=workdir)


def _needs(can: Capabilities) -> tuple[tuple[Capability, tuple[type[cmd.Command], ...]], ...]:
    return (
        (can.submit, (cmd.Submit,)),
        (can.cancel, (cmd.Cancel,)),
        (
            can.update_job,
            (cmd.Hold, cmd.Release, cmd.SetPriority, cmd.SetQos, cmd.SetJobPriority, cmd.MoveToQueue),
        ),
        (can.requeue, (cmd.Requeue, cmd.Preempt, cmd.Drain, cmd.DrainQueues)),
        (can.update_node, (cmd.Cordon, cmd.Drain, cmd.Uncordon, cmd.RestoreNodes, cmd.PowerUp, cmd.PowerDown)),
        (can.update_partition, (cmd.HoldQueues, cmd.OpenQueues, cmd.DrainQueues)),
        (can.reservation_write, (cmd.Reserve, cmd.Unreserve)),
    )


def lacks_of(can: Capabilities) -> dict[type[cmd.Command], str]:
    """Commands for which there is no way to this cluster, and why."""
    return {command: ability.why for ability, commands in _needs(can) if not ability for command in commands}


def ways_of(can: Capabilities, api: str) -> dict[type[cmd.Command], str]:
    """Commands that can be carried there -> by what."""
    names = {"rest": f"REST {api}", "command": "scontrol"}
    ways: dict[type[cmd.Command], dict[str, None]] = {}
    for ability, commands in _needs(can):
        for command in commands:
            if ability.by:
                ways.setdefault(command, {})[names[ability.by]] = None
    lacks = lacks_of(can)
    return {command: " and ".join(by) for command, by in ways.items() if command not in lacks}
