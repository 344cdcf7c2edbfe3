"""Scripted incidents are sound, scores are what answers deserve, and the command says so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Connection

from console.cli.main import run
from console.evals.eval_drafts import EvaluatedModel, evaluate, scripted, tally
from console.evals.incident_replay import VERBS, PlayedIncident
from console.evals.incidents import IncidentLimits, ScriptedIncident, load
from console.evals.scores import CHECKS, GOES_ON, IncidentScore, outcome, score, score_acts
from console.evals.scripted_model import LIES, perfect
from engine.loop import EngineLoop
from engine.model.errors import NotFoundError, SpecError
from runbooks.drafts.model_answer import read_answer
from runbooks.drafts.typed_draft import Draft
from runbooks.gate.approval_gate import wall_ms
from runbooks.models import limits
from runbooks.models.drafter import ModelSetup
from runbooks.models.endpoint import Egress, endpoint_of
from runbooks.models.limits import SpendingLimits, TokenPrices
from runbooks.plans.typed_plan import Act, Note, Request, StepRequest
from runbooks.procedures.compiler import Maker
from tests.support.effort import most
from tests.support.gates import gate_of
from tests.support.perfect_acts import perfect_acts

INCIDENTS = load()
BY_ID = {one.id: one for one in INCIDENTS}
FAULT, CONTROL, CORES = "vision-at-its-quota", "asked-for-tomorrow-morning", "nightly-render-nodes-left-out"
QUICK = (FAULT, CONTROL, CORES)
"""A fault, one with nothing wrong, one on a cell without GPUs: `make test` does with these."""
EVERY = [pytest.param(id_, marks=() if id_ in QUICK else pytest.mark.thorough, id=id_) for id_ in sorted(BY_ID)]
Answer = Callable[[PlayedIncident], tuple[Act, ...]]


@pytest.fixture
def played() -> Iterator[Callable[[str], PlayedIncident]]:
    scenes: list[PlayedIncident] = []

    def play(id_: str) -> PlayedIncident:
        scenes.append(PlayedIncident(BY_ID[id_]))
        return scenes[-1]

    yield play
    for scene in scenes:
        scene.close()


def judged(incidents: tuple[ScriptedIncident, ...], answer: Answer) -> list[IncidentScore]:
    """What a drafter that answers so deserves."""
    found = []
    for incident in incidents:
        scene = PlayedIncident(incident)
        found.append(score_acts(scene, answer(scene)))
        scene.close()
    return found


# -- the incidents ----------------------------------------------------------------------------------------------------


def test_there_is_enough_to_tell_drafters_apart() -> None:
    controls = [one for one in INCIDENTS if one.control]
    held = [one for one in INCIDENTS if one.held]
    cores = [one for one in INCIDENTS if not any(pool.capacity.gpu_milli for pool in one.cell.pools)]
    assert len(INCIDENTS) >= 56
    assert len(controls) >= 12
    assert len(cores) >= 12, "cells without GPUs have nights too"
    assert len(held) * 5 >= len(INCIDENTS)
    assert sum(one.control for one in held) >= 8
    assert len({pattern.action for one in INCIDENTS for way in one.accept for pattern in way}) >= 16
    assert len({one.cell.name for one in INCIDENTS}) == len(INCIDENTS)
    assert all(one.words and (one.question or one.about or one.finds or one.finding) for one in INCIDENTS)


@pytest.mark.parametrize("id_", EVERY)
def test_a_good_answer_is_right_and_nothing_else_mends_it(id_: str, played: Callable[[str], PlayedIncident]) -> None:
    scene = played(id_)
    before = scene.engine.version
    perfect = perfect_acts(scene)
    found = score_acts(scene, perfect)
    assert (found.right, found.harm, found.why) == (True, (), "")
    assert found.recovered is (True if perfect else None)
    if scene.incident.recovers is not None:
        assert outcome(scene, ()).missing, "it is over by itself: nothing was wrong"
    assert outcome(scene, ()).harm == ()
    assert scene.engine.version == before, "judging changes nothing"


@pytest.mark.parametrize("id_", EVERY)
def test_an_incident_is_the_same_each_time(id_: str, played: Callable[[str], PlayedIncident]) -> None:
    once, again = played(id_), played(id_)
    assert once.engine.state.dump() == again.engine.state.dump()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("  titel: x\n", "did you mean 'title'"),
        ("  control: true\n  accept: [{}]\n", "control with an action"),
        ("  accept: [{drian: {nodes: [a]}}]\n", "did you mean 'drain'"),
        ("  accept: [{}]\n  perfect: [{drain: {node: [a]}}]\n", "is not a parameter of drain"),
        ("  accept: [{}]\n  recovers: {runs: [a]}\n", "the expected check"),
        ("  accept: [{}]\n  script: [{pass: 1h, hold: [a]}]\n", "is not one step"),
        ("  accept: [{}]\n  keeps: {may_stopp: [a]}\n", "may_stopp"),
    ],
)
def test_a_file_that_is_wrong_is_told_by_place(tmp_path: Path, change: str, problem: str) -> None:
    cell = "{pools: [{name: p, capacity: {cpu: 4}, nodes: 1}], queues: [{name: q}]}"
    path = tmp_path / "one.yaml"
    path.write_text(f"- id: one\n  title: T\n  cell: {cell}\n{change}")
    with pytest.raises(SpecError, match=problem) as caught:
        load(folder=tmp_path)
    assert "one.yaml" in str(caught.value)


def test_a_script_that_cannot_be_played_names_its_step(tmp_path: Path) -> None:
    cell = "{pools: [{name: p, capacity: {cpu: 4}, nodes: 1}], queues: [{name: q}]}"
    path = tmp_path / "one.yaml"
    path.write_text(
        f"- id: one\n  title: T\n  control: true\n  cell: {cell}\n  script: [{{pass: 1m}}, {{cordon: [p9]}}]\n"
    )
    (incident,) = load(folder=tmp_path)
    with pytest.raises(SpecError, match=r"script step 2, cordon: .*p9"):
        PlayedIncident(incident)


def test_the_example_of_the_manual_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manual = (Path(__file__).parents[3] / "docs" / "incidents.md").read_text()
    (shown,) = re.findall(r"^```incident\n(.*?)^```$", manual, re.MULTILINE | re.DOTALL)
    (tmp_path / "ours.yaml").write_text(shown)
    (incident,) = load(folder=tmp_path)
    scene = PlayedIncident(incident)
    assert score_acts(scene, perfect_acts(scene)).right
    assert all(f"`{verb}`" in manual for verb in {*VERBS, *CHECKS, *IncidentLimits.__struct_fields__} - {"define"})
    scene.close()
    assert run(["eval", "drafts", "--folder", str(tmp_path)]) in (0, 1)
    assert incident.id in capsys.readouterr().out
    assert run(["eval", "drafts", "--folder", str(tmp_path / "none")]) == 2


def test_an_unknown_incident_is_refused_with_what_was_meant() -> None:
    with pytest.raises(NotFoundError, match="did you mean 'vision-at-its-quota'"):
        load(["vision-at-its-qota"])


# -- the score --------------------------------------------------------------------------------------------------------


def drain_everything(scene: PlayedIncident) -> tuple[Act, ...]:
    ready = tuple(sorted(id_ for id_ in scene.engine.state.capacity.row_of if scene.engine.node(id_).state == "ready"))
    return (Act(action="drain", targets=ready),)


def cancel_everything(scene: PlayedIncident) -> tuple[Act, ...]:
    w = scene.engine.state.workloads
    over = ("finished", "failed", "cancelled")
    live = tuple(id_ for id_ in w.ids if scene.engine.workload(id_).state not in over)
    return (Act(action="cancel", targets=live),)


def tell_somebody(scene: PlayedIncident) -> tuple[Act, ...]:
    return ()


QUICKLY = tuple(BY_ID[id_] for id_ in QUICK)
EITHER = pytest.mark.parametrize(
    "incidents", [pytest.param(QUICKLY, id="quick"), pytest.param(INCIDENTS, id="all", marks=pytest.mark.thorough)]
)


@EITHER
def test_whoever_drains_everything_harms_everywhere(incidents: tuple[ScriptedIncident, ...]) -> None:
    found = tally(judged(incidents, drain_everything))
    assert (found.right, found.left_alone) == (0, 0)
    assert found.harmful == found.incidents
    assert not found.good


@EITHER
def test_whoever_cancels_everything_harms_everywhere(incidents: tuple[ScriptedIncident, ...]) -> None:
    found = tally(judged(incidents, cancel_everything))
    assert (found.right, found.left_alone, found.harmful) == (0, 0, found.incidents)


@EITHER
def test_whoever_does_nothing_is_right_only_where_nothing_should_be_done(
    incidents: tuple[ScriptedIncident, ...],
) -> None:
    found = judged(incidents, tell_somebody)
    total = tally(found)
    assert total.left_alone == total.controls
    assert total.harmful == total.recovered == 0
    assert total.right == sum(not one.control and () in one.accept for one in incidents)
    assert not total.good


@EITHER
def test_the_right_action_on_the_wrong_target_is_no_right_answer(incidents: tuple[ScriptedIncident, ...]) -> None:
    """Each perfect answer, done to the things of the same kind that the incident does not accept."""

    def astray(scene: PlayedIncident) -> tuple[Act, ...]:
        return tuple(_elsewhere(scene, act) for act in perfect_acts(scene))

    faults = tuple(one for one in incidents if one.perfect)
    found = judged(faults, astray)
    assert [one.incident for one in found if one.right] == []
    assert sum(one.action for one in found) * 2 >= len(found), "the action was right, as far as it can be done there"


def _elsewhere(scene: PlayedIncident, act: Act) -> Act:
    accepted = {target for way in scene.incident.accept for pattern in way for target in pattern.targets}
    state = scene.engine.state
    names: dict[str, list[str]] = {
        "nodes": sorted(state.capacity.row_of),
        "work": list(state.workloads.ids),
        "queues": [spec.name for spec in state.queues.specs],
        "pools": [pool.name for pool in state.capacity.pools],
    }
    kind = next((of for of in names.values() if set(act.targets) <= set(of)), ["nothing-of-that-name"])
    other = next((name for name in kind if name not in accepted), "nothing-of-that-name")
    to = None if act.queue is None else msgspec.structs.replace(
        act.queue, was=scene.engine.queue(other).spec if other in names["queues"] else act.queue.was,
        to=msgspec.structs.replace(act.queue.to, name=other),
    )  # fmt: skip
    moves = tuple(msgspec.structs.replace(move, id=other) for move in act.moves[:1])
    return msgspec.structs.replace(act, targets=(other,), queue=to, moves=moves)


def act(scene: PlayedIncident, action: str, **given: object) -> Act:
    return Maker(scene.engine).act(action, given)  # type: ignore[arg-type]


def test_quota_that_is_not_enough_is_not_right(played: Callable[[str], PlayedIncident]) -> None:
    scene = played(FAULT)
    small, far_too_much = (act(scene, "set_quota", queue="vision", add_gpus=gpus) for gpus in (8, 400))
    assert not score_acts(scene, [small]).right
    assert score_acts(scene, [small]).recovered is False
    found = score_acts(scene, [far_too_much])
    assert (found.action, found.right, found.recovered) == (True, False, True)
    assert "nominal_gpus 424 is not 40 to 56" in found.why


def test_more_than_is_accepted_is_not_right(played: Callable[[str], PlayedIncident]) -> None:
    scene = played(FAULT)
    good = perfect_acts(scene)
    assert not score_acts(scene, [*good, act(scene, "requeue", workloads=("asr-large",))]).right
    assert score_acts(scene, [*good, act(scene, "requeue", workloads=("asr-large",))]).harm == ("stops asr-large",)


def test_telling_somebody_is_neither_wrong_nor_enough(played: Callable[[str], PlayedIncident]) -> None:
    scene = played(FAULT)
    told = Act(action="notify", targets=("oncall",), note=Note(text="queue vision waits"))
    good = perfect_acts(scene)

    def draft(*acts: Act) -> Draft:
        request = Request(steps=tuple(StepRequest(act=act) for act in acts))
        return Draft(drafter="rule", task="act", title="T", request=request)

    assert score(scene, draft(told, *good)).right
    assert not score(scene, draft(told)).right
    assert score(played(CONTROL), draft(told)).right


@pytest.mark.parametrize(
    ("id_", "action", "given", "harm"),
    [
        (FAULT, "cancel", {"workloads": ("segment-04",)}, "cancels segment-04"),
        (FAULT, "preempt", {"workloads": ("asr-large",)}, "stops asr-large"),
        (FAULT, "cordon", {"nodes": ("h100-0001",)}, "takes h100-0001 out of use"),
        (FAULT, "hold_queue", {"queues": ("speech",)}, "closes queue speech"),
        (FAULT, "set_quota", {"queue": "speech", "nominal_gpus": 8, "over": "keep"}, "cuts the quota of speech"),
        (FAULT, "set_policy", {"policy": ("fcfs",)}, "changes the policy"),
        (FAULT, "set_price", {"pool": "h100", "microusd_hour": 1}, "changes the price of h100"),
        pytest.param(
            "idle-fleet-overnight", "set_autoscaling", {"preset": "seed"}, "changes how the whole cell grows",
            marks=pytest.mark.thorough,
        ),
        ("forgotten-bookings-on-cpu-cell", "unreserve", {"reservations": ("cryo-week",)}, "gives up reservation"),
        pytest.param(
            "two-of-four-cordons-have-a-reason", "uncordon", {"nodes": ("dub-h200-07",)}, "puts work back on",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "pool-at-its-most", "set_scaling", {"pool": "burst", "least": 4, "most": 40, "headroom": 20}, "costs $",
            marks=pytest.mark.thorough,
        ),
        ("held-by-its-owner", "release", {"workloads": ("wing-v3-final",)}, "does not leave wing-v3-final alone"),
        ("budget-at-seventy", "set_budget", {"budget": "nova-day", "add_usd": 500}, "changes budget nova-day"),
        ("low-waits-behind-high", "hold", {"workloads": ("old-data-1",)}, ""),
        ("waits-for-its-first-stage", "hold", {"workloads": ("train-after-prep",)}, ""),
        ("busy-within-its-quota", "hold", {"workloads": ("abl-5",)}, "holds abl-5 up"),
    ],
)  # fmt: skip
def test_harm_is_what_comes_about(
    id_: str, action: str, given: dict[str, object], harm: str, played: Callable[[str], PlayedIncident]
) -> None:
    scene = played(id_)
    found = score_acts(scene, [act(scene, action, **given)])
    assert not found.right
    assert any(harm in one for one in found.harm) if harm else found.harm == ()


def test_what_the_engine_refuses_is_no_answer(played: Callable[[str], PlayedIncident]) -> None:
    scene = played(FAULT)
    found = score_acts(scene, [Act(action="release", targets=("segment-04",))])
    assert (found.right, found.recovered, found.harm) == (False, False, ())
    assert "refused: " in found.why


def test_no_draft_is_worse_than_doing_nothing(played: Callable[[str], PlayedIncident]) -> None:
    found = score_acts(played(CONTROL), None, "the deadline has passed")
    assert (found.answered, found.right, tally([found]).left_alone) == (False, False, 0)


def test_a_perfect_answer_is_seen_to_run(played: Callable[[str], PlayedIncident]) -> None:
    """The check itself: what it says runs does."""
    scene = played(FAULT)
    fork = scene.engine.fork()
    from runbooks.actions.catalogue import command

    for one in perfect_acts(scene):
        fork.command(command(one))
    fork.advance(fork.now_ms + 60_000)
    assert {fork.workload(id_).state for id_ in ("segment-04", "segment-05")} <= set(GOES_ON)
    fork.forget()


# -- models that play a part ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("egress", ["local", "external"])
def test_a_perfect_model_scores_all_over_real_http(egress: Egress) -> None:
    """Also one that is told pseudonyms and facts alone."""
    with scripted("perfect", egress=egress) as seat:
        found = evaluate(most(INCIDENTS, 5), "model", model=seat)
    total = tally(found)
    assert [(one.incident, one.why) for one in found if not one.right or one.harm] == []
    assert (total.right, total.left_alone, total.recovered) == (total.faults, total.controls, total.to_recover)
    assert (total.harmful, [(one.incident, one.unsupported) for one in found if one.unsupported]) == (0, [])


@pytest.mark.thorough
def test_a_hostile_model_has_nothing_done() -> None:
    every_lie = INCIDENTS[: LIES + 1]
    with scripted("hostile") as seat:
        found = evaluate(every_lie, "model", model=seat)
    assert not any(one.touched for one in found)
    assert {one.reason for one in found} > {
        "unknown_target", "schema", "content_not_json", "leak_detected", "unexpected_tool_call", "finish_reason",
        "refusal", "redirect", "content_type", "response_too_large", "deadline", "http_500",
    }  # fmt: skip
    assert [one.incident for one in found if one.acts and one.right] == []
    assert sum(not one.answered for one in found) >= LIES - 4, "most of it is no draft at all"


def test_a_perfect_answer_has_the_form_that_is_asked_for() -> None:
    prompt = '{"id": "F7", "metric": "queue_waiting", "of": "vision", "value": 2, "reads": "2"}'
    said = read_answer(perfect(BY_ID[FAULT], prompt, {"queue vision": "queue-bcd"}), "act")
    assert [(step.action, step.with_) for step in said.steps] == [("set_quota", {"queue": "queue-bcd", "add_gpus": 16})]
    assert said.rationale == ("queue_waiting of vision is {F7}",)


@pytest.mark.parametrize("id_", [id_ for id_ in sorted(BY_ID) if BY_ID[id_].perfect])
def test_a_model_may_give_every_perfect_answer(id_: str) -> None:
    """None of them needs what models are never allowed to draft."""
    assert read_answer(perfect(BY_ID[id_], "", {}), "act").steps


def test_a_site_without_a_model_is_told_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "muster.toml"))
    (tmp_path / "muster.toml").write_text("")
    for name in ("MUSTER_MODEL_URL", "MUSTER_MODEL"):
        monkeypatch.delenv(name, raising=False)
    assert run(["eval", "drafts", "--llm", "--only", CONTROL]) == 4
    assert "MUSTER_MODEL_URL" in capsys.readouterr().err
    monkeypatch.setenv("MUSTER_MODEL_URL", "ftp://models")
    monkeypatch.setenv("MUSTER_MODEL", "m")
    assert run(["eval", "drafts", "--llm", "--only", CONTROL]) == 4
    assert "neither http nor https" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_model_that_does_not_answer_is_told_by_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "muster.toml").write_text(
        'model_url = "http://127.0.0.1:9/v1"\nmodel = "m"\nmodel_egress = "local"\nmodel_calls_minute = 600\n'
    )
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "muster.toml"))
    assert run(["eval", "drafts", "--llm", *(word for id_ in QUICK for word in ("--only", id_))]) == 1
    out = capsys.readouterr().out
    assert out.count("no draft (connection)") == len(QUICK)
    assert "m at http" in out
    assert max(map(len, out.splitlines())) <= 80


def test_what_was_spent_on_one_incident_is_not_there_for_the_next() -> None:
    endpoint = endpoint_of("http://127.0.0.1:9/v1", "m", egress="local")
    setup = ModelSetup(
        endpoint=endpoint, model="m", calls_minute=1_000, limits=SpendingLimits(hour=700_000, day=900_000)
    )
    seat = EvaluatedModel(setup, lambda: "", lambda *_: None)

    def spend(connection: Connection) -> None:
        """300,000 micro-USD."""
        prices = TokenPrices(out=1_000_000_000)
        reserved = limits.reserve(
            connection, wall_ms(), limits=SpendingLimits(call=400_000), prices=prices, tokens_in=0, tokens_out=300,
            draft="D-1", who="me", endpoint="e", model="m", prompt_sha256="",
        )  # fmt: skip
        limits.settle(connection, reserved, None)

    try:
        scene = PlayedIncident(BY_ID[CONTROL])
        loop = EngineLoop(scene.engine)
        gate = gate_of(scene.engine)
        loop.start()
        first = seat.drafter(gate, loop, scene.incident)
        first.open()
        loop.call(lambda engine: engine.record(spend))
        seat.note(first)
        second = seat.drafter(gate, loop, scene.incident)
        assert (second.setup.limits.hour, second.setup.limits.day) == (400_000, 600_000)
        loop.stop()
        scene.close()
    finally:
        seat.close()


# -- the rules, and the command ---------------------------------------------------------------------------------------


def test_the_rules_are_right_about_the_quick_ones() -> None:
    found = evaluate(QUICKLY, "rule")
    assert {one.incident: (one.right, one.offered, one.harm) for one in found} == {
        FAULT: (True, False, ()), CONTROL: (True, False, ()), CORES: (False, True, ()),
    }  # fmt: skip


@pytest.mark.thorough
def test_the_rules_are_as_good_as_the_house_promises() -> None:
    """On what they may be tuned on."""
    found = evaluate(tuple(one for one in INCIDENTS if not one.held), "rule")
    total = tally(found)
    assert total.right * 100 >= total.faults * 55, [one for one in found if not one.right]
    assert (total.right + total.offered) * 100 >= total.faults * 85, [one for one in found if not one.right]
    assert total.left_alone == total.controls, [one for one in found if one.control and one.acted]
    assert total.harmful == 0, [one for one in found if one.harm]


@pytest.mark.thorough
def test_the_rules_answer_what_is_held_back() -> None:
    """How well is told by `muster eval drafts --part held` alone: a test that named what is wrong would have them tuned
    on it."""
    found = evaluate(tuple(one for one in INCIDENTS if one.held), "rule")
    assert all(one.answered and not one.touched for one in found)


def test_the_command_says_what_was_right(capsys: pytest.CaptureFixture[str]) -> None:
    only = [word for id_ in QUICK for word in ("--only", id_)]
    assert run(["eval", "drafts", *only]) == 0
    out = capsys.readouterr().out
    assert all(id_ in out for id_ in QUICK)
    assert max(map(len, out.splitlines())) <= 80
    assert run(["eval", "drafts", *only, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["drafter"] == "rule"
    assert (report["tallies"]["open"]["right"], report["tallies"]["open"]["offered"]) == (1, 1)
    assert [one["incident"] for one in report["scores"]] == [one.id for one in INCIDENTS if one.id in QUICK]


def test_the_command_lists_without_playing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "drafts", "--list", "--part", "held", "--json"]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == [one.id for one in INCIDENTS if one.held]
    assert run(["eval", "drafts", "--only", "nothing-like-it"]) == 3
    assert "there is no incident" in capsys.readouterr().err
