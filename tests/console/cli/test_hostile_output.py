"""Words of strangers in what commands write: for people without effect on a terminal, for programs as they are."""

from __future__ import annotations

import io
import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import console.client.remote
from console.cli.main import _run, run
from console.service.gate_watch import send
from console.text.guarded_streams import exact_output, guarded, inert, inert_json, write_over
from engine.model.errors import MusterError
from engine.twin.forks import _traced
from runbooks.gate.store import OutboxMessage
from tests.console.tui.test_hostile_text import full
from tests.support.hostile_text import ACTS, PAYLOADS, told_text
from tests.support.poisoned import Poisoned

COMMANDS = (
    "overview", "get workloads", "get nodes", "get queues", "get workloads wl-000003", "get nodes node-00001",
    "pool list", "pool orders", "why wl-000001", "queue fairness", "budget efficiency", "budget showback",
    "pool scaling", "budget list", "recommend", "recommend R-1", "history forecast", "history show", "workload size",
    "workload advise wl-000001", "proposal list", "proposal show P-1", "proposal show P-2", "proposal show P-3",
    "proposal reviews", "runbook list", "runbook show half-done", "audit show", "audit show 7", "policy show",
    "policy check -", "cancel wl-000001 --dry-run", "draft --list", "draft why", "draft why --llm", "handover",
    "incident summary", "incident list", "incident show 1", "incident claim 1",
    "cell model", "recommend --all",
)  # fmt: skip
QUICK = (
    "overview",
    "get workloads",
    "why wl-000001",
    "proposal show P-1",
    "draft why --llm",
    "audit show",
    "runbook show half-done",
)


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An engine of which every word is a stranger's; the number says which payload is where. No answer of an engine has
    lone surrogates: it could not be decoded."""
    offset = [0]

    def reached(*_: object) -> Any:
        return Poisoned(full(), offset[0], frozenset({"id"}), without="H04-surrogates")

    monkeypatch.setattr(console.client.remote, "RemoteClient", reached)
    return offset


def ran(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> tuple[str, str]:
    """Without the guard of the streams: each line must have been made of what is printable."""
    capsys.readouterr()
    try:
        code = _run([*words, "--connect", "http://127.0.0.1:1"])
    except SystemExit as wrong:
        raise AssertionError(f"{words}: {capsys.readouterr().err}") from wrong
    said = capsys.readouterr()
    assert "defect of Muster" not in said.err, (words, said.err)
    told_text(said.err)
    assert code in (0, 1, 2, 3, 4), words
    return said.out, said.err


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=() if one in QUICK else pytest.mark.thorough) for one in COMMANDS]
)
def test_a_command_writes_nothing_that_acts(peer: list[int], capsys: pytest.CaptureFixture[str], command: str) -> None:
    for offset in (0, 17, 34, 51):
        peer[0] = offset
        out, err = ran(capsys, command.split())
        told_text(out)
        assert not any(line.startswith("muster: approved by alice") for line in err.splitlines())


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=() if one in QUICK[:3] else pytest.mark.thorough) for one in COMMANDS]
)
def test_json_says_exactly_what_was_there_and_acts_on_nothing(
    peer: list[int], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    words = set(PAYLOADS.values())
    for offset in (0, 33):
        peer[0] = offset
        out, _ = ran(capsys, [*command.split(), "--json"])
        told_text(out)
        if out.startswith(("{", "[")):
            assert any(text in words for text in texts_in(json.loads(out))) or len(out) < 400, out[:200]


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from texts_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_in(each)


@pytest.mark.parametrize("name", [name for name in PAYLOADS if name.startswith(("H03", "H04", "H07-bare"))])
def test_an_error_is_told_in_its_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Also one with a remedy of several lines; and an argument that argparse repeats."""

    def reached(*_: object) -> Any:
        raise MusterError(f"no {PAYLOADS[name]}", f"first {PAYLOADS[name]}\nsecond")

    monkeypatch.setattr(console.client.remote, "RemoteClient", reached)
    for words in (["overview"], ["overview", "--json"]):
        run([*words, "--connect", "http://x"])
        err = told_text(capsys.readouterr().err)
        assert not any(line.startswith("muster: approved by alice") for line in err.splitlines())
    with pytest.raises(SystemExit):
        run(["overview", PAYLOADS[name], f"--{PAYLOADS[name]}"])
    told_text(capsys.readouterr().err.replace("\t", " "))


