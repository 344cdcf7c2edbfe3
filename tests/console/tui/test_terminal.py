"""The whole thing in real terminals: `muster --demo` under tmux, and what becomes of a terminal that goes away."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TypeVar, cast

import pytest
from textual.drivers._writer_thread import WriterThread

from console.text.guarded_streams import VanishingTerminal
from console.tui.dialog_frames import GUARD_S
from tests.support.patience import PATIENCE_S
from tests.support.pseudo_terminal import PseudoTerminal, children

MUSTER = str(Path(sys.executable).with_name("muster"))
T = TypeVar("T")


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """State of its own, and no engine left behind."""
    mine = os.environ | {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("STATE", "CONFIG", "DATA")}
    mine |= {"XDG_RUNTIME_DIR": str(tmp_path), "TERM": "xterm-256color", "TMUX_TMPDIR": str(tmp_path)}
    mine.pop("TMUX", None)
    mine.pop("NO_COLOR", None)
    yield mine
    subprocess.run([MUSTER, "stop", "--cell", "demo"], env=mine, capture_output=True, check=False)


class Tmux:
    """One session on a server of its own."""

    def __init__(self, environment: dict[str, str], name: str) -> None:
        self._base = ["tmux", "-L", name, "-f", "/dev/null"]
        self._environment = environment

    def call(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._base, *arguments], env=self._environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    def screen(self) -> str:
        return self.call("capture-pane", "-p", "-t", "s")

    def press(self, *keys: str) -> None:
        self.call("send-keys", "-t", "s", *keys)

    def type(self, text: str) -> None:
        self.call("send-keys", "-t", "s", "-l", text)

    def until(self, *texts: str) -> str:
        """The screen once it shows all the texts."""
        return wait_for(self.screen, lambda screen: all(text in screen for text in texts), f"{texts} on the screen")


def wait_for(read: Callable[[], T], good: Callable[[T], bool], what: str) -> T:
    until = time.monotonic() + PATIENCE_S
    while not good(value := read()):
        assert time.monotonic() < until, f"no {what} within {PATIENCE_S:g} s, but:\n{value}"
    return value


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_session_in_tmux(environment: dict[str, str], tmp_path: Path) -> None:
    """From looking to a change that was agreed to and seen to work, and out again."""
    tmux = Tmux(environment, f"muster-test-{os.getpid()}")
    shell = f"stty -g > {tmp_path}/before; {shlex.quote(MUSTER)} --demo --quiet-day --nodes 40; echo left with $?; "
    tmux.call("new-session", "-d", "-s", "s", "-x", "100", "-y", "40", f"{shell} stty -g > {tmp_path}/after; sleep 60")
    try:
        tmux.until("overview", "nodes ready")
        tmux.press("3")
        tmux.until("workloads", "STATE", "● running")
        # All at once, as fast fingers and pasted text come: what follows "/" belongs to the bar, not to the page.
        tmux.type("/state:running")
        tmux.press("Enter")
        tmux.until("/state:running")
        tmux.press("Enter")
        workload = re.search(r"workloads › (\S+)", tmux.until("workloads ›", "Timeline", "Cost")).group(1)
        tmux.press("X")
        tmux.until(f"Cancel workload {workload}", "Before and after")
        tmux.press("Escape")
        tmux.until("Timeline", "nothing changed")
        tmux.press("w")
        tmux.until(f": whatif preempt {workload}")
        tmux.press("Enter")
        tmux.until(f"1  preempt {workload}", "Add an edit")
        tmux.press("w")
        tmux.until("Wait, mean", "→")
        tmux.press("4")
        node = re.search(r"▌ (\S+)", tmux.until("nodes", "RACK", "● ready", "▌")).group(1)
        tmux.press("C")
        tmux.until(f"Cordon node {node}", "Before and after", "Nodes taking work", "Rollback", "y yes")
        time.sleep(2 * GUARD_S)
        tmux.press("y")
        tmux.until("◇ cordoned")
        tmux.type("gp")
        tmux.until("proposals", "✓ verified", "Cordon")
        tmux.press("C-c")
        left = tmux.until("left with 0", "the engine keeps running as process", "muster stop --cell demo")
        assert "proposals" not in left, "the alternate screen was not left"
        wait_for(
            lambda: (tmp_path / "after").exists() and (tmp_path / "after").read_text(), bool, "terminal's settings"
        )
        assert (tmp_path / "after").read_text() == (tmp_path / "before").read_text()
        assert tmux.call("display-message", "-p", "-t", "s", "#{mouse_any_flag}").strip() == "0", "the mouse was kept"
        seen = subprocess.run(
            [MUSTER, "get", "workloads", workload, "--cell", "demo", "--json"],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert '"cancelled"' not in seen.stdout, "looking at a plan must not act"
    finally:
        tmux.call("kill-server")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of consoles that all look at one engine."""
    folder = tmp_path_factory.mktemp("lab")
    mine = os.environ | {f"XDG_{kind}": str(folder) for kind in ("STATE_HOME", "CONFIG_HOME", "DATA_HOME")}
    mine |= {"XDG_RUNTIME_DIR": str(folder), "TERM": "xterm-256color"}
    mine.pop("NO_COLOR", None)
    engine = subprocess.Popen(
        [MUSTER, "serve", "--demo", "--quiet-day", "--nodes", "40", "--speed", "1"], env=mine, stderr=subprocess.DEVNULL
    )
    asking = [MUSTER, "overview", "--cell", "demo"]
    wait_for(lambda: subprocess.run(asking, env=mine, capture_output=True).returncode, lambda code: not code, "answer")
    yield mine
    engine.terminate()
    engine.wait()


