"""Edits of a what-if: their text, and everything about them that can be wrong, named before anything runs."""

from __future__ import annotations

import re

import pytest
from cells import small_cell, submit, workload
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.admission.what_if_edits import refuse_wrong
from engine.control import Engine
from engine.model import what_if_edits as ed
from engine.model.errors import SpecError
from engine.model.specs import ID_PATTERN, MAX_QUANTITY

HOUR = 3_600_000

# -- text -------------------------------------------------------------------------------------------------------------

NAMES = st.one_of(
    st.sampled_from(["at", "to", "for", "nodes", "evict", "spot", "pool", "n1", "rack/3", "2h", "0"]),
    st.from_regex(ID_PATTERN, fullmatch=True).filter(lambda name: len(name) <= 20),
)
SEVERAL = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
TIMES = st.one_of(st.just(0), st.integers(1, 7 * 24 * HOUR))
NODES = st.one_of(
    st.builds(ed.Nodes, ids=SEVERAL), st.builds(ed.Nodes, place=st.sampled_from(ed.PLACES), name=NAMES)
)  # fmt: skip
QUANTITIES = st.dictionaries(
    st.sampled_from(["cpu_milli", "memory_mib", "gpu_milli", "disk_mib"]),
    st.integers(0, MAX_QUANTITY),
    min_size=1,
)
COUNTS = st.integers(0, 200_000)
PLACED = {place: st.one_of(st.just(""), NAMES) for place in ed.PLACES if place != "pool"}
WRITTEN = st.one_of(
    st.builds(ed.AddNodesEdit, pool=NAMES, count=COUNTS, at_ms=TIMES, **PLACED),
    st.builds(ed.RemoveNodesEdit, nodes=NODES, at_ms=TIMES),
    st.builds(ed.ResizePoolEdit, pool=NAMES, count=COUNTS, at_ms=TIMES),
    st.builds(ed.FailNodesEdit, nodes=NODES, for_ms=TIMES, at_ms=TIMES),
    st.builds(ed.ShockEdit, pool=NAMES, permille=st.integers(1, 1000), for_ms=TIMES, at_ms=TIMES),
    st.builds(ed.DrainEdit, nodes=NODES, at_ms=TIMES),
    st.builds(ed.CordonEdit, nodes=NODES, at_ms=TIMES),
    st.builds(ed.UncordonEdit, nodes=NODES, at_ms=TIMES),
    st.builds(ed.ChangeQuotaEdit, queue=NAMES, nominal=QUANTITIES, evict=st.booleans(), at_ms=TIMES),
    st.builds(ed.SetWeightEdit, queue=NAMES, weight=COUNTS, at_ms=TIMES),
    st.builds(ed.HoldQueueEdit, queue=NAMES, at_ms=TIMES),
    st.builds(ed.OpenQueueEdit, queue=NAMES, at_ms=TIMES),
    st.builds(ed.SetPolicyEdit, policy=st.sampled_from(ed.POLICIES), at_ms=TIMES),
    st.builds(ed.SetPriorityEdit, ids=SEVERAL, priority_class=NAMES, at_ms=TIMES),
    st.builds(ed.PreemptEdit, ids=SEVERAL, at_ms=TIMES),
    st.builds(ed.CancelEdit, ids=SEVERAL, at_ms=TIMES),
    st.builds(ed.MigrateEdit, ids=SEVERAL, pool=NAMES, at_ms=TIMES),
    st.builds(ed.MigrateEdit, ids=SEVERAL, nodes=SEVERAL, at_ms=TIMES),
)
"""Every kind but a submission, whose text names a file."""


@settings(max_examples=examples(200), deadline=None)
@example(ed.ChangeQuotaEdit(queue="q", nominal={"gpu_milli": MAX_QUANTITY}))
@example(ed.ResizePoolEdit(pool="nodes", count=4))
@example(ed.ShockEdit(pool="for", permille=1))
@example(ed.ShockEdit(pool="for", permille=1, for_ms=HOUR, at_ms=HOUR))
@example(ed.FailNodesEdit(nodes=ed.Nodes(ids=("for",)), for_ms=HOUR))
@given(WRITTEN)
def test_what_is_written_is_read_back_as_the_same(edit: ed.AnyEdit) -> None:
    assert ed.parse(ed.written(edit)) == edit


def test_every_kind_of_edit_has_a_form_that_menus_show() -> None:
    kinds = {type(edit).__struct_config__.tag for edit in (ed.parse(text) for text in ONE_OF_EACH)}
    assert kinds == {kind.__struct_config__.tag for kind in ed.AnyEdit.__args__}
    assert {text.split()[0] for text in ONE_OF_EACH} == {form.word for form in ed.FORMS}


