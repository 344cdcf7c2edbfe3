"""The container image, without a daemon: its file is sound, its steps give a Muster that starts in a pod's conditions
(another user, a read-only root, a service account), and a real API server takes the manifests."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from image_steps import ROOT, environment_in, install, instructions, stages, started_as
from kubernetes_cluster import Admin, KubernetesCluster, shared

from tests.support.patience import PATIENCE_S, until

MANIFESTS = ROOT / "deploy" / "kubernetes"
USER = 10001


# -- the files --------------------------------------------------------------------------------------------------------


def test_the_file_keeps_to_the_rules_that_linters_have() -> None:
    said = instructions()
    assert all(":" in rest and "latest" not in rest for word, rest in said if word == "FROM")
    assert not [word for word, _ in said if word in ("ADD", "MAINTAINER")]
    assert all("--no-cache-dir" in rest for word, rest in said if word == "RUN" and "pip install" in rest)
    assert not [rest for word, rest in said if word == "RUN" and re.search(r"\b(sudo|curl|wget|apt-get)\b", rest)]
    last = dict(stages()[-1])
    assert last["USER"] == f"{USER}:{USER}"
    assert all(json.loads(last[word]) for word in ("ENTRYPOINT", "CMD"))
    for word, rest in said:
        if word == "COPY" and not rest.startswith("--from"):
            assert all((ROOT / source).exists() for source in rest.split()[:-1])


def test_only_what_is_copied_is_sent_to_a_daemon() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for word, rest in stages()[0] if word == "COPY" for name in rest.split()[:-1]}
    assert kept == copied


def documents(folder: str) -> list[dict[str, Any]]:
    """What a kustomization has, with what it is based on."""
    found: list[dict[str, Any]] = []
    for name in yaml.safe_load((MANIFESTS / folder / "kustomization.yaml").read_text())["resources"]:
        path = (MANIFESTS / folder / name).resolve()
        found += documents(path.name) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    return found


def test_the_pod_may_nothing_that_it_does_not_need() -> None:
    (pod,) = [each["spec"]["template"]["spec"] for each in documents("act") if each["kind"] == "StatefulSet"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == USER
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert ["muster", *container["args"]] == started_as()
    (policy,) = [each["spec"] for each in documents("base") if each["kind"] == "NetworkPolicy"]
    assert (policy["ingress"], set(policy["policyTypes"])) == ([], {"Ingress", "Egress"})
    kinds = [each["kind"] for each in documents("base")]
    assert kinds.count("ClusterRole") == 1
    assert "patch" not in str([each["rules"] for each in documents("base") if each["kind"] == "ClusterRole"])


def test_kustomize_makes_of_it_what_acts() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, which has kustomize in it")
    done = subprocess.run(["kubectl", "kustomize", MANIFESTS / "act"], capture_output=True, text=True, check=True)
    made = list(yaml.safe_load_all(done.stdout))
    (pod,) = [each["spec"]["template"]["spec"] for each in made if each["kind"] == "StatefulSet"]
    assert pod["containers"][0]["args"][-1] == "--kubernetes-act"
    assert {each["kind"] for each in made} == {each["kind"] for each in documents("act")}


# -- a real API server ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesCluster]:
    with shared() as cluster:
        yield cluster


PLURALS = {"NetworkPolicy": "networkpolicies", "ValidatingAdmissionPolicy": "validatingadmissionpolicies"}


@pytest.mark.thorough
def test_a_real_server_takes_every_manifest(cluster: KubernetesCluster) -> None:
    with cluster.admin() as admin:
        namespace = admin.raw("GET", "/api/v1/namespaces/muster").status_code != 200
        if namespace:
            admin.namespace("muster")
        try:
            for document in documents("act"):
                _apply(admin, document)
        finally:
            if namespace:
                admin.do("DELETE", "/api/v1/namespaces/muster")


def _apply(admin: Admin, document: dict[str, Any]) -> None:
    """As `kubectl apply --server-side --dry-run=server --validate=strict` does."""
    group, kind, about = document["apiVersion"], document["kind"], document["metadata"]
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    within = f"/namespaces/{about['namespace']}" if "namespace" in about else ""
    path = f"{'/api' if group == 'v1' else '/apis'}/{group}{within}/{plural}/{about['name']}"
    query = "fieldManager=test&force=true&dryRun=All&fieldValidation=Strict"
    admin.do("PATCH", f"{path}?{query}", document, "application/apply-patch+yaml")


# -- its steps --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    try:
        install(folder)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the steps of the image need a package index: {error}")
    return folder


@pytest.mark.slow
@pytest.mark.thorough
def test_what_is_installed_starts_in_a_pods_conditions(
    installed: Path, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    """As user 10001 without any group, on a read-only root, as the service account's user, who has the roles of the
    manifests. It gets ready, and `kubectl-muster` asks it."""
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a read-only root and another user need root")
    account = tmp_path / "account"
    account.mkdir()
    reach = cluster.reach(cluster.limited)
    (account / "token").write_text(reach.user.token)
    (account / "ca.crt").write_bytes((cluster.folder / "pki" / "ca.crt").read_bytes())
    (account / "namespace").write_text("muster")
    state = installed / "var/lib/muster"
    state.mkdir(parents=True, exist_ok=True)
    os.chown(state, USER, USER)
    for folder in (account, *installed.parents):
        if folder.owner() == "root" and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    port = _free_port()
    words = [word.replace("8080", str(port)) for word in started_as()]
    environment = environment_in(installed) | {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(cluster.port),
    }  # fmt: skip
    script = """
        mount -t tmpfs none /run/secrets
        mkdir -p /run/secrets/kubernetes.io/serviceaccount
        mount --bind "$0" /run/secrets/kubernetes.io/serviceaccount
        mount --bind "$1" "$1"
        mount -o remount,bind,ro /
        shift
        exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --inh-caps=-all,+dac_read_search \\
            --ambient-caps=+dac_read_search --bounding-set=-all,+dac_read_search "$@"
    """
    Path("/run/secrets").mkdir(exist_ok=True)
    with (tmp_path / "log").open("wb") as log:
        pod = subprocess.Popen(
            ["unshare", "-m", "sh", "-euc", script, str(account), str(state), *words],
            env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        until(lambda: pod.poll() is not None or _is_ready(port), lambda: (tmp_path / "log").read_text()[-2000:])
        assert pod.poll() is None, (tmp_path / "log").read_text()[-3000:]
        asked = subprocess.run(
            [
                "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all,+dac_read_search",
                "--ambient-caps=+dac_read_search",
                installed / "opt/muster/bin/kubectl-muster", "--cell", "kubernetes", "overview",
            ],
            env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        assert {path.stat().st_uid for path in state.rglob("*")} == {USER}
    finally:
        pod.terminate()
        pod.wait(PATIENCE_S)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port
