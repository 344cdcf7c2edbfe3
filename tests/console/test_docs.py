"""The examples of the documents in SHOWN are run, in order, against a demo engine; what else is shown is read."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from console.actions.key_map import key_map
from console.cli.main import parser
from console.client.launch import ensure_engine
from console.client.sockets import probe
from console.forms.documents import read_document
from console.forms.settings import DEMO_CELL, given_keys, load, paths_in, problems
from console.forms.work_files import cell_of
from engine.capacity.scores import SCORES
from engine.control import Engine
from engine.model.commands import Define
from engine.model.list_queries import Kind as ListKind
from engine.model.spec_parts import Qos
from engine.model.specs import NodeState, Policy, QueueMode, WorkloadState
from engine.state.machines import OrderState
from runbooks.actions.declaration import Kind as TargetKind
from runbooks.drafts.typed_draft import REASONS
from runbooks.gate.policy_files import read_policy
from runbooks.models.endpoint import endpoint_of
from runbooks.plans.typed_plan import State as ProposalState
from tests.support.patience import PATIENCE_S
from tests.support.served import socket_folder

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = (
    "shell.md",
    "runbooks.md",
    "audit.md",
    "approval.md",
    "drafts.md",
    "console.md",
    "operators.md",
    "api.md",
    "alerts.md",
    "gpu-use.md",
    "metrics.md",
    "slow-or-wrong.md",
)
BLOCKS = [
    block
    for name in SHOWN
    for block in re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / name).read_text(), re.MULTILINE | re.DOTALL)
]


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """What a shell needs to run `muster` on a demo cell of its own."""
    with socket_folder() as folder:
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        command = bin_folder / "muster"
        command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m console.cli.main "$@"\n')
        command.chmod(0o755)
        paths = paths_in(folder / DEMO_CELL)
        ensure_engine(paths, ["--demo", "--quiet-day", "--speed", "20", "--nodes", "40", "--data", str(paths.folder)])
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


@pytest.mark.thorough
def test_every_example_works(environment: dict[str, str]) -> None:
    assert len(BLOCKS) >= 7
    for block in BLOCKS:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        assert done.stdout, block
        assert "Traceback" not in done.stderr


def blocks(kind: str) -> list[str]:
    """Blocks of that kind, of all documents; without a kind, those that are only shown."""
    pattern = re.compile(rf"^```{kind}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [block for path in DOCUMENTS for block in pattern.findall(every_block_marked(path.read_text()))]


def every_block_marked(text: str) -> str:
    """The text with blocks of no kind called `text`, so that no end of a block is taken for a beginning."""
    begun = False
    lines = []
    for line in text.splitlines():
        if line.startswith("```"):
            begun = not begun
            line = "```text" if begun and line == "```" else line
        lines.append(line)
    return "\n".join(lines) + "\n"


def test_every_command_that_is_only_shown_can_be_typed() -> None:
    lines = [line for block in blocks("text") for line in block.splitlines() if re.match(r"muster( |$)", line)]
    assert len(lines) > 20
    for line in lines:
        command, _, _ = line.partition("  ")
        try:
            parser().parse_args(shlex.split(command)[1:])
        except SystemExit:
            pytest.fail(f"not a command: {line}")


def test_every_cell_file_that_is_shown_can_be_read(tmp_path: Path) -> None:
    shown = blocks("yaml")
    assert len(shown) >= 2
    for text in shown:
        path = tmp_path / "cell.yaml"
        path.write_text(text)
        cell = cell_of(read_document(str(path)))
        if cell.pools:
            Engine.open(None).command(Define(cell=cell))


def test_every_approval_policy_that_is_shown_may_be_one() -> None:
    shown = blocks("policy")
    assert shown
    for text in shown:
        assert read_policy(text.encode(), "policy").people


def test_every_settings_file_that_is_shown_can_be_read(tmp_path: Path) -> None:
    models = []
    for text in blocks("toml"):
        path = tmp_path / "muster.toml"
        path.write_text(text)
        variables = {"MUSTER_CONFIG": str(path)}
        settings = load({}, variables)
        assert [*problems(variables), *key_map(given_keys(variables)).problems] == []
        if settings.model_url:
            models.append(endpoint_of(settings.model_url, settings.model, egress=settings.model_egress))
    assert len(models) >= 4


def test_every_reason_for_no_draft_is_in_the_manual() -> None:
    manual = (ROOT / "docs" / "drafts.md").read_text()
    assert [reason for reason in sorted(REASONS) if f"`{reason}`" not in manual] == []


def test_the_table_of_scores_names_all_there_are() -> None:
    policy = (ROOT / "docs" / "policy.md").read_text()
    told = policy.partition("**Scores**")[2].partition("###")[0]
    assert [name for name in SCORES if f"`{name}`" not in told] == []


def test_every_file_and_room_that_is_named_is_there() -> None:
    for path in DOCUMENTS:
        for name in re.findall(r"`((?:console|engine|runbooks|recommender|tests|docs)/[\w/.-]*)`", path.read_text()):
            assert (ROOT / name).exists(), f"{path.name} names {name}"


def test_every_test_that_the_security_page_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "security.md").read_text())
    assert len(named) > 30
    for path, test in named:
        assert re.search(rf"^(async )?def {test}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{test}"


ROOMS = sorted(
    path.parent
    for package in ("console", "recommender", "runbooks", "engine")
    for path in (ROOT / package).rglob("__init__.py")
)


def docstring_of(room: Path) -> str:
    """In one line."""
    return " ".join((ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or "").split())


def test_every_room_says_in_three_sentences_what_it_is_imports_and_where_to_start() -> None:
    assert len(ROOMS) > 30
    for room in ROOMS:
        told = docstring_of(room)
        assert len(re.findall(r"\.(?= [A-Z`]|$)", told)) == 3, room
        assert re.search(r"\bimports? ", told), room
        assert "Start at `" in told, room


def test_every_module_that_a_room_names_is_there() -> None:
    for room in ROOMS:
        told = docstring_of(room)
        for name in re.findall(r"`([a-z_][a-z_.]*)`", told):
            within = [folder / name.replace(".", "/") for folder in (room, ROOT)]
            assert any(path.is_dir() or path.with_suffix(".py").is_file() for path in within), f"{room.name}: {name}"


def words_of_glossary() -> dict[str, list[str]]:
    """The first cells of each table, by the heading above it."""
    words: dict[str, list[str]] = {}
    for part in re.split(r"^#+ ", (ROOT / "docs" / "glossary.md").read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        words[title] = re.findall(r"^\| (?!Muster)([^|]+?) \|", body, re.MULTILINE)
    return words


def test_the_glossary_has_each_word_once_and_in_order() -> None:
    for title, words in words_of_glossary().items():
        assert words == sorted(set(words), key=str.casefold), title


def test_every_state_that_a_person_may_see_is_in_the_glossary() -> None:
    words = words_of_glossary()
    for thing, states in {
        "workload": {state.label for state in WorkloadState},
        "node": {state.label for state in NodeState},
        "queue": {state.label for state in QueueMode},
        "order": {state.label for state in OrderState},
        "proposal": {state.replace("_", " ") for state in get_args(ProposalState)},
    }.items():
        assert set(words[f"States of a{'n' if thing == 'order' else ''} {thing}"]) == states, thing


def test_every_kind_of_thing_is_in_the_glossary() -> None:
    words = {re.sub(r" \(.*\)", "", word) for word in words_of_glossary()["Glossary"]}
    assert {kind.removesuffix("s") for kind in get_args(ListKind)} <= words
    assert set(get_args(TargetKind)) <= words
    text = (ROOT / "docs" / "glossary.md").read_text()
    assert [name for name in (*get_args(Policy), *get_args(Qos)) if f"`{name}`" not in text] == []
