"""The linter: each way to write a runbook that says nothing, does too much or cannot be taken back is named."""

from __future__ import annotations

import re
import time

import pytest

from runbooks.procedures.linter import lint_file
from tests.support.runbook_texts import SOUND, STEP, but

CHECK = '{check: node_workloads, of: "${inputs.node}", op: "==", value: 0, within: 10m}'
WHEN = '{check: node_state, of: "${inputs.node}", op: "==", value: ready}'
INPUT = "    type: node_id\n"
NODES = 'with: {nodes: "${inputs.node}"}'


def rules(data: bytes) -> list[str]:
    return [problem.rule for problem in lint_file(data, "f.md")]


def test_a_sound_one_has_no_problems() -> None:
    assert lint_file(SOUND.encode(), "f.md") == ()


@pytest.mark.parametrize(
    ("old", "new", "rule", "line"),
    [
        # checks that say nothing
        (CHECK, '{check: node_workloads, of: "${inputs.node}", op: ">=", value: 0}', "vacuous-check", 18),
        (CHECK, '{check: node_workloads, of: "${inputs.node}", op: "<=", value: 1000000}', "vacuous-check", 18),
        (CHECK, '{check: node_state, of: "${inputs.node}", op: "!=", value: gone}', "vacuous-check", 18),
        (CHECK, '{check: node_state, of: "${inputs.node}", op: "!=", value: down}', "vacuous-check", 18),
        (CHECK, WHEN, "vacuous-check", 18),
        (CHECK, '{check: node_state, of: "${inputs.node}", op: "==", value: suspect}', "verify-never", 18),
        (WHEN, '{check: pool_free_gpus, of: "${inputs.node.pool}", op: ">=", value: 0}', "vacuous-check", 11),
        (WHEN, '{check: cell_fragmentation_permille, op: "<=", value: 1000}', "vacuous-check", 11),
        # verifications of something else, or none
        (CHECK, '{check: cell_waiting, op: "<=", value: 5}', "verify-elsewhere", 17),
        (CHECK, '{check: node_workloads, of: g7, op: "==", value: 0}', "verify-elsewhere", 18),
        (f"    verify:\n      - {CHECK}\n", "", "missing-verify", 14),
        # ways back
        ("    rollback: inverse\n", "", "missing-rollback", 14),
        ("rollback: inverse", "rollback: cannot", "wrong-rollback", 19),
        ("rollback: inverse", "rollback: none of your business", "wrong-rollback", 19),
        ("rollback: inverse", f"rollback: [{{action: drain, {NODES}}}]", "wrong-rollback", 19),
        ("rollback: inverse", "rollback: [{action: uncordon, with: {nodes: [g1]}}]", "wrong-rollback", 19),
        ("rollback: inverse", "rollback: []", "wrong-rollback", 19),
        ("rollback: inverse", f"rollback: [{{action: shell, {NODES}}}]", "unknown-action", 19),
        ("action: drain", "action: requeue", "wrong-rollback", 19),
        # limits
        ("max_nodes: 1", "max_nodes: 0", "limits-missing", 12),
        ("max_nodes: 1", "max_nodes: -1", "limits", 12),
        ("max_nodes: 1", "max_nodes: 100000", "limits", 12),
        ("max_gpus: 8, ", "", "limits-missing", 12),
        ("max_workloads: 8, ", "", "limits-missing", 12),
        ("max_duration: 30m", "max_duration: 5m", "limits-exceeded", 12),
        ("max_duration: 30m", "max_duration: 30", "form", 12),
        ("max_duration: 30m", "max_duration: 400d", "duration-range", 12),
        ("max_duration: 30m", "max_duration: 1s", "duration-range", 12),
        ("within: 10m", "within: 25h", "duration-range", 18),
        ("within: 10m", "within: soon", "duration-range", 18),
        ("    type: node_id\n", "    type: node_id\n    max_items: 9\n", "limits-exceeded", 13),
        # what is not in the catalogue, or not of its type
        ("action: drain", "action: run_shell", "unknown-action", 15),
        ("action: drain", "action: runbook", "unknown-action", 15),
        ("check: node_workloads", "check: node_ecc", "unknown-check", 18),
        (NODES, 'with: {node: "${inputs.node}"}', "unknown-parameter", 16),
        (NODES, "with: {}", "missing-parameter", 16),
        (NODES, 'with: {nodes: "${inputs.node}", grace: 5}', "unknown-parameter", 16),
        (NODES, 'with: {nodes: "${inputs.host}"}', "unknown-reference", 16),
        (NODES, 'with: {nodes: "${inputs.node.owner}"}', "unknown-reference", 16),
        (NODES, 'with: {nodes: "${inputs.node.pool}"}', "wrong-type", 16),
        (NODES, "with: {nodes: 7}", "wrong-type", 16),
        (NODES, "with: {nodes: [g1, g1]}", "wrong-type", 16),
        ("type: node_id", "type: queue", "wrong-type", 16),
        ('op: "==", value: 0', 'op: "=~", value: 0', "wrong-type", 18),
        ('op: "==", value: 0', 'op: "==", value: few', "wrong-type", 18),
        # selectors that mean all
        (NODES, 'with: {nodes: "*"}', "pattern", 16), (NODES, 'with: {nodes: ""}', "pattern", 16),
        (NODES, 'with: {nodes: ".*"}', "pattern", 16), (NODES, "with: {nodes: all}", "pattern", 16),
        (NODES, "with: {nodes: [g1, ANY]}", "pattern", 16), (NODES, "with: {nodes: []}", "pattern", 16),
        (NODES, 'with: {nodes: "g?"}', "pattern", 16), (NODES, 'with: {nodes: "g1,g2"}', "pattern", 16),
        (NODES, 'with: {nodes: "%"}', "pattern", 16), (NODES, 'with: {nodes: "!g1"}', "pattern", 16),
        (NODES, f"with: {{nodes: [{', '.join(f'g{i}' for i in range(60))}]}}", "pattern", 16),
        # templates and expressions
        (NODES, 'with: {nodes: "${inputs.node}x"}', "expression", 16),
        (NODES, 'with: {nodes: "${jndi:ldap://x}"}', "expression", 16),
        (NODES, 'with: {nodes: "${inputs.node or 1}"}', "expression", 16),
        (NODES, 'with: {nodes: "{{ self.__init__ }}"}', "pattern", 16),
        (NODES, 'with: {nodes: "$(curl x)"}', "pattern", 16), (NODES, 'with: {nodes: "`id`"}', "pattern", 16),
        (NODES, 'with: {nodes: "g1; rm -rf /"}', "pattern", 16),
        # ids that are not what they look like
        ("id: drain-one", "id: dr\u0430in-one", "confusable", 3), ("id: drain-one", "id: Drain One", "id", 3),
        ("id: drain-one", "id: ab", "id", 3), ("id: drain-one", "id: ../../etc/passwd", "id", 3),
        ("id: drain\n", "id: dr\u0430in\n", "confusable", 14),
        (NODES, "with: {nodes: [\u0261pu-1]}", "confusable", 16),
        # inputs
        ("when:", "  spare: {type: node_id}\nwhen:", "unused-input", 10),
        ("    type: node_id\n", "    type: node_id\n    default: g1\n", "default-target", 10),
        ("    type: node_id\n", "    type: node_id\n    max_items: 0\n", "input-range", 10),
        ("    type: node_id\n", "    type: node_id\n    max_items: 100000\n", "input-range", 10),
        ("    type: node_id\n", "    type: node_id\n    choices: [g1, g2]\n", "input-range", 8),
        ("    type: node_id\n", "    type: node_id\n    select: {nodes: ready, zone: z1}\n", "select", 10),
        ("    type: node_id\n", "    type: node_id\n    max_items: 1\n    select: {nodes: ready}\n", "select", 11),
        (INPUT, f'{INPUT}    max_items: 1\n    select: {{nodes: ready, zone: "*"}}\n', "pattern", 11),
        (INPUT, f"{INPUT}    max_items: 1\n    select: {{workloads: queued, queue: a}}\n", "select", 11),
        ("version: 1", "version: 0", "version", 4), ("version: 1", "version: 99999999", "version", 4),
        ("title: Drain one node", 'title: " "', "title", 5),
        (f"when:\n  - {WHEN}\n", "", "no-when", 2),
        ("It fails.\n", "", "prose", 21), ("## Aftercare\n", "", "prose", 21),
        ("The log.", "The log\u202e.", "hidden-text", 24), ("The log.", "The\u200b log.", "hidden-text", 24),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_rule_and_line(old: str, new: str, rule: str, line: int) -> None:
    found = lint_file(but((old, new)), "f.md")
    assert (rule, f"f.md:{line}") in [(problem.rule, problem.where) for problem in found], found
    for problem in found:
        assert problem.remedy
        assert problem.problem.isascii()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("owner: team", "status: approved\nowner: team", "cannot be set in a runbook"),
        ("owner: team", "tier: T0\nowner: team", "cannot be set in a runbook"),
        ("owner: team", "approved_by: [alice]\nowner: team", "cannot be set in a runbook"),
        ("owner: team", "expires: never\nowner: team", "cannot be set in a runbook"),
        ("owner: team", "include: [other]\nowner: team", "cannot be set in a runbook"),
        ("    rollback:", "    runbook: other\n    rollback:", "cannot be set in a runbook"),
        ("owner: team", "ower: x\nowner: team", "is not a field"),
        ("    rollback:", "    depends_on: [drain]\n    rollback:", "is not a field"),
        ("    rollback:", "    shell: id\n    rollback:", "is not a field"),
        ("schema: runbook/v1", "schema: runbook/v2", "is not allowed"),
        ("version: 1", "version: 1.0", "not a decimal integer"),
        ("version: 1", "version: .nan", "not a decimal integer"),
        ("max_nodes: 1", "max_nodes: many", "it must be a whole number"),
        ("type: node_id", "type: regex", "is not allowed"),
        ("inputs:", "inputs: &a", "anchor"),
        ("title: Drain one node", "title: !!python/object/apply:os.system [id]", "tag"),
        ("version: 1", "version: 1\nversion: 2", "given twice"),
        ("title: Drain one node", f"title: {'[' * 200}{']' * 200}", "16 levels"),
    ],
)  # fmt: skip
def test_what_has_not_the_form_is_one_problem(old: str, new: str, problem: str) -> None:
    (found,) = lint_file(but((old, new)), "f.md")
    assert found.rule == "form"
    assert problem in found.problem
    assert re.fullmatch(r"f\.md:\d+", found.where)


