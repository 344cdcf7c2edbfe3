"""Names as a language model is told them: plain ids as they are, or stable pseudonyms in the place of all of them.

What a node or a tenant is called was written by strangers: a name can be a sentence, or a secret. So a model meets a
name only as an id that is plainly nothing else, or as a pseudonym that is the same in every prompt of a cell and means
nothing elsewhere. Answers are read back by the same table, and what is not in it is nobody's name.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlalchemy import Column, Connection, Integer, LargeBinary, MetaData, Table, insert, select

from engine.journal.database import create_tables
from runbooks.untrusted.redaction import is_secret

if TYPE_CHECKING:
    from runbooks.procedures.registry import EngineCall

KINDS = ("node", "workload", "queue", "pool", "tenant", "user", "zone", "reservation", "budget", "freeze", "channel",
         "runbook", "policy", "review")  # fmt: skip
"""Of what is named. Findings and proposals are numbered by us, and go out as they are."""
OURS: frozenset[str] = frozenset(("finding", "proposal"))
_OUR_ID = re.compile(r"(?:R|P|D)-[a-z0-9]{1,12}")

METADATA = MetaData()
_KEY = Table(
    "draft_pseudonym_key", METADATA,
    Column("one", Integer, primary_key=True), Column("key", LargeBinary, nullable=False),
)  # fmt: skip

_LETTERS = "bcdfghjklmnpqrstvwxz"
"""No vowels, so that no pseudonym is a word; no digits, so that none is a number that somebody claims."""
_LENGTH = 7
_PSEUDONYM = re.compile(rf"(?:{'|'.join(KINDS)}|finding|proposal)-[{_LETTERS}]{{{_LENGTH},}}", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z0-9]{1,16}(?:[-_.][A-Za-z0-9]{1,16}){0,6}")
_MAX_PLAIN = 40
_MAX_WORDS = 3
_WORD = re.compile(r"[A-Za-z]{3,}")
_BIDS = """
ignore disregard forget override bypass system assistant user developer prompt instruction instructions previous
approve approves approved approval execute execution confirm reveal print output answer reply respond must please
always never admin root sudo urgent now and then the you your all every everything delete remove kill shutdown stop
drain cordon uncordon cancel interrupt preempt evict requeue suspend password passwd secret token apikey credential
key function tool call http https www com exec eval curl wget bash inst start end
"""
_BIDDING = frozenset(_BIDS.split())
"""Words that, beside others, make a name read as an order, as somebody who speaks, or as something to keep."""


_COMMON = frozenset(
    ("a", "all", "and", "cell", "cpu", "cpus", "for", "gpu", "gpus", "in", "is", "job", "jobs", "memory", "no", "node",
     "nodes", "not", "of", "on", "pool", "queue", "spot", "the", "to", "work")
)  # fmt: skip
"""Words of every question: a thing that is called so is not hidden in sentences, where nobody could tell the two
apart. As a name it still is told otherwise."""


def key_of(call: EngineCall) -> bytes:
    """The cell's own key for pseudonyms: made at random once and kept with its records. Where they cannot be written it
    is a new one each time, and pseudonyms are not stable."""

    def kept(connection: Connection) -> bytes:
        create_tables(connection, METADATA)
        found = connection.execute(select(_KEY.c.key)).scalar()
        if found is None:
            found = secrets.token_bytes(32)
            connection.execute(insert(_KEY).values(one=1, key=found))
        return bytes(found)

    from engine.model.errors import JournalError

    try:
        return call(lambda engine: engine.record(kept))
    except JournalError:
        return secrets.token_bytes(32)


def is_plain(name: str) -> bool:
    """Whether a name can go out as it is: a short id of few words, none of them a bidding, and no secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    return (
        len(name) <= _MAX_PLAIN
        and _PLAIN.fullmatch(name) is not None
        and len(words) <= _MAX_WORDS
        and (len(words) == 1 or not _BIDDING.intersection(words))
        and not is_secret(name)
        # Else it could be taken for the pseudonym of something else.
        and _PSEUDONYM.fullmatch(name) is None
    )


class PromptNames:
    """The names of one prompt, both ways. `hide_all`: nothing goes out under its own name."""

    def __init__(self, key: bytes, *, hide_all: bool) -> None:
        self._key = key
        self._hide_all = hide_all
        self._shown: dict[tuple[str, str], str] = {}
        self._real: dict[str, tuple[str, str]] = {}

    def shown(self, kind: str, id_: str) -> str:
        """What the model is told it is called."""
        known = self._shown.get((kind, id_))
        if known is not None:
            return known
        if (kind in OURS and _OUR_ID.fullmatch(id_)) or (not self._hide_all and is_plain(id_)):
            name = id_
        else:
            digest = hmac.digest(self._key, f"{kind}\n{id_}".encode("utf-8", "surrogatepass"), "sha256")
            letters = "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)
            name = f"{kind}-{letters[:_LENGTH]}"
            while name in self._real:
                name = f"{kind}-{letters[: len(name) - len(kind)]}"
        self._shown[kind, id_] = name
        self._real.setdefault(name, (kind, id_))
        return name

    def add(self, named: Iterable[tuple[str, str]]) -> None:
        """Learn (kind, id) pairs, so that `hide` finds them in texts."""
        for kind, id_ in named:
            self.shown(kind, id_)

    def real(self, shown: str, kind: str = "") -> str | None:
        """The id that was told so, of that kind if one is given; None: nobody was."""
        if kind:
            return next((id_ for (of, id_), name in self._shown.items() if of == kind and name == shown), None)
        found = self._real.get(shown)
        return None if found is None else found[1]

    def known(self) -> tuple[tuple[str, str, str], ...]:
        """(kind, id, as it is told) of all."""
        return tuple((kind, id_, name) for (kind, id_), name in self._shown.items())

    def hide(self, text: str) -> str:
        """A text in which every name that is known here is as it is told. One that is told otherwise is replaced
        wherever it stands as a word of its own, in any case of letters."""
        told: dict[str, str] = {}
        for (_, id_), name in self._shown.items():
            if id_ and id_ != name and id_.casefold() not in _COMMON:
                told.setdefault(id_.casefold(), name)
        return _replaced(text, told)

    def restore(self, text: str) -> str:
        """The opposite, of a text that came back."""
        told = {name.casefold(): id_ for name, (_, id_) in self._real.items() if name != id_}
        return _replaced(text, told)


def _replaced(text: str, told: dict[str, str]) -> str:
    """Every word of `told`, the longest first, that does not stand inside a longer name."""
    if not told:
        return text
    longest_first = sorted(told, key=lambda name: (-len(name), name))
    pattern = re.compile(
        rf"(?<![A-Za-z0-9_])(?:{'|'.join(map(re.escape, longest_first))})(?![A-Za-z0-9_])", re.IGNORECASE
    )
    # A letter that only folds to one of a name is no name of ours, and still must not go out.
    return pattern.sub(lambda match: told.get(match[0].casefold(), "[name]"), text)
