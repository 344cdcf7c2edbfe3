"""What shows whether a job that slurmctld has forgotten had begun, and whether it may then be sent again.

slurmctld starts a job within the second, and saves that it knows the job up to 5 s later. Killed in between, it forgets
a job that runs, or has run to its end. Nothing that Slurm keeps shows for sure that a job did not begin: what slurmctld
meant to tell slurmdbd dies with it, and the files of a job are named by an id that another job has by then. So a job of
Muster that may not run twice leaves a mark as it begins, named by its token, in the folder it begins in
(`job_requests.mark_of`). Where this process sees the same folder as the nodes, and the mark is not there START_S after
the job was missed, the job has not begun: what a killed slurmctld had on its way to a node has begun by then, and a
network file system shows it.

`decide` says what follows, and asks nobody. `Traces` asks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from engine.external.slurm.capabilities import SlurmUnavailable
from engine.external.slurm.job_requests import MARKED_S, head_of, mark_of
from engine.external.slurm.records import OVER_STATES, Node, PastJob, SlurmNodes
from engine.model.errors import MusterError
from engine.model.quantities import utc

START_S = 75.0
"""From when a job was missed to when its mark would be seen. A slurmd that was told to start a job does so after its
prolog, or gives up (BatchStartTimeout, 10 s by default); NFS keeps what it knows of a folder for up to 60 s
(acdirmax)."""
SKEW_S = 30.0
"""By so much at most the clocks of nodes and controllers are taken to differ from ours."""
NETWORK = frozenset((
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "glusterfs", "fuse.glusterfs", "cifs", "smb3",
    "9p", "virtiofs", "afs", "orangefs", "pvfs2", "panfs", "wekafs", "daos", "fuse.sshfs", "fuse.juicefs",
))  # fmt: skip
"""File systems that are the same on all machines that mount them (/proc/self/mountinfo)."""
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders of which each job (job_container/tmpfs) and each service (PrivateTmp) may have its own."""


class StartEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a submission that is not in Slurm's list. Each is a sentence, empty where it is not so."""

    unreached: str = ""
    """It never came to slurmctld."""
    ended: str = ""
    """Accounting has its end."""
    begun: tuple[str, ...] = ()
    """Each shows that it began."""
    unbegun: str = ""
    """Shows that it did not begin."""
    untold: tuple[str, ...] = ()
    """What was looked at, or could not be, and shows neither."""
    unasked: str = ""
    """It may have ended and left the list, and accounting, which would know, cannot be asked: why."""

    @property
    def text(self) -> str:
        shown = (self.unreached, self.ended, *self.begun, self.unbegun, self.unasked, *self.untold)
        return "; ".join(each for each in shown if each)


NextStep = Literal["again", "done", "doubt"]


def decide(rerun: str, evidence: StartEvidence) -> NextStep:
    """What follows for a submission that Slurm took, or may have taken, and does not have.

    | what is known | always | if-unstarted | never |
    |---|---|---|---|
    | it never came to slurmctld | again | again | again |
    | accounting has its end | done | done | done |
    | it began | again | doubt | doubt |
    | it did not begin | again | again | doubt |
    | neither is shown | again | doubt | doubt |
    | the same, and it may have ended, and accounting cannot be asked | doubt | doubt | doubt |

    An upper row goes before a lower one, but for the last. Empty, of a submission from before there was such a word, is
    `always`, as it was then.
    """
    if evidence.unreached:
        return "again"
    if evidence.ended:
        return "done"
    if rerun in ("always", ""):
        return "doubt" if evidence.unasked else "again"
    return "again" if rerun == "if-unstarted" and evidence.unbegun and not evidence.begun else "doubt"


class LostSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that is not in Slurm's list."""

    token: str
    rerun: str
    tries: int
    """How often it was lost before: each of those may have left a mark."""
    workdir: str
    job: int
    """The id that it was given; 0: none."""
    not_before_ms: int
    sent_ms: int
    """Cell time before it was last sent."""
    alive_s: float
    """For how long slurmctld may have run since then."""
    purged: bool
    """It may have ended, and been dropped from the list by now."""
    array: bool = False


class TraceApi(Protocol):
    """The part of a Slurm connection that is asked for traces of jobs."""

    def boot(self) -> str: ...
    def nodes(self, since: int | None = None) -> SlurmNodes: ...
    def history(self, since_s: int, /) -> Sequence[PastJob]: ...
    def spool(self) -> str: ...


