"""What an act can hold at all: no floats, no free forms, no patterns, nothing that only looks like an id."""

from __future__ import annotations

from typing import Any

import msgspec
import msgspec.inspect as mi
import pytest
from effort import examples
from every_action import ACTS, MORE
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.errors import SpecError
from engine.model.specs import ID_PATTERN, MAX_QUANTITY, QueueSpec, ReservationSpec, Taint
from runbooks.actions import catalogue
from runbooks.actions.catalogue import CATALOG
from runbooks.plans.checks import Check
from runbooks.plans.typed_plan import (
    MAX_ENTRIES,
    MAX_TEXT,
    TEXTS,
    Act,
    Canary,
    MoneyChange,
    Note,
    QueueChange,
    Request,
    RequestChange,
    ScalingChange,
    check_bounds,
)

FIELDS = tuple(field for field in Act.__struct_fields__ if field not in ("action", "targets"))

ALL = (*ACTS, *MORE)


# -- types ------------------------------------------------------------------------------------------------------------


def leaves(of: Any, path: str = "") -> dict[str, mi.Type]:
    """Path -> type of everything that a value of the type is made of in the end."""
    found: dict[str, mi.Type] = {}
    seen: set[Any] = set()

    def walk(node: mi.Type, path: str) -> None:
        match node:
            case mi.StructType():
                assert node.forbid_unknown_fields, f"{path} takes fields that nobody knows"
                if node.cls in seen:
                    return
                seen.add(node.cls)
                for field in node.fields:
                    walk(field.type, f"{path}.{field.name}".lstrip("."))
                seen.discard(node.cls)
            case mi.UnionType():
                for part in node.types:
                    walk(part, path)
            case mi.VarTupleType() | mi.ListType():
                walk(node.item_type, f"{path}[]")
            case mi.TupleType():
                for part in node.item_types:
                    walk(part, f"{path}[]")
            case mi.DictType():
                walk(node.key_type, f"{path}{{key}}")
                walk(node.value_type, f"{path}{{}}")
            case _:
                found[f"{path}:{type(node).__name__}"] = node

    walk(mi.type_info(of), path)
    return found


@pytest.mark.parametrize("of", [Act, Request])
def test_there_are_no_floats_and_nothing_of_any_kind(of: type) -> None:
    allowed = (mi.IntType, mi.StrType, mi.BoolType, mi.LiteralType, mi.NoneType)
    wrong = {path for path, node in leaves(of).items() if not isinstance(node, allowed)}
    assert not wrong


def test_every_text_of_an_act_is_an_id_a_name_from_a_list_or_a_named_text_of_bounded_length() -> None:
    """Whatever field is added to an act later: a text in it that is no id is refused, unless it is named in TEXTS."""
    texts = {path.removesuffix(":StrType") for path, node in leaves(Act).items() if isinstance(node, mi.StrType)}
    assert TEXTS.keys() <= texts
    assert {text.partition("[")[0].partition("{")[0] for text in texts} >= {"targets", "to", "note.text", "moves"}


def test_a_field_of_free_form_is_walked_too() -> None:
    act = Act(action="set_scaling", targets=("p",), scaling=ScalingChange(most=1, settings={"x": ("a;b",)}))
    with pytest.raises(SpecError, match="a;b"):
        check_bounds(act)


# -- bounds -----------------------------------------------------------------------------------------------------------

HOSTILE = [
    "", "*", ".*", "n*", "n?", "[a-z]", "{a,b}", "a,b", "a b", " n1", "n1 ", "n1\n", "n1\0", "$(curl x)", "`id`",
    "; rm -rf", "${jndi:ldap://x}", "{{ self }}", "http://x", "../n1", "-n1", "n1|n2", "n\u0430", "n1\u200b",
    "n1\u202e", "\uff4e1", "n\u0301", "\ud800", "n1\x1b[2J", "x" * 129, "a" * 10**6,
]  # fmt: skip


@pytest.mark.parametrize("act", ALL, ids=lambda act: f"{act.action}-{act.targets[0]}")
def test_no_target_is_a_pattern_an_expression_or_a_lookalike(act: Act) -> None:
    for text in HOSTILE:
        for targets in ((text,), (*act.targets, text)):
            with pytest.raises(SpecError) as caught:
                catalogue.check(msgspec.structs.replace(act, targets=targets))
            assert str(caught.value).isprintable()


