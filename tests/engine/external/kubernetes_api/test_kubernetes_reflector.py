"""What a reflector makes of a server that does what a healthy one never does: no deletion is lost, and it goes on."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_kubernetes import (
    Answer,
    Query,
    ScriptedKubernetes,
    bookmark,
    error,
    event,
    initial_end,
    page,
    pod,
    status,
    until,
)

from engine.external.kubernetes_api import listing, reflector
from engine.external.kubernetes_api.errors import KubernetesUnavailable
from engine.external.kubernetes_api.kinds import KINDS
from engine.external.kubernetes_api.observation import ClusterObservation
from engine.external.kubernetes_api.reflector import ChangeBatch, Reflector, ReflectorReport
from engine.external.kubernetes_api.transport import KubernetesTransport, RequestPacer
from tests.support.patience import PATIENCE_S
from tests.support.patience import until as patiently

PODS = next(kind for kind in KINDS if kind.resource == "pods")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(listing, "INITIAL_SILENCE_S", 0.2)


class Seen:
    """What a consumer knows: objects by UID, and each change that it was told."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.told: list[tuple[str, str]] = []
        self.at = ""

    def take(self, batch: ChangeBatch) -> None:
        for change in batch.changes:
            self.told.append((change.happened, change.uid))
            if change.happened == "deleted":
                del self.versions[change.uid]
            else:
                assert (change.happened == "added") == (change.uid not in self.versions)
                self.versions[change.uid] = change.version
        self.at = batch.version or self.at


class Watched:
    """The server's side: lists in turn, and the bodies of watches in turn; after the last one it is silent."""

    def __init__(self, lists: list[Answer], watches: list[list[bytes | None]] | None = None) -> None:
        self.ends = threading.Event()
        self.lists, self.watches = lists, watches or []
        self.listed = self.watched = 0

    def __call__(self, path: str, query: Query) -> Answer:
        if "watch" not in query:
            self.listed += 1
            return self.lists[min(self.listed, len(self.lists)) - 1]
        self.watched += 1
        if self.watched > len(self.watches):
            return 200, {}, until(self.ends, bookmark("9999"))
        return 200, {}, self.watches[self.watched - 1]


@contextlib.contextmanager
def following(answer: Callable[[str, Query], Answer]) -> Iterator[tuple[Seen, Callable[[], ReflectorReport]]]:
    """Until `settled`, in the thread of the test."""
    with ScriptedKubernetes(answer) as server, server.line() as line, ClusterObservation(line, [PODS]) as observation:
        seen = Seen()

        def settled() -> ReflectorReport:
            end = time.monotonic() + PATIENCE_S
            while seen.at != "9999":
                assert time.monotonic() < end, (seen.told, observation.reports())
                for batch in observation.take(0.05):
                    seen.take(batch)
            return observation.reports()["pods"]

        yield seen, settled
        if isinstance(answer, Watched):
            answer.ends.set()


def whole(version: int, *found: tuple[str, int]) -> Answer:
    return page(version, *(pod(name, at) for name, at in found))


def test_a_410_in_the_stream_lists_again_and_tells_what_is_gone() -> None:
    server = Watched(
        [whole(10, ("stays", 3), ("goes", 4)), whole(30, ("stays", 3), ("comes", 25))],
        [[event("MODIFIED", pod("goes", 11)), error(410, "Expired")]],
    )
    with following(server) as (seen, settled):
        report = settled()
    assert seen.versions == {"uid-stays": "3", "uid-comes": "25"}
    assert seen.told[2:] == [("changed", "uid-goes"), ("added", "uid-comes"), ("deleted", "uid-goes")]
    assert (report.state, report.lists) == ("following", 2)


def test_a_410_as_the_answer_lists_again() -> None:
    lists = [whole(10, ("goes", 4)), whole(30, ("comes", 25))]
    scripted = Watched(lists)
    refused = iter([status(410, "Expired")])

    def answer(path: str, query: Query) -> Answer:
        if query.get("resourceVersion") == "10":
            return next(refused)
        return scripted(path, query)

    with following(answer) as (seen, settled):
        settled()
        scripted.ends.set()
    assert seen.versions == {"uid-comes": "25"}


