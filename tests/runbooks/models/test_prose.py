"""Prose of a model: values come from facts by reference, and a sentence that says one of its own is marked."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbooks.drafts.typed_draft import Fact
from runbooks.drafts.vocabulary import METRICS, fact
from runbooks.models.answer_checks import ProseReader
from runbooks.models.prompt import PromptNames
from tests.support.answered import linked
from tests.support.effort import examples

NOW_MS = 1_772_366_400_000
"""2026-03-01 12:00 UTC."""
READ = (
    fact("cell_waiting", "", 57), fact("cell_gpus", "", 512_000), fact("queue_waiting", "research", 41),
    fact("queue_waiting", "prod", 1), fact("queue_oldest_wait_s", "research", 2473),
    fact("node_state", "gpu-a-17", "down"), fact("budget_spent_permille", "b1", 870),
    fact("node_ends", "gpu-a-3", NOW_MS), fact("workload_queue", "wl-9", "research"),
)  # fmt: skip
FACTS: tuple[Fact, ...] = tuple(msgspec.structs.replace(one, id=f"F{i}") for i, one in enumerate(READ, 1))


def reader(facts: tuple[Fact, ...] = FACTS, *more: tuple[str, str], hide_all: bool = False) -> ProseReader:
    names = PromptNames(b"k" * 32, hide_all=hide_all)
    names.add((*((one.kind, one.subject) for one in facts if one.subject), *more))
    return ProseReader(facts, names)


def why(text: str, of: ProseReader | None = None) -> str:
    (sentence,) = (of or reader()).sentences(text)
    return sentence.unsupported


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("The oldest of research has waited {F5}.", "The oldest of research has waited 41 min."),
        ("Queue prod has {F4} that waits.", "Queue prod has 1 workload that waits."),
        ("Node gpu-a-17 is {F6}", "Node gpu-a-17 is down"),
        ("The budget b1 is spent to {F7}.", "The budget b1 is spent to 87 %."),
        ("The provider takes gpu-a-3 back at {F8}.", "The provider takes gpu-a-3 back at 2026-03-01 12:00:00 UTC."),
        ("The cell has {F2}, and {F1} wait (see there).", "The cell has 512 GPU, and 57 workloads wait (see there)."),
        ("Work wl-9 is in queue {F9}.", "Work wl-9 is in queue research."),
    ],
)
def test_a_reference_is_shown_as_the_value_of_the_fact(text: str, shown: str) -> None:
    (sentence,) = reader().sentences(text)
    assert sentence.unsupported == ""
    assert sentence.text == shown
    assert [span.mark for span in sentence.spans if span.mark] == ["value"] * len(sentence.cites)


def test_what_a_value_is_of_is_said_where_the_sentence_does_not() -> None:
    """A true value is no support for another thing's."""
    (other,) = reader().sentences("Queue prod has {F3} that wait.")
    assert other.text == "Queue prod has 41 workloads (queue research) that wait."
    (both,) = reader().sentences("Queue prod is behind research: {F3}.")
    assert both.text == "Queue prod is behind research: 41 workloads (queue research)."
    (cell,) = reader().sentences("Queue prod has {F1} that wait.")
    assert cell.text == "Queue prod has 57 workloads (cell) that wait."
    (unnamed,) = reader().sentences("It has waited for {F5}.")
    assert unnamed.text == "It has waited for 41 min (queue research)."


@pytest.mark.parametrize("metric", METRICS)
def test_every_fact_can_be_referred_to(metric: str) -> None:
    of = METRICS[metric]
    value: int | str = NOW_MS if of.value == "number" else "word"
    told = msgspec.structs.replace(fact(metric, "" if of.of == "cell" else "x1", value), id="F1")
    (sentence,) = reader((told,)).sentences("It is {F1}.")
    assert (sentence.cites, sentence.unsupported) == (("F1",), "")
    assert "{" not in sentence.text


@pytest.mark.parametrize(
    "text",
    [
        "42 wait in research", "research has waited 41 min", "٤٢ wait", "𝟜𝟚 wait", "④② wait", "四十二 wait",
        "½ of them wait", "XLII wait", "forty-two wait", "Forty wait", "fortytwo wait", "two dozen wait",
        "f o r t y wait", "half of research waits", "none of them waits", "waits in research have doubled",
        "ninetуnine wait", "nine\u200bty wait", "nine\u00adty wait", "the wait rises", "The wait is FALLING",
        "fewer wait", "work of research went up", "it is above its quota", "the p99 is long", "see F3", "[F3] says so",
        "the wait ↑", "it is {F99}", "it is {F 3}", "it is {f3}", "node gpu-a-18 is down", "node GPU-A-17 is down",
        "workload wl_9 waits", "queue_bogus of research is bad", "it was approved", "signed off", "A.L.I.C.E says so",
        "пятьдесят ждут", "изменение одобрен", "fünfzig warten", "all \x1b[2J well",
    ],
)  # fmt: skip
def test_what_says_a_value_of_its_own_is_unsupported(text: str) -> None:
    assert why(text)


@pytest.mark.parametrize(
    "text",
    [
        "It has {F3}0.", "It has 1{F3}.", "It has -{F3}.", "It has - {F3}.", "It has {F3}{F4}.", "It has {F3},{F4}.",
        "It has {F3}k.", "It has {F3}-fold.", "It has {F3}/{F4}.", "It has over {F3}.", "It has not {F3}.",
        "Research hasn't waited for {F5}.", "There are no jobs among {F3}.",
        "It has up to {F3}.", "It has ~{F3}.", "It has x{F3}.", "It has {F3} thousand.", "It has half {F3}.",
        "It has more than {F3}.", "It has {F3}.5",
    ],
)  # fmt: skip
def test_a_value_that_is_made_another_is_unsupported(text: str) -> None:
    assert why(text)


