"""What a workload writes, on the console: followed, scrolled back, harmless whatever it is."""

from __future__ import annotations

import msgspec
import pytest
from textual.pilot import Pilot

from console.tui.screens.output import FIRST, MAX_LINES, LogView, OutputPane
from console.views.workload import MAX_LINE, LogLines, process_sections
from engine.executors.task_files import OutputPart, OutputRequest, ProcessReport
from engine.model.errors import NotFoundError
from engine.model.specs import RunSpec
from tests.console.fake_client import FakeClient
from tests.console.tui.screens.test_workload_page import detail, words
from tests.console.tui.test_app import console, here, line, press, quick, until, write

__all__ = ["quick"]


def test_lines_come_together_from_any_pieces() -> None:
    lines = LogLines()
    data = "première\r\nзавтра 日本\nrest".encode()
    found = [line for at in range(len(data)) for line in lines.take(data[at : at + 1])]
    assert (found, lines.rest) == (["première", "завтра 日本"], "rest")


def test_a_line_is_what_a_terminal_would_show_in_the_end() -> None:
    written = b"10%\r50%\r100%\r\n\x1b[31mred\x1b[0m \x1b]0;owned\x07plain\n\x1b[2K\x1b[1Gdone\n"
    assert LogLines().take(written) == ["100%", "red plain", "done"]


def test_bytes_that_are_no_text_and_lines_without_end_are_bounded() -> None:
    lines = LogLines()
    found = lines.take(b"\xff\xfe" + b"x" * (3 * MAX_LINE) + b"\nnext")
    assert [len(line) for line in found] == [MAX_LINE, MAX_LINE, MAX_LINE, 2]
    assert lines.rest == "next"


def test_processes_lead_to_what_they_write() -> None:
    client = FakeClient()
    client.written = b"x"
    view = detail(id="wl-000000", run=RunSpec(argv=("true",)))
    sections = process_sections(view, client.processes("wl-000000"), 80)
    assert any("main.0" in line and "process 4242" in line for line in words(sections))
    assert sections[0].lines[0].link == "output wl-000000 main.0"
    assert process_sections(detail(), client.processes("wl-000000"), 80) == []


def shown(pilot: Pilot[None]) -> list[str]:
    return here(pilot).query_one(LogView).lines


async def test_it_follows_what_is_written_and_stays_where_it_is_read() -> None:
    client = FakeClient()
    client.written = b"".join(b"line %05i\n" % i for i in range(500))
    async with console(client) as pilot:
        await press(pilot, "3", "l")
        await until(pilot, lambda: isinstance(here(pilot), OutputPane) and shown(pilot)[-1:] == ["line 00499"])
        view = here(pilot).query_one(LogView)
        assert view.following
        client.written += b"line 00500\nunfinished"
        await until(pilot, lambda: shown(pilot)[-1] == "line 00500")
        await press(pilot, "pageup")
        top = view.scroll_offset
        client.written += b" business\nline 00502\n"
        await until(pilot, lambda: shown(pilot)[-2:] == ["unfinished business", "line 00502"])
        assert (view.following, view.scroll_offset) == (False, top)
        await press(pilot, "G")
        assert view.following
        assert view.scroll_offset.y + view.size.height >= len(view.lines)


