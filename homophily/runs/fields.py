"""The fields of a round's metrics, of a run's summary and of its peers' scores: one list of all that a run writes.

Missing fields were not computed. Metrics of the user's own stand beside these under their own names, so a run's metrics
are plain dictionaries; no name of this list can be given to another metric.
"""

from __future__ import annotations

from typing import Any, TypedDict


class Accuracies(TypedDict, total=False):
    """Scores of all peers' models on their test data. A mean is None if a peer in it has diverged.

    The headline metric has three fields, as ``accuracy`` and ``mse`` have here, under its own name.
    """

    headline: str
    """The name of the headline metric: the field that holds its mean over peers."""
    accuracy: float | None
    """Classification: percent of a peer's test samples that its model classifies correctly, mean over peers."""
    accuracy_over_clusters: float | None
    """The mean of the clusters' means, so that small clusters count as much as large ones."""
    accuracy_by_cluster: dict[str, float | None]
    """The mean over the peers of each cluster, by its name; one entry ``all`` if clusters are not known."""
    mse: float | None
    """Regression: the mean squared error, mean over peers."""
    mse_over_clusters: float | None
    """The mean of the clusters' means."""
    mse_by_cluster: dict[str, float | None]
    """The mean over the peers of each cluster."""
    loss: float | None
    """The mean test loss, mean over peers."""


class Discovered(TypedDict, total=False):
    """How well peers found those of their own cluster."""

    neighbour_precision: float | None
    """Of the peers that a peer holds to be similar, the share in its own cluster; mean over peers."""
    neighbour_recall: float | None
    """Of the peers that a peer knows in its own cluster, the share that it holds to be similar; mean over peers."""
    same_cluster_merges: float | None
    """Of the models merged with a weight above 0, the share between peers of one cluster."""


class Guarded(TypedDict, total=False):
    """What ``merge_guard`` did."""

    models_left_out: int
    """With ``merge_guard``: models left out of merges so far, by all peers together."""


class RoundMetrics(Accuracies, Discovered, Guarded, total=False):
    """A line of ``metrics.jsonl``."""

    round: int
    """The round, from 1."""
    models_sent_per_peer: float
    """Models sent so far, times the hops they travelled, mean over peers."""
    bytes_sent_per_peer: float
    """Everything sent so far, in bytes times hops, mean over peers."""
    similarities: dict[str, float]
    """A real peer: the similarity that it measured to each peer that it met, by name."""
    clients_of_model: list[int]
    """With a server: how many clients have chosen each of its models."""
    met: list[str]
    """A real peer: the peers whose models came in this round."""
    merged: list[str]
    """A real peer: the peers whose models it merged in this round."""
    left_out: list[str]
    """A real peer with ``merge_guard``: the peers whose models it left out of this round's merge."""
    unreachable: list[str]
    """A real peer: the peers whose models it asked for in vain."""
    diverged: list[int]
    """Peers whose model held a NaN or an infinity after training, or when it was scored."""
    stopped: int
    """How many peers have stopped early."""
    epsilon_spent: float
    """With ``[privacy]``: epsilon spent so far, of the peer that has spent most."""
    seconds: float
    """Time spent in rounds so far."""


class Summary(Accuracies, Discovered, Guarded, total=False):
    """``summary.json``: the object that ``--json`` prints."""

    models_sent_per_peer: float
    """Models sent over the run, times the hops they travelled, mean over peers."""
    bytes_sent_per_peer: float
    """Everything sent, in bytes times hops, mean over peers."""
    peak_models_per_peer_round: int
    """The most that one peer received in one round, in models times hops."""
    models_per_peer_round_by_hops: dict[str, float]
    """Models that a peer receives per round, mean over peers and rounds, by their distance in hops."""
    nominal_models_per_peer: float | None
    """Models that a peer receives by the method's own formula; None if it has none, or if models travel further."""
    notes: list[str]
    """What a user should know about the method with this data and topology, and what it found."""
    privacy: dict[str, Any] | None
    """Epsilon promised and spent, delta, the protected unit, and the noise of training; None without ``[privacy]``."""
    rounds: int
    """Rounds that are over."""
    stopped_early: int
    """Peers that stopped by ``training.patience``."""
    ever_diverged: list[int]
    """Peers whose model held a NaN or an infinity in some round."""
    diverged: list[int]
    """Peers whose final model has diverged."""
    seconds: float
    """Time spent in rounds, over all resumes."""
    run: str
    """The run's folder."""


class PeerScores(TypedDict, total=False):
    """``scores.json``: a list over peers under each name."""

    accuracy: list[float | None]
    """Classification: percent of the test samples that the model classifies correctly."""
    mse: list[float | None]
    """Regression: the mean squared error."""
    loss: list[float | None]
    """The mean test loss."""
    models_received: list[int]
    """Models received over the run, times the hops they travelled."""
    diverged_rounds: list[int]
    """Rounds in which the model had diverged."""
    peer: list[str] | None
    """The names of the peers; None if they have none."""
    cluster: list[str] | None
    """The name of each peer's cluster; None if clusters are not known."""


def names(fields: type[RoundMetrics] | type[Summary] | type[PeerScores]) -> frozenset[str]:
    """The names of all fields."""
    return frozenset(fields.__annotations__)


RESERVED = names(RoundMetrics) | names(Summary) | names(PeerScores)  # names that a user's metric cannot have
