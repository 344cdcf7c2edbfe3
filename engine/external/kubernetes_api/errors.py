"""Errors of asking a Kubernetes API server.

    KubernetesRefused          it said no, and why
    ├── KubernetesDenied       it does not know who asks, or they may not (401, 403)
    ├── KubernetesGone         there is no such object (404)
    ├── KubernetesStale        the object has changed since it was read (409)
    ├── OwnedByAnother         another manager set the fields that were to be applied (409)
    ├── EvictionBlocked        a disruption budget does not let the pod go now (429)
    └── VersionExpired         it no longer has the changes since that version, or the rest of that list (410)
    KubernetesUnavailable      it did not say: nobody answers, the line broke, it has too much to do
    ├── KubernetesSilent       the connection is there, and nothing comes
    └── KubernetesUnreadable   its answer is nothing that an API server says

The texts are the server's own and untrusted. A 410 comes in three forms: as the status of an answer, as an ERROR event
in the stream of an answer that began with 200, and for a `continue` that is too old. `refusal` makes one error of all.
"""

from __future__ import annotations

import msgspec

from engine.model.errors import RefusedError, UnreachableError

MAX_SAID = 300
"""Letters of a server's text that an error repeats."""
GONE = 410


class KubernetesRefused(RefusedError):
    """The server said no. `status` is of HTTP, `reason` the server's word for it, such as NotFound."""

    def __init__(self, status: int, reason: str, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.status = status
        self.reason = reason


class KubernetesDenied(KubernetesRefused):
    """The server does not know who asks (401), or knows and will not do it for them (403)."""


class KubernetesGone(KubernetesRefused):
    """There is no such object."""


class KubernetesStale(KubernetesRefused):
    """The object has changed since it was read, is another, or is there already."""


class OwnedByAnother(KubernetesRefused):
    """Another manager set the fields that were to be applied, and is not overruled."""


class EvictionBlocked(KubernetesRefused):
    """A disruption budget, which the problem names, does not let the pod go now."""


class VersionExpired(KubernetesRefused):
    """A version is too old: list again."""


class KubernetesUnavailable(UnreachableError):
    """No word of the server, or none that says what became of the request. `wait_s`: seconds after which it wants to
    be asked again; 0 = it named none. `answered`: it did answer, and others may fare better. `undone`: a request that
    changes something was turned away before anything was done."""

    def __init__(
        self, problem: str, remedy: str = "", *, wait_s: float = 0.0, answered: bool = False, undone: bool = False
    ) -> None:
        super().__init__(problem, remedy)
        self.wait_s = wait_s
        self.answered = answered
        self.undone = undone


class KubernetesSilent(KubernetesUnavailable):
    """The connection is there, and what should have come on it did not."""


class KubernetesUnreadable(KubernetesUnavailable):
    """An answer came whose shape is not known."""


class StatusCause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    retry_after_seconds: int = 0
    causes: tuple[StatusCause, ...] = ()


class ApiStatus(msgspec.Struct, frozen=True):
    """The answer of an API server that did not do what was asked."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


def status_of(body: bytes) -> ApiStatus:
    """The Status in a body; of any other body its beginning as the message."""
    try:
        return msgspec.json.decode(body, type=ApiStatus)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ApiStatus(message=body[:MAX_SAID].decode("utf-8", "replace").strip())


def refusal(what: str, code: int, status: ApiStatus) -> KubernetesRefused:
    """The error for an answer of 4xx. `what` begins the sentence: "listing pods"."""
    said = status.message[:MAX_SAID] or status.reason or f"HTTP {code}"
    problem = f"{what}: the API server says: {said}"
    if code == 401:
        return KubernetesDenied(code, status.reason, problem, "Log in again, or look at the user of this context")
    if code == 403:
        return KubernetesDenied(code, status.reason, problem, "Have a role that allows it bound to this user")
    if code == GONE or status.reason in ("Expired", "Gone"):
        return VersionExpired(code, status.reason, problem, "List again")
    if code == 404:
        return KubernetesGone(code, status.reason, problem)
    if code == 409:
        return _conflict(what, status, problem)
    return KubernetesRefused(code, status.reason, problem)


def _conflict(what: str, status: ApiStatus, problem: str) -> KubernetesRefused:
    causes = status.details.causes if status.details is not None else ()
    owned = [f"{each.field} ({each.message})" for each in causes if each.reason == "FieldManagerConflict"]
    if not owned:
        return KubernetesStale(409, status.reason, problem, "Read it again")
    return OwnedByAnother(
        409,
        status.reason,
        f"{what}: another manager owns what is to be changed: {', '.join(owned)[:MAX_SAID]}",
        "Change it where that manager has it from, or hand the field to the manager 'muster' (docs/kubernetes-act.md)",
    )


def eviction_blocked(what: str, status: ApiStatus) -> EvictionBlocked | None:
    """The error where a 429 is a disruption budget's, and not a server's that has too much to do."""
    causes = status.details.causes if status.details is not None else ()
    said = [each.message for each in causes if each.reason == "DisruptionBudget"]
    return EvictionBlocked(429, status.reason, f"{what}: {'; '.join(said)[:MAX_SAID]}") if said else None
