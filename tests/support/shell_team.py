"""The eight people of `team` at their shells: one engine, one OS account, and an ssh-agent with keys."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import func, select

from console.cli.main import run
from console.client.sockets import bind_unix
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.commands import Cordon, Hold, Submit
from runbooks.audit.log import record_table
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import Policy
from runbooks.gate.store import EFFECT
from runbooks.plans.identity import Actor
from runbooks.plans.keys import ALGORITHM
from runbooks.plans.typed_plan import Proposal, asks
from tests.support.gate_cells import HOUR, Clock, nodes_of, work
from tests.support.patience import PATIENCE_S
from tests.support.served import serving, socket_folder
from tests.support.team import ROLES, Member, account, private_key, public_key, put_in_force, team, team_gate

KEYS = tuple(sorted({*ROLES, "ben-2"}))
WAITING = ("w0", "w1", "w2", "h0")
Signer = Callable[[bytes, Ed25519PrivateKey], bytes]


def _string(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def honest(message: bytes, key: Ed25519PrivateKey) -> bytes:
    return key.sign(message)


class Agent:
    """An ssh-agent. Which keys it has, and how it signs, can be changed."""

    def __init__(self, path: Path) -> None:
        self.keys: Sequence[str] = KEYS
        self.signs: Signer = honest
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve, name="test-agent", daemon=True)
        self._thread.start()

    def reset(self) -> None:
        self.keys, self.signs = KEYS, honest

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(PATIENCE_S)

    def _serve(self) -> None:
        while True:
            try:
                talking, _ = self._listening.accept()
            except OSError:
                return
            with talking, talking.makefile("rb") as reading:
                length = int.from_bytes(reading.read(4), "big")
                answer = self._answer(reading.read(length))
                with contextlib.suppress(OSError):
                    talking.sendall(_string(answer))

    def _answer(self, asked: bytes) -> bytes:
        blobs = {public_key(seed).blob: seed for seed in self.keys}
        if asked[0] == 11:
            told = b"".join(_string(blob) + _string(seed.encode()) for blob, seed in blobs.items())
            return b"\x0c" + len(blobs).to_bytes(4, "big") + told
        size = int.from_bytes(asked[1:5], "big")
        seed = blobs[asked[5 : 5 + size]]
        rest = asked[5 + size :]
        message = rest[4 : 4 + int.from_bytes(rest[:4], "big")]
        signature = self.signs(message, private_key(seed))
        return b"\x0e" + _string(_string(ALGORITHM.encode()) + _string(signature))


class Said:
    """What a command left behind: its exit code and both streams."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class ShellTeam:
    """One engine, and people who type."""

    def __init__(
        self, engine: Engine, loop: EngineLoop, gate: Gate, clock: Clock, socket_path: Path, agent: Agent
    ) -> None:
        self.engine, self.loop, self.gate, self.clock, self.agent = engine, loop, gate, clock, agent
        self.socket = str(socket_path)
        self.base = LocalClient(loop, gate, Advisor(loop), name="lab")
        self.versions = 1

    def run(self, words: Sequence[str], who: str = "ann") -> int:
        """One command in the name of one of them, none if empty. What argparse refuses is its exit code."""
        name = ["--as", who] if who else []
        try:
            return run([*words, *name, "--connect", self.socket])
        except SystemExit as ended:
            return int(ended.code or 0)

    def client(self, who: str) -> LocalClient:
        """As their own account and key would have them."""
        actor = Actor(subject=f"person:{who}", account=account(who), signed=True, key=public_key(who).fingerprint)
        return self.base.acting_as(actor)

    def propose(self, who: str, action: Any, *targets: str, start: Any = "approved", **fields: Any) -> Proposal:
        return self.client(who).propose(msgspec.structs.replace(asks(action, targets, **fields), start=start))

    def yes(self, who: str, shown: Proposal) -> Any:
        """Approved and signed, from their own account."""
        return self.loop.call(lambda _: Member(self.gate, who).yes(shown))

    def policy(self, policy: Policy | None = None) -> None:
        """Another one in force from now on; the team's own if none is given."""
        self.versions += 1
        chosen = msgspec.structs.replace(policy or the_policy(), version=self.versions)
        self.loop.call(lambda _: put_in_force(self.gate, chosen))

    def later(self, by_ms: int = 2 * HOUR) -> None:
        self.clock.now_ms += by_ms
        self.loop.call(lambda _: self.gate.tick())

    def marks(self) -> tuple[Any, ...]:
        """What no refusal may change: the journal's version, the state of the cell, effects."""

        def read(engine: Engine) -> tuple[Any, ...]:
            effects = engine.record(lambda c: c.execute(select(func.count()).select_from(EFFECT)).scalar_one())
            return engine.version, engine.state.digest(), effects

        return self.loop.call(read)

    def newest(self) -> int:
        """Number of the audit's last record."""
        query = select(func.max(record_table.c.seq))
        return self.loop.call(lambda engine: engine.record(lambda c: c.execute(query).scalar() or 0))

    def types(self, after: int = 0) -> list[str]:
        """Of the audit's records after that number, besides those that a request was signed, that rows were taken over,
        and from which policy the rest goes on: a world may be given another in the middle of a test."""
        later = (record_table.c.seq > after) & record_table.c.type.not_in(("auth.signed", "gate.rows", "policy.start"))
        query = select(record_table.c.type).where(later).order_by(record_table.c.seq)
        return self.loop.call(lambda engine: engine.record(lambda c: list(c.execute(query).scalars())))


def the_policy() -> Policy:
    return team(channels=(("ops", "log:"),))


def cell_of_twelve(path: Path) -> Engine:
    """r0 to r10 have run an hour on as many nodes; n11 is cordoned; w0, w1 and w2 wait; h0 is on hold."""
    engine = Engine.open(path, cell=nodes_of(12))
    engine.command(Cordon(ids=("n11",)))
    engine.command(Submit(workloads=tuple(work(id_) for id_ in (*(f"r{i}" for i in range(11)), *WAITING))))
    engine.command(Hold(ids=("h0",)))
    engine.advance(engine.now_ms + HOUR)
    return engine


@contextlib.contextmanager
def shell_team() -> Iterator[ShellTeam]:
    with contextlib.ExitStack() as after, pytest.MonkeyPatch.context() as patch:
        folder = after.enter_context(socket_folder())
        engine, clock = cell_of_twelve(folder / "journal.db"), Clock()
        loop = EngineLoop(engine)
        loop.paused = True
        loop.start()
        after.callback(engine.close)
        after.callback(loop.stop)
        gate = loop.call(lambda _: team_gate(engine, clock, the_policy()))
        agent = Agent(folder / "agent")
        after.callback(agent.close)
        for name in [name for name in os.environ if name.startswith("MUSTER_")]:
            patch.delenv(name)
        patch.setenv("MUSTER_CONFIG", str(folder / "none.toml"))
        patch.setenv("MUSTER_KEY", "agent")
        patch.setenv("SSH_AUTH_SOCK", str(folder / "agent"))
        path = folder / "engine.sock"
        after.enter_context(serving(loop, bind_unix(path), gate=gate))
        yield ShellTeam(engine, loop, gate, clock, path, agent)
