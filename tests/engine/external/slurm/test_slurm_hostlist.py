"""Slurm's short forms, read as Slurm writes them, and with a bound on what a few characters may stand for."""

from __future__ import annotations

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.external.slurm import names as hostlist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("(null)", []),
        ("cpu001", ["cpu001"]),
        ("cpu[001-003,007]", ["cpu001", "cpu002", "cpu003", "cpu007"]),
        ("cpu[9-11]", ["cpu9", "cpu10", "cpu11"]),
        ("a[1-2],b,c[08]", ["a1", "a2", "b", "c08"]),
        ("r[1-2]n[0-1]x", ["r1n0x", "r1n1x", "r2n0x", "r2n1x"]),
    ],
)
def test_a_host_list_stands_for_its_names(text: str, names: list[str]) -> None:
    assert list(hostlist.hosts(text)) == names


@pytest.mark.parametrize(
    "text", ["a[", "a]", "a[1-", "a[2-1]", "a[x]", "a[[1]]", "a[]", "n[0-999999999]", "a[1-9999]b[1-9999]"]
)
def test_what_is_no_host_list_or_too_long_a_one_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        hostlist.hosts(text)


one_name = st.builds("{}{}".format, st.sampled_from(["cpu", "gpu0", "r1n", "x"]), st.integers(0, 1200))
names = st.lists(one_name | st.sampled_from(["login", "a-b"]), max_size=30, unique=True)


@settings(max_examples=examples(100))
@given(names)
def test_a_host_list_made_short_stands_for_the_same_hosts(of: list[str]) -> None:
    assert sorted(hostlist.hosts(hostlist.compressed(of))) == sorted(of)


def test_a_host_list_is_made_short() -> None:
    assert hostlist.compressed(["gpu1", "cpu002", "cpu001", "cpu003", "login"]) == "cpu[001-003],gpu1,login"


@settings(max_examples=examples(100))
@given(st.text(max_size=60))
def test_no_text_makes_a_reader_fail_otherwise_than_by_a_value_error(text: str) -> None:
    for read in (hostlist.hosts, hostlist.tres, hostlist.gres, hostlist.gres_indexes, hostlist.array_tasks):
        try:
            read(text)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("cpu=4,mem=400M,node=4,billing=4", {"cpu": 4, "mem": 400, "node": 4, "billing": 4}),
        ("cpu=512,mem=2000G,gres/gpu:h100=8", {"cpu": 512, "mem": 2_048_000, "gres/gpu:h100": 8}),
        ("mem=62.50G", {"mem": 64_000}),
        ("mem=500", {"mem": 500}),
        ("", {}),
    ],
)
def test_tres_are_counts_with_memory_in_mebibytes(text: str, counts: dict[str, int]) -> None:
    assert hostlist.tres(text) == counts


@pytest.mark.parametrize(
    ("text", "counts", "indexes"),
    [
        ("gpu:h100:8(S:0-1)", {"gpu:h100": 8}, {}),
        ("gpu:h100:2(IDX:0,2-3)", {"gpu:h100": 2}, {"gpu:h100": (0, 2, 3)}),
        ("gpu:h100:0(IDX:N/A)", {}, {}),
        ("gpu:0", {}, {}),
        ("gpu:a100:4,gpu:h100:2(IDX:0-1),nic:1", {"gpu:a100": 4, "gpu:h100": 2, "nic": 1}, {"gpu:h100": (0, 1)}),
        ("gres:gpu:2", {"gpu": 2}, {}),
        ("gres/gpu:h100=2", {"gpu:h100": 2}, {}),
        ("gpu", {"gpu": 1}, {}),
        ("shard:h100:4K", {"shard:h100": 4096}, {}),
        ("(null)", {}, {}),
    ],
)
def test_gres_are_counts_and_indexes_by_name_and_model(
    text: str, counts: dict[str, int], indexes: dict[str, tuple[int, ...]]
) -> None:
    assert hostlist.gres(text) == counts
    assert hostlist.gres_indexes(text) == indexes


def test_array_tasks_are_ranges_and_a_limit() -> None:
    ranges, most = hostlist.array_tasks("2-5,9,200-1000:100%2")
    assert [list(one) for one in ranges[:2]] == [[2, 3, 4, 5], [9]]
    assert most == 2
    assert list(map(len, hostlist.array_tasks("0-9999999")[0])) == [10_000_000]
    with pytest.raises(ValueError, match="cut short"):
        hostlist.array_tasks("1,3,5,...")
