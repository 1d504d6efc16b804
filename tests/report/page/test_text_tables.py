"""Tables as text: nothing in a cell is interpreted by the format."""

from __future__ import annotations

import csv
import io

from homophily.report.page.text_tables import as_csv, as_latex, as_markdown

HEADINGS = ["method", "accuracy, %"]
ROWS = [["a|b_*<c>", "93.4 ± 0.5"], ["50% & {x}$#^~\\", "-1.2"], ["=SUM(A1)", "-"]]


def test_markdown() -> None:
    lines = as_markdown(HEADINGS, ROWS).splitlines()
    assert lines[:2] == ["| method | accuracy, % |", "| --- | ---: |"]
    assert lines[2] == r"| a\|b\_\*\<c\> | 93.4 ± 0.5 |"


def test_latex() -> None:
    lines = as_latex(HEADINGS, ROWS).splitlines()
    assert lines[0] == r"\begin{tabular}{lr}"
    assert lines[-1] == r"\end{tabular}"
    assert r"  a|b\_*\textless{}c\textgreater{} & 93.4 $\pm$ 0.5 \\" in lines
    assert r"  50\% \& \{x\}\$\#\textasciicircum{}\textasciitilde{}\textbackslash{} & -1.2 \\" in lines


def test_csv_keeps_numbers_and_disarms_formulas() -> None:
    found = list(csv.reader(io.StringIO(as_csv(HEADINGS, ROWS))))
    assert found == [HEADINGS, ROWS[0], ROWS[1], ["'=SUM(A1)", "-"]]
