"""What Slurm lost is sent again only as its workload says, and as far as it is shown that it had not begun."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from cells import small_cell, workload
from made_up_slurm import Connection, EngineLedger, MadeUpSlurm, OneByOne, outside_cell

from engine.control import Engine
from engine.external.slurm import start_evidence
from engine.external.slurm.capabilities import SlurmRefused
from engine.external.slurm.job_requests import MARKED_S, JobDestination, mark_of, wish_of
from engine.external.slurm.records import JobRequest, PastJob
from engine.external.slurm.session import V38, V42
from engine.external.slurm.start_evidence import START_S, LostSubmission, StartEvidence, Traces, decide
from engine.external.slurm.submission_carrier import Submitter
from engine.model.commands import Submit
from engine.model.errors import SpecError
from engine.model.specs import ArraySpec, Rerun, RunSpec, WorkloadSpec
from engine.state.external_cell import Intent, Phase, wanted

TOKEN = "1-" + 20 * "a"
MODES: tuple[Rerun, ...] = ("always", "if-unstarted", "never")
BEGUN, UNBEGUN = {"begun": ("it left its mark",)}, {"unbegun": "no mark of it"}


@pytest.mark.parametrize(
    ("known", "steps"),
    [
        ({"unreached": "it did not reach slurmctld"}, "again again again"),
        ({"unreached": "it did not reach slurmctld", "unasked": "no accounting"}, "again again again"),
        ({"ended": "it ended as COMPLETED"}, "done done done"),
        ({"ended": "it ended as COMPLETED", **BEGUN}, "done done done"),
        (BEGUN, "again doubt doubt"),
        ({**BEGUN, **UNBEGUN}, "again doubt doubt"),
        (UNBEGUN, "again again doubt"),
        ({}, "again doubt doubt"),
        ({"untold": ("accounting never had it",)}, "again doubt doubt"),
        ({"unasked": "no accounting"}, "doubt doubt doubt"),
        ({"unasked": "no accounting", **UNBEGUN}, "doubt again doubt"),
    ],
)
def test_what_follows_is_its_word_and_what_is_known(known: dict[str, object], steps: str) -> None:
    evidence = msgspec.convert(known, StartEvidence)
    assert " ".join(decide(mode, evidence) for mode in MODES) == steps
    assert decide("", evidence) == steps.split()[0]  # of a journal from before there was such a word


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that its nodes see too."""
    monkeypatch.setattr(start_evidence, "PRIVATE", ())
    return tmp_path


def spec(folder: Path, rerun: Rerun, **more: object) -> WorkloadSpec:
    made = msgspec.structs.replace(workload("w"), run=RunSpec(argv=("echo", "ran"), cwd=str(folder)), rerun=rerun)
    return msgspec.structs.replace(made, **more)  # type: ignore[arg-type]


# -- the mark ----------------------------------------------------------------------------------------------------------


