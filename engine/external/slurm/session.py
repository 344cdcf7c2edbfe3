"""A session with a cluster: its release and dialect, who asks, and asking again.

A dialect is the form of requests in one family of REST versions. v0.0.38 belongs to releases 22.05 to 23.11: its
numbers are plain, and its options are named as those of `sbatch`. v0.0.40 to v0.0.42 belong to releases 23.11 to 26.05:
their numbers are objects with a `set` field, and their options are named as the controller names them.

`SlurmSession` finds out the release, asks again with a newer token where the old one is refused, and knows what can be
asked here.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypedDict

import msgspec

from engine.external.answer_cutter import Cutter
from engine.external.slurm.answers import SlurmAnswer, decoded, number_in, require, split
from engine.external.slurm.capabilities import (
    Capabilities,
    SlurmDenied,
    SlurmLacks,
    SlurmRefused,
    SlurmUnavailable,
    SlurmUnreadable,
    capabilities,
)
from engine.external.slurm.records import JobRequest
from engine.external.slurm.scontrol import Commands
from engine.external.slurm.transport import SlurmTransport


class JobUpdate(TypedDict, total=False):
    """Changes to one job. Only the fields that are given change."""

    held: bool
    priority: int
    partition: str
    qos: str


class Dialect(Protocol):
    """Bodies and forms of one family of REST versions."""

    name: str

    def since(self, at_s: int) -> str:
        """A time as `update_time` takes it."""

    def submission(self, wish: JobRequest) -> dict[str, Any]: ...

    def change(self, change: JobUpdate) -> dict[str, Any]: ...


def whole_minutes(seconds: int) -> int:
    """Minutes, the unit of Slurm's time limits, rounded up so that nothing gets less than was asked for."""
    return -(-seconds // 60)


_SAME = (
    *("name", "comment", "partition", "account", "qos", "array", "dependency", "reservation"),
    *("tasks", "tasks_per_node", "cpus_per_task"),
)
"""Fields of a request that both families name as `JobRequest` does."""
_RENAMED = {"workdir": "current_working_directory", "features": "constraints"}


def _shared_fields(wish: JobRequest) -> dict[str, Any]:
    """The fields that are set and take no other form than in `JobRequest`."""
    job = {name: getattr(wish, name) for name in _SAME if getattr(wish, name)}
    job |= {theirs: getattr(wish, ours) for ours, theirs in _RENAMED.items() if getattr(wish, ours)}
    if wish.held:
        job["hold"] = True
    return job


def _gres(wish: JobRequest, prefix: str = "") -> str:
    return ",".join(f"{prefix}{name}:{count}" for name, count in wish.gres_per_node.items())


class V38:
    name = "v0.0.38"

    def since(self, at_s: int) -> str:
        return str(at_s)

    def submission(self, wish: JobRequest) -> dict[str, Any]:
        job = _shared_fields(wish)
        job["environment"] = dict(wish.environment)
        if wish.memory_per_cpu_mib:
            job["memory_per_cpu"] = wish.memory_per_cpu_mib
        if wish.nodes:
            job["nodes"] = wish.nodes
        if wish.gres_per_node:
            job["gres"] = _gres(wish)
        if wish.time_limit_s:
            job["time_limit"] = whole_minutes(wish.time_limit_s)
        if wish.begin_s:
            job["begin_time"] = f"uts{wish.begin_s}"
        if wish.deadline_s:
            job["deadline"] = f"uts{wish.deadline_s}"
        if wish.requeue is not None:
            # 22.05 takes `requeue: false` for true.
            job["requeue" if wish.requeue else "no_requeue"] = True
        return {"script": wish.script, "job": job}

    def change(self, change: JobUpdate) -> dict[str, Any]:
        return {"hold" if name == "held" else name: value for name, value in change.items()}


class V42:
    def __init__(self, name: str) -> None:
        self.name = name

    def since(self, at_s: int) -> str:
        """v0.0.40 and .41 take a plain number for no time."""
        return f"uts{at_s}"

    def submission(self, wish: JobRequest) -> dict[str, Any]:
        job = _shared_fields(wish)
        job["environment"] = [f"{name}={value}" for name, value in wish.environment.items()]
        if wish.memory_per_cpu_mib:
            job["memory_per_cpu"] = _number(wish.memory_per_cpu_mib)
        if wish.nodes:
            job["minimum_nodes"] = job["maximum_nodes"] = wish.nodes
        if wish.gres_per_node:
            job["tres_per_node"] = _gres(wish, "gres/")
        if wish.time_limit_s:
            job["time_limit"] = _number(whole_minutes(wish.time_limit_s))
        if wish.begin_s:
            job["begin_time"] = _number(wish.begin_s)
        if wish.deadline_s:
            job["deadline"] = wish.deadline_s
        if wish.requeue is not None:
            job["requeue"] = wish.requeue
        return {"script": wish.script, "job": job}

    def change(self, change: JobUpdate) -> dict[str, Any]:
        body: dict[str, Any] = {"hold" if name == "held" else name: value for name, value in change.items()}
        if "priority" in change:
            body["priority"] = _number(change["priority"])
        return body


def _number(number: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": number}


PROVEN = ("v0.0.42", "v0.0.41", "v0.0.40", "v0.0.38")
"""Best first. .41 has the shape of .40 and .42."""
_VERSION = re.compile(r"/v(\d+)\.(\d+)\.(\d+)/")
CLOCK_HOLDS_S = 60.0
AT_ONCE_S = 1.0
LOOK_AGAIN_S = 30.0
"""Commands that did not work are tried again after this; that the statistics were reset between two questions, too."""
EXPIRY_MARGIN_S = 30.0
_AGAIN = "Is it running? It is asked again"


class SlurmRelease(msgspec.Struct, frozen=True):
    """The offer of a slurmrestd, by its own description."""

    api: str
    dialect: Dialect
    proven: bool
    paths: frozenset[tuple[str, str]]
    """Method and path, with `*` for the version; empty when it did not describe itself."""

    def offers(self, method: str, path: str) -> bool:
        return (method, path) in self.paths


class SlurmSession:
    def __init__(self, line: SlurmTransport, commands: Commands | None) -> None:
        self.line = line
        self.commands = commands
        self._lock = threading.RLock()
        self._release: SlurmRelease | None = None
        self._looking = threading.Lock()
        self._can: Capabilities | None = None
        self._can_until = 0.0
        self._clock: tuple[float, float] | None = None
        self.slurm_version = ""
        """E.g. `24.11.5`; empty until something was answered."""
        self.cluster = ""
        self._taken = ""
        """The token that was last seen to be taken."""
        line.alive = self._alive

    def close(self) -> None:
        self.line.close()

    @property
    def api(self) -> str:
        """The version of the REST API that is spoken, e.g. `v0.0.42`."""
        return self._known().api

    @property
    def dialect(self) -> Dialect:
        return self._known().dialect

    @property
    def can(self) -> Capabilities:
        """The abilities of this cluster, with the reason for each lack."""
        release = self._known()
        with self._looking:
            if self._can is None or time.monotonic() > self._can_until:
                why_not, holds_s = self._no_commands()
                self._can_until = time.monotonic() + holds_s
                self._can = capabilities(
                    version=release.api,
                    offers=release.offers,
                    commands=not why_not,
                    no_commands=why_not,
                    proven=release.proven,
                )
            return self._can

    def answers(self) -> bool:
        """Return whether slurmctld answers a ping now: known within some seconds, whatever else is awaited of it
        meanwhile."""
        try:
            return self._alive()
        except (SlurmRefused, SlurmUnavailable):
            return False

    def forget(self) -> None:
        """Find out anew what is there: after slurmrestd was changed for another release."""
        with self._lock:
            self._release = self._can = self._clock = None

    def ask(
        self,
        what: str,
        path: str,
        query: dict[str, str] | None = None,
        *,
        database: bool = False,
        read_s: float | None = None,
        cutter: Callable[[], Cutter[Any]] | None = None,
    ) -> SlurmAnswer | None:
        """The answer to a GET, without what a cutter took from it; None for "nothing changed" (304). Raises what the
        answer means."""
        full = self._path(path, database)
        status, body = self._with_token(lambda: self.line.get(full, query, read_s=read_s, cutter=cutter))
        if status == 304:
            return None
        answer = self._split(status, body)
        self._require(answer, what)
        return answer

    def asked(
        self, what: str, path: str, query: dict[str, str] | None = None, *, database: bool = False
    ) -> SlurmAnswer:
        """The same where 304 is no answer."""
        answer = self.ask(what, path, query, database=database)
        if answer is None:
            raise SlurmUnreadable(f"{what}: nothing was asked about a change, and `no change` came back")
        return answer

    def tell(
        self,
        what: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        submitted: bool = False,
    ) -> SlurmAnswer:
        """A write: once, never again of itself. Raises what the answer means."""
        full = self._path(path, False)
        self._prove_token()
        status, text = self._with_token(lambda: self.line.write(method, full, body))
        answer = self._split(status, text)
        self._require(answer, what, wrote=True, submitted=submitted)
        return answer

    def offset_s(self) -> float:
        """Return how far slurmctld's clock is ahead of this machine's at least; asked at most once a minute."""
        with self._lock:
            known = self._clock
        if known is None or time.monotonic() - known[0] > CLOCK_HOLDS_S:
            said = number_at(self.asked("asking the time", "diag").value("statistics"), "req_time")
            known = (time.monotonic(), said - time.time() if said else 0.0)
            with self._lock:
                self._clock = known
        return known[1]

    def _path(self, path: str, database: bool) -> str:
        return f"/{'slurmdb' if database else 'slurm'}/{self._known().api}/{path}"

    def _with_token(self, send: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
        """Sends; when the token is no longer taken and the file has another by now, sends with that. What was denied
        had no effect, so a write may be sent twice here."""
        status, body = send()
        tokens = self.line.tokens
        if tokens and _token_refused(status, body):
            before = tokens.token()
            if tokens.token(again=True) != before:
                status, body = send()
        return status, body

    def _split(self, status: int, body: bytes) -> SlurmAnswer:
        try:
            return split(status, body)
        except SlurmUnreadable:
            if status in (401, 403, 511):
                raise SlurmDenied(
                    0, f"{self.line.place} wants to know who asks", "Give a user and a token that holds", bad_token=True
                ) from None
            if status in (404, 405):
                self.forget()
                raise SlurmLacks(
                    0, f"{self.line.place} has no such call (status {status})", "Is it another release now?"
                ) from None
            raise

    def _require(self, answer: SlurmAnswer, what: str, *, wrote: bool = False, submitted: bool = False) -> None:
        self._learn(answer)
        try:
            require(answer, what, wrote=wrote, submitted=submitted)
        except SlurmUnavailable as error:
            error.arrived = error.arrived and wrote
            if not wrote and self._refuses_token():
                raise self._bad_token() from None
            self.line.failed(error.problem)
            raise

    def _learn(self, answer: SlurmAnswer) -> None:
        if self.slurm_version and self.cluster:
            return
        meta = answer.value("meta")
        slurm = meta.get("slurm") or meta.get("Slurm") if isinstance(meta, dict) else None
        if isinstance(slurm, dict):
            self.slurm_version = str(slurm.get("release") or self.slurm_version)
            self.cluster = str(slurm.get("cluster") or self.cluster)

    def _known(self) -> SlurmRelease:
        with self._lock:
            if self._release is None:
                self._release = self._described()
            return self._release

    def _described(self) -> SlurmRelease:
        """By the release's own description; where there is none, by trying."""
        status, body = self._with_token(lambda: self.line.get("/openapi/v3"))
        paths = _paths(body) if status == 200 else frozenset()
        versions = {found[0] for _, path in paths if (found := _VERSION.search(path))}
        if not versions:
            if status in (401, 403, 511):
                self._split(status, body)
            return self._tried()
        return _chosen({version.strip("/") for version in versions}, paths, str(self.line.place))

    def _tried(self) -> SlurmRelease:
        for api in PROVEN:
            status, body = self.line.ping(f"/slurm/{api}/ping")
            if status == 404:
                continue
            self._split(status, body)
            return SlurmRelease(api, _dialect(api), True, _USUAL_38 if api == "v0.0.38" else _USUAL_42)
        raise SlurmUnreadable(
            f"{self.line.place} knows none of {', '.join(PROVEN)}", "Is it a slurmrestd of 22.05 or later?"
        )

    def _alive(self) -> bool:
        """Return whether a request is worth sending: slurmctld answers, or refuses the token, which the request will
        tell."""
        return self._release is None or self._ping(self._release) != "down"

    def _ping(self, release: SlurmRelease) -> Literal["up", "down", "refused"]:
        """slurmrestd of 22.05 says the same of a controller that is down and of one that refuses the token. But the
        first it finds out after half a minute, the second at once."""
        began = time.monotonic()
        status, body = self.line.ping(f"/slurm/{release.api}/ping")
        if status in (401, 511):
            return "refused"
        try:
            pings = split(status, body).value("pings")
        except SlurmUnavailable:
            return "down"
        said = [
            one.get("pinged", one.get("ping"))
            for one in (pings if isinstance(pings, list) else ())
            if isinstance(one, dict)
        ]
        if "UP" in said:
            return "up"
        quick = time.monotonic() - began < AT_ONCE_S
        return "refused" if self.line.tokens and release.api == "v0.0.38" and status == 500 and quick else "down"

    def _refuses_token(self) -> bool:
        """v0.0.38 says of a read whose token is bad only `Unspecified error`."""
        release = self._known()
        return bool(self.line.tokens) and release.api == "v0.0.38" and self._ping(release) == "refused"

    def _prove_token(self) -> None:
        """Before a write: v0.0.38 says of a write whose token is bad only that the line broke, so that nobody could
        know whether it was done. A token that was taken once is not asked about again until it expires."""
        tokens, release = self.line.tokens, self._known()
        if tokens is None or release.api != "v0.0.38":
            return
        token, expires_s = tokens.token(), tokens.expires_s()
        if token == self._taken and (not expires_s or time.time() < expires_s - EXPIRY_MARGIN_S):
            return
        found = self._ping(release)
        if found == "refused":
            raise self._bad_token()
        if found == "down":
            raise SlurmUnavailable(f"slurmctld behind {self.line.place} does not answer", _AGAIN, arrived=False)
        self._taken = token

    def _bad_token(self) -> SlurmDenied:
        return SlurmDenied(
            0,
            f"slurmctld behind {self.line.place} does not take the token",
            "It is wrong or has expired: give another (`scontrol token`)",
            bad_token=True,
        )

    def _no_commands(self) -> tuple[str, float]:
        """Why Slurm's commands cannot be used here, empty when they can; and for how long that is believed."""
        if self.commands is None or not self.commands.at_hand():
            return "Slurm's commands are not installed here", math.inf
        tokens = self.line.tokens
        self.commands.token = tokens.token() if tokens else ""
        try:
            theirs = self.commands.since_s()
            ours = number_at(self.asked("asking for statistics", "diag").value("statistics"), "req_time_start")
        except (SlurmRefused, SlurmUnavailable) as error:
            if "configuration source" in error.problem:
                return "Slurm's commands here find no slurm.conf: set SLURM_CONF for the engine", LOOK_AGAIN_S
            return f"Slurm's commands here do not work: {error.problem}", LOOK_AGAIN_S
        if theirs != ours:
            return "Slurm's commands here speak to another controller than slurmrestd", LOOK_AGAIN_S
        # Both count since 0 for a while after a start: then that says little.
        return "", math.inf if ours else LOOK_AGAIN_S


def _token_refused(status: int, body: bytes) -> bool:
    return status in (401, 511) or (status == 500 and b"1007" in body[-4096:])


def number_at(value: Any, name: str) -> int:
    return number_in(value.get(name)) or 0 if isinstance(value, dict) else 0


def _paths(body: bytes) -> frozenset[tuple[str, str]]:
    """Methods and paths of an OpenAPI description, as slurmrestd writes them, versions kept."""
    try:
        described = decoded(msgspec.json.decode(body, type=dict[str, msgspec.Raw])["paths"])
    except (KeyError, ValueError, RecursionError, msgspec.MsgspecError):
        return frozenset()
    if not isinstance(described, dict):
        return frozenset()
    return frozenset(
        (method, path.rstrip("/"))
        for path, methods in described.items()
        if isinstance(methods, dict)
        for method in methods
    )


def _chosen(versions: set[str], paths: frozenset[tuple[str, str]], place: str) -> SlurmRelease:
    """The best that is known; else the oldest that is newer, to read only."""
    known = next((api for api in PROVEN if api in versions), None)
    newer = sorted((_order(api), api) for api in versions if _order(api) > _order(PROVEN[0]))
    api = known or (newer[0][1] if newer else None)
    if api is None:
        raise SlurmLacks(
            0,
            f"{place} speaks only {', '.join(sorted(versions))}",
            "This client speaks v0.0.38 and v0.0.40 to v0.0.42: Slurm 22.05 and later",
        )
    mark = f"/{api}"
    here = frozenset((method, path.replace(mark, "/*", 1)) for method, path in paths if mark + "/" in path)
    return SlurmRelease(api, _dialect(api), known is not None, here)


def _order(api: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", api))


def _dialect(api: str) -> Dialect:
    return V38() if api == "v0.0.38" else V42(api)


_USUAL_38 = frozenset(
    [
        ("post", "/slurm/*/job/submit"),
        ("post", "/slurm/*/job/{job_id}"),
        ("delete", "/slurm/*/job/{job_id}"),
    ]
)
_USUAL_42 = _USUAL_38 | {
    ("post", "/slurm/*/node/{node_name}"),
    ("get", "/slurm/*/jobs/state"),
    ("get", "/slurm/*/shares"),
}
"""What is there for sure where a release does not describe itself."""
