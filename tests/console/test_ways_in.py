"""There is one way to the engine: who may command it at all, and who may make a command that changes what is there, is
listed here. A new one is a decision, not an accident."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from engine.model import commands
from runbooks.gate.decisions import ADMITTED

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    name
    for name, kind in vars(commands).items()
    if isinstance(kind, type) and issubclass(kind, commands.Command) and kind is not commands.Command
}
MUTATING = COMMANDS - {kind.__name__ for kind in ADMITTED}
CALLERS = {
    "runbooks/gate/executor.py": "steps of approved plans",
    "runbooks/gate/decisions.py": "submissions and definitions, by role and on record",
    "runbooks/gate/aftermath.py": "a person's word on an intent in doubt, by role and on record",
    "console/server/engine_process.py": "a new cell is defined by whoever starts it",
    "console/evals/engine_runs.py": "a trace's own engine, in this process alone",
    "engine/control.py": "`command` is `commands` of one; a new cell",
    "engine/loop.py": "the load of a simulated cell",
    "engine/executors/agent_reports.py": "agents of nodes begin and end to be waited for",
    "engine/external/mirror_pass.py": "what another scheduler did, in a cell that it decides",
    "engine/external/intent_carrier.py": "what became of intents that the gate wrote down",
    "engine/twin/counterfactuals.py": "a fork",
    "engine/twin/rehearsals.py": "a fork",
    "runbooks/gate/composition.py": "a fork",
    "engine/twin/consolidation.py": "a fork",
    "runbooks/actions/target_readings.py": "a fork",
    "runbooks/drafts/solver.py": "a fork",
    "console/evals/scores.py": "a fork",
    "console/cli/demo_past.py": "the demo's own past, before anybody can connect to its engine",
    "console/cli/main.py": "commands of the shell's parser, not of an engine",
    "console/cli/reference.py": "commands of the shell's parser, not of an engine",
    "console/forms/shell_parser.py": "commands of the shell's parser, not of an engine",
    "console/evals/finding_days.py": "a generated day's own engine, in memory",
    "console/evals/incident_replay.py": "a scripted incident's own engine, in memory",
}
MAKERS = {
    **{
        f"runbooks/actions/{subject}.py": "what its actions come to"
        for subject in ("declaration", "workloads", "queues", "cell", "nodes", "taints", "slurm")
    },
    "runbooks/gate/aftermath.py": "a person's word on an intent in doubt: `AnswerIntent` alone",
    "engine/executors/agent_reports.py": "agents of nodes",
    "console/evals/engine_runs.py": "a trace's own engine",
    "engine/external/mirror_pass.py": "what another scheduler did: `Observe` alone",
    "engine/external/intent_carrier.py": "what became of intents: `SettleIntents` alone",
    **{f"engine/twin/{subject}.py": "a fork" for subject in ("counterfactuals", "quota_growth")},
    "engine/admission/what_if_edits.py": "a fork",
    "engine/twin/consolidation.py": "a fork",
}


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    """Of the files in which there could be anything of what is looked for."""
    found = []
    for package in ("console", "engine", "recommender", "runbooks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name, text = str(path.relative_to(ROOT)), path.read_text()
            # Load and benchmarks have an engine of their own.
            if not name.startswith(("engine/traces/", "engine/scenarios/")) and any(sign in text for sign in SIGNS):
                found.append((name, ast.parse(text)))
    return tuple(found)


SIGNS = (".command(", ".commands(", "engine.model.commands", "import commands", "executor")


def command_calls(tree: ast.AST) -> Iterator[str]:
    """Calls of a method `command` or `commands` of something that is, by its name, an engine or a fork of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            yield ast.unparse(node.func.value)


_METHODS = ("command", "commands")
CLIENTS = {
    "client",
    "self._client",
    "app.client()",
    "self._app.client()",
    "row",
    "action",
    "find(act.action)",
    "catalogue",
    "parser()",
}
"""What is not an engine: the `command` of clients is `runbooks.gate.decisions`'s, that of the catalogue only
makes one, and the shell's parser has the words of its own."""


def makes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            module = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            if name == "getattr" and ast.unparse(node.args[0]) == "commands":
                yield "one by its name"
            if name in MUTATING and module in ("", "cmd", "commands") and name in imported(tree, module):
                yield name


def imported(tree: ast.AST, module: str) -> set[str]:
    """Names that are engine.model.commands' in this file."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "engine.model.commands" and not module:
            found |= {alias.asname or alias.name for alias in node.names}
        if (
            module
            and isinstance(node, ast.ImportFrom)
            and node.module in ("engine.model", "runbooks.actions.declaration")
        ):
            found |= COMMANDS
        if (
            module
            and isinstance(node, ast.Import)
            and any(alias.name == "engine.model.commands" for alias in node.names)
        ):
            found |= COMMANDS
    return found


def test_who_commands_an_engine_is_known() -> None:
    callers = {name for name, tree in sources() if any(each not in CLIENTS for each in command_calls(tree))}
    assert callers == CALLERS.keys(), "a new way to the engine: it must be the gate's, or be listed with why"


def test_who_makes_a_command_that_changes_what_is_there_is_known() -> None:
    makers = {name for name, tree in sources() if any(makes(tree))}
    assert makers == MAKERS.keys(), "actions are for the catalogue to make, or the file is listed with why"


@pytest.mark.parametrize("face", ["console", "recommender"])
def test_no_face_holds_the_executor(face: str) -> None:
    for name, tree in sources():
        if name.startswith(f"{face}/"):
            modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
            assert "runbooks.gate.executor" not in modules, name


def test_the_search_finds_what_it_looks_for() -> None:
    bad = ast.parse(
        "from engine.model.commands import Drain\nfrom engine.model import commands as cmd\n"
        "engine.command(Drain(ids=('a',)))\ngetattr(commands, 'Hold')(ids=('a',))\n"
        "self._engine.commands([cmd.Cancel(ids=())])\nclient.command(x)\n"
    )
    assert [each for each in command_calls(bad) if each not in CLIENTS] == ["engine", "self._engine"]
    assert sorted(makes(bad)) == ["Cancel", "Drain", "one by its name"]
