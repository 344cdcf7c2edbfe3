"""Entries of Slurm's answers as records: the controller's jobs, nodes, partitions and reservations; accounting's QOS,
associations, shares and past jobs; and the statistics of `sdiag`.

Each reader takes the text of one entry, of any release, and raises ValueError when the entry has no id or no name.
Accounting keeps one past job for each attempt, with its steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.external.slurm import names
from engine.external.slurm import names as hostlist
from engine.external.slurm.answers import Entry, EntryShape, in_seconds, number_in, read_all, within
from engine.external.slurm.limits import MEANS_PENDING
from engine.external.slurm.records import (
    JOB_STATES,
    NODE_STATES,
    UNLIMITED,
    Association,
    Diag,
    Job,
    JobState,
    JobStep,
    Node,
    PastJob,
    Qos,
    RpcCount,
    Share,
    SlurmPartition,
    SlurmReservation,
)

JOB = EntryShape(
    "job",
    """job_id array_job_id array_task_id array_task_string name user_name account partition qos comment job_state
    state_reason state_description priority hold submit_time eligible_time start_time end_time time_limit
    node_count max_nodes cpus memory_per_node tres_req_str tres_alloc_str tres_per_node nodes gres_detail
    job_resources features required_nodes excluded_nodes shared contiguous required_switches dependency deadline
    restart_cnt exit_code resv_name licenses het_job_id current_working_directory standard_output standard_error
    cluster user_id requeue""",
)
STATE = EntryShape("job state", "job_id state")

_MEANS_RUNNING = frozenset(["CONFIGURING", "RESIZING", "STOPPED", "SIGNALING", "POWER_UP_NODE"])
_STEP_ID = re.compile(r"(\d{1,10})(?:_(\d{1,10}))?(?:\+\d+)?$")
_PATTERN = re.compile(r"%(%|[0-9]{0,3}[jAaux])")


def job(raw: msgspec.Raw) -> Job:
    """ValueError when it has no id."""
    entry = JOB.entry(raw)
    id_ = entry.count("job_id")
    if not id_:
        raise ValueError(f"has no job id but {entry.raw.job_id!r}")
    state, flags = job_state(entry, entry.raw.job_state)
    reason = entry.text("state_reason")
    priority = entry.number("priority")
    wanted: dict[str, int] = entry.parsed("tres_req_str", hostlist.tres, {})
    nodes = _hosts(entry, "nodes")
    exit_status, signal = exit_code(entry, "exit_code", entry.raw.exit_code)
    array_id, task = entry.count("array_job_id"), entry.number("array_task_id")
    over = state not in ("PENDING", "RUNNING", "SUSPENDED")
    name, user = entry.text("name"), _user(entry)
    return Job(
        id=id_,
        array_id=array_id,
        array_task=task if array_id and task is not None and task >= 0 else None,
        array_tasks=entry.text("array_task_string"),
        name=name,
        user=user,
        account=entry.text("account"),
        partition=entry.text("partition"),
        qos=entry.text("qos"),
        comment=entry.text("comment"),
        state=state,
        flags=flags,
        reason="" if reason == "None" else reason,
        reason_text=entry.text("state_description"),
        priority=priority,
        held=state == "PENDING" and (entry.flag("hold") or priority == 0 or reason.startswith("JobHeld")),
        submit_s=entry.time("submit_time"),
        eligible_s=entry.time("eligible_time"),
        start_s=entry.time("start_time"),
        end_s=entry.time("end_time"),
        time_limit_s=entry.minutes("time_limit"),
        nodes_min=_nodes_min(entry.count("node_count", 1), entry.count("max_nodes"), wanted),
        cpus=entry.count("cpus"),
        memory_mib=wanted.get("mem"),
        memory_per_node_mib=entry.number("memory_per_node") or None,
        tres_wanted=wanted,
        tres_held=entry.parsed("tres_alloc_str", hostlist.tres, {}),
        gres_wanted=entry.parsed("tres_per_node", hostlist.gres, {}),
        nodes=nodes,
        **_on_nodes(entry, nodes),
        features=entry.text("features"),
        nodes_required=_hosts(entry, "required_nodes"),
        nodes_excluded=_hosts(entry, "excluded_nodes"),
        exclusive=_exclusive(entry),
        contiguous=entry.flag("contiguous"),
        switches=entry.count("required_switches"),
        dependency=entry.text("dependency"),
        deadline_s=entry.time("deadline"),
        restarts=entry.count("restart_cnt"),
        requeue=entry.raw.requeue if isinstance(entry.raw.requeue, bool) else None,
        exit_status=exit_status if over else None,
        signal=signal if over else None,
        reservation=entry.text("resv_name"),
        licenses=entry.text("licenses"),
        het_id=entry.count("het_job_id"),
        workdir=entry.text("current_working_directory"),
        stdout=_path(entry.text("standard_output"), id_, array_id, task, name, user),
        stderr=_path(entry.text("standard_error"), id_, array_id, task, name, user),
        cluster=entry.text("cluster"),
        extra=entry.extra,
    )


def short_states(raws: Sequence[msgspec.Raw], own_ids: bool) -> tuple[tuple[JobState, ...], tuple[str, ...]]:
    """The entries of `jobs/state`, one for each record of the controller, and those that could not be read.

    They name array tasks `24_0`. In v0.0.42 (`own_ids`) 24 is the task's own job id, or the array's while it waits, one
    entry for each task; before, it is always the array's, and the own id is not told.
    """
    read, bad = read_all(raws, _short_state, "job")
    if not own_ids:
        alone = (one if one.array_task is None else _of_array(one) for one in read)
        return tuple(alone), bad
    by_id: dict[int, list[JobState]] = {}
    for one in read:
        by_id.setdefault(one.id, []).append(one)
    return tuple(each[0] if len(each) == 1 else _waiting(each) for each in by_id.values()), bad


def _short_state(raw: msgspec.Raw) -> JobState:
    entry = STATE.entry(raw)
    found = _STEP_ID.match(str(entry.raw.job_id))
    if not found:
        raise ValueError(f"has no job id but {entry.raw.job_id!r}")
    state, flags = job_state(entry, entry.raw.state)
    return JobState(id=int(found[1]), state=state, flags=flags, array_task=int(found[2]) if found[2] else None)


def _of_array(one: JobState) -> JobState:
    return msgspec.structs.replace(one, id=0, array_id=one.id)


def _waiting(each: list[JobState]) -> JobState:
    tasks = ",".join(str(one.array_task) for one in each)
    return msgspec.structs.replace(each[0], array_id=each[0].id, array_task=None, array_tasks=tasks)


def job_state(entry: Entry, value: Any) -> tuple[str, frozenset[str]]:
    """The base state and the flags: of a list of words (v0.0.40 and on), or of the one word that v0.0.38 shows."""
    words = [word.upper() for word in entry.as_words("job_state", value)]
    known = [word for word in words if word in JOB_STATES]
    flags = frozenset(words) - JOB_STATES
    if known:
        return known[0], flags
    if flags & _MEANS_RUNNING:
        return "RUNNING", flags
    if "COMPLETING" in flags or "STAGE_OUT" in flags:
        return "COMPLETING", flags | {"COMPLETING"}
    if flags & MEANS_PENDING:
        return "PENDING", flags
    if value is not None:
        entry.extra["job_state"] = value
    return (words[0] if words else "UNKNOWN"), flags


def exit_code(entry: Entry, name: str, value: Any) -> tuple[int | None, int | None]:
    """Return code and signal, of a raw wait status or of its parts."""
    if isinstance(value, dict) and "return_code" in value:
        signal = value.get("signal")
        number = number_in(within(signal, "id")) if isinstance(signal, dict) else None
        if number is None and isinstance(signal, dict):
            number = number_in(signal.get("signal_id"))
        return (number_in(value["return_code"]) if number in (None, 0) else None), number or None
    status = entry.read_number(name, value)
    if status is None or status < 0:
        return None, None
    signal_number = status & 0x7F
    return (None, signal_number) if signal_number else ((status >> 8) & 0xFF, None)


def _nodes_min(node_count: int, nodes_max: int, wanted: dict[str, int]) -> int:
    """Of a range ("2-4") `node_count` may tell the upper end while the job waits; what it asks for tells the lower."""
    lower = wanted.get("node", 0)
    return lower if 0 < lower < node_count <= nodes_max else max(1, node_count)


def _user(entry: Entry) -> str:
    name = entry.text("user_name")
    if name:
        return name
    uid = entry.number("user_id")
    return str(uid) if uid is not None and uid >= 0 else ""


def _hosts(entry: Entry, name: str) -> tuple[str, ...]:
    value = getattr(entry.raw, name)
    if isinstance(value, list):
        value = ",".join(one for one in value if isinstance(one, str))
    return entry.as_parsed(name, value, hostlist.hosts, ())


def _exclusive(entry: Entry) -> bool:
    """v0.0.38 writes `shared` as 0 for whole nodes, null for the default; later ones a list with `none`."""
    value = entry.raw.shared
    if isinstance(value, list):
        return "none" in value
    if isinstance(value, str):
        return value == "none"
    return type(value) is int and value == 0


def _on_nodes(entry: Entry, nodes: tuple[str, ...]) -> dict[str, Any]:
    """Return what is held on each node: CPUs, memory, GRES and indexes of GPUs, from `job_resources` and
    `gres_detail`."""
    resources = entry.raw.job_resources
    listed = within(resources, "allocated_nodes")
    if not isinstance(listed, list):
        listed = within(resources, "nodes", "allocation")
    found: dict[str, Any] = {}
    order = nodes
    if isinstance(listed, list) and listed:
        cores = {one[0]: one for one in map(_allocation, listed) if one}
        order = tuple(cores) if set(cores) == set(nodes) else nodes
        found["cpus_on"] = _as_cpus({name: one[1] for name, one in cores.items()}, entry.count("cpus"))
        found["memory_on"] = {name: one[2] for name, one in cores.items()}
    elif resources:
        entry.extra["job_resources"] = resources
    details = entry.raw.gres_detail
    if isinstance(details, list) and details and len(details) == len(order):
        found["gres_on"] = {name: _gres(entry, one) for name, one in zip(order, details, strict=True)}
        found["gpus_on"] = {name: _gpu_indexes(entry, one) for name, one in zip(order, details, strict=True)}
    elif details:
        entry.extra["gres_detail"] = details
    return found


def _allocation(one: Any) -> tuple[str, int, int] | None:
    """Name, cores (v0.0.38) or CPUs, and memory of one node of a job."""
    name = within(one, "nodename") or within(one, "name")
    if not isinstance(name, str):
        return None
    cpus = number_in(within(one, "cpus", "count"))
    memory = number_in(within(one, "memory", "allocated")) or number_in(within(one, "memory_allocated")) or 0
    return name, _cores(within(one, "sockets")) if cpus is None else cpus, memory


def _cores(sockets: Any) -> int:
    if not isinstance(sockets, dict):
        return 0
    cores = (within(one, "cores") for one in sockets.values())
    return sum(1 for each in cores if isinstance(each, dict) for word in each.values() if word == "allocated")


def _as_cpus(cores: dict[str, int], cpus: int) -> dict[str, int]:
    """Cores as CPUs: with several threads a core, all the job's CPUs are a multiple of its cores."""
    total = sum(cores.values())
    threads = cpus // total if total and cpus and cpus % total == 0 else 1
    return {name: count * threads for name, count in cores.items()}


