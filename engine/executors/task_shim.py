"""The keeper of one task: starts it, holds it to its limits, bounds its output, and writes down how it ended.

It is a program of its own with nothing but the standard library: `python -I -S task_shim.py FOLDER`. It outlives the
engine that started it, so that work goes on while the engine does not run. All it has to say it says by files in
FOLDER:

    task.json         what to run, written before it by `engine.executors.process_executor`
    lock              held as long as it lives: there is one keeper of a task at most
    status.json       phase (ready, started, ended) and what is known; replaced whole
    usage             CPU and memory of the task now, a line that is overwritten
    output.<offset>   what the task wrote, both streams in their order; the name says at which byte the part begins
    keeper.log        what went wrong in here

It says that it is ready and waits for the byte `g` on standard input. Without it, or when the input ends, it goes and
nothing was run. That it starts the task is on disk before the task begins, and a task that was started is never started
again. SIGTERM has it stop the task: SIGTERM to all its processes, SIGKILL after the grace. A byte on standard output,
as long as somebody listens, says that the status has changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import selectors
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TICK_S = 0.5
"""Between looks at memory, time and what is left of the task."""
DRAIN_S = 2.0
"""How long output is still taken after the task has ended, where something outside keeps its end open."""
READ_BYTES = 1 << 16
PARTS = 8
"""Files that the newer part of the output is kept in; the oldest goes when there is one too many."""
CANNOT_RUN, NOT_FOUND = 126, 127
"""Exit codes of shells for a program that is there and cannot be run, and for one that is not there."""
MEMORY, TIME_LIMIT, NOT_STARTED = "memory", "time limit", "not started"
"""Why we ended it, or there was nothing to end."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def main(folder: str) -> int:
    os.chdir(folder)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another keeps it
    if phase_in("status.json") in ("started", "ended"):
        return 0  # it was started, by a keeper that is gone: never twice
    with open("task.json", encoding="utf-8") as file:
        task = json.load(file)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return Keeper(task).run()


