"""Real Kubernetes clusters with Kueue on loopback for tests, of `../shared/kubernetes/kube-up`: one that all processes
of a test run share, and others of a test's own to be broken.

    with shared() as cluster: ...             # 4 nodes, Kueue; nobody kills its parts, names are your own
    with own("--no-kueue") as cluster: ...    # a test's own: kill what you like
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from engine.external.kubernetes_api.credentials import authority_of
from engine.external.kubernetes_api.kubeconfig import Reach, reach_of
from engine.external.kubernetes_api.transport import KubernetesTransport
from tests.support.cutting_proxy import CuttingProxy
from tests.support.patience import PATIENCE_S
from tests.support.process_shared import shared_by_processes
from tests.support.slurm_cluster import soon

SCRIPTS = Path(__file__).resolve().parents[2].parent / "shared" / "kubernetes"


def why_not() -> str:
    """Why there can be no such cluster here; empty: there can."""
    if not (SCRIPTS / "kube-up").exists():
        return "needs the folder `shared/kubernetes` next to the checkout"
    if os.getuid() != 0:
        return "Kueue reads its certificate from a folder that root alone can write"
    return ""


class KubernetesCluster:
    """A cluster that is up, in `folder`."""

    def __init__(self, folder: Path, options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.options = options
        self.children: list[subprocess.Popen[bytes]] = []
        self.commands: dict[str, list[str]] = {}
        """Part -> its command line, of those that were looked at."""
        self._environments: dict[str, dict[str, str]] = {}

    @property
    def kubeconfig(self) -> Path:
        """Of who may do everything."""
        return self.folder / "kubeconfig"

    @property
    def limited(self) -> Path:
        """Of user `muster`, who may do what a role says that is bound to it."""
        return self.folder / "kubeconfig-muster"

    @property
    def port(self) -> int:
        return int(self.reach().cluster.server.rpartition(":")[2])

    def reach(self, file: Path | None = None, proxy: CuttingProxy | None = None) -> Reach:
        found = reach_of({}, file=str(file or self.kubeconfig))
        if proxy is None:
            return found
        behind = msgspec.structs.replace(found.cluster, server=f"https://127.0.0.1:{proxy.port}")
        return msgspec.structs.replace(found, cluster=behind)

    def line(self, file: Path | None = None, proxy: CuttingProxy | None = None, **how: Any) -> KubernetesTransport:
        """With no limit of rate, unless one is given."""
        return KubernetesTransport(self.reach(file, proxy), **{"rate": 1e6, "burst": 1_000_000, **how})

    @contextlib.contextmanager
    def admin(self) -> Iterator[Admin]:
        with Admin(self.reach()) as admin:
            yield admin

    def up(self) -> None:
        """Starts it, unless it is there. Some 10 s."""
        if self.kubeconfig.exists():
            return
        done = subprocess.run(
            [SCRIPTS / "kube-up", *self.options, "--wait", f"{PATIENCE_S:.0f}", self.folder],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            self.down()
            pytest.fail(f"kube-up: {done.stderr[-2000:]}", pytrace=False)

    def down(self) -> None:
        subprocess.run([SCRIPTS / "kube-down", "--wipe", self.folder], capture_output=True, timeout=PATIENCE_S)

    def pid(self, part: str) -> int:
        """Of `etcd`, `kube-apiserver`, `kube-scheduler`, `kueue`, ..."""
        return int((self.folder / "pids" / part).read_text())

    def kill(self, part: str) -> None:
        """With -9. Returns when it is gone."""
        self.note(part)
        pid = self.pid(part)
        os.kill(pid, signal.SIGKILL)
        soon(lambda: not Path(f"/proc/{pid}").exists() or b") Z " in Path(f"/proc/{pid}/stat").read_bytes())

    def note(self, part: str) -> None:
        """Keep how it was started, so that it can be started again."""
        said = Path(f"/proc/{self.pid(part)}/environ").read_bytes().split(b"\0")
        self._environments[part] = dict(each.decode().split("=", 1) for each in said if b"=" in each)
        command = Path(f"/proc/{self.pid(part)}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        self.commands[part] = [word.decode() for word in command]

    def start(self, part: str) -> None:
        """What was killed, with its data. Returns when the API server is ready. One that gives up while it starts is
        started again, as a kubelet does: an API server ends itself when it finds etcd busy."""
        self._start(part)

        def ready() -> bool:
            if self.children[-1].poll() is not None:
                self._start(part)
            return self._is_ready()

        try:
            soon(ready)
        except AssertionError:
            said = (self.folder / "log" / f"{part}.log").read_text(errors="replace")[-3000:]
            pytest.fail(f"{part} does not get ready: {said}", pytrace=False)

    def _start(self, part: str) -> None:
        with (self.folder / "log" / f"{part}.log").open("ab") as log:
            process = subprocess.Popen(
                self.commands[part], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env=self._environments[part],
            )  # fmt: skip
        (self.folder / "pids" / part).write_text(str(process.pid))
        self.children.append(process)

    def _is_ready(self) -> bool:
        with self.admin() as admin, contextlib.suppress(httpx.HTTPError):
            return admin.raw("GET", "/readyz").status_code == 200
        return False

    def etcd_url(self) -> str:
        words = Path(f"/proc/{self.pid('etcd')}/cmdline").read_bytes().split(b"\0")
        return words[words.index(b"--listen-client-urls") + 1].decode()

    def compact(self) -> None:
        """Have etcd forget all versions but the last."""
        with httpx.Client(base_url=self.etcd_url(), trust_env=False, timeout=PATIENCE_S) as etcd:
            head = etcd.post("/v3/kv/range", json={"key": "YQ=="}).json()["header"]["revision"]
            assert etcd.post("/v3/kv/compaction", json={"revision": head, "physical": True}).status_code == 200


class Admin:
    """Who may do everything, by plain HTTP."""

    def __init__(self, reach: Reach) -> None:
        context = ssl.create_default_context(cadata=authority_of(reach).decode())
        headers = {"Authorization": f"Bearer {reach.user.token}"}
        self._client = httpx.Client(
            base_url=reach.cluster.server, headers=headers, verify=context, trust_env=False, timeout=PATIENCE_S
        )

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def raw(self, method: str, path: str, **how: Any) -> httpx.Response:
        return self._client.request(method, path, **how)

    def do(self, method: str, path: str, body: object = None, kind: str = "application/json") -> dict[str, Any]:
        """What the server answers; it must agree."""
        content = json.dumps(body) if body is not None else None
        answer = self.raw(method, path, content=content, headers={"Content-Type": kind})
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        found: dict[str, Any] = answer.json()
        return found

    def patch(self, path: str, body: object) -> dict[str, Any]:
        return self.do("PATCH", path, body, "application/merge-patch+json")

    def namespace(self, name: str) -> str:
        self.do("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name


@contextlib.contextmanager
def shared() -> Iterator[KubernetesCluster]:
    """The cluster with Kueue that all processes of the run share. Use names of your own, and kill nothing."""
    if reason := why_not():
        pytest.skip(reason)
    cluster = KubernetesCluster(Path(tempfile.gettempdir()) / "muster-kubernetes")
    with shared_by_processes(cluster.folder, cluster.up, cluster.down):
        yield cluster


@contextlib.contextmanager
def own(*options: str) -> Iterator[KubernetesCluster]:
    """A cluster of a test's own. `options` are those of kube-up."""
    if reason := why_not():
        pytest.skip(reason)
    cluster = KubernetesCluster(Path(tempfile.mkdtemp(prefix="muster-kubernetes-")), options)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
        for process in cluster.children:
            process.wait(PATIENCE_S)
        shutil.rmtree(cluster.folder, ignore_errors=True)
