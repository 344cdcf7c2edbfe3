"""Names of Slurm's as ids of the cell, and names that go into a request.

The latter are checked, because Slurm reads some as many: `POST node/ALL` changes every node of the cluster, and
`NodeName=cpu[001-999]` as many as there are.
"""

from __future__ import annotations

import re

from engine.model.errors import SpecError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,255}")
_ODD = re.compile(r"[^A-Za-z0-9._/-]")


def ident(text: str, other: str = "x") -> str:
    """The text as an id that people can type; `other` where nothing of it is left."""
    fitting = _ODD.sub("_", text)[:120].lstrip("._/-")
    return fitting or other


def check_name(kind: str, name: str) -> str:
    """The name of one thing, or SpecError."""
    if not _NAME.fullmatch(name) or name.upper() == "ALL":
        raise SpecError(kind, f"{name[:80]!r} is no name of one {kind}", "Name one, by letters, digits and _ . + -")
    return name
