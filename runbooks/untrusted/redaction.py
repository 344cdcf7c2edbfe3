"""Secrets and personal data, found in any text that may leave the cell.

Three nets, one behind the other: forms that are known (keys of providers, tokens, key blocks), values beside a name
that says what they are (`password=`, `Authorization:`, in the shapes that files and shells have), and runs of
characters that nobody would write by hand. Texts are looked at as they read: without characters that nobody sees, with
letters that only look Latin as the Latin ones, in any case, and as they decode from URLs, escapes and base64. What is
found in doubt goes: a line of a log that lost an innocent digest still says what it said.
"""

from __future__ import annotations

import base64
import binascii
import html
import math
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate
from urllib.parse import unquote_plus

import msgspec

from runbooks.untrusted.confusable_names import drawn_alike

REDACTION_VERSION = 2
"""Part of what a kept answer is found by: raise it with every change of the rules."""
MARKER = "[redacted]"
_MIN_RUN = 20
"""Characters of a run that may be a key by its looks alone."""
_ROUNDS = 3
"""Times that a word is decoded again."""

_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]+"
)
"""What is not drawn, and controls but for the ends of lines and tabs."""

_NAMES = drawn_alike(
    r"pass(?:word|wd|wort|phrase|code|e)?s?|pwd|kennwort|contrase(?:n|ñ)a|clave|senha|mot[ _-]?de[ _-]?passe|"
    r"wachtwoord|парол[ьяею]|密码|密碼|口令|パスワード|비밀번호|has(?:ł|l)[oa]|(?:ş|s)ifre|l(?:ö|o)senord|adgangskode|salasana|"
    r"heslo|jelsz(?:ó|o)|كلمة (?:المرور|السر)|पासवर्ड|סיסמ[הא]|m(?:ậ|a)t kh(?:ẩ|a)u|รหัสผ่าน|"
    r"pw|p[@4a][s$5]{2}w[o0]rd|pass\s{1,2}word|p[ ._*-]a[ ._*-]s[ ._*-]s[ ._*-]w[ ._*-]o[ ._*-]r[ ._*-]d|"
    r"s[ ._*-]e[ ._*-]c[ ._*-]r[ ._*-]e[ ._*-]t|t[ ._*-]o[ ._*-]k[ ._*-]e[ ._*-]n|"
    r"2fa|(?:one[ -]?time|recovery|backup|security|verification|access)[ -]?(?:code|password)s?|"
    r"secrets?|geheimnis|tokens?|api[ _-]?keys?|apikey|access[ _-]?keys?|(?:private|signing|account|encryption|master|"
    r"shared|storage|license|host|ssh|service|auth|app|user|webhook|client|session)[ _-]?key|"
    r"key[ _-]?(?:data|material)|"
    r"credentials?|creds?|auth(?:orization|entication)?|bearer|cookies?|session(?:[ _-]?id)?|sid|csrf|jwt|"
    r"sig(?:nature)?|conn(?:ection)?[ _-]?str(?:ing)?|dsn|database[ _-]?url|redis[ _-]?url|amqp[ _-]?url|"
    r"pin(?:[ _-]?code)?|otp|totp|mfa[ _-]?code|nonce|salt|hmac|webhook(?:[ _-]?url)?|pgpass|htpasswd|kubeconfig"
)
"""What something is called that is kept secret, in some languages."""
_GLUED = r"password|passwd|passphrase|pwd|secret|apikey|accesskey|privatekey|credential|token"
"""Those that say it also at the end of a longer word."""
_KEY = rf"(?:(?<![^\W_])(?:{_NAMES})|{_GLUED}s?)(?:[_.-][\w.-]{{0,64}})?(?:(?=[是は为為])|(?![^\W_]))"
_WHOLE_KEY = rf"(?:[\w.-]{{0,64}}?[_.-])?\w{{0,32}}?{_KEY}"
"""With what stands before it, where it is known to begin here."""
_CAMEL = r"\b[a-z][A-Za-z0-9]{0,40}(?:Password|Passwd|Secret|Token|ApiKey|AccessKey|PrivateKey|Credential|Pwd)s?\b"
_VALUE = r"""(?:"(?:[^"\\\n]|\\.){0,4000}"?|'(?:[^'\\\n]|\\.){0,4000}'?|[^\s"'<>]{1,4000})"""

