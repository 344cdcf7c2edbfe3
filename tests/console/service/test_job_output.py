"""What jobs of a real Slurm write, read through the engine that mirrors the cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from console.commands.processes import stretches
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.service.slurm_cell import SlurmAt, SlurmCell
from engine.control import Engine
from engine.executors.task_files import OutputRequest
from engine.loop import EngineLoop
from engine.model.commands import Define
from engine.model.errors import NotFoundError, RefusedError
from engine.model.specs import CellSpec, Settings
from tests.support.gates import gate_of
from tests.support.slurm_cluster import RELEASES, SlurmCluster, shared, soon

pytestmark = pytest.mark.thorough


@pytest.fixture(params=list(RELEASES))
def mirrored(request: pytest.FixtureRequest) -> Iterator[tuple[SlurmCluster, LocalClient]]:
    with ExitStack() as after:
        cluster = after.enter_context(shared(request.param))
        engine = Engine.open(None)
        after.callback(engine.close)
        engine.advance(int(time.time() * 1000))
        engine.command(Define(cell=CellSpec(name="mirror", settings=Settings(decided_by="slurm"))))
        loop = EngineLoop(engine)
        loop.start()
        after.callback(loop.stop)
        slurm = SlurmCell(loop, SlurmAt(cluster.socket))
        slurm.start()
        after.callback(slurm.stop)
        soon(lambda: slurm.report().state == "following")
        yield cluster, LocalClient(loop, gate_of(engine), Advisor(loop), cluster=slurm)


def submit(cluster: SlurmCluster, script: str, *flags: str) -> str:
    out = cluster.run("sbatch", "--parsable", "-t", "5", "-D", str(cluster.folder / "jobs"), *flags, "--wrap", script)
    return out.strip().split(";")[0]


def seen(client: LocalClient, name: str) -> bool:
    try:
        return bool(client.output(OutputRequest(id=name)).data)
    except (NotFoundError, RefusedError):
        return False


def test_a_job_is_followed_to_its_end_in_both_of_its_files(mirrored: tuple[SlurmCluster, LocalClient]) -> None:
    cluster, client = mirrored
    script = "echo begun; echo wrong >&2; printf '\\033[2J\\a'; sleep 3; echo done"
    name = submit(cluster, script, "-J", "tail", "-o", "%x-%j.out", "-e", "%x-%A.err")
    soon(lambda: seen(client, name))
    parts = list(stretches(client, OutputRequest(id=name, offset=0), follow=True))
    assert b"".join(part.data for part in parts) == b"begun\n\x1b[2J\x07done\n"
    assert parts[-1].over
    assert Path(parts[0].path).name == f"tail-{name}.out"
    assert (parts[-1].tasks, parts[-1].node[:3]) == (("output", "errors"), "cpu")
    assert client.output(OutputRequest(id=name, task="errors")).data == b"wrong\n"
    assert client.output(OutputRequest(id=name, task="1")).data == b"wrong\n"
    with pytest.raises(NotFoundError, match="has no file"):
        client.output(OutputRequest(id=name, task="2"))


def test_files_that_are_not_the_jobs_own_stay_closed(mirrored: tuple[SlurmCluster, LocalClient]) -> None:
    cluster, client = mirrored
    jobs = cluster.folder / "jobs"
    secret = jobs / "secret"
    secret.write_text("secret")
    named = submit(cluster, "sleep 2", "--uid=games", "-o", str(secret))
    nowhere = submit(cluster, "sleep 30", "-o", "/dev/null")
    soon(lambda: reason(client, named) and reason(client, nowhere))
    assert "belongs to 'root', not to 'games'" in reason(client, named)
    soon(lambda: "not a regular file" in reason(client, nowhere))
    cluster.run("scancel", nowhere)
    with pytest.raises(NotFoundError):
        client.output(OutputRequest(id="999999"))


def reason(client: LocalClient, name: str) -> str:
    try:
        client.output(OutputRequest(id=name))
    except RefusedError as error:
        return str(error)
    except NotFoundError:
        return ""
    return ""
