"""A Prometheus that is followed beside a cell: its figures reach findings, pages and models; its faults are named."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from console.service.advisor import Advisor
from console.service.kubernetes_cell import KubernetesCell
from console.service.prometheus import PrometheusFollower
from console.service.prometheus_at import PrometheusAt, kept_at
from console.service.telemetry import Archive, Collector
from console.views.workload import GPU_USE, gpu_use_section
from engine.control import Engine
from engine.external.kubernetes.cluster_tables import ClusterTables
from engine.external.kubernetes.names import workload_id
from engine.external.kubernetes_api.core_objects import KubernetesPod
from engine.external.kubernetes_api.kinds import KINDS
from engine.external.kubernetes_api.kueue_objects import Workload
from engine.external.kubernetes_api.reflector import ChangeBatch, ObjectChange
from engine.external.kubernetes_api.resources import ResourceReader
from engine.external.slurm.records import Job
from engine.model import external_cells as seen
from engine.model.commands import Define, Observe, Submit
from engine.model.errors import MusterError, SpecError, UnreachableError
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    Settings,
    TaskGroup,
    WorkloadSpec,
)
from recommender.estimates.request_sizing import UsageModel
from recommender.history.metrics import HistoryRequest, OutsideNames
from recommender.history.telemetry import Telemetry
from tests.support.cells import small_cell, workload
from tests.support.dcgm_series import Gpu, node_load, scrapes
from tests.support.prometheus_server import prometheus_holding
from tests.support.scripted_slurm import NOW_S, World, job

MINUTE_MS = 60_000
HOURS = 3
MINUTES = 60 * HOURS


class ByHand:
    """A loop whose engine is asked on the caller's thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def call(self, fn: Callable[[Engine], Any]) -> Any:
        return fn(self.engine)


def now_s() -> int:
    """Now, five minutes after a whole hour's slot at least, so that the last slots are complete."""
    return int(time.time()) // 300 * 300