def test_the_nearest_name_is_told() -> None:
    (found,) = lint_file(but(("action: drain", "action: drian")), "f.md")
    assert found.remedy == "Did you mean drain?"
    assert "Did you mean verify?" in lint_file(but(("    verify:", "    verfy:")), "f.md")[0].remedy


def steps(count: int, *, one_node: bool) -> bytes:
    """So many drains: of one node, or of a node each."""
    inputs = "".join(f"  n{i}:\n    type: node_id\n" for i in range(count))
    made = "".join(
        STEP.replace("id: drain\n", f"id: drain-{chr(97 + i)}\n").replace("within: 10m", "within: 1m").replace(
            "inputs.node", "inputs.n0" if one_node else f"inputs.n{i}"
        )
        for i in range(count)
    )  # fmt: skip
    if one_node:
        inputs = "  n0:\n    type: node_id\n"
    return but(
        ("  node:\n    type: node_id\n", inputs),
        (STEP, made),
        ("max_nodes: 1", "max_nodes: 4"),
        (WHEN, WHEN.replace("node}", "n0}")),
    )


def test_twelve_small_drains_are_counted_together() -> None:
    (found,) = (p for p in lint_file(steps(12, one_node=False), "f.md") if p.rule == "limits-exceeded")
    assert "12 nodes, and max_nodes is 4" in found.problem
    assert "limits-exceeded" not in rules(steps(12, one_node=True)), "one node is one node, however often it is named"


