"""Reading views in tests."""

from typing import Any

from homophily.report.page.figures import Figure, View


def figure(view: View, id: str) -> Any:
    found: list[Figure] = [one for tab in view.tabs for one in tab.figures if one.id == id]
    assert len(found) == 1, id
    return found[0]
