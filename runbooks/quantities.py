"""Numbers as people write them in prose, in whatever digits or words, with what they are of.

Every way to say a number that a reader understands has to be understood here too, or a false one could be said in it:
digits of any script, groups, exponents, fractions, percentages, durations in parts, clock times, number words. What is
plainly a number and cannot be read comes out with the value None, so that nothing can bear it out.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import Literal, NamedTuple

Kind = Literal[
    "number", "time", "ratio", "usd", "usd_hour", "gpu", "cpu", "mib", "gpu_hour", "clock", "date", "times", "other"
]
"""time in seconds, ratio as a fraction of one, usd in dollars, clock in seconds of the day, date in days since 1970."""
Bound = Literal["", "about", "above", "below", "least", "most"]
"""What is said of the quantity: that it is this, about this, or on which side of this it is."""

MOST_DIGITS = 18
MOST_EXPONENT = 15


class Quantity(NamedTuple):
    start: int
    end: int
    value: Fraction | None
    """In the unit of its kind; None: it cannot be read."""
    step: Fraction
    """What one more in the last written place comes to."""
    kind: Kind
    noun: str = ""
    """What is counted, of `NOUNS`; empty where nothing is named."""
    bound: Bound = ""
    plain: bool = True
    """Written without words of size, decimals or exponents: a count that is meant exactly."""


_SECOND = Fraction(1)
_UNITS: dict[str, tuple[Kind, Fraction]] = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), ("time", Fraction(1, 10**9))),
    **dict.fromkeys(("us", "µs", "μs", "microsecond", "microseconds"), ("time", Fraction(1, 10**6))),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), ("time", Fraction(1, 1000))),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds", "sekunden"), ("time", _SECOND)),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes", "minuten", "minutos"), ("time", Fraction(60))),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours", "stunde", "stunden", "heures", "horas"),
                    ("time", Fraction(3600))),
    **dict.fromkeys(("d", "day", "days", "tage", "jours"), ("time", Fraction(86_400))),
    **dict.fromkeys(("w", "wk", "wks", "week", "weeks"), ("time", Fraction(604_800))),
    **dict.fromkeys(("month", "months"), ("time", Fraction(30 * 86_400))),
    **dict.fromkeys(("year", "years"), ("time", Fraction(365 * 86_400))),
    **dict.fromkeys(("%", "percent", "pct", "prozent"), ("ratio", Fraction(1, 100))),
    **dict.fromkeys(("‰", "permille", "permil"), ("ratio", Fraction(1, 1000))),
    "bp": ("ratio", Fraction(1, 10_000)),
    **dict.fromkeys(("usd", "dollar", "dollars", "bucks"), ("usd", Fraction(1))),
    **dict.fromkeys(("cent", "cents"), ("usd", Fraction(1, 100))),
    **dict.fromkeys(("microusd",), ("usd", Fraction(1, 10**6))),
    **dict.fromkeys(("eur", "euro", "euros", "gbp", "yen", "chf"), ("other", Fraction(1))),
    **dict.fromkeys(("gpu", "gpus", "accelerator", "accelerators"), ("gpu", Fraction(1))),
    "mgpu": ("gpu", Fraction(1, 1000)),
    **dict.fromkeys(("cpu", "cpus", "core", "cores", "vcpu", "vcpus"), ("cpu", Fraction(1))),
    **dict.fromkeys(("mcpu", "millicore", "millicores"), ("cpu", Fraction(1, 1000))),
    "kib": ("mib", Fraction(1, 1024)), "mib": ("mib", Fraction(1)), "gib": ("mib", Fraction(1024)),
    "tib": ("mib", Fraction(1024**2)), "pib": ("mib", Fraction(1024**3)),
    "kb": ("mib", Fraction(10**3, 2**20)), "mb": ("mib", Fraction(10**6, 2**20)),
    "gb": ("mib", Fraction(10**9, 2**20)), "tb": ("mib", Fraction(10**12, 2**20)),
    "pb": ("mib", Fraction(10**15, 2**20)),
    "x": ("times", Fraction(1)), "times": ("times", Fraction(1)), "fold": ("times", Fraction(1)),
}  # fmt: skip
_PER_HOUR: dict[str, int | Fraction] = {
    "h": 1,
    "hr": 1,
    "hour": 1,
    "d": 24,
    "day": 24,
    "min": Fraction(1, 60),
    "minute": Fraction(1, 60),
}
NOUNS: dict[str, str] = {
    **dict.fromkeys(("node", "nodes", "host", "hosts", "machine", "machines", "server", "servers"), "node"),
    **dict.fromkeys(
        ("workload", "workloads", "job", "jobs", "gang", "gangs", "run", "runs", "starts", "start"), "workload"
    ),
    **dict.fromkeys(("task", "tasks", "pod", "pods"), "task"),
    **dict.fromkeys(("queue", "queues"), "queue"),
    **dict.fromkeys(("pool", "pools"), "pool"),
    **dict.fromkeys(("tenant", "tenants", "team", "teams"), "tenant"),
    **dict.fromkeys(("zone", "zones"), "zone"),
    **dict.fromkeys(("user", "users", "people", "person"), "user"),
    **dict.fromkeys(("proposal", "proposals", "vote", "votes", "approval", "approvals"), "proposal"),
    **dict.fromkeys(("reservation", "reservations"), "reservation"),
    **dict.fromkeys(("budget", "budgets"), "budget"),
}
"""Word -> what is counted."""

_SCALES: dict[str, int] = {
    "k": 10**3, "thousand": 10**3, "mn": 10**6, "million": 10**6, "millions": 10**6, "bn": 10**9, "billion": 10**9,
    "dozen": 12, "dozens": 12, "hundred": 100,
}  # fmt: skip
_SMALL: dict[str, int] = {
    word: value
    for value, words in {
        0: "zero nil null cero zéro", 1: "single eins", 2: "two couple pair zwei deux dos both", 3: "three drei trois",
        4: "four vier quatre cuatro", 5: "five fünf cinq cinco", 6: "six sechs seis", 7: "seven sieben sept siete",
        8: "eight acht huit ocho", 9: "nine neun neuf nueve", 10: "ten zehn dix diez", 11: "eleven elf onze",
        12: "twelve zwölf douze doce", 13: "thirteen dreizehn treize trece", 14: "fourteen vierzehn quatorze catorce",
        15: "fifteen fünfzehn quinze quince", 16: "sixteen sechzehn seize", 17: "seventeen siebzehn",
        18: "eighteen achtzehn", 19: "nineteen neunzehn", 20: "twenty zwanzig vingt veinte",
        30: "thirty dreißig trente treinta", 40: "forty fourty vierzig quarante cuarenta",
        50: "fifty fünfzig cinquante cincuenta", 60: "sixty sechzig soixante sesenta", 70: "seventy siebzig setenta",
        80: "eighty achtzig ochenta", 90: "ninety neunzig noventa",
    }.items()
    for word in words.split()
}  # fmt: skip
_BIG: dict[str, int] = {
    "dozen": 12, "hundred": 100, "hundreds": 100, "hundert": 100, "cent": 100, "thousand": 1000, "thousands": 1000,
    "tausend": 1000, "mille": 1000, "million": 10**6, "millions": 10**6, "billion": 10**9, "gross": 144, "score": 20,
}  # fmt: skip
_PARTS: dict[str, Fraction] = {
    "half": Fraction(1, 2), "halves": Fraction(1, 2), "third": Fraction(1, 3), "thirds": Fraction(1, 3),
    "quarter": Fraction(1, 4), "quarters": Fraction(1, 4), "fifth": Fraction(1, 5), "fifths": Fraction(1, 5),
    "tenth": Fraction(1, 10), "tenths": Fraction(1, 10),
}  # fmt: skip
_MULTIPLES: dict[str, int] = {
    "twice": 2, "double": 2, "doubled": 2, "doubles": 2, "thrice": 3, "triple": 3, "tripled": 3, "triples": 3,
    "tenfold": 10, "twofold": 2, "threefold": 3, "quadruple": 4, "quadrupled": 4,
}  # fmt: skip
_OTHERS: dict[str, int] = {
    word: value
    for value, words in {
        2: "два две dois", 3: "три três", 4: "четыре quattro quatro", 5: "пять cinque", 6: "шесть",
        7: "семь sette sete", 8: "восемь oito", 9: "девять", 10: "десять dieci dez", 11: "одиннадцать undici onze",
        12: "двенадцать dodici doze", 13: "тринадцать", 14: "четырнадцать", 15: "пятнадцать",
        16: "шестнадцать dieciséis", 17: "семнадцать diecisiete", 18: "восемнадцать dieciocho",
        19: "девятнадцать diecinueve", 20: "двадцать venti vinte", 30: "тридцать trenta trinta",
        40: "сорок quaranta quarenta", 50: "пятьдесят cinquanta cinquenta", 60: "шестьдесят sessanta sessenta",
        70: "семьдесят settanta", 80: "восемьдесят ottanta oitenta", 90: "девяносто novanta", 100: "сто cento",
        200: "двести duecento", 300: "триста trecento", 500: "пятьсот cinquecento", 1000: "тысяча mila",
    }.items()
    for word in words.split()
}  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ONES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_ZEHNER = ("zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
_EINER = ("ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
_VEINTI = ("uno", "dós", "trés", "cuatro", "cinco", "séis", "siete", "ocho", "nueve")
_GLUED: dict[str, int] = {
    **{f"{ten}{one}": 20 + 10 * i + k for i, ten in enumerate(_TENS) for k, one in enumerate(_ONES, 1)},
    **{f"{one}und{ten}": 20 + 10 * i + k for i, ten in enumerate(_ZEHNER) for k, one in enumerate(_EINER, 1)},
    **{f"veinti{one}": 20 + k for k, one in enumerate(_VEINTI, 1)},
}
"""Tens and ones in one word."""
_WORDS = {**_OTHERS, **_GLUED, **_SMALL, **_BIG}
_ALTERNATIVES = "|".join(sorted(_WORDS, key=lambda word: (-len(word), word)))
_SPELLED = re.compile(
    rf"(?<![\w-])(?:(?:a|an|one)[ -])?(?:{_ALTERNATIVES})(?:(?:[ -]|, ?| and )(?:{_ALTERNATIVES}|one))*(?![\w])",
    re.IGNORECASE,
)
_ONE = re.compile(r"(?<![\w-])one(?=[ -](\w+))", re.IGNORECASE)
_A_PART = re.compile(
    rf"(?<![\w-])(?:(?P<count>a|an|one|two|three|four|nine)[ -])?(?P<part>{'|'.join(_PARTS)})(?![\w]|-[a-z])"
    rf"(?P<hour>(?: of)? an? (?:hour|day|week|minute))?", re.IGNORECASE,
)  # fmt: skip
_SHARED = re.compile(
    r"(?! [A-Za-z])| (?:of|is|are|was|were|less|more|full|empty|idle|used|spent|free|busy)\b| an? hour"
)
"""Behind a part of something; behind a place in a row stands what has that place."""
_MULTIPLE = re.compile(rf"(?<![\w-])(?:{'|'.join(_MULTIPLES)})(?![\w])", re.IGNORECASE)
_DIGITS = re.compile(
    r"(?<![\w.])(?P<money>(?:USD|US\$|\$|€|£)\s?)?(?P<sign>[-+])?"
    r"(?P<whole>[0-9]{1,3}(?:[,'\u2009\u202f\u00a0_][0-9]{3})+|[0-9]+)"
    r"(?P<part>\.[0-9]+|,[0-9]{1,2}(?![0-9,]))?(?:[eE](?P<exponent>[-+]?[0-9]+))?(?P<hex>[xX][0-9a-fA-F]+)?"
)
_CLOCK = re.compile(
    r"(?:(?<![\w:.])|(?<=[0-9]T))([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.[0-9]{1,6})?)?(?:\s?([AaPp])\.?[Mm]\b\.?)?(?:Z\b|(?![\w:]))"
)
_ROMAN = re.compile(r"(?<![\w-])(?=[IVXLC]{2,})(C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})(?![\w-])")
_NO_ROMAN = frozenset(("CI", "CC", "CCC", "CV", "CL", "VI", "XL", "XX", "XXL", "XXX", "LI"))
"""What is rather an abbreviation, a size or a program."""
_DATE = re.compile(r"(?<![\w-])([0-9]{4})-([0-9]{2})-([0-9]{2})(?=T|\b)")
_COMPACT = re.compile(r"(?<![\w.])(?:[0-9]{1,6}(?:ms|min|[smhdw])){2,}(?!\w)")
_UNIT = re.compile(r"(?P<gap>[ \u00a0\u202f]?-?[ ]?)(?P<unit>[^\W\d_]+|%|‰)")
_PER = re.compile(r"(?:\s?/\s?|\s(?:per|an?|every|each)\s)(h|hr|hour|d|day|min|minute)\b", re.IGNORECASE)
_GPU_HOURS = re.compile(r"[ -](?:h|hr|hrs|hour|hours)\b", re.IGNORECASE)
_JOINED = re.compile(r"\s?(?:,|,? and|&|-)?\s?")
_RANGE = re.compile(r"\s?(?:-|\.\.\.?|…|to|of|out of|and|or|vs\.?|versus|from|against|->|→|/|,)\s?", re.IGNORECASE)
_NEXT_WORD = re.compile(r"[\s-]+([A-Za-z]+)")
_NO_ADJECTIVE = frozenset(
    [
        "and",
        "or",
        "in",
        "on",
        "for",
        "to",
        "is",
        "are",
        "was",
        "were",
        "has",
        "have",
        "but",
        "from",
        "with",
        "at",
        "by",
        "than",
        "that",
        "it",
    ]
)
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")

_BOUNDS: tuple[tuple[Bound, str], ...] = (
    ("most", r"(?:at most|up to|no more than|not more than|no longer than|not over|maximum of|max|<=|≤|within)"),
    ("least", r"(?:at least|no fewer than|no less than|not less than|not under|not below|minimum of|>=|≥)"),
    ("above", r"(?:more than|greater than|longer than|higher than|larger than|over|above|beyond|exceed(?:s|ed|ing)?"
              r"|past|upwards? of|>)"),
    ("below", r"(?:less than|fewer than|shorter than|lower than|smaller than|under|below|short of|<)"),
    ("about", r"(?:about|around|roughly|approximately|approx\.?|nearly|almost|close to|some|circa|ca\.|~|≈)"),
)  # fmt: skip
_BOUND = tuple((bound, re.compile(rf"(?<![\w]){words}\s?$", re.IGNORECASE)) for bound, words in _BOUNDS)
_NEVER = re.compile(r"\b(?:never|not|no|cannot|can't|won't)(?:\s[a-z]+)?\s$", re.IGNORECASE)
_DENIED: dict[Bound, Bound] = {"above": "most", "below": "least"}
"""What "never fewer than" comes to."""
_SAME = str.maketrans({
    "−": "-", "–": "-", "—": "-", "‒": "-", "‑": "-", "‐": "-", "⁄": "/", "∕": "/", "÷": "/", "٪": "%", "﹪": "%",
    "٬": ",", "٫": ".", "’": "'", "˙": ".", "，": ",", "．": ".", "：": ":", "％": "%", "∶": ":", "＄": "$",
})  # fmt: skip


def shadow(text: str) -> str:
    """The text with its digits, signs and letters of width as ASCII has them, character for character."""
    return "".join(map(_plain, text)).translate(_SAME)


def _plain(char: str) -> str:
    if char.isascii():
        return char
    digit = unicodedata.decimal(char, -1)
    if digit >= 0:
        return str(digit)
    if unicodedata.category(char) in ("No", "Nl"):
        return char
    folded = unicodedata.normalize("NFKC", char)
    return folded if len(folded) == 1 else char


def quantities(text: str) -> list[Quantity]:
    """All of a text, in the order in which they stand; none overlaps another."""
    plain = shadow(text)
    found: list[Quantity] = []
    taken = bytearray(len(plain))

    def take(quantity: Quantity | None) -> None:
        if quantity is not None and not any(taken[quantity.start : quantity.end]):
            taken[quantity.start : quantity.end] = b"\1" * (quantity.end - quantity.start)
            found.append(quantity)

    for match in _DATE.finditer(plain):
        take(_date(match))
    for match in _CLOCK.finditer(plain):
        take(_clock(match))
    for match in _COMPACT.finditer(plain):
        take(_compact(match))
    for quantity in _signs(plain):
        take(quantity)
    for match in _DIGITS.finditer(plain):
        if not any(taken[match.start() : match.end()]):
            take(_digits(plain, match))
    for match in _A_PART.finditer(plain):
        take(_part(plain, match))
    for match in _SPELLED.finditer(plain):
        take(_spelled(plain, match))
    for match in _ONE.finditer(plain):
        if (noun := match[1].lower()) in NOUNS or noun in _UNITS:
            take(_with_unit(plain, match.start(), match.end(), Fraction(1), Fraction(1), plain_count=True))
    for match in _ROMAN.finditer(plain):
        if match[0] not in _NO_ROMAN:
            roman = Fraction(_roman(match[0]))
            take(_with_unit(plain, match.start(), match.end(), roman, Fraction(1), plain_count=True))
    for match in _MULTIPLE.finditer(plain):
        value = Fraction(_MULTIPLES[match[0].lower()])
        take(Quantity(match.start(), match.end(), value, Fraction(1), "times"))
    found.sort(key=lambda quantity: quantity.start)
    found = _units_of_ranges(plain, _durations(plain, found))
    return [quantity._replace(bound=_bound(plain, quantity)) for quantity in found]


def _digits(plain: str, match: re.Match[str]) -> Quantity | None:
    start, end = match.span()
    if match["hex"] is not None:
        return Quantity(start, end, None, Fraction(1), "number")
    whole = re.sub(r"\D", "", match["whole"])
    part = (match["part"] or "")[1:]
    exponent = int(match["exponent"] or 0) if len(match["exponent"] or "") <= 4 else MOST_EXPONENT + 1
    if len(whole) + len(part) > MOST_DIGITS or abs(exponent) > MOST_EXPONENT:
        return Quantity(start, end, None, Fraction(1), "number")
    step = Fraction(1, 10 ** len(part)) * Fraction(10) ** exponent
    value = Fraction(int(whole + part)) * step
    if match["sign"] == "-" and (start == 0 or plain[start - 1] in " ([:=,"):
        value = -value
    ordinal = _ORDINAL.match(plain, end)
    if ordinal is not None:
        return Quantity(start, ordinal.end(), value, step, "other", noun="ordinal")
    if match["money"]:
        kind: Kind = "usd" if "$" in match["money"] or "USD" in match["money"] else "other"
        end, factor = _scaled(plain, end)
        return _per(plain, Quantity(start, end, value * factor, step * factor, kind, plain=factor == 1 and not part))
    exact = not part and not match["exponent"]
    return _with_unit(plain, start, end, value, step, plain_count=exact)


def _scaled(plain: str, end: int) -> tuple[int, int]:
    """(where a word of size ends, its factor): the "k" of 12k, the "million" of 3 million."""
    unit = _UNIT.match(plain, end)
    if unit is not None:
        word = unit["unit"]
        if word in ("M", "K", "B", "G") and not unit["gap"]:
            return unit.end(), {"K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}[word]
        if word.lower() in _SCALES and (len(word) > 2 or not unit["gap"]):
            return unit.end(), _SCALES[word.lower()]
    return end, 1


def _with_unit(
    plain: str, start: int, end: int, value: Fraction, step: Fraction, *, plain_count: bool
) -> Quantity:  # fmt: skip
    end, factor = _scaled(plain, end)
    value, step = value * factor, step * factor
    exact = plain_count and factor == 1
    unit = _UNIT.match(plain, end)
    if unit is None:
        return Quantity(start, end, value, step, "number", plain=exact)
    word = unit["unit"]
    if word.lower() == "per" and (mille := re.compile(r"\s(cent|mille?)\b").match(plain, unit.end())):
        of = Fraction(1, 100) if mille[1] == "cent" else Fraction(1, 1000)
        return Quantity(start, mille.end(), value * of, step * of, "ratio", plain=exact)
    known = _UNITS.get(word) or (_UNITS.get(word.lower()) if len(word) > 1 or not word.isupper() else None)
    if known is None or (word in ("d", "w", "m", "s", "h", "x") and "-" in unit["gap"]):
        noun = _noun(plain, end)
        return Quantity(start, end, value, step, "number", noun=noun, plain=exact)
    kind, size = known
    end = unit.end()
    if kind == "gpu" and (hours := _GPU_HOURS.match(plain, end)):
        return Quantity(start, hours.end(), value, step, "gpu_hour", plain=exact)
    found = Quantity(start, end, value * size, step * size, kind, plain=exact)
    return _per(plain, found) if kind == "usd" else found


def _noun(plain: str, end: int) -> str:
    """What is counted, at most two words on: "12 running workloads"."""
    at = end
    for _ in range(3):
        match = _NEXT_WORD.match(plain, at)
        if match is None or match[1].lower() in _NO_ADJECTIVE:
            return ""
        if match[1].lower() in NOUNS:
            return NOUNS[match[1].lower()]
        at = match.end()
    return ""


def _per(plain: str, money: Quantity) -> Quantity:
    per = _PER.match(plain, money.end)
    if per is None or money.value is None:
        return money
    hours = Fraction(_PER_HOUR[per[1].lower()])
    kind: Kind = "usd_hour" if money.kind == "usd" else money.kind
    return money._replace(end=per.end(), value=money.value / hours, step=money.step / hours, kind=kind)


def _signs(plain: str) -> list[Quantity]:
    """Numbers in signs that are no decimal digits: ½, ⑧, Ⅷ, ², 四十一."""
    found = []
    start = 0
    while start < len(plain):
        if plain[start].isascii() or unicodedata.numeric(plain[start], None) is None:
            start += 1
            continue
        end = start
        while end < len(plain) and not plain[end].isascii() and unicodedata.numeric(plain[end], None) is not None:
            end += 1
        begin = start
        while begin > 0 and plain[begin - 1].isdigit() and plain[begin - 1].isascii():
            begin -= 1
        value = _sign_value(plain[start:end])
        if begin < start and value is not None:
            # 1½ is one and a half; 10² is nothing that is said of a cell.
            value = int(plain[begin:start][:MOST_DIGITS]) + value if value < 1 else None
        if value is None:
            found.append(Quantity(begin, end, None, Fraction(1), "number"))
        else:
            found.append(_with_unit(plain, begin, end, value, Fraction(1), plain_count=value.denominator == 1))
        start = end
    return found


def _sign_value(signs: str) -> Fraction | None:
    values = [Fraction(unicodedata.numeric(sign)).limit_denominator(100) for sign in signs]
    if len(values) == 1:
        return values[0]
    if all(value < 10 and value.denominator == 1 for value in values):
        return Fraction(int("".join(str(value) for value in values)))
    total = section = digit = Fraction(0)
    for value in values:
        if value < 10:
            digit = value
        elif value < 10_000:
            section, digit = section + (digit or 1) * value, Fraction(0)
        else:
            total, section, digit = total + (section + digit or 1) * value, Fraction(0), Fraction(0)
    return total + section + digit


def _roman(letters: str) -> int:
    values = [{"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}[letter] for letter in letters]
    return sum(-one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True))


def _part(plain: str, match: re.Match[str]) -> Quantity | None:
    """Half, two thirds, a quarter of an hour; nothing where "third" or "fifth" is a place in a row."""
    count = {"two": 2, "three": 3, "four": 4, "nine": 9}.get((match["count"] or "").lower(), 1)
    part = match["part"].lower()
    if part in ("third", "fifth", "tenth", "quarter") and not (match["count"] and _SHARED.match(plain, match.end())):
        return None
    value = _PARTS[part] * count
    if match["hour"]:
        unit = {"hour": 3600, "day": 86_400, "week": 604_800, "minute": 60}[match["hour"].split()[-1].lower()]
        return Quantity(match.start(), match.end(), value * unit, Fraction(unit, 60), "time", plain=False)
    return Quantity(match.start(), match.end(), value, Fraction(1, 100), "ratio", plain=False)


def _spelled(plain: str, match: re.Match[str]) -> Quantity | None:
    words = [word for word in re.findall(r"[^\W\d_]+", match[0].lower()) if word != "and"]
    if words[0] in ("a", "an", "one") and words[1:] and words[1] not in _BIG:
        words = words[1:]
    if words in (["both"], ["single"], ["couple"], ["pair"], ["score"], ["gross"], ["cent"]) and not _noun_or_unit(
        plain, match.end()
    ):
        return None
    total = part = 0
    for word in words:
        value = 1 if word in ("a", "an", "one") else _WORDS[word]
        if word in _BIG and value >= 100:
            part = (part or 1) * value
            if value >= 1000:
                total, part = total + part, 0
        elif word in _BIG:
            part = (part or 1) * value
        else:
            part += value
    end = match.end()
    return _with_unit(plain, match.start(), end, Fraction(total + part), Fraction(1), plain_count=True)


def _noun_or_unit(plain: str, end: int) -> bool:
    unit = _UNIT.match(plain, end)
    word = unit["unit"].lower() if unit else ""
    return word in NOUNS or word in _UNITS or (word == "of" and bool(_noun(plain, unit.end() if unit else end)))


def _compact(match: re.Match[str]) -> Quantity:
    """As in 1h30m."""
    parts = [(int(count), _UNITS[unit][1]) for count, unit in re.findall(r"([0-9]+)([a-z]+)", match[0])]
    value = sum((count * size for count, size in parts), Fraction(0))
    return Quantity(match.start(), match.end(), value, min(size for _, size in parts), "time", plain=False)


def _date(match: re.Match[str]) -> Quantity:
    from datetime import date

    try:
        days = (date(int(match[1]), int(match[2]), int(match[3])) - date(1970, 1, 1)).days
    except ValueError:
        return Quantity(match.start(), match.end(), None, Fraction(1), "date")
    return Quantity(match.start(), match.end(), Fraction(days), Fraction(1), "date")


def _clock(match: re.Match[str]) -> Quantity:
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if match[4]:
        hour = hour % 12 + (12 if match[4] in "pP" else 0)
    if hour > 23 or minute > 59 or second > 59:
        return Quantity(match.start(), match.end(), None, Fraction(1), "clock")
    step = Fraction(1) if match[3] else Fraction(60)
    return Quantity(match.start(), match.end(), Fraction(hour * 3600 + minute * 60 + second), step, "clock")


def _durations(plain: str, found: list[Quantity]) -> list[Quantity]:
    """Times in parts as one: 1 h 30 min."""
    joined: list[Quantity] = []
    for one in found:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.kind == one.kind == "time"
            and last.value is not None
            and one.value is not None
            and one.value < last.step
            and one.step < last.step
            and _JOINED.fullmatch(plain, last.end, one.start)
        ):
            joined[-1] = last._replace(end=one.end, value=last.value + one.value, step=one.step, plain=False)
        else:
            joined.append(one)
    return joined


def _units_of_ranges(plain: str, found: list[Quantity]) -> list[Quantity]:
    """The unit of the second for a bare first, as in 10 to 20 min, 12 of 64 GPUs, 3/4 nodes."""
    for i in range(len(found) - 2, -1, -1):
        one, other = found[i], found[i + 1]
        if one.kind != "number" or one.noun or other.kind in ("clock", "date") or one.value is None:
            continue
        if not _RANGE.fullmatch(plain, one.end, other.start):
            continue
        if other.kind == "number":
            found[i] = one._replace(noun=other.noun)
        elif other.value is not None and other.step:
            size = _size_of(plain, other)
            found[i] = one._replace(kind=other.kind, value=one.value * size, step=one.step * size)
    return found


def _size_of(plain: str, quantity: Quantity) -> Fraction:
    """Of the unit that it is written with."""
    words = re.findall(r"[^\W\d_]+|%|‰", plain[quantity.start : quantity.end])
    for word in reversed(words):
        known = _UNITS.get(word) or _UNITS.get(word.lower())
        if known is not None and known[0] == quantity.kind:
            return known[1]
    return Fraction(1)


def _bound(plain: str, quantity: Quantity) -> Bound:
    before = plain[max(0, quantity.start - 40) : quantity.start]
    for bound, pattern in _BOUND:
        match = pattern.search(before)
        if match is not None:
            return _DENIED[bound] if bound in _DENIED and _NEVER.search(before, 0, match.start()) else bound
    return ""
