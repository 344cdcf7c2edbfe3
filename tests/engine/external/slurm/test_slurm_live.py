"""Both releases of Slurm, real ones on loopback: what is told is done, what is read is so, and what breaks is named."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cutting_proxy import CuttingProxy
from played_slurm import PlayedSlurm
from slurm_cluster import RELEASES, SlurmCluster, own, shared, soon

from engine.external.slurm.capabilities import SlurmDenied, SlurmGone, SlurmLacks, SlurmRefused, SlurmUnavailable
from engine.external.slurm.connection import SlurmConnection
from engine.external.slurm.mapping import standing
from engine.external.slurm.records import Job, JobRequest, ReservationWish

pytestmark = pytest.mark.thorough
SLEEP = "#!/bin/sh\nsleep 60\n"


@pytest.fixture(scope="module", params=list(RELEASES))
def cluster(request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    with shared(request.param) as cluster:
        yield cluster


@pytest.fixture
def slurm(cluster: SlurmCluster) -> Iterator[SlurmConnection]:
    """As root over the Unix socket. Jobs named as the test's are cancelled after it."""
    connection = cluster.connection()
    yield connection
    for job in connection.jobs().list:
        if job.name.startswith("live-") and not job.over:
            try:
                connection.cancel(job.id)
            except SlurmGone:
                continue
    connection.close()


def wish(name: str, **more: Any) -> JobRequest:
    return JobRequest(**{"name": f"live-{name}", "script": SLEEP, "time_limit_s": 600, **more})


def test_the_release_is_known_and_nothing_is_lacking(cluster: SlurmCluster, slurm: SlurmConnection) -> None:
    assert slurm.api == cluster.api
    assert slurm.version.startswith({"host": "22.05", "trixie": "24.11"}[cluster.release])
    assert slurm.can.missing() == {}
    over_tcp = cluster.over_tcp()
    assert [node.name for node in over_tcp.nodes().list] == [node.name for node in slurm.nodes().list]
    over_tcp.close()


WISHES = {
    "plain": {"comment": 'ünï "quoted" <b>[red] %s'},
    "gang": {"nodes": 4, "tasks": 8, "tasks_per_node": 2, "cpus_per_task": 2},
    "gpus": {"partition": "gpu", "gres_per_node": {"gpu": 3}},
    "model": {"partition": "gpu", "gres_per_node": {"gpu:h100": 2}},
    "later": {"begin_s": 4_000_000_000},
    "once": {"requeue": False},
    "again": {"requeue": True},
    "array": {"array": "0-9%3", "held": True},
    "asked": {"qos": "high", "account": "production", "features": "amd", "memory_per_cpu_mib": 70, "held": True},
}
DIFFERS = dict.fromkeys(["id", "array_id", "submit_s", "eligible_s", "start_s", "end_s", "priority", "restarts"], 0)
_READ: dict[str, dict[str, Job]] = {}


def test_what_was_asked_for_is_what_is_read_and_the_same_in_both_releases(
    cluster: SlurmCluster, slurm: SlurmConnection
) -> None:
    """Held, so that all is as asked for whatever else runs; each is as the other release's, but for times and ids."""
    ids = {name: slurm.submit(wish(name, **{**more, "held": True})).id for name, more in WISHES.items()}
    read = {name: slurm.job(id_) for name, id_ in ids.items()}
    assert read["plain"].comment == WISHES["plain"]["comment"]
    assert [read[name].requeue for name in ("plain", "once", "again")] == [True, False, True]
    assert (read["gang"].nodes_min, read["gang"].cpus) == (4, 16)
    assert read["gpus"].gres_wanted == {"gpu": 3}
    assert read["model"].gres_wanted == {"gpu:h100": 2}
    assert read["later"].eligible_s == WISHES["later"]["begin_s"]
    assert read["array"].array_tasks == "0-9%3"
    assert (read["asked"].qos, read["asked"].account, read["asked"].features) == ("high", "production", "amd")
    assert all(job.held and job.state == "PENDING" and job.time_limit_s == 600 for job in read.values())
    assert all(job.extra == {} for job in read.values())
    _READ[cluster.release] = {name: msgspec.structs.replace(job, **DIFFERS) for name, job in read.items()}
    if len(_READ) == len(RELEASES):
        for name in WISHES:
            early, later = (msgspec.structs.replace(_READ[release][name], stdout="", stderr="") for release in RELEASES)
            assert early == later, name


def test_a_running_gang_tells_its_nodes_and_gpus(slurm: SlurmConnection) -> None:
    gang = slurm.submit(wish("runs", nodes=2, tasks=2, partition="gpu", gres_per_node={"gpu": 2}))
    soon(lambda: slurm.job(gang.id).state == "RUNNING")
    job = slurm.job(gang.id)
    assert len(job.nodes) == 2
    assert job.holding
    assert job.cpus_on == dict.fromkeys(job.nodes, 1)
    assert job.gres_on == {name: {"gpu:h100": 2} for name in job.nodes}
    assert job.gpus_on is not None
    assert all(len(indexes) == 2 for indexes in job.gpus_on.values())
    slurm.cancel(gang.id)
    soon(lambda: slurm.job(gang.id).over)
    assert slurm.job(gang.id).state == "CANCELLED"


