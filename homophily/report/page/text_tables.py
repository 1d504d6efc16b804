"""Tables as Markdown, LaTeX and CSV, with everything that these formats would interpret escaped."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence

Rows = Sequence[Sequence[str]]

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "°": r"$^\circ$", "−": r"$-$",
}  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a formula begins with
_NUMBER = re.compile(r"[-+−]?[\d.]")


def as_markdown(headings: Sequence[str], rows: Rows) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |\n"

    def escaped(text: str) -> str:
        return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", _one_line(text))

    aligned = ["---", *["---:"] * (len(headings) - 1)]
    return line([escaped(text) for text in headings]) + line(aligned) + "".join(map(line, _each(rows, escaped)))


def as_latex(headings: Sequence[str], rows: Rows) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"  {' & '.join(cells)} \\\\\n"

    def escaped(text: str) -> str:
        return "".join(_LATEX.get(letter, letter) for letter in _one_line(text))

    head = f"\\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}\n  \\hline\n"
    body = line([escaped(text) for text in headings]) + "  \\hline\n" + "".join(map(line, _each(rows, escaped)))
    return f"{head}{body}  \\hline\n\\end{{tabular}}\n"


def as_csv(headings: Sequence[str], rows: Rows) -> str:
    """A cell that a spreadsheet would take for a formula begins with an apostrophe."""

    def safe(text: str) -> str:
        return f"'{text}" if text[:1] in _FORMULA and text != "-" and not _NUMBER.match(text) else text

    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([[safe(text) for text in headings], *_each(rows, safe)])
    return out.getvalue()


def _each(rows: Rows, change: Callable[[str], str]) -> list[list[str]]:
    return [[change(cell) for cell in row] for row in rows]


def _one_line(text: str) -> str:
    return " ".join(text.split())
