"""View models of drafts: the question, the draft of the rules, and the draft of the model.

Steps come first, as typed acts, with the result of their trial on a fork. Text of a model stands behind a gutter, so
that none of it can pass for a step, an effect or a vote. A sentence with a value or a direction but no fact is marked
as unsupported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len

from console.actions.key_map import key_of
from console.forms.filters import quoted
from console.text.terminal_text import cut, duration, fit, printable
from console.views.lists import TRACK, Span
from console.views.proposal import GUTTER, MAX_LINES, TIERS, effect_lines, framed, hanging, name_of, touched
from console.views.sections import Line, Section, text_line
from engine.model.quantities import counted, usd
from engine.model.specs import HOUR_MS
from runbooks.drafts.typed_draft import (
    Called,
    Draft,
    Drafter,
    DraftGoal,
    DraftRun,
    Fact,
    Mark,
    ModelStanding,
    Record,
    Sentence,
)
from runbooks.drafts.typed_draft import Span as Piece
from runbooks.plans.typed_plan import Proposal

UNVERIFIED = "Model text, unverified"
UNSUPPORTED = "unsupported: "
_PIECE_TONES: dict[Mark, str] = {"": "", "value": "info", "link": "dim"}
MAX_TRIED = 12
MAX_CHECKS = 6
BAR = 12
LABEL = 10
"""Cells of the words at the left of a draft's head."""
WHOSE: dict[Drafter, str] = {"rule": "By rule", "model": "By the model"}
TASKS = {
    "act": "what to do",
    "explain": "what it means",
    "runbook": "a runbook for it",
    "handover": "shift handover",
    "incident": "incident summary",
}
SINCE_MS = {"handover": 8 * HOUR_MS, "incident": 2 * HOUR_MS}
"""Default period of a report."""
UNASKED = frozenset(
    ("not_configured", "bad_endpoint", "no_key", "budget", "rate_limited", "circuit_open", "egress_denied")
)
"""Reasons for no draft by which nothing was sent."""
UNANSWERED = frozenset(("connection", "deadline", "auth", "model_missing"))
"""Reasons for no draft by which no answer came."""
PHASES = {
    "starting": "starting",
    "asking": "sending the request",
    "waiting": "waiting for the answer",
    "reading": "reading the answer",
    "checking": "checking the answer",
    "simulating": "trying the steps on a fork",
}
FLAGS = {
    "untrusted_influence": "a target is named only in untrusted text: find out who asked for this first",
    "not_simulated": "NOT tried on a fork",
    "target_missed": "on a fork it does NOT reach the goal",
    "partial": "made from partial data",
}
IN_PART = "on a fork it helps, but some work is still late"
EGRESS = {
    "local": "local: gets names and the texts you add, secrets removed",
    "trusted": "trusted: gets names and the texts you add; secrets, addresses and e-mails removed",
    "external": "external: gets pseudonyms instead of names, and no text except your question",
}
_LINKS = {"workload": "workload {}", "node": "node {}", "queue": "queues name:{}", "pool": "nodes pool:{}"}


class NextSteps(NamedTuple):
    """Lines that go on from a draft, in the words of the place where it is shown."""

    rule: str
    """The line that puts the rules' draft to the vote."""
    model: str
    ask: str
    """As in "m asks"."""
    stop: str
    pick: str
    """The line that picks one of the choices."""


def by_keys() -> NextSteps:
    """The next steps on the console."""
    proposes = (f"{key_of(f'propose_{drafter}')} proposes it" for drafter in ("rule", "model"))
    return NextSteps(*proposes, f"{key_of('ask_model')} asks", "esc stops it", "enter picks one")


def commands(draft_id: str) -> NextSteps:
    """The next steps as shell commands."""
    name = printable(draft_id)
    propose = f"muster draft {name} --propose"
    pick = f"muster draft {name} --pick NUMBER"
    return NextSteps(f"{propose} rule", f"{propose} model", "--llm asks", "^C stops it", pick)


# --- what was asked, and how far it is


