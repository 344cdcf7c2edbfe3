"""Workload and cell files: human forms, and errors that name file, line and column."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from console.cli.main import parser
from console.commands.acting import _from_flags
from console.forms import documents as document
from console.forms.documents import read_document
from console.forms.work_files import cell_of, placed, read_workloads, workloads_of
from engine.control import Engine
from engine.model.commands import Define, Submit
from engine.model.errors import SpecError
from engine.model.quantities import cpu_milli, duration_ms, gpu_milli, memory_mib
from engine.model.specs import (
    PROFILES,
    Affinity,
    ArraySpec,
    BurstSpec,
    Dependency,
    FlavorQuota,
    Resources,
    Settings,
    Spread,
    Taint,
    TaskGroup,
    Toleration,
    TopologyRequest,
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
        ("id: [a\n", r"work\.yaml:2:1: is not valid YAML: a bracket is not closed"),
        ("id: a: b\n", r"work\.yaml:1:6: is not valid YAML: a value contains ':'"),
        ("id: a\n  name: b\n", r"work\.yaml:2:7: is not valid YAML: a value contains ':'"),
        ("id: a\nqueue q\n", r"work\.yaml:3:1: is not valid YAML: expected ':' after a key"),
        ("id: 'a\n", r"work\.yaml:2:1: is not valid YAML: a quote is not closed"),
        ("id: @a\n", r"work\.yaml:1:5: is not valid YAML: a tab, or a value that begins with"),
        ("id: a\n---\nid: b\n", r"work\.yaml:2:1: a second document starts"),
        ("? [a]\n: b\n", r"work\.yaml:1:3: a key must be plain text"),
        ("[" * 60, "nested more than"),
        ("", "holds no workload"),
        ("workloads: []", "holds no workload"),
        ("just words", "holds no workload"),
        ("- 1\n", r"work\.yaml:1:3: \[0\]: is not a workload"),
        ("workloads: []\nextra: 1\n", r"work\.yaml:2:1: extra: unknown key 'extra'"),
        ("- id: a\n  queue: q\n  gpus: 8\n", "gpus: no such field"),
        ("- {id: a, queue: q}", "groups"),
        (
            "- id: a\n  queue: q\n  request: {cpu: many}\n",
            r"work\.yaml:3:13: \[0\]\.request\.cpu: 'many' is not a number of cores",
        ),
        ("- {id: a, queue: q, request: {memory: 64}}", "64 is not a size with its unit"),
        ("- {id: a, queue: q, request: {memory: 1MB}}", "too fine: the least step is 1MiB"),
        ("- {id: a, queue: q, request: {gpu: 0.0001}}", "least step is 0.001 of a GPU"),
        ("- {id: a, queue: q, request: {gpu: 1.5}}", "share of one GPU"),
        ("- {id: a, queue: q, request: {gpu: -8}}", "-8 GPU is below 0"),
        ("- {id: a, queue: q, request: {cpu: 1e300}}", "too large"),
        ("- {id: a, queue: q, request: {cpu: .nan}}", "is not a number of cores"),
        ("- {id: a, queue: q, request: {cpu: true}}", "is not a number of cores"),
        ("- {id: a, queue: q, request: {}}", "is empty"),
        ("- {id: a, queue: q, tasks: 0, request: {cpu: 1}}", "0 is below 1"),
        ("- {id: a, queue: q, estimate: 6, request: {cpu: 1}}", "6 is not a duration with its unit"),
        ("- {id: a, queue: q, estimate: 6h, estimate_ms: 1, request: {cpu: 1}}", "mean the same"),
        ("- {id: a, queue: q, tasks: 2, groups: [], request: {cpu: 1}}", "Move 'request', 'tasks' into each"),
        ("- id: 'a b'\n  queue: q\n  request: {cpu: 1}\n", r"work\.yaml:1:3: \[0\]\.id: 'a b' is not a valid id"),
        (b"\xff\xfe", "is not UTF-8"),
        ("a: \x1b[2J", "is not valid YAML"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str | bytes, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        read_workloads(written(tmp_path, text), now)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"id": "a",}', r"work\.json:1:12: is not valid JSON"),
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
    cell = cell_of(read_document(written(tmp_path, text, "cell.yaml")))
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
        ("pools: {}", "pools: is not a list"),
        ("pools: [1]", r"pools\[0\]: is not a pool"),
        ("pools: [{name: a, nodes: -1, capacity: {}}]", "not a number of nodes"),
        ("pools: [{name: a, nodes: 100000000, capacity: {}}]", "not a number of nodes"),
        ("pools: [{name: a, capacity: {cpus: 1}}]", "cpus: no such field"),
        ("pools: [{name: a, capacity: {}, price_usd_hour: free}]", "amount in USD"),
        ("pools: [{capacity: {}}]", "name"),
        ("planets: []", "planets: no such field"),
    ],
)
def test_a_malformed_cell_is_told(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        cell_of(read_document(written(tmp_path, text, "cell.yaml")))


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
        " checkpoint_interval: 1h, checkpoint_cost: 2m, elastic: true, tasks: 8, min_tasks: 2, rerun: never",
    )
    assert (spec.not_before_ms, spec.deadline_ms) == (NOW_MS + 5_400_000, NOW_MS + 86_400_000)
    assert (spec.max_runtime_ms, spec.backoff_ms, spec.checkpoint_cost_ms) == (7_200_000, 30_000, 120_000)
    assert (spec.retries, spec.elastic, spec.groups[0].min_count, spec.rerun) == (3, True, 2, "never")


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
        ("deadline: +1h, deadline_ms: 5", "mean the same"),
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
settings: {fair_half_life: 1d, preempt_after: 1m, rerun: never, queue_rerun: {research: always}}
"""
    cell = cell_of(read_document(written(tmp_path, text)))
    queue = cell.queues[1]
    assert (queue.nominal, queue.lending_limit) == ({"gpu_milli": 32_000}, {"cpu_milli": 500})
    assert queue.borrowing_limit == {"gpu_milli": 16_000, "memory_mib": 2**20}
    assert queue.flavors == (FlavorQuota(pool="h100", nominal={"gpu_milli": 24_000}),)
    assert queue.burst == BurstSpec(limit={"gpu_milli": 64_000}, window_ms=7_200_000, cooldown_ms=1_800_000)
    assert (queue.min_runtime_ms, queue.disruption_window_ms) == (600_000, 86_400_000)
    assert cell.settings == Settings(
        fair_half_life_ms=86_400_000, preempt_after_ms=60_000, rerun="never", queue_rerun={"research": "always"}
    )


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
        cell_of(read_document(written(tmp_path, text)))


