"""Specs at the door: malformed, negative, absurd and hostile input is named and refused; good input passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.errors import SpecError
from engine.model.quantities import with_unit
from engine.model.specs import (
    ID_PATTERN,
    MAX_NAME,
    MAX_QUANTITY,
    MAX_TASKS,
    RESOURCES,
    CellSpec,
    NodeSpec,
    NodeState,
    PoolSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
    check_id,
    check_pool,
    check_quantity,
    check_resources,
    check_workload,
)

ONE_CPU = Resources(cpu_milli=1000)
HOSTILE_IDS = (
    "",
    " ",
    "a b",
    "a\n",
    "\na",
    "a\x00b",
    "a\x1b[2J",
    "\x9b2J",
    "a\u202eb",
    "a\u200b",
    "\ufeffa",
    "\u0430dmin",
    "naïve",
    "*",
    "a*",
    "a?",
    "-rf",
    ".hidden",
    "/etc",
    "a;b",
    "$(x)",
    "[@click=app.quit]a",
    "\ud800",
    "x" * 129,
)


def workload(**changes: Any) -> WorkloadSpec:
    return WorkloadSpec(**{"id": "w", "queue": "q", "groups": (TaskGroup(request=ONE_CPU),), **changes})


def group(**changes: Any) -> TaskGroup:
    return TaskGroup(**{"request": ONE_CPU, **changes})


def refused(check: Callable[..., None], *args: Any, **kwargs: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        check(*args, **kwargs)
    return caught.value


# -- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["a", "0", "wl-17", "team/a.b_c-d", "x" * 128, "A"])
def test_ids_people_can_type(value: str) -> None:
    check_id(value, "id")


@pytest.mark.parametrize("value", HOSTILE_IDS, ids=ascii)
def test_hostile_ids_are_refused_and_shown_safely(value: str) -> None:
    error = refused(check_id, value, "workload.id")
    assert error.where == "workload.id"
    assert str(error).isprintable()
    assert len(str(error)) < 300
    assert error.remedy


@given(st.text(max_size=200))
@settings(max_examples=examples(300), deadline=None, database=None)
def test_an_accepted_id_is_plain_ascii(value: str) -> None:
    try:
        check_id(value, "id")
    except SpecError as error:
        said = str(error)
    else:
        said = value
        assert value.isascii()
        assert ID_PATTERN.fullmatch(value)
    assert said.isprintable()


@pytest.mark.parametrize("field", ["id", "queue", "priority_class", "tenant", "team"])
@pytest.mark.parametrize("value", ["a\x1b[2J", "two words", "x" * 129])
def test_every_name_in_a_workload_is_checked(field: str, value: str) -> None:
    assert refused(check_workload, workload(**{field: value})).where == f"workload.{field}"


@pytest.mark.parametrize("field", ["id", "queue", "priority_class"])
def test_needed_names_may_not_be_empty(field: str) -> None:
    refused(check_workload, workload(**{field: ""}))


def test_tenant_and_team_may_be_left_out() -> None:
    check_workload(workload(tenant="", team=""))


def test_long_names_are_refused() -> None:
    check_workload(workload(name="x" * MAX_NAME))
    assert refused(check_workload, workload(name="x" * (MAX_NAME + 1))).where == "workload.name"


# -- quantities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, MAX_QUANTITY])
def test_quantities_in_range(value: int) -> None:
    check_quantity(value, "x")


@pytest.mark.parametrize("value", [-1, -(2**63), MAX_QUANTITY + 1, 2**63, 10**30])
def test_negative_and_absurd_quantities(value: int) -> None:
    error = refused(check_quantity, value, "x.cpu_milli")
    assert error.problem.startswith(f"x.cpu_milli: {with_unit('cpu_milli', value)} is ")
    assert error.where == "x.cpu_milli"


@pytest.mark.parametrize("name", RESOURCES)
@pytest.mark.parametrize("value", [-1, MAX_QUANTITY + 1])
def test_every_resource_is_checked_and_named(name: str, value: int) -> None:
    error = refused(check_resources, Resources(**{name: value}), "request")
    assert error.where == f"request.{name}"


@pytest.mark.parametrize("gpu", [0, 1, 500, 999, 1000, 2000, 8000, 64_000])
def test_shares_and_whole_devices(gpu: int) -> None:
    check_resources(Resources(gpu_milli=gpu), "request")


@pytest.mark.parametrize("gpu", [1001, 1500, 2500, 8001])
def test_more_than_a_device_but_not_whole_devices(gpu: int) -> None:
    error = refused(check_resources, Resources(gpu_milli=gpu), "request")
    assert error.where == "request.gpu_milli"
    assert f"{gpu / 1000:g} GPU" in error.problem


def test_vector_is_in_the_order_of_resources() -> None:
    vector = Resources(cpu_milli=1, memory_mib=2, gpu_milli=3, disk_mib=4).vector()
    assert dict(zip(RESOURCES, vector, strict=True)) == {
        "cpu_milli": 1,
        "memory_mib": 2,
        "gpu_milli": 3,
        "disk_mib": 4,
    }


# -- pools ------------------------------------------------------------------------------------------------------------


def pool(**changes: Any) -> PoolSpec:
    return PoolSpec(**{"name": "p", "capacity": Resources(cpu_milli=1000, gpu_milli=8000), **changes})


def test_a_pool_as_it_should_be() -> None:
    check_pool(pool())
    check_pool(pool(capacity=Resources(gpu_milli=62_000)))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"name": "p\x07"}, "pool.name"),
        ({"capacity": Resources(gpu_milli=500)}, "pool.capacity.gpu_milli"),
        ({"capacity": Resources(gpu_milli=63_000)}, "pool.capacity.gpu_milli"),
        ({"capacity": Resources(memory_mib=-1)}, "pool.capacity.memory_mib"),
        ({"price_microusd_hour": -1}, "pool.price_microusd_hour"),
        ({"price_microusd_hour": 2**60}, "pool.price_microusd_hour"),
    ],
)
def test_bad_pools(changes: dict[str, Any], where: str) -> None:
    assert refused(check_pool, pool(**changes)).where == where


# -- workloads --------------------------------------------------------------------------------------------------------


def test_a_workload_as_it_should_be() -> None:
    check_workload(workload(groups=(group(name="head"), group(name="rest", count=MAX_TASKS - 1))))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"groups": ()}, "workload.groups"),
        ({"groups": (group(), group())}, "workload.groups[1].name"),
        ({"groups": (group(name=""),)}, "workload.groups[0].name"),
        ({"groups": (group(count=0),)}, "workload.groups[0].count"),
        ({"groups": (group(count=-5),)}, "workload.groups[0].count"),
        ({"groups": (group(count=MAX_TASKS + 1),)}, "workload.groups[0].count"),
        ({"groups": (group(count=10**30),)}, "workload.groups[0].count"),
        ({"groups": (group(request=Resources()),)}, "workload.groups[0].request"),
        ({"groups": (group(request=Resources(gpu_milli=1500)),)}, "workload.groups[0].request.gpu_milli"),
        ({"groups": (group(name="a", count=MAX_TASKS), group(name="b"))}, "workload.groups"),
        ({"estimate_ms": -1}, "workload.estimate_ms"),
        ({"checkpoint_interval_ms": -1}, "workload.checkpoint_interval_ms"),
        ({"simulated_runtime_ms": 2**62}, "workload.simulated_runtime_ms"),
    ],
)
def test_bad_workloads_name_the_field_and_a_remedy(changes: dict[str, Any], where: str) -> None:
    error = refused(check_workload, workload(**changes))
    assert error.where == where
    assert error.remedy
    assert error.code == "invalid"


def test_the_place_in_a_list_is_part_of_the_message() -> None:
    error = refused(check_workload, workload(estimate_ms=-1), "workloads[3]")
    assert str(error).startswith("workloads[3].estimate_ms: -1ms is below 0")


# -- the wire ---------------------------------------------------------------------------------------------------------

GOOD = {"id": "w", "queue": "q", "groups": [{"request": {"cpu_milli": 1000}}]}


def test_specs_survive_the_wire() -> None:
    spec = workload(tags={"cost": "a"}, groups=(group(gpu_models=("H100",), pools=("p",), count=3),), held=True)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=WorkloadSpec) == spec
    cell = CellSpec(pools=(pool(),), nodes=(NodeSpec(id="n", pool="p", rack="r"),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(cell), type=CellSpec) == cell


@pytest.mark.parametrize(
    "changes",
    [
        {"shell": "rm -rf /"},
        {"groups": [{"request": {"cpu": 1}}]},
        {"groups": [{"request": {"cpu_milli": 1}, "cmd": "x"}]},
        {"groups": [{"request": {"cpu_milli": 1.5}}]},
        {"groups": [{"request": {"cpu_milli": "1"}}]},
        {"groups": [{"request": {"cpu_milli": True}}]},
        {"groups": [{}]},
        {"groups": {}},
        {"groups": None},
        {"id": 5},
        {"id": None},
        {"tags": {"a": 1}},
        {"held": "yes"},
        {"estimate_ms": 1e30},
    ],
    ids=str,
)
def test_unknown_fields_and_wrong_types_do_not_decode(changes: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode({**GOOD, **changes}), type=WorkloadSpec)


def test_integers_beyond_64_bits_are_refused_at_the_latest_by_the_check() -> None:
    payload = msgspec.json.encode(GOOD).replace(b"1000", str(2**70).encode())
    spec = msgspec.json.decode(payload, type=WorkloadSpec)
    assert refused(check_workload, spec).where == "workload.groups[0].request.cpu_milli"


@pytest.mark.parametrize("missing", ["id", "queue", "groups"])
def test_needed_fields_are_needed(missing: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=missing):
        msgspec.convert({key: value for key, value in GOOD.items() if key != missing}, WorkloadSpec)


def test_specs_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        workload().id = "other"  # type: ignore[misc]


def test_defaults_are_not_shared() -> None:
    one, other = workload(), workload()
    one.tags["x"] = "y"
    assert other.tags == {}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from((*WorkloadSpec.__struct_fields__, "x")), inner, max_size=6)
        ),
        max_leaves=12,
    )
)
@settings(max_examples=examples(300), deadline=None, database=None)
def test_anything_at_all_is_a_spec_or_a_named_error(value: Any) -> None:
    try:
        check_workload(msgspec.convert(value, WorkloadSpec))
    except (msgspec.ValidationError, SpecError):
        return


# -- states -----------------------------------------------------------------------------------------------------------


def test_states_read_as_people_write_them() -> None:
    assert [s.label for s in WorkloadState if s.terminal] == ["finished", "failed", "cancelled"]
    assert [s.label for s in NodeState] == [
        "ready", "cordoned", "draining", "down", "removed", "booting", "suspect",
    ]  # fmt: skip