def run(folder: Path, rerun: Rerun, *, now_s: int = 2**40, task: str = "") -> tuple[int, str]:
    """Exit status and output of its script, as a node runs it."""
    wish = wish_of(spec(folder, rerun), TOKEN, JobDestination(), now_s=now_s)
    env = {"PATH": "/usr/bin:/bin"} | ({"SLURM_ARRAY_TASK_ID": task} if task else {})
    done = subprocess.run(["sh", "-c", wish.script], env=env, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_a_job_that_may_never_run_twice_does_not_begin_again(folder: Path) -> None:
    assert run(folder, "never") == (0, "ran\n")
    assert run(folder, "never") == (75, "")


def test_each_task_of_an_array_begins_once(folder: Path) -> None:
    assert [run(folder, "never", task=task)[0] for task in ("1", "2", "1")] == [0, 0, 75]


def test_a_job_that_slurm_itself_puts_back_begins_again_unless_its_work_may_never(folder: Path) -> None:
    assert [run(folder, "if-unstarted") for _ in range(2)] == [(0, "ran\n")] * 2
    assert (folder / mark_of(TOKEN, 0)).is_dir()


@pytest.mark.parametrize(("rerun", "now_s"), [("always", 2**40), ("if-unstarted", 1000)])
def test_no_mark_is_left_of_what_nobody_asks_about(folder: Path, rerun: Rerun, now_s: int) -> None:
    assert run(folder, rerun, now_s=now_s) == (0, "ran\n")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("rerun", ["never", "if-unstarted"])
def test_a_job_that_cannot_leave_its_mark_does_not_begin(folder: Path, rerun: Rerun) -> None:
    assert run(folder / "gone", rerun) == (75, "")


@pytest.mark.parametrize(("rerun", "requeue"), [("never", False), ("if-unstarted", None), ("always", True)])
def test_slurms_own_requeue_is_asked_for_as_the_word_says(folder: Path, rerun: Rerun, requeue: bool | None) -> None:
    wish = wish_of(spec(folder, rerun), TOKEN, JobDestination())
    assert V42("v0.0.42").submission(wish)["job"].get("requeue") is requeue
    early = V38().submission(wish)["job"]
    # 22.05 takes any value of either for a yes.
    assert {name: early[name] for name in ("requeue", "no_requeue") if name in early} == {
        False: {"no_requeue": True}, None: {}, True: {"requeue": True},
    }[requeue]  # fmt: skip


# -- traces ------------------------------------------------------------------------------------------------------------


def traces_of(folder: Path, slurm: MadeUpSlurm | None = None, **more: object) -> StartEvidence:
    lost = LostSubmission(
        token=TOKEN, rerun="if-unstarted", tries=1, workdir=str(folder), job=7, not_before_ms=0, sent_ms=0, alive_s=90,
        purged=False,
    )  # fmt: skip
    lost = msgspec.structs.replace(lost, **more)
    far = Connection(slurm or MadeUpSlurm(random.Random(1)))
    return Traces(far, [lost], 1_000_000, lambda job: True).of(lost)


def test_no_mark_in_a_folder_that_the_nodes_share_shows_that_it_had_not_begun(folder: Path) -> None:
    assert traces_of(folder).unbegun


@pytest.mark.parametrize("tries", [0, 1])
def test_a_mark_of_any_of_its_copies_shows_that_it_began(folder: Path, tries: int) -> None:
    (folder / mark_of(TOKEN, tries)).mkdir()
    evidence = traces_of(folder)
    assert (bool(evidence.begun), evidence.unbegun) == (True, "")


def test_a_folder_shows_nothing_where_the_nodes_may_see_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = MadeUpSlurm(random.Random(1))
    slurm.machines["node2"] = "192.0.2.7"
    assert "node node2 is another" in traces_of(folder, slurm).text
    monkeypatch.setattr(start_evidence, "_file_system", lambda path: "nfs4")
    assert traces_of(folder, slurm).unbegun
    assert "cannot read it" in traces_of(folder / "gone", slurm).text
    monkeypatch.setattr(start_evidence, "PRIVATE", (str(folder),))
    assert traces_of(folder, slurm).unbegun == ""


def test_what_is_missed_late_may_have_begun_without_a_mark(folder: Path) -> None:
    assert traces_of(folder, alive_s=MARKED_S).unbegun == ""
    assert traces_of(folder, alive_s=MARKED_S, rerun="never").unbegun


def test_what_was_not_to_begin_yet_had_not(folder: Path) -> None:
    assert "not to begin before" in traces_of(folder / "gone", not_before_ms=1_100_000).unbegun


def test_accounting_shows_that_it_began_or_ended_and_by_silence_nothing(folder: Path) -> None:
    slurm = MadeUpSlurm(random.Random(1))
    past = PastJob(id=7, name="w.maaaaaaaa", state="RUNNING", start_s=5)
    slurm.history = lambda since: (past,)  # type: ignore[method-assign]
    assert "began" in traces_of(folder, slurm).begun[0]
    past = msgspec.structs.replace(past, state="PENDING")  # that start is only expected
    assert traces_of(folder, slurm).begun == ()
    past = msgspec.structs.replace(past, state="COMPLETED", end_s=9)
    assert traces_of(folder, slurm).ended == "it ended as COMPLETED meanwhile"
    assert traces_of(folder, slurm, array=True).ended == ""
    slurm.history = lambda since: ()  # type: ignore[method-assign]
    assert "proves nothing" in traces_of(folder, slurm).text


def test_the_script_in_a_spool_here_shows_that_it_runs(folder: Path) -> None:
    slurm = MadeUpSlurm(random.Random(1))
    slurm.spool = lambda: f"{folder}/%n"  # type: ignore[method-assign]
    script = folder / "node1" / "job00007" / "slurm_script"
    script.parent.mkdir(parents=True)
    script.write_text(f"mkdir .muster-{TOKEN}.0")
    assert "runs here" in traces_of(folder, slurm).begun[0]


# -- carried -----------------------------------------------------------------------------------------------------------


class Cell:
    """A cell with one submission, on a Slurm that is killed."""

    def __init__(self, folder: Path, rerun: Rerun) -> None:
        self.slurm = MadeUpSlurm(random.Random(1), runs=False)
        self.engine = outside_cell()
        self.engine.advance(self.slurm.wall_ms())
        self.engine.command(Submit(workloads=(spec(folder, rerun),)))
        self.driver = self.new()

    def new(self) -> Submitter:
        return Submitter(
            Connection(self.slurm), EngineLedger(self.engine), OneByOne(), clock=self.slurm.clock,
            wall_ms=self.slurm.wall_ms,
        )  # fmt: skip

    def live(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.engine.advance(self.slurm.wall_ms())
            self.driver.turn()
            self.slurm.pass_time(1.0)

    @property
    def intent(self) -> Intent:
        intents = self.engine.state.intents
        return next(iter([*intents.open.values(), *intents.ended]))


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("rerun", MODES)
def test_what_a_killed_slurmctld_forgot(folder: Path, rerun: Rerun, begun: bool) -> None:
    cell = Cell(folder, rerun)
    cell.driver.turn()
    cell.slurm.crash()
    cell.slurm.restart()
    if begun:
        (folder / mark_of(cell.intent.token, 0)).mkdir()
    cell.live(40)
    if rerun != "always":
        assert Phase(cell.intent.phase) == Phase.ACCEPTED  # one that was on its way to a node may begin yet
    cell.live(START_S + 40)
    again = rerun == "always" or (rerun == "if-unstarted" and not begun)
    assert (Phase(cell.intent.phase), cell.intent.tries) == ((Phase.DONE, 1) if again else (Phase.IN_DOUBT, 0))
    if not again:
        assert f"rerun is {rerun}" in cell.intent.text
        assert ("left its mark" if begun else "no mark of it") in cell.intent.text


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("rerun", MODES)
def test_what_no_answer_came_to(folder: Path, rerun: Rerun, restarted: bool) -> None:
    """Where slurmctld was started since, it may have run, and be forgotten. One that ran on would have it."""
    cell = Cell(folder, rerun)
    cell.slurm.now += 100
    (folder / mark_of(cell.intent.token, 0)).mkdir()
    cell.slurm.faults = 1.0
    cell.slurm.rng.choice = lambda faults: "lost request"  # type: ignore[method-assign,assignment]
    cell.live(1)
    cell.slurm.faults = 0.0
    if restarted:
        cell.slurm.crash()
        cell.slurm.restart()
    cell.live(200)
    again = rerun == "always" or not restarted
    assert Phase(cell.intent.phase) == (Phase.DONE if again else Phase.IN_DOUBT)


def test_what_never_reached_slurmctld_is_sent_whatever_its_word(folder: Path) -> None:
    cell = Cell(folder, "never")
    cell.slurm.crash()
    cell.live(10)
    cell.slurm.restart()
    cell.live(60)
    assert Phase(cell.intent.phase) == Phase.DONE


def test_muster_killed_as_it_sends_leaves_a_doubt_where_slurmctld_was_killed_too(folder: Path) -> None:
    cell = Cell(folder, "never")
    cell.slurm.now += 100
    cell.slurm.faults = 1.0
    cell.slurm.rng.choice = lambda faults: "lost answer"  # type: ignore[method-assign,assignment]
    cell.live(1)
    cell.slurm.faults = 0.0
    cell.slurm.crash()
    cell.slurm.restart()
    cell.driver = cell.new()
    cell.live(200)
    assert Phase(cell.intent.phase) == Phase.IN_DOUBT


def test_a_job_that_is_safe_leaves_no_mark_that_nobody_needs(folder: Path) -> None:
    for rerun, left in (("if-unstarted", 0), ("never", 1)):
        cell = Cell(folder, rerun)  # type: ignore[arg-type]
        cell.live(2)
        (folder / mark_of(cell.intent.token, 0)).mkdir()
        cell.live(60)
        assert (Phase(cell.intent.phase), len(list(folder.iterdir()))) == (Phase.DONE, left)


class EagerSlurm(MadeUpSlurm):
    """Half of its jobs begin as they are taken, before it has saved them."""

    def __init__(self, rng: random.Random, faults: float) -> None:
        super().__init__(rng, faults, runs=False)
        self.now = 2.0**33  # later than the clock that its scripts go by: they leave their marks
        self.ran: Counter[str] = Counter()

    def _take(self, wish: JobRequest) -> int:
        id_ = super()._take(wish)
        if "mkdir" in wish.script and self.rng.random() < 0.5:
            self._put(msgspec.structs.replace(self.jobs[id_], state="RUNNING", start_s=int(self.now)))
            done = subprocess.run(["sh", "-c", wish.script], check=False, capture_output=True)
            self.ran[wish.comment.removeprefix("muster:")] += done.returncode == 0
        return id_


@pytest.mark.parametrize("seed", range(12))
def test_nothing_runs_twice_or_is_lost_in_days_of_trouble(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    slurm = EagerSlurm(rng, rng.choice((0.0, 0.1, 0.4)))
    slurm.says_boot = rng.random() < 0.5
    engine = outside_cell()
    new = lambda: Submitter(  # noqa: E731
        Connection(slurm), EngineLedger(engine), OneByOne(), clock=slurm.clock, wall_ms=slurm.wall_ms
    )
    driver, wanted_ = new(), 0
    while wanted_ < 40:
        for _ in range(rng.randint(0, 5)):
            engine.advance(slurm.wall_ms())
            rerun = rng.choice(("never", "if-unstarted"))
            engine.command(Submit(workloads=(spec(folder, rerun, id=f"w{wanted_}"),)))  # type: ignore[arg-type]
            wanted_ += 1
        chance = rng.random()
        if chance < 0.15:
            slurm.crash()
        elif chance < 0.35:
            slurm.restart()
        elif chance < 0.45:
            driver = new()  # Muster was killed and is back
        engine.advance(slurm.wall_ms())
        driver.turn()
        slurm.pass_time(rng.uniform(0, 4))
    slurm.faults = 0.0
    slurm.restart()
    for _ in range(600):
        engine.advance(slurm.wall_ms())
        driver.turn()
        slurm.pass_time(1.0)
    intents = engine.state.intents
    assert (len(intents.open), len(intents.ended)) == (0, wanted_)
    assert {Phase(intent.phase) for intent in intents.ended} <= {Phase.DONE, Phase.IN_DOUBT}
    assert max(slurm.ran.values()) == 1
    for intent in intents.ended:
        done = Phase(intent.phase) == Phase.DONE
        assert not done or slurm.ran[intent.token] or any(intent.token in job.comment for job in slurm.jobs.values())
    unbegun = [wanted(each) for each in intents.ended if each.phase == Phase.IN_DOUBT and not slurm.ran[each.token]]
    assert all(isinstance(each, Submit) and each.workloads[0].rerun == "never" for each in unbegun)


# -- whose word --------------------------------------------------------------------------------------------------------


def test_its_own_word_goes_before_its_queues_and_that_before_the_cells() -> None:
    cell = small_cell()
    settings = msgspec.structs.replace(cell.settings, decided_by="slurm", queue_rerun={"b": "always"})
    engine = Engine.open(None, cell=msgspec.structs.replace(cell, settings=settings))
    engine.acts = True
    given = [("w1", "a", ""), ("w2", "b", ""), ("w3", "b", "never")]
    run = RunSpec(argv=("true",))
    for name, queue, rerun in given:
        one = msgspec.structs.replace(workload(name, queue=queue), run=run, rerun=rerun)  # type: ignore[arg-type]
        engine.command(Submit(workloads=(one,)))
    found = [wanted(intent).workloads[0].rerun for intent in engine.state.intents.open.values()]  # type: ignore[union-attr]
    assert found == ["if-unstarted", "always", "never"]


def test_a_cell_that_muster_decides_on_promises_nothing_of_the_kind() -> None:
    engine = Engine.open(None, cell=small_cell())
    with pytest.raises(SpecError, match="only in a cell that Slurm decides on"):
        engine.command(Submit(workloads=(msgspec.structs.replace(workload("w"), rerun="never"),)))


def test_an_array_is_not_over_with_one_of_its_tasks(folder: Path) -> None:
    wish = wish_of(spec(folder, "never", array=ArraySpec(last=3)), TOKEN, JobDestination())
    assert "SLURM_ARRAY_TASK_ID" in wish.script
    with pytest.raises(SlurmRefused):
        MadeUpSlurm(random.Random(1)).history(0)
