"""Findings about nodes that fail: each only when there is something, with evidence, and never an act by itself."""

from __future__ import annotations

from typing import Any

import pytest

from engine.executors.agent_reports import AgentsReport, Straggler
from recommender.findings.failing_nodes import failing_nodes
from recommender.findings.suggestions import MAX_TARGETS


def report(**found: Any) -> AgentsReport:
    nothing: dict[str, Any] = {
        "version": 1, "now_ms": 0, "watched": 100, "suspect": 0, "mass_suspicion": False, "renewed": 0, "repeated": 0,
        "refused": 0, "strangers": (), "stranger_calls": 0, "skewed": (), "skewed_count": 0, "needs_hands": (),
        "flapping": (), "stragglers": (),
    }  # fmt: skip
    return AgentsReport(**(nothing | found))


def straggler(node: str, done: int = 120, task: int = 0) -> Straggler:
    return Straggler(
        node=node, workload="w", task=task, done_permille=done, median_permille=200, samples=3, members=8
    )  # fmt: skip


def test_where_nothing_is_wrong_nothing_is_said() -> None:
    assert failing_nodes(report()) == []


@pytest.mark.parametrize(
    ("found", "action", "targets", "says"),
    [
        ({"mass_suspicion": True, "suspect": 40}, "notify", (), "40 of 100 watched nodes are suspect at once"),
        (
            {"stragglers": (straggler("n3"),)},
            "drain",
            ("n3",),
            "drain node n3: its task of w runs at 0.6 of the gang's",
        ),
        ({"flapping": (("n1", 3), ("n2", 4))}, "drain", ("n1", "n2"), "flapped"),
        ({"needs_hands": (("n1", 3),)}, "notify", ("n1",), "needs a person"),
        ({"skewed": (("n1", -3_600_000),), "skewed_count": 1}, "notify", ("n1",), "1.0 h behind"),
        ({"strangers": (("x", 7),), "stranger_calls": 7}, "notify", (), "that nobody ordered: x"),
    ],
)
def test_a_finding_names_what_was_measured_and_what_might_be_done(
    found: dict[str, Any], action: str, targets: tuple[str, ...], says: str
) -> None:
    (suggestion,) = failing_nodes(report(**found))
    assert (suggestion.action, suggestion.targets) == (action, targets)
    assert says in suggestion.finding
    assert suggestion.evidence
    assert suggestion.counterfactual
    assert suggestion.alternatives[-1].startswith("No action")


def test_one_suggestion_for_each_node_with_stragglers_and_a_bound_on_targets() -> None:
    slow = (straggler("n1", 50), straggler("n2"), straggler("n1", 130, task=4))
    found = failing_nodes(report(stragglers=slow, flapping=tuple((f"n{i}", 3) for i in range(3 * MAX_TARGETS))))
    assert [suggestion.targets for suggestion in found[:2]] == [("n1",), ("n2",)]
    assert len(found[0].evidence) == 2
    assert len(found[2].targets) == MAX_TARGETS
