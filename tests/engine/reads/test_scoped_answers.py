"""What a caller who sees one tenant is told where others' work decides about theirs."""

from __future__ import annotations

import msgspec
import pytest

from engine.control import Engine
from engine.model.commands import AddPriorityClasses, AddQueues, Submit
from engine.model.errors import MusterError, RefusedError
from engine.model.list_queries import Query, Term
from engine.model.specs import PriorityClassSpec, QueueSpec
from engine.model.visibility import OTHERS, Visibility, VisiblePart
from engine.read_replica import Answers, question
from engine.reads.visible_work import VisibleWork
from tests.support.cells import small_cell
from tests.support.two_tenants import work_of

OKAPI = Visibility(parts=(VisiblePart(tenants=("okapi",)),))


@pytest.fixture
def engine() -> Engine:
    """Okapi's work was preempted by zebra's, and waits behind more of it in a queue of both."""
    made = Engine.open(None, cell=small_cell())
    made.command(AddQueues(queues=(QueueSpec(name="shared", parent="root", order="strict_fifo"),)))
    urgent = PriorityClassSpec(name="urgent", value=990, preemption="lower")
    made.command(AddPriorityClasses(priority_classes=(urgent,)))

    def submit(*names: str, **more: object) -> None:
        parts = (name.split("/") for name in names)
        made.command(Submit(workloads=tuple(work_of(word, name, queue="shared", **more) for word, name in parts)))

    submit("okapi/low", priority_class="low")
    submit("zebra/a", "zebra/b", "zebra/c")
    made.advance(1_000)
    submit("zebra/urgent", priority_class="urgent")
    made.advance(2_000)
    submit("zebra/ahead")
    made.advance(3_000)
    return made


def test_others_are_told_as_work_of_others(engine: Engine) -> None:
    answers = Answers(engine)
    whole, shown = engine.workload("okapi/low"), answers.direct("workload", ("okapi/low",), OKAPI)
    assert "zebra/urgent" in whole.history[-1].detail
    assert f"preempted for {OTHERS}" in shown.history[-1].detail
    assert "zebra/ahead" in whole.reasons[0].text
    assert f"before {OTHERS}, which is ahead" in shown.reasons[0].text
    assert "zebra" not in msgspec.json.encode(answers.direct("changes", (0, 500), OKAPI)).decode()
    (node,) = {task.node for task in engine.workload("zebra/urgent").placement}
    assert answers.direct("node", (node,), OKAPI).workloads == ((OTHERS, 1),)


def test_no_filter_sort_or_count_reaches_what_is_hidden(engine: Engine) -> None:
    answers = Answers(engine)
    for where in ((), (Term("tenant", "=", "zebra"),), (Term("tenant", "!=", "okapi"),), (Term("text", "~", "z"),)):
        query = Query(kind="workloads", where=where, sort=("-id",))
        page = answers.direct("query", (query,), OKAPI)
        assert page.total == 1
        assert page.matched == len(page.rows) == (0 if where else 1)
        # Who sees all is answered from what is kept for them, also of the same query.
        assert answers.direct("query", (query,)).total == 6


def test_a_question_whose_answer_is_not_limited_is_refused(engine: Engine) -> None:
    answers = Answers(engine)
    for what, arguments in (("unblocking", ("okapi/low",)), ("intents", (10,)), ("reservation", ("x",)), ("fork", ())):
        with pytest.raises(RefusedError, match=what):
            answers.direct(what, arguments, OKAPI)
    with pytest.raises(MusterError, match="there is no workload 'zebra/a'") as refused:
        answers.direct("workload", ("zebra/a",), OKAPI)
    assert "zebra" not in refused.value.remedy
    assert answers.to(question("workload", ("zebra/a",), OKAPI))[:1] == b"-"


def test_names_in_sentences_are_found_whole_and_counted(engine: Engine) -> None:
    seen = VisibleWork(engine.state, OKAPI)
    assert seen.redacted("behind zebra/a, zebra/b and zebra/c.") == f"behind {OTHERS} (3)."
    assert seen.redacted("zebra's team zebra-team, okapi/low") == f"{OTHERS}'s team {OTHERS}, okapi/low"
    assert seen.redacted("the shared queue has room for 3") == "the shared queue has room for 3"
