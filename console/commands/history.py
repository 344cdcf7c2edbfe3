"""Commands about the past: `muster events`, `muster history show`, `muster history import`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.client.attach import connect
from console.client.questions import refuse_read_only
from console.commands.show import tell_lines, write_json, write_lines
from console.forms.filters import matches, parse_filter
from console.text.charts import spark
from console.text.plain_tables import table
from console.text.terminal_text import duration, milli, printable, timestamp
from console.views.curves import (
    CURVES,
    WINDOWS,
    curve_changes,
    curve_chart,
    curve_numbers,
    curve_steps,
    read_curve,
    read_request,
)
from console.views.lists import values_of
from console.views.sections import section_lines
from engine.model.errors import MusterError, SpecError
from engine.model.list_queries import Query
from engine.model.quantities import counted, duration_ms, shortlist, usd
from recommender.history.metrics import (
    CELL,
    MAX_SAMPLES,
    METRICS,
    OFS,
    FollowReport,
    History,
    HistoryRequest,
    ImportReceipt,
    RunBatch,
    SampleBatch,
    SampleRow,
    SeriesKey,
)

if TYPE_CHECKING:
    from console.client.protocol import Client
    from engine.model.list_queries import Term
    from engine.model.overviews import Change, Changes
    from recommender.history.prometheus import MetricQuery, NodeNames, Prometheus


LINES = 24
"""Lines of a table where no step is given, about."""
STEPS_MS = tuple(minutes * 60_000 for minutes in (1, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1440, 2880, 10_080))
CURVE_WIDTH, CURVE_ROWS = 78, 9
SPARK_WIDTH, SPARK_UNITS = 40, 1000
"""Cells of a line of blocks, and the parts of a unit it tells apart."""
RUNS_AT_ONCE = 2_000
NODES_AT_ONCE = 10_000
HOUR_MS = 3_600_000
MAX_NAMED = 3
PROMETHEUS = "prometheus"


def history(arguments: argparse.Namespace) -> None:
    """List the metrics, or print one of them by window, or a curve of several (`console.views.curves`)."""
    last_ms = _span("--since", arguments.since)
    if arguments.metric in CURVES:
        _curve(arguments, last_ms)
        return
    of, colon, subject = arguments.subject.partition(":")
    if of not in ("", *OFS) or (colon and not subject):
        raise SpecError(
            "SUBJECT", f"{arguments.subject[:40]!a} is not KIND:NAME", "Write it like queue:research, or cell"
        )
    if not of and arguments.metric in METRICS:
        of = METRICS[arguments.metric].of[0]
    step_ms = _span("--step", arguments.step) if arguments.step else _step(last_ms)
    request = HistoryRequest(metric=arguments.metric, of=of, subject=subject, last_ms=last_ms, step_ms=step_ms)
    with closing(connect(arguments)) as client:
        found = client.history(request)
    if arguments.json:
        write_json(found)
    elif found.points and found.series:
        write_lines(_window_lines(request, found))
    else:
        write_lines(_list_lines(request, found))


def _curve(arguments: argparse.Namespace, last_ms: int) -> None:
    """A curve, in the shortest of its windows that is as long as that."""
    window = next((name for name, length_ms, _ in WINDOWS if last_ms <= length_ms), WINDOWS[-1][0])
    asked = read_request(f"{arguments.subject} {arguments.metric} {window}")
    with closing(connect(arguments)) as client:
        curve = read_curve(client, asked)
    if arguments.json:
        write_json(curve)
        return
    changes = curve_changes(curve, CURVE_WIDTH)
    sections = [curve_chart(curve, CURVE_WIDTH, CURVE_ROWS), curve_numbers(curve, CURVE_WIDTH)]
    write_lines(section_lines([*sections, *([changes] if changes else []), curve_steps(curve, LINES)]))


def import_history(arguments: argparse.Namespace) -> int:
    """Brings in what a Prometheus or trace files know. The same again changes nothing."""
    with closing(connect(arguments)) as client:
        if client.read_only:
            raise refuse_read_only()
        if arguments.source == PROMETHEUS:
            told = [_from_prometheus(client, url, arguments) for url in arguments.where]
        else:
            told = [_from_trace(client, Path(name), arguments) for name in arguments.where]
    if arguments.json:
        write_json(told)
    return 0


def _span(flag: str, text: str) -> int:
    try:
        found = duration_ms(text)
    except ValueError as error:
        raise SpecError(flag, str(error), "Write it like 24h or 7d") from None
    if found < 1000:
        raise SpecError(flag, f"{text} is too short", "Write it like 24h or 7d")
    return found


def _step(last_ms: int) -> int:
    return next((step for step in STEPS_MS if last_ms <= step * LINES), STEPS_MS[-1])


# -- history ----------------------------------------------------------------------------------------------------------


def _list_lines(request: HistoryRequest, found: History) -> list[str]:
    """The series there are, by metric; or, where subjects of one metric were asked for, each."""
    if request.metric:
        if not found.series:
            return [f"no measurements of {_named(request.metric, request.of or CELL, request.subject)}"]
        titles: tuple[str, ...] = ("SUBJECT", "SOURCE", "FIRST", "LAST", "")
        rows = [
            [printable(f"{key.of}:{key.subject}" if key.subject else key.of), printable(key.source),
             timestamp(key.first_ms)[:16], timestamp(key.last_ms)[:16], "stale" if key.stale else ""]
            for key in found.series
        ]  # fmt: skip
        lines = table(titles, rows, (False,) * 5)
        more = found.series_count - len(found.series)
        return [*lines, *([f"and {more:,} more"] if more else [])]
    groups: dict[str, list[SeriesKey]] = {}
    for key in found.series:
        groups.setdefault(key.metric, []).append(key)
    rows = [[metric, f"{sum(key.stale for key in keys):,}", _kinds(keys)] for metric, keys in groups.items()]
    lines = table(("METRIC", "STALE", "SERIES"), rows, (False, True, False)) if rows else ["no measurements yet"]
    more = found.series_count - len(found.series)
    if more:
        lines.append(f"and {more:,} more series")
    for source in sorted({key.source for key in found.series}):
        keys = [key for key in found.series if key.source == source]
        first_ms, last_ms = min(key.first_ms for key in keys), max(key.last_ms for key in keys)
        lines.append(f"from {printable(source)}: {timestamp(first_ms)[:16]} to {timestamp(last_ms)[:16]}")
    runs = ", ".join(f"{each.count:,} from {printable(each.source)}" for each in found.run_counts) or "none"
    minutes, fives, hours = map(duration, found.keep_ms)
    lines += [
        f"ended work  {runs}",
        f"stored      by the minute {minutes}, by 5 minutes {fives}, by the hour {hours}; {found.keep_runs:,} ends",
    ]
    return [*lines, *_followed(found.followed), *_trouble(found)]


def _followed(report: FollowReport | None) -> list[str]:
    """How the following of a Prometheus does."""
    if report is None:
        return []
    head = f"follows     {printable(report.source)}"
    if report.trouble:
        return [f"{head}: {printable(report.trouble)}"]
    when = timestamp(report.until_ms)[:16] if report.until_ms else "nothing yet"
    lines = [f"{head} to {when}: {counted(report.devices, 'GPU')}, {report.joined:,} of them held by known work"]
    if report.not_joined:
        lines.append(f"            of {counted(report.not_joined, 'held GPU')} nobody tells whose they are")
    if report.strangers_count:
        named = printable(shortlist(report.strangers, MAX_NAMED))
        lines.append(f"            {counted(report.strangers_count, 'target')} not of the cell: {named}")
    if report.refused:
        lines.append(f"            {counted(report.refused, 'sample')} of nodes left out since the start")
    return lines


def _kinds(keys: list[SeriesKey]) -> str:
    """Series of one metric, by what they are of."""
    counts = Counter(key.of for key in keys)
    return ", ".join(of if of == CELL else f"{count:,} {of}" for of, count in counts.items())


def _trouble(found: History) -> list[str]:
    lines = [f"nothing is recorded now: {printable(found.error)}"] if found.error else []
    if found.damaged:
        lines.append(f"{found.damaged:,} damaged chunks read as gaps")
    return lines


def _window_lines(request: HistoryRequest, found: History) -> list[str]:
    metric = METRICS[request.metric]
    title = _named(request.metric, request.of or CELL, request.subject)
    lines = [f"{title}, {_unit(request.metric)}, by {duration(request.step_ms)}"]
    for key in found.series[:1]:
        if key.stale:
            lines.append(f"stale: last measured {timestamp(key.last_ms)[:16]} by {printable(key.source)}")
    shown = [point.total if metric.counts else point.mean for point in found.points]
    known = [value for value in shown if value is not None]
    if known:
        drawn = spark([None if value is None else round(value * SPARK_UNITS) for value in shown], SPARK_WIDTH)
        least, most = (_value(metric.unit, pick(known)) for pick in (min, max))
        lines.append(f"{drawn}  {least} to {most}, latest {_value(metric.unit, known[-1])}")
    rows = [
        [timestamp(point.at_ms)[:16],
         *(_value(metric.unit, value) for value in (main, point.least, point.most, point.last)),
         f"{point.count:,}"]
        for point, main in zip(found.points, shown, strict=True)
    ]  # fmt: skip
    titles = ("FROM (UTC)", "TOTAL" if metric.counts else "MEAN", "LEAST", "MOST", "LAST", "SAMPLES")
    lines += table(titles, rows, (False, True, True, True, True, True))
    gaps = sum(point.count == 0 for point in found.points)
    if gaps:
        lines.append(f"no measurement in {gaps:,} of {len(found.points):,} steps")
    return [*lines, *_trouble(found)]


def _named(metric: str, of: str, subject: str) -> str:
    return printable(f"{metric} of {of}{f' {subject}' if subject else ''}")


def _unit(metric: str) -> str:
    """Unit of the numbers of a table. Milli and micro are for programs."""
    unit = METRICS[metric].unit
    if unit == "milli":
        return "GPUs" if metric.endswith("gpu") else "CPUs"
    return unit.removeprefix("micro-")


def _value(unit: str, value: float | None) -> str:
    if value is None:
        return "-"
    if unit == "milli":
        return milli(round(value))
    if unit == "micro-USD/h":
        return usd(round(value))
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.2f}"


# -- import -----------------------------------------------------------------------------------------------------------


def _from_trace(client: Client, path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    from engine.traces.trace_reader import Problems
    from recommender.history.imported_history import runs_of

    problems, taken, refused = Problems(), 0, Counter[str]()
    runs = runs_of(path, arguments.source, problems)
    while part := tuple(islice(runs, RUNS_AT_ONCE)):
        receipt = client.import_runs(RunBatch(runs=part))
        taken += receipt.taken
        _count(refused, receipt)
    if problems.count and not taken and not refused:
        raise problems.first[0]
    told = {
        "file": str(path), "taken": taken, "refused": dict(refused), "skipped": dict(problems.skipped),
        "bad_lines": problems.count,
    }  # fmt: skip
    if not arguments.json:
        write_lines([printable(f"{path}: {taken:,} ended jobs stored{_left_out(refused)}")])
    for reason, count in problems.skipped.items():
        _say(f"{path}: skipped {count:,}: {reason}")
    if problems.count:
        _say(f"{path}: {problems.count:,} bad lines; the first: {problems.first[0]}")
    return told


def _from_prometheus(client: Client, url: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from recommender.history.prometheus import RULES, NodeNames, Prometheus
    from runbooks.gate.approval_gate import wall_ms

    step_ms, last_ms = _span("--step", arguments.step), _span("--since", arguments.since)
    nodes = NodeNames(_node_ids(client))
    end_ms = wall_ms() // step_ms * step_ms
    start_ms = (end_ms - last_ms) // HOUR_MS * HOUR_MS
    unmatched: Counter[str] = Counter()
    metrics: dict[str, Any] = {}
    with closing(Prometheus(url)) as server:
        followed = client.history(HistoryRequest()).followed
        if followed is not None and followed.source == server.source and followed.since_ms:
            end_ms = min(end_ms, followed.since_ms // step_ms * step_ms)  # what came since is there
        for rule in RULES:
            try:
                metrics[rule.metric] = _bring(client, server, rule, nodes, (start_ms, end_ms, step_ms), unmatched)
            except MusterError as error:
                done = ", ".join(metrics) or "nothing"
                error.remedy = f"{error.remedy}. Imported so far: {done}; import again to continue".lstrip(". ")
                raise
    told = {"source": server.source, "metrics": metrics, "unmatched": len(unmatched)}
    if unmatched:
        named = printable(shortlist(sorted(unmatched), MAX_NAMED))
        _say(f"{len(unmatched):,} targets are not nodes of the cell: {named}")
        told["unmatched_first"] = sorted(unmatched)[:MAX_NAMED]
    if not arguments.json:
        rows = [
            [metric, f"{each['nodes']:,}", f"{each['taken']:,}", _left_out(Counter(each["refused"])).lstrip("; ")]
            for metric, each in metrics.items()
        ]
        write_lines(table(("METRIC", "NODES", "SAMPLES", ""), rows, (False, True, True, False)))
    return told


def _bring(
    client: Client,
    server: Prometheus,
    rule: MetricQuery,
    nodes: NodeNames,
    window: tuple[int, int, int],
    unmatched: Counter[str],
) -> dict[str, Any]:
    """All of one metric in the window (begin, end, step; ms). What an earlier import has brought is not asked for
    again."""
    from recommender.history.prometheus import ask

    start_ms, end_ms, step_ms = window
    known = client.history(HistoryRequest(metric=rule.metric, of="node")).series
    mine = [key for key in known if key.source == server.source]
    if mine and min(key.first_ms for key in mine) <= start_ms + HOUR_MS:
        start_ms = max(start_ms, max(key.last_ms for key in mine) // HOUR_MS * HOUR_MS)
    taken, subjects, refused = 0, set[str](), Counter[str]()
    for told in ask(server, rule, nodes, start_ms, end_ms, step_ms):
        unmatched.update(told.unmatched)
        if told.not_numbers:
            refused["not a finite number"] += told.not_numbers
        for part in _batches(told.rows):
            receipt = client.import_samples(SampleBatch(source=server.source, step_ms=step_ms, series=part))
            taken += receipt.taken
            _count(refused, receipt)
            subjects.update(row.subject for row in part)
    return {"nodes": len(subjects), "taken": taken, "refused": dict(refused)}


def _batches(rows: tuple[SampleRow, ...]) -> list[tuple[SampleRow, ...]]:
    """Rows that one request may carry together."""
    batches: list[list[SampleRow]] = [[]]
    size = 0
    for row in rows:
        if size + len(row.at_ms) > MAX_SAMPLES:
            batches.append([])
            size = 0
        batches[-1].append(row)
        size += len(row.at_ms)
    return [tuple(batch) for batch in batches if batch]


def _node_ids(client: Client) -> list[str]:
    found: list[str] = []
    while True:
        page = client.query(Query(kind="nodes", columns=("id",), sort=("id",), offset=len(found), limit=NODES_AT_ONCE))
        found += [name for (name,) in page.rows]
        if not page.rows or len(found) >= page.matched:
            return found


def _count(refused: Counter[str], receipt: ImportReceipt) -> None:
    for each in receipt.refused:
        refused[each.reason] += each.count


def _left_out(refused: Counter[str]) -> str:
    return "".join(f"; {count:,} left out: {printable(reason)}" for reason, count in sorted(refused.items()))


def _say(text: str) -> None:
    print(f"muster: {printable(text)}", file=sys.stderr)


MOST = 10_000
"""Events that are looked through for the newest that a filter wants."""


def events(arguments: argparse.Namespace) -> None:
    """The newest that satisfy the filter, oldest first; then, if wanted, what happens from there on."""
    terms = parse_filter("events", " ".join(arguments.filter))
    with closing(connect(arguments)) as client:
        found = client.changes(0, 0.0, MOST)
        wanted = _satisfying(found, terms)
        _write(wanted[len(wanted) - arguments.limit :] if arguments.limit < len(wanted) else wanted, arguments.json)
        if not arguments.follow:
            return
        for fresh in client.follow(found.version):
            if fresh.missed:
                tell_lines([f"muster: {fresh.missed:,} events were skipped: too many at once"])
            _write(_satisfying(fresh, terms), arguments.json)


def _satisfying(found: Changes, terms: Sequence[Term]) -> list[Change]:
    return [item for item in found.items if matches(terms, values_of(item, found.at_ms))]


def _write(items: Iterable[Change], as_json: bool) -> None:
    if as_json:
        for item in items:
            write_json(item)
    else:
        write_lines(_line(item) for item in items)
    sys.stdout.flush()


def _line(item: Change) -> str:
    what, subject, detail = printable(item.what), printable(item.subject), printable(item.detail)
    return f"{timestamp(item.at_ms)}  {what:<12}  {subject:<28}  {detail}".rstrip()
