"""Work on this machine as somebody meets it: the commands, a server that is killed, and who may have it run what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from console.client.sockets import probe
from console.forms.settings import paths_in
from console.service.this_machine import LocalExecution, check_here, new_cell
from engine.control import Engine
from engine.executors.this_machine import Cgroups, find, gpus_told, model_of
from engine.model.commands import Submit
from engine.model.errors import RefusedError, SpecError
from engine.model.specs import CellSpec, QueueSpec
from runbooks.gate.decisions import check_commands
from runbooks.plans.identity import OWNER, TCP, Actor
from tests.support.patience import PATIENCE_S
from tests.support.real_work import Desk, job, now_ms
from tests.support.served import socket_folder

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are looked after on Linux alone"
)


class Shell:
    """`muster` in a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: subprocess.Popen[bytes] | None = None
        self.paths = paths_in(folder / "default")
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT),
            "MUSTER_STATE_DIR": str(folder), "SECRET_OF_MINE": "x",
        }  # fmt: skip

    def run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "console.cli.main", *words],
            env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout

    def serve(self) -> None:
        log = self.paths.folder.with_name("log").open("ab")
        self.server = subprocess.Popen(
            [sys.executable, "-m", "console.cli.main", "serve", "--here"],
            env=self.environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        log.close()
        give_up = time.monotonic() + PATIENCE_S
        while not self.paths.socket.exists() or probe(self.paths.socket) is None:
            assert time.monotonic() < give_up, self.paths.folder.with_name("log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        assert self.server is not None
        self.server.send_signal(signal.SIGKILL)
        self.server.wait(PATIENCE_S)


@pytest.fixture
def shell() -> Iterator[Shell]:
    with socket_folder() as folder:
        made = Shell(folder)
        yield made
        if made.server is not None:
            made.kill()


@pytest.mark.thorough
def test_the_first_day_at_a_workstation(shell: Shell) -> None:
    """Run something, follow it, have the engine killed under it, go on."""
    shell.serve()
    assert shell.run("run", "--follow", "--env", "A=1", "--", "sh", "-c", "echo $A; echo [$SECRET_OF_MINE]; pwd") == (
        f"1\n[]\n{shell.folder}\n"
    )
    shell.run("run", "-f", "--", "sh", "-c", "exit 7", code=7)
    name = shell.run("run", "--", "sh", "-c", "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo over").strip()
    give_up = time.monotonic() + PATIENCE_S
    while "begun" not in (shell.run("logs", name) if _attempts(shell, name) else ""):
        assert time.monotonic() < give_up
    shell.kill()
    shell.serve()
    (shell.folder / "go").touch()
    assert shell.run("logs", "-f", name) == "begun\nover\n"
    [attempt] = json.loads(shell.run("workload", "processes", name, "--json"))["attempts"]
    assert (attempt["attempt"], attempt["tasks"][0]["ended"]) == (1, "")
    assert (shell.paths.folder / "runs").stat().st_mode & 0o777 == 0o700


def _attempts(shell: Shell, name: str) -> bool:
    return bool(json.loads(shell.run("workload", "processes", name, "--json"))["attempts"])


def test_commands_run_for_the_owner_of_the_engine_alone(tmp_path: Path) -> None:
    here = Desk(tmp_path)
    try:
        command = Submit(workloads=(job("a", "true", "x"),))
        check_commands(here.engine, Actor(subject=OWNER, account=OWNER), command)
        for account in (TCP, "unix:4242", "token:person:alice"):
            with pytest.raises(RefusedError, match="only for the account that owns the engine"):
                check_commands(here.engine, Actor(subject="person:alice", account=account), command)
        here.engine.processes.open_door = True  # type: ignore[union-attr]
        check_commands(here.engine, Actor(subject="person:alice", account=TCP), command)
        bare = Submit(workloads=(msgspec.structs.replace(command.workloads[0], run=None),))
        with pytest.raises(SpecError, match="this cell runs commands"):
            check_commands(here.engine, Actor(subject=OWNER, account=OWNER), bare)
    finally:
        here.stop_all()


def test_a_cell_is_served_as_it_was_made(tmp_path: Path) -> None:
    here = LocalExecution(tmp_path / "runs")
    desk = Desk(tmp_path)
    with pytest.raises(RefusedError, match="Serve it with --here"):
        check_here(desk.engine, None)
    check_here(desk.engine, here)
    desk.engine.processes.node = "other"  # type: ignore[union-attr]
    with pytest.raises(RefusedError, match="this machine is 'other', and the cell is of desk"):
        check_here(desk.engine, here)
    desk.stop_all()
    simulated = Engine.open(None, cell=CellSpec(queues=(QueueSpec(name="q"),)))
    with pytest.raises(RefusedError, match="was not made to run work"):
        check_here(simulated, here)


def test_a_fork_of_real_work_starts_nothing(tmp_path: Path) -> None:
    """What-if, estimates and simulations run ahead without a process."""
    desk = Desk(tmp_path)
    try:
        desk.submit(job("a", "sleep 60"))
        desk.until_state("a", "running")
        fork = desk.engine.fork()
        fork.advance(now_ms() + 30 * 24 * 3_600_000)
        assert fork.workload("a").state == "finished"
        assert desk.state("a") == "running"
        assert len(list((tmp_path / "runs" / ".live").iterdir())) == 1
    finally:
        desk.stop_all()


def test_this_machine_is_a_cell_of_one_node(tmp_path: Path) -> None:
    cell = new_cell(tmp_path / "cell", None)
    assert cell.settings.executor == "process"
    assert cell.pools[0].capacity.cpu_milli == 1000 * len(os.sched_getaffinity(0))
    own = new_cell(tmp_path / "cell", CellSpec(name="mine", queues=(QueueSpec(name="night"),)))
    assert (own.name, [queue.name for queue in own.queues], own.nodes) == ("mine", ["night"], cell.nodes)
    with pytest.raises(SpecError, match="this machine is the only node"):
        new_cell(tmp_path / "cell", cell)


def test_devices_are_known_by_what_nvidia_smi_says() -> None:
    found = gpus_told("0, NVIDIA A100-SXM4-80GB, 81920\n1, NVIDIA A100-SXM4-80GB, 81920\n2, Quadro P400, 2000\n")
    assert found is not None
    assert tuple(found) == ("A100", 81920, 2)
    assert gpus_told("No devices were found\n") is None
    assert model_of("NVIDIA GeForce RTX 4090") == "RTX-4090"


def test_control_groups_hold_a_task_to_its_limits(tmp_path: Path) -> None:
    """What is written where the kernel reads it; a machine that gives none is told by there being no `find`."""
    groups = Cgroups(tmp_path, frozenset({"cpu", "memory"}))
    made = groups.make("task-1", 1500, 256)
    assert (made / "memory.max").read_text() == str(256 << 20)
    assert (made / "cpu.max").read_text() == "150000 100000"
    assert find(tmp_path) is None
