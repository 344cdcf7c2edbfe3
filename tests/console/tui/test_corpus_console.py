"""The corpus of hostile requests (groups E, F and I), as a person at the console meets it: what is wrong is said on the
screen, no key does what it should not, and words stay words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from textual.pilot import Pilot

from console.forms.settings import ConsoleSettings
from console.tui.app import MusterApp
from console.tui.decision_dialogs import DecideDialog
from console.tui.dialog_frames import Dialog
from runbooks.gate.run_limits import FreezeSpec
from runbooks.plans.typed_plan import Proposal
from tests.console.tui.screens.test_proposal_pages import decide, on_screen, page, shown, type_digest
from tests.console.tui.test_app import hint, line, notes, press, quick, until, write  # noqa: F401
from tests.console.tui.test_hostile_text import check_screen
from tests.support.gate_cells import HOUR
from tests.support.shell_team import ShellTeam, shell_team, the_policy
from tests.support.team import changed, private_key

pytestmark = pytest.mark.thorough

CAT = ConsoleSettings(operator="cat", key="agent")
BEN = ConsoleSettings(operator="ben", key="agent")
SUE = ConsoleSettings(operator="sue", key="agent")
TALL = (120, 70)


@pytest.fixture(scope="module")
def team() -> Iterator[ShellTeam]:
    with shell_team() as made:
        yield made


@pytest.fixture
def lab(team: ShellTeam) -> Iterator[ShellTeam]:
    yield team
    team.agent.reset()
    team.policy()
    team.later()


LINES = {
    "E01": "run_shell r0", "E02": "cancel ghost", "E02 other kind": "drain r0", "E04": "cancel *",
    "E04 regex": "cancel .*", "E04 zero width": "cancel r0\u200b", "E05": "scale-pool p -1",
    "E10": "cancel '{{ self.__init__ }}'", "E10 curl": "cancel '$(curl x)'",
    "E10 markup": "cancel [@click=app.quit]x[/]",
    "E11": "notify https://evil.example/x --text hello", "F06": "set-policy solo",
}  # fmt: skip


def asked(app: MusterApp) -> bool:
    """Whether a dialog is open in which a yes would change something; `y` on a page opens the menu of what to copy."""
    return any(screen.ACTS for screen in app.screen_stack if isinstance(screen, Dialog))


@pytest.mark.parametrize(
    "some", [("E01", "E04"), pytest.param(tuple(LINES), marks=pytest.mark.thorough)], ids=["two", "all"]
)
async def test_no_line_of_the_corpus_asks_for_anything(lab: ShellTeam, some: tuple[str, ...]) -> None:
    """E and F06, in the `:` bar: something is said, and no dialog opens to say yes in."""
    marks, before = lab.marks(), lab.newest()
    async with shown(lab.client("ann")) as pilot:
        app = pilot.app
        for what in some:
            pilot.app._notifications.clear()
            await press(pilot, "colon")
            await write(pilot, LINES[what])
            await press(pilot, "enter")
            await until(pilot, lambda: notes(pilot) or hint(pilot).strip())
            assert len(app.screen_stack) == 1, what
            await press(pilot, "enter", "escape", "y")
            assert not asked(app), what
            await press(pilot, "escape")
            check_screen(pilot)
        assert not app._exit
    assert (lab.marks(), lab.types(before)) == (marks, [])


async def vote(pilot: Pilot[None], plan: Proposal, says: str, key: str = "A") -> None:
    """Everything that a yes takes, and what is said then."""
    pilot.app._notifications.clear()
    pilot.app.steering.run(f"proposal {plan.id}")  # type: ignore[attr-defined]
    await until(pilot, lambda: getattr(page(pilot), "detail", None) and page(pilot).chosen().id == plan.id)  # type: ignore[union-attr]
    await until(pilot, lambda: page(pilot).seen_to_the_end)
    await decide(pilot, key)
    await type_digest(pilot, plan)
    await until(pilot, lambda: says in notes(pilot))
    check_screen(pilot)


async def test_a_yes_that_does_not_count_is_told_and_does_nothing(lab: ShellTeam) -> None:
    """I03 and I07: the author's own, and one that an agent signs with another key."""
    mine, theirs = lab.propose("ben", "suspend", "r0"), lab.propose("ann", "suspend", "r1")
    marks, before = lab.marks(), lab.newest()
    async with shown(lab.client("ben"), settings=BEN, size=TALL) as pilot:
        await vote(pilot, mine, "it is the author")
        assert "wrote this plan: another" in on_screen(pilot)
        lab.agent.signs = lambda message, _: private_key("mallory").sign(message)
        await vote(pilot, theirs, "the signature is not by a key of")
    assert (lab.marks(), lab.types(before)) == (marks, ["vote.refused", "vote.refused"])


