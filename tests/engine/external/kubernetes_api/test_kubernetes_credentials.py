"""Who asks is proved as kubectl proves it: tokens, files that are renewed, plugins, and in whose name."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from scripted_kubernetes import Answer, Query, ScriptedKubernetes, page, status

from engine.external.kubernetes_api.credentials import Credentials
from engine.external.kubernetes_api.errors import KubernetesDenied
from engine.external.kubernetes_api.exec_plugin import PluginCredentials
from engine.external.kubernetes_api.kubeconfig import (
    ExecPlugin,
    ExecVariable,
    Extension,
    KubernetesCluster,
    KubernetesUser,
    Reach,
)
from engine.model.errors import SpecError
from tests.support.patience import until

V1 = "client.authentication.k8s.io/v1"


def credentials(user: KubernetesUser) -> Credentials:
    return Credentials(Reach(name="x", cluster=KubernetesCluster(server="https://a"), user=user))


def plugin(tmp_path: Path, script: str, *, api: str = V1, **more: Any) -> ExecPlugin:
    path = tmp_path / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return ExecPlugin(api_version=api, command=str(path), **more)


def answers(status: dict[str, str], api: str = V1) -> str:
    said = json.dumps({"apiVersion": api, "kind": "ExecCredential", "status": status})
    return f"echo x >> $0.runs; cat <<'END'\n{said}\nEND"


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "plugin.runs").read_text().split())


def asked(made: ExecPlugin, **how: Any) -> PluginCredentials:
    return PluginCredentials(made, KubernetesCluster(server="https://a"), **how)


def test_a_token_file_is_read_anew_and_its_last_token_kept_while_it_is_away(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    found = credentials(KubernetesUser(token="unused", token_file=str(path)))
    assert found.proof().headers == (("Authorization", "Bearer first"),)
    path.write_text("second\n")
    assert found.proof().headers == (("Authorization", "Bearer second"),)
    path.unlink()
    assert found.proof().headers == (("Authorization", "Bearer second"),)


@pytest.mark.parametrize("content", ["", "two words", "\x00"])
def test_a_token_file_without_a_token_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(SpecError, match=str(path)):
        credentials(KubernetesUser(token_file=str(path))).proof()


def test_in_whose_name_is_told_in_headers() -> None:
    user = KubernetesUser(
        token="t", as_user="ann", as_uid="7", as_groups=("a", "b"), as_user_extra={"Acme/Why": ("x",)}
    )
    assert credentials(user).proof().headers[1:] == (
        ("Impersonate-User", "ann"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-acme%2Fwhy", "x"),
    )


def test_nothing_printed_of_credentials_holds_a_secret() -> None:
    found = credentials(KubernetesUser(token="s3cret"))
    assert "s3cret" not in repr(found.proof())


# -- plugins ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", [V1, "client.authentication.k8s.io/v1beta1"])
def test_a_plugin_is_asked_once_until_its_answer_expires(api: str, tmp_path: Path) -> None:
    now = [1000.0]
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(2000))
    found = asked(
        plugin(tmp_path, answers({"token": "t", "expirationTimestamp": expires}, api), api=api), now_s=lambda: now[0]
    )
    assert [found.current().token for _ in range(3)] == ["t"] * 3
    assert runs(tmp_path) == 1
    now[0] = 2000.0
    found.current()
    assert runs(tmp_path) == 2


def test_a_plugin_is_told_which_cluster_it_is_for(tmp_path: Path) -> None:
    """Also what the kubeconfig has for it alone, and its own variables; nothing of it is asked at a terminal."""
    made = plugin(
        tmp_path,
        'printf %s "$KUBERNETES_EXEC_INFO" > $0.info; echo "$COLOUR $1" > $0.words; cat >> $0.words\n'
        + answers({"token": "t"}),
        args=("get-token",),
        env=(ExecVariable("COLOUR", "red"),),
        provide_cluster_info=True,
    )
    extension = Extension("client.authentication.k8s.io/exec", {"audience": "me"})
    cluster = KubernetesCluster(server="https://a:1", tls_server_name="b", extensions=(extension,))
    PluginCredentials(made, cluster, authority=b"PEM").current()
    assert json.loads((tmp_path / "plugin.info").read_text()) == {
        "kind": "ExecCredential",
        "apiVersion": V1,
        "spec": {
            "interactive": False,
            "cluster": {
                "server": "https://a:1",
                "tls-server-name": "b",
                "certificate-authority-data": "UEVN",
                "config": {"audience": "me"},
            },
        },
    }
    assert (tmp_path / "plugin.words").read_text() == "red get-token\n"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'log in first' >&2; exit 3", "ended with 3: it said: log in first"),
        ("exit 1", "said nothing"),
        ("echo hello", "nothing that is an ExecCredential"),
        (answers({"token": "t"}, "client.authentication.k8s.io/v1beta1"), "v1beta1, not ExecCredential of"),
        (answers({}), "neither token nor certificate"),
        (answers({"clientCertificateData": "PEM"}), "half of a certificate"),
    ],
)
def test_a_plugin_that_gives_nothing_is_an_error_with_what_it_said(script: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(KubernetesDenied, match=says):
        asked(plugin(tmp_path, script)).current()


def test_a_plugin_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """The one in the background holds the output open."""
    made = plugin(tmp_path, "echo opening a browser >&2; sleep 600 & echo $! > $0.child; wait")
    with pytest.raises(KubernetesDenied, match="gave no credentials in 3 s: it said: opening a browser"):
        asked(made, longest_s=3.0).current()
    child = Path(f"/proc/{(tmp_path / 'plugin.child').read_text().strip()}/stat")
    until(lambda: not child.exists() or ") Z " in child.read_text())


def test_a_plugin_that_is_not_installed_says_how_to_get_it() -> None:
    made = ExecPlugin(api_version=V1, command="no-such-plugin-here", install_hint="apt install it")
    with pytest.raises(KubernetesDenied, match="no-such-plugin-here") as caught:
        asked(made).current()
    assert caught.value.remedy == "apt install it"


def test_401_has_the_plugin_asked_once_more(tmp_path: Path) -> None:
    script = "n=$(cat $0.n 2>/dev/null || echo 0); echo $((n + 1)) > $0.n\n" + (
        'printf \'{"apiVersion":"' + V1 + '","kind":"ExecCredential","status":{"token":"t%s"}}\' $n'
    )
    user = KubernetesUser(plugin=plugin(tmp_path, script))

    def answer(path: str, query: Query) -> Answer:
        good = server.headers[-1]["Authorization"] == "Bearer t1"
        return page(5) if good else status(401, "Unauthorized")

    with ScriptedKubernetes(answer) as server, server.line(user) as line:
        line.get("listing pods", "/api/v1/pods")
        line.get("listing pods", "/api/v1/pods")
        assert [each["Authorization"] for each in server.headers] == ["Bearer t0", "Bearer t1", "Bearer t1"]


def test_401_without_another_proof_is_an_error_at_once() -> None:
    with (
        ScriptedKubernetes(lambda path, query: status(401, "Unauthorized")) as server,
        server.line(KubernetesUser(token="old")) as line,
    ):
        with pytest.raises(KubernetesDenied, match="Unauthorized"):
            line.get("listing pods", "/api/v1/pods")
        assert len(server.asked) == 1


def test_a_token_comes_before_a_plugin(tmp_path: Path) -> None:
    made = plugin(tmp_path, answers({"token": "of the plugin"}))
    found = credentials(KubernetesUser(token="own", plugin=made)).proof()
    assert found.headers == (("Authorization", "Bearer own"),)
    assert not os.path.exists(tmp_path / "plugin.runs")
