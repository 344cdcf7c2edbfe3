"""What somebody says is to stay as it is no draft acts on; and a chain is followed up to what really keeps it."""

from __future__ import annotations

import msgspec
import pytest

from engine import commands as do
from engine.control import Engine
from engine.model import Dependency
from runbooks.draft_intent import intent
from tests.runbooks.test_drafter import HOUR_MS, LONG, acts, drafted
from tests.support.cells import small_cell, submit, workload

NAMED = (("queue", "payroll"), ("workload", "extra"), ("workload", "full"), ("node", "n-3"), ("node", "n-4"))


@pytest.mark.parametrize(
    ("text", "spared"),
    [
        ("payroll is held since 02:00, 3 wait. the freeze goes until 06:00", {"payroll"}),
        ("finops approved full. extra was rejected, leave it", {"extra"}),
        ("n-3 is back, n-4 must stay out", {"n-4"}),
        ("do not open payroll before the audit is done", {"payroll"}),
        ("n-4 is cordoned on purpose", {"n-4"}),
        ("approve all except extra", {"extra"}),
        ("payroll was held until 06:00, that is over", set()),
        ("payroll is still held, why?", set()),
        ("full can't wait until tomorrow", set()),
        ("payroll stays at 0 running", set()),
    ],
)
def test_what_is_to_stay_is_what_its_clause_names(text: str, spared: set[str]) -> None:
    found = intent(text, NAMED)
    assert {id_ for _, id_ in found.spared} == spared
    assert not found.nothing


@pytest.mark.parametrize("text", ["just confirm that payroll is fine", "3 wait in payroll, no action needed"])
def test_who_only_asks_wants_no_act(text: str) -> None:
    assert intent(text, NAMED).nothing


def held_queue() -> Engine:
    engine = Engine.open(None, cell=small_cell())
    engine.command(do.HoldQueues(names=("a",)))
    engine.command(submit(workload("w0", run=LONG, estimate=LONG, gpu=1000)))
    engine.advance(2 * HOUR_MS)
    return engine


def test_a_queue_that_is_held_for_a_freeze_stays_so_and_is_opened_where_nobody_says_that() -> None:
    assert acts(drafted(held_queue(), "queue a is held and w0 waits")) == [("open_queue", ("a",))]
    assert not acts(drafted(held_queue(), "queue a is held and w0 waits. the freeze goes until six"))


def test_a_chain_is_followed_to_the_stage_that_somebody_suspended() -> None:
    engine = Engine.open(None, cell=small_cell())
    engine.command(submit(workload("first", run=LONG, estimate=LONG, gpu=1000)))
    last = workload("last", run=LONG, estimate=LONG, gpu=1000)
    engine.command(submit(msgspec.structs.replace(last, after=(Dependency(id="first"),))))
    engine.advance(HOUR_MS)
    assert not acts(drafted(engine, "last waits for its dependency"))
    engine.command(do.Suspend(ids=("first",)))
    engine.advance(6 * HOUR_MS)
    assert acts(drafted(engine, "last waits for its dependency")) == [("resume", ("first",))]
    assert not acts(drafted(engine, "last waits for its dependency, first stays suspended until friday"))