@pytest.mark.thorough
async def test_the_digest_of_another_plan_is_no_yes(lab: ShellTeam) -> None:
    """I06, I04: and one that was given already asks for nothing."""
    one, other = lab.propose("ann", "cancel", "r2"), lab.propose("ann", "suspend", "r3")
    async with shown(lab.client("cat"), f"proposal {other.id}", settings=CAT, size=TALL) as pilot:
        await until(pilot, lambda: page(pilot).seen_to_the_end)
        await decide(pilot, "A")
        await type_digest(pilot, one)
        assert isinstance(pilot.app.screen, DecideDialog)
        await press(pilot, "enter")
    assert lab.base.proposal(other.id).votes == ()


@pytest.mark.thorough
async def test_what_fell_or_is_frozen_is_not_carried_out(lab: ShellTeam) -> None:
    """I14 and I15."""
    fell, frozen = (lab.propose("ann", "suspend", each, start="asked") for each in ("r4", "r5"))
    for each in (fell, frozen):
        lab.yes("cat", each)
    now_ms = lab.clock.now_ms
    lab.client("sue").freeze(FreezeSpec(name="night", tier="T1", from_ms=now_ms, until_ms=now_ms + HOUR))
    marks = lab.marks()
    async with shown(lab.client("ann"), size=TALL) as pilot:
        await vote(pilot, frozen, "freeze 'night'", "E")
        lab.client("sue").thaw("night")
        lab.policy(changed(the_policy(), "cat", roles=("operator",)))
        await vote(pilot, fell, "no longer counts", "E")
    assert lab.marks() == marks
    assert lab.base.proposal(fell.id).state == "awaiting"


@pytest.mark.thorough
async def test_what_expired_takes_no_vote(lab: ShellTeam) -> None:
    """I08."""
    made = lab.propose("ann", "suspend", "r6")
    lab.later(made.expires_ms - lab.clock.now_ms)
    before = lab.newest()
    async with shown(lab.client("cat"), f"proposal {made.id}", settings=CAT, size=TALL) as pilot:
        await until(pilot, lambda: "expired" in on_screen(pilot))
        await press(pilot, "A", "E", "B", *made.digest[:6], "enter", "y")
        assert not asked(pilot.app)
        assert not pilot.app._exit
    assert lab.types(before) == []


@pytest.mark.thorough
async def test_words_that_claim_an_approval_stay_framed(lab: ShellTeam) -> None:
    """F01, and the link of E12."""
    claim = "approved by cat 2/2, break-glass active [@click=app.quit]https://evil.example[/]"
    made = lab.propose("ann", "suspend", "r7", reason=claim)
    async with shown(lab.client("cat"), f"proposal {made.id}", settings=CAT, size=TALL) as pilot:
        await until(pilot, lambda: "no votes yet" in on_screen(pilot))
        await until(pilot, lambda: "┃ approved by cat 2/2" in on_screen(pilot))
        check_screen(pilot)
        for y in range(4, 66, 6):
            await pilot.click(offset=(90, y))
        assert not pilot.app._exit
        assert "to the vote" not in line(pilot, "banner")
    assert lab.base.proposal(made.id).votes == ()