@contextmanager
def console_in(environment: dict[str, str], *command: str) -> Iterator[PseudoTerminal]:
    """A console that shows data; whatever runs in the terminal is ended at the end."""
    terminal = PseudoTerminal(command or (MUSTER, "--demo", "--quiet-day"), environment)
    try:
        terminal.shows("● connected")  # on whatever page the last one was lost
        yield terminal
    finally:
        terminal.close()


def at_overview(terminal: PseudoTerminal) -> None:
    """Where a console begins, unless the one before it was lost elsewhere."""
    terminal.press("1")
    terminal.shows("nodes ready")


def in_a_dialog(terminal: PseudoTerminal) -> None:
    terminal.press("3")
    terminal.shows("STATE", "running")
    terminal.press("s")
    terminal.shows("Sort by")


def typing_a_filter(terminal: PseudoTerminal) -> None:
    terminal.press("3")
    terminal.shows("STATE", "running")
    terminal.press("/state:run")
    terminal.shows("state:run")


def kill_the_console(shell: int) -> int:
    """Process id -> exit code to be seen."""
    os.kill(console_below(shell), signal.SIGKILL)
    return 128 + signal.SIGKILL


def tell(how: signal.Signals, *, both: bool = False) -> Callable[[int], int]:
    """The process that the shell waits for, or, as a terminal does that goes away, both."""

    def told(shell: int) -> int:
        for process in children(shell)[: 2 if both else 1]:
            os.kill(process, how)
        return 0

    return told


def kill_the_watch(shell: int) -> int:
    """The shell goes on at once: what it says then is lost with the console's screen."""
    os.kill(children(shell)[0], signal.SIGKILL)
    return -1


def crash(shell: int) -> int:
    os.kill(console_below(shell), signal.SIGSEGV)
    return 128 + signal.SIGSEGV


def console_below(shell: int) -> int:
    return children(shell)[1]


EVERYWHERE = [
    (place, end)
    for place in (at_overview, in_a_dialog, typing_a_filter)
    for end in (kill_the_console, kill_the_watch, tell(signal.SIGTERM), tell(signal.SIGHUP, both=True))
]


