"""Secrets of many kinds and shapes, none of them real, and how to look for them in what leaves."""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import unicodedata
from collections.abc import Iterator
from urllib.parse import quote, unquote_plus

_B64 = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDC8kGa"
_JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"

SECRETS: dict[str, tuple[str, str]] = {
    # kind -> (as it stands in a text, the part that must never be seen)
    "aws key id": ("AKIA2E0A8F3B244C9986", "2E0A8F3B244C9986"),
    "aws temporary key id": ("ASIA2E0A8F3B244C9986", "2E0A8F3B244C9986"),
    "aws secret": ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYzq1r9mVt2", "K7MDENG/bPxRfiCY"),
    "aws secret bare": ("wJalrXUtnFEMI7K7MDENGabPxRfiCYzq1r9mVt2x", "FEMI7K7MDENGabPx"),
    "jwt": (_JWT, "dozjgNryP4J3jVmNHl0w5N"),
    "pem": (f"-----BEGIN PRIVATE KEY-----\n{_B64}\n{_B64}\n-----END PRIVATE KEY-----", _B64[:24]),
    "pem on one line": (f"-----BEGIN RSA PRIVATE KEY-----\\n{_B64}\\n-----END RSA PRIVATE KEY-----", _B64[:24]),
    "openssh key": (f"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA{_B64}\n", _B64[:24]),
    "pgp key": (
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{_B64}\n=aB3d\n-----END PGP PRIVATE KEY BLOCK-----",
        _B64[:24],
    ),
    "ssh public key": (f"ssh-rsa {_B64} ann@host", _B64[:24]),
    "github": ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "292c6912E7710c83"),
    "github app": ("ghs_16C7e42F292c6912E7710c838347Ae178B4a", "292c6912E7710c83"),
    "github fine": ("github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwx", "abcdefghijkl_mnop"),
    "gitlab": ("glpat-a1B2c3D4e5F6g7H8i9J0", "B2c3D4e5F6g7H8"),
    "slack bot": ("xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oOHcBrzzqy", "pdFZKVeTuE8sk7oO"),
    "slack hook": ("https://hooks.slack.com/services/T00AB12CD/B00AB12CD/Xk3vQ7LmN2pR9sTu", "Xk3vQ7LmN2pR9sTu"),
    "discord hook": ("https://discord.com/api/webhooks/1234567890/aBcDeFgHiJkLmNoPqRsT", "aBcDeFgHiJkLmNoP"),
    "openai": ("sk-proj-Ab12Cd34Ef56Gh78Ij90Kl12", "Cd34Ef56Gh78Ij90"),
    "anthropic": ("sk-ant-api03-Zx98Yw76Vu54Ts32Rq10", "Yw76Vu54Ts32Rq10"),
    "google api": ("AIzaSyD4k9vLq2mN8pR6tW1xZ3bC5dF7gH0jK2", "4k9vLq2mN8pR6tW1"),
    "google oauth": ("ya29.a0AfH6SMBx7vQ2kL9mN4pR8sT3wY6", "7vQ2kL9mN4pR8sT3"),
    "azure storage": (
        "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq==",
        "cqFlqUwJPLlmEtlC",
    ),
    "azure sas": ("https://x.blob.core.windows.net/c?sv=2024&sig=Zm9vYmFyYmF6cXV4MTIz", "Zm9vYmFyYmF6cXV4"),
    "stripe": ("sk_live_4eC39HqLyjWDarjtT1zdp7dc", "39HqLyjWDarjtT1z"),
    "huggingface": ("hf_QwErTyUiOpAsDfGhJkLzXcVb", "yUiOpAsDfGhJkLzX"),
    "npm": ("npm_aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX2", "D2eF3gH4iJ5kL6mN"),
    "pypi": ("pypi-AgEIcHlwaS5vcmcCJDU3ZTQ3", "IcHlwaS5vcmcCJDU"),
    "sendgrid": ("SG.ngeVfQFYQlKU0ufo8x5d1A.TwL2iGABf9DHoTf", "geVfQFYQlKU0ufo8"),
    "twilio": ("SK0123456789abcdef0123456789abcdef", "456789abcdef0123"),
    "telegram": ("110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw", "HdqTcvCH1vGWJxfS"),
    "databricks": ("dapi0123456789abcdef0123456789abcdef", "456789abcdef0123"),
    "vault": ("hvs.CAESIJ2mNqR7sTvWxYz012345", "IJ2mNqR7sTvWxYz0"),
    "digitalocean": ("dop_v1_0123456789abcdef0123456789abcdef", "456789abcdef0123"),
    "docker": ("dckr_pat_aBcD1eFgH2iJkL3mN", "BcD1eFgH2iJkL3mN"),
    "age": ("AGE-SECRET-KEY-1QQPQLC6ZT8EXAMPLE0K3Y", "QPQLC6ZT8EXAMPLE"),
    "kubernetes bootstrap": ("abc12x.0f9e8d7c6b5a4321", "0f9e8d7c6b5a4321"),
    "bcrypt": ("$2b$12$EixZaYVK1fsbw1ZfbX3OXePaWxn96p36", "ZaYVK1fsbw1ZfbX3"),
    "shadow": ("root:$6$rounds=5000$saltsalt$Jm1p3rPq9sTvXyZ0aBcD:19000", "Jm1p3rPq9sTvXyZ0"),
    "hex key": ("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "884c7d659a2feaa0"),
    "uuid key": ("3f2504e0-4f89-41d3-9a0c-0305e82c3301", "4f89-41d3-9a0c-03"),
    "basic auth url": ("postgres://svc:Tr0ub4dor-3@db.internal/prod", "Tr0ub4dor-3"),
    "redis url": ("redis://:corr3cthorse@10.1.2.3:6379/0", "corr3cthorse"),
    "password": ("password=correcthorsebattery", "correcthorsebattery"),
    "passphrase with blanks": ('passphrase: "correct horse battery"', "correct horse battery"),
    "in words": ("the password is correcthorsebattery", "correcthorsebattery"),
    "in German": ("Das Passwort lautet correcthorsebattery", "correcthorsebattery"),
    "in Spanish": ("contraseña: correcthorsebattery", "correcthorsebattery"),
    "in Russian": ("пароль: correcthorsebattery", "correcthorsebattery"),
    "in Chinese": ("密码：correcthorsebattery", "correcthorsebattery"),
    "connection string": ("Server=db;User Id=sa;Pwd=correcthorsebattery;", "correcthorsebattery"),
    "flag": ("run --db-password correcthorsebattery --fast", "correcthorsebattery"),
    "short flag": ("mysql -u root -pcorrecthorsebattery prod", "correcthorsebattery"),
    "curl user": ("curl -u ann:correcthorsebattery x", "correcthorsebattery"),
    "netrc": ("machine git login ann password correcthorsebattery", "correcthorsebattery"),
    "cookie": ("Cookie: theme=dark; sid=correcthorsebattery", "correcthorsebattery"),
    "bearer": ("Authorization: Bearer correcthorsebattery", "correcthorsebattery"),
    "basic": ("authorization: basic YW5uOmNvcnJlY3Rob3JzZWJhdHRlcnk=", "YW5uOmNvcnJlY3Ro"),
    "api key header": ("X-Api-Key: correcthorsebattery", "correcthorsebattery"),
    "otp": ("otp: 492817", "492817"),
}  # fmt: skip
"""Of every kind that is looked for."""