@pytest.mark.thorough
async def test_earlier_output_comes_when_it_is_scrolled_to() -> None:
    client = FakeClient()
    client.written = b"".join(b"line %07i\n" % i for i in range(2 * FIRST // 13))
    client.ended = True
    async with console(client) as pilot:
        await press(pilot, "3", "l")
        await until(pilot, lambda: isinstance(here(pilot), OutputPane) and bool(shown(pilot)))
        first = shown(pilot)[0]
        await press(pilot, "home")
        await until(pilot, lambda: shown(pilot)[0] < first)
        view = here(pilot).query_one(LogView)
        assert view.lines[-1] == f"line {2 * FIRST // 13 - 1:07}"
        assert int(first[5:]) - int(view.lines[0][5:]) == view.lines.index(first)
        assert view.lines == sorted(view.lines), "nothing is missing where the parts meet, nothing appears twice"
        assert len(set(view.lines)) == len(view.lines)
        assert view.lines[view.scroll_offset.y] == first, "what was read stays where it was"


@pytest.mark.thorough
async def test_whatever_is_written_acts_on_nothing() -> None:
    client = FakeClient()
    client.written = "[bold]x[/]\n\u202egnp.exe\n\x07\x9b2J\nhttps://evil.example/\n".encode()
    async with console(client) as pilot:
        await press(pilot, "3", "l")
        await until(pilot, lambda: isinstance(here(pilot), OutputPane) and len(shown(pilot)) == 4)
        view = here(pilot).query_one(LogView)
        drawn = [view.render_line(y).text.rstrip() for y in range(4)]
    assert drawn == ["[bold]x[/]", "\\u202egnp.exe", "\\x07\\x9b2J", "https[:]//evil.example/"]


@pytest.mark.thorough
async def test_a_cell_without_real_work_says_so() -> None:
    async with console(FakeClient()) as pilot:
        await press(pilot, "3", "l")
        await until(pilot, lambda: isinstance(here(pilot), OutputPane))
        view = here(pilot).query_one(LogView)
        await until(pilot, lambda: "this cell runs no real work" in view.render_line(0).text)


@pytest.mark.thorough
async def test_no_more_lines_are_held_than_a_person_could_read() -> None:
    client = FakeClient()
    client.written = b"x\n"
    async with console(client) as pilot:
        await press(pilot, "3", "l")
        await until(pilot, lambda: isinstance(here(pilot), OutputPane) and bool(shown(pilot)))
        client.written += b"".join(b"%07i\n" % i for i in range(MAX_LINES + 5))
        await until(pilot, lambda: shown(pilot)[-1] == f"{MAX_LINES + 4:07}")
        assert (len(shown(pilot)), shown(pilot)[0]) == (MAX_LINES, "0000005")
        await press(pilot, "home")
        await until(pilot, lambda: shown(pilot)[0] == "x")
        assert shown(pilot) == ["x", *(f"{i:07}" for i in range(MAX_LINES + 5))], "what was dropped is read again"


async def test_a_filter_shows_the_lines_with_its_words_also_of_what_comes() -> None:
    client = FakeClient()
    client.written = b"".join(b"step %03i loss=%i\n" % (i, i) for i in range(100)) + b"Error: NaN in step 100\n"
    async with console(client) as pilot:
        await press(pilot, "3", "l")
        await until(pilot, lambda: isinstance(here(pilot), OutputPane) and len(shown(pilot)) == 101)
        await press(pilot, "slash")
        await write(pilot, "error nan")
        view = here(pilot).query_one(LogView)
        await until(pilot, lambda: view.seen == ["Error: NaN in step 100"])
        await press(pilot, "enter")
        assert "1 of 101 lines" in line(pilot, "title")
        client.written += b"fine\nerror: nan again\n"
        await until(pilot, lambda: len(shown(pilot)) == 103)
        assert view.seen == ["Error: NaN in step 100", "error: nan again"]
        await press(pilot, "escape")
        assert view.seen == shown(pilot)
        await press(pilot, "escape")
        assert not isinstance(here(pilot), OutputPane)


async def test_what_is_not_loaded_is_told_and_a_file_begun_anew_too() -> None:
    client = FakeClient()
    client.written = b"x" * 99 + b"\n"
    client.written *= 2 * FIRST // 100
    async with console(client, size=(200, 30)) as pilot:
        await press(pilot, "3", "l")
        await until(pilot, lambda: isinstance(here(pilot), OutputPane) and bool(shown(pilot)))
        assert "older not loaded" in line(pilot, "title")
        client.written = b"second life\n"
        await until(pilot, lambda: shown(pilot)[-2:] == ["… the file was started over …", "second life"])


async def test_a_job_of_slurm_tells_its_file_and_node_and_why_it_cannot_be_read() -> None:
    client = FakeClient()
    client.written = b"epoch 1\n"
    read = client.output

    def from_file(request: OutputRequest, wait_s: float = 0.0) -> OutputPart:
        names = ("output", "errors")
        found = read(request, wait_s)
        name = request.task or "output"
        return msgspec.structs.replace(found, task=name, path=f"/home/x/12.{name}", node="cpu001", tasks=names)

    client.output = from_file  # type: ignore[method-assign]
    client.processes = lambda name: ProcessReport(id=name, attempts=())  # type: ignore[method-assign]
    async with console(client) as pilot:
        await press(pilot, "3", "l")
        await until(pilot, lambda: "cpu001  /home/x/12.output" in head(pilot))
        assert "2 files, n for the next" in head(pilot)
        await press(pilot, "n")
        await until(pilot, lambda: "12.errors" in head(pilot))
    client = FakeClient()
    client.output = refused  # type: ignore[method-assign]
    async with console(client, size=(60, 24)) as pilot:
        await press(pilot, "3", "l")
        await until(pilot, lambda: isinstance(here(pilot), OutputPane))
        view = here(pilot).query_one(LogView)
        await until(pilot, lambda: "not on this machine" in " ".join(view.render_line(y).text for y in range(4)))
        assert "Read it on cpu001" in " ".join(" ".join(view.render_line(y).text for y in range(5)).split())


def refused(request: OutputRequest, wait_s: float = 0.0) -> OutputPart:
    raise NotFoundError("'/home/x/12.out' of job 12 is not on this machine", "Read it on cpu001, or mount its folder")


def head(pilot: Pilot[None]) -> str:
    pane = here(pilot)
    return "".join(text for text, _, _ in pane._head._left) if isinstance(pane, OutputPane) else ""
