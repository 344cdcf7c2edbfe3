"""Abilities of a cluster as this user reaches it: which kinds it serves, and which of them may be read.

It is asked as any version of Kubernetes can be: the groups, the resources of those groups that matter, and a
SelfSubjectAccessReview for each verb on each kind. An API that is served in another version only is not read: its
fields mean something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec

from engine.external.kubernetes_api.errors import KubernetesRefused, KubernetesUnreadable
from engine.external.kubernetes_api.kinds import KINDS, KUEUE, ObjectKind
from engine.external.kubernetes_api.transport import KubernetesTransport

T = TypeVar("T")

VERBS = ("list", "watch")
BESIDE = {
    "jobset.x-k8s.io": "JobSet",
    "autoscaling.x-k8s.io": "ProvisioningRequest of the cluster autoscaler",
    "visibility.kueue.x-k8s.io": "Kueue's order of what waits",
}
"""Group -> what it offers. It is told whether they are served; none is read."""

Can = Literal["read", "absent", "denied"]


class KindAbility(msgspec.Struct, frozen=True, kw_only=True):
    """`why` is empty where it can be read; else it says what would give it."""

    resource: str
    group_version: str
    can: Can
    why: str = ""


class KubernetesCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    """Of Kubernetes, such as v1.36.2."""
    kueue: tuple[str, ...]
    """Versions of Kueue's API that are served; empty: a cluster without Kueue."""
    kinds: tuple[KindAbility, ...]
    beside: dict[str, bool]

    def readable(self) -> tuple[ObjectKind, ...]:
        names = {each.resource for each in self.kinds if each.can == "read"}
        return tuple(kind for kind in KINDS if kind.resource in names)


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str


class _GroupVersion(msgspec.Struct, frozen=True):
    version: str


class _Group(msgspec.Struct, frozen=True):
    name: str
    versions: tuple[_GroupVersion, ...] = ()


class _Groups(msgspec.Struct, frozen=True):
    groups: tuple[_Group, ...]


class _Resource(msgspec.Struct, frozen=True):
    name: str
    verbs: tuple[str, ...] = ()


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...]


class _ReviewStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _ReviewStatus


def capabilities(line: KubernetesTransport) -> KubernetesCapabilities:
    """What can be read here. Raises KubernetesRefused where not even that may be asked, and KubernetesUnavailable."""
    version = _asked(line, "asking which release it is", "/version", _Version).git_version
    groups = _asked(line, "asking which APIs there are", "/apis", _Groups).groups
    served = {group.name: tuple(each.version for each in group.versions) for group in groups} | {"": ("v1",)}
    return KubernetesCapabilities(
        version=version,
        kueue=served.get(KUEUE, ()),
        kinds=_abilities(line, served),
        beside={words: group in served for group, words in BESIDE.items()},
    )


def _abilities(line: KubernetesTransport, served: dict[str, tuple[str, ...]]) -> tuple[KindAbility, ...]:
    listed: dict[str, frozenset[str]] = {}
    found = []
    for kind in KINDS:
        versions = served.get(kind.group, ())
        if kind.version in versions and kind.group_version not in listed:
            listed[kind.group_version] = _readable_resources(line, kind)
        why = "" if kind.resource in listed.get(kind.group_version, ()) else _why_absent(kind, versions)
        denied = "" if why else _why_denied(line, kind)
        can: Can = "absent" if why else "denied" if denied else "read"
        found.append(KindAbility(resource=kind.resource, group_version=kind.group_version, can=can, why=why or denied))
    return tuple(found)


def _readable_resources(line: KubernetesTransport, kind: ObjectKind) -> frozenset[str]:
    try:
        resources = _asked(line, f"asking what {kind.group_version} has", kind.path.rpartition("/")[0], _Resources)
    except KubernetesRefused as error:
        if error.status != 404:
            raise
        return frozenset()
    return frozenset(each.name for each in resources.resources if set(VERBS) <= set(each.verbs))


def _why_absent(kind: ObjectKind, versions: Sequence[str]) -> str:
    if not versions:
        return f"{kind.group} is not installed"
    if kind.version not in versions:
        return f"{kind.group} is served as {', '.join(versions)} only, and {kind.version} is read here"
    return f"{kind.group_version} has no {kind.resource} that can be watched"


def _why_denied(line: KubernetesTransport, kind: ObjectKind) -> str:
    missing = [verb for verb in VERBS if not may(line, verb, kind)]
    return f"this user may not {' nor '.join(missing)} them in all namespaces" if missing else ""


def may(line: KubernetesTransport, verb: str, kind: ObjectKind) -> bool:
    """True where this user may do so with all objects of the kind, by the server's own word."""
    return is_allowed(line, verb, kind.group, kind.resource)


def is_allowed(line: KubernetesTransport, verb: str, group: str, resource: str) -> bool:
    """The same of a resource, or a part of one such as pods/eviction."""
    name, _, part = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": name, "subresource": part}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    what = f"asking whether this user may {verb} {resource}"
    answer = line.post(what, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return _decoded(what, answer, _Review).status.allowed


def _asked(line: KubernetesTransport, what: str, path: str, shape: type[T]) -> T:
    return _decoded(what, line.get(what, path), shape)


def _decoded(what: str, answer: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise KubernetesUnreadable(
            f"{what}: the answer is not what an API server says", "Is the server of this context one of Kubernetes?"
        ) from None
