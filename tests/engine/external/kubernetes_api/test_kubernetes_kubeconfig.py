"""A kubeconfig means here what it means to kubectl, and what kubectl refuses is refused."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.external.kubernetes_api.kubeconfig import Reach, reach_of
from engine.external.kubernetes_api.tls import proxy_of
from engine.model.errors import SpecError
from tests.support.patience import PATIENCE_S

KUBECTL = shutil.which("kubectl")
PEM = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "interactiveMode": "Never"}


def config(cluster: Any = None, user: Any = None, context: Any = None, **more: Any) -> dict[str, Any]:
    server = {"server": "https://localhost:1"}
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "c", "cluster": server if cluster is None else cluster}],
        "users": [{"name": "u", "user": {"token": "t"} if user is None else user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"} if context is None else context}],
        **more,
    }  # fmt: skip


def write(path: Path, found: Any) -> Path:
    path.write_text(found if isinstance(found, str) else yaml.safe_dump(found))
    return path


def read(path: Path, **how: Any) -> Reach:
    return reach_of({}, file=str(path), **how)


# -- what kubectl refuses ---------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str]] = {
    "not YAML": ("clusters: [{name: c\n", "line|YAML"),
    "another kind": (config(kind="Pod"), "kind"),
    "another version": (config(apiVersion="v2"), "apiVersion"),
    "a token that is a number": (config(user={"token": 12}), r"users\[0\].user.token"),
    "a user name that is yes": ("users: [{name: u, user: {username: yes}}]", "username"),
    "clusters that are no list": (config(clusters={"c": {}}), "clusters"),
    "data that is not base64": (config({"server": "https://a", "certificate-authority-data": "§"}), "not base64"),
    "data of a user that is not base64": (config(user={"client-key-data": "§"}), "not base64"),
    "a name twice": (config(users=[{"name": "u", "user": {}}] * 2), "'u' twice"),
    "a context that is not there": (config(**{"current-context": "y"}), "no context 'y'"),
    "a user that is not there": (config(context={"cluster": "c", "user": "v"}), "no user 'v'"),
    "a context without a user": (config(context={"cluster": "c"}), "names no user"),
    "an authority that is missing": (config({"server": "https://a", "certificate-authority": "no.crt"}), "no.crt"),
    "two authorities": (
        config({"server": "https://a", "certificate-authority": "here", "certificate-authority-data": PEM}),
        "certificate-authority",
    ),
    "an authority that is not used": (
        config({"server": "https://a", "certificate-authority-data": PEM, "insecure-skip-tls-verify": True}),
        "insecure-skip-tls-verify",
    ),
    "a proxy that is none": (config({"server": "https://a", "proxy-url": "gopher://a"}), "proxy-url"),
    "a certificate without a key": (config(user={"client-certificate-data": PEM}), "client-key"),
    "a certificate twice": (
        config(user={"client-certificate-data": PEM, "client-certificate": "here", "client-key-data": PEM}),
        "client-certificate",
    ),
    "a certificate that is missing": (
        config(user={"client-certificate": "no.crt", "client-key-data": PEM}), "no.crt",
    ),
    "a token file that is missing": (config(user={"tokenFile": "no-token"}), "no-token"),
    "groups of nobody": (config(user={"token": "t", "as-groups": ["g"]}), "as: is missing"),
    "a plugin without a command": (config(user={"exec": {**EXEC, "command": ""}}), "command"),
    "a plugin without a version": (config(user={"exec": {**EXEC, "apiVersion": ""}}), "apiVersion"),
    "a plugin of v1alpha1": (
        config(user={"exec": {**EXEC, "apiVersion": "client.authentication.k8s.io/v1alpha1"}}), "v1alpha1",
    ),
    "a plugin of an unknown mode": (config(user={"exec": {**EXEC, "interactiveMode": "Often"}}), "interactiveMode"),
    "a plugin of v1 without a mode": (config(user={"exec": {**EXEC, "interactiveMode": ""}}), "interactiveMode"),
    "a variable without a name": (config(user={"exec": {**EXEC, "env": [{"value": "v"}]}}), "env"),
}  # fmt: skip


IGNORED = {
    "a cluster that is not there": (config(context={"cluster": "d", "user": "u"}), "no cluster 'd'"),
    "a context without a cluster": (config(context={"user": "u"}), "names no cluster"),
    "a namespace that is none": (config(context={"cluster": "c", "user": "u", "namespace": "A_b"}), "namespace"),
    "a cluster without a server": (config({"tls-server-name": "a"}), "server"),
}  # fmt: skip
"""With these kubectl asks a server of this machine, or goes on as if they were not there."""
ALL = {**REFUSED, **IGNORED}


@pytest.mark.parametrize("name", ALL)
def test_what_is_wrong_is_refused_by_file_and_field(name: str, tmp_path: Path) -> None:
    found, says = ALL[name]
    (tmp_path / "here").write_text("x")
    path = write(tmp_path / "config", found)
    with pytest.raises(SpecError, match=says) as caught:
        read(path, context="" if "current-context" in str(found) else "x")
    assert str(path) in str(caught.value)
    assert caught.value.remedy


@pytest.mark.thorough
@pytest.mark.skipif(KUBECTL is None, reason="needs kubectl")
@pytest.mark.parametrize("name", REFUSED)
def test_kubectl_refuses_it_too(name: str, tmp_path: Path) -> None:
    """Holds the list above to kubectl itself: none of it is refused here alone."""
    (tmp_path / "here").write_text("x")
    assert _by_kubectl(write(tmp_path / "config", REFUSED[name][0])), name


TAKEN: dict[str, Any] = {
    "as it is written by tools": config(),
    "without apiVersion and kind": {
        key: each for key, each in config().items() if key not in ("apiVersion", "kind")
    },
    "with fields that nobody knows": config(user={"token": "t", "colour": "red"}, colour="red"),
    "with nulls": config(user={"token": "t", "as": None}, preferences=None),
    "with a token that looks like a date": "{users: [{name: u, user: {token: 2026-01-01}}], "
    + "clusters: [{name: c, cluster: {server: 'https://localhost:1'}}], current-context: x, "
    + "contexts: [{name: x, context: {cluster: c, user: u}}]}",
    "with a server without a scheme": config({"server": "localhost:1"}),
    "with a path behind the server": config({"server": "https://localhost:1/k8s/clusters/a"}),
    "with a proxy": config({"server": "https://localhost:1", "proxy-url": "http://localhost:1"}),
    "as somebody else": config(user={"token": "t", "as": "a", "as-uid": "1", "as-groups": ["g"]}),
    "with extensions": config({"server": "https://localhost:1", "extensions": [{"name": "e", "extension": {"a": 1}}]}),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_what_kubectl_takes_is_taken(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "config", TAKEN[name])
    assert "localhost:1" in read(path).cluster.server
    if KUBECTL is not None:
        assert not _by_kubectl(path)


def _by_kubectl(path: Path) -> str:
    """Why kubectl does not use it; empty where it asks the server, which is not there."""
    assert KUBECTL is not None
    environment = {"PATH": os.environ["PATH"], "HOME": str(path.parent), "KUBECONFIG": str(path)}
    words = ["get", "--raw", "/version", "--request-timeout", "2s", "--context", "x"]
    words = words[:-2] if "current-context" in path.read_text() else words
    done = subprocess.run(
        [KUBECTL, *words], env=environment, cwd=path.parent, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode != 0
    reached = ("connection to the server", "proxyconnect", "connection refused", "Unable to connect", "dial tcp")
    return "" if any(words in done.stderr for words in reached) else done.stderr


# -- several files ----------------------------------------------------------------------------------------------------


def test_the_first_file_that_has_a_name_has_all_of_it(tmp_path: Path) -> None:
    one = write(tmp_path / "one", config({"server": "https://one"}, {"token": "one"}, **{"current-context": ""}))
    two = config({"server": "https://two", "tls-server-name": "deep"}, {"token": "two", "as": "deep"})
    two["users"].append({"name": "v", "user": {"token": "second"}})
    two["contexts"].append({"name": "y", "context": {"cluster": "c", "user": "v"}})
    environment = {"KUBECONFIG": f"{one}:{tmp_path / 'missing'}::{write(tmp_path / 'two', two)}"}
    first = reach_of(environment)
    assert (first.name, first.cluster.server, first.cluster.tls_server_name) == ("x", "https://one", "")
    assert (first.user.token, first.user.as_user) == ("one", "")
    assert reach_of(environment, context="y").user.token == "second"


def test_paths_are_relative_to_their_own_file(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    for name in ("ca.crt", "token"):
        (folder / name).write_text("x")
    user = {"tokenFile": "token", "exec": EXEC}
    path = write(folder / "config", config({"server": "https://a", "certificate-authority": "../deep/ca.crt"}, user))
    reach = read(path)
    assert reach.cluster.certificate_authority == str(folder / "ca.crt")
    assert reach.user.token_file == str(folder / "token")
    assert reach.user.plugin is not None
    assert reach.user.plugin.command == str(folder / "plugin")


def test_a_plugin_that_is_only_named_is_looked_for_on_the_path(tmp_path: Path) -> None:
    reach = read(write(tmp_path / "config", config(user={"exec": {**EXEC, "command": "aws"}})))
    assert reach.user.plugin is not None
    assert reach.user.plugin.command == "aws"


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is none at .*one, .*two"):
        reach_of({"KUBECONFIG": f"{tmp_path / 'one'}:{tmp_path / 'two'}"})
    with pytest.raises(SpecError, match="No such file"):
        read(tmp_path / "one")


# -- what is refused here alone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (config(user={"username": "u", "password": "p"}), "passwords are taken by no API server"),
        (config(user={"auth-provider": {"name": "oidc"}}), "auth-provider"),
        (config(user={"exec": {**EXEC, "interactiveMode": "Always"}}), "nobody to ask"),
        (config({"server": "http://far.example"}), "plain HTTP"),
        (config({"server": "https://a", "insecure-skip-tls-verify": True}), "insecure-skip-tls-verify"),
        (config(**{"current-context": ""}), "names no current context"),
    ],
)
def test_what_is_unsafe_or_gone_is_refused(found: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=says):
        read(write(tmp_path / "config", found))


def test_a_server_goes_unchecked_only_where_that_was_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "config", config({"server": "https://a", "insecure-skip-tls-verify": True}))
    assert read(path, insecure=True).cluster.insecure_skip_tls_verify


def test_no_error_repeats_a_secret(tmp_path: Path) -> None:
    for text in ("users: [{name: u, user: {token: s3cret, token: [", "users: [{name: u, user: {token: [s3cret]}}]"):
        with pytest.raises(SpecError) as caught:
            read(write(tmp_path / "config", text))
        assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(read(write(tmp_path / "config", config(user={"token": "s3cret"}))))


# -- in a pod ---------------------------------------------------------------------------------------------------------


def test_in_a_pod_the_service_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("x")
    monkeypatch.setattr("engine.external.kubernetes_api.kubeconfig.SERVICE_ACCOUNT", tmp_path)
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "KUBECONFIG": "/none"}
    for reach in (reach_of(environment), reach_of(environment, in_cluster=True)):
        assert reach.cluster.server == "https://[fd00::1]:443"
        assert reach.user.token_file == str(tmp_path / "token")
    with pytest.raises(SpecError, match="no pod"):
        reach_of({}, in_cluster=True)


# -- the way ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "excepted", "goes_by"),
    [
        ("https://api.example:6443", "", "http://proxy:3128"),
        ("https://127.0.0.1:6443", "", ""),
        ("https://localhost:6443", "", ""),
        ("https://api.example:6443", "*", ""),
        ("https://api.example:6443", "other.example, .example", ""),
        ("https://api.example:6443", "example", ""),
        ("https://notexample:6443", "example", "http://proxy:3128"),
        ("https://10.1.2.3:6443", "10.0.0.0/8", ""),
        ("https://11.1.2.3:6443", "10.0.0.0/8", "http://proxy:3128"),
        ("https://api.example:6443", "api.example:6443", ""),
        ("https://api.example:6443", "api.example:443", "http://proxy:3128"),
    ],
)
def test_proxies_of_the_environment_are_used_as_go_uses_them(server: str, excepted: str, goes_by: str) -> None:
    from engine.external.kubernetes_api.kubeconfig import KubernetesCluster, KubernetesUser

    reach = Reach(name="x", cluster=KubernetesCluster(server=server), user=KubernetesUser())
    assert proxy_of(reach, {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": excepted}) == goes_by
    mine = Reach(name="x", cluster=KubernetesCluster(server=server, proxy_url="http://own:1"), user=KubernetesUser())
    assert proxy_of(mine, {"HTTPS_PROXY": "proxy:3128"}) == "http://own:1"


def test_nobody_listens_where_kubectl_is_sent() -> None:
    """Port 1 of this machine, of the configurations above."""
    with socket.socket() as line, pytest.raises(OSError, match="refused"):
        line.connect(("127.0.0.1", 1))
