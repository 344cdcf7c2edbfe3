"""The kubeconfig, as kubectl reads it: which files, how they merge, and what a context means.

KUBECONFIG names files, of which some may be missing; without it there is `~/.kube/config`. An entry of a name is that
of the first file that has one, whole, and so is the current context. Paths in a file are relative to its folder. What
kubectl refuses is refused here. Refused besides, though kubectl takes it: passwords and `auth-provider`, which current
API servers and clouds no longer know, plain HTTP to another machine, and a server whose certificate is not checked,
unless that was asked for.

In a pod without a kubeconfig the service account's own files are read (`in_cluster`).
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from engine.model.errors import SpecError

LARGEST_FILE = 16 << 20
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def decoded(field: str, data: str) -> bytes:
    """Bytes of a field in base64. Raises ValueError that names the field, and nothing of what it holds."""
    try:
        return base64.b64decode(data.replace("\n", "").replace("\r", ""), validate=True)
    except ValueError:
        raise ValueError(f"{field} is not base64") from None


class ExecVariable(msgspec.Struct, frozen=True):
    name: str = ""
    value: str = ""


class ExecPlugin(msgspec.Struct, frozen=True, rename="camel"):
    """A program that gives credentials."""

    api_version: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[ExecVariable, ...] = ()
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class Extension(msgspec.Struct, frozen=True):
    name: str = ""
    extension: Any = None


class KubernetesCluster(msgspec.Struct, frozen=True, rename="kebab"):
    """An API server, and how its certificate is checked."""

    server: str = ""
    """URL, with its scheme."""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: tuple[Extension, ...] = ()

    def __post_init__(self) -> None:
        decoded("certificate-authority-data", self.certificate_authority_data)

    @property
    def address(self) -> str:
        """As it is shown: HOST:PORT, and a path where it has one."""
        return self.server.partition("://")[2]


class KubernetesUser(msgspec.Struct, frozen=True, rename="kebab"):
    """How a server is told who asks."""

    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    password: str = ""
    as_user: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()
    as_user_extra: dict[str, tuple[str, ...]] = {}
    auth_provider: Any = None
    plugin: ExecPlugin | None = msgspec.field(name="exec", default=None)

    def __post_init__(self) -> None:
        decoded("client-certificate-data", self.client_certificate_data)
        decoded("client-key-data", self.client_key_data)

    def __repr__(self) -> str:
        return "KubernetesUser()"


class KubernetesContext(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str = ""
    cluster: KubernetesCluster = KubernetesCluster()


class _NamedUser(msgspec.Struct, frozen=True):
    name: str = ""
    user: KubernetesUser = KubernetesUser()


class _NamedContext(msgspec.Struct, frozen=True):
    name: str = ""
    context: KubernetesContext = KubernetesContext()


class _Config(msgspec.Struct, frozen=True, rename="kebab"):
    kind: str = "Config"
    api_version: str = msgspec.field(name="apiVersion", default="v1")
    current_context: str = ""
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Way to one API server as one user. `name` is that of the context."""

    name: str
    cluster: KubernetesCluster
    user: KubernetesUser


class Kubeconfig:
    """All files of a kubeconfig as one."""

    def __init__(self) -> None:
        self.current = ""
        self.files: list[Path] = []
        self._clusters: dict[str, tuple[Path, KubernetesCluster]] = {}
        self._users: dict[str, tuple[Path, KubernetesUser]] = {}
        self._contexts: dict[str, tuple[Path, KubernetesContext]] = {}

    def add(self, path: Path) -> None:
        """Merge a file behind those that are there. Raises SpecError for what kubectl would not read."""
        config = _read(path)
        self.files.append(path)
        self.current = self.current or config.current_context
        for name, cluster in _by_name(path, "clusters", {}, config.clusters, "cluster").items():
            self._clusters.setdefault(name, (path, cluster))
        for name, user in _by_name(path, "users", {}, config.users, "user").items():
            self._users.setdefault(name, (path, user))
        for name, context in _by_name(path, "contexts", {}, config.contexts, "context").items():
            self._contexts.setdefault(name, (path, context))

    def reach(self, context: str = "", *, insecure: bool = False) -> Reach:
        """The way that a context names, by default the current one. `insecure`: a server may go unchecked. Raises
        SpecError that names file, field, and what to do."""
        name = context or self.current
        if not name:
            raise SpecError(self._where(), "names no current context", f"Choose one: {self._known(self._contexts)}")
        if name not in self._contexts:
            remedy = f"Choose one: {self._known(self._contexts)}"
            raise SpecError(self._where(), f"there is no context {name!r}", remedy)
        path, meant = self._contexts[name]
        place = f"{path}: context {name!r}"
        if meant.namespace and not _LABEL.fullmatch(meant.namespace):
            raise SpecError(place, "its namespace is not a name of a namespace", "Use a-z, 0-9 and -, at most 63")
        cluster_path, cluster = _found(place, "cluster", meant.cluster, self._clusters)
        user_path, user = _found(place, "user", meant.user, self._users)
        cluster = _check_cluster(f"{cluster_path}: cluster {meant.cluster!r}", cluster_path, cluster, insecure)
        user = _check_user(f"{user_path}: user {meant.user!r}", user_path, user)
        return Reach(name=name, cluster=cluster, user=user)

    def _where(self) -> str:
        return ":".join(map(str, self.files)) or "kubeconfig"

    @staticmethod
    def _known(named: Mapping[str, object]) -> str:
        return ", ".join(sorted(named)[:12]) or "there is none; make one with kubectl config set-context"