@pytest.mark.thorough
@pytest.mark.parametrize(("place", "end"), [*EVERYWHERE, (at_overview, crash), (in_a_dialog, crash)])
def test_whatever_ends_the_console_the_terminal_is_as_before(
    lab: dict[str, str], place: Callable[[PseudoTerminal], None], end: Callable[[int], int]
) -> None:
    ends_and_restores(lab, place, end)


@pytest.mark.parametrize("end", [kill_the_console, kill_the_watch])
def test_a_killed_console_leaves_the_terminal_as_before(lab: dict[str, str], end: Callable[[int], int]) -> None:
    ends_and_restores(lab, typing_a_filter, end)


def ends_and_restores(
    environment: dict[str, str], place: Callable[[PseudoTerminal], None], end: Callable[[int], int]
) -> None:
    with console_in(environment, *in_a_shell(f"{MUSTER} --demo --quiet-day")) as terminal:
        place(terminal)
        assert terminal.screen.left_on(), "a console that draws has switched something on"
        assert terminal.attributes != terminal.before
        code = end(terminal.pid)
        wait_for(lambda: (terminal.pump(0.05), terminal.screen.left_on())[1], lambda left: not left, "leaving")
        wait_for(lambda: terminal.attributes, lambda now: now == terminal.before, "restored terminal")
        if code >= 0:
            TextOf(terminal).until(f"left with {code}")
        wait_for(lambda: children(terminal.pid), lambda left: len(left) == 1, "end of both processes")


@pytest.mark.thorough
def test_the_console_after_a_killed_one_is_where_that_was(lab: dict[str, str]) -> None:
    def noted() -> str:
        return "".join(path.read_text() for path in Path(lab["XDG_STATE_HOME"]).rglob("console-at-*.json"))

    with console_in(lab, *in_a_shell(f"{MUSTER} --demo --quiet-day")) as terminal:
        terminal.press("4")
        terminal.shows("RACK")
        wait_for(noted, lambda places: '"nodes"' in places, "note of the page")
        kill_the_console(terminal.pid)
        TextOf(terminal).until("left with 137")
    with console_in(lab, *in_a_shell(f"{MUSTER} --demo --quiet-day")) as terminal:
        terminal.shows("RACK")
        terminal.shows("ready")
        at_overview(terminal)


def in_a_shell(command: str) -> tuple[str, ...]:
    """As under a shell, which outlives it: a terminal whose first process ends is gone."""
    return ("/bin/sh", "-c", f"{command}; echo left with $?; sleep 60")


@pytest.mark.thorough
def test_a_fault_of_the_console_restores_the_terminal_and_says_where_to_read_on(lab: dict[str, str]) -> None:
    program = (
        "import console.tui.navigation, console.cli.main\n"
        "def fault(self): raise RuntimeError('planted')\n"
        "console.tui.navigation.Navigation.refresh = fault\n"
        "console.cli.main.main(['--demo', '--quiet-day'])"
    )
    with console_in(lab, sys.executable, "-c", program) as terminal:
        terminal.press("3")
        terminal.shows("STATE", "running")
        terminal.press("r")
        assert terminal.wait() == 1
        assert not terminal.screen.left_on()
        assert terminal.attributes == terminal.before
        assert "console.log" in terminal.screen.main_text
        assert "planted" not in terminal.screen.main_text