def test_a_name_that_comes_back_is_another_object() -> None:
    lists = [whole(10, ("same", 4)), page(30, pod("same", 12, uid="second"))]
    with following(Watched(lists, [[error(410, "Gone")]])) as (seen, settled):
        settled()
    assert seen.versions == {"second": "12"}
    assert ("deleted", "uid-same") in seen.told


def test_half_a_line_and_a_broken_line_lose_nothing() -> None:
    """The watch goes on from the last whole event, so the change in the half line comes again."""
    half = event("MODIFIED", pod("a", 12))[:40]
    server = Watched([whole(10, ("a", 4))], [[event("MODIFIED", pod("a", 11)), half, None]])
    asked: list[str] = []

    def answer(path: str, query: Query) -> Answer:
        asked.append(query.get("resourceVersion", ""))
        return server(path, query)

    with following(answer) as (seen, settled):
        settled()
        server.ends.set()
    assert asked == ["", "10", "11"]
    assert seen.told == [("added", "uid-a"), ("changed", "uid-a")]


def test_events_cut_anywhere_are_read_whole() -> None:
    text = b"".join(event("ADDED", pod(f"p{n}", 11 + n)) for n in range(5))
    server = Watched([whole(10)], [[text[at : at + 7] for at in range(0, len(text), 7)]])
    with following(server) as (seen, settled):
        settled()
    assert len(seen.versions) == 5


class Expiring:
    """Pages of which the rest has expired, so many times; then they are whole. `streamed` answers a WatchList."""

    def __init__(self, times: int, streamed: Callable[[], Answer]) -> None:
        self.ends = threading.Event()
        self.streamed, self._left = streamed, times

    def __call__(self, path: str, query: Query) -> Answer:
        if "sendInitialEvents" in query:
            return self.streamed()
        if "watch" in query:
            return 200, {}, until(self.ends, bookmark("9999"))
        if "continue" not in query:
            return page(10, pod("first", 6), more="next")
        self._left -= 1
        return status(410, "Expired") if self._left >= 0 else page(10, pod("second", 7))


def test_pages_that_expire_are_listed_once_more_as_a_stream() -> None:
    pods = [event("ADDED", pod(name, at)) for name, at in (("stays", 5), ("after", 15), ("third", 16))]
    scripted = Expiring(1, lambda: (200, {}, [*pods, initial_end(20)]))
    with following(scripted) as (seen, settled):
        settled()
        scripted.ends.set()
    assert seen.versions == {"uid-stays": "5", "uid-after": "15", "uid-third": "16"}
    assert ("deleted", "uid-first") in seen.told


def test_a_server_that_never_says_that_all_have_come_is_asked_for_pages_again() -> None:
    ends = threading.Event()
    scripted = Expiring(1, lambda: (200, {}, until(ends, event("ADDED", pod("ghost", 3)))))
    with following(scripted) as (seen, settled):
        settled()
        ends.set()
        scripted.ends.set()
    # What only the unfinished list had is told as gone.
    assert seen.versions == {"uid-first": "6", "uid-second": "7"}


@pytest.mark.parametrize("code", [400, 422])
def test_a_server_without_watchlist_is_asked_for_pages_again(code: int) -> None:
    scripted = Expiring(2, lambda: status(code, "Invalid"))
    with following(scripted) as (seen, settled):
        settled()
        scripted.ends.set()
    assert seen.versions == {"uid-first": "6", "uid-second": "7"}


def test_a_version_that_goes_back_is_a_store_set_back() -> None:
    lists = [whole(100, ("new", 90), ("old", 4)), whole(50, ("old", 4))]
    with following(Watched(lists, [[bookmark(40)]])) as (seen, settled):
        settled()
    assert seen.versions == {"uid-old": "4"}


def test_versions_that_are_no_numbers_are_not_compared() -> None:
    assert listing.went_back("100", "99")
    assert not listing.went_back("zz", "aa")
    assert not listing.went_back("", "5")