class Traces:
    """The traces of several submissions, asked for at one time: what they share is asked for once."""

    def __init__(
        self, far: TraceApi, lost: Collection[LostSubmission], now_ms: int, is_ours: Callable[[PastJob], bool]
    ):
        self._now_ms = now_ms
        self._past, self.no_past, self.is_away = _history(far, lost, is_ours)
        """Why accounting says nothing, empty where it was asked; and whether it may in a while."""
        self._is_shared = SharedFolders(far)
        self._spool = _asked(far.spool)

    def carried(self, token: str) -> list[PastJob]:
        """Its attempts in accounting."""
        return [job for job in self._past if _carried(job, token)]

    def of(self, lost: LostSubmission) -> StartEvidence:
        """All that is known of it but for whether it came to slurmctld."""
        mine = self.carried(lost.token)
        begun = [*self._in_accounting(mine), *_marks(lost), *_spooled(self._spool, lost)]
        unbegun, untold = self._no_mark(lost)
        if not mine and not self.no_past:
            untold.insert(0, "accounting never had it, which alone proves nothing")
        elif self.no_past and not lost.purged:
            untold.insert(0, f"accounting: {self.no_past}")
        return StartEvidence(
            ended=_end(mine, lost),
            begun=tuple(begun),
            unbegun="" if begun else unbegun,
            untold=(*untold, *_output(lost)),
            unasked=self.no_past if lost.purged else "",
        )

    def _in_accounting(self, mine: Iterable[PastJob]) -> list[str]:
        """One that waits may have a start that is only expected."""
        began = [job for job in mine if job.start_s and (job.state != "PENDING" or job.end_s)]
        return [f"accounting: job {job.id} began {utc(job.start_s * 1000)} and is {job.state}" for job in began]

    def _no_mark(self, lost: LostSubmission) -> tuple[str, list[str]]:
        """(what shows that it did not begin, why the folder it begins in does not)"""
        if lost.not_before_ms > self._now_ms + SKEW_S * 1000:
            return f"it was not to begin before {utc(lost.not_before_ms)}", []
        if lost.rerun in ("always", ""):
            return "", []  # it leaves no mark
        if lost.rerun == "if-unstarted" and lost.alive_s > MARKED_S - SKEW_S:
            return "", [
                f"it was missed so late that it may have begun {MARKED_S // 60} min after it was sent, unmarked"
            ]
        why = self._is_shared.why_not(lost.workdir)
        if why:
            return "", [f"{lost.workdir} tells nothing: {why}"]
        return f"no mark of it in {lost.workdir}: it had not begun", []


def _history(
    far: TraceApi, lost: Iterable[LostSubmission], is_ours: Callable[[PastJob], bool]
) -> tuple[list[PastJob], str, bool]:
    """Attempts in accounting since they were sent; why there are none; and whether there may be in a while."""
    since_s = min((each.sent_ms for each in lost), default=0) // 1000 - int(SKEW_S)
    try:
        return [job for job in far.history(since_s) if is_ours(job)], "", False
    except MusterError as error:
        return [], error.problem, isinstance(error, SlurmUnavailable)


def _asked(ask: Callable[[], str]) -> str:
    with suppress(MusterError):
        return ask()
    return ""


def _carried(job: PastJob, token: str) -> bool:
    return job.comment == f"muster:{token}" or job.name.rpartition(".m")[2] == head_of(token)


def _end(mine: Iterable[PastJob], lost: LostSubmission) -> str:
    """Of an array, the end of one task is not its end."""
    ended = [job for job in mine if job.state in OVER_STATES]
    return "" if lost.array or not ended else f"it ended as {ended[-1].state} meanwhile"


def _marks(lost: LostSubmission) -> list[str]:
    found = []
    for tries in range(lost.tries + 1):
        path = os.path.join(lost.workdir, mark_of(lost.token, tries))
        with suppress(OSError):
            found.append(f"it left its mark {path} at {utc(int(os.stat(path).st_mtime) * 1000)}")
    return found


def _spooled(folder: str, lost: LostSubmission) -> list[str]:
    """Scripts of jobs that run on this machine. `folder`: SlurmdSpoolDir, with its patterns."""
    if not folder.startswith("/") or not lost.job:
        return []
    scripts = glob(f"{folder.replace('%n', '*').replace('%h', '*')}/job{lost.job:05d}/slurm_script")
    return [f"its script runs here: {path}" for path in scripts if lost.token in _text(path)]


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text("utf-8", "replace")
    return ""


def _output(lost: LostSubmission) -> list[str]:
    """A file named by its id, which another job may have been given."""
    path = os.path.join(lost.workdir, f"slurm-{lost.job}.out")
    with suppress(OSError):
        if lost.job and os.stat(path).st_mtime >= lost.sent_ms / 1000 - SKEW_S:
            return [f"{path} was written since, by it or by another job that got its id"]
    return []


class SharedFolders:
    """Whether folders here are those of the nodes."""

    def __init__(self, far: TraceApi) -> None:
        self._far = far
        self._elsewhere: str | None = None
        """A node that is not this machine, in words; empty: there is none. None: not asked yet."""

    def why_not(self, folder: str) -> str:
        """Why what is in it need not be what the nodes see there; empty: it is."""
        try:
            os.scandir(folder).close()
        except OSError as error:
            return f"the engine cannot read it ({error.strerror})"
        place = os.path.realpath(folder)
        if place.startswith(tuple(f"{each}/" for each in PRIVATE)) or place in PRIVATE:
            return "a job or the engine may have one of its own"
        kind = _file_system(place)
        if kind in NETWORK:
            return ""
        if self._elsewhere is None:
            self._elsewhere = self._other_machine()
        return self._elsewhere and f"it is on a disk of this machine ({kind or 'unknown'}), and {self._elsewhere}"

    def _other_machine(self) -> str:
        try:
            nodes: Sequence[Node] = self._far.nodes().list
        except MusterError as error:
            return f"where the nodes are is not known: {error.problem}"
        other = next((node.name for node in nodes if not _is_here(node.address)), "")
        return f"node {other} is another" if other else "" if nodes else "there are no nodes"


def _is_here(address: str) -> bool:
    """Return whether it is an address or the name of this machine."""
    if not address:
        return False
    if address in ("localhost", socket.gethostname(), socket.gethostname().partition(".")[0]):
        return True
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            socket.inet_pton(family, address)
            probe.bind((address, 0))
            return True
    return False


def _file_system(folder: str) -> str:
    """Type of the file system that it is on, empty where that is not told."""
    found = "", ""
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
            before, _, after = line.partition(" - ")
            point = before.split(" ")[4].encode().decode("unicode_escape", "replace")
            inside = folder == point or folder.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(found[0]):
                found = point, after.split(" ")[0]
    return found[1]
