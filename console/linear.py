"""`muster --linear`: the console as a conversation, line by line, for screen readers and any terminal or pipe.

What is said is what the pages show. No line moves the cursor, nothing is drawn, and an answer waits to be asked for more.
"""

from __future__ import annotations

import contextlib
import select
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, cast

from console.actions import ACTIONS, Action, actions, parse_command
from console.event_log import EventLog
from console.linear_deciding import DECISIONS, Deciding
from console.linear_text import Said, changes, row_said, said_of
from console.navigator import new_page
from console.query import FilterError
from console.screens.pane import DetailPane, ListPane, fetch_rows
from console.text import printable, timestamp
from engine.errors import MusterError, SpecError, UnreachableError

if TYPE_CHECKING:
    from console.actions import ScreenName
    from console.client import Client
    from console.identity import Identity
    from engine.query import Change

AT_ONCE = 20
"""Lines that are said before one is asked whether to go on."""
LONGEST = 4_000
"""Characters of a line that is read."""
WIDTH = 160
"""For which pages are laid out, in cells: wide enough that little of a line is cut."""
FOLLOW_S = 1.0
NAMED = 3
"""Things that are named of each kind of news."""
WORST = ("down", "failed", "suspect", "requeued", "cancelled", "held", "draining", "cordoned")
"""News that come first."""
TABLES = ("proposals", "runbooks")
"""Lists that are not of the engine's kinds."""
PAGES: tuple[ScreenName, ...] = (
    "overview", "workload", "node", "queue", "recommendations", "forecast", "cost", "proposal", "runbook", "record",
    "draft", "drafts", "policy", "reviews", "topology",
)  # fmt: skip
LISTS: tuple[ScreenName, ...] = ("queues", "workloads", "nodes", "pools", "orders")
OWN = {
    "next": "what comes next of the answer",
    "previous": "what came before",
    "NUMBER": "go where the line with that number leads",
    "back": "where you were before",
    "again": "ask the same again, and hear what has changed",
    "where": "where you are",
    "findings": "what needs somebody",
    "why ID": "why a workload waits, and what would let it start",
    "follow events": "what happens, as it happens; Enter ends it",
    "show ID": "a proposal, whole",
    "news on, news off": "whether to hear what happened since, after each answer",
    "help": "this",
    "quit": "leave; Ctrl-D does too",
}
"""What can be said besides the commands of the `:` bar."""


@dataclass(frozen=True)
class Answer:
    """What is being read: a part of it at a time."""

    line: str
    part: Callable[[int, int], tuple[list[Said], int]]
    """Offset and limit -> lines, and how many there are in all."""
    start: int = 0
    lines: tuple[Said, ...] = ()
    """Those that were said last."""
    total: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.lines)


def run(
    connect: Callable[[], Client],
    identity: Identity,
    *,
    read_only: bool = False,
    hears: IO[str] | None = None,
    says: IO[str] | None = None,
) -> int:
    """Converse until the person leaves. Returns an exit code."""
    hears, says = hears or sys.stdin, says or sys.stdout
    if isinstance(hears, io_text):
        hears.reconfigure(errors="replace")
    talk = Conversation(connect, identity, hears, says, read_only=read_only)
    try:
        talk.greet()
        while not talk.left:
            talk.turn()
    except KeyboardInterrupt:
        talk.say("left")
    finally:
        talk.close()
    return 0


