"""What kin found, beside the true clusters: families, places and the spectrum with its noise edge."""

from __future__ import annotations

import numpy as np

from homophily.report.page.arrangement import Arrangement
from homophily.report.page.figures import Absent, Bars, Figure, Points, Table
from homophily.report.page.sources import Source, shortened
from homophily.runs.history import Diagnostics

_TITLES = {"families": "Families against clusters", "places": "Places of the peers", "spectrum": "Spectrum"}
_SHOWN = 20  # singular values
_WITHOUT = "no family"


def family_figures(source: Source) -> list[Figure]:
    """Places, families and spectrum of the last time that the method compared fingerprints."""
    reported = [] if source.history is None else source.history.diagnostics
    found = next((one for one in reversed(reported) if "family" in one.peers), None)
    if found is None:
        why = "only the method kin finds families" if source.config.method.name != "kin" else "nothing is recorded"
        return [Absent(id, title, why) for id, title in _TITLES.items()]
    return [_places(source, found), _spectrum(found), _families(source, found)]


def _family_names(found: Diagnostics) -> list[str]:
    """The families by number; peers without one come last."""
    family = found.peers["family"]
    names = [f"family {number}" for number in range(int(family.max(initial=-1)) + 1)]
    return [*names, _WITHOUT] if (family < 0).any() else names


def _places(source: Source, found: Diagnostics) -> Figure:
    place, names = found.peers["place"].astype(np.float64), _family_names(found)
    if not place.shape[1]:
        return Absent("places", _TITLES["places"], "the peers differ in no direction by more than noise")
    arranged = Arrangement.of(source)
    family = np.where(found.peers["family"] < 0, len(names) - 1, found.peers["family"])
    second = place[:, 1] if place.shape[1] > 1 else np.zeros(len(place))
    text = "Each peer in the first two directions in which the fingerprints differ. Colour: the family that kin found"
    several = len(arranged.groups) > 1
    return Points(
        "places", _TITLES["places"], f"{text}; shape: the true cluster." if several else f"{text}.", "first direction",
        "second direction", found.ids, place[:, 0], second, family, names,
        arranged.group[arranged.row[found.ids]] if several else None, arranged.names if several else [],
    )  # fmt: skip


def _spectrum(found: Diagnostics) -> Figure:
    values, edge = found.values["singular_values"].astype(float), float(found.values["edge"][0])
    rank = int(found.values["rank"][0])
    text = (
        f"The singular values of the fingerprints' whitened means, the largest {min(_SHOWN, len(values))} of "
        f"{len(values)}. "
    )
    if np.isnan(edge):
        text += "There are too few samples to know which of them are noise."
    else:
        text += f"{rank} are above the noise edge, the largest value that noise alone would produce."
    threshold = None if np.isnan(edge) else edge
    shown = values[:_SHOWN].tolist()
    return Bars("spectrum", _TITLES["spectrum"], text, "direction", "singular value", shown, threshold, "noise edge")


def _families(source: Source, found: Diagnostics) -> Figure:
    if source.clusters is None:
        return Absent("families", _TITLES["families"], "the clusters of the peers are not known")
    family, names = found.peers["family"], _family_names(found)
    if (family < 0).all():
        return Absent("families", _TITLES["families"], "kin found no separate families: peers differ gradually")
    arranged = Arrangement.of(source)
    group = arranged.group[arranged.row[found.ids]]
    rows = []
    for number, name in enumerate(names):
        mine = group[family == (-1 if name == _WITHOUT else number)]
        counts = np.bincount(mine, minlength=len(arranged.groups)).tolist()
        rows.append([name, str(len(mine)), *(str(count) if count else "-" for count in counts)])
    text = "How many peers of each true cluster are in each family. A family that equals a cluster has one number."
    headings = ["family", "peers", *(shortened(name) for name, _ in arranged.groups)]
    return Table("families", _TITLES["families"], text, headings, rows)
