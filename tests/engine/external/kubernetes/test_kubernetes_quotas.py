"""Quotas of a cell as the resource groups of Kueue: what is not touched stays as it was written."""

from __future__ import annotations

from typing import Any

import pytest

from engine.external.kubernetes.queue_quotas import changed_groups, refuse_other_fields
from engine.model.errors import RefusedError, SpecError
from engine.model.specs import FlavorQuota, QueueSpec


def group(*flavors: tuple[str, dict[str, dict[str, object]]]) -> list[dict[str, Any]]:
    made = [
        {"name": name, "resources": [{"name": resource, **quotas} for resource, quotas in resources.items()]}
        for name, resources in flavors
    ]
    return [{"coveredResources": list(flavors[0][1]), "flavors": made}]


ONE = group(
    ("a", {"cpu": {"nominalQuota": "1500m"}, "memory": {"nominalQuota": "1Gi"}, "nvidia.com/gpu": {"nominalQuota": 8}})
)
SAME = {"cpu_milli": 1500, "memory_mib": 1024, "gpu_milli": 8000}


def test_what_is_so_already_stays_as_it_was_written() -> None:
    assert changed_groups(ONE, QueueSpec(name="q", nominal=SAME)) == ONE


def test_only_what_differs_is_written_anew() -> None:
    wanted = QueueSpec(
        name="q", nominal=SAME | {"gpu_milli": 16_000, "memory_mib": 1536}, borrowing_limit={"cpu_milli": 250}
    )
    cpu, memory, gpu = changed_groups(ONE, wanted)[0]["flavors"][0]["resources"]
    assert cpu == {"name": "cpu", "nominalQuota": "1500m", "borrowingLimit": "250m"}
    assert memory["nominalQuota"] == "1536Mi"
    assert gpu["nominalQuota"] == "16"
    assert changed_groups(changed_groups(ONE, wanted), QueueSpec(name="q", nominal=SAME))[0]["flavors"][0]["resources"][
        0
    ] == {"name": "cpu", "nominalQuota": "1500m"}


def test_flavors_have_quotas_of_their_own() -> None:
    two = group(("a", {"nvidia.com/gpu": {"nominalQuota": "4"}}), ("b", {"nvidia.com/gpu": {"nominalQuota": "2"}}))
    each = (FlavorQuota(pool="x", nominal={"gpu_milli": 4000}), FlavorQuota(pool="y", nominal={"gpu_milli": 6000}))
    changed = changed_groups(two, QueueSpec(name="q", flavors=each))
    assert [flavor["resources"][0]["nominalQuota"] for flavor in changed[0]["flavors"]] == ["4", "6"]
    with pytest.raises(SpecError, match="Give each flavor its own quota"):
        changed_groups(two, QueueSpec(name="q", nominal={"gpu_milli": 8000}))
    assert changed_groups(two, QueueSpec(name="q", nominal={"gpu_milli": 6000})) == two


@pytest.mark.parametrize("nominal", [{"gpu_milli": 8500}, {"disk_mib": 10}])
def test_what_kueue_cannot_count_is_refused(nominal: dict[str, int]) -> None:
    with pytest.raises(SpecError, match=r"queue\.nominal"):
        changed_groups(ONE, QueueSpec(name="q", nominal=SAME | nominal))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"weight": 3}, r"not weight of q\. Leave it out, or change spec\.fairSharing\.weight with kubectl"),
        (
            {"order": "strict_fifo", "reclaim": "never"},
            r"not order, reclaim of q\. .*spec\.queueingStrategy, spec\.preem",
        ),
        ({"min_runtime_ms": 60_000}, r"not min runtime of q\. Leave it out: Kueue has no such setting"),
    ],
)
def test_a_change_that_would_never_reach_kueue_is_refused_by_name(change: dict[str, Any], told: str) -> None:
    was = QueueSpec(name="q", nominal=SAME)
    refuse_other_fields(was, QueueSpec(name="q", nominal=SAME | {"gpu_milli": 0}, lending_limit={"gpu_milli": 0}))
    with pytest.raises(RefusedError, match=told):
        refuse_other_fields(was, QueueSpec(name="q", **change))