def head_section(run: DraftRun, standing: ModelStanding | None, now_ms: int, width: int, ways: NextSteps) -> Section:
    """The question, how far the model is or what became of it, how the two compare: what changes while one looks."""
    lines: list[Line] = []
    if run.ask.question:
        lines += hanging("", f"“{printable(run.ask.question)}”", width, "", "strong")[:3]
    if run.ask.finding:
        text = f"{printable(run.ask.finding)}  {printable(run.about)}" if run.about else printable(run.ask.finding)
        lines += hanging(fit("about", LABEL), text, width)
    if run.ask.task != "act":
        lines += hanging(fit("wanted", LABEL), TASKS[run.ask.task], width)
    for note in run.notes:
        lines += hanging("! ", printable(note), width, "warn", "warn")
    if run.rule_state == "drafting":
        lines.append(Line(((fit("rules", LABEL), "dim"), ("reading the cell and trying options on forks …", "info"))))
    lines += _model_line(run, standing, width, ways)
    if run.agreement:
        same = run.agreement.startswith(("same", "both"))
        lines += hanging(fit("compared", LABEL), printable(run.agreement), width, "dim", "ok" if same else "warn")
    for drafter, proposal in run.proposed:
        text = f"proposed as {printable(proposal)}, {WHOSE[drafter].lower()}"
        lines.append(Line(((fit("", LABEL), ""), (text, "link")), f"proposal {printable(proposal)}"))
    ago_ms = now_ms - run.asked_ms
    ago = f"{duration(ago_ms)} ago" if ago_ms >= 60_000 else "just now"
    note = f"asked {ago} by {name_of(run.who)}" if run.who else f"asked {ago}"
    return Section(f"Draft {printable(run.id)}", tuple(lines), note)


def _model_line(run: DraftRun, standing: ModelStanding | None, width: int, ways: NextSteps) -> list[Line]:
    label = fit("model", LABEL)
    if run.model_state == "thinking":
        return [Line(((label, "dim"), *thinking_spans(run, width - LABEL, ways.stop)))]
    if run.model_state == "rejected":
        text = cut(f"✗ no draft ({printable(run.reason)}): {printable(run.why)}", width - LABEL)
        return [Line(((label, "dim"), (text, "bad")))]
    if run.model_state == "cancelled":
        return [Line(((label, "dim"), ("‖ stopped; the draft by rule stands", "warn")))]
    if run.model_state == "done" or standing is None:
        return []
    return hanging(label, unasked(standing, ways), width, "dim", "dim")


def unasked(standing: ModelStanding, ways: NextSteps) -> str:
    """Consequences of asking the model."""
    if not standing.configured:
        return "not configured; the rules work without one"
    if standing.problem:
        return f"cannot be asked now: {printable(standing.problem)}"
    return f"not asked; {ways.ask} {printable(standing.model)} at {place(standing.endpoint)} ({standing.egress})"


def place(endpoint: str) -> str:
    """Host and port of a URL of ours, without what a terminal would make a link of."""
    scheme, _, host = endpoint.partition("://")
    return printable(host) if scheme == "https" else f"{printable(host or scheme)}, not encrypted"


def thinking_spans(run: DraftRun, width: int, how_to_stop: str) -> list[Span]:
    """A bar of the time it may take, what it does, and how to stop it."""
    thinking, stop = run.thinking, f"   {how_to_stop}"
    if thinking is None:
        return [("thinking …", "info"), (stop, "dim")]
    share = min(1.0, thinking.elapsed_ms / thinking.deadline_ms) if thinking.deadline_ms else 0.0
    done = int(share * BAR)
    text = f" {PHASES[thinking.phase]}, {took(thinking.elapsed_ms)} of {took(thinking.deadline_ms)}"
    text = cut(text, max(8, width - BAR - len(stop)))
    return [("━" * done, "info"), (TRACK * (BAR - done), "faint"), (text, "info"), (stop, "dim")]


def took(ms: int) -> str:
    """A short time with a tenth: "0.4s", "12.0s"."""
    return f"{ms / 1000:.1f}s" if ms < 60_000 else duration(ms)


# --- one draft


