"""`muster cost`: what is typed, what is shown, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from console.cli.main import main, parser
from console.commands.money import quote_lines, request_of
from console.text.terminal_text import timestamp
from engine.model.errors import SpecError
from recommender.estimates.queries import WITHIN_MS, Quote, QuoteRequest
from recommender.estimates.quotes import NEVER, quantiles
from tests.console.fake_client import NOW_MS, FakeClient

HOUR, MINUTE = 3_600_000, 60_000
TYPED = ("cost", "--nodes", "64", "--gpus", "8", "--model", "H100", "--hours", "6")


def request(*more: str) -> QuoteRequest:
    return request_of(parser().parse_args([*TYPED, *more]), FakeClient())


def prices(folder: Path, *lines: str) -> str:
    path = folder / "list.csv"
    path.write_text("\n".join(("region,instance_type,on_demand_price_per_hour,currency", *lines)))
    return str(path)


def test_what_is_typed_is_what_is_asked() -> None:
    asked = request()
    assert (asked.nodes, asked.gpus, asked.model, asked.run_ms) == (64, 8, "H100", 6 * HOUR)
    assert asked.start_ms is None
    assert timestamp(asked.other_start_ms or 0) == "2026-03-01 22:00:00"
    assert request("--start", "tonight").start_ms == asked.other_start_ms
    assert request("--start", "2026-03-02 02:00").start_ms == NOW_MS + 14 * HOUR
    assert request("--start", "+90m").start_ms == NOW_MS + 3 * HOUR // 2
    assert request("--hours", "0.1").run_ms == HOUR // 10
    assert (asked.within_ms, request("--within", "20s").within_ms) == (WITHIN_MS, 20_000)
    assert request("--cpus", "4", "--memory", "64GiB", "--checkpoint", "30m").memory_mib == 65_536


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--start", "soon"), "'soon' is not a time"),
        (("--start", "2026-02-30 99:00"), "is not a time"),
        (("--start", "2025-01-01"), "is in the past"),
        (("--hours", "0"), "is not a number of hours"),
        (("--hours", "nan"), "is not a number of hours"),
        (("--hours", "1e9"), "is not a number of hours"),
        (("--memory", "64"), "--memory"),
        (("--region", "eu"), "needs a price list"),
        (("--within", "5"), "--within"),
        (("--within", "1h"), "is not a time up to 120 s"),
    ],
)
def test_what_makes_no_sense_is_refused(typed: tuple[str, ...], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        request(*typed)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("0", "0 is below 1"),
        ("-4", "-4 is below 1"),
        ("1e3", "'1e3' is not a whole number"),
        ("9" * 30, "is too large"),
    ],
)
def test_a_number_of_nodes_that_cannot_be_is_named_and_no_usage_is_shown(
    nodes: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["cost", "--nodes", nodes, "--hours", "1"])
    assert caught.value.code == 2
    told = capsys.readouterr()
    assert (told.out, "usage" in told.err) == ("", False)
    assert told.err.startswith("muster: --nodes: ")
    assert said in told.err


def test_list_prices_are_offered_by_type_and_region(tmp_path: Path) -> None:
    listed = prices(tmp_path, "us-east-1,p5.48xlarge,55.04,USD", "eu-west-1,p5.48xlarge,63.296,USD")
    offers = request("--prices", listed, "--machine-type", "p5.48xlarge").offers
    assert [(offer.region, offer.price_microusd_hour) for offer in offers] == [
        ("us-east-1", 55_040_000), ("eu-west-1", 63_296_000),
    ]  # fmt: skip
    assert len(request("--prices", listed, "--machine-type", "p5.48xlarge", "--region", "eu-west-1").offers) == 1
    for more, said in (
        (("--machine-type", "p5.48xlrge"), "Did you mean p5.48xlarge?"),
        (("--machine-type", "p5.48xlarge", "--region", "mars"), "There are: eu-west-1, us-east-1"),
        (("--machine-type", "p5.48xlarge", "--spot"), "has no spot price"),
    ):
        with pytest.raises(SpecError) as caught:
            request("--prices", listed, *more)
        assert said in f"{caught.value} {caught.value.remedy}"


def test_prices_in_another_currency_are_refused_only_where_they_are_asked_for(tmp_path: Path) -> None:
    listed = prices(
        tmp_path, "us-east-1,p5.48xlarge,55.04,USD", "cn-1,p5.48xlarge,400,CNY", "cn-2,p5.48xlarge,410,CNY",
        "cn-1,other,1,CNY",
    )  # fmt: skip
    given = ("--prices", listed, "--machine-type", "p5.48xlarge")
    assert [offer.price_microusd_hour for offer in request(*given, "--region", "us-east-1").offers] == [55_040_000]
    with pytest.raises(SpecError) as caught:
        request(*given)
    assert "list.csv has prices of p5.48xlarge in CNY (lines 3, 4) and in USD (line 2)" in str(caught.value)
    assert "--region" in caught.value.remedy
    with pytest.raises(SpecError, match=r"in CNY \(line 3\), and the cell counts in USD"):
        request(*given, "--region", "cn-1")


def shown(client: FakeClient, **changes: object) -> str:
    asked = QuoteRequest(nodes=64, gpus=8, model="H100", run_ms=6 * HOUR)
    found: Quote = client.quote(asked)
    option = msgspec.structs.replace(found.options[0], **changes)
    return "\n".join(quote_lines(msgspec.structs.replace(found, options=(option,)), asked))


def start_in(text: str) -> str:
    """The words behind the bar of the first option's start."""
    return text.splitlines()[2].split("  ")[-1]