def test_a_defect_is_logged_without_effect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def reached(*_: object) -> Any:
        raise KeyError(PAYLOADS["H03-clear"], "\x1b]0;x\x07" + PAYLOADS["H04-tags"])

    class Loud(Exception):
        def __str__(self) -> str:
            return "".join(PAYLOADS.values())

    for wrong in (reached, lambda *_: (_ for _ in ()).throw(Loud())):
        monkeypatch.setattr(console.client.remote, "RemoteClient", wrong)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert run(["overview", "--connect", "http://x"]) == 1
        told_text(capsys.readouterr().err)
    logs = list(tmp_path.glob("muster-crash-*.log"))
    assert len(logs) == 2
    for log in logs:
        assert "Traceback" in told_text(log.read_text().replace("\t", " "))


def test_a_defect_in_a_child_is_logged_without_effect() -> None:
    try:
        raise ValueError("\n".join(PAYLOADS.values()))
    except ValueError:
        logged = _traced().decode("ascii")
    assert "Traceback" in told_text(logged)
    assert traceback.format_exc().startswith("NoneType")


def test_a_channel_into_a_log_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "told.jsonl"
    for name, payload in PAYLOADS.items():
        if name == "H04-surrogates":
            continue  # no message has them: they cannot be kept
        message = OutboxMessage(key="k", number=1, channel="ops", text=payload, created_ms=0, attempts=0)
        send(message, f"file:{path}")
        send(message, "log:")
    lines = path.read_text().splitlines()
    told_text("\n".join(lines))
    assert [json.loads(line)["text"] for line in lines] == [
        text for name, text in PAYLOADS.items() if name != "H04-surrogates"
    ]
    told_text(capsys.readouterr().err)


def test_guarded_streams_let_nothing_through(capsys: pytest.CaptureFixture[str]) -> None:
    with guarded():
        for payload in PAYLOADS.values():
            print(payload)
            print(payload, file=sys.stderr, end="", flush=True)
            sys.stdout.writelines([payload, "\n"])
        print("tab\there")
    said = capsys.readouterr()
    assert not ACTS.search(said.out.replace("\n", "").replace("\t", "")), "out"
    assert not ACTS.search(said.err.replace("\n", "").replace("\t", "")), "err"
    assert "tab\there" in said.out


def test_a_line_written_over_cannot_be_left(capsys: pytest.CaptureFixture[str]) -> None:
    with guarded():
        write_over(f"thinking {PAYLOADS['H03-lines']}{PAYLOADS['H03-clear']}")
    err = capsys.readouterr().err
    assert err.startswith("\r\x1b[K")
    told_text(err[4:])
    assert "\n" not in err


def test_records_keep_their_bytes_in_a_file_but_not_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, exact in ((io.StringIO(), True), (Terminal(), False)):
        monkeypatch.setattr(sys, "stdout", stream)
        with guarded():
            exact_output().write("a\x1bb")
        assert (stream.getvalue() == "a\x1bb") is exact
        assert exact or stream.getvalue() == r"a\x1bb"


@pytest.mark.parametrize("name", PAYLOADS)
def test_json_is_the_same_json(name: str) -> None:
    raw = json.dumps({PAYLOADS[name]: [PAYLOADS[name]]}, ensure_ascii=False)
    told_text(inert_json(raw).replace("\t", ""))
    assert json.loads(inert_json(raw)) == json.loads(raw)
    assert inert(inert(raw)) == inert(raw)
