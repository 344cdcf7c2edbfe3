"""A cell in a file on a disk that is full, really: what was acknowledged stays, the rest is refused by name, what is
there can be read, and with room the cell goes on by itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.control import Engine
from engine.model.errors import JournalError
from tests.support.cells import small_cell, submit, workload

pytestmark = pytest.mark.about_files("a server's disk is in test_database_failover.py")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with a file system of its own, of 4 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_on_a_full_disk_changes_are_refused_by_name_and_with_room_the_cell_goes_on(small_disk: Path) -> None:
    engine = Engine.open(small_disk / "journal.db", cell=small_cell())
    fill = small_disk / "fill"
    with open(fill, "wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 14))
            file.flush()
    told, refused = [], ""
    while not refused:
        try:
            engine.command(submit(workload(f"w{len(told)}", gpu=1000)))
            told.append(f"w{len(told)}")
        except JournalError as error:
            refused = str(error)
    assert "the disk is full" in refused
    assert "nothing acknowledged is lost" in refused
    assert "the disk is full" in engine.journal_error
    assert set(engine.state.workloads.row_of) == set(told)
    os.unlink(fill)
    engine.command(submit(workload("after", gpu=1000)))
    assert engine.journal_error == ""
    digest = engine.state.digest()
    assert engine._journal is not None
    engine._journal.close()  # as a crash: without a snapshot
    again = Engine.open(small_disk / "journal.db")
    assert set(again.state.workloads.row_of) == {*told, "after"}
    assert again.state.digest() == digest
    again.close()
