"""In what environment the tests run (`tests/support/isolation.py`), and on which database (`on_postgres.py` there)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import isolation
import on_postgres
import pytest

TESTS = Path(__file__).parent
# Before any module of the tests is read: some ask the environment as they are.
HOME = isolation.isolate()
isolation.forgive_slow_machines()
on_postgres.install()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database", choices=("sqlite", "postgres"), default="sqlite",
        help="where everything is kept that a test opens by a path or in memory",
    )  # fmt: skip


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two for each core: a test waits for a screen, a timer or a process as long as it works, or longer."""
    return 2 * len(os.sched_getaffinity(0))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--database") == "postgres":
        on_postgres.refuse_to_run()


def pytest_unconfigure() -> None:
    isolation.remove(HOME)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of both databases runs on each, unless all of them run on one."""
    if metafunc.definition.get_closest_marker("both_databases") is None:
        return
    if metafunc.config.getoption("--database") == "sqlite":
        on_both = ("sqlite", pytest.param("postgres", marks=pytest.mark.thorough))
        metafunc.parametrize("kept_in", on_both, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        about = item.get_closest_marker("about_files")
        if about is not None and database_of(item) == "postgres":
            item.add_marker(pytest.mark.skip(reason=f"about SQLite's file: {about.args[0]}"))


def database_of(item: pytest.Item) -> str:
    chosen = getattr(item, "callspec", None)
    return str((chosen.params if chosen else {}).get("kept_in", item.config.getoption("--database")))


@pytest.fixture(autouse=True)
def kept_in(request: pytest.FixtureRequest) -> Iterator[str]:
    """The database of this test, `sqlite` or `postgres`, put in place."""
    if database_of(request.node) == "sqlite":
        yield "sqlite"
        return
    if reason := on_postgres.postgres.why_not():
        pytest.skip(reason)
    with on_postgres.on_server(durable=request.path.relative_to(TESTS).parts[0] != "engine"):
        yield "postgres"