def _gres(entry: Entry, detail: Any) -> dict[str, int]:
    return entry.as_parsed("gres_detail", detail, hostlist.gres, {})


def _gpu_indexes(entry: Entry, detail: Any) -> tuple[int, ...]:
    indexes: dict[str, tuple[int, ...]] = entry.as_parsed("gres_detail", detail, hostlist.gres_indexes, {})
    return tuple(sorted(at for name, each in indexes.items() if name.split(":")[0] == "gpu" for at in each))


def _path(path: str, id_: int, array_id: int, task: int | None, name: str, user: str) -> str:
    """A file name with Slurm's patterns filled in, as v0.0.42 gives it and v0.0.38 does not."""
    if "%" not in path:
        return path
    values = {
        "j": str(id_),
        "A": str(array_id or id_),
        "a": str(task) if task is not None and task != UNLIMITED else "4294967294",
        "u": user,
        "x": name,
    }

    def filled(found: re.Match[str]) -> str:
        pattern = found[1]
        if pattern == "%":
            return "%"
        return values[pattern[-1]].rjust(int(pattern[:-1] or 0), "0") if pattern[:-1] else values[pattern[-1]]

    return _PATTERN.sub(filled, path)


NODE = EntryShape(
    "node",
    """name state state_flags cpus effective_cpus real_memory specialized_memory gres partitions features reason
    instance_type topology address""",
)
PARTITION = EntryShape(
    "partition",
    """name partition state nodes max_time_limit maximum_nodes_per_job maximums minimums priority priority_tier
    preemption_mode preempt_mode qos""",
)
RESERVATION = EntryShape("reservation", "name start_time end_time node_list core_count flags tres")

