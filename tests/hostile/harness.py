"""Plays a hostile case over real sockets and measures what it did to the process that asked and to its child.

Shared by all that runs through the cases: the library here, the drafting service, the shell and the console elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runbooks.drafts.model_answer import read_answer
from runbooks.drafts.typed_draft import DraftRejected
from runbooks.models.calls import ModelCall, ModelReply, ModelWorker, PromptMessage
from runbooks.models.endpoint import Endpoint, endpoint_of

HERE = Path(__file__).parent
CASES = HERE / "cases.yaml"

DEADLINE_MS = 400
MAX_BYTES = 256 * 1024
MAX_STALL_MS = 100
MAX_GROWTH_KIB = 64 * 1024
TRIES = 5
"""Of a case whose time was exceeded, each with four times the deadline of the one before: a machine that is busy with
something else is not what is measured."""
TICK_S = 0.005

KEY = "sk-canary-KEY-7f3a9c51"
PRIVATE = "canary-ENVIRONMENT-51c2e8"
"""Stands in variables of the environment that have no business on a wire."""


def cases(*groups: str) -> list[dict[str, Any]]:
    """Rows of cases.yaml, of these groups or of all."""
    rows: list[dict[str, Any]] = yaml.load(CASES.read_text(), yaml.CSafeLoader)
    return [row for row in rows if not groups or row["group"] in groups]


class Server:
    """The hostile server's process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), str(CASES), PRIVATE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        told = json.loads(self._line())
        self.ports: dict[str, int] = told["ports"]
        self.ca: str = told["ca"]

    def url(self, listener: str = "http", *, path: str = "/v1", tls: bool | None = None) -> str:
        secure = listener.startswith("tls") if tls is None else tls
        return f"{'https' if secure else 'http'}://127.0.0.1:{self.ports[listener]}{path}"

    def seen(self) -> dict[str, Any]:
        """Connections by listener, requests and canaries since this was asked for last."""
        assert self._process.stdin is not None
        self._process.stdin.write("seen\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.stop()


@dataclass
class Played:
    """What came of a case."""

    outcome: str
    """accepted, or the reason of the rejection."""
    wall_ms: float
    """From when the child was ready."""
    stall_ms: float
    """CPU time of this process in the longest turn of an event loop of it: what kept that from its next."""
    child_stall_ms: int
    growth_kib: int
    """Of this process, at most."""
    child_growth_kib: int
    attempts: int
    rung: str
    text: str
    """Everything that was told of it: of the rejection, or of the answer but its content."""
    answer: ModelReply | None = None
    seen: dict[str, Any] = field(default_factory=dict)

    def in_time(self, longer: int) -> bool:
        """For a deadline of so many times the usual one."""
        stalled = self.stall_ms > MAX_STALL_MS or self.child_stall_ms > MAX_STALL_MS * longer
        return not stalled and self.wall_ms <= 1.2 * DEADLINE_MS * longer


def worker_of(server: Server, row: dict[str, Any], folder: Path, longer: int = 1) -> ModelWorker:
    """A worker whose endpoint is where the row's case is played, with so many times the usual deadline."""
    listener = row.get("via", "http")
    path = f"/case/{row['id']}" if row.get("path") else "/v1"
    url = server.url(listener, path=path, tls=row.get("tls"))
    if "host" in row:
        url = url.replace("127.0.0.1", row["host"])
    ca_file = ""
    if row.get("ca"):
        (folder / "ca.pem").write_text(server.ca)
        ca_file = str(folder / "ca.pem")
    return ModelWorker(endpoint(url, row["id"], ca_file, DEADLINE_MS * longer), lambda: KEY)


def endpoint(url: str, model: str, ca_file: str = "", deadline_ms: int = DEADLINE_MS) -> Endpoint:
    return endpoint_of(url, model, egress="local", deadline_ms=deadline_ms, most_bytes=MAX_BYTES, ca_file=ca_file)


def call_of(row: dict[str, Any]) -> ModelCall:
    padding = "padding " * (row.get("prompt_kib", 0) * 128)
    return ModelCall(
        messages=(
            PromptMessage(role="system", content="You look at a cluster and answer with one JSON object."),
            PromptMessage(role="user", content=f"case={row['id']} seed={row.get('seed', 0)} {padding}"),
        ),
        schema={"type": "object"},
        schema_name="draft",
        max_tokens=1000,
    )


def needs_own_worker(row: dict[str, Any]) -> bool:
    return bool(row.keys() & {"via", "host", "tls", "ca", "path", "fresh"})


async def play(server: Server, worker: ModelWorker, row: dict[str, Any]) -> Played:
    """The case, once, from a thread beside a loop that ticks: as it is done beside the engine."""
    phases: list[tuple[float, str]] = []
    watch = _Watch(worker)
    server.seen()
    ticking = asyncio.create_task(watch.run())
    await asyncio.sleep(0)

    def work() -> tuple[ModelReply | None, DraftRejected | None, float]:
        answer = None
        try:
            answer = worker.ask(
                call_of(row),
                cancelled=threading.Event(),
                tell=lambda phase, _bytes: phases.append((time.monotonic(), phase)),
            )
            read_answer(answer.content, "act")
            return answer, None, time.monotonic()
        except DraftRejected as rejected:
            return answer, rejected, time.monotonic()

    answer, rejected, ended = await asyncio.to_thread(work)
    watch.look()
    ticking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ticking
    ready = next((at for at, phase in phases if phase == "asking"), ended)
    spent: Any = answer.spent if answer is not None else rejected.seen if rejected is not None else None
    return Played(
        outcome=rejected.reason if rejected is not None else "accepted",
        wall_ms=(ended - ready) * 1000,
        stall_ms=watch.stall_ms,
        child_stall_ms=spent.stall_ms,
        growth_kib=watch.growth_kib,
        child_growth_kib=watch.child_growth_kib,
        attempts=spent.attempts,
        rung=spent.rung,
        text=f"{rejected!s} {rejected!r} {spent!r} {answer!r}",
        answer=answer if rejected is None else None,
        seen=server.seen(),
    )


class _Watch:
    """Stalls of this process's loop, and memory of this process and of the worker's children."""

    def __init__(self, worker: ModelWorker) -> None:
        self._worker = worker
        self._own = rss_kib(os.getpid())
        self._children: dict[int, int] = {}
        self.stall_ms = 0.0
        self.growth_kib = 0
        self.child_growth_kib = 0

    async def run(self) -> None:
        turn = 0
        while True:
            asked = time.process_time()
            await asyncio.sleep(TICK_S)
            self.stall_ms = max(self.stall_ms, (time.process_time() - asked) * 1000)
            turn += 1
            if turn % 4 == 0:
                self.look()

    def look(self) -> None:
        self.growth_kib = max(self.growth_kib, rss_kib(os.getpid()) - self._own)
        for pid in self._worker.pids:
            now = rss_kib(pid)
            # Before it has loaded what it needs, it is not the case that makes it grow.
            first = self._children.setdefault(pid, now if now > CHILD_LOADED_KIB else 0) or now
            if now > CHILD_LOADED_KIB and not self._children[pid]:
                self._children[pid] = now
            self.child_growth_kib = max(self.child_growth_kib, now - max(first, CHILD_LOADED_KIB))


SENT_HEADERS = frozenset(
    (
        "host",
        "accept",
        "accept-encoding",
        "connection",
        "content-type",
        "content-length",
        "user-agent",
        "authorization",
    )
)
CHILD_LOADED_KIB = 45_000
"""What a child has that is ready and was asked nothing."""


def rss_kib(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def check(row: dict[str, Any], played: Played) -> None:
    """What the row expects, and what must hold after every case. Times are the caller's to check."""
    where = f"{row['id']} ({row['what']}): {played}"
    assert played.outcome in row["expect"], where
    if "attempts" in row:
        assert played.attempts == row["attempts"], where
    assert len(played.seen["requests"]) <= played.attempts <= 4, where
    if "rung" in row:
        assert played.rung == row["rung"], where
    if "estimated" in row:
        answer = played.answer
        assert answer is not None, where
        assert answer.estimated is row["estimated"], where
        assert 0 < answer.tokens_in < 10_000, where
        assert 0 < answer.tokens_out <= 1_000, where
    assert played.growth_kib <= MAX_GROWTH_KIB, where
    assert played.child_growth_kib <= MAX_GROWTH_KIB, where
    # Nothing went anywhere else, and nothing that was not to go.
    assert set(played.seen["connections"]) <= {row.get("via", "http")}, where
    assert not played.seen["canaries"], where
    for word in ("POISON", "LATE", KEY, PRIVATE):
        assert word not in played.text, where
    for request in played.seen["requests"]:
        assert set(request["headers"]) == SENT_HEADERS, where
    assert played.text.isprintable(), where
