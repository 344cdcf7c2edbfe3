"""A fleet as people meet it: its file, its commands over a real socket, and its page."""

from __future__ import annotations

import json
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

import httpx
import msgspec
import pytest
from textual.pilot import Pilot

from console.cli.main import run
from console.client.launch import note
from console.client.remote import RemoteClient
from console.client.sockets import bind_unix
from console.commands.fleet import fleet_of, read_fleet
from console.fleet.queries import FleetClient, FleetEvent, TenantView
from console.fleet.wording import pages, status_lines, submission_pages
from console.forms.documents import read_document
from console.tui.widgets.pane import DetailPane
from engine.admission.fleet_routing import TenantShare
from engine.model.commands import Submit
from engine.model.errors import NotFoundError, NotSentError, RefusedError, SpecError, UnreachableError
from tests.console.fake_client import FakeClient
from tests.console.fleet.test_fleet import job
from tests.console.tui.test_app import console, press, quick, until, write
from tests.support.fleets import Served, served_fleet
from tests.support.patience import PATIENCE_S
from tests.support.served import socket_folder

if TYPE_CHECKING:
    from console.tui.app import MusterApp

__all__ = ["quick"]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with socket_folder() as folder, served_fleet(folder, tenants=(TenantShare(name="t", weight=2),)) as made:
        monkeypatch.setenv("MUSTER_FLEET", str(folder))
        yield made


# --- the file


