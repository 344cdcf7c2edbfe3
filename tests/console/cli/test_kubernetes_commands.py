"""`muster kubernetes` asks a cluster itself: what can be read, and what changes."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_cluster import KubernetesCluster, shared
from scripted_kubernetes import Answer, Query, ScriptedKubernetes, page, status

from console.cli.main import run
from tests.support.patience import until


def asked_of(path: Path, url: str) -> list[str]:
    """Options that lead to a server."""
    cluster = {"name": "c", "cluster": {"server": url}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    path.write_text(json.dumps({"clusters": [cluster], "users": users, "contexts": [context], "current-context": "x"}))
    return ["--kubeconfig", str(path)]


def plain(path: str, query: Query) -> Answer:
    """A cluster without Kueue, whose words would act on a terminal, and whose jobs cannot be listed."""
    said: dict[str, Any] = {
        "/version": {"gitVersion": "v1.30\x1b[31m"},
        "/apis": {"groups": [{"name": each, "versions": [{"version": "v1"}]} for each in ("batch", "policy")]},
        "/api/v1": {"resources": [{"name": "pods", "verbs": ["list", "watch"]}]},
        "/apis/batch/v1": {"resources": [{"name": "jobs", "verbs": ["list", "watch"]}]},
        "/apis/policy/v1": {"resources": []},
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": {"status": {"allowed": True}},
    }
    if path in said:
        return 200, {}, [json.dumps(said[path]).encode()]
    return status(500, "Broken") if path.endswith("jobs") else page(5)


def test_a_look_says_what_is_absent_and_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedKubernetes(plain) as server:
        assert run(["kubernetes", "look", *asked_of(tmp_path / "config", server.url)]) == 1
        lines = capsys.readouterr().out
        assert run(["kubernetes", "look", *asked_of(tmp_path / "config", server.url), "--json"]) == 1
        seen = {each["kind"]: each for each in json.loads(capsys.readouterr().out)["kinds"]}
    assert "\x1b" not in lines
    assert "kueue       not installed" in lines
    assert (seen["pods"]["can"], seen["pods"]["objects"]) == ("read", 0)
    assert (seen["jobs"]["can"], seen["jobs"]["objects"]) == ("failed", None)
    assert "it is Broken" in seen["jobs"]["why"]
    assert seen["workloads"]["why"] == "kueue.x-k8s.io is not installed"
    assert seen["poddisruptionbudgets"]["why"] == "policy/v1 has no poddisruptionbudgets that can be watched"


def test_what_is_no_cluster_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedKubernetes(lambda path, query: (200, {}, [b"<html>hello</html>"])) as server:
        assert run(["kubernetes", "look", *asked_of(tmp_path / "config", server.url)]) == 5
    assert "one of Kubernetes" in capsys.readouterr().err
    assert run(["kubernetes", "look", *asked_of(tmp_path / "config", server.url)]) == 5
    assert "nobody answers" in capsys.readouterr().err
    assert run(["kubernetes", "look", "--kubeconfig", str(tmp_path / "none")]) == 2


# -- a real one -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesCluster]:
    with shared() as cluster:
        yield cluster


@pytest.mark.thorough
def test_a_real_cluster_is_looked_at(cluster: KubernetesCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kubernetes", "look", "--kubeconfig", str(cluster.kubeconfig), "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert (seen["kubernetes"], seen["kueue"]) == ("v1.36.2", ["v1beta2", "v1beta1"])
    nodes = next(each for each in seen["kinds"] if each["kind"] == "nodes")
    assert nodes["objects"] == 4
    assert run(["kubernetes", "look", "--kubeconfig", str(cluster.limited)]) == 1
    assert "this user may not list nor watch them" in capsys.readouterr().out


@pytest.mark.thorough
def test_changes_of_a_real_cluster_are_printed_as_they_come(
    cluster: KubernetesCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"watched-{uuid.uuid4().hex[:8]}"
    followed = threading.Event()

    def change() -> None:
        with cluster.admin() as admin:
            while not followed.wait(0.2):
                admin.raw("DELETE", f"/api/v1/namespaces/{name}")
                admin.raw("POST", "/api/v1/namespaces", json={"metadata": {"name": name}})

    changing = threading.Thread(target=change)
    changing.start()
    lines: list[dict[str, str]] = []

    def told() -> bool:
        words = ["kubernetes", "watch", "namespaces", "--for", "3s", "--json", "--kubeconfig", str(cluster.kubeconfig)]
        assert run(words) == 0
        lines.extend(json.loads(line) for line in capsys.readouterr().out.splitlines())
        return {"added", "deleted"} <= {each["happened"] for each in lines if each["name"] == name}

    try:
        until(told, lambda: str(lines))
    finally:
        followed.set()
        changing.join()
    assert {each["kind"] for each in lines} == {"namespaces"}
