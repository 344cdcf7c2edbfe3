"""An action is declared once: the example of docs/adding.md, added to a copy of the product, works from end to end."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("console", "engine", "recommender", "runbooks")


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """A copy with the action of the manual: two files of it are touched."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    [declaration] = re.findall(r"^```python\n(Action\(.*?)^```$", (ROOT / "docs/adding.md").read_text(), re.M | re.S)
    put_in(
        tmp_path / "runbooks/actions/workloads.py", "ACTIONS: tuple[Action, ...] = (\n", f"{declaration.rstrip()},\n"
    )
    put_in(tmp_path / "runbooks/plans/typed_plan.py", "ActionName = Literal[\n", '"lift",\n')
    return tmp_path


def put_in(path: Path, after: str, text: str) -> None:
    source = path.read_text()
    assert source.count(after) == 1
    path.write_text(source.replace(after, after + text))


def test_an_action_is_added_by_its_declaration_and_its_name(product: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.new_action"],
        cwd=product, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(product), "HOME": str(product)},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("table")[0].startswith("| `muster workload lift WORKLOAD...` | workload, up to 1,000 | T2 |")
    assert found.pop("outcome") == ["verified", ["verified: w is queued"]]
    assert found == {
        "help": True,
        "shell": ["lift", ["w"], "high"],
        "console": ["Lift", "T2", ["lift"], "muster workload lift {ids}"],
        "completes": ["workload"],
        "model": ["to", "workloads"],
        "lint": [],
        "lint of a slip": ["missing-parameter"],
        "same act": True,
        "proposal": [
            "Lift workload w", "T2", ["lift w (queued, 32 GPU): normal -> high"], "Give w back normal",
        ],
        "classes": ["high", "normal"],
        "tier": "T2",
    }  # fmt: skip
