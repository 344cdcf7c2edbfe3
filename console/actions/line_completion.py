"""Completion of the word under the cursor of a `:` line.

Commands and columns are known at once; values such as queues, pools, tenants and ids are asked of the engine. Ids are
found by prefix. Other columns offer the values of the newest rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from console.actions.registry import ConsoleAction, kind_of
from console.forms import filters
from console.forms.action_arguments import typed_arguments
from console.forms.filters import ANYWHERE, PAGE_COLUMNS, Listed, asked_value, quoted, token_at
from console.text.tones import THEMES, name_of
from engine.model.list_queries import COLUMNS, Kind, Query, Term
from engine.model.what_if_edits import FORMS
from runbooks.actions.catalogue import CATALOG
from runbooks.actions.declaration import Action

if TYPE_CHECKING:
    from console.client.protocol import Client


MOST = 40
LOOKED_AT = 1_000
"""Rows whose values are offered."""
_BY_ID: dict[tuple[str, str], tuple[str, ...]] = {
    ("workloads", "id"): ("workload",), ("workloads", ANYWHERE): ("workload",), ("workloads", "queue"): ("queue",),
    ("nodes", "id"): ("node",), ("nodes", ANYWHERE): ("node",), ("nodes", "pool"): ("pool",),
    ("nodes", "zone"): ("zone",), ("nodes", "block"): ("block",), ("nodes", "rack"): ("rack",),
    ("queues", "name"): ("queue",), ("queues", ANYWHERE): ("queue",), ("queues", "parent"): ("queue",),
    ("pools", "name"): ("pool",), ("pools", ANYWHERE): ("pool",), ("orders", "pool"): ("pool",),
    ("orders", "workload"): ("workload",), ("events", "subject"): ("workload", "node", "queue", "pool"),
    ("events", ANYWHERE): ("workload", "node"),
}  # fmt: skip
"""Page and column -> kinds of `engine.model.list_queries.Named` that its values are ids of."""


class WantedValue(NamedTuple):
    """A value that is being typed: of which column, how it begins, and what stands before it in the word."""

    page: Listed
    column: str
    begun: str
    before: str


def wanted_value(page: Listed, text: str, cursor: int) -> WantedValue | None:
    """The value to ask the engine for at the cursor; None where it would know none."""
    asked = asked_value(page, text, cursor)
    if asked is None:
        return None
    column, begun = asked
    if (page, column) not in _BY_ID and (column == ANYWHERE or page not in COLUMNS):
        return None
    token = token_at(text, cursor)
    typed = token.text[: cursor - token.start]
    return WantedValue(page, column, begun, typed[: len(typed) - len(begun)].replace('"', ""))


def values(client: Client, wanted: WantedValue) -> list[str]:
    """Words that the one at the cursor could become. Blocks."""
    kinds = _BY_ID.get((wanted.page, wanted.column))
    if kinds is not None:
        found = [hit.id for hit in client.find(wanted.begun, kinds, MOST)] if wanted.begun else _all_of(client, kinds)
    else:
        where = (Term(wanted.column, "=", f"{wanted.begun}*"),) if wanted.begun and "*" not in wanted.begun else ()
        kind = cast("Kind", wanted.page)
        page = client.query(Query(kind=kind, columns=(wanted.column,), where=where, limit=LOOKED_AT))
        found = [str(row[0]) for row in page.rows if row[0]]
    return [wanted.before + quoted(value) for value in list(dict.fromkeys(found))[:MOST]]


def _all_of(client: Client, kinds: tuple[str, ...]) -> list[str]:
    """The first of them, where nothing is typed yet: there are few queues and pools."""
    kind = {"queue": "queues", "pool": "pools"}.get(kinds[0])
    if kind is None:
        return []
    page = client.query(Query(kind=cast("Kind", kind), columns=("name",), limit=MOST))
    return [str(row[0]) for row in page.rows]


MAX_PATHS = 50


class CompletionRequest(NamedTuple):
    """Candidates that take a look somewhere else: what begins with `begun`, and what stands before it in the word."""

    begun: str
    kinds: tuple[str, ...] = ()
    """Kinds of `engine.model.list_queries.Named`; empty: all."""
    before: str = ""
    files: bool = False


_BY_ACTION: dict[str, tuple[str, ...]] = {
    "workload": ("workload",), "node": ("node",), "queue": ("queue",), "proposal": ("proposal",),
    "approve": ("proposal",), "execute": ("proposal",), "pause": ("proposal",), "roll_back": ("proposal",),
    "withdraw": ("proposal",), "break_glass": ("proposal",), "reject": ("proposal", "recommendation"),
    "runbook": ("runbook",), "run": ("runbook",), "draft": ("draft",),
}  # fmt: skip
"""Kinds of the first word behind the names of the console's own actions."""
_KIND_OF: dict[str, str] = {
    "workload_id": "workload", "node_id": "node", "queue": "queue", "pool": "pool", "reservation": "reservation",
    "object": "workload",
}  # fmt: skip
"""Type of an argument -> kind of what it names, as far as that can be looked up by its beginning."""
_BY_EDIT = {
    "drain": ("node",), "cordon": ("node",), "uncordon": ("node",), "remove": ("node",), "fail": ("node",),
    "add": ("pool",), "resize": ("pool",), "shock": ("pool",), "quota": ("queue",), "weight": ("queue",),
    "hold-queue": ("queue",), "open-queue": ("queue",), "priority": ("workload",), "preempt": ("workload",),
    "cancel": ("workload",), "hold": ("workload",), "release": ("workload",), "move": ("workload",),
}  # fmt: skip
"""Kinds of the first word of an edit."""


