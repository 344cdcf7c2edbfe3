"""Whether what is said is borne out: every number and every id in a sentence against the facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runbooks.draft import Fact, Sentence


class Ground:
    """What sentences may rest on: facts, and the ids of things that are there."""

    def __init__(self, facts: Sequence[Fact], ids: Iterable[str] = (), *, now_ms: int = 0) -> None:
        raise NotImplementedError

    def sentence(self, text: str, cites: tuple[str, ...] | None = None) -> Sentence:
        """The text in spans, those that nothing bears out marked `wrong`, what leads away marked `link` and defanged.
        `cites`: facts that it must rest on alone; None: all."""
        raise NotImplementedError
