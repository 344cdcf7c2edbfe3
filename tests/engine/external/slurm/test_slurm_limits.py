"""Limits of QOS and accounts: which of them stop a job, how much of each is in use and by whom."""

from __future__ import annotations

from typing import Any

import pytest

from console.views.external_scheduler import limit_sentence, share_lines
from engine.external.slurm.limits import ClusterLimits, is_limit
from engine.external.slurm.records import UNLIMITED, Association, Job, Qos, Share, SlurmPartition

HIGH = Qos(name="high", tres_total={"cpu": 64, "gres/gpu": 4}, jobs_per_user=2, wall_limit_s=7200, jobs_total=UNLIMITED)
HOUSE = Qos(name="house", tres_total={"node": 3})
ACCOUNTS = (
    Association(account="root", cluster="loop"),
    Association(account="lab", parent="root", cluster="loop", tres_total={"gres/gpu": 6}, jobs_total=5),
    Association(account="vision", parent="lab", cluster="loop", tres_total={"mem": 64_000}),
    Association(account="vision", user="ann", cluster="loop", jobs_max=3),
    Association(account="vision", cluster="elsewhere", tres_total={"cpu": 1}),
)
LIMITS = ClusterLimits(
    (HIGH, HOUSE), ACCOUNTS, (SlurmPartition(name="gpu", qos="house"), SlurmPartition(name="batch")), "loop"
)


def job(job_id: int, **more: Any) -> Job:
    given = {"user": "ann", "account": "vision", "qos": "high", "partition": "batch", "cpus": 8, "nodes_min": 1}
    return Job(id=job_id, **{**given, **more})


def running(job_id: int, **more: Any) -> Job:
    return job(job_id, state="RUNNING", nodes=("c1",), **more)


RUNNING = [
    running(1, cpus=40, tres_held={"cpu": 40, "gres/gpu:h100": 2, "mem": 32_000}),
    running(2, cpus=20, user="bob", tres_held={"cpu": 20, "gres/gpu": 2}),
    running(3, cpus=9, qos="normal", account="lab", user="eve", tres_held={"cpu": 9, "gres/gpu": 1}),
    job(4, state="COMPLETED", cpus=60),
]


def test_a_limit_of_all_of_a_qos_is_told_with_who_uses_it_and_what_is_too_much() -> None:
    first, *_ = LIMITS.stopping(job(9, reason="QOSGrpCpuLimit"), RUNNING)
    assert (first.of, first.over, first.most, first.used, first.wanted) == ("QOS high", "cpu", 64, 60, 8)
    assert [(use.user, use.amount, use.jobs) for use in first.by] == [("ann", 40, 1), ("bob", 20, 1)]
    assert limit_sentence(first) == (
        "QOS high: at most 64 CPUs of all its running jobs together; 60 in use (ann 40 in 1 job, bob 20 in 1 job); "
        "this job asks for 8, 4 too many"
    )


def test_an_account_counts_what_runs_in_accounts_below_it_and_of_every_model() -> None:
    waits = job(9, reason="AssocGrpGRES", tres_wanted={"gres/gpu": 2})
    assert [(each.of, each.over, each.used) for each in LIMITS.stopping(waits, RUNNING)] == [
        ("account lab", "gres/gpu", 5)
    ]


@pytest.mark.parametrize(
    ("reason", "more", "of", "used"),
    [
        ("QOSMaxJobsPerUserLimit", {}, "QOS high: at most 2 running jobs of one user", 1),
        ("AssocMaxJobsLimit", {}, "user ann in account vision: at most 3 running jobs", 1),
        ("AssocGrpJobsLimit", {}, "account lab: at most 5 running jobs together", 3),
        ("AssocGrpMemLimit", {"memory_mib": 40_000}, "account vision: at most 62.5 GiB of memory", 32_000),
        ("QOSMaxWallDurationPerJobLimit", {"time_limit_s": 10_000}, "QOS high: at most 2h in one job", 0),
        ("QOSGrpNodeLimit", {"partition": "gpu"}, "QOS house: at most 3 nodes", 0),
    ],
)
def test_which_limit_a_reason_is_about(reason: str, more: dict[str, Any], of: str, used: int) -> None:
    found = LIMITS.stopping(job(9, reason=reason, **more), RUNNING)
    assert any(limit_sentence(each).startswith(of) and each.used == used for each in found), found


@pytest.mark.parametrize("reason", ["Priority", "Resources", "", "QOSNotAllowed", "QOSGrpCPUMinutesLimit"])
def test_other_reasons_have_no_figures(reason: str) -> None:
    assert LIMITS.stopping(job(9, reason=reason), RUNNING) == ()


def test_which_reasons_room_would_not_help() -> None:
    assert is_limit("QOSGrpCpuLimit")
    assert is_limit("AssocMaxJobsLimit")
    assert not any(map(is_limit, ("Priority", "Resources", "QOSNotAllowed", "BeginTime", "")))


def test_an_account_that_is_under_itself_ends() -> None:
    round_ = (Association(account="a", parent="b", tres_total={"cpu": 1}), Association(account="b", parent="a"))
    found = ClusterLimits((), round_, ()).stopping(job(9, account="a", reason="AssocGrpCpuLimit"), RUNNING)
    assert [each.of for each in found] == ["account a"]


def test_all_limits_with_what_the_largest_user_has_of_those_on_each() -> None:
    found = {(each.of, each.over, each.scope): each.used for each in LIMITS.all(RUNNING)}
    assert found["QOS high", "cpu", "all"] == 60
    assert found["QOS high", "jobs", "user"] == 1
    assert found["account lab", "jobs", "all"] == 3
    assert ("account vision", "cpu", "all") not in found


def test_hostile_names_are_shown_as_what_they_are() -> None:
    evil = ClusterLimits((Qos(name="\x1b[2J", tres_total={"cpu": 1}),), (), ())
    line = limit_sentence(evil.all([running(1, qos="\x1b[2J", user="\u202eeve")])[0])
    assert "\x1b" not in line
    assert "\u202e" not in line
    shares = [Share(account="\x1b]0;x\x07", user="", shares_normalized=0.5)]
    assert all("\x1b" not in span[0] for line in share_lines(shares, 60) for span in line.spans)
