"""v0.0.38, of releases 22.05 to 23.11: numbers plain, options named as those of `sbatch`."""

from __future__ import annotations

from typing import Any

from engine.external.slurm import hostlist
from engine.external.slurm.dialects.dialect import JobUpdate, gres_text, whole_minutes
from engine.external.slurm.records import UNLIMITED, JobRequest
from engine.model.errors import SpecError

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
            job["nodelist"] = hostlist.compressed(wish.nodes_required)
        if wish.nodes_excluded:
            job["exclude_nodes"] = hostlist.compressed(wish.nodes_excluded)
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