SPEC = '{"id": "new", "queue": "a", "groups": [{"request": {"cpu_milli": 1000}}]}'
ONE_OF_EACH = (
    "add 4 nodes to gpu rack=r9 zone=z0",
    "remove g0,g1",
    "resize gpu to 6 nodes",
    "fail rack=r1 for 90m at +1h30m",
    "shock spot 12.5% for 1h",
    "drain pool=cpu",
    "cordon block=b0",
    "uncordon g2 g3",
    "quota a gpu=0.5 memory=4TiB cpu=500m evict",
    "weight a 3",
    "hold-queue a",
    "open-queue a",
    "policy conservative",
    "priority one,two high",
    f"submit {SPEC}",
    "preempt one",
    "cancel one",
    "migrate one,two to g1,g2",
)


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("", "is empty", "Edits: add, remove"),
        ("drian g0", "there is no edit 'drian'", "Did you mean: drain NODES?"),
        ("drain", "NODES is missing", "Write: drain NODES"),
        ("drain rakc=r1", "'rakc' is not a kind of place; did you mean rack?", ""),
        ("drain rack=", "the name of the rack is missing", ""),
        ("drain g0 at +soon", "'soon'", ""),
        ("fail g0 for ever", "'ever'", ""),
        ("fail for 2h", "NODES is missing", ""),
        ("shock for 2h", "'2h' is not a share such as 30%", ""),
        ("add four nodes to gpu", "'four' is not a whole number of nodes", "Write: add N nodes to POOL"),
        ("add 4 nodes", "is not complete", "Write: add N nodes to POOL"),
        ("add 4 nodes to gpu pool=x", "'pool' is not a kind of place", ""),
        ("add 4 nodes to gpu rack=a rack=b", "'rack' is given twice", ""),
        ("resize gpu", "N is missing", ""),
        ("resize gpu 4 5", "'5' is one word too many", ""),
        ("shock spot 30", "'30' is not a share such as 30%", ""),
        ("shock spot 0%", "'0%' is not a share", ""),
        ("shock spot 101%", "'101%' is not a share", ""),
        ("quota a gpus=4", "'gpus' is not a resource; did you mean gpu?", ""),
        ("quota a memory=4", "memory=4", ""),
        ("quota a", "QUEUE or quantities are missing", ""),
        ("weight a heavy", "'heavy' is not a whole number", ""),
        ("policy esay", "'esay' is not a policy; did you mean easy?", ""),
        ("priority one", "JOB or CLASS is missing", ""),
        ("submit work.yaml", "files are not read here", ""),
        ('submit {"id": 3}', "the workload's id is a number; it must be text", ""),
        ("migrate one g1", "JOB, 'to' or the place to move to is missing", ""),
        ("cancel \x1b[31m", "", ""),
    ],
)
def test_text_that_is_wrong_is_told_with_what_is_expected(text: str, problem: str, hint: str) -> None:
    if "\x1b" in text:
        assert "\x1b" not in ed.written(ed.parse(text)).encode("unicode_escape").decode()
        return
    with pytest.raises(SpecError) as caught:
        ed.parse(text)
    assert problem in caught.value.problem
    assert hint in (caught.value.remedy or "")


def test_of_several_lines_every_wrong_one_is_told() -> None:
    with pytest.raises(ed.EditsError) as caught:
        ed.parse_all(["drain g0", "drian g1", "weight a 3", "shock spot 30"])
    assert [problem.partition(" '")[0] for problem in caught.value.problems] == ["edit 2", "edit 4"]


# -- against a cell ---------------------------------------------------------------------------------------------------


@pytest.fixture
def engine() -> Engine:
    """`runs` holds two GPU nodes of four, `waits` waits for more than there is, `ended` has ended."""
    engine = Engine.open(None, cell=small_cell(gpu_nodes=4, cpu_nodes=2))
    engine.command(submit(workload("ended", cpu=1000, run=1000)))
    engine.advance(2000)
    engine.command(submit(workload("runs", count=2, gpu=8000, run=HOUR, estimate=HOUR)))
    engine.command(submit(workload("waits", count=4, gpu=8000, run=HOUR, estimate=HOUR)))
    return engine


def problems(engine: Engine, *texts: str) -> tuple[str, ...]:
    """What is wrong with them; nothing may have happened."""
    before = engine.state.digest()
    edits = ed.parse_all(texts)
    try:
        refuse_wrong(engine.state, edits, 24 * HOUR)
    except ed.EditsError as error:
        found = error.problems
    else:
        found = ()
    assert engine.state.digest() == before
    return found


