"""`muster --linear`: the console as a conversation, line by line, for screen readers, terminals and pipes.

It reads the pages out. No line moves the cursor, nothing is drawn, and a long answer waits for `next`. Decisions pass
the same gate and guards as on the screen: a plan is voted on after it was read to its end, by the first characters of
its digest where the policy asks for them, and signed where votes are. The default answer is no.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, TYPE_CHECKING, cast

import msgspec

from console.actions.registry import ConsoleAction, actions, parse_command
from console.cli.linear_pages import (
    LISTS,
    PAGES,
    PageReader,
    SpokenLine,
    changes,
    findings,
    news,
    page_of,
    page_reader,
    sliced,
    spoken_event,
    spoken_sections,
)
from console.forms.filters import FilterError
from console.forms.settings import EnvironmentOf, no_environment
from console.text.terminal_text import printable, timestamp
from console.tui.screens.draft import ask_of, is_draft_id, report_of
from console.views.decision_needs import by_author_alone, one_key, others_needed
from console.views.proposal import (
    decision_sections,
    plan_sections,
    screen_digest,
    state_word,
    what_next,
    why_not_mine,
)
from console.views.workload import status_sections
from engine.model.errors import MusterError, RefusedError, SpecError, UnreachableError
from runbooks.plans.typed_plan import DIGEST_TYPED, Outcome, Proposal, Request, asks

if TYPE_CHECKING:
    from console.client.credentials import Identity
    from console.client.protocol import Client
    from runbooks.plans.identity import Signed
    from runbooks.plans.typed_plan import ActionName


LONGEST = 4_000
"""Bytes of a line that is read."""
_CHUNK = 65_536


class Lines:
    """Reads a descriptor line by line, and knows whether there is more to read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept = b""
        self._ended = False
        self.at_terminal = os.isatty(descriptor)

    def line(self) -> str | None:
        """The next line; None once there is none. Raises SpecError for one that is too long, which is dropped."""
        while b"\n" not in self._kept and not self._ended:
            self._kept = self._kept[: LONGEST + 1] + self._more()
        line, found, self._kept = self._kept.partition(b"\n")
        if not line and not found:
            self._ended = False  # a terminal may go on after Ctrl-D
            return None
        if len(line) > LONGEST:
            raise SpecError("", f"a line has at most {LONGEST:,} bytes; this one was ignored")
        return line.decode(errors="replace").strip()

    def waiting(self) -> bool:
        """True where a line, a part of one, or the end of input is there."""
        return bool(self._kept) or bool(select.select([self._descriptor], [], [], 0)[0])

    def forget(self) -> None:
        """Drop what was typed at a terminal before the question: it is no answer."""
        if self.at_terminal:
            import termios

            termios.tcflush(self._descriptor, termios.TCIFLUSH)
            self._kept = b""

    def _more(self) -> bytes:
        read = os.read(self._descriptor, _CHUNK)
        self._ended = not read
        return read


DECISIONS = ("approve", "reject", "execute", "pause", "withdraw", "roll_back")
MIN_REASON = 3
"""Characters of a reason."""
WIDTH = 100
"""Cells of the plan whose text is hashed for a signature."""


