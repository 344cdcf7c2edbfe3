"""What asking a model may cost, how often it is asked, and which answer is good for which question."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from engine.control import Engine
from engine.model.specs import HOUR_MS
from runbooks.drafts.typed_draft import REASONS, DraftRejected
from runbooks.models import limits as model_limits
from runbooks.models.calls import CallRecord, ModelReply
from runbooks.models.endpoint import endpoint_of
from runbooks.models.limits import (
    DAY_MS,
    FAILURES,
    FAULTS,
    MAX_KEPT,
    OPEN_S,
    TTL_MS,
    WITHIN_S,
    Circuit,
    RateLimit,
    ReplyCache,
    ReservedSpending,
    SpendingLimits,
    TokenPrices,
    cache_key,
    is_fault,
)
from tests.support.cells import small_cell
from tests.support.effort import examples

T = TypeVar("T")
PRICES = TokenPrices(in_=1_000_000, out=5_000_000)
LIMITS = SpendingLimits(call=20_000, hour=50_000, day=120_000)


def until_refused(ask: Callable[[], object]) -> tuple[int, DraftRejected]:
    """How often it was not, and why it was then."""
    for count in range(100):
        try:
            ask()
        except DraftRejected as error:
            return count, error
    raise AssertionError("it has no end")


class Books:
    """A budget on an engine of its own, and a clock."""

    def __init__(self, limits: SpendingLimits = LIMITS, prices: TokenPrices = PRICES) -> None:
        self.engine = Engine.open(None, cell=small_cell())
        self.engine.record(model_limits.create)
        self.limits, self.prices = limits, prices
        self.now_ms = 10**12

    def did(self, change: Callable[..., T], *arguments: Any) -> T:
        return self.engine.record(lambda connection: change(connection, *arguments))

    def reserve(self, tokens_in: int = 1_000, tokens_out: int = 2_000) -> ReservedSpending:
        def take(connection: Connection) -> ReservedSpending:
            return model_limits.reserve(
                connection, self.now_ms, limits=self.limits, prices=self.prices, tokens_in=tokens_in,
                tokens_out=tokens_out, draft="D-1", who="unix:1", endpoint="http://h", model="m", prompt_sha256="",
            )  # fmt: skip

        return self.engine.record(take)

    def exhaust(self) -> str:
        """Reserve until that is refused; returns why."""
        _, error = until_refused(self.reserve)
        assert error.reason == "budget"
        return str(error)

    @property
    def use(self) -> model_limits.SpendingUse:
        return self.did(model_limits.used, self.now_ms)


def test_what_is_reserved_counts_as_spent_until_it_is_settled() -> None:
    books = Books()
    first = books.reserve()
    assert (first.microusd, first.tokens) == (11_000, 2_000)
    assert (books.use.hour, books.use.day, books.use.calls_hour) == (11_000, 11_000, 1)
    assert books.did(model_limits.settle, first, 4_000) == 4_000
    assert books.did(model_limits.settle, first, 9_000) == 9_000
    assert books.use.hour == 4_000, "a call is settled once"
    second = books.reserve()
    assert books.did(model_limits.settle, second, 10**9) == second.microusd, "never more than was reserved"
    books.did(model_limits.release, books.reserve())
    assert books.use.hour == 15_000


def test_a_call_that_nobody_ended_is_charged_in_full() -> None:
    books = Books()
    open_ = books.reserve()
    [lost] = books.did(model_limits.settle_lost)
    assert lost.microusd == open_.microusd == books.use.hour
    assert books.did(model_limits.settle_lost) == ()
    books.did(model_limits.settle, open_, 1)
    assert books.use.hour == open_.microusd, "for good"


def test_an_answer_may_be_as_long_as_there_is_room_for() -> None:
    books = Books()
    most = books.reserve(tokens_out=100_000)
    assert (most.microusd, most.tokens) == (20_000, 3_800)
    books.reserve(), books.reserve()
    assert books.reserve().tokens == 1_400, "50,000 an hour, 42,000 of them gone"
    assert "$0.0000 are left of the hour's $0.0500. Wait, ask about less, or raise model_budget_hour" in books.exhaust()
    books.now_ms += HOUR_MS
    assert "hour's" in books.exhaust()
    books.now_ms += HOUR_MS
    assert "day's" in books.exhaust()
    assert books.use.day == LIMITS.day
    books.now_ms += DAY_MS
    assert books.reserve().tokens == 2_000
    with pytest.raises(DraftRejected, match="one may cost at most"):
        books.reserve(tokens_in=30_000)


def test_what_costs_nothing_is_counted_and_not_limited() -> None:
    books = Books(SpendingLimits(call=0, hour=0, day=0), TokenPrices())
    for _ in range(30):
        books.did(model_limits.settle, books.reserve(tokens_in=10**6), None)
    assert (books.use.calls_hour, books.use.day) == (30, 0)


def test_a_clock_that_is_set_back_gives_nothing_back() -> None:
    books = Books()
    books.exhaust()
    books.now_ms -= 10 * DAY_MS
    books.exhaust()
    assert books.use.hour <= LIMITS.hour


@settings(max_examples=examples(30), deadline=None, derandomize=True)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("reserve"), st.integers(0, 12_000), st.integers(1, 5_000)),
            st.tuples(st.just("settle"), st.integers(0, 9), st.one_of(st.none(), st.integers(-5, 10**9))),
            st.tuples(st.just("wait"), st.integers(0, DAY_MS), st.just(0)),
            st.tuples(st.just("crash"), st.just(0), st.just(0)),
        ),
        max_size=25,
    )
)
def test_no_order_of_things_overspends(steps: list[tuple[str, int, Any]]) -> None:
    books = Books()
    open_: list[ReservedSpending] = []
    for what, number, more in steps:
        if what == "reserve":
            with contextlib.suppress(DraftRejected):
                open_.append(books.reserve(number, more))
        elif what == "settle" and open_:
            taken = open_.pop(number % len(open_))
            assert 0 <= books.did(model_limits.settle, taken, more) <= taken.microusd
        elif what == "wait":
            books.now_ms += number
        elif what == "crash":
            lost = books.did(model_limits.settle_lost)
            assert sorted(one.microusd for one in lost) == sorted(one.microusd for one in open_)
            open_.clear()
        use = books.use
        assert 0 <= use.hour <= LIMITS.hour
        assert use.hour <= use.day <= LIMITS.day


# -- the circuit breaker and the bucket --------------------------------------------------------------------------------


def state_after(circuit: Circuit, *reasons: str) -> str:
    for reason in reasons:
        circuit.refuse()
        circuit.ended(reason)
    return circuit.state


def test_a_circuit_opens_after_several_failures_in_a_minute_and_tries_one_call_later() -> None:
    now = [0.0]
    circuit = Circuit(lambda: now[0])
    assert state_after(circuit, *["deadline"] * (FAILURES - 1)) == "closed"
    now[0] += WITHIN_S + 1
    assert state_after(circuit, "deadline") == "closed", "the others are long ago"
    assert state_after(circuit, *["connection"] * (FAILURES - 1)) == "open"
    with pytest.raises(DraftRejected, match="connection") as caught:
        circuit.refuse()
    assert caught.value.reason == "circuit_open"
    now[0] += OPEN_S
    assert circuit.state == "half_open"
    circuit.refuse()
    with pytest.raises(DraftRejected):
        circuit.refuse()
    circuit.ended("http_503")
    assert circuit.state == "open"
    now[0] += OPEN_S
    assert state_after(circuit, "cancelled") == "half_open", "it shows nothing"
    assert state_after(circuit, "") == "closed"
    assert state_after(circuit, *["deadline"] * (FAILURES - 1)) == "closed"


def test_a_key_that_is_not_taken_opens_it_at_once_and_what_a_model_says_does_not() -> None:
    now = [0.0]
    said = ("schema", "unknown_target", "refusal", "finish_reason", "content_not_json", "budget", "cancelled")
    circuit = Circuit(lambda: now[0])
    assert state_after(circuit, *said * FAILURES) == "closed"
    assert state_after(circuit, "auth") == "open"
    assert FAULTS < REASONS
    assert is_fault("http_500")


def test_a_bucket_fills_with_time_and_never_beyond_its_size() -> None:
    now = [0.0]
    bucket = RateLimit(6, lambda: now[0])

    def taken() -> int:
        count, error = until_refused(bucket.take)
        assert error.reason == "rate_limited"
        return count

    assert taken() == 6
    now[0] += 25
    assert taken() == 2
    now[0] += 10_000
    assert taken() == 6
    bucket.give_back()
    assert taken() == 1
    now[0] -= 50
    assert taken() == 0, "the clock went back"


# -- answers that are kept ---------------------------------------------------------------------------------------------

ENDPOINT = endpoint_of("http://127.0.0.1:1/v1", "m", egress="local")


def answer(content: str = "x") -> ModelReply:
    return ModelReply(
        content=content,
        returned_model="m",
        tokens_in=1,
        tokens_out=1,
        estimated=False,
        spent=CallRecord(prompt_sha256=""),
    )


def test_the_key_of_an_answer_tells_apart_everything_that_matters_to_it() -> None:
    others = [
        cache_key(msgspec.structs.replace(ENDPOINT, **change), 2_000, "a")
        for change in (
            {"host": "127.0.0.2"}, {"port": 2}, {"path": "/v2"}, {"scheme": "https"}, {"model": "n"},
            {"egress": "trusted"}, {"most_bytes": 1},
        )
    ]  # fmt: skip
    keys = [cache_key(ENDPOINT, 2_000, "a"), cache_key(ENDPOINT, 1_999, "a"), cache_key(ENDPOINT, 2_000, "b"), *others]
    assert len(set(keys)) == len(keys)
    assert cache_key(ENDPOINT, 2_000, "a") == keys[0]


def test_an_answer_is_good_as_long_as_its_facts_are() -> None:
    now = [0.0]
    cache = ReplyCache(lambda: now[0])
    cache.put("k", answer(), read_s=0.0, now_ms=5_000)
    assert cache.get("other", 5_000) is None
    now[0] = TTL_MS / 1000 - 0.001
    assert cache.get("k", 5_000 + TTL_MS - 1) is not None
    assert cache.get("k", 5_000 + TTL_MS) is None, "old in the cell's time"
    cache.put("k", answer(), read_s=0.0, now_ms=5_000)
    now[0] = TTL_MS / 1000
    assert cache.get("k", 5_000) is None, "old on the wall"
    cache.put("k", answer(), read_s=now[0], now_ms=5_000)
    assert cache.get("k", 4_999) is None, "from a time to come: another cell, or one that was set back"
    for number in range(MAX_KEPT + 1):
        cache.put(str(number), answer(), read_s=now[0], now_ms=0)
    assert (cache.get("0", 0), cache.get("1", 0) is None) == (None, False)
