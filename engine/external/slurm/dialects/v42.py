"""v0.0.40 to v0.0.42, of releases 23.11 to 26.05: numbers with `set`, options named as the controller names them."""

from __future__ import annotations

from typing import Any

from engine.external.slurm.dialects.dialect import JobUpdate, gres_text, whole_minutes
from engine.external.slurm.records import UNLIMITED, JobRequest
from engine.model.errors import SpecError

_SAME = ["name", "comment", "partition", "account", "qos", "array", "dependency", "reservation", "nice"]
_OTHERWISE = {
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
            for ours, theirs in [*((name, name) for name in _SAME), *_OTHERWISE.items()]
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
                case _ if name in _SAME:
                    body[name] = value
                case _ if name in _OTHERWISE:
                    body[_OTHERWISE[name]] = value
                case _:
                    raise SpecError(name, "is nothing that can be changed of a job")
        return body


def _set(number: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": number}


def _infinite() -> dict[str, Any]:
    return {"set": False, "infinite": True, "number": 0}