def complete_line(
    line: str, cursor: int, available: Sequence[ConsoleAction], kind: Kind = "workloads", names: Sequence[str] = ()
) -> tuple[list[str], CompletionRequest | WantedValue | None]:
    """Known completions, and the value to ask for besides. `names` are those of bookmarks."""
    typed = line[:cursor]
    head, space, argument = typed.partition(" ")
    if not space:
        commands = [each for action in available for each in action.commands if each.startswith(head)]
        found = list(dict.fromkeys([*commands, *(name for name in names if name.startswith(head))]))
        # A word that is no command may be an id.
        return found, CompletionRequest(head) if head and not commands else None
    action = next((action for action in available if head in action.commands), None)
    if action is None:
        return [], None
    word = argument.rpartition(" ")[2]
    first = not argument.strip(" ") or " " not in argument.lstrip()
    if action.id == "theme":
        return [name for name in map(name_of, THEMES) if name.startswith(word)], None
    if action.id in ("forget_bookmark", "bookmark"):
        return [name for name in names if name.startswith(argument.lstrip())] if first else [], None
    if action.argument == "edit":
        return _edit(argument, word, first)
    if word.startswith(("/", "~", "./")) and action.id != "filter":
        return [], CompletionRequest(word, files=True)
    if action.argument == "filter":
        page = kind_of(action)
        return filters.complete(page, argument, len(argument)), wanted_value(page, argument, len(argument))
    if action.id in PAGE_COLUMNS:
        return filters.complete(action.id, argument, len(argument)), None
    if action.argument == "columns":
        return filters.complete_columns(kind, word, signed=action.id == "sort"), None
    return [], _ids(action, argument, word, first)


def _edit(argument: str, word: str, first: bool) -> tuple[list[str], CompletionRequest | None]:
    if first:
        return [form.word for form in FORMS if form.word.startswith(word)], None
    verb, *rest = argument.split(" ")
    if verb == "submit":
        return [], CompletionRequest(word, files=True)
    kinds = _BY_EDIT.get(verb, ())
    return ([], _listed(word, kinds)) if kinds and len([each for each in rest if each]) <= 1 else ([], None)


def _ids(action: ConsoleAction, argument: str, word: str, first: bool) -> CompletionRequest | None:
    before = argument[: len(argument) - len(word)].split()
    if before and (action.id, before[-1]) == ("draft", "--from"):
        return _listed(word, ())
    declared = CATALOG.get(action.id)
    if declared is not None:
        return _argument(declared, word, before, first)
    if action.id == "open":
        return CompletionRequest(word) if first and word else None
    kinds = _BY_ACTION.get(action.id)
    return _listed(word, kinds) if kinds and first else None


def _argument(action: Action, word: str, before: Sequence[str], first: bool) -> CompletionRequest | None:
    """Meaning of an argument of an action: by the flag before it, else by its place."""
    known = typed_arguments(action)
    flag = next((each for each in known if before and each.name == before[-1]), None)
    if flag is None and (first or action.past):
        flag = next((each for each in known if not each.name.startswith("-")), None)
    kind = _KIND_OF.get(flag.of or "") if flag is not None else None
    return _listed(word, (kind,)) if kind is not None else None


def _listed(word: str, kinds: tuple[str, ...]) -> CompletionRequest:
    """Last item of `a,b`."""
    before, comma, begun = word.rpartition(",")
    return CompletionRequest(begun, kinds, before + comma)


def paths(wanted: CompletionRequest) -> list[str]:
    """Files and folders whose path begins so. Blocks."""
    folder, _, begun = wanted.begun.rpartition("/")
    found: list[str] = []
    with suppress(OSError, RuntimeError, ValueError), os.scandir(Path(folder or "/").expanduser()) as entries:
        for entry in entries:
            if entry.name.startswith(begun) and (begun or not entry.name.startswith(".")):
                found.append(f"{folder}/{entry.name}" + ("/" if entry.is_dir() else ""))
                if len(found) >= MAX_PATHS * 20:
                    break
    return [wanted.before + filters.quoted(path) for path in sorted(found)[:MAX_PATHS]]