# --- where work may go, and what nodes are like


def test_everything_a_workload_may_ask_of_its_place_has_a_short_form(tmp_path: Path) -> None:
    spec = one_workload(
        tmp_path,
        "gpu_models: H100, pools: [a, b], gpu_memory: 80GiB, tolerations: [dedicated=db, {key: spot}],"
        " node_labels: {disk: nvme, gen: [4, 5], ssd: '*'}, avoid_labels: {old: true}, spread: 'zone:2',"
        " topology: {required: block, preferred: rack}, near: 'app=db:rack',"
        " apart: ['app=web,tier=hot', {tags: {gen: 4}, level: zone}], data: eu-1, tags: {app: db, gen: 4}",
    )
    group = spec.groups[0]
    assert (group.gpu_models, group.pools, group.gpu_memory_mib) == (("H100",), ("a", "b"), 81_920)
    assert group.tolerations == (Toleration(key="dedicated", value="db"), Toleration(key="spot"))
    assert group.node_labels == {"disk": ("nvme",), "gen": ("4", "5"), "ssd": ("*",)}
    assert (group.avoid_labels, group.spread) == ({"old": ("true",)}, Spread(level="zone", max_skew=2))
    assert spec.topology == TopologyRequest(required="block", preferred="rack")
    assert spec.near == (Affinity(tags={"app": "db"}, level="rack"),)
    assert spec.apart == (Affinity(tags={"app": "web", "tier": "hot"}), Affinity(tags={"gen": "4"}, level="zone"))
    assert (spec.data, spec.tags) == (("eu-1",), {"app": "db", "gen": "4"})


def test_groups_take_the_same_forms_and_raw_fields(tmp_path: Path) -> None:
    text = """\
id: a
queue: q
groups:
  - {name: head, tasks: 1, request: {cpu: 1}, tolerations: dedicated}
  - {name: work, count: 4, min_count: 2, mig: 1g.10gb, spread: {level: rack}, gpu_memory_mib: 40960}
"""
    head, work = read_workloads(written(tmp_path, text), now)[0].groups
    assert (head.count, head.tolerations) == (1, (Toleration(key="dedicated"),))
    assert (work.count, work.min_count, work.mig, work.spread) == (4, 2, "1g.10gb", Spread(level="rack"))
    assert (work.request, work.gpu_memory_mib) == (Resources(), 40_960)


