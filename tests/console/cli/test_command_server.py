"""Commands that a command server runs: as if their own process had, or not at all."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from console.cli.command_server import _are_unchanged, _loaded_files
from console.forms.runtime_folder import COMMANDS
from tests.support.served import socket_folder

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="command servers are for Linux")

ASK = """
import sys
from console.cli import entry
code = entry._asked(sys.argv[1:])
sys.exit(99 if code is None else code)
"""
"""Exits with the command's code, or 99 where the command has to be run by its own process."""
RUN_HERE = 99
BECOME = """
import os, resource, socket, sys
from console.cli import command_client, command_server
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1])
    listening.listen()
    asked, _ = listening.accept()
request = command_server._received(asked)
assert request.build == command_client.build()
assert command_server._become(asked, request)
umask = os.umask(0)
print(request.words[1:], os.getcwd(), oct(umask), resource.getrlimit(resource.RLIMIT_NOFILE)[0], os.getpriority(0, 0))
print(sorted(os.environ.keys() & {"ONLY_HERE", "ONLY_THERE"}), sys.stdout.encoding, sys.stdin.read())
sys.stdout.flush()
"""
"""A server that becomes like its caller, and prints how it is then."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment of a cell that is this machine, with its engine."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "run").mkdir(mode=0o700)
    environment = os.environ | {
        "XDG_RUNTIME_DIR": str(folder / "run"), "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"), "ONLY_HERE": "yes",
    }  # fmt: skip
    (left := folder / "run" / "muster" / f"{COMMANDS}999999999.sock").parent.mkdir(mode=0o700)
    left.touch()
    command = [sys.executable, "-m", "console.cli.main", "serve", "--here", "--cell", "small"]
    with open(folder / "log", "wb") as log:
        engine = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        until(lambda: b"ready" in (folder / "log").read_bytes())
        assert not left.exists(), "of an engine that was killed"
        yield environment
        [server] = servers(engine.pid)
        engine.kill()
        engine.wait()
        until(lambda: not Path(f"/proc/{server}").exists())  # it ends with its engine, however that ends
    finally:
        engine.kill()
        engine.wait()


def until(holds: Callable[[], object], patience_s: float = 60.0) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def servers(parent: int) -> list[int]:
    """Processes that a thread of `parent` has started."""
    threads = Path(f"/proc/{parent}/task").iterdir()
    return [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]


def asked(place: dict[str, str], *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", ASK, *words], env=place, capture_output=True, **options)  # type: ignore[call-overload, no-any-return]


def alone(place: dict[str, str], *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "console.cli.main", *words], env=place, capture_output=True, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    "words", ["get nodes --json", "queue list", "get workloads none", "why none --json", "logs none"]
)
def test_a_command_says_and_ends_as_without_a_server(place: dict[str, str], words: str) -> None:
    served, own = asked(place, *words.split()), alone(place, *words.split())
    assert (served.returncode, served.stderr) == (own.returncode, own.stderr)
    masked = [re.sub(rb"\d+", b"0", each.stdout) for each in (served, own)]  # load and free memory move
    assert masked[0] == masked[1]


def test_work_of_a_served_submission_begins_in_the_callers_folder_with_its_variables(
    place: dict[str, str], tmp_path: Path
) -> None:
    words = ("run", "--follow", "--memory", "64MiB", "--env", "MINE", "--", "sh", "-c", "pwd; echo $MINE")
    done = asked(place | {"MINE": "a=b\nc"}, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout.decode().split()) == (0, [str(tmp_path), "a=b", "c"]), done.stderr


def test_work_comes_by_standard_input_too(place: dict[str, str]) -> None:
    text = b"workloads: [{id: piped, queue: main, tasks: 1, request: {cpu: 1}, run: {argv: ['true']}}]"
    done = asked(place, "submit", "-", input=text)
    assert (done.returncode, done.stdout) == (0, b"piped\n"), done.stderr


def test_what_starts_or_prints_help_or_is_wrong_or_names_a_file_of_its_process_is_run_here(
    place: dict[str, str],
) -> None:
    for words in (
        "serve",
        "get --help",
        "get nonsense",
        "config keys",
        "submit /dev/fd/0",
        "--cell small overview",
        "",
    ):
        assert asked(place, *words.split()).returncode == RUN_HERE, words


def test_the_process_of_a_command_becomes_like_its_caller(place: dict[str, str], tmp_path: Path) -> None:
    path = f"{tmp_path}/server"
    there = {name: value for name, value in place.items() if name != "ONLY_HERE"} | {"ONLY_THERE": "yes"}
    asking = (
        "import sys, socket; from console.cli import command_client as client\n"
        f"with socket.socket(socket.AF_UNIX) as asking: asking.connect({path!r}); client._ready(asking, ['a', 'b c'])"
    )

    def limited() -> None:
        os.umask(0o027)
        resource.setrlimit(resource.RLIMIT_NOFILE, (123, 456))
        os.setpriority(os.PRIO_PROCESS, 0, 7)

    server = subprocess.Popen([sys.executable, "-c", BECOME, path], env=there)
    until(lambda: os.path.exists(path))
    environment = place | {"PYTHONIOENCODING": "latin-1"}
    server_build = subprocess.run(
        [sys.executable, "-c", asking], env=environment, input=b"typed", capture_output=True, cwd=tmp_path,
        preexec_fn=limited,
    )  # fmt: skip
    assert server.wait() != 0, "another environment of Python's is another build"
    assert server_build.stdout == b""
    os.unlink(path)
    server = subprocess.Popen([sys.executable, "-c", BECOME, path], env=there)
    until(lambda: os.path.exists(path))
    done = subprocess.run(
        [sys.executable, "-c", asking], env=place, input=b"typed", capture_output=True, cwd=tmp_path,
        preexec_fn=limited,
    )  # fmt: skip
    assert server.wait() == 0
    told = f"['a', 'b c'] {tmp_path} 0o27 123 7\n['ONLY_HERE'] utf-8 typed\n"
    assert done.stdout.decode() == told


@pytest.mark.parametrize("how", [("setpriv", "--no-new-privs"), ("unshare", "-m"), ("unshare", "-Ur")])
def test_a_caller_with_other_rights_or_in_a_container_runs_its_command_itself(
    place: dict[str, str], how: tuple[str, ...]
) -> None:
    if shutil.which(how[0]) is None or subprocess.run([*how, "true"], capture_output=True).returncode:
        pytest.skip(f"{how[0]} is not possible here")
    assert asked(place, "overview").returncode == 0
    own = subprocess.run([*how, sys.executable, "-c", ASK, "overview"], env=place, capture_output=True)
    assert own.returncode == RUN_HERE


def test_a_folder_that_others_could_have_put_a_socket_into_is_left_alone(place: dict[str, str]) -> None:
    folder = Path(place["XDG_RUNTIME_DIR"], "muster")
    [socket] = [each for each in folder.iterdir() if each.name.startswith(COMMANDS)]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    folder.chmod(0o755)
    try:
        assert asked(place, "overview").returncode == RUN_HERE
    finally:
        folder.chmod(0o700)


def test_where_no_engine_listens_a_command_runs_itself(place: dict[str, str]) -> None:
    with socket_folder() as runtime:
        assert asked(place | {"XDG_RUNTIME_DIR": str(runtime)}, "overview").returncode == RUN_HERE
        folder = runtime / "muster"
        folder.mkdir(mode=0o700)
        (folder / f"{COMMANDS}old.sock").touch()
        assert asked(place | {"XDG_RUNTIME_DIR": str(runtime)}, "overview").returncode == RUN_HERE


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_command_and_its_process(place: dict[str, str], sent: signal.Signals) -> None:
    command = [sys.executable, "-c", ASK, "events", "-f", "--limit", "1"]
    with subprocess.Popen(command, env=place, stdout=subprocess.PIPE) as following:
        _end(following, sent)


def _end(following: subprocess.Popen[bytes], sent: signal.Signals) -> None:
    assert following.stdout is not None
    assert following.stdout.readline()
    children = _fed_by(following.stdout.fileno())
    assert len(children - {following.pid}) == 1, "the caller and the process that runs it"
    following.send_signal(signal.SIGTSTP)
    [runs] = children - {following.pid}
    until(lambda: _state(runs) == _state(following.pid) == "T")
    following.send_signal(signal.SIGCONT)
    until(lambda: _state(runs) != "T")
    following.send_signal(sent)
    assert following.wait() == (130 if sent == signal.SIGINT else -sent)
    until(lambda: not Path(f"/proc/{runs}").exists())


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _fed_by(pipe: int) -> set[int]:
    """Processes that have the other end of the pipe as standard output."""
    name, found = os.readlink(f"/proc/self/fd/{pipe}"), set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "fd" / "1") == name:
                found.add(int(process.name))
        except OSError:
            continue
    return found


def test_changed_sources_are_noticed(tmp_path: Path) -> None:
    loaded = _loaded_files()
    assert _are_unchanged(loaded)
    assert __import__("console.cli.command_server").__file__ in loaded
    own = tmp_path / "module.py"
    own.touch()
    assert not _are_unchanged(loaded | {str(own): own.stat().st_mtime_ns - 1})
    assert not _are_unchanged(loaded | {str(tmp_path / "gone.py"): 0})
