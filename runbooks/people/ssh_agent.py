"""Keys that an ssh-agent keeps: a small client of its protocol (draft-ietf-sshm-ssh-agent), for ed25519 alone.

The private key never leaves the agent. What it is given to sign begins with `runbooks.people.keys.DOMAIN`, which no
message of the SSH protocol does, so that a signature made here logs nobody in anywhere.
"""

from __future__ import annotations

import os
import socket

from engine.model.errors import RefusedError, SpecError
from runbooks.people.keys import ALGORITHM, DOMAIN, PublicKey, ssh_string

REQUEST_IDENTITIES, IDENTITIES, SIGN, SIGNATURE = 11, 12, 13, 14
MAX_BYTES = 256 * 1024
PATIENCE_S = 60.0
"""How long the agent may ask its owner before it signs."""


class AgentKey:
    """A key inside an agent."""

    def __init__(self, path: str, public: PublicKey, comment: str) -> None:
        self.public = public
        self.comment = comment
        self._path = path

    def sign(self, message: bytes) -> bytes:
        """Raises RefusedError when the agent or its owner declines."""
        if not message.startswith(DOMAIN):
            raise SpecError("message", "is not a decision", "Sign decisions alone")
        body = bytes([SIGN]) + ssh_string(self.public.blob) + ssh_string(message) + (0).to_bytes(4, "big")
        answer = _Reader(_ask(self._path, body, SIGNATURE))
        inner = _Reader(answer.string())
        algorithm, signature = inner.string(), inner.string()
        if algorithm != ALGORITHM.encode() or len(signature) != 64:
            raise RefusedError("the agent answered with a signature of another kind", "Use an ed25519 key")
        return signature


def agent_path() -> str:
    """Where the agent listens; empty when there is none."""
    return os.environ.get("SSH_AUTH_SOCK", "")


def agent_keys(path: str) -> list[AgentKey]:
    """The ed25519 keys of the agent at `path`, in its order. Raises RefusedError when none answers there."""
    answer = _Reader(_ask(path, bytes([REQUEST_IDENTITIES]), IDENTITIES))
    found = []
    for _ in range(answer.number()):
        blob, comment = answer.string(), answer.string()
        head = ssh_string(ALGORITHM.encode()) + (32).to_bytes(4, "big")
        if blob.startswith(head) and len(blob) == len(head) + 32:
            found.append(AgentKey(path, PublicKey(blob[len(head) :]), comment.decode("utf-8", "replace")))
    return found


class _Reader:
    """Reads what an agent sent, piece by piece. Raises RefusedError where it ends too early."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def number(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def string(self) -> bytes:
        return self._take(self.number())

    def _take(self, count: int) -> bytes:
        taken = self._content[self._at : self._at + count]
        if len(taken) < count:
            raise RefusedError("the agent's answer ends early", "See that SSH_AUTH_SOCK names an ssh-agent")
        self._at += count
        return taken


def _ask(path: str, body: bytes, expected: int) -> bytes:
    """One question to the agent, and its answer without the type, which must be `expected`."""
    remedy = "See that SSH_AUTH_SOCK names a running ssh-agent, and `ssh-add -l`"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.settimeout(PATIENCE_S)
        try:
            agent.connect(path)
            agent.sendall(ssh_string(body))
            length = int.from_bytes(_exactly(agent, 4), "big")
            if not 1 <= length <= MAX_BYTES:
                raise RefusedError(f"the agent at {path} answers with {length:,} bytes", remedy)
            answer = _exactly(agent, length)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise RefusedError(f"no ssh-agent answers at {path!a} ({why})", remedy) from None
    if answer[0] != expected:
        raise RefusedError("the agent declines", "It may hold the key no more, or its owner said no")
    return answer[1:]


def _exactly(agent: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = agent.recv(count - len(parts))
        if not part:
            raise OSError(0, "it closed the connection")
        parts += part
    return parts
