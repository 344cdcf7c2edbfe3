"""Quantities of Kubernetes as resources of a cell."""

from __future__ import annotations

import pytest

from engine.external.kubernetes_api.core_objects import Container, ContainerResources, PodSpec
from engine.external.kubernetes_api.resources import ResourceReader, number
from engine.model.specs import Resources


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), (3, 3), ("1500m", 1.5), ("0.1", 0.1), ("2Ki", 2048), ("1e3", 1000), ("1E", 10**18), ("100n", 1e-7)],
)
def test_a_quantity_is_read_as_kubernetes_writes_it(text: str | int, value: float) -> None:
    assert float(number(text)) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "a", "1.2.3", "Gi", "--1"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        number(text)


def test_requests_are_rounded_up_and_capacity_down() -> None:
    reader = ResourceReader()
    text = {"cpu": "1.5", "memory": "1000k", "nvidia.com/gpu": "2"}
    assert reader.resources(text, up=True) == Resources(cpu_milli=1500, memory_mib=1, gpu_milli=2000)
    assert reader.resources(text) == Resources(cpu_milli=1500, memory_mib=0, gpu_milli=2000)


def test_parts_of_devices_go_by_the_name_of_their_resource() -> None:
    reader = ResourceReader()
    reader.replicas = 4
    assert reader.resources({"nvidia.com/gpu.shared": "1"}).gpu_milli == 250
    assert reader.resources({"nvidia.com/mig-3g.40gb": "1"}).gpu_milli == 428
    assert reader.resources({"nvidia.com/mig-1g.10gb": "7"}).gpu_milli <= 1000


def test_what_a_cell_does_not_have_is_named() -> None:
    reader = ResourceReader()
    reader.resources({"rdma/hca": "1", "pods": "10"})
    assert reader.unknown == {"rdma/hca": 1}


def _container(cpu: str, restart: str = "") -> Container:
    return Container(name="c", resources=ContainerResources(requests={"cpu": cpu}), restart_policy=restart)


def test_the_request_of_a_pod_counts_sidecars_init_containers_and_overhead() -> None:
    spec = PodSpec(
        containers=(_container("1"), _container("500m")),
        init_containers=(_container("200m", "Always"), _container("3")),
        overhead={"cpu": "100m"},
    )
    # The init container of 3 CPU runs beside the sidecar that began before it.
    assert ResourceReader().request(spec).cpu_milli == 3300
