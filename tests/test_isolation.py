"""The tests, run by a person whose settings, variables and folders would break everything that reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOWHERE = "http://127.0.0.1:9"
HOSTILE = {
    "MUSTER_CELL": "../evil", "MUSTER_SPEED": "fast", "MUSTER_CONNECT": NOWHERE, "MUSTER_READONLY": "1",
    "MUSTER_NONSENSE": "1", "OPENAI_BASE_URL": NOWHERE, "OPENAI_API_KEY": "evil", "HTTP_PROXY": NOWHERE,
    "HTTPS_PROXY": NOWHERE, "ALL_PROXY": NOWHERE, "http_proxy": NOWHERE, "all_proxy": NOWHERE, "PGHOST": "/nowhere",
    "PGUSER": "evil", "SLURM_CONF": "/nowhere", "SLURM_JWT": "evil", "KUBECONFIG": "/nowhere", "NO_COLOR": "1",
    "COLORFGBG": "0;15", "TERM": "dumb", "COLUMNS": "31", "LINES": "7", "TZ": "Pacific/Kiritimati",
    "LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8", "SSH_AUTH_SOCK": "/nowhere", "GIT_DIR": "/nowhere",
    "EDITOR": "false", "TMUX": "/nowhere,1,0", "XDG_STATE_HOME": "/nowhere/state",
    "XDG_RUNTIME_DIR": "/nowhere/run",
}  # fmt: skip
REPRESENTATIVE = (
    "tests/console/cli/test_telemetry.py::test_a_prometheus_is_imported_once_and_goes_on",
    "tests/console/client/test_identity.py::test_the_shell_makes_a_key_that_only_its_owner_reads",
    "tests/console/cli/test_linear.py::test_over_a_pipe_it_says_what_the_pages_show",
    "tests/console/tui/test_looks.py::test_the_overview_paints_in_the_theme_that_is_asked_for",
    "tests/test_isolation.py::test_what_a_test_starts_sees_nothing_of_the_person",
)


def test_a_hostile_home_and_environment_change_nothing(tmp_path: Path) -> None:
    for file, text in {
        ".config/muster/muster.toml": "nonsense = 3\n", ".gitconfig": "[nonsense", ".pgpass": "*:*:*:*:evil\n",
        ".config/muster/credentials.json": "nonsense",
    }.items():  # fmt: skip
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", *REPRESENTATIVE], cwd=ROOT,
        env={**HOSTILE, "PATH": os.environ["PATH"], "HOME": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written there either"


def test_what_a_test_starts_sees_nothing_of_the_person() -> None:
    """Run by the test above too, where there is something to see."""
    home = Path(os.environ["HOME"])
    assert home.name.startswith("mu-home-")
    seen = subprocess.run(["env", "-0"], capture_output=True, text=True, check=True).stdout.rstrip("\0").split("\0")
    variables = dict(each.split("=", 1) for each in seen)
    folders = {name for name, value in variables.items() if Path(value).is_relative_to(home)}
    assert folders >= {
        "HOME",
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
        "XDG_DATA_HOME",
        "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR",
    }
    assert [name for name, value in HOSTILE.items() if variables.get(name) == value] == []
