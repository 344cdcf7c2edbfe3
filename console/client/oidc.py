"""Login with an OpenID provider: its ID tokens, verified with its own keys.

The issuer is set, never taken from a token. Discovery, keys and algorithms follow OpenID Connect Core 3.1.3.7. A token
is accepted once, and only while it is fresh: it is exchanged for one of ours (`console.service.token_store`).
"""

from __future__ import annotations

import hashlib
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from engine.model.errors import RefusedError, SpecError, UnreachableError
from runbooks.plans.identity import Unauthenticated

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a public key. Never "none", and none with a shared secret."""
MAX_TOKEN = 16 * 1024
MAX_ANSWER = 512 * 1024
TIMEOUT_S = 10.0
KEYS_S = 600.0
"""Seconds for which fetched keys are used without asking again."""
AGAIN_S = 30.0
"""Shortest time between two searches for a missing key, so that made-up key ids do not flood the provider."""
FAILED_S = 5.0
"""The same after a search that failed, so that such requests do not wait for a silent provider again and again."""
LEEWAY_S = 60
FRESH_S = 600
"""Greatest age of an ID token, seconds."""
MAX_GROUPS = 1_000
"""Of one account; an ID token has no room for many more."""
DISCOVERY = "/.well-known/openid-configuration"


class LoginProof(NamedTuple):
    """Facts that an ID token has proved."""

    account: str
    """"oidc:ISSUER#SUBJECT"."""
    digest: bytes
    """Of what was signed, by which a token is known again, however its signature is written."""
    expires_ms: int
    groups: tuple[str, ...] = ()
    """Groups that it says the account is in."""


class OpenIdProvider:
    """An OpenID provider, as the people of this cell log in with it. Safe to use from several threads."""

    def __init__(
        self,
        issuer: str,
        client_id: str,
        ca_file: str = "",
        clock: Callable[[], float] = time.time,
        *,
        groups: str = "groups",
    ) -> None:
        """`groups`: the claim that names the groups of an account."""
        check_url(issuer, "oidc_issuer")
        if not client_id:
            raise SpecError("oidc_client", "is empty", "Set the client id that the provider knows this engine by")
        self.issuer = issuer
        self.client_id = client_id
        self._ca_file = ca_file
        self._clock = clock
        self._groups = groups
        self._lock = threading.Lock()
        self._keys: Any = None
        self._looked = float("-inf")
        self._had = float("-inf")
        """When the keys were given."""
        self._failed: UnreachableError | None = None
        """What came of the last look, where it found no keys."""

    def proved(self, token: str) -> LoginProof:
        """Proof of the person an ID token names. Raises Unauthenticated with the check that failed, and
        UnreachableError when the provider's keys cannot be had."""
        jwt = _library()
        if len(token) > MAX_TOKEN or not token.isascii() or token.count(".") != 2:
            raise Unauthenticated("not an ID token", "Log in with `muster token login`")
        try:
            header = jwt.get_unverified_header(token)
            key = self._key(jwt, header.get("kid"), header.get("alg"))
            claims = jwt.decode(
                token, key, algorithms=list(ALGORITHMS), audience=self.client_id, issuer=self.issuer,
                leeway=LEEWAY_S, options={"require": ["exp", "iat", "iss", "sub", "aud"], "verify_exp": False,
                                          "verify_iat": False, "verify_nbf": False},
            )  # fmt: skip
        except jwt.PyJWTError as error:
            raise Unauthenticated(f"the ID token is not valid: {_plain(error)}", "Log in again") from None
        self._check_times(claims)
        _check_party(claims, self.client_id)
        subject = claims["sub"]
        if not isinstance(subject, str) or not 1 <= len(subject) <= 255 or not _is_printable(subject):
            raise Unauthenticated("the ID token's subject is not plain text", "Ask the provider's administrator")
        signed = token.rpartition(".")[0].encode()
        return LoginProof(
            f"oidc:{self.issuer}#{subject}",
            hashlib.sha256(signed).digest(),
            int(claims["exp"] * 1000),
            _groups_in(claims.get(self._groups)),
        )

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        """Check expiry and age by our clock, which tests may set."""
        now = self._clock()
        for name in ("exp", "iat", "nbf"):
            value = claims.get(name, now)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
                raise Unauthenticated(f"the ID token's {name} is not a time", "Ask the provider's administrator")
        if now >= claims["exp"] + LEEWAY_S:
            raise Unauthenticated("the ID token has expired", "Log in again")
        if max(claims["iat"], claims.get("nbf", 0)) > now + LEEWAY_S:
            raise Unauthenticated("the ID token is from the future", "Check the clocks of both machines")
        if claims["iat"] < now - FRESH_S:
            raise Unauthenticated(f"the ID token was issued more than {FRESH_S // 60} min ago", "Log in again")

    def _key(self, jwt: Any, kid: object, algorithm: object) -> Any:
        if algorithm not in ALGORITHMS:
            raise Unauthenticated(f"the ID token is signed by {str(algorithm)[:20]!a}, which is not accepted", "")
        with self._lock:
            now = time.monotonic()
            found = None if now - self._had > KEYS_S else _find(self._keys, kid, algorithm)
            if found is None and now - self._looked > (AGAIN_S if self._failed is None else FAILED_S):
                self._failed = None
                try:
                    self._keys, self._had = self._fetched(jwt), now
                    found = _find(self._keys, kid, algorithm)
                except UnreachableError as error:
                    self._failed = error
                self._looked = time.monotonic()
            if found is None and self._failed is not None:
                raise UnreachableError(self._failed.problem, self._failed.remedy)
        if found is None:
            raise Unauthenticated("the ID token is signed with a key that its provider does not have", "Log in again")
        return found.key

    def _fetched(self, jwt: Any) -> Any:
        where = discovered(self.issuer, self._ca_file).get("jwks_uri")
        if not isinstance(where, str):
            raise UnreachableError(f"{self.issuer} names no keys", "Ask its administrator")
        check_url(where, "jwks_uri")
        keys = fetched("GET", where, self._ca_file)
        try:
            return jwt.PyJWKSet.from_dict(keys)
        except (jwt.PyJWTError, AttributeError, TypeError, ValueError) as error:
            raise UnreachableError(f"the keys of {self.issuer} cannot be read ({_plain(error)})", "") from None