class Conversation:
    """One person, one engine, one place at a time."""

    def __init__(
        self, connect: Callable[[], Client], identity: Identity, hears: IO[str], says: IO[str], *, read_only: bool
    ) -> None:
        self.left = False
        self._connect = connect
        self._hears, self._says = hears, says
        self._actions = actions(read_only=read_only)
        self._client: Client | None = None
        self._log = EventLog()
        self._seen = 0
        self._tells_news = True
        self._answer: Answer | None = None
        self._before: list[Answer] = []
        self._deciding = Deciding(self.client, identity, self.say, self.ask)

    # --- hearing and saying

    def say(self, text: str) -> None:
        print(printable(text), file=self._says, flush=True)

    def ask(self, question: str) -> str:
        """What a person answers, empty at the end of the input. What was typed before the question does not count."""
        if self._hears.isatty():
            import termios

            termios.tcflush(self._hears.fileno(), termios.TCIFLUSH)
        print(printable(question), file=self._says, end=" " if self._hears.isatty() else "\n", flush=True)
        return self._read() or ""

    def _read(self) -> str | None:
        """One line; None at the end. Of a line that is too long, nothing."""
        line = self._hears.readline(LONGEST + 1)
        if not line:
            return None
        if len(line) > LONGEST and not line.endswith("\n"):
            while (rest := self._hears.readline(LONGEST)) and not rest.endswith("\n"):
                pass
            self.say(f"error: a line has at most {LONGEST:,} characters; that one was not read")
            return ""
        return line.strip()

    def turn(self) -> None:
        """One line of the person, and its answer."""
        if self._hears.isatty():
            print("muster> ", file=self._says, end="", flush=True)
        line = self._read()
        if line is None:
            self.left = True
            return
        if not line:
            return
        try:
            self._do(line)
            self._tell_news()
        except FilterError as error:
            self.say(f"error: {error.problem}. {error.remedy}. It is about: {line[-80:]}")
        except MusterError as error:
            self._tell(error)
        except KeyboardInterrupt:
            self.say("stopped")

    def _tell(self, error: MusterError) -> None:
        self.say(f"error: {error.problem}")
        if error.remedy:
            self.say(error.remedy)
        if isinstance(error, UnreachableError):
            self.close()
            self.say("what you heard last stays; your next line tries to reach the engine again")

    # --- the engine

    def client(self) -> Client:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def close(self) -> None:
        if self._client is not None:
            with contextlib.suppress(MusterError, OSError):
                self._client.close()
            self._client = None

    def greet(self) -> None:
        try:
            health = self.client().health()
            self._seen = health.version
            self.say(f"Muster, cell {health.cell}, at {timestamp(health.now_ms)} UTC. Say help for what can be said.")
            self._findings()
        except MusterError as error:
            self._tell(error)

    def _tell_news(self) -> None:
        """What has happened since the last answer, in one line: the worst first, by name."""
        if self.left:
            return
        found = self.client().changes(self._seen, 0.0)
        self._seen = found.version
        if found.items and self._tells_news:
            more = f", and {found.missed:,} more" if found.missed else ""
            self.say(f"meanwhile: {news(found.items)}{more}")

    # --- what is asked for

    def _do(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        own: dict[str, Callable[[], None]] = {
            "next": lambda: self._turn_page(1),
            "previous": lambda: self._turn_page(-1),
            "back": self._back,
            "again": self._again,
            "where": self._where,
            "findings": self._findings,
            "help": self._help,
            "quit": self._leave,
            "q": self._leave,
        }
        if word in own and not rest:
            own[word]()
        elif word.isdecimal() and not rest:
            self._open(int(word))
        elif word == "follow":
            self._follow()
        elif word == "news" and rest in ("on", "off"):
            self._tells_news = rest == "on"
            self.say(f"news are {rest}")
        elif word == "why" and rest:
            self._why(rest)
        elif word == "show":
            self._go(f"proposal {rest}")
        else:
            self._command(line)

    def _command(self, line: str) -> None:
        """As in the `:` bar. Raises MusterError."""
        command = parse_command(line.removeprefix(":"), self._actions)
        action, argument = command.action, command.argument
        if action.id in DECISIONS:
            self._decide(action.id, argument)
        elif action.mutates:
            self._deciding.act(action, argument)
        elif action.id == "open":
            self._command(_page_of(self.client(), argument))
        elif action.id in (*PAGES, *LISTS, *TABLES):
            self._go(f"{action.id} {argument}".strip())
        else:
            raise SpecError("", f"{action.commands[0]} cannot be said here", _elsewhere(action))

    def _decide(self, deed: str, argument: str) -> None:
        wanted = self._deciding.decide(deed, argument)
        if wanted:
            self._go(f"proposal {wanted}")

    # --- reading

    def _go(self, line: str) -> None:
        """To another page: what was read before is kept for `back`."""
        answer = self._read_part(Answer(line, self._parts(line)), 0)
        if self._answer is not None:
            self._before = [*self._before[-49:], self._answer]
        self._answer = answer
        self._say_answer()

    def _parts(self, line: str) -> Callable[[int, int], tuple[list[Said], int]]:
        """Raises MusterError, FilterError."""
        name, _, argument = line.partition(" ")
        if name in TABLES:
            return lambda start, limit: _sliced(_table(self.client(), name, argument), start, limit)
        if name == "proposal":
            return lambda start, limit: _sliced(self._deciding.shown(argument), start, limit)
        pane = new_page(cast("ScreenName", name), argument, self.client, self._log)
        if isinstance(pane, ListPane):
            view, link = pane.view, {"workloads": "workload", "nodes": "node", "queues": "queue"}.get(name, "")

            def rows(start: int, limit: int) -> tuple[list[Said], int]:
                window = fetch_rows(self.client, view, start, limit)
                leads = [f"{link} {row.id}" if link else "" for row in window.rows]
                said = [row_said(row, view.headings, to) for row, to in zip(window.rows, leads, strict=True)]
                return said, window.matched

            return rows
        assert isinstance(pane, DetailPane), f"{name} is in PAGES"
        page = said_of([section for column in pane.columns(pane.ask(self.client()), WIDTH) for section in column])
        return lambda start, limit: _sliced(page, start, limit)

    def _read_part(self, answer: Answer, start: int) -> Answer:
        lines, total = answer.part(start, AT_ONCE)
        return replace(answer, start=start, lines=tuple(lines), total=total)

    def _say_answer(self) -> None:
        answer = self._answer
        assert answer is not None
        self.say(answer.line if answer.lines else f"{answer.line}: nothing")
        for number, line in enumerate(answer.lines, answer.start + 1):
            self.say(f"{number}. {line.text}" if line.link else line.text)
        if answer.end < answer.total:
            self.say(f"{answer.end:,} of {answer.total:,} lines; next tells more")
        name, _, argument = answer.line.partition(" ")
        if name == "proposal" and answer.end >= answer.total:
            self._deciding.read_to_the_end(argument)

    def _turn_page(self, step: int) -> None:
        answer = self._present()
        start = answer.end if step > 0 else max(0, answer.start - AT_ONCE)
        if (step > 0 and answer.end >= answer.total) or (step < 0 and not answer.start):
            self.say("that was the end" if step > 0 else "that was the beginning")
            return
        self._answer = self._read_part(answer, start)
        self._say_answer()

    def _present(self) -> Answer:
        if self._answer is None:
            raise SpecError("", "nothing was asked for yet", "Say overview, or help")
        return self._answer

    def _open(self, number: int) -> None:
        answer = self._present()
        at = number - answer.start - 1
        if not 0 <= at < len(answer.lines) or not answer.lines[at].link:
            raise SpecError("", f"line {number} leads nowhere", "Say a number that stood before a line")
        self._command(answer.lines[at].link)

    def _back(self) -> None:
        if not self._before:
            raise SpecError("", "you were nowhere before", "Say overview, or help")
        self._answer = self._before.pop()
        self._say_answer()

    def _again(self) -> None:
        """Only what differs is said: that is what one listens for."""
        answer = self._present()
        fresh = self._read_part(Answer(answer.line, self._parts(answer.line)), answer.start)
        self.say(fresh.line)
        for line in changes(answer.lines, fresh.lines):
            self.say(line.text)
        self._answer = fresh

    def _where(self) -> None:
        answer = self._present()
        self.say(f"{answer.line}, lines {answer.start + 1:,} to {answer.end:,} of {answer.total:,}")

    def _findings(self) -> None:
        """What needs somebody: the first section of the overview."""
        pane = cast("DetailPane[object]", new_page("overview", "", self.client, self._log))
        left, right = pane.columns(pane.ask(self.client()), WIDTH)
        said = said_of([*left, *right][:1])
        self._answer = Answer("findings", lambda start, limit: _sliced(said, start, limit))
        self._answer = self._read_part(self._answer, 0)
        self._say_answer()

    def _why(self, workload: str) -> None:
        from console.plain import reason_lines, unblocking_lines

        view = self.client().workload(workload)
        for line in reason_lines(view):
            self.say(line.strip())
        if view.reasons:
            for line in unblocking_lines(self.client().unblocking(workload)):
                self.say(line.strip())

    def _follow(self) -> None:
        """Until a line comes, the input ends, or Ctrl-C."""
        self.say("following; Enter ends it" if self._hears.isatty() else "following")
        while not select.select([self._hears], [], [], 0)[0]:
            found = self.client().changes(self._seen, FOLLOW_S)
            self._seen = found.version
            for change in found.items:
                self.say(event_said(change))
        self._read()

    def _help(self) -> None:
        for said, what in OWN.items():
            self.say(f"{said}: {what}")
        for action in self._actions:
            can = action.id in (*PAGES, *LISTS, *TABLES, *DECISIONS) or action.mutates or action.id == "open"
            if action.commands and can:
                takes = {"": "", "filter": " FILTER", "id": " ID", "ids": " IDS"}.get(action.argument, " ...")
                self.say(f"{action.commands[0]}{takes}: {action.title}")

    def _leave(self) -> None:
        self.left = True


def news(items: Sequence[Change]) -> str:
    """As in "1 down: node-4; 12 started, 3 finished"."""
    counts = Counter(item.what for item in items)
    worst = []
    for what in WORST:
        if what in counts:
            names = list(dict.fromkeys(item.subject for item in items if item.what == what))
            more = " and more" if len(names) > NAMED else ""
            worst.append(f"{counts.pop(what):,} {what}: {', '.join(names[:NAMED])}{more}")
    rest = ", ".join(f"{count:,} {what}" for what, count in counts.most_common())
    return "; ".join([*worst, *([rest] if rest else [])])


def event_said(change: Change) -> str:
    detail = f", {change.detail}" if change.detail else ""
    return f"{timestamp(change.at_ms, date=False)} {change.what}: {change.subject}{detail}"


def _sliced(said: Sequence[Said], start: int, limit: int) -> tuple[list[Said], int]:
    return list(said[start : start + limit]), len(said)


def _table(client: Client, name: str, words: str) -> list[Said]:
    """Proposals or runbooks in whose line every word occurs."""
    if name == "proposals":
        from console.proposal_text import LIST_HEADINGS, SHOWN_STATES, list_rows

        caller = client.whoami()
        found = client.proposals(() if words == "all" else SHOWN_STATES)
        rows, headings = list_rows(found, caller.now_ms, caller.me), LIST_HEADINGS
        words = "" if words == "all" else words
    else:
        from console.runbook_text import HEADINGS, row_of

        rows, headings = [row_of(line) for line in client.runbooks()], HEADINGS
    said = [row_said(row, headings, f"{name.removesuffix('s')} {row.id}") for row in rows]
    return [line for line in said if all(word in line.text.lower() for word in words.lower().split())]


def _page_of(client: Client, argument: str) -> str:
    """The command for whatever has that id. Raises SpecError."""
    from engine.errors import NotFoundError

    if argument.startswith("P-"):
        return f"proposal {argument}"
    for kind, ask in (("workload", client.workload), ("node", client.node), ("queue", client.queue)):
        with contextlib.suppress(NotFoundError):
            ask(argument)
            return f"{kind} {argument}"
    raise SpecError("", f"nothing has the id '{argument[:60]}'", "Say workloads, nodes or queues to find it")


def _elsewhere(action: Action) -> str:
    return f"From the shell: {action.shell}" if action.shell else "Say help for what can be said"
