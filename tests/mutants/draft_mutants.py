"""Mutants of drafting and drawing: what a hostile server, a hostile model or a stranger's text would like to find.

As in `mutants`.
"""

from __future__ import annotations

from mutants import Mutant, never

JSON = ("strict_json", "hostile/answers")
ENVELOPE = ("envelope", "hostile/library", "hostile/library::test_every_case[C]")
WIRE = ("model_transport", "hostile/library::test_the_worst_of_each_kind", "hostile/library::test_every_case[A]")
LIBRARY = ("hostile/library", "hostile/child")
FORM = ("answer", "hostile/answers")
ANSWERS = ("draft_checks", "hostile/answers", "hostile/telemetry")
PROSE = ("prose", "hostile/answers")
TELEMETRY = ("hostile/telemetry",)
SERVICE = ("model_limits", "console/drafting", "hostile/service")
DISPLAY = ("console/text", "console/hostile_text", "console/hostile_output")

DRAFT_MUTANTS: tuple[Mutant, ...] = (
    # -- strict JSON
    Mutant("JSON with a key twice", "runbooks/untrusted/strict_formats", *never("if len(found) != len(pairs):"), JSON),
    Mutant("JSON as deep as it likes", "runbooks/untrusted/strict_formats", *never("if depth > most_depth:"), JSON),
    Mutant(
        "JSON with as many values as it likes",
        "runbooks/untrusted/strict_formats",
        *never('if marks.count(b",") + marks.count(b"[") + marks.count(b"{") + 1 > most_items:'),
        JSON,
    ),
    Mutant(
        "JSON with NaN",
        "runbooks/untrusted/strict_formats",
        'raise NotJson("number", f"{name} is not JSON")',
        "return 0",
        JSON,
    ),
    Mutant(
        "JSON with endless integers",
        "runbooks/untrusted/strict_formats",
        *never('if len(digits.lstrip("-")) > MAX_DIGITS:'),
        JSON,
    ),
    Mutant(
        "JSON with half a character",
        "runbooks/untrusted/strict_formats",
        *never("if _ESCAPED_SURROGATE.search(text):"),
        JSON,
    ),
    Mutant(
        "JSON with raw control characters", "runbooks/untrusted/strict_formats", "strict=True", "strict=False", JSON
    ),
    Mutant(
        "JSON behind a byte order mark", "runbooks/untrusted/strict_formats", *never("if data.startswith(_BOMS):"), JSON
    ),
    # -- the envelope
    Mutant(
        "any number of choices",
        "runbooks/untrusted/strict_formats",
        *never("if not isinstance(choices, list) or len(choices) != 1:"),
        ENVELOPE,
    ),
    Mutant(
        "a tool call is overlooked",
        "runbooks/untrusted/strict_formats",
        *never('if message.get("tool_calls") or message.get('),
        ENVELOPE,
    ),
    Mutant("an answer that was cut", "runbooks/untrusted/strict_formats", *never('if finish == "length":'), ENVELOPE),
    Mutant("an answer without an end", "runbooks/untrusted/strict_formats", *never('if finish != "stop":'), ENVELOPE),
    Mutant(
        "a message of anybody's",
        "runbooks/untrusted/strict_formats",
        *never('if message.get("role") != "assistant":'),
        ENVELOPE,
    ),
    Mutant("a refusal is an answer", "runbooks/untrusted/strict_formats", *never("if refusal:"), ENVELOPE),
    Mutant(
        "token counts are believed",
        "runbooks/untrusted/strict_formats",
        "            and prompt_bytes // SCARCE_BYTES_A_TOKEN <= tokens_in <= prompt_bytes + TEMPLATE_TOKENS\n"
        "            and max(1, content_bytes // SCARCE_BYTES_A_TOKEN) <= tokens_out <= max_tokens\n",
        "",
        ENVELOPE,
    ),
    # -- the guarded transport
    Mutant(
        "requests to any address",
        "runbooks/models/transport",
        *never("if wire is None or not self._is_ours(request):"),
        ("model_transport", "hostile/child", "hostile/library"),
    ),
    Mutant(
        "connections to any address",
        "runbooks/models/transport",
        *never("if (host, port) != (self._host, self._port):"),
        ("model_transport", "hostile/child", "hostile/library"),
    ),
    Mutant(
        "packed answers",
        "runbooks/models/transport",
        *never('if any(value not in (b"", b"identity") for value in encodings):'),
        WIRE,
    ),
    Mutant("answers of any type", "runbooks/models/transport", *never('if kind != b"application/json" or any('), WIRE),
    Mutant(
        "answers of any length, as announced",
        "runbooks/models/transport",
        *never("if length is not None and length > self._most:"),
        WIRE,
    ),
    Mutant(
        "answers of any length, as they come",
        "runbooks/models/transport",
        "        if len(body) > most:\n            return\n",
        "",
        WIRE,
    ),
    Mutant(
        "framing of any length", "runbooks/models/transport", *never("if self._raw - self.body > FRAMING_BYTES"), WIRE
    ),
    Mutant("heads of any length", "runbooks/models/transport", *never("if self._raw >= HEAD_BYTES:"), WIRE),
    Mutant(
        "certificates are not looked at",
        "runbooks/models/transport",
        "    context.minimum_version = ssl.TLSVersion.TLSv1_2\n"
        "    if context.verify_mode != ssl.CERT_REQUIRED or not context.check_hostname:\n"
        '        raise TransportRefused("bad_endpoint", "TLS would not be checked")\n',
        "    context.check_hostname = False\n    context.verify_mode = ssl.CERT_NONE\n",
        WIRE,
    ),
    # -- the answer
    Mutant(
        "an answer of any size",
        "runbooks/drafts/model_answer",
        "MAX_CONTENT_BYTES = 64 * 1024",
        "MAX_CONTENT_BYTES = 64 << 20",
        FORM,
    ),
    Mutant("actions that are no model's", "runbooks/drafts/model_answer", *never("if name in NOT_FOR_MODELS:"), FORM),
    Mutant(
        "parameters that are no model's",
        "runbooks/drafts/model_answer",
        *never("if name not in known:\n            raise _unformed"),
        FORM,
    ),
    Mutant("fields of other tasks", "runbooks/drafts/model_answer", *never("if given and field not in wanted"), FORM),
    Mutant("blanks as text", "runbooks/drafts/model_answer", *never("if is_blank(text):"), FORM),
    Mutant("texts of any length", "runbooks/drafts/model_answer", *never("if len(text) > most:"), FORM),
    Mutant("one target twice", "runbooks/drafts/model_answer", *never("if len(set(value)) < len(value):"), FORM),
    Mutant(
        "fields that nobody knows",
        "runbooks/drafts/model_answer",
        "class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):",
        "class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):",
        FORM,
    ),
    # -- after the answer
    Mutant(
        "targets that were not told of",
        "runbooks/models/answer_checks",
        "for kind, id_ in sorted(told.allowed):",
        "for kind, id_, _ in told.names.known():",
        ANSWERS,
    ),
    Mutant("what the policy denies is drafted", "runbooks/models/answer_checks", *never("if shown.note:"), ANSWERS),
    Mutant(
        "a step that undoes another",
        "runbooks/models/answer_checks",
        *never("if undo_each_other(act.action, earlier.action):"),
        ANSWERS,
    ),
    Mutant("the same step twice", "runbooks/models/answer_checks", *never("if act.action == earlier.action:"), ANSWERS),
    Mutant(
        "a stranger's target is not flagged",
        "runbooks/models/answer_checks",
        *never("if target in told.influenced or"),
        ANSWERS,
    ),
    Mutant(
        "a title may claim anything",
        "runbooks/models/answer_checks",
        'struck="[…]"',
        'struck="{}"',
        ANSWERS,
    ),
    Mutant(
        "a message says what nobody has found",
        "runbooks/models/answer_checks",
        'struck="[not verified: {}]"',
        'struck="{}"',
        ANSWERS,
    ),
    Mutant("the canary may be told", "runbooks/models/answer_checks", *never("if canary:"), ANSWERS),
    Mutant(
        "instructions may be told",
        "runbooks/models/answer_checks",
        *never("if any(_quoted(_squeezed(instruction), reading)"),
        ANSWERS,
    ),
    Mutant(
        "instructions may be told in base64",
        "runbooks/models/answer_checks",
        "for text in _unpacked(texts)",
        "for text in ()",
        ANSWERS,
    ),
    # -- where it is asked
    Mutant(
        "an address behind a point",
        "runbooks/models/endpoint",
        '.lower().removesuffix(".")',
        ".lower()",
        ("model_endpoint",),
    ),
    # -- prose
    Mutant("a value of its own", "runbooks/models/answer_checks", "found += _odd_words(plain)", "", PROSE),
    Mutant(
        "numbers and directions in words",
        "runbooks/models/answer_checks",
        "for pattern in (_WORDS, _LETTERS_APART)",
        "for pattern in ()",
        PROSE,
    ),
    Mutant("letters of other scripts", "runbooks/models/answer_checks", *never("if foreign is not None:"), ("prose",)),
    Mutant(
        "a value that is made another",
        "runbooks/models/answer_checks",
        "for match in _JOINED.finditer(text)\n",
        "for match in ()\n",
        PROSE,
    ),
    Mutant(
        "a reference to what was not told",
        "runbooks/models/answer_checks",
        "match[1] in self._facts), text)",
        "True), text)",
        PROSE,
    ),
    Mutant(
        "a name may be a number",
        "runbooks/models/answer_checks",
        "named and not word[0].isdigit() and _WORDS.fullmatch(word) is None",
        "named",
        ("prose",),
    ),
    Mutant(
        "a value is anybody's",
        "runbooks/models/answer_checks",
        "if of_kind == {(fact.kind, fact.subject)} or not (named",
        "if True or not (named",
        PROSE,
    ),
    Mutant(
        "links stay links",
        "runbooks/models/answer_checks",
        'defanged(text[start:end]) if mark == "link" else text[start:end]',
        "text[start:end]",
        ("prose", *ANSWERS),
    ),
    # -- before the model
    Mutant(
        "secrets go out as they are",
        "runbooks/untrusted/stranger_texts",
        "parts += [text[at : one.start], MARKER]",
        "parts += [text[at : one.end]]",
        TELEMETRY,
    ),
    Mutant(
        "what is coded is not looked into",
        "runbooks/untrusted/stranger_texts",
        "spans += _encoded(text, personal)",
        "",
        TELEMETRY,
    ),
    Mutant(
        "runs that look like keys", "runbooks/untrusted/stranger_texts", "spans += _runs(text, known)", "", TELEMETRY
    ),
    Mutant(
        "addresses go out",
        "runbooks/untrusted/stranger_texts",
        "*(_personal(text, known) if personal else ())",
        "",
        TELEMETRY,
    ),
    Mutant(
        "hidden characters part a secret",
        "runbooks/untrusted/stranger_texts",
        '    return _UNSEEN.sub("", text.replace("\\r\\n", "\\n").replace("\\r", "\\n"))',
        '    return text.replace("\\r\\n", "\\n").replace("\\r", "\\n")',
        TELEMETRY,
    ),
    Mutant(
        "excerpts of any length",
        "runbooks/untrusted/stranger_texts",
        "    kept, cut = _fitted(lines, most)",
        '    kept, cut = "\\n".join(lines), False',
        TELEMETRY,
    ),
    Mutant("excerpts open a chat", "runbooks/untrusted/stranger_texts", ".translate(_DRAWN)", "", TELEMETRY),
    Mutant(
        "excerpts speak for others",
        "runbooks/untrusted/stranger_texts",
        '_SPEAKER.sub(r"\\1\\2 -", text)',
        "text",
        TELEMETRY,
    ),
    Mutant("a text may close its fence", "runbooks/models/prompt", *never("if nonce:\n        text ="), TELEMETRY),
    Mutant("a fence without a gutter", "runbooks/models/prompt", 'f"| {line}"', "line", TELEMETRY),
    Mutant(
        "external endpoints are told names",
        "runbooks/models/prompt",
        "PromptNames(key, hide_all=external)",
        "PromptNames(key, hide_all=False)",
        TELEMETRY,
    ),
    Mutant(
        "external endpoints are told of all tenants",
        "runbooks/models/prompt",
        *never("if others or (fact.tenant and"),
        TELEMETRY,
    ),
    Mutant(
        "external endpoints are told excerpts",
        "runbooks/models/prompt",
        *never("if external:\n        for what"),
        TELEMETRY,
    ),
    Mutant(
        "names of strangers in a question",
        "runbooks/models/prompt",
        "            shown = mask_unknown(shown, ",
        "            shown = str(shown) or mask_unknown(shown, ",
        TELEMETRY,
    ),
    Mutant(
        "a name that bids goes out",
        "runbooks/models/prompt",
        "        and (len(words) == 1 or not _BIDDING.intersection(words))\n",
        "",
        TELEMETRY,
    ),
    Mutant(
        "a name that is a secret goes out",
        "runbooks/models/prompt",
        "        and not is_secret(name)\n",
        "",
        TELEMETRY,
    ),
    Mutant(
        "pseudonyms without the cell's key",
        "runbooks/models/prompt",
        'hmac.digest(self._key, f"{kind}',
        'hmac.digest(b"", f"{kind}',
        TELEMETRY,
    ),
    # -- budget, cache, circuit, record
    Mutant("a call may cost more than is left", "runbooks/models/limits", *never("if least > room:"), SERVICE),
    Mutant(
        "what is reserved is not counted",
        "runbooks/models/limits",
        "case((SPEND.c.spent == OPEN, SPEND.c.reserved)",
        "case((SPEND.c.spent == OPEN, 0)",
        SERVICE,
    ),
    Mutant(
        "a lost call costs nothing",
        "runbooks/models/limits",
        "values(spent=SPEND.c.reserved)",
        "values(spent=0)",
        SERVICE,
    ),
    Mutant(
        "a call settles more than it reserved",
        "runbooks/models/limits",
        "min(max(0, microusd), reserved.microusd)",
        "microusd",
        SERVICE,
    ),
    Mutant(
        "another model's answer",
        "runbooks/models/limits",
        "endpoint.base_url, endpoint.model, endpoint.egress",
        "endpoint.base_url, endpoint.egress",
        SERVICE,
    ),
    Mutant(
        "another prompt's answer",
        "runbooks/models/limits",
        "endpoint.most_bytes, prompt_sha256",
        "endpoint.most_bytes",
        SERVICE,
    ),
    Mutant(
        "an answer about facts of long ago", "runbooks/models/limits", *never("if not (0 <= wall_ms < TTL_MS"), SERVICE
    ),
    Mutant(
        "the circuit never opens",
        "runbooks/models/limits",
        *never("if many or half_open or reason in AT_ONCE:"),
        SERVICE,
    ),
    Mutant("an open circuit is asked", "runbooks/models/limits", *never('if state == "open" or (state'), SERVICE),
    Mutant("the model is asked at any rate", "runbooks/models/limits", *never("if self._left < 1:"), SERVICE),
    Mutant(
        "our own key on the screen",
        "runbooks/models/drafter",
        *never("if len(key) >= MIN_KEY and any(key in text"),
        SERVICE,
    ),
    Mutant(
        "a call is not on record",
        "runbooks/models/drafter",
        'self._audit.append(connection, "llm.call", MODEL, data=data)\n            return cost',
        "return cost",
        SERVICE,
    ),
    Mutant(
        "a call from the cache is not on record",
        "runbooks/models/drafter",
        'self._record("llm.call", data)',
        "del data",
        SERVICE,
    ),
    Mutant(
        "a rejection is not on record",
        "runbooks/models/drafter",
        "            self._note_rejected(told, error)\n            raise",
        "            raise",
        SERVICE,
    ),
    Mutant(
        "whoever asks is not its author",
        "console/service/drafting",
        "            requester=actor.subject,\n",
        "",
        SERVICE,
    ),
    Mutant(
        "whoever asks need not be allowed to",
        "console/service/drafting",
        'self._gate.refuse_unless(actor, "propose", None)',
        "pass",
        SERVICE,
    ),
    # -- what is drawn
    Mutant(
        "controls are drawn",
        "console/text/terminal_text",
        'if category[0] == "C" or category',
        'if category[0] == "X" or category',
        DISPLAY,
    ),
    Mutant("letters that hide are drawn", "console/text/terminal_text", " or _UNSEEN.match(char)", "", DISPLAY),
    Mutant("marks lie on what stands before", "console/text/terminal_text", *never("if marks < 0:"), DISPLAY),
    Mutant(
        "marks without number", "console/text/terminal_text", "elif marks < MAX_MARKS:", "elif marks < 9999:", DISPLAY
    ),
    Mutant("links are drawn as links", "console/text/terminal_text", *never('if "://" in text or'), DISPLAY),
    Mutant(
        "segments of raw text",
        "console/text/tones",
        "return Segment(printable(text), style)",
        "return Segment(text, style)",
        DISPLAY,
    ),
    Mutant(
        "lines of raw text",
        "console/commands/show",
        "printable(text[at : at + part])",
        "text[at : at + part]",
        DISPLAY,
    ),
    Mutant(
        "streams that guard nothing",
        "console/text/guarded_streams",
        "self.within.write(inert(text))",
        "self.within.write(text)",
        DISPLAY,
    ),
    Mutant(
        "JSON that acts",
        "console/commands/show",
        "inert_json(msgspec.json.encode(value).decode())",
        "msgspec.json.encode(value).decode()",
        DISPLAY,
    ),
    Mutant(
        "toasts that read markup",
        "console/tui/app",
        "markup=False, timeout=4)",
        "timeout=4)",
        ("console/display_lint",),
    ),
)
