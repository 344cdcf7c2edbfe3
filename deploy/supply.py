"""What Muster is made of: the lock, the page of dependencies, and the bill of materials.

    python deploy/supply.py lock [--keep]      requirements.lock, with hashes; needs `uv` in PATH, which `make lock` has
    python deploy/supply.py dependencies       docs/dependencies.md, of the lock and what is installed
    python deploy/supply.py sbom               CycloneDX 1.6 as JSON, on standard output

The lock is in paragraphs: what the image has (`run`), the other extras, what builds the wheel, what development needs.
Each package is in the first that needs it, so the first alone is what a production host installs:

    awk -v RS= '/^# run/' requirements.lock > run.lock

It needs nothing but the standard library, and for licences the packages that it tells of.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
PAGE = ROOT / "docs" / "dependencies.md"
PYTHON = "3.11"
IMAGE_EXTRAS = ("postgres", "oidc")
"""Those that the image installs."""
SECTIONS = {
    "run": "what the image installs: Muster with the extras postgres and oidc",
    "extras": "the other extras: web and mcp",
    "build": "what makes the wheel",
    "development": "tests and checks",
}
HEAD = """\
# Exact versions and hashes of everything, at run time and for development. Made by `make lock`; installed with
# --no-deps --require-hashes. Each package says what it is there for.
"""


class Locked(NamedTuple):
    name: str
    version: str
    via: tuple[str, ...]
    """What needs it; `muster` for what pyproject.toml names."""
    hashes: tuple[str, ...]
    """SHA-256 of every file of that version in the index, hex."""
    section: str


def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return found


def normal(name: str) -> str:
    """A name as the index has it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


# -- the lock ---------------------------------------------------------------------------------------------------------


def wanted() -> dict[str, list[str]]:
    """Requirements of each paragraph, as pyproject.toml has them."""
    found = project()
    about: dict[str, object] = found["project"]  # type: ignore[assignment]
    extras: dict[str, list[str]] = about["optional-dependencies"]  # type: ignore[assignment]
    image = [line for name in IMAGE_EXTRAS for line in extras[name]]
    others = [line for name, lines in extras.items() if name not in IMAGE_EXTRAS for line in lines]
    build: list[str] = found["build-system"]["requires"]  # type: ignore[index]
    development: list[str] = found["dependency-groups"]["dev"]  # type: ignore[index]
    run: list[str] = about["dependencies"]  # type: ignore[assignment]
    return {"run": [*run, *image], "extras": others, "build": [*build, "editables"], "development": development}


