"""The start of waiting work is one answer, whoever is asked: before the twin has run ahead, and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from console.cli.main import run
from console.client.protocol import Client
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.views.cost import start_words
from console.views.external_scheduler import job_section
from console.views.sections import section_lines
from console.views.what_if import dry_run_lines, forecast_facts
from console.views.workload import workload_columns
from engine.admission.fleet_routing import offer_of
from engine.control import Engine
from engine.external.mirror_report import Mirrored
from engine.external.slurm.records import Job
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.quantities import MIN_RUNS
from engine.model.twin_queries import AskOptions, AskRun, AskStart, DryRun, Options, StartEstimate, StartForecast
from recommender.estimates.queries import QuoteRequest
from tests.support.cells import small_cell
from tests.support.gates import gate_of
from tests.support.patience import PATIENCE_S
from tests.support.served import HOUR_MS, gpu_job, served_on_unix

Shell = Callable[..., str]


@pytest.fixture(params=["room", "quota"])
def loop(request: pytest.FixtureRequest) -> Iterator[EngineLoop]:
    """A small cell at one moment, in which others run, `first` waits, and `waits` behind it: for room, or for quota."""
    quota = {"gpu_milli": 16_000} if request.param == "quota" else None
    runs, first = (2, 1) if quota else (4, 3)
    engine = Engine.open(None, cell=small_cell(quota=quota))
    specs = (gpu_job("runs", tasks=runs), gpu_job("first", tasks=first), gpu_job("waits", tasks=2))
    engine.command(Submit(workloads=specs))
    running = EngineLoop(engine)
    running.paused = True
    running.twins.starts.keep = lambda: False  # type: ignore[method-assign]
    running.start()
    yield running
    running.stop()
    engine.close()


@pytest.fixture
def client(loop: EngineLoop) -> Client:
    return LocalClient(loop, gate_of(loop.engine), Advisor(loop), False, name="lab")


@pytest.fixture
def shell(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shell]:
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "none.toml"))
    with served_on_unix(loop) as path:

        def typed(*arguments: str) -> str:
            assert run([*arguments, "--connect", str(path)]) == 0
            return capsys.readouterr().out

        yield typed


def forecast(client: Client) -> StartForecast:
    found = client.start_forecast("waits")
    assert found is not None
    return found


def starts(found: StartForecast) -> str:
    """The words that every face has."""
    return dict(forecast_facts(found, found.at_ms))["starts"]


def test_before_the_twin_has_run_ahead_all_faces_say_the_same(
    client: Client, shell: Shell, request: pytest.FixtureRequest
) -> None:
    told = forecast(client)
    assert told.seeds == 0
    assert told.kind in request.node.name
    assert starts(told) in shell("why", "waits")
    assert starts(told) in shell("get", "workloads", "waits")
    page = section_lines(workload_columns(client.workload("waits"), 78, starts=told)[0])
    assert [line for line in page if "starts " in line] == [f"  starts     {starts(told)}"]
    job = job_section(Mirrored.of("waits", Job(id=7, state="PENDING")), 78, told)
    assert any(starts(told) in line for line in section_lines([job]))
    begun = client.ask(AskStart(id="waits", seeds=MIN_RUNS))
    assert isinstance(begun.answer, StartEstimate)
    assert begun.answer.forecast == told


def test_after_the_twin_has_run_ahead_all_faces_say_the_same(client: Client, shell: Shell) -> None:
    before = forecast(client)
    eta = shell("eta", "waits", "--seeds", str(MIN_RUNS), "--horizon", "6h")
    told = forecast(client)
    assert told.seeds == MIN_RUNS
    assert told.p50_ms != before.p50_ms
    for said in (eta, shell("why", "waits"), shell("get", "workloads", "waits")):
        assert starts(told) in said
        assert starts(before) not in said
        assert "not before" not in said


def test_the_twin_moves_the_range_and_leaves_its_width_to_the_record(client: Client, shell: Shell) -> None:
    before = forecast(client)
    shell("eta", "waits", "--seeds", str(MIN_RUNS), "--horizon", "6h")
    told = forecast(client)
    assert None not in (before.p10_ms, before.p90_ms, told.p10_ms, told.p50_ms, told.p90_ms)
    assert told.at_ms <= (told.p10_ms or 0) < (told.p50_ms or 0) < (told.p90_ms or 0)
    later = (told.p50_ms or 0) > (before.p50_ms or 0)
    assert later == ((told.p90_ms or 0) > (before.p90_ms or 0))


def test_a_dry_run_tells_the_start_that_cost_does(client: Client, loop: EngineLoop) -> None:
    spec = gpu_job("another", tasks=2)
    status = client.ask(AskRun(workloads=(spec,), seeds=MIN_RUNS))
    while status.state == "running":
        status = client.run(status.id, status.serial, PATIENCE_S)
    assert isinstance(status.answer, DryRun)
    told = status.answer.trials[0].forecast
    assert told is not None
    assert told.seeds == MIN_RUNS
    assert told.line_ms == loop.call(lambda _: loop.twins.starts.of_spec(spec)).line_ms
    assert any(starts(told) in line for line in dry_run_lines(status.answer))


def test_cost_and_the_fleet_tell_the_start_that_the_line_and_the_twin_give(client: Client, loop: EngineLoop) -> None:
    spec = gpu_job("another", tasks=2)
    at_once = loop.call(lambda _: loop.twins.starts.of_spec(spec))
    assert at_once.p50_ms is not None
    status = client.ask(
        AskOptions(workloads=(spec,), run_ms=((HOUR_MS,),), horizon_ms=12 * HOUR_MS, seeds=MIN_RUNS, until="started")
    )
    while status.state == "running":
        status = client.run(status.id, status.serial, PATIENCE_S)
    answer = status.answer
    assert isinstance(answer, Options)
    told = answer.trials[0].forecast
    assert told is not None
    assert told.p50_ms is not None
    assert told.p90_ms is not None
    assert told.seeds == MIN_RUNS
    offer = offer_of(answer, 0, HOUR_MS, speed=1.0)
    assert (offer.p50_ms, offer.p90_ms) == (told.p50_ms - answer.at_ms, told.p90_ms - answer.at_ms)
    quote = client.quote(
        QuoteRequest(nodes=2, gpus=8, model="h100", run_ms=HOUR_MS, queue="a", seeds=MIN_RUNS, arrivals=True)
    )
    (option,) = quote.options
    assert option.forecast is not None
    assert start_words(option, quote.at_ms) == starts(option.forecast)