BESIDE_A_NAME = "correcthorsebattery"
"""Found by what stands beside it alone."""


def shapes(value: str) -> Iterator[tuple[str, str]]:
    """(shape, text) of a value under a name that says what it is."""
    yield "json", json.dumps({"user": "ann", "db_password": value})
    yield "json with spaces", json.dumps({"env": {"API_TOKEN": value}}, indent=2)
    yield "json in json", json.dumps({"body": json.dumps({"password": value})})
    yield "yaml", f"db:\n  password: {value}\n  host: x\n"
    yield "yaml block", f"password: |\n  {value}\nhost: x\n"
    yield "yaml list", f"- name: DB_PASSWORD\n  value: {value}\n"
    yield "kubernetes json", f'{{"name":"DB_PASSWORD","value":"{value}"}}'
    yield "env", f"export MY_SECRET={value}\n"
    yield "env quoted", f"MY_SECRET='{value}'\n"
    yield "ini", f"[db]\npassword = {value}\n"
    yield "toml", f'api_key = "{value}"\n'
    yield "properties", f"spring.datasource.password={value}\n"
    yield "shell", f"deploy --token={value} --to prod"
    yield "shell spaced", f"deploy --token {value} --to prod"
    yield "header", f"X-Auth-Token: {value}\r\nAccept: */*"
    yield "query", f"https://x/y?user=ann&access_token={value}&z=1"
    yield "xml", f"<dbPassword>{value}</dbPassword>"
    yield "xml plain", f"<password enc='no'>{value}</password>"
    yield "python", f"connect(host='x', password='{value}')"
    yield "python dict", f"{{'secret': '{value}'}}"
    yield "go struct", f'Config{{ApiKey:"{value}"}}'
    yield "camel", f'clientSecret: "{value}"'
    yield "terraform", f'  password   =   "{value}"'
    yield "log", f"2026-03-01 12:00:05 INFO auth_token={value} user=ann"
    yield "upper", f"PASSWORD={value}"
    yield "hash rocket", f":password => '{value}'"
    yield "table", f"| user | ann |\n| password | {value} |"
    yield "csv", f"ann,password,{value},x"
    yield "tab", f"password\t{value}"
    yield "docker", f"FROM x\nENV DB_PASSWORD {value}\n"
    yield "sql", f"CREATE USER ann IDENTIFIED BY '{value}'"
    yield "redis", f"requirepass {value}"
    yield "glued", f"PGPASSWORD={value} psql"
    yield "escaped json", json.dumps(json.dumps(json.dumps({"secret": value})))
    yield "arrow", f"token -> {value}"
    yield "whose", f"Password for admin => {value}"
    yield "in brackets", f"password (admin): {value}"
    yield "is and a colon", f"the password is: {value}"
    yield "quoted", f"passphrase '{value}'"
    yield "of a literal", f"kubectl create secret generic x --from-literal=k={value}"
    yield "login", f"docker login -u bob -p {value} registry"
    yield "pair", f"credentials admin:{value}"
    yield "beside a user", f"user=admin pass {value}"
    yield "short name", f"pw: {value}"
    yield "letters apart", f"p a s s w o r d = {value}"
    yield "other letters", f"p@ssw0rd={value}"
    yield "over a line", f"pass\nword={value}"
    for word in ("hasło", "şifre", "lösenord", "كلمة المرور", "पासवर्ड", "סיסמה", "mật khẩu", "รหัสผ่าน", "密码"):
        yield word, f"{word}: {value}"
    yield "chinese sentence", f"密码是{value}"
    yield "sentence", f"I think the api key is {value}, try it"