def draft_columns(
    run: DraftRun, standing: ModelStanding | None, now_ms: int, width: int, *, two: bool, ways: NextSteps
) -> tuple[list[Section], list[Section]]:
    """A draft in columns. Two: rules at the left, model at the right; without a model, steps at the left and grounds at
    the right. One has everything."""
    head = head_section(run, standing, now_ms, width, ways)
    facts = fact_section((run.rule, run.model), width)
    done, why = _of_rule(run, width, ways)
    if run.rule is not None and run.ask.task in ("explain", "handover", "incident"):
        done, why = why, done  # what is said is what was asked for
    if run.model_state == "off":
        return [head, *done], [*why, *facts]
    left, right = [head, *done, *why], model_sections(run, width, ways)
    return ([*left, *facts], right) if two else (left, [*right, *facts])


def _of_rule(run: DraftRun, width: int, ways: NextSteps) -> tuple[list[Section], list[Section]]:
    """Steps of the rules' draft, and its reasons."""
    if run.rule is None:
        if run.rule_state == "failed":
            lines = hanging("✗ ", printable(run.rule_why) or "it failed", width, "bad")
            return [Section(WHOSE["rule"], tuple(lines), "no draft")], []
        return [], []
    done = do_sections(run.rule, width, ways)
    return [*done[:1], *_choice_section(run.rule, run.id, width, ways), *done[1:]], why_sections(run.rule, width)


def _choice_section(draft: Draft, draft_id: str, width: int, ways: NextSteps) -> list[Section]:
    """Possible subjects of the question, numbered; each line leads to the draft for it."""
    if not draft.choices:
        return []
    lines: list[Line] = []
    for number, choice in enumerate(draft.choices, 1):
        first, *rest = hanging(f"{number:>3}  ", printable(choice.text), width, "strong")
        name = text_line(cut(f"     {printable(choice.name)}", width), "dim")
        lines += [Line(first.spans, f"draft --pick {number} {printable(draft_id)}"), *rest, name]
    title = "Pick the one you mean" if draft.undecided else "Other readings of the question"
    return [Section(title, tuple(lines), ways.pick)]


def model_sections(run: DraftRun, width: int, ways: NextSteps) -> list[Section]:
    """The model's draft, or why there is none."""
    if run.model is not None:
        return [*do_sections(run.model, width, ways), frame_section(run.model, width), *_call_section(run.model, width)]
    if run.model_state == "rejected":
        lines = hanging("✗ ", printable(run.reason).replace("_", " "), width, "bad", "bad")
        lines += hanging("", printable(run.why), width)
        heard = "Its answer is not shown."
        if run.reason in UNASKED:
            heard = "The model was not asked."
        elif run.reason in UNANSWERED or run.reason.startswith("http_"):
            heard = "The model did not answer."
        lines.append(text_line(cut(f"{heard} The draft by rule stands.", width), "dim"))
        return [Section(WHOSE["model"], tuple(lines), "no draft")]
    if run.model_state == "cancelled":
        lines = [text_line("‖ stopped; the draft by rule stands", "warn")]
        return [Section(WHOSE["model"], tuple(lines), "no draft")]
    if run.model_state == "thinking":
        lines = [
            Line(tuple(thinking_spans(run, width, ways.stop))),
            text_line(cut("No need to wait: the draft by rule can be proposed now.", width), "dim"),
        ]
        return [Section(WHOSE["model"], tuple(lines), "thinking")]
    return []


def do_sections(draft: Draft, width: int, ways: NextSteps) -> list[Section]:
    """Steps of a draft in typed words, with proof on a fork, affected work, the way back, and the record of such
    drafts."""
    lines: list[Line] = []
    helps = draft.drafter == "rule"  # the rules draft nothing that does not
    for flag in draft.flags:
        told = IN_PART if flag == "target_missed" and helps else FLAGS.get(flag, flag)
        lines += hanging("! ", told, width, "warn", "warn")
    if draft.read_as:
        lines += hanging(fit("read as", LABEL), printable(draft.read_as), width, "dim")
    if helps and draft.steps and draft.summary:
        lines += sentence_lines(draft.summary[0], width, fit("why", LABEL))
    if draft.request is None and not draft.steps:
        lines += _nothing(draft, width)
    lines += _step_lines(draft, width)
    if draft.target is not None:
        lines += _target_lines(draft.target, width, helps=helps)
    elif draft.preview is not None:
        told = "tried; no goal to check: see Before and after"
        lines += hanging(fit("fork", LABEL), told, width, "dim")
    if draft.preview is not None:
        lines += _bearing(draft.preview, width)
    if draft.record is not None and (draft.steps or draft.drafter == "model"):
        lines += hanging(fit("record", LABEL), record_text(draft.record), width, "dim", "dim")
    note = f"made at v{draft.version:,}" if draft.version else ""
    if draft.request is not None:
        note = ways.rule if draft.drafter == "rule" else ways.model
    sections = [Section(_title(draft), tuple(lines), note)] if lines else []
    effects = draft.effects or (draft.preview.effects if draft.preview is not None else ())
    if effects:
        sections.append(Section("Before and after", tuple(effect_lines(effects, width)), "simulated"))
    if draft.tried:
        sections.append(Section("Also tried on forks", tuple(_tried_lines(draft, width)), f"{len(draft.tried):,}"))
    if draft.runbook is not None:
        sections.append(_runbook_section(draft, width))
    return sections


