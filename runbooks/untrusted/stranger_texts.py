"""Strangers' texts made fit to pass on: secrets removed, links defanged, misleading names found, excerpts cut.

Secrets and personal data are found by known forms (provider keys, tokens, key blocks), by the name beside a value
(`password=`, `Authorization:`), and as random runs of characters. Texts are examined as they read: without invisible
characters, with look-alike letters as the Latin ones, in any case, and decoded from URLs, escapes and base64. What is
found in doubt is removed.

An excerpt keeps the beginning and the end of a text. Secrets are removed before anything is cut, so that no half of one
remains. Lines that differ only in numbers become one with a count, and anything that a server, a terminal or a page
could interpret is drawn as text. Apart from the hash of the whole, the cost does not grow with the size.

Links, addresses and markup are found wherever a reader or a terminal might follow them, and written so that neither
does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import html
import math
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from itertools import accumulate
from urllib.parse import unquote_plus

import msgspec

from runbooks.untrusted.strict_formats import unseen

_ALIKE = str.maketrans({
    **dict(zip("аβвсԁеғɡһіјкӏмпоԛрѕтυѵѡху", "abbcdefghljklmnoqpstuvwxy", strict=True)),
    **dict(zip("αερηικνοτχωϲγнгԝ", "aepnlkvotxwcyhrw", strict=True)),
    **dict(zip("01|i5", "ollls", strict=True)),
})  # fmt: skip
"""Cyrillic and Greek small letters by the Latin one they are drawn like, then what is alike within ASCII."""
_LETTERS = {code: letter for code, letter in _ALIKE.items() if code > 127}
_PAIRS = (("rn", "m"), ("vv", "w"))
_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "GEORGIAN", "HEBREW", "ARABIC")


def skeleton(name: str) -> str:
    """The same for two names that look alike: compatibility forms folded, case and marks dropped, letters that are
    drawn alike made one, and `.`, `_`, `-` and blanks left out."""
    folded = unicodedata.normalize("NFKD", name).casefold()
    plain = "".join(char for char in folded if not unicodedata.combining(char) and char not in "._- ")
    text = plain.translate(_ALIKE)
    for pair, one in _PAIRS:
        text = text.replace(pair, one)
    return text


def drawn_alike(text: str) -> str:
    """The text in small letters, each Cyrillic and Greek one as the Latin one it is drawn like. As long as it was, so
    that what is found in it is found in the text."""
    small = text.lower()
    if len(small) != len(text):
        small = "".join(char.lower() if len(char.lower()) == 1 else char for char in text)
    return small if small.isascii() else small.translate(_LETTERS)


def why_confusing(name: str) -> str:
    """The reason that a name is unreadable or misleading by itself; empty when it is not."""
    hidden = unseen(name)
    if hidden:
        return f"holds {hidden}"
    if unicodedata.normalize("NFKC", name) != name or not name.strip() or name != name.strip():
        return "is not in its plain form (NFKC, without blanks around it)"
    for word in name.split():
        scripts = {script for char in word if (script := _script(char))}
        if len(scripts) > 1:
            return f"mixes {' and '.join(sorted(script.capitalize() for script in scripts))} letters in one word"
    return ""


def _script(char: str) -> str:
    name = unicodedata.name(char, "") if char.isalpha() else ""
    return next((script for script in _SCRIPTS if name.startswith(script)), "")


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
_SECRET_PAIRS = re.compile(
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
    """A span of text that must not leave."""

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
    """True for a name that by its form is, or could be, a secret."""
    return name != redact(name, personal=False)


def says_secret(label: str) -> bool:
    """True when a label names a secret, such as a tag called DB_PASSWORD."""
    text = f"{visible(label)[-200:]}="
    return any(one.end > len(text) for one in secrets_in(f"{text}something", personal=False))


def secrets_in(text: str, *, personal: bool, known: frozenset[str] = frozenset()) -> tuple[SecretSpan, ...]:
    """All secrets in a text that reads (`visible`), in order, without overlap."""
    spans = [*_spans(text), *(_personal(text, known) if personal else ())]
    spans += _encoded(text, personal)
    spans += _runs(text, known)
    return merged(SecretSpan(start, end) for start, end in spans)


def merged(found: Iterable[SecretSpan]) -> tuple[SecretSpan, ...]:
    """Spans in order, with overlapping ones joined."""
    apart: list[SecretSpan] = []
    for one in sorted(found, key=lambda one: (one.start, one.end)):
        if apart and one.start <= apart[-1].end:
            apart[-1] = SecretSpan(apart[-1].start, max(one.end, apart[-1].end))
        else:
            apart.append(one)
    return tuple(apart)


Span = tuple[int, int]


def _spans(text: str) -> Iterator[Span]:
    """The secrets found by form or by the name beside them."""
    looks = drawn_alike(text)
    for pattern in (_BLOCKS, _BARE_BLOCK, _BLOCK_END, _FORMS):
        for match in pattern.finditer(looks):
            yield match.span()
    yield from _wrapped(looks)
    for pattern in (
        _LINES,
        _SECRET_PAIRS,
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
        """The place in the text of a character of the joined text."""
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
    """The base64 decodings of a run, in either alphabet, at each of the four offsets that it may start at."""
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
    """True for a run without separators that looks random: digits among letters, or capitals among small letters, and
    no character often. Names are runs of words between separators; a run of short pieces is judged by how many of them
    are mixed."""
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


WINDOW = 2_000
"""Characters of either end that are looked at, at least."""
MARGIN = 2_000
"""Beyond them, so that a secret that reaches over the edge is seen whole."""
_MAX_CHUNKS = 16
"""Pieces of twice that length, of a text in which next to nothing can be seen."""
_MAX_LINE = 400
CUT = "[...]"
"""Where something was left out."""

_NUMBER = re.compile(r"\b0x[0-9a-f]+\b|\d+(?:[.,:]\d+)*|\b[0-9a-f]{8,}\b", re.IGNORECASE)
_BRACKETED = re.compile(r"\[(/?[A-Z][A-Z_ ]{1,40})\]")
_SPEAKER = re.compile(
    r"\b(system|assistant|user|human|ai|developer|tool|function|operator|instructions?|prompt)(\s*)(?::|\uff1a)",
    re.IGNORECASE,
)
_DRAWN = str.maketrans({"<": "‹", ">": "›", "`": "'", "\t": " "})
"""What opens and closes marks of chat templates, of fences and of code, as signs that do neither."""
_ESCAPED = re.compile(r"\\[nrt]")


class SentExcerpt(msgspec.Struct, frozen=True, kw_only=True):
    """The text that is sent, and the text that it was made from."""

    text: str
    """Lines of printable text, redacted and neutralised."""
    sha256: str
    """Of the whole text as it was handed in, UTF-8."""
    bytes: int
    """Of the whole."""
    cut: bool
    """Something was left out for its length."""


def prepared(text: str, *, most: int, personal: bool = True, known: frozenset[str] = frozenset()) -> SentExcerpt:
    """At most `most` characters of it. The same text always gives the same.

    `personal`: addresses, names of hosts and e-mails go too. `known`: words that are ids of ours, however they look.
    """
    data = text.encode("utf-8", "surrogatepass")
    window = max(WINDOW, most * 3 // 4)
    if len(text) <= 2 * (window + MARGIN):
        shown = visible(text)
        parts = [applied(shown, secrets_in(shown, personal=personal, known=known), upto=len(shown))]
    else:
        shown = _first(text, window + MARGIN)
        found = secrets_in(shown, personal=personal, known=known)
        parts = [applied(shown, found, upto=window)]
        goes_on = bool(found) and found[-1].end >= len(shown)
        shown = _last(text, window + MARGIN)
        # A secret that goes on where the beginning ends may go on until the line ends.
        begun = (SecretSpan(0, (shown + "\n").index("\n")),) if goes_on else ()
        found = merged((*begun, *secrets_in(shown, personal=personal, known=known)))
        parts.append(applied(shown, found, since=len(shown) - window))
    lines = [line for i, part in enumerate(parts) for line in (*((CUT,) if i else ()), *_templated(part))]
    kept, cut = _fitted(lines, most)
    return SentExcerpt(
        text=neutral(kept), sha256=hashlib.sha256(data).hexdigest(), bytes=len(data), cut=cut or len(parts) > 1
    )


def neutral(text: str) -> str:
    """Text that is drawn as it is and does nothing: no marks of chat templates, no fences, nobody who speaks."""
    text = _BRACKETED.sub(r"(\1)", _ESCAPED.sub(" ", text)).translate(_DRAWN)
    return _SPEAKER.sub(r"\1\2 -", text)


def _first(text: str, count: int) -> str:
    """The first `count` characters that can be seen."""
    found = ""
    for start in range(0, min(len(text), _MAX_CHUNKS * 2 * count), 2 * count):
        found += visible(text[start : start + 2 * count])
        if len(found) >= count:
            break
    return found[:count]


def _last(text: str, count: int) -> str:
    """The last of them."""
    found = ""
    for end in range(len(text), max(0, len(text) - _MAX_CHUNKS * 2 * count), -2 * count):
        found = visible(text[max(0, end - 2 * count) : end]) + found
        if len(found) >= count:
            break
    return found[-count:]


def _templated(text: str) -> list[str]:
    """Its lines; those that differ in numbers alone stand once, as the first of them, with how many there are."""
    like: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if line.strip():
            like.setdefault(_NUMBER.sub("#", line), []).append(line.rstrip())
    return [
        lines[0] if len(lines) == 1 else f"{lines[0]} [and {len(lines) - 1} more like it]" for lines in like.values()
    ]


def _fitted(lines: list[str], most: int) -> tuple[str, bool]:
    """The lines in at most `most` characters: those in the middle go, then the middles of lines."""
    longest = max(_MAX_LINE, most // max(1, 2 * len(lines)))
    shown = [line if len(line) <= longest else f"{line[: longest // 2]}{CUT}{line[-longest // 2 :]}" for line in lines]
    whole = "\n".join(shown)
    if len(whole) <= most:
        return whole, shown != lines
    half = max(0, most - len(CUT) - 2) // 2
    head, tail = whole[:half], whole[len(whole) - half :]
    return f"{head}\n{CUT}\n{tail}"[:most], True


_LINK_SCHEMES = r"[A-Za-z][A-Za-z0-9+.-]{1,20}"
_PATTERNS = (
    # Markdown images and links, with what they point to; references and definitions of them.
    r"!?\[[^\]\n]{0,300}\]\s?\([^)\n]{0,500}\)?",
    r"!\[[^\]\n]{0,300}\](?:\s?\[[^\]\n]{0,100}\])?",
    r"\[[^\]\n]{1,300}\]\s?\[[^\]\n]{0,100}\]",
    r"^\s{0,3}\[[^\]\n]{1,100}\]:\s*\S+",
    # Markup of terminals' toolkits and of browsers.
    r"\[/[\w.@-]{0,30}\]",
    r"\[/?(?:@[^\]\n]{0,300}|(?:link|url|img|href|on )\b[^\]\n]{0,300})\]",
    r"</?[A-Za-z!][^>\n]{0,500}>",
    r"&#?[A-Za-z0-9]{2,10};",
    # Addresses with a scheme, also one that was taken apart.
    rf"\b{_LINK_SCHEMES}\s?:\s?//\s?[^\s<>]+",
    r"\bh(?:xx|tt)ps?\[?:\]?//[^\s<>]+",
    r"\b(?:mailto|javascript|data|vbscript|file|tel|sms|magnet|urn|blob|ssh|git|s3|gs):[^\s,;]+",
    r"(?<![\w/])//[\w-]+(?:\.[\w-]+)+[^\s<>]*",
    r"\\\\[\w.-]+\\[^\s]*",
    r"\bwww\.[^\s<>]+",
    # Mailboxes and numbers of machines.
    r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+",
    r"(?<![\w.])[0-9]{1,3}(?:\s?(?:\.|\[\.\]|\(dot\))\s?[0-9]{1,3}){3}(?::[0-9]{1,5})?(?:/[^\s<>]*)?(?![\w])",
    r"(?<![\w:])(?:[0-9A-Fa-f]{1,4}:){3,7}[0-9A-Fa-f]{0,4}(?:::?[0-9A-Fa-f]{1,4})*(?![\w:])",
    r"(?<![\w:])(?:[0-9A-Fa-f]{0,4}:){1,6}:(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4})*)?(?:%\w+)?(?![\w:])",
    r"\b0x[0-9A-Fa-f]{8}\b(?:/[^\s<>]*)?",
)
_LINK = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS), re.MULTILINE)
_DOMAIN = re.compile(
    r"(?<![\w.@/-])(?:[^\W_](?:[\w-]{0,61}[^\W_])?\s?(?:\[\.\]|\(dot\)|\[dot\]|\.|\u3002|\uff61)){1,8}"
    r"(?P<top>[^\W\d_]{2,24}|xn--[\w-]{2,59})(?::[0-9]{1,5})?(?P<path>[/?#][^\s<>]*)?(?![\w-])"
)
_ABBREVIATIONS = frozenset(("e.g", "i.e", "a.k.a", "u.s", "p.s", "et.al", "vs.the"))
_DOTS = re.compile("[.\u3002\uff0e\uff61]")


def links(text: str, ids: Container[str] = ()) -> list[tuple[int, int]]:
    """(start, end) of each, in order. `ids` are names of ours: one that has the form of a host is none."""
    folded = "".join(one if len(one := unicodedata.normalize("NFKC", char)) == 1 else char for char in text)
    found = [match.span() for match in _LINK.finditer(folded) if match[0].strip() and not _is_time(match[0])]
    for match in _DOMAIN.finditer(folded):
        word = match[0].rstrip(".,;:!?")
        if word in ids or word.lower() in _ABBREVIATIONS or _is_sentence_end(match):
            continue
        found.append((match.start(), match.start() + len(word)))
    merged: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _is_time(text: str) -> bool:
    """03:15:00 has the form of an address of machines."""
    return re.fullmatch(r"[0-9]{1,2}(?::[0-9]{2}){1,3}", text) is not None


def _is_sentence_end(match: re.Match[str]) -> bool:
    """True at the end of a sentence without a blank: "it is down.Then". Hosts have no capital there."""
    top = match["top"]
    return match["path"] is None and top[:1].isupper() and top[1:].islower() and match[0].count(".") == 1


def defanged(text: str) -> str:
    """The text in a form that nothing follows and a person can still read."""
    text = re.sub(r"\]\s?([(\[])", r"] \1 ", text)
    text = re.sub(r"\s?:\s?//", "[:]//", text)
    text = re.sub(r"^(\w+):(?!\[)(?=\S)", r"\1[:]", text)
    text = text.replace("@", "[at]").replace("<", "‹").replace(">", "›")
    return _DOTS.sub("[.]", text.replace("[.]", "."))
