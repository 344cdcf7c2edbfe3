"""Proof of who asks an API server: headers, and a client certificate.

A token file is read for each request, because whoever keeps it fresh replaces it; while it cannot be read the last
token goes on. A file comes before a token, and both before a plugin, as with kubectl. No text made here holds a secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec

from engine.external.kubernetes_api.exec_plugin import PluginCredentials, PluginStatus
from engine.external.kubernetes_api.kubeconfig import KubernetesUser, Reach, decoded
from engine.model.errors import SpecError

LONGEST_TOKEN = 1 << 16


class Certificate(msgspec.Struct, frozen=True):
    """A client certificate and its key, in PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Certificate()"


class Proof(msgspec.Struct, frozen=True):
    """Proof of who asks, for one request."""

    headers: tuple[tuple[str, str], ...]
    certificate: Certificate | None
    given: PluginStatus | None = None

    def __repr__(self) -> str:
        return "Proof()"


class Credentials:
    """Safe in several threads."""

    def __init__(self, reach: Reach, *, environment: Mapping[str, str] = os.environ) -> None:
        user = reach.user
        self._user = user
        self._fixed = _certificate(user)
        self._last_token = user.token
        self._plugin: PluginCredentials | None = None
        if user.plugin is not None and not (user.token or user.token_file):
            authority = authority_of(reach)
            self._plugin = PluginCredentials(user.plugin, reach.cluster, authority=authority, environment=environment)

    @property
    def acts_as(self) -> str:
        """Whom the requests are made as, where that is another than who asks."""
        return self._user.as_user

    def proof(self) -> Proof:
        """The proof that holds now. Raises KubernetesDenied where a plugin gives none, SpecError for a token file that
        never held a token."""
        if self._plugin is not None:
            given = self._plugin.current()
            own = Certificate(given.client_certificate_data.encode(), given.client_key_data.encode())
            certificate = own if given.client_certificate_data else self._fixed
            return Proof(self._headers(given.token), certificate, given)
        return Proof(self._headers(self._token()), self._fixed)

    def refused(self, proof: Proof) -> bool:
        """Say that the server did not take it. Returns whether another may be had."""
        if self._plugin is not None and proof.given is not None:
            self._plugin.refused(proof.given)
            return True
        return self._headers(self._token()) != proof.headers

    def _token(self) -> str:
        if not self._user.token_file:
            return self._user.token
        path = Path(self._user.token_file)
        try:
            self._last_token = _only_token(path.read_bytes()[: LONGEST_TOKEN + 1]) or self._last_token
        except OSError as error:
            if not self._last_token:
                raise SpecError(str(path), f"{error.strerror}", "Give a file with a token") from None
        except ValueError:
            if not self._last_token:
                raise SpecError(str(path), "holds no token", "Give a file with a token and nothing else") from None
        if not self._last_token:
            raise SpecError(str(path), "is empty", "Give a file with a token")
        return self._last_token

    def _headers(self, token: str) -> tuple[tuple[str, str], ...]:
        headers = [("Authorization", f"Bearer {token}")] if token else []
        user = self._user
        if user.as_user:
            headers.append(("Impersonate-User", user.as_user))
            headers += [("Impersonate-Uid", user.as_uid)] if user.as_uid else []
            headers += [("Impersonate-Group", group) for group in user.as_groups]
            for name, values in user.as_user_extra.items():
                headers += [(f"Impersonate-Extra-{quote(name.lower(), safe='')}", value) for value in values]
        return tuple(headers)


def authority_of(reach: Reach) -> bytes:
    """Certificates (PEM) that the server's must come from; empty: those that this machine trusts."""
    if reach.cluster.certificate_authority:
        return Path(reach.cluster.certificate_authority).read_bytes()
    return decoded("certificate-authority-data", reach.cluster.certificate_authority_data)


def _certificate(user: KubernetesUser) -> Certificate | None:
    if not (user.client_certificate or user.client_certificate_data):
        return None
    certificate = decoded("client-certificate-data", user.client_certificate_data)
    key = decoded("client-key-data", user.client_key_data)
    return Certificate(
        certificate or Path(user.client_certificate).read_bytes(), key or Path(user.client_key).read_bytes()
    )


def _only_token(content: bytes) -> str:
    """Raises ValueError for what can be no token."""
    text = content.decode("ascii").strip()
    if len(text) > LONGEST_TOKEN or any(letter.isspace() or not letter.isprintable() for letter in text):
        raise ValueError
    return text
