"""History imported from elsewhere: measurements of nodes by a Prometheus server, and ended work by trace files.

Prometheus gives DCGM's figures of GPUs and node-exporter's of machines, asked by `query_range` and kept as our metrics.
Every expression looks at the samples of one step only, so a target that is silent leaves a gap: Prometheus itself would
repeat its last value for five minutes. Counters become their growth; a counter that starts anew has grown by what it
shows.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec

from engine.model.errors import MusterError, SpecError, UnreachableError
from engine.traces.trace_formats import read_header
from engine.traces.trace_reader import FORMATS, Problems, TraceFile, TraceJob
from recommender.history.metrics import MAX_SUBJECT, RunRecord, SampleRow

CONNECT_S, READ_S = 5.0, 30.0
DEADLINE_S = 900.0
"""Longest time for all questions of one import together."""
MAX_BYTES = 32 * 2**20
"""Longest answer that is read."""
MAX_STEPS = 10_000
"""Steps of one question. Prometheus gives at most 11,000 points a series."""
FIRST_STEPS = 720
"""Steps of the first question of a metric: with many nodes an answer is long."""
MAX_ERROR = 200

NODE_LABELS = ("Hostname", "node", "kubernetes_node", "nodename", "exported_instance", "instance")
"""Labels that may name the node, the surest first."""
_BY = ", ".join(NODE_LABELS)
HELD_DOWN = 0x8 | 0x20 | 0x40 | 0x80
"""Bits of DCGM's clock throttle reasons that mean heat or power: hardware slowdown, software and hardware thermal
slowdown, power brake. The power cap alone (0x4) is usual under load."""


class MetricQuery(NamedTuple):
    """The query for one of our metrics."""

    metric: str
    expression: str
    """`{by}` stands for the labels that name nodes, `{step}` for the samples of a step, `{back}` for one step ago,
    `{wide}` for four steps."""
    together: Callable[[list[float]], float]
    """One value of what several targets tell of one node at one time."""
    masks: bool = False
    """Whether each row is how many devices have the mask in its label `mask`."""


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


_GREW = (
    "sum by ({by}) ((last_over_time({name}[{step}]) - last_over_time({name}[1h] offset {back}) >= 0)"
    " or (last_over_time({name}[{step}]) < last_over_time({name}[1h] offset {back})))"
)
_XID = "last_over_time(DCGM_FI_DEV_XID_ERRORS[{step}])"
RULES = (
    MetricQuery("gpu_util", "avg by ({by}) (avg_over_time(DCGM_FI_DEV_GPU_UTIL[{step}]))", _mean),
    MetricQuery("gpu_memory_used_mib", "sum by ({by}) (max_over_time(DCGM_FI_DEV_FB_USED[{step}]))", sum),
    MetricQuery(
        "gpu_memory_util",
        "100 * sum by ({by}) (avg_over_time(DCGM_FI_DEV_FB_USED[{step}]))"
        " / (sum by ({by}) (avg_over_time(DCGM_FI_DEV_FB_USED[{step}]))"
        " + sum by ({by}) (avg_over_time(DCGM_FI_DEV_FB_FREE[{step}])))",
        _mean,
    ),
    MetricQuery("gpu_temp_c", "max by ({by}) (max_over_time(DCGM_FI_DEV_GPU_TEMP[{step}]))", max),
    MetricQuery("gpu_power_w", "sum by ({by}) (avg_over_time(DCGM_FI_DEV_POWER_USAGE[{step}]))", sum),
    MetricQuery("ecc_errors", _GREW.replace("{name}", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"), sum),
    # A gauge that shows the last error: another one than before is a new one.
    MetricQuery(
        "xid_errors",
        f"count by ({{by}}) (({_XID} != last_over_time(DCGM_FI_DEV_XID_ERRORS[1h] offset {{back}})) != 0)"
        f" or 0 * count by ({{by}}) ({_XID})",
        sum,
    ),
    MetricQuery(
        "throttle",
        'count_values by ({by}) ("mask", last_over_time(DCGM_FI_DEV_CLOCK_THROTTLE_REASONS[{step}]))',
        _mean,
        masks=True,
    ),
    MetricQuery("node_load", "avg by ({by}) (avg_over_time(node_load1[{step}]))", _mean),
    MetricQuery(
        "node_cpu_util",
        # As a share of all modes: a rate over few samples is short by as much in each.
        '100 * (1 - sum by ({by}) (rate(node_cpu_seconds_total{{mode="idle"}}[{wide}]))'
        " / sum by ({by}) (rate(node_cpu_seconds_total[{wide}])))"
        ' and count by ({by}) (count_over_time(node_cpu_seconds_total{{mode="idle"}}[{step}]))',
        _mean,
    ),
    MetricQuery(
        "node_memory_util",
        "100 * (1 - avg by ({by}) (avg_over_time(node_memory_MemAvailable_bytes[{step}]))"
        " / avg by ({by}) (avg_over_time(node_memory_MemTotal_bytes[{step}])))",
        _mean,
    ),
)


class PrometheusSeries(msgspec.Struct, frozen=True):
    """One series of an answer."""

    metric: dict[str, str]
    values: list[tuple[float, str]]
    """(Unix seconds, number as text)"""


class _Data(msgspec.Struct, frozen=True):
    resultType: str
    result: list[PrometheusSeries]


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: _Data | None = None
    error: str = ""


class TooMuch(MusterError):
    """An answer that is larger than is read, or than the server would give: ask for less at once."""


class QueryResult(NamedTuple):
    """The result of one query."""

    rows: tuple[SampleRow, ...]
    unmatched: Counter[str]
    """Names of targets that are no nodes of the cell -> series."""
    not_numbers: int
    """Values that were no finite numbers, or of times that were not asked for: left out."""


class Prometheus:
    """One server. Raises SpecError for a URL that is none, UnreachableError while it does not answer in time, and
    MusterError for what is no answer of a Prometheus."""

    def __init__(self, url: str, deadline_s: float = DEADLINE_S) -> None:
        self.where = _address(url)
        self.source = f"prometheus:{self.where}"
        self._until = time.monotonic() + deadline_s
        self._deadline_s = deadline_s
        # Neither proxies of the environment nor a redirect decide whom we ask.
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers={"Accept-Encoding": "gzip"},
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
            follow_redirects=False,
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def query_range(self, expression: str, start_s: int, end_s: int, step_s: int) -> list[PrometheusSeries]:
        """Evaluate the expression at each step from start to end. Raises TooMuch where less is to be asked."""
        asked = {"query": expression, "start": str(start_s), "end": str(end_s), "step": str(step_s)}
        status = 0
        try:
            with self._http.stream("POST", "/api/v1/query_range", data=asked) as answer:
                status = answer.status_code
                content = self._content(answer)
        except httpx.TimeoutException:
            raise UnreachableError(f"{self.where} did not answer in time", "Import later, or less at once") from None
        except httpx.DecodingError:
            raise self._no_prometheus(status) from None
        except httpx.TransportError as error:
            raise UnreachableError(f"no Prometheus answers at {self.where} ({error})", "Check the address") from None
        except UnicodeError:
            raise UnreachableError(f"{self.where[:80]} is not a host name", "Check the address") from None
        try:
            told = msgspec.json.decode(content, type=_Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise self._no_prometheus(status) from None
        if told.status == "success" and told.data is not None and told.data.resultType == "matrix":
            return told.data.result
        said = told.error[:MAX_ERROR]
        if status == 422 and "too many samples" in said:
            raise TooMuch(f"{self.where}: {said}")
        if status == 503:
            raise UnreachableError(f"{self.where} is busy: {said}", "Import later, or less at once")
        raise MusterError(f"{self.where} refused the question: {said or f'status {status}'}", "Check its version")

    def _content(self, answer: httpx.Response) -> bytes:
        packed = answer.headers.get("content-encoding", "identity")
        if packed not in ("identity", "gzip"):
            # One inside the other, a few bytes become any number.
            raise MusterError(f"{self.where} answers packed as {packed[:40]!a}", "Ask the server itself, not a proxy")
        parts, size = [], 0
        for part in answer.iter_bytes():
            size += len(part)
            if size > MAX_BYTES:
                raise TooMuch(f"{self.where} answered more than {MAX_BYTES // 2**20} MiB")
            if time.monotonic() > self._until:
                raise UnreachableError(
                    f"{self.where} took more than {self._deadline_s:g} s in all",
                    "Imported data is kept: import again to continue",
                )
            parts.append(part)
        return b"".join(parts)

    def _no_prometheus(self, status: int) -> MusterError:
        if 300 <= status < 400:
            return MusterError(f"{self.where} sends elsewhere (status {status})", "Give the address it moved to")
        return MusterError(f"{self.where} answered status {status} and is no Prometheus", "Check the address")


def _address(url: str) -> str:
    """Host and port of a server's URL, without what is secret in it. Raises SpecError."""
    try:
        parts = urlsplit(url)
        httpx.URL(url)
        if parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment):
            return parts.hostname + (f":{parts.port}" if parts.port else "")
    except (ValueError, httpx.InvalidURL):  # a port that is none, brackets that do not match
        pass
    raise SpecError("URL", f"{url[:80]!a} is not one of a Prometheus", "Such as http://127.0.0.1:9090")


