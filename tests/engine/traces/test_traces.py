"""Trace readers: real files give their known counts, and nothing a file may hold gets past them unnamed."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference_sim import figures, jobs_from, simulate

from engine.model.errors import SpecError, TraceError
from engine.model.specs import Resources, check_id, check_pool
from engine.traces.trace_formats import COLUMNS, read_header, read_nodes
from engine.traces.trace_reader import FORMATS, KEPT_PROBLEMS, MAX_LINE, Problems, TraceJob, read_jobs

DATA = Path(__file__).parents[4] / "shared" / "data"

SWF_LINE = "{id} 100 5 60 4 -1 -1 4 120 -1 1 7 7 3 2 -1 -1 -1"
ITP = "job_id,submission_time,duration,num_gpu\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\n"


def swf_line(id: object = 1, **changes: object) -> str:
    fields = SWF_LINE.format(id=id).split()
    for column, value in changes.items():
        fields[COLUMNS.index(column)] = str(value)
    return " ".join(fields) + "\n"


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def written(folder: Path, content: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path: Path, format: str) -> tuple[list[TraceJob], Problems]:
    problems = Problems()
    return list(read_jobs(path, format, problems)), problems


def shared(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs {name} in the folder `shared/data` next to the checkout")
    return path


# Real files


@pytest.mark.parametrize(
    ("name", "format", "jobs", "skipped"),
    [
        ("swf/KTH-SP2-1996-2.swf.gz", "swf", 28_481, 8),
        ("swf/CEA-Curie-sample-30k.swf.gz", "swf", 29_998, 0),
        ("swf/NASA-iPSC-1993-3.1-cln.swf.gz", "swf", 18_066, 173),
        ("openb/openb_pod_list_default.csv.gz", "openb", 8152, 0),
        ("openb/openb_pod_list_gpuspec20.csv.gz", "openb", 8152, 0),
        ("openb/openb_pod_list_multigpu20.csv.gz", "openb", 8324, 0),
        ("itp2021/cluster04.csv.gz", "itp", 15_802, 0),
        ("itp2021/cluster10.csv.gz", "itp", 260, 0),
        ("philly2017/philly_jobs_dev_vcs.csv.gz", "philly", 61_566, 0),
        ("genai2026/lora_request_trace_first60pct_time.csv.gz", "genai", 13_623, 242),
        ("dlrm2025/disaggregated_DLRM_trace_even_apps.csv.gz", "dlrm", 6_715, 6_909),
    ],
)
def test_real_trace_is_read_whole(name: str, format: str, jobs: int, skipped: int) -> None:
    problems = Problems(strict=True)
    count = 0
    for job in read_jobs(shared(name), format, problems):
        check_id(job.id, "id")
        assert job.arrival_ms >= 0
        assert job.run_ms >= 0
        assert job.tasks >= 1
        count += 1
    assert (count, sum(problems.skipped.values())) == (jobs, skipped)


def test_kth_header_and_first_job() -> None:
    path = shared("swf/KTH-SP2-1996-2.swf.gz")
    header = read_header(path)
    assert (header["MaxProcs"], header["UnixStartTime"]) == (100, 843_480_031)
    job = next(read_jobs(path, "swf", Problems()))
    assert job.request == Resources(cpu_milli=1000)
    assert job.tasks <= 100


def test_openb_nodes_are_grouped_into_pools() -> None:
    problems = Problems(strict=True)
    pools, nodes = read_nodes(shared("openb/openb_node_list_all_node.csv.gz"), problems)
    for pool in pools:
        check_pool(pool)
    by_name = {pool.name: pool for pool in pools}
    gpus = [by_name[node.pool].capacity.gpu_milli // 1000 for node in nodes]
    assert (len(nodes), sum(count > 0 for count in gpus), sum(gpus)) == (1523, 1213, 6212)
    assert len(by_name) == len(pools) == 27
    assert by_name["g2-8x-96c-384g"].gpu_model == "G2"


def test_openb_pods_ask_for_shares_devices_and_models() -> None:
    jobs, _ = read(shared("openb/openb_pod_list_gpuspec20.csv.gz"), "openb")
    assert {job.request.gpu_milli for job in jobs if job.request.gpu_milli >= 1000} == {1000, 2000, 4000, 8000}
    assert any(job.request.gpu_milli == 460 for job in jobs)
    assert any(job.gpu_models == ("V100M16", "V100M32") for job in jobs)


@pytest.mark.parametrize(
    ("policy", "wait", "slowdown"),
    [("fcfs", 389_901, 7510.73), ("easy", 6868, 89.07)],
)
def test_reference_simulator_gives_the_published_kth_figures(policy: str, wait: float, slowdown: float) -> None:
    jobs, _ = read(shared("swf/KTH-SP2-1996-2.swf.gz"), "swf")
    plain = jobs_from(
        [job.arrival_ms // 1000 for job in jobs],
        [job.run_ms // 1000 for job in jobs],
        [job.tasks for job in jobs],
        [job.requested_ms // 1000 for job in jobs],
    )
    measured = figures(plain, simulate(plain, 100, policy), 100)
    assert measured.average_wait == pytest.approx(wait, rel=0.05)
    assert measured.average_bounded_slowdown == pytest.approx(slowdown, rel=0.05)


# What a good line means


def test_swf_line(tmp_path: Path) -> None:
    content = "; MaxProcs: 64\n;  Note: MaxNodes: none\n; UnixStartTime: 12\n\n" + swf_line(9)
    path = written(tmp_path, content)
    jobs, problems = read(path, "swf")
    assert jobs == [
        TraceJob(
            id="9",
            arrival_ms=100_000,
            run_ms=60_000,
            requested_ms=120_000,
            wait_ms=5_000,
            tasks=4,
            request=Resources(cpu_milli=1000),
            name="exe-3",
            user="user-7",
            queue="queue-2",
        )
    ]
    assert problems.count == 0
    assert read_header(path) == {"MaxProcs": 64, "UnixStartTime": 12}


def test_swf_falls_back_to_requested_processors_and_unknown_request(tmp_path: Path) -> None:
    jobs, _ = read(written(tmp_path, swf_line(procs=-1, req_procs=8, req_time=-1)), "swf")
    assert [(job.tasks, job.requested_ms) for job in jobs] == [(8, 0)]


def test_swf_jobs_that_never_ran_are_skipped_with_a_reason_not_reported(tmp_path: Path) -> None:
    lines = [swf_line(1, run=0), swf_line(2, run=-1), swf_line(3, procs=0, req_procs=-1), swf_line(4, cpu="3.5")]
    jobs, problems = read(written(tmp_path, "".join(lines)), "swf")
    assert [job.id for job in jobs] == ["4"]
    assert problems.count == 0
    assert problems.skipped == {"run time is 0 or unknown": 2, "processors are 0 or unknown": 1}


def test_swf_comments_may_be_in_any_encoding(tmp_path: Path) -> None:
    jobs, problems = read(written(tmp_path, b"; Installation: Universit\xe4t\n" + swf_line().encode()), "swf")
    assert (len(jobs), problems.count) == (1, 0)


@pytest.mark.parametrize(
    ("fields", "gpu_milli", "run_ms", "models"),
    [
        ("p,1000,2,1,460,,LS,Running,10,100,20", 460, 80_000, ()),
        ("p,1000,2,1,1000,A|B,LS,Pending,10,100,", 1000, 90_000, ("A", "B")),
        ("p,1000,2,4,1000,A,BE,Running,10,,", 4000, 0, ("A",)),
        ("p,1000,2,0,0,,,Running,10,15,10", 0, 5000, ()),
    ],
)
def test_openb_pod(tmp_path: Path, fields: str, gpu_milli: int, run_ms: int, models: tuple[str, ...]) -> None:
    (job,), problems = read(written(tmp_path, PODS + fields + "\n"), "openb")
    assert (job.request.gpu_milli, job.run_ms, job.gpu_models) == (gpu_milli, run_ms, models)
    assert (job.arrival_ms, job.tasks, problems.count) == (10_000, 1, 0)


def test_openb_pods_without_times_keep_order_and_invent_nothing(tmp_path: Path) -> None:
    lines = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nb,1,1,1,500\na,1,1,1,500\n"
    jobs, _ = read(written(tmp_path, lines), "openb")
    assert [(job.id, job.arrival_ms, job.run_ms) for job in jobs] == [("b", 0, 0), ("a", 0, 0)]


def test_itp_and_philly_count_from_their_first_row(tmp_path: Path) -> None:
    itp, _ = read(written(tmp_path, ITP + "a,50,10,2\nb,57,20,1\n"), "itp")
    assert [(job.id, job.arrival_ms, job.run_ms, job.tasks) for job in itp] == [
        ("a", 0, 10_000, 2),
        ("b", 7000, 20_000, 1),
    ]
    rows = "2017-09-07 23:59:58,1.5,8,12.0,vc1\n2017-09-08 00:00:03,2.0,1,2.0,vc2\n"
    philly, _ = read(written(tmp_path, PHILLY + rows), "philly")
    assert [(job.arrival_ms, job.run_ms, job.tasks, job.queue) for job in philly] == [
        (0, 1500, 8, "vc1"),
        (5000, 2000, 1, "vc2"),
    ]
    assert all(job.request == Resources(gpu_milli=1000) for job in itp + philly)


def test_columns_are_found_by_name_and_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    content = "\ufeffnum_gpu,duration,note,submission_time,job_id\r\n4,10,x,0,a\r\n"
    jobs, problems = read(written(tmp_path, content), "itp")
    assert [(job.id, job.tasks) for job in jobs] == [("a", 4)]
    assert problems.count == 0


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    plain = read(written(tmp_path, swf_line(), "named.gz"), "swf")[0]
    unzipped = read(written(tmp_path, packed(swf_line().encode()), "named.swf"), "swf")[0]
    assert plain == unzipped
    assert len(plain) == 1


# Bad lines: reported by file, line and column, the others delivered


@pytest.mark.parametrize(
    ("format", "head", "good", "bad", "column", "message"),
    [
        ("swf", "", swf_line(), swf_line(2, run=-7), "run", "found '-7'"),
        ("swf", "", swf_line(), swf_line(2, submit=-1), "submit", "expected a whole number from 0"),
        ("swf", "", swf_line(), swf_line("x2"), "job", "found 'x2'"),
        ("swf", "", swf_line(), swf_line(2, run="nan"), "run", "found 'nan'"),
        ("swf", "", swf_line(), swf_line(2, run="inf"), "run", "found 'inf'"),
        ("swf", "", swf_line(), swf_line(2, run="6.5"), "run", "found '6.5'"),
        ("swf", "", swf_line(), swf_line(2, run="1_000"), "run", "found '1_000'"),
        ("swf", "", swf_line(), swf_line(2, run="9" * 60), "run", "found '" + "9" * 40 + "…'"),
        ("swf", "", swf_line(), swf_line(2, procs=2_000_000), "procs", "at most 1000000"),
        ("swf", "", swf_line(), "2 3 4\n", "run", "expected 18 columns, found 3: '2 3 4'"),
        ("swf", "", swf_line(), swf_line(2).strip() + " 5\n", "think", "found 19"),
        ("swf", "", swf_line(), swf_line(1, run=5), "id", "found '1' again"),
        ("swf", "", swf_line(), swf_line(2).replace("100", "1\x0000"), "4", "found a NUL byte"),
        ("swf", "", swf_line(), "1" * (MAX_LINE + 1) + "\n", str(MAX_LINE), "expected at most 1048576 bytes"),
        ("itp", ITP, "a,0,5,1\n", "b,1.5,5,1\n", "submission_time", "found '1.5'"),
        ("itp", ITP, "a,0,5,1\n", "b,1,-5,1\n", "duration", "found '-5'"),
        ("itp", ITP, "a,0,5,1\n", "b,1,5,NaN\n", "num_gpu", "found 'NaN'"),
        ("itp", ITP, "a,0,5,1\n", "b,1,²,1\n", "duration", r"found '\xb2'"),
        ("itp", ITP, "a,0,5,1\n", "a,1,5,1\n", "id", "expected a new id, found 'a' again"),
        ("itp", ITP, "a,0,5,1\n", "b c,1,5,1\n", "job_id", "found 'b c'"),
        ("itp", ITP, "a,9,5,1\n", "b,8,5,1\n", "submission_time", "from 9 to"),
        ("itp", ITP, "a,0,5,1\n", "b,1,5\n", "3", "expected 4 columns, found 3: 'b,1,5'"),
        ("itp", ITP, "a,0,5,1\n", "\x1b[2Jb,1,5,1\n", "job_id", r"found '\x1b[2Jb'"),
        ("philly", PHILLY, "2017-01-01 00:00:00,1,1,1,v\n", "2017-01-01T00:00:00,1,1,1,v\n", "timestamp", "YYYY-MM-DD"),
        (
            "philly",
            PHILLY,
            "2017-01-01 00:00:00,1,1,1,v\n",
            "2017-02-30 00:00:00,1,1,1,v\n",
            "timestamp",
            "that exists",
        ),
        ("philly", PHILLY, "2017-01-01 00:00:00,1,1,1,v\n", "2016-01-01 00:00:00,1,1,1,v\n", "timestamp", "first row"),
        (
            "philly",
            PHILLY,
            "2017-01-01 00:00:00,1,1,1,v\n",
            "2017-01-02 00:00:00,inf,1,1,v\n",
            "duration",
            "found 'inf'",
        ),
        ("philly", PHILLY, "2017-01-01 00:00:00,1,1,1,v\n", "2017-01-02 00:00:00,1,1,1,\n", "cluster", "found ''"),
        ("openb", PODS, "p,1,1,1,460,,LS,R,0,9,0\n", "q,1,1,1,0,,LS,R,0,9,0\n", "gpu_milli", "from 1 to 1000"),
        ("openb", PODS, "p,1,1,1,460,,LS,R,0,9,0\n", "q,1,1,99,0,,LS,R,0,9,0\n", "num_gpu", "from 0 to 62"),
        ("openb", PODS, "p,1,1,1,460,,LS,R,0,9,0\n", "q,1,1,1,460,,LS,R,5,4,\n", "deletion_time", "from 5 to"),
        ("openb", PODS, "p,1,1,1,460,,LS,R,0,9,0\n", "q,1,1,1,460,A||B,LS,R,0,9,0\n", "gpu_spec", "separated by"),
        ("openb", PODS, "p,1,1,1,460,,LS,R,0,9,0\n", "q,-1,1,1,460,,LS,R,0,9,0\n", "cpu_milli", "found '-1'"),
    ],
)
def test_bad_line_is_named_and_good_ones_are_kept(
    tmp_path: Path, format: str, head: str, good: str, bad: str, column: str, message: str
) -> None:
    path = written(tmp_path, head + good + bad)
    line = (head + good).count("\n") + 1
    jobs, problems = read(path, format)
    assert len(jobs) == 1
    assert problems.count == 1
    error = problems.first[0]
    assert (error.file, error.line, error.column) == (str(path), line, column)
    assert message in error.problem
    assert str(error).isprintable()
    strict = read_jobs(path, format, Problems(strict=True))
    assert next(strict) == jobs[0]
    with pytest.raises(TraceError):
        next(strict)


def test_only_the_first_problems_are_kept_but_all_are_counted(tmp_path: Path) -> None:
    _, problems = read(written(tmp_path, ITP + "bad\n" * 50), "itp")
    assert (problems.count, len(problems.first)) == (50, KEPT_PROBLEMS)


def test_line_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    jobs, problems = read(written(tmp_path, ITP.encode() + b"a,0,5,1\nb\xff,1,5,1\nc,2,5,1\n"), "itp")
    assert [job.id for job in jobs] == ["a", "c"]
    assert (problems.first[0].line, problems.first[0].column) == (3, "2")
    assert "UTF-8" in problems.first[0].problem


def test_longest_line_is_accepted(tmp_path: Path) -> None:
    padded = swf_line().strip().ljust(MAX_LINE) + "\n"
    assert len(read(written(tmp_path, padded + swf_line(2)), "swf")[0]) == 2


def test_bad_node_lines(tmp_path: Path) -> None:
    lines = "n1,96000,1024,8,G2\nn1,96000,1024,8,G2\nn2,x,1024,8,G2\nn3,32000,1500,0,\nn4,32500,1024,1,\n"
    problems = Problems()
    pools, nodes = read_nodes(written(tmp_path, NODES + lines), problems)
    assert [node.id for node in nodes] == ["n1", "n3", "n4"]
    assert [pool.name for pool in pools] == ["g2-8x-96c-1g", "cpu-32c-1500mi", "gpu-1x-32500m-1g"]
    assert [(error.line, error.column) for error in problems.first] == [(3, "sn"), (4, "cpu_milli")]


# Files that break off, or are no trace


def many_lines() -> bytes:
    return "".join(swf_line(i, wait=i * 7919 % 10_007) for i in range(1, 5001)).encode()


def test_truncated_gzip_delivers_what_came_before_and_says_so(tmp_path: Path) -> None:
    content = packed(many_lines())
    path = written(tmp_path, content[: len(content) // 2])
    jobs, problems = read(path, "swf")
    assert 1000 < len(jobs) < 5000
    assert [job.id for job in jobs] == [str(i) for i in range(1, len(jobs) + 1)]
    assert problems.count == 1
    assert problems.first[0].line == len(jobs) + 1
    assert "truncated" in problems.first[0].problem
    with pytest.raises(TraceError, match="truncated"):
        list(read_jobs(path, "swf", Problems(strict=True)))


@pytest.mark.parametrize("position", [0.5, 0.999])
def test_damaged_gzip_is_reported(tmp_path: Path, position: float) -> None:
    content = bytearray(packed(many_lines()))
    # Zeros in the middle end the stream or break its codes; at the end they break its checksum.
    at = int(len(content) * position) - 8
    content[at : at + 8] = bytes(8)
    jobs, problems = read(written(tmp_path, bytes(content)), "swf")
    assert jobs
    assert problems.count >= 1


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (packed(b""), "an empty file"),
        (packed(b"1 2 3")[:12], "truncated"),
        (bytes(range(256)) * 4, "a binary file"),
        (packed(bytes(2048)), "a binary file"),
        ("1 2 3".encode("utf-16"), "UTF-16 text"),
        (b"BZh91AY&SY", "a bzip2 file"),
        (b"PK\x03\x04", "a zip file"),
        (b"\xfd7zXZ\x00", "an xz file"),
    ],
)
def test_file_that_is_no_trace_is_refused_by_name(tmp_path: Path, format: str, content: bytes, found: str) -> None:
    with pytest.raises(TraceError, match=found):
        read(written(tmp_path, content), format)


@pytest.mark.parametrize("format", ["openb", "itp", "philly"])
@pytest.mark.parametrize("head", ["a,b,c\n", "\n", "job_id;submission_time\n", "job_id,submission_time,duration\n"])
def test_wrong_header_is_refused(tmp_path: Path, format: str, head: str) -> None:
    with pytest.raises(TraceError, match="expected a header with") as caught:
        read(written(tmp_path, head + "1,2,3\n"), format)
    assert caught.value.line == 1


def test_repeated_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="each column once"):
        read(written(tmp_path, "job_id,job_id,submission_time,duration,num_gpu\n"), "itp")


@pytest.mark.parametrize("format", FORMATS)
def test_missing_file_and_folder_are_named(tmp_path: Path, format: str) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "absent.swf", format)
    with pytest.raises(TraceError, match="Is a directory"):
        read(tmp_path, format)
    with pytest.raises(TraceError, match="NUL"):
        read(Path("a\0b"), format)


def test_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="swf, openb, itp, philly"):
        read_jobs(tmp_path / "x", "csv", Problems())


# Anything at all

LINES = st.one_of(
    st.sampled_from([swf_line(), ITP, PHILLY, PODS, NODES, "a,0,5,1\n", "n,1,1,1,G2\n", "p,1,1,1,9,,LS,R,0,9,0\n"]),
    st.lists(st.sampled_from(["-1", "0", "1", "nan", "1e9", "²", "x", "", "9" * 5000, "\0"]), max_size=19).map(
        lambda fields: ",".join(fields) + "\n"
    ),
    st.lists(st.sampled_from(["-1", "0", "1", "-2", "inf", "0.5", ";"]), min_size=18, max_size=18).map(" ".join),
).map(str.encode)
CONTENTS = st.one_of(
    st.binary(max_size=400), st.lists(st.one_of(LINES, st.binary(max_size=30)), max_size=8).map(b"".join)
)


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(content=CONTENTS, zipped=st.booleans(), cut=st.integers(0, 40))
@example(content=b"\x1f\x8b", zipped=False, cut=0)
def test_arbitrary_bytes_raise_nothing_but_named_errors(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, zipped: bool, cut: int
) -> None:
    data = packed(content) if zipped else content
    path = written(tmp_path_factory.getbasetemp(), data[: max(0, len(data) - cut)], "fuzz")
    for format in FORMATS:
        problems = Problems()
        refusal = refused(read_checked, path, format, problems)
        assert all(str(error).isprintable() for error in [refusal, *problems.first])
    assert str(refused(read_header, path)).isprintable()
    assert str(refused(read_nodes, path, Problems())).isprintable()


def read_checked(path: Path, format: str, problems: Problems) -> None:
    for job in read_jobs(path, format, problems):
        check_id(job.id, "id")


def refused(call: Callable[..., object], *arguments: object) -> TraceError | SpecError | None:
    try:
        call(*arguments)
    except (TraceError, SpecError) as error:
        return error
    return None
