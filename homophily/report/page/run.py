"""The view of one run."""

from __future__ import annotations

from homophily.plugins.registry import GIVEN
from homophily.report.page.figures import Tab, View
from homophily.report.page.merges import merge_tab
from homophily.report.page.neighbours import neighbour_tab
from homophily.report.page.privacy import privacy_facts
from homophily.report.page.scores import score_tab
from homophily.report.page.settings import settings_tab
from homophily.report.page.similarities import similarity_tab
from homophily.report.page.sources import Source, shortened


def run_view(source: Source) -> View:
    """All figures of a run."""
    make = (score_tab, merge_tab, neighbour_tab, similarity_tab)
    tabs: list[Tab] = [*(one(source) for one in make), settings_tab(source, source.path)]
    title = f"{_named(source.config.method.name, 'own method')} on {_named(source.config.data.name, 'own data')}"
    notes = (source.summary or {}).get("notes", [])
    return View(str(source.path), title, source.state, _facts(source), tabs, notes, source.names)


def _named(name: str, own: str) -> str:
    """A name of the config; own: for an object that was given in Python."""
    return own if name == GIVEN else shortened(name)


def _facts(source: Source) -> list[tuple[str, str]]:
    score, summary = source.score, source.summary or {}
    values = source.column(score.name)[1]
    shown = summary.get(score.name, values[-1] if values else None)
    last = summary or (source.metrics[-1] if source.metrics else {})
    same, sent = last.get("same_cluster_merges"), last.get("bytes_sent_per_peer")
    facts = [
        ("progress", source.progress),
        (score.label, score.text(shown)),
        ("peers", str(source.peers)),
        ("same-cluster merges", "-" if same is None else f"{100 * same:.0f}%"),
        ("MB sent per peer", "-" if sent is None else f"{sent / 1e6:.3g}"),
        ("seed", str(source.seed)),
        *privacy_facts(source.config.privacy, (summary.get("privacy") or last).get("epsilon_spent")),
    ]
    if summary.get("diverged"):
        facts.append(("diverged peers", str(len(summary["diverged"]))))
    return facts
