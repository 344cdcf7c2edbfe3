"""Request bodies in each family of REST versions: v0.0.38, and v0.0.40 to v0.0.42.

v0.0.38 belongs to releases 22.05 to 23.11. Its numbers are plain, and its options are named as those of `sbatch`.
v0.0.40 to v0.0.42 belong to releases 23.11 to 26.05. Their numbers are objects with a `set` field, and their options
are named as the controller names them. Answers are read in `engine.external.slurm.answers`.
"""

from __future__ import annotations

from typing import Any, Protocol, TypedDict

from engine.external.slurm.records import JobRequest


class JobUpdate(TypedDict, total=False):
    """Changes to one job. Only the fields that are given change."""

    held: bool
    priority: int
    partition: str
    qos: str


class Dialect(Protocol):
    """Bodies and forms of one family of REST versions."""

    name: str

    def since(self, at_s: int) -> str:
        """A time as `update_time` takes it."""

    def submission(self, wish: JobRequest) -> dict[str, Any]: ...

    def change(self, change: JobUpdate) -> dict[str, Any]: ...


def whole_minutes(seconds: int) -> int:
    """Minutes, the unit of Slurm's time limits, rounded up so that nothing gets less than was asked for."""
    return -(-seconds // 60)


_SAME = (
    *("name", "comment", "partition", "account", "qos", "array", "dependency", "reservation"),
    *("tasks", "tasks_per_node", "cpus_per_task"),
)
"""Fields of a request that both families name as `JobRequest` does."""
_RENAMED = {"workdir": "current_working_directory", "features": "constraints"}


def _shared_fields(wish: JobRequest) -> dict[str, Any]:
    """The fields that are set and take no other form than in `JobRequest`."""
    job = {name: getattr(wish, name) for name in _SAME if getattr(wish, name)}
    job |= {theirs: getattr(wish, ours) for ours, theirs in _RENAMED.items() if getattr(wish, ours)}
    if wish.held:
        job["hold"] = True
    return job


def _gres(wish: JobRequest, prefix: str = "") -> str:
    return ",".join(f"{prefix}{name}:{count}" for name, count in wish.gres_per_node.items())


class V38:
    name = "v0.0.38"

    def since(self, at_s: int) -> str:
        return str(at_s)

    def submission(self, wish: JobRequest) -> dict[str, Any]:
        job = _shared_fields(wish)
        job["environment"] = dict(wish.environment)
        if wish.memory_per_cpu_mib:
            job["memory_per_cpu"] = wish.memory_per_cpu_mib
        if wish.nodes:
            job["nodes"] = wish.nodes
        if wish.gres_per_node:
            job["gres"] = _gres(wish)
        if wish.time_limit_s:
            job["time_limit"] = whole_minutes(wish.time_limit_s)
        if wish.begin_s:
            job["begin_time"] = f"uts{wish.begin_s}"
        if wish.deadline_s:
            job["deadline"] = f"uts{wish.deadline_s}"
        return {"script": wish.script, "job": job}

    def change(self, change: JobUpdate) -> dict[str, Any]:
        return {"hold" if name == "held" else name: value for name, value in change.items()}


class V42:
    def __init__(self, name: str) -> None:
        self.name = name

    def since(self, at_s: int) -> str:
        """v0.0.40 and .41 take a plain number for no time."""
        return f"uts{at_s}"

    def submission(self, wish: JobRequest) -> dict[str, Any]:
        job = _shared_fields(wish)
        job["environment"] = [f"{name}={value}" for name, value in wish.environment.items()]
        if wish.memory_per_cpu_mib:
            job["memory_per_cpu"] = _number(wish.memory_per_cpu_mib)
        if wish.nodes:
            job["minimum_nodes"] = job["maximum_nodes"] = wish.nodes
        if wish.gres_per_node:
            job["tres_per_node"] = _gres(wish, "gres/")
        if wish.time_limit_s:
            job["time_limit"] = _number(whole_minutes(wish.time_limit_s))
        if wish.begin_s:
            job["begin_time"] = _number(wish.begin_s)
        if wish.deadline_s:
            job["deadline"] = wish.deadline_s
        return {"script": wish.script, "job": job}

    def change(self, change: JobUpdate) -> dict[str, Any]:
        body: dict[str, Any] = {"hold" if name == "held" else name: value for name, value in change.items()}
        if "priority" in change:
            body["priority"] = _number(change["priority"])
        return body


def _number(number: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": number}
