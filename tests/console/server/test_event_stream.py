"""How news are given to many streams: a few at a time, at each one's pace, and no more than they take."""

from __future__ import annotations

import asyncio
import math

from console.server.watching import (
    AT_ONCE,
    MAX_BEHIND,
    ConsoleNotice,
    EventFrame,
    EventRoutes,
    StreamFollower,
)


def frame(version: int, items: int = 1) -> EventFrame:
    return EventFrame(version, items, 0, b"whole", b"bare")


def taken(follower: StreamFollower) -> list[object]:
    found = []
    while not follower.frames.empty():
        given = follower.frames.get_nowait()
        found.append(given.version if isinstance(given, EventFrame) else given)
    return found


def test_the_first_news_after_a_rest_come_at_once_and_the_next_when_they_are_due() -> None:
    follower = StreamFollower(items=False, pace_s=1.0)
    assert follower.give_paced(frame(1), 10.0) == math.inf
    assert follower.give_paced(frame(2), 10.3) == 11.0
    assert follower.give_paced(frame(3), 10.6) == 11.0
    assert follower.give_paced(frame(3), 11.0) == math.inf
    assert follower.give_paced(frame(3), 11.2) == math.inf  # a tick, which holds up nothing
    assert follower.give_paced(frame(4), 12.0) == math.inf
    assert taken(follower) == [1, 3, 3, 4]


def test_who_is_told_what_happened_one_by_one_is_told_all_of_it() -> None:
    follower = StreamFollower(items=True, pace_s=1.0)
    for version in range(5):
        assert follower.give_paced(frame(version), 10.0) == math.inf
    assert taken(follower) == [0, 1, 2, 3, 4]


def test_a_slow_console_loses_count_of_changes_but_not_of_votes() -> None:
    follower = StreamFollower(items=True, session="a" * 32)
    gate, present = ConsoleNotice("gate", 7), ConsoleNotice("present", 0)
    follower.give(ConsoleNotice("gate", 6))
    follower.give(gate)
    follower.give(present)
    for version in range(3, MAX_BEHIND + 1):
        follower.give(frame(version, items=2))
    assert taken(follower) == [gate, present, MAX_BEHIND]
    assert follower.lost == 2 * (MAX_BEHIND - 3)


async def test_others_are_answered_while_many_are_told() -> None:
    routes = object.__new__(EventRoutes)
    routes._followers = {StreamFollower(items=True) for _ in range(5 * AT_ONCE)}
    turns, done = 0, False

    async def others() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await asyncio.sleep(0)
    assert await routes._given_to_all(frame(1), 0.0) == math.inf
    done = True
    await beside
    assert turns >= 5
    assert all(taken(each) == [1] for each in routes._followers)
