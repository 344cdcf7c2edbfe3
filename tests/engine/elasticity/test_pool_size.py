"""The size of a pool as somebody wants it now."""

from __future__ import annotations

import random

import pytest

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.specs import ReservationSpec
from engine.scheduling.preemption import bound_rows
from tests.engine.elasticity.test_scale_down_properties import random_cell, random_work
from tests.support.growing_cells import HOUR, MINUTE, cell, job, started, there
from tests.support.invariants import check_state


def to(nodes: int, pool: str = "p") -> cmd.ScalePool:
    return cmd.ScalePool(pool=pool, nodes=nodes)


def size(engine: Engine) -> tuple[int, int, int, int]:
    """Ready, booting, in another state, on order."""
    pool = engine.scaling().pools[0]
    return pool.ready, pool.booting, pool.other, pool.ordered


def test_what_lacks_is_ordered_at_once_and_kept() -> None:
    engine = started(cell(2))
    engine.command(to(5))
    assert size(engine) == (2, 0, 0, 3)
    assert engine.scaling().pools[0].set_for == ((1000, 5),)
    engine.advance(HOUR)
    assert size(engine) == (5, 0, 0, 0), "the autoscaler does not give back what somebody wants"
    check_state(engine.state)


def test_what_is_too_much_goes_at_once_and_stays_away() -> None:
    engine = started(cell(6), job("busy", 8000))
    used = engine.workload("busy").placement[0].node
    engine.command(to(2))
    assert size(engine) == (2, 0, 0, 0)
    assert used in there(engine)
    assert engine.workload("busy").attempts == 1
    engine.advance(2 * MINUTE)
    assert size(engine) == (2, 0, 0, 0)
    check_state(engine.state)


def test_orders_go_first_then_what_boots_then_what_is_out_of_use() -> None:
    engine = started(cell(4))
    engine.command(cmd.Drain(ids=("n0",)))
    engine.command(cmd.Cordon(ids=("n1",)))
    engine.command(to(7))
    engine.command(to(6))
    assert size(engine) == (2, 0, 2, 2), "an order that is too large is made anew"
    engine.advance(30_000)
    assert size(engine)[1] == 2
    engine.command(to(5))
    assert size(engine) == (2, 1, 2, 0)
    engine.command(to(3))
    assert there(engine) == ["n1", "n2", "n3"], "the booting one, then the drained one"
    engine.command(to(1))
    assert there(engine) == ["n2"], "the cordoned one, then the newest"
    check_state(engine.state)


def test_nodes_with_work_or_kept_for_somebody_never_go() -> None:
    engine = started(cell(3), job("busy", 8000))
    free = next(name for name in there(engine) if name != engine.workload("busy").placement[0].node)
    engine.command(cmd.Reserve(reservation=ReservationSpec(name="r", nodes=(free,), start_ms=HOUR, end_ms=2 * HOUR)))
    before = engine.state.digest()
    with pytest.raises(RefusedError, match="2 nodes of pool 'p' would have to go, and 1 are empty") as caught:
        engine.command(to(1))
    assert "has work" in caught.value.problem
    assert "ask for 2" in caught.value.remedy
    assert engine.state.digest() == before
    engine.command(to(2))
    assert free in there(engine)


@pytest.mark.parametrize("nodes", [0, 21])
def test_it_stays_between_the_least_and_the_most(nodes: int) -> None:
    engine = started(cell(2, least=1))
    with pytest.raises(RefusedError, match="outside the limits of pool 'p', 1 and 20"):
        engine.command(to(nodes))


@pytest.mark.parametrize("nodes", [-1, 10**9])
def test_absurd_numbers_are_malformed(nodes: int) -> None:
    with pytest.raises(SpecError, match="nodes"):
        started(cell(2)).command(to(nodes))


def test_pools_that_are_not_there_or_do_not_grow_are_named() -> None:
    engine = started(cell(2, fixed=1))
    with pytest.raises(NotFoundError, match="'q'"):
        engine.command(to(1, "q"))
    with pytest.raises(RefusedError, match="'fixed' is not autoscaled"):
        engine.command(to(1, "fixed"))


def test_what_is_set_for_later_stays() -> None:
    engine = started(cell(2))
    engine.command(cmd.SetTargets(pool="p", targets=((0, 1), (2 * HOUR, 9))))
    engine.command(to(3))
    assert engine.scaling().pools[0].set_for == ((1000, 3), (2 * HOUR, 9))
    engine.command(to(2))
    assert engine.scaling().pools[0].set_for == ((1000, 2), (2 * HOUR, 9))


def test_with_the_autoscaler_off_only_what_can_be_ordered_now_is_promised() -> None:
    engine = started(cell(2, enabled=False, most_in_batch=2))
    with pytest.raises(RefusedError, match="of 3 nodes that pool 'p' lacks 2 may be ordered now"):
        engine.command(to(5))
    engine.command(to(4))
    assert size(engine)[3] == 2


def test_a_gangs_own_nodes_are_not_given_back() -> None:
    engine = started(cell(1), job("gang", 8000, tasks=4))
    engine.advance(MINUTE)
    ordered = size(engine)[1] + size(engine)[3]
    assert ordered > 0
    with pytest.raises(RefusedError, match="would have to go"):
        engine.command(to(0))
    check_state(engine.state)


def test_it_is_journalled(tmp_path) -> None:
    path = tmp_path / "cell.db"
    engine = started(cell(4), path=path)
    engine.command(to(2))
    engine.command(to(5))
    digest = engine.state.digest()
    engine.close()
    for use_snapshot in (True, False):
        again = Engine.open(path, use_snapshot=use_snapshot)
        assert again.state.digest() == digest
        again.close()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_no_work_loses_its_place_and_the_books_balance(seed: int, tmp_path) -> None:
    rng = random.Random(seed)
    path = tmp_path / "cell.db"
    engine = Engine.open(path, cell=random_cell(rng))
    accepted = 0
    for step in range(40):
        if rng.random() < 0.5:
            ask(engine, cmd.Submit(workloads=(random_work(rng, f"w{step}"),)))
        name = rng.choice(sorted(engine.state.capacity.row_of) or ["none"])
        ask(engine, rng.choice((cmd.Cordon, cmd.Drain, cmd.Uncordon, cmd.FailNodes))(ids=(name,)))
        pool, nodes = rng.choice(("p", "g")), rng.randint(0, 14)
        bound = {row: w.attempts[row] for w in (engine.state.workloads,) for row in bound_rows(engine.state).tolist()}
        if ask(engine, cmd.ScalePool(pool=pool, nodes=nodes)):
            accepted += 1
            w = engine.state.workloads
            assert {row: w.attempts[row] for row in bound_rows(engine.state).tolist()}.items() >= bound.items()
            found = next(size for size in engine.scaling().pools if size.pool == pool)
            assert found.ready + found.booting + found.other + found.ordered <= nodes
            assert nodes in dict(found.set_for).values()
        check_state(engine.state)
        engine.advance(engine.now_ms + rng.choice((1000, MINUTE, 10 * MINUTE)))
        check_state(engine.state)
    assert accepted > 5
    digest = engine.state.digest()
    engine.close()
    again = Engine.open(path, use_snapshot=False)
    assert again.state.digest() == digest
    again.close()


def ask(engine: Engine, command: cmd.AnyCommand) -> bool:
    """Whether it was accepted."""
    return isinstance(engine.commands([command])[0], cmd.Receipt)
