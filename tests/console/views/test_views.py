"""View models without an app: lists, summaries, pages, the registry and its commands."""

from __future__ import annotations

import msgspec
import pytest
from rich.cells import cell_len

from console.actions.line_completion import complete_line
from console.actions.registry import ACTIONS, SCREENS, ActionTarget, Context, actions, footer, parse_command
from console.forms.filters import FilterError, parse_filter
from console.tui.widgets.frame import lost_banner, top_bar
from console.views.cell_overview import OverviewData, overview_columns
from console.views.external_scheduler import job_section
from console.views.lists import EventLog, ListView, meter, summary
from console.views.nodes import node_columns
from console.views.sections import Section
from console.views.suggestions import followed_rows
from console.views.workload import workload_columns
from engine.external.mirror_report import Mirrored, SchedulerVoice
from engine.model.details import DependencyDetail, GroupDetail, TopologyDetail, Unblocking
from engine.model.errors import SpecError
from engine.model.list_queries import COLUMNS
from engine.model.overviews import Change
from engine.model.specs import Affinity, Spread, Toleration
from recommender.findings.suggestions import Expected, Followed, Verdict
from recommender.history.metrics import DAY_MS
from runbooks.actions.catalogue import CATALOG
from tests.console.fake_client import NOW_MS, FakeClient


def test_words_that_kueue_repeats_for_several_conditions_stand_once() -> None:
    told = "Preempted to make room"
    voices = (
        SchedulerVoice(speaker="Kueue", about="Evicted", reason="Preempted", text=told),
        SchedulerVoice(speaker="Kueue", about="not Admitted", reason="NoReservation", text="no reservation"),
        SchedulerVoice(speaker="Kueue", about="Requeued", reason="Preempted", text=told),
    )
    section = job_section(Mirrored(workload="w", job_id=0, state="", voices=voices), 60)
    assert ["".join(text for text, _ in line.spans).rstrip() for line in section.lines] == [
        "Kueue says", "  Evicted  Preempted", "  Requeued  Preempted", f"    {told}",
        "  not Admitted  NoReservation", "    no reservation",
    ]  # fmt: skip


def test_a_list_asks_for_what_it_shows() -> None:
    view = ListView.of("workloads")
    view.filter("state:queued gpu>=8 sort:-wait")
    query = view.query(100, 50)
    assert (query.offset, query.limit, query.sort) == (100, 50, ("-wait",))
    assert set(query.columns) <= {column.name for column in COLUMNS["workloads"]}
    assert view.filter_text == "state:queued gpu>=8"
    page = FakeClient(500).query(view.query(0, 20))
    window = view.window(page, 0)
    assert window.matched == page.matched > 0
    assert all(row.state == "queued" for row in window.rows)
    assert [len(row.cells) for row in window.rows] == [len(view.headings)] * len(window.rows)


def test_a_bad_filter_leaves_the_last_good_one() -> None:
    view = ListView.of("workloads")
    view.filter("state:queued")
    for bad in ("stat:x", "sort:wiat", "state:queued gpu>=many"):
        with pytest.raises(FilterError):
            view.filter(bad)
    assert view.filter_text == "state:queued"


def test_an_error_behind_an_order_points_at_its_own_place() -> None:
    with pytest.raises(FilterError) as caught:
        ListView.of("workloads").filter("sort:wait stat:x")
    assert caught.value.start == 10


def test_sorting_again_turns_it_and_shows_the_column() -> None:
    view = ListView.of("workloads")
    view.sort_by("estimate")
    assert view.sort == ("-estimate",)
    assert "estimate" in [heading.name for heading in view.headings]
    view.sort_by("estimate")
    assert view.sort == ("estimate",)
    view.sort_by("name")
    assert view.sort == ("name",)


def test_quota_use_is_computed_from_quota() -> None:
    view = ListView.of("queues")
    window = view.window(FakeClient().query(view.query(0, 10)), 0)
    at = [heading.name for heading in view.headings].index("quota_use")
    shares = {row.id: row.cells[at][0] for row in window.rows}
    assert shares["research/train"].endswith("75%")
    assert shares["prod/serve"].endswith("100%")


def test_summary() -> None:
    view = ListView.of("workloads")
    view.filter("state:queued")
    window = view.window(FakeClient(500).query(view.query(0, 10)), 0)
    marked = [row for row in window.rows if row.asks[0]][:2]
    gpu = sum(row.asks[0] for row in marked) // 1000
    assert summary(view, window, marked) == f"100 of 500  ·  /state:queued  ·  by submitted ↓  ·  2 marked, {gpu} GPU"


