"""A claim that does not hold is contradicted in print, within the spread, true under a variant, or has failed."""

from dataclasses import replace
from typing import Any

import pytest

from homophily.papers.claims import within_spread
from homophily.papers.recipe import Recipe, Variant, contradictions, load, variants
from homophily.papers.tables import Number, Result
from homophily.papers.verdicts import Kind, contradiction, verdicts
from tests.papers.test_reproduce import RECIPE

CLAIM = {"text": "kin is better", "check": "kin.mean > random.mean"}


def result(kin: list[float], random: list[float], variant: str | None = None, **changes: Any) -> Result:
    """A table with one column; the paper prints 60 for kin and 50 for Random."""
    rows = {name: {"label": name, "config": {"method": {"name": name}}} for name in ("kin", "random")}
    printed = {"kin": {"mean": 60.0}, "random": {"mean": 50.0}}
    values = RECIPE | {"rows": rows, "cells": {}, "printed": printed, "claims": [CLAIM]} | changes
    cells = {
        name: {"mean": Number(dict(enumerate(mine)), False, printed[name]["mean"], None)}
        for name, mine in (("kin", kin), ("random", random))
    }
    return Result("small", Recipe.model_validate(values), False, cells, variant=variant)


def verdict(mine: Result, *stored: Result) -> tuple[Kind, str]:
    (one,) = verdicts(mine, stored)
    return one.kind, one.why


def test_a_claim_that_holds_or_was_not_computed() -> None:
    assert verdict(result([61.0], [50.0])) == (Kind.HELD, "")
    assert verdict(result([], [50.0])) == (Kind.OPEN, "")


def test_only_seeds_that_all_cells_have_are_compared() -> None:
    assert verdict(result([50.0, 99.0], [51.0]))[0] is Kind.FAILED
    assert verdict(result([52.0, 10.0], [51.0]))[0] is Kind.HELD


@pytest.mark.parametrize(
    ("kin", "kind"),
    [
        ([49.0, 51.5, 49.0], Kind.SPREAD),  # 0.17 below, with a standard error of 0.83
        ([49.0, 51.5], Kind.HELD),
        ([49.5, 49.6, 49.5], Kind.FAILED),  # 0.47 below, with a standard error of 0.03
        ([49.0, 50.5], Kind.FAILED),  # two seeds have no spread that could be trusted
    ],
)
def test_a_miss_within_two_standard_errors_of_three_seeds_is_within_the_spread(kin: list[float], kind: Kind) -> None:
    assert verdict(result(kin, [50.0] * len(kin)))[0] is kind


def test_every_part_of_a_claim_must_be_within_the_spread() -> None:
    means = {"a": {"x": 50.0}, "b": {"x": 50.1}, "c": {"x": 60.0}}
    seeds = [{"a": {"x": v}, "b": {"x": 50.1}, "c": {"x": 60.0}} for v in (49.0, 50.0, 51.0)]
    assert within_spread("a.x > b.x", means, seeds)
    assert not within_spread("a.x > b.x and a.x > c.x", means, seeds)
    assert within_spread("a.x > b.x or a.x > c.x", means, seeds)
    assert not within_spread("a.x > b.x", means, seeds[:2])


def test_a_claim_that_holds_under_a_variant_names_it() -> None:
    other = result([55.0], [50.0], variant="other")
    assert verdict(result([49.0], [50.0]), other) == (Kind.VARIANT, "other")
    assert verdict(result([49.0], [50.0]), replace(other, quick=True)) == (Kind.FAILED, "")
    assert verdict(result([49.0], [50.0]), replace(other, name="another table")) == (Kind.FAILED, "")
    assert verdict(result([49.0], [50.0], variant="other"), other) == (Kind.FAILED, "")


def test_a_claim_against_the_papers_own_table_is_a_contradiction() -> None:
    wrong = {"claims": [CLAIM | {"check": "kin.mean > random.mean + 20"}]}
    assert verdict(result([49.0], [50.0], **wrong)) == (Kind.PRINT, "A small table")
    ours = {"claims": [wrong["claims"][0] | {"ours": True}]}
    assert verdict(result([49.0], [50.0], **ours)) == (Kind.FAILED, "")


def test_a_variant_changes_its_own_methods_only() -> None:
    variant = Variant(choice="c", reason="r", date="2026-11-18", config={"rounds": 7}, methods={"pens": {"k": 3}})
    assert variant.applied({"method": {"name": "pens", "k": 2}})["method"]["k"] == 3
    assert variant.applied({"method": {"name": "panm", "k": 2}})["method"]["k"] == 2
    assert variant.applied({"rounds": 1})["rounds"] == 7


@pytest.mark.parametrize("paper", variants())
def test_every_variant_applies_to_every_cell_of_its_paper(paper: str) -> None:
    for name in ("table-2", "table-3"):
        recipe = load(f"{paper}-{name}")
        for variant in recipe.variants:
            for row in recipe.rows:
                for column in recipe.columns:
                    recipe.config(row, column, 0, False, variant)


def test_claims_of_the_papers_hold_for_their_own_printed_numbers_or_the_place_is_named() -> None:
    table = load("panm-table-2")
    assert contradiction("panm-table-2", table, "panm_loss.fmnist >= oracle.fmnist") == ""
    assert contradiction("panm-table-2", table, "panm_grad.fmnist >= oracle.fmnist") == "PANM, Table 2"


def test_a_value_that_the_paper_prints_in_another_place_counts() -> None:
    found = contradiction("panm-table-3", load("panm-table-3"), "panm_loss.swap2 > oracle.swap2")
    assert found == "Oracle, Label-swap (2): 43.34 here, 49.11 in Table 2"
    assert contradiction("panm-table-3", load("panm-table-3"), "oracle.swap2 > random.swap2") == ""
    same = contradiction("panm-table-4", load("panm-table-4"), "panm_loss.l20_k10 > oracle.l20_k10")
    assert same == "Oracle, l = 20, k = 10: 43.39 here, 44.16 in PANM, Table 4, Oracle, l = 30, k = 10"


@pytest.mark.parametrize("paper", contradictions())
def test_contradictions_name_cells_that_print_another_value(paper: str) -> None:
    for one in contradictions()[paper]:
        assert (one.cell is None) == (one.value is None)
        if one.cell is not None:
            name, row, column = one.cell.split(".")
            printed = load(name).printed[row][column]
            assert one.value != (printed if isinstance(printed, float) else printed[0]), one.cell
