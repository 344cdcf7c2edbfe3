"""Where a model is asked: what is wrong with the settings is named before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.model.errors import SpecError
from runbooks.models.endpoint import endpoint_of


@pytest.mark.parametrize(
    ("url", "origin", "base"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://localhost:11434/v1/", "http://localhost:11434", "http://localhost:11434/v1"),
        ("http://[::1]:8080", "http://[::1]:8080", "http://[::1]:8080"),
        ("HTTPS://API.Example.com./openai/v1", "https://api.example.com", "https://api.example.com/openai/v1"),
        ("https://api.example.com:443/v1", "https://api.example.com", "https://api.example.com/v1"),
        ("https://xn--bcher-kva.example/v1", "https://xn--bcher-kva.example", "https://xn--bcher-kva.example/v1"),
    ],
)
def test_a_base_url(url: str, origin: str, base: str) -> None:
    endpoint = endpoint_of(url, "qwen3:8b")
    assert (endpoint.origin, endpoint.base_url) == (origin, base)
    assert endpoint.egress == "external"


@pytest.mark.parametrize(
    "url",
    [
        "", "127.0.0.1:8000", "localhost:8000/v1", "ftp://host/v1", "file:///etc/passwd", "javascript:alert(1)",
        "unix:///run/model.sock", "//host/v1", "http:///v1", "https://", "https://:443/v1", "https://host:0/v1",
        "https://host:99999/v1", "https://host:/v1", "https://host:80x/v1", "https://user:secret@host/v1",
        "https://secret@host/v1", "https://host/v1?key=secret", "https://host/v1?", "https://host/v1#x",
        "https://host/v1/chat/completions", "https://host/v1/completions", "https://host/../v1", "https://host//v1",
        "https://host/v%31", "https://ho st/v1", "https://host\\@evil/v1", "https://host\n.evil/v1", "https://höst/v1",
        "https://host/v1\x00", "https://-host/v1", "https://a..b/v1", "https://2130706433/v1", "https://0x7f000001/v1",
        "https://127.1/v1", "https://0177.0.0.1/v1", "https://169.254.169.254/v1", "https://[fe80::1]/v1",
        "https://[fe80::1%25eth0]/v1", "https://[::ffff:169.254.169.254]/v1", "https://metadata.google.internal/v1",
        "https://169.254.169.254./v1", "https://2130706433./v1", "https://0x7f.1./v1", "https://0./v1",
        "https://[64:ff9b::a9fe:a9fe]/v1", "https://[2002:a9fe:a9fe::]/v1", "https://[::a9fe:a9fe]/v1",
        "https://[v1.fe]/v1", "https://[::1]x/v1", "https://127.0.0.1../v1",
        "https://metadata.google.internal./v1", "https://0.0.0.0/v1", "https://[::]/v1", "https://224.0.0.1/v1",
        "https://255.255.255.255/v1", "https://[::1/v1", "https://" + "a" * 600, "https://" + "a" * 64 + ".com",
    ],
)  # fmt: skip
def test_what_is_no_base_url_is_named_without_what_it_holds(url: str) -> None:
    with pytest.raises(SpecError) as refused:
        endpoint_of(url, "m", egress="local")
    assert refused.value.where == "model_url"
    assert refused.value.remedy
    assert "secret" not in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("egress", ["external", "trusted"])
def test_what_others_can_read_on_the_way_is_sent_on_networks_of_ours_alone(egress: str) -> None:
    with pytest.raises(SpecError, match="readable by anyone"):
        endpoint_of("http://10.0.0.7:8000/v1", "m", egress=egress)
    assert endpoint_of("http://10.0.0.7:8000/v1", "m", egress="local").egress == "local"
    assert endpoint_of("http://127.8.8.8/v1", "m", egress=egress).host == "127.8.8.8"


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        ("model", {"model": ""}),
        ("model", {"model": "two words"}),
        ("model", {"model": "m\nX: y"}),
        ("model", {"model": "m" * 200}),
        ("model_egress", {"egress": "internal"}),
        ("model_deadline", {"deadline_ms": 5}),
        ("model_deadline", {"deadline_ms": 10**9}),
        ("model_max_tokens", {"max_tokens": 0}),
        ("model_max_tokens", {"max_tokens": 10**9}),
        ("model_ca_file", {"ca_file": "/nowhere/ca.pem"}),
        ("model_ca_file", {"ca_file": "/etc"}),
        ("model_ca_file", {"ca_file": __file__}),
        ("model_ca_file", {"ca_file": "/dev/zero"}),
    ],
)
def test_what_is_wrong_is_named_by_its_setting(where: str, wrong: dict[str, object]) -> None:
    given = {"url": "https://host/v1", "model": "m", **wrong}
    with pytest.raises(SpecError) as refused:
        endpoint_of(**given)  # type: ignore[arg-type]
    assert refused.value.where == where
    assert str(refused.value).isprintable()


def test_a_ca_for_plain_http_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        endpoint_of("http://127.0.0.1/v1", "m", ca_file=str(tmp_path))
