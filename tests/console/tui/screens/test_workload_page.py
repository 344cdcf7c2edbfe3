"""The page of one workload: where its time and money went, what it hangs together with, what can be done."""

from __future__ import annotations

import time

import msgspec
import pytest
from rich.cells import cell_len

from console.tui.screens.workload import WorkloadPane
from console.views.sections import Section
from console.views.workload import (
    SIGNS,
    WorkloadContext,
    bar,
    dependency_sections,
    money_section,
    related_section,
    stretches,
    timeline,
    workload_columns,
)
from engine.model.details import DependencyDetail, HistoryItem, Reason, TaskPlace, WorkloadDetail
from engine.model.twin_queries import StartForecast
from tests.console.fake_client import MINUTE, NOW_MS, FakeClient
from tests.console.tui.test_app import console, here, press, quick, until

__all__ = ["quick"]


def life(*steps: tuple[int, str]) -> tuple[HistoryItem, ...]:
    """Transitions so many minutes before now."""
    return tuple(HistoryItem(at_ms=NOW_MS - minutes * MINUTE, what=what) for minutes, what in steps)


def words(sections: list[Section]) -> list[str]:
    return ["".join(text for text, _ in line.spans) for section in sections for line in section.lines]


def detail(**fields: object) -> WorkloadDetail:
    return msgspec.structs.replace(FakeClient().workload("wl-000000"), **fields)


PREEMPTED = life((60, "submitted"), (50, "placed"), (50, "running"), (20, "requeued"), (10, "placed"), (10, "running"))


