"""The examples of docs/shell.md are run, in order, against a demo engine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.launch import ensure_engine
from console.settings import DEMO_CELL, paths_in
from console.sockets import probe
from tests.support.served import socket_folder

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / "shell.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """What a shell needs to run `muster` on a demo cell of its own."""
    with socket_folder() as folder:
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        command = bin_folder / "muster"
        command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m console.cli "$@"\n')
        command.chmod(0o755)
        paths = paths_in(folder / DEMO_CELL)
        ensure_engine(paths, ["--demo", "--nodes", "40", "--data", str(paths.folder)])
        yield {
            "PATH": f"{bin_folder}:/usr/bin:/bin",
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "MUSTER_STATE_DIR": str(folder),
            "MUSTER_CELL": DEMO_CELL,
        }
        peer = probe(paths.socket)
        assert peer is not None, paths.log.read_text()
        os.kill(peer.pid, signal.SIGKILL)


def test_every_example_works(environment: dict[str, str]) -> None:
    assert len(BLOCKS) >= 7
    for block in BLOCKS:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        assert done.stdout, block
        assert "Traceback" not in done.stderr
