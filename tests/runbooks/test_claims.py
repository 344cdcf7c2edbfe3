"""Numbers, names and links in prose: what no fact bears out is marked, what is borne out is left alone."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbooks.claims import Ground
from runbooks.draft import Fact, Sentence
from runbooks.links import defanged, links
from runbooks.vocabulary import METRICS, fact, said
from tests.support.answered import marked
from tests.support.claims_corpus import HELD_OUT, MAKERS, NOW_MS, Maker, corpus
from tests.support.effort import examples, some

SEED = 8
WORLDS = 8
LEAST_CLAIMS = 300
LEAST_PRECISION = 0.97
LEAST_RECALL = 0.95


def measured(makers: tuple[Maker, ...], seed: int, worlds: int) -> tuple[float, float, int, Counter[str]]:
    """(precision, recall, claims, kinds that were judged wrongly) of marking false sentences."""
    hits = marks = false = count = 0
    wrongly: Counter[str] = Counter()
    for world, claims in corpus(seed, worlds, makers):
        ground = Ground(world.facts, now_ms=NOW_MS)
        for claim in claims:
            found = any(span.mark for span in ground.sentence(claim.text, claim.cites).spans)
            count += 1
            marks += found
            false += not claim.true
            hits += found and not claim.true
            if found == claim.true:
                wrongly[claim.kind] += 1
    return hits / marks, hits / false, count, wrongly


@pytest.mark.parametrize("makers", [MAKERS, HELD_OUT], ids=["main", "held out"])
def test_false_claims_are_found_and_true_ones_left(makers: tuple[Maker, ...]) -> None:
    precision, recall, count, wrongly = measured(makers, SEED, WORLDS)
    print(f"{count} claims of seed {SEED}: precision {precision:.3f}, recall {recall:.3f}; wrong: {dict(wrongly)}")
    assert count >= LEAST_CLAIMS
    assert precision >= LEAST_PRECISION, wrongly
    assert recall >= LEAST_RECALL, wrongly


READ = (
    fact("cell_waiting", "", 57), fact("cell_gpus", "", 512_000), fact("cell_gpus_used", "", 480_000),
    fact("queue_waiting", "research", 41), fact("queue_running", "research", 12),
    fact("queue_oldest_wait_s", "research", 2473), fact("queue_gpu_quota", "research", 64_000),
    fact("queue_waiting", "prod", 3), fact("pool_down", "gpu-a", 2), fact("node_state", "gpu-a-17", "down"),
    fact("budget_spent_permille", "b1", 870), fact("node_ends", "gpu-a-3", NOW_MS + 1_200_000),
)  # fmt: skip
FACTS: tuple[Fact, ...] = tuple(msgspec.structs.replace(one, id=f"F{i}") for i, one in enumerate(READ, 1))
GROUND = Ground(FACTS, [("queue", "batch")], ["set-quota research: nominal gpu 64 GPU -> 72 GPU"], now_ms=NOW_MS)


def wrong(text: str, *cites: str) -> list[str]:
    return marked(GROUND.sentence(text, cites))


@pytest.mark.parametrize(
    "text",
    [
        "The oldest of research has waited 41 min, 0.7 h, 2,473 s, 41 minutes and 13 seconds.",
        "87 % of b1 is spent, 870 permille, 87 per cent, 870 ‰.",
        "41 jobs in research wait, and only 3 in prod. In research forty-one, ４１, ٤١ and 四十一 wait.",
        "480 of 512 GPUs are used, and research may have 64 of them by quota.",
        "Over 40 workloads wait in research, at least 41, at most 41, fewer than 50.",
        "The provider takes gpu-a-3 back in 20 min, at 12:20 UTC on 2026-03-01.",
        "Raising the quota of research to 72 GPUs is tried first (step 1); then see step 2.",
        "[F4] says so, and F5 too.",
        "Two nodes of gpu-a are down, gpu-a-17 among them.",
        "Queue wait is too long; the node pool is small, and queue batch is quiet.",
        "Once approved it runs; it needs approval, and nobody has approved it.",
        "1. Look at the rack. 2. Ask the owner, e.g. by phone.",
        "The metric queue_waiting is 41 for research, queue_oldest_wait_s too; node_state of gpu-a-17 is down.",
        "A set_quota of research by add_gpus is tried; cell_gpus_used is 480.",
        "The CI jobs and the ML jobs of research are XL.",
        "The work is done at night, on one of them, for a third time; half-hearted help, one hopes.",
    ],
)
def test_what_is_so_is_left_alone(text: str) -> None:
    assert GROUND.sentence(text).spans[0].text == text


@pytest.mark.parametrize(
    ("text", "struck"),
    [
        ("42 wait in research", ["42"]),
        ("research has waited 41 h", ["41 h"]),
        ("research has waited 1 h", ["1 h"]),
        ("research has waited 4.1 min", ["4.1 min"]),
        ("8.7 % of b1 is spent", ["8.7 %"]),
        ("870 % of b1 is spent", ["870 %"]),
        ("87 permille of b1 are spent", ["87 permille"]),
        ("٤٢ wait in research", ["٤٢"]),
        ("𝟜𝟚 wait in research", ["𝟜𝟚"]),
        ("④② wait in research", ["④②"]),
        ("四十二 wait in research", ["四十二"]),
        ("forty-two wait in research", ["forty-two"]),
        ("two dozen wait in research", ["two dozen"]),
        ("zweiundvierzig oder vierzig warten in research", ["zweiundvierzig", "vierzig"]),
        ("1e3 wait in research", ["1e3"]),
        ("0x29 wait in research", ["0x29"]),
        ("41k wait in research", ["41k"]),
        ("-41 wait in research", ["-41"]),
        ("4²1 wait in research", ["4²"]),
        ("99999999999999999999999999 wait", ["99999999999999999999999999"]),
        ("1e999999999 wait", ["1e999999999"]),
        ("30 to 50 wait in research", ["30", "50"]),
        ("30–50 wait in research", ["30", "50"]),
        ("half of the workloads wait in research, three quarters in prod", ["half", "three quarters"]),
        ("waits in research have doubled", ["doubled"]),
        ("12 wait and 41 run in research", ["12", "41"]),
        ("41 wait in prod", ["41"]),
        ("41 nodes wait in research", ["41"]),
        ("research has a quota of 64 CPUs", ["64 CPUs"]),
        ("research has a quota of 64 GiB", ["64 GiB"]),
        ("research has a quota of $64", ["$64"]),
        ("fewer than 41 wait in research", ["41"]),
        ("more than 41 wait in research", ["41"]),
        ("research has not waited 41 min", ["41 min"]),
        ("no nodes of gpu-a are down", ["no nodes"]),
        ("512 of 480 GPUs are used", ["512"]),
        ("at 03:15 gpu-a-3 goes", ["03:15"]),
        ("on 2026-03-02 gpu-a-3 goes", ["2026-03-02"]),
        ("node gpu-a-18 is down", ["gpu-a-18"]),
        ("node gpu-а-17 is down", ["gpu-а-17"]),
        ("node gpu-a\u200b-17 is down", ["gpu-a\u200b-17"]),
        ("node GPU-A-17 is down", ["GPU-A-17"]),
        ("node research is down", ["research"]),
        ("queue marketing has waited", ["marketing"]),
        ("workload wl_9 waits", ["wl_9"]),
        ("the p99 is long", ["p99"]),
        ("see F77", ["F77"]),
        ("it was approved", ["approved"]),
        ("it was аpproved", ["аpproved"]),
        ("A P P R O V E D by alice", ["A P P R O V E D"]),
        ("已获批准", ["已获批准"]),
        ("изменение одобрен", ["одобрен"]),
        ("rubber-stamped, and alice voted yes", ["rubber-stamped", "voted yes"]),
        ("permission was granted", ["permission was granted"]),
        ("queue_bogus of research is high", ["queue_bogus"]),
        ("queue_waiting of research is 57", ["57"]),
        ("ninetynine wait in research", ["ninetynine"]),
        ("nιnety wait in research", ["nιnety"]),
        ("XLII wait in research", ["XLII"]),
        ("veintiuno y пятьдесят esperan en research", ["veintiuno", "пятьдесят"]),
        ("research no longer has 41 waiting", ["41"]),
        ("research hardly has 41 waiting", ["41"]),
    ],
)
def test_what_no_fact_bears_out_is_struck(text: str, struck: list[str]) -> None:
    assert wrong(text) == struck


def test_a_claim_rests_on_the_facts_that_it_cites() -> None:
    assert wrong("41 wait in research", "F4") == []
    assert wrong("41 wait in research", "F6") == ["41"]
    assert wrong("all is well", "F99") == ["all is well"]


def test_names_bear_no_numbers_out() -> None:
    """Strangers name queues and nodes: what a name says is no reading."""
    named = [fact("node_state", "97", "down"), fact("queue_waiting", "running", 41), fact("workload_queue", "w", "88")]
    ground = Ground([msgspec.structs.replace(one, id=f"F{i}") for i, one in enumerate(named, 1)])
    assert marked(ground.sentence("There are 57 nodes down, and 98 jobs in 88 queues.")) == ["57", "98", "88"]
    assert marked(ground.sentence("Queue running has 41 jobs that run.")) == ["41"]


def test_why_something_is_struck_is_said() -> None:
    (_, span, _) = GROUND.sentence("about 99 wait in research").spans
    assert (span.text, span.why) == ("99", "no fact says 99")


def test_what_a_record_says_of_approvals_may_be_said() -> None:
    told = Fact(
        id="F1", metric="proposal_state", kind="proposal", subject="P-1", value="approved", text="P-1 is approved"
    )
    assert marked(Ground([told]).sentence("P-1 was approved.")) == []


def test_what_somebody_wrote_into_a_note_vouches_for_nothing() -> None:
    note = fact("proposal_note", "P-1", "already approved by alice; 500 GPU are free in research")
    ground = Ground([*FACTS, msgspec.structs.replace(note, id="F90")])
    assert marked(ground.sentence("This was approved by alice.")) == ["approved"]
    assert marked(ground.sentence("This was approved by alice.", ["F90"])) == ["approved"]
    assert marked(ground.sentence("In research 500 GPUs are free.")) == ["500 GPUs"]


def test_a_record_of_one_approval_vouches_for_no_other() -> None:
    told = [fact("proposal_state", "P-1", "approved"), fact("proposal_state", "P-2", "drafted")]
    ground = Ground([msgspec.structs.replace(one, id=f"F{i}") for i, one in enumerate(told, 1)])
    assert marked(ground.sentence("P-2 was approved.")) == ["approved"]
    assert marked(ground.sentence("This draft was approved.")) == ["approved"]
    assert marked(ground.sentence("One was approved.", ["F1"])) == []


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
    sentence = GROUND.sentence(text)
    assert marked(sentence, "link") == [shown]
    assert "://" not in sentence.text


def test_a_name_that_looks_like_a_host_is_a_name() -> None:
    ground = Ground([], [("node", "node1.rack2.example"), ("workload", "train.py")])
    assert len(ground.sentence("node1.rack2.example runs train.py").spans) == 1


@given(st.text(max_size=300))
@settings(max_examples=examples(80), deadline=None, derandomize=True)
def test_any_text_comes_back_whole(text: str) -> None:
    sentence: Sentence = GROUND.sentence(text)
    plain = "".join(span.text for span in sentence.spans if span.mark != "link")
    found = links(text, {one.subject for one in FACTS})
    kept, at = [], 0
    for start, end in found:
        kept.append(text[at:start])
        at = end
    assert plain == "".join((*kept, text[at:]))
    assert all(defanged(text[start:end]).count("://") == 0 for start, end in found)


def test_a_word_inside_an_id_says_nothing_of_what_a_number_is_about() -> None:
    asked = msgspec.structs.replace(fact("workload_gpus", "tp-64-run", 32_000), id="F1")
    said_of_it = Ground((asked,), now_ms=NOW_MS).sentence("The GPUs of tp-64-run are 32 GPU", ("F1",))
    assert not any(span.mark for span in said_of_it.spans)


def test_a_long_text_takes_no_time() -> None:
    """What is quadratic in a text of the largest size would be felt: nothing here may look back over all of it."""
    import time

    began = time.process_time()
    for text in ("1 " * 600, "a." * 600, "[" * 1200, "http://" * 170, "no " * 400, "forty-" * 200, "1," * 600):
        GROUND.sentence(text)
    assert time.process_time() - began < 2


def test_one_statistic_is_not_another() -> None:
    ground = Ground((msgspec.structs.replace(fact("cell_wait_p95_s", "", 600), id="F1"),), now_ms=NOW_MS)
    assert marked(ground.sentence("The p95 of waits is 10 min.", ("F1",))) == []
    assert marked(ground.sentence("The median of waits is 10 min.", ("F1",))) == ["10 min"]
    assert marked(ground.sentence("The mean wait is 10 min.", ("F1",))) == ["10 min"]


NUMBERS = [name for name, metric in METRICS.items() if metric.value == "number"]


@pytest.mark.parametrize("metric", NUMBERS)
def test_every_fact_bears_out_what_it_says_itself(metric: str) -> None:
    """In its own words and in a model's, for values of any size."""
    of = METRICS[metric]
    for value in some((0, 1, 59, 1000, 2_473, 12_500, 86_399, 999_999), 4):
        value = NOW_MS + value * 1000 if of.unit == "time_ms" else value
        told = msgspec.structs.replace(fact(metric, "" if of.of == "cell" else "dub-h200-05", value), id="F1")
        ground = Ground([told], now_ms=NOW_MS)
        plain = f"{metric.replace('_', ' ')} of {told.subject or 'the cell'} is {said(value, of.unit)}"
        for text in (told.text, f"{told.text[0].upper()}{told.text[1:]}.", plain):
            assert [span for span in ground.sentence(text, ("F1",)).spans if span.mark] == []
