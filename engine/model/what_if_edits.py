"""The edits of a what-if: a closed list of typed changes, and their form in text.

    add 4 nodes to h100 [rack=r9]      remove NODES         resize h100 120
    fail NODES [for 2h]                shock spot 30% [for 1h]
    drain NODES                        cordon NODES         uncordon NODES
    quota research gpu=64 memory=4TiB [evict]               weight research 3
    hold-queue research                open-queue research
    policy conservative                priority JOB high
    submit FILE                        preempt JOB          cancel JOB
    migrate JOB to POOL|NODE,NODE

NODES is a list of ids, or one place: `rack=r3`, `block=b1`, `zone=z2`, `region=eu`, `nvlink=d4`, `pool=h100`. Several
jobs or nodes are separated by commas. Any edit may end in `at +2h`: it happens that long after now.

Types and text only, so that a console imports them without loading the engine. `engine.admission.what_if_edits` checks
and applies them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NoReturn, get_args

import msgspec

from engine.model.errors import SpecError, misfit, nearest
from engine.model.quantities import cpu_milli, duration_ms, gpu_milli, memory_mib, shortlist, spelt
from engine.model.specs import Policy, Spec, WorkloadSpec

MAX_EDITS = 100
Place = Literal["pool", "region", "zone", "block", "rack", "nvlink"]
PLACES: tuple[Place, ...] = get_args(Place)
POLICIES: tuple[Policy, ...] = get_args(Policy)


class EditsError(SpecError):
    """Edits that name what does not exist, contradict each other or are malformed: every problem of all of them."""

    def __init__(self, problems: Sequence[str], remedies: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        self.remedies = tuple(remedies)
        told = " ".join(dict.fromkeys(remedy for remedy in remedies if remedy))
        super().__init__("", "; ".join(self.problems), told or "Correct it and try again; nothing was changed")


class Nodes(Spec, frozen=True, kw_only=True):
    """A choice of nodes: those named, or all of one place or pool. Removed nodes are never among them."""

    ids: tuple[str, ...] = ()
    place: Place | None = None
    name: str = ""
    """Name of the place."""


class Edit(Spec, frozen=True, kw_only=True, tag_field="edit"):
    """Base of all edits."""

    at_ms: int = 0
    """Milliseconds after the start of the what-if at which it happens."""


class AddNodesEdit(Edit, frozen=True, kw_only=True, tag="add_nodes"):
    """New nodes of a pool, ready at once. Their ids are `<pool>-new-<n>`. Places not named are unknown."""

    pool: str
    count: int
    region: str = ""
    zone: str = ""
    block: str = ""
    rack: str = ""
    nvlink: str = ""


class RemoveNodesEdit(Edit, frozen=True, kw_only=True, tag="remove_nodes"):
    """Nodes leave the cell for good; running work goes back to its queue first, as in a drain."""

    nodes: Nodes


class ResizePoolEdit(Edit, frozen=True, kw_only=True, tag="resize_pool"):
    """The pool has so many nodes: new ones, or those go that have least work."""

    pool: str
    count: int


class FailNodesEdit(Edit, frozen=True, kw_only=True, tag="fail_nodes"):
    """Nodes are lost at once, with all work since the last checkpoint."""

    nodes: Nodes
    for_ms: int = 0
    """Time until they are back; 0: never."""


class ShockEdit(Edit, frozen=True, kw_only=True, tag="shock"):
    """A share of the nodes fails at once. Which ones is drawn anew for every seed."""

    pool: str
    """A pool, or `spot` for every pool of spot nodes."""
    permille: int
    for_ms: int = 0


class DrainEdit(Edit, frozen=True, kw_only=True, tag="drain"):
    nodes: Nodes


class CordonEdit(Edit, frozen=True, kw_only=True, tag="cordon"):
    nodes: Nodes


class UncordonEdit(Edit, frozen=True, kw_only=True, tag="uncordon"):
    nodes: Nodes


class ChangeQuotaEdit(Edit, frozen=True, kw_only=True, tag="quota"):
    """Nominal quotas of a queue; a resource not named keeps its own."""

    queue: str
    nominal: dict[str, int]
    """Resource name -> quantity, as in QueueSpec."""
    evict: bool = False
    """Evict work above the new quota; otherwise it runs out."""


class SetWeightEdit(Edit, frozen=True, kw_only=True, tag="weight"):
    queue: str
    weight: int


class HoldQueueEdit(Edit, frozen=True, kw_only=True, tag="hold_queue"):
    queue: str


class OpenQueueEdit(Edit, frozen=True, kw_only=True, tag="open_queue"):
    queue: str


class SetPolicyEdit(Edit, frozen=True, kw_only=True, tag="policy"):
    policy: Policy


class SetPriorityEdit(Edit, frozen=True, kw_only=True, tag="priority"):
    ids: tuple[str, ...]
    priority_class: str


class SubmitEdit(Edit, frozen=True, kw_only=True, tag="submit"):
    workloads: tuple[WorkloadSpec, ...]


class PreemptEdit(Edit, frozen=True, kw_only=True, tag="preempt"):
    """Stop running workloads and queue them again at their age; work is kept to the last checkpoint."""

    ids: tuple[str, ...]


class CancelEdit(Edit, frozen=True, kw_only=True, tag="cancel"):
    ids: tuple[str, ...]


class MigrateEdit(Edit, frozen=True, kw_only=True, tag="migrate"):
    """Move running workloads to a pool or to named nodes: all of them, or none."""

    ids: tuple[str, ...]
    pool: str = ""
    nodes: tuple[str, ...] = ()


AnyEdit = (
    AddNodesEdit
    | RemoveNodesEdit
    | ResizePoolEdit
    | FailNodesEdit
    | ShockEdit
    | DrainEdit
    | CordonEdit
    | UncordonEdit
    | ChangeQuotaEdit
    | SetWeightEdit
    | HoldQueueEdit
    | OpenQueueEdit
    | SetPolicyEdit
    | SetPriorityEdit
    | SubmitEdit
    | PreemptEdit
    | CancelEdit
    | MigrateEdit
)


class EditForm(msgspec.Struct, frozen=True):
    """One kind of edit, for menus and help."""

    word: str
    usage: str
    help: str


FORMS = (
    EditForm("add", "add N nodes to POOL [rack=RACK block=BLOCK zone=ZONE]", "new nodes, ready at once"),
    EditForm("remove", "remove NODES", "nodes leave for good; their work is requeued"),
    EditForm("resize", "resize POOL N", "the pool has so many nodes"),
    EditForm("fail", "fail NODES [for DURATION]", "nodes are lost with the work on them"),
    EditForm("shock", "shock POOL|spot PERCENT% [for DURATION]", "a share of the nodes fails, drawn by seed"),
    EditForm("drain", "drain NODES", "no new work; what runs is moved away"),
    EditForm("cordon", "cordon NODES", "no new work; what runs goes on"),
    EditForm("uncordon", "uncordon NODES", "take new work again"),
    EditForm("quota", "quota QUEUE gpu=N cpu=N memory=SIZE [evict]", "nominal quota; evict requeues what is above it"),
    EditForm("weight", "weight QUEUE N", "weight in fair sharing"),
    EditForm("hold-queue", "hold-queue QUEUE", "start nothing more from it"),
    EditForm("open-queue", "open-queue QUEUE", "start from it again"),
    EditForm("policy", f"policy {'|'.join(POLICIES)}", "scheduling policy of the cell"),
    EditForm("priority", "priority JOB[,JOB] CLASS", "another priority class"),
    EditForm("submit", "submit FILE", "more workloads"),
    EditForm("preempt", "preempt JOB[,JOB]", "stop and queue again"),
    EditForm("cancel", "cancel JOB[,JOB]", "end for good"),
    EditForm("migrate", "migrate JOB[,JOB] to POOL|NODE[,NODE]", "move running workloads, all or none"),
)
"""Every edit, in the order menus show them. Each may end in `at +DURATION`."""
_FORM_OF = {form.word: form for form in FORMS}
_AS_ACTIONS = {"set-quota": "quota", "set-priority": "priority"}
"""Actions whose effect an edit tries under a shorter word."""

Read = Callable[[str], tuple[WorkloadSpec, ...]]
"""Workloads of the file of that name. Raises MusterError."""
_AT = re.compile(r"\s+at\s+\+\s*(\S+)\s*$")
_FOR = re.compile(r"\s+for\s+(\S+)\s*$")


def parse(text: str, read: Read | None = None) -> AnyEdit:
    """The edit of one line of text. `read` fetches the workloads of `submit FILE`; without it only JSON is taken there.

    Raises SpecError naming the part that is wrong and what is expected there, with the nearest word.
    """
    word, _, rest = text.strip().partition(" ")
    word = _AS_ACTIONS.get(word, word)
    form = _FORM_OF.get(word)
    if form is None:
        near = nearest(word, _FORM_OF)
        _fail(
            text,
            f"there is no edit '{_shown(word)}'" if word else "is empty",
            f"Did you mean: {_FORM_OF[near].usage}?" if near else _words(),
        )
    at_ms = 0
    timed = _AT.search(" " + rest)
    if timed:
        at_ms = _duration(text, timed[1])
        rest = (" " + rest)[: timed.start()].strip()
    reader = _Reader(text, form, rest.strip(), at_ms, read)
    edit: AnyEdit = _PARSERS[word](reader)
    return edit


class _Reader:
    """The words after the first one of an edit."""

    def __init__(self, text: str, form: EditForm, rest: str, at_ms: int, read: Read | None) -> None:
        self.text = text
        self.form = form
        self.at_ms = at_ms
        self.read = read
        self.for_ms = 0
        # What stands first in a shock is a pool, also one that is named "for".
        after = rest if form.word == "shock" else f" {rest}"
        lasting = _FOR.search(after) if "[for " in form.usage else None
        if lasting:
            self.for_ms = _duration(text, lasting[1])
            rest = after[: lasting.start()].strip()
        self.rest = rest
        self.words = rest.split()

    def fail(self, problem: str) -> NoReturn:
        _fail(self.text, problem, f"Write: {self.form.usage}")

    def exactly(self, *names: str) -> list[str]:
        """The words, when there are as many as names."""
        if len(self.words) < len(names):
            self.fail(f"{names[len(self.words)]} is missing")
        if len(self.words) > len(names):
            self.fail(f"'{_shown(self.words[len(names)])}' is one word too many")
        return self.words

    def whole(self, word: str, what: str) -> int:
        if not word.isascii() or not word.isdigit() or len(word) > 12:
            self.fail(f"'{_shown(word)}' is not a whole number of {what}")
        return int(word)

    def ids(self, what: str) -> tuple[str, ...]:
        """All remaining words, separated by commas or blanks."""
        found = tuple(part for word in self.words for part in word.split(",") if part)
        if not found:
            self.fail(f"{what} is missing")
        return found

    def nodes(self) -> Nodes:
        if len(self.words) == 1 and "=" in self.words[0]:
            place, _, name = self.words[0].partition("=")
            if place not in PLACES:
                self.fail(f"'{_shown(place)}' is not a kind of place; {_meant(place, PLACES)}")
            if not name:
                self.fail(f"the name of the {place} is missing")
            return Nodes(place=place, name=name)
        return Nodes(ids=self.ids("NODES"))

    def pairs(self, words: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for word in words:
            key, equals, value = word.partition("=")
            if not equals or not value:
                self.fail(f"'{_shown(word)}' is not NAME=VALUE")
            if key in found:
                self.fail(f"'{key}' is given twice")
            found[key] = value
        return found


def _add(r: _Reader) -> AddNodesEdit:
    if len(r.words) < 4 or r.words[1] not in ("node", "nodes") or r.words[2] != "to":
        r.fail("is not complete")
    places = r.pairs(r.words[4:])
    unknown = [key for key in places if key not in PLACES or key == "pool"]
    if unknown:
        r.fail(
            f"'{_shown(unknown[0])}' is not a kind of place; there are {', '.join(p for p in PLACES if p != 'pool')}"
        )
    return AddNodesEdit(pool=r.words[3], count=r.whole(r.words[0], "nodes"), at_ms=r.at_ms, **places)


def _resize(r: _Reader) -> ResizePoolEdit:
    if len(r.words) > 2:
        # Also: resize h100 to 120 nodes.
        r.words = [r.words[0], *(word for word in r.words[1:] if word not in ("to", "nodes"))]
    pool, count = r.exactly("POOL", "N")
    return ResizePoolEdit(pool=pool, count=r.whole(count, "nodes"), at_ms=r.at_ms)


def _shock(r: _Reader) -> ShockEdit:
    pool, share = r.exactly("POOL or spot", "PERCENT%")
    number = share.removesuffix("%")
    if not share.endswith("%") or not re.fullmatch(r"\d{1,3}(\.\d)?", number) or not 0 < float(number) <= 100:
        r.fail(f"'{_shown(share)}' is not a share such as 30%")
    return ShockEdit(pool=pool, permille=round(float(number) * 10), for_ms=r.for_ms, at_ms=r.at_ms)


def _quota(r: _Reader) -> ChangeQuotaEdit:
    evict = bool(r.words) and r.words[-1] == "evict"
    words = r.words[:-1] if evict else r.words
    if len(words) < 2:
        r.fail("QUEUE or quantities are missing")
    nominal: dict[str, int] = {}
    for key, value in r.pairs(words[1:]).items():
        if key not in _QUANTITIES:
            r.fail(f"'{_shown(key)}' is not a resource; {_meant(key, _QUANTITIES)}")
        name, reading = _QUANTITIES[key]
        try:
            nominal[name] = reading(value)
        except ValueError as error:
            r.fail(f"{key}={_shown(value)}: {error}")
    return ChangeQuotaEdit(queue=words[0], nominal=nominal, evict=evict, at_ms=r.at_ms)


def _weight(r: _Reader) -> SetWeightEdit:
    queue, weight = r.exactly("QUEUE", "N")
    return SetWeightEdit(queue=queue, weight=r.whole(weight, "weight"), at_ms=r.at_ms)


def _policy(r: _Reader) -> SetPolicyEdit:
    (name,) = r.exactly("POLICY")
    for policy in POLICIES:
        if name == policy:
            return SetPolicyEdit(policy=policy, at_ms=r.at_ms)
    r.fail(f"'{_shown(name)}' is not a policy; {_meant(name, POLICIES)}")


def _meant(word: str, known: Collection[str]) -> str:
    near = nearest(word, known)
    return f"did you mean {near}?" if near else f"there are {', '.join(known)}"


def _priority(r: _Reader) -> SetPriorityEdit:
    if len(r.words) < 2:
        r.fail("JOB or CLASS is missing")
    ids = tuple(part for word in r.words[:-1] for part in word.split(",") if part)
    return SetPriorityEdit(ids=ids, priority_class=r.words[-1], at_ms=r.at_ms)


def _submit(r: _Reader) -> SubmitEdit:
    if not r.rest:
        r.fail("FILE is missing")
    if r.rest[0] in "{[":
        try:
            given = msgspec.json.decode(r.rest, type=WorkloadSpec | tuple[WorkloadSpec, ...])
        except msgspec.ValidationError as error:
            wrong = misfit(str(error))
            r.fail(f"the workload's {wrong.path.lstrip('.')} {wrong.problem}" if wrong.path else wrong.problem)
        except (msgspec.DecodeError, UnicodeDecodeError):
            r.fail("the workload is not JSON")
        return SubmitEdit(workloads=given if isinstance(given, tuple) else (given,), at_ms=r.at_ms)
    if r.read is None:
        r.fail("files are not read here; give the workload as JSON")
    return SubmitEdit(workloads=r.read(r.rest), at_ms=r.at_ms)


def _migrate(r: _Reader) -> MigrateEdit:
    if "to" not in r.words[1:-1]:
        r.fail("JOB, 'to' or the place to move to is missing")
    at = r.words.index("to", 1)
    ids, places = (tuple(p for w in words for p in w.split(",") if p) for words in (r.words[:at], r.words[at + 1 :]))
    if len(places) == 1 and places[0].startswith("pool="):
        return MigrateEdit(ids=ids, pool=places[0].removeprefix("pool="), at_ms=r.at_ms)
    # One name may be a pool or a node; who knows the cell decides.
    return MigrateEdit(ids=ids, nodes=places, at_ms=r.at_ms)


_QUANTITIES: dict[str, tuple[str, Callable[[str], int]]] = {
    "cpu": ("cpu_milli", cpu_milli),
    "memory": ("memory_mib", memory_mib),
    "gpu": ("gpu_milli", gpu_milli),
    "disk": ("disk_mib", memory_mib),
}
_PARSERS: dict[str, Callable[[_Reader], AnyEdit]] = {
    "add": _add,
    "remove": lambda r: RemoveNodesEdit(nodes=r.nodes(), at_ms=r.at_ms),
    "resize": _resize,
    "fail": lambda r: FailNodesEdit(nodes=r.nodes(), for_ms=r.for_ms, at_ms=r.at_ms),
    "shock": _shock,
    "drain": lambda r: DrainEdit(nodes=r.nodes(), at_ms=r.at_ms),
    "cordon": lambda r: CordonEdit(nodes=r.nodes(), at_ms=r.at_ms),
    "uncordon": lambda r: UncordonEdit(nodes=r.nodes(), at_ms=r.at_ms),
    "quota": _quota,
    "weight": _weight,
    "hold-queue": lambda r: HoldQueueEdit(queue=r.exactly("QUEUE")[0], at_ms=r.at_ms),
    "open-queue": lambda r: OpenQueueEdit(queue=r.exactly("QUEUE")[0], at_ms=r.at_ms),
    "policy": _policy,
    "priority": _priority,
    "submit": _submit,
    "preempt": lambda r: PreemptEdit(ids=r.ids("JOB"), at_ms=r.at_ms),
    "cancel": lambda r: CancelEdit(ids=r.ids("JOB"), at_ms=r.at_ms),
    "migrate": _migrate,
}


def parse_all(texts: Sequence[str], read: Read | None = None) -> tuple[AnyEdit, ...]:
    """The edits of several lines. Raises EditsError with the problem of every line that is wrong."""
    edits: list[AnyEdit] = []
    problems: list[str] = []
    remedies: list[str] = []
    for i, text in enumerate(texts):
        try:
            edits.append(parse(text, read))
        except SpecError as error:
            problems.append(f"edit {i + 1} {error.problem}")
            remedies.append(error.remedy)
    if problems:
        raise EditsError(problems, remedies)
    return tuple(edits)


# -- back to text -----------------------------------------------------------------------------------------------------


def written(edit: AnyEdit) -> str:
    """The edit in the form that `parse` reads; of a submission, what it is."""
    body = _WRITERS[type(edit)](edit)
    return f"{body} at +{spelt(edit.at_ms)}" if edit.at_ms else body


def _nodes_text(nodes: Nodes) -> str:
    return ",".join(nodes.ids) if nodes.place is None else f"{nodes.place}={nodes.name}"


def _lasting(for_ms: int) -> str:
    return f" for {spelt(for_ms)}" if for_ms else ""


def _add_text(e: AddNodesEdit) -> str:
    places = [f"{level}={getattr(e, level)}" for level in PLACES if level != "pool" and getattr(e, level)]
    return " ".join([f"add {e.count} nodes to {e.pool}", *places])


def _quota_text(e: ChangeQuotaEdit) -> str:
    parts = []
    for key, (name, _) in _QUANTITIES.items():
        if name in e.nominal:
            quantity = e.nominal[name]
            parts.append(f"{key}={quantity}MiB" if name.endswith("_mib") else f"{key}={_thousandths(quantity)}")
    return " ".join([f"quota {e.queue}", *parts, *(["evict"] if e.evict else [])])


def _thousandths(milli: int) -> str:
    whole, rest = divmod(milli, 1000)
    return f"{whole}.{rest:03}".rstrip("0").rstrip(".")


def _submit_text(e: SubmitEdit) -> str:
    return f"submit {shortlist([spec.id for spec in e.workloads], 3)}"


_WRITERS: dict[type, Callable[..., str]] = {
    AddNodesEdit: _add_text,
    RemoveNodesEdit: lambda e: f"remove {_nodes_text(e.nodes)}",
    ResizePoolEdit: lambda e: f"resize {e.pool} {e.count}",
    FailNodesEdit: lambda e: f"fail {_nodes_text(e.nodes)}{_lasting(e.for_ms)}",
    ShockEdit: lambda e: f"shock {e.pool} {e.permille / 10:g}%{_lasting(e.for_ms)}",
    DrainEdit: lambda e: f"drain {_nodes_text(e.nodes)}",
    CordonEdit: lambda e: f"cordon {_nodes_text(e.nodes)}",
    UncordonEdit: lambda e: f"uncordon {_nodes_text(e.nodes)}",
    ChangeQuotaEdit: _quota_text,
    SetWeightEdit: lambda e: f"weight {e.queue} {e.weight}",
    HoldQueueEdit: lambda e: f"hold-queue {e.queue}",
    OpenQueueEdit: lambda e: f"open-queue {e.queue}",
    SetPolicyEdit: lambda e: f"policy {e.policy}",
    SetPriorityEdit: lambda e: f"priority {','.join(e.ids)} {e.priority_class}",
    SubmitEdit: _submit_text,
    PreemptEdit: lambda e: f"preempt {','.join(e.ids)}",
    CancelEdit: lambda e: f"cancel {','.join(e.ids)}",
    MigrateEdit: lambda e: f"migrate {','.join(e.ids)} to " + (f"pool={e.pool}" if e.pool else ",".join(e.nodes)),
}


def _duration(text: str, word: str) -> int:
    try:
        return duration_ms(word)
    except ValueError as error:
        _fail(text, f"'{_shown(word)}': {error}", "")


def _words() -> str:
    return f"Edits: {', '.join(_FORM_OF)}"


def _shown(word: str) -> str:
    return word[:40].encode("unicode_escape").decode()


def _fail(text: str, problem: str, remedy: str) -> NoReturn:
    raise SpecError(f"'{_shown(text.strip())}'", problem, remedy)