def test_what_is_changed_of_a_job_is_read_back(slurm: SlurmConnection) -> None:
    id_ = slurm.submit(wish("changes", held=True)).id
    slurm.update_job(id_, qos="high", partition="spot")
    job = slurm.job(id_)
    assert (job.qos, job.partition) == ("high", "spot")
    slurm.release(id_)
    assert not slurm.job(id_).held
    slurm.hold(id_)
    with pytest.raises(SlurmRefused) as told:
        slurm.update_job(id_, partition="nowhere")
    assert told.value.number == 2000
    slurm.cancel(id_)
    with pytest.raises(SlurmGone):
        slurm.cancel(99_999_999)


def test_a_requeued_job_waits_again_under_its_id(slurm: SlurmConnection) -> None:
    id_ = slurm.submit(wish("requeue")).id
    soon(lambda: slurm.job(id_).state == "RUNNING")
    slurm.put_back(id_)
    soon(lambda: slurm.job(id_).restarts == 1)
    soon(lambda: not slurm.job(id_).holding)
    job = slurm.job(id_)
    assert (job.state, job.id) == ("PENDING", id_)


def test_nodes_partitions_and_reservations_are_changed_and_read_back(slurm: SlurmConnection) -> None:
    def node(name: str) -> Any:
        return next(one for one in slurm.nodes().list if one.name == name)

    slurm.update_node("cpu008", "DRAIN", "a test [with] brackets")
    try:
        assert standing(node("cpu008")) != "ready"
        assert node("cpu008").reason == "a test [with] brackets"
    finally:
        slurm.update_node("cpu008", "RESUME")
    soon(lambda: standing(node("cpu008")) == "ready")
    slurm.update_partition("cloud", "DRAIN")
    try:
        assert {one.name: one.state for one in slurm.partitions()}["cloud"] == "DRAIN"
    finally:
        slurm.update_partition("cloud", "UP")
    name = f"live{time.time_ns() % 10**9}"
    starts = int(time.time()) + 86_400
    slurm.create_reservation(
        ReservationWish(name=name, start_s=starts, duration_s=3600, nodes=("cpu006", "cpu007"), users=("root",))
    )
    try:
        made = next(one for one in slurm.reservations() if one.name == name)
        assert (made.nodes, made.start_s, made.end_s) == (("cpu006", "cpu007"), starts, starts + 3600)
    finally:
        slurm.delete_reservation(name)
    assert name not in [one.name for one in slurm.reservations()]
    with pytest.raises(SlurmGone):
        slurm.delete_reservation(name)


def test_accounts_switches_statistics_and_history_are_read(slurm: SlurmConnection) -> None:
    assert {"low", "normal", "high", "urgent"} <= {one.name for one in slurm.qos()}
    assert ("research", "games") in {(one.account, one.user) for one in slurm.associations()}
    assert ("research", "games") in {(one.account, one.user) for one in slurm.shares()}
    leaves = {switch.name: switch.nodes for switch in slurm.topology() if switch.level == 0}
    assert leaves["gpurack1"] == ("gpu001", "gpu002", "gpu003", "gpu004")
    statistics = slurm.diag()
    assert statistics.since_s <= time.time()
    assert statistics.rpcs_by_user
    began = int(time.time())
    id_ = slurm.submit(wish("past", script="#!/bin/sh\nexit 3\n")).id
    soon(lambda: slurm.job(id_).over)
    assert slurm.job(id_).exit_status == 3
    soon(lambda: any(one.id == id_ and one.state == "FAILED" for one in slurm.past(id_)))
    soon(lambda: id_ in {one.id for one in slurm.history(began - 60)})


def test_no_change_is_told_cheaply_and_no_change_is_missed(slurm: SlurmConnection) -> None:
    since = slurm.jobs().last_update
    for round_ in range(40):
        id_ = slurm.submit(wish(f"seen{round_}", held=True)).id
        found = slurm.jobs(since)
        assert id_ in {job.id for job in found.list}
        since = found.last_update
    states = {state.id for state in slurm.job_states()}
    assert id_ in states


def test_names_in_any_encoding_are_read(cluster: SlurmCluster, slurm: SlurmConnection) -> None:
    import subprocess

    name = b"live-caf\xe9 \x1b[31m"
    done = subprocess.run(
        [bytes(cluster.commands / "sbatch"), b"--parsable", b"-H", b"-D", b"/tmp", b"--wrap=true", b"-J", name],
        capture_output=True,
        check=True,
    )
    id_ = int(done.stdout)
    assert slurm.job(id_).name == "live-caf\\xe9 \x1b[31m"
    assert id_ in {job.id for job in slurm.jobs().list}


