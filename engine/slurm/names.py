"""Names that go into a request: checked, because Slurm reads some as many. `POST node/ALL` changes every node of the
cluster, and `NodeName=cpu[001-999]` as many as there are."""

from __future__ import annotations

import re

from engine.errors import SpecError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,255}")


def check_name(kind: str, name: str) -> str:
    """The name of one thing, or SpecError."""
    if not _NAME.fullmatch(name) or name.upper() == "ALL":
        raise SpecError(kind, f"{name[:80]!r} is no name of one {kind}", "Name one, by letters, digits and _ . + -")
    return name