def test_the_file_of_the_manual_says_what_the_manual_says(tmp_path: Path) -> None:
    shown = re.search(r"```text\n(name: prod\n.*?)```", (ROOT / "docs/fleet.md").read_text(), re.DOTALL)
    assert shown is not None
    path = tmp_path / "fleet.yaml"
    path.write_text(shown[1])
    spec = read_fleet(str(path))
    assert [cell.connect for cell in spec.cells] == ["/run/muster/east/engine.sock", "https://west.example.org:7373"]
    assert spec.cells[1].token_file == str(tmp_path / "west.token")
    assert spec.tenants[0].quota == {"gpu_milli": 128_000}
    assert spec.datasets[0].size_mib == 2**20
    assert (spec.transfer.microusd_gib, spec.transfer.mib_s) == (20_000, 500)
    rules = spec.routing
    assert (rules.crowded_permille, rules.bind_within_ms, rules.hour_microusd) == (900, 600_000, 5_000_000)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cells: []", "cells: is empty"),
        ("[]", "is not a fleet"),
        ("cells:\n  - {name: a}", r"3:|2:.*connect is missing"),
        ("cells:\n  - {name: a, connect: x, color: red}", "there is no field 'color'"),
        ("cells:\n  - {name: a, connect: x}\nrouting: {crowded: 90}", "90 is not a share such as 90%"),
        ("cells:\n  - {name: a, connect: x}\ntransfer: {rate: 1GiB}", "is not a rate such as 100MiB/s"),
        ("cells:\n  - {name: a, connect: x}\ntenants:\n  - {name: t, quota: {gpu: x}}", "4:.*number of GPUs such"),
        ("cells:\n  - {name: a, connect: x}\ntenants:\n  - {name: t, home: mars}", "there is no cell 'mars'"),
        ("cells:\n  - {name: a\\u001b, connect: x}", "is not a valid id"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_place(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=told):
        fleet_of(read_document(str(path)))


# --- over the socket


def test_from_a_submission_to_its_end_in_the_shell(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--queue", "q", "--gpus-per-task", "1", "--estimate", "1h", "--tenant", "t", "--id", "j"]
    assert run(["fleet", "submit", *flags, "--dry-run"]) == 0
    assert "goes to a: starts at once" in capsys.readouterr().out
    assert served.cells["a"].there == {}
    served.cells["a"].way = "nobody there"
    assert run(["fleet", "submit", *flags, "--residency", "in-b"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err.strip()) == ("j\n", "j: routed b; starts at once; the only cell that can take it now")
    assert served.cells["b"].there["j"].tags["residency"] == "in-b"
    served.hear()
    assert run(["fleet", "status"]) == 0
    assert re.search(r"^a +down .* nobody is there$", capsys.readouterr().out, re.MULTILINE)
    served.cells["a"].way = "well"
    served.hear()
    served.cells["b"].states["j"] = "finished"
    served.hear()
    assert run(["fleet", "jobs", "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["items"]
    assert (only["state"], only["cell_state"], only["cell"]) == ("ended", "finished", "b")
    assert run(["fleet", "show", "j"]) == 0
    assert "it stays in in-b, and this is in-a" in capsys.readouterr().out


@pytest.mark.thorough
def test_what_no_cell_may_ever_take_is_refused_at_once(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--queue", "q", "--cpus", "1", "--id", "j"]
    assert run(["fleet", "submit", *flags, "--residency", "mars"]) == 2
    assert "it stays in mars" in capsys.readouterr().err
    assert run(["fleet", "submit", *flags, "--dataset", "nothing"]) == 2
    assert "there is no 'nothing'" in capsys.readouterr().err
    assert run(["fleet", "submit", *flags, "--to", "mars"]) == 2
    assert run(["fleet", "jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["items"] == []


@pytest.mark.thorough
def test_a_cell_is_closed_and_what_waits_is_taken_back(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    for cell in "ab":
        assert run(["fleet", "close", cell, "--reason", "upgrade"]) == 0
    assert run(["fleet", "submit", "--queue", "q", "--cpus", "1", "--id", "j"]) == 0
    assert run(["fleet", "withdraw", "j"]) == 0
    assert run(["fleet", "open", "a"]) == 0
    assert run(["fleet", "close", "mars"]) == 3
    assert run(["fleet", "withdraw", "j"]) == 4
    assert run(["fleet", "show", "nothing"]) == 3
    assert run(["fleet", "withdraw", "j", "--readonly"]) == 4
    told = capsys.readouterr()
    assert "j is withdrawn, not waiting in the fleet" in told.err
    assert served.cells["a"].there == {}


def test_a_fleet_that_is_kept_in_a_database_is_never_begun_anew_in_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "fleet.yaml").write_text("name: prod\ncells:\n  - {name: a, connect: x}\n")
    (tmp_path / "f").mkdir()
    note(tmp_path / "f", "PostgreSQL muster@db/muster, schema fleet_prod")
    words = ["fleet", "serve", "--file", str(tmp_path / "fleet.yaml"), "--fleet", str(tmp_path / "f")]
    assert run(words) != 0
    assert "fleet 'prod' is stored in PostgreSQL muster@db/muster" in capsys.readouterr().err
    assert not (tmp_path / "f/fleet.db").exists()


def test_without_a_fleet_the_shell_says_how_to_start_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["fleet", "status", "--fleet", str(tmp_path)]) == 5
    assert "muster fleet serve --file fleet.yaml" in capsys.readouterr().err


def test_a_cell_that_dies_with_a_submission_in_its_hands_may_have_it() -> None:
    """Nobody listens any more when it is tried once more: that says nothing of the first try."""
    with socket_folder() as folder:
        where = folder / "e.sock"
        listening = bind_unix(where)
        listening.listen()

        def die() -> None:
            taken, _ = listening.accept()
            with taken:
                while b"simulated_runtime_ms" not in taken.recv(65_536):
                    pass
                where.unlink()
                listening.close()

        cell = threading.Thread(target=die)
        cell.start()
        with closing(RemoteClient(str(where))) as client, pytest.raises(UnreachableError) as told:
            client.command(Submit(workloads=(job("x"),)))
        cell.join(PATIENCE_S)
        assert not isinstance(told.value, NotSentError)
        assert "may have taken effect" in told.value.remedy


def test_its_client_raises_what_the_fleet_refuses(served: Served) -> None:
    client, reading = FleetClient(served.paths.socket), FleetClient(served.paths.socket, read_only=True)
    with pytest.raises(NotFoundError, match="the fleet has no 'x'"):
        client.submission("x")
    with pytest.raises(RefusedError, match="read-only"):
        reading.submit([job("x")])
    with pytest.raises(SpecError, match="cells: there is no cell 'mars'"):
        client.submit([job("x")], ("mars",))
    assert [each.state for each in client.submit([job("x"), job("y")])] == ["routed", "routed"]
    assert client.page(("waiting",)).items == ()
    client.close()
    reading.close()
    with closing(FleetClient(served.paths.folder / "none")) as nobody, pytest.raises(NotSentError, match="no fleet"):
        nobody.view()


@pytest.mark.thorough
def test_the_socket_is_its_owners_and_no_web_page_gets_in(served: Served) -> None:
    assert stat.S_IMODE(served.paths.socket.stat().st_mode) == 0o600
    transport = httpx.HTTPTransport(uds=str(served.paths.socket))
    with httpx.Client(transport=transport, base_url="http://muster") as http:
        assert http.get("/v1/fleet", headers={"Origin": "http://evil"}).status_code == 403
        assert http.get("/v1/fleet", headers={"Host": "evil"}).status_code == 403
        assert http.get("/v1/health").status_code == 404
        assert http.get("/v1/fleet/submit").status_code == 405
        for body in (b"", b"{", b"[]", b'{"workloads": []}', b'{"workloads": 1}', b"\xff", b'{"x": 1}', b"[" * 10_000):
            answer = http.post("/v1/fleet/submit", content=body)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid"), body
        assert http.get("/v1/fleet/submissions?limit=0").status_code == 400
        assert http.get("/v1/fleet/submissions?states=x").status_code == 400


# --- the page


def shown(pilot: Pilot[None]) -> str:
    pane = cast("MusterApp", pilot.app).navigator.current
    return "\n".join(pane.text_lines()) if isinstance(pane, DetailPane) else ""


@pytest.mark.thorough
async def test_the_page_shows_cells_tenants_and_where_one_submission_went(served: Served) -> None:
    served.cells["b"].cost_microusd = 1
    client = FleetClient(served.paths.socket)
    client.submit([job("train", tenant="t")])
    client.close()
    async with console(FakeClient()) as pilot:
        await press(pilot, "g", "x")
        await until(pilot, lambda: "1 routed" in shown(pilot))
        assert "2 of 2 up" in shown(pilot)
        assert re.search(r"● a +[━┄]+ 0/1,000 GPU", shown(pilot))
        assert "weight 2" in shown(pilot)
        await press(pilot, "colon")
        await write(pilot, "fleet train")
        await press(pilot, "enter")
        await until(pilot, lambda: "→ b" in shown(pilot))
        assert "$1.00" in shown(pilot)


@pytest.mark.thorough
async def test_where_there_is_no_fleet_the_page_says_how_to_have_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MUSTER_FLEET", str(tmp_path))
    async with console(FakeClient()) as pilot:
        await press(pilot, "g", "x")
        await until(pilot, lambda: "muster fleet serve --file fleet.yaml" in shown(pilot))


def test_the_shell_and_the_page_tell_the_same_part_of_a_tenant(served: Served) -> None:
    holds = TenantView(name="t", weight=2, quota={}, held={"gpu_milli": 500_000}, share_ppm=125_000, waiting=0)
    view = msgspec.structs.replace(served.fleet.view(), tenants=(holds,))
    (told,) = [line for line in status_lines(view) if line.lstrip().startswith("t ")]
    left, _ = pages(view, 80)
    (section,) = [section for section in left if section.title == "Tenants"]
    drawn = "".join(text for text, _ in section.lines[0].spans)
    assert re.findall(r"\d+%", told) == re.findall(r"\d+%", drawn) == ["25%"]


def test_nothing_that_others_wrote_acts_on_the_terminal(served: Served) -> None:
    served.fleet.submit([msgspec.structs.replace(job("j"), tags={"note": "\x1b[2J"})], (), "unix:1")
    served.hear()
    view = served.fleet.view()
    evil = "\x1b]0;x\x07\u202e"
    cells = tuple(msgspec.structs.replace(each, state="down", why=evil, region=evil) for each in view.cells)
    told = (FleetEvent(at_ms=0, what="down", subject=evil, detail=evil),)
    shown = [
        *pages(msgspec.structs.replace(view, cells=cells, recent=told, error=evil), 60),
        *submission_pages(msgspec.structs.replace(served.fleet.submission("j"), why=evil, cell=evil), 0, 60),
    ]
    text = "".join(text for column in shown for section in column for each in section.lines for text, _ in each.spans)
    assert "\x1b" not in text
    assert "\u202e" not in text
