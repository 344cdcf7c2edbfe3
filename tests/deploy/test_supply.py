"""What Muster is made of: the lock, the page of dependencies, the bill of materials and the wheel."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("console", "recommender", "runbooks", "engine")


def loaded() -> Any:
    """`deploy/supply.py`, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("supply", ROOT / "deploy" / "supply.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["supply"] = module
    spec.loader.exec_module(module)
    return module


supply = loaded()


def test_the_lock_pins_and_hashes_all_that_is_asked_for() -> None:
    locked = supply.locked()
    assert len(locked) > 100
    assert all(entry.hashes and entry.via for entry in locked.values())
    for section, lines in supply.wanted().items():
        for line in lines:
            wanted = Requirement(line)
            entry = locked[supply.normal(wanted.name)]
            assert entry.version in wanted.specifier, f"{line} of {section}: the lock has {entry.version}"
    # What each needs is there too: with --no-deps nothing else would bring it.
    for name in locked:
        for line in metadata.requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert supply.normal(needed.name) in locked, f"{name} needs {line}"


def test_what_the_image_installs_stands_alone() -> None:
    run = {name for name, entry in supply.locked().items() if entry.section == "run"}
    for name in run:
        for line in metadata.requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert supply.normal(needed.name) in run, f"{name} needs {line}"


def test_nothing_is_installed_without_a_hash() -> None:
    for path in (ROOT / "Makefile", ROOT / "deploy" / "Dockerfile"):
        for line in path.read_text().splitlines():
            if "pip install" in line and not re.search(r"-e \.|--no-build-isolation /src|compile uv$", line):
                assert "--require-hashes" in line, line
                assert "--no-deps" in line, line


def test_each_package_that_is_named_has_a_reason_and_the_page_says_it() -> None:
    asked = {supply.normal(Requirement(line).name) for lines in supply.wanted().values() for line in lines}
    why = {supply.normal(name) for name in supply.project()["tool"]["muster"]["why"]}
    assert why == asked
    page = (ROOT / "docs" / "dependencies.md").read_text()
    assert page == supply.page(), "make dependencies"
    assert "not said" not in page


def test_what_is_imported_is_named() -> None:
    """Not only what something else happens to bring."""
    named = {supply.normal(Requirement(line).name) for lines in supply.wanted().values() for line in lines}
    of_module = metadata.packages_distributions()
    found: dict[str, str] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                else:
                    names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
                found |= {name.partition(".")[0]: str(path) for name in names}
    for module, path in found.items():
        if module not in sys.stdlib_module_names and module not in (*PACKAGES, "tests", ""):
            assert any(supply.normal(each) in named for each in of_module[module]), f"{path} imports {module}"


def test_the_bill_of_materials_is_of_the_image_and_closed() -> None:
    bill = supply.sbom()
    assert bill == supply.sbom()
    refs = {"muster", *(each["bom-ref"] for each in bill["components"])}
    assert len(refs) == 1 + len([entry for entry in supply.locked().values() if entry.section == "run"])
    assert {each["ref"] for each in bill["dependencies"]} == refs
    needed = {name for each in bill["dependencies"] for name in each["dependsOn"]}
    assert needed == refs - {"muster"}, "each is there because something needs it"
    for each in bill["components"]:
        assert re.fullmatch(r"pkg:pypi/[a-z0-9-]+@[\w.+]+", each["purl"])
        assert all(re.fullmatch("[0-9a-f]{64}", one["content"]) for one in each["externalReferences"][0]["hashes"])


@pytest.mark.thorough
def test_the_same_source_gives_the_same_wheel(tmp_path: Path) -> None:
    """Wherever it is, whoever makes it, whenever its files were written, and whether it was run before."""
    hashes = []
    for name, umask, age_s in (("a", 0o022, 0), ("a-longer-place", 0o077, 400_000)):
        source = tmp_path / name
        source.mkdir()
        for each in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / each, source)
        for each in PACKAGES:
            shutil.copytree(ROOT / each, source / each, ignore=shutil.ignore_patterns("__pycache__"))
        for path in source.rglob("*.py"):
            at = path.stat().st_mtime - age_s
            os.utime(path, (at, at))
            path.chmod(0o666 & ~umask)
        if age_s:
            (source / "engine" / "__pycache__").mkdir()
            (source / "engine" / "__pycache__" / "loop.cpython-311.pyc").write_bytes(b"old")
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / f"dist-{name}")],
            cwd=source, check=True, capture_output=True, umask=umask,
        )  # fmt: skip
        (wheel,) = (tmp_path / f"dist-{name}").glob("*.whl")
        hashes.append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert hashes[0] == hashes[1]
