"""Money in the shell: who was charged what, what budgets have left, and lists of prices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from console.cli.main import run
from console.client.remote import RemoteClient
from console.forms.documents import read_document
from console.forms.work_files import cell_of
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.errors import SpecError
from engine.model.price_catalogue import priced_cell, read_catalogue
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, Resources, ScalingSpec
from tests.support.served import HOUR_MS, gpu_job, running_loop, served_on_unix

PRICES = Path(__file__).parents[4] / "shared" / "data" / "prices"
Shell = Callable[..., int]


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def shell(loop: EngineLoop) -> Iterator[Shell]:
    """A cell of four nodes with devices at $20 an hour and two without at $1, half of the former charged to `first`."""
    with served_on_unix(loop) as path:
        client = RemoteClient(str(path))
        client.command(Submit(workloads=(gpu_job("first", tasks=2),)))
        client.close()
        yield lambda *arguments: run([*arguments, "--connect", str(path)])


def later(loop: EngineLoop, ms: int) -> None:
    loop.call(lambda engine: engine.advance(engine.now_ms + ms))


def test_showback_adds_up_to_what_the_nodes_cost(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    later(loop, 2 * HOUR_MS)
    assert shell("budget", "showback", "--by", "queue", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    engine = loop.engine
    now_ms = report["now_ms"]
    assert report["total_microusd"] == engine.state.ledger.total(now_ms)
    assert sum(line["microusd"] for line in report["lines"]) == report["total_microusd"]
    assert [(line["kind"], line["name"]) for line in report["lines"]] == [("group", "a"), ("idle", "")]
    for by in ("tenant", "team", "pool", "tag:project"):
        assert shell("budget", "showback", "--by", by, "--json") == 0
        lines = json.loads(capsys.readouterr().out)
        assert sum(line["microusd"] for line in lines["lines"]) == lines["total_microusd"]
    assert shell("budget", "showback") == 0
    out = capsys.readouterr().out
    assert "(idle)" in out
    assert "all nodes" in out


def test_showback_of_a_day_is_of_that_day_alone(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    later(loop, 50 * HOUR_MS)
    assert shell("budget", "showback", "--by", "queue", "--since", "1970-01-02", "--until", "1970-01-02", "--json") == 0
    assert json.loads(capsys.readouterr().out)["total_microusd"] == 24 * 82_000_000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--since", "yesterday"), "is not a day"),
        (("--until", "2026-01-01"), "has no start"),
        (("--since", "2026-01-02", "--until", "2026-01-01"), "before the start of the window"),
        (("--by", "colour"), "there is no grouping 'colour'"),
    ],
)
def test_a_window_that_is_none_is_refused(
    shell: Shell, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    assert shell("budget", "showback", *words) == 2
    assert told in capsys.readouterr().err


def test_a_budget_goes_through_the_gate_and_is_told(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("budget", "list") == 0
    assert "no budget is set" in capsys.readouterr().out
    set_it = ("budget", "set", "team", "--queue", "a", "--limit", "10", "--window", "1d", "--then", "hold")
    assert shell(*set_it, "--dry-run") == 0
    assert "none -> $10.00 in 24.0 h for queue a, then hold" in capsys.readouterr().out
    assert not loop.engine.state.budgets.specs
    assert shell(*set_it, "--yes") == 0
    later(loop, HOUR_MS)
    loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("late"),))))
    capsys.readouterr()
    assert shell("budget", "list") == 0
    out = capsys.readouterr().out
    assert "spent, 1 waiting" in out
    assert shell("why", "late") == 0
    out = capsys.readouterr().out
    assert "BudgetHold" in out
    assert "budget team is raised to $" in out
    assert shell("budget", "set", "team", "--limit", "1000", "--yes") == 0
    assert loop.engine.state.is_bound(1)
    assert shell("budget", "set", "team", "--limit", "1000", "--yes") == 4, "nothing to change"
    assert shell("budget", "remove", "team", "--yes") == 0
    assert shell("budget", "remove", "team", "--yes") == 3
    assert shell("budget", "set", "new", "--limit", "5", "--yes") == 2
    assert "--tenant, --team or --queue" in capsys.readouterr().err


def test_spending_is_approved_by_name(shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("budget", "set", "b", "--queue", "b", "--limit", "0", "--then", "approve", "--yes") == 0
    loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("w", queue="b"),))))
    assert not loop.engine.state.is_bound(1)
    assert shell("workload", "approve-spending", "w", "--yes") == 0
    assert "spending approved" in capsys.readouterr().err
    assert loop.engine.state.is_bound(1)


def test_a_price_is_set_through_the_gate(shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("pool", "set-price", "gpu", "25.5", "--yes") == 0
    told = capsys.readouterr().err
    assert "$20.00 -> $25.50 an hour for each node" in told
    assert re.search(r"Cost an hour +\$82.00  →  \$104.00", told)
    assert loop.engine.state.capacity.pools[0].price_microusd_hour == 25_500_000
    assert shell("overview") == 0
    assert "cost      $104.00 an hour" in capsys.readouterr().out
    assert shell("pool", "set-price", "gpu", "-1") == 2
    assert shell("pool", "set-price", "none", "1", "--yes") == 3


def test_a_workload_tells_what_it_cost(shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]) -> None:
    later(loop, HOUR_MS // 2)
    assert shell("get", "workloads", "first") == 0
    cost = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  so far"))
    assert ", $36" in cost


# --- price lists ---------------------------------------------------------------------------------------------------

LIST = """\
region,instance_type,on_demand_price_per_hour,spot_price_per_hour,currency
eu,m5,0.204,0.1,USD
us,m5,0.192000,,USD
us,big,12.5,1.234567,
"""


def catalogue_at(folder: Path, text: str = LIST) -> Path:
    path = folder / "prices.csv"
    path.write_text(text)
    return path


def pool(machine_type: str = "m5", region: str = "eu", **given: object) -> CellSpec:
    scaling = ScalingSpec(most=1, region=region)
    spec = PoolSpec(name="p", capacity=Resources(cpu_milli=1), machine_type=machine_type, scaling=scaling, **given)  # type: ignore[arg-type]
    return CellSpec(pools=(spec,))


@pytest.mark.parametrize(
    ("cell", "price"),
    [
        (pool(), 204_000),
        (pool(spot=True), 100_000),
        (pool(region="us"), 192_000),
        (pool("big", region="", spot=True), 1_234_567),
        (pool("other", price_microusd_hour=7), 7),
    ],
)
def test_pools_take_their_prices_from_the_list(tmp_path: Path, cell: CellSpec, price: int) -> None:
    assert priced_cell(cell, read_catalogue(catalogue_at(tmp_path))).pools[0].price_microusd_hour == price


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        (pool("m6"), r"pools\[0\].machine_type: .*no machine type 'm6'"),
        (pool(region="asia"), r"pools\[0\].scaling.region: .*no price of m5 in region 'asia'"),
        (pool(region=""), r"prices of m5 in 2 regions, and the pool names none"),
        (pool(region="us", spot=True), r"pools\[0\].spot: prices.csv, line 3, has no spot price of m5"),
    ],
)
def test_what_is_not_listed_is_an_error_and_never_free(tmp_path: Path, cell: CellSpec, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        priced_cell(cell, read_catalogue(catalogue_at(tmp_path)))


def test_the_region_is_also_that_of_the_nodes(tmp_path: Path) -> None:
    plain = PoolSpec(name="p", capacity=Resources(cpu_milli=1), machine_type="m5")
    cell = CellSpec(pools=(plain,), nodes=(NodeSpec(id="n", pool="p", region="us"),))
    assert priced_cell(cell, read_catalogue(catalogue_at(tmp_path))).pools[0].price_microusd_hour == 192_000


HEADER = "machine_type,on_demand_usd_per_hour,preemptible_usd_per_hour\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no column machine_type"),
        ("machine_type,cost\nm,1\n", "line 1: names no column on_demand_price_per_hour"),
        (HEADER, "lists no machine type"),
        (HEADER + "m,-1,\n", "line 2, column 'on_demand_usd_per_hour': '-1' is negative"),
        (HEADER + "m,1,x\n", "line 2, column 'preemptible_usd_per_hour': 'x' is not an amount"),
        (HEADER + "m,0.0000001,\n", "is too fine: the least step is"),
        (HEADER + "m,1e30,\n", "is too large|is more than"),
        (HEADER + "m,1,\nm,2,\n", "line 3, column 'machine_type': prices 'm' in all regions again, as line 2"),
        (HEADER + "m,1\n", "line 2: has 2 columns, the first line 3"),
        (HEADER + ",1,\n", "names no machine type"),
        (LIST + "cn,m5,3.5,,money\n", "line 5, column 'currency': 'MONEY' is not a currency"),
        (HEADER + 'm,"1,\n', "line 2"),
    ],
)
def test_a_bad_list_is_refused_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        read_catalogue(catalogue_at(tmp_path, text))


def test_a_pool_takes_no_price_in_another_currency_and_others_take_theirs(tmp_path: Path) -> None:
    catalogue = read_catalogue(catalogue_at(tmp_path, LIST + "cn,m5,3.5,,CNY\n"))
    assert catalogue.price_of("m5", "us", "pools[0]", spot=False) == 192_000
    with pytest.raises(SpecError, match=r"prices of m5 in CNY \(line 5\), and the cell counts in USD"):
        catalogue.price_of("m5", "cn", "pools[0]", spot=False)


def test_files_that_are_no_lists_are_refused(tmp_path: Path) -> None:
    for name, body in (("a", b"\xff\xfe"), ("b", b"\x1f\x8b\x08broken")):
        (tmp_path / name).write_bytes(body)
    for name in ("a", "b", "none"):
        with pytest.raises(SpecError, match=r"UTF-8|cannot be"):
            read_catalogue(tmp_path / name)


def test_a_machine_type_that_costs_nothing_is_an_error(tmp_path: Path) -> None:
    listed = read_catalogue(catalogue_at(tmp_path, HEADER + "m,0.0,\n"))
    with pytest.raises(SpecError, match="costs nothing"):
        listed.price_of("m", "", "pools[0]", spot=False)


def test_a_cell_file_names_its_list_and_its_budgets(tmp_path: Path) -> None:
    catalogue_at(tmp_path)
    path = tmp_path / "cell.yaml"
    path.write_text(
        "prices: prices.csv\n"
        "pools:\n  - {name: p, machine_type: big, capacity: {cpu: 4}, nodes: 2}\n"
        "queues: [{name: q}]\n"
        "budgets: [{name: b, scope: queue, of: q, limit_usd: 12.5, window: 7d, then: hold}]\n"
    )
    cell = cell_of(read_document(str(path)))
    assert cell.pools[0].price_microusd_hour == 12_500_000
    assert (cell.budgets[0].limit_microusd, cell.budgets[0].action) == (12_500_000, "hold")
    path.write_text(path.read_text().replace("big", "bigger"))
    with pytest.raises(SpecError, match=r"cell.yaml:3:.*pools\[0\].machine_type: .*'bigger'"):
        cell_of(read_document(str(path)))


def test_a_machine_type_that_nobody_prices_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cell.yaml"
    path.write_text("pools:\n  - {name: p, machine_type: big, capacity: {cpu: 4}}\n")
    with pytest.raises(SpecError, match=r"cell.yaml:2:.*pools\[0\].machine_type: has no price"):
        cell_of(read_document(str(path)))
    path.write_text(path.read_text().replace("big,", "big, price_usd_hour: 0,"))
    assert cell_of(read_document(str(path))).pools[0].price_microusd_hour == 0, "free where somebody says so"


def test_negative_amounts_are_named_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "cell.yaml"
    path.write_text("pools: [{name: p, price_usd_hour: -1.5, capacity: {cpu: 4}}]\n")
    with pytest.raises(SpecError, match=r"cell.yaml:1:.*price_usd_hour: -1.5 is negative"):
        cell_of(read_document(str(path)))


def test_a_list_given_beside_the_cell_file_is_used(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cell.yaml"
    path.write_text("pools: [{name: p, machine_type: bigger, capacity: {cpu: 4}}]\n")
    words = ("cell", "define", str(path), "--prices", str(catalogue_at(tmp_path)))
    assert shell(*words) == 2
    assert "cell.yaml:1:" in (told := capsys.readouterr().err)
    assert "has no machine type 'bigger'" in told
    path.write_text(path.read_text().replace("bigger", "big"))
    assert shell(*words) == 4, "the cell has nodes already"


@pytest.mark.skipif(not PRICES.is_dir(), reason="the published price lists are not on this machine")
def test_the_published_lists_can_be_read_as_they_are() -> None:
    aws = read_catalogue(PRICES / "aws_ondemand_us-east-1.csv.gz")
    assert (len(aws), aws.price_of("p5.48xlarge", "us-east-1", "p", spot=False)) == (1367, 55_040_000)
    gcp = read_catalogue(PRICES / "gcp_instance_prices.csv")
    assert (len(gcp), gcp.price_of("a2-highgpu-1g", "", "p", spot=True)) == (233, 1_102_016)
