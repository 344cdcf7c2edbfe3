"""Work that runs for real, as processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from engine.executors.gang_tasks import holders_of
from engine.executors.task_files import AttemptKey, Bounds, OutputRequest, attempt_folder, part_of, report_of, status_of
from engine.model.commands import Cancel, Requeue
from engine.model.errors import NotFoundError, SpecError
from engine.model.spec_parts import check_run
from engine.model.specs import RunSpec
from tests.support.patience import PATIENCE_S
from tests.support.real_crash import crash_rounds
from tests.support.real_work import Desk, desk, job

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are looked after on Linux alone"
)


SAVES = (
    sys.executable, "-IS", "-c",
    "import os, signal; signal.signal(15, lambda *_: (os.write(1, b'saved\\n'), os._exit(0))); "
    "os.write(1, b'on\\n'); signal.pause()",
)  # fmt: skip
LINGERS = (
    sys.executable, "-IS", "-c",
    "import os, signal, time; signal.signal(15, lambda *_: (time.sleep(0.4), os._exit(1))); "
    "os.write(1, b'on\\n'); signal.pause()",
)  # fmt: skip


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.stop_all()


def output(here: Desk, name: str, task: str = "", attempt: int = 0) -> bytes:
    submitted = here.engine.workload(name).submitted_ms
    return part_of(here.root, submitted, OutputRequest(id=name, task=task, attempt=attempt, offset=0)).data


def task_folder(here: Desk, name: str, attempt: int = 1, task: str = "main.0") -> Path:
    return attempt_folder(here.root, AttemptKey(name, here.engine.workload(name).submitted_ms, attempt)) / task


def test_it_runs_and_what_it_writes_is_kept(here: Desk) -> None:
    here.submit(
        job("a", 'echo "$MUSTER_WORKLOAD $MUSTER_ATTEMPT $GREETING"; pwd; echo oops >&2', env={"GREETING": "hi"})
    )
    here.until_state("a", "finished")
    assert output(here, "a") == b"a 1 hi\n/tmp\noops\n"
    assert here.told("a") == ["submitted", "placed: on 1 node", "running", "finished"]


def test_how_it_ends_is_told(here: Desk) -> None:
    here.submit(
        job("code", "exit 3"), job("killed", "kill -SEGV $$"), job("nowhere", "true", "x", cwd="/does/not/exist"),
        job("missing", "/no/such/program", "x"),
    )  # fmt: skip
    for name in ("code", "killed", "nowhere", "missing"):
        here.until_state(name, "failed")
    assert "exited: task 0 with code 3" in here.told("code")
    assert "exited: task 0 by SIGSEGV" in here.told("killed")
    assert "exited: task 0 with code 127" in here.told("missing")
    assert output(here, "missing") == b"muster: it could not be started: No such file or directory: /no/such/program\n"
    assert b"/does/not/exist" in output(here, "nowhere")


def test_a_gang_begins_together_and_fails_together(here: Desk, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    script = (
        'echo "$RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"; touch there/$RANK; '
        "while [ $(ls there | wc -l) -lt 3 ]; do sleep 0.02; done; [ $RANK = 1 ] && exit 7; sleep 60"
    )
    here.submit(job("g", script, tasks=3, cwd=str(tmp_path)))
    here.until_state("g", "failed")
    assert "exited: task 1 with code 7" in here.told("g")
    said = [output(here, "g", str(rank)).decode().strip() for rank in range(3)]
    ports = {line.rpartition(":")[2] for line in said}
    assert [line.split()[0] for line in said] == ["0", "1", "2"]
    assert len(ports) == 1
    report = report_of(here.root, "g", here.engine.workload("g").submitted_ms)
    assert [task.ended for task in report.attempts[0].tasks] == ["by SIGTERM", "with code 7", "by SIGTERM"]


def test_cancelled_work_may_save_itself_and_is_killed_after_its_grace(here: Desk) -> None:
    here.submit(
        job("polite", *SAVES),
        job("stubborn", "trap '' TERM; echo on; sleep 60 & wait; sleep 60", grace_ms=300),
    )
    here.until(lambda: b"on" in _said(here, "polite") and b"on" in _said(here, "stubborn"))
    here.engine.command(Cancel(ids=("polite", "stubborn")))
    for name, number in (("polite", 0), ("stubborn", signal.SIGKILL)):
        folder = task_folder(here, name)
        here.until(lambda folder=folder: status_of(folder).phase == "ended")
        assert status_of(folder).signal == number
    assert output(here, "polite") == b"on\nsaved\n"


@pytest.mark.thorough
def test_the_next_attempt_waits_for_the_end_of_the_one_before(here: Desk) -> None:
    here.submit(job("a", *LINGERS))
    here.until(lambda: b"on" in _said(here, "a"))
    here.engine.command(Requeue(ids=("a",)))
    here.until(lambda: b"on" in _said(here, "a", 2))
    first, second = status_of(task_folder(here, "a", 1)), status_of(task_folder(here, "a", 2))
    assert first.phase == "ended"
    assert first.ended_ms <= second.started_ms


@pytest.mark.thorough
def test_a_device_belongs_to_one_at_a_time_also_while_it_is_being_left(tmp_path: Path) -> None:
    here = Desk(tmp_path, desk(gpus=1))
    try:
        here.submit(job("first", *LINGERS, gpu=1000))
        here.until(lambda: b"on" in _said(here, "first"))
        here.submit(
            job("second", 'echo "device $CUDA_VISIBLE_DEVICES"', gpu=1000),
            job("none", 'echo "[$CUDA_VISIBLE_DEVICES]"'),
        )
        here.engine.command(Cancel(ids=("first",)))
        here.until_state("second", "finished")
        here.until_state("none", "finished")
        assert output(here, "second") == b"device 0\n"
        assert output(here, "none") == b"[]\n"
        ended = status_of(task_folder(here, "first")).ended_ms
        assert ended <= status_of(task_folder(here, "second")).started_ms
    finally:
        here.stop_all()


@pytest.mark.thorough
def test_memory_beyond_the_request_ends_it(here: Desk) -> None:
    here.submit(job("big", sys.executable, "-c", "x = bytearray(200 << 20); import time; time.sleep(60)", memory=64))
    here.until_state("big", "failed")
    assert "exited: task 0 by SIGKILL: its memory limit" in here.told("big")


@pytest.mark.thorough
def test_time_beyond_the_limit_ends_it(here: Desk) -> None:
    here.submit(job("long", "sleep 60", max_runtime_ms=300))
    here.until_state("long", "failed")
    assert here.told("long")[-1] == "failed: max runtime"
    here.until(lambda: not holders(here, "long"), "its process to end")


@pytest.mark.thorough
def test_what_it_leaves_behind_ends_with_it(here: Desk) -> None:
    here.submit(job("parent", "setsid sleep 61 & sleep 62 & echo done"))
    here.until_state("parent", "finished")
    assert not holders(here, "parent")


@pytest.mark.thorough
def test_it_is_tried_again_as_often_as_it_may(here: Desk) -> None:
    here.submit(job("flaky", '[ "$MUSTER_ATTEMPT" = 3 ]', retries=2, backoff_ms=1))
    here.until_state("flaky", "finished")
    assert here.engine.workload("flaky").attempts == 3


def test_output_is_bounded_and_its_beginning_and_end_are_kept(tmp_path: Path) -> None:
    here = Desk(tmp_path, bounds=Bounds(task=90_000))
    try:
        here.submit(job("loud", sys.executable, "-c", "for i in range(100000): print(f'line {i:06}')"))
        here.until_state("loud", "finished")
        kept = sum(file.stat().st_size for file in task_folder(here, "loud").glob("output.*"))
        assert kept <= 90_000
        submitted = here.engine.workload("loud").submitted_ms
        first = part_of(here.root, submitted, OutputRequest(id="loud", offset=0, most=24))
        last = part_of(here.root, submitted, OutputRequest(id="loud", offset=-24))
        beyond = part_of(here.root, submitted, OutputRequest(id="loud", offset=50_000, most=10))
        assert first.data == b"line 000000\nline 000001\n"
        assert last.data == b"line 099998\nline 099999\n"
        assert (last.end, last.over) == (1_200_000, True)
        assert beyond.offset > 1_000_000
    finally:
        here.stop_all()


@pytest.mark.thorough
def test_a_disk_that_is_full_does_not_stop_the_work(tmp_path: Path) -> None:
    here = Desk(tmp_path, bounds=Bounds(least_free=1 << 60))
    try:
        here.submit(job("a", "echo lost"))
        here.until_state("a", "finished")
        submitted = here.engine.workload("a").submitted_ms
        assert part_of(here.root, submitted, OutputRequest(id="a")).dropped_bytes == 5
    finally:
        here.stop_all()


def test_it_survives_the_engine(here: Desk, tmp_path: Path) -> None:
    """What ends meanwhile has ended, what runs goes on, and neither is begun again."""
    mark = tmp_path / "began"
    here.submit(
        job("short", f"echo x >> {mark}; sleep 0.3; exit 5"),
        job("long", f"echo x >> {mark}; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo end"),
    )
    here.until(lambda: here.state("short") == here.state("long") == "running")
    short = task_folder(here, "short")
    here.close()
    _wait(lambda: status_of(short).phase == "ended")
    here.again()
    here.pass_time()
    assert here.engine.workload("short").ended_ms == status_of(short).ended_ms
    assert here.state("short") == "failed"
    assert "exited: task 0 with code 5" in here.told("short")
    (tmp_path / "go").touch()
    here.until_state("long", "finished")
    assert output(here, "long") == b"end\n"
    assert mark.read_text() == "x\nx\n"


@pytest.mark.thorough
def test_what_was_cancelled_while_its_end_was_not_seen_is_stopped_after_all(here: Desk) -> None:
    """The engine dies between what is durable and what it does about it."""
    here.submit(job("a", "sleep 60"))
    here.until_state("a", "running")
    here.until(lambda: bool(holders(here, "a")), "its process")
    here.engine.executor.carry_out = lambda: None  # type: ignore[method-assign]
    here.engine.command(Cancel(ids=("a",)))
    here.close()
    assert holders(here, "a")
    here.again()
    here.until(lambda: not holders(here, "a"), "its process to end")


def test_what_was_started_in_the_journal_alone_is_started_after_all(here: Desk) -> None:
    here.submit(job("a", "echo $MUSTER_ATTEMPT"))
    here.engine.executor.carry_out = lambda: None  # type: ignore[method-assign]
    here.until_state("a", "placed")
    here.close()
    here.again()
    here.until_state("a", "finished")
    assert output(here, "a") == b"1\n"


@pytest.mark.thorough
def test_work_whose_keeper_is_killed_is_swept_away_and_begins_again(here: Desk) -> None:
    here.submit(job("a", '[ "$MUSTER_ATTEMPT" = 2 ] && exit 0; setsid sleep 63 & echo on; sleep 64', backoff_ms=1))
    here.until(lambda: b"on" in _said(here, "a"))
    os.kill(status_of(task_folder(here, "a")).keeper, signal.SIGKILL)
    here.until_state("a", "finished")
    assert "requeued: processes lost" in here.told("a")
    assert not holders(here, "a")


@pytest.mark.thorough
def test_elastic_work_grows_and_shrinks_while_it_runs(tmp_path: Path) -> None:
    here = Desk(tmp_path, desk(cpus=4))
    try:
        spec = job("wide", "echo on; sleep 60", tasks=4)
        group = msgspec.structs.replace(spec.groups[0], min_count=1)
        here.submit(msgspec.structs.replace(spec, groups=(group,), elastic=True))
        names = [f"main.{index}" for index in range(4)]
        here.until(lambda: all(holders(here, "wide", task=name) for name in names), "four tasks")
        here.submit(job("narrow", "sleep 0.5", cpu=2000))
        here.until_state("narrow", "finished")
        assert here.state("wide") == "running"
        told = here.told("wide")
        assert any(line.startswith("shrunk") for line in told), told
        here.until(lambda: all(holders(here, "wide", task=name) for name in names), "four tasks again")
        assert here.engine.workload("wide").attempts == 1
    finally:
        here.stop_all()


@pytest.mark.thorough
def test_an_old_life_of_the_same_name_is_another(here: Desk, tmp_path: Path) -> None:
    """A journal that is begun anew beside what is left of another."""
    here.submit(job("a", "echo old"))
    here.until_state("a", "finished")
    here.stop_all()
    for file in tmp_path.glob("journal.db*"):
        file.unlink()
    again = Desk(tmp_path)
    again.submit(job("a", "echo new"))
    again.until_state("a", "finished")
    assert output(again, "a") == b"new\n"
    here.engine = again.engine


def test_output_of_what_there_is_not_is_refused_by_name(here: Desk) -> None:
    here.submit(job("a", "true", "x"))
    here.until_state("a", "finished")
    submitted = here.engine.workload("a").submitted_ms
    with pytest.raises(NotFoundError, match=r"no task 'main.7'"):
        part_of(here.root, submitted, OutputRequest(id="a", task="main.7"))
    with pytest.raises(NotFoundError, match="has no attempt 4"):
        part_of(here.root, submitted, OutputRequest(id="a", attempt=4))


@pytest.mark.parametrize(
    ("run", "wrong"),
    [
        (RunSpec(argv=()), "argv"),
        (RunSpec(argv=("a\0b",)), r"argv\[0\]"),
        (RunSpec(argv=("a", "\ud800")), r"argv\[1\]"),
        (RunSpec(argv=("a",), env={"A=B": "1"}), "env"),
        (RunSpec(argv=("a",), env={"MUSTER_TOKEN": "1"}), "env.MUSTER_TOKEN"),
        (RunSpec(argv=("a",), cwd="here"), "cwd"),
        (RunSpec(argv=("a", "x" * 200_000)), "run"),
        (RunSpec(argv=("a",), grace_ms=-1), "grace_ms"),
    ],
)
def test_a_run_that_nobody_could_mean_is_refused(run: RunSpec, wrong: str) -> None:
    with pytest.raises(SpecError, match=wrong):
        check_run(run, "workload.run")


@pytest.mark.thorough
def test_engines_killed_at_random_lose_no_work_and_begin_none_twice(tmp_path: Path) -> None:
    found = crash_rounds(tmp_path, rounds=8, jobs=60)
    assert found.killed == 8
    assert (found.lost, found.doubled, found.attempts) == (0, 0, 1)
    assert found.states == {"finished": 60}


def holders(here: Desk, name: str, attempt: int = 1, task: str = "main.0") -> list[int]:
    """Processes of one of its tasks."""
    try:
        file = json.loads((task_folder(here, name, attempt, task) / "task.json").read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):  # it is being written
        return []
    return holders_of(file["env"]["MUSTER_TASK_MARK"])


def _said(here: Desk, name: str, attempt: int = 0) -> bytes:
    try:
        return output(here, name, attempt=attempt)
    except NotFoundError:
        return b""


def _wait(done: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < give_up
        time.sleep(0.01)