def _groups_in(claim: object) -> tuple[str, ...]:
    """Names in a claim of groups. What cannot be one is left out, and so gives nothing."""
    given = claim if isinstance(claim, list) else [claim]
    names = [name for name in given if isinstance(name, str) and 1 <= len(name) <= 255 and _is_printable(name)]
    return tuple(sorted(set(names)))[:MAX_GROUPS]


def _find(keys: Any, kid: object, algorithm: object) -> Any:
    """Key with that id, or the only key there is when no id is given. A key for another algorithm or for encryption
    does not count."""
    if keys is None:
        return None
    fitting = [
        key for key in keys.keys
        if key.public_key_use in (None, "sig") and key.algorithm_name == algorithm and key.key_type != "oct"
    ]  # fmt: skip
    if kid is None:
        return fitting[0] if len(fitting) == 1 else None
    return next((key for key in fitting if key.key_id == kid), None)


def _check_party(claims: Mapping[str, Any], client_id: str) -> None:
    """A token for several must say that it was given to us."""
    audience = claims["aud"]
    several = isinstance(audience, list) and len(audience) > 1
    if ("azp" in claims or several) and claims.get("azp") != client_id:
        raise Unauthenticated("the ID token was given to another client", "Log in with `muster token login`")


# -- asking a provider ------------------------------------------------------------------------------------------------


def discovered(issuer: str, ca_file: str = "") -> dict[str, Any]:
    """The provider's discovery document. Raises UnreachableError, also when it names another issuer."""
    found = fetched("GET", issuer.rstrip("/") + DISCOVERY, ca_file)
    if found.get("issuer") != issuer:
        raise UnreachableError(
            f"{issuer} gives its name as {str(found.get('issuer'))[:80]!a}", "Set oidc_issuer to that"
        )
    return found


def fetched(method: str, url: str, ca_file: str = "", form: Mapping[str, str] | None = None) -> dict[str, Any]:
    """JSON object fetched by HTTPS, within bounds. Also for status 400, which token endpoints answer while nobody has
    logged in. Raises UnreachableError."""
    import httpx

    verify: ssl.SSLContext | bool = url.startswith("https:")
    if ca_file and verify:
        verify = ssl.create_default_context(cafile=str(Path(ca_file).expanduser()))
    content = bytearray()
    try:
        with (
            httpx.Client(timeout=TIMEOUT_S, verify=verify, trust_env=False, follow_redirects=False) as http,
            http.stream(method, url, data=form, headers={"accept": "application/json"}) as answer,
        ):
            for part in answer.iter_bytes():
                content += part
                if len(content) > MAX_ANSWER:
                    raise UnreachableError(f"{url} answered more than {MAX_ANSWER // 1024} KiB", "")
            status = answer.status_code
    except httpx.HTTPError as error:
        raise UnreachableError(
            f"{url} does not answer ({type(error).__name__})", "Check that it is reachable"
        ) from None
    if status not in (200, 400):
        raise UnreachableError(f"{url} answered {status}", "Ask its administrator")
    try:
        return msgspec.json.decode(bytes(content), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise UnreachableError(f"{url} did not answer with a JSON object", "Ask its administrator") from None


def check_url(url: str, where: str) -> None:
    """Raises SpecError unless it is HTTPS, or stays on this machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise SpecError(where, f"{url[:80]!a} is not a URL", "") from None
    plain = parts.scheme == "http" and host in ("127.0.0.1", "localhost", "::1")
    if not host or parts.username or parts.query or parts.fragment or not (parts.scheme == "https" or plain):
        raise SpecError(where, f"{url[:80]!a} is not https://HOST/PATH", "Give the issuer as the provider spells it")


def _library() -> Any:
    try:
        import jwt
    except ImportError:
        raise RefusedError("logging in by OpenID needs PyJWT", "Install it with: pip install 'muster[oidc]'") from None
    return jwt


def _plain(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__


def _is_printable(text: str) -> bool:
    return all("!" <= char <= "~" for char in text)