def test_a_bad_token_and_a_user_who_may_not(cluster: SlurmCluster, slurm: SlurmConnection, tmp_path: Path) -> None:
    id_ = slurm.submit(wish("roots", held=True)).id
    games = cluster.over_tcp("games")
    with pytest.raises(SlurmDenied) as told:
        games.cancel(id_)
    assert not told.value.bad_token
    games.close()
    head, claims, signed = cluster.token().read_text().strip().split(".")
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text(f"{head}.{claims}.{signed[::-1]}")
    forged = SlurmConnection(cluster.url, "root", tmp_path / "token")
    for ask in (forged.jobs, lambda: forged.cancel(id_), lambda: forged.submit(wish("forged"))):
        with pytest.raises(SlurmDenied) as told:
            ask()
        assert told.value.bad_token
    forged.close()
    nobody = SlurmConnection(cluster.url)
    with pytest.raises(SlurmDenied):
        nobody.jobs()
    nobody.close()
    assert slurm.job(id_).held


def test_an_answer_that_was_lost_leaves_a_job_that_is_found(cluster: SlurmCluster, slurm: SlurmConnection) -> None:
    proxy = CuttingProxy(int(cluster.url.rpartition(":")[2]))
    lossy = SlurmConnection(proxy.url, "root", cluster.token())
    lossy.cancel(lossy.submit(wish("first", held=True)).id)
    token = f"live-token-{time.time_ns()}"
    proxy.mode = "lose answers"
    with pytest.raises(SlurmUnavailable) as told:
        lossy.submit(wish("lost", comment=token, held=True))
    assert told.value.arrived
    assert len([job for job in slurm.jobs().list if job.comment == token]) == 1
    lossy.close()
    proxy.close()


@pytest.mark.parametrize("release", ["host", pytest.param("trixie", marks=pytest.mark.slow)])
def test_a_controller_that_is_killed_or_held_up_is_named_and_found_again(release: str) -> None:
    with own(release) as cluster:
        slurm = cluster.over_tcp(timeout_s=10.0)
        kept = slurm.submit(wish("kept", held=True)).id
        cluster.kill("slurmctld", signal.SIGSTOP)
        with pytest.raises(SlurmUnavailable) as told:
            slurm.submit(wish("silent"))
        assert told.value.arrived
        cluster.kill("slurmctld", signal.SIGCONT)
        slurm.line._silent_until = 0.0
        soon(lambda: kept in ids_of(slurm))
        soon(lambda: cluster.saved_s() > time.time() - 1.0)  # what is not saved yet, a crash loses
        boot = slurm.boot()
        assert boot == slurm.boot() != ""
        cluster.kill("slurmctld")
        for ask in (slurm.jobs, slurm.jobs, lambda: slurm.submit(wish("nowhere"))):
            with pytest.raises(SlurmUnavailable):
                ask()
        cluster.start("slurmctld")
        soon(lambda: kept in ids_of(slurm))
        soon(lambda: slurm.boot() not in ("", boot))
        cluster.kill("slurmrestd-tcp")
        with pytest.raises(SlurmUnavailable) as told:
            slurm.submit(wish("unheard"))
        assert not told.value.arrived
        cluster.start("slurmrestd-tcp")
        soon(lambda: kept in ids_of(slurm))
        assert "live-unheard" not in {job.name for job in slurm.jobs().list}
        slurm.close()


def test_commands_of_another_cluster_are_not_used(cluster: SlurmCluster) -> None:
    other = PlayedSlurm("v0.0.38")
    slurm = SlurmConnection(other.url, commands=cluster.commands)
    assert slurm.can.put_back.why.endswith("speak to another controller than slurmrestd")
    with pytest.raises(SlurmLacks):
        slurm.update_node("cpu001", "DRAIN", "why")
    slurm.close()
    other.close()


def ids_of(slurm: SlurmConnection) -> set[int]:
    try:
        return {job.id for job in slurm.jobs().list}
    except SlurmUnavailable:
        return set()


def test_the_versions_between_are_spoken_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared("trixie") as cluster:
        for api in ("v0.0.40", "v0.0.41"):
            monkeypatch.setattr("engine.external.slurm.session.PROVEN", (api,))
            slurm = cluster.connection()
            assert slurm.api == api
            since = slurm.jobs().last_update
            id_ = slurm.submit(wish("between", nodes=2, partition="gpu", gres_per_node={"gpu": 1}, held=True)).id
            slurm.update_job(id_, qos="high")
            job = next(one for one in slurm.jobs(since).list if one.id == id_)
            assert (job.qos, job.nodes_min, job.gres_wanted) == ("high", 2, {"gpu": 1})
            assert (job.held, job.extra) == (True, {})
            assert len(slurm.nodes().list) == 16
            assert {one.name for one in slurm.qos()} >= {"normal"}
            slurm.cancel(id_)
            soon(lambda slurm=slurm, id_=id_: slurm.job(id_).over)
            assert id_ in {one.id for one in slurm.job_states()}
            slurm.close()