def test_a_quote_is_shown_with_quantiles_and_cents_in_80_columns() -> None:
    text = shown(FakeClient())
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].strip() == "64 nodes with 8 H100 for 6h, asked at 2026-03-01 12:00:00 UTC (v1,030)"
    assert start_in(text) == "in 40m (now..over 1d; 8 runs)"
    assert lines[6].split()[-1] == "$21,135.36"
    assert "  · runs 6h" in lines
    assert "starts within 1d in 7 of 8 runs" in text
    assert "not now: 8 GPU more are needed" in text
    assert "chance of interruption in 6h: not known (not looked at)" in text


def from_runs(*starts: int | None) -> dict[str, object]:
    times = [NEVER if at_ms is None else NOW_MS + at_ms for at_ms in starts]
    return {"seeds": len(starts), "started": len(starts) - starts.count(None), "start_ms": quantiles(times)}


@pytest.mark.parametrize(
    ("starts", "looked_ms", "said"),
    [
        ((12 * MINUTE,), HOUR, "one run: in 12m"),
        ((None,), 30_000, "not within 30s (one run)"),
        ((None,) * 8, 2 * HOUR, "not within 2h (8 runs)"),
        ((12 * MINUTE, HOUR, HOUR), 2 * HOUR, "3 runs: in 12m..in 1h"),
        ((12 * MINUTE, None), 2 * HOUR, "2 runs: in 12m..over 2h"),
        ((12 * MINUTE,) * 5, 2 * HOUR, "in 12m (5 runs)"),
        ((0, 60_000, HOUR, HOUR, None), 2 * HOUR, "in 1h (now..over 2h; 5 runs)"),
    ],
)
def test_a_start_is_told_as_what_was_measured(starts: tuple[int | None, ...], looked_ms: int, said: str) -> None:
    client = FakeClient()
    text = shown(client, looked_ms=looked_ms, **from_runs(*starts))
    assert start_in(text) == said
    if len(starts) < 5:
        found = client.quote(QuoteRequest(nodes=1))
        option = msgspec.structs.replace(found.options[0], **from_runs(*starts))
        told = json.loads(msgspec.json.encode(option))["start_ms"]
        assert (told["p10"], told["p50"], told["p90"], told["runs"]) == (None, None, None, len(starts))


def test_what_is_not_known_is_not_shown_as_a_number() -> None:
    never = quantiles([NEVER])
    text = shown(FakeClient(), duration_ms=never, cost_microusd=never, asked_start_ms=NOW_MS + 48 * HOUR)
    assert text.count("not known (one run)") == 2, "the run and its cost"
    assert "not known: the run covers 1d, the start is in 2d" in text


def test_names_of_strangers_are_data() -> None:
    text = shown(FakeClient(hostile=True))
    assert "\x1b" not in text
    assert "\u202e" not in text