class NodeNames:
    """Finds the node that a target's labels name: as it is, without its port, or without its domain."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name: name for name in names}
        short = Counter(name.partition(".")[0] for name in self._names)
        self._short = {name.partition(".")[0]: name for name in self._names if short[name.partition(".")[0]] == 1}

    def find(self, labels: Mapping[str, str]) -> str | None:
        """The surest label that names a node decides."""
        for label in NODE_LABELS:
            name = without_port(labels.get(label, ""))
            found = self._names.get(name) or self._short.get(name.partition(".")[0] if not _is_address(name) else name)
            if name and found:
                return found
        return None


def without_port(target: str) -> str:
    """The host of "host:9100" or "[::1]:9100"; other text as it is."""
    if target.startswith("["):
        return target[1:].partition("]")[0]
    host, colon, port = target.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else target


def _is_address(name: str) -> bool:
    """Return whether it is an IPv4 address, whose first part is no name."""
    return name.replace(".", "").isdigit()


def expression(rule: MetricQuery, step_s: int) -> str:
    """The rule's question for steps of this length. A rate needs two samples, so it looks at four steps. Older servers
    count a sample at the very begin of a range in: a step's range is a millisecond short, so that it counts once."""
    return rule.expression.format(by=_BY, step=f"{step_s * 1000 - 1}ms", back=f"{step_s}s", wide=f"{4 * step_s}s")


