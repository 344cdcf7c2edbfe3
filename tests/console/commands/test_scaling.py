"""`muster pool scaling`, and what is typed to change how pools grow and shrink."""

from __future__ import annotations

import pytest

from console.actions.request_builder import SeenThrough, parse
from console.commands.capacity import lines
from console.forms.action_arguments import declared, typed
from console.text.plain_tables import overview_lines
from engine.model.errors import SpecError
from runbooks.plans.typed_plan import ScalingChange
from tests.console.fake_client import FakeClient
from tests.support.elastic_cells import elastic, order, pool

HOUR = 3_600_000


def change_of(name: str, line: str) -> ScalingChange | None:
    """What a line of the `:` bar asks for, an hour after the epoch."""
    action = declared(name)
    assert action.read is not None
    return action.read(typed(action, parse(name, line), lambda: HOUR), SeenThrough(FakeClient())).scaling


def test_pools_and_settings_are_told_and_text_of_others_is_no_markup() -> None:
    told = "\n".join(lines(FakeClient().scaling()))
    for text in ("WANTED", "gpu", "20 nodes from", "scale_down_after_ms", "priority, least-waste, price", "enabled"):
        assert text in told
    hostile = "\n".join(lines(FakeClient(hostile=True).scaling()))
    assert "\x1b" not in hostile


def test_what_is_typed_becomes_one_change() -> None:
    assert change_of("set-scaling", "gpu --most 40 --priority -2") == ScalingChange(most=40, priority=-2)
    change = change_of("set-targets", "gpu +2h=40 +6h=0")
    assert change == ScalingChange(targets=((3 * HOUR, 40), (7 * HOUR, 0)))
    assert change_of("set-targets", "gpu none") == ScalingChange()
    line = "--preset ca scan_every=30s scale_up_after_ms=5 enabled=no expanders=price,priority predict_permille=900"
    assert change_of("set-autoscaling", line) == ScalingChange(
        preset="ca",
        settings={
            "scan_every_ms": 30_000, "scale_up_after_ms": 5, "enabled": False, "expanders": ("price", "priority"),
            "predict_permille": 900,
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("set-scaling", "gpu", "no value is given"),
        ("set-scaling", "gpu --most many", "most"),
        ("set-targets", "gpu +2h", "TIME=NODES"),
        ("set-targets", "gpu soon=4", "is not a time"),
        ("set-targets", "gpu +2h=-4", "TIME=NODES"),
        ("set-autoscaling", "", "no value is given"),
        ("set-autoscaling", "scan=30s", "there is no setting 'scan'"),
        ("set-autoscaling", "enabled=perhaps", "neither yes nor no"),
        ("set-autoscaling", "scan_every=soon", "scan_every: 'soon' is not a duration"),
        ("set-autoscaling", "scale_up_after=30", "unit"),
        ("set-autoscaling", "predict_permille=high", "not a whole number"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, line: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        change_of(name, line)


def test_nodes_that_boot_or_are_ordered_are_in_the_overview() -> None:
    engine = elastic(pool("p", boot_ms=(600_000, 600_000)))
    order(engine, 3)
    nodes = "\n".join(overview_lines(engine.overview()))
    assert "0: 0 ready, 3 also ordered" in nodes
    engine.advance(60_000)
    assert "3: 0 ready, 3 booting" in "\n".join(overview_lines(engine.overview()))
