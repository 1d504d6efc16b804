"""Every recipe has valid configs and claims, and the smallest recipe of each paper runs."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from homophily.cli.app import app
from homophily.papers import recipe as recipes
from homophily.papers.claims import holds

SMALLEST = ["panm-table-3", "dpg-table-4", "similarity-table-3", "dac-table-1"]  # on bundled data


@pytest.mark.parametrize("name", recipes.names())
def test_every_cell_has_a_valid_config_and_every_claim_can_be_evaluated(name: str) -> None:
    recipe = recipes.load(name)
    cells: dict[str, dict[str, float]] = {}
    for row in recipe.rows:
        for column in recipe.columns:
            recipe.config(row, column, 0, quick=False)
            cells.setdefault(row, {})[column] = 1.0
    for row in recipe.quick.rows:
        for column in recipe.quick.columns:
            recipe.config(row, column, 0, quick=True)
    for claim in recipe.claims:
        assert holds(claim.check, cells) is not None, claim.check
    quick = {row: dict.fromkeys(recipe.quick.columns, 1.0) for row in recipe.quick.rows}
    for claim in recipe.claims:
        if claim.quick:
            assert holds(claim.check, quick) is not None, f"not in the quick form: {claim.check}"


@pytest.mark.parametrize("name", recipes.names())
def test_a_table_has_the_papers_numbers_and_a_row_of_ours(name: str) -> None:
    recipe = recipes.load(name)
    if recipe.kind == "table":
        assert recipe.printed
        assert len(recipe.claims) >= 3
        ours = [row for row, about in recipe.rows.items() if about.ours]
        assert recipe.paper == "similarity" or (ours and all(row.startswith("kin") for row in ours))
    else:
        assert recipe.figure is not None


@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_recipe_of_each_paper_runs_in_its_quick_version(name: str, here: Path) -> None:
    done = CliRunner().invoke(app, ["reproduce", name, "--quick", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert "does not hold" not in done.output
    assert "not computed" not in done.output
    assert (here / "results" / f"{name}-quick.md").is_file()