def test_its_life_is_told_state_by_state() -> None:
    found = stretches(PREEMPTED, NOW_MS)
    assert [(each.state, (each.end_ms - each.begin_ms) // MINUTE) for each in found] == [
        ("queued", 10), ("running", 30), ("queued", 10), ("running", 10),
    ]  # fmt: skip
    over = stretches((*PREEMPTED, *life((2, "finished"))), NOW_MS)
    assert over[-1].end_ms == NOW_MS - 2 * MINUTE, "what is over has an end"


def test_what_changes_no_state_is_no_stretch() -> None:
    found = stretches(life((9, "submitted"), (8, "priority"), (7, "moved"), (6, "released")), NOW_MS)
    assert [each.state for each in found] == ["queued"]
    assert stretches((), NOW_MS) == []


@pytest.mark.parametrize("width", [1, 7, 40, 200])
def test_the_bar_fills_its_width_and_reads_without_colour(width: int) -> None:
    drawn = bar(stretches(PREEMPTED, NOW_MS), width)
    text = "".join(each for each, _ in drawn)
    assert len(text) == width
    if width >= 7:
        assert [each[0] for each, _ in drawn] == [SIGNS[state] for state in ("queued", "running", "queued", "running")]
        assert 0.4 < text.count(SIGNS["running"]) / width < 0.9


def test_a_moment_among_days_is_still_seen() -> None:
    found = stretches(life((5_000, "submitted"), (4_000, "running"), (3_999, "requeued")), NOW_MS)
    assert SIGNS["running"] in "".join(text for text, _ in bar(found, 60))


def test_no_two_states_share_a_sign() -> None:
    assert len(set(SIGNS.values())) == len(SIGNS)


def test_a_life_of_a_thousand_attempts_is_short() -> None:
    steps = [(3_000 - at, what) for at in range(0, 2_000, 2) for at, what in ((at, "running"), (at + 1, "requeued"))]
    history = life((3_001, "submitted"), *steps)
    (section,) = timeline(history, NOW_MS, 60)
    assert len(section.lines) < 15
    assert "earlier" in words([section])[-1]
    _, right = workload_columns(detail(history=history), 60)
    assert len(words(right)) < 200


def test_money_and_deadline() -> None:
    likely = FakeClient().estimate("wl-000000")
    runs = detail(
        state="running", started_ms=NOW_MS - 10 * MINUTE, cost_microusd=2_000_000, wasted_microusd=500_000,
        rate_microusd_hour=6_000_000, deadline_ms=NOW_MS + 60 * MINUTE,
    )  # fmt: skip
    told = words(money_section(runs, likely))
    assert "so far     $2.00, $6.00 an hour now" in told
    assert any("$0.50, 25%" in each for each in told)
    assert "total      $7.00 likely, $16.00 if it runs long" in told
    assert any("at risk" in each for each in told)
    for minutes, word in ((200, "likely met"), (30, "likely missed"), (-5, "missed")):
        moved = msgspec.structs.replace(runs, deadline_ms=NOW_MS + minutes * MINUTE)
        assert any(word in each for each in words(money_section(moved, likely)))
    assert any("not known whether" in each for each in words(money_section(runs, None)))
    free = detail(cost_microusd=0, rate_microusd_hour=0)
    assert money_section(free, likely) == [], "nothing to say, no section"


def waiting(**fields: object) -> WorkloadDetail:
    """Waits; there is room for it in 130 minutes, if nobody else takes it."""
    fields = {"state": "queued", "started_ms": None} | fields
    reason = Reason(token="capacity", text="8 GPU more are needed")
    given = {"reasons": (reason,), "start_not_before_ms": NOW_MS + 130 * MINUTE, "position": 2}
    return detail(**(given | fields))


def test_the_forecast_is_the_only_start_that_is_told() -> None:
    view = waiting()
    starts = StartForecast(
        at_ms=NOW_MS, kind="room", p10_ms=NOW_MS + 30 * MINUTE, p50_ms=NOW_MS + 60 * MINUTE,
        p90_ms=NOW_MS + 120 * MINUTE, decides="room", line_ms=0, alike=0, p90_held_permille=None,
    )  # fmt: skip
    page = words(workload_columns(view, 60, starts=starts)[0])
    assert "starts     1h (30m..2h)" in page
    assert not any("not before" in each or "14:10" in each for each in page)


def test_a_promised_start_is_told_once_as_a_promise() -> None:
    view = waiting(promised_start_ms=NOW_MS + 130 * MINUTE)
    told = "\n".join(words(workload_columns(view, 60)[0]))
    assert "promised   2026-03-01 14:10:00 UTC" in told
    assert "not before" not in told


def test_no_deadline_is_called_met_on_the_strength_of_a_bound() -> None:
    likely = FakeClient().estimate("wl-000000")
    # It runs for an hour or, if it runs long, two and a half.
    for minutes, word in ((600, "met if it starts by 2026-03-01 19:30:00"), (140, "likely missed"), (-5, "missed")):
        told = words(money_section(waiting(deadline_ms=NOW_MS + minutes * MINUTE), likely))
        assert any(word in each for each in told), told
        assert not any("likely met" in each for each in told)


def test_dependencies_both_ways() -> None:
    view = detail(
        waits_for=(DependencyDetail(id="prep", on="finished", state="failed", never=True),),
        needed_by=tuple(DependencyDetail(id=f"w{n}", on="finished", state="waiting", never=False) for n in range(100)),
        needed_by_total=2_000,
    )
    before, after = dependency_sections(view, 60)
    assert "until it is finished, which can never happen" in words([before])[0]
    assert before.lines[0].link == "workload prep"
    assert after.note == "2,000"
    assert words([after])[-1] == "… and 1,988 more"


def test_its_array_and_what_is_said_of_it_elsewhere() -> None:
    beside = WorkloadContext(
        ("running", "running", "queued"), 3, (("P-7", "awaiting", "Cancel 1"),), (("R-1", "it overruns"),)
    )
    section = related_section(detail(array="sweep"), beside, 70)
    links = [line.link for line in section.lines]
    assert "workloads array:sweep" in links
    assert "proposal P-7" in links
    assert "recommendations" in links
    assert any("3 members: 2 running, 1 queued" in each for each in words([section]))


@pytest.mark.parametrize("width", [34, 60, 110])
def test_it_fits_whatever_strangers_write(width: int) -> None:
    client = FakeClient(60, hostile=True)
    for name in [row["id"] for row in client._tables["workloads"][:20]]:
        view = client.workload(name)
        hostile = msgspec.structs.replace(
            view, array=view.name, waits_for=(DependencyDetail(id=view.name, on="ended", state="queued", never=False),)
        )
        left, right = workload_columns(hostile, width, None, client.estimate(name))
        for text in words(left + right):
            assert "\x1b" not in text
            assert cell_len(text) < 500


def test_a_gang_on_a_thousand_nodes_is_drawn_at_once() -> None:
    places = tuple(
        TaskPlace(group="main", node=f"node-{n:05d}", rack=f"rack-{n // 16}", tasks=1, devices=(0,))
        for n in range(1_000)
    )
    view = detail(placement=places, placement_total=1_000)
    workload_columns(view, 60)
    began = time.process_time()
    for _ in range(10):
        _, right = workload_columns(view, 60)
    assert (time.process_time() - began) / 10 < 0.025
    assert right[0].note == "1,000 tasks on 1,000 nodes"
    assert "… and 800 nodes more" in words(right)


async def test_what_the_list_told_is_there_before_the_rest() -> None:
    client = FakeClient(50)
    async with console(client) as pilot:
        name = here(pilot).table.cursor_row.id  # type: ignore[union-attr]
        ask = client.workload
        held: list[bool] = [True]

        def slow(workload_id: str) -> WorkloadDetail:
            while held:
                time.sleep(0.005)
            return ask(workload_id)

        client.workload = slow  # type: ignore[method-assign]
        await press(pilot, "enter")
        await until(pilot, lambda: isinstance(here(pilot), WorkloadPane) and here(pilot).is_attached)
        page = pilot.app.navigator.current  # type: ignore[attr-defined]
        await until(
            pilot, lambda: any("research/" in each or "prod/" in each or "batch" in each for each in page.text_lines())
        )
        assert page.detail is None
        held.clear()
        await until(pilot, lambda: page.detail is not None)
        await until(pilot, lambda: any("Actions" in each for each in page.text_lines()))
        assert name == page.detail.id


async def test_the_page_says_what_can_be_done_and_why_not_at_80_by_24() -> None:
    async with console(FakeClient(50), size=(80, 24)) as pilot:
        here(pilot).filter("state:running")
        await pilot.app.workers.wait_for_complete()
        await press(pilot, "enter")
        page = pilot.app.navigator.current  # type: ignore[attr-defined]
        await until(pilot, lambda: page.NAME == "workload" and page.detail is not None)
        await until(pilot, lambda: any("Actions" in each for each in page.text_lines()))
        told = "\n".join(page.text_lines())
        assert "only held ones can be released" in told
        assert "T2, asks first" in told
        assert "no log output" in told
        assert "Log" in told
