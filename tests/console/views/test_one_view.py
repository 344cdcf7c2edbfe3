"""A thing is drawn once: each fact on the page of a workload, queue, proposal, suggestion or quote stands under
the same label in the text of the shell and in linear mode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from console.cli.linear_pages import SpokenLine, spoken_sections
from console.cli.main import parser
from console.commands.advice import explanation_lines
from console.commands.money import quote_lines, request_of
from console.commands.proposals import show_lines
from console.views.cost import compared, quote_pages
from console.views.proposal import decision_sections
from console.views.queues import queue_columns, queue_page
from console.views.sections import Section, section_lines
from console.views.suggestions import suggestion_sections
from console.views.workload import status_sections, workload_columns, workload_sections
from tests.console import fake_gate
from tests.console.fake_client import NOW_MS, FakeClient

WIDTH = 78
BESIDE = {"Related", "Log", "Processes"}
"""Sections of the page that lead elsewhere, or that it looks up beside the workload."""
FACT = re.compile(r"^([a-z][a-z ]{1,11}?)\s{1,}\S")


class Drawn(NamedTuple):
    """One thing on its page, in the shell and in linear mode."""

    page: Sequence[Section]
    shell: Sequence[str]
    linear: Sequence[SpokenLine]


def workload() -> Drawn:
    client = FakeClient(200)
    view, likely = client.workload("wl-000003"), client.estimate("wl-000003")
    left, right = workload_columns(view, WIDTH, None, likely)
    page = [section for section in (*left, *right) if section.title not in BESIDE | {"How long it runs"}]
    assert status_sections(view, WIDTH)[0] == page[0], "`why` begins as the page does"
    return Drawn(page, section_lines(workload_sections(view, likely, WIDTH)), spoken_sections(page))


def queue() -> Drawn:
    client = FakeClient(200)
    left, right = queue_columns(queue_page(client, "batch", client.fairness()), WIDTH)
    return Drawn([*left, *right], section_lines([*left, *right]), spoken_sections([*left, *right]))


def proposal() -> Drawn:
    shown = fake_gate.proposal(votes=fake_gate.voted())
    plan, standing = decision_sections(shown, NOW_MS, "person:bob", WIDTH, None)
    return Drawn([*plan, *standing], show_lines(shown, NOW_MS, "person:bob", None), spoken_sections([*plan, *standing]))


def suggestion() -> Drawn:
    found = FakeClient().recommendations().open[0]
    page = suggestion_sections(found, WIDTH)
    return Drawn(page, explanation_lines(found, []), spoken_sections(page))


def quote() -> Drawn:
    client = FakeClient()
    request = request_of(parser().parse_args(["cost", "--nodes", "4", "--gpus", "8", "--hours", "6"]), client)
    found = client.quote(request)
    left, right = quote_pages(found, "", WIDTH)
    page = [*compared(found, request, WIDTH), *left, *right]
    return Drawn(page, quote_lines(found, request), spoken_sections(page))


@pytest.mark.parametrize("draw", [workload, queue, proposal, suggestion, quote])
def test_facts_of_the_page_stand_in_the_shell_and_in_linear_mode(draw: Callable[[], Drawn]) -> None:
    drawn = draw()
    labels = 0
    for section in drawn.page:
        assert any(line.startswith(section.title) for line in drawn.shell), section.title
        heard = [line.text for line in drawn.linear]
        assert any(section.title.split(" · ")[0] in text for text in heard), section.title
        for line in section.lines:
            text = "".join(part for part, _ in line.spans)
            assert f"  {text}".rstrip() in drawn.shell, "the shell has the line as it is"
            if label := FACT.match(text):
                labels += 1
                assert any(label[1] in each for each in heard), label[1]
    assert labels >= 3 or draw is quote, "there are facts with a label"


def test_keys_of_the_console_are_for_its_screens_alone() -> None:
    section = Section("Quota", queue().page[0].lines[:1], "a note", "press q")
    told = "\n".join([*section_lines([section]), *(line.text for line in spoken_sections([section]))])
    assert "a note" in told
    assert "press q" not in told
