"""The filter language: terms, errors that point, completion."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.actions.line_completion import values, wanted_value
from console.forms.filters import ALIASES, VALUES, FilterError, complete, matches, parse_filter, parse_sort, parse_view
from console.views.proposal import state_word
from engine.model.list_queries import Term
from engine.reads import pending_reasons
from runbooks.plans.typed_plan import State
from tests.console.fake_client import FakeClient


def test_the_example_of_the_manual() -> None:
    assert parse_filter("workloads", "state:queued queue:research/* gpu>=8 age>1h !tenant:acme word") == (
        Term("state", "=", "queued"),
        Term("queue", "=", "research/*"),
        Term("gpu", ">=", 8_000),
        Term("age", ">", 3_600_000),
        Term("tenant", "!=", "acme"),
        Term("text", "~", "word"),
    )


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ()),
        ("state:queued,held", (Term("state", "=", "queued"), Term("state", "=", "held"))),
        ('name:"my job"', (Term("name", "=", "my job"),)),
        ('name:"a,b",c', (Term("name", "=", "a,b"), Term("name", "=", "c"))),
        ("name~llama", (Term("name", "~", "llama"),)),
        ("!name~llama", (Term("name", "!~", "llama"),)),
        ("!gpu>=8", (Term("gpu", "<", 8_000),)),
        ("!word", (Term("text", "!~", "word"),)),
        ("gpus=1 mem>64g", (Term("gpu", "=", 1_000), Term("memory", ">", 65_536))),
        ("STATE:Queued", (Term("state", "=", "queued"),)),
        ("wl-1:3", (Term("text", "~", "wl-1:3"),)),
    ],
)
def test_terms(text: str, terms: tuple[Term, ...]) -> None:
    assert parse_filter("workloads", text) == terms


def test_other_kinds() -> None:
    assert parse_filter("nodes", "use>80% state:down") == (Term("use", ">", 800), Term("state", "=", "down"))
    assert parse_filter("queues", "queued>10") == (Term("queued", ">", 10),)


@pytest.mark.parametrize(
    ("text", "caret", "says"),
    [
        ("stat:queued", "^^^^", "Did you mean state?"),
        ("a state:quued", "        ^^^^^", "Did you mean queued?"),
        ("state:xyzzy", "      ^^^^^", "running, finished"),
        ("gpu>=x", "     ^", "not a number"),
        ("memory>64", "       ^^", "64g"),
        ('name:"x', "     ^^", "not closed"),
        ("tenant>3", "^^^^^^^^", "is text"),
        ("gpu~3", "   ^", "number"),
        ("state:", "      ^", "state:queued"),
        ("!", "^", "empty search"),
    ],
)
def test_errors_point_at_what_is_wrong(text: str, caret: str, says: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter("workloads", text)
    assert caught.value.caret() == caret
    assert says in str(caught.value)


@given(st.text(max_size=60))
@settings(deadline=None, derandomize=True)
def test_any_text_is_a_filter_or_a_named_error(text: str) -> None:
    complete("workloads", text, len(text))
    try:
        parse_filter("workloads", text)
    except FilterError as error:
        start = error.start
    else:
        return
    assert 0 <= start <= len(text)


def test_completion() -> None:
    assert complete("workloads", "sta", 3) == ["state:", "started>="]
    assert complete("workloads", "gpu>=8 state:q", 14) == ["state:queued"]
    assert complete("workloads", "state:queued,h", 14) == ["state:queued,held"]
    assert complete("workloads", "!sta", 4)[0] == "!state:"
    assert complete("workloads", "stat:x", 6)[0] == "state:x"
    assert complete("workloads", "queue:re", 8, {"queue": ("research/train", "prod")}) == ["queue:research/train"]
    assert complete("workloads", "zzz", 3) == []


def test_every_reason_the_engine_gives_can_be_asked_for() -> None:
    tokens = {value for name, value in vars(pending_reasons).items() if name.isupper() and isinstance(value, str)}
    assert set(VALUES["workloads", "reason"]) == tokens
    assert parse_filter("workloads", "reason:suspended") == (Term("reason", "=", "Suspended"),)


def test_states_of_proposals_are_the_words_that_stand_on_the_screen() -> None:
    assert set(VALUES["proposals", "state"]) == {state_word(state) for state in get_args(State)}
    assert parse_filter("proposals", "state:rolled_back,cancelled") == (
        Term("state", "=", "rolled back"),
        Term("state", "=", "withdrawn"),
    )
    with pytest.raises(FilterError, match="no state is called 'pausd'"):
        parse_filter("proposals", "state:pausd")


def test_modes_and_bursts_of_queues_are_closed_sets() -> None:
    assert parse_filter("queues", "state:held,draining burst:cooldown share>=10% gpu_borrowed>0") == (
        Term("state", "=", "held"),
        Term("state", "=", "draining"),
        Term("burst", "=", "cooldown"),
        Term("share", ">=", 100),
        Term("gpu_borrowed", ">", 0),
    )
    with pytest.raises(FilterError, match="no state is called 'closed'"):
        parse_filter("queues", "state:closed")
    assert complete("queues", "state:dr", 8) == ["state:draining"]


# --- words of other tools, order and columns, pages of the console's own


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("state:pending", ("queued", "held", "waiting")),
        ("state:PD,r", ("queued", "held", "waiting", "running")),
        ("state:ended", ("finished", "failed", "cancelled")),
        ("state:queued,pending", ("queued", "held", "waiting")),
    ],
)
def test_words_of_other_tools_mean_states(text: str, states: tuple[str, ...]) -> None:
    assert parse_filter("workloads", text) == tuple(Term("state", "=", state) for state in states)


def test_not_pending_is_none_of_them() -> None:
    terms = parse_filter("workloads", "!state:pending")
    assert {term.op for term in terms} == {"!="}
    assert {term.value for term in terms} == {"queued", "held", "waiting"}


def test_every_alias_stands_for_states_there_are() -> None:
    for key, words in ALIASES.items():
        for word, states in words.items():
            assert set(states) <= set(VALUES[key])
            assert word not in VALUES[key]


def test_a_view_is_one_line() -> None:
    told = parse_view("workloads", 'state:r sort:queue,-wait name:"a b" columns:id,gpus,wait')
    assert told.filter_text == 'state:r name:"a b"'
    assert told.sort == ("queue", "-wait")
    assert told.columns == ("id", "gpu", "wait")
    assert parse_view("workloads", "llama").sort is None
    assert parse_sort("workloads", "queue:asc,wait:desc") == ("queue", "-wait")


@pytest.mark.parametrize(
    ("text", "caret", "says"),
    [
        ("llama sort:queue,wiat", "                 ^^^^", "Did you mean wait?"),
        ("sort:-wait:up", "           ^^", "asc or desc"),
        ("sort:", "     ^", "queue,-wait"),
        ("columns:id,gpus,nonsense", "                ^^^^^^^^", "It can be"),
    ],
)
def test_errors_in_order_and_columns_point(text: str, caret: str, says: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_view("workloads", text)
    assert caught.value.caret() == caret
    assert says in str(caught.value)


def test_order_and_columns_are_completed() -> None:
    assert complete("workloads", "sort:queue,-wa", 14) == ["sort:queue,-wait", "sort:queue,-wasted"]
    assert complete("workloads", "columns:id,ga", 13) == []
    assert complete("workloads", "columns:id,gp", 13) == ["columns:id,gpu"]
    assert "columns:" in complete("workloads", "col", 3)
    assert "state:pending" in complete("workloads", "state:p", 7)


def test_events_have_the_same_grammar() -> None:
    now = {"at": 1_000, "what": "failed", "subject": "wl-7", "detail": "node lost", "age": 300_000}
    for text, holds in (
        ("what:failed since:10m", True),
        ("what:failed since:1m", False),
        ("what:finished,failed", True),
        ("!what:failed", False),
        ("subject:wl-*", True),
        ("LOST", True),
        ("!lost", False),
        ("detail~node wl-8", False),
        ("age>4m", True),
    ):
        assert matches(parse_filter("events", text), now) is holds, text


def test_a_value_is_asked_for_where_the_engine_knows_more() -> None:
    client = FakeClient()
    wanted = wanted_value("workloads", "state:r queue:re", 16)
    assert wanted == ("workloads", "queue", "re", "queue:")
    tenant = wanted_value("workloads", "tenant:acme,gl", 14)
    assert tenant is not None
    assert values(client, tenant) == ["tenant:acme,globex"]
    assert wanted_value("workloads", "state:ru", 8) is None, "a closed set"
    assert wanted_value("workloads", "gpu>", 4) is None
