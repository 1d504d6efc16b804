"""Console tables at any width show every digit, and no line is too long."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from homophily.report.tables import print_pairs, print_table

WIDTHS = [200, 80, 60, 40]
HEADINGS = ["method", "0°", "90°", "180°", "270°", "mean", "same-cluster merges", "models sent"]
NAMES = ["local", "own_methods:MostAlikeOfAllThatWereEverMet", "own_methods:MostAlikeOfAllThatWereMetNow"]
ROWS = [
    [name, *(f"{n}{i}.{i}" for i in range(5, 9)), f"9{n}.7 ± 0.{n}", "100%", "156000"] for n, name in enumerate(NAMES)
]
PAPER = ["", "(b) CIFAR-100, 3 clusters, label, pre-trained", "MNIST + Fashion-MNIST, 2 clusters, domain", "mean [5]"]
PAPER_ROWS = [
    ["PANMGrad", "85.69 ± 0.12 (85.47 ± 0.50) +0.22", "96.27 (96.29) -0.02", "-"],
    ["kin *", "1.5", "-", "[2]"],
]


def shown(width: int | None, call: Callable[[Console], None]) -> list[str]:
    """Return the lines on a terminal of this width; None: in a pipe."""
    file = io.StringIO()
    terminal = None if width is None else True
    call(Console(file=file, width=width, force_terminal=terminal, color_system=None))
    return file.getvalue().splitlines()


def cells(lines: list[str]) -> list[str]:
    return " ".join(lines).split()


@pytest.mark.parametrize("width", [*WIDTHS, None])
@pytest.mark.parametrize(("headings", "rows"), [(HEADINGS, ROWS), (PAPER, PAPER_ROWS)])
def test_tables_show_every_digit_and_no_line_is_too_long(
    width: int | None, headings: list[str], rows: list[list[str]]
) -> None:
    lines = shown(width, lambda console: print_table(console, headings, rows))
    there = cells(lines)
    for text in [*headings[1:], *(cell for row in rows for cell in row[1:])]:
        for word in text.split():
            assert there.count(word) >= 1, text
            there.remove(word)
    if width is not None:
        assert max(map(cell_len, lines)) <= width


def test_a_table_that_fits_is_one_table_with_full_names() -> None:
    for width in (200, None):
        lines = shown(width, lambda console: print_table(console, HEADINGS, ROWS))
        assert len(lines) == 3 + len(ROWS) + 1  # a line above, headings, a rule, rows, a line below
        assert all(name in "\n".join(lines) for name in NAMES)


def test_names_are_shortened_and_headings_wrapped_first() -> None:
    lines = shown(80, lambda console: print_table(console, HEADINGS, ROWS))
    assert len(lines) == 4 + len(ROWS) + 1  # headings take two lines
    assert lines[1].split() == ["same-cluster", "models"]
    assert lines[5].startswith(" own_me")
    assert "…" in lines[5]
    assert "Met " in lines[5]  # its end distinguishes it from the next name
    assert "Now " in lines[6]
    assert lines[4].split()[0] == "local"


def test_columns_that_do_not_fit_are_printed_below_with_repeated_names() -> None:
    lines = shown(40, lambda console: print_table(console, HEADINGS, ROWS, title="accuracy, %"))
    starts = [line.split()[0] for line in lines if line.strip() and not line.strip().startswith("─")]
    assert lines[0] == "accuracy, %"
    assert starts.count("method") == starts.count("local") == 3
    assert all(len(name) >= 8 for name in starts if name.startswith("own"))
    assert " ".join(lines).count("accuracy") == 1


def test_shortened_names_keep_numbers_at_their_end() -> None:
    names = [*(f"cluster {angle}°" for angle in (20, 100, 120)), "病院病院病院病院 7"]
    lines = shown(24, lambda console: print_table(console, ["", "accuracy, %"], [[name, "1.5"] for name in names]))
    assert [line.split(" 1.5")[0].strip() for line in lines[3:-1]] == ["clu… 20°", "clu…100°", "clu…120°", "病…院 7"]
    assert max(map(cell_len, lines)) <= 24


def test_a_column_wider_than_the_terminal_is_still_printed() -> None:
    number = "1234567890" * 3
    assert number in cells(shown(20, lambda console: print_table(console, ["a", "b"], [["name", number]])))


def test_sections_end_with_an_empty_line_and_markup_is_printed_literally() -> None:
    rows = [["[a]", "1"], ["b", "2"]]
    lines = shown(40, lambda console: print_table(console, ["", "[bold]x[/]"], rows, sections=[0]))
    assert "[bold]x[/]" in lines[1]
    assert "[a]" in lines[3]
    assert not lines[4].strip()
    assert lines[5].split() == ["b", "2"]


def test_first_column_can_be_right_aligned() -> None:
    rows = [[str(n), f"0.{n}"] for n in (9, 10)]
    lines = shown(40, lambda console: print_table(console, ["round", "chance"], rows, first="right"))
    assert re.match(r" +9 +0\.9", lines[3])
    assert lines[3].index("9") == lines[4].index("0")


def test_a_pipe_respects_the_columns_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    file = io.StringIO()
    print_table(Console(file=file), HEADINGS, ROWS)
    assert max(map(cell_len, file.getvalue().splitlines())) <= 60


@pytest.mark.parametrize("width", [*WIDTHS, None])
def test_pairs_show_every_digit(width: int | None) -> None:
    pairs = {"round": "12", "similarities": ", ".join(f"hospital-{n} 0.{n}2345" for n in range(10, 30)), "seen": "-"}
    lines = shown(width, lambda console: print_pairs(console, pairs))
    there = cells(lines)
    for key, text in pairs.items():
        assert {key, *text.split()} <= set(there)
    assert len(lines) == 3 if width is None else max(map(cell_len, lines)) <= width
