"""Groups A to D over real sockets: every answer of a hostile server is a typed rejection or a whole answer, in time.

Beside the case's own outcome, `harness.check` asserts what must always hold, and after each case the next question to
the same child is answered as if nothing had been.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runbooks.drafts.typed_draft import REASONS
from runbooks.models.calls import ModelWorker
from tests.hostile.harness import (
    PRIVATE,
    TRIES,
    Played,
    Server,
    cases,
    check,
    needs_own_worker,
    play,
    serving,
    worker_of,
)

ENVIRONMENT = {
    "OPENAI_API_KEY": PRIVATE,
    "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
    "OPENAI_ORG_ID": PRIVATE,
    "OPENAI_PROJECT_ID": PRIVATE,
    "OPENAI_CUSTOM_HEADERS": f"Authorization: Bearer {PRIVATE}\nX-Extra: {PRIVATE}",
    "OPENAI_LOG": "debug",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "socks5://127.0.0.1:9",
    "NETRC": "/etc/hostname",
    "SSL_CERT_FILE": "/etc/hostname",
    "SSLKEYLOGFILE": "/dev/full",
    "PYTHONPATH": "/nowhere",
    "PYTHONSTARTUP": "/nowhere",
    "PYTHONHTTPSVERIFY": "0",
    "PYTHONWARNINGS": "error",
    "LD_PRELOAD": "",
    "AWS_SECRET_ACCESS_KEY": PRIVATE,
}
"""What would redirect or change a call, if it were looked at."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


async def _run(rows: list[dict[str, Any]], server: Server, folder: Path) -> None:
    """Each row, and a good answer after it."""
    shared = worker_of(server, {"id": "shared"}, folder)
    try:
        # What is loaded on first use is loaded; the next measures see the cases alone.
        first = await _good(server, shared)
        assert first.outcome == "accepted", first
        for row in rows:
            worker = worker_of(server, row, folder) if needs_own_worker(row) else shared
            try:
                for attempt in range(TRIES):
                    longer = 4**attempt
                    # Where the deadline ends it, only the look at how late it did grows more patient.
                    played = await _played(server, worker, row, folder, 1 if "deadline" in row["expect"] else longer)
                    last = attempt == TRIES - 1
                    if not last and played.outcome == "deadline" != row["expect"][0]:
                        continue
                    check(row, played)
                    if played.in_time(longer) or "rung" in row:
                        break
                    assert not last, f"over its time: {played}"
                if worker is shared:
                    after = await _good(server, worker)
                    assert after.outcome == "accepted", f"after {row['id']}: {after}"
                    assert after.answer is not None
                    assert "Nothing is wrong" in after.answer.content
            finally:
                if worker is not shared:
                    worker.close()
    finally:
        shared.close()


async def _good(server: Server, worker: ModelWorker) -> Played:
    """A good answer, which may come too late where the machine is busy with something else."""
    for _ in range(TRIES):
        played = await play(server, worker, {"id": "good"})
        if played.outcome != "deadline":
            break
    return played


async def _played(server: Server, worker: ModelWorker, row: dict[str, Any], folder: Path, longer: int) -> Played:
    """By that worker, or by one of its own with a longer deadline."""
    if longer == 1:
        return await play(server, worker, row)
    own = worker_of(server, row, folder, longer)
    try:
        await _good(server, own)
        return await play(server, own, row)
    finally:
        own.close()


@pytest.fixture
def hostile_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setenv(name.lower(), value)


@pytest.mark.thorough
@pytest.mark.usefixtures("hostile_environment")
async def test_the_worst_of_each_kind(server: Server, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    await _run([row for row in cases("A", "B", "C", "D") if row.get("brief")], server, tmp_path)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.thorough
@pytest.mark.parametrize("group", ["A", "B", "C", "D"])
async def test_every_case(server: Server, tmp_path: Path, group: str) -> None:
    rows = [row for row in cases(group) if not row.keys() & {"brief", "service"}]
    await _run(rows, server, tmp_path)


@pytest.mark.thorough
async def test_answers_that_are_broken_at_random(server: Server, tmp_path: Path) -> None:
    """Bytes of a good answer changed, cut out and doubled: a rejection, or the answer, and never anything else."""
    worker = worker_of(server, {"id": "shared"}, tmp_path)
    outcomes: Counter[str] = Counter()
    try:
        for seed in range(200):
            row = {"id": "fuzz", "what": f"seed {seed}", "seed": seed, "expect": REASONS | {"accepted", "http_status"}}
            played = await play(server, worker, row)
            if played.outcome.startswith("http_"):
                played.outcome = "http_status"
            check(row, played)
            outcomes[played.outcome] += 1
    finally:
        worker.close()
    assert outcomes["accepted"] > 3
    assert len(outcomes) > 5
