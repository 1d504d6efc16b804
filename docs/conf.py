"""The documentation site: `make docs` builds the Markdown pages, a notebook and the API reference with Sphinx.

The source folder is the repository, not docs/. So links between the pages, the README and results/ are the same
on the site as in the repository.
"""

import inspect
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from homophily.version import __version__

project = "homophily"
author = "the homophily contributors"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "docs/*.rst", "docs/*.ipynb", "results/*.md"]
exclude_patterns = [".*", "build", "dist", "runs", "homophily", "tests", "benchmarks"]
default_role = "literal"  # docstrings write `name`
smartquotes = False  # pages quote values of config keys and options with --

myst_heading_anchors = 4  # the anchors that git hosts give to headings

nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 60
nb_execution_show_tb = True

autoclass_content = "both"  # the docstring of the class, then that of its constructor
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 80

LONGEST_LINE = 118  # characters of a code block that fit

html_theme = "furo"
html_title = f"homophily {release}"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_extra_path = ["site"]  # index.html, which leads to docs/index.html
html_copy_source = False
html_show_copyright = False


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Append a toctree for each row of the README's table of pages to the root page."""
    if page != root_doc:
        return
    table = Path(app.srcdir, "README.md").read_text(encoding="utf-8").partition("| question | page |")[2]
    for question, links in re.findall(r"^\| (\w.*?) \| (.*) \|$", table, re.MULTILINE):
        pages = re.findall(r"\]\((\S+)\.\w+\)", links)
        source[0] += "\n   ".join(
            ["\n.. toctree::", f":caption: {question}", ":maxdepth: 1\n", *(f"/{one}" for one in pages)]
        )
        source[0] += "\n"


def drop_metadata(app: Sphinx, item: Any, bound: bool) -> None:
    """Show ``str`` for ``Annotated[str, Field(...)]``, whose descriptions the docstring has too."""
    if inspect.isfunction(item):
        with suppress(NameError):  # a name that is imported only for type checkers
            item.__annotations__ = get_type_hints(item)


def shorten_defaults(
    app: Sphinx, what: str, name: str, item: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show ``...`` for defaults such as ``<factory>``, which are not Python."""
    return signature and re.sub(r"<[^<>]+>", "...", signature), returns


def list_arguments(app: Sphinx, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Make a list of the lines ``argument: meaning`` of a docstring, which reStructuredText would join."""
    if what not in ("function", "method", "class"):
        return
    arguments = set(inspect.signature(item).parameters)
    out, inside = [], False
    for line in lines:
        found = re.match(r"(\w+(?:, \w+)*): ", line)
        if found and set(found[1].split(", ")) <= arguments:
            out += [] if inside else [""]
            out.append(f"- {', '.join(f'``{one}``' for one in found[1].split(', '))}: {line[found.end() :]}")
            inside = True
        elif inside and line and not line.startswith(("Returns ", "Raises ", "Warns ")):
            out.append(f"  {line}")
        else:
            out += ["", line] if inside else [line]
            inside = False
    lines[:] = out


def wrap_long_lines(app: Sphinx, document: nodes.document) -> None:
    """Mark commands and messages that are longer than the page is wide; the stylesheet wraps them, but no code."""
    for block in document.findall(nodes.literal_block):
        lines = block.astext().splitlines() if block.get("language") in ("text", "json", "sh") else []
        if lines and (lines[0].startswith("error:") or max(map(len, lines)) > LONGEST_LINE):
            block["classes"].append("wrapped")


def setup(app: Sphinx) -> None:
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", add_navigation)
    app.connect("autodoc-before-process-signature", drop_metadata)
    app.connect("autodoc-process-signature", shorten_defaults)
    app.connect("autodoc-process-docstring", list_arguments)
    app.connect("doctree-read", wrap_long_lines)