def test_meter_never_hides_a_little_and_never_overflows() -> None:
    assert meter(0, 4) == "┄┄┄┄"
    assert meter(1, 4) == "╸┄┄┄"
    assert meter(375, 4) == "━╸┄┄"
    assert meter(999, 4) == "━━━╸", "only a whole is full"
    assert meter(5_000, 4) == "━━━━"


def test_header_says_cell_clock_speed_version_and_whether_one_may_act() -> None:
    health = FakeClient().health()
    text = "".join(part for part, _ in top_bar(health, "x", NOW_MS, 7, read_only=True, width=120))
    assert "demo-cell" in text
    assert "2026-03-01 12:00:00 UTC" in text
    assert "×60" in text
    assert "v7" in text
    assert "read-only" in text
    for retrying in (False, True):
        spans = top_bar(
            msgspec.structs.replace(health, incidents=2), "x", NOW_MS, 1_234_567, read_only=True, width=80,
            retrying=retrying,
        )  # fmt: skip
        text = "".join(part for part, _ in spans)
        assert text.index("read-only") + len("read-only") <= 80, "it is never cut"


def test_banner_says_how_long_how_old_and_when_again() -> None:
    assert lost_banner("no answer", 75, 4, NOW_MS) == (
        " ✗ no connection for 1m 15s · data of 12:00:00 · retry in 4s · no answer"
    )


@pytest.mark.parametrize("width", [34, 56, 96])
def test_pages_fit_their_width(width: int) -> None:
    client = FakeClient(500)
    pages = (
        overview_columns(OverviewData(client.overview()), width),
        workload_columns(client.workload("wl-000003"), width),
        workload_columns(client.workload("wl-000000"), width),
        node_columns(client.node("node-00001"), width),
    )
    for left, right in pages:
        for line in lines(left + right):
            assert cell_len(line) <= max(width, 62), line


def test_the_workload_page_says_why_first() -> None:
    left, _ = workload_columns(FakeClient().workload("wl-000003"), 60)
    assert [section.title for section in left] == ["State", "Why it waits", "Timeline", "Request"]
    why = lines([left[1]])
    assert why[0] == "▸ WaitingForReservation"
    assert any(line.startswith("  → ") for line in why)


def test_the_workload_page_says_what_would_start_it_once_that_is_known() -> None:
    client = FakeClient()
    view = client.workload("wl-000003")
    left, _ = workload_columns(view, 60, client.unblocking("wl-000003"))
    text = " ".join(lines([left[1]]))
    assert "would start if: 2 more nodes in pool h100" in text
    assert "9 workloads ahead of it wait for the same: all 10 would start if: 11 more nodes in pool h100" in text
    assert f"verified on a fork at v{client.version:,}" in text
    unknown = Unblocking(version=1, found=None, tried=("it is released: then Fragmented",), forks=2)
    left, _ = workload_columns(view, 60, unknown)
    assert lines([left[1]])[-2:] == [
        "would start if: not known; tried on a fork at v1",
        "it is released: then Fragmented",
    ]


def test_the_workload_page_shows_how_it_was_allowed_to_start_and_what_limits_it() -> None:
    view = msgspec.structs.replace(
        FakeClient().workload("wl-000000"),
        flags=("burst", "backfilled"),
        burst_ends_ms=NOW_MS + 90 * 60_000,
        tasks_placed=6,
        tasks_total=8,
        deadline_ms=NOW_MS + 3_600_000,
        failures=1,
        retries=3,
        array="sweep",
        waits_for=(DependencyDetail(id="\x1b[31mdata", on="finished", state="failed", never=True),),
        making_room_for="wl-000009",
    )
    left, right = workload_columns(view, 96)
    told = lines([left[-1]])
    for text in (
        "retries    failed 1 times, 3 retries allowed",
        "tasks      6 of 8 running",
        "started    in a burst, by backfill; the burst ends in 1h 30m",
        "stopping   writing a checkpoint to make room for wl-000009",
    ):
        assert text in told
    assert any("failed    until it is finished, which can never happen" in line for line in lines(right))
    assert any("array      sweep" in line for line in lines(right))
    assert any("2026-03-01 13:00:00 UTC" in line for line in lines(left))
    assert not any("\x1b" in line for line in lines(left + right))


