"""Dialects: how each family of REST versions wants to be asked (v0.0.38; v0.0.40 to v0.0.42).

What a dialect is: how one family of REST versions wants to be asked.

v0.0.38, of releases 22.05 to 23.11: numbers plain, options named as those of `sbatch`.

v0.0.40 to v0.0.42, of releases 23.11 to 26.05: numbers with `set`, options named as the controller names them.
"""

from __future__ import annotations

from typing import Any, Protocol

from engine.external.slurm import names
from engine.external.slurm.records import UNLIMITED, JobRequest
from engine.model.errors import SpecError


class JobUpdate(dict[str, Any]):
    """What to change of a job, by the names of `JobRequest`, plus `priority` and `held`. Only what is in it is
    changed."""


class Dialect(Protocol):
    """Bodies and forms of one family. `wish` and `change` raise SpecError for what it cannot say."""

    name: str

    def since(self, at_s: int) -> str:
        """A time as `update_time` takes it."""

    def moment(self, at_s: int) -> str:
        """A time as slurmdb's `start_time` takes it."""

    def submission(self, wish: JobRequest) -> dict[str, Any]: ...

    def change(self, change: JobUpdate) -> dict[str, Any]: ...


def whole_minutes(seconds: int) -> int:
    """Slurm's time limits are minutes: rounded up, so that nothing gets less than was asked for."""
    return -(-seconds // 60)


def gres_text(gres: dict[str, int], prefix: str = "") -> str:
    return ",".join(f"{prefix}{name}:{count}" for name, count in gres.items())


_SAME = (
    *("name", "comment", "partition", "account", "qos", "array", "dependency", "reservation"),
    *("tasks", "tasks_per_node", "cpus_per_task", "nice"),
)
_OTHERWISE = {
    "workdir": "current_working_directory",
    "features": "constraints",
    "stdout": "standard_output",
    "stderr": "standard_error",
    "memory_per_node_mib": "memory_per_node",
    "memory_per_cpu_mib": "memory_per_cpu",
}
_CHANGED = {name: name for name in ("comment", "partition", "account", "qos", "dependency", "reservation", "nice")} | {
    "tasks": "tasks",
    "features": "constraints",
    "memory_per_node_mib": "memory_per_node",
    "memory_per_cpu_mib": "memory_per_cpu",
}
"""What an update was seen to change. The name, among others, is taken with 200 and stays as it was (22.05.8)."""


class V38:
    name = "v0.0.38"

    def since(self, at_s: int) -> str:
        return str(at_s)

    def moment(self, at_s: int) -> str:
        return f"uts{at_s}"

    def submission(self, wish: JobRequest) -> dict[str, Any]:
        job = _named(wish)
        job["environment"] = dict(wish.environment)
        if wish.nodes_min:
            most = max(wish.nodes_min, wish.nodes_max)
            job["nodes"] = wish.nodes_min if most == wish.nodes_min else f"{wish.nodes_min}-{most}"
        if wish.nodes_required:
            job["nodelist"] = names.compressed(wish.nodes_required)
        if wish.nodes_excluded:
            job["exclude_nodes"] = names.compressed(wish.nodes_excluded)
        if wish.gres_per_node:
            job["gres"] = gres_text(wish.gres_per_node)
        if wish.time_limit_s:
            job["time_limit"] = whole_minutes(wish.time_limit_s)
        if wish.exclusive:
            job["exclusive"] = "exclusive"
        if wish.held:
            job["hold"] = True
        if wish.requeue is not None:
            job["requeue" if wish.requeue else "no_requeue"] = True
        if wish.priority is not None:
            job["priority"] = str(wish.priority)
        if wish.begin_s:
            job["begin_time"] = f"uts{wish.begin_s}"
        if wish.deadline_s:
            job["deadline"] = f"uts{wish.deadline_s}"
        return {"script": wish.script, "job": job}

    def change(self, change: JobUpdate) -> dict[str, Any]:
        body: dict[str, Any] = {}
        for name, value in change.items():
            match name:
                case "held":
                    body["hold"] = value
                case "priority":
                    body["priority"] = value
                case "time_limit_s":
                    body["time_limit"] = "UNLIMITED" if value == UNLIMITED else whole_minutes(value)
                case "begin_s":
                    body["begin_time"] = f"uts{value}" if value else "now"
                case "nodes_min":
                    body["nodes"] = value
                case _ if name in _CHANGED:
                    body[_CHANGED[name]] = value
                case _:
                    raise SpecError(
                        name, f"cannot be changed through REST {self.name}, which takes it and does nothing"
                    )
        return body


def _named(wish: JobRequest) -> dict[str, Any]:
    """The fields that only want another name, where they are set."""
    job = {name: getattr(wish, name) for name in _SAME if getattr(wish, name)}
    job |= {theirs: getattr(wish, ours) for ours, theirs in _OTHERWISE.items() if getattr(wish, ours)}
    return job


_V42_SAME = ["name", "comment", "partition", "account", "qos", "array", "dependency", "reservation", "nice"]
_V42_OTHERWISE = {
    "workdir": "current_working_directory",
    "features": "constraints",
    "stdout": "standard_output",
    "stderr": "standard_error",
    "tasks": "tasks",
    "tasks_per_node": "tasks_per_node",
    "cpus_per_task": "cpus_per_task",
}
_LISTS = {"nodes_required": "required_nodes", "nodes_excluded": "excluded_nodes"}
_NUMBERS = {"memory_per_node_mib": "memory_per_node", "memory_per_cpu_mib": "memory_per_cpu", "priority": "priority"}


class V42:
    def __init__(self, name: str) -> None:
        self.name = name

    def since(self, at_s: int) -> str:
        """v0.0.40 and .41 take a plain number for no time."""
        return f"uts{at_s}"

    def moment(self, at_s: int) -> str:
        return f"uts{at_s}"

    def submission(self, wish: JobRequest) -> dict[str, Any]:
        job: dict[str, Any] = {
            theirs: getattr(wish, ours)
            for ours, theirs in [*((name, name) for name in _V42_SAME), *_V42_OTHERWISE.items()]
            if getattr(wish, ours)
        }
        job |= {theirs: list(getattr(wish, ours)) for ours, theirs in _LISTS.items() if getattr(wish, ours)}
        for ours, theirs in _NUMBERS.items():
            if getattr(wish, ours):
                job[theirs] = _set(getattr(wish, ours))
        job["environment"] = [f"{name}={value}" for name, value in wish.environment.items()]
        if wish.nodes_min:
            most = max(wish.nodes_min, wish.nodes_max)
            job["minimum_nodes"] = wish.nodes_min
            job["maximum_nodes"] = most
        if wish.gres_per_node:
            job["tres_per_node"] = gres_text(wish.gres_per_node, "gres/")
        if wish.time_limit_s:
            job["time_limit"] = _set(whole_minutes(wish.time_limit_s))
        if wish.exclusive:
            job["shared"] = ["none"]
        if wish.held:
            job["hold"] = True
        if wish.requeue is not None:
            job["requeue"] = wish.requeue
        if wish.begin_s:
            job["begin_time"] = _set(wish.begin_s)
        if wish.deadline_s:
            job["deadline"] = wish.deadline_s
        return {"script": wish.script, "job": job}

    def change(self, change: JobUpdate) -> dict[str, Any]:
        body: dict[str, Any] = {}
        for name, value in change.items():
            match name:
                case "held":
                    body["hold"] = value
                case "time_limit_s":
                    body["time_limit"] = _infinite() if value == UNLIMITED else _set(whole_minutes(value))
                case "begin_s":
                    body["begin_time"] = _set(value)
                case "nodes_min":
                    body["minimum_nodes"] = value
                case _ if name in _NUMBERS:
                    body[_NUMBERS[name]] = _set(value)
                case _ if name in _LISTS:
                    body[_LISTS[name]] = list(value)
                case _ if name in _V42_SAME:
                    body[name] = value
                case _ if name in _V42_OTHERWISE:
                    body[_V42_OTHERWISE[name]] = value
                case _:
                    raise SpecError(name, "is nothing that can be changed of a job")
        return body


def _set(number: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": number}


def _infinite() -> dict[str, Any]:
    return {"set": False, "infinite": True, "number": 0}
