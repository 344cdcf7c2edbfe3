"""The Prometheus that a cell follows: which one it is, and where that is kept. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.model.errors import SpecError

KEPT = "prometheus.json"
"""File in the cell's folder."""
STEPS_MS = (15_000, 30_000, 60_000, 300_000)


@dataclass(frozen=True)
class PrometheusAt:
    """The server to follow."""

    url: str
    token_file: Path | None = None
    """Read at every question, so that it may be replaced."""
    step_ms: int = 60_000

    def __post_init__(self) -> None:
        if self.step_ms not in STEPS_MS:
            raise SpecError("prometheus_step", "is no such step", "Use 15s, 30s, 1m or 5m")

    def token(self) -> str:
        """The bearer token; empty without one. Raises SpecError."""
        if self.token_file is None:
            return ""
        try:
            return self.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError("prometheus_token_file", f"cannot be read: {error}", "Give a readable file") from None


def kept_at(at: PrometheusAt | None, folder: Path | None) -> PrometheusAt | None:
    """The server to follow: the given one, which is kept in the cell's folder, or the one kept there, because consoles
    start engines without knowing it. Given without an address, none any more."""
    if folder is None:
        return at if at is not None and at.url else None
    kept = folder / KEPT
    if at is not None:
        if not at.url:
            kept.unlink(missing_ok=True)
            return None
        kept.write_bytes(msgspec.json.encode(at, enc_hook=str))
        return at
    try:
        found: PrometheusAt = msgspec.json.decode(
            kept.read_bytes(), type=PrometheusAt, dec_hook=lambda kind, text: kind(text)
        )
    except (OSError, msgspec.MsgspecError, SpecError):
        return None
    return found
