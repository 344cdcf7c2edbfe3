"""One connection for all that a console waits for: that the cell is further, who else is here, that somebody voted.

The engine says it as it happens (`console.server.routes.event_stream`), and whoever waits in this process is woken. The
line is never needed: while there is none, because it broke, or because something in between holds streams back, each
waits by a long poll of its own, which asks from the last version seen on; so nothing is missed between the two. It
comes again by itself, a little apart from others who lost theirs at the same moment.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from console.client.decoders import decoder
from engine.model.errors import NotSentError, SpecError
from engine.model.queries import Changes

if TYPE_CHECKING:
    from console.client.presence import Present

PACE_S = 1.0
"""Between two words that the cell is further, at least: a console draws no more often. The first after a rest comes at
once."""
RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0)
FRUITLESS = 3
"""So often in a row a line was had and nothing came on it: something in between holds it back."""
SPOILED_S = 300.0
"""How long no line is tried then."""
Said = Iterator[tuple[str, bytes]]
"""(event, data) one after the other."""


class LiveLine:
    """Of one client. `stream` opens the line with these parameters, and raises MusterError when it ends or breaks."""

    def __init__(self, stream: Callable[[dict[str, str]], contextlib.AbstractContextManager[Said]]) -> None:
        self._stream = stream
        self._moved = threading.Condition()
        self._closed = threading.Event()
        self._again = threading.Event()
        """Somebody wants the line anew, or it is to be closed."""
        self._thread: threading.Thread | None = None
        self._session = ""
        self._up = False
        self._version, self._at_ms = -1, 0
        self._present: Present | None = None
        self.records = -1
        """A number that is another one when somebody voted, proposed or decided; -1: not known."""

    def close(self) -> None:
        """Returns at once; the thread ends with its next word from the engine."""
        self._closed.set()
        self._again.set()
        self._fallen()

    # -- who waits ----------------------------------------------------------------------------------------------------

    def changes(self, after: int, wait_s: float) -> Changes | None:
        """That the cell is beyond a version, as soon as it is or when the time is up; None where that is not known
        here."""
        self._begin()
        with self._moved:
            self._moved.wait_for(lambda: self._version > after or not self._up, wait_s if self._up else 0)
            if not self._up:
                return None
            return Changes(version=self._version, at_ms=self._at_ms, items=(), missed=0)

    def others(self, session: str, after: int, wait_s: float) -> Present | None:
        """Who else is here besides the console of that session; None where it is not known here."""
        self._begin(session)
        with self._moved:

            def told() -> bool:
                return not self._up or self._present is None or self._present.serial > after

            self._moved.wait_for(told, wait_s)
            return self._present if self._up else None

    def _begin(self, session: str = "") -> None:
        with self._moved:
            if session and session != self._session:
                self._session, self._present = session, None
                self._again.set()
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._follow, daemon=True, name="muster-line")
                self._thread.start()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        tries = fruitless = 0
        while not self._closed.is_set():
            self._again.clear()
            came, reached = False, True
            try:
                with contextlib.closing(self._words()) as words:
                    for _ in words:
                        came = True
                        if self._again.is_set():
                            break
            except NotSentError:
                reached = False
            except SpecError:
                self._version = -1  # an engine that has less behind it than the one before
            except Exception:  # whatever it is, long polls do without the line
                pass
            self._fallen()
            if self._again.is_set():
                continue
            tries = 0 if came else tries + 1
            fruitless = 0 if came else fruitless + reached
            if fruitless >= FRUITLESS:
                fruitless, pause_s = 0, SPOILED_S
            else:
                pause_s = RETRY_S[min(tries, len(RETRY_S) - 1)]
            self._again.wait(pause_s * random.uniform(0.5, 1.5))

    def _words(self) -> Iterator[None]:
        """Take what comes, and wake who waits for it."""
        params = {"items": "0", "pace_s": f"{PACE_S:g}", "after": str(self._version), "session": self._session}
        with self._stream({name: value for name, value in params.items() if value}) as said:
            for event, data in said:
                self._take(event, data)
                yield

    def _take(self, event: str, data: bytes) -> None:
        with self._moved:
            if event == "changes":
                found = decoder(Changes).decode(data)
                self._version, self._at_ms, self._up = found.version, found.at_ms, True
            elif event == "present":
                from console.client.presence import Present

                self._present = decoder(Present).decode(data)
            elif event == "absent":
                self._present = None
            elif event == "gate":
                self.records = decoder(dict[str, int]).decode(data)["serial"]
            else:
                return
            self._moved.notify_all()

    def _fallen(self) -> None:
        """Who waits asks for themselves."""
        with self._moved:
            self._up, self._present, self.records = False, None, -1
            self._moved.notify_all()


def words_of(lines: Iterator[str]) -> Said:
    """Server-sent events of a stream's lines."""
    event = ""
    for line in lines:
        name, _, text = line.partition(": ")
        if name == "event":
            event = text
        elif name == "data":
            yield event, text.encode()