def reach_of(
    environment: Mapping[str, str],
    *,
    file: str = "",
    context: str = "",
    in_cluster: bool = False,
    insecure: bool = False,
) -> Reach:
    """The way to a cluster: by `file`, else by KUBECONFIG, else by `~/.kube/config`, else as a pod of the cluster.

    `in_cluster` asks for the last of these at once. Raises SpecError.
    """
    if in_cluster:
        return in_cluster_reach(environment)
    config = Kubeconfig()
    paths = [Path(file).expanduser()] if file else _paths(environment)
    for path in paths:
        if file or path.exists():
            config.add(path)
    if not config.files and not context and "KUBERNETES_SERVICE_HOST" in environment:
        return in_cluster_reach(environment)
    if not config.files:
        looked = ", ".join(map(str, paths))
        raise SpecError("kubeconfig", f"there is none at {looked}", "Set KUBECONFIG, or give --kubeconfig FILE")
    return config.reach(context, insecure=insecure)


def in_cluster_reach(environment: Mapping[str, str]) -> Reach:
    """The way to the cluster that this is a pod of, as its service account. Its token is read anew for each request,
    because the kubelet renews it. Raises SpecError outside of a pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise SpecError(
            "KUBERNETES_SERVICE_HOST", "is not set, so this is no pod of a cluster", "Use a kubeconfig instead"
        )
    for name in ("token", "ca.crt"):
        if not (SERVICE_ACCOUNT / name).is_file():
            remedy = "Set automountServiceAccountToken of the pod, and give it a service account"
            raise SpecError(str(SERVICE_ACCOUNT / name), "is missing", remedy)
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    cluster = KubernetesCluster(server=server, certificate_authority=str(SERVICE_ACCOUNT / "ca.crt"))
    return Reach(name="in-cluster", cluster=cluster, user=KubernetesUser(token_file=str(SERVICE_ACCOUNT / "token")))


def _paths(environment: Mapping[str, str]) -> list[Path]:
    named = [part for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    return [Path(part) for part in dict.fromkeys(named)] or [Path.home() / ".kube" / "config"]


# -- one file ---------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A date is text here, as for kubectl."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read(path: Path) -> _Config:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise SpecError(str(path), error.strerror or "cannot be read", "Give a kubeconfig that can be read") from None
    if len(content) > LARGEST_FILE:
        raise SpecError(str(path), f"is larger than {LARGEST_FILE >> 20} MiB", "Is it a kubeconfig?")
    # Errors of YAML quote the text around them, which may be a token: only the place is told.
    try:
        found = yaml.load(content, _Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise SpecError(f"{path}:{line}", "is not YAML", "Fix it, or write it anew with kubectl config") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise SpecError(str(path), "is not YAML", "Fix it, or write it anew with kubectl config") from None
    try:
        config = msgspec.convert({} if found is None else _without_nulls(found), _Config)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at `$")
        where = f"{path}: {at.strip('.`')}" if at else str(path)
        raise SpecError(where, problem, "Fix the field; kubectl does not read it either") from None
    for field, value, only in (("kind", config.kind, "Config"), ("apiVersion", config.api_version, "v1")):
        if value not in ("", only):
            raise SpecError(f"{path}: {field}", f"is {value[:40]!r}", f"Give a file of {field} {only}")
    return config


def _without_nulls(value: Any) -> Any:
    """What is null is not there, as for kubectl."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _by_name(path: Path, field: str, found: dict[str, Any], entries: tuple[Any, ...], holds: str) -> dict[str, Any]:
    for entry in entries:
        if entry.name in found:
            raise SpecError(f"{path}: {field}", f"has {entry.name!r} twice", "Rename or remove one")
        found[entry.name] = getattr(entry, holds)
    return found


def _found(place: str, field: str, name: str, among: dict[str, tuple[Path, Any]]) -> tuple[Path, Any]:
    if not name:
        raise SpecError(place, f"names no {field}", f"Give it one: kubectl config set-context NAME --{field}=…")
    if name not in among:
        raise SpecError(place, f"there is no {field} {name!r}", f"Choose one: {', '.join(sorted(among)) or 'none'}")
    return among[name]


# -- what a cluster and a user may be ---------------------------------------------------------------------------------