@pytest.mark.parametrize(
    "text",
    [
        "Queue research waits, and wl-9 is stuck on gpu-a-17.", "Ask the owner, e.g. by phone.",
        "Look at queue_oldest_wait_s and cell_wait_p95_s; set_quota by add_gpus helps.",
        "The owner’s job — “train” — is stuck…", "Someone often phones an attendee.", "Nothing is wrong (wl-9).",
        "Ask why gpu-a-17's fan is loud.", "Do not drain it while it is busy.",
    ],
)  # fmt: skip
def test_plain_words_and_known_names_are_left_alone(text: str) -> None:
    assert why(text) == ""


def test_a_name_that_is_a_number_or_a_direction_is_no_name_here() -> None:
    """Strangers name queues and jobs."""
    of = reader(FACTS, ("queue", "97"), ("workload", "12min"), ("queue", "forty"), ("queue", "rises"))
    assert all(why(text, of) for text in ("97 wait", "it waited 12min", "forty wait", "it rises"))


def test_only_the_sentence_that_says_it_is_marked() -> None:
    found = reader().sentences("Research waits.  It waits\n41 min! Ask its owner.")
    assert [(one.text, bool(one.unsupported)) for one in found] == [
        ("Research waits.", False), ("It waits 41 min!", True), ("Ask its owner.", False),
    ]  # fmt: skip
    assert found[1].unsupported == '"41" is no fact or name that it was told'


def test_a_line_has_what_is_unsupported_struck_and_values_put_in() -> None:
    of = reader()
    assert of.line("Approved: 97 nodes of research", struck="[…]") == "[…]: […] nodes of research"
    line = of.line("research waits {F5}, 97 nodes, see https://evil.example", struck="[not verified: {}]")
    assert line == "research waits 41 min, [not verified: 97] nodes, see https[:]//evil[.]example"
    assert of.line("97{F3} wait, -{F3}", struck="[…]") == "[…] wait, […]"


def test_pseudonyms_are_read_back_and_bear_no_reference() -> None:
    names = PromptNames(b"k" * 32, hide_all=True)
    shown = names.shown("queue", "research")
    (sentence,) = ProseReader(FACTS, names).sentences(f"Queue {shown} has {{F3}}.")
    assert (sentence.text, sentence.unsupported) == ("Queue research has 41 workloads.", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see https://evil.example/x?y=1 now", "https[:]//evil[.]example/x?y=1"),
        ("see HTTPS://EVIL.EXAMPLE", "HTTPS[:]//EVIL[.]EXAMPLE"),
        ("see [runbook](https://evil.example)", "[runbook] ( https[:]//evil[.]example)"),
        ("see ![x](data:image/png;base64,AAAA)", "![x] ( data:image/png;base64,AAAA)"),
        ("see evil.com", "evil[.]com"),
        ("see evil.co.uk/path", "evil[.]co[.]uk/path"),
        ("see evil。com", "evil[.]com"),
        ("see ｅｖｉｌ．ｃｏｍ", "ｅｖｉｌ[.]ｃｏｍ"),
        ("see 10.1.2.3:8080/x", "10[.]1[.]2[.]3:8080/x"),
        ("see 2001:db8::1", "2001[:]db8::1"),
        ("mail a@b.example", "a[at]b[.]example"),
        ("javascript:alert(1)", "javascript[:]alert(1)"),
        ("[@click=app.approve('P-1')]x", "[[at]click=app[.]approve('P-1')]"),
        ("<img src=x>", "‹img src=x›"),
        ("hxxps://evil[.]example", "hxxps[:]//evil[.]example"),
        (r"\\host\share", r"\\host\share"),
    ],
)
def test_what_leads_away_is_marked_and_defanged(text: str, shown: str) -> None:
    (sentence,) = reader().sentences(text)
    assert linked(sentence) == [shown]
    assert "://" not in sentence.text


def test_a_name_that_looks_like_a_host_is_a_name() -> None:
    (sentence,) = reader((), ("node", "node1.rack2.example"), ("workload", "train.py")).sentences(
        "node1.rack2.example runs train.py"
    )
    assert (len(sentence.spans), sentence.unsupported) == (1, "")


@given(st.text(max_size=300) | st.from_regex(r"(\{F[0-9]\}|[a-z ./:]|\{|\}){0,60}", fullmatch=True))
@settings(max_examples=examples(80), deadline=None, derandomize=True)
def test_any_text_comes_back_whole_and_leads_nowhere(text: str) -> None:
    for sentence in reader((), ("queue", "research")).sentences(text):
        assert "".join(span.text for span in sentence.spans) == sentence.text
        assert "://" not in sentence.text
        plain = "".join(span.text for span in sentence.spans if not span.mark)
        assert not any(char.isnumeric() for char in plain) or sentence.unsupported
    assert "://" not in reader().line(text, struck="{}")


def test_a_long_text_takes_no_time() -> None:
    """What is quadratic in a text of the largest size would be felt."""
    began = time.process_time()
    for text in ("1 " * 600, "a." * 600, "[" * 1200, "http://" * 170, "{F1}" * 300, "forty-" * 200, "a b " * 300,
                 "nine" * 300, "ninety" * 200 + "x"):  # fmt: skip
        reader().sentences(text)
    assert time.process_time() - began < 2
