"""What the console and the shell say of a mirror of Slurm, and of one job of it."""

from __future__ import annotations

import pytest

from console.views.external_scheduler import job_section, mirror_columns, mirror_lines
from console.views.sections import Section
from engine.external.mirror_report import NOT_MIRRORED, LeftOut, Mirrored, MirrorReport
from engine.external.slurm.records import Job
from engine.model.twin_queries import StartForecast

NOW_S = 1_800_000_000
FOLLOWING = MirrorReport(
    where="unix:/run/slurmrestd.socket", state="following", release="24.11.5", dialect="v0.0.42", since_s=NOW_S - 120,
    looked_s=NOW_S - 1, every_s=4.5, jobs=10_213, nodes=64, looks=118, asked_s=1.1, told_s=0.2, rpcs=900, own_rpcs=120,
    lacks={"history": "slurmrestd runs without slurmdbd"}, cycle_mean_us=900, backfill_last_us=12_000,
    left_out=(LeftOut(text="licenses: not modelled", count=41, examples=("7", "9", "\x1b[2Jx")),),
)  # fmt: skip


def text_of(sections: list[Section]) -> str:
    return "\n".join(
        [section.title + "\n" + "\n".join("".join(text for text, _ in line.spans) for line in section.lines)
         for section in sections]
    )  # fmt: skip


@pytest.mark.parametrize("width", [38, 58, 118])
def test_the_page_says_how_it_follows_what_it_costs_and_what_it_leaves_out(width: int) -> None:
    left, right = mirror_columns(FOLLOWING, width, lambda: NOW_S)
    told = text_of(left)
    for part in ("following", "24.11.5", "read-only", "10,213 on 64 nodes", "1,100 ms", "backfill 12.0 ms"):
        assert part in told
    assert "licenses: not modelled" in text_of(right)
    assert "and 38 more" in text_of(right)
    assert "without slurmdbd" in text_of(right).replace("\n ", "").replace("  ", " ")
    assert "\x1b" not in text_of([*left, *right])
    assert all(len("".join(text for text, _ in line.spans)) <= width + 2 for part in right for line in part.lines)


def test_a_cluster_that_is_lost_is_said_with_the_age_of_what_is_shown() -> None:
    from msgspec.structs import replace

    lost = replace(FOLLOWING, state="lost", error="nobody answers at \x1b]0;x\x07 10.0.0.1", looked_s=NOW_S - 300)
    told = text_of(mirror_columns(lost, 58, lambda: NOW_S)[0])
    assert "✗ lost" in told
    assert "nobody answers" in told
    assert "5m" in told
    assert "\x1b" not in told
    assert any("nobody answers" in line for line in mirror_lines(lost, NOW_S))


def test_why_nothing_is_carried_to_the_cluster_is_said() -> None:
    from msgspec.structs import replace

    held_up = replace(FOLLOWING, acts=True, trouble="the token has \x1bexpired")
    told = text_of(mirror_columns(held_up, 118, lambda: NOW_S)[0])
    assert "changes cannot be sent to Slurm: the token has" in told
    lines = mirror_lines(held_up, NOW_S)
    assert any("changes cannot be sent to Slurm: the token has" in line for line in lines)
    assert "\x1b" not in told + "".join(lines)


def test_a_cell_of_its_own_says_how_to_mirror_one() -> None:
    assert "muster serve" in text_of(mirror_columns(NOT_MIRRORED, 60)[0])
    assert "This cell mirrors no other scheduler" in mirror_lines(NOT_MIRRORED, NOW_S)[1]


def test_a_job_that_waits_has_slurms_plan_beside_the_forecast() -> None:
    waiting = Job(
        id=7, state="PENDING", reason="QOSMaxCpuPerUserLimit", priority=1200, start_s=NOW_S + 600, requeue=False
    )
    job = Mirrored.of("7", waiting)
    starts = StartForecast(
        at_ms=0, kind="room", p10_ms=60_000, p50_ms=120_000, p90_ms=240_000, decides="room", line_ms=0, alike=0,
        p90_held_permille=None,
    )  # fmt: skip
    told = text_of([job_section(job, 58, starts)])
    assert "a limit of the QOS on the CPUs of a user is reached" in told.replace("\n           ", " ")
    assert "squeue" in told
    assert "2m (1m..4m)" in told
    assert "→ wait until others end" in told
    assert "not by Slurm (--no-requeue)" in told


def test_a_hostile_reason_does_nothing_to_a_terminal() -> None:
    job = Mirrored.of("7", Job(id=7, reason="\x1b[31m\nboo", reason_text="\u202eevil", stdout="/tmp/\x07x"))
    assert not {"\x1b", "\u202e", "\x07"} & set(text_of([job_section(job, 58)]))
