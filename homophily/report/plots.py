"""Plots; they need matplotlib (the ``report`` extra)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homophily.atomic_io import writing
from homophily.errors import UserError
from homophily.experiments.discovery import Discovery

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")  # colour-blind safe
_MARKS = "osD^vP*X"


def pyplot() -> Any:
    """Return matplotlib.pyplot with the Agg backend, which opens no window."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("drawing a figure needs matplotlib: pip install 'homophily[report]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as found

    return found


def acquaintance(found: Discovery, path: Path) -> None:
    """Plot peers in the first two signal directions, by family (colour) and true cluster (marker), and the spectrum."""
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
    place = found.kinship.place.cpu().numpy()
    family = found.kinship.family
    labels = [0] * len(place) if family is None else family.tolist()
    colours = [COLOURS[label % len(COLOURS)] for label in labels]
    clusters = [0] * len(place) if found.cluster is None else found.cluster.tolist()
    for cluster in sorted(set(clusters)):
        rows = [i for i, c in enumerate(clusters) if c == cluster]
        label = found.cluster_names[cluster] if found.cluster is not None and len(set(clusters)) > 1 else None
        look = {"c": [colours[i] for i in rows], "marker": _MARKS[cluster % len(_MARKS)], "s": 36, "alpha": 0.85}
        left.scatter(place[rows, 0], place[rows, 1], **look, linewidths=0, label=label)
    if len(set(clusters)) > 1:
        left.legend(title="true cluster", frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    count = "a continuum" if family is None else f"{len(found.families or [])} families"
    count = count if found.conclusive else "no difference found"
    left.set(title=f"{len(place)} peers, {count}", xlabel="first direction", ylabel="second direction")
    values = found.kinship.squared.clamp(min=0).sqrt().tolist()[:20]
    shown = range(1, len(values) + 1)
    right.bar(shown, values, color=[COLOURS[0] if k <= found.kinship.rank else "#cccccc" for k in shown])
    if found.kinship.enough_samples:
        edge = found.kinship.edge**0.5
        right.axhline(edge, color=COLOURS[1], lw=1.2)
        at = (len(values) + 0.4, edge)
        right.annotate("noise edge", at, color=COLOURS[1], ha="right", va="bottom", fontsize=8)
    right.set(title=f"{found.kinship.rank} directions above the noise", xlabel="direction", ylabel="singular value")
    right.xaxis.get_major_locator().set_params(integer=True)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    with writing(path):
        figure.savefig(path, dpi=130)
    plt.close(figure)
