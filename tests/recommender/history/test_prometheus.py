"""Figures of a real Prometheus become our samples; one that is silent, slow or none of its kind is told from one that
knows nothing."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from engine.model.errors import MusterError, SpecError, UnreachableError
from recommender.history import prometheus
from recommender.history.metrics import SampleRow
from recommender.history.prometheus import (
    RULES,
    MetricQuery,
    NodeNames,
    Prometheus,
    PrometheusSeries,
    ask,
    told,
    windows,
    without_port,
)
from tests.support.prometheus_server import prometheus_holding

MINUTE_MS = 60_000
T0_S = 1_700_000_400 // 3600 * 3600
RULE = {rule.metric: rule for rule in RULES}
NODES = NodeNames(["gpu-1", "gpu-2", "cpu-1.lab.example", "10.0.0.9"])
MINUTES = 40
SILENT = range(10, 14)
"""Minutes in which gpu-2 was not scraped."""


def lines() -> Iterator[str]:
    """What two DCGM exporters and three node-exporters said, minute by minute."""

    def family(name: str, kind: str, labels: list[str], value: Callable[[str, int], float]) -> Iterator[str]:
        yield f"# TYPE {name.removesuffix('_total') if kind == 'counter' else name} {kind}"
        for label in labels:
            for minute in range(MINUTES):
                if not ("gpu-2" in label and minute in SILENT):
                    yield f"{name}{{{label}}} {value(label, minute)} {T0_S + 60 * minute}"

    gpus = [f'Hostname="gpu-{n}",gpu="{k}",instance="10.1.1.{n}:9400"' for n in (1, 2) for k in range(4)]
    machines = [f'instance="{name}:9100"' for name in ("gpu-1", "cpu-1.lab.example", "stranger")]

    def index(label: str) -> int:
        return int(label.partition('gpu="')[2][0])

    yield from family("DCGM_FI_DEV_GPU_UTIL", "gauge", gpus, lambda label, minute: 10 * index(label) + minute)
    yield from family("DCGM_FI_DEV_FB_USED", "gauge", gpus, lambda label, minute: 1000 + index(label))
    yield from family("DCGM_FI_DEV_FB_FREE", "gauge", gpus, lambda label, minute: 3000 - index(label))
    yield from family("DCGM_FI_DEV_GPU_TEMP", "gauge", gpus, lambda label, minute: 60 + index(label))
    yield from family("DCGM_FI_DEV_POWER_USAGE", "gauge", gpus, lambda label, minute: 100)
    throttled = {0: 0x40, 1: 0x4, 2: 0x80, 3: 0}
    yield from family(
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", gpus, lambda label, minute: throttled[index(label)]
    )
    # GPU 0 counts up by two every ten minutes; GPU 1 starts anew at minute 20, having shown 5, and shows 1 then.
    ecc = {0: lambda minute: 2 * (minute // 10), 1: lambda minute: 5 if minute < 20 else 1}
    yield from family(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "gauge",
        gpus,
        lambda label, minute: ecc.get(index(label), lambda minute: 0)(minute),
    )
    xid = {2: lambda minute: 0 if minute < 5 else 79 if minute < 25 else 48}
    yield from family(
        "DCGM_FI_DEV_XID_ERRORS", "gauge", gpus, lambda label, minute: xid.get(index(label), lambda minute: 0)(minute)
    )
    yield from family("node_load1", "gauge", machines, lambda label, minute: 1.5)
    yield from family("node_memory_MemTotal_bytes", "gauge", machines, lambda label, minute: 4e9)
    yield from family("node_memory_MemAvailable_bytes", "gauge", machines, lambda label, minute: 1e9)
    cpus = [f'{label},cpu="{n}",mode="{mode}"' for label in machines for n in (0, 1) for mode in ("idle", "user")]
    # A quarter busy; the machine starts anew at minute 30.
    yield from family(
        "node_cpu_seconds_total",
        "counter",
        cpus,
        lambda label, minute: (minute if minute < 30 else minute - 29) * (45.0 if "idle" in label else 15.0),
    )
    yield "# EOF"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real Prometheus that holds `lines`."""
    with prometheus_holding(lines(), tmp_path_factory.mktemp("prometheus")) as url:
        yield url


