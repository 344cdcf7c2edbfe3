"""Workload and cell files: human forms, and errors that name file, line and column."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from console import document
from console.files import read_cell, read_workloads
from engine.errors import SpecError
from engine.measures import cpu_milli, duration_ms, gpu_milli, memory_mib
from engine.model import (
    ArraySpec,
    BurstSpec,
    Dependency,
    FlavorQuota,
    Resources,
    Settings,
    TaskGroup,
    WorkloadSpec,
    check_pool,
)

NOW_MS = 1_772_366_400_000
"""2026-03-01 12:00:00 UTC."""


def now() -> int:
    return NOW_MS


def written(folder: Path, text: str | bytes, name: str = "work.yaml") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


TRAIN = WorkloadSpec(
    id="train",
    queue="research",
    priority_class="high",
    estimate_ms=5_400_000,
    groups=(TaskGroup(count=8, request=Resources(cpu_milli=32_000, memory_mib=262_144, gpu_milli=8000)),),
)


@pytest.mark.parametrize(
    "text",
    [
        "{id: train, queue: research, priority: high, estimate: 1h30m, tasks: 8,"
        " request: {cpu: 32, memory: 256GiB, gpu: 8}}",
        "workloads:\n- id: train\n  queue: research\n  priority_class: high\n  estimate_ms: 5400000\n  groups:\n"
        "  - count: 8\n    request: {cpu_milli: 32000, memory_mib: 262144, gpu_milli: 8000}\n",
        "- id: train\n  queue: research\n  priority: high\n  estimate: 90m\n  groups:\n"
        "  - count: 8\n    request: {cpu: 32000m, memory: 0.25TiB, gpu: 8.0}\n",
    ],
)
def test_every_form_means_the_same(tmp_path: Path, text: str) -> None:
    assert read_workloads(written(tmp_path, text), now) == (TRAIN,)


def test_json_is_read_too(tmp_path: Path) -> None:
    raw = {"id": "train", "queue": "research", "priority": "high", "estimate": "1h30m", "tasks": 8}
    raw["request"] = {"cpu": 32, "memory": "256GiB", "gpu": 8}
    path = written(tmp_path, json.dumps({"workloads": [raw]}), "work.json")
    assert read_workloads(path, now) == (TRAIN,)


def test_standard_input_is_a_file_named_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"{id: a, queue: q, request: {gpu: 1}}"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert read_workloads("-", now)[0].id == "a"


def test_words_and_times_are_text_unless_they_are_plain_numbers(tmp_path: Path) -> None:
    text = "{id: no, queue: q, name: 1:30, tags: {on: 2026-01-01, off: yes}, request: {gpu: 1}}"
    spec = read_workloads(written(tmp_path, text), now)[0]
    assert (spec.id, spec.name, spec.tags) == ("no", "1:30", {"on": "2026-01-01", "off": "yes"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("workloads:\n  - &a {id: a}\n  - *a\n", r"work\.yaml:2:5: anchor '&a' is not allowed"),
        ("- *a\n", r"work\.yaml:1:3: alias '\*a' is not allowed"),
        ("- !!python/object:os.system {}\n", r"work\.yaml:1:3: tag .* is not allowed"),
        ("id: a\nqueue: q\nid: b\n", r"work\.yaml:3:1: key 'id' is given twice"),
        ("id: [a\n", r"work\.yaml:2:1: is not YAML"),
        ("id: a\n---\nid: b\n", r"work\.yaml:2:1: a second document starts"),
        ("? [a]\n: b\n", r"work\.yaml:1:3: a key must be plain text"),
        ("[" * 60, "nested more than"),
        ("", "holds no workload"),
        ("workloads: []", "holds no workload"),
        ("just words", "holds no workload"),
        ("- 1\n", r"work\.yaml:1:3: \[0\]: is not a workload"),
        ("workloads: []\nextra: 1\n", r"work\.yaml:2:1: extra: unknown key 'extra'"),
        ("- id: a\n  queue: q\n  gpus: 8\n", "unknown field `gpus`"),
        ("- {id: a, queue: q}", "groups"),
        ("- id: a\n  queue: q\n  request: {cpu: many}\n", r"work\.yaml:3:13: \[0\]\.request\.cpu: 'many' is not cores"),
        ("- {id: a, queue: q, request: {memory: 64}}", "64 is not a size with its unit"),
        ("- {id: a, queue: q, request: {memory: 1MB}}", "whole number of MiB"),
        ("- {id: a, queue: q, request: {gpu: 0.0001}}", "whole number of thousandths"),
        ("- {id: a, queue: q, request: {gpu: 1.5}}", "share of one device"),
        ("- {id: a, queue: q, request: {gpu: -8}}", "-8000 is below 0"),
        ("- {id: a, queue: q, request: {cpu: 1e300}}", "too large"),
        ("- {id: a, queue: q, request: {cpu: .nan}}", "is not cores"),
        ("- {id: a, queue: q, request: {cpu: true}}", "is not cores"),
        ("- {id: a, queue: q, request: {}}", "asks for nothing"),
        ("- {id: a, queue: q, tasks: 0, request: {cpu: 1}}", "0 is below 1"),
        ("- {id: a, queue: q, estimate: 6, request: {cpu: 1}}", "6 is not a duration with its unit"),
        ("- {id: a, queue: q, estimate: 6h, estimate_ms: 1, request: {cpu: 1}}", "say the same thing"),
        ("- {id: a, queue: q, tasks: 2, groups: [], request: {cpu: 1}}", "Use one form"),
        ("- id: 'a b'\n  queue: q\n  request: {cpu: 1}\n", r"work\.yaml:1:3: \[0\]\.id: 'a b' is not a valid id"),
        (b"\xff\xfe", "is not UTF-8"),
        ("a: \x1b[2J", "is not YAML"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str | bytes, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        read_workloads(written(tmp_path, text), now)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"id": "a",}', r"work\.json:1:12: is not JSON"),
        ('{"id": "a", "id": "b"}', "key 'id' is given twice"),
        ("[" * 100_000, "nested"),
    ],
)
def test_malformed_json_is_told_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        read_workloads(written(tmp_path, text, "work.json"), now)


def test_a_missing_folder_or_huge_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="No such file"):
        read_workloads(str(tmp_path / "none.yaml"), now)
    with pytest.raises(SpecError, match="Is a directory"):
        read_workloads(str(tmp_path), now)
    monkeypatch.setattr(document, "MAX_FILE_BYTES", 10)
    with pytest.raises(SpecError, match="larger than"):
        read_workloads(written(tmp_path, "x" * 11), now)


def test_a_cell_is_read_with_counted_nodes(tmp_path: Path) -> None:
    text = """
