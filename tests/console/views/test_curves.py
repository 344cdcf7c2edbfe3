"""Curves of what was measured: which there are, how they are read from the history, and how they are drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest
from rich.cells import cell_len

from console.cli.main import run
from console.service.telemetry import Archive
from console.views.curves import (
    CURVES,
    FIRST,
    Curve,
    curve_changes,
    curve_chart,
    curve_numbers,
    curve_steps,
    curves_of,
    read_curve,
    read_request,
)
from console.views.lists import CURVES as COLUMN_CURVES
from console.views.lists import curve_of_row
from console.views.sections import Section, curve_of, section_lines
from engine.loop import EngineLoop
from engine.model.errors import SpecError
from engine.model.list_queries import COLUMNS, Kind
from recommender.history.metrics import METRICS, OFS, Sample
from recommender.history.telemetry import Telemetry, clock_of
from tests.support.served import running_loop, served_on_unix

MINUTE = 60_000
START_MS = 1_700_000_000_000 // MINUTE * MINUTE


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        running.paused = True
        running.call(lambda engine: engine.advance(START_MS))
        yield running


def measured(loop: EngineLoop, minutes: int = 600) -> Archive:
    """A queue whose quota grew 100 minutes ago, and which waited longest 200 minutes ago; three nodes were lost."""
    telemetry = Telemetry(clock=clock_of(lambda: loop.engine.now_ms))
    samples = []
    for i in range(minutes):
        at_ms, wait_s = START_MS - i * MINUTE, 3600 - 10 * abs(200 - i)
        if i % 10:
            samples.append(Sample("wait_p50_s", "queue", "a", at_ms, wait_s / 6))
            samples.append(Sample("wait_p95_s", "queue", "a", at_ms, wait_s))
        samples += [
            Sample("used_gpu", "queue", "a", at_ms, 16_000 + 8_000 * math.sin(i / 40)),
            Sample("quota_gpu", "queue", "a", at_ms, 32_000 if i > 100 else 48_000),
            Sample("nodes_down", "cell", "", at_ms, 3 if 30 < i <= 60 else 0),
            Sample("cost_rate", "queue", "a", at_ms, 4.1e9 + 1e6 * i),
            Sample("started", "queue", "a", at_ms, 2),
            Sample("used_cpu", "cell", "", at_ms, 1000),
        ]
    telemetry.add(samples)
    return Archive(loop, telemetry)


def read(archive: Archive, line: str) -> Curve:
    return read_curve(archive, read_request(line))


def text(*sections: Section) -> str:
    return "\n".join(section_lines(sections))


def test_every_kind_of_subject_has_a_first_curve_and_every_metric_is_in_one() -> None:
    for of, columns in COLUMN_CURVES.values():
        assert set(columns.values()) <= set(curves_of(of))
    assert all(set(columns) <= {each.name for each in COLUMNS[kind]} for kind, (_, columns) in COLUMN_CURVES.items())
    for of in OFS:
        names = curves_of(of)
        assert FIRST[of] in names
        shown = {name for name in names if name in METRICS}
        for curve in names:
            if curve in CURVES:
                form = CURVES[curve]
                shown |= {form.line, form.band, *(limit for limit, _ in form.limits)}
        assert {name for name, metric in METRICS.items() if of in metric.of} <= shown


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "cell 6h"), ("queue:a", "queue:a 6h"), ("queue:a wait 7d", "queue:a wait 7d"),
        ("kind:acme/train model use_cpu", "kind:acme/train model use_cpu 6h"), ("cell cost", "cell cost 6h"),
    ],
)  # fmt: skip
def test_a_line_asks_for_subject_curve_and_window(line: str, words: str) -> None:
    assert read_request(line).words == words
    assert read_request(words).words == words


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("queue:a wiat", "queue:a wiat"), ("wiat", "Did you mean 'wait'"), ("planet:x", "no KIND:NAME"),
        ("queue:", "no KIND:NAME"), ("tenant:x wait", "not measured of a tenant"), ("cell:x", "no KIND:NAME"),
    ],
)  # fmt: skip
def test_a_wrong_line_says_what_there_is(line: str, problem: str) -> None:
    if line == "queue:a wiat":
        assert read_request(line).subject == problem, "a name may have spaces"
        return
    with pytest.raises(SpecError) as caught:
        read_request(line)
    assert problem in str(caught.value)


def test_waits_are_a_line_and_a_band_whose_peaks_no_step_hides(loop: EngineLoop) -> None:
    curve = read(measured(loop), "queue:a wait 24h")
    assert [(each.role, each.metric) for each in curve.series] == [("line", "wait_p50_s"), ("band", "wait_p95_s")]
    assert curve.step_ms == 15 * MINUTE
    shown = text(curve_chart(curve, 78, 9), curve_numbers(curve, 78))
    assert "Wait of what started, queue a" in shown
    assert "⡂ up to p95" in shown
    [p50, p95] = [line.split("  ") for line in shown.splitlines() if line.lstrip().startswith(("p50 ", "p95 "))]
    assert [part.strip() for part in p95 if part.strip()][4] == "59m", "3590 s, one minute beside the peak"
    assert [part.strip() for part in p50 if part.strip()][4] == "9m 58s"


def test_a_mark_reads_off_the_step_below_it_and_what_was_changed_then(loop: EngineLoop) -> None:
    curve = read(measured(loop), "queue:a gpu")
    changed = next(
        i for i, point in enumerate(curve.series[0].points) if point.at_ms + 5 * MINUTE > START_MS - 100 * MINUTE
    )
    shown = text(curve_chart(curve, 78, 9, changed))
    point = curve.series[0].points[changed]
    assert f"used {point.mean / 1000:.1f}" in shown.replace(" GPU", ""), "the mean of the step"
    assert "quota 48" in shown
    assert "quota 32 to 48 GPU" in shown
    assert "┊" in shown


def test_changes_are_those_of_the_history(loop: EngineLoop) -> None:
    curve = read(measured(loop), "queue:a wait")
    told = [(START_MS - change.at_ms, change.what) for change in curve.changes]
    assert [what for _, what in told] == ["quota 32 to 48 GPU", "3 nodes down", "3 nodes no longer down"]
    for (ago, _), wanted in zip(told, (100, 60, 30), strict=True):
        assert wanted * MINUTE <= ago < wanted * MINUTE + curve.step_ms
    section = curve_changes(curve, 60)
    assert section is not None
    assert section.lines[0].spans[1][0] == "3 nodes no longer down", "newest first"


def test_what_varies_little_is_not_a_slab_and_says_where_it_begins(loop: EngineLoop) -> None:
    curve = read(measured(loop), "queue:a cost 1h")
    section = curve_chart(curve, 78, 9)
    assert "from $4,080/h up" in section.note
    rows = {row for row, line in enumerate(section.lines[:9]) if any(tone == "bar" for _, tone in line.spans)}
    assert len(rows) > 3
    assert "from" not in curve_chart(read(measured(loop), "queue:a started"), 78, 9).note, "counts begin at 0"


@pytest.mark.parametrize("width", [20, 40, 78, 200])
@pytest.mark.parametrize("line", ["queue:a wait 30d", "queue:a gpu 1h", "queue:a age", "node:g0", "queue:a started 7d"])
def test_it_fits_any_width(loop: EngineLoop, line: str, width: int) -> None:
    curve = read(measured(loop), line)
    for section in (curve_chart(curve, width, 7, 3), curve_numbers(curve, width)):
        assert max(cell_len("".join(part for part, _ in each.spans)) for each in section.lines) <= width


def test_without_measurements_it_says_what_would_be_there(loop: EngineLoop) -> None:
    client = measured(loop)
    waiting = text(curve_chart(read(client, "queue:a age"), 78, 9))
    assert "never measured yet" in waiting
    assert "once a minute" in waiting
    assert "muster history import prometheus" in text(curve_chart(read(client, "node:g0"), 200, 9))
    loop.call(lambda engine: engine.advance(START_MS + 24 * 60 * MINUTE))
    old = text(curve_chart(read(client, "queue:a wait 1h"), 200, 9))
    assert "no measurements in the last 1h" in old
    assert "The last value is of 2023-11-14" in old


def test_a_cell_without_gpus_begins_with_its_cpus(loop: EngineLoop) -> None:
    assert read(measured(loop), "cell").title == "CPU in use"


@pytest.mark.parametrize(
    ("link", "curve"),
    [
        ("queue lab/a", "queue:lab/a"), ("curve queue:a gpu", "queue:a gpu"), ("nodes pool:h100", "pool:h100"),
        ('nodes pool:"a b"', "pool:a b"), ("workloads tenant:acme", "tenant:acme"), ("node n1", "node:n1"),
        ("cost", "cell cost"), ("workload w1", ""), ("workloads state:queued queue:a", ""), ("", ""),
        ("nodes state:down", "cell nodes_down"),
    ],
)  # fmt: skip
def test_what_a_link_leads_to_has_a_curve_where_it_is_measured(link: str, curve: str) -> None:
    assert curve_of(link) == curve


@pytest.mark.parametrize(
    ("kind", "column", "curve"),
    [("queues", "gpu_used", "queue:x gpu"), ("queues", "weight", "queue:x"), ("pools", "down", "pool:x nodes_down"),
     ("nodes", "use", "node:x"), ("workloads", "wait", "queue:a"), ("orders", "", "")],
)  # fmt: skip
def test_a_row_has_the_curve_of_the_column_it_is_sorted_by(kind: Kind, column: str, curve: str) -> None:
    cells = {"queue": "a"} if kind == "workloads" else {}
    assert curve_of_row(kind, "x", cells, column) == curve


def test_the_shell_prints_a_curve_and_gives_it_typed(loop: EngineLoop, capsys: pytest.CaptureFixture[str]) -> None:
    with served_on_unix(loop, archive=measured(loop)) as socket:
        connected = ("--connect", str(socket))
        assert run(("history", "show", "wait", "queue:a", "--since", "6h", *connected)) == 0
        told = capsys.readouterr().out
        assert max(map(cell_len, told.splitlines())) <= 80
        assert "quota 32 to 48 GPU" in told
        assert "By step" in told
        assert run(("history", "show", "wait", "queue:a", "--since", "6h", "--json", *connected)) == 0
        found = json.loads(capsys.readouterr().out)
        assert [each["role"] for each in found["series"]] == ["line", "band"]
        assert run(("history", "show", "wait", "tenant:a", *connected)) == 2


def test_steps_are_listed_newest_first(loop: EngineLoop) -> None:
    curve = read(measured(loop), "queue:a gpu 1h")
    lines = ["".join(part for part, _ in line.spans) for line in curve_steps(curve, 5).lines]
    assert lines[0].split() == ["FROM", "(UTC)", "USED", "QUOTA"]
    assert len(lines) == 6
    assert lines[1] > lines[2]
