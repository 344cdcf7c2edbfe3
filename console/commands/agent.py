"""`muster node agent`: reports that nodes are alive for as long as it runs; the smallest agent, as an example."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from array import array
from contextlib import closing
from typing import TYPE_CHECKING

from console.client.attach import connect
from console.server.agents import BeatAnswer, BeatBody, LeaveAnswer, RegisterAnswer, RegisterBody
from console.text.terminal_text import printable
from engine.model.errors import NotFoundError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from console.client.remote import RemoteClient


RETRY_S = 1.0
"""Between attempts to reach an engine that does not answer."""


def agent(arguments: argparse.Namespace) -> None:
    """Until SIGTERM or SIGINT. Raises NotFoundError when the cell has one of the nodes not, RefusedError when the token
    is not for one of them."""
    stop = threading.Event()
    for sent in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sent, lambda *_: stop.set())
    nodes = tuple(dict.fromkeys(arguments.node))
    with closing(connect(arguments)) as client:
        if arguments.leave:
            _known(client.call_as_agent("leave", RegisterBody(nodes), LeaveAnswer))
            return
        _call(client, nodes, stop)


def _call(client: RemoteClient, nodes: tuple[str, ...], stop: threading.Event) -> None:
    """Register, then send heartbeats; register again when the engine does not know the tokens any more."""
    known: RegisterAnswer | None = None
    number, lost = 0, False
    while not stop.is_set():
        pause_s = RETRY_S
        try:
            if known is None:
                known, number = _register(client, nodes), 0
                _say(f"reporting for {', '.join(printable(name) for name in nodes)}")
            number += 1
            beat = _beat(client, known, number)
            if beat.refused or beat.forbidden:
                known, pause_s = None, 0.0
            else:
                pause_s = known.heartbeat_every_s
            lost = False
        except UnreachableError as error:
            if not lost:
                _say(f"{error}; retrying")
            lost = True
        stop.wait(pause_s)


def _register(client: RemoteClient, nodes: tuple[str, ...]) -> RegisterAnswer:
    answer = client.call_as_agent("register", RegisterBody(nodes), RegisterAnswer)
    _known(answer)
    return answer


def _known(answer: RegisterAnswer | LeaveAnswer) -> None:
    if answer.refused:
        raise NotFoundError(
            f"the cell has no node {', '.join(answer.refused)}", "List its nodes with: muster get nodes"
        )
    if answer.forbidden:
        raise RefusedError(
            f"the token is not for the pool of {', '.join(answer.forbidden)}",
            "Use one for their pool: muster token create --scope agent --service NAME --pool POOL",
        )


def _beat(client: RemoteClient, known: RegisterAnswer, number: int) -> BeatAnswer:
    count = len(known.rows)
    body = BeatBody(
        rows=array("i", known.rows).tobytes(),
        epochs=array("i", known.epochs).tobytes(),
        numbers=array("i", [number] * count).tobytes(),
        clocks_ms=array("q", [time.time_ns() // 1_000_000] * count).tobytes(),
    )
    return client.call_as_agent("heartbeats", body, BeatAnswer)


def _say(text: str) -> None:
    print(f"muster node agent: {printable(text)}", file=sys.stderr, flush=True)
