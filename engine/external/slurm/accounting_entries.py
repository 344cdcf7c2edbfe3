"""What accounting lists: QOS, associations, fair share, past jobs; and what `sdiag` says.

QOS, associations and fair share, and what `sdiag` says.

Jobs as accounting (slurmdbd) keeps them: one record for each attempt, with its steps.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.external.slurm import names
from engine.external.slurm.answers import Entry, EntryShape, in_seconds, number_in, within
from engine.external.slurm.controller_entries import exit_code, job_state
from engine.external.slurm.records import Association, Diag, JobStep, PastJob, Qos, RpcCount, Share

QOS = EntryShape("QOS", "name priority preempt limits")
ASSOCIATION = EntryShape("association", "account user cluster partition parent_account max")
SHARE = EntryShape("share", "name parent shares shares_normalized usage effective_usage fairshare type tres")
DIAG = EntryShape("statistics", "req_time_start schedule_cycle_mean bf_cycle_last rpcs_by_user")


def qos(raw: msgspec.Raw) -> Qos:
    """ValueError when it has no name."""
    entry = QOS.entry(raw)
    name = entry.text("name")
    if not name:
        raise ValueError("has no name")
    most = entry.inside("limits", "max")
    per = within(most, "tres", "per")
    return Qos(
        name=name,
        priority=entry.count("priority"),
        preempts=entry.as_words("preempt", entry.inside("preempt", "list")),
        wall_limit_s=_minutes(within(most, "wall_clock", "per", "job")),
        jobs_per_user=number_in(within(most, "jobs", "active_jobs", "per", "user")),
        jobs_per_account=number_in(within(most, "jobs", "active_jobs", "per", "account")),
        jobs_total=number_in(within(most, "active_jobs", "count")),
        submitted_per_user=number_in(within(most, "jobs", "per", "user")),
        submitted_per_account=number_in(within(most, "jobs", "per", "account")),
        tres_per_user=tres_list(within(per, "user")),
        tres_per_job=tres_list(within(per, "job")),
        tres_per_account=tres_list(within(per, "account")),
        tres_total=tres_list(within(most, "tres", "total")),
    )


def association(raw: msgspec.Raw) -> Association:
    """ValueError when it has no account."""
    entry = ASSOCIATION.entry(raw)
    account = entry.text("account")
    if not account:
        raise ValueError("has no account")
    most = entry.raw.max
    return Association(
        account=account,
        user=entry.text("user"),
        cluster=entry.text("cluster"),
        partition=entry.text("partition"),
        parent=entry.text("parent_account"),
        jobs_max=number_in(within(most, "jobs", "active")),
        jobs_total=number_in(within(most, "jobs", "per", "count")),
        submitted_max=number_in(within(most, "jobs", "total")),
        submitted_total=number_in(within(most, "jobs", "per", "submitted")),
        wall_limit_s=_minutes(within(most, "jobs", "per", "wall_clock")),
        tres_total=tres_list(within(most, "tres", "total")),
        tres_per_job=tres_list(within(most, "tres", "per", "job")),
    )


def share(raw: msgspec.Raw) -> Share:
    """ValueError when it has no name."""
    entry = SHARE.entry(raw)
    name, kinds = entry.text("name"), entry.words("type")
    if not name:
        raise ValueError("has no name")
    user = "USER" in {kind.upper() for kind in kinds}
    return Share(
        account=entry.text("parent") if user else name,
        user=name if user else "",
        parent="" if user else entry.text("parent"),
        shares=entry.number("shares"),
        shares_normalized=entry.real("shares_normalized"),
        usage_s=entry.count("usage"),
        usage_effective=entry.real("effective_usage"),
        factor=_real(entry.inside("fairshare", "factor")),
        level=_real(entry.inside("fairshare", "level")),
    )


def diag(raw: msgspec.Raw) -> Diag:
    entry = DIAG.entry(raw)
    return Diag(
        since_s=entry.time("req_time_start"),
        cycle_mean_us=entry.count("schedule_cycle_mean"),
        backfill_last_us=entry.count("bf_cycle_last"),
        rpcs_by_user=_rpcs(entry.raw.rpcs_by_user),
    )


def tres_list(value: Any) -> dict[str, int]:
    """`[{"type": "gres", "name": "gpu", "count": 8}]` as counts; those without a limit are left out."""
    counts: dict[str, int] = {}
    for one in value if isinstance(value, list) else []:
        kind, name, count = within(one, "type"), within(one, "name"), number_in(within(one, "count"))
        if isinstance(kind, str) and kind and count is not None and count >= 0:
            counts[f"{kind}/{name}" if isinstance(name, str) and name else kind] = count
    return counts


def _rpcs(value: Any) -> tuple[RpcCount, ...]:
    return tuple(
        RpcCount(
            name=str(one.get("user") or one.get("user_id") or ""),
            count=number_in(one.get("count")) or 0,
            total_us=number_in(one.get("total_time")) or 0,
        )
        for one in (value if isinstance(value, list) else [])
        if isinstance(one, dict)
    )


def _minutes(value: Any) -> int | None:
    return in_seconds(number_in(value))


def _real(value: Any) -> float | None:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


PAST_JOB = EntryShape(
    "past job",
    """job_id array name user account association partition qos comment state nodes time exit_code restart_cnt tres
    steps""",
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
        partition=entry.text("partition"),
        qos=entry.text("qos"),
        comment=_comment(entry.raw.comment),
        state=job_state(entry, entry.inside("state", "current"))[0],
        reason="" if reason == "None" else reason,
        nodes=entry.as_parsed("nodes", _none_assigned(entry.raw.nodes), names.hosts, ()),
        submit_s=_time(entry, "submission"),
        start_s=_time(entry, "start"),
        end_s=_time(entry, "end"),
        time_limit_s=_minutes(entry.inside("time", "limit")),
        exit_status=exit_status,
        signal=signal,
        restarts=entry.number("restart_cnt"),
        tres_wanted=tres_list(entry.inside("tres", "requested")),
        tres_held=tres_list(entry.inside("tres", "allocated")),
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
