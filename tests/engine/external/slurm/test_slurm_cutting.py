"""Entries that are cut out of an answer as it comes are the very ones that the whole answer has."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from engine.external.answer_cutter import Cutter
from engine.external.slurm.answers import split

NASTY = '},\n {"job_id": 7, "x": [{"job_id":1},{"job_id":2}], "jobs": [{'


def entry(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "job_id": number,
        "name": rng.choice([NASTY, "caf\u00e9 \u2028", '\\"', "", 'a"jobs":[{']),
        "nested": [{"job_id": n, "name": NASTY} for n in range(rng.randrange(3))],
        "more": {"jobs": [{"job_id": 9}]},
    }


def cut(body: bytes, rng: random.Random) -> tuple[list[Any], Cutter[Any]]:
    cutter: Cutter[Any] = Cutter("jobs", msgspec.json.decode)
    at = 0
    while at < len(body):
        step = rng.choice([1, 2, 7, 100, 5000])
        cutter.feed(body[at : at + step])
        at += step
    rest = split(200, cutter.rest())
    return [*cutter.found, *(msgspec.json.decode(raw) for raw in rest.entries("jobs"))], cutter


@pytest.mark.parametrize("seed", range(40))
def test_every_entry_is_there_once_and_in_order_however_the_answer_comes(seed: int) -> None:
    rng = random.Random(seed)
    jobs = [entry(rng, number) for number in range(rng.choice([0, 1, 2, 3, 30]))]
    about = {"meta": {"text": NASTY, "jobs": "none"}, "errors": [], "last_update": {"set": True, "number": 5}}
    whole = {"jobs": jobs, **about} if seed % 2 else {**about, "jobs": jobs}
    body = json.dumps(whole, indent=rng.choice([None, 1]), ensure_ascii=bool(seed % 3)).encode()
    found, cutter = cut(body, rng)
    assert found == jobs
    assert len(cutter.found) == max(len(jobs) - 1, 0), "only the last is left to be read with the rest"
    assert split(200, cutter.rest()).value("last_update") == {"set": True, "number": 5}


def test_what_is_no_plain_json_is_left_as_it_came() -> None:
    body = b'{"jobs": [{"job_id": 1}, {"job_id": 2}, {"job_id": NaN}, {"job_id": 4}], "errors": []}'
    cutter: Cutter[Any] = Cutter("jobs", msgspec.json.decode)
    cutter.feed(body)
    assert cutter.found == [{"job_id": 1}, {"job_id": 2}]
    left = split(200, cutter.rest())
    assert [msgspec.json.decode(raw)["job_id"] for raw in left.entries("jobs")] == [None, 4]


def test_it_gives_up_on_what_it_cannot_cut_instead_of_trying_for_ever() -> None:
    entries = [b'{"job_id": NaN}', *(b'{"job_id": %d, "more": "%s"}' % (n, b"x" * 200) for n in range(5_000))]
    cutter: Cutter[Any] = Cutter("jobs", msgspec.json.decode)
    body = b'{"jobs": [' + b",".join(entries) + b"]}"
    for at in range(0, len(body), 4096):
        cutter.feed(body[at : at + 4096])
    assert not cutter.found
    assert len(split(200, cutter.rest()).entries("jobs")) == 5_001


def test_an_entry_that_is_wrong_costs_only_itself_and_is_named_by_its_place() -> None:
    def read(raw: msgspec.Raw) -> int:
        return int(msgspec.json.decode(raw)["job_id"])

    cutter = Cutter("jobs", read)
    cutter.feed(b'{"jobs": [{"job_id": 1}, {"job_id": "x"}, {"job_id": 3}, {"job_id": 4}]}')
    assert cutter.found == [1, 3]
    assert [at for at, _ in cutter.bad] == [2]
    assert cutter.count == 3


@pytest.mark.parametrize(
    "body", [b"", b"no", b'{"errors": []}', b'{"jobs": []}', b'{"jobs": null}', b'{"jobs": [1, 2]}']
)
def test_an_answer_without_such_a_list_is_left_alone(body: bytes) -> None:
    cutter: Cutter[Any] = Cutter("jobs", msgspec.json.decode)
    cutter.feed(body)
    assert cutter.rest() == body
    assert not cutter.found