name: lab
pools:
  - {name: h100, nodes: 3, rack: 2, gpu_model: H100, price_usd_hour: 12.5, capacity: {cpu: 96, memory: 1TiB, gpu: 8}}
  - {name: cpu, capacity: {cpu: 4}}
nodes:
  - {id: extra, pool: cpu}
queues:
  - {name: research, nominal: {gpu: 16, cpu_milli: 5}}
priority_classes:
  - {name: normal, value: 100}
"""
    cell = read_cell(written(tmp_path, text, "cell.yaml"))
    assert [(node.id, node.rack) for node in cell.nodes] == [
        ("extra", ""), ("h100-0001", "h100-r001"), ("h100-0002", "h100-r001"), ("h100-0003", "h100-r002"),
    ]  # fmt: skip
    assert cell.pools[0].price_microusd_hour == 12_500_000
    assert cell.pools[0].capacity == Resources(cpu_milli=96_000, memory_mib=2**20, gpu_milli=8000)
    assert cell.queues[0].nominal == {"gpu_milli": 16_000, "cpu_milli": 5}
    for pool in cell.pools:
        check_pool(pool)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "is not a cell"),
        ("pools: {}", "'pools' is not a list"),
        ("pools: [1]", r"pools\[0\]: is not a pool"),
        ("pools: [{name: a, nodes: -1, capacity: {}}]", "not a number of nodes"),
        ("pools: [{name: a, nodes: 100000000, capacity: {}}]", "not a number of nodes"),
        ("pools: [{name: a, capacity: {cpus: 1}}]", "unknown field `cpus`"),
        ("pools: [{name: a, capacity: {}, price_usd_hour: free}]", "amount in USD"),
        ("pools: [{capacity: {}}]", "name"),
        ("planets: []", "unknown field `planets`"),
    ],
)
def test_a_malformed_cell_is_told(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        read_cell(written(tmp_path, text, "cell.yaml"))


def test_quantities() -> None:
    assert [cpu_milli(value) for value in (4, 0.1, "2", "1500m")] == [4000, 100, 2000, 1500]
    assert [gpu_milli(value) for value in (8, 0.5, "1")] == [8000, 500, 1000]
    assert [memory_mib(value) for value in ("1GiB", "1.5 Gi", "512MiB", "1024KiB", "2TiB")] == [
        1024, 1536, 512, 1, 2**21,
    ]  # fmt: skip
    assert [duration_ms(value) for value in ("6h", "1h30m", "1d 2h", "250ms", "1.5h", "2w")] == [
        21_600_000, 5_400_000, 93_600_000, 250, 5_400_000, 1_209_600_000,
    ]  # fmt: skip


def one_workload(folder: Path, fields: str) -> WorkloadSpec:
    return read_workloads(written(folder, "{id: a, queue: q, request: {gpu: 1}, " + fields + "}"), now)[0]


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("0-99", ArraySpec(last=99)),
        ("1-9:2%3", ArraySpec(first=1, last=9, step=2, max_running=3)),
        ("0-99%10", ArraySpec(last=99, max_running=10)),
        ("7", ArraySpec(first=7, last=7)),
        ("{last: 4, max_running: 2}", ArraySpec(last=4, max_running=2)),
    ],
)
def test_arrays_are_ranges(tmp_path: Path, text: str, array: ArraySpec) -> None:
    assert one_workload(tmp_path, f"array: {text}").array == array


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("prep", (Dependency(id="prep"),)),
        ("[prep, team/x:failed]", (Dependency(id="prep"), Dependency(id="team/x", on="failed"))),
        ("[{id: prep, on: started}]", (Dependency(id="prep", on="started"),)),
    ],
)
def test_dependencies_are_ids_with_what_is_waited_for(tmp_path: Path, text: str, after: tuple[Dependency, ...]) -> None:
    assert one_workload(tmp_path, f"after: {text}").after == after


def test_times_are_of_the_cell_and_durations_have_units(tmp_path: Path) -> None:
    spec = one_workload(
        tmp_path,
        "not_before: +90m, deadline: '2026-03-02T12:00', max_runtime: 2h, retries: 3, backoff: 30s,"
        " checkpoint_interval: 1h, checkpoint_cost: 2m, elastic: true, tasks: 8, min_tasks: 2",
    )
    assert (spec.not_before_ms, spec.deadline_ms) == (NOW_MS + 5_400_000, NOW_MS + 86_400_000)
    assert (spec.max_runtime_ms, spec.backoff_ms, spec.checkpoint_cost_ms) == (7_200_000, 30_000, 120_000)
    assert (spec.retries, spec.elastic, spec.groups[0].min_count) == (3, True, 2)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("array: 1..9", "'1..9' is not a range such as 0-99"),
        ("array: 9-1", "array.last"),
        ("after: [prep:perhaps]", "perhaps"),
        ("after: [1]", r"after\[0\]"),
        ("deadline: soon", "'soon' is not a time"),
        ("deadline: 6h", "'6h' is not a time"),
        ("deadline: 5", "5 is not a time"),
        ("not_before: +soon", "not a duration"),
        ("deadline: +1h, deadline_ms: 5", "say the same thing"),
    ],
)
def test_what_is_no_range_dependency_or_time_is_told(tmp_path: Path, fields: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        one_workload(tmp_path, fields)


def test_queues_lend_borrow_and_burst_in_human_forms(tmp_path: Path) -> None:
    text = """\
