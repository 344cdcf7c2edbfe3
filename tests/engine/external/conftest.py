"""The Kubernetes cluster that tests of these rooms share. Those of Slurm have their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.support.kubernetes_cluster import Admin, KubernetesCluster, shared


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesCluster]:
    with shared() as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: KubernetesCluster) -> Iterator[Admin]:
    with cluster.admin() as admin:
        yield admin


@pytest.fixture
def space(admin: Admin) -> str:
    """A namespace of the test's own."""
    return admin.namespace(f"t-{uuid.uuid4().hex[:8]}")