_LINES = re.compile(
    rf"^(?P<indent>[ \t]*)(?:[-+*#>|]\s+|//\s*|export\s+|setx?\s+|env\s+|arg\s+)?[\"']?"
    rf"(?P<key>{_WHOLE_KEY})[\"']?[ \t]*(?::=|=>|[:=])(?P<value>[^\n]*(?:\n(?P=indent)[ \t]+[^\n]*)*)",
    re.IGNORECASE | re.MULTILINE,
)
"""A line that begins with such a name: all that follows, and the lines below that stand further in."""
_PAIRS = re.compile(
    rf"(?P<key>{_KEY})[\\\"'\])]*(?:\s?\([^()\n]{{0,40}}\))?(?:\s(?:for|of|on|at|in|von|de|para)\s[^\s:=]{{1,60}}){{0,2}}"
    rf"\s*(?:::?=?|=>?|:=|\s+(?:is|are|was|lautet|ist|es|est|:|=)\s*[:=]?\s+|\s?[是は为為]\s?|\s+is\s?:|->|\||\t|,(?=\S))\s*"
    rf"[\[({{]?\s*\\{{0,4}}"
    rf"(?:(?:bearer|basic|digest|token|negotiate|apikey|aws4-hmac-sha256|b)\s*[:\s]\s*)?(?P<value>{_VALUE})",
    re.IGNORECASE,
)
_UNDER = re.compile(
    rf"(?:{_KEY})[\\\"']*[ \t]*[:=][ \t]*[|>][+-]?[0-9]?[ \t]*\n(?P<value>(?:[ \t]+[^\n]*(?:\n|\Z))+)", re.IGNORECASE
)
"""A block of YAML under such a name."""
_STATED = re.compile(rf"^[ \t]*(?:env|setenv|set|arg)[ \t]+{_WHOLE_KEY}[ \t]+(?P<value>\S[^\n]*)", re.I | re.M)
_CAMEL_PAIRS = re.compile(rf"{_CAMEL}[\"'\])]*\s*(?:=>?|:=?)\s*(?P<value>{_VALUE})")
_FLAGS = re.compile(
    rf"(?<!\S)--?(?:{_WHOLE_KEY})[= \t]+(?P<value>{_VALUE})"
    r"|(?<!\S)(?:-u|--user|--proxy-user)[= \t]*(?P<user>[^\s:]+:\S+)"
    r"|--from-(?:literal|env-file)[= ][\w.-]+=(?P<literal>\S+)"
    r"|\b(?:docker|podman|nerdctl|helm registry|oc|az|skopeo|buildah)\s+login\b[^\n]{0,200}?\s-p[= ]?(?P<login>\S+)"
    r"|\b(?:sshpass|mysql|mysqldump|mariadb|mongo|psql|redis-cli|smbclient|ldapsearch)\b[^\n]{0,200}?\s-(?:p|a|w|W)\s?"
    r"(?P<short>[^\s-]\S*)",
    re.IGNORECASE,
)
_NAMED = re.compile(
    rf"[\"']?(?:name|key|field|header|var|variable)[\"']?\s*[:=]\s*[\"']?(?:{_WHOLE_KEY}|{_CAMEL})[\"']?\s*[,;\n]?"
    rf"\s*[^\n]{{0,40}}?"
    rf"[\"']?(?:value|val|content|default|string_?value)[\"']?\s*[:=]\s*(?P<value>{_VALUE})",
    re.IGNORECASE,
)
"""As containers are given their environment: the name in one field, the value in the next."""
_TAGS = re.compile(
    rf"<(?P<tag>(?:\w+:)?(?:{_WHOLE_KEY}|{_CAMEL}))(?:\s[^>\n]{{0,200}})?>(?P<value>[^<]{{1,4000}})", re.IGNORECASE
)
_HEADERS = re.compile(
    r"\b(?:proxy-)?(?:authorization|cookie|set-cookie|x-[\w-]{0,40}(?:token|key|auth|secret|signature)[\w-]{0,20}|"
    r"www-authenticate)\s*[:=]\s*(?P<value>[^\n\"']{1,4000})",
    re.IGNORECASE,
)
_SCHEMES = re.compile(
    r"\b(?:bearer|basic|digest|negotiate|ntlm)\s+(?P<value>[A-Za-z0-9+/=_.~-]{8,4000})"
    r"|\b(?:machine|login)\s+\S+\s+(?:login\s+\S+\s+)?password\s+(?P<netrc>\S+)"
    r"|\b(?:requirepass|masterauth|identified\s+(?:with\s+\S+\s+)?by(?:\s+password)?)\s+(?P<stated>\S+)"
    r"|\b(?:password|passwd|passphrase|passwort|pwd|kennwort|wachtwoord|clave|senha)\s+(?P<loose>(?=\S*\d)\S{6,})"
    r"|\b(?:password|passwd|passphrase|passwort|pwd)\s+(?P<quoted>'[^'\n]{4,}'|\"[^\"\n]{4,}\")"
    r"|\b(?:password|passwd|passphrase|passwort|secret|token)\b[^\n:=]{0,60}?\s(?:to|into|auf|zu)\s(?P<changed>(?=\S*\d)\S{6,})"
    r"|\b(?:credentials?|creds)\s+(?P<both>[^\s:/]+\s?[:/]\s?\S+)"
    r"|\b(?:user(?:name)?|login)[=: ]\s?\S+[,;]?\s+(?:pass\s+|/\s)(?P<beside>\S+)"
    r"|(?:code|pin|otp|2fa|passcode)[ \t]+(?:is[ \t]+)?(?P<code>\d{4,8}|\d{3}[ -]\d{3})\b",
    re.IGNORECASE,
)
_URL_AUTH = re.compile(
    r"[a-z][a-z0-9+.-]{0,20}:(?://|\\/\\/)(?P<value>[^\s/@\"'<>]{1,500})@|//(?P<bare>[^\s/@:]+:[^\s/@]+)@", re.I
)
_BLOCK = r"[ \w]{0,40}(?:key|certificate|message|block|secret|signature|data)[ \w]{0,20}-"
_BLOCKS = re.compile(
    rf"-[ \t]?begin {_BLOCK}.*?(?:-[ \t]?end {_BLOCK}+|\Z)|putty-user-key-file.*?(?:private-mac:[^\n]*|\Z)", re.DOTALL
)
_BARE_BLOCK = re.compile(r"begin [\w ]{0,20}private key\W*\n(?:[a-z0-9+/=]{4,}(?:\n|\Z))+")
"""One whose dashes were lost."""
_BLOCK_END = re.compile(rf"\A(?:(?!-[ \t]?begin ).)*-[ \t]?end {_BLOCK}+", re.DOTALL)
"""The end of a block whose beginning was cut off."""

