"""Numbers, names and links in prose: what no fact bears out is marked, what is borne out is left alone."""

from __future__ import annotations

from collections import Counter

import pytest

from runbooks.claims import Ground
from runbooks.draft import Sentence
from runbooks.quantities import quantities
from runbooks.vocabulary import fact
from tests.support.claims_corpus import NOW_MS, Claimed, corpus

SEED = 8
WORLDS = 6
LEAST_PRECISION = 0.97
LEAST_RECALL = 0.95


def is_marked(sentence: Sentence) -> bool:
    return any(span.mark for span in sentence.spans)


def measured(seed: int, worlds: int) -> tuple[float, float, int, Counter[str]]:
    """(precision, recall, claims, kinds that were judged wrongly) of marking false sentences."""
    hits = marked = false = count = 0
    wrongly: Counter[str] = Counter()
    for world, claims in corpus(seed, worlds):
        ground = Ground(world.facts, now_ms=NOW_MS)
        for claim in claims:
            found = is_marked(ground.sentence(claim.text, claim.cites))
            count += 1
            marked += found
            false += not claim.true
            hits += found and not claim.true
            if found == claim.true:
                wrongly[claim.kind] += 1
    return hits / marked, hits / false, count, wrongly


def test_false_claims_are_found_and_true_ones_left() -> None:
    precision, recall, count, wrongly = measured(SEED, WORLDS)
    print(f"{count} claims of seed {SEED}: precision {precision:.3f}, recall {recall:.3f}; wrong: {dict(wrongly)}")
    assert count >= 300
    assert precision >= LEAST_PRECISION, wrongly
    assert recall >= LEAST_RECALL, wrongly
