"""`muster draft` and its like in the shell: the rules first and in any case, errors by name, JSON in one piece."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from console.cli.main import run
from console.commands import drafts
from engine.model.errors import NotFoundError
from runbooks.drafts.typed_draft import MAX_EXCERPT_BYTES, DraftAsk
from tests.console import fake_drafts
from tests.console.fake_client import HOSTILE, NOW_MS
from tests.console.fake_drafts import STANDING, UNCONFIGURED, DraftingClient
from tests.console.tui.test_hostile_text import ACTS

Out = pytest.CaptureFixture[str]


@pytest.fixture
def muster(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> Any:
    """Runs a command against a client; gives exit code, standard output, standard error."""

    def done(client: DraftingClient, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(drafts, "connect", lambda _arguments: client)
        code = run(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return done


def test_the_rules_draft_is_written_before_the_model_has_answered(muster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    client = DraftingClient(fake_drafts.thinking(rule_state="drafting", rule=None), fake_drafts.thinking())

    def answered(draft_id: str, after: int = -1, wait_s: float = 0.0) -> Any:
        if len(client.script) == 1:
            # It was flushed by now: what a person sees while they wait.
            written.append(sys.stdout.getvalue() if isinstance(sys.stdout, io.StringIO) else "")
            return fake_drafts.run()
        return client.script.pop(0)

    client.draft_run = answered  # type: ignore[method-assign]
    code, out, err = muster(client, "draft", "GPU queue wait is over SLO", "--llm")
    assert (code, client.asked) == (0, [DraftAsk(question="GPU queue wait is over SLO", model=True)])
    assert out.index("By rule") < out.index("By the model") < out.index("Model text, unverified")
    assert "muster draft D-1 --propose rule" in out
    assert "compared: other action" in out
    assert "nothing was proposed, nothing was done" in err
    assert out.count("scale pool h100 from 12 to 14 nodes") == 1


def test_a_choice_is_picked_by_the_number_that_the_draft_shows(muster: Any) -> None:
    run = fake_drafts.run(rule=fake_drafts.undecided(), model_state="off", model=None, agreement="")
    client = DraftingClient(run)
    code, out, _ = muster(client, "draft", "D-1")
    assert code == 0
    assert "muster draft D-1 --pick NUMBER" in out
    assert "  2  queue nlp is held, and 5 wait in it" in out
    assert muster(client, "draft", "D-1", "--pick", "2")[0] == 0
    assert client.asked == [msgspec.structs.replace(run.ask, pick="held_queue:nlp", model=False)]
    assert muster(client, "draft", "D-1", "--pick", "3")[0] == 4
    assert muster(client, "draft", "jobs wait", "--pick", "nlp")[0] == 0
    assert client.asked[1:] == [DraftAsk(question="jobs wait", pick="nlp")]


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("deadline", "it gave no answer within 20 s"),
        ("no_key", "no key for it"),
        ("auth", "the server does not take the key"),
        ("model_missing", "there is no model qwen"),
        ("bad_endpoint", "ftp is not HTTP"),
        ("not_configured", "no model is configured"),
    ],
)  # fmt: skip
def test_without_the_model_there_is_the_rules_draft_and_why(muster: Any, why: str, told: str) -> None:
    code, out, _ = muster(DraftingClient(fake_drafts.rejected(why, told)), "draft", "why", "--llm")
    assert code == 0
    assert "scale pool h100 from 12 to 14 nodes" in out
    assert told in out
    assert "The draft by rule stands" in out


def test_an_interrupt_stops_the_model_and_keeps_what_the_rules_drafted(muster: Any) -> None:
    client = DraftingClient(fake_drafts.thinking())
    client.interrupts = 1
    code, out, _ = muster(client, "draft", "why", "--llm")
    assert (code, client.cancelled) == (0, ["D-1"])
    assert "scale pool h100" in out
    assert "‖ stopped; the draft by rule stands" in out


def test_an_interrupt_before_there_is_anything_ends_it(muster: Any) -> None:
    client = DraftingClient(fake_drafts.thinking(rule_state="drafting", rule=None))
    client.interrupts = 1
    code, out, _ = muster(client, "draft", "why")
    assert (code, out, client.cancelled) == (130, "", ["D-1"])


def test_nothing_to_do_is_an_answer_and_no_draft_is_none(muster: Any) -> None:
    calm = fake_drafts.run(rule=fake_drafts.nothing(), model_state="off", model=None, agreement="")
    code, out, _ = muster(DraftingClient(calm), "draft", "is all well?")
    assert code == 0
    assert "○ no action needed" in out
    none = fake_drafts.rejected(rule=None, rule_state="failed", rule_why="the engine is stopping")
    code, out, _ = muster(DraftingClient(none), "draft", "why", "--llm")
    assert code == 4
    assert "the engine is stopping" in out
    assert "it gave no answer within 20 s" in out


def test_json_is_one_document_whatever_happens_meanwhile(muster: Any) -> None:
    script = fake_drafts.thinking(rule_state="drafting", rule=None), fake_drafts.thinking(), fake_drafts.rejected()
    code, out, err = muster(DraftingClient(*script), "draft", "why", "--llm", "--json")
    made = json.loads(out)
    assert (code, err) == (0, "")
    assert (made["id"], made["reason"], made["rule"]["steps"][0]["action"]) == ("D-1", "deadline", "scale_pool")


def test_a_draft_that_there_is_can_be_shown_again_and_proposed(muster: Any) -> None:
    client = DraftingClient()
    assert "By the model" in muster(client, "draft", "D-1")[1]
    assert client.asked == []
    code, out, err = muster(client, "draft", "D-1", "--propose", "model", "--reason", "tried by hand")
    assert (code, client.put) == (0, [("D-1", "model")])
    assert out.splitlines()[-1] == "P-5"
    assert "nothing is done yet: muster proposal approve P-5" in err
    assert client.approved == []
    code, _, err = muster(client, "draft", "D-1", "--llm")
    assert (code, client.asked) == (2, [])
    assert "D-1 is a draft already" in err
    code, _, err = muster(client, "draft", "D-9")
    assert (code, "there is no draft 'D-9'" in err) == (3, True)


def test_texts_are_read_from_files_and_errors_of_them_are_named(muster: Any, tmp_path: Path) -> None:
    log, binary, latin = tmp_path / "job.log", tmp_path / "core", tmp_path / "latin.txt"
    log.write_text("x" * 5_000_000)
    binary.write_bytes(b"\x7fELF\0\0")
    latin.write_bytes(b"caf\xe9")
    client = DraftingClient()
    code, _, _ = muster(client, "draft", "why", "--llm", "--excerpt", str(log), "--texts-of", "wl-1")
    ask = client.asked.pop()
    assert (code, ask.excerpts[0].field, len(ask.excerpts[0].text)) == (0, "file job.log", 5_000_000)
    assert ask.texts_of == ("wl-1",)
    for path, told in (
        (tmp_path / "gone", "No such file"), (tmp_path, "Is a directory"), (binary, "is not text"),
        (latin, "is not UTF-8 text (byte 3)"), ("a\0b", "not a name of a file"),
    ):  # fmt: skip
        code, out, err = muster(client, "draft", "why", "--llm", "--excerpt", str(path))
        assert (code, out, client.asked) == (2, "", [])
        assert told in err
        assert "--excerpt" in err
    assert "need --llm" in muster(client, "draft", "why", "--excerpt", str(log))[2], "the rules do not read texts"


def test_a_text_beyond_all_bounds_is_refused_unread(muster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size == MAX_EXCERPT_BYTES + 1
            return bytes(1) * size

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Endless()))
    code, _, err = muster(DraftingClient(), "draft", "why", "--llm", "--excerpt", "-")
    assert (code, "has more than 64 MiB" in err) == (2, True)


def test_reports_say_how_far_back(muster: Any) -> None:
    client = DraftingClient(fake_drafts.run(rule=fake_drafts.handed_over(), model_state="off", model=None))
    code, out, _ = muster(client, "handover", "--since", "4h")
    assert (code, client.asked.pop()) == (0, DraftAsk(task="handover", since_ms=NOW_MS - 4 * 3_600_000))
    assert out.index("What was done") < out.index("What waits") < out.index("What is frozen")
    muster(client, "incident", "summary", "the h100 pool went down", "--llm", "--from", "h100")
    assert client.asked.pop() == DraftAsk(
        task="incident", question="the h100 pool went down", finding="h100", model=True,
        since_ms=NOW_MS - 2 * 3_600_000,
    )  # fmt: skip
    code, _, err = muster(client, "handover", "--since", "yesterday")
    assert (code, "--since" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "ask"),
    [
        (["--explain", "--from", "R-1"], DraftAsk(task="explain", finding="R-1")),
        (["slow nodes", "--runbook"], DraftAsk(task="runbook", question="slow nodes")),
        (["--runbook", "drain-failing-node"], DraftAsk(task="runbook", runbook="drain-failing-node")),
        (["--runbook", "a node goes down"], DraftAsk(task="runbook", question="a node goes down")),
        ([], DraftAsk()),
        (["not UTF-8 \udcff"], DraftAsk(question="not UTF-8 ?")),
    ],
)  # fmt: skip
def test_what_is_asked_is_what_was_typed(muster: Any, words: list[str], ask: DraftAsk) -> None:
    client = DraftingClient()
    assert muster(client, "draft", *words)[0] == 0
    assert client.asked == [ask]


def test_what_the_engine_refuses_is_told_with_its_remedy(muster: Any) -> None:
    client = DraftingClient()
    client.refuse = NotFoundError("there is no finding 'R-x'", "Did you mean R-x7?")
    code, out, err = muster(client, "draft", "--from", "R-x")
    assert (code, out) == (3, "")
    assert "there is no finding 'R-x'\n  Did you mean R-x7?" in err


def test_a_drafted_runbook_goes_to_a_file_and_never_over_one(muster: Any, tmp_path: Path) -> None:
    file = tmp_path / "slow-nodes.md"
    client = DraftingClient(fake_drafts.run(rule=fake_drafts.new_runbook()))
    words = ("draft", "nodes are slow", "--runbook", "--out", str(file))
    code, _, err = muster(client, *words)
    book = fake_drafts.new_runbook().runbook
    assert book is not None
    assert (code, file.read_text(), "the rules'" in err) == (0, book.text, True)
    file.write_text("mine")
    asked = len(client.asked)
    code, _, err = muster(client, *words)
    assert (code, file.read_text(), len(client.asked)) == (4, "mine", asked)
    assert "already exists" in err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("x",), 2, "Add --runbook"),
        (("x", "--runbook"), 4, "no runbook was drafted"),
        (("D-1",), 4, "no runbook was drafted"),
    ],
)
def test_there_is_no_file_where_there_is_no_runbook(
    muster: Any, tmp_path: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    file = tmp_path / "none.md"
    got, _, err = muster(DraftingClient(), "draft", *words, "--out", str(file))
    assert (got, told in err, file.exists()) == (code, True, False)


def test_a_runbook_keeps_its_indentation_on_the_way_to_a_person(muster: Any) -> None:
    _, out, _ = muster(DraftingClient(fake_drafts.run(rule=fake_drafts.new_runbook())), "draft", "x", "--runbook")
    book = fake_drafts.new_runbook().runbook
    assert book is not None
    indented = [line for line in book.text.splitlines() if line.startswith("  ") and len(line) < 70]
    assert all(f"┃ {line}" in out for line in indented)


def test_the_model_is_told_of_without_a_key(muster: Any) -> None:
    code, out, _ = muster(DraftingClient(standing=STANDING), "cell", "model")
    assert (code, "qwen2.5-7b" in out, "$0.0063 of $0.5000 in the last hour" in out) == (0, True, True)
    code, out, err = muster(DraftingClient(standing=UNCONFIGURED), "cell", "model")
    assert (code, "nothing leaves this machine" in out, "MUSTER_MODEL_URL" in err) == (0, True, True)


@pytest.mark.parametrize(
    "words", [["draft", "x", "--llm"], ["draft", "--list"], ["draft", "D-1", "--json"]], ids=" ".join
)
def test_hostile_texts_do_nothing_to_a_terminal(muster: Any, words: list[str]) -> None:
    names = [text for text in HOSTILE if text.isprintable() or text.encode("utf-8", "replace").decode() == text]
    client = DraftingClient(fake_drafts.run(text=lambda number, _: names[number % len(names)]), hostile=True)
    code, out, err = muster(client, *words)
    assert code == 0
    for line in (out + err).splitlines():
        assert not ACTS.search(line), repr(line[:200])