def _title(draft: Draft) -> str:
    from_book = f", from runbook {printable(draft.template)}" if draft.template else ""
    return f"{WHOSE[draft.drafter]}{from_book}"


def _nothing(draft: Draft, width: int) -> list[Line]:
    if draft.task == "runbook" and draft.runbook is None:
        return [text_line("○ no runbook: found no steps to write down", "warn")]
    if draft.task != "act":
        return []
    if draft.drafter == "model":
        return [text_line(f"○ no action{', and it asks for more facts' if draft.questions else ''}", "warn")]
    lines = [text_line("○ no action needed", "strong")]
    if draft.undecided:
        lines = [text_line("? pick the one you mean to get a draft", "warn")]
    elif draft.tried:
        lines = [text_line("○ nothing that was tried helps: a person must look", "warn")]
    if draft.questions and not draft.undecided:
        lines = [text_line("? not enough facts, find out first:", "warn")]
        lines += [line for question in draft.questions for line in sentence_lines(question, width, "· ")]
    return [*lines, *(line for sentence in _said(draft) for line in sentence_lines(sentence, width, "  "))]


def _said(draft: Draft) -> list[Sentence]:
    """The summary, without what the title has said."""
    return [sentence for sentence in draft.summary if sentence.text.rstrip(".") != draft.title]


def _step_lines(draft: Draft, width: int) -> list[Line]:
    """The typed acts; where proposing was tried, one line a target, as the gate resolves them."""
    shown = draft.preview.steps if draft.preview is not None else ()
    lines = []
    for number, step in enumerate(draft.steps, 1):
        lines += hanging(f"{number:>3}  ", printable(step.line), width, "dim", "strong")
    for text in shown[:MAX_TRIED]:
        lines += hanging("     ", printable(text), width, "", "dim")
    if len(shown) > MAX_TRIED:
        lines.append(text_line(f"     and {len(shown) - MAX_TRIED:,} more, listed once it is proposed", "dim"))
    return lines


def _target_lines(target: DraftGoal, width: int, *, helps: bool) -> list[Line]:
    missed = ("◐ ", "warn", "partly") if helps else ("✗ ", "bad", "NOT reached")
    glyph, tone, said = ("✓ ", "ok", "reached") if target.met else missed
    lines = hanging(fit("fork", LABEL) + glyph, f"{said}: {printable(target.text)}", width, tone, tone)
    came = f"was {printable(target.before)}, then {printable(target.after)}"
    lines += hanging(fit("", LABEL), came, width)
    marks = {"success": "✓ ", "failure": "✗ ", "inconclusive": "? "}
    for check in target.checks[:MAX_CHECKS]:
        lines += hanging(fit("", LABEL) + marks[check.verdict], printable(check.found), width, "dim", "dim")
    return lines


