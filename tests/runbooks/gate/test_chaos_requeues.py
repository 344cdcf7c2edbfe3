"""The check after chaos tells a requeue that was carried twice from one that slurmctld forgot, and from Slurm's own."""

from __future__ import annotations

import time

from tests.support.chaos_requeues import faults_of, requeues_in

TAKEN = "[2026-11-22T13:00:00.550] _slurm_rpc_submit_batch_job: JobId=7 InitPrio=0 usec=357"
OWN = (
    "[2026-11-22T13:00:31.000] error: Batch JobId=7 missing from batch node cpu001 (not found BatchStartTime after "
    "startup), Requeuing job"
)


NOT_LAUNCHED = [
    "[2026-11-22T13:00:37.279] debug:  _job_requeue_op: Holding JobId=7, requeue-hold exit",
    "[2026-11-22T13:00:37.279] debug:  _job_requeue_op: JobId=7 state 0x8000 reason 16 priority 0",
    "[2026-11-22T13:00:37.336] Requeuing JobId=7",
]


def asked(second: int) -> str:
    return f"[2026-11-22T13:00:{second:02}.685] debug:  _job_requeue_op: JobId=7 state 0x8000 reason 0 priority 125"


def at(second: int) -> float:
    return time.mktime((2026, 11, 22, 13, 0, second, 0, 0, -1))


def faults(lines: list[str], restarts: int, wished: int, killed_s: list[float]) -> list[str]:
    return list(faults_of("w", "7", restarts, wished, requeues_in("\n".join(lines))["7"], killed_s))


def test_a_requeue_that_was_carried_twice_is_a_fault() -> None:
    assert "asked 2 times" in faults([TAKEN, asked(10), asked(40)], 2, 1, [])[0]
    # A kill long after the first, or after the second, made nobody forget the first.
    assert faults([TAKEN, asked(10), asked(40)], 2, 1, [at(30), at(45)])
    assert faults([TAKEN, asked(10)], 1, 0, [])


def test_a_requeue_that_slurmctld_forgot_may_be_asked_for_again() -> None:
    assert faults([TAKEN, asked(10), asked(40)], 1, 1, [at(12)]) == []


def test_a_requeue_of_slurms_own_is_known_by_its_log_and_only_so() -> None:
    assert faults([TAKEN, asked(10), OWN], 2, 1, []) == []
    assert faults([TAKEN, OWN], 1, 0, []) == []
    assert faults([TAKEN, asked(10), *NOT_LAUNCHED], 2, 1, []) == []
    assert faults([TAKEN, asked(10), *NOT_LAUNCHED], 3, 1, [])
    assert faults([TAKEN, asked(10), asked(30), *NOT_LAUNCHED], 3, 1, [])
    carried_out = TAKEN.replace(TAKEN[26:], "Requeuing JobId=7")
    assert "put back 2 times" in faults([TAKEN, asked(10), carried_out], 2, 1, [])[0]


def test_what_was_told_of_another_job_that_had_the_id_does_not_count() -> None:
    assert faults([TAKEN, asked(10), TAKEN.replace(":00:00", ":00:20"), asked(30)], 1, 1, []) == []