def resolved(requirements: list[str], constraint: Path | None, *, hashes: bool) -> str:
    """What uv makes of them."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "muster"
        given.write_text("\n".join(requirements) + "\n")
        command = ["uv", "pip", "compile", str(given), "--quiet", "--no-header", "--python-version", PYTHON]
        command += ["--python-platform", "linux", "--annotation-style", "line"]
        command += ["--generate-hashes"] if hashes else []
        command += ["--constraint", str(constraint)] if constraint else []
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def lock(*, keep: bool) -> None:
    """Write the newest versions that pyproject.toml allows; `keep`: those that are locked, with what is new."""
    parts = wanted()
    every = [line for lines in parts.values() for line in lines]
    entries = dict(_entries(resolved(every, LOCK if keep else None, hashes=True)))
    paragraphs, seen = [], set[str]()
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins"
        pins.write_text("".join(f"{name}=={entry.version}\n" for name, entry in entries.items()))
        so_far: list[str] = []
        for section, lines in parts.items():
            so_far += lines
            names = {name for name, _ in _entries(resolved(so_far, pins, hashes=False))} - seen
            seen |= names
            paragraphs.append(f"# {section}: {SECTIONS[section]}\n" + "".join(map(_line, _of(entries, names))))
    LOCK.write_text(HEAD + "\n" + "\n".join(paragraphs))


def _of(entries: Mapping[str, Locked], names: set[str]) -> list[Locked]:
    return [entries[name] for name in sorted(names)]


def _line(entry: Locked) -> str:
    hashes = "".join(f" \\\n    --hash=sha256:{each}" for each in entry.hashes)
    return f"{entry.name}=={entry.version}{hashes}\n    # via {', '.join(entry.via)}\n"


def _entries(text: str, section: str = "") -> Iterator[tuple[str, Locked]]:
    for found in re.finditer(r"^([\w.-]+)==(\S+)((?:[^\n]*\\\n)*[^\n]*)\n(?:    # via (.*)\n)?", text, re.MULTILINE):
        name, version, more, via = found.groups()
        via = via or (re.search(r"# via (.*)", more) or [""] * 2)[1]
        needed = (re.sub(r".*\bmuster\b.*|^-r .*", "muster", each.strip()) for each in via.split(","))
        kept = tuple(dict.fromkeys(each for each in needed if each and not each.startswith("-c ")))
        hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", more))
        yield normal(name), Locked(normal(name), version, kept, hashes, section)


def locked() -> dict[str, Locked]:
    """The lock as it is."""
    found: dict[str, Locked] = {}
    for paragraph in LOCK.read_text().split("\n\n")[1:]:
        found |= dict(_entries(paragraph + "\n", paragraph[2:].partition(":")[0]))
    return found


# -- the page ---------------------------------------------------------------------------------------------------------


def licence(name: str) -> str:
    """As the installed package says it."""
    said = metadata.metadata(name)
    classified = [line.rpartition(" :: ")[2] for line in said.get_all("Classifier") or () if "License ::" in line]
    free = (said.get("License") or "").strip().partition("\n")[0]
    return said.get("License-Expression") or ", ".join(classified) or free[:60] or "not said"


def page() -> str:
    """docs/dependencies.md."""
    entries = locked()
    why: dict[str, str] = {normal(name): text for name, text in project()["tool"]["muster"]["why"].items()}  # type: ignore[index]
    named = {
        section: {normal(re.split(r"[\[<>=!~ ]", line)[0]) for line in lines} for section, lines in wanted().items()
    }
    order = list(SECTIONS)
    told = [_PAGE_HEAD]
    for section, says in SECTIONS.items():
        here = [entry for entry in entries.values() if entry.section == section]
        direct = [entry for entry in here if entry.name in named[section]]
        told.append(f"\n## {section.capitalize()}: {says.partition(': ')[2] or says}\n")
        told.append("\n| package | licence | why |\n|---|---|---|\n")
        told += [f"| {entry.name} | {licence(entry.name)} | {why[entry.name]} |\n" for entry in direct]
        rest = [entry for entry in here if entry.name not in named[section]]
        until = order[: order.index(section) + 1]
        if rest:
            told.append("\n| package | licence | needed by |\n|---|---|---|\n")
            for entry in rest:
                by = [name for name in entry.via if normal(name) in entries and entries[normal(name)].section in until]
                told.append(f"| {entry.name} | {licence(entry.name)} | {', '.join(by)} |\n")
    return "".join(told)


_PAGE_HEAD = """\
# Dependencies

Made by `make dependencies` of `requirements.lock`, of `[tool.muster.why]` in `pyproject.toml`, and of what the
installed packages say of their licence. Versions and hashes are in the lock; `make sbom` writes a bill of materials.
"""


# -- the bill of materials --------------------------------------------------------------------------------------------


def sbom() -> dict[str, object]:
    """CycloneDX 1.6 of what the image installs. The same lock gives the same bytes: no time is in it."""
    about: dict[str, object] = project()["project"]  # type: ignore[assignment]
    entries = {name: entry for name, entry in locked().items() if entry.section == "run"}
    version = re.search(r'VERSION = "(.*)"', (ROOT / "console" / "__init__.py").read_text())
    assert version is not None
    muster = {
        "type": "application",
        "bom-ref": "muster",
        "name": str(about["name"]),
        "version": version[1],
    }
    needs: dict[str, list[str]] = {name: [] for name in ("muster", *entries)}
    for entry in entries.values():
        for by in entry.via:
            if (needing := re.sub(r"\[.*", "", by)) in needs:
                needs[needing].append(_purl(entry))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=hashlib.sha256(LOCK.read_bytes()).digest()[:16], version=4)}",
        "version": 1,
        "metadata": {"component": muster},
        "components": [_component(entry) for entry in entries.values()],
        "dependencies": [
            {"ref": _purl(entries[name]) if name in entries else name, "dependsOn": sorted(set(needed))}
            for name, needed in needs.items()
        ],
    }


def _purl(entry: Locked) -> str:
    return f"pkg:pypi/{entry.name}@{entry.version}"


def _component(entry: Locked) -> dict[str, object]:
    said = metadata.metadata(entry.name).get("License-Expression")
    licensed = {"expression": said} if said else {"license": {"name": licence(entry.name)}}
    hashes = [{"alg": "SHA-256", "content": each} for each in entry.hashes]
    files = {"type": "distribution", "url": f"https://pypi.org/project/{entry.name}/{entry.version}/", "hashes": hashes}
    return {
        "type": "library", "bom-ref": _purl(entry), "name": entry.name, "version": entry.version,
        "purl": _purl(entry), "licenses": [licensed], "externalReferences": [files],
    }  # fmt: skip


def main(arguments: list[str]) -> None:
    match arguments:
        case ["lock", *more]:
            lock(keep="--keep" in more)
        case ["dependencies"]:
            PAGE.write_text(page())
        case ["sbom"]:
            print(json.dumps(sbom(), indent=1))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