def _bearing(preview: Proposal, width: int) -> list[Line]:
    """Whom it hits, what it costs, how it is taken back, and who must agree."""
    lines = hanging(fit("touches", LABEL), ", ".join(touched(preview.plan)), width, "dim")
    tier = f"{preview.tier}, {TIERS[preview.tier]}"
    lines += hanging(fit("tier", LABEL), tier, width, "dim", "warn" if preview.tier in ("T2", "T3") else "")
    for why in preview.why_tier:
        lines += hanging(fit("", LABEL), f"because {printable(why)}", width, "", "dim")
    lines += hanging(fit("rollback", LABEL), printable(preview.inverse), width, "dim")
    if preview.note:
        return [
            *lines,
            *hanging(fit("policy", LABEL), f"would deny it: {printable(preview.note)}", width, "dim", "bad"),
        ]
    votes = f"{counted(preview.needs, 'vote')} of {printable(preview.need)}"
    if not preview.needs:
        # Of what is not proposed yet it is known only who may not give them.
        votes = "your own is enough" if preview.self_approvable else "from others, once it is proposed"
    return [*lines, *hanging(fit("votes", LABEL), votes, width, "dim")]


def _tried_lines(draft: Draft, width: int) -> list[Line]:
    lines = []
    for each in draft.tried[:MAX_TRIED]:
        glyph, tone = ("✓ ", "ok") if each.met else ("✗ ", "dim")
        lines += hanging(glyph, printable(each.text), width, tone)
        lines += hanging("  ", printable(each.why), width, "", "dim")
    if len(draft.tried) > MAX_TRIED:
        lines.append(text_line(f"and {len(draft.tried) - MAX_TRIED:,} more", "dim"))
    return lines


def record_text(record: Record) -> str:
    """As in "drafts by rule of runbook x: 7 drafted, 5 proposed, 4 held, 1 rejected"."""
    of = printable(record.of)
    if not record.drafted:
        return f"{of}: none yet"
    counts = (
        (record.proposed, "proposed"), (record.approved, "approved"), (record.verified, "verified"),
        (record.failed, "failed or rolled back"), (record.rejected, "rejected"),
    )  # fmt: skip
    told = [f"{n:,} {word}" for n, word in counts if n] or ["none proposed yet"]
    return f"{of}: {', '.join([f'{record.drafted:,} drafted', *told])}"


def _runbook_section(draft: Draft, width: int) -> Section:
    """The file, framed as any text that is not ours to vouch for; a change as its difference."""
    book = draft.runbook
    assert book is not None
    lines = hanging("sha256  ", printable(book.sha256)[:16], width)
    for problem in book.problems:
        lines += hanging("✗ ", printable(problem), width, "bad", "bad")
    if not book.problems:
        lines.append(text_line("✓ no lint problems; not approved yet", "ok"))
    if book.diff:
        lines += [_diff_line(text, width) for text in book.diff.rstrip("\n").split("\n")[:MAX_LINES]]
    else:
        lines += framed(book.text.rstrip("\n"), width)
    return Section(f"Runbook {printable(book.id)}", tuple(lines), "diff" if book.diff else "new file")


def _diff_line(text: str, width: int) -> Line:
    tone = {"+": "ok", "-": "bad"}.get(text[:1], "dim")
    return Line(((GUTTER, "accent"), (cut(printable(text), width - len(GUTTER)), tone)))


# --- words


def why_sections(draft: Draft, width: int) -> list[Section]:
    """The words of the rules: templates of ours."""
    sections = []
    acts = draft.task != "act" or bool(draft.steps)  # else the summary, and what to find out, is above
    said = _said(draft) if acts and not draft.steps else ()  # of an act the head tells why, and what a fork showed
    rest = [one for one in draft.rationale if not any(each.why and each.why in one.text for each in draft.tried)]
    why = [line for sentence in (*said, *rest) for line in sentence_lines(sentence, width, "· ")]
    if why:
        heading = "Summary" if draft.task in ("handover", "incident") else "Why"
        sections.append(Section(heading, tuple(why), "from templates and facts"))
    for part in draft.parts:
        told = [line for sentence in part.sentences for line in sentence_lines(sentence, width, "· ")]
        sections.append(Section(printable(part.heading), tuple(told or [text_line("nothing", "dim")])))
    for title, sentences in (("Risks", draft.risks), ("Find out first", draft.questions if acts else ())):
        told = [line for sentence in sentences for line in sentence_lines(sentence, width, "· ")]
        if told:
            sections.append(Section(title, tuple(told)))
    return sections


