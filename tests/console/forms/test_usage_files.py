"""Files of overcommitted pools, classes of service and services, as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.forms.documents import read_document
from console.forms.work_files import cell_of, read_workloads
from engine.model.errors import SpecError
from engine.model.specs import CellSpec, Pressure, Resources, ServiceSpec, WorkloadSpec

MINUTE = 60_000


def work(folder: Path, fields: str) -> WorkloadSpec:
    path = folder / "work.yaml"
    path.write_text("{id: a, queue: q, request: {cpu: 1, memory: 2GiB}, " + fields + "}")
    return read_workloads(str(path), lambda: 0)[0]


def cell(folder: Path, text: str) -> CellSpec:
    path = folder / "cell.yaml"
    path.write_text(text)
    return cell_of(read_document(str(path)))


def test_a_pool_says_by_how_much_it_is_overcommitted_and_what_its_system_keeps(tmp_path: Path) -> None:
    text = """\
pools:
  - name: shared
    capacity: {cpu: 60, memory: 240GiB}
    reserved: {cpu: 4, memory: 16GiB}
    overcommit: {cpu: 1.4, memory: 100%}
settings:
  pressure: {order: qos, evict_at: 92%, evict_to: 0.875, check_every: 20s, pause: 2m}
  rightsizing: initial
"""
    found = cell(tmp_path, text)
    pool = found.pools[0]
    assert pool.reserved == Resources(cpu_milli=4000, memory_mib=16 * 1024)
    assert pool.overcommit == {"cpu_milli": 1400, "memory_mib": 1000}
    assert (pool.offered.cpu_milli, pool.offered.memory_mib) == (84_000, 240 * 1024)
    assert pool.physical_memory_mib == 256 * 1024
    assert found.settings.pressure == Pressure(
        order="qos", evict_at_permille=920, evict_to_permille=875, check_every_ms=20_000, pause_ms=2 * MINUTE
    )
    assert found.settings.rightsizing == "initial"


def test_a_workload_says_how_sure_it_must_be_and_what_it_may_use(tmp_path: Path) -> None:
    spec = work(tmp_path, "qos: burstable, limit: {cpu: 2, memory: 3GiB}, simulated_usage: 120%")
    assert (spec.qos, spec.simulated_usage_permille) == ("burstable", 1200)
    assert spec.groups[0].limit == Resources(cpu_milli=2000, memory_mib=3 * 1024)


@pytest.mark.parametrize(
    ("text", "service"),
    [
        ("2-20", ServiceSpec(least=2, most=20)),
        ("{least: 2, most: 20, target: 70%, tolerance: 0.05, stabilise: 10m}",
         ServiceSpec(least=2, most=20, target_permille=700, tolerance_permille=50, stabilise_ms=10 * MINUTE)),
        ("{most: 9, first: 3, load: [[0s, 2.5], [10m, 8]]}",
         ServiceSpec(most=9, first=3, simulated_load=((0, 2500), (10 * MINUTE, 8000)))),
    ],
)  # fmt: skip
def test_a_service_says_how_many_replicas_it_may_have(tmp_path: Path, text: str, service: ServiceSpec) -> None:
    assert work(tmp_path, f"service: {text}").service == service


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("qos: sure", "'sure'"),
        ("qos: best_effort, limit: {cpu: 2}", r"limit.* has no meaning for best_effort"),
        ("qos: burstable, limit: {cpu: 500m}", r"limit\.cpu.*500 is below the request"),
        ("service: many", "'many' is not a number of replicas such as 2-20"),
        ("service: {most: 9, load: [5]}", "not a list of moments and replicas"),
        ("service: {most: 9, target: 12.34%}", "to a tenth of a percent"),
        ("service: {most: 9, target: a lot}", "'a lot' is not a share"),
        ("service: {most: 9}, estimate: 1h", r"estimate.* has no meaning for a service"),
        ("service: {most: 9, replicas: 3}", "replicas"),
    ],
)
def test_what_makes_no_sense_is_told_with_its_place(tmp_path: Path, fields: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        work(tmp_path, fields)


def test_a_pool_that_overcommits_devices_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"overcommit\.cpu"):
        cell(tmp_path, "pools:\n  - {name: p, capacity: {cpu: 4}, overcommit: {cpu: lots}}\n")
