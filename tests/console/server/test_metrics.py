"""What Prometheus reads: each metric is declared once, and what names one elsewhere names one that there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from console.server.load_limits import BackPressure
from console.server.metrics import METRICS, GateReading, Readings, table
from engine.external.mirror_report import MirrorReport, ModelAgreement
from engine.loop import EngineLoop
from runbooks.gate.store import OutboxStanding
from tests.console.server.test_api import over_unix
from tests.support.patience import PATIENCE_S
from tests.support.served import running_loop, served_on_unix

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
NAMES = {metric.name for metric in METRICS}
UNITS = ("_seconds", "_bytes", "_total")


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


def promtool(*arguments: str, stdin: str = "") -> None:
    """Run it; fails with what it says."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("needs promtool in PATH (Debian: apt-get install prometheus)")
    done = subprocess.run([tool, *arguments], input=stdin, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_name_has_its_unit_and_only_a_counter_ends_in_total() -> None:
    assert len(NAMES) == len(METRICS)
    for metric in METRICS:
        assert metric.help.endswith(".") or ";" in metric.help, metric.name
        assert re.fullmatch(r"(muster|process)_[a-z0-9]+(_[a-z0-9]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.kind != "histogram" or metric.name.endswith(UNITS)


def test_what_is_read_is_what_is_declared(loop: EngineLoop) -> None:
    hostile = loop.engine.state.cell = 'a"\n} 1\nmuster_engine_ok 0\n#\\'
    with served_on_unix(loop) as path, over_unix(path) as http:
        for _ in range(3):
            http.get("/v1/workloads/no-such%0Athing")
        text = http.get("/metrics").text
    declared = {metric.name: metric for metric in METRICS}
    read = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        metric = declared[name]
        read[name] = family
        assert family.type == metric.kind, name
        assert name.startswith("process_") or family.documentation == metric.help, name
        assert {label for sample in family.samples for label in sample.labels} - {"le"} <= set(metric.labels), name
    assert read["muster_info"].samples[0].labels["cell"] == hostile
    assert [sample.value for sample in read["muster_engine_ok"].samples] == [1.0]
    # What a cell without lease, mirror, anchors and history has none of.
    absent = (
        "muster_(lease|last_take|mirror|model|audit_.*timestamp|waiting|gpus|nodes_down|workloads_(waiting|running))"
    )
    assert [name for name in NAMES - read.keys() if not re.match(absent, name)] == []
    promtool("check", "metrics", stdin=text)


def test_each_metric_is_read_where_the_cell_has_a_use_for_it(loop: EngineLoop) -> None:
    """A mirror of Kueue with anchors, a history and messages that wait."""
    audit = SimpleNamespace(error="the anchor is away", checkpoint_ms=90_000, anchored_ms=30_000)
    client: Any = SimpleNamespace(
        mirror_trouble=lambda: "silent", gate_trouble=lambda: "", gate=SimpleNamespace(audit=audit)
    )
    mirror = MirrorReport(where="x", state="lost", looked_s=40, agreement=ModelAgreement(compared=9, kept=2, started=1))
    measured = dict.fromkeys(("waiting", "running", "waiting_p50_s", "waiting_p95_s", "nodes_down"), 5.0)
    measured |= {"capacity_gpu": 8000.0, "used_gpu": 500.0}
    gate = GateReading(1, 2, 3, OutboxStanding(waiting=4, failed=5, oldest_ms=70_000))
    readings = Readings(loop, loop.engine, BackPressure(), client, mirror, measured, gate, 10.0, 100.0)
    read = {metric.name: metric.read(readings) for metric in METRICS if metric.read is not None}
    assert [name for name, value in read.items() if value is None] == [
        "muster_lease_held",
        "muster_last_takeover_seconds",
    ]
    expected = {
        "muster_mirror_ok": 0, "muster_mirror_age_seconds": 60, "muster_model_decisions_total": 9,
        "muster_model_disagreements_total": {("kept",): 2, ("started",): 1}, "muster_gpus": 8, "muster_gpus_used": 0.5,
        "muster_audit_ok": 0, "muster_audit_checkpoint_timestamp_seconds": 90, "muster_plans_stuck": 2,
        "muster_audit_anchored_timestamp_seconds": 30, "muster_outbox_oldest_seconds": 30,
        "muster_outbox_messages": {("waiting",): 4, ("failed",): 5}, "muster_waiting_p95_seconds": 5,
    }  # fmt: skip
    assert {name: read[name] for name in expected} == expected


def test_labels_have_few_values_whatever_is_asked_for(loop: EngineLoop) -> None:
    with served_on_unix(loop) as path, over_unix(path) as http:
        http.get("/v1/workloads/a")
        before = len(http.get("/metrics").text.splitlines())
        for number in range(30):
            http.get(f"/v1/workloads/{number}")
            http.get(f"/nowhere/{number}")
            http.request(f"M{number}", "/v1/workloads")
        after = len(http.get("/metrics").text.splitlines())
    # The operations "none", /metrics and the status 405 are new; each has at most one histogram.
    assert after - before < 60


def test_the_figures_are_read_while_the_engine_is_busy(loop: EngineLoop) -> None:
    with served_on_unix(loop) as path, over_unix(path) as http:
        http.get("/v1/overview")
        go = threading.Event()
        loop.post(lambda _: go.wait(PATIENCE_S))
        try:
            text = http.get("/metrics").text
        finally:
            go.set()
    assert "muster_engine_ok 1.0" in text
    assert "muster_journal_ok 1.0" in text


def test_the_manual_has_every_metric() -> None:
    assert table() in (ROOT / "docs" / "metrics.md").read_text()


def alerts() -> list[dict[str, object]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return list(group["rules"])


def expressions() -> dict[str, str]:
    """Of alerts and panels, by their name."""
    found = {str(rule["alert"]): str(rule["expr"]) for rule in alerts()}
    board = json.loads((FOLDER / "dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    found |= {each["name"]: each["expr"] for each in board["annotations"]["list"]}
    return found


def test_alerts_and_dashboard_name_metrics_and_labels_that_there_are() -> None:
    labels = {label for metric in METRICS for label in metric.labels} | {"instance", "job", "le"}
    asked = expressions()
    assert len(asked) > 30
    for name, expression in asked.items():
        named = set(re.findall(r"\b(?:muster|process)_\w+", expression))
        assert named, name
        assert {re.sub(r"_bucket$", "", each) for each in named} <= NAMES, name
        assert set(re.findall(r"(\w+)=~?\"", expression)) <= labels, name


def test_every_alert_leads_to_a_part_of_the_page_for_the_night() -> None:
    page = (ROOT / "docs" / "slow-or-wrong.md").read_text()
    parts = {re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.*)$", page, re.M)}
    for rule in alerts():
        assert rule["annotations"]["look"] in parts, rule["alert"]  # type: ignore[index]
        assert f"`{rule['alert']}`" in page


def test_prometheus_takes_the_rules_and_they_fire_when_they_should() -> None:
    promtool("check", "rules", str(FOLDER / "alerts.yaml"))
    promtool("test", "rules", str(FOLDER / "alerts.test.yaml"))


def test_prometheus_takes_what_the_dashboard_asks(tmp_path: Path) -> None:
    rules = [
        {"record": f"asked:{number}", "expr": expression.replace("$instance", ".*")}
        for number, expression in enumerate(expressions().values())
    ]
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "asked.yaml"))