def brought(url: str, metric: str, step_ms: int = MINUTE_MS, steps: int | None = None) -> dict[str, dict[int, float]]:
    """Node -> minute -> value of one metric."""
    found: dict[str, dict[int, float]] = {}
    with closing(Prometheus(url)) as server:
        for each in ask(server, RULE[metric], NODES, T0_S * 1000, (T0_S + 3600) * 1000, step_ms):
            for row in each.rows:
                minutes = [(at - T0_S * 1000) // MINUTE_MS for at in row.at_ms]
                found.setdefault(row.subject, {}).update(zip(minutes, row.values, strict=True))
    return found


def test_figures_of_gpus_are_told_by_node(server: str) -> None:
    util = brought(server, "gpu_util")
    assert util["gpu-1"] == {minute: 15.0 + minute for minute in range(MINUTES)}
    assert brought(server, "gpu_temp_c")["gpu-1"][7] == 63
    assert brought(server, "gpu_power_w")["gpu-1"][7] == 400
    assert brought(server, "gpu_memory_used_mib")["gpu-1"][7] == 4006
    assert brought(server, "gpu_memory_util")["gpu-1"][7] == pytest.approx(100 * 4006 / 16000)
    assert brought(server, "throttle")["gpu-1"] == dict.fromkeys(range(MINUTES), 0.5)


def test_a_silent_target_leaves_a_gap_and_nothing_is_told_after_its_end(server: str) -> None:
    util = brought(server, "gpu_util")["gpu-2"]
    assert sorted(util) == [minute for minute in range(MINUTES) if minute not in SILENT]


def test_counters_become_what_they_grew_by_and_may_start_anew(server: str) -> None:
    errors = brought(server, "ecc_errors")["gpu-1"]
    assert {minute: value for minute, value in errors.items() if value} == {10: 2, 20: 3, 30: 2}
    # What a silent target counted meanwhile is told when it is heard of again.
    assert {minute: value for minute, value in brought(server, "ecc_errors")["gpu-2"].items() if value} == {
        14: 2, 20: 3, 30: 2,
    }  # fmt: skip
    xid = brought(server, "xid_errors")["gpu-1"]
    assert {minute: value for minute, value in xid.items() if value} == {5: 1, 25: 1}
    assert len(xid) == MINUTES


def test_figures_of_machines_and_names_with_ports_and_domains(server: str) -> None:
    load = brought(server, "node_load")
    assert set(load) == {"gpu-1", "cpu-1.lab.example"}
    assert brought(server, "node_memory_util")["gpu-1"][3] == 75
    cpu = brought(server, "node_cpu_util")["gpu-1"]
    assert list(cpu.values()) == pytest.approx([25.0] * len(cpu))
    assert max(cpu) == MINUTES - 1


def test_longer_steps_sum_up(server: str) -> None:
    util = brought(server, "gpu_util", 10 * MINUTE_MS)["gpu-1"]
    assert util[20] == pytest.approx(15 + sum(range(11, 21)) / 10)


def test_what_is_asked_in_parts_is_the_same(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = brought(server, "gpu_util")
    monkeypatch.setattr(prometheus, "FIRST_STEPS", 7)
    assert brought(server, "gpu_util") == at_once
    # An answer that is too long is asked for in smaller parts, down to a single step.
    monkeypatch.setattr(prometheus, "MAX_BYTES", 900)
    assert brought(server, "gpu_util") == at_once
    monkeypatch.setattr(prometheus, "MAX_BYTES", 10)
    with pytest.raises(MusterError, match="answered more than"):
        brought(server, "gpu_util")


def test_an_expression_it_refuses_is_told(server: str) -> None:
    with closing(Prometheus(server)) as asked, pytest.raises(MusterError, match="parse error"):
        asked.query_range("sum(", T0_S, T0_S + 60, 60)


@contextmanager
def answering(status: int, content: bytes, headers: dict[str, str] | None = None) -> Iterator[str]:
    """A server that always says the same."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing: standard error is the test's."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=lambda: served.serve_forever(0.01))
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}"
        finally:
            served.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "content", "headers", "expected"),
    [
        (200, b"<html>", {}, "is no Prometheus"),
        (200, b"\xff", {}, "is no Prometheus"),
        (200, b"no gzip", {"Content-Encoding": "gzip"}, "is no Prometheus"),
        (200, b"{}", {"Content-Encoding": "gzip, gzip"}, "packed as 'gzip, gzip'"),
        (200, b'{"status":"success","data":{"resultType":"vector","result":[]}}', {}, "refused the question"),
        (302, b"", {"Location": "http://127.0.0.1:1/"}, "sends elsewhere"),
        (503, b'{"status":"error","error":"starting"}', {}, "busy: starting"),
    ],
)
def test_what_is_no_answer_of_a_prometheus_is_named(
    status: int, content: bytes, headers: dict[str, str], expected: str
) -> None:
    with (
        answering(status, content, headers) as url,
        closing(Prometheus(url)) as server,
        pytest.raises(MusterError, match=expected),
    ):
        server.query_range("up", 0, 60, 60)


def test_down_slow_and_malformed_servers_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with closing(Prometheus(url)) as server, pytest.raises(UnreachableError, match="no Prometheus answers"):
            server.query_range("up", 0, 60, 60)
        bound.listen()
        monkeypatch.setattr(prometheus, "READ_S", 0.05)
        with closing(Prometheus(url)) as server, pytest.raises(UnreachableError, match="in time"):
            server.query_range("up", 0, 60, 60)
    with (
        answering(200, b"{}") as url,
        closing(Prometheus(url, deadline_s=-1.0)) as server,
        pytest.raises(UnreachableError, match="in all"),
    ):
        server.query_range("up", 0, 60, 60)
    for bad in ("ftp://x", "127.0.0.1:9090", "http://", "http://x?y", "http://x:99999", "http://[::1", "http://\0"):
        with pytest.raises(SpecError, match="not one of a Prometheus"):
            Prometheus(bad)


def test_nodes_are_found_by_the_surest_label() -> None:
    assert NODES.find({"Hostname": "gpu-1", "instance": "gpu-2:9400"}) == "gpu-1"
    assert NODES.find({"Hostname": "pod-7", "instance": "gpu-2:9400"}) == "gpu-2"
    assert NODES.find({"instance": "gpu-1.lab.example:9100"}) == "gpu-1"
    assert NODES.find({"instance": "cpu-1:9100"}) == "cpu-1.lab.example"
    assert NODES.find({"instance": "10.0.0.9:9100"}) == "10.0.0.9"
    assert NODES.find({"instance": "10.0.0.8:9100"}) is None
    assert NODES.find({"job": "gpu-1"}) is None
    assert [without_port(text) for text in ("[::1]:9", "a:9", "a", "::1")] == ["::1", "a", "a", "::1"]


def test_values_that_are_no_numbers_are_left_out_and_counted() -> None:
    rule = MetricQuery("gpu_util", "", max)
    series = [
        PrometheusSeries({"Hostname": "gpu-1"}, [(1.0, "5"), (2.0, "NaN"), (3.0, "+Inf"), (4.0, "x")]),
        PrometheusSeries({"instance": "gpu-1:9"}, [(1.0, "7")]),
        PrometheusSeries({"instance": "who:9"}, [(1.0, "7")]),
        PrometheusSeries({"Hostname": "gpu-2"}, [(0.0, "5"), (1e306, "5")]),
    ]
    found = told(rule, NODES, series, 1000, 4000)
    assert found.rows == (SampleRow("gpu_util", "node", "gpu-1", (1000,), (7.0,)),)
    assert (found.not_numbers, dict(found.unmatched)) == (5, {"who:9": 1})


def test_windows_are_whole_and_do_not_overlap() -> None:
    found = list(windows(0, 100, 10, 4))
    assert found == [(0, 30), (40, 70), (80, 100)]
