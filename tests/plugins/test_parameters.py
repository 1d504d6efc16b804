"""Config keys are parameters of functions and classes: known, of the right type and within their bounds."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import Field

from homophily.errors import UserError
from homophily.plugins.parameters import (
    accepted,
    checked,
    documented,
    keys_of,
    must_take,
    parsed,
    refuse_unknown,
    required,
    taken,
)


def shift(
    peers: int, seed: int, *, angles: list[float], scale: Annotated[float, Field(gt=0)] = 1.0, by: str = "row"
) -> None:
    """Has parameters that the program passes (peers, seed) and keys of the config."""


@dataclass(frozen=True)
class Sized:
    """A class whose fields are its keys."""

    k: Annotated[int, Field(ge=1)] = 5
    on: Literal["own", "peer"] = "own"
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    deep: tuple[int, ...] = ()
    flag: bool = False


def anything(first: int, **keys: Any) -> None: ...


def several(first: int, *others: int, last: int = 0) -> None: ...


def test_accepted_returns_all_parameters_except_reserved_ones() -> None:
    assert accepted(shift, ("peers", "seed")) == ["angles", "scale", "by"]
    assert accepted(Sized) == ["k", "on", "share", "deep", "flag"]
    assert accepted(several) == ["first", "last"]
    assert accepted(lambda: None) == []


def test_a_function_with_keyword_arguments_accepts_any_key() -> None:
    assert accepted(anything) is None
    assert checked("model", "model", anything, {"first": 1, "more": "x"}) == {"first": 1, "more": "x"}


def test_required_returns_the_parameters_without_a_default() -> None:
    assert required(shift) == ["peers", "seed", "angles"]
    assert required(Sized) == []
    assert required(several) == ["first"]
    assert required(anything) == ["first"]


def test_documented_are_type_bounds_default_and_description() -> None:
    def item(
        seed: int, k: Annotated[int, Field(ge=1, description="partners per round")] = 4, on: str = "own"
    ) -> None: ...

    found = documented(item, ("seed",))
    assert list(found) == ["k", "on"]
    assert found["k"] | {"title": ""} == {
        "type": "integer",
        "minimum": 1,
        "default": 4,
        "description": "partners per round",
        "title": "",
    }
    assert "description" not in found["on"]
    assert documented(anything) == {}


def test_taken_keeps_only_arguments_that_the_function_has() -> None:
    assert taken(shift, {"peers": 3, "rounds": 9, "by": "x"}) == {"peers": 3, "by": "x"}


def test_checked_fills_in_the_defaults() -> None:
    keys = {"angles": [0, 90], "scale": 2}
    assert checked("data", "the shift", shift, keys, ("peers", "seed")) == {
        "angles": [0.0, 90.0],
        "scale": 2.0,
        "by": "row",
    }
    found = checked("method", "method", Sized, {"deep": [1, 2]})
    assert found == {"k": 5, "on": "own", "share": 0.5, "deep": (1, 2), "flag": False}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"k": 0}, "method.k = 0: must be at least 1"),
        ({"k": 1.5}, "method.k = 1.5: must be a whole number"),
        ({"k": "3"}, 'method.k = "3": must be a whole number'),
        ({"k": True}, "method.k = true: must be a whole number"),
        ({"on": "both"}, "method.on = \"both\": must be 'own' or 'peer'"),
        ({"share": 1.25}, "method.share = 1.25: must be at most 1.0"),
        ({"share": -0.5}, "method.share = -0.5: must be at least 0.0"),
        ({"share": "much"}, 'method.share = "much": must be a number'),
        ({"deep": 3}, "method.deep = 3: must be a list"),
        ({"deep": [1, "x"]}, 'method.deep.1 = "x": must be a whole number'),
        ({"flag": 1}, "method.flag = 1: must be true or false"),
        ({"kk": 1}, "unknown key method.kk (did you mean k?): the keys of method 'sized' are k, on, share, deep, flag"),
        ({"k": object()}, "method.k: must be a number, string, list or table, not object"),
        (
            {"k": deepcopy},
            "method.k: must be a number, string, list or table, not function; a class or function is named as a "
            "string, here 'copy:deepcopy'",
        ),
        ({"deep": [1, {2}]}, "method.deep.1: must be a number, string, list or table, not set"),
    ],
)
def test_an_invalid_value_raises_an_error_that_names_the_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        checked("method", "method 'sized'", Sized, keys)
    assert str(refused.value) == message


def test_a_key_without_a_default_must_be_given() -> None:
    with pytest.raises(UserError, match=r"^data\.angles is missing and has no default$"):
        checked("data", "the shift", shift, {}, ("peers", "seed"))


def test_a_parameter_without_an_annotation_takes_anything() -> None:
    def loose(x, model_config="mine", copy=3):  # type: ignore[no-untyped-def]  # names that pydantic has itself
        return x

    assert checked("t", "it", loose, {"x": [1, {"a": None}]}) == {
        "x": [1, {"a": None}],
        "model_config": "mine",
        "copy": 3,
    }


def test_an_annotation_that_only_a_type_checker_resolves_is_not_checked() -> None:
    def late(x: Unheard = 1) -> None:  # type: ignore[name-defined]  # noqa: F821
        ...

    assert checked("t", "it", late, {"x": "anything"}) == {"x": "anything"}


def test_must_take_refuses_what_cannot_be_called() -> None:
    must_take(several, ["a", "b", "c"], "merge")
    must_take(shift, ["peers", "seed"], "shift", ["angles"])
    with pytest.raises(UserError, match=r"^metric must be a function of \(pairs\), not 3$"):
        must_take(3, ["pairs"], "metric")
    with pytest.raises(UserError, match=r"^metric must take \(pairs\), not \(\)$"):
        must_take(lambda: 0.0, ["pairs"], "metric")
    with pytest.raises(
        UserError, match=r"^shift must take \(peers, seed, axis\), not \(peers, seed, \*, angles, scale=1"
    ):
        must_take(shift, ["peers", "seed"], "shift", ["axis"])


def test_a_function_without_a_signature_is_refused() -> None:
    with pytest.raises(UserError, match="has no signature to inspect"):
        accepted(min)


def test_an_unknown_key_is_named_with_a_hint() -> None:
    refuse_unknown("method", ["k"], ["k", "l"])
    with pytest.raises(UserError) as refused:
        refuse_unknown("training", ["learning", "momentun"], ["lr", "momentum"], "[training] has lr, momentum")
    assert str(refused.value) == "unknown key training.learning: [training] has lr, momentum"
    with pytest.raises(UserError) as refused:
        refuse_unknown("", ["momentun"], ["lr", "momentum"])
    assert str(refused.value) == "unknown key momentun (did you mean momentum?): allowed keys: lr, momentum"


def test_the_keys_of_an_owner_are_listed_in_a_sentence() -> None:
    assert keys_of("method 'local'", []) == "there are no keys for method 'local'"
    assert keys_of("method 'local'", ["name"]) == "the only key of method 'local' is name"
    assert keys_of("method 'kin'", ["name", "k"]) == "the keys of method 'kin' are name, k"


def test_a_model_is_parsed_strictly() -> None:
    class Table(pydantic.BaseModel):
        count: int = 0
        inner: dict[str, float] = {}

    assert parsed(Table, {"count": 2}).count == 2
    with pytest.raises(UserError, match=r'^count = "2": must be a whole number$'):
        parsed(Table, {"count": "2"})
    with pytest.raises(UserError, match=r'^peer\.inner\.a = "x": must be a number$'):
        parsed(Table, {"inner": {"a": "x"}}, "peer")
    with pytest.raises(UserError, match=r"^inner = 3: must be a table$"):
        parsed(Table, {"inner": 3})
    with pytest.raises(UserError, match=r"^inner\.a: must be a number, string, list or table, not complex$"):
        parsed(Table, {"inner": {"a": 1j}})
