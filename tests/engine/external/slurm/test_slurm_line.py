"""The line to slurmrestd under everything it may meet: other releases, bad tokens, cut connections, too much of it."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cutting_proxy import CuttingProxy
from played_slurm import Answered, Asked, PlayedSlurm, meta

from engine.external.slurm.capabilities import SlurmDenied, SlurmLacks, SlurmRefused, SlurmUnavailable, SlurmUnreadable
from engine.external.slurm.connection import SlurmConnection
from engine.external.slurm.records import JobRequest
from engine.external.slurm.transport import IN_FLIGHT, SlurmTransport, where
from engine.model.errors import SpecError
from tests.support.patience import PATIENCE_S

WISH = JobRequest(name="x", script="#!/bin/sh\ntrue\n")
JOBS = (200, {"jobs": [{"job_id": 1, "job_state": "RUNNING"}], "last_update": 1000, **meta("24.11.5")})
GIVEN = (200, {"job_id": 7, **meta("24.11.5")})


@contextlib.contextmanager
def playing(*versions: str, **answers: Callable[[Asked], Answered] | Answered) -> Iterator[PlayedSlurm]:
    played = PlayedSlurm(*versions, **answers)
    try:
        yield played
    finally:
        played.close()


@contextlib.contextmanager
def connected(to: str, **how: Any) -> Iterator[SlurmConnection]:
    connection = SlurmConnection(to, commands="/nowhere", **how)
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("versions", "spoken"),
    [
        (["v0.0.36", "v0.0.37", "v0.0.38"], "v0.0.38"),
        (["v0.0.38", "v0.0.39", "v0.0.40"], "v0.0.40"),
        (["v0.0.40", "v0.0.41", "v0.0.42"], "v0.0.42"),
        (["v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45"], "v0.0.42"),
    ],
)
def test_the_best_known_version_is_spoken(versions: list[str], spoken: str) -> None:
    with playing(*versions, jobs=JOBS) as played, connected(played.url) as slurm:
        assert slurm.api == spoken
        assert [job.id for job in slurm.jobs().list] == [1]
        assert slurm.can.submit


def test_a_version_newer_than_any_known_is_read_and_not_acted_on() -> None:
    with playing("v0.0.46", "v0.0.47", jobs=JOBS, **{"job/submit": GIVEN}) as played, connected(played.url) as slurm:
        assert slurm.api == "v0.0.46"
        assert len(slurm.jobs().list) == 1
        with pytest.raises(SlurmLacks, match="newer than Muster supports"):
            slurm.submit(WISH)
        with pytest.raises(SlurmLacks, match="read-only"):
            slurm.cancel(7)
        assert not [one for one in played.asked if one.method != "GET"]


def test_a_version_too_old_is_named() -> None:
    with playing("v0.0.35", "v0.0.36") as played, connected(played.url) as slurm, pytest.raises(SlurmLacks) as told:
        slurm.jobs()
    assert "speaks only v0.0.35, v0.0.36" in str(told.value)


def test_a_release_that_does_not_describe_itself_is_tried() -> None:
    answers: dict[str, Any] = {"openapi/v3": (404, b""), "v0.0.42/ping": (404, b""), "v0.0.41/ping": (404, b"")}
    with playing(jobs=JOBS, **answers) as played, connected(played.url) as slurm:
        assert slurm.api == "v0.0.40"
        assert len(slurm.jobs().list) == 1


def test_what_is_no_slurmrestd_is_called_so() -> None:
    page = (200, b"<html>nginx</html>")
    answers: dict[str, Any] = {"": page, "openapi/v3": page, "ping": page}
    with playing(**answers) as played, connected(played.url) as slurm, pytest.raises(SlurmUnreadable) as told:
        slurm.jobs()
    assert "no JSON came" in str(told.value)


def test_each_lack_has_its_reason() -> None:
    with playing("v0.0.38") as played, connected(played.url) as slurm:
        missing = slurm.can.missing()
        assert set(missing) == {
            *("requeue", "update_node", "update_partition", "reservation_write"),
            *("job_states", "shares", "topology"),
        }
        assert missing["update_node"] == "REST v0.0.38 cannot change nodes, and Slurm's commands are not installed here"
        with pytest.raises(SlurmLacks, match=r"requeueing job 7: not possible here: REST up to v0\.0\.42 cannot"):
            slurm.put_back(7)


def test_unchanged_is_told_by_304_and_by_a_warning() -> None:
    warned = {"jobs": [], "last_update": 1010, "errors": [], "warnings": [{"description": "No job changes since ..."}]}
    for answer in ((304, b""), (200, warned)):

        def jobs(asked: Asked, answer: Any = answer) -> Answered:
            return answer if "update_time" in asked.path else JOBS

        with playing("v0.0.42", jobs=jobs) as played, connected(played.url) as slurm:
            first = slurm.jobs()
            assert (first.unchanged, first.last_update) == (False, 1000)
            second = slurm.jobs(first.last_update)
            assert (second.unchanged, second.last_update, second.list) == (True, 1000, ())
            assert played.asked[-1].path.endswith("update_time=uts1000")


def test_an_emptied_queue_is_a_change() -> None:
    emptied = {"jobs": [], "last_update": 1010, "errors": [], "warnings": [{"description": "Zero jobs to dump"}]}
    with playing("v0.0.42", jobs=(200, emptied)) as played, connected(played.url) as slurm:
        assert not slurm.jobs(999).unchanged


def test_nodes_are_asked_for_whole_when_slurmrestd_trips_over_the_time() -> None:
    """Both releases answer 500 to nodes?update_time= when nodes have changed and partitions have not."""
    whole = (200, {"nodes": [{"name": "n1", "state": ["IDLE"]}], "last_update": 1000, **meta("24.11.5")})

    def nodes(asked: Asked) -> Answered:
        failed = {"errors": [{"error_number": -1, "error": "Unspecified error"}], "nodes": []}
        return (500, failed) if "update_time" in asked.path else whole

    with playing("v0.0.42", nodes=nodes) as played, connected(played.url) as slurm:
        assert [node.name for node in slurm.nodes(900).list] == ["n1"]


@pytest.mark.parametrize("mode", ["refuse", "swallow", "lose answers", "cut answers"])
def test_a_write_is_sent_once_and_what_is_not_known_is_said(mode: Any) -> None:
    with playing("v0.0.42", jobs=JOBS, **{"job/submit": GIVEN}) as played:
        proxy = CuttingProxy(played.port)
        try:
            with connected(proxy.url) as slurm:
                slurm.jobs()
                proxy.mode = mode
                with pytest.raises(SlurmUnavailable) as told:
                    slurm.submit(WISH)
                assert told.value.arrived
                assert not told.value.answered
                assert played.times("job/submit", "POST") == (1 if mode in ("lose answers", "cut answers") else 0)
        finally:
            proxy.close()


def test_a_write_that_nobody_could_get_is_known_not_to_have_arrived() -> None:
    with playing("v0.0.42", jobs=JOBS) as played:
        proxy = CuttingProxy(played.port)
        with connected(proxy.url) as slurm:
            slurm.jobs()
            proxy.close()
            with pytest.raises(SlurmUnavailable, match="nobody answers") as told:
                slurm.submit(WISH)
            assert not told.value.arrived


def test_a_read_over_a_connection_that_died_is_asked_again() -> None:
    with playing("v0.0.42", jobs=JOBS) as played:
        proxy = CuttingProxy(played.port)
        try:
            with connected(proxy.url) as slurm:
                slurm.jobs()
                proxy.cut()
                assert len(slurm.jobs().list) == 1
        finally:
            proxy.close()


def test_a_silent_line_ends_by_its_time() -> None:
    with playing("v0.0.42", jobs=JOBS) as played:
        proxy = CuttingProxy(played.port)
        try:
            with connected(proxy.url, timeout_s=1.0) as slurm:
                slurm.jobs()
                proxy.cut()
                proxy.mode = "stall"
                with pytest.raises(SlurmUnavailable, match=r"no answer in|broke|to its end"):
                    slurm.jobs()
        finally:
            proxy.close()


def test_while_slurmctld_is_down_requests_fail_at_once() -> None:
    down = (502, {"errors": [{"error_number": 1800, "error": "Unable to contact slurm controller (connect failure)"}]})
    with playing("v0.0.42", jobs=JOBS, **{"job/submit": GIVEN}) as played, connected(played.url) as slurm:
        slurm.jobs()
        played.answers["jobs"] = down
        played.answers["ping"] = (200, {"pings": [{"pinged": "DOWN"}]})
        with pytest.raises(SlurmUnavailable, match="connect failure") as told:
            slurm.jobs()
        assert not told.value.arrived
        asked = played.times("/jobs")
        for _ in range(3):
            with pytest.raises(SlurmUnavailable, match="connect failure") as told:
                slurm.submit(WISH)
            assert not told.value.arrived
        assert played.times("/jobs") == asked
        assert played.times("job/submit", "POST") == 0
        assert played.times("ping") == 1
        played.answers |= {"jobs": JOBS, "ping": (200, {"pings": [{"pinged": "UP"}]})}
        slurm.line._silent_until = 0.0
        assert slurm.submit(WISH).id == 7


def test_no_more_than_a_few_requests_are_under_way_at_once() -> None:
    held = threading.Barrier(IN_FLIGHT)

    def jobs(_: Asked) -> Answered:
        held.wait(PATIENCE_S)
        return JOBS

    with playing("v0.0.42", jobs=jobs) as played, connected(played.url) as slurm:
        assert slurm.api
        with ThreadPoolExecutor(4 * IN_FLIGHT) as pool:
            read = list(pool.map(lambda _: len(slurm.jobs().list), range(4 * IN_FLIGHT)))
        assert read == [1] * 4 * IN_FLIGHT
        assert played.most_at_once == IN_FLIGHT


def test_an_answer_too_large_is_not_read_to_its_end() -> None:
    with playing("v0.0.42", jobs=(200, b" " * 3_000_000)) as played, connected(played.url, largest=1 << 20) as slurm:
        assert slurm.api
        with pytest.raises(SlurmUnreadable, match="more than 1 MiB"):
            slurm.jobs()


def jwt(user: str) -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'HS256'})}.{part({'sun': user, 'exp': 2_000_000_000})}.c2VjcmV0"


def test_a_token_is_read_again_when_it_is_no_longer_taken(tmp_path: Path) -> None:
    """Also for a write: what was denied had no effect."""
    tokens = tmp_path / "token"
    old, new = jwt("alice"), jwt("alice") + "x"
    tokens.touch(mode=0o600)
    tokens.write_text(f"SLURM_JWT={old}\n")
    good = {old}

    def submit(asked: Asked) -> Answered:
        return GIVEN if asked.headers["X-SLURM-USER-TOKEN"] in good else (511, {"errors": [{"error_number": 1007}]})

    with playing("v0.0.42", **{"job/submit": submit}) as played, connected(played.url, token_file=tokens) as slurm:
        assert slurm.submit(WISH).id == 7
        assert played.asked[-1].headers["X-SLURM-USER-NAME"] == "alice"
        good.clear()
        with pytest.raises(SlurmDenied) as told:
            slurm.submit(WISH)
        assert told.value.bad_token
        good.add(new)
        tokens.write_text(new)
        assert slurm.submit(WISH).id == 7
        assert not any(token in str(told.value) + repr(slurm.line.tokens) for token in (old, new))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"\xff\xfe", "not text"),
        (b"a b", "more than one"),
        (b"x" * 20_000, "more"),
    ],
)
def test_a_token_file_that_holds_none_is_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.touch(mode=0o600)
        path.write_bytes(content)
    with playing("v0.0.42") as played, connected(played.url, token_file=path) as slurm:
        with pytest.raises(SpecError, match=problem):
            slurm.jobs()
        assert played.asked == []


def test_tokens_do_not_go_where_an_answer_points() -> None:
    with playing("v0.0.42", jobs=(302, b"")) as played, connected(played.url) as slurm:
        with pytest.raises(SlurmUnreadable):
            slurm.jobs()
        assert played.times("/jobs") == 1


@pytest.mark.parametrize(
    ("text", "url", "socket"),
    [
        ("unix:/run/s.socket", "http://slurmrestd", "/run/s.socket"),
        ("/run/s.socket", "http://slurmrestd", "/run/s.socket"),
        ("head:6820", "http://head:6820", ""),
        ("https://head/slurm/", "https://head/slurm", ""),
        ("http://[::1]:6820", "http://[::1]:6820", ""),
    ],
)
def test_where_a_slurmrestd_is(text: str, url: str, socket: str) -> None:
    assert (where(text).url, where(text).socket) == (url, socket)


@pytest.mark.parametrize("text", ["", "unix:", "ftp://x", "http://", "http://u:p@h", "head:port", "http://h:99999"])
def test_what_is_no_place_is_an_error(text: str) -> None:
    with pytest.raises(SpecError):
        where(text)


@pytest.mark.parametrize("name", ["ALL", "all", "cpu[001-999]", "a,b", "a b", "", "../jobs", "n?x=1", "-n", "n\n"])
def test_a_name_that_slurm_reads_as_many_or_as_a_path_is_refused_before_it_is_sent(name: str) -> None:
    with playing("v0.0.42") as played, connected(played.url) as slurm:
        for told in (
            lambda: slurm.update_node(name, "DRAIN", "why"),
            lambda: slurm.update_partition(name, "DOWN"),
            lambda: slurm.delete_reservation(name),
            lambda: slurm.node(name),
        ):
            with pytest.raises(SpecError, match="is not the name of one"):
                told()
        assert played.asked == []


def test_a_wish_that_no_program_could_be_given_is_refused_before_it_is_sent() -> None:
    with playing("v0.0.42") as played, connected(played.url) as slurm:
        for wish in (
            JobRequest(name="x", script="true"),
            JobRequest(name="x", script="#!/bin/sh\0"),
            JobRequest(name="x", script="#!/bin/sh", environment={}),
            JobRequest(name="x", script="#!/bin/sh", environment={"A=B": "c"}),
        ):
            with pytest.raises(SpecError):
                slurm.submit(wish)
        assert played.asked == []


def test_half_a_wish_is_taken_back() -> None:
    answer = {"job_id": 7, "errors": [], "warnings": [{"description": 'Ignoring unknown field "x" of type ...'}]}
    cancelled = (200, {"status": [], "errors": [], "warnings": []})
    with (
        playing("v0.0.42", **{"job/submit": (200, answer), "job/7": cancelled}) as played,
        connected(played.url) as slurm,
    ):
        with pytest.raises(SlurmRefused, match="job 7 is cancelled"):
            slurm.submit(WISH)
        assert played.times("job/7", "DELETE") == 1


def test_a_submission_without_an_id_is_not_called_refused() -> None:
    with (
        playing("v0.0.42", **{"job/submit": (200, {"errors": [], "warnings": []})}) as played,
        connected(played.url) as s,
    ):
        with pytest.raises(SlurmUnavailable, match="no job id") as told:
            s.submit(WISH)
        assert told.value.answered


@pytest.mark.parametrize("user", ["a b", "x\r\nX-Other: y", "ü", "x" * 300])
def test_a_user_that_would_break_a_header_is_refused(user: str) -> None:
    with pytest.raises(SpecError, match="not a user name"):
        SlurmConnection("http://127.0.0.1:1", user)


def test_a_line_that_was_never_used_costs_no_connection() -> None:
    line = SlurmTransport(where("http://127.0.0.1:1"), "", None, read_s=1.0)
    line.close()


@pytest.mark.thorough
def test_a_hundred_thousand_jobs_in_one_answer_are_read() -> None:
    entry = '{"job_id": %d, "name": "caf\\u00e9", "job_state": ["PENDING"], "tres_req_str": "cpu=1,mem=100M,node=1"}'
    body = (
        '{"jobs": [' + ",".join(entry % number for number in range(1, 100_001)) + '], "last_update": 1000}'
    ).encode()
    with playing("v0.0.42", jobs=(200, body)) as played, connected(played.url) as slurm:
        read = slurm.jobs()
        assert len(read.list) == 100_000
        assert read.list[-1].memory_mib == 100
