"""The life of an incident: what alerts do to it, what people do, and that the record tells who did what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import update

from engine.control import Engine
from engine.model.errors import BusyError, NotFoundError, RefusedError, SpecError
from runbooks.gate import incidents, objective_watch
from runbooks.gate.approval_gate import Gate
from runbooks.gate.incidents import INCIDENT
from runbooks.plans.identity import Actor
from runbooks.plans.incidents import AlertReport, IncidentObject, NewIncident, ReportedAlert
from tests.support.cells import small_cell, submit, workload
from tests.support.gates import gate_of
from tests.support.people import ALICE, BOB, DAVE, FAITH, NOW_MS, actor, team
from tests.support.records import problems, records, types

pytestmark = pytest.mark.both_databases
SOURCE = Actor(subject="service:alertmanager", kind="service", account="token:service:alertmanager", deeds=("alert",))
OTHER = Actor(subject="service:grafana", kind="service", account="token:service:grafana", deeds=("alert",))
WAIT = {"alertname": "QueueWaitHigh", "severity": "critical", "queue": "a"}


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        self.now_ms += 1_000
        return self.now_ms


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with closing(Engine.open(tmp_path / "journal.db", cell=small_cell())) as opened:
        yield opened


@pytest.fixture
def gate(engine: Engine) -> Gate:
    return gate_of(engine, team(), Clock())


def alert(status: Any = "firing", mark: str = "00000000000000aa", **labels: str) -> ReportedAlert:
    return ReportedAlert(
        status=status, labels={**WAIT, **labels}, annotations={"summary": "p95 wait of a is 40 min"}, fingerprint=mark,
        starts_at="2026-03-01T11:50:00Z",
    )  # fmt: skip


def group(*alerts: ReportedAlert, key: str = '{}:{queue="a"}') -> AlertReport:
    over = all(each.status == "resolved" for each in alerts)
    return AlertReport(status="resolved" if over else "firing", group_key=key, alerts=alerts)


def test_a_repeated_alert_is_one_incident_and_writes_nothing(engine: Engine, gate: Gate) -> None:
    first = gate.incidents.report(SOURCE, group(alert()))
    before = len(records(engine))
    again = gate.incidents.report(SOURCE, group(alert()))
    assert (first.incident, first.change) == ("I-1", "opened")
    assert (again.incident, again.change) == ("I-1", "unchanged")
    assert len(records(engine)) == before


def test_it_resolves_when_the_last_alert_does_and_reopens_when_one_fires(gate: Gate) -> None:
    second = alert(mark="00000000000000bb", instance="other")
    gate.incidents.report(SOURCE, group(alert(), second))
    half = gate.incidents.report(SOURCE, group(alert("resolved"), second))
    assert (half.change, half.state) == ("updated", "open")
    over = gate.incidents.report(SOURCE, group(alert("resolved"), msgspec.structs.replace(second, status="resolved")))
    assert (over.change, over.state) == ("resolved", "resolved")
    back = gate.incidents.report(SOURCE, group(alert()))
    assert (back.incident, back.change, back.state) == ("I-1", "reopened", "open")


def test_one_that_was_closed_is_followed_by_another(gate: Gate) -> None:
    gate.incidents.report(SOURCE, group(alert()))
    gate.incidents.close(actor(ALICE), "I-1", "a job of another team; cancelled")
    gate.incidents.report(SOURCE, group(alert()))
    assert gate.incidents.incident("I-2").follows == "I-1"
    assert gate.incidents.incident("I-1").state == "closed"


def test_what_resolves_nothing_opens_nothing(engine: Engine, gate: Gate) -> None:
    receipt = gate.incidents.report(SOURCE, group(alert("resolved")))
    assert (receipt.incident, receipt.change) == ("", "ignored")
    assert gate.incidents.incidents() == ()


def test_a_source_touches_only_what_it_reported(gate: Gate) -> None:
    gate.incidents.report(SOURCE, group(alert()))
    forged = gate.incidents.report(OTHER, group(alert("resolved")))
    assert forged.change == "ignored"
    assert gate.incidents.incident("I-1").state == "open"


def test_labels_are_matched_to_what_is_there_and_the_rest_is_kept(gate: Gate) -> None:
    gate.incidents.report(SOURCE, group(alert(
        instance="g0.example.org:9100", Node="g1", local_queue="gone", nodepool="h100", job="node-exporter",
    )))  # fmt: skip
    shown = gate.incidents.incident("I-1")
    assert {(each.kind, each.id) for each in shown.objects} == {("queue", "a"), ("node", "g0"), ("node", "g1")}
    assert {(each.kind, each.id) for each in shown.unmatched} == {("queue", "gone"), ("pool", "h100")}


def test_more_labels_by_setting(engine: Engine) -> None:
    gate = Gate(engine, alert_labels={"slurm_part": "queue"}, clock=Clock())
    gate.incidents.report(SOURCE, group(alert(slurm_part="b")))
    assert IncidentObject("queue", "b", "slurm_part") in gate.incidents.incident("I-1").objects


def test_who_claims_hands_over_and_closes_is_on_record(engine: Engine, gate: Gate, tmp_path: Path) -> None:
    gate.incidents.report(SOURCE, group(alert()))
    assert gate.incidents.claim(actor(ALICE), "I-1").owner == "person:alice"
    gate.incidents.note(actor(ALICE), "I-1", "looks like the quota of last night")
    gate.incidents.hand_over(actor(ALICE), "I-1", "bob", "my shift ends")
    gate.incidents.report(SOURCE, group(alert("resolved")))
    shown = gate.incidents.close(actor(BOB), "I-1", "quota was 24 GPU too low")
    assert [(each.kind, each.subject, each.to, each.text) for each in shown.entries] == [
        ("opened", "service:alertmanager", "", ""),
        ("claimed", "person:alice", "", ""),
        ("noted", "person:alice", "", "looks like the quota of last night"),
        ("handed_over", "person:alice", "person:bob", "my shift ends"),
        ("resolved", "service:alertmanager", "", ""),
        ("closed", "person:bob", "", "quota was 24 GPU too low"),
    ]
    assert [type_ for type_ in types(engine) if type_.startswith("incident.")] == [
        f"incident.{each.kind}" for each in shown.entries
    ]
    assert problems(engine, tmp_path) == []


def test_two_people_do_not_have_it_at_once(gate: Gate) -> None:
    gate.incidents.report(SOURCE, group(alert()))
    gate.incidents.claim(actor(ALICE), "I-1")
    with pytest.raises(RefusedError, match=r"alice has had I-1 since 2026-03-01 12:00"):
        gate.incidents.claim(actor(BOB), "I-1")
    for refused in (
        lambda: gate.incidents.close(actor(BOB), "I-1", "nothing that I can see"),
        lambda: gate.incidents.hand_over(actor(BOB), "I-1", "carol"),
    ):
        with pytest.raises(RefusedError, match="alice has it"):
            refused()
    assert gate.incidents.claim(actor(BOB), "I-1", over=True).owner == "person:bob"
    assert gate.incidents.close(actor(DAVE), "I-1", "closed by the admin on duty").state == "closed"


def test_a_source_and_a_viewer_do_nothing_a_person_on_call_does(engine: Engine, gate: Gate) -> None:
    gate.incidents.report(SOURCE, group(alert()))
    for who in (SOURCE, actor(FAITH), Actor(subject="service:ci", kind="service", account="token:service:ci")):
        with pytest.raises(RefusedError, match="you may not respond"):
            gate.incidents.claim(who, "I-1")
        with pytest.raises(RefusedError):
            gate.incidents.close(who, "I-1", "nothing to see here at all")
    with pytest.raises(RefusedError):
        gate.incidents.report(actor(FAITH), group(alert()))
    assert gate.incidents.incident("I-1").owner == ""


def test_by_hand_with_objects_that_are_there(gate: Gate) -> None:
    shown = gate.incidents.open(actor(ALICE), NewIncident(title="login is slow", objects=("queue:a", "node:g0")))
    assert shown.named("queue") == ("a",)
    with pytest.raises(NotFoundError, match="no queue 'nowhere'"):
        gate.incidents.open(actor(ALICE), NewIncident(title="x", objects=("queue:nowhere",)))
    with pytest.raises(SpecError, match="cannot be printed"):
        gate.incidents.open(actor(ALICE), NewIncident(title="red \x1b[31m"))


def test_hand_over_goes_to_somebody_of_the_policy_alone(gate: Gate) -> None:
    gate.incidents.report(SOURCE, group(alert()))
    with pytest.raises(SpecError, match="names no 'nobody'"):
        gate.incidents.hand_over(actor(ALICE), "I-1", "nobody")
    with pytest.raises(NotFoundError, match="no incident 'I-9'"):
        gate.incidents.claim(actor(ALICE), "I-9")


def test_reports_are_bounded(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple(alert(mark=f"{number:016x}") for number in range(501))
    with pytest.raises(SpecError, match="max_alerts: 500"):
        gate.incidents.report(SOURCE, group(*many))
    gate.incidents.report(SOURCE, group(*many[:500]))
    more = gate.incidents.report(SOURCE, group(many[500]))
    shown = gate.incidents.incident("I-1")
    assert (more.change, shown.alert_count, shown.more_alerts) == ("updated", 500, 1)
    monkeypatch.setattr(incidents, "MAX_FIRING", 1)
    with pytest.raises(BusyError, match="incidents are open"):
        gate.incidents.report(SOURCE, group(alert(), key="another"))
    assert gate.incidents.report(SOURCE, group(*many[:1])).incident == "I-1"


def test_texts_of_strangers_are_cut_and_their_title_is_one_line(gate: Gate) -> None:
    texts = {"summary": "red \x1b[2J\nroot:~# \u202e" + "x" * 5_000, "secret": "not kept"}
    labels = {f"label{number:03}": "v" * 5_000 for number in range(200)}
    gate.incidents.report(SOURCE, AlertReport(labels=labels, annotations=texts))
    shown = gate.incidents.incident("I-1")
    assert shown.title.isprintable()
    assert len(shown.title) <= 160
    assert len(shown.alerts[0].labels) == 40
    assert max(map(len, shown.alerts[0].labels.values())) == 300
    assert set(shown.alerts[0].texts) == {"summary"}


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (AlertReport(), "Say in a line what is wrong"),
        (AlertReport(version="5", title="x"), "version 4"),
        (AlertReport(title="x", starts_at="yesterday"), "is no time"),
    ],
)
def test_a_report_that_says_nothing_of_use_is_refused(gate: Gate, report: AlertReport, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        gate.incidents.report(SOURCE, report)


def test_an_owner_written_into_the_database_is_found(engine: Engine, gate: Gate, tmp_path: Path) -> None:
    gate.incidents.report(SOURCE, group(alert()))
    engine.record(lambda connection: connection.execute(update(INCIDENT).values(owner="person:bob", state="claimed")))
    assert any("incident:1 is not as record" in problem for problem in problems(engine, tmp_path))


def test_a_record_of_a_claim_that_nobody_might_make_is_found(engine: Engine, gate: Gate, tmp_path: Path) -> None:
    gate.incidents.report(SOURCE, group(alert()))
    data = {"from": "open", "to": "claimed", "owner": "service:alertmanager"}
    engine.record(
        lambda connection: gate.audit.append(connection, "incident.claimed", SOURCE, proposal="I-1", data=data)
    )
    assert any("was not on call and claimed I-1" in problem for problem in problems(engine, tmp_path))


MINUTE = 60_000


def with_an_objective() -> Engine:
    """A cell of one node, of whose queue `a` 90 % are to start within two minutes."""
    plain = small_cell(1, 0)
    queues = tuple(
        msgspec.structs.replace(spec, start_within_ms=2 * MINUTE, objective_permille=900) if spec.name == "a" else spec
        for spec in plain.queues
    )
    return Engine.open(None, cell=msgspec.structs.replace(plain, queues=queues))


def test_a_missed_objective_opens_one_incident_which_resolves_and_which_people_close(tmp_path: Path) -> None:
    """Its breach is told once, also after somebody closed the incident while it went on; the next one opens another."""
    engine = with_an_objective()
    gate = gate_of(engine, team(), Clock())

    def passes(minutes: int) -> list[tuple[str, str, str]]:
        engine.advance(engine.now_ms + minutes * MINUTE)
        for _ in range(2 * objective_watch.EVERY_MS // 1_000):
            gate.tick()
        return [(each.id, each.state, each.source) for each in gate.incidents.incidents()]

    assert passes(1) == []
    engine.command(submit(*(workload(f"w{i}", gpu=8000, run=10 * MINUTE, estimate=10 * MINUTE) for i in range(4))))
    assert passes(5) == [("I-1", "open", "service:muster")]
    assert gate.incidents.incident("I-1").named("queue") == ("a",)
    assert passes(30) == [("I-1", "open", "service:muster")], "still the same breach"
    gate.incidents.close(actor(ALICE), "I-1", "a burst of long work, over in an hour")
    assert passes(5) == [("I-1", "closed", "service:muster")], "a person closed it: it is not opened again"
    passes(120)
    engine.command(submit(*(workload(f"x{i}", gpu=8000, run=10 * MINUTE, estimate=10 * MINUTE) for i in range(4))))
    assert passes(5)[0] == ("I-2", "open", "service:muster")
    assert gate.incidents.incident("I-2").follows == "I-1"
    assert passes(120)[0] == ("I-2", "resolved", "service:muster"), "over by itself; people close it"
    assert problems(engine, tmp_path) == []


def test_a_breach_that_could_not_be_reported_is_reported_once_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = with_an_objective()
    gate = gate_of(engine, team(), Clock())
    engine.command(submit(*(workload(f"w{i}", gpu=8000, run=10 * MINUTE, estimate=10 * MINUTE) for i in range(4))))
    engine.advance(engine.now_ms + 5 * MINUTE)

    def look_twice() -> list[str]:
        for _ in range(2 * objective_watch.EVERY_MS // 1_000):
            gate.tick()
        return [each.id for each in gate.incidents.incidents()]

    with monkeypatch.context() as full:
        full.setattr(incidents, "MAX_FIRING", 0)
        assert look_twice() == []
    assert look_twice() == ["I-1"]
    assert look_twice() == ["I-1"]