def _check_cluster(place: str, path: Path, cluster: KubernetesCluster, insecure: bool) -> KubernetesCluster:
    if not cluster.server:
        raise SpecError(f"{place}: server", "is missing", "Give the URL of the API server")
    if cluster.certificate_authority and cluster.certificate_authority_data:
        both = "certificate-authority and certificate-authority-data"
        raise SpecError(place, f"has {both}", "Keep one of them")
    if cluster.insecure_skip_tls_verify:
        if cluster.certificate_authority or cluster.certificate_authority_data:
            problem = "has a certificate authority and insecure-skip-tls-verify"
            raise SpecError(place, problem, "Remove insecure-skip-tls-verify")
        if not insecure:
            raise SpecError(
                f"{place}: insecure-skip-tls-verify",
                "lets anybody on the way pose as the server, and be sent the token",
                "Give certificate-authority instead, or add --insecure-skip-tls-verify",
            )
    cluster = msgspec.structs.replace(
        cluster,
        server=_server(place, cluster, insecure),
        certificate_authority=_file(f"{place}: certificate-authority", path, cluster.certificate_authority),
    )
    _check_proxy(place, cluster.proxy_url)
    return cluster


def _server(place: str, cluster: KubernetesCluster, insecure: bool) -> str:
    secured = cluster.certificate_authority or cluster.certificate_authority_data or cluster.insecure_skip_tls_verify
    text = cluster.server if "://" in cluster.server else f"{'https' if secured else 'http'}://{cluster.server}"
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or "@" in parts.netloc:
        raise SpecError(f"{place}: server", "is not the URL of an API server", "Give https://HOST:PORT")
    if parts.scheme == "http" and not insecure and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        problem = "is plain HTTP to another machine: everybody on the way reads the token"
        raise SpecError(f"{place}: server", problem, "Give https://, or add --insecure-skip-tls-verify")
    return text.rstrip("/")


def _check_proxy(place: str, url: str) -> None:
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise SpecError(
            f"{place}: proxy-url", "is not the URL of a proxy that is known here", "Give http:// or https://"
        )


def _file(place: str, path: Path, name: str) -> str:
    """The path of a file that is there, from the folder of the kubeconfig on; empty stays empty."""
    if not name:
        return ""
    file = Path(os.path.abspath(path.parent / name))
    try:
        file.open("rb").close()
    except OSError as error:
        raise SpecError(place, f"{file}: {error.strerror}", "Give a file that can be read") from None
    return str(file)


def _check_user(place: str, path: Path, user: KubernetesUser) -> KubernetesUser:
    if user.username or user.password:
        problem = "passwords are taken by no API server since Kubernetes 1.19"
        raise SpecError(f"{place}: username", problem, "Use a token, a client certificate or an exec plugin")
    if user.auth_provider is not None:
        raise SpecError(f"{place}: auth-provider", "is not known here", "Use the exec plugin of your provider")
    _check_certificate(place, user)
    if (user.as_uid or user.as_groups or user.as_user_extra) and not user.as_user:
        raise SpecError(f"{place}: as", "is missing beside as-uid, as-groups or as-user-extra", "Say who it is done as")
    plugin = _check_plugin(f"{place}: exec", path, user.plugin) if user.plugin is not None else None
    return msgspec.structs.replace(
        user,
        token_file=_file(f"{place}: tokenFile", path, user.token_file),
        client_certificate=_file(f"{place}: client-certificate", path, user.client_certificate),
        client_key=_file(f"{place}: client-key", path, user.client_key),
        plugin=plugin,
    )


def _check_certificate(place: str, user: KubernetesUser) -> None:
    for field, file, data in (
        ("client-certificate", user.client_certificate, user.client_certificate_data),
        ("client-key", user.client_key, user.client_key_data),
    ):
        if file and data:
            raise SpecError(place, f"has {field} and {field}-data", "Keep one of them")
    certificate = user.client_certificate or user.client_certificate_data
    key = user.client_key or user.client_key_data
    if bool(certificate) != bool(key):
        missing = "client-certificate" if key else "client-key"
        raise SpecError(f"{place}: {missing}", "is missing", "Give certificate and key, or neither")


def _check_plugin(place: str, path: Path, plugin: ExecPlugin) -> ExecPlugin:
    if not plugin.command:
        raise SpecError(f"{place}.command", "is missing", "Name the program that gives credentials")
    known = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
    if plugin.api_version not in known:
        problem = f"is {plugin.api_version[:60]!r}" if plugin.api_version else "is missing"
        raise SpecError(f"{place}.apiVersion", problem, f"Give {known[0]}, if the plugin knows it")
    if any(not variable.name for variable in plugin.env):
        raise SpecError(f"{place}.env", "has a variable without a name", "Name it")
    if not plugin.interactive_mode and plugin.api_version == known[0]:
        raise SpecError(f"{place}.interactiveMode", "is missing", "Give Never, IfAvailable or Always")
    if plugin.interactive_mode not in ("", "Never", "IfAvailable", "Always"):
        raise SpecError(f"{place}.interactiveMode", "is not known", "Give Never, IfAvailable or Always")
    if plugin.interactive_mode == "Always":
        problem = "is Always: the plugin wants to ask somebody, and there is nobody to ask"
        raise SpecError(f"{place}.interactiveMode", problem, "Give a user that can log in by itself")
    if os.sep in plugin.command:
        return msgspec.structs.replace(plugin, command=os.path.abspath(path.parent / plugin.command))
    return plugin
