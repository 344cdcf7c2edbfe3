"""A fleet over two real Slurm clusters, one of each release, and a cell of Muster's own, each in its own process: what
is submitted goes where it may and should, runs once, and is followed to its end, also while daemons are killed."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from console.client.remote import RemoteClient
from console.fleet.queries import CellView, FleetClient, FleetPaths, FleetSubmission, FleetView
from engine.model.errors import MusterError, SpecError
from engine.model.specs import ArraySpec, Resources, RunSpec, TaskGroup, WorkloadSpec
from tests.bench.fleet_chaos import ROOT, Kept, _ids
from tests.support.patience import PATIENCE_S
from tests.support.slurm_cluster import SlurmCluster, own

pytestmark = [
    pytest.mark.slow,
    # httpcore leaves a Unix socket that nobody listens at to the garbage collector, which warns of it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
HOME = """\
pools:
  - {name: cpu, nodes: 2, capacity: {cpu: 64, memory: 256GiB}, price_usd_hour: 2}
queues:
  - {name: batch}
priority_classes:
  - {name: normal, value: 500}
"""
FLEET = """\
name: three
cells:
  - {name: old, connect: old/engine.sock, residency: eu}
  - {name: new, connect: new/engine.sock, residency: us}
  - {name: home, connect: home/engine.sock, residency: eu}
tenants:
  - {name: acme, quota: {cpu: 100}}
  - {name: clinic, residency: eu}
datasets:
  - {name: patients, cells: [old]}
  - {name: images, cells: [new], size: 100GiB, elsewhere: read}