@pytest.mark.thorough
def test_the_size_is_the_terminals_whatever_the_environment_says(lab: dict[str, str]) -> None:
    """As under `watch`, or where somebody exports them: another size that would stay for ever."""
    with console_in(lab | {"COLUMNS": "60", "LINES": "20"}) as terminal:
        terminal.until(lambda screen: "? help" in screen.text[-1], "a footer in the last line")
        terminal.resize(100, 30)
        terminal.until(lambda screen: "? help" in screen.text[-1], "a frame of the new size")


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_console_is_a_job_of_its_shell(lab: dict[str, str]) -> None:
    with closing(PseudoTerminal(("/bin/bash", "--norc", "--noprofile", "-i"), lab | {"PS1": "ready> "})) as shell:
        said = TextOf(shell)
        said.until("ready> ")
        shell.press(f"{MUSTER} --demo --quiet-day\r")
        # Another one of this cell may have been killed on another page, where this one then goes on.
        shell.shows("? help")
        shell.press("1")
        shell.shows("nodes ready")
        shell.press("\x1a")
        said.until("Stopped")
        # The shell itself switches on bracketed paste while it waits for a line.
        assert shell.screen.left_on() in ([], ["mode 2004"]), "a stopped console leaves the terminal to its shell"
        shell.press("jobs\r")
        said.until("[1]+  Stopped")
        shell.press("fg\r")
        shell.shows("nodes ready")
        shell.press("3")
        shell.shows("STATE", "running")
        shell.resize(100, 30)
        shell.until(lambda screen: "? help" in screen.text[-1], "a frame of the new size")
        os.kill(children(shell.pid)[1], signal.SIGKILL)
        said.until("the console was stopped by SIGKILL")
        assert shell.screen.left_on() in ([], ["mode 2004"])
        shell.press("echo code $?\r")
        said.until("code 137")
        # Shells of people do not end by the signal that `close` sends first.
        shell.press("exit\r")
        assert shell.wait() == 0


class TextOf:
    """What a shell says on a terminal, each thing waited for once."""

    def __init__(self, terminal: PseudoTerminal) -> None:
        self._terminal = terminal
        self._read = 0

    def until(self, text: str) -> None:
        def said() -> str:
            self._terminal.pump(0.05)
            return self._terminal.screen.main_text[self._read :]

        wait_for(said, lambda new: text in new, f"{text!r}")
        self._read = len(self._terminal.screen.main_text)


def test_a_terminal_that_goes_away_takes_the_console_with_it_but_not_the_engine(
    lab: dict[str, str], tmp_path: Path
) -> None:
    with console_in(lab | {"TMPDIR": str(tmp_path)}) as terminal:
        both = [terminal.pid, *children(terminal.pid)]
        os.close(terminal.leader)
        terminal.leader = os.open(os.devnull, os.O_RDWR)
        terminal.closed = True
        wait_for(lambda: [pid for pid in both[1:] if alive(pid)], lambda left: not left, "end of the console")
    seen = subprocess.run([MUSTER, "overview", "--cell", "demo"], env=lab, capture_output=True, text=True, check=False)
    assert seen.returncode == 0, seen.stderr
    assert not list(tmp_path.glob("muster-crash-*")), "nobody is left to tell that it goes: no fault"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_is_still_to_be_drawn_when_the_terminal_is_gone_keeps_nobody_waiting() -> None:
    terminal, inside = pty.openpty()
    drawn_on = io.TextIOWrapper(io.FileIO(inside, "w"), write_through=True)
    writer = WriterThread(cast(IO[str], VanishingTerminal(drawn_on)))
    os.close(terminal)

    def draw_and_leave() -> None:
        for _ in range(200):
            writer.write("x" * 500)
        writer.stop()

    writer.start()
    leaving = threading.Thread(target=draw_and_leave, daemon=True)
    leaving.start()
    leaving.join(PATIENCE_S)
    assert not leaving.is_alive()
    drawn_on.close()


def test_without_a_terminal_it_says_so_and_names_what_to_use(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [MUSTER, "--demo"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "muster overview" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_console_that_would_draw_into_a_file_says_so(environment: dict[str, str]) -> None:
    controller, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [MUSTER, "--demo"],
            env=environment,
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        os.close(controller)
        os.close(terminal)
    assert done.returncode == 2
    assert "the console draws on the terminal" in done.stderr