def test_the_workload_page_shows_what_place_it_asked_for_and_what_it_got() -> None:
    view = msgspec.structs.replace(
        FakeClient().workload("wl-000000"),
        groups=(
            GroupDetail(
                name="main", count=4, cpu_milli=2000, memory_mib=0, gpu_milli=142, disk_mib=0, mig="1g.10gb",
                gpu_memory_mib=40_960, node_labels={"disk": ("nvme", "ssd"), "\x1b[31mgen": ("*",)},
                avoid_labels={"old": ("yes",)},
                tolerations=(Toleration(key="spot"), Toleration(key="team", value="db")),
                spread=Spread(level="zone", max_skew=2),
            ),
        ),
        near=(Affinity(tags={"app": "db", "tier": "hot"}, level="rack"),),
        apart=(Affinity(tags={"app": "\x1b[2Jweb"}, level="nvlink"),),
        data=("eu-1", "eu-2"),
        topology=TopologyDetail(
            required="block", preferred="nvlink", within="rack", domains={"rack": 1, "nvlink": 2, "node": 4},
            ring_cost=8,
        ),
    )  # fmt: skip
    left, right = workload_columns(view, 96)
    told = lines([left[-1]])
    for text in (
        "near       in the rack of work with app=db tier=hot",
        "data       in eu-1, eu-2",
        "topology   one block required, one NVLink domain preferred",
        "network    within one rack: 1 rack, 2 NVLink domains, 4 nodes; ring cost 8",
    ):
        assert text in told
    group = " ".join(" ".join(told).split())
    for text in (
        "4 × MIG 1g.10gb · 2 CPU",
        "devices of 40 GiB or more",
        "label disk=nvme or ssd",
        "not label old=yes",
        "tolerates spot, team=db",
        "spread over zones, at most 2 apart",
    ):
        assert text in group
    assert any(line.startswith("apart      not in the NVLink domain of work with app=") for line in told)
    assert not any("\x1b" in line for line in told)
    assert "rank" in lines([right[0]])[0]


def test_the_node_page_shows_where_it_stands_what_it_is_like_and_how_its_devices_are_linked_and_cut() -> None:
    left, _ = node_columns(FakeClient(hostile=True).node("node-00001"), 50)
    state, devices = lines([left[0]]), lines([left[-1]])
    assert any(line.startswith("topology   region eu › zone ") for line in state)
    assert "label      disk=nvme" in state
    assert "taint      dedicated=train:NoSchedule" in state
    assert left[-1].note.endswith("NVLink 0-3, 4-7")
    assert [line[7] for line in devices[:4]] == ["┌", "│", "│", "└"]
    assert "1g.10gb 1 of 2 in use, 2g.20gb" in devices[4]
    assert devices[5].startswith(" " * 17)
    assert devices[-2].startswith("MIG        1g.10gb 1g.20gb")
    assert not any("\x1b" in line for line in state + devices)
    view = msgspec.structs.replace(
        FakeClient().node("node-00001"), nvlink_group=0, profiles=(), instances=(), labels={}, taints=(), region="",
        zone="", block="", rack="", nvlink="",
    )  # fmt: skip
    left, _ = node_columns(view, 50)
    assert "topology   –" in lines([left[0]])
    assert left[-1].note == view.gpu_model
    assert len(left[-1].lines) == len(view.devices)


def test_overview_links_lead_somewhere() -> None:
    left, right = overview_columns(OverviewData(FakeClient().overview()), 56)
    links = {line.link for section in left + right for line in section.lines if line.link}
    assert "nodes state:down" in links
    assert "workloads state:queued sort:-wait" in links
    for link in links:
        command = parse_command(link, ACTIONS)
        if command.action.argument == "filter":
            ListView.of(command.action.id).filter(command.argument)  # type: ignore[arg-type]


def test_events_newest_first_and_filtered() -> None:
    log = EventLog(keep=3)
    for version, what in enumerate(("submitted", "placed", "running", "failed"), 1):
        log.add([Change(version=version, at_ms=NOW_MS, what=what, subject="wl-1", detail="")])
    assert [row.cells[1][0] for row in log.window((), 0, 10).rows] == ["failed", "running", "placed"]
    assert log.window(parse_filter("events", "FAIL"), 0, 10).matched == 1


# --- the registry


def test_every_row_of_the_registry_is_whole() -> None:
    ids = [action.id for action in ACTIONS]
    commands = [command for action in ACTIONS for command in action.commands]
    assert len(set(ids)) == len(ids)
    for screen in SCREENS:
        keys = [key for action in ACTIONS if screen in action.screens for key in action.keys]
        assert len(set(keys)) == len(keys), f"one key, one meaning on {screen}"
    assert len(set(commands)) == len(commands)
    for action in ACTIONS:
        assert action.title
        assert action.keys or action.commands
        assert bool(action.tier) == action.mutates
        if action.mutates:
            assert action.targets or action.argument == "flags"
            assert "{ids}" in action.shell
            assert all(key.isupper() for key in action.keys), "what acts is a capital letter"