_A = r"[A-Za-z0-9]"
_W = r"[A-Za-z0-9_-]"
_FORMS = re.compile(
    "|".join((
        rf"\b(?:akia|asia|abia|acca|agpa|aida|aipa|anpa|anva|aroa|apka|asca){_A}{{12,}}",  # Amazon
        r"\ba[ -]?k[ -]?i[ -]?a(?:[ -]?[a-z0-9]){16}(?![a-z0-9])",
        rf"eyj{_W}{{6,}}(?:\.{_W}*){{1,4}}",  # JSON web tokens
        rf"\bgh[pousr]_{_A}{{16,}}|\bgithub_pat_\w{{16,}}",
        rf"\bgl(?:pat|ptt|dt|rt|cbt|soat|ft|imt|agent|sa)-?{_W}{{16,}}|\bglsa_\w{{16,}}|\bglc_\w{{16,}}",
        rf"\bxox[a-z]-{_W}{{8,}}|\bxapp-{_W}{{8,}}|hooks\.slack\.com/\S+|discord(?:app)?\.com/api/webhooks/\S+",
        rf"\b(?:sk|pk|rk)[-_](?:live|test|proj|ant|or|svcacct|admin)?[-_]?{_W}{{16,}}",  # OpenAI, Anthropic, Stripe
        rf"\baiza{_W}{{20,}}|\bya29\.{_W}{{16,}}|\bgocspx-{_W}{{16,}}|\b1//0{_W}{{16,}}",  # Google
        r"\b(?:accountkey|sharedaccesskey|sharedaccesssignature)=[^\s;\"']{8,}|[?&]sig=[^\s&\"']{8,}",  # Azure
        rf"\bhf_{_A}{{16,}}|\br8_{_A}{{16,}}|\bnpm_{_A}{{16,}}|\bpypi-{_W}{{16,}}|\bdckr_(?:pat|oat)_{_W}{{8,}}",
        rf"\bdo[opr]_v1_{_A}{{16,}}|\bdapi{_A}{{24,}}|\bhv[sbr]\.{_W}{{8,}}|\bs\.{_A}{{24}}\b",
        rf"\bSG\.{_W}{{10,}}\.{_W}{{10,}}|\bkey-[0-9a-f]{{24,}}|\b(?:AC|SK)[0-9a-f]{{32}}\b",
        rf"\b[0-9]{{8,12}}:{_W}{{30,}}|\bshp(?:at|ca|pa|ss)_{_A}{{16,}}|\bsq0[a-z]{{3}}-{_W}{{16,}}",
        rf"\bage-secret-key-1{_A}{{8,}}|\blin_api_{_A}{{16,}}|\bNRAK-{_A}{{16,}}|\bATATT3{_W}{{16,}}|\bdp\.[a-z]+\.{_A}{{16,}}",
        rf"\b[a-z0-9]{{6}}\.[a-z0-9]{{16}}\b|\bsha256~{_W}{{20,}}|\bwhsec_{_A}{{16,}}|\bdt0[a-z]\d\d\.{_W}{{16,}}",
        r"\$(?:2[abxy]?|5|6|1|y|apr1|argon2[id]{0,2})\$[./A-Za-z0-9$=,+-]{12,}|\{(?:ssha|sha|md5|crypt)\d*\}\S{8,}",
        rf"\bssh-(?:rsa|dss|ed25519)\s+{_W}[A-Za-z0-9+/=]{{16,}}",
        rf"\bmuster-canary-{_W}{{4,}}",
    )),
    re.IGNORECASE,
)  # fmt: skip
"""Keys and tokens as their makers form them, in any case of letters."""

