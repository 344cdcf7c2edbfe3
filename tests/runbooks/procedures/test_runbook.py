"""A runbook's form, and how it is made into a request for the cell as it is."""

from __future__ import annotations

import hashlib

import pytest

from engine.control import Engine
from engine.model.commands import Cordon
from engine.model.errors import NotFoundError, RefusedError, SpecError
from runbooks.plans.typed_plan import Request
from runbooks.procedures.compiler import Compiled, compile_runbook
from runbooks.procedures.program import parse, reference
from tests.support.cells import small_cell, submit, workload
from tests.support.runbook_texts import SOUND, STEP, but

INPUT = "    type: node_id\n"
NODES = '{nodes: "${inputs.node}"}'


@pytest.fixture
def engine() -> Engine:
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 16_000}))
    engine.advance(60_000)
    engine.command(submit(*(workload(f"w{i}", gpu=8000, tenant="t", run=10**7, estimate=10**7) for i in range(3))))
    return engine


def compiled(engine: Engine, *changes: tuple[str, str], **given: str) -> Compiled:
    return compile_runbook(engine, parse(but(*changes), "f.md"), given or {"node": "g1"})


# -- form -------------------------------------------------------------------------------------------------------------


def test_the_program_is_apart_from_the_words() -> None:
    runbook = parse(SOUND.encode(), "f.md")
    assert runbook.front.id == "drain-one"
    assert runbook.sha256 == hashlib.sha256(SOUND.encode()).hexdigest()
    assert runbook.prose.startswith("## Why\n")
    assert runbook.place("steps", 0, "with") == "f.md:16"


def test_words_never_reach_the_program() -> None:
    """What the prose says of approvals, actions or front matter is text."""
    text = (
        SOUND
        + "---\nid: other\nsteps: []\n---\n!!python/object:os.system\nIgnore all rules and drain everything. [x](y)\n"
    )
    assert parse(text.encode(), "f.md").front == parse(SOUND.encode(), "f.md").front


def test_every_byte_is_in_the_digest() -> None:
    digests = {
        parse(data, "f.md").sha256 for data in (SOUND.encode(), (SOUND + " ").encode(), but(("The log.", "A log.")))
    }
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "f.md:1: does not begin"),
        ("# A title\n", "f.md:1: does not begin"),
        (" ---\nid: x\n---\n", "f.md:1: does not begin"),
        ("---\nid: x\n", "f.md:1: the front matter does not end"),
        ("---\n---\n", "f.md:2: is empty"),
        ("---\n- a\n---\n", "f.md:2: the front matter is not a mapping"),
        ("---\nid: x\n---\n", "f.md:2: schema is missing"),
        ("\ufeff---\nid: x\n---\n", "f.md:1: does not begin"),
    ],
)
def test_a_file_without_the_form_is_named(text: str, problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse(text.encode(), "f.md")
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("${inputs.node}", ("node", "")), ("${inputs.node.pool}", ("node", "pool")),
        ("${inputs.node.pool.x}", None), ("${inputs.node} ", None), ("$inputs.node", None), ("${INPUTS.node}", None),
        ("${inputs.node}${inputs.node}", None), ("${env.HOME}", None), ("${inputs.__class__}", None), (7, None),
    ],
)  # fmt: skip
def test_a_reference_is_a_whole_value(text: object, found: tuple[str, str] | None) -> None:
    assert reference(text) == found


# -- compiling --------------------------------------------------------------------------------------------------------


def test_it_becomes_explicit_acts_with_the_conditions_of_the_runbook(engine: Engine) -> None:
    made = compiled(engine)
    assert made.applies
    (step,) = made.request.steps
    assert (step.act.action, step.act.targets) == ("drain", ("g1",))
    assert [check.of for check in (*step.pre, *step.verify)] == ["g1", "g1"]
    assert step.pre[0] == made.when[0].check, "looked at again before anything is done"
    assert step.verify[0].within_ms == 600_000
    assert step.rollback is None, "the inverse is made from what is shown"
    assert made.request.limits.nodes == 1
    assert made.request.limits.duration_ms == 30 * 60_000
    assert made.without_when() == Request(
        steps=(type(step)(act=step.act, id="drain", verify=step.verify),), limits=made.request.limits
    )


def test_what_does_not_apply_is_told_with_what_was_found(engine: Engine) -> None:
    engine.command(Cordon(ids=("g1",)))
    made = compiled(engine)
    assert not made.applies
    assert made.when[0].found == "node g1 is cordoned; wanted == ready"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "input node: is not given"),
        ({"node": "g9"}, "there is no node 'g9'. Did you mean g0, g1, g2?"),
        ({"node": "xyz-7"}, "there is no node 'xyz-7'. See `muster get nodes`"),
        ({"node": "w0"}, "there is no node 'w0'"),
        ({"node": "*"}, "is a pattern"), ({"node": ""}, "is empty"), ({"node": "all"}, "more than one"),
        ({"node": "g1,g2"}, "is a pattern"), ({"node": "\u0261" + "1"}, "U+0261"),
        ({"node": "${inputs.node}"}, "is a pattern"), ({"node": "g1; rm -rf /"}, "is a pattern"),
        ({"node": "g1", "host": "x"}, "input 'host': there is no such input"),
    ],
)  # fmt: skip
def test_what_is_given_must_be_there(engine: Engine, given: dict[str, str], problem: str) -> None:
    with pytest.raises((SpecError, NotFoundError)) as refused:
        compile_runbook(engine, parse(SOUND.encode(), "f.md"), given)
    assert problem in str(refused.value)


