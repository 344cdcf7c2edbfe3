"""The child that asks a model: what it can reach, and what becomes of the engine's side whatever it does."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runbooks.drafts.typed_draft import DraftRejected
from runbooks.models.calls import PROGRAM, ModelReply, ModelWorker
from tests.hostile.harness import KEY, PRIVATE, Server, call_of, endpoint, serving
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
GOOD = {"id": "good"}
SILENT = {"id": "A02"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def worker(server: Server) -> Iterator[ModelWorker]:
    worker = ModelWorker(endpoint(server.url(), "good"), lambda: KEY)
    worker.warm()
    yield worker
    worker.close()


def ask(worker: ModelWorker, row: dict[str, str] = GOOD, cancelled: threading.Event | None = None) -> ModelReply:
    return worker.ask(call_of(row), cancelled=cancelled or threading.Event(), tell=lambda _phase, _bytes: None)


def reason(worker: ModelWorker, row: dict[str, str] = GOOD) -> str:
    with pytest.raises(DraftRejected) as rejected:
        ask(worker, row)
    assert KEY not in f"{rejected.value!s} {rejected.value.seen!r}"
    return rejected.value.reason


def is_gone(pid: int) -> bool:
    """No process and no zombie of it."""
    return not Path(f"/proc/{pid}").exists()


def in_a_moment(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if holds():
            return True
        select.select([], [], [], 0.005)
    return False


# -- what it can reach ------------------------------------------------------------------------------------------------


def test_it_has_no_environment_no_file_of_ours_and_few_rights(
    worker: ModelWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_MODEL_KEY", PRIVATE)
    with (
        (tmp_path / "journal.db").open("wb") as ours,
        contextlib.closing(ModelWorker(worker.endpoint, lambda: KEY)) as other,
    ):
        os.set_inheritable(ours.fileno(), True)
        ask(other)
        (pid,) = other.pids
        process = Path(f"/proc/{pid}")
        assert process.joinpath("environ").read_bytes() == b""
        assert os.readlink(process / "cwd") == "/"
        assert KEY.encode() not in process.joinpath("cmdline").read_bytes()
        held = [os.readlink(file) for file in process.joinpath("fd").iterdir()]
        kinds = {name.partition(":")[0] for name in held}
        assert kinds <= {"pipe", "socket", "anon_inode", "/dev/null"}
        assert sum(name.startswith("pipe:") for name in held) == 2
        # The two sockets are the event loop's own, to wake itself: none goes anywhere.
        inodes = {name.removeprefix("socket:[").removesuffix("]") for name in held if name.startswith("socket:")}
        connected = process.joinpath("net/tcp").read_text() + process.joinpath("net/tcp6").read_text()
        assert not inodes & set(connected.split())
        maps = process.joinpath("maps").read_text()
        assert not any(library in maps for library in ("sqlite", "msgspec", "numpy", "sqlalchemy", "textual"))
        limits = {
            line[:26].strip(): line[26:].split()[:2] for line in process.joinpath("limits").read_text().split("\n")
        }
        assert limits["Max file size"] == limits["Max core file size"] == ["0", "0"]
        assert int(limits["Max address space"][1]) <= 2**30
        assert "NoNewPrivs:\t1" in process.joinpath("status").read_text()
        assert process.joinpath("oom_score_adj").read_text().strip() == "1000"


@pytest.mark.thorough
def test_it_loads_nothing_of_ours_but_how_to_ask() -> None:
    script = """
