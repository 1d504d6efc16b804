"""The view of a real peer's state folder: its own scores, whom it merged with, similarities, traffic, refusals."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from homophily.atomic_io import read_json
from homophily.errors import UserError
from homophily.report.page.figures import Absent, Figure, Lines, Series, Tab, Table, Timeline, View
from homophily.report.page.privacy import privacy_facts
from homophily.report.page.refusals import by_kind
from homophily.report.page.settings import settings_tab
from homophily.report.page.sources import Source, shortened

_ROUNDS = 60  # rounds of the exchange with others that fit beside their names
_MEANING = ("nothing", "model received, not merged", "merged", "asked, but no model came")


def peer_view(source: Source) -> View:
    """All figures of a real peer."""
    path = source.path / "status.json"
    status = read_json(path)
    if not isinstance(status, dict):
        raise UserError(f"{path} is damaged: it must hold a JSON object")
    tabs = [
        Tab("Scores", [_by_round(source)]),
        Tab("Other peers", [_partners(source), _similarities(source), _reachable(status), _failing(status)]),
        Tab("Refusals", [_refused(status)]),
        settings_tab(source, source.path),
    ]
    name = shortened(str(status.get("peer", source.path.name)))
    return View(str(source.path), f"Peer {name}", source.state, _facts(source, status), tabs, status.get("notes", []))


def _facts(source: Source, status: dict[str, Any]) -> list[tuple[str, str]]:
    values = source.column(source.score.name)[1]
    received, served = status.get("bytes_received"), status.get("bytes_served")
    written, expires = status.get("time"), status.get("certificate_expires")
    return [
        ("progress", source.progress),
        (source.score.label, source.score.text(values[-1] if values else None)),
        ("federation", shortened(str(status.get("federation", "-")))),
        ("connected to", _listed(status.get("neighbours"))),
        ("MB received", "-" if received is None else f"{received / 1e6:.3g}"),
        ("MB served", "-" if served is None else f"{served / 1e6:.3g}"),
        *privacy_facts(source.config.privacy, (status.get("privacy") or {}).get("epsilon_spent")),
        ("certificate's last day", "-" if expires is None else datetime.fromtimestamp(expires, UTC).date().isoformat()),
        ("status of", "-" if written is None else f"{datetime.fromtimestamp(written, UTC):%Y-%m-%d %H:%M:%S} UTC"),
    ]


def _listed(names: Any) -> str:
    found = [shortened(str(name)) for name in names or ()]
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "") if found else "no peer"


def _by_round(source: Source) -> Figure:
    rounds, values = source.column(source.score.name)
    if not rounds:
        return Absent("by-round", "Score by round", "no round has been scored")
    series = [Series("this peer", rounds, values)]
    text = "The score of this peer's model on its own test data."
    return Lines("by-round", "Score by round", text, "round", source.score.label, series)


def _partners(source: Source) -> Figure:
    fields = {"met": 1, "merged": 2, "unreachable": 3}
    lines = [line for line in source.metrics if any(field in line for field in fields)]
    names = sorted({name for line in lines for field in fields for name in line.get(field, ())})
    if not names:
        return Absent("partners", "Exchange with other peers", "this peer has not asked another peer for a model")
    row = {name: place for place, name in enumerate(names)}
    last = lines[-_ROUNDS:]
    events = np.zeros((len(names), len(last)), dtype=np.uint8)
    for column, line in enumerate(last):
        for field, event in fields.items():
            events[[row[name] for name in line.get(field, ())], column] = event
    which = f"of the last {_ROUNDS} rounds" if len(lines) > _ROUNDS else "round"
    text = f"What happened between this peer and each other peer in each {which}."
    rounds = [line["round"] for line in last]
    return Timeline("partners", "Exchange with other peers", text, [*map(shortened, names)], rounds, events, _MEANING)


def _similarities(source: Source) -> Figure:
    title = "Similarities to other peers"
    found: dict[str, tuple[list[float], list[float | None]]] = {}
    for line in source.metrics:
        for name, value in (line.get("similarities") or {}).items():
            rounds, values = found.setdefault(name, ([], []))
            rounds.append(line["round"])
            values.append(value)
    if not found:
        return Absent("similarities", title, "the method measured no similarities")
    series = [
        Series(shortened(name), rounds, values, colour=colour)
        for colour, (name, (rounds, values)) in enumerate(sorted(found.items()))
    ]
    return Lines("similarities", title, "The similarities that this peer measured.", "round", "similarity", series)


def _reachable(status: dict[str, Any]) -> Figure:
    hops = status.get("reachable") or {}
    away = status.get("unreachable") or []
    ages = status.get("heard") or {}
    far = {name: f"{count} hop{'s' * (count != 1)}" for name, count in sorted(hops.items())}
    far |= {name: "unreachable" for name in away if name not in hops}
    rows = [
        [shortened(name), text, "-" if ages.get(name) is None else f"{ages[name]:.1f}"] for name, text in far.items()
    ]
    if not rows:
        return Absent("reachable", "Other peers", "the status names no other peer")
    text = "The distance to each peer, and the age of its last message, when the status was written."
    return Table("reachable", "Other peers", text, ["peer", "distance", "last heard, s ago"], rows)


def _failing(status: dict[str, Any]) -> Figure:
    title, failed = "Connections that fail", status.get("failed_connections")
    if not failed:
        why = "this is not known" if failed is None else "every address in peer.connect was reached"
        return Absent("failing", title, why)
    rows = [[shortened(str(address)), str(reason)] for address, reason in sorted(failed.items())]
    text = "The addresses in peer.connect that this peer does not reach, and why the last try failed."
    return Table("failing", title, text, ["address", "reason"], rows)


def _refused(status: dict[str, Any]) -> Figure:
    refused = by_kind(status.get("refused") or {})
    if not refused:
        return Absent("refused", "Refusals", "this peer has refused no message and no connection since it started")
    rows = [[one.kind, str(one.count), one.last] for one in refused]
    text = "Messages and connections that this peer refused since it started, by kind."
    return Table("refused", "Refusals", text, ["kind", "count", "last reason"], rows)