def frame_section(draft: Draft, width: int) -> Section:
    """All that the model wrote: every line behind the gutter, unsupported sentences marked."""
    room = width - len(GUTTER)
    blocks: list[tuple[str, Sequence[Sentence]]] = [
        ("title", (Sentence(spans=(Piece(text=draft.title),)),) if draft.title else ()),
        ("", draft.summary),
        ("because", draft.rationale),
        *((part.heading, part.sentences) for part in draft.parts),
        ("risks", draft.risks),
        ("to find out", draft.questions),
    ]
    inside: list[Line] = []
    for label, sentences in blocks:
        if label and label != "title" and sentences:
            inside.append(text_line(cut(f"{printable(label)}:", room), "dim"))
        for sentence in sentences:
            inside += sentence_lines(sentence, room, "· " if label not in ("", "title") else "")
    lines = [Line(((GUTTER, "accent"), *line.spans)) for line in inside]
    unsupported = sum(bool(sentence.unsupported) for _, sentences in blocks for sentence in sentences)
    note = f"advisory only; {unsupported:,} unsupported" if unsupported else "advisory only"
    return Section(UNVERIFIED, tuple(lines or [text_line("empty answer", "dim")]), note)


def sentence_lines(sentence: Sentence, width: int, bullet: str = "") -> list[Line]:
    """A sentence in lines, each piece in its look, and at its end what it cites and why it is unsupported."""
    spans = [(UNSUPPORTED, "bad")] if sentence.unsupported else []
    spans += [(printable(piece.text), _PIECE_TONES[piece.mark]) for piece in sentence.spans]
    if sentence.cites:
        spans.append((f" [{cited(sentence.cites)}]", "dim"))
    if sentence.unsupported:
        spans.append((f" ({printable(sentence.unsupported)})", "dim"))
    room = max(8, width - len(bullet))
    return [
        Line(((bullet if not number else " " * len(bullet), "dim"), *line))
        for number, line in enumerate(flowed(spans, room))
    ]


def cited(ids: Sequence[str]) -> str:
    """As in "F1–F4 F9"."""
    runs: list[list[str]] = []
    for id_ in map(printable, ids):
        last = runs[-1][-1] if runs else ""
        follows = last[1:].isdecimal() and id_[1:].isdecimal() and int(id_[1:]) == int(last[1:]) + 1
        if follows and id_[:1] == last[:1]:
            runs[-1].append(id_)
        else:
            runs.append([id_])
    return " ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else " ".join(run) for run in runs)


def flowed(spans: Iterable[Span], width: int) -> list[tuple[Span, ...]]:
    """Lines of at most `width` cells, broken at spaces, each word in its own tones."""
    lines: list[list[Span]] = [[]]
    used = 0
    for word in _words(spans):
        size = sum(cell_len(text) for text, _ in word)
        if used and used + 1 + size > width:
            lines.append([])
            used = 0
        if used:
            # A space between two pieces of one look has that look too: so a line through them is whole.
            tone = word[0][1] if lines[-1][-1][1] == word[0][1] else ""
            lines[-1].append((" ", tone))
            used += 1
        for text, tone in word:
            while used + cell_len(text) > width:
                # What is longer than a line; a letter of two cells does not go into one that is left.
                head = cut(text, width - used)[:-1] or ("" if used else text[0])
                lines[-1].append((head, tone))
                lines.append([])
                text, used = text[len(head) :], 0
            lines[-1].append((text, tone))
            used += cell_len(text)
    return [tuple(line) for line in lines]


def _words(spans: Iterable[Span]) -> list[list[Span]]:
    """Each of one or more pieces with no space between them."""
    words: list[list[Span]] = []
    glued = False
    for text, tone in spans:
        for number, part in enumerate(text.split(" ")):
            glued = glued and not number
            if part:
                if glued:
                    words[-1].append((part, tone))
                else:
                    words.append([(part, tone)])
                glued = True
    return words


# --- what it rests on


def fact_section(drafts: Iterable[Draft | None], width: int) -> list[Section]:
    """The facts that any of the drafts cites."""
    found: dict[str, Fact] = {}
    for draft in drafts:
        for fact in draft.facts if draft is not None else ():
            found.setdefault(fact.id, fact)
    lines = [line for fact in found.values() for line in _fact_lines(fact, width)]
    note = f"{counted(len(found), 'fact')}, read by the engine"
    return [Section("Based on", tuple(lines), note)] if lines else []