_PERSONAL = re.compile(
    r"[\w.+%-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}"  # e-mail addresses, and user@host
    r"|[\w.+%-]{1,64}\s?(?:\(at\)|\[at\]|\{at\})\s?[\w-]{1,63}(?:\s?(?:\.|\(dot\)|\[dot\]|\[\.\])\s?[\w-]{1,63}){0,8}"
    r"|(?<![\d.])\d{1,3}(?:(?:\[\.\]|\(\.\)|\(dot\)|\[dot\])\d{1,3}){3}|\bip-\d{1,3}(?:-\d{1,3}){3}\b|\b\d{3}-\d{2}-\d{4}\b"
    r"|(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])(?::\d+)?"
    r"|(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}(?![\w:])|(?<![\w:])(?:[0-9a-f]{0,4}:){1,6}:(?:[0-9a-f]{1,4}:?){0,7}"
    r"|\b(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}\b"
    r"|(?<![\w.])(?:[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?\.){1,8}(?:com|net|org|io|dev|cloud|internal|local|lan|corp|intra|"
    r"intern|home|edu|gov|eu|de|fr|uk|us|ch|at|nl|se|no|fi|es|it|pl|jp|cn|kr|in|br|ru|info|biz|app|ai|co|svc|cluster)\b"
    r"|(?:/home/|/users/|/Users/|C:\\Users\\)[^/\\\s\"':]+"
    r"|\+\d[\d ()/-]{7,20}\d",
    re.IGNORECASE,
)
_COUNT = re.compile(r"\s*[\d.,]{1,9}[km]?(?!\w)")
"""Of tokens of text, not of keys."""
_CARD = re.compile(
    r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.])|\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b"
)
_BREAK = re.compile(r"\\?\n[ \t|>]*")
_WORDS = re.compile(r"\S+")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|&#?\w{2,8};|=[0-9A-F]{2}")
_RUN = re.compile(r"[A-Za-z0-9+/_=-]{16,}")
_PIECE = re.compile(r"[A-Za-z0-9+/]+")
_HEX = re.compile(r"(?:0x)?(?:[0-9a-f]{2}[ :-]?){16,}", re.IGNORECASE)
_IDENTIFIER = re.compile(r"[^\s\"'()<>,;!?]*[^\s\"'()<>,;!?.:]")
_ORDINARY = re.compile(
    r"[^\W\d_]+(?:['’-][^\W\d_]+)*|[-+±~≈]?[$€£]?\d[\d.,:/%x×-]*[a-z%]{0,6}|p\d\d?|"
    r"(?:\d+x)?(?:[abhltv]|gb|gh|mi|rtx)\d{1,4}[a-z]{0,2}|F\d{1,3}|\[\w+\]|[^\w\s]+",
    re.IGNORECASE,
)
"""Words as people write them, quantities, percentiles, models of devices (h100, 8xA100), signs."""


class SecretSpan(msgspec.Struct, frozen=True):
    """Where something stands that must not leave."""

    start: int
    end: int


