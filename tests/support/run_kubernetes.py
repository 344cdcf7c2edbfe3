"""A Kubernetes cluster with Kueue on loopback, with queues and jobs, and the console on a cell that mirrors it and may
act on it: what `make run-kubernetes` starts. When the console is closed, all of it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.kubernetes_cluster import Admin, KubernetesCluster, why_not
from tests.support.mirrored_kubernetes import make_flavor, make_job, make_queue
from tests.support.patience import until

MUSTER = str(Path(sys.executable).parent / "muster")
CELL = "kubernetes"


def fill(admin: Admin) -> None:
    """Two queues that lend to each other. Some of their jobs run, two wait for quota, and one finds no node."""
    space = admin.namespace("team-a")
    flavor = make_flavor(admin, "default")
    for queue, gpus in (("research", "32"), ("prod", "16")):
        quota = {"cpu": "400", "nvidia.com/gpu": gpus}
        rules = {"cohortName": "all", "preemption": {"reclaimWithinCohort": "Any"}}
        make_queue(admin, queue, space, flavor, quota, manager="muster", **rules)
    for number in range(4):
        make_job(admin, space, f"train-{number}", "research", {"cpu": "8", "nvidia.com/gpu": "8"}, pods=2, seconds=600)
    make_job(admin, space, "serve", "prod", {"cpu": "4", "nvidia.com/gpu": "4"})
    make_job(admin, space, "short", "prod", {"cpu": "2"}, completions=20, seconds=15)
    make_job(admin, space, "lost", "prod", {"cpu": "2"}, selector={"disk": "none-such"})


def main() -> int:
    if reason := why_not():
        print(f"make run-kubernetes is skipped: it {reason}")
        return 0
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="muster-kubernetes-") as folder:
        cluster = KubernetesCluster(Path(folder) / "cluster", ("--nodes", "8"))
        environment = os.environ | {"XDG_STATE_HOME": folder, "XDG_RUNTIME_DIR": folder}
        print("Starting etcd, Kubernetes and Kueue on loopback, and giving them work ...")
        try:
            cluster.up()
            with cluster.admin() as admin:
                fill(admin)
            return _console(cluster, environment)
        finally:
            cluster.down()


def _console(cluster: KubernetesCluster, environment: dict[str, str]) -> int:
    log = cluster.folder / "log" / "muster.log"
    words = [MUSTER, "serve", "--cell", CELL, "--kubernetes", "--kubernetes-act"]
    words += ["--kubeconfig", str(cluster.kubeconfig)]
    with log.open("wb") as out:
        engine = subprocess.Popen(words, env=environment, stdout=out, stderr=out)
    try:
        until(lambda: engine.poll() is not None or b"ready on" in log.read_bytes())
        if engine.poll() is not None:
            print(log.read_text(errors="replace"), file=sys.stderr)
            return 1
        print(f"kubeconfig: {cluster.kubeconfig}; muster serve --kubernetes --kubernetes-act runs; the console follows")
        return subprocess.run([MUSTER, "--cell", CELL, *sys.argv[1:]], env=environment).returncode
    finally:
        engine.terminate()
        engine.wait()


if __name__ == "__main__":
    sys.exit(main())
