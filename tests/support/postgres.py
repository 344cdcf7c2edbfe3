"""A PostgreSQL server of the tests' own: made by `initdb` as an unprivileged user in a temporary folder, reached by a
Unix socket there and a free port of loopback, one for each process of the tests, with a schema for whoever asks."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S

USER = "muster"
_CONF = """
listen_addresses = '127.0.0.1'
max_connections = 60
shared_buffers = 16MB
logging_collector = off
log_line_prefix = '%m %a '
autovacuum = on
recovery_init_sync_method = syncfs
"""
"""What is acknowledged is on the disk, as it must be for any test of that."""


def programs() -> Path | None:
    """The folder with the server's programs, of the newest version that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def why_not() -> str:
    """Why there can be no server here; empty: there can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "the extra postgres is not installed"
    if programs() is None:
        return "PostgreSQL is not installed"
    if os.getuid() == 0 and _unprivileged() is None:
        return "PostgreSQL is not running as root, and there is no user postgres or nobody to run it as"
    return ""


def _unprivileged() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


class Server:
    """A server that can be killed, held up and started again. Its folder goes with `close`."""

    def __init__(self, *, conf: str = "", beside: str | None = None, follows: Server | None = None) -> None:
        """`beside`: the folder in which it has its own, that of temporary files if not given. `follows`: the server
        whose replica it is, until `promote`."""
        self._bin = programs()
        assert self._bin is not None
        self.folder = Path(tempfile.mkdtemp(prefix="muster-pg-", dir=beside))
        user = _unprivileged() if os.getuid() == 0 else None
        self._as: dict[str, Any] = {}
        if user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.data = self.folder / "data"
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        if follows is None:
            self._run(
                "initdb", "-D", str(self.data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N",
                "--wal-segsize=4",
            )  # fmt: skip
        else:
            where = ("-h", str(follows.folder), "-p", str(follows.port), "-U", USER)
            self._run("pg_basebackup", "-D", str(self.data), "-R", "-c", "fast", "-N", *where)
        with open(self.data / "postgresql.conf", "a", encoding="ascii") as file:
            file.write(_CONF + f"port = {self.port}\nunix_socket_directories = '{self.folder}'\n" + conf)
        self.start()

    def _run(self, program: str, *words: str) -> None:
        assert self._bin is not None
        done = subprocess.run(
            [str(self._bin / program), *words], cwd=self.folder, capture_output=True, text=True, check=False,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, **self._as,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Begin to serve, and wait until it answers."""
        assert self._bin is not None
        log = open(self.folder / "log", "ab")  # noqa: SIM115 - the server's
        with log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self.data)], cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, start_new_session=True,
                **self._as,
            )  # fmt: skip
        self.wait()

    def wait(self) -> None:
        import psycopg

        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
                assert self._process is not None
                assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.02)

    def become_replica(self) -> None:
        """Begin anew as one that can be read and not written, as after a failover that nobody told us of."""
        self.stop()
        signal_file = self.data / "standby.signal"
        signal_file.touch()
        if self._as:
            os.chown(signal_file, self._as["user"], self._as["group"])
        self.start()

    def promote(self) -> None:
        """Take writes from now on."""
        self.ask("SELECT pg_promote()")

    def ask(self, statement: str) -> list[Any]:
        """What the server answers to a statement of its owner."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            answer = connection.execute(statement)
            return answer.fetchall() if answer.description else []

    def kill(self) -> None:
        """kill -9 of the postmaster and all that it has started."""
        assert self._process is not None
        pids = [self._process.pid, *children(self._process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + PATIENCE_S
        while any(Path(f"/proc/{pid}").exists() for pid in pids[1:]) and time.monotonic() < deadline:
            time.sleep(0.005)

    def stop(self) -> None:
        """A fast shutdown: sessions are ended, nothing is lost."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)

    def hold(self) -> None:
        """Let every process of it stand still, as a machine that hangs does."""
        assert self._process is not None
        for pid in (self._process.pid, *children(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        for pid in (self._process.pid, *children(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def ended(self) -> str:
        """How it ended, and its last words; empty: it runs."""
        assert self._process is not None
        code = self._process.poll()
        return "" if code is None else f"code {code}: {(self.folder / 'log').read_text()[-1000:]}"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@/{database}?host={self.folder}&port={self.port}"

    def cell(self, port: int = 0) -> str:
        """The URL of a schema of its own, which is not there yet: much quicker made than a database. `port`: of a line
        to the server, on TCP."""
        schema = f"t{next(self._numbers)}"
        if port:
            return f"postgresql://{USER}@127.0.0.1:{port}/postgres?schema={schema}"
        return f"{self.url()}&schema={schema}"

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.go_on()
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(PATIENCE_S)
        shutil.rmtree(self.folder, ignore_errors=True)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@functools.cache
def shared() -> Server:
    """The one of this process. It ends with the process."""
    import atexit

    server = Server(beside=_in_memory())
    atexit.register(server.close)
    return server


def _in_memory() -> str | None:
    """A folder without a disk behind it: no test of the shared server asks what outlives this machine, and none of its
    turns then waits for the disk that other tests keep busy."""
    with contextlib.suppress(OSError):
        room = os.statvfs("/dev/shm")
        if os.access("/dev/shm", os.W_OK) and room.f_bavail * room.f_frsize > 2 << 30:
            return "/dev/shm"
    return None


def new_url() -> str:
    """A place on the shared server for one cell. Skips where there can be none."""
    if reason := why_not():
        pytest.skip(reason)
    server = shared()
    ended = server.ended()
    assert not ended, f"a test before this one ended the server that all share: {ended}"
    return server.cell()


@contextlib.contextmanager
def own_server(*, conf: str = "", beside: str | None = None, follows: Server | None = None) -> Iterator[Server]:
    """One that may be killed. Skips where there can be none."""
    if reason := why_not():
        pytest.skip(reason)
    server = Server(conf=conf, beside=beside, follows=follows)
    try:
        yield server
    finally:
        server.close()