queues:
  - {name: root}
  - name: research
    parent: root
    nominal: {gpu: 32}
    borrowing_limit: {gpu: 16, memory: 1TiB}
    lending_limit: {cpu: 500m}
    flavors:
      - {pool: h100, nominal: {gpu: 24}}
    burst: {limit: {gpu: 64}, window: 2h, cooldown: 30m}
    min_runtime: 10m
    disruption_window: 1d
settings: {fair_half_life: 1d, preempt_after: 1m}
"""
    cell = read_cell(written(tmp_path, text))
    queue = cell.queues[1]
    assert (queue.nominal, queue.lending_limit) == ({"gpu_milli": 32_000}, {"cpu_milli": 500})
    assert queue.borrowing_limit == {"gpu_milli": 16_000, "memory_mib": 2**20}
    assert queue.flavors == (FlavorQuota(pool="h100", nominal={"gpu_milli": 24_000}),)
    assert queue.burst == BurstSpec(limit={"gpu_milli": 64_000}, window_ms=7_200_000, cooldown_ms=1_800_000)
    assert (queue.min_runtime_ms, queue.disruption_window_ms) == (600_000, 86_400_000)
    assert cell.settings == Settings(fair_half_life_ms=86_400_000, preempt_after_ms=60_000)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("queues:\n  - {name: q, burst: {limit: {gpu: many}}}\n", r"work\.yaml:2:31: queues\[0\]\.burst\.limit\.gpu"),
        ("queues:\n  - {name: q, min_runtime: soon}\n", r"work\.yaml:2:15: queues\[0\]\.min_runtime"),
        ("queues:\n  - {name: q, flavors: [1]}\n", r"queues\[0\]\.flavors\[0\]"),
        ("queues:\n  - 5\n", r"queues\[0\]"),
        ("settings: {preempt_after: soon}\n", r"settings\.preempt_after"),
    ],
)
def test_a_queue_that_cannot_be_read_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        read_cell(written(tmp_path, text))