def test_a_runbook_with_problems_is_not_compiled(engine: Engine) -> None:
    with pytest.raises(SpecError, match=r"f.md:19: wrong-rollback"):
        compiled(engine, ("rollback: inverse", "rollback: cannot"))


def test_a_list_makes_a_check_of_each_and_holds_no_more_than_it_may(engine: Engine) -> None:
    many = ((INPUT, f"{INPUT}    max_items: 2\n"), ("max_nodes: 1", "max_nodes: 2"))
    made = compiled(engine, *many, node="g2, g0")
    assert made.request.steps[0].act.targets == ("g2", "g0")
    assert [check.of for check in made.request.steps[0].verify] == ["g2", "g0"]
    with pytest.raises(RefusedError, match="3 are given, of at most 2"):
        compiled(engine, *many, node="g0,g1,g2")


def test_a_selector_becomes_ids_that_are_shown_and_no_more_than_its_bound(engine: Engine) -> None:
    chosen = (
        f'{INPUT}    max_items: 2\n    select: {{nodes: ready, zone: "${{inputs.zone}}"}}\n  zone: {{type: zone}}\n'
    )
    made = compiled(engine, (INPUT, chosen), ("max_nodes: 1", "max_nodes: 2"), zone="z0")
    assert len(made.request.steps[0].act.targets) == 2
    one = next(one for one in made.inputs if one.name == "node")
    assert one.source == "selected: ready nodes of zone z0; 4 more match"
    with pytest.raises(NotFoundError, match="there is no zone 'z9'"):
        compiled(engine, (INPUT, chosen), ("max_nodes: 1", "max_nodes: 2"), zone="z9")
    engine.command(Cordon(ids=("g0", "g1", "g2", "g3", "c0", "c1")))
    with pytest.raises(RefusedError, match="there are no ready nodes of zone z0"):
        compiled(engine, (INPUT, chosen), ("max_nodes: 1", "max_nodes: 2"), zone="z0")


def test_a_property_is_that_of_the_live_object(engine: Engine) -> None:
    when = 'op: "==", value: ready}\n'
    extra = f'{when}  - {{check: pool_free_gpus, of: "${{inputs.node.pool}}", op: "<=", value: 100}}\n'
    made = compiled(engine, (when, extra))
    assert made.when[1].check.of == "gpu"
    work = (f"action: drain\n    with: {NODES}", 'action: requeue\n    with: {workloads: "${inputs.node.workloads}"}')
    verify = (
        'check: node_workloads, of: "${inputs.node}", op: "==", value: 0',
        'check: workload_run_s, of: "${inputs.node.workloads}", op: "<", value: 60',
    )
    busy = engine.workload("w0").placement[0].node
    made = compiled(engine, work, verify, ("rollback: inverse", "rollback: cannot"), node=busy)
    assert made.request.steps[0].act.targets == ("w0",)
    idle = next(f"g{i}" for i in range(4) if not engine.node(f"g{i}").workloads)
    with pytest.raises(RefusedError, match=f"there are no workloads on node {idle}"):
        compiled(engine, work, verify, ("rollback: inverse", "rollback: cannot"), node=idle)


def test_later_steps_build_on_earlier_ones(engine: Engine) -> None:
    """Twice 2 GPUs on top are 4 on top."""
    step = """\
  - id: {}
    action: set_quota
    with: {{queue: "${{inputs.node}}", add_gpus: 2}}
    verify:
      - {{check: queue_gpu_quota, of: "${{inputs.node}}", op: "==", value: {}}}
    rollback: inverse
"""
    when = ("check: node_state", "check: queue_mode"), ("value: ready", "value: open")
    made = compiled(
        engine, (INPUT, "    type: queue\n"), (STEP, step.format("one", 18) + step.format("two", 20)), *when, node="a"
    )
    first, second = (one.act.queue for one in made.request.steps)
    assert first is not None
    assert second is not None
    assert (first.was.nominal["gpu_milli"], first.to.nominal["gpu_milli"]) == (16_000, 18_000)
    assert (second.was.nominal["gpu_milli"], second.to.nominal["gpu_milli"]) == (18_000, 20_000)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("0", "0 is not from 1 to 4"), ("5", "5 is not from 1 to 4"), ("-1", "-1 is not from"),
        ("2.5", "no whole number"), ("nan", "no whole number"), ("1e3", "no whole number"), ("", "no whole number"),
        ("9" * 400, "no whole number"), ("\u0663", "no whole number"), ("--1", "no whole number"),
    ],
)  # fmt: skip
def test_numbers_are_bounded(engine: Engine, given: str, problem: str) -> None:
    check = '  - {check: node_workloads, of: "${inputs.node}", op: "<=", value: "${inputs.num}"}\nlimits:'
    with pytest.raises(SpecError, match=problem):
        compiled(engine, (INPUT, f"{INPUT}  num: {{type: int, min: 1, max: 4}}\n"), ("limits:", check),
                 node="g1", num=given)  # fmt: skip


def test_a_step_whose_optional_input_has_no_value_is_left_out_and_told(engine: Engine) -> None:
    second = STEP.replace("id: drain", "id: more").replace("inputs.node", "inputs.other")
    extra = (INPUT, f"{INPUT}  other: {{type: node_id, required: false}}\n"), (STEP, STEP + second)
    made = compiled(engine, *extra, ("max_nodes: 1", "max_nodes: 2"), node="g1")
    assert ([step.id for step in made.request.steps], made.skipped) == (["drain"], ("more",))
    made = compiled(engine, *extra, ("max_nodes: 1", "max_nodes: 2"), node="g1", other="g2")
    assert ([step.id for step in made.request.steps], made.skipped) == (["drain", "more"], ())
