"""Clients of an engine that is killed and cut off: they submit, propose and approve, each with a key of its own, and
ask again until they are told. What they were told they write down, a line each:

    kept NAME | refused NAME WHY | proposed ID ACTION NAME | approved ID | ended ID STATE NOTE

    python chaos_clients.py URL FILE SEED          until SIGTERM: then they finish what they have begun
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from typing import Any

import httpx
import msgspec

from engine.model.commands import Submit
from engine.model.specs import Resources, RunSpec, TaskGroup, WorkloadSpec
from runbooks.plans.typed_plan import Proposal, asks
from tests.support.patience import PATIENCE_S

SUBMITTERS = 3
ACTORS = 2
PACE_S = 1.2
"""Between two submissions of one client, on average."""
WAITS_MS = 6 * 3_600_000
"""Most jobs wait for a time that does not come: what Slurm knows of them stays in its list."""
MACHINES = (("cordon", "gpu001"), ("hold_queue", "gpu"), ("uncordon", "gpu001"), ("open_queue", "gpu"))
"""In turn, of what no job here needs."""
DONE = ("verified", "failed", "rolled_back", "rollback_failed", "rejected", "stale", "expired", "cancelled", "paused")
UNKNOWN = "not known"
"""In a refusal: the engine ended in the midst of it."""
SEEN_TO_S = 5.0
"""An engine that is back has carried out by then what is mild; what is not it leaves to who approved it."""
FINISH_S = PATIENCE_S


class Refused(Exception):
    pass


class Person:
    """One client, on a connection of its own."""

    def __init__(self, url: str, told: int, stop: threading.Event, seed: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=8, trust_env=False)
        self._told = told
        self._stop = stop
        self.rng = random.Random(seed)
        self.name = seed

    def say(self, *words: str) -> None:
        os.write(self._told, (" ".join(words).replace("\n", " ") + "\n").encode())

    def ask(self, method: str, path: str, body: object = None, key: str = "") -> bytes:
        """Until there is an answer that is one. Raises Refused."""
        content = b"" if body is None else msgspec.json.encode(body)
        headers = {"Idempotency-Key": key} if key else {}
        while True:
            try:
                answer = self._http.request(method, path, content=content, headers=headers)
            except httpx.HTTPError:
                time.sleep(0.2)
                continue
            if answer.status_code == 200:
                return answer.content
            if answer.status_code in (429, 500, 502, 503):
                if answer.status_code == 500:
                    self.say("defect", path, answer.text[:300])
                time.sleep(0.3)
                continue
            raise Refused(answer.json().get("problem", answer.text[:300]))

    def submit(self, name: str, *, runs: bool = False) -> bool:
        group = TaskGroup(request=Resources(cpu_milli=1000, memory_mib=20))
        spec = WorkloadSpec(
            id=name, queue="batch", groups=(group,), run=RunSpec(argv=("sleep", "86400"), cwd="/tmp"),
            not_before_ms=0 if runs else time.time_ns() // 1_000_000 + WAITS_MS, rerun="always",
        )  # fmt: skip
        try:
            self.ask("POST", "/v1/command", Submit(workloads=(spec,)), key=f"submit-{name}")
        except Refused as error:
            self.say("refused", name, str(error))
            return False
        self.say("kept", name)
        return True

    # -- acts ---------------------------------------------------------------------------------------------------------

    def propose(self, action: Any, name: str, wish: str) -> Proposal | None:
        """The one proposal of that wish, which its reason names; None where it was refused."""
        more = {"to": str(self.rng.randint(1000, 9999))} if action == "set_job_priority" else {}
        request = asks(action, (name,), wish, **more)
        for again in range(20):
            try:
                return self._decoded(self.ask("POST", "/v1/propose", request, key=f"{wish}/{again}"))
            except Refused as error:
                if UNKNOWN not in str(error):
                    self.say("unproposed", action, name, str(error))
                    return None
            found = msgspec.json.decode(self.ask("GET", "/v1/proposals?limit=1000"), type=tuple[Proposal, ...])
            mine = [proposal for proposal in found if proposal.reason == wish]
            if mine:
                return mine[0]
        return None

    def approve(self, proposal: Proposal) -> bool:
        for again in range(20):
            vote = {"proposal": proposal.id, "digest": proposal.digest, "comment": "seen and wanted"}
            try:
                self.ask("POST", "/v1/approve", vote, key=f"approve-{proposal.id}/{again}")
                return True
            except Refused as error:
                if UNKNOWN not in str(error):
                    self.say("unapproved", proposal.id, str(error))
                    return False
            time.sleep(SEEN_TO_S)
            if self.standing(proposal.id).state not in ("awaiting", "approved"):
                return True
        return False

    def standing(self, proposal_id: str) -> Proposal:
        return self._decoded(self.ask("GET", f"/v1/proposals/{proposal_id}"))

    def _decoded(self, content: bytes) -> Proposal:
        return msgspec.json.decode(content, type=Proposal)

    # -- what they do all day -----------------------------------------------------------------------------------------

    def submit_all_day(self) -> None:
        number = 0
        while not self._stop.wait(self.rng.uniform(0.2, 1.8) * PACE_S):
            self.submit(f"{self.name}-{number}")
            number += 1

    def act_all_day(self) -> None:
        """A few jobs at a time, on each one act after the other, the next when the last has ended."""
        jobs: dict[str, list[str]] = {}
        under_way: dict[str, str] = {}
        number = 0
        while not self._stop.wait(self.rng.uniform(0.1, 0.5)):
            if len(jobs) < 6:
                name = f"{self.name}-{number}"
                number += 1
                runs = self.rng.random() < 0.3
                if self.submit(name, runs=runs):
                    jobs[name] = self._acts(runs)
            self._act(jobs, under_way)
        self._finish(under_way)

    def _finish(self, under_way: dict[str, str]) -> None:
        give_up = time.monotonic() + FINISH_S
        while under_way and time.monotonic() < give_up:
            time.sleep(0.5)
            self._look(under_way)

    def _acts(self, runs: bool) -> list[str]:
        """In this order: the last is popped first."""
        if runs:
            return self.rng.choice((["cancel", "requeue"], ["requeue"], ["cancel"]))
        return self.rng.choice(
            (["hold"], ["release", "hold"], ["hold", "release", "hold"], ["cancel", "hold"], ["set_job_priority"])
        )

    def look_after_machines(self) -> None:
        """One act after the other, the next when the last has ended."""
        under_way: dict[str, str] = {}
        number = 0
        while not self._stop.wait(self.rng.uniform(0.5, 1.5)):
            self._look(under_way)
            if under_way:
                continue
            action, target = MACHINES[number % len(MACHINES)]
            proposal = self.propose(action, target, f"{self.name} {number} {action}")
            number += 1
            if proposal is not None:
                self.say("proposed", proposal.id, action, target)
                if self.approve(proposal):
                    self.say("approved", proposal.id)
                    under_way[target] = proposal.id
        self._finish(under_way)

    def _act(self, jobs: dict[str, list[str]], under_way: dict[str, str]) -> None:
        self._look(under_way)
        for name, acts in list(jobs.items()):
            if name in under_way or not self._is_there(name, acts):
                continue
            if not acts:
                del jobs[name]
                continue
            action = acts.pop()
            proposal = self.propose(action, name, f"{name} {len(acts)} {action}")
            if proposal is None:
                continue
            self.say("proposed", proposal.id, action, name)
            if self.approve(proposal):
                self.say("approved", proposal.id)
                under_way[name] = proposal.id

    def _is_there(self, name: str, acts: list[str]) -> bool:
        """Whether the mirror has it, and where it is to be requeued shows it running."""
        try:
            state = msgspec.json.decode(self.ask("GET", f"/v1/workloads/{name}"))["state"]
        except Refused:
            return False
        return state == "running" or acts[-1:] != ["requeue"]

    def _look(self, under_way: dict[str, str]) -> None:
        for name, proposal_id in list(under_way.items()):
            now = self.standing(proposal_id)
            if now.state in DONE:
                self.say("ended", now.id, now.state, now.note)
                del under_way[name]


def main(url: str, told_path: str, seed: str) -> None:
    told = os.open(told_path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    submitters = [Person(url, told, stop, f"s{seed}-{i}") for i in range(SUBMITTERS)]
    actors = [Person(url, told, stop, f"a{seed}-{i}") for i in range(ACTORS)]
    threads = [threading.Thread(target=person.submit_all_day) for person in submitters]
    threads += [threading.Thread(target=person.act_all_day) for person in actors]
    keeper = Person(url, told, stop, f"m{seed}")
    threads.append(threading.Thread(target=keeper.look_after_machines))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
