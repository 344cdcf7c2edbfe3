"""Encryption and the way to an API server: which certificates are trusted and shown, and which proxy is before it."""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from engine.external.kubernetes_api.credentials import Certificate, authority_of
from engine.external.kubernetes_api.kubeconfig import Reach
from engine.model.errors import SpecError


class NamedContext(ssl.SSLContext):
    """Holds a server to a name other than the one it is reached by, also behind a proxy."""

    server_name = ""

    def wrap_socket(self, *arguments: Any, **keywords: Any) -> ssl.SSLSocket:
        keywords["server_hostname"] = self.server_name or keywords.get("server_hostname")
        return super().wrap_socket(*arguments, **keywords)

    def wrap_bio(self, *arguments: Any, **keywords: Any) -> ssl.SSLObject:
        keywords["server_hostname"] = self.server_name or keywords.get("server_hostname")
        return super().wrap_bio(*arguments, **keywords)


def tls_context(reach: Reach, certificate: Certificate | None) -> ssl.SSLContext:
    """The server must show a certificate of its name that comes from the cluster's authority. Raises SpecError for
    certificates that cannot be read."""
    context = NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    context.server_name = reach.cluster.tls_server_name
    if reach.cluster.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif authority := authority_of(reach):
        try:
            context.load_verify_locations(cadata=authority.decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise SpecError(
                f"context {reach.name!r}: certificate-authority", "holds no certificate", "Give one in PEM"
            ) from None
    else:
        context.load_default_certs()
    if certificate is not None:
        _show(context, reach, certificate)
    return context


def _show(context: ssl.SSLContext, reach: Reach, certificate: Certificate) -> None:
    """Have the client show its certificate. OpenSSL reads it from a file only, which nobody else can read and which is
    gone at once. It ends at a password: there is nobody to ask."""
    with tempfile.NamedTemporaryFile(prefix="muster-", suffix=".pem") as both:
        both.write(certificate.certificate + b"\n" + certificate.key)
        both.flush()
        try:
            context.load_cert_chain(both.name, password=lambda: b"")
        except (ssl.SSLError, ValueError):
            raise SpecError(
                f"context {reach.name!r}: client-certificate",
                "and its key do not fit together, or are not PEM without a password",
                "Give the certificate with its own key",
            ) from None


def proxy_of(reach: Reach, environment: Mapping[str, str] = os.environ) -> str:
    """URL of the proxy before the server; empty: none. The cluster's `proxy-url`, else HTTPS_PROXY or HTTP_PROXY, which
    do not hold for this machine nor for what NO_PROXY names."""
    if reach.cluster.proxy_url:
        return reach.cluster.proxy_url
    parts = urlsplit(reach.cluster.server)
    name = f"{parts.scheme}_proxy"
    proxy = environment.get(name.upper()) or environment.get(name) or ""
    excepted = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if not proxy or _without_proxy(parts.hostname or "", parts.port, excepted):
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise SpecError(name.upper(), "is not a proxy that can be used", "Give http:// or https://, or set proxy-url")
    return proxy


def _without_proxy(host: str, port: int | None, excepted: str) -> bool:
    """As Go's net/http reads NO_PROXY: names with what is below them, addresses, networks, `*`, each with a port or
    without."""
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for entry in excepted.lower().replace(" ", "").split(","):
        name, _, only = entry.rpartition(":") if entry.count(":") == 1 else (entry, "", "")
        if not name or (only and only != str(port)):
            continue
        if name == "*" or name == host or (address is not None and _in_network(address, name)):
            return True
        if host.endswith("." + name.removeprefix("*").removeprefix(".")):
            return True
    return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _in_network(address: ipaddress.IPv4Address | ipaddress.IPv6Address, name: str) -> bool:
    try:
        return "/" in name and address in ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False