def phase_in(path: str) -> str:
    """The phase that a status file tells; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return str(json.load(file).get("phase", ""))
    except (OSError, ValueError):
        return ""


class Keeper:
    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.status: dict[str, Any] = {
            "phase": "ready", "keeper": os.getpid(), "born": born(os.getpid()), "boot": boot_id(), "pid": 0,
            "started_ms": 0, "ended_ms": 0, "code": 0, "signal": 0, "why": "", "detail": "", "peak_mib": 0, "cpu_ms": 0,
            "limits": task["limits_by"],
        }  # fmt: skip
        self.output = Output(task["output_bytes"], task["least_free_bytes"])
        self.pid = 0
        self.at = ""
        """What the child is about to use."""
        self.began_at = 0.0
        self.stopping_at = 0.0
        """When it is killed, once it was asked to stop. Times are of the monotonic clock, and 0 before they come."""
        self.ended_at = 0.0

    def run(self) -> int:
        wake, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self._write(durable=False)
        if not self._told_to_go(wake):
            os.unlink("status.json")
            return 0
        self.began_at = time.monotonic()
        self.status.update(phase="started", started_ms=now_ms())
        self._write(durable=True)
        pipe, end = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
        self._start(end)
        os.close(end)
        self._write(durable=False)
        self._follow(pipe, wake)
        self._settle()
        return 0

    def _told_to_go(self, wake: int) -> bool:
        with selectors.DefaultSelector() as waiting:
            waiting.register(0, selectors.EVENT_READ)
            waiting.register(wake, selectors.EVENT_READ)
            while True:
                for key, _ in waiting.select():
                    if key.fd == 0:
                        return os.read(0, 1) == b"g"
                    if signal.SIGTERM in os.read(wake, 64):
                        return False

    # -- the task -----------------------------------------------------------------------------------------------------

    def _start(self, output: int) -> None:
        """Fork, and have the child become the task. What keeps it from that ends it with a shell's exit code."""
        ours = os.getpid()
        try:
            self.pid = os.fork()
        except OSError as error:
            self._not_started(CANNOT_RUN, f"no process could be made: {error.strerror}")
            return
        if self.pid == 0:
            code = CANNOT_RUN
            try:
                self._become(ours, output)
            except (OSError, ValueError) as error:
                code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
                what = getattr(error, "strerror", None) or str(error)
                os.write(output, f"muster: it could not be started: {what}: {self.at}\n".encode(errors="replace"))
            finally:
                os._exit(code)
        self.status["pid"] = self.pid

    def _become(self, keeper: int, output: int) -> None:
        task = self.task
        os.setsid()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(CANNOT_RUN)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        self.at = task["cgroup"]
        if task["cgroup"]:
            with open(os.path.join(task["cgroup"], "cgroup.procs"), "w") as file:
                file.write("0")
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # where memory runs out, a task goes before those that look after it
        for name, most in task["rlimits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            # How many files it has open is its own affair as far as it may.
            resource.setrlimit(number, (most, hard if name == "RLIMIT_NOFILE" else most))
        if task["cpus"]:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, task["cpus"])
        os.umask(task["umask"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        self.at = task["cwd"]
        os.chdir(task["cwd"])
        self.at = task["argv"][0]
        os.execvpe(task["argv"][0], task["argv"], task["env"])

    def _not_started(self, code: int, detail: str) -> None:
        self.status.update(code=code, why=NOT_STARTED, detail=detail)
        self.output.take(f"muster: {detail}\n".encode())
        self.ended_at = time.monotonic()

    def _follow(self, pipe: int, wake: int) -> None:
        """Until nothing is left of the task."""
        os.set_blocking(pipe, False)
        open_ = True
        with selectors.DefaultSelector() as waiting:
            waiting.register(pipe, selectors.EVENT_READ)
            waiting.register(wake, selectors.EVENT_READ)
            looked = 0.0
            while True:
                for key, _ in waiting.select(TICK_S if self.pid else 0.05):
                    if key.fd == wake:
                        if signal.SIGTERM in os.read(wake, 64):
                            self._stop("")
                    elif not self._take(pipe):
                        waiting.unregister(pipe)
                        open_ = False
                self._reap()
                now = time.monotonic()
                if now - looked >= TICK_S:
                    looked = now
                    self._look(now)
                if self.ended_at and (not open_ or now - self.ended_at > DRAIN_S) and not self._left():
                    while open_ and self._take(pipe):
                        pass
                    return

    def _take(self, pipe: int) -> bool:
        """Return whether there may be more."""
        try:
            data = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return not self.ended_at or self._left()
        if data:
            self.output.take(data)
        return bool(data)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, raw = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid == self.pid:
                    self._ended(raw)
        if self.ended_at and time.monotonic() >= self.stopping_at and self._left():
            # What it left behind was part of it. Where all were asked to stop, the others have their grace too.
            self._send(signal.SIGKILL)

    def _ended(self, raw: int) -> None:
        self.ended_at = time.monotonic()
        self.pid = 0
        if os.WIFSIGNALED(raw):
            self.status["signal"] = os.WTERMSIG(raw)
        else:
            self.status["code"] = os.WEXITSTATUS(raw)
        if not self.status["why"] and self.task["cgroup"] and self._oom_kills():
            self.status.update(why=MEMORY, detail=f"more than {self.task['memory_mib']} MiB")

    def _look(self, now: float) -> None:
        if self.stopping_at and now >= self.stopping_at:
            self._send(signal.SIGKILL)
        if self.ended_at:
            return
        limit_ms = self.task["max_runtime_ms"]
        if limit_ms and now - self.began_at > limit_ms / 1000:
            self._stop(TIME_LIMIT, f"ran longer than {limit_ms / 1000:g} s")
        processes = self._processes()
        used = sum(resident(pid) for pid in processes) >> 20
        cpu_ms = sum(cpu_of(pid) for pid in processes) + cpu_of_reaped()
        self.status["peak_mib"] = max(self.status["peak_mib"], used)
        self.status["cpu_ms"] = max(self.status["cpu_ms"], cpu_ms)
        with contextlib.suppress(OSError):
            usage = os.open("usage", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(usage, f"{now_ms():>14} {cpu_ms:>14} {used:>12}\n".encode(), 0)
            os.close(usage)
        most = self.task["memory_mib"] if self.task["watch_memory"] else 0
        # Pages that several share count in each at first; only who seems above the limit is looked at closely.
        if most and used > most and sum(proportional(pid) for pid in processes) >> 20 > most:
            self.status.update(why=MEMORY, detail=f"used {used} MiB, may have {most}")
            self._send(signal.SIGKILL)

    def _stop(self, why: str, detail: str = "") -> None:
        if self.stopping_at or self.ended_at:
            return
        if why:
            self.status.update(why=why, detail=detail)
        self.stopping_at = time.monotonic() + self.task["grace_ms"] / 1000
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        if number == signal.SIGKILL and self.task["cgroup"]:
            with contextlib.suppress(OSError), open(os.path.join(self.task["cgroup"], "cgroup.kill"), "w") as file:
                file.write("1")
        for pid in self._processes():
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def _processes(self) -> list[int]:
        """Return those of the task: all that descend from us, for whoever loses its parent becomes our child."""
        found: list[int] = []
        todo = [os.getpid()]
        while todo:
            pid = todo.pop()
            for child in children(pid):
                found.append(child)
                todo.append(child)
        return found

    def _left(self) -> bool:
        """Return whether any process is left. All that the task made are our children in the end."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def _oom_kills(self) -> int:
        with contextlib.suppress(OSError, ValueError), open(os.path.join(self.task["cgroup"], "memory.events")) as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
        return 0

    # -- what is said -------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.status["cpu_ms"] = max(self.status["cpu_ms"], int((used.ru_utime + used.ru_stime) * 1000))
        self.status["peak_mib"] = max(self.status["peak_mib"], used.ru_maxrss >> 10)
        self.status.update(phase="ended", ended_ms=now_ms(), output=self.output.end, dropped=self.output.dropped)
        if self.task["cgroup"]:
            with contextlib.suppress(OSError):
                os.rmdir(self.task["cgroup"])
        self._write(durable=True)

    def _write(self, *, durable: bool) -> None:
        """Replace the status; try again as long as there is no room, for without it nobody knows how it ended."""
        while True:
            try:
                with open("status.new", "w", encoding="utf-8") as file:
                    json.dump(self.status, file)
                    file.flush()
                    if durable:
                        os.fsync(file.fileno())
                os.rename("status.new", "status.json")
                if durable:
                    folder = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
                    os.fsync(folder)
                    os.close(folder)
                break
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self.output.give_room()
                time.sleep(TICK_S)
        with contextlib.suppress(OSError):
            os.write(1, b"s")


class Output:
    """The output of the task, kept in parts: the beginning, and as much of the end as there is room for."""

    def __init__(self, most: int, least_free: int) -> None:
        self.part = max(most // (PARTS + 1), 4096)
        """Bytes of one file."""
        self.least_free = least_free
        self.end = 0
        """Bytes written by the task so far."""
        self.dropped = 0
        """Of those, bytes that were never kept, for the disk was full."""
        self.parts: list[int] = []
        """Offsets at which files begin, ascending."""
        self.file = -1
        self.room = 0

    def take(self, data: bytes) -> None:
        while data:
            if not self.room and not self._next():
                self.dropped += len(data)
                self.end += len(data)
                return
            try:
                written = os.write(self.file, data[: self.room])
            except OSError:
                self.dropped += len(data)
                self.end += len(data)
                self.room = 0
                return
            self.end += written
            self.room -= written
            data = data[written:]

    def _next(self) -> bool:
        """Begin another file. False where the disk has no room for it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        # The first stays: how it began explains much.
        while len(self.parts) > PARTS:
            os.unlink(f"output.{self.parts.pop(1):020}")
        disk = os.statvfs(".")
        if disk.f_bavail * disk.f_frsize < self.least_free:
            return False
        try:
            name = f"output.{self.end:020}"
            self.file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        self.parts.append(self.end)
        self.room = self.part
        return True

    def give_room(self) -> None:
        """Let go of the oldest but the first."""
        if len(self.parts) > 2:
            os.unlink(f"output.{self.parts.pop(1):020}")


# -- of the system ----------------------------------------------------------------------------------------------------


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def born(pid: int) -> int:
    """Return when the process began, in ticks since the machine did; with its id it says which process is meant. 0:
    none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(word) for word in file.read().split()]
    return found


def resident(pid: int) -> int:
    """Bytes of it in memory."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def proportional(pid: int) -> int:
    """The same, with its part alone of what it shares."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) << 10
    return resident(pid)


def cpu_of(pid: int) -> int:
    """Milliseconds of CPU it has used."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 // _TICKS
    except (OSError, IndexError, ValueError):
        return 0


def cpu_of_reaped() -> int:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((used.ru_utime + used.ru_stime) * 1000)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