class LinearDecisions:
    """Decisions of one person, and the plans that were read to them."""

    def __init__(
        self,
        client: Callable[[], Client],
        identity: Identity,
        say: Callable[[str], None],
        ask: Callable[[str], str],
        environment_of: EnvironmentOf,
    ) -> None:
        self._client = client
        self._identity = identity
        self._say = say
        self._ask = ask
        self._environment_of = environment_of
        self._said: dict[str, str] = {}
        """Proposal -> digest of the plan that was looked up last."""
        self._heard: dict[str, str] = {}
        """Proposal -> digest of the plan that was said to its end."""

    # --- looking

    def shown(self, proposal_id: str) -> list[SpokenLine]:
        """All that a voter must hear, in the order in which it is decided on."""
        proposal, caller = self._client().proposal(proposal_id), self._client().whoami()
        self._said[proposal_id] = proposal.digest
        plan, standing = decision_sections(proposal, caller.now_ms, caller.me, WIDTH, None)
        return spoken_sections([*plan, *standing])

    def read_to_the_end(self, proposal_id: str) -> None:
        self._heard[proposal_id] = self._said[proposal_id]

    # --- acting

    def act(self, action: ConsoleAction, argument: str) -> None:
        """Say what it would do; on a yes, put it to the vote. Nothing is done by that. Raises MusterError."""
        from console.actions.request_builder import parse, wanted

        client = self._client()
        if action.argument == "flags":
            name = action.commands[0]
            request = wanted(client, name, parse(name, argument))
        elif argument:
            request = asks(cast("ActionName", action.id), tuple(argument.split()))
        else:
            raise SpecError("", f"{action.commands[0]} needs an id", f"Say {action.commands[0]} ID")
        for line in spoken_sections(plan_sections(client.preview(request), WIDTH)):
            self._say(line.text)
        self._put_to_vote(request)

    def _put_to_vote(self, request: Request) -> None:
        if not self._yes("Propose this?"):
            self._say("nothing was proposed")
            return
        made = self._client().propose(request)
        who = "you may approve it yourself" if by_author_alone(made) else others_needed(made)
        self._say(f"{made.id} waits for votes; nothing is done yet; {who}. Say approve {made.id}")

    def decide(self, deed: str, argument: str) -> str:
        """Do it. Gives the id of a proposal that must be read before. Raises MusterError."""
        proposal_id, _, reason = argument.partition(" ")
        if deed == "reject" and not proposal_id.startswith("P-"):
            done = self._client().reject_recommendation(proposal_id, reason)
            self._say(f"{done.suggestion.id} is dismissed until things change")
            return ""
        proposal = self._client().proposal(proposal_id)
        if deed == "approve":
            return self._approve(proposal)
        if deed in ("execute", "roll_back"):
            self._carry_out(deed, proposal, reason)
            return ""
        reason = reason or self._ask("Why?")
        if len(reason) < MIN_REASON:
            self._say(f"{proposal.id}: nothing was done, a reason is required")
            return ""
        match deed:
            case "reject":
                done_now = self._client().vote(proposal.id, proposal.digest, "reject", reason)
            case "pause":
                done_now = self._client().pause(proposal.id, reason)
            case _:
                done_now = self._client().cancel(proposal.id, reason)
        self._say(f"{done_now.id} is {state_word(done_now.state)}")
        return ""

    def _approve(self, proposal: Proposal) -> str:
        if proposal.state != "awaiting":
            raise RefusedError(f"{proposal.id} is {state_word(proposal.state)}", what_next(proposal))
        if proposal.plan.digest() != proposal.digest:
            raise RefusedError("the digest read out does not match the plan", "Run muster audit verify")
        caller = self._client().whoami()
        why_not = why_not_mine(proposal, caller.me)
        if why_not:
            raise RefusedError(f"you {why_not}", f"Whose votes count: show {proposal.id}")
        if self._heard.get(proposal.id) != proposal.digest:
            self._say(f"read {proposal.id} to its end with next; then say approve {proposal.id} again")
            return proposal.id
        self._say(f"to approve: {proposal.title}, {proposal.tier}")
        comment = ""
        if proposal.wants_reason:
            comment = self._ask("Why?")
            if len(comment) < MIN_REASON:
                self._say(f"{proposal.id}: no vote cast, a reason is required")
                return ""
        if not self._agreed(proposal, "approve it"):
            self._say(f"{proposal.id}: no vote cast")
            return ""
        signed = self._signature(proposal) if proposal.signed or caller.proved_by_key else None
        self._tell(self._client().approve(proposal.id, proposal.digest, comment, signed))
        return ""

    def _carry_out(self, deed: str, proposal: Proposal, reason: str) -> None:
        if deed == "roll_back":
            self._roll_back(proposal, reason)
            return
        self._say(f"{deed.replace('_', ' ')}: {proposal.title}, {proposal.tier}")
        if not self._agreed(proposal, "execute it"):
            self._say(f"{proposal.id}: nothing was done")
            return
        self._tell(self._client().execute(proposal.id))

    def _roll_back(self, proposal: Proposal, reason: str) -> None:
        """Say what it does now, and do that where the votes on the proposal cover it; else put it to the vote."""
        request = Request(rolls_back=proposal.id, reason=reason)
        now = self._client().preview(request)
        self._say(f"{now.title}, {now.tier} now")
        for line in spoken_sections(plan_sections(now, WIDTH)):
            self._say(line.text)
        reason = reason or self._ask("Why?")
        if len(reason) < MIN_REASON:
            self._say(f"{proposal.id}: nothing was rolled back, a reason is required")
        elif not now.covered:
            self._say(now.note)
            self._put_to_vote(msgspec.structs.replace(request, reason=reason))
        elif self._agreed(now, "execute it"):
            self._tell(self._client().rollback(proposal.id, reason))
        else:
            self._say(f"{proposal.id}: nothing was done")

    def _agreed(self, proposal: Proposal, deed: str) -> bool:
        """By yes, or by the beginning of the digest where the tier, the policy or the environment wants that."""
        health = self._client().health()
        environment = self._environment_of((health.cell, health.name))
        deed = f"{deed} in PRODUCTION" if environment.production else deed
        if one_key(proposal, environment):
            return self._yes(f"To {deed}:")
        wanted = proposal.digest[:DIGEST_TYPED]
        return self._ask(f"To {deed}, type {wanted}; anything else cancels:").lower() == wanted

    def _yes(self, question: str) -> bool:
        return self._ask(f"{question} type yes; anything else cancels:").lower() == "yes"

    def _signature(self, proposal: Proposal) -> Signed:
        return self._identity.sign(
            self._client().whoami(), kind="vote", proposal=proposal.id, revision=proposal.revision,
            digest=proposal.digest, verdict="approve", screen=screen_digest(plan_sections(proposal, WIDTH)),
        )  # fmt: skip

    def _tell(self, outcome: Outcome) -> None:
        from console.commands.acting import outcome_lines

        for line in outcome_lines(outcome):
            self._say(line.strip())