def test_without_bookmarks_it_goes_on_from_the_last_event() -> None:
    asked: list[str] = []
    scripted = Watched([whole(10)], [[event("ADDED", pod("a", 11))], [event("DELETED", pod("a", 12))]])

    def answer(path: str, query: Query) -> Answer:
        asked.append(query.get("resourceVersion", ""))
        return scripted(path, query)

    with following(answer) as (seen, settled):
        settled()
        scripted.ends.set()
    assert asked == ["", "10", "11", "12"]
    assert seen.told == [("added", "uid-a"), ("deleted", "uid-a")]


def test_what_cannot_be_read_is_counted_and_ends_nothing() -> None:
    bad = pod("bad", 11)
    bad["spec"]["containers"] = "none"
    server = Watched([whole(10)], [[event("ADDED", bad) + event("ADDED", pod("good", 12))]])
    with following(server) as (seen, settled):
        report = settled()
    assert seen.versions == {"uid-good": "12"}
    assert report.unreadable == 1
    assert "containers" in report.unreadable_why


def test_a_line_that_is_no_event_is_followed_again_from_the_last() -> None:
    server = Watched([whole(10)], [[event("ADDED", pod("a", 11)), b"<html>proxy error</html>\n"]])
    with following(server) as (seen, settled):
        settled()
    assert seen.told == [("added", "uid-a")]
    assert server.listed == 1


def test_a_server_with_too_much_to_do_is_asked_again_when_it_says() -> None:
    waited: list[float] = []
    answers = iter([status(429, "TooManyRequests", retry_after="7"), status(503, "Busy", retry_after="2")])

    def answer(path: str, query: Query) -> Answer:
        return next(answers, page(5, pod("a", 1)))

    with ScriptedKubernetes(answer) as server, server.line() as line:
        line.wait = lambda seconds: bool(waited.append(seconds)) if seconds else False  # type: ignore[method-assign,func-returns-value]
        assert b"uid-a" in line.get("listing pods", "/api/v1/pods")
        assert waited == [7.0, 2.0]
        assert line.put_off == 2


def test_a_server_that_is_always_busy_is_an_error_that_says_when_to_come_back() -> None:
    def answer(path: str, query: Query) -> Answer:
        return status(429, "TooManyRequests", retry_after="9")

    with ScriptedKubernetes(answer) as server, server.line() as line:
        line.wait = lambda seconds: False  # type: ignore[method-assign]
        with pytest.raises(KubernetesUnavailable, match="TooManyRequests") as caught:
            line.get("listing pods", "/api/v1/pods")
    assert caught.value.wait_s == 9


