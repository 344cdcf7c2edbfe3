"""Pages of a list, asked for ahead of their reader."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import msgspec
import pytest
from scripted_kubernetes import Answer, Query, ScriptedKubernetes, status

from engine.external.kubernetes_api.errors import KubernetesRefused
from engine.external.kubernetes_api.page_fetching import MAX_AHEAD, ListMetadata, pages_ahead
from tests.support.patience import PATIENCE_S, until

PAGES = 8


class ReadPage(msgspec.Struct):
    metadata: ListMetadata
    items: list[int]


def pages(server: ScriptedKubernetes) -> Iterator[list[int]]:
    def read(body: bytes) -> tuple[list[int], ListMetadata]:
        page = msgspec.json.decode(body, type=ReadPage)
        return page.items, page.metadata

    with server.line() as line:
        for found, _ in pages_ahead(line, "listing numbers", "/numbers", {"limit": "1"}, read):
            yield found


def page(number: int) -> tuple[bytes, bytes]:
    """(its metadata, the rest)"""
    more = str(number + 1) if number + 1 < PAGES else ""
    head = json.dumps({"resourceVersion": "7", "continue": more}).encode()
    return b'{"kind":"NumberList","metadata":' + head, b',"items":[%d]}' % number


def number_of(query: Query) -> int:
    return int(query.get("continue", "0"))


def test_the_next_page_is_asked_for_before_the_rest_of_this_one_has_come() -> None:
    asked = [threading.Event() for _ in range(PAGES + 1)]

    def answer(path: str, query: Query) -> Answer:
        asked[at := number_of(query)].set()
        head, rest = page(at)

        def pieces() -> Iterator[bytes]:
            yield head
            assert at + 1 == PAGES or asked[at + 1].wait(PATIENCE_S)
            yield rest

        return 200, {}, pieces()

    with ScriptedKubernetes(answer) as server:
        assert list(pages(server)) == [[number] for number in range(PAGES)]


def test_no_more_pages_are_asked_for_than_are_to_be_held() -> None:
    with ScriptedKubernetes(lambda _, query: (200, {}, [b"".join(page(number_of(query)))])) as server:
        reader = pages(server)
        for taken in range(1, PAGES + 1):
            next(reader)
            ahead = min(PAGES, taken + MAX_AHEAD)
            until(lambda ahead=ahead: len(server.asked) >= ahead)
            assert len(server.asked) == ahead
        assert list(reader) == []
        assert len(server.asked) == PAGES


def test_pages_whose_metadata_come_last_are_read_one_by_one() -> None:
    def answer(_: str, query: Query) -> Answer:
        at = number_of(query)
        more = str(at + 1) if at + 1 < PAGES else ""
        return 200, {}, [json.dumps({"items": [at], "metadata": {"continue": more}}).encode()]

    with ScriptedKubernetes(answer) as server:
        assert list(pages(server)) == [[number] for number in range(PAGES)]


def test_a_page_that_is_refused_ends_the_list() -> None:
    def answer(_: str, query: Query) -> Answer:
        at = number_of(query)
        return status(403, "Forbidden") if at == 3 else (200, {}, [b"".join(page(at))])

    with ScriptedKubernetes(answer) as server, pytest.raises(KubernetesRefused, match="listing numbers"):
        list(pages(server))
