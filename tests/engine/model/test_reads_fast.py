"""Windows, filters and sorts that are found quickly are those that are found by looking at everything."""

from __future__ import annotations

import fnmatch
import random
import re
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.control import Engine
from engine.model import columns as row_windows
from engine.model.commands import Cancel, Hold, Submit
from engine.model.list_queries import COLUMNS, Kind, Query, Term
from engine.reads import id_search, pending_reasons
from tests.support.large_cells import COME_EVERY_MS, large_engine, steady_feed, work

NAMES = (
    "",
    "Ä-name",
    "ß",
    "straße",
    "a\0b",
    "train-é",
    "TRAIN",
    "tra",
    "x" * 40 + "1",
    "x" * 40 + "0",
    "x" * 40,
    "√",
    "𝔘",
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a cell of a test has blocks, long lists and many of a kind."""
    monkeypatch.setattr(id_search, "BLOCK", 64)
    monkeypatch.setattr(id_search, "SPARSE", 3)
    monkeypatch.setattr(row_windows, "FEW", 8)
    monkeypatch.setattr(pending_reasons, "FEW", 8)


def plain(engine: Engine, query: Query) -> list[list[Any]]:
    """The rows that match in order, by the whole table and nothing else."""
    table = engine.query(Query(kind=query.kind, columns=_columns(query.kind), limit=10_000))
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    either: dict[str, list[Term]] = {}
    for term in query.where:
        if term.op in ("=", "~"):
            either.setdefault(term.column, []).append(term)
        else:
            rows = [row for row in rows if _holds(row, term)]
    for terms in either.values():
        rows = [row for row in rows if any(_holds(row, term) for term in terms)]
    for entry in reversed(query.sort):
        name = entry.removeprefix("-")
        there = [row for row in rows if row[name] is not None]
        # Not `reverse=True` alone: ties stay as they were.
        there.sort(key=lambda row: row[name], reverse=entry.startswith("-"))
        rows = there + [row for row in rows if row[name] is None]
    return [[row[name] for name in query.columns] for row in rows]


def _columns(kind: Kind) -> tuple[str, ...]:
    return tuple(column.name for column in COLUMNS[kind])


def _holds(row: dict[str, Any], term: Term) -> bool:
    if term.column == "text":
        named = [name for name in ("id", "name") if name in row]
        found = [_holds(row, Term(name, term.op, term.value)) for name in named]
        return all(found) if term.op in ("!=", "!~") else any(found)
    value, wanted = row[term.column], term.value
    if isinstance(wanted, int):
        if value is None:
            return False
        compared = {"=": value == wanted, "!=": value != wanted, "<": value < wanted, "<=": value <= wanted}
        return (compared | {">": value > wanted, ">=": value >= wanted})[term.op]
    if term.op in ("~", "!~"):
        return (wanted.casefold() in value.casefold()) == (term.op == "~")
    pattern = fnmatch.translate(wanted.replace("[", "[[]"))
    fits = bool(re.match(pattern, value)) if "*" in wanted or "?" in wanted else value == wanted
    return fits == (term.op == "=")


def a_cell(rng: random.Random) -> Engine:
    engine = large_engine(64, 300)
    odd = [f"odd-{i}-{rng.randrange(1000)}" for i in range(60)]
    base = work(rng, 1, runs_ms=60_000)
    named = [msgspec.structs.replace(base, id=name, name=rng.choice(NAMES)) for name in odd]
    engine.command(Submit(workloads=tuple(named)))
    return engine


def changed(engine: Engine, rng: random.Random) -> None:
    """Time passes, work comes and ends, people hold and cancel."""
    feed = steady_feed(engine, 100, seed=rng.randrange(10**6))
    due = [next(feed)[1] for _ in range(rng.randrange(90))]
    engine.command(Submit(workloads=tuple(due)))
    waiting = engine.query(Query(kind="workloads", columns=("id",), where=(Term("state", "=", "queued"),))).rows
    for (name,) in rng.sample(waiting, min(6, len(waiting))):
        engine.command((Hold if rng.random() < 0.5 else Cancel)(ids=(name,)))
    engine.advance(engine.now_ms + rng.choice((1, COME_EVERY_MS, 30_000)))
    for columns in engine.reader.indexes.values():
        for column in columns.values():
            while column.cover() and rng.random() < 0.8:
                pass


def asked(rng: random.Random, kind: Kind) -> Query:
    columns = _columns(kind)
    return Query(
        kind=kind,
        columns=columns,
        where=tuple(a_term(rng, kind) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))),
        sort=tuple(rng.choice(("", "-")) + rng.choice(columns) for _ in range(rng.choice((0, 1, 1, 2, 3)))),
        offset=rng.choice((0, 0, 3, 50, 200, 10_000)),
        limit=rng.choice((1, 5, 60, 5_000)),
    )


TEXT_VALUES = (
    "", "e", "tr", "train", "odd-1", "ODD", "*ra*", "x?????*", "tr-00000*", "*", "queued", "InsufficientCapacity",
    "straSSe", "é", "research/*", "product", "h100", "-00000", "\0",
)  # fmt: skip


def a_term(rng: random.Random, kind: Kind) -> Term:
    column = rng.choice(COLUMNS[kind])
    if column.unit != "text":
        return Term(column.name, rng.choice(("=", "!=", "<", "<=", ">", ">=")), rng.choice((0, 1, 8000, 100, 60_000)))
    name = rng.choice((column.name, "text"))
    return Term(name, rng.choice(("=", "!=", "~", "!~")), rng.choice((*TEXT_VALUES, rng.choice(NAMES))))


@pytest.mark.parametrize("seed", range(3))
def test_every_question_has_the_plain_answer_whatever_changed_between(seed: int) -> None:
    rng = random.Random(seed)
    engine = a_cell(rng)
    for _ in range(6):
        changed(engine, rng)
        for _ in range(14):
            query = asked(rng, rng.choice(("workloads", "workloads", "nodes")))
            page, rows = engine.query(query), plain(engine, query)
            assert page.matched == len(rows), query
            assert page.rows == rows[query.offset : query.offset + query.limit], query


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2)), max_size=60), st.integers(0, 60), st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_a_window_is_part_of_the_whole_order(pairs: list[tuple[int, int]], start: int, more: int) -> None:
    columns = [np.array([pair[i] for pair in pairs], np.int64) for i in range(2)]
    order = sorted(range(len(pairs)), key=pairs.__getitem__)
    ranks = [lambda rows, c=column: c[rows] for column in columns]
    assert row_windows.window(len(pairs), ranks, start, start + more).tolist() == order[start : start + more]


def test_reasons_of_many_are_those_of_each() -> None:
    rng = random.Random(5)
    engine = a_cell(rng)
    changed(engine, rng)
    explainer, rows = engine.reader.explainer, np.arange(len(engine.state.workloads.ids))
    codes, tokens = explainer.tokens(rows)
    assert [tokens[code] for code in codes.tolist()] == [explainer.token(row) for row in rows.tolist()]
    assert len(set(tokens)) > 1