def visible(text: str) -> str:
    """The text as it reads: what nobody sees is gone, what only looks wide or styled is plain (NFKC), line ends are
    newlines."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _UNSEEN.sub("", text))
    return _UNSEEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def redact(text: str, *, personal: bool = True, known: frozenset[str] = frozenset()) -> str:
    """The text as it reads, with a marker in the place of everything that is secret. `personal`: and of addresses,
    names of hosts, and people's. `known`: words that are ids of ours, however they look."""
    return applied(text := visible(text), secrets_in(text, personal=personal, known=known))


def applied(text: str, found: Iterable[SecretSpan], *, since: int = 0, upto: int | None = None) -> str:
    """The characters from `since` up to `upto` with a marker in the place of what was found; what reaches over an end
    is marked there."""
    end = len(text) if upto is None else upto
    parts, at = [], since
    for one in found:
        if one.end <= since:
            continue
        if one.start >= end:
            break
        parts += [text[at : one.start], MARKER]
        at = one.end
    return "".join((*parts, text[at:end]))


def is_secret(name: str) -> bool:
    """Whether a name, by its form, is a secret or could be one."""
    return name != redact(name, personal=False)


def says_secret(label: str) -> bool:
    """Whether what a label stands for is secret, as of a tag called DB_PASSWORD."""
    text = f"{visible(label)[-200:]}="
    return any(one.end > len(text) for one in secrets_in(f"{text}something", personal=False))


def secrets_in(text: str, *, personal: bool, known: frozenset[str] = frozenset()) -> tuple[SecretSpan, ...]:
    """Everything in a text that reads (`visible`), in order, none overlapping another."""
    spans = [*_spans(text), *(_personal(text, known) if personal else ())]
    spans += _encoded(text, personal)
    spans += _runs(text, known)
    return merged(SecretSpan(start, end) for start, end in spans)


def merged(found: Iterable[SecretSpan]) -> tuple[SecretSpan, ...]:
    """In order, none overlapping another."""
    apart: list[SecretSpan] = []
    for one in sorted(found, key=lambda one: (one.start, one.end)):
        if apart and one.start <= apart[-1].end:
            apart[-1] = SecretSpan(apart[-1].start, max(one.end, apart[-1].end))
        else:
            apart.append(one)
    return tuple(apart)


Span = tuple[int, int]


def _spans(text: str) -> Iterator[Span]:
    """What is found by its form or by the name beside it."""
    looks = drawn_alike(text)
    for pattern in (_BLOCKS, _BARE_BLOCK, _BLOCK_END, _FORMS):
        for match in pattern.finditer(looks):
            yield match.span()
    yield from _wrapped(looks)
    for pattern in (
        _LINES,
        _PAIRS,
        _UNDER,
        _STATED,
        _CAMEL_PAIRS,
        _FLAGS,
        _NAMED,
        _TAGS,
        _HEADERS,
        _SCHEMES,
        _URL_AUTH,
    ):
        # Names with capitals inside are looked for in the text itself: `looks` is in small letters.
        for match in pattern.finditer(text if pattern is _CAMEL_PAIRS else looks):
            for group in pattern.groupindex:
                value = match[group] or ""
                if group in ("indent", "tag", "key") or not value.strip(" \t\n,;|>&+-"):
                    continue
                if "key" in pattern.groupindex and match["key"].endswith("tokens") and _COUNT.match(value):
                    continue
                yield match.span(group)
    for match in _CARD.finditer(text):
        if _is_card(match[0]):
            yield match.span()


def _wrapped(looks: str) -> Iterator[Span]:
    """Keys that a terminal or an editor broke over lines."""
    breaks = [match.span() for match in _BREAK.finditer(looks)]
    if not breaks:
        return
    starts = [0, *(end for _, end in breaks)]
    ends = [*(begin for begin, _ in breaks), len(looks)]
    pieces = [looks[start:end] for start, end in zip(starts, ends, strict=True)]
    at = [0, *accumulate(map(len, pieces))]

    def back(index: int) -> int:
        """Where a character of the joined text stands in the text."""
        piece = bisect_right(at, index, hi=len(pieces)) - 1
        return starts[piece] + index - at[piece]

    for match in _FORMS.finditer("".join(pieces)):
        first, last = back(match.start()), back(match.end() - 1)
        if last - first >= len(match[0]):
            yield first, last + 1


def _personal(text: str, known: frozenset[str]) -> Iterator[Span]:
    for match in _PERSONAL.finditer(drawn_alike(text)):
        if text[match.start() : match.end()] not in known:
            yield match.span()


