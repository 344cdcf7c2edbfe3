"""A Prometheus server as a source of measurements: the line to it, and its figures of nodes as our metrics.

It gives figures of GPUs (DCGM) and machines (node-exporter) by `query_range`. Every expression looks at the samples of
one step only, so a target that is silent leaves a gap: Prometheus itself would repeat its last value for five minutes.
Counters become their growth; a counter that starts anew has grown by what it shows. Device by device:
`recommender.history.gpu_use`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from engine.model.errors import MusterError, SpecError, UnreachableError
from recommender.history.metrics import SampleRow

T = TypeVar("T")

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
    MetricQuery("gpu_sm_active", "100 * avg by ({by}) (avg_over_time(DCGM_FI_PROF_SM_ACTIVE[{step}]))", _mean),
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
        "node_iowait",
        '100 * sum by ({by}) (rate(node_cpu_seconds_total{{mode="iowait"}}[{wide}]))'
        " / sum by ({by}) (rate(node_cpu_seconds_total[{wide}]))"
        ' and count by ({by}) (count_over_time(node_cpu_seconds_total{{mode="iowait"}}[{step}]))',
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


class _Data(msgspec.Struct, Generic[T], frozen=True):
    resultType: str
    result: list[T]


class _Answer(msgspec.Struct, Generic[T], frozen=True):
    status: str
    data: _Data[T] | None = None
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
    MusterError for what is no answer of a Prometheus.

    `deadline_s` is for all questions together, until `allow` begins anew. `token` gives the bearer token of each
    question; user and password may stand in the URL.
    """

    def __init__(self, url: str, deadline_s: float = DEADLINE_S, token: Callable[[], str] = lambda: "") -> None:
        self.where = address(url)
        self.source = f"prometheus:{self.where}"
        self.ahead_s = 0.0
        """How far its clock was ahead of this machine's in its last answer."""
        self.questions = 0
        """Asked so far."""
        self._token = token
        self.allow(deadline_s)
        # Neither proxies of the environment nor a redirect decide whom we ask.
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers={"Accept-Encoding": "gzip"},
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
            follow_redirects=False,
            trust_env=False,
        )

    def allow(self, seconds: float) -> None:
        """Give all questions from now on so much time together."""
        self._until, self._deadline_s = time.monotonic() + seconds, seconds

    def close(self) -> None:
        self._http.close()

    def query_range(self, expression: str, start_s: int, end_s: int, step_s: int) -> list[PrometheusSeries]:
        """Evaluate the expression at each step from start to end. Raises TooMuch where less is to be asked."""
        return self.ranges(PrometheusSeries, expression, start_s, end_s, step_s)

    def ranges(self, kind: type[T], expression: str, start_s: int, end_s: int, step_s: int) -> list[T]:
        """The same, each series decoded as `kind`, which has a field for each label that is wanted."""
        asked = {"query": expression, "start": str(start_s), "end": str(end_s), "step": str(step_s)}
        status = 0
        self.questions += 1
        try:
            with self._http.stream("POST", "/api/v1/query_range", data=asked, headers=self._headers()) as answer:
                status = answer.status_code
                self._hear_clock(answer.headers.get("date", ""))
                content = self._content(answer)
        except httpx.TimeoutException:
            raise UnreachableError(f"{self.where} did not answer in time", "Import later, or less at once") from None
        except httpx.DecodingError:
            raise self._no_prometheus(status) from None
        except httpx.TransportError as error:
            raise UnreachableError(f"no Prometheus answers at {self.where} ({error})", "Check the address") from None
        except UnicodeError:
            raise UnreachableError(f"{self.where[:80]} is not a host name", "Check the address") from None
        if status in (401, 403):
            raise MusterError(
                f"{self.where} refused our credentials (status {status})",
                "Give a token (prometheus_token_file), or user and password in the URL",
            )
        try:
            told = msgspec.json.decode(content, type=_Answer[kind])  # type: ignore[valid-type]
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

    def _headers(self) -> dict[str, str]:
        token = self._token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _hear_clock(self, date: str) -> None:
        try:
            self.ahead_s = parsedate_to_datetime(date).timestamp() - time.time()
        except (ValueError, OverflowError):  # it need not tell
            self.ahead_s = 0.0

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


def address(url: str) -> str:
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
            value = number(text)
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
    held = sum(count for mask, count in counts if int(number(mask) if math.isfinite(number(mask)) else 0) & HELD_DOWN)
    return held / max(sum(count for _, count in counts), 1.0)


def number(text: str | bytes) -> float:
    """The value of a sample; nan where it is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