AT_ONCE = 20
"""Lines that are said before one is asked whether to go on."""
DRAFTED = {"draft": "draft", "handover": "handover", "incident_summary": "incident"}
"""Action whose line has something drafted -> the task."""
FOLLOW_S = 1.0
"""Longest wait for news before the person's input is looked at again."""
OWN = {
    "next": "next part of the answer",
    "previous": "previous part",
    "NUMBER": "open the line with that number",
    "back": "previous place",
    "again": "refresh, and tell what has changed",
    "where": "current place",
    "findings": "what needs attention",
    "why ID": "why a workload waits, and what would start it",
    "follow events": "live events; Enter stops them",
    "show ID": "a proposal in full",
    "news on, news off": "news after each answer, on or off",
    "help": "this",
    "quit": "quit; also Ctrl-D",
}
"""Commands of linear mode besides those of the `:` bar."""


@dataclass(frozen=True)
class PagedText:
    """An answer that is read out in parts."""

    line: str
    part: PageReader
    start: int = 0
    lines: tuple[SpokenLine, ...] = ()
    """The lines that were read out last."""
    total: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.lines)


def run(
    connect: Callable[[], Client],
    identity: Identity,
    *,
    read_only: bool = False,
    environment_of: EnvironmentOf = no_environment,
    hears: Lines | None = None,
    says: IO[str] | None = None,
    begin: str = "findings",
) -> int:
    """Converse until the person leaves, beginning with that page. Returns an exit code."""
    talk = Conversation(
        connect, identity, hears or Lines(0), says or sys.stdout, read_only=read_only, environment_of=environment_of
    )
    try:
        talk.greet(begin)
        while not talk.left:
            talk.turn()
    except KeyboardInterrupt:
        talk.say("left")
    finally:
        talk.close()
    return 0


