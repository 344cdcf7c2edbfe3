"""Leases: who was heard of when, and who has fallen silent."""

from __future__ import annotations

import random

import numpy as np

from engine.executors.node_watch import BUCKET_MS, Leases

AFTER_MS = 40_000


def watch(nodes: int, now_ms: int = 0) -> tuple[Leases, np.ndarray]:
    """So many nodes, registered at that time, and their epochs."""
    leases = Leases()
    leases.open(now_ms, AFTER_MS)
    return leases, leases.register(np.arange(nodes), now_ms)


def beat(leases: Leases, epochs, numbers, now_ms: int, rows=None, skews=None):
    rows = np.arange(len(epochs)) if rows is None else np.array(rows)
    numbers = np.full(len(rows), numbers) if isinstance(numbers, int) else np.array(numbers)
    return leases.beat(rows, np.array(epochs), numbers, None if skews is None else np.array(skews), now_ms)


def test_a_silent_node_is_told_once_when_its_lease_ends() -> None:
    leases, epochs = watch(3)
    beat(leases, epochs[1:2], 1, 25_000, rows=[1])
    assert leases.next_ms(0) == AFTER_MS
    assert leases.ended(AFTER_MS - 1) == []
    assert leases.ended(AFTER_MS) == [0, 2]
    assert leases.ended(25_000 + AFTER_MS - 1) == []
    assert leases.ended(25_000 + AFTER_MS) == [1]
    assert leases.next_ms(10**6) is None
    assert leases.ended(10**9) == []


