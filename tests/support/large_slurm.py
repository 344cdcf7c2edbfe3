"""Answers of a Slurm with very many jobs, each entry as large as a recorded one, in both dialects: `large_slurm.py
VERSION JOBS` plays it and says where, so that what it holds is not counted with who asks.

Jobs of 200 users in 20 accounts; a sixth of them runs, four CPUs each, on nodes of 64; the others wait.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from played_slurm import PlayedSlurm, meta

SAMPLES = Path(__file__).resolve().parents[2].parent / "shared" / "slurm" / "samples"
RECORDED = {"v0.0.38": "22.05-v0.0.38", "v0.0.42": "24.11-v0.0.42"}
RELEASES = {"v0.0.38": "22.05.8", "v0.0.42": "24.11.5"}
CPUS, SHARE = 64, 4
"""Of a node; of a job that runs."""
_WAITS_AS = {"v0.0.38": ("idle", "PENDING", "RUNNING"), "v0.0.42": (["IDLE"], ["PENDING"], ["RUNNING"])}


class LargeSlurm:
    """What it would answer. `jobs` is one text of `size` jobs."""

    def __init__(self, version: str, size: int) -> None:
        self.version, self.size = version, size
        self.now_s = int(time.time())
        self.running = size // 6
        self.hosts = [f"node{n:05d}" for n in range(1, -(-self.running // (CPUS // SHARE)) + 1)]

    def jobs(self) -> bytes:
        """As slurmrestd writes it: v0.0.42 with line breaks, v0.0.38 with the list at the end."""
        entries = ",\n".join(self._entries())
        about = json.dumps(meta(RELEASES[self.version]))[1:-1]
        if self.version == "v0.0.38":
            return f'{{{about}, "jobs": [{entries}]}}'.encode()
        last = json.dumps(self._number(self.now_s))
        return f'{{"jobs": [{entries}], "last_backfill": {last}, "last_update": {last}, {about}}}'.encode()

    def nodes(self) -> bytes:
        entry = self._recorded("nodes")["nodes"][0]
        state = _WAITS_AS[self.version][0]
        return self._list("nodes", [
            {**entry, "name": name, "hostname": name, "address": name, "cpus": CPUS, "effective_cpus": CPUS,
             "state": state, "state_flags": [], "partitions": ["batch"], "gres": "", "real_memory": 256_000}
            for name in self.hosts
        ])  # fmt: skip

    def partitions(self) -> bytes:
        entry = self._recorded("partitions")["partitions"][0]
        hosts = f"node[00001-{len(self.hosts):05d}]"
        nodes = hosts if self.version == "v0.0.38" else {**entry["nodes"], "configured": hosts}
        return self._list("partitions", [{**entry, "name": "batch", "nodes": nodes}])

    def states(self) -> bytes:
        """`jobs/state` of v0.0.42."""
        waits, runs = _WAITS_AS["v0.0.42"][1:]
        return self._list("jobs", [
            {"job_id": str(n), "state": runs if n <= self.running else waits} for n in range(1, self.size + 1)
        ])  # fmt: skip

    def play(self) -> PlayedSlurm:
        jobs, nodes, partitions, states = self.jobs(), self.nodes(), self.partitions(), self.states()
        played = PlayedSlurm(self.version, partitions=(200, partitions), nodes=(200, nodes), jobs=(200, jobs))
        played.answers["jobs/state"] = 200, states
        played.answers["reservations"] = 200, self._list("reservations", [])
        return played

    def _entries(self) -> Iterator[str]:
        entry = self._recorded("job_held")["jobs"][0]
        entry |= {"comment": "", "hold": False, "state_reason": "Priority", "partition": "batch"}
        # All that differs is filled in by one pass over the text of an entry.
        marks = {
            "job_id": "\0id", "name": "\0name", "user_name": "\0user", "account": "\0account", "submit_time": "\0came",
            "eligible_time": "\0came", "time_limit": "\0limit", "priority": "\0priority", "cpus": "\0cpus",
            "tres_req_str": "\0tres",
        }  # fmt: skip
        for name, mark in marks.items():
            numeric = name not in ("name", "user_name", "account", "tres_req_str", "job_id")
            entry[name] = self._number(mark) if numeric else mark
        waits = json.dumps(entry, indent=None if self.version == "v0.0.38" else 2)
        nodes = {"nodes": "\0host", "node_count": self._number(1), "start_time": self._number("\0began")}
        entry |= {"job_state": _WAITS_AS[self.version][2], "tres_alloc_str": "\0tres", "state_reason": "None", **nodes}
        runs = json.dumps(entry, indent=None if self.version == "v0.0.38" else 2)
        kinds = [_split(text) for text in (waits, runs)]
        for n in range(1, self.size + 1):
            cpus = SHARE if n <= self.running else 1 + n % 8
            came = self.now_s - 86_400 + 43_200 * n // self.size
            values = {
                "id": n, "came": came, "began": came + 600, "limit": 10 + n % 29 * 50, "priority": 200_000 - n,
                "cpus": cpus, "name": f'"train-{n % 997}"', "user": f'"user{n % 200:03d}"',
                "account": f'"lab{n % 20:02d}"', "tres": f'"cpu={cpus},mem=100M,node=1,billing={cpus}"',
                "host": f'"{self.hosts[(n - 1) // (CPUS // SHARE) % len(self.hosts)]}"',
            }  # fmt: skip
            texts, names = kinds[n <= self.running]
            yield "".join([texts[0], *(f"{values[name]}{text}" for name, text in zip(names, texts[1:], strict=True))])

    def _number(self, value: Any) -> Any:
        return value if self.version == "v0.0.38" else {"set": True, "infinite": False, "number": value}

    def _recorded(self, name: str) -> Any:
        return json.loads((SAMPLES / RECORDED[self.version] / f"{name}.json").read_text())["response"]

    def _list(self, name: str, entries: list[Any]) -> bytes:
        about = meta(RELEASES[self.version])
        return json.dumps({name: entries, "last_update": self._number(self.now_s), **about}).encode()


def _split(entry: str) -> tuple[list[str], list[str]]:
    """The text between its marks, and their names."""
    texts, names = [], []
    for n, part in enumerate(entry.split('"\\u0000')):
        if n:
            name, _, part = part.partition('"')
            names.append(name)
        texts.append(part)
    return texts, names


def main() -> None:
    played = LargeSlurm(sys.argv[1], int(sys.argv[2])).play()
    print(played.url, flush=True)
    sys.stdin.read()
    played.close()


if __name__ == "__main__":
    main()