@contextmanager
def cell(begin_s: int) -> Iterator[tuple[Any, Telemetry]]:
    """The small cell, in which two workloads have run since `begin_s`, as of now."""
    engine = Engine.open(None)
    engine.advance(begin_s * 1000 - MINUTE_MS)
    engine.command(Define(cell=small_cell()))
    long = {"gpu": 8000, "estimate": 10 * 3_600_000, "run": 10 * 3_600_000}
    engine.command(
        Submit(workloads=(workload("idle", tenant="vision", **long), workload("busy", tenant="speech", **long)))
    )
    engine.advance(time.time_ns() // 1_000_000)
    yield ByHand(engine), Telemetry(clock=lambda _: engine.now_ms)
    engine.close()


def caught_up(follower: PrometheusFollower) -> PrometheusFollower:
    while follower.step():
        pass
    return follower


def samples_of(telemetry: Telemetry, node: str) -> int:
    return int(telemetry.series("gpu_util", "node", node, 0, 2**52, 2**50).count.sum())


def test_idle_work_is_found_its_use_is_told_and_counted(tmp_path: Path) -> None:
    begin_s = now_s() - 60 * MINUTES
    with cell(begin_s) as (loop, telemetry):
        node = {name: loop.engine.workload(name).placement[0].node for name in ("idle", "busy")}
        gpus = [Gpu(node["idle"], n, lambda at: 0.9 if at < MINUTES - 60 else 0.0) for n in range(8)]
        gpus += [Gpu(node["busy"], n, lambda at: 0.9) for n in range(8)]
        lines = [*scrapes(gpus, begin_s + 30, MINUTES), *node_load(list(node.values()), 0.4, 0.02, begin_s, MINUTES)]
        with prometheus_holding([*lines, "# EOF"], tmp_path) as url:
            follower = caught_up(PrometheusFollower(loop, telemetry, PrometheusAt(url)))
            archive = Archive(loop, telemetry)
            archive.follower = follower
            found = follower.findings(16_000)
            assert [(each.kind, each.targets) for each in found.suggestions] == [("hung_devices", ("idle",))]
            money = found.suggestions[0].evidence[-1]
            assert money.baseline.endswith("at the price of their pools")
            # 8 GPUs at 20 USD a node.
            assert found.suggestions[0].cost_delta_microusd_hour == -20_000_000

            use = archive.history(HistoryRequest(metric="gpu_util", of="workload", subject="busy", last_ms=3_600_000))
            assert {point.mean for point in use.points} == {90.0}
            shown = archive.history(msgspec.structs.replace(GPU_USE, subject="idle"))
            (section,) = gpu_use_section(shown, 80)
            text = "".join(text for text, _ in section.lines[0].spans)
            assert "0 % now, " in text
            assert ", idle for 5" in text or ", idle for 1h" in text
            told = archive.history(HistoryRequest()).followed
            assert told is not None
            assert (told.devices, told.joined, told.not_joined, told.trouble) == (16, 16, 0, "")
            idle = archive.history(HistoryRequest(metric="idle_gpu", of="tenant", subject="vision", last_ms=3_600_000))
            assert idle.points[-1].last is None or idle.points[-1].last == 8000
            assert any(point.last == 8000 for point in idle.points)
            follower._wall = lambda: time.time_ns() // 1_000_000 + 20 * MINUTE_MS
            assert follower.findings(0).suggestions == ()
            assert follower.findings(0).unknown[0].startswith("use of GPUs is not known since")
            # Figures of nodes are brought in their turn, and once.
            keys = {key.metric for key in telemetry.keys(of="node")}
            assert {"gpu_util", "gpu_power_w", "node_cpu_util", "node_iowait", "xid_errors"} <= keys
            kept = samples_of(telemetry, node["busy"])
            assert HOURS * 12 - 1 <= kept <= HOURS * 12
            again = caught_up(PrometheusFollower(loop, telemetry, PrometheusAt(url)))
            assert again.use.until_ms == follower.use.until_ms
            assert samples_of(telemetry, node["busy"]) == kept


def test_it_follows_on_its_own_thread_and_goes_on_after_a_failure(tmp_path: Path) -> None:
    begin_s = now_s() - 60 * MINUTES
    with cell(begin_s) as (loop, telemetry):
        gpus = [Gpu("g0", 0, lambda at: 0.5)]
        with prometheus_holding([*scrapes(gpus, begin_s + 30, MINUTES), "# EOF"], tmp_path) as url:
            follower = PrometheusFollower(loop, telemetry, PrometheusAt(url))
            follower.start()
            until = time.monotonic() + 60
            while follower.report().devices == 0 and time.monotonic() < until:
                time.sleep(0.05)
            follower.stop()
            assert follower.report().devices == 1


@contextmanager
def answering(status: int, headers: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """A server that has no series, and what it was shown as credentials."""
    shown: list[str] = []
    content = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            shown.append(self.headers.get("Authorization", ""))
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing: standard error is the test's."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=lambda: served.serve_forever(0.01))
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}", shown
        finally:
            served.shutdown()
            thread.join()


def test_what_keeps_it_from_following_is_named(tmp_path: Path) -> None:
    with cell(now_s() - 3600) as (loop, telemetry):

        def step(url: str, **options: Any) -> None:
            PrometheusFollower(loop, telemetry, PrometheusAt(url, **options)).step()

        with pytest.raises(UnreachableError, match="no Prometheus answers at "):
            step("http://127.0.0.1:1")
        with answering(401, {}) as (url, _), pytest.raises(MusterError, match="refused our credentials"):
            step(url)
        with (
            answering(200, {"Date": "Sat, 01 Jan 2000 00:00:00 GMT"}) as (url, _),
            pytest.raises(MusterError, match="h behind this machine's"),
        ):
            step(url)
        token = tmp_path / "token"
        token.write_text("s3cret\n")
        with answering(200, {}) as (url, shown):
            step(url, token_file=token)
            assert set(shown) == {"Bearer s3cret"}
        with pytest.raises(SpecError, match="cannot be read"):
            step("http://127.0.0.1:1", token_file=tmp_path / "none")
        loop.engine.advance(loop.engine.now_ms + 3_600_000)
        with pytest.raises(MusterError, match="min from this machine's"):
            step("http://127.0.0.1:1")
    with pytest.raises(SpecError, match="no such step"):
        PrometheusAt("http://127.0.0.1:1", step_ms=7000)


def test_the_server_is_remembered_in_the_cells_folder(tmp_path: Path) -> None:
    assert kept_at(None, tmp_path) is None
    at = PrometheusAt("http://127.0.0.1:9090", Path("/run/token"), 30_000)
    assert kept_at(at, tmp_path) == at
    assert kept_at(None, tmp_path) == at
    assert kept_at(PrometheusAt(""), tmp_path) is None
    assert kept_at(None, tmp_path) is None


def test_jobs_of_slurm_are_joined_by_their_number_else_by_their_devices(tmp_path: Path) -> None:
    world = World()
    begin_s = NOW_S - 60 * MINUTES
    world.look(on_gpus(1, 2, 5), on_gpus(2, 0, 1))
    gpus = [Gpu("g1", n, lambda at: 0.0) for n in (2, 5)]
    # What Slurm says of the others' devices is not asked where the exporter tells whose they are.
    gpus += [Gpu("g1", n, lambda at: 0.9, job="2") for n in (6, 7)]
    with prometheus_holding([*scrapes(gpus, begin_s + 30, MINUTES), "# EOF"], tmp_path) as url:
        follower = PrometheusFollower(
            SimpleNamespace(call=world.call, engine=world.engine),  # type: ignore[arg-type]
            Telemetry(clock=lambda _: world.engine.now_ms),
            PrometheusAt(url),
            lambda ids: OutsideNames(jobs={str(job.id): name for name in ids if (job := world.mirror.job_of(name))}),
            wall=lambda: NOW_S * 1000,
        )
        caught_up(follower)
        assert {(each.index, each.holder) for each in follower.use.devices} == {
            (2, "1"), (5, "1"), (6, "2"), (7, "2"),
        }  # fmt: skip
        found = follower.findings(0).suggestions
        assert [(each.targets, each.about) for each in found] == [(("1",), "vision:unused")]


def on_gpus(number: int, *devices: int) -> Job:
    """A job that has run on these devices all the time."""
    gres = {"g1": {"gpu:h100": len(devices)}}
    return job(
        number, state="RUNNING", nodes=("g1",), partition="gpu", start_s=NOW_S - 60 * MINUTES, reason="",
        gpus_on={"g1": devices}, gres_on=gres,
    )  # fmt: skip


def test_the_history_of_a_mirrored_cluster_feeds_the_models() -> None:
    """Ended jobs of Slurm become records, and run times and sizes are learnt from them as from the cell's own."""
    world = World()
    loop: Any = SimpleNamespace(call=world.call, engine=world.engine)
    telemetry = Telemetry(clock=lambda _: world.engine.now_ms)
    collector = Collector(loop, telemetry)
    collector.collect()
    for number in range(1, 31):
        world.look(on_cpus(number, world.now_s))
        collector.collect()
        world.now_s += 600
        world.look(on_cpus(number, world.now_s - 600, world.now_s))
        collector.collect()
    world.now_s += 60
    world.look()
    collector.collect()
    runs = telemetry.runs(0, 2**52, 100)
    assert len(runs) == 30
    assert {(run.tenant, run.outcome) for run in runs} == {("vision", "finished")}
    usage = UsageModel()
    usage.ended(runs)
    assert telemetry.series("demand_cpu", "tenant", "vision", 0, 2**52, 2**51).count.sum() > 20
    world.look(on_cpus(99, world.now_s))
    likely = Advisor(loop).estimate("99")
    assert likely is not None
    assert likely.p50_ms == pytest.approx(650_000, rel=0.1)


def pods_of(workload: str, *pods: str) -> ClusterTables:
    """What a watch has heard of a Workload of Kueue and its pods on node n0."""
    tables = ClusterTables(ResourceReader())
    about = {"namespace": "vision", "resourceVersion": "1"}
    kueue = msgspec.convert({"metadata": {"name": workload, "uid": f"{workload}-uid-0", **about}}, Workload)
    changes = [("workloads", f"{workload}-uid-0", workload, kueue)]
    for name in pods:
        metadata = {"name": name, "uid": name, **about, "annotations": {"kueue.x-k8s.io/workload": workload}}
        shape = {"metadata": metadata, "spec": {"nodeName": "n0"}, "status": {"phase": "Running"}}
        changes.append(("pods", name, name, msgspec.convert(shape, KubernetesPod)))
    for resource, uid, name, found in changes:
        kind = next(each for each in KINDS if each.resource == resource)
        tables.apply(ChangeBatch(kind, (ObjectChange("added", uid, "vision", name, "1", found),), "1", 0.0))
    return tables


def test_pods_of_kubernetes_are_joined_by_their_names(tmp_path: Path) -> None:
    begin_s = now_s() - 60 * MINUTES
    engine = Engine.open(None)
    engine.advance(begin_s * 1000)
    engine.command(Define(cell=CellSpec(name="k", settings=Settings(decided_by="kubernetes"))))
    capacity = Resources(cpu_milli=64_000, memory_mib=10_000, gpu_milli=8000)
    observe(
        engine,
        seen.PriorityClassSeen(priority_class=PriorityClassSpec(name="p", value=1)),
        seen.QueueSeen(queue=QueueSpec(name="q")),
        seen.PoolSeen(pool=PoolSpec(name="h100", capacity=capacity, gpu_model="h100")),
        seen.NodeSeen(node=NodeSpec(id="n0", pool="h100")),
    )
    train, notebook = (workload_id("vision", name, f"{name}-uid-0") for name in ("train", "notebook"))
    observe(engine, *(in_pods(name, "running", gpus) for name, gpus in ((train, 2), (notebook, 1))))
    engine.advance(time.time_ns() // 1_000_000)
    cluster = KubernetesCell.__new__(KubernetesCell)
    tables = pods_of("train", "train-0", "train-1")
    known = {train: (None, tables.pods_of("train-uid-0"))}
    cluster._watch = SimpleNamespace(mirror=SimpleNamespace(workload_of=known.get))  # type: ignore[assignment]
    assert cluster.outside_names([train]).pods == {("vision", "train-0"): train, ("vision", "train-1"): train}
    gpus = [Gpu("n0", 6 + n, lambda at: 0.0, pod=f"train-{n}", namespace="vision", renamed=True) for n in range(2)]
    # What the cell made up as the devices of the other is told of nobody.
    gpus += [Gpu("n0", n, lambda at: 0.0) for n in range(6)]
    with prometheus_holding([*scrapes(gpus, begin_s + 30, MINUTES), "# EOF"], tmp_path) as url:
        telemetry = Telemetry(clock=lambda _: engine.now_ms)
        follower = PrometheusFollower(
            ByHand(engine),
            telemetry,
            PrometheusAt(url),
            cluster.outside_names,  # type: ignore[arg-type]
        )
        caught_up(follower)
        assert {(each.index, each.holder) for each in follower.use.devices if each.holder} == {(6, train), (7, train)}
        found = follower.findings(0)
        assert [each.targets for each in found.suggestions] == [(train,)]
        assert any("nobody tells whose they are" in line for line in found.unknown)
    collector = Collector(ByHand(engine), telemetry)  # type: ignore[arg-type]
    collector.collect()
    engine.advance(engine.now_ms + 600_000)
    observe(engine, in_pods(train, "finished", 0))
    engine.advance(engine.now_ms + MINUTE_MS)
    collector.collect()
    (run,) = telemetry.runs(0, 2**52, 10)
    assert (run.id, run.tenant, run.gpu_milli, run.outcome) == (train, "vision", 2000, "finished")
    assert run.ended_ms - run.started_ms == pytest.approx(60 * MINUTES * 1000 + 600_000, abs=400_000)
    engine.close()


def observe(engine: Engine, *told: Any) -> None:
    engine.command(Observe(seen=told))


def in_pods(name: str, phase: Any, gpus: int) -> seen.WorkloadSeen:
    request = Resources(cpu_milli=1000, memory_mib=100, gpu_milli=max(gpus, 1) * 1000)
    spec = WorkloadSpec(
        id=name,
        name=name,
        queue="q",
        tenant="vision",
        priority_class="p",
        groups=(TaskGroup(count=1, request=request),),
    )
    holds = (seen.Holding(node="n0", resources=request),) if phase == "running" else ()
    return seen.WorkloadSeen(spec=spec, phase=phase, holds=holds)


def on_cpus(number: int, now: int, end: int = 0) -> Job:
    """A job that has run since fifty seconds, or did until its end."""
    state = "COMPLETED" if end else "RUNNING"
    return job(
        number, name=f"train-{number}", state=state, nodes=("c1",), submit_s=now - 60, start_s=now - 50, end_s=end,
        reason="",
    )  # fmt: skip
