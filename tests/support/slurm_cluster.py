"""Real Slurm clusters on loopback for tests, of `../shared/slurm/slurm-up`: one of each release shared by all processes
of a test run, and others of a test's own to be broken.

    from slurm_cluster import shared, own

    with shared("host") as cluster: ...       # 22.05, v0.0.38; nobody kills its daemons
    with own("trixie") as cluster: ...        # 24.11, v0.0.42; a test's own: kill what you like

Releases: "host" is this Debian's Slurm, "trixie" is Debian 13's, unpacked once. Packages are installed and trixie is
unpacked only where MUSTER_SLURM_INSTALL=1, as in CI; elsewhere a test that finds none is skipped.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.external.slurm.connection import SlurmConnection
from tests.support.patience import PATIENCE_S
from tests.support.process_shared import locked, shared_by_processes

SCRIPTS = Path(__file__).resolve().parents[2].parent / "shared" / "slurm"
SAMPLES = SCRIPTS / "samples"
RELEASES = {"host": "v0.0.38", "trixie": "v0.0.42"}
UNPACKED = Path(os.environ.get("SLURM_LOOP_CACHE", "/var/cache/slurm-loop"))
PORTS = range(30_000, 32_400, 160)


def why_not(release: str) -> str:
    """Why there can be no such cluster here; empty: there can."""
    install = os.environ.get("MUSTER_SLURM_INSTALL") == "1"
    if not (SCRIPTS / "slurm-up").exists():
        return "needs the folder `shared/slurm` next to the checkout"
    if os.getuid() != 0:
        return "a cluster on loopback needs root: slurmd starts jobs for users"
    if release == "host" and not install and shutil.which("slurmctld") is None:
        return "Slurm is not installed (MUSTER_SLURM_INSTALL=1 installs it)"
    if release == "trixie" and not install and not (UNPACKED / "trixie").exists():
        return f"Debian 13's Slurm is not unpacked in {UNPACKED} (MUSTER_SLURM_INSTALL=1 unpacks it)"
    return ""


class SlurmCluster:
    """A cluster that is up, in `folder`."""

    def __init__(self, folder: Path, release: str, options: tuple[str, ...]) -> None:
        self.folder = folder
        self.release = release
        self.api = RELEASES[release]
        self.options = options
        self.url = ""

    @property
    def socket(self) -> str:
        return f"unix:{self.folder}/run/slurmrestd.socket"

    @property
    def commands(self) -> Path:
        return self.folder / "bin"

    def token(self, user: str = "root") -> Path:
        """root, games, backup, irc have one."""
        return self.folder / "run" / ("token" if user == "root" else f"token.{user}")

    def connection(self, **how: object) -> SlurmConnection:
        """Over the Unix socket, as root, with Slurm's commands at hand. A test that kills slurmrestd goes over TCP:
        httpcore leaves a Unix socket that nobody listens at to the garbage collector, which warns of it."""
        return SlurmConnection(self.socket, **{"commands": self.commands, **how})  # type: ignore[arg-type]

    def over_tcp(self, user: str = "root", **how: object) -> SlurmConnection:
        """By the token of a user."""
        how = {"token_file": self.token(user), "commands": self.commands, **how}
        return SlurmConnection(self.url, user, **how)  # type: ignore[arg-type]

    def run(self, command: str, *arguments: str) -> str:
        """One of Slurm's commands; its output."""
        done = subprocess.run([self.commands / command, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def up(self) -> SlurmCluster:
        """Starts it, or what is not running of it; keeps the queue. 1 s, with accounting 4 to 20 s."""
        install = os.environ.get("MUSTER_SLURM_INSTALL") == "1"
        words = [*self.options, "--release", self.release, *([] if install else ["--no-install"])]
        done = subprocess.run(
            ["bash", SCRIPTS / "slurm-up", self.folder, *words, "--wait", f"{PATIENCE_S:.0f}"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        if done.returncode != 0:
            pytest.fail(f"slurm-up: {done.stderr[-2000:]}", pytrace=False)
        said = dict(word.split("=", 1) for word in done.stdout.splitlines()[-1].split() if "=" in word)
        self.url = said["tcp"]
        return self

    def down(self) -> None:
        subprocess.run(["bash", SCRIPTS / "slurm-down", "--wipe", self.folder], capture_output=True, timeout=PATIENCE_S)

    def pid(self, daemon: str) -> int:
        """Of `slurmctld`, `slurmrestd-unix`, `slurmrestd-tcp`, `slurmdbd`, `slurmd-cpu001`, ..."""
        return int((self.folder / "run" / f"{daemon}.pid").read_text().split()[0])

    def kill(self, daemon: str, how: signal.Signals = signal.SIGKILL) -> None:
        """By default with -9; SIGSTOP and SIGCONT hold it up. Returns when it is so."""
        pid = self.pid(daemon)
        os.kill(pid, how)
        if how == signal.SIGKILL:
            soon(lambda: _states(pid) <= {"Z", "X"})
        elif how == signal.SIGSTOP:
            soon(lambda: _states(pid) == {"T"})

    def saved_s(self) -> float:
        """When slurmctld last saved its jobs: those it took after that are lost if it is killed."""
        return max((path.stat().st_mtime for path in self.folder.glob("state/**/job_state")), default=0.0)

    def start(self, daemon: str) -> None:
        """One daemon again, as it was started; the others go on. Returns when slurmctld answers, for others at once."""
        log = (self.folder / "log" / f"{daemon}.args").read_bytes().split(b"\0")
        subprocess.run([self.commands / "spawn", self.folder, daemon, *log], env=self._environment(daemon), check=True)
        if daemon == "slurmctld":
            soon(self._controller_answers)

    def _controller_answers(self) -> bool:
        done = subprocess.run([self.commands / "scontrol", "ping"], capture_output=True, timeout=PATIENCE_S)
        return b" is UP" in done.stdout

    def remember(self) -> None:
        """How the daemons were started, for `start`."""
        for daemon in ("slurmctld", "slurmrestd-unix", "slurmrestd-tcp"):
            arguments = Path(f"/proc/{self.pid(daemon)}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            arguments = [word for word in arguments if word != b"-i"]
            words = [bytes(self.commands / "in-root"), *arguments]
            (self.folder / "log" / f"{daemon}.args").write_bytes(b"\0".join(words))

    def _environment(self, daemon: str) -> dict[str, str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        mine |= {"SLURM_CONF": f"{self.folder}/etc/slurm.conf", "SLURMRESTD_SECURITY": "disable_user_check"}
        if daemon == "slurmrestd-tcp":
            mine["SLURM_JWT"] = "daemon"
        return mine


def _states(pid: int) -> set[str]:
    """Of all threads of a process; nothing once it is gone."""
    found = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            found.add(stat.read_text().rpartition(") ")[2][0])
    return found


_CHOOSING = Path(tempfile.gettempdir()) / "muster-slurm-own"
"""Who looks for free ports and takes them does so alone."""


def soon(true: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Waits until it is, and fails if it is not in time."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, f"not in {within_s:.0f} s"
        time.sleep(0.05)


@contextlib.contextmanager
def shared(release: str) -> Iterator[SlurmCluster]:
    """The cluster of this release that all processes of the run share, with accounting and switches. Use names of your
    own, leave nodes and partitions as you found them, and kill nothing. The last one out stops it."""
    if reason := why_not(release):
        pytest.skip(reason)
    folder = Path(tempfile.gettempdir()) / f"muster-slurm-{release}"
    cluster = SlurmCluster(folder, release, ("--accounting", "--topology"))

    def up() -> None:
        with locked(_CHOOSING):
            cluster.options += ("--port", str(_port_of(folder)))
            cluster.up()

    with shared_by_processes(folder, up, cluster.down):
        yield cluster


@contextlib.contextmanager
def own(release: str, *options: str) -> Iterator[SlurmCluster]:
    """A small cluster of a test's own. `options` are those of slurm-up."""
    if reason := why_not(release):
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="muster-slurm-"))
    small = ("--cpu-nodes", "2", "--gpu-nodes", "1", "--cloud-nodes", "1")
    cluster = SlurmCluster(folder, release, (*small, *options))
    try:
        with locked(_CHOOSING):
            cluster.options += ("--port", str(_free_port()))
            cluster.up()
        cluster.remember()
        yield cluster
    finally:
        for daemon in ("slurmctld", "slurmrestd-unix", "slurmrestd-tcp"):
            with contextlib.suppress(OSError):
                cluster.kill(daemon, signal.SIGCONT)
        cluster.down()
        shutil.rmtree(folder, ignore_errors=True)


def _port_of(folder: Path) -> int:
    """The port it already has, or a free one."""
    want = folder / "run" / "want"
    return int(want.read_text().split()[5]) if want.exists() else _free_port()


def _free_port() -> int:
    """The first of ports that are free: +0 the controller, +3 slurmrestd, +100 and on the nodes."""
    bases = list(PORTS)
    random.shuffle(bases)
    for base in bases:
        if all(_free(base + at) for at in (0, 1, 2, 3, 100, 101, 102, 103)):
            return base
    pytest.fail("no free ports from 30000 to 32400", pytrace=False)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