def test_a_node_that_calls_in_time_is_never_told_and_one_that_was_silent_comes_back() -> None:
    leases, epochs = watch(2)
    for at_ms in range(10_000, 1_000_000, 10_000):
        assert leases.ended(at_ms) == ([1] if at_ms == AFTER_MS else [])
        beat(leases, epochs[:1], at_ms // 10_000, at_ms)
    assert leases.take_back() == []
    beat(leases, epochs[1:], 1, 1_000_000, rows=[1])
    assert leases.take_back() == [1]
    assert leases.take_back() == []
    assert leases.ended(1_000_000 + AFTER_MS) == [0, 1]


def test_a_heartbeat_counts_once_however_often_it_comes() -> None:
    leases, epochs = watch(2)
    first = beat(leases, [epochs[0]] * 3 + [epochs[1]], [1, 1, 1, 1], 1000, rows=[0, 0, 0, 1])
    assert (first.renewed, first.repeated) == (2, 2)
    again = beat(leases, epochs, 1, 30_000)
    assert (again.renewed, again.repeated) == (0, 2)
    # Had the repetition renewed the leases, nobody would be silent yet.
    assert leases.ended(1000 + AFTER_MS) == [0, 1]


def test_late_batches_and_those_out_of_order_do_no_harm() -> None:
    leases, epochs = watch(1)
    assert beat(leases, epochs, 5, 10_000).renewed == 1
    late = beat(leases, epochs, 3, 45_000)
    assert (late.renewed, late.repeated) == (0, 1)
    both = beat(leases, [epochs[0]] * 2, [7, 6], 46_000, rows=[0, 0])
    assert (both.renewed, both.repeated) == (1, 1)
    assert beat(leases, epochs, 7, 47_000).renewed == 0
    assert leases.ended(46_000 + AFTER_MS - 1) == []


def test_what_has_no_token_is_refused_and_the_rest_of_the_batch_is_taken() -> None:
    leases, epochs = watch(2)
    rows = [0, 1, 2, -1, 10**9, 0]
    taken = beat(leases, [epochs[0], epochs[1] + 1, 0, 1, 1, epochs[0] + 7], 1, 1000, rows=rows)
    assert taken.renewed == 1
    assert taken.refused.tolist() == [1, 2, 3, 4, 5]
    assert beat(Leases(), [1], 1, 0, rows=[0]).refused.tolist() == [0]


def test_only_the_newest_agent_of_a_node_speaks_for_it() -> None:
    leases, before = watch(1)
    now = leases.register(np.array([0]), 1000)
    assert beat(leases, before, 1, 2000).refused.tolist() == [0]
    assert beat(leases, now, 1, 2000).renewed == 1


def test_a_node_that_is_gone_is_neither_told_nor_heard() -> None:
    leases, epochs = watch(2)
    leases.drop(0)
    assert leases.count == 1
    assert beat(leases, epochs, 1, 1000).refused.tolist() == [0]
    assert leases.ended(10**6) == [1]


def test_clocks_of_nodes_are_noted_and_nothing_follows() -> None:
    leases, epochs = watch(2)
    beat(leases, epochs, 1, 1000, skews=[3_600_000, -3_600_000])
    assert leases.skew_ms[:2].tolist() == [3_600_000, -3_600_000]
    assert leases.ended(1000 + AFTER_MS - 1) == []
    assert leases.ended(1000 + AFTER_MS) == [0, 1]


def test_while_we_were_away_no_lease_ran() -> None:
    leases, _ = watch(3)
    leases.excuse(3_600_000)
    assert leases.ended(3_600_000 + AFTER_MS - 1) == []
    assert leases.ended(3_600_000 + AFTER_MS) == [0, 1, 2]


def test_another_length_of_lease_holds_for_those_that_run() -> None:
    leases, epochs = watch(2)
    beat(leases, epochs[:1], 1, 10_000)
    leases.last(5_000)
    assert leases.ended(5_000) == [1]
    assert leases.ended(15_000) == [0]


def test_looking_for_the_silent_looks_at_each_node_once_in_the_time_of_its_lease() -> None:
    leases, epochs = watch(1000)
    looked = 0
    ends = leases._ends

    def counted(rows):
        nonlocal looked
        looked += len(rows)
        return ends(rows)

    leases._ends = counted  # type: ignore[method-assign]
    rows = np.arange(1000)
    for tick in range(400):
        at_ms = tick * 1000
        now = rows[rows % 10 == tick % 10]
        beat(leases, epochs[now], tick + 1, at_ms, rows=now)
        for _ in range(20):
            leases.next_ms(at_ms)
        assert leases.ended(at_ms) == []
    # A node calls every 10 s, so it is looked at every 30 to 40 s; twice, once where it is and once where it goes.
    assert looked < 1000 * 2 * (400 / 30 + 3)


def test_the_wheel_tells_what_a_list_of_all_nodes_would() -> None:
    rng = random.Random(5)
    leases, epochs = watch(60)
    seen = dict.fromkeys(range(60), 0)
    silent: set[int] = set()
    numbers = dict.fromkeys(range(60), 0)
    tokens = dict(enumerate(epochs.tolist()))
    now_ms = 0
    for _ in range(1500):
        now_ms += rng.choice((0, 1, 500, 1000, 3000))
        late = {n for n in seen if n not in silent and -(-(seen[n] + AFTER_MS) // BUCKET_MS) * BUCKET_MS <= now_ms}
        assert leases.ended(now_ms) == sorted(late)
        silent |= late
        what = rng.random()
        if what < 0.7:
            rows = rng.choices(range(60), k=rng.randint(1, 25))
            fresh = {n for n in rows if n in seen}
            for n in fresh:
                numbers[n] += 1
                seen[n] = now_ms
            taken = beat(leases, [tokens.get(n, 99_999) for n in rows], [numbers[n] for n in rows], now_ms, rows=rows)
            assert taken.renewed == len(fresh)
            assert sorted(leases.take_back()) == sorted(fresh & silent)
            silent -= fresh
        elif what < 0.75 and len(seen) > 40:
            gone = rng.choice(sorted(seen))
            leases.drop(gone)
            for known in (seen, tokens):
                known.pop(gone)
            silent.discard(gone)
        elif what < 0.8:
            node = rng.randrange(60)
            tokens[node] = int(leases.register(np.array([node]), now_ms)[0])
            numbers[node] = 0
            seen[node] = now_ms
            assert leases.take_back() == ([node] if node in silent else [])
            silent.discard(node)
        assert leases.count == len(seen)