_SAME_FLAG = {"MAINT": "MAINTENANCE", "NO_RESPOND": "NOT_RESPONDING", "REBOOT": "REBOOT_REQUESTED"}


def node(raw: msgspec.Raw) -> Node:
    """ValueError when it has no name."""
    entry = NODE.entry(raw)
    state, flags = _node_state(entry)
    return Node(
        name=_name(entry),
        state=state,
        flags=flags,
        cpus=entry.count("effective_cpus") or entry.count("cpus"),
        memory_mib=max(0, entry.count("real_memory") - entry.count("specialized_memory")),
        gres=entry.parsed("gres", hostlist.gres, {}),
        partitions=entry.words("partitions"),
        features=entry.words("features"),
        reason=entry.text("reason"),
        address=entry.text("address"),
        switch=_leaf(entry),
        instance_type=entry.text("instance_type"),
        extra=entry.extra,
    )


def _name(entry: Entry) -> str:
    name = entry.text("name")
    if not name:
        raise ValueError(f"has no name but {entry.raw.name!r}")
    return name


def _node_state(entry: Entry) -> tuple[str, frozenset[str]]:
    """v0.0.38: a base state in small letters, and `state_flags`. Later: both in one list."""
    words = [word.upper() for word in entry.words("state")]
    flags = frozenset(
        _SAME_FLAG.get(word, word)
        for word in [*words, *(word.upper() for word in entry.words("state_flags"))]
        if word not in NODE_STATES
    )
    known = [word for word in words if word in NODE_STATES]
    if not known and entry.raw.state is not None:
        entry.extra["state"] = entry.raw.state
    return (known[0] if known else "UNKNOWN"), flags


