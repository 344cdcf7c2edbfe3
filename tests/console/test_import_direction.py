"""The house's import rules, static (import-linter) and dynamic (what is loaded before it is needed)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def test_imports_run_one_way() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


HEAVY = ("textual", "rich", "httpx", "sqlmodel", "sqlalchemy", "numpy", "uvicorn", "starlette", "yaml", "msgspec")
BEFORE_PAINT = (
    "httpx", "sqlmodel", "sqlalchemy", "numpy", "uvicorn", "starlette", "yaml", "recommender", "textual_serve",
    "aiohttp", "cryptography", "openai", "sklearn", "statsmodels", "pandas",
)  # fmt: skip


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_version_and_help_load_nothing_heavy(argument: str) -> None:
    # Why: shells and scripts ask for these, and expect an answer in under 0.1 s.
    code = (
        "import sys\nfrom console.cli.main import run\n"
        f"try:\n    run(['{argument}'])\nexcept SystemExit:\n    pass\n"
        f"print(sorted(name for name in {HEAVY} if name in sys.modules))"
    )
    assert loaded(code) == "[]"


def test_opening_the_console_loads_no_engine_before_first_paint() -> None:
    # Why: first paint under half a second; httpx, SQL and numpy alone take as long as that.
    code = (
        "import sys, types\n"
        "terminal = types.SimpleNamespace(isatty=lambda: True, write=sys.__stdout__.write, flush=int)\n"
        "sys.stdin = sys.stdout = sys.stderr = terminal\n"
        "import console.tui.app, console.tui.terminal_guard\n"
        "console.tui.app.run = lambda connect, **options: 0\n"
        "console.tui.terminal_guard.watched = lambda: None\n"  # it forks, and wants a real terminal
        "from console.cli.main import run\n"
        "assert run(['--demo']) == 0\n"
        f"sys.__stdout__.write('\\n' + str(sorted(name for name in {BEFORE_PAINT} if name in sys.modules)))"
    )
    assert loaded(code) == "[]"


def test_asking_an_engine_loads_no_command_line_of_httpx() -> None:
    # Why: with it come rich, click and pygments, an eighth of what `muster get` takes.
    code = "import sys, console.client.remote\nprint(sorted({'rich', 'click', 'pygments'} & set(sys.modules)))"
    assert loaded(code) == "[]"


def loaded(code: str) -> str:
    environment = {"PATH": "/usr/bin:/bin", "TERM": "xterm", "HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]
