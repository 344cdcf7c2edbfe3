"""What an answer means is what it says, not its HTTP status: all kinds that were recorded of both releases."""

from __future__ import annotations

import json
from typing import Any

import pytest
from slurm_samples import EARLY, LATER, needs_samples, sample

from engine.external.slurm.answers import ignored_fields, job_id, require, split
from engine.external.slurm.capabilities import (
    SlurmDenied,
    SlurmGone,
    SlurmLacks,
    SlurmRefused,
    SlurmUnavailable,
    SlurmUnreadable,
)


@needs_samples
@pytest.mark.parametrize(
    ("version", "name", "meaning", "number"),
    [
        (EARLY, "submit_noenv", SlurmRefused, 2127),
        (EARLY, "submit_badpart", SlurmRefused, 2000),
        (EARLY, "submit_badfield", SlurmRefused, None),
        (EARLY, "submit_noscript", SlurmRefused, 2009),
        (EARLY, "job_update_release", SlurmRefused, None),
        (EARLY, "job_update_prio", SlurmRefused, 2042),
        (EARLY, "job_signal", SlurmRefused, 2020),
        (EARLY, "job_unknown", SlurmGone, 2017),
        (EARLY, "job_cancel_unknown", SlurmGone, 2017),
        (EARLY, "node_unknown", SlurmGone, 2018),
        (EARLY, "job_cancel", None, None),
        (EARLY, "job_cancel_again", None, None),
        (LATER, "submit_noenv", SlurmRefused, 2019),
        (LATER, "submit_badpart", SlurmRefused, 2000),
        (LATER, "submit_noscript", SlurmRefused, 9000),
        (LATER, "submit_toobig", SlurmRefused, 2014),
        (LATER, "job_signal", SlurmRefused, 2020),
        (LATER, "job_cancel_again", SlurmGone, 2021),
        (LATER, "job_unknown", SlurmGone, 2017),
        (LATER, "job_cancel", None, None),
        (LATER, "job_update_hold", None, None),
        (LATER, "node_drain", None, None),
    ],
)
def test_a_recorded_write_means_what_it_says(version: str, name: str, meaning: Any, number: int | None) -> None:
    answer = sample(version, name)
    if meaning is None:
        require(answer, "trying", wrote=True)
        return
    with pytest.raises(meaning) as told:
        require(answer, "trying", wrote=True, submitted=name.startswith("submit"))
    assert type(told.value) is meaning
    assert number is None or told.value.number == number
    assert str(told.value).startswith("trying: ")


@needs_samples
def test_a_submission_with_an_id_is_taken_whatever_is_said_beside_it() -> None:
    for name in ("submit_held", "submit_toobig", "submit_array", "submit"):
        answer = sample(EARLY, name)
        require(answer, "submitting", wrote=True, submitted=True)
        assert job_id(answer) > 0


@needs_samples
def test_a_field_that_was_ignored_is_told() -> None:
    assert "no_such_field" in ignored_fields(sample(LATER, "submit_badfield"))
    answer = split(
        200, json.dumps({"errors": [], "warnings": [{"description": 'Ignoring unknown field "x"'}]}).encode()
    )
    with pytest.raises(SlurmRefused, match="a field that it does not know"):
        require(answer, "changing job 7", wrote=True)


@pytest.mark.parametrize(
    ("status", "errors", "arrived"),
    [
        (502, [{"error_number": 1800, "error": "Unable to contact slurm controller (connect failure)"}], False),
        (500, [{"error_number": 1802, "error": "Unable to contact slurm controller (receive failure)"}], True),
        (500, [{"error_number": 5004, "error": "Socket timed out on send/recv operation"}], True),
        (500, [{"error_number": 1001, "error": "Zero Bytes were transmitted or received"}], True),
        (500, [{"error_number": 104, "error": "Connection reset by peer"}], True),
        (500, [{"error_number": -1, "error": "Unspecified error"}], True),
        (200, [{"errno": 7000, "error": "Unable to connect to database"}], True),
        (200, "something else", True),
        (503, [], True),
    ],
)
def test_what_is_no_plain_no_leaves_it_open(status: int, errors: Any, arrived: bool) -> None:
    """A write that may have had its effect is never called refused."""
    answer = split(status, json.dumps({"errors": errors, "warnings": []}).encode())
    with pytest.raises(SlurmUnavailable) as told:
        require(answer, "submitting x", wrote=True, submitted=True)
    assert (told.value.answered, told.value.arrived) == (True, arrived)


@pytest.mark.parametrize(
    ("status", "errors", "bad_token"),
    [
        (511, [{"error_number": 1007, "error": "Protocol authentication error"}], True),
        (500, [{"error_code": 1007, "error": "Protocol authentication error"}], True),
        (401, [], True),
        (500, [{"error_number": 2002, "error": "Access/permission denied"}], False),
    ],
)
def test_a_bad_token_and_a_user_who_may_not_are_told_apart(status: int, errors: Any, bad_token: bool) -> None:
    with pytest.raises(SlurmDenied) as told:
        require(split(status, json.dumps({"errors": errors}).encode()), "cancelling job 7", wrote=True)
    assert told.value.bad_token is bad_token


def test_a_call_that_a_release_has_not_is_lacking() -> None:
    with pytest.raises(SlurmLacks, match="no such call"):
        require(split(405, b"{}"), "reserving", wrote=True)


@pytest.mark.parametrize(
    "body", [b"", b"<html>It works!</html>", b"[1, 2]", b'{"jobs": [', b"\xff\xfe\x00", b"[" * 100_000]
)
def test_what_is_no_answer_of_slurm_is_called_so(body: bytes) -> None:
    with pytest.raises(SlurmUnreadable):
        split(200, body)


@pytest.mark.parametrize("body", [{}, {"jobs": 7}, {"jobs": {"a": 1}}, {"nodes": []}])
def test_an_answer_without_its_list_is_called_so(body: Any) -> None:
    with pytest.raises(SlurmUnreadable):
        split(200, json.dumps(body).encode()).entries("jobs")


def test_texts_of_slurm_are_bounded() -> None:
    body = json.dumps({"errors": [{"error_number": 2000, "error": "x" * 100_000}]}).encode()
    with pytest.raises(SlurmRefused) as told:
        require(split(500, body), "submitting")
    assert len(str(told.value)) < 600
