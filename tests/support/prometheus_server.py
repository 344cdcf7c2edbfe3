"""A real Prometheus on this machine that holds what a test says it has scraped."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.patience import PATIENCE_S


@contextmanager
def prometheus_holding(lines: Iterable[str], folder: Path) -> Iterator[str]:
    """Its URL. `lines` are OpenMetrics text with times. Skips the test where Prometheus is not installed."""
    binary, tool = shutil.which("prometheus"), shutil.which("promtool")
    if not binary or not tool:
        pytest.skip("needs prometheus and promtool in PATH (Debian: apt-get install prometheus)")
    (folder / "said").write_text("\n".join(lines) + "\n")
    blocks = ["tsdb", "create-blocks-from", "openmetrics", str(folder / "said"), str(folder / "data")]
    subprocess.run([tool, *blocks], check=True, capture_output=True, timeout=PATIENCE_S)
    (folder / "none.yml").write_text("global: {}\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        [binary, f"--config.file={folder / 'none.yml'}", f"--storage.tsdb.path={folder / 'data'}",
         f"--web.listen-address={address}", "--storage.tsdb.retention.time=100y", "--log.level=error"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert _is_ready(f"http://{address}/-/ready")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _is_ready(url: str) -> bool:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            if httpx.get(url, trust_env=False).status_code == 200:
                return True
        except httpx.TransportError:
            time.sleep(0.05)
    return False
