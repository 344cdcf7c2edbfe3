"""Files that jobs of Slurm write: read where they are the job's own, and nothing else, whatever a job names."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from engine.external.slurm.job_output import output_files, read_output
from engine.external.slurm.records import Job
from engine.model.errors import NotFoundError, RefusedError
from tests.engine.external.slurm.test_slurm_records import read

ME = pwd.getpwuid(os.geteuid()).pw_name


def job_that_writes(path: object, **fields: object) -> Job:
    values = {"id": 12, "user": ME, "state": "RUNNING", "nodes": ("cpu001",), "stdout": str(path), **fields}
    return Job(**values)  # type: ignore[arg-type]


def test_the_end_is_read_and_what_follows(tmp_path: Path) -> None:
    written = tmp_path / "slurm-12.out"
    written.write_bytes(b"".join(b"line %04i\n" % i for i in range(1000)))
    ours = job_that_writes(written)
    end = read_output(ours, "output", -100, 50)
    assert (end.data, end.end) == (b"line 0995\nline 0996\nline 0997\nline 0998\nline 0999\n", 10_000)
    assert (end.offset, read_output(ours, "output", 20, 10).data) == (9950, b"line 0002\n")
    assert read_output(ours, "output", 10_000, 50).data == b""
    written.write_bytes(b"anew\n")
    assert read_output(ours, "output", 10_000, 50) == (b"anew\n", 0, 5)


def test_patterns_are_filled_in_by_the_fields_that_slurm_gives() -> None:
    told = {
        "job_id": 31, "array_job_id": 30, "array_task_id": 4, "name": "train", "user_name": "games",
        "standard_output": "/o/%A_%a-%x.out", "standard_error": "/o/%j-%u.err",
    }  # fmt: skip
    assert output_files(read(told)) == {"output": "/o/30_4-train.out", "errors": "/o/31-games.err"}
    both = read(told | {"standard_error": "/o/%A_%a-%x.out"})
    assert output_files(both) == {"output": "/o/30_4-train.out"}
    assert output_files(job_that_writes("a.out", workdir="/home/x")) == {"output": "/home/x/a.out"}
    assert output_files(job_that_writes("")) == {}


def test_only_a_regular_file_that_is_no_link_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "fifo")
    for name in (tmp_path / "link", tmp_path / "fifo", tmp_path, "/dev/null", "/dev/zero"):
        with pytest.raises(RefusedError, match="not a regular file"):
            read_output(job_that_writes(name), "output", -100, 100)


def test_a_file_of_somebody_else_is_not_read_whoever_names_it(tmp_path: Path) -> None:
    written = tmp_path / "other"
    written.write_text("secret")
    other = next(each.pw_name for each in pwd.getpwall() if each.pw_uid != os.geteuid())
    with pytest.raises(RefusedError, match="belongs to") as caught:
        read_output(job_that_writes(written, user=other), "output", -100, 100)
    assert "secret" not in str(caught.value).replace(str(written), "")
    with pytest.raises(RefusedError, match="does not know 'nobody-there'"):
        read_output(job_that_writes(written, user="nobody-there"), "output", -100, 100)


def test_a_file_that_is_elsewhere_or_not_there_yet_says_where_and_why(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        read_output(job_that_writes(tmp_path / "gone"), "output", -100, 100)
    assert "is not on this machine" in str(caught.value)
    assert "Read it on cpu001" in str(caught.value)
    with pytest.raises(NotFoundError, match="has not started yet"):
        read_output(job_that_writes(tmp_path / "gone", state="PENDING", nodes=()), "output", -100, 100)
    with pytest.raises(RefusedError, match="only its node can fill in"):
        read_output(job_that_writes("/o/%N.out"), "output", -100, 100)
    with pytest.raises(RefusedError, match="not an absolute path"):
        read_output(job_that_writes("/o/x\0y"), "output", -100, 100)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_what_the_engines_account_may_not_read_is_told(tmp_path: Path) -> None:
    written = tmp_path / "closed"
    written.write_text("x")
    written.chmod(0)
    with pytest.raises(RefusedError, match=f"the engine's account '{ME}' may not read"):
        read_output(job_that_writes(written), "output", -100, 100)
