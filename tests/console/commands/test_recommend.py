"""`muster recommend`, `explain` and `forecast` against a live engine, and what becomes of recommendations over time."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from typing import cast, get_args

import msgspec
import pytest
from textual.pilot import Pilot

from console.cli.main import run
from console.service.advisor import Advisor
from console.service.forecasts import cell_now
from console.service.local_client import LocalClient
from console.service.recommendations import Recommender, command, edits_of
from console.tui.app import MusterApp
from console.tui.screens.proposals import RecommendationsPane
from engine.loop import EngineLoop
from engine.model.commands import AddPools, AddQueues, Cordon, Reserve, Submit
from engine.model.specs import PoolSpec, QueueSpec, ReservationSpec, Resources, ScalingSpec
from engine.model.twin_queries import WhatIf
from engine.model.what_if_edits import DrainEdit, Nodes
from recommender.findings.history_findings import HourlySeries, idle_pools, pools_ahead, stale_reservations
from recommender.findings.suggestions import Action, Suggestion
from runbooks.actions.catalogue import CATALOG
from tests.console.tui.test_app import press, quick, read_to_the_end, until  # noqa: F401
from tests.support.gates import gate_of
from tests.support.served import HOUR_MS, gpu_job, running_loop, served_on_unix

Shell = Callable[..., int]


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def shell(loop: EngineLoop) -> Iterator[Shell]:
    """Runs a command against a small cell."""
    with served_on_unix(loop) as path:
        yield lambda *words: run([words[0], "--connect", str(path), *words[1:]])


def forget_two(loop: EngineLoop) -> None:
    loop.call(lambda engine: engine.command(Cordon(ids=("c0", "c1"))))
    loop.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))


def test_every_action_that_can_be_suggested_is_one_that_the_gate_and_the_shell_know() -> None:
    suggested = set(get_args(Action)) - {"notify"}
    assert suggested <= set(CATALOG)


def test_what_is_found_comes_with_the_command_that_proposes_it(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("recommend") == 0
    assert "no suggestions" in capsys.readouterr().out
    forget_two(loop)
    assert shell("recommend") == 0
    out = capsys.readouterr().out
    assert "2 cordoned nodes are empty" in out
    assert "minimum time cordoned: 2.0 h" in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("   muster ")) <= 80
    [words] = [line.split() for line in out.splitlines() if line.startswith("   muster ")]
    assert words[:3] == ["muster", "node", "uncordon"]
    assert run([*words[1:], "--dry-run"]) == 0
    assert "c0" in capsys.readouterr().out
    assert shell("recommend", "--json") == 0
    assert json.loads(capsys.readouterr().out)["open"][0]["suggestion"]["targets"] == ["c0", "c1"]


def test_an_explanation_has_all_it_rests_on(shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]) -> None:
    forget_two(loop)
    assert shell("recommend", "--json") == 0
    [found] = json.loads(capsys.readouterr().out)["open"]
    assert shell("recommend", found["suggestion"]["id"].upper()) == 0
    out = capsys.readouterr().out
    for told in (
        "capacity out of service",
        "Not suggested if",
        "No action",
        "no track record",
        "Before and after",
    ):
        assert told in out
    assert shell("recommend", "R-zzzzz") == 3


def test_work_past_its_likes_is_for_its_owners_and_nothing_is_proposed(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = tuple(gpu_job(f"train-{number}") for number in range(40))
    loop.call(lambda engine: engine.command(Submit(workloads=jobs)))
    loop.call(lambda engine: engine.advance(engine.now_ms + 15 * HOUR_MS))
    late = msgspec.structs.replace(gpu_job("train-late"), simulated_runtime_ms=100 * HOUR_MS)
    loop.call(lambda engine: engine.command(Submit(workloads=(late,))))
    loop.call(lambda engine: engine.advance(engine.now_ms + 9 * HOUR_MS))
    assert shell("recommend") == 0
    out = capsys.readouterr().out
    assert "notify the owners of train-late" in " ".join(out.split())
    assert "   muster" not in out


def test_a_rejected_one_is_set_aside_with_who_and_why(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_two(loop)
    assert shell("recommend", "--json") == 0
    [found] = json.loads(capsys.readouterr().out)["open"]
    rec_id = found["suggestion"]["id"]
    assert shell("recommend", "--reject", rec_id, "--reason", "firmware\x1bupdate") == 2
    assert shell("recommend", "--reject", rec_id, "--reason", "firmware update") == 0
    capsys.readouterr()
    assert shell("recommend") == 0
    out = capsys.readouterr().out
    assert "no suggestions" in out
    assert "because firmware update" in " ".join(out.split())
    loop.call(lambda engine: engine.command(Cordon(ids=("g0",))))
    loop.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))
    assert shell("recommend") == 0
    again = " ".join(capsys.readouterr().out.split())
    assert "was rejected on" in again
    assert "g0" in again


# -- on the console ---------------------------------------------------------------------------------------------------


def page(pilot: Pilot[None]) -> str:
    pane = cast("MusterApp", pilot.app).navigator.current
    if not isinstance(pane, RecommendationsPane):
        return ""
    views = (pane._left, pane._right)
    return "\n".join("".join(text for text, _ in line.spans) for view in views for line in view._lines)


async def test_a_person_proposes_and_rejects_on_the_page(loop: EngineLoop) -> None:
    forget_two(loop)
    client = LocalClient(loop, gate_of(loop.engine), Advisor(loop), who="ada")
    app = MusterApp(lambda: client, start="recommendations", title="test")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "2 cordoned nodes are empty" in page(pilot))
        await until(pilot, lambda: "Not suggested if" in page(pilot))
        await press(pilot, "N")
        await press(pilot, *"broken", "enter")
        await until(pilot, lambda: "because broken" in page(pilot))
        await press(pilot, "A")
        await read_to_the_end(pilot)
        await press(pilot, "y")
        await until(pilot, lambda: loop.engine.node("c0").state == "ready")
        await until(pilot, lambda: app.context().screen == "proposal")
        await press(pilot, "escape")
        await until(pilot, lambda: "Outcomes" in page(pilot))


async def test_on_a_narrow_screen_the_explanation_takes_the_place_of_the_list(loop: EngineLoop) -> None:
    forget_two(loop)
    client = LocalClient(loop, gate_of(loop.engine), Advisor(loop), who="ada")
    app = MusterApp(lambda: client, start="recommendations", title="test")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "2 cordoned nodes are empty" in page(pilot))
        assert "Not suggested if" not in page(pilot)
        await press(pilot, "enter")
        await until(pilot, lambda: "Not suggested if" in page(pilot))
        assert "Work waits or is late" not in page(pilot)
        await press(pilot, "escape")
        await until(pilot, lambda: "Work waits or is late" in page(pilot))
        assert "Not suggested if" not in page(pilot)


async def test_a_session_that_only_reads_offers_neither(loop: EngineLoop) -> None:
    forget_two(loop)
    client = LocalClient(loop, gate_of(loop.engine), Advisor(loop), read_only=True)
    app = MusterApp(lambda: client, start="recommendations", title="test", read_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "2 cordoned nodes are empty" in page(pilot))
        assert not {"act_on", "reject"} & set(app.actions)
        await press(pilot, "A", "N")
        assert len(app.screen_stack) == 1


# -- the commands that are shown are taken ----------------------------------------------------------------------------


def shown_command(out: str) -> list[str]:
    [line] = [line for line in out.splitlines() if line.startswith("   muster ")]
    return shlex.split(line)[1:]


def test_idle_quota_is_lent_by_the_command_shown(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    quota = {"gpu_milli": 8000}
    tree = (
        QueueSpec(name="org"),
        QueueSpec(name="x", parent="org", nominal=quota, borrowing_limit={"gpu_milli": 0}),
        QueueSpec(name="y", parent="org", nominal=quota),
    )
    jobs = tuple(
        msgspec.structs.replace(gpu_job(name, queue="x"), simulated_runtime_ms=99 * HOUR_MS) for name in ("one", "two")
    )
    loop.call(lambda engine: engine.command(AddQueues(queues=tree)))
    loop.call(lambda engine: engine.command(Submit(workloads=jobs)))
    loop.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))
    assert shell("recommend") == 0
    words = shown_command(capsys.readouterr().out)
    assert words[:2] == ["queue", "set-quota"]
    assert "--borrowing-limit" in words
    assert run([*words, "--dry-run"]) == 0
    assert loop.call(lambda engine: engine.workload("two").state) == "queued"
    assert run([*words, "--yes"]) == 0
    assert loop.call(lambda engine: engine.workload("two").state) == "running"
    capsys.readouterr()
    assert shell("recommend") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "waiting of queue x from 1 to 0 within 2h" in out


def test_a_reservation_that_nobody_uses_and_a_pool_that_is_too_large_or_too_small(
    loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = PoolSpec(
        name="burst",
        capacity=Resources(cpu_milli=8000, gpu_milli=8000),
        price_microusd_hour=5_000_000,
        scaling=ScalingSpec(least=2, most=9),
    )
    day = ReservationSpec(name="nobody", nodes=("g0", "g1"), start_ms=0, end_ms=99 * HOUR_MS)
    loop.call(lambda engine: engine.command(AddPools(pools=(spec,))))
    loop.call(lambda engine: engine.command(Reserve(reservation=day)))
    loop.call(lambda engine: engine.advance(engine.now_ms + 3 * HOUR_MS))
    now = loop.call(cell_now)
    [pool] = [pool for pool in now.pools if pool.name == "burst"]
    assert (pool.least, pool.most, pool.price_microusd_hour) == (2, 9, 5_000_000)
    idle = HourlySeries(subject="burst", hours=[0.0] * 200)
    found = [
        *stale_reservations(now.reservations, now.now_ms, 8000),
        *idle_pools([msgspec.structs.replace(pool, nodes=2)], {"burst": idle}),
        *pools_ahead([pool], {"burst": [7.0] * 6}, now.now_ms, now.now_ms, {}, {}),
    ]
    assert [each.action for each in found] == ["unreserve", "set_scaling", "set_targets"]
    with served_on_unix(loop) as path:
        for each in found:
            words = command(each)[:-2]  # made by hand: nobody has found them
            assert run([*words, "--connect", str(path), "--dry-run"]) == 0
    assert "nobody" in capsys.readouterr().out


# -- on the twin ------------------------------------------------------------------------------------------------------


def test_a_recommendation_is_tried_on_the_twin_and_changes_nothing(loop: EngineLoop) -> None:
    forget_two(loop)
    recommender = Recommender(loop, Advisor(loop))
    [found] = recommender.recommendations().open
    assert found.simulated.state == "waiting"
    before = loop.call(lambda engine: (engine.version, engine.state.digest()))
    recommender.try_out(found.suggestion)
    [found] = recommender.recommendations().open
    assert (found.simulated.state, found.simulated.seeds) == ("done", 5)
    assert {figure.name for figure in found.simulated.figures} >= {"utilisation", "cost"}
    assert found.simulated.cost_microusd_hour is not None
    assert loop.call(lambda engine: (engine.version, engine.state.digest())) == before


def test_what_people_ask_of_the_twin_goes_first(loop: EngineLoop) -> None:
    forget_two(loop)
    recommender = Recommender(loop, Advisor(loop))
    [found] = recommender.recommendations().open
    asked = loop.call(lambda _: loop.twins.start(WhatIf(edits=(DrainEdit(nodes=Nodes(ids=("g0",))),), seeds=2)))
    recommender.try_out(found.suggestion)
    [found] = recommender.recommendations().open
    assert found.simulated.state == "waiting"
    assert loop.twins.finish(asked.id, 60).state == "done"


def test_what_the_twin_cannot_try_says_so(loop: EngineLoop) -> None:
    client = LocalClient(loop, gate_of(loop.engine), Advisor(loop))
    loop.call(lambda engine: engine.command(Cordon(ids=("c0",))))
    assert edits_of(suggestion("notify")) == "no change"
    assert "cannot simulate set autoscaling" in str(edits_of(suggestion("set_autoscaling")))
    assert client.recommendations().open == ()


def suggestion(action: Action) -> Suggestion:
    return Suggestion(
        kind="k",
        finding="f",
        action=action,
        targets=("t",),
        evidence=(),
        counterfactual="",
        alternatives=(),
    )
