"""The database that a cell was kept in last, noted in the cell's folder when it is served from one. So nobody who
forgets to name it begins an empty cell of the same name in a file, or goes on with the file that was copied there."""

from __future__ import annotations

from pathlib import Path

from console.text.terminal_text import printable
from engine.model.errors import SpecError

NOTE = "database.txt"
"""The place as people read it, without any password."""


def note(folder: Path, place: str) -> None:
    (folder / NOTE).write_text(f"{place}\n", encoding="utf-8")


def noted(folder: Path, journal: Path) -> str:
    """Empty where nothing was noted, or where the cell's file is newer: it was copied back."""
    try:
        written = (folder / NOTE).stat().st_mtime_ns
        place = (folder / NOTE).read_text(encoding="utf-8", errors="replace").strip()
        return "" if journal.exists() and journal.stat().st_mtime_ns > written else printable(place)
    except OSError:
        return ""


def refuse_file(cell: str, folder: Path, journal: Path) -> None:
    """Raises SpecError where the cell is kept in a database, and none was named."""
    refuse_file_of(f"cell '{cell}'", folder, journal)


def refuse_file_of(what: str, folder: Path, journal: Path) -> None:
    place = noted(folder, journal)
    if place:
        raise SpecError(
            "--database",
            f"is missing: {what} is kept in {place}",
            f"Name it, or set MUSTER_DATABASE. To begin anew in a file, remove {folder / NOTE}",
        )