def test_flags_say_the_same_as_a_file(tmp_path: Path) -> None:
    line = (
        "submit --id a --queue q --gpus-per-task 1 --gpu-model H100 A100 --gpu-memory 80GiB --pool p --node-label "
        "zone=a,b ssd --avoid-label old=yes --tolerate spot dedicated=db --required-level block --preferred-level rack "
        "--spread node --tag app=db --near app=db:rack --apart app=web --data eu-1"
    )
    values = _from_flags(parser().parse_args(line.split()))
    written_out = (
        "gpu_models: [H100, A100], gpu_memory: 80GiB, pools: p, node_labels: {zone: [a, b], ssd: '*'},"
        " avoid_labels: {old: yes}, tolerations: [spot, dedicated=db], topology: {required: block, preferred: rack},"
        " spread: node, tags: {app: db}, near: 'app=db:rack', apart: app=web, data: eu-1"
    )
    assert workloads_of(document.LocatedDocument("flags", values, {}), now) == (one_workload(tmp_path, written_out),)
    mig = _from_flags(parser().parse_args(["submit", "--queue", "q", "--id", "a", "--mig", "1g.10gb"]))
    assert workloads_of(document.LocatedDocument("flags", mig, {}), now)[0].groups[0].mig == "1g.10gb"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("gpu_model: H100", "1:38: gpu_model: no such field. Did you mean 'gpu_models'?"),
        ("kind: job", "1:38: kind: no such field. Known"),
        ("gpus: 8", "1:38: gpus: no such field. Write request: {gpu: 8}"),
        ("nodeSelector: {a: b}", "Write node_labels"),
        ("topology: rack", "1:38: topology: 'rack' : required or preferred? Write {required: rack}"),
        ("topology: {required: rock}", "1:49: topology.required: 'rock' is not allowed. Did you mean 'rack'?"),
        ("topology: {require: rack}", "1:49: topology.require: no such field. Did you mean"),
        ("spread: zones", "1:38: spread.level: 'zones' is not allowed. Did you mean 'zone'?"),
        ("spread: 'zone:0'", "1:38: spread.max_skew: 0 is below 1"),
        ("spread: 'zone:few'", "1:38: spread: 'zone:few' is not a level such as zone"),
        ("near: db", "1:38: near: 'db' is not KEY=VALUE"),
        ("near: [{app: db}]", "near[0].app: no such field. Known: tags, level"),
        ("near: app=db, apart: app=db", "1:52: apart: contradicts `near`"),
        ("apart: 'app=db:racks'", "apart[0].level: 'racks' is not allowed. Did you mean 'rack'?"),
        ("node_labels: {v: 1.10}", "1:38: node_labels: 1.1 is a number here; put it in quotes"),
        ("node_labels: {a: [x]}, avoid_labels: {a: '*'}", "excludes everything that node_labels asks for"),
        ("node_labels: {a: []}", "1:52: node_labels.a: has no value"),
        ("tolerations: [{key: a, valeu: b}]", "Did you mean 'value'?"),
        ("gpu_memory: 80", "1:38: gpu_memory: 80 is not a size with its unit"),
        ("groups: [], mig: 1g.5gb", "Move 'request', 'mig' into each"),
        ("mig: [1g.5gb]", "1:38: mig: is a list; it must be text"),
        ('"a\\e[2J": 1', "no such field"),
    ],
)
def test_a_wrong_word_is_told_with_line_and_the_nearest_right_one(tmp_path: Path, fields: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        one_workload(tmp_path, fields)
    assert told in str(caught.value)


CELL = """\
pools:
  - name: h100
    nodes: 8
    region: eu
    zone: eu-1
    block: 4
    rack: 2
    gpu_model: H100
    gpu_memory: 96GiB
    nvlink_group: 4
    labels: {gen: 4}
    taints: dedicated=train
    placement: gpu
    capacity: {cpu: 96, gpu: 8}
  - {name: mig, gpu_model: A100-40GB, mig: true, placement: {pack: 100, price: 5}, capacity: {cpu: 8, gpu: 1}}
nodes:
  - {id: m1, pool: mig, zone: 7, nvlink: d1, labels: {ssd: true}, taints: [a, 'b=c:PreferNoSchedule']}
queues:
  - {name: q, placement: service}
"""


def test_nodes_are_described_with_places_labels_taints_and_devices(tmp_path: Path) -> None:
    cell = cell_of(read_document(written(tmp_path, CELL)))
    h100, mig = cell.pools
    assert (h100.gpu_memory_mib, h100.nvlink_group, h100.labels) == (98_304, 4, {"gen": "4"})
    assert (h100.taints, h100.placement) == ((Taint(key="dedicated", value="train"),), PROFILES["gpu"])
    assert (mig.mig, mig.placement) == (True, {"pack": 100, "price": 5})
    first, last = cell.nodes[1], cell.nodes[8]
    assert (first.id, first.region, first.zone, first.block, first.rack) == (
        "h100-0001", "eu", "eu-1", "h100-b001", "h100-r001",
    )  # fmt: skip
    assert (last.id, last.block, last.rack) == ("h100-0008", "h100-b002", "h100-r004")
    assert cell.nodes[0].taints == (Taint(key="a"), Taint(key="b", value="c", effect="PreferNoSchedule"))
    assert (cell.nodes[0].zone, cell.nodes[0].nvlink, cell.nodes[0].labels) == ("7", "d1", {"ssd": "true"})
    assert cell.queues[0].placement == PROFILES["service"]


@pytest.mark.parametrize(
    ("was", "now_is", "told"),
    [
        ("gpu_model: H100\n    gpu_memory: 96GiB", "gpu_model: H10O",
         "8:5: pools[0].gpu_model: GPU model 'H10O' is not known, did you mean 'H100'?"),
        ("A100-40GB", "A10-G", "15:35: pools[1].mig: the MIG profiles of 'A10-G' with 24576 MiB are not known"),
        ("nvlink_group: 4", "nvlink_group: 3", "10:5: pools[0].nvlink_group: 8 devices are not linked in sets of 3"),
        ("nvlink_group", "nvlink_groups", "10:5: pools[0].nvlink_groups: no such field"),
        ("rack: 2", "rack: 3", "7:5: pools[0].rack: a block of 4 nodes cannot be divided into racks of 3"),
        ("rack: 2", "rack: -1", "7:5: pools[0].rack: -1 is not a number of nodes"),
        ("placement: gpu", "placement: gpus", "13:5: pools[0].placement: there is no profile 'gpus', did you mean"),
        ("{pack: 100, price: 5}", "{pack: 100, prize: 5}", "15:50: pools[1].placement: there is no score 'prize'"),
        ("b=c:PreferNoSchedule", "b=c:Prefer", "taints[1].effect: 'Prefer' is not allowed. Did you mean"),
        ("gen: 4", "'a b': 4", "11:5: pools[0].labels: 'a b' is not a valid id"),
        ("zone: 7", "zone: eu-1, region: us", "5:5: pools[0].zone: zone 'eu-1' is in region 'eu' here, but in"),
        ("zone: 7", "rack: h100-r001, block: other", "rack: rack 'h100-r001' is in block"),
        ("pool: mig, zone", "pool: mog, zone", "17:14: nodes[0].pool: there is no pool 'mog'"),
        ("placement: service", "placement: {pack: 1001}", "19:27: queues[0].placement.pack: the weight 1001"),
        ("id: m1", "id: h100-0001", "already exists"),
    ],
)  # fmt: skip
def test_a_wrong_cell_is_told_with_its_line_and_nothing_is_applied(
    tmp_path: Path, was: str, now_is: str, told: str
) -> None:
    assert CELL.count(was) == 1
    text = read_document(written(tmp_path, CELL.replace(was, now_is)))
    engine = Engine.open(None)

    def define() -> None:
        with placed(text):
            engine.command(Define(cell=cell_of(text)))

    with pytest.raises(SpecError) as caught:
        define()
    assert told in str(caught.value)
    assert engine.version == 0


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("queue: q, mig: 1g.10gb",
         "2:3: workloads[0].tolerations: every suitable node has a taint that is not tolerated"),
        ("queue: q, mig: 1g.9gb", "2:21: workloads[0].mig: '1g.9gb' is not a MIG profile that is known"),
        ("queue: q, mig: 1g.20gb", "2:21: workloads[0].mig: '1g.20gb' is a MIG profile that no device here has"),
        ("queue: q, mig: 7g.40gb, gpu_models: H100", "no pool or device model it accepts has the profile 7g.40gb"),
        ("queue: q, mig: 1g.5gb, request: {gpu: 1}", "2:44: workloads[0].request.gpu: 1000 contradicts the MIG"),
        ("queue: qq, request: {cpu: 1}", "2:11: workloads[0].queue: there is no queue 'qq'"),
        ("queue: q, request: {gpu: 1}, gpu_models: H200", "2:40: workloads[0].gpu_models: no node has devices of"),
        ("queue: q, request: {gpu: 1}, gpu_memory: 1TiB", "2:40: workloads[0].gpu_memory: no device has 1048576 MiB"),
        ("queue: q, request: {cpu: 1}, node_labels: {gen: 9}",
         "2:54: workloads[0].node_labels.gen: no large enough node has the label 'gen' with '9'"),
        ("queue: q, request: {gpu: 8}, tolerations: dedicated, tasks: 5, topology: {required: block}",
         "topology.required: no block could ever hold 5 such tasks at once"),
        ("queue: q, request: {gpu: 8}, tolerations: dedicated, topology: {required: rack, preferred: zone}",
         "topology.preferred: 'zone' is wider than 'rack', which is required"),
        ("queue: q, groups: [{request: {cpu: 1}, pools: z}]", "2:50: workloads[0].groups[0].pools: there is no pool"),
    ],
)  # fmt: skip
def test_what_only_the_engine_can_know_is_told_with_its_line_too(tmp_path: Path, fields: str, told: str) -> None:
    text = read_document(written(tmp_path, "workloads:\n- {id: a, " + fields + "}\n"))
    engine = Engine.open(None, cell=cell_of(read_document(written(tmp_path, CELL, "cell.yaml"))))
    before = engine.version

    def submit() -> None:
        with placed(text):
            engine.command(Submit(workloads=workloads_of(text, now)))

    with pytest.raises(SpecError) as caught:
        submit()
    assert told in str(caught.value)
    assert engine.version == before