def windows(start_ms: int, end_ms: int, step_ms: int, steps: int) -> Iterator[tuple[int, int]]:
    """(first, last) time of questions of so many steps, both told, ascending."""
    first = start_ms
    while first <= end_ms:
        last = min(first + (steps - 1) * step_ms, end_ms)
        yield first, last
        first = last + step_ms


def ask(
    server: Prometheus, rule: MetricQuery, nodes: NodeNames, start_ms: int, end_ms: int, step_ms: int
) -> Iterator[QueryResult]:
    """All of the window, oldest first, in as many questions as the server and we can bear. Times are multiples of the
    step, so that asking again gives samples of the same times."""
    steps, at = FIRST_STEPS, -(-start_ms // step_ms) * step_ms
    while at <= end_ms:
        first, last = next(windows(at, end_ms, step_ms, steps))
        try:
            found = server.query_range(expression(rule, step_ms // 1000), first // 1000, last // 1000, step_ms // 1000)
        except TooMuch as error:
            if steps == 1:
                raise MusterError(error.problem, "Fewer targets at once: use a server that has fewer") from None
            steps = max(steps // 4, 1)
            continue
        yield told(rule, nodes, found, first, last)
        points = sum(len(series.values) for series in found)
        if points < 100_000:
            steps = min(steps * 2, MAX_STEPS)
        at = last + step_ms


def told(
    rule: MetricQuery, nodes: NodeNames, found: Iterable[PrometheusSeries], first_ms: int, last_ms: int
) -> QueryResult:
    """An answer as samples of our metric, one for each node and time. Times that were not asked for are left out."""
    by_node: dict[str, dict[int, list[Any]]] = {}
    unmatched: Counter[str] = Counter()
    bad = 0
    for series in found:
        node = nodes.find(series.metric)
        if node is None:
            unmatched[next((series.metric[label] for label in NODE_LABELS if series.metric.get(label)), "no name")] += 1
            continue
        mask = series.metric.get("mask", "")
        values = by_node.setdefault(node, {})
        for at_s, text in series.values:
            value = _number(text)
            if not (math.isfinite(value) and first_ms <= at_s * 1000 <= last_ms):
                bad += 1
                continue
            values.setdefault(round(at_s * 1000), []).append((mask, value) if rule.masks else value)
    rows = []
    for node in sorted(by_node):
        times = sorted(by_node[node])
        parts = [by_node[node][at] for at in times]
        column = [_held_down(part) if rule.masks else rule.together(part) for part in parts]
        rows.append(SampleRow(rule.metric, "node", node, tuple(times), tuple(map(float, column))))
    return QueryResult(tuple(row for row in rows if row.at_ms), unmatched, bad)


def _held_down(counts: list[tuple[str, float]]) -> float:
    """Share of devices whose mask has a bit of heat or power."""
    held = sum(count for mask, count in counts if int(_number(mask) if math.isfinite(_number(mask)) else 0) & HELD_DOWN)
    return held / max(sum(count for _, count in counts), 1.0)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


DELIVERED = "finished"
"""The readers deliver jobs that ran; how each came out they do not tell."""


def runs_of(path: Path, format: str, problems: Problems) -> Iterator[RunRecord]:
    """The jobs of a trace in the order of the file, at the trace's own times where it tells them, else counted from
    1970. The source is "FORMAT:FILE", so a file of the same name replaces the jobs of the one before. A job whose
    wait is not told counts as started when it came. Jobs without a run time are counted in `problems` as skipped."""
    file = TraceFile(path, problems)
    source = f"{format}:{path.name}"
    began_ms = read_header(path).get("UnixStartTime", 0) * 1000 if format == "swf" else 0
    for job in FORMATS[format](file):
        if job.run_ms <= 0:
            problems.skip("no run time")
            continue
        yield _run(job, source, max(began_ms, 0) + file.origin_ms)


def _run(job: TraceJob, source: str, origin_ms: int) -> RunRecord:
    cpu, memory, gpu, _ = job.request.vector()
    submitted_ms = origin_ms + job.arrival_ms
    started_ms = submitted_ms + (job.wait_ms or 0)
    return RunRecord(
        id=job.id[:MAX_SUBJECT],
        source=source,
        user=job.user,
        name=job.name,
        queue=job.queue,
        tasks=job.tasks,
        gpu_milli=gpu * job.tasks,
        cpu_milli=cpu * job.tasks,
        memory_mib=memory * job.tasks,
        requested_ms=job.requested_ms,
        submitted_ms=submitted_ms,
        started_ms=started_ms,
        ended_ms=started_ms + job.run_ms,
        outcome=DELIVERED,
        gpu_model=job.gpu_models[0] if job.gpu_models else "",
    )
