"""Where an engine listens: nothing that was there before is changed, opened or removed for it."""

from __future__ import annotations

import grp
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.cli.start import stop_running
from console.client import sockets
from console.client.launch import ensure_engine
from console.client.sockets import bind_unix, private_folder, remove_unix
from console.forms.settings import paths_in
from engine.model.errors import MusterError, SpecError
from tests.support.served import socket_folder

GROUP = grp.getgrgid(os.getgid()).gr_name


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_folder() as made:
        yield made


def rights(top: Path) -> dict[str, tuple[int, int, int]]:
    """Mode, owner and group of everything at and under a folder."""
    found = {}
    for path in (top, *top.rglob("*")):
        state = path.lstat()
        found[str(path)] = (state.st_mode, state.st_uid, state.st_gid)
    return found


def with_files(folder: Path, mode: int) -> Path:
    """A folder that others use, with a file and a script of theirs."""
    folder.mkdir()
    (folder / "theirs.txt").write_text("theirs")
    (folder / "theirs.txt").chmod(0o644)
    (folder / "run.sh").write_text("")
    (folder / "run.sh").chmod(0o775)
    folder.chmod(mode)
    return folder


@pytest.mark.parametrize("mode", [0o1777, 0o755, 0o710, 0o711])
def test_a_folder_that_lets_the_group_through_is_used_as_it_is(folder: Path, mode: int) -> None:
    shared = with_files(folder / "shared", mode)
    before = rights(shared)
    path = shared / "m.sock"
    bind_unix(path, GROUP).close()
    bound = path.stat()
    assert (stat.S_IMODE(bound.st_mode), bound.st_gid) == (0o660, os.getgid())
    path.unlink()
    assert rights(shared) == before


@pytest.mark.parametrize("mode", [0o700, 0o600, 0o1700])
def test_a_folder_that_does_not_is_refused_untouched_and_told_how_to_open_it(folder: Path, mode: int) -> None:
    private = with_files(folder / "it's mine", mode)
    before = rights(private)
    with pytest.raises(SpecError, match="has no access to") as refused:
        bind_unix(private / "m.sock", GROUP)
    assert f"chgrp {GROUP}" in refused.value.remedy
    assert "chmod 710" in refused.value.remedy
    assert rights(private) == before
    remedy = refused.value.remedy.rpartition("yourself: ")[2]
    assert os.system(remedy) == 0
    bind_unix(private / "m.sock", GROUP).close()


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_a_socket_of_its_owners_alone_changes_no_folder_either(folder: Path, mode: int) -> None:
    there = with_files(folder / "there", mode)
    before = rights(there)
    bind_unix(there / "m.sock").close()
    assert stat.S_IMODE((there / "m.sock").stat().st_mode) == 0o600
    (there / "m.sock").unlink()
    assert rights(there) == before


def test_folders_that_are_made_let_the_group_through_and_no_further(folder: Path) -> None:
    before = os.umask(0o077)  # as the engine has it
    try:
        bind_unix(folder / "run" / "muster" / "m.sock", GROUP).close()
    finally:
        os.umask(before)
    for made in (folder / "run", folder / "run" / "muster"):
        assert (stat.S_IMODE(made.stat().st_mode), made.stat().st_gid) == (0o710, os.getgid())
    bind_unix(folder / "alone" / "m.sock").close()
    assert stat.S_IMODE((folder / "alone").stat().st_mode) == 0o700


@pytest.mark.parametrize("existing", [True, False])
def test_a_group_that_is_not_ours_to_give_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if existing:
        with_files(folder / "run", 0o755)
    before = rights(folder)
    monkeypatch.setattr(sockets.os, "chown", refuse)
    with pytest.raises(SpecError, match="cannot be assigned"):
        bind_unix(folder / "run" / "m.sock", GROUP)
    with pytest.raises(SpecError, match="no group"):
        bind_unix(folder / "other" / "m.sock", "no-such-group-here")
    assert rights(folder) == before


def test_a_folder_behind_a_link_is_named_and_not_touched(folder: Path) -> None:
    real = with_files(folder / "real", 0o700)
    link = folder / "link"
    link.symlink_to(real)
    before = rights(folder)
    for group in ("", GROUP):
        with pytest.raises(SpecError, match="symbolic link") as refused:
            bind_unix(link / "m.sock", group)
        assert str(real) in refused.value.remedy
    assert rights(folder) == before


def test_a_folder_where_others_add_files_is_for_sockets_only(folder: Path) -> None:
    shared = with_files(folder / "shared", 0o1777)
    with pytest.raises(MusterError, match="other users"):
        private_folder(shared)
    shared.chmod(0o777)
    with pytest.raises(MusterError, match="other users"):
        bind_unix(shared / "m.sock")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another account")
def test_a_socket_of_another_account_is_not_removed(folder: Path) -> None:
    shared = with_files(folder / "shared", 0o1777)
    path = shared / "m.sock"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
    os.chown(path, 65534, -1)
    with pytest.raises(SpecError, match="another user"):
        bind_unix(path)
    remove_unix(path)
    assert path.is_socket()


def test_what_took_the_place_of_our_socket_is_not_removed_when_we_end(folder: Path) -> None:
    path = folder / "m.sock"
    with bind_unix(path):
        path.unlink()
        with bind_unix(path) as anothers:
            anothers.listen()
            remove_unix(path)
            assert path.is_socket()
    remove_unix(path)
    assert not path.exists()
    path.write_text("precious")
    remove_unix(path)
    assert path.read_text() == "precious"


def test_an_engine_that_a_console_starts_lets_the_group_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SOCKET_GROUP", GROUP)
    paths = paths_in(folder / "cells" / "lab")
    ensure_engine(paths, ["--data", str(paths.folder), "--cell", "lab"], GROUP)
    try:
        assert stat.S_IMODE(paths.folder.stat().st_mode) == 0o710
        assert stat.S_IMODE(paths.socket.stat().st_mode) == 0o660
        others = [file for file in paths.folder.iterdir() if file != paths.socket]
        assert len(others) > 2
        assert not [file for file in others if file.stat().st_mode & 0o077]
    finally:
        stop_running(paths)
    assert not paths.socket.exists()
