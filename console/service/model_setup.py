"""The model of the settings: endpoint, spending limits and key.

A problem in these settings keeps no engine from starting: it is reported when a model is asked for, and drafts by
rule go on.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, MutableMapping
from pathlib import Path

from console.forms.settings import MODEL_KEY, ConsoleSettings, microusd
from engine.model.errors import SpecError
from engine.model.quantities import duration_ms
from runbooks.drafts.typed_draft import DraftRejected
from runbooks.models.drafter import ModelSetup
from runbooks.models.endpoint import Endpoint, endpoint_of
from runbooks.models.limits import SpendingLimits, TokenPrices
from runbooks.plans.keys import read_secret

KEYRING = "muster"
"""Service under which a keyring may hold the key; the user is the origin of the URL."""
MAX_KEY = 4_096


def setup_of(settings: ConsoleSettings) -> ModelSetup:
    """The model's setup by the settings."""
    endpoint, problem = None, ""
    if settings.model_url or settings.model:
        try:
            endpoint = endpoint_of(
                settings.model_url,
                settings.model,
                aliases=settings.model_aliases,
                egress=settings.model_egress,
                deadline_ms=duration_ms(settings.model_deadline),
                max_tokens=settings.model_max_tokens,
                ca_file=settings.model_ca_file,
            )
        except SpecError as error:
            problem = str(error)
    return ModelSetup(
        endpoint=endpoint,
        problem=problem,
        model=settings.model,
        prices=TokenPrices(in_=_amount(settings, "model_price_in"), out=_amount(settings, "model_price_out")),
        limits=SpendingLimits(
            call=_amount(settings, "model_budget_call"),
            hour=_amount(settings, "model_budget_hour"),
            day=_amount(settings, "model_budget_day"),
        ),
        calls_minute=settings.model_calls_minute,
        tenants=settings.model_tenants,
    )


def _amount(settings: ConsoleSettings, key: str) -> int:
    return microusd(getattr(settings, key), key, key)


def key_source(
    endpoint: Endpoint | None, key_file: str, environment: MutableMapping[str, str] = os.environ
) -> Callable[[], str]:
    """Function that gives the key of an endpoint: from the environment, where it is removed so that no child has it;
    from the file, read anew each time; or from the keyring. Empty where a local endpoint needs none. The function
    raises DraftRejected (no_key) with the remedy."""
    given = environment.pop(MODEL_KEY, "").strip()

    def key() -> str:
        found = given or _from_file(key_file) or (_from_keyring(endpoint) if endpoint is not None else "")
        if not found and endpoint is not None and endpoint.egress != "local":
            raise DraftRejected(
                "no_key",
                f"no key for {endpoint.origin}",
                f"Start the engine with {MODEL_KEY} set, or set model_key_file; a local model needs no key",
            )
        return found

    return key


def _from_file(path: str) -> str:
    if not path:
        return ""
    try:
        found = read_secret(Path(path).expanduser(), "model_key_file").decode("ascii").strip()
    except SpecError as error:
        raise DraftRejected("no_key", error.problem, "Give a file of your own, chmod 600") from None
    except UnicodeDecodeError:
        found = ""
    if not found or len(found) > MAX_KEY or not found.isprintable() or " " in found:
        raise DraftRejected("no_key", f"model_key_file: {path} holds no key", "Put the key in it, on one line")
    return found


def _from_keyring(endpoint: Endpoint) -> str:
    """Key from the keyring, where that package is installed and a keyring is open."""
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        return ""
    # What backends raise is not known.
    with contextlib.suppress(Exception):
        return str(keyring.get_password(KEYRING, endpoint.origin) or "")
    return ""