def test_a_great_many_steps_end_quickly() -> None:
    begun = time.process_time()
    assert "steps" in rules(steps(25, one_node=True))
    many = SOUND.replace(STEP, "".join(f"  - {{id: s{i}, action: drain}}\n" for i in range(1800)))
    assert "steps" in rules(many.encode())
    huge = SOUND.replace(STEP, "".join(f"  - {{id: s{i}, action: drain}}\n" for i in range(100_000)))
    assert rules(huge.encode()) == ["form"]
    assert time.process_time() - begun < 3


def test_a_great_many_checks_and_inputs_end_quickly() -> None:
    begun = time.process_time()
    assert "checks" in rules(but((CHECK, CHECK + f"\n      - {CHECK}" * 600)))
    assert "inputs" in rules(but(("when:", "".join(f"  n{i}: {{type: pool}}\n" for i in range(2000)) + "when:")))
    assert time.process_time() - begun < 3


def test_steps_that_cannot_be_told_apart_are_named() -> None:
    twice = but((STEP, STEP + STEP))
    assert "duplicate-step" in rules(twice)
    alike = but((STEP, STEP + STEP.replace("id: drain", "id: dra1n")))
    assert "confusable" in rules(alike)


def test_inputs_that_select_each_other_are_a_cycle() -> None:
    inputs = """\
  node:
    type: node_id
    max_items: 1
    select: {nodes: ready, zone: "${inputs.zone}"}
  zone:
    type: node_id
    max_items: 1
    select: {nodes: ready, zone: "${inputs.node}"}
"""
    assert "cycle" in rules(but(("  node:\n    type: node_id\n", inputs)))


