"""What happens one by one is fetched for who reads it, and what nobody read is counted as missed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

from textual.message import Message

from console.client.change_feed import Arrived, Feed
from engine.model.overviews import Change, Changes
from tests.support.patience import PATIENCE_S


class Engine:
    """A client of one to which something happens at every question."""

    def __init__(self) -> None:
        self.version = 1_000
        self.asked: list[int] = []
        """For how many changes at most, each time."""

    def health(self) -> SimpleNamespace:
        return SimpleNamespace(version=self.version)

    def changes(self, after: int, wait_s: float, limit: int = 500) -> Changes:
        self.version += 10
        self.asked.append(limit)
        if not limit:
            return Changes(version=self.version, at_ms=self.version, items=(), missed=0)
        first = max(after, self.version - limit)
        items = tuple(
            Change(version=v, at_ms=v, what="started", subject=f"j-{v}", detail="")
            for v in range(first + 1, self.version + 1)
        )
        return Changes(version=self.version, at_ms=self.version, items=items, missed=first - after)

    def close(self) -> None:
        pass


def test_only_who_reads_them_is_told_events_one_by_one() -> None:
    heard: list[Changes] = []
    news = threading.Condition()

    def post(message: Message) -> None:
        if isinstance(message, Arrived):
            with news:
                heard.append(message.changes)
                news.notify()

    def until(true: Callable[[], object]) -> None:
        with news:
            assert news.wait_for(true, PATIENCE_S)

    made = [Engine()]
    feed = Feed(lambda: made[0], post)  # type: ignore[arg-type,return-value]
    feed.start()
    until(lambda: len(heard) >= 2)
    feed.tail(True)
    until(lambda: any(changes.items for changes in heard[1:]))
    feed.stop()
    assert heard[0].items  # the page of events is not empty when it is opened
    assert made[0].asked[1] == 0, "nobody read them yet: only that something happened is asked for"
    assert (heard[1].items, heard[1].missed) == ((), 0)
    assert heard[1].version > heard[0].version
    told = next(changes for changes in heard[1:] if changes.items)
    assert told.items[0].version == heard[0].version + 1  # nothing is left out between
