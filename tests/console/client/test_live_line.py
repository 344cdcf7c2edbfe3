"""One line for all that a console waits for: who waits is woken by it, and misses nothing when there is none."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from console.client import remote
from console.client.presence import Presence, PresenceAsk
from console.client.remote import EventLines, LiveLine, RemoteClient
from console.server import watching
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.errors import NotSentError, SpecError, UnreachableError
from tests.support.cutting_proxy import CuttingProxy
from tests.support.patience import PATIENCE_S
from tests.support.served import gpu_job, running_loop, served_on_unix

SOON_S = 60.0
"""As long as one may wait for news in one request."""


def frame(version: int) -> tuple[str, bytes]:
    return "changes", b'{"version":%d,"at_ms":%d,"items":[],"missed":0}' % (version, version * 1000)


class Played:
    """What a line says, as the test has it; None: it breaks."""

    def __init__(self) -> None:
        self.opened: list[dict[str, str]] = []
        self.words: queue.SimpleQueue[tuple[str, bytes] | Exception] = queue.SimpleQueue()

    @contextlib.contextmanager
    def __call__(self, params: dict[str, str]) -> Iterator[EventLines]:
        self.opened.append(params)
        yield self._coming()

    def _coming(self) -> EventLines:
        while True:
            word = self.words.get(timeout=SOON_S)
            if isinstance(word, Exception):
                raise word
            yield word


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setattr(remote, "RETRY_S", (0.0,))
    return Played()


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_who_waits_is_woken_by_the_word_and_told_nothing_before_there_is_a_line(said: Played) -> None:
    with closing(LiveLine(said)) as line:
        assert line.changes(3, SOON_S) is None
        said.words.put(frame(4))
        until(lambda: line.changes(3, 0.0))
        threading.Timer(0.05, lambda: said.words.put(frame(5))).start()
        found = line.changes(4, SOON_S)
        assert found is not None
        assert (found.version, found.at_ms) == (5, 5000)
        same = line.changes(5, 0.01)
        assert same is not None
        assert same.version == 5
        said.words.put(UnreachableError("over"))


def test_who_waits_when_the_line_breaks_is_let_go_and_it_goes_on_where_it_was(said: Played) -> None:
    with closing(LiveLine(said)) as line:
        line.changes(0, 0.0)
        said.words.put(frame(7))
        until(lambda: line.changes(0, 0.0))
        threading.Timer(0.05, lambda: said.words.put(UnreachableError("cut"))).start()
        assert line.changes(7, SOON_S) is None
        until(lambda: len(said.opened) == 2)
        assert said.opened[1]["after"] == "7"
        said.words.put(SpecError("after", "is ahead", ""))  # another journal: less is behind it
        until(lambda: len(said.opened) == 3)
        assert said.opened[2]["after"] == "-1"
        said.words.put(frame(2))
        until(lambda: line.changes(0, 0.0))
        said.words.put(UnreachableError("over"))


def test_a_line_on_which_nothing_comes_is_not_tried_again_soon(said: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    with closing(LiveLine(said)) as line:
        wait = line._again.wait
        monkeypatch.setattr(line._again, "wait", lambda pause_s: (waited.append(pause_s), wait(min(pause_s, 0.05))))
        for _ in range(4):
            said.words.put(NotSentError("no engine answers"))  # says nothing of what is in between
        for _ in range(remote.FRUITLESS):
            said.words.put(UnreachableError("silent"))
        line.changes(0, 0.0)
        until(lambda: len(waited) == 4 + remote.FRUITLESS)
        said.words.put(UnreachableError("over"))
    assert waited[:-1] == [0.0] * (len(waited) - 1)
    assert waited[-1] >= remote.SPOILED_S / 2


# -- over a server ----------------------------------------------------------------------------------------------------


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLoop]:
    monkeypatch.setattr(remote, "PACE_S", 0.05)
    monkeypatch.setattr(watching, "TICK_S", 0.2)
    with running_loop() as running:
        running.paused = True
        yield running


def answered(client: RemoteClient, operation: str) -> float:
    """How many requests of a kind were answered."""
    found = 0.0
    for line in client._http.get("/metrics").text.splitlines():
        if line.startswith("muster_http_requests_total") and f'"{operation}"' in line:
            found += float(line.rpartition(" ")[2])
    return found


def live(where: Path | str) -> RemoteClient:
    client = RemoteClient(str(where), live=True)
    client.changes(0, 0.01, 0)
    assert client._line is not None
    until(lambda: client._line.changes(-1, 0.0))  # type: ignore[union-attr]
    return client


def test_news_come_by_one_line_and_no_further_request(loop: EngineLoop) -> None:
    with served_on_unix(loop) as path, closing(live(path)) as client, closing(RemoteClient(str(path))) as other:
        seen, before = client.changes(0, 0.0, 0).version, answered(other, "get_changes")
        for number in range(3):
            wrote = other.command(Submit(workloads=(gpu_job(f"w{number}"),))).version
            while seen < wrote:
                seen = client.changes(seen, SOON_S, 0).version
        assert answered(other, "get_changes") == before
        told = client.changes(0, SOON_S)
        assert {"w0", "w1", "w2"} <= {item.subject for item in told.items}


def ask(of: str, **more: object) -> PresenceAsk:
    return PresenceAsk(session=of * 32, page="nodes", **more)  # type: ignore[arg-type]


def test_who_is_here_comes_by_the_same_line(loop: EngineLoop) -> None:
    with served_on_unix(loop) as path, closing(live(path)) as client, closing(RemoteClient(str(path))) as other:
        serial = client.present(ask("a")).serial
        while client._line.others("a" * 32, -1, SOON_S) is None:  # type: ignore[union-attr]
            pass
        before = answered(other, "post_presence")
        other.present(ask("b"))
        news = client.present(ask("a", after=serial, wait_s=SOON_S))
        assert [each.page for each in news.here] == ["nodes"]
        other.present(ask("b", leaves=True))
        while news.here:
            news = client.present(ask("a", after=news.serial, wait_s=SOON_S))
        assert answered(other, "post_presence") == before + 2


def test_a_console_on_the_line_is_here_without_saying_so_again(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("console.service.local_client.Presence", lambda: Presence(lambda: now[0]))
    with served_on_unix(loop) as path, closing(live(path)) as client, closing(RemoteClient(str(path))) as other:
        client.present(ask("a"))
        until(lambda: client._line.others("a" * 32, -1, 0.1))  # type: ignore[union-attr]
        for _ in range(4):
            now[0] += 5.0
            loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job(f"x{now[0]}"),))))
            version = loop.engine.version
            while client.changes(version - 1, SOON_S, 0).version < version:
                pass
        assert len(other.present(ask("b")).here) == 1


def test_votes_are_told_by_it(loop: EngineLoop) -> None:
    from runbooks.gate.run_limits import FreezeSpec

    with served_on_unix(loop) as path, closing(live(path)) as client, closing(RemoteClient(str(path))) as other:
        client.present(ask("a"))
        line = client._line
        assert line is not None
        line.others("a" * 32, -1, 0.0)
        until(lambda: line.records >= 0)
        before = line.records
        other.freeze(FreezeSpec(name="stop", from_ms=0, until_ms=2**43, reason="test"))
        until(lambda: line.records > before)


def test_a_cut_line_keeps_no_news_from_who_waits_and_comes_again(
    loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "RETRY_S", (0.05,))
    with served_on_unix(loop) as path:
        proxy = CuttingProxy(str(path))
        with closing(proxy), closing(live(proxy.url)) as client:
            line = client._line
            assert line is not None
            for number in range(5):
                seen = loop.engine.version
                cut = threading.Timer(0.02, proxy.cut)
                cut.start()
                if number % 2:
                    submit = threading.Timer(0.02, lambda id_=f"w{number}": _submit(loop, id_))
                    submit.start()
                else:
                    submit = None
                    _submit(loop, f"w{number}")
                while client.changes(seen, SOON_S, 0).version == seen:
                    pass
                if submit is not None:
                    submit.join()
                cut.join()  # one for each round: of two in one wait the second is told to who waits
            # It was cut just now: what it says it may say of before.
            until(lambda: (found := line.changes(0, 0.0)) is not None and found.version == loop.engine.version)


def _submit(loop: EngineLoop, id_: str) -> None:
    loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job(id_),))))