transfer: {rate: 100MiB/s}
routing: {bind_within: 1h, bind_after: 0s, answer_within: 30s}
"""


class Three:
    """The clusters, their mirrors, the cell of our own, and the fleet over them."""

    def __init__(self, folder: Path, after: ExitStack) -> None:
        self.folder = folder
        self.clusters = {
            name: after.enter_context(own(release, "--cloud-nodes", "0"))
            for name, release in (("old", "host"), ("new", "trixie"))
        }
        self.processes: dict[str, Kept] = {}
        (folder / "home.yaml").write_text(HOME)
        (folder / "fleet.yaml").write_text(FLEET)
        for name, cluster in self.clusters.items():
            self._serve(after, name, "--slurm", cluster.socket.removeprefix("unix:"), "--slurm-act")
        self._serve(after, "home", "--cell-file", str(folder / "home.yaml"))
        self.paths = FleetPaths(folder / "f", folder / "f/fleet.db", folder / "f/fleet.sock", folder / "f/fleet.pid")
        words = ["fleet", "serve", "--file", str(folder / "fleet.yaml"), "--fleet", str(self.paths.folder)]
        self.processes["fleet"] = Kept("fleet", words, folder / "fleet.log")
        after.callback(self.processes["fleet"].stop)
        self.until(lambda view: all(cell.state == "up" and cell.nodes for cell in view.cells))

    def _serve(self, after: ExitStack, name: str, *how: str) -> None:
        words = ["serve", "--cell", name, *how, "--approval", "solo", "--data", str(self.folder / name)]
        self.processes[name] = process = Kept(name, words, self.folder / f"{name}.log")
        after.callback(process.stop)

    def submit(self, *specs: WorkloadSpec, cells: tuple[str, ...] = ()) -> tuple[FleetSubmission, ...]:
        with closing(FleetClient(self.paths.socket, patience_s=PATIENCE_S)) as client:
            return client.submit(list(specs), cells)

    def found(self, name: str) -> FleetSubmission:
        with closing(FleetClient(self.paths.socket, patience_s=PATIENCE_S)) as client:
            return client.submission(name)

    def until(self, true: Callable[[FleetView], bool]) -> FleetView:
        end, told = time.monotonic() + PATIENCE_S, "the fleet did not answer"
        while time.monotonic() < end:
            with suppress(MusterError), closing(FleetClient(self.paths.socket, patience_s=5)) as client:
                view = client.view()
                if true(view):
                    return view
                told = f"{view.counts}, {[(cell.name, cell.state, cell.why) for cell in view.cells]}, {view.waiting}"
            time.sleep(0.1)
        raise AssertionError(f"not in {PATIENCE_S:.0f} s: {told}")

    def all(self) -> tuple[FleetSubmission, ...]:
        with closing(FleetClient(self.paths.socket, patience_s=PATIENCE_S)) as client:
            return client.page(limit=1_000).items

    def muster(self, *words: str, well: bool = True) -> subprocess.CompletedProcess[str]:
        """As somebody types it."""
        command = [sys.executable, "-m", "console.cli.main", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert (done.returncode == 0) == well, done.stderr
        return done

    def price(self, cell: str, usd: int) -> None:
        """What a node of each of its pools costs from now on."""
        where = str(self.folder / cell / "engine.sock")
        with closing(RemoteClient(where)) as client:
            pools = [pool.name for pool in client.overview().pools]
        for pool in pools:
            self.muster("pool", "set-price", pool, str(usd), "--connect", where, "--yes")

    def ended(self, *names: str) -> None:
        try:
            self.until(lambda _: all(self.found(name).state == "ended" for name in names))
        except AssertionError:
            told = [f"{each.id}: {each.state} in {each.cell}, {each.cell_state}" for each in map(self.found, names)]
            raise AssertionError(f"not ended: {told}") from None


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    with ExitStack() as after:
        yield Three(tmp_path_factory.mktemp("f3"), after)


def job(name: str, command: str = "sleep 1", cpus: int = 1, tenant: str = "lab", **more: object) -> WorkloadSpec:
    request = Resources(cpu_milli=1000 * cpus, memory_mib=100)
    given = {
        "id": name, "name": f"job {name}", "queue": "batch", "tenant": tenant, "groups": (TaskGroup(request=request),),
        "estimate_ms": 600_000, "run": RunSpec(argv=("/bin/sh", "-c", command)),
    }  # fmt: skip
    return WorkloadSpec(**{**given, **more})  # type: ignore[arg-type]


def test_work_goes_where_its_data_may_be_and_keeps_its_tenant_and_tags_in_slurm(three: Three) -> None:
    tags = {"dataset": "patients", "project": "p7"}
    there = three.submit(
        job("patient", tenant="clinic", team="ward", tags=tags),
        job("image", tags={"dataset": "images"}),
        job("sweep", tenant="clinic", tags=tags, array=ArraySpec(first=1, last=3)),
    )
    assert [each.cell for each in there] == ["old", "new", "old"]
    decided = there[0].decision
    assert decided is not None
    assert "us" in next(row.why_not for row in decided.rows if row.cell == "new")
    three.ended("patient", "image", "sweep")
    with closing(RemoteClient(str(three.folder / "old/engine.sock"))) as old:
        found, element = old.workload("patient"), old.workload("sweep/2")
    assert (found.name, found.tenant, found.team, found.estimate_ms) == ("job patient", "clinic", "ward", 600_000)
    assert tags.items() <= found.tags.items()
    assert found.tags["fleet"].startswith("three-")
    assert (element.array, element.tenant, element.state) == ("sweep", "clinic", "finished")


def test_what_a_slurm_refuses_after_its_cell_took_it_goes_to_another(three: Three) -> None:
    (there,) = three.submit(job("odd", tags={"features": "nosuch", "dataset": "images"}), cells=("new", "home"))
    assert there.decision is not None
    assert there.decision.cell == "new"
    three.until(lambda _: (three.found("odd").cell, three.found("odd").state) == ("home", "routed"))
    with closing(FleetClient(three.paths.socket)) as client:
        told = [each.detail for each in client.view().recent if (each.subject, each.what) == ("odd", "refused")]
    assert len(told) == 1
    assert "by the Slurm of new" in told[0]
    assert "nvalid feature" in told[0]


def test_a_quota_counts_what_was_submitted_to_slurm_itself(three: Three) -> None:
    old = three.clusters["old"]
    direct = old.run("sbatch", "--parsable", "-A", "acme", "-o", "/dev/null", "-c", "60", "--wrap", "sleep 300").strip()
    try:
        three.until(lambda view: _held(view, "acme") >= 60_000)
        (waits,) = three.submit(job("more", cpus=50, tenant="acme"), cells=("old", "new"))
        assert (waits.state, waits.waits) == ("waiting", "quota")
    finally:
        old.run("scancel", direct)
    three.ended("more")


def _held(view: FleetView, tenant: str) -> int:
    return next(each.held.get("cpu_milli", 0) for each in view.tenants if each.name == tenant)


def test_the_cheaper_slurm_is_taken_where_both_start_it_at_once(three: Three) -> None:
    for i, (old_usd, new_usd, cheaper) in enumerate(((4, 1, "new"), (1, 4, "old"))):
        three.price("old", old_usd)
        three.price("new", new_usd)
        # Another estimate is another shape, of which nothing was said yet.
        (there,) = three.submit(job(f"cheap{i}", estimate_ms=3_600_000 + i), cells=("old", "new"))
        assert there.decision is not None
        rows = [row for row in there.decision.rows if not row.why_not and not row.guessed]
        costs = {row.cell: row.cost_microusd or 0 for row in rows}
        assert costs.keys() == {"old", "new"}, there.decision
        assert there.cell == cheaper == min(costs, key=lambda name: costs[name])
        assert "less in cost and waiting" in there.why
    three.ended("cheap0", "cheap1")


def test_what_waits_for_its_tenants_quota_is_taken_back(three: Three) -> None:
    (there,) = three.submit(job("most", "sleep 300", cpus=60, tenant="acme"), cells=("new",))
    assert there.cell == "new"
    (waits,) = three.submit(job("back", cpus=50, tenant="acme"), cells=("old", "new"))
    assert (waits.state, waits.waits) == ("waiting", "quota")
    done = three.muster("fleet", "withdraw", "back", "--fleet", str(three.paths.folder))
    assert done.stdout.split() == ["back"]
    assert three.found("back").state == "withdrawn"
    in_cell = three.muster("fleet", "withdraw", "most", "--fleet", str(three.paths.folder), well=False)
    assert "cancel most" in in_cell.stderr
    three.until(lambda _: three.found("most").cell_state == "running")
    where = str(three.folder / "new/engine.sock")
    done = three.muster("cancel", "most", "--connect", where, "--yes", "--reason", "not needed")
    three.until(lambda _: "most" not in three.clusters["new"].run("squeue", "-h", "-o", "%j"))
    three.ended("most")
    assert "most" not in three.clusters["new"].run("squeue", "--noheader", "-o", "%j")


def test_where_data_may_not_be_nothing_goes_and_that_is_said_at_once(three: Three) -> None:
    for spec, cells, told in (
        (job("no1", tenant="clinic"), ("new",), "work of clinic stays in eu, and this is us"),
        (job("no2", tags={"dataset": "patients"}), ("new",), "patients is in old and is not read from elsewhere"),
    ):
        with pytest.raises(SpecError, match=told):
            three.submit(spec, cells=cells)
    assert not {"no1", "no2"} & {each.id for each in three.all()}


@pytest.mark.parametrize("what", ["slurmctld", "engine"])
def test_a_cell_that_is_down_is_shown_and_routed_around(three: Three, what: str) -> None:
    cluster = three.clusters["old"]
    if what == "slurmctld":
        cluster.kill(what)
    else:
        three.processes["old"].kill()
    try:
        view = three.until(lambda view: _cell(view, "old").state == "down")
        assert ("Slurm" if what == "slurmctld" else "no engine answers") in _cell(view, "old").why
        there, waits = three.submit(
            job(f"around-{what}"),
            job(f"only-old-{what}", tags={"dataset": "patients"}),
        )
        assert there.cell in ("new", "home")
        assert there.decision is not None
        (row,) = [row for row in there.decision.rows if row.cell == "old"]
        assert (bool(row.why_not), row.for_good) == (True, False)  # it was not asked
        assert (waits.state, waits.waits) == ("waiting", "cells")
    finally:
        cluster.start(what) if what == "slurmctld" else three.processes["old"].start_again()
    three.until(lambda view: _cell(view, "old").state == "up")
    three.ended(f"only-old-{what}")
    assert three.found(f"only-old-{what}").cell == "old"


def _cell(view: FleetView, name: str) -> CellView:
    return next(cell for cell in view.cells if cell.name == name)


LONGER_THAN_FORGOTTEN_S = 8
"""slurmctld saves its jobs every 5 s. One that starts and ends within what a crash made it forget is run again where
its workload says `always` (docs/slurm.md)."""


def test_each_runs_once_while_a_slurmctld_an_engine_and_the_fleet_are_killed(three: Three, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    ran.touch(mode=0o666)
    ids = [f"k{i}" for i in range(40)]

    def submit(mine: list[str]) -> None:
        for name in mine:
            say = f"{name} >> {ran}"
            command = f"echo began {say}; sleep {LONGER_THAN_FORGOTTEN_S}; echo ended {say}"
            while True:
                with suppress(MusterError):
                    three.submit(job(name, command, rerun="always"), cells=("old", "new"))
                    break
                time.sleep(0.1)

    clients = [threading.Thread(target=submit, args=(ids[at::4],)) for at in range(4)]
    for client in clients:
        client.start()
    _kill_and_start(three.clusters["old"], three, "new")
    _kill_and_start(three.clusters["new"], three, "fleet")
    for client in clients:
        client.join()
    three.until(lambda view: not {"waiting", "sending", "routed"} & {three.found(name).state for name in ids})
    # What slurmctld forgot to have started it kills half way and starts once more, minutes later: it ends once.
    clusters = three.clusters.values()
    three.until(lambda _: not any("job_k" in cluster.run("squeue", "-h", "-o", "%j") for cluster in clusters))
    lines = Counter(ran.read_text().splitlines())
    odd = [name for name in ids if lines[f"ended {name}"] != 1]
    assert not odd, "\n".join(_evidence(three, name, lines) for name in odd)
    there = [_ids(three.folder / name / "engine.sock") & set(ids) for name in three.clusters]
    assert sorted(name for cell in there for name in cell) == sorted(ids)


def _evidence(three: Three, name: str, lines: Counter[str]) -> str:
    """What the fleet, the cell and its Slurm say about one submission."""
    with closing(FleetClient(three.paths.socket, patience_s=PATIENCE_S)) as client:
        found, recent = client.submission(name), client.view().recent
    told = [f"{name}: began {lines[f'began {name}']} times, ended {lines[f'ended {name}']} times; {found.cell_state}"]
    told += [f"fleet: {each.what} {each.detail}" for each in reversed(recent) if each.subject == name]
    for cell, cluster in three.clusters.items():
        with closing(RemoteClient(str(three.folder / cell / "engine.sock"))) as client:
            intents = [each for each in client.intents(1_000).items if name in each.subjects]
        jobs = {str(each.job) for each in intents if each.job}
        told += [f"{cell}: {each}" for each in intents]
        log = (cluster.folder / "log" / "slurmctld.log").read_text(errors="replace").splitlines()
        told += [line for line in log if any(re.search(rf"JobId={job}\b", line) for job in jobs)]
    return "\n".join(told)


def _kill_and_start(cluster: SlurmCluster, three: Three, process: str) -> None:
    """Both with -9, one after the other, while work comes."""
    time.sleep(1.0)
    cluster.kill("slurmctld")
    three.processes[process].kill()
    time.sleep(1.0)
    three.processes[process].start_again()
    cluster.start("slurmctld")
