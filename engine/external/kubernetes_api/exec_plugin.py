"""Programs that give credentials: exec plugins of client.authentication.k8s.io, v1 and v1beta1.

A plugin is told by KUBERNETES_EXEC_INFO what it is run for, and answers an ExecCredential on its standard output. It is
given no terminal, and LONGEST_S in all: what it started is then ended with it. What it says on its standard error is
shown in the error when it fails. Its answer is never logged.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from engine.external.kubernetes_api.errors import MAX_SAID, KubernetesDenied
from engine.external.kubernetes_api.kubeconfig import ExecPlugin, KubernetesCluster

LONGEST_S = 10.0
LARGEST_ANSWER = 1 << 20
_FOR_PLUGINS = "client.authentication.k8s.io/exec"
"""The extension of a cluster that plugins are given."""


class PluginStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What a plugin gave: a token, a client certificate with its key (PEM), or both."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None

    def __repr__(self) -> str:
        return "PluginStatus()"


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    kind: str = ""
    api_version: str = ""
    status: PluginStatus | None = None


class PluginCredentials:
    """What a plugin gave, kept until it expires. Safe in several threads: while it runs the others wait for it."""

    def __init__(
        self,
        plugin: ExecPlugin,
        cluster: KubernetesCluster,
        *,
        authority: bytes = b"",
        environment: Mapping[str, str] = os.environ,
        now_s: Callable[[], float] = time.time,
        longest_s: float = LONGEST_S,
    ) -> None:
        """`authority`: certificates (PEM) that the cluster's comes from."""
        self._plugin = plugin
        self._told = _told(plugin, cluster, authority)
        self._environment = environment
        self._now_s = now_s
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._kept: PluginStatus | None = None

    def current(self) -> PluginStatus:
        """Those that hold now. Raises KubernetesDenied, with what the plugin said, where it gives none."""
        with self._lock:
            if self._kept is None or self._expired(self._kept):
                self._kept = self._asked()
            return self._kept

    def refused(self, given: PluginStatus) -> None:
        """Forget what the server did not take, unless another thread has got new ones since."""
        with self._lock:
            if self._kept is given:
                self._kept = None

    def _expired(self, kept: PluginStatus) -> bool:
        return kept.expiration_timestamp is not None and kept.expiration_timestamp.timestamp() <= self._now_s()

    def _asked(self) -> PluginStatus:
        command = shutil.which(self._plugin.command, path=self._environment.get("PATH", os.defpath))
        if command is None:
            hint = self._plugin.install_hint.strip()[:MAX_SAID] or "Install it, or name it with its path"
            raise _denied(f"the program {self._plugin.command!r} for credentials is not here", hint)
        code, output, said = self._run(command)
        told = f": it said: {said}" if said else " and said nothing"
        if code is None:
            problem = f"{command} gave no credentials in {self._longest_s:.0f} s{told}"
            raise _denied(problem, "Run it by hand: what does it wait for?")
        if code:
            raise _denied(f"{command} ended with {code}{told}", "Log in with it, or run it by hand")
        return self._read(command, output)

    def _run(self, command: str) -> tuple[int | None, bytes, str]:
        """Exit code (None: stopped, as it took too long), output, and the end of what it said."""
        added = {variable.name: variable.value for variable in self._plugin.env}
        try:
            process = subprocess.Popen(
                [command, *self._plugin.args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self._environment, **added, "KUBERNETES_EXEC_INFO": self._told},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _denied(f"{command} cannot be run: {error}", "Is it a program that you may run?") from None
        code: int | None = None
        try:
            output, said = process.communicate(timeout=self._longest_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            output, said = process.communicate()
        return code, output, said.decode("utf-8", "replace").strip()[-MAX_SAID:]

    def _read(self, command: str, output: bytes) -> PluginStatus:
        remedy = "Is it an exec plugin for Kubernetes, and of a version that fits its apiVersion?"
        try:
            answer = msgspec.json.decode(output[:LARGEST_ANSWER], type=_Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise _denied(f"{command} answered nothing that is an ExecCredential", remedy) from None
        if answer.kind != "ExecCredential" or answer.api_version != self._plugin.api_version:
            got = f"{answer.kind[:40]} of {answer.api_version[:60]}"
            raise _denied(f"{command} answered {got}, not ExecCredential of {self._plugin.api_version}", remedy)
        status = answer.status
        if status is None or bool(status.client_certificate_data) != bool(status.client_key_data):
            raise _denied(f"{command} answered without a status, or with half of a certificate", remedy)
        if not status.token and not status.client_certificate_data:
            raise _denied(f"{command} answered with neither token nor certificate", remedy)
        return status


def _denied(problem: str, remedy: str) -> KubernetesDenied:
    return KubernetesDenied(0, "", problem, remedy)


def _told(plugin: ExecPlugin, cluster: KubernetesCluster, authority: bytes) -> str:
    """KUBERNETES_EXEC_INFO."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        about = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "certificate-authority-data": authority,
            "proxy-url": cluster.proxy_url,
            "disable-compression": cluster.disable_compression,
            "config": next((each.extension for each in cluster.extensions if each.name == _FOR_PLUGINS), None),
        }
        spec["cluster"] = {name: value for name, value in about.items() if value}
    info = {"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec}
    return msgspec.json.encode(info).decode()
