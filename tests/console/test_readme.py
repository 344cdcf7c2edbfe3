"""README's commands work as printed: in the shell of `make shell`, beside the demo alone, with no cell named."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from console.cli.main import EXIT_CODES
from console.client.sockets import probe
from console.forms.settings import CellPaths, paths_in
from tests.support.patience import PATIENCE_S, until
from tests.support.pseudo_terminal import ASKED, read_text
from tests.support.served import socket_folder

ROOT = Path(__file__).resolve().parents[2]
MAKE = ["make", "-s", "-C", str(ROOT), "--old-file=.venv/.stamp"]
NOT_ALONE = {
    "muster": "opens a console",
    "muster here": "opens a console of another cell",
    "muster serve --slurm WHERE": "needs a Slurm cluster",
    "muster serve --kubernetes [CONTEXT]": "needs a Kubernetes cluster",
    "muster serve --database URL --standby": "needs a PostgreSQL server",
    "muster fleet status": "needs a fleet",
    "muster web": "serves until it is stopped",
    "muster cell define cell.yaml": "needs an empty cell",
    "muster eval drafts": "needs no cell, and takes a minute",
    "muster --demo --scenario gke-65k": "opens a console of another cell",
}
WORK = "id: note\nqueue: research/nlp\nestimate: 30m\nrequest: {cpu: 1, memory: 1GiB}\n"
TRACE = "".join(f"{n} {n * 10} -1 100 2 -1 -1 2 200 -1 1 1 1 -1 1 -1 -1 -1\n" for n in range(1, 6))
WAITS = "--id much --queue research/nlp --tasks 8 --gpus-per-task 8 --estimate 6h"
"""More GPUs than its queue has."""

needs_own_environment = pytest.mark.skipif(
    not (ROOT / ".venv/bin/muster").exists(), reason="`make shell` is of a checkout that `make` has set up"
)


def commands() -> list[str]:
    """The lines of README's block, without what they are for."""
    (block,) = re.findall(r"^```\n(muster .*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return [re.split(r"  +", line)[0] for line in block.splitlines()]


def environment_of_make_shell(home: Path) -> dict[str, str]:
    """Of a person's shell in there: `env` in its place tells it."""
    outside = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [*MAKE, "shell"], env=outside | {"SHELL": "/usr/bin/env"}, capture_output=True, text=True, check=True
    )
    assert "`muster` is a command" in done.stdout
    inside = dict(line.split("=", 1) for line in done.stdout.splitlines() if re.match(r"\w+=", line))
    assert not inside.keys() & {"MAKEFLAGS", "MAKELEVEL"}, "another make in there is its own"
    return inside


class Person(NamedTuple):
    environment: dict[str, str]
    folder: Path

    def types(self, line: str) -> tuple[int, str]:
        """The exit code and what the terminal shows, with a yes to what is asked."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", line], cwd=self.folder, env=self.environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        shown, answered = "", 0
        while more := read_text(ours):
            shown += more
            asked = ASKED.search(shown[answered:])
            if asked:
                answered = len(shown)
                os.write(ours, (asked[1] or "y").encode() + b"\n")
        os.close(ours)
        return process.wait(PATIENCE_S), shown

    def told(self, line: str) -> dict[str, object]:
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True
        )
        found: dict[str, object] = json.loads(done.stdout)
        return found

    def first(self, kind: str, which: str) -> str:
        rows = self.told(f"muster get {kind} -f '{which}' --json --limit 1")["items"]
        return str(rows[0]["id" if kind != "queues" else "name"]) if rows else ""  # type: ignore[index]


@pytest.fixture
def person() -> Iterator[Person]:
    """At a shell of `make shell`, while the engine that `make run` leaves behind runs."""
    with socket_folder() as home:
        here = Person(environment_of_make_shell(home), home)
        (home / "work.yaml").write_text(WORK)
        (home / "KTH-SP2.swf").write_text(TRACE)
        paths = paths_in(home / ".local/state/muster/demo")
        with (home / "log").open("wb") as log:
            engine = subprocess.Popen(
                ["muster", "serve", "--demo", "--nodes", "40"], env=here.environment, stdout=log, stderr=log
            )  # fmt: skip
        try:
            until(lambda: answers(paths, engine), lambda: (home / "log").read_text())
            yield here
        finally:
            engine.kill()
            engine.wait()


def answers(paths: CellPaths, engine: subprocess.Popen[bytes]) -> bool:
    assert engine.poll() is None, "it ended"
    return probe(paths.socket) is not None


@needs_own_environment
@pytest.mark.thorough
def test_each_command_works_as_printed(person: Person) -> None:
    code, shown = person.types(f"muster submit {WAITS}")
    assert code == 0, shown
    until(lambda: person.first("workloads", "state:queued"))
    proposal = "P-1"
    for line in commands():
        if line in NOT_ALONE:
            continue
        if re.search(r"\bID\b", line):
            line = re.sub(r"\bID\b", person.first("workloads", "state:queued"), line)
        line = re.sub(r"\bNODE\b|(?<==)N\b", person.first("nodes", "state:ready"), line)
        line = re.sub(r"\bQUEUE\b", person.first("queues", "state:open"), line).replace("P-1", proposal)
        code, shown = person.types(line)
        assert code == 0, f"{line}: exit code {code}, {EXIT_CODES.get(code)}:\n{shown}"
        assert "Traceback" not in shown, line
        assert "--cell" not in shown, line
        if line.startswith("muster node drain "):
            proposal = re.findall(r"P-\d+", shown)[-1]
    code, shown = person.types("muster stop")
    assert code == 0, shown


def test_what_is_left_out_is_there() -> None:
    assert set(NOT_ALONE) <= set(commands())
    assert len(commands()) > len(NOT_ALONE) + 15


@needs_own_environment
def test_make_shell_has_the_command_of_this_checkout(tmp_path: Path) -> None:
    environment = environment_of_make_shell(tmp_path)
    assert environment["PATH"].split(":")[0] == str(ROOT / ".venv" / "bin")
    done = subprocess.run(["muster", "--version"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("muster ")