def test_the_registry_offers_what_the_catalogue_has_at_its_least_tier() -> None:
    assert not any(action.mutates for action in actions(read_only=True))
    offered = {action.id: action for action in actions(read_only=False) if action.mutates}
    assert set(offered) == set(CATALOG)
    for name, action in offered.items():
        assert action.tier == CATALOG[name].tier
        assert action.shell == f"muster {CATALOG[name].shell} {{ids}}"
        assert action.commands == (CATALOG[name].word,)


def test_an_action_is_possible_in_the_screen_exactly_where_the_catalogue_says() -> None:
    for action in actions(read_only=False):
        if action.targets and action.mutates:
            row, screen = CATALOG[action.id], action.screens[0]
            for state in {state for other in CATALOG.values() if other.kind == row.kind for state in other.states}:
                reason = action.disabled_reason(Context(screen, action.targets, (ActionTarget("x", state),)))
                assert (reason == "") == (state in row.states), (action.id, state)


def test_what_needs_words_says_which() -> None:
    by_id = {action.id: action for action in ACTIONS}
    assert by_id["set_quota"].disabled_reason(Context("queues")) == "type :set-quota QUEUE gpu=24"
    assert parse_command("set-quota research gpu=24", ACTIONS).argument == "research gpu=24"


def test_a_disabled_action_says_why() -> None:
    by_id = {action.id: action for action in ACTIONS}
    held = Context("workloads", "workload", (ActionTarget("wl-1", "held"),))
    assert by_id["release"].disabled_reason(held) == ""
    assert by_id["hold"].disabled_reason(held) == "only queued or waiting ones can be held"
    assert by_id["cancel"].disabled_reason(Context("workloads", "workload")) == "nothing selected"
    assert "no connection" in by_id["cancel"].disabled_reason(
        Context("workloads", "workload", (ActionTarget("wl-1", "held"),), connected=False)
    )
    assert by_id["drain"].disabled_reason(held).startswith("only on nodes")


def test_the_footer_offers_back_only_where_there_is_a_way_back() -> None:
    assert "back" not in {action.id for action, _ in footer(ACTIONS, Context("workloads"))}
    assert "back" in {action.id for action, _ in footer(ACTIONS, Context("workloads", depth=2))}


def test_commands() -> None:
    assert parse_command("workloads state:queued", ACTIONS).argument == "state:queued"
    assert parse_command("why wl-1", ACTIONS).action.id == "workload"
    assert parse_command("q", ACTIONS).action.id == "quit"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("wrokloads", "Did you mean :workloads"),
        ("w", "needs an id"),
        ("overview x", "takes no arguments"),
        ("\x1b]0;x\x07", "no command"),
        ("", "no command"),
    ],
)
def test_bad_commands_say_what_is_wrong(line: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_command(line, ACTIONS)
    assert says in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_command_completion() -> None:
    assert complete_line("wo", 2, ACTIONS)[0] == ["workloads", "workload"]
    assert complete_line("workloads state:q", 17, ACTIONS)[0] == ["state:queued"]
    assert complete_line("sort -wa", 8, ACTIONS)[0] == ["-wait", "-wasted"]
    assert complete_line("overview ", 9, ACTIONS)[0] == []


def lines(sections: list[Section]) -> list[str]:
    return ["".join(text for text, _ in line.spans) for section in sections for line in section.lines]


def test_what_came_of_suggestions_can_be_compared_down_its_columns() -> None:
    promise = Expected(metric="nodes", of="pool", subject="a100", was=50, to=49, within_ms=3_600_000)
    due = Followed(id="R-1", kind="idle", finding="", way="left", at_ms=0, due_ms=DAY_MS, expected=promise)
    held = msgspec.structs.replace(
        due, id="R-2", way="acted", who="erin", verdict=Verdict(outcome="held", seen=48.0, why="")
    )
    head, *rows = ["".join(text for text, _ in line.spans) for line in followed_rows((due, held), 65)]
    assert rows[0].split("  ")[0] == "R-1"
    assert "○ 01-02 00:00" in rows[0], "it is not due yet"
    assert "✓ held" in rows[1]
    assert "erin" in rows[1]
    for row, moved in zip(rows, ("50 → 49", "50 → 48"), strict=True):
        assert row.index(moved) == head.index("MEASURED"), "what is not due is as predicted, the other as measured"