def _leaf(entry: Entry) -> str:
    """Releases from 25.05 say where in the tree: `topo:spine.rack1.node`; earlier ones nothing."""
    path = entry.text("topology").rpartition(":")[2].split(".")
    return path[-2] if len(path) > 1 else ""


def partition(raw: msgspec.Raw) -> SlurmPartition:
    """ValueError when it has no name."""
    entry = PARTITION.entry(raw)
    later = isinstance(entry.raw.nodes, dict)
    return (_later_partition if later else _early_partition)(entry)


def _early_partition(entry: Entry) -> SlurmPartition:
    return SlurmPartition(
        name=_name(entry),
        state=entry.text("state").upper() or "UNKNOWN",
        nodes=entry.parsed("nodes", hostlist.hosts, ()),
        time_limit_s=entry.minutes("max_time_limit"),
        nodes_max=entry.number("maximum_nodes_per_job"),
        tier=entry.count("priority_tier", 1),
        preempt_mode=_preempt_mode(entry, "preemption_mode"),
        qos=entry.text("qos"),
        extra=entry.extra,
    )


def _later_partition(entry: Entry) -> SlurmPartition:
    def number(name: str, *path: str) -> int | None:
        return entry.read_number(name, entry.inside(name, *path))

    states = [word.upper() for word in entry.as_words("partition", entry.inside("partition", "state"))]
    shares = entry.inside("maximums", "oversubscribe", "jobs")
    return SlurmPartition(
        name=_name(entry),
        state=states[0] if states else "UNKNOWN",
        nodes=entry.as_parsed("nodes", entry.inside("nodes", "configured"), hostlist.hosts, ()),
        exclusive=shares == 0,
        oversubscribe=shares if isinstance(shares, int) and shares > 0 else 1,
        time_limit_s=in_seconds(number("maximums", "time")),
        nodes_max=number("maximums", "nodes"),
        nodes_min=number("minimums", "nodes") or 0,
        tier=number("priority", "tier") or 1,
        preempt_mode=_preempt_mode(entry, "preempt_mode"),
        qos=str(entry.inside("qos", "assigned") or ""),
        extra=entry.extra,
    )


def _preempt_mode(entry: Entry, name: str) -> str:
    """`disabled` is what v0.0.38 writes where no mode is set for the partition: as the cluster."""
    words = [word.upper() for word in entry.words(name)]
    return next((word for word in words if word != "DISABLED"), "")


def reservation(raw: msgspec.Raw) -> SlurmReservation:
    """ValueError when it has no name."""
    entry = RESERVATION.entry(raw)
    return SlurmReservation(
        name=_name(entry),
        start_s=entry.time("start_time"),
        end_s=entry.time("end_time"),
        nodes=entry.parsed("node_list", hostlist.hosts, ()),
        cores=entry.count("core_count"),
        flags=frozenset(word.upper() for word in entry.words("flags")),
        tres=entry.parsed("tres", hostlist.tres, {}),
        extra=entry.extra,
    )


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