def test_no_other_text_of_an_act_is_one_either() -> None:
    """Each text anywhere in an act, one after the other, replaced by something hostile."""
    for act in ALL:
        builtins = msgspec.to_builtins(act)
        for path in paths(builtins):
            where = ".".join(str(part) for part in path)
            if where in TEXTS or path[0] == "action":
                continue
            for text in ("n*", "a;b", "n\u0430", "x" * 200):
                try:
                    changed = msgspec.convert(replaced(builtins, path, text), Act)
                except msgspec.ValidationError:
                    continue
                with pytest.raises(SpecError):
                    catalogue.check(changed)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every text that is not empty."""
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in paths(inner, (*path, key))]
    if isinstance(value, list | tuple):
        return [found for i, inner in enumerate(value) for found in paths(inner, (*path, i))]
    return [path] if isinstance(value, str) and value else []


def replaced(value: Any, path: tuple[Any, ...], text: str) -> Any:
    if not path:
        return text
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], text)
    return copy


@pytest.mark.parametrize(
    "text", ["", "  ", "a\nb", "a\x1b[2J", "x" * (MAX_TEXT + 1), "a\u202eb", "a\u200bb"], ids=ascii
)
def test_words_for_people_are_one_printable_line(text: str) -> None:
    with pytest.raises(SpecError, match="text"):
        catalogue.check(Act(action="notify", targets=("ops",), note=Note(text=text)))


def test_what_looks_like_a_template_is_only_words() -> None:
    for text in ("{{ self.__init__ }}", "${jndi:ldap://x}", "$(curl x)", "[@click=app.quit]x[/]", "see http://x/1"):
        catalogue.check(Act(action="notify", targets=("ops",), note=Note(text=text)))


@pytest.mark.parametrize(
    "act",
    [
        Act(action="scale_pool", targets=("p",), nodes=-1),
        Act(action="scale_pool", targets=("p",), nodes=10**7),
        Act(action="set_price", targets=("p",), money=MoneyChange(price_microusd_hour=2**60)),
        Act(action="resize", targets=("w",), resize=RequestChange(request={"cpu_milli": -(2**60)})),
        Act(action="set_targets", targets=("p",), scaling=ScalingChange(targets=((0, MAX_QUANTITY + 1),))),
        Act(action="set_targets", targets=("p",), scaling=ScalingChange(targets=((0, 1),) * (MAX_ENTRIES + 1))),
        Act(action="canary", targets=("q",), canary=Canary(order="fair", window_ms=59_999)),
    ],
)  # fmt: skip
def test_numbers_and_lists_are_of_possible_size(act: Act) -> None:
    with pytest.raises(SpecError):
        catalogue.check(act)


NO_ACTS = [
    '{"action":"drain","targets":["n1"],"shell":"x"}',
    '{"action":"drain","targets":"n1"}',
    '{"action":"scale_pool","targets":["p"],"nodes":1.5}',
    '{"action":"scale_pool","targets":["p"],"nodes":1.0}',
    '{"action":"scale_pool","targets":["p"],"nodes":"1"}',
    '{"action":"scale_pool","targets":["p"],"nodes":1e400}',
    '{"action":"scale_pool","targets":["p"],"nodes":NaN}',
    '{"action":"kubectl","targets":["n1"]}',
    '{"action":"drain","targets":["n1"],"tier":"T0"}',
    '{"action":"drain","targets":{"all":true}}',
    '{"action":"drain"}',
    '{"action":"drain","targets":[null]}',
    '{"action":"notify","targets":["ops"],"note":{"text":"x","url":"http://x"}}',
]


@pytest.mark.parametrize("text", NO_ACTS)
def test_what_is_no_act_is_no_act(text: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(text, type=Act)


# -- parameters -------------------------------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {
    "queue": QueueChange(was=QueueSpec(name="q"), to=QueueSpec(name="q", weight=2)),
    "reservation": ReservationSpec(name="r", nodes=("n",), start_ms=0, end_ms=1),
    "moves": next(act.moves for act in ACTS if act.moves),
    "resize": RequestChange(request={"cpu_milli": 1}),
    "money": MoneyChange(price_microusd_hour=1),
    "scaling": ScalingChange(most=1),
    "to": "other",
    "nodes": 0,
    "canary": Canary(order="fair", window_ms=3_600_000),
    "note": Note(text="words"),
    "taint": Taint(key="repair"),
}  # fmt: skip


def test_every_parameter_is_known_to_this_test() -> None:
    assert set(GIVEN) == set(FIELDS)
    assert {field for row in CATALOG.values() for field in row.fields} == set(FIELDS)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.action)
def test_exactly_the_parameters_of_its_action_are_given(act: Act) -> None:
    catalogue.check(act)
    row = CATALOG[act.action]
    for field in FIELDS:
        if field in row.fields:
            nothing = () if field == "moves" else "" if field == "to" else None
            with pytest.raises(SpecError, match="is missing"):
                catalogue.check(msgspec.structs.replace(act, **{field: nothing}))
        else:
            with pytest.raises(SpecError, match=f"{field}: has no meaning for {act.action}"):
                catalogue.check(msgspec.structs.replace(act, **{field: GIVEN[field]}))


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.action)
def test_targets_are_as_many_as_its_action_takes(act: Act) -> None:
    row = CATALOG[act.action]
    with pytest.raises(SpecError, match="targets: is empty"):
        catalogue.check(msgspec.structs.replace(act, targets=()))
    many = tuple(f"x{i}" for i in range(row.most + 1))
    with pytest.raises(SpecError, match="targets"):
        catalogue.check(msgspec.structs.replace(act, targets=many))


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.sampled_from(ALL), st.text(max_size=40))
def test_whatever_is_given_as_a_target_an_error_is_a_named_one(act: Act, text: str) -> None:
    changed = msgspec.structs.replace(act, targets=(text,))
    if act.action in ("hold", "cordon") and ID_PATTERN.fullmatch(text):
        catalogue.check(changed)
    elif not ID_PATTERN.fullmatch(text):
        with pytest.raises(SpecError) as caught:
            catalogue.check(changed)
        assert str(caught.value).isprintable()


def test_checks_hold_no_free_form_either() -> None:
    allowed = (mi.IntType, mi.StrType, mi.BoolType, mi.LiteralType, mi.NoneType)
    assert all(isinstance(node, allowed) for node in leaves(Check).values())