def test_a_state_is_verified_as_the_action_makes_it() -> None:
    """Each pair of an action and what it leads to is accepted; the state it starts from is not."""
    node = [("drain", "node_state", "cordoned"), ("cordon", "node_state", "cordoned")]
    for action, check, state in node:
        changed = CHECK.replace("node_workloads", check).replace("value: 0", f"value: {state}")
        assert rules(but(("action: drain", f"action: {action}"), (CHECK, changed))) == [], action
    back = but(
        ("action: drain", "action: uncordon"), ("value: ready", "value: cordoned"),
        (CHECK, CHECK.replace("node_workloads", "node_state").replace("value: 0", "value: ready")),
    )  # fmt: skip
    assert rules(back) == []


def test_what_an_earlier_step_did_is_no_news() -> None:
    """A drain is not verified by the cordon before it."""
    cordoned = CHECK.replace("node_workloads", "node_state").replace("value: 0", "value: cordoned")
    cordon = STEP.replace("action: drain", "action: cordon").replace(CHECK, cordoned).replace("id: drain", "id: cordon")
    assert rules(but((STEP, cordon + STEP))) == []
    lazy = cordoned.replace('"=="', '"!="').replace("cordoned", "ready")
    assert rules(but((STEP, STEP.replace(CHECK, lazy)))) == [], "alone it tells something"
    assert rules(but((STEP, cordon + STEP.replace(CHECK, lazy)))) == ["vacuous-check"]


def test_a_written_way_back_is_accepted_when_it_is_one() -> None:
    back = 'rollback: [{action: uncordon, with: {nodes: "${inputs.node}"}}]'
    assert rules(but(("rollback: inverse", back))) == []
    assert "on-fail" in rules(
        but(("rollback: inverse", "rollback: cannot\n    on_fail: rollback"), ("action: drain", "action: requeue"))
    )


def test_words_for_people_are_not_templates() -> None:
    step = '  - id: tell\n    action: open_review\n    with: {about: "${inputs.node}", text: "TEXT"}\n'
    for text, wrong in [("look at it", False), ("${inputs.node} fails", True), ("{{ 7*7 }}", True), ("`id`", True)]:
        found = rules(but((STEP, STEP + step.replace("TEXT", text))))
        assert found == (["expression"] if wrong else []), text
