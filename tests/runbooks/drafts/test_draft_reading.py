"""A question is read by the names and the closed table of symptom words in it; where these leave several symptoms, or
what a person has put aside, a person picks one.
"""

from __future__ import annotations

import msgspec
import pytest

from engine.control import Engine
from engine.model import commands as do
from engine.model.errors import RefusedError
from engine.model.specs import Dependency
from runbooks.drafts.symptom_rules import RULES
from runbooks.drafts.symptoms import SYMPTOM_CLASSES, read
from runbooks.drafts.typed_draft import Draft, DraftAsk, DraftRun
from runbooks.drafts.typed_draft import picked as ask_picked
from tests.runbooks.drafts.test_drafter import HOUR_MS, LONG, acts, drafted, jobs, picked
from tests.support.cells import small_cell, submit, workload


def two_queues_late() -> Engine:
    """Queue a waits at its quota, queue b is held."""
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 8000}))
    engine.command(do.HoldQueues(names=("b",)))
    engine.command(jobs("w", 4, gpu=1000, count=4))
    engine.command(jobs("v", 1, gpu=1000, queue="b"))
    engine.advance(2 * HOUR_MS)
    return engine


def names(draft: Draft) -> set[str]:
    return {choice.name for choice in draft.choices}


@pytest.mark.parametrize(
    ("text", "named", "classes"),
    [
        ("Why is W1 pending?", {("workload", "w1")}, {"waiting"}),
        ("w11 pending", set(), {"waiting"}),
        ("nothing in queue a", {("queue", "a")}, set()),
        ("it is a wait", set(), {"waiting"}),
        ("pool gpu on g0, is a node down?", {("pool", "gpu"), ("node", "g0")}, {"down"}),
        ("do NOT open it, leave it alone until six!", set(), set()),
        ("", set(), set()),
    ],
)
def test_names_that_exist_and_words_of_the_table_are_all_that_is_read(
    text: str, named: set[tuple[str, str]], classes: set[str]
) -> None:
    question = read(two_queues_late(), text, None)
    assert (set(question.named), question.classes) == (named, classes)


def test_every_kind_with_a_rule_has_a_word() -> None:
    told = {kind for row in SYMPTOM_CLASSES.values() for kind in row.kinds}
    assert set(RULES) <= told


def test_a_name_and_a_word_that_leave_one_object_decide() -> None:
    draft = drafted(two_queues_late(), "queue a waits")
    assert draft.steps[0].action == "set_quota"
    assert draft.read_as == "work waits; queue a"
    assert not draft.undecided
    assert draft.choices == ()


def test_a_question_that_leaves_several_objects_is_answered_by_a_choice() -> None:
    engine = two_queues_late()
    asked = drafted(engine, "jobs wait")
    assert asked.undecided
    assert not asked.steps
    assert names(asked) == {"wait_WaitingForQuota:a", "wait_QueueHeld:b"}
    for choice in asked.choices:
        by_name, by_object = (
            drafted(engine, "jobs wait", pick=pick) for pick in (choice.name, choice.name.partition(":")[2])
        )
        assert acts(by_name) == acts(by_object) != []
    assert acts(drafted(engine, "jobs wait", pick="A")) == [("set_quota", ("a",))]


@pytest.mark.parametrize("question", ["what is going on?", "training is slow", "is g0 down?"])
def test_a_question_that_fits_nothing_is_answered_by_what_the_cell_shows(question: str) -> None:
    asked = drafted(two_queues_late(), question)
    assert not asked.steps
    assert {"wait_WaitingForQuota:a", "wait_QueueHeld:b"} <= names(asked)


def test_what_a_person_closed_is_opened_where_a_person_picks_that_and_for_no_sentence() -> None:
    engine = two_queues_late()
    for question in ("queue b is held", "open queue b now!", "the upgrade of queue b is over, release it please"):
        assert acts(drafted(engine, question)) == [], question
    assert acts(picked(engine, "queue b is held", "wait_QueueHeld:b")) == [("open_queue", ("b",))]


@pytest.mark.parametrize("pick", ["17", "0", "wait_QueueHeld:no-such", "no-such"])
def test_a_pick_that_the_cell_does_not_show_is_told_with_what_it_shows(pick: str) -> None:
    asked = drafted(two_queues_late(), "jobs wait", pick=pick)
    assert not asked.steps
    assert asked.undecided
    assert pick in asked.summary[0].text
    assert asked.choices


def test_a_number_means_the_choice_that_was_shown_however_the_cell_changed() -> None:
    engine = two_queues_late()
    asked = drafted(engine, "jobs wait")
    run = DraftRun(id="D-1", serial=1, ask=DraftAsk(question="jobs wait", model=True), asked_ms=0, rule=asked)
    ask = ask_picked(run, "2")
    assert ask == DraftAsk(question="jobs wait", pick=asked.choices[1].name)
    assert ask_picked(run, "a").pick == "a"
    with pytest.raises(RefusedError, match="2 choices"):
        ask_picked(run, "3")


def test_a_chain_is_followed_to_the_stage_that_somebody_suspended() -> None:
    engine = Engine.open(None, cell=small_cell())
    engine.command(submit(workload("first", run=LONG, estimate=LONG, gpu=1000)))
    last = workload("last", run=LONG, estimate=LONG, gpu=1000)
    engine.command(submit(msgspec.structs.replace(last, after=(Dependency(id="first"),))))
    engine.command(do.Suspend(ids=("first",)))
    engine.advance(2 * HOUR_MS)
    name = "parked_WaitingForDependency:a"
    assert acts(picked(engine, "last waits, what for?", name)) == [("resume", ("first",))]


def test_what_no_word_tells_of_is_not_offered() -> None:
    engine = two_queues_late()
    later = msgspec.structs.replace(workload("later", gpu=1000), not_before_ms=engine.now_ms + 100 * HOUR_MS)
    engine.command(submit(later))
    assert names(drafted(engine, "anything?")) == {"wait_WaitingForQuota:a", "wait_QueueHeld:b"}
