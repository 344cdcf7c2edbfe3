"""Advance reservations: nodes kept for a window, used by others only as long as they are gone in time."""

from __future__ import annotations

import msgspec
import pytest

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError
from engine.model.specs import ReservationSpec, WorkloadSpec
from tests.support.cells import small_cell, submit, workload
from tests.support.invariants import check_state

MINUTE = 60_000
HOUR = 60 * MINUTE


@pytest.fixture
def engine() -> Engine:
    """Nodes g0 to g3 of 8 GPUs; g0 and g1 are kept from one hour on, for two hours."""
    engine = Engine.open(None, cell=small_cell())
    engine.command(cmd.Reserve(reservation=window()))
    return engine


def window(**fields: object) -> ReservationSpec:
    spec = ReservationSpec(name="exam", nodes=("g0", "g1"), start_ms=HOUR, end_ms=3 * HOUR, queues=("b",))
    return msgspec.structs.replace(spec, **fields)


def whole(name: str, *, tasks: int = 1, minutes: int, queue: str = "a", reservation: str = "") -> WorkloadSpec:
    """A gang of whole nodes that runs as long as it says."""
    run = minutes * MINUTE
    spec = workload(name, count=tasks, gpu=8000, run=run, estimate=run, queue=queue)
    return msgspec.structs.replace(spec, reservation=reservation)


def nodes(engine: Engine, name: str) -> list[str]:
    check_state(engine.state)
    return sorted(place.node for place in engine.workload(name).placement)


def test_before_the_window_its_nodes_take_what_is_gone_by_its_start(engine: Engine) -> None:
    engine.command(submit(whole("short", tasks=4, minutes=60)))
    assert nodes(engine, "short") == ["g0", "g1", "g2", "g3"]


def test_what_may_run_past_the_start_uses_other_nodes(engine: Engine) -> None:
    engine.command(submit(whole("long", tasks=2, minutes=61), whole("longer", minutes=61)))
    assert nodes(engine, "long") == ["g2", "g3"]
    assert engine.workload("longer").state == "queued"
    engine.command(submit(workload("unknown", gpu=8000, estimate=0)))
    assert engine.workload("unknown").state == "queued"


def test_in_the_window_only_its_queues_and_its_own_work_use_the_nodes(engine: Engine) -> None:
    engine.advance(HOUR)
    engine.command(submit(whole("other", tasks=3, minutes=5), whole("member", tasks=3, minutes=5, queue="b")))
    assert engine.workload("other").state == "queued"
    assert nodes(engine, "member") == ["g0", "g1", "g2"]


def test_work_that_names_the_reservation_waits_for_its_start_and_uses_it_alone(engine: Engine) -> None:
    engine.command(submit(whole("exam-run", tasks=2, minutes=30, reservation="exam")))
    assert engine.workload("exam-run").state == "queued"
    engine.advance(HOUR)
    assert nodes(engine, "exam-run") == ["g0", "g1"]


def test_afterwards_the_nodes_are_open_again(engine: Engine) -> None:
    engine.advance(2 * HOUR)
    engine.command(submit(whole("waits", tasks=3, minutes=600)))
    assert engine.workload("waits").state == "queued"
    engine.advance(3 * HOUR)
    assert engine.workload("waits").state == "running"
    assert not engine.state.bookings.reservations


def test_taking_it_back_opens_the_nodes_at_once(engine: Engine) -> None:
    engine.command(submit(whole("long", tasks=3, minutes=600)))
    assert engine.workload("long").state == "queued"
    engine.command(cmd.Unreserve(names=("exam",)))
    assert engine.workload("long").state == "running"


def test_what_still_runs_at_the_start_is_not_stopped(engine: Engine) -> None:
    late = workload("late", count=4, gpu=8000, run=2 * HOUR, estimate=HOUR)
    engine.command(submit(late))
    engine.advance(HOUR + 1)
    assert engine.workload("late").state == "running"


def test_a_promised_start_is_kept_beside_a_reservation(engine: Engine) -> None:
    engine.command(submit(whole("long", tasks=2, minutes=600)))
    engine.command(submit(whole("first", tasks=2, minutes=600)))
    engine.advance(3 * HOUR)
    assert engine.workload("first").started_ms == 3 * HOUR


def test_it_survives_a_restart(tmp_path) -> None:
    path = tmp_path / "cell.db"
    engine = Engine.open(path, cell=small_cell())
    engine.command(cmd.Reserve(reservation=window()))
    engine.close()
    for use_snapshot in (True, False):
        engine = Engine.open(path, use_snapshot=use_snapshot)
        check_state(engine.state)
        assert engine.next_due() == HOUR
        engine.close()
    engine = Engine.open(path)
    engine.command(submit(whole("long", tasks=3, minutes=61)))
    assert engine.workload("long").state == "queued"
    engine.close()


@pytest.mark.parametrize(
    ("reservation", "error", "says"),
    [
        (window(), SpecError, "already exists"),
        (window(name="x"), RefusedError, "reserved for other work"),
        (window(name="x", nodes=("g2",), end_ms=HOUR), SpecError, "not after its start"),
        (window(name="x", nodes=("nowhere",)), NotFoundError, "nowhere"),
        (window(name="x", nodes=()), SpecError, "is empty"),
        (window(name="x", nodes=("g2",), queues=("nobody",)), NotFoundError, "nobody"),
        (window(name="a b", nodes=("g2",)), SpecError, "not a valid id"),
    ],
)
def test_senseless_reservations_are_refused(
    engine: Engine, reservation: ReservationSpec, error: type[MusterError], says: str
) -> None:
    version = engine.version
    with pytest.raises(error, match=says):
        engine.command(cmd.Reserve(reservation=reservation))
    assert engine.version == version


def test_a_window_in_the_past_and_an_unknown_name_are_refused(engine: Engine) -> None:
    engine.advance(HOUR)
    with pytest.raises(SpecError, match="past"):
        engine.command(cmd.Reserve(reservation=window(name="x", nodes=("g2",), start_ms=0, end_ms=HOUR)))
    with pytest.raises(SpecError, match="there is no 'nothing'"):
        engine.command(submit(whole("w", minutes=1, reservation="nothing")))
    with pytest.raises(NotFoundError):
        engine.command(cmd.Unreserve(names=("nothing",)))