def _fact_lines(fact: Fact, width: int) -> list[Line]:
    lines = hanging(fit(printable(fact.id), 5), printable(fact.text), width)
    form = _LINKS.get(fact.kind)
    if form is None or not fact.subject or printable(fact.subject) != fact.subject:
        return lines
    return [Line(lines[0].spans, form.format(quoted(fact.subject))), *lines[1:]]


def _call_section(draft: Draft, width: int) -> list[Section]:
    called = draft.called
    if called is None:
        return []
    lines = hanging("", called_text(called), width, "", "dim")
    if called.returned and called.returned != called.model:
        lines += hanging("served as  ", printable(called.returned), width, "dim", "dim")
    if called.prompt_sha256:
        sums = f"prompt {printable(called.prompt_sha256)[:12]}, answer {printable(called.response_sha256)[:12]}"
        lines += hanging("recorded  ", f"{sums} (SHA-256; texts are not kept)", width, "dim", "dim")
    return [Section("The call", tuple(lines))]


def called_text(called: Called) -> str:
    """As in "qwen at 127.0.0.1:8000, not encrypted, 3.2s, 1,204 tokens in and 310 out, $0.0021"."""
    about = "about " if called.estimated else ""
    facts = [
        f"{printable(called.model)} at {place(called.endpoint)}",
        "from the cache, nothing was sent" if called.cached else took(called.ms),
        f"{about}{called.tokens_in:,} tokens in and {called.tokens_out:,} out",
        small_money(called.cost_microusd),
    ]
    if called.attempts > 1:
        facts.append(f"{called.attempts} attempts")
    return ", ".join(facts)


def small_money(microusd: int) -> str:
    """Dollars, with as many decimals as a single call needs."""
    return usd(microusd) if microusd >= 1_000_000 or not microusd else f"${microusd / 1_000_000:.4f}"


# --- lists, and the model's standing


def list_line(run: DraftRun, now_ms: int, width: int) -> str:
    """A draft in one line of a list."""
    made = {"drafting": "…", "failed": "✗", "done": "✓"}[run.rule_state]
    if run.model_state != "off":
        made += {"thinking": " …", "done": " ✓", "rejected": " ✗", "cancelled": " ‖"}[run.model_state]
    asked = run.ask.question or run.ask.finding or TASKS[run.ask.task]
    ago = duration(max(0, now_ms - run.asked_ms))
    head = f"{fit(printable(run.id), 6)} {fit(ago, 8)} {fit(made, 4)} {fit(name_of(run.who) if run.who else '–', 12)} "
    proposed = "".join(f"  → {printable(proposal)}" for _, proposal in run.proposed)
    room = max(8, width - cell_len(head) - cell_len(proposed))
    return head + cut(printable(asked), room) + proposed


def standing_rows(standing: ModelStanding) -> list[tuple[str, str]]:
    """The model as `name  value`."""
    if not standing.configured:
        return [("model", "not configured: drafts are made by rule, and nothing leaves this machine")]
    rows = [
        ("model", printable(standing.model) or "no name set"),
        ("at", place(standing.endpoint) if standing.endpoint else "no usable endpoint"),
        ("egress", EGRESS.get(standing.egress, printable(standing.egress)) or "nothing leaves this machine"),
        ("now", printable(standing.problem) if standing.problem else "ready"),
        ("calls", f"{standing.calls_hour:,} in the last hour"),
        ("spent", f"{_of(standing.spent_hour_microusd, standing.budget_hour_microusd)} in the last hour, "
                  f"{_of(standing.spent_day_microusd, standing.budget_day_microusd)} in the last day"),
    ]  # fmt: skip
    if standing.circuit != "closed":
        words = {"open": "open: not called for a while", "half_open": "half open: the next call is a trial"}
        rows.insert(4, ("circuit", words[standing.circuit]))
    if standing.record is not None:
        rows.append(("record", record_text(standing.record)))
    return rows


def _of(spent: int, budget: int) -> str:
    return f"{small_money(spent)} of {small_money(budget)}" if budget else small_money(spent)