import json, sys
sys.path.insert(0, sys.argv[1])
import runbooks
del sys.path[0]
import runbooks.models.child_process
print(json.dumps(list(sys.modules)))
"""
    told = subprocess.run([sys.executable, "-I", "-c", script, str(ROOT)], env={}, capture_output=True, check=True)
    modules = set(json.loads(told.stdout))
    ours = {name for name in modules if name.split(".")[0] in ("engine", "console", "recommender", "runbooks", "tests")}
    packages = {"runbooks", "runbooks.models"}
    child = {"runbooks.models.child_process", "runbooks.models.transport", "runbooks.models.frames"}
    assert ours == packages | child
    assert not modules & {"sqlite3", "sqlalchemy", "sqlmodel", "msgspec", "numpy", "httpx", "subprocess.Popen"}
    assert PROGRAM[1] == "-I"


def test_asking_loads_no_sdk_into_the_process_that_asks() -> None:
    script = (
        "import sys, runbooks.models.calls\nprint(not {'openai', 'httpx2', 'httpcore2', 'pydantic'} & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True, text=True)
    assert told.stdout == "True\n"


# -- its life ---------------------------------------------------------------------------------------------------------


def test_one_child_is_used_again_and_killed_when_it_is_cancelled(worker: ModelWorker) -> None:
    ask(worker)
    (first,) = worker.pids
    ask(worker)
    assert worker.pids == (first,)
    cancelled = threading.Event()

    def cancel_when_sent(phase: str, _bytes: int) -> None:
        if phase == "waiting":
            cancelled.set()

    with pytest.raises(DraftRejected, match="cancelled") as rejected:
        worker.ask(call_of(SILENT), cancelled=cancelled, tell=cancel_when_sent)
    assert rejected.value.reason == "cancelled", "and not `deadline`"
    assert is_gone(first)
    ask(worker)
    assert first not in worker.pids


@pytest.mark.thorough
@pytest.mark.parametrize("when", ["busy", "idle"])
def test_one_that_is_killed_is_replaced(worker: ModelWorker, when: str) -> None:
    ask(worker)
    (pid,) = worker.pids
    if when == "idle":
        # As the kernel does when memory lacks.
        os.kill(pid, signal.SIGKILL)
        ask(worker)
    else:

        def kill_when_sent(phase: str, _bytes: int) -> None:
            if phase == "waiting":
                os.kill(pid, signal.SIGKILL)

        with pytest.raises(DraftRejected, match="by signal 9") as rejected:
            worker.ask(call_of(SILENT), cancelled=threading.Event(), tell=kill_when_sent)
        assert rejected.value.reason == "worker"
        assert rejected.value.seen.attempts == 1  # type: ignore[attr-defined]
        ask(worker)
    assert is_gone(pid)
    assert pid not in worker.pids


@pytest.mark.thorough
def test_one_that_is_stopped_is_killed_at_the_deadline(worker: ModelWorker) -> None:
    ask(worker)
    (pid,) = worker.pids

    def stop_when_sent(phase: str, _bytes: int) -> None:
        if phase == "waiting":
            os.kill(pid, signal.SIGSTOP)

    with pytest.raises(DraftRejected) as rejected:
        worker.ask(call_of(SILENT), cancelled=threading.Event(), tell=stop_when_sent)
    assert rejected.value.reason == "deadline"
    assert is_gone(pid)


@pytest.mark.thorough
def test_many_at_once_are_each_answered_and_one_child_stays(server: Server) -> None:
    worker = ModelWorker(endpoint(server.url(), "good"), lambda: KEY)
    answers: list[ModelReply] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(worker))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 2
    (last,) = worker.pids
    worker.close()
    assert is_gone(last)
    assert reason(worker) == "cancelled"


@pytest.mark.thorough
def test_it_ends_when_the_engine_is_killed(server: Server, tmp_path: Path) -> None:
    """Also in the middle of a call that would last for a minute."""
    engine = f"""
import threading
from runbooks.models.calls import *
from runbooks.models.endpoint import endpoint_of
worker = ModelWorker(endpoint_of({server.url()!r}, "A02", egress="local", deadline_ms=60_000), lambda: "")
call = ModelCall(messages=(PromptMessage(role="user", content="x"),), schema={{}}, schema_name="x")
tell = lambda phase, _: print(*worker.pids, flush=True) if phase == "waiting" else None
worker.ask(call, cancelled=threading.Event(), tell=tell)
"""
    with subprocess.Popen([sys.executable, "-c", engine], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert not is_gone(pid)
        process.kill()
    assert in_a_moment(lambda: is_gone(pid) or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())


# -- one that does not do as it should --------------------------------------------------------------------------------

_PREAMBLE = """
import json, os, sys, time
raw = sys.stdout.buffer
def say(kind, data):
    raw.write(kind + len(data).to_bytes(4, "big") + data)
    raw.flush()
def take():
    head = sys.stdin.buffer.read(5)
    sys.stdin.buffer.read(int.from_bytes(head[1:], "big"))
def ready():
    take()
    say(b"r", b"")
def hear():
    ready()
    take()
def out(body=b"{}", **more):
    hear()
    told = {"reason": "", "problem": "", "remedy": "", "status": 200, "attempts": 1, "rung": 0, "bytes": 2,
            "sha256": "", "stall_ms": 0}
    account = json.dumps(told | more).encode()
    say(b"o", len(account).to_bytes(4, "big") + account + body)
def rest():
    time.sleep(9)