@pytest.mark.parametrize("text", [text for text in ONE_OF_EACH if "one" not in text and "spot" not in text])
def test_what_the_cell_has_may_be_edited(engine: Engine, text: str) -> None:
    assert problems(engine, text) == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("add 4 nodes to gpuu", "there is no pool 'gpuu', did you mean gpu?"),
        ("add 0 nodes to gpu", "0 nodes is not from 1"),
        ("remove g9", "there is no node 'g9'"),
        ("drain rack=r7", "there is no rack 'r7'"),
        ("fail zone=z1", "there is no zone 'z1'"),
        ("drain pool=gpus", "there is no pool 'gpus', did you mean gpu?"),
        ("shock spot 30%", "there is no pool of spot nodes"),
        ("quota c gpu=1", "there is no queue 'c'"),
        ("weight a 0", "a weight of 0 is not from 1"),
        ("hold-queue roto", "there is no queue 'roto', did you mean root?"),
        ("priority waits hihg", "there is no priority class 'hihg', did you mean high?"),
        ("priority wiats high", "there is no workload 'wiats', did you mean waits?"),
        ("priority ended high", "'ended' has ended: it is finished"),
        ("preempt waits", "'waits' is not running: it is queued"),
        ("cancel ended", "'ended' has ended: it is finished"),
        ("migrate waits to cpu", "'waits' is not running: it is queued"),
        ("migrate runs to g2,g99", "there is no node 'g99'"),
        ("drain g0 at +25h", "its time is beyond the horizon"),
        (f"submit {SPEC.replace('new', 'waits')}", "workload 'waits' already exists"),
        (f"submit {SPEC.replace('1000', '-1')}", "-0.001 CPU is below 0"),
    ],
)
def test_what_the_cell_does_not_have_is_named_with_the_nearest(engine: Engine, text: str, problem: str) -> None:
    (told,) = problems(engine, text)
    assert problem in told
    assert told.startswith("edit 1 '")


def test_all_that_is_wrong_with_all_edits_is_told_at_once(engine: Engine) -> None:
    told = problems(engine, "drain g9,g0,g8", "weight a 3", "quota nobody gpu=1", "priority nobody no-class")
    assert [re.match(r"edit \d", problem)[0] for problem in told] == [*["edit 1"] * 2, "edit 3", *["edit 4"] * 2]


@pytest.mark.parametrize(
    ("texts", "about"),
    [
        (("weight a 2", "weight a 3"), "the weight of queue a"),
        (("policy fcfs", "policy easy"), "the policy"),
        (("hold-queue a", "open-queue a"), "the state of queue a"),
        (("quota a gpu=1", "quota a cpu=1"), "the quota of queue a"),
        (("resize gpu 4", "resize gpu 5"), "the size of pool gpu"),
        (("priority waits high", "priority waits low"), "the priority of waits"),
        (("drain g0", "uncordon g0"), "node 'g0'"),
        (("fail rack=r0", "drain g1"), "node 'g1'"),
        (("preempt runs", "cancel runs"), "workload 'runs'"),
        (("preempt runs", "migrate runs to g2,g3"), "workload 'runs'"),
        (("remove g2", "migrate runs to g2,g3"), "node 'g2'"),
        (("remove g0", "drain g0 at +1h"), "node 'g0' is gone by then"),
        (("cancel runs", "preempt runs at +1h"), "workload 'runs' is gone by then"),
        (("add 2 nodes to gpu", "resize gpu 9"), "nodes of pool 'gpu'"),
        (("add 2 nodes to gpu rack=r0", "fail rack=r0"), "nodes of pool 'gpu'"),
    ],
)
def test_edits_of_which_only_one_can_be_meant_contradict_each_other(
    engine: Engine, texts: tuple[str, ...], about: str
) -> None:
    (told,) = problems(engine, *texts)
    assert "contradict each other" in told
    assert about in told


@pytest.mark.parametrize(
    "texts",
    [
        ("weight a 2", "weight a 3 at +1h"),
        ("drain g0", "uncordon g0 at +1h"),
        ("fail g0 for 1h", "fail g0 for 1h at +3h"),
        ("add 2 nodes to gpu", "drain gpu-new-1 at +1h"),
        (f"submit {SPEC}", "cancel new at +1h"),
        ("preempt runs", "preempt runs at +1h"),
        ("migrate runs to g2,g3", "cordon g0"),
        ("preempt waits at +1h",),
    ],
)
def test_what_follows_one_after_the_other_does_not(engine: Engine, texts: tuple[str, ...]) -> None:
    assert problems(engine, *texts) == ()