def _encoded(text: str, personal: bool) -> Iterator[Span]:
    """Words that hold something secret once they are decoded."""
    for match in _WORDS.finditer(text):
        word = match[0]
        if _ESCAPE.search(word) is None:
            continue
        for _ in range(_ROUNDS):
            before, word = word, _unescaped(word)
            if (
                any(_spans(word))
                or any(_runs(word, frozenset()))
                or any(_hexadecimal(word))
                or (personal and any(_personal(word, frozenset())))
            ):
                yield match.span()
                break
            if word == before:
                break
    for match in _RUN.finditer(text):
        if any(any(_spans(decoded)) for decoded in _decoded(match[0])):
            yield match.span()
    yield from _hexadecimal(text)


def _hexadecimal(text: str) -> Iterator[Span]:
    """Long numbers to the base of sixteen; columns of decimal figures are none."""
    for match in _HEX.finditer(text):
        if match[0].strip().isdigit() or not re.sub(r"[ :-]", "", match[0]).isdigit():
            yield match.span()


def _unescaped(word: str) -> str:
    word = re.sub(r"\\u([0-9A-Fa-f]{4})|\\x([0-9A-Fa-f]{2})", lambda m: chr(int(m[1] or m[2], 16)), word)
    word = re.sub(r"=([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), word) if "%" not in word else word
    return visible(html.unescape(unquote_plus(word, errors="replace")))


def _decoded(run: str) -> Iterator[str]:
    """What a run reads as in base64, of either alphabet, at each of the four offsets that it may start at."""
    data = run.rstrip("=").replace("-", "+").replace("_", "/")
    for offset in range(4):
        part = data[offset:]
        with_padding = part + "=" * (-len(part) % 4)
        try:
            decoded = base64.b64decode(with_padding).decode("utf-8", "ignore")
        except (binascii.Error, ValueError):
            continue
        if sum(char.isprintable() for char in decoded) >= 8:
            yield visible(decoded)


def _runs(text: str, known: frozenset[str]) -> Iterator[Span]:
    """Runs that look like keys: long, of letters and digits, without the ways of words."""
    for match in _RUN.finditer(text):
        if match[0] in known:
            continue
        if _is_random(match[0]):
            yield match.span()
            continue
        for piece in _PIECE.finditer(match[0]):
            if _is_random(piece[0]):
                yield match.start() + piece.start(), match.start() + piece.end()


def _is_random(run: str) -> bool:
    """Of a run without separators: digits among letters, or capitals among small ones, and no character often. Names
    are runs of words between separators; a run of pieces that are short is judged by how many of them are mixed."""
    body = run.strip("=-_")
    if len(body) < _MIN_RUN:
        return len(body) >= 16 and _is_mixed(body) and _entropy(body) >= 3.4
    pieces = re.split(r"[-_]", body)
    if max(map(len, pieces)) < 12:
        return sum(_is_mixed(piece) and len(piece) >= 6 for piece in pieces) >= 3
    longest = max(pieces, key=len)
    return (_is_mixed(longest) and _entropy(longest) >= 3.0) or (len(longest) >= 40 and _entropy(longest) >= 4.0)


def _is_mixed(run: str) -> bool:
    """Letters and digits change places more often than in a name with a number, or capitals stand inside words."""
    kinds = re.sub(r"[^A-Za-z0-9]", "", run)
    kinds = re.sub(r"[0-9]+", "0", re.sub(r"[A-Z]+", "A", re.sub(r"[a-z]+", "a", kinds)))
    return len(kinds) >= 5 or (len(run) >= 24 and len(kinds) >= 4)


def _entropy(run: str) -> float:
    """Bits for each character, by how often each occurs in it."""
    return -sum(n / len(run) * math.log2(n / len(run)) for n in Counter(run).values())


def _is_card(text: str) -> bool:
    """A number of a card by its check digit, or of an account (IBAN)."""
    if text[0].isalpha():
        return True
    digits = [int(char) for char in text if char.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) if i % 2 else digit for i, digit in enumerate(reversed(digits))]
    return sum(doubled) % 10 == 0 and len(set(digits)) > 1


def mask_unknown(text: str, keep: frozenset[str]) -> str:
    """A question with `[name]` in the place of every word that is neither plain language nor a quantity, nor in `keep`:
    what is not known here by name may be a name all the same."""
    return _IDENTIFIER.sub(
        lambda match: match[0] if match[0] in keep or _ORDINARY.fullmatch(match[0]) else "[name]", text
    )
