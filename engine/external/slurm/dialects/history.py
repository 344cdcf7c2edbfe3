"""Jobs as accounting (slurmdbd) keeps them: one record for each attempt, with its steps."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.external.slurm import hostlist
from engine.external.slurm.accounting import JobStep, PastJob
from engine.external.slurm.dialects.accounts import tres_list
from engine.external.slurm.dialects.entry_fields import Entry, EntryShape, in_seconds, number_in, within
from engine.external.slurm.dialects.jobs import exit_code, job_state

PAST_JOB = EntryShape(
    "past job",
    """job_id array name user account association cluster partition qos comment state nodes time exit_code
    restart_cnt tres reservation working_directory steps""",
)
STEP = EntryShape("step", "step state nodes tasks time exit_code tres")


def past_job(raw: msgspec.Raw) -> PastJob:
    """ValueError when it has no id."""
    entry = PAST_JOB.entry(raw)
    id_ = entry.count("job_id")
    if not id_:
        raise ValueError(f"has no job id but {entry.raw.job_id!r}")
    array_id = number_in(entry.inside("array", "job_id")) or 0
    task = number_in(entry.inside("array", "task_id"))
    reason = str(entry.inside("state", "reason") or "")
    exit_status, signal = exit_code(entry, "exit_code", entry.raw.exit_code)
    return PastJob(
        id=id_,
        array_id=array_id,
        array_task=task if array_id else None,
        name=entry.text("name"),
        user=entry.text("user") or str(entry.inside("association", "user") or ""),
        account=entry.text("account"),
        cluster=entry.text("cluster"),
        partition=entry.text("partition"),
        qos=entry.text("qos"),
        comment=_comment(entry.raw.comment),
        state=job_state(entry, entry.inside("state", "current"))[0],
        reason="" if reason == "None" else reason,
        nodes=entry.as_parsed("nodes", _none_assigned(entry.raw.nodes), hostlist.hosts, ()),
        submit_s=_time(entry, "submission"),
        eligible_s=_time(entry, "eligible"),
        start_s=_time(entry, "start"),
        end_s=_time(entry, "end"),
        elapsed_s=max(0, number_in(entry.inside("time", "elapsed")) or 0),
        time_limit_s=in_seconds(number_in(entry.inside("time", "limit"))),
        exit_status=exit_status,
        signal=signal,
        restarts=entry.number("restart_cnt"),
        tres_wanted=tres_list(entry.inside("tres", "requested")),
        tres_held=tres_list(entry.inside("tres", "allocated")),
        reservation=str(entry.inside("reservation", "name") or ""),
        workdir=entry.text("working_directory"),
        steps=tuple(_step(one) for one in entry.raw.steps or () if isinstance(one, dict)),
    )


def _step(value: dict[str, Any]) -> JobStep:
    entry = STEP.entry(msgspec.Raw(msgspec.json.encode(value)))
    exit_status, signal = exit_code(entry, "exit_code", entry.raw.exit_code)
    listed = entry.inside("nodes", "list")
    return JobStep(
        id=str(within(entry.raw.step, "id")).rpartition(".")[2],
        name=str(entry.inside("step", "name") or ""),
        state=job_state(entry, entry.raw.state)[0],
        nodes=entry.as_words("nodes", listed),
        tasks=max(0, number_in(entry.inside("tasks", "count")) or 0),
        start_s=_time(entry, "start"),
        end_s=_time(entry, "end"),
        exit_status=exit_status,
        signal=signal,
        tres=tres_list(entry.inside("tres", "allocated")),
    )


def _time(entry: Entry, name: str) -> int:
    return entry.as_time("time", entry.inside("time", name))


def _comment(value: Any) -> str:
    """v0.0.38 to .42 give three comments: the job's own is the one that submitting set."""
    own = within(value, "job") if isinstance(value, dict) else value
    return own if isinstance(own, str) else ""


def _none_assigned(value: Any) -> Any:
    return "" if value == "None assigned" else value
