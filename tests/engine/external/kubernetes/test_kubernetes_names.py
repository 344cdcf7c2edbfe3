"""Ids of a cell for objects of Kubernetes: each stands for one object, and tells which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.external.kubernetes.names import (
    QueueName,
    WorkloadName,
    cluster_queue_id,
    cohort_id,
    local_queue_id,
    node_id,
    node_name,
    queue_name,
    workload_id,
    workload_name,
)
from engine.model.errors import RefusedError, SpecError
from engine.model.specs import check_id

LABEL = st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z") | st.sampled_from(["cohort", "queue"])
SUBDOMAIN = st.lists(LABEL, min_size=1, max_size=5).map(".".join).filter(lambda name: len(name) <= 253)
UID = st.uuids().map(str)


@given(SUBDOMAIN)
def test_a_node_is_called_as_in_kubernetes(name: str) -> None:
    found = node_id(name)
    check_id(found, "node")
    if len(name) <= 128:
        assert found == name == node_name(found)
    else:
        with pytest.raises(RefusedError, match="longer than an id"):
            node_name(found)


@given(LABEL, SUBDOMAIN)
def test_queues_of_three_kinds_never_share_an_id_and_are_told_apart(namespace: str, name: str) -> None:
    ids = [cohort_id(name), cluster_queue_id(name), local_queue_id(namespace, name)]
    assert len(set(ids)) == 3
    for found in ids:
        check_id(found, "queue")
    if len(name) <= 57:
        assert [queue_name(found) for found in ids] == [
            QueueName("Cohort", "", name),
            QueueName("ClusterQueue", "", name),
            QueueName("LocalQueue", namespace, name),
        ]


@given(LABEL, SUBDOMAIN, UID)
def test_a_workload_tells_its_namespace_name_and_uid(namespace: str, name: str, uid: str) -> None:
    found = workload_id(namespace, name, uid)
    check_id(found, "workload")
    if "__" in found:
        assert len(name) > 128 - len(namespace) - 10
        with pytest.raises(RefusedError, match="longer than an id"):
            workload_name(found)
    else:
        assert workload_name(found) == WorkloadName(namespace, name, uid[:8])


def test_a_queue_of_a_namespace_named_cohort_is_not_a_cohort() -> None:
    assert local_queue_id("cohort", "x") == "queue/cohort/x" != cohort_id("x")


def test_names_that_begin_alike_and_are_too_long_are_told_apart() -> None:
    long = "n" * 200
    assert node_id(long + "a") != node_id(long + "b")


@pytest.mark.parametrize("text", ["", "a", "a/b", "/b_c", "a/_c"])
def test_what_is_no_workload_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="not a workload of Kueue"):
        workload_name(text)


def test_what_is_no_queue_is_refused() -> None:
    with pytest.raises(SpecError, match="not a queue of Kueue"):
        queue_name("a/b/c/d")