class Conversation:
    """A conversation of one person with one engine."""

    def __init__(
        self,
        connect: Callable[[], Client],
        identity: Identity,
        hears: Lines,
        says: IO[str],
        *,
        read_only: bool,
        environment_of: EnvironmentOf = no_environment,
    ) -> None:
        self.left = False
        self._connect = connect
        self._hears, self._says = hears, says
        self._actions = actions(read_only=read_only)
        self._client: Client | None = None
        self._seen = 0
        self._tells_news = True
        self._answer: PagedText | None = None
        self._before: list[PagedText] = []
        self._environment_of = environment_of
        self._deciding = LinearDecisions(self.client, identity, self.say, self.ask, environment_of)

    # --- hearing and saying

    def say(self, text: str) -> None:
        print(printable(text), file=self._says, flush=True)

    def ask(self, question: str) -> str:
        """Ask, and return the answer; empty at the end of input. Text typed before the question does not count."""
        self._hears.forget()
        print(printable(question), file=self._says, end=" " if self._hears.at_terminal else "\n", flush=True)
        return self._hears.line() or ""

    def turn(self) -> None:
        """Read one line of the person and answer it."""
        if self._hears.at_terminal:
            print("muster> ", file=self._says, end="", flush=True)
        line: str | None = ""
        try:
            line = self._hears.line()
            if line is None:
                self.left = True
            elif line:
                self._do(line)
                self._tell_news()
        except FilterError as error:
            about = (line or "").partition(" ")[2].strip()[error.start : error.end]
            self.say(f"error at '{about}': {error.short}")
            self.say(error.remedy or "the earlier list still stands")
        except MusterError as error:
            self._tell(error)
        except KeyboardInterrupt:
            if not line:
                raise
            self.say("stopped")

    def _tell(self, error: MusterError) -> None:
        self.say(f"error: {error.problem}")
        if error.remedy:
            self.say(error.remedy)
        if isinstance(error, UnreachableError):
            self.close()
            self.say("the last answer still stands; your next line reconnects")

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

    def greet(self, begin: str) -> None:
        try:
            health = self.client().health()
            self._seen = health.version
            where = "PRODUCTION, " if self._environment_of((health.cell, health.name)).production else ""
            self.say(
                f"Muster, {where}cell {health.cell}, at {timestamp(health.now_ms)} UTC. Say help for the commands."
            )
            self._go(begin)
        except MusterError as error:
            self._tell(error)

    def _tell_news(self) -> None:
        """Say in one line what has happened since the last answer, the worst first, by name."""
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
            "findings": lambda: self._go("findings"),
            "help": lambda: self._go("help"),
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
            self.say(f"news is {rest}")
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
        elif action.id in DRAFTED and not is_draft_id(argument):
            self._go(f"draft {self._drafted(DRAFTED[action.id], argument)}")
        elif action.id == "open":
            self._command(page_of(self.client(), argument))
        elif action.id in (*PAGES, *LISTS, "proposal", "welcome"):
            self._go(f"{action.id} {argument}".strip())
        else:
            raise SpecError("", f"{action.commands[0]} is not available here", _elsewhere(action))

    def _decide(self, deed: str, argument: str) -> None:
        wanted = self._deciding.decide(deed, argument)
        if wanted:
            self._go(f"proposal {wanted}")

    def _drafted(self, task: str, words: str) -> str:
        """Have it drafted, by rule; nothing is done by that. Raises MusterError."""
        client = self.client()
        ask = ask_of(words) if task == "draft" else report_of(task, words)(client.health().now_ms)
        return client.draft(ask).id

    # --- reading

    def _go(self, line: str) -> None:
        """To another page: what was read before is kept for `back`."""
        answer = self._read_part(PagedText(line, self._parts(line)), 0)
        if self._answer is not None:
            self._before = [*self._before[-49:], self._answer]
        self._answer = answer
        self._say_answer()

    def _read_part(self, answer: PagedText, start: int) -> PagedText:
        lines, total = answer.part(start, AT_ONCE)
        return replace(answer, start=start, lines=tuple(lines), total=total)

    def _say_answer(self) -> None:
        answer = self._answer
        assert answer is not None
        self.say(answer.line if answer.lines else f"{answer.line}: nothing")
        for number, line in enumerate(answer.lines, answer.start + 1):
            self.say(f"{number}. {line.text}" if line.link else line.text)
        if answer.end < answer.total:
            self.say(f"{answer.end:,} of {answer.total:,} lines; next for more")
        name, _, argument = answer.line.partition(" ")
        if name == "proposal" and answer.end >= answer.total:
            self._deciding.read_to_the_end(argument)

    def _turn_page(self, step: int) -> None:
        answer = self._present()
        start = answer.end if step > 0 else max(0, answer.start - AT_ONCE)
        if (step > 0 and answer.end >= answer.total) or (step < 0 and not answer.start):
            self.say("end of the answer" if step > 0 else "start of the answer")
            return
        self._answer = self._read_part(answer, start)
        self._say_answer()

    def _present(self) -> PagedText:
        if self._answer is None:
            raise SpecError("", "nothing shown yet", "Say overview, or help")
        return self._answer

    def _open(self, number: int) -> None:
        answer = self._present()
        at = number - answer.start - 1
        if not 0 <= at < len(answer.lines) or not answer.lines[at].link:
            raise SpecError("", f"line {number} leads nowhere", "Say the number of a line")
        self._command(answer.lines[at].link)

    def _back(self) -> None:
        if not self._before:
            raise SpecError("", "there is no earlier place", "Say overview, or help")
        self._answer = self._before.pop()
        self._say_answer()

    def _again(self) -> None:
        """Only what differs is said: that is what one listens for."""
        answer = self._present()
        fresh = self._read_part(PagedText(answer.line, self._parts(answer.line)), answer.start)
        self.say(fresh.line)
        for line in changes(answer.lines, fresh.lines):
            self.say(line.text)
        self._answer = fresh

    def _where(self) -> None:
        answer = self._present()
        self.say(f"{answer.line}, lines {answer.start + 1:,} to {answer.end:,} of {answer.total:,}")

    def _parts(self, line: str) -> PageReader:
        name, _, argument = line.partition(" ")
        if name == "findings":
            return partial(sliced, findings(self.client))
        if name == "help":
            return partial(sliced, self._help())
        if name == "proposal":
            return partial(sliced, self._deciding.shown(argument))
        return page_reader(line, self.client)

    def _why(self, workload: str) -> None:
        view = self.client().workload(workload)
        unblocking = self.client().unblocking(workload) if view.reasons else None
        starts = self.client().start_forecast(workload) if view.reasons else None
        for line in spoken_sections(status_sections(view, WIDTH, unblocking, starts)):
            self.say(line.text)

    def _follow(self) -> None:
        """Until a line comes, the input ends, or Ctrl-C."""
        self.say("following; Enter stops" if self._hears.at_terminal else "following")
        while not self._hears.waiting():
            found = self.client().changes(self._seen, FOLLOW_S)
            self._seen = found.version
            for change in found.items:
                self.say(spoken_event(change))
        if self._hears.at_terminal:
            self._hears.line()

    def _help(self) -> list[SpokenLine]:
        told = [SpokenLine(f"{said}: {what}") for said, what in OWN.items()]
        for action in self._actions:
            can = action.id in (*PAGES, *LISTS, *DECISIONS, *DRAFTED, "proposal", "open") or action.mutates
            if action.commands and can:
                takes = {"": "", "filter": " FILTER", "id": " ID", "ids": " IDS"}.get(action.argument, " ...")
                told.append(SpokenLine(f"{action.commands[0]}{takes}: {action.title}"))
        return told

    def _leave(self) -> None:
        self.left = True


def _elsewhere(action: ConsoleAction) -> str:
    return f"From the shell: {action.shell}" if action.shell else "Say help for the commands"
