"""The steps of `deploy/Dockerfile` without a daemon: what it copies and runs, into a folder instead of an image.

python tests/support/image_steps.py FOLDER
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
PLACES = ("/opt/muster", "/src", "/var/lib/muster")
Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    """(word, the rest) of each instruction, lines that go on joined, comments left out."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined]


def stages() -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found


def install(folder: Path) -> None:
    """Do the steps of the first stage. Raises CalledProcessError."""
    for word, rest in stages()[0]:
        if word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                _copy(ROOT / source, folder / target.lstrip("/"), whole=not target.endswith("/"))
        elif word == "RUN":
            environment = {name: os.environ[name] for name in os.environ if not name.startswith(("VIRTUAL", "PYTHON"))}
            subprocess.run(["sh", "-euc", within(folder, rest)], check=True, env=environment)


def within(folder: Path, text: str) -> str:
    """The text with the places of the image as folders below `folder`."""
    for place in PLACES:
        text = text.replace(place, f"{folder}{place}")
    return text


def environment_in(folder: Path) -> dict[str, str]:
    """What the last stage sets, and nothing else."""
    (said,) = [rest for word, rest in stages()[-1] if word == "ENV"]
    return {name: within(folder, value) for name, value in (pair.split("=", 1) for pair in said.split())}


def started_as() -> list[str]:
    """Entry point and its arguments."""
    found = dict(stages()[-1])
    return [*json.loads(found["ENTRYPOINT"]), *json.loads(found["CMD"])]


def _copy(source: Path, target: Path, *, whole: bool) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target = target if whole else target / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


if __name__ == "__main__":
    install(Path(sys.argv[1]).absolute())
