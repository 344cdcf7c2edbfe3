"""What a job of Slurm writes, read from its files where this machine has them.

A job names its files itself, and anybody can submit a job that names any path. So a file is read only if it is a
regular one that belongs to the job's user. It is opened without following a link, and checked once it is open. The
engine's own account reads it; what that may not read stays unread, with the reason.
"""

from __future__ import annotations

import os
import pwd
import stat
from typing import NamedTuple

from engine.external.slurm.records import Job
from engine.model.errors import NotFoundError, RefusedError

OUTPUT, ERRORS = "output", "errors"
"""Names of a job's files, as tasks of a workload here have names."""


class JobOutput(NamedTuple):
    """A stretch of a file."""

    data: bytes
    offset: int
    """Of its first byte; 0 where the file is shorter by now than what was asked for: it was begun anew."""
    end: int
    """Bytes in the file."""


def output_files(job: Job) -> dict[str, str]:
    """Name -> path of the files that a job writes. One that has both in one has no second."""
    files = {OUTPUT: job.stdout, ERRORS: job.stderr if job.stderr != job.stdout else ""}
    return {name: os.path.join(job.workdir, path) for name, path in files.items() if path}


def read_output(job: Job, name: str, offset: int, most: int) -> JobOutput:
    """Up to `most` bytes of one of its files from `offset`; below 0: the last so many. Raises NotFoundError for a file
    that there is not, RefusedError for one that is not to be read, with the reason."""
    path = output_files(job)[name]
    handle = _opened(job, path)
    try:
        end = os.fstat(handle).st_size
        begin = max(end + max(offset, -most), 0) if offset < 0 else offset if offset <= end else 0
        return JobOutput(os.pread(handle, max(0, min(most, end - begin)), begin), begin, end)
    finally:
        os.close(handle)


def _opened(job: Job, path: str) -> int:
    """A descriptor of the file, which is the job's."""
    if "%" in path:
        raise RefusedError(f"job {job.id} writes {path!a}, a name that only its node can fill in", _read_there(job))
    if "\0" in path or not os.path.isabs(path):
        raise RefusedError(f"job {job.id} writes {path!a}, which is not an absolute path", _read_there(job))
    try:
        # Before it is opened: opening a device does something to it.
        _check(job, path, os.lstat(path))
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(job, path) from None
    except OSError as error:
        account = _name_of(os.geteuid())
        problem = f"the engine's account '{account}' may not read {path!a} of job {job.id}"
        raise RefusedError(f"{problem}: {error.strerror}", _read_there(job)) from None
    try:
        _check(job, path, os.fstat(handle))
    except RefusedError:
        os.close(handle)
        raise
    return handle


def _check(job: Job, path: str, found: os.stat_result) -> None:
    """Raises RefusedError for what is no file of the job's user."""
    if not stat.S_ISREG(found.st_mode):
        raise RefusedError(f"job {job.id} writes {path!a}, which is not a regular file", "No output is kept there")
    try:
        owner = pwd.getpwnam(job.user).pw_uid
    except KeyError:
        problem = (
            f"this machine does not know '{job.user}', the user of job {job.id}, so whose {path!a} is cannot be told"
        )
        raise RefusedError(problem, _read_there(job)) from None
    if found.st_uid != owner:
        problem = f"{path!a} belongs to '{_name_of(found.st_uid)}', not to '{job.user}', the user of job {job.id}"
        raise RefusedError(problem, "Only files of a job's own user are shown")


def _missing(job: Job, path: str) -> NotFoundError:
    if not job.nodes:
        return NotFoundError(f"job {job.id} has not started yet: it will write {path!a}", "")
    return NotFoundError(f"{path!a} of job {job.id} is not on this machine", _read_there(job))


def _read_there(job: Job) -> str:
    """The remedy for a file that cannot be read here."""
    first = job.nodes[0] if job.nodes else "its node"
    return f"Read it on {first}, or have the engine run where the folders of the cluster are mounted"


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
