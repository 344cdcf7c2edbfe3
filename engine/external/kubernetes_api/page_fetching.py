"""The pages of one list, asked for ahead of their reader.

A page says where the next begins before its own objects come. So the next page is asked for while the server still
sends this one: most of the time of a list goes into making its pages, and a server makes each on one core.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from itertools import chain
from typing import TypeVar

import msgspec

from engine.external.answer_cutter import NOT_PLAIN_JSON
from engine.external.kubernetes_api.transport import KubernetesTransport, joined

T = TypeVar("T")

MAX_AHEAD = 1
"""Pages on their way, or held, behind the one that is read: some 10 MB each. Two were no faster."""
PAGE_S = 60.0
"""So long a server may be silent while it makes a page: it gives up itself then (`--request-timeout`)."""
_HEAD = re.compile(rb'\s*\{(?:"(?:kind|apiVersion)":"[^"]*",)*"metadata":(\{[^{}]*\})')


class ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of a list, or of a bookmark. `continue_`: where the next page begins; empty in the last."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    annotations: dict[str, str] = {}


class PageRequest:
    """A page on its way, which a thread of its own fetches."""

    def __init__(self, line: KubernetesTransport, what: str, path: str, query: Mapping[str, str]) -> None:
        self.head: Future[ListMetadata] = Future()
        """Known before the body is; empty where a page does not begin with its metadata."""
        self.body: Future[bytes] = Future()
        self._line = line
        threading.Thread(target=self._fetch, args=(what, path, query), name=what, daemon=True).start()

    def _fetch(self, what: str, path: str, query: Mapping[str, str]) -> None:
        try:
            with self._line.stream(what, path, query, silence_s=PAGE_S) as stream:
                chunks = stream.chunks()
                begin = next(chunks, b"")
                self.head.set_result(_head(begin))
                self.body.set_result(joined(chain([begin], chunks), what))
        except BaseException as error:
            self.body.set_exception(error)
            if not self.head.done():
                self.head.set_exception(error)


def pages_ahead(
    line: KubernetesTransport,
    what: str,
    path: str,
    query: Mapping[str, str],
    read: Callable[[bytes], tuple[T, ListMetadata]],
) -> Iterator[tuple[T, ListMetadata]]:
    """The pages of the list at `path` as `read` gives them, in order. `what` begins errors: "listing pods". Raises
    KubernetesRefused and KubernetesUnavailable, with what is below them."""

    def request(continue_: str) -> PageRequest:
        return PageRequest(line, what, path, {**query, "continue": continue_} if continue_ else query)

    coming = deque([request("")])
    while coming:
        while len(coming) <= MAX_AHEAD and (more := coming[-1].head.result().continue_):
            coming.append(request(more))
        found, end = read(coming.popleft().body.result())
        if end.continue_ and not coming:
            coming.append(request(end.continue_))
        yield found, end


def _head(begin: bytes) -> ListMetadata:
    found = _HEAD.match(begin)
    try:
        return msgspec.json.decode(found[1], type=ListMetadata) if found else ListMetadata()
    except NOT_PLAIN_JSON:
        return ListMetadata()
