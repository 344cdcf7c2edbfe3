"""`muster queue fairness`: shares as they read, and who went first by which rule."""

from __future__ import annotations

import pytest

from console.commands.capacity import fairness_lines, only, slurm_lines
from console.views.queues import share
from engine.external.slurm.records import Share
from engine.model.errors import NotFoundError
from tests.console.fake_client import FakeClient


def test_a_queue_is_one_line_with_what_it_holds_deserves_and_owes() -> None:
    lines = fairness_lines(FakeClient().fairness())
    assert " ".join(lines[0].split()) == "QUEUE WEIGHT USED QUOTA BORROWED LENT DESERVES SHARE PAST BURST"
    told = "research/train 2 96 GPU 64 GPU 32 GPU – 80 GPU 6.25% 1.2% burst, 42m left"
    assert " ".join(lines[1].split()) == told
    assert " ".join(lines[2].split()) == "prod 1 – – – – – 0% 0%"


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (0, "wl-1 of research/train before wl-2 of prod: higher band, 500 and 400"),
        (1, "it has waited so long that shares no longer count"),
        (2, "smaller share, 0% > 6.25% and 0% > 12%"),
        (3, "higher priority, 7 and 5"),
        (4, "it is older"),
        (5, "wl-9 of prod: nothing else could start"),
    ],
)
def test_a_start_says_by_which_rule_it_went_first(number: int, told: str) -> None:
    lines = fairness_lines(FakeClient().fairness())
    assert told in lines[lines.index("last starts, and why each went first") + 1 + number]


def test_one_queue_with_the_starts_it_won_or_lost() -> None:
    report = only(FakeClient().fairness(), "research/train")
    assert [vertex.name for vertex in report.queues] == ["research/train"]
    assert len(report.decisions) == 5
    with pytest.raises(NotFoundError, match="nowhere"):
        only(report, "nowhere")


def test_small_shares_can_be_told_apart() -> None:
    assert [share(ppb) for ppb in (0, 1_000_000_000, 125_000_000, 310_000, 320_000)] == [
        "0%", "100%", "12.5%", "0.031%", "0.032%",
    ]  # fmt: skip


def test_names_of_strangers_cannot_act_on_the_terminal() -> None:
    text = "\n".join(fairness_lines(FakeClient(hostile=True).fairness()))
    assert not set(text) & {"\x1b", "\x07", "\u202e", "\u2066"}


def test_where_slurm_decides_its_own_shares_are_told_who_goes_first_first() -> None:
    shares = (
        Share(account="lab", shares_normalized=0.5, usage_effective=0.75),
        Share(account="lab", user="bob", shares_normalized=0.1, usage_effective=0.6, factor=0.2),
        Share(account="lab", user="\x1b[2Jann", factor=0.9),
    )
    lines = [" ".join(line.split()) for line in slurm_lines(shares)]
    assert lines[2:4] == ["ACCOUNT USER SHARE USED FACTOR", "lab – 50.0% 75.0% –"]
    assert lines[4].endswith("ann – – 0.900")
    assert lines[5] == "lab bob 10.0% 60.0% 0.200"
    assert "\x1b" not in "".join(lines)
    assert slurm_lines(()) == []
