"""Answers recorded of both releases, read; the same things read the same; and answers that no release should give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from slurm_cluster import SAMPLES
from slurm_samples import EARLY, LATER, VERSIONS, needs_samples, sample

from engine.external.slurm import entries
from engine.external.slurm.answers import read_all, split
from engine.external.slurm.mapping import standing
from engine.external.slurm.records import UNLIMITED, Job

READERS = {
    "jobs": entries.job,
    "nodes": entries.node,
    "partitions": entries.partition,
    "reservations": entries.reservation,
    "associations": entries.association,
    "qos": entries.qos,
    "QOS": entries.qos,
}


def one_job(version: str, name: str) -> Job:
    return entries.job(sample(version, name).entries("jobs")[0])


def recorded() -> list[Path]:
    found = (path for version in VERSIONS for path in (SAMPLES / version).glob("*.json"))
    return sorted(path for path in found if not path.name.startswith(("cli_", "openapi")))


@needs_samples
def test_every_recorded_answer_with_a_list_is_read_whole() -> None:
    read = 0
    for path in recorded():
        told = json.loads(path.read_text())
        if not isinstance(told.get("response"), dict):
            continue
        answer = split(told["status"], json.dumps(told["response"]).encode())
        database = told["request"]["path"].startswith("/slurmdb")
        for key in READERS.keys() & answer.fields.keys():
            if path.stem == "jobs_state":
                continue
            reader = entries.past_job if database and key == "jobs" else READERS[key]
            good, bad = read_all(answer.entries(key), reader, key)
            assert not bad, (path, bad)
            for one in good:
                assert not getattr(one, "extra", {}), (path, one)
            read += len(good)
    assert read > 400


@needs_samples
def test_a_job_that_both_releases_ran_reads_the_same() -> None:
    """The gang of four nodes, ended: all that does not name a moment, an id or a folder."""
    other = dict.fromkeys(["id", "submit_s", "eligible_s", "start_s", "end_s"], 0)
    other |= dict.fromkeys(["workdir", "stdout", "stderr"], "")
    early, later = (msgspec.structs.replace(one_job(version, "job_gang_done"), **other) for version in (EARLY, LATER))
    assert early == later
    assert early.nodes == ("cpu001", "cpu002", "cpu003", "cpu004")
    assert early.cpus_on == dict.fromkeys(early.nodes, 1)
    assert early.memory_on == dict.fromkeys(early.nodes, 100)
    assert (early.state, early.exit_status, early.signal, early.over) == ("COMPLETED", 0, None, True)


@needs_samples
@pytest.mark.parametrize("version", [EARLY, LATER])
def test_a_held_job_an_array_and_a_gpu_job_are_what_was_asked_for(version: str) -> None:
    held, array, gpu = (one_job(version, name) for name in ("job_held", "job_array", "job_gpu"))
    assert held.requeue is True
    assert (held.state, held.held, held.reason, held.priority) == ("PENDING", True, "JobHeldUser", 0)
    assert array.array_id == array.id
    assert array.array_tasks.endswith("%2")
    assert array.array_task is None
    assert gpu.gres_wanted == {"gpu": 2}
    assert gpu.tres_wanted["gres/gpu"] == 2
    if gpu.holding:
        assert gpu.gpus_on == {"gpu001": (0, 1)}
        assert gpu.gres_on == {"gpu001": {"gpu:h100": 2}}


@needs_samples
def test_nodes_partitions_and_a_reservation_read_the_same() -> None:
    def named(version: str, name: str, key: str) -> dict[str, Any]:
        read, _ = read_all(sample(version, name).entries(key), READERS[key], key)
        return {one.name: one for one in read}

    early, later = (named(version, "nodes", "nodes") for version in (EARLY, LATER))
    for name in early:
        for field in ("state", "flags", "cpus", "memory_mib", "gres", "partitions", "features"):
            assert getattr(early[name], field) == getattr(later[name], field), (name, field)
    assert "POWERED_DOWN" in later["cloud001"].flags
    assert standing(later["cloud001"]) == "ready"
    early, later = (named(version, "partitions", "partitions") for version in (EARLY, LATER))
    for name in early:
        assert later[name] == early[name], name
    assert early["batch"].time_limit_s == UNLIMITED
    early, later = (named(version, "reservation_one", "reservations") for version in (EARLY, LATER))
    moved = msgspec.structs.replace(early["maint1"], start_s=later["maint1"].start_s, end_s=later["maint1"].end_s)
    assert moved == later["maint1"]


@needs_samples
def test_a_drained_node_says_so_in_both() -> None:
    for version, name in ((EARLY, "node_drained_by_cli"), (LATER, "node_after_drain")):
        node = entries.node(sample(version, name).entries("nodes")[0])
        assert "DRAIN" in node.flags
        assert standing(node) != "ready"
        assert node.reason


@needs_samples
def test_accounting_tells_attempts_steps_and_limits() -> None:
    for version in (EARLY, LATER):
        past = entries.past_job(sample(version, "db_job_gang").entries("jobs")[0])
        assert (past.state, past.exit_status, past.tres_held["cpu"]) == ("COMPLETED", 0, 4)
        assert [step.id for step in past.steps] == ["batch", "0"]
        assert past.steps[1].nodes == past.nodes
        qos = {one.name: one for one in map(entries.qos, sample(version, "db_qos").entries("qos", "QOS"))}
        assert set(qos["urgent"].preempts) == {"low", "normal", "high"}
        assert qos["urgent"].priority == 10_000


@pytest.mark.parametrize(
    ("word", "state", "flags"),
    [
        ("CONFIGURING", "RUNNING", {"CONFIGURING"}),
        ("COMPLETING", "COMPLETING", {"COMPLETING"}),
        ("REQUEUED", "PENDING", {"REQUEUED"}),
        (["RUNNING", "CONFIGURING"], "RUNNING", {"CONFIGURING"}),
        (["COMPLETED", "COMPLETING"], "COMPLETED", {"COMPLETING"}),
        (["OUT_OF_MEMORY"], "OUT_OF_MEMORY", set()),
        ("HIBERNATED", "HIBERNATED", {"HIBERNATED"}),
        (None, "UNKNOWN", set()),
    ],
)
def test_a_state_is_one_word_and_flags(word: Any, state: str, flags: set[str]) -> None:
    job = read({"job_id": 1, "job_state": word})
    assert (job.state, job.flags) == (state, flags)
    assert bool(job.extra) == (state == "HIBERNATED")


@pytest.mark.parametrize(
    ("code", "status", "signal"),
    [
        (0, 0, None),
        (256, 1, None),
        (9, None, 9),
        ({"return_code": {"set": True, "number": 3}, "signal": {"id": {"set": False, "number": 0}}}, 3, None),
        ({"return_code": {"set": False, "number": 0}, "signal": {"id": {"set": True, "number": 15}}}, None, 15),
    ],
)
def test_how_a_job_ended_in_either_shape(code: Any, status: int | None, signal: int | None) -> None:
    job = read({"job_id": 1, "job_state": "FAILED", "exit_code": code})
    assert (job.exit_status, job.signal) == (status, signal)


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        (60, 3600),
        (None, None),
        (4_294_967_295, UNLIMITED),
        (4_294_967_294, None),
        ({"set": True, "infinite": False, "number": 60}, 3600),
        ({"set": False, "infinite": True, "number": 0}, UNLIMITED),
        ({"set": False, "infinite": False, "number": 0}, None),
        ("60", 3600),
    ],
)
def test_infinite_and_not_set_are_told_apart_where_slurm_tells_them_apart(limit: Any, seconds: int | None) -> None:
    assert read({"job_id": 1, "time_limit": limit}).time_limit_s == seconds


@pytest.mark.parametrize("value", ["soon", [], True, {"set": True}, 1.5e300, [1], {"number": "x", "set": True}])
def test_a_field_of_another_type_is_kept_aside_and_costs_nothing_else(value: Any) -> None:
    job = read({"job_id": 7, "cpus": value, "name": "good"})
    assert (job.id, job.name) == (7, "good")
    assert job.cpus == 0 or value == 1.5e300
    assert "cpus" in job.extra or value == 1.5e300


def test_a_name_that_is_no_utf8_costs_only_its_own_entry_some_time() -> None:
    body = b'{"jobs": [{"job_id": 1, "name": "caf\xe9"}, {"job_id": 2, "name": "caf\xc3\xa9"}]}'
    good, bad = read_all(split(200, body).entries("jobs"), entries.job, "job")
    assert [job.name for job in good] == ["caf\\xe9", "café"]
    assert not bad


def test_a_list_with_a_bad_entry_gives_the_others() -> None:
    body = b'{"jobs": [{"job_id": 1}, {"name": "no id"}, 7, {"job_id": 2, "name": "caf\xe9 \\ud800"}, {"job_id": NaN}]}'
    good, bad = read_all(split(200, body).entries("jobs"), entries.job, "job")
    assert [job.id for job in good] == [1, 2]
    assert good[1].name == "caf\\xe9 \\ud800"
    assert len(bad) == 3
    assert bad[0].startswith("job 2 of 5: has no job id")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["set", "infinite", "number", "nodes", "id", "name"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=examples(100))
@given(st.dictionaries(st.sampled_from(sorted(entries.JOB.fields)), json_values, max_size=12))
def test_no_job_makes_the_reader_fail(fields: dict[str, Any]) -> None:
    """It is read, or left out with a reason; and what was read can be written down."""
    good, bad = read_all(split(200, json.dumps({"jobs": [fields]}).encode()).entries("jobs"), entries.job, "job")
    assert len(good) + len(bad) == 1
    msgspec.json.encode(good)


@settings(max_examples=examples(100))
@given(
    st.dictionaries(
        st.sampled_from(sorted(entries.NODE.fields + entries.PARTITION.fields)),
        json_values,
        max_size=12,
    )
)
def test_no_node_or_partition_makes_the_reader_fail(fields: dict[str, Any]) -> None:
    raw = split(200, json.dumps({"x": [{"name": "n", **fields}]}).encode()).entries("x")
    for reader in (
        entries.node,
        entries.partition,
        entries.reservation,
        entries.qos,
        entries.association,
        entries.share,
    ):
        good, bad = read_all(raw, reader, "entry")
        assert len(good) + len(bad) == 1
        msgspec.json.encode(good)


def test_names_of_files_are_filled_in() -> None:
    job = read(
        {"job_id": 31, "array_job_id": 30, "array_task_id": 4, "name": "x%j", "standard_output": "/o/%A_%4a-%x%%.out"}
    )
    assert job.stdout == "/o/30_0004-x%j%.out"


def test_states_of_array_tasks_are_one_row_a_record() -> None:
    told = [("7", "RUNNING"), ("24_0", "RUNNING"), ("23_2", "PENDING"), ("23_3", "PENDING"), ("x", "RUNNING")]
    body = json.dumps({"jobs": [{"job_id": name, "state": [state]} for name, state in told]}).encode()
    rows, bad = entries.short_states(split(200, body).entries("jobs"), own_ids=True)
    assert [(row.id, row.array_task, row.array_tasks) for row in rows] == [
        (7, None, ""),
        (24, 0, ""),
        (23, None, "2,3"),
    ]
    assert len(bad) == 1
    rows, _ = entries.short_states(split(200, body).entries("jobs"), own_ids=False)
    assert [(row.id, row.array_id, row.array_task) for row in rows[:2]] == [(7, 0, None), (0, 24, 0)]


def read(fields: dict[str, Any]) -> Job:
    return entries.job(split(200, json.dumps({"jobs": [fields]}).encode()).entries("jobs")[0])
