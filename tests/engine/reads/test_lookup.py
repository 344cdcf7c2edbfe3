"""Anything of a cell by its name, or by how that begins."""

from __future__ import annotations

import pytest

from engine.control import Engine
from engine.model.list_queries import Named
from tests.support.cells import small_cell, submit, workload


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = Engine.open(None, cell=small_cell())
    engine.command(submit(*(workload(f"job-{number}") for number in range(30)), workload("g1")))
    return engine


def kinds(hits: tuple[Named, ...]) -> list[tuple[str, str]]:
    return [(hit.kind, hit.id) for hit in hits]


def test_what_is_called_so_comes_first_whatever_it_is(engine: Engine) -> None:
    assert kinds(engine.find("g1"))[:2] == [("workload", "g1"), ("node", "g1")]
    assert kinds(engine.find("r0"))[0] == ("rack", "r0")
    assert kinds(engine.find("b0"))[0] == ("block", "b0")
    assert kinds(engine.find("z0"))[0] == ("zone", "z0")
    assert kinds(engine.find("root"))[0] == ("queue", "root")
    assert kinds(engine.find("gpu"))[0] == ("pool", "gpu")


def test_what_begins_so_is_bounded_the_newest_first_and_of_the_kinds_asked_for(engine: Engine) -> None:
    found = engine.find("job-", ("workload",), 5)
    assert kinds(found) == [("workload", f"job-{number}") for number in range(29, 24, -1)]
    assert kinds(engine.find("g", ("node",), 10)) == [("node", f"g{number}") for number in range(4)]
    assert len(engine.find("job-", (), 10_000)) <= 200


@pytest.mark.parametrize("name", ["", "nothing-such", "00", "٣", "\x1b[2J", "a" * 100_000, "-1", "9" * 5_000])
def test_what_nobody_is_called_is_not_found_and_breaks_nothing(engine: Engine, name: str) -> None:
    assert engine.find(name) == ()