def disguises(text: str) -> Iterator[tuple[str, str]]:
    """(disguise, text) that people and programs read as the same."""
    yield "as it is", text
    yield "upper case", text.upper()
    yield "lower case", text.lower()
    yield "zero width", "\u200b".join(text)
    yield "soft hyphens", text[: len(text) // 2] + "\u00ad" * 9 + text[len(text) // 2 :]
    yield "bidi", "\u202e".join((text[:5], text[5:]))
    yield "tags", "\U000e0061".join((text[:7], text[7:]))
    yield "full width", "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)
    yield "combining joiner", "\u034f".join(text)
    yield "url", quote(text, safe="")
    yield "url twice", quote(quote(text, safe=""), safe="")
    yield "url of letters", "".join(f"%{b:02x}" for b in text.encode())
    yield "unicode escapes", "".join(f"\\u{ord(c):04x}" for c in text)
    yield "html", "".join(f"&#{ord(c)};" for c in text)
    yield "base64", base64.b64encode(text.encode()).decode()
    yield "base64url", base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    yield "base64 shifted", base64.b64encode(b"x " + text.encode()).decode()
    yield "hex", text.encode().hex()


def seen_in(text: str, secret: str) -> bool:
    """Whether a secret can be read off a text that leaves: as it stands, in any case of letters, decoded from URLs,
    escapes or base64, or the better part of it."""
    wanted = _plain(secret)
    pieces = {wanted} if len(wanted) < 14 else {wanted[i : i + 12] for i in range(0, len(wanted) - 11, 2)}
    return any(piece in reading for reading in _readings(text) for piece in pieces)


def _plain(text: str) -> str:
    kept = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) not in ("Cf", "Mn", "Cc"))
    return re.sub(r"\s+", "", kept).lower()


def _readings(text: str) -> Iterator[str]:
    yield _plain(text)
    unquoted = text
    for _ in range(3):
        unquoted = html.unescape(unquote_plus(unquoted))
        unquoted = re.sub(r"\\u([0-9a-fA-F]{4})", lambda m: chr(int(m[1], 16)), unquoted)
        yield _plain(unquoted)
    for run in re.findall(r"[A-Za-z0-9+/_-]{8,}", text):
        for offset in range(4):
            part = run[offset:].replace("-", "+").replace("_", "/")
            try:
                yield _plain(base64.b64decode(part[: len(part) // 4 * 4]).decode("utf-8", "ignore"))
            except (binascii.Error, ValueError):
                continue
    for run in re.findall(r"(?:[0-9a-fA-F]{2}){6,}", text):
        yield _plain(bytes.fromhex(run).decode("utf-8", "ignore"))