def test_how_nodes_are_watched_is_written_with_times(tmp_path: Path) -> None:
    given = "{suspect_after: 1m, grace: 30s, repair: [20m, 1h], flaps: 4, mass_permille: 100}"
    text = f"{CELL}settings: {{health: {given}}}\n"
    health = cell_of(read_document(written(tmp_path, text, "cell.yaml"))).settings.health
    assert (health.suspect_after_ms, health.grace_ms, health.repair_ms) == (60_000, 30_000, (1_200_000, 3_600_000))
    assert (health.flaps, health.mass_permille, health.heartbeat_every_ms) == (4, 100, 10_000)


def test_a_gang_whose_members_may_be_replaced_says_so_in_files_and_flags(tmp_path: Path) -> None:
    text = "{id: a, queue: q, tasks: 8, hot_swap: true, request: {cpu: 1}}\n"
    (spec,) = workloads_of(read_document(written(tmp_path, text)), now)
    assert spec.hot_swap
    flags = parser().parse_args(["submit", "--id", "a", "--queue", "q", "--cpus", "1", "--hot-swap"])
    assert _from_flags(flags)["hot_swap"]


@pytest.mark.parametrize(
    ("scaling", "problem"),
    [
        ("{max: 4}", r"cell\.yaml:1:\d+: pools\[0\]\.scaling\.max: .*Write most"),
        ("{least: 1}", r"scaling: most is missing. Add 'most: …'"),
        ("7", r"scaling: is a number; it must be a mapping. Write a mapping"),
        ("{most: 4, taken_permille_hour: 10%}", r"taken_permille_hour: .*Write a whole number"),
        ("{most: 4, boot: [1s, 2s, 3s]}", r"scaling\.boot: .* is not a time such as 90s, or two"),
        ("{most: 4, stock: lots}", r"scaling\.stock: 'lots' is neither"),
        ("{most: 4, least: 5}", r"scaling\.least: 5 is more than most, 4"),
    ],
)
def test_what_is_wrong_about_a_pool_that_grows_is_told_with_what_to_write(
    tmp_path: Path, scaling: str, problem: str
) -> None:
    path = tmp_path / "cell.yaml"
    path.write_text("pools: [{name: p, capacity: {cpu: 1}, scaling: " + scaling + "}]\n")

    def define() -> None:
        document = read_document(str(path))
        with placed(document):
            Engine.open(None).command(Define(cell=cell_of(document)))

    with pytest.raises(SpecError, match=problem):
        define()
