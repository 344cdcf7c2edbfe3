"""The console's line mode: what a screen reader says of it, over a pipe and in a terminal that has no cursor."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from console.cli.linear_conversation import LONGEST, Conversation, Lines, news, run
from console.cli.linear_pages import (
    LISTS,
    PAGES,
    QUOTED,
    SpokenLine,
    changes,
    page_reader,
    spoken,
    spoken_row,
    spoken_sections,
)
from console.client.credentials import Identity
from console.client.remote import RemoteClient
from console.forms.settings import ConsoleSettings
from console.views.lists import Heading, Row
from console.views.sections import Line, Section
from engine.model.commands import Submit
from engine.model.errors import UnreachableError
from engine.model.overviews import Change
from tests.console import fake_drafts, fake_gate
from tests.console.fake_client import FakeClient
from tests.console.fake_far import staged_far
from tests.support.hostile_text import ACTS
from tests.support.patience import PATIENCE_S
from tests.support.poisoned import Poisoned
from tests.support.pseudo_terminal import PseudoTerminal
from tests.support.served import gpu_job, running_loop, served_on_unix

MUSTER = str(Path(sys.executable).with_name("muster"))
PICTURES = re.compile("[\u2500-\u259f\u2800-\u28ff\x1b]")
"""What draws lines, bars and charts, or moves a cursor."""


@contextmanager
def an_engine() -> Iterator[Path]:
    """With work that runs, and work that waits."""
    with running_loop() as loop, served_on_unix(loop) as socket:
        with closing(RemoteClient(str(socket))) as client:
            client.command(Submit(workloads=(gpu_job("runs"), gpu_job("waits", tasks=4))))
        yield socket


def piped(socket: Path, *lines: str) -> list[str]:
    """What is said when these lines come through a pipe."""
    done = subprocess.run(
        [MUSTER, "--linear", "--connect", str(socket)],
        input="".join(f"{line}\n" for line in lines), env=os.environ | {"TERM": "dumb"}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert not PICTURES.search(done.stdout)
    return done.stdout.splitlines()


def test_over_a_pipe_it_says_what_the_pages_show() -> None:
    with an_engine() as socket:
        said = piped(
            socket, "workloads state:queued", "1", "back", "why waits", "workloads stat:x", "nodes", "next", "where"
        )
    text = "\n".join(said)
    assert said[0].startswith("Muster, cell test")
    assert "findings" in said
    assert any(re.match(r"1\. waits: state queued, queue a, gpu 32", line) for line in said)
    assert "workload waits" in said, "the number leads to its page"
    assert said.count("workloads state:queued") == 2, "back is where one was"
    assert "State. " in text or "State: " in text
    assert "would start if" in text
    assert "error at 'stat': workloads have no column 'stat'" in said
    assert "Did you mean state?" in said
    assert any(line.startswith("1. g0: state ready") for line in said)
    assert "nodes, lines 1 to 6 of 6" in said, "a filter that cannot be read moves nobody"


class Talk(NamedTuple):
    terminal: PseudoTerminal

    def until(self, wanted: str) -> str:
        """All that was said, once that was."""
        until = time.monotonic() + PATIENCE_S
        while not re.search(wanted, self.terminal.raw):
            assert time.monotonic() < until, f"no {wanted!r} but:\n{self.terminal.raw}"
            self.terminal.pump(0.05)
        return self.terminal.raw

    def say(self, line: str, then: str) -> str:
        """Say it, and what is said since, once `then` is."""
        before = len(self.terminal.raw)
        self.terminal.press(line + "\r")
        until = time.monotonic() + PATIENCE_S
        while not re.search(then, self.terminal.raw[before:]):
            assert time.monotonic() < until, f"no {then!r} but:\n{self.terminal.raw[before:]}"
            self.terminal.pump(0.05)
        return self.terminal.raw[before:]


@contextmanager
def in_a_dumb_terminal(socket: Path) -> Iterator[Talk]:
    """No flag: a terminal that says that it cannot place a cursor is spoken to line by line."""
    terminal = PseudoTerminal([MUSTER, "--connect", str(socket)], os.environ | {"TERM": "dumb"}, plain=True)
    try:
        yield Talk(terminal)
    finally:
        terminal.close()


def state_of(socket: Path, node: str) -> str:
    with closing(RemoteClient(str(socket))) as client:
        return client.node(node).state


def test_a_change_is_asked_for_heard_to_its_end_and_approved_by_its_digest() -> None:
    with an_engine() as socket, in_a_dumb_terminal(socket) as talk:
        talk.until("muster> ")
        talk.say("drain c1", "Propose this.*cancels: ")
        talk.say("yes", "P-1 waits for votes")
        assert state_of(socket, "c1") == "ready"
        for _ in range(2):
            unheard = talk.say("approve P-1", "read P-1 to its end with next[^>]*muster> ")
            assert "type" not in unheard, "hearing its beginning twice is not hearing its end"
        talk.say("next", "no votes yet")
        asked = re.search("type ([0-9a-f]{6});", talk.say("approve P-1", "cancels: "))
        assert asked is not None
        talk.say("yes", "no vote cast")
        assert state_of(socket, "c1") == "ready", "yes is not the digest"
        talk.say("approve P-1", "cancels: ")
        talk.say(asked[1], "done, version")
        assert state_of(socket, "c1") in ("draining", "cordoned")
        assert "verified" in talk.say("again", "verified")
        talk.terminal.press("\x04")
        assert talk.terminal.wait() == 0
        assert not PICTURES.search(talk.terminal.raw)


def test_what_was_typed_before_the_question_is_no_answer() -> None:
    with an_engine() as socket, in_a_dumb_terminal(socket) as talk:
        talk.until("muster> ")
        talk.terminal.press("cordon c1\ryes\ryes\r")
        talk.until("Propose this.*cancels: ")
        assert "P-1" not in talk.say("no", "nothing was proposed[^>]*muster> ")
        talk.terminal.press("\x03")
        assert talk.terminal.wait() == 0, "Ctrl-C ends it"
        assert state_of(socket, "c1") == "ready"


@pytest.mark.thorough
def test_over_a_pipe_a_change_is_approved_too_but_only_by_the_right_answers() -> None:
    with an_engine() as socket:
        said = piped(socket, "cordon c1", "yes", "show P-1", "approve P-1", "next", "approve P-1", "yes")
        assert "error: there is no command 'yes'" not in said
        assert any(line.startswith("done, version") for line in said)
        assert state_of(socket, "c1") == "cordoned"


# --- a conversation without an engine


class Heard(NamedTuple):
    talk: Conversation
    says: io.StringIO

    def after(self, *lines: str) -> str:
        """What is said to these lines."""
        before = len(self.says.getvalue())
        read, write = os.pipe()
        os.write(write, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
        os.close(write)
        self.talk._hears = Lines(read)
        for _ in lines:
            self.talk.turn()
        os.close(read)
        return self.says.getvalue()[before:]


def conversation(client: Any, *, read_only: bool = False) -> Heard:
    says = io.StringIO()
    return Heard(Conversation(lambda: client, Identity(ConsoleSettings()), Lines(0), says, read_only=read_only), says)


def test_a_long_answer_waits_to_be_asked_for_more() -> None:
    heard = conversation(FakeClient(100))
    first = heard.after("workloads")
    assert len(re.findall(r"^\d+\. ", first, re.MULTILINE)) == 20
    assert "20 of 100 lines; next for more" in first
    assert re.search(r"^21\. ", heard.after("next"), re.MULTILINE)
    assert re.search(r"^1\. ", heard.after("previous"), re.MULTILINE)
    assert "start of the answer" in heard.after("previous")
    assert "leads nowhere" in heard.after("99")


def test_asked_again_it_says_only_what_changed() -> None:
    client = FakeClient(30)
    heard = conversation(client)
    heard.after("workloads state:queued")
    assert "nothing has changed" in heard.after("again")
    client._tables["workloads"][0]["state"] = "queued"
    client._tables["workloads"][1]["state"] = "running"
    told = heard.after("again")
    assert told.count("\n") < 8, "not the whole list"


def test_while_the_engine_is_away_it_says_so_and_finds_back() -> None:
    client, away = FakeClient(10), [False]

    def connect() -> Any:
        if away[0]:
            raise UnreachableError("no engine answers", "Start one with `muster`")
        return client

    says = io.StringIO()
    heard = Heard(Conversation(connect, Identity(ConsoleSettings()), Lines(0), says, read_only=False), says)
    assert "1. wl-" in heard.after("workloads")
    heard.talk.close()
    away[0] = True
    told = heard.after("workloads")
    assert "error: no engine answers" in told
    assert "your next line reconnects" in told
    away[0] = False
    assert "1. wl-" in heard.after("workloads")


def test_a_session_that_only_reads_has_no_commands_that_act() -> None:
    heard = conversation(FakeClient(10), read_only=True)
    assert ":cancel is not possible here: read-only" in heard.after("cancel wl-000001")
    assert "cancel" not in heard.after("help", "next", "next", "next")


def test_lines_that_are_too_long_or_no_text_are_dropped() -> None:
    heard = conversation(FakeClient(10))
    assert f"at most {LONGEST:,} bytes" in heard.after("x" * (LONGEST * 10))
    told = heard.after("\x1b]52;c;eA==\x07\udcff\x00workloads", "workloads")
    assert "there is no command" in told
    assert not ACTS.search(told.replace("\n", ""))
    assert "1. wl-" in told, "the next line is read as if nothing had been"


OF = {
    "workload": "wl-000003", "node": "node-00001", "queue": "batch", "forecast": "queue:batch", "runbook": "half-done",
    "record": "7", "draft": "D-1", "output": "wl-000003", "intent": "i17", "curve": "queue:batch wait",
    "incident": "I-1",
}  # fmt: skip
"""Of what the pages of one thing are here."""


def staged() -> Any:
    """With a proposal that waits and a draft. It has no pools and no orders."""
    client = fake_drafts.DraftingClient(hostile=False)
    client.script = [fake_drafts.run()]
    client.stage(1, tier="T3", votes=fake_gate.voted(client._text), notes=True)
    return staged_far(client)


def test_a_curve_is_said_in_numbers_and_leads_to_the_others() -> None:
    said, _ = page_reader("curve queue:batch wait", staged)(0, 500)
    assert said[0].text.startswith(
        "Wait of what started, queue batch, last 6h by 5m. latest, 12:00 UTC: p50 2h 30m, p95 7h 30m"
    )
    assert any(line.text.startswith("p95:") for line in said)
    assert "curve queue:batch age 6h" in [line.link for line in said]
    assert not any("─" in line.text or "⡂" in line.text for line in said)


def test_the_end_of_what_work_writes_is_said_as_a_quotation() -> None:
    said, total = page_reader("output wl-000003", staged)(0, 500)
    assert said[0].text.startswith("main.0 of attempt 1, running, process 4242")
    assert said[1].text == "the last 40 lines."
    assert said[-1].text == "quoted: saved to out/"
    assert total == 42


@pytest.mark.parametrize("name", [name for name in (*PAGES, *LISTS) if name not in ("pools", "orders")])
def test_every_page_is_said_in_words_whoever_wrote_them(name: str) -> None:
    line = f"{name} {OF.get(name, '')}".strip()
    plain, poisoned = staged(), Poisoned(staged(), 3)
    said, total = page_reader(line, lambda: plain)(0, 500)
    assert total
    assert not [one.text for one in said if PICTURES.search(one.text) and not one.text.startswith(QUOTED)]
    hostile, total = page_reader(line, cast("Callable[[], Any]", lambda: poisoned))(0, 500)
    assert total
    assert not [ascii(one.text) for one in hostile if ACTS.search(one.text)]


# --- words


def test_columns_become_names_and_values() -> None:
    assert spoken("GPU      ━━━━┄┄┄┄  63%   12 / 14") == "GPU: 63%, 12 / 14"
    assert spoken("● running  12") == "running: 12"
    assert spoken("queued 4  →  5") == "queued 4 to 5"
    assert spoken("┃━━ ▁▂▃█ ") == ""
    assert spoken("→ 1 task more") == "so 1 task more"


def test_what_goes_on_below_joins_its_line_and_quotations_say_so() -> None:
    lines = (
        Line((("reason  ", "dim"), ("because it is", ""))),
        Line((("      ┊ ", "faint"), ("so long", ""))),
        Line((("┃ ", "accent"), ("approve now", "dim"))),
        Line((("━━━━", "bar"),)),
    )
    assert [said.text for said in spoken_sections([Section("Why", lines, "two")])] == [
        "Why: two.", "reason: because it is so long", "quoted: approve now",
    ]  # fmt: skip
    assert spoken_sections([Section("Trend", (Line((("▁▂▃", "bar"),)),))]) == []


def test_a_row_names_its_columns_and_leaves_out_nothing_s() -> None:
    headings = (Heading("id", "ID"), Heading("state", "STATE"), Heading("gpu", "GPU"), Heading("why", "REASON"))
    row = Row("n", (("n ━", ""), ("✗ down", "bad"), ("0", "faint"), ("–", "faint")))
    assert spoken_row(row, headings, "node n") == SpokenLine("n ━: state down", "node n")


def test_changes_name_what_is_new_and_what_is_gone() -> None:
    before, now = [SpokenLine("a: 1"), SpokenLine("b: 2")], [SpokenLine("a: 1"), SpokenLine("b: 3")]
    assert [said.text for said in changes(before, now)] == ["b: 3", "gone: b: 2"]


def test_news_put_the_worst_first_and_name_it() -> None:
    def change(what: str, subject: str) -> Change:
        return Change(version=1, at_ms=0, what=what, subject=subject)

    items = [change("started", "a"), change("started", "b"), change("down", "n1"), change("failed", "c")]
    assert news(items) == "1 down: n1; 1 failed: c; 2 started"


def test_ctrl_c_at_the_prompt_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_lines: Lines) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Lines, "line", interrupted)
    says = io.StringIO()
    assert run(cast("Any", lambda: FakeClient(3)), Identity(ConsoleSettings()), hears=Lines(0), says=says) == 0
    assert says.getvalue().endswith("left\n")
