"""An engine that mirrors a Kubernetes cluster: its clients' questions on it, and a cluster that is away."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from console.service.advisor import Advisor
from console.service.kubernetes_cell import KubernetesAt, KubernetesCell
from console.service.local_client import LocalClient
from console.service.mirrored_cluster import check_cell, of_cell
from console.service.slurm_cell import SlurmAt
from console.views.external_scheduler import job_section, mirror_lines
from console.views.sections import section_lines
from engine.control import Engine
from engine.external.mirror_report import FollowedKind, MirrorReport, ModelAgreement, ModelDisagreement
from engine.loop import EngineLoop
from engine.model.errors import NotFoundError, RefusedError
from engine.model.what_if_edits import parse
from tests.support.gates import gate_of
from tests.support.kubernetes_cluster import own
from tests.support.mirrored_kubernetes import CELL, make_flavor, make_job, make_queue
from tests.support.patience import until

NOBODY = {
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9", "insecure-skip-tls-verify": True}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "gone", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "gone",
}


@contextmanager
def client_on(at: KubernetesAt) -> Iterator[LocalClient]:
    engine = Engine.open(None, cell=CELL)
    loop = EngineLoop(engine, real_time=True)
    cell = KubernetesCell(loop, at)
    loop.start()
    cell.start()
    try:
        yield LocalClient(loop, gate_of(engine), Advisor(loop), cluster=cell)
    finally:
        cell.stop()
        loop.stop()
        engine.close()


def test_a_cluster_that_is_away_is_lost_and_the_engine_answers(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(json.dumps(NOBODY))
    with client_on(KubernetesAt(kubeconfig=str(file), insecure=True)) as client:
        until(lambda: client.mirror().state == "lost")
        assert client.mirror().error
        assert "Kubernetes does not answer" in client.health().mirror_error
        assert sum(client.overview().states.values()) == 0
        with pytest.raises(NotFoundError, match="no Workload"):
            client.mirrored("a/b_c")


def test_a_cell_stays_the_schedulers_that_it_was_made_for(tmp_path: Path) -> None:
    engine = Engine.open(None, cell=CELL)
    check_cell(engine, KubernetesAt())
    with pytest.raises(RefusedError, match="scheduled by Kubernetes"):
        check_cell(engine, SlurmAt("http://127.0.0.1:9"))
    at = KubernetesAt(context="gpu", kubeconfig="/home/me/.kube/config", kueue=False)
    assert of_cell(engine, at, tmp_path) == at
    assert of_cell(engine, None, tmp_path) == at, "consoles start it without knowing the cluster"


def test_set_quota_is_an_edit_as_the_action_is_called() -> None:
    assert parse("set-quota research gpu=32") == parse("quota research gpu=32")


def test_the_page_tells_what_is_old_and_where_the_model_disagrees() -> None:
    said = ModelDisagreement(workload="a/train_1", text="our model would start it now", at_s=100.0)
    report = MirrorReport(
        where="https://api", state="following", scheduler="Kubernetes", release="v1.36.2", dialect="v1beta2",
        looked_s=100.0, every_s=90.0,
        kinds=(
            FollowedKind(resource="pods", state="following", objects=11_204, age_s=3.0),
            FollowedKind(resource="cohorts", state="denied", objects=0, age_s=-1.0, trouble="may not list"),
        ),
        agreement=ModelAgreement(compared=200, kept=1, started=1, last=(said,)),
    )  # fmt: skip
    text = "\n".join(mirror_lines(report, 110.0))
    assert "11,204" in text
    assert "denied" in text
    assert "2, 1.0%" in text
    assert "a/train_1" in text
    assert "Slurm" not in text


@pytest.mark.thorough
def test_three_voices_a_forecast_and_a_larger_quota_on_a_real_cluster() -> None:
    with own("--nodes", "2") as cluster, cluster.admin() as admin:
        space = admin.namespace(f"t-{uuid.uuid4().hex[:8]}")
        queue = make_queue(admin, "research", space, make_flavor(admin, "default"), {"cpu": "8"})
        with client_on(KubernetesAt(kubeconfig=str(cluster.kubeconfig))) as client:
            runs = make_job(admin, space, "runs", queue, {"cpu": "6"})
            until(lambda: client.mirror().state == "following" and _state(client, runs) == "running")
            waits = make_job(admin, space, "waits", queue, {"cpu": "3"})
            until(lambda: _state(client, waits) == "queued" and "insufficient" in _said(client, waits))
            assert "Kueue says" in _said(client, waits)
            reasons = client.workload(waits).reasons
            assert [reason.token for reason in reasons] == ["Pending", "WaitingForQuota"]
            assert client.unblocking(waits).found
            lost = make_job(admin, space, "lost", queue, {"cpu": "1"}, selector={"disk": "none-such"})
            until(lambda: "kube-scheduler says" in _said(client, lost))
            assert "Unschedulable" in _said(client, lost)
            report = client.mirror()
            assert report.agreement is not None
            assert report.agreement.started == 0
            assert not client.health().mirror_error


def _state(client: LocalClient, name: str) -> str:
    try:
        return client.workload(name).state
    except NotFoundError:
        return ""


def _said(client: LocalClient, name: str) -> str:
    """What `why` shows of the other schedulers, as one line."""
    try:
        lines = section_lines([job_section(client.mirrored(name), 100)])
    except NotFoundError:
        return ""
    return " ".join(" ".join(lines).split())
