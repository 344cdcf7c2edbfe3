"""Looking back through both clients: reads as of then, refusals by name, and nothing of it changes the cell."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from console.cli.main import run
from console.client.attach import wait_until_shown
from console.client.protocol import Client
from console.client.remote import RemoteClient
from console.forms.command_arguments import SHOWS_PAST
from console.forms.past_times import difference_words, past_ms
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.errors import NotFoundError, RefusedError, SpecError, UnreachableError
from engine.model.list_queries import Query
from engine.model.past_queries import DifferenceRequest, PastStatus
from recommender.history.metrics import HistoryRequest
from runbooks.plans.typed_plan import asks
from tests.support.gates import gate_of
from tests.support.served import HOUR_MS, gpu_job, running_loop, served_on_unix

MINUTE_MS = 60_000


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[EngineLoop]:
    with running_loop(tmp_path / "journal.db") as running:
        running.paused = True
        running.call(lambda engine: engine.command(Submit(workloads=(gpu_job("old"),))))
        running.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))
        running.call(lambda engine: engine.command(Submit(workloads=(gpu_job("new"),))))
        yield running


@pytest.fixture(params=["local", "remote"])
def client(request: pytest.FixtureRequest, loop: EngineLoop) -> Iterator[Client]:
    with ExitStack() as after:
        if request.param == "remote":
            path = after.enter_context(served_on_unix(loop))
            remote = RemoteClient(str(path))
            after.callback(remote.close)
            yield remote
            return
        local = LocalClient(loop, gate_of(loop.engine), Advisor(loop), name="lab")
        after.callback(local.break_off)
        yield local


def shown(client: Client, at_ms: int) -> Client:
    wait_until_shown(client, at_ms, lambda _status: None)
    return client.as_of(at_ms)


def test_the_cell_is_asked_as_it_was(client: Client) -> None:
    now_ms = client.health().now_ms
    past = shown(client, now_ms - HOUR_MS - 30 * MINUTE_MS)
    assert past.overview().states["running"] == 1
    assert past.query(Query(kind="workloads", columns=("id", "state"))).rows == [["old", "running"]]
    assert past.workload("old").state == "running"
    assert [item.subject for item in past.changes(0, 0.0).items if item.what == "running"] == ["old"]
    with pytest.raises(NotFoundError):
        past.workload("new")
    health = past.health()
    assert (health.now_ms, health.paused) == (now_ms - HOUR_MS - 30 * MINUTE_MS, True)
    assert health.version < client.health().version
    assert past.estimate("old") is None
    assert past.history(HistoryRequest(last_ms=HOUR_MS)).until_ms == now_ms - HOUR_MS - 30 * MINUTE_MS
    assert client.workload("old").state == "finished"


def test_nothing_is_changed_as_of_then_and_what_is_not_kept_is_named(client: Client, loop: EngineLoop) -> None:
    version = loop.engine.version
    past = shown(client, client.health().now_ms - MINUTE_MS)
    assert past.read_only
    with pytest.raises(RefusedError, match="nothing can be changed as of 1970-01-01 01:59:00 UTC"):
        past.command(Submit(workloads=(gpu_job("later"),)))
    with pytest.raises(RefusedError, match="nothing can be changed"):
        past.propose(asks("cancel", ("new",)))
    for question in (past.recommendations, past.proposals, past.policy, past.scores):
        with pytest.raises(RefusedError, match="not kept as of 1970-01-01 01:59:00 UTC"):
            question()
    assert past.whoami().subject == client.whoami().subject
    assert loop.engine.version == version


def test_times_that_cannot_be_shown_are_named(client: Client) -> None:
    known = client.past(0)
    now_ms = client.health().now_ms
    assert (known.state, known.now_ms) == ("none", now_ms)
    with pytest.raises(SpecError, match="after what can be shown"):
        client.past(now_ms + HOUR_MS)
    with pytest.raises(SpecError, match="after what can be shown"):
        client.as_of(now_ms + HOUR_MS).overview()


def test_the_difference_of_two_times_is_told_once_it_is_ready(client: Client) -> None:
    now_ms = client.health().now_ms
    asked = DifferenceRequest(since_ms=now_ms - HOUR_MS - MINUTE_MS, until_ms=now_ms)
    wait_until_shown(client, asked.until_ms, lambda _status: None, asked.since_ms)
    found = client.difference(asked)
    assert {each.what: [one.subject for one in each.latest] for each in found.workloads} == {
        "finished": ["old"], "started": ["new"], "submitted": ["new"],
    }  # fmt: skip
    assert shown(client, now_ms - MINUTE_MS).difference(asked) == found
    with pytest.raises(NotFoundError):
        client.difference(msgspec.structs.replace(asked, queue="nosuch"))
    with pytest.raises(SpecError):
        client.difference(msgspec.structs.replace(asked, since_ms=now_ms, until_ms=now_ms - 1))


@pytest.mark.parametrize(
    ("text", "since", "until", "only"),
    [
        ("02:30 03:12", "02:30", "03:12", ("", "")),
        ("02:30", "02:30", "now", ("", "")),
        ("2026-04-13 02:30 2026-04-13T03:12 queue:a/b", "2026-04-13 02:30", "2026-04-13T03:12", ("a/b", "")),
        ("-2h node:n-1 -20m", "-2h", "-20m", ("", "n-1")),
    ],
)
def test_two_times_as_people_write_them(text: str, since: str, until: str, only: tuple[str, str]) -> None:
    assert difference_words(text) == (since, until, *only)


def test_who_gives_up_waiting_lets_the_copy_go(client: Client) -> None:
    def give_up(_status: PastStatus) -> None:
        raise KeyboardInterrupt

    at_ms = client.health().now_ms - MINUTE_MS
    try:
        wait_until_shown(client, at_ms, give_up)
    except KeyboardInterrupt:
        assert client.past(at_ms, wait_s=30.0).state == "ready", "asked again, it is made again"


NOW_MS = 1_776_336_000_000
"""2026-04-16 10:40:00 UTC."""
EARLIEST_MS = NOW_MS - 24 * HOUR_MS


@pytest.mark.parametrize(
    ("text", "back_ms"),
    [
        ("10:40", 0),
        ("10:39:30", 30_000),
        ("03:12", 7 * HOUR_MS + 28 * MINUTE_MS),
        ("10:41", 24 * HOUR_MS - MINUTE_MS),
        ("-20m", 20 * MINUTE_MS),
        ("1h30m", 90 * MINUTE_MS),
        ("2026-04-16 03:12", 7 * HOUR_MS + 28 * MINUTE_MS),
        ("2026-04-16T03:12:30", 7 * HOUR_MS + 27 * MINUTE_MS + 30_000),
    ],
)
def test_a_time_as_people_write_it(text: str, back_ms: int) -> None:
    assert past_ms(text, EARLIEST_MS, NOW_MS) == NOW_MS - back_ms


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("25h", "2026-04-15 09:40:00 is before the first that is kept"),
        ("2026-04-16 10:41", "2026-04-16 10:41:00 has not come yet"),
        ("lately", "'lately' is not a time"),
        ("24:00", "'24:00' is not a time"),
        ("", "'' is not a time"),
        ("20", "'20' is not a time"),
    ],
)
def test_a_wrong_time_is_refused_with_the_times_there_are(text: str, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        past_ms(text, EARLIEST_MS, NOW_MS)
    assert refused.value.problem == says
    assert refused.value.remedy.endswith("from 2026-04-15 10:40:00 to 2026-04-16 10:40:00 UTC")


def test_a_cell_in_memory_says_why_it_cannot_look_back() -> None:
    with running_loop() as loop:
        client = LocalClient(loop, gate_of(loop.engine), Advisor(loop), name="lab")
        with pytest.raises((RefusedError, UnreachableError), match="kept in memory"):
            client.past(0)


def test_commands_that_show_the_past_are_commands_and_all_others_refuse() -> None:
    for runs in SHOWS_PAST:
        module, _, name = runs.partition(":")
        assert callable(getattr(importlib.import_module(module), name))
    for words in (["stop", "--at", "03:12"], ["--at", "-20m", "node", "drain", "n1"], ["--at", "03:12", "submit", "x"]):
        assert run(words) == 4
