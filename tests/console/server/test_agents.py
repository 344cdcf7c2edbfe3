"""Agents on nodes over a real socket: they register, call, fall silent, come back."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from console.client.remote import RemoteClient
from console.client.sockets import bind_unix
from console.server.agents import MAX_BEATS
from console.text.plain_tables import overview_lines
from console.views.findings import of_the_cell
from console.views.nodes import node_columns
from console.views.sections import Line
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.specs import HealthSettings, Settings
from engine.state.machines import FLAPS
from tests.console.server.test_server import over_unix, refused
from tests.support.cells import small_cell
from tests.support.patience import PATIENCE_S
from tests.support.served import gpu_job, running_loop, served_on_unix, serving, socket_folder

MSGPACK = {"content-type": "application/msgpack"}


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def http(loop: EngineLoop) -> Iterator[httpx.Client]:
    with served_on_unix(loop) as path, over_unix(path) as client:
        yield client


def post(http: httpx.Client, what: str, value: Any, *, packed: bool = True) -> Any:
    """The answer, decoded, in the format of the request."""
    if not packed:
        answer = http.post(f"/v1/agents/{what}", content=msgspec.json.encode(value))
        assert answer.status_code == 200, answer.text
        return answer.json()
    answer = http.post(f"/v1/agents/{what}", content=msgspec.msgpack.encode(value), headers=MSGPACK)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/msgpack"
    return msgspec.msgpack.decode(answer.content)


def beats(known: dict[str, Any], number: int, skew_ms: int = 0) -> dict[str, bytes]:
    count = len(known["rows"])
    return {
        "rows": np.array(known["rows"], np.int32).tobytes(),
        "epochs": np.array(known["epochs"], np.int32).tobytes(),
        "numbers": np.full(count, number, np.int32).tobytes(),
        "clocks_ms": np.full(count, time.time_ns() // 1_000_000 + skew_ms, np.int64).tobytes(),
    }


def taken(renewed: int, repeated: int, refused: list[int]) -> dict[str, Any]:
    return {"renewed": renewed, "repeated": repeated, "refused": refused, "forbidden": []}


@pytest.mark.parametrize("packed", [True, False])
def test_an_agent_registers_and_calls(http: httpx.Client, loop: EngineLoop, packed: bool) -> None:
    known = post(http, "register", {"nodes": ["g0", "g1", "g0"]}, packed=packed)
    assert (list(known["nodes"]), list(known["refused"]), known["heartbeat_every_s"]) == (["g0", "g1"], [], 10.0)
    assert post(http, "heartbeats", beats(known, 1), packed=packed) == taken(2, 0, [])
    assert post(http, "heartbeats", beats(known, 1), packed=packed) == taken(0, 2, [])
    again = post(http, "register", {"nodes": ["g1"]}, packed=packed)
    assert post(http, "heartbeats", beats(known, 2), packed=packed) == taken(1, 0, [1])
    assert post(http, "heartbeats", beats(again, 1), packed=packed)["renewed"] == 1
    assert loop.call(lambda engine: engine.overview()).watched == 2


def test_nodes_that_nobody_ordered_are_refused_and_told(http: httpx.Client) -> None:
    known = post(http, "register", {"nodes": ["g0", "stranger", "\x1b[31mred"]})
    assert list(known["refused"]) == ["stranger", "\x1b[31mred"]
    findings = [found["suggestion"]["finding"] for found in http.get("/v1/recommendations").json()["open"]]
    assert any("2 nodes that nobody ordered" in finding for finding in findings)


def test_a_clock_that_is_off_is_told(http: httpx.Client) -> None:
    known = post(http, "register", {"nodes": ["g0", "g1"]})
    post(http, "heartbeats", beats(known, 1, skew_ms=-3_600_000))
    findings = [found["suggestion"]["finding"] for found in http.get("/v1/recommendations").json()["open"]]
    assert any("clocks of 2 nodes are off" in finding and "behind" in finding for finding in findings)
    post(http, "heartbeats", beats(known, 2))
    assert not http.get("/v1/recommendations").json()["open"]


def test_progress_and_use_are_told_and_a_straggler_is_a_suggestion(http: httpx.Client, loop: EngineLoop) -> None:
    loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("job", tasks=4),))))
    known = post(http, "register", {"nodes": ["g0", "g1", "g2", "g3"]})
    for sample in range(1, 4):
        reports = [
            {
                "row": row,
                "epoch": epoch,
                "number": sample,
                "tasks": [["job", task, 30 * sample if task != 1 else 15 * sample]],
                "usage": [["job", 1000, 64]],
            }
            for task, (row, epoch) in enumerate(zip(known["rows"], known["epochs"], strict=True))
        ]
        assert post(http, "status", {"reports": reports}) == {"taken": 4, "refused": [], "forbidden": []}
    found = http.get("/v1/recommendations").json()["open"][0]["suggestion"]
    assert (found["action"], found["targets"]) == ("drain", ["g1"])
    assert "0.5 of the gang's median, 3 samples" in found["finding"]
    assert post(http, "status", {"reports": [{"row": 9, "epoch": 1, "number": 1}]})["refused"] == [0]
    assert http.get("/v1/nodes/g1").json()["state"] == "ready"


@pytest.mark.parametrize(
    ("what", "body", "where"),
    [
        ("register", b"", "body"),
        ("register", b"\xc1", "body"),
        ("register", msgspec.msgpack.encode({"nodes": 7}), "nodes"),
        ("register", msgspec.msgpack.encode({"nodes": ["g0"], "more": 1}), "more"),
        ("heartbeats", msgspec.msgpack.encode({"rows": b"123", "epochs": b"", "numbers": b""}), "rows"),
        ("heartbeats", msgspec.msgpack.encode({"rows": b"1234", "epochs": b"", "numbers": b"1234"}), "epochs"),
        (
            "heartbeats",
            msgspec.msgpack.encode({"rows": b"", "epochs": b"", "numbers": b"", "clocks_ms": bytes(8)}),
            "clocks_ms",
        ),
        ("status", msgspec.msgpack.encode({"reports": [{"row": "x"}]}), "reports[0]"),
        ("status", b"\x91" * 100_000, "body"),
    ],
    ids=range(9),
)
def test_what_is_malformed_is_refused_with_its_place(http: httpx.Client, what: str, body: bytes, where: str) -> None:
    answer = http.post(f"/v1/agents/{what}", content=body, headers=MSGPACK)
    assert where in refused(answer, 400, "invalid")["problem"]
    assert post(http, "register", {"nodes": []})["heartbeat_every_s"] > 0


def test_a_batch_has_a_limit(http: httpx.Client) -> None:
    column = bytes(4 * (MAX_BEATS + 1))
    content = msgspec.msgpack.encode({"rows": column, "epochs": column, "numbers": column})
    answer = http.post("/v1/agents/heartbeats", content=content, headers=MSGPACK)
    assert "rows" in refused(answer, 400, "invalid")["problem"]


def test_a_read_only_server_refuses_agents_and_suspects_nobody() -> None:
    settings = Settings(health=HealthSettings(heartbeat_every_ms=100, suspect_after_ms=1000, grace_ms=0))
    engine = Engine.open(None, cell=msgspec.structs.replace(small_cell(), settings=settings))
    engine.agents.register(["g0"])
    loop = EngineLoop(engine)
    loop.start()
    try:
        with served_on_unix(loop, read_only=True) as path, over_unix(path) as http:
            for what in ("register", "heartbeats", "status"):
                refused(http.post(f"/v1/agents/{what}", content=b"{}"), 403, "refused")
            assert loop.call(lambda engine: engine.agents.leases.count) == 0
            loop.call(lambda engine: engine.advance(engine.now_ms + 60_000))
            assert http.get("/v1/nodes/g0").json()["state"] == "ready"
    finally:
        loop.stop()
        engine.close()


def test_web_pages_cannot_speak_as_agents(http: httpx.Client) -> None:
    answer = http.post("/v1/agents/register", content=b"{}", headers={"origin": "http://evil.example"})
    refused(answer, 403, "refused")


def agent_process(path: Path, *nodes: str) -> subprocess.Popen[bytes]:
    given = [part for name in nodes for part in ("--node", name)]
    return subprocess.Popen(
        [sys.executable, "-m", "console.cli.main", "node", "agent", "--connect", str(path), *given],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def wait_for(client: RemoteClient, what: Any) -> None:
    """Until what is asked of the cell holds: looked at after each of its changes."""
    version, end = -1, time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end, f"not within {PATIENCE_S} s: {client.changes(0, 0).items[-8:]}"
        version = client.changes(max(version, client.health().version), 0.5).version


@pytest.mark.thorough
def test_an_agent_dies_its_node_is_lost_its_work_moves_and_it_returns() -> None:
    settings = Settings(health=HealthSettings(heartbeat_every_ms=200, suspect_after_ms=3000, grace_ms=500))
    engine = Engine.open(None, cell=msgspec.structs.replace(small_cell(gpu_nodes=2), settings=settings))
    loop = EngineLoop(engine)
    loop.start()
    processes = []
    try:
        with socket_folder() as folder:
            path = folder / "engine.sock"
            with serving(loop, bind_unix(path)), closing(RemoteClient(str(path))) as client:
                processes.append(agent_process(path, "g0"))
                wait_for(client, lambda: client.overview().watched == 1)
                client.command(Submit(workloads=(gpu_job("job"),)))
                assert dict(client.node("g0").workloads) == {"job": 1}
                processes[0].kill()
                wait_for(client, lambda: client.node("g0").state == "suspect")
                assert client.workload("job").state == "running"
                wait_for(client, lambda: client.node("g0").state == "down")
                assert dict(client.node("g1").workloads) == {"job": 1}
                assert [item.what for item in client.workload("job").history].count("requeued") == 1
                processes.append(agent_process(path, "g0"))
                wait_for(client, lambda: client.node("g0").state == "ready")
            # Another server, which does not know its token: it registers again by itself.
            with serving(loop, bind_unix(path)), closing(RemoteClient(str(path))) as client:
                wait_for(client, lambda: loop.call(lambda engine: engine.agents.renewed) > 0)
                before = loop.call(lambda engine: engine.agents.renewed)
                wait_for(client, lambda: loop.call(lambda engine: engine.agents.renewed) > before + 2)
                assert client.node("g0").state == "ready"
                assert client.node("g0").note == ""
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stderr.close()
        loop.stop()
        engine.close()


def test_an_agent_of_a_node_that_is_not_there_says_so_and_ends(loop: EngineLoop) -> None:
    with served_on_unix(loop) as path:
        process = agent_process(path, "nobody")
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert b"the cell has no node nobody" in said


def plain(line: Line) -> str:
    return "".join(text for text, _ in line.spans)


def test_suspects_and_nodes_kept_out_are_seen_on_the_overview_and_the_page_of_the_node() -> None:
    health = HealthSettings(heartbeat_every_ms=100, suspect_after_ms=1000, grace_ms=60_000)
    cell = msgspec.structs.replace(small_cell(gpu_nodes=6), settings=Settings(health=health))
    engine = Engine.open(None, cell=cell)
    engine.agents.register([f"g{i}" for i in range(6)])
    engine.advance(1000)
    (nodes,) = [line for line in overview_lines(engine.overview()) if line.startswith("nodes")]
    assert nodes.endswith("6 suspect; possibly the network: only a few are declared lost at a time")
    assert any("6 nodes suspect: network problem?" in found.text for found in of_the_cell(engine.overview()))
    engine.state.failures.note([0], FLAPS)
    left, _ = node_columns(engine.node("g0"), 60)
    assert any("excluded" in plain(line) and "flaps" in plain(line) for section in left for line in section.lines)