"""
LIES = (
    ("sys.exit(3)", "worker"),
    ("os.kill(os.getpid(), 11)", "worker"),
    ("print('Traceback (most recent call last):')", "worker"),
    ("raw.write(bytes(range(256)) * 4096)", "worker"),
    ("ready(); rest()", "deadline"),
    ("ready(); os.close(0); rest()", "deadline"),
    ("ready(); os.close(1); rest()", "worker"),
    ("take(); raw.write(b'r\\0\\0\\0\\0' * 2); raw.flush(); rest()", "worker"),
    ("raw.write(b'r\\0\\0\\0\\0' + b'p\\0\\0\\0\\x0d[\"waiting\",0]'); raw.flush(); rest()", "worker"),
    ("hear(); say(b'p', b'[\"waiting\",0]'); rest()", "deadline"),
    ("hear(); sys.exit()", "worker"),
    ("hear()\nwhile True: say(b'p', b'[\"reading\",1]')", "deadline"),
    ("hear(); say(b'p', b'[\"\\x1b[2J\",0]')", "worker"),
    ("hear(); say(b'p', b'[[\"waiting\"],0]')", "worker"),
    ("hear(); say(b'p', b'[' * 100000)", "worker"),
    ("hear(); raw.write(b'o' + b'\\xff' * 4 + b'x' * 10**6); rest()", "worker"),
    ("hear(); raw.write(b'o\\0\\1\\0\\0' + b'x' * 100); raw.flush(); rest()", "deadline"),
    ("hear(); say(b'o', b'')", "worker"),
    ("hear(); say(b'o', b'\\0\\0\\0\\2{}')", "worker"),
    ("hear(); say(b'x', b'')", "worker"),
    ("out(reason='approved')", "worker"),
    ("out(reason='http_200; drop')", "worker"),
    ("out(rung=9)", "worker"),
    ("out(bytes='many')", "worker"),
    ("out(extra=1)", "worker"),
    ("out(attempts=-1)", "worker"),
    ("out(sha256='x' * 60000)", "worker"),
    ("out(problem='\\x1b[2J', reason='deadline')", "worker"),
    ("out(problem='x' * 5000, reason='deadline')", "worker"),
    ("out()", "choices_count"),
    ("out(b'x' * 300000)", "response_too_large"),
)
"""(what it does, the reason that is given)."""


@pytest.mark.parametrize(
    ("does", "expected"),
    [pytest.param(*lie, marks=[pytest.mark.thorough] * (i % 4 > 0), id=str(i)) for i, lie in enumerate(LIES)],
)
def test_a_child_that_lies_is_rejected(does: str, expected: str) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    program = (sys.executable, "-I", "-S", "-c", _PREAMBLE + does)
    worker = ModelWorker(endpoint("http://127.0.0.1:9/v1", "m"), lambda: KEY, program=program)
    with pytest.raises(DraftRejected) as rejected:
        ask(worker)
    assert rejected.value.reason == expected
    assert str(rejected.value).isprintable()
    pids = worker.pids
    worker.close()
    assert all(map(is_gone, pids))
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_one_that_is_never_ready_can_be_cancelled() -> None:
    program = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")
    worker = ModelWorker(endpoint("http://127.0.0.1:9/v1", "m"), lambda: KEY, program=program)
    cancelled = threading.Event()
    timer = threading.Timer(0.05, cancelled.set)
    timer.start()
    with pytest.raises(DraftRejected) as rejected:
        ask(worker, cancelled=cancelled)
    assert rejected.value.reason == "cancelled"
    worker.close()
    timer.join()


def test_a_program_that_is_not_there_is_named() -> None:
    worker = ModelWorker(endpoint("http://127.0.0.1:9/v1", "m"), lambda: KEY, program=("/nowhere/python",))
    worker.warm()
    assert reason(worker) == "worker"
    worker.close()


@pytest.mark.parametrize(
    "key",
    ["sk-a\r\nX-Evil: 1", "sk a", "sk-\x00", "sk-\u00e9", "sk-\x7f"],
    ids=str.split("line space nul accent delete"),
)
def test_a_key_that_would_be_more_than_a_header_goes_nowhere(worker: ModelWorker, server: Server, key: str) -> None:
    server.seen()
    other = ModelWorker(worker.endpoint, lambda: key)
    with pytest.raises(DraftRejected) as rejected:
        ask(other)
    assert rejected.value.reason == "no_key"
    assert "sk-" not in str(rejected.value)
    assert not server.seen()["requests"]
    other.close()