class FaultyCluster:
    """Pods that change at random, behind a server that has every fault by turns, a 410 in
    each of its forms among them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.version = 100
        self.pods: dict[str, dict[str, Any]] = {}
        self.log: list[tuple[int, bytes]] = []
        self.calm = False
        self._lock = threading.Lock()

    def change(self) -> None:
        with self._lock:
            self.version += 1
            name = f"p{self.dice.randrange(6)}"
            if name not in self.pods:
                self.pods[name] = pod(name, self.version, uid=f"{name}-{self.version}")
                happened = "ADDED"
            else:
                happened = self.dice.choice(["MODIFIED", "DELETED"])
            found = self.pods[name]
            found["metadata"]["resourceVersion"] = str(self.version)
            self.log.append((self.version, event(happened, found)))
            if happened == "DELETED":
                del self.pods[name]

    def versions(self) -> dict[str, str]:
        return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in self.pods.values()}

    def __call__(self, path: str, query: Query) -> Answer:
        with self._lock:
            fault = "" if self.calm else self.dice.choice(["", "", "410", "in stream", "half", "busy", "no stream"])
            if fault == "busy":
                return status(503, "Busy")
            if "sendInitialEvents" in query:
                return self._initial(fault)
            if "watch" in query:
                return self._watch(int(query["resourceVersion"]), fault)
            return self._list(query, fault)

    def _initial(self, fault: str) -> Answer:
        if fault == "no stream":
            return status(422, "Invalid")
        lines: list[bytes | None] = [event("ADDED", each) for each in self.pods.values()]
        return 200, {}, [*lines, None] if fault == "half" else [*lines, initial_end(self.version)]  # type: ignore[list-item]

    def _list(self, query: Query, fault: str) -> Answer:
        """The rest of a list has expired, or is that of a later one."""
        found = list(self.pods.values())
        if self.calm or fault == "no stream":
            return page(self.version, *found)
        return status(410, "Expired") if "continue" in query else page(self.version, *found[:1], more="next")

    def _watch(self, since: int, fault: str) -> Answer:
        if fault == "410":
            return status(410, "Expired")
        lines: list[bytes | None] = [line for version, line in self.log if version > since]
        if fault == "half" and lines and lines[-1]:
            lines[-1:] = [lines[-1][:30], None]
        return 200, {}, [*lines, error(410, "Gone")] if fault == "in stream" else lines


@pytest.mark.parametrize("seed", range(8))
def test_whatever_fails_what_is_known_at_last_is_what_is_there(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "LAST_WAIT_S", 0.02)
    cluster = FaultyCluster(seed)
    with ScriptedKubernetes(cluster) as server:
        line = server.line(rate=1e6, burst=1_000_000)
        with ClusterObservation(line, [PODS]) as observation:
            seen = Seen()

            def take(timeout_s: float) -> None:
                for batch in observation.take(timeout_s):
                    seen.take(batch)

            for _ in range(60):
                cluster.change()
                take(0.01)
            cluster.calm = True
            patiently(lambda: take(0.05) or seen.versions == cluster.versions(), lambda: (seen.told, cluster.log))
        assert len(server.asked) > 5


def test_requests_are_paced() -> None:
    now = [0.0]
    pacer = RequestPacer(20, 3, lambda: now[0])
    assert [pacer.take() for _ in range(5)] == [0, 0, 0, 0.05, 0.1]
    now[0] = 1.0
    assert [pacer.take() for _ in range(4)] == [0, 0, 0, 0.05]


def test_a_kind_that_may_not_be_read_is_denied_and_tried_again() -> None:
    scripted = Watched([whole(10, ("a", 4))])
    first = iter([status(403, "Forbidden")])

    def answer(path: str, query: Query) -> Answer:
        return next(first, None) or scripted(path, query)

    with following(answer) as (seen, settled):
        settled()
        scripted.ends.set()
    assert seen.versions == {"uid-a": "4"}


def test_a_consumer_that_takes_nothing_ends_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.external.kubernetes_api.observation.MAX_WAITING", 2)
    ends = threading.Event()
    lines = [event("ADDED", pod(f"p{n}", n + 11)) for n in range(50)]

    def answer(path: str, query: Query) -> Answer:
        return (200, {}, until(ends, *lines)) if "watch" in query else whole(10)

    with ScriptedKubernetes(answer) as server:
        observation = ClusterObservation(server.line(), [PODS])
        with observation:
            assert observation.take(PATIENCE_S)
        ends.set()
        assert not any(thread.is_alive() for thread in observation._threads)


def test_a_list_alone_tells_its_time() -> None:
    with ScriptedKubernetes(Watched([whole(10, ("a", 4))])) as server, server.line() as line:
        now = iter([1.0, 2.0, 3.5])
        alone = Reflector(line, PODS, lambda _: None, clock=lambda: next(now))
        alone.list_now()
    assert (alone.report.objects, alone.report.list_s) == (1, 2.5)


def test_a_closed_line_ends_a_wait_for_a_busy_server() -> None:
    def answer(path: str, query: Query) -> Answer:
        return status(429, "TooManyRequests", retry_after="50")

    with ScriptedKubernetes(answer) as server, server.line() as line:
        threading.Thread(target=lambda: _close_when_put_off(line), daemon=True).start()
        with pytest.raises(KubernetesUnavailable, match="stopped"):
            line.get("listing pods", "/api/v1/pods")


def _close_when_put_off(line: KubernetesTransport) -> None:
    while not line.put_off:
        time.sleep(0.01)
    line.close()
