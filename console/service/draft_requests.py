"""What is asked of the drafters: within its bounds, and with what it points at looked up in the cell."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import msgspec

from engine.model.errors import NotFoundError
from engine.model.queries import Kind, Query
from runbooks.drafts.typed_draft import MAX_EXCERPTS, MAX_QUESTION, DraftAsk, Excerpt, Observation, ReportedFinding
from runbooks.untrusted.excerpts import MARGIN
from runbooks.untrusted.redaction import MARKER, applied, says_secret, secrets_in, visible

if TYPE_CHECKING:
    from engine.control import Engine
    from recommender.findings.suggestions import Suggestion

MAX_TEXTS_OF = 8
MAX_NAMES = 10_000
"""Queues, or pools, among which a name is looked for."""
MAX_ALIKE = 500
"""Names among which one is looked for that may have been meant: on the engine's thread."""
MAX_MISSPELT = 64
"""Letters of a name of which those that are one letter off are looked up."""
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz-./_"
MAX_ID = 300
KEPT_TEXT = 200
"""Characters of a text of strangers that stay with the request: fifty requests may each come with megabytes."""


def tidied(ask: DraftAsk) -> tuple[DraftAsk, tuple[str, ...]]:
    """The request within its bounds, and what was left out of it."""
    notes: list[str] = []
    question = " ".join(_whole(ask.question).split())
    if len(question) > MAX_QUESTION:
        notes.append(f"the question has {len(question):,} characters; the first {MAX_QUESTION:,} are looked at")
        question = question[:MAX_QUESTION]
    if not question and not ask.finding and ask.task in ("act", "explain", "runbook") and not ask.runbook:
        notes.append("nothing was asked; the draft is about what stands out in the cell")
    excerpts = tuple(
        Excerpt(field=_whole(one.field[:MAX_ID]), text=_whole(one.text)) for one in ask.excerpts[:MAX_EXCERPTS]
    )
    texts = tuple(_whole(one[:MAX_ID]) for one in ask.texts_of[:MAX_TEXTS_OF])
    if len(excerpts) < len(ask.excerpts) or len(texts) < len(ask.texts_of):
        given = len(ask.excerpts) + len(ask.texts_of)
        notes.append(f"{given} texts were given; the first {MAX_EXCERPTS} of each kind are looked at")
    finding = _whole(ask.finding).strip()
    if len(finding) > MAX_ID:
        notes.append(f"the finding's id has {len(finding):,} characters: no id is that long")
        finding = ""
    since_ms = max(0, ask.since_ms)
    ask = msgspec.structs.replace(
        ask, question=question, finding=finding, excerpts=excerpts, texts_of=texts, since_ms=since_ms,
        pick=_whole(ask.pick[:MAX_ID]).strip(), runbook=_whole(ask.runbook[:MAX_ID]),
    )  # fmt: skip
    return ask, tuple(notes)


def _whole(text: str) -> str:
    """Without halves of characters, which no file, socket or record takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def shortened(ask: DraftAsk) -> DraftAsk:
    """As it stays with the run, which everybody may read: without what is secret in it."""
    excerpts = tuple(
        Excerpt(
            field=_without_secrets(one.field, KEPT_TEXT),
            text=MARKER if says_secret(one.field) else _without_secrets(one.text, KEPT_TEXT),
        )
        for one in ask.excerpts
    )
    return msgspec.structs.replace(ask, question=_without_secrets(ask.question, MAX_QUESTION), excerpts=excerpts)


def _without_secrets(text: str, most: int) -> str:
    """The first characters of a text; one that begins among them and ends behind them is seen whole."""
    shown = visible(text[: most + MARGIN])
    found = secrets_in(shown, personal=False)
    return applied(shown, found, upto=most) if found else text[:most]


def finding_of(suggestion: Suggestion) -> ReportedFinding:
    """What the recommender found, as the drafters know it."""
    return ReportedFinding(
        id=suggestion.id,
        kind=suggestion.kind,
        text=suggestion.finding,
        about=suggestion.about or (suggestion.targets[0] if suggestion.targets else ""),
        targets=suggestion.targets,
        action=suggestion.action,
        parameters=suggestion.parameters,
        observed=tuple(
            Observation(metric=seen.metric, window=seen.window, value=seen.value) for seen in suggestion.evidence
        ),
    )


def finding_about(engine: Engine, wanted: str) -> ReportedFinding:
    """An object that a person points at, as a finding of kind `about_queue`, `about_pool`, `about_node` or
    `about_workload`, looked for in that order. Raises NotFoundError."""
    for word in ("queue", "pool", "node", "workload"):
        if _is_there(engine, word, wanted):
            return ReportedFinding(
                id=wanted, kind=f"about_{word}", text=f"{word} {wanted}, as it is now", about=wanted, targets=(wanted,)
            )
    names = [name for word in ("queue", "pool") for name in _names(engine, word)]
    close = _one_off(engine, wanted) or get_close_matches(wanted, names[:MAX_ALIKE], 1)
    raise NotFoundError(
        f"there is no finding, queue, pool, node or workload {ascii(wanted)[:62]}{did_you_mean(close)}",
        "See `muster recommend`",
    )


def did_you_mean(names: Sequence[str]) -> str:
    return f" (did you mean {ascii(names[0])[1:-1][:60]}?)" if names else ""


def finding_alike(wanted: str, ids: Sequence[str]) -> str:
    """As in " (did you mean R-k3vq7?)"; empty where none is alike."""
    return did_you_mean(get_close_matches(wanted, ids[:MAX_ALIKE], 1))


def _one_off(engine: Engine, wanted: str) -> list[str]:
    """A node or workload that is called so but for one letter, or for upper and lower case. Looked up, not searched
    for: a cell may have millions."""
    if len(wanted) > MAX_MISSPELT:
        return []
    cuts = [(wanted[:at], wanted[at:]) for at in range(len(wanted) + 1)]
    ways = [wanted.lower(), wanted.upper(), *(head + tail[1:] for head, tail in cuts if tail)]
    ways += [head + tail[1] + tail[0] + tail[2:] for head, tail in cuts if len(tail) > 1]
    ways += [head + letter + rest for head, tail in cuts for letter in LETTERS for rest in (tail, tail[1:])]
    known = (engine.state.capacity.row_of, engine.state.workloads.row_of)
    return next(([way] for rows in known for way in ways if way != wanted and way in rows), [])


def _names(engine: Engine, word: str) -> list[str]:
    kind: Kind = "queues" if word == "queue" else "pools"
    return [row[0] for row in engine.query(Query(kind=kind, columns=("name",), limit=MAX_NAMES)).rows]


def _is_there(engine: Engine, word: str, name: str) -> bool:
    if word in ("queue", "pool"):
        return name in _names(engine, word)
    try:
        (engine.state.capacity if word == "node" else engine.state.workloads).row(name)
    except NotFoundError:
        return False
    return True


def texts_of(engine: Engine, workload_id: str) -> list[Excerpt]:
    """What its owner calls a workload. Raises NotFoundError."""
    found = engine.workload(workload_id)
    labels = [Excerpt(field=f"workload {found.id}: label {key}", text=value) for key, value in found.tags.items()]
    return [Excerpt(field=f"workload {found.id}: name", text=found.name), *labels]
