"""The metrics of a folder in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from homophily.report.live.vitals import UNREADABLE, ComparisonProgress, Vitals, health_of, vitals_of
from homophily.report.page.refusals import by_kind
from homophily.report.page.sources import is_peer, is_run
from homophily.runs.reader import Run

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]
Sample = tuple[str, Labels, float | None]  # the metric's name, labels beside those of the run, value; None: not known

_METRICS = {
    "homophily_up": ("gauge", "1 while rounds advance or the run has finished, else 0"),
    "homophily_runs": ("gauge", "Runs of the comparison"),
    "homophily_runs_finished": ("gauge", "Runs of the comparison that have finished"),
    "homophily_round": ("gauge", "Rounds that are over"),
    "homophily_rounds": ("gauge", "Rounds of the whole run"),
    "homophily_score": ("gauge", "The headline metric, mean over peers; not of a real peer with [privacy]"),
    "homophily_same_cluster_merges_ratio": ("gauge", "Share of the last round's merges between peers of one cluster"),
    "homophily_models_sent_per_peer": ("gauge", "Models sent so far times hops, mean over peers"),
    "homophily_bytes_sent_per_peer": ("gauge", "Bytes sent so far times hops, mean over peers"),
    "homophily_diverged_peers": ("gauge", "Peers whose model had diverged in the last round"),
    "homophily_epsilon_spent": ("gauge", "Epsilon of [privacy] spent so far, of the peer that has spent most"),
    "homophily_epsilon_promised": ("gauge", "Epsilon of [privacy] that each peer promises"),
    "homophily_seconds_total": ("counter", "Time spent in rounds"),
    "homophily_seconds_left": ("gauge", "Expected time until the last round ends"),
    "homophily_neighbours_online": ("gauge", "Peers to which there is a direct connection"),
    "homophily_unreachable_peers": ("gauge", "Peers that are offline, or whose models did not arrive"),
    "homophily_failed_connections": ("gauge", "Addresses in peer.connect that this peer does not reach"),
    "homophily_bytes_received_total": ("counter", "Bytes received by this peer, each counted once per hop"),
    "homophily_bytes_served_total": ("counter", "Bytes sent to other peers since this peer started"),
    "homophily_refusals_total": ("counter", "Refused messages and connections since this peer started"),
    "homophily_certificate_expiry_timestamp_seconds": ("gauge", "When the certificate of this peer expires"),
    "homophily_status_timestamp_seconds": ("gauge", "When this peer wrote its status"),
}


PRIVATE = "this peer promises privacy, and its page shows scores on its samples"


def private_peer(folder: Path) -> bool:
    """Whether this is the state of a real peer with [privacy], whose scores on its own samples stay on its machine."""
    return is_peer(folder) and Run(folder).config.privacy is not None


def exposition(folder: Path) -> str:
    """All metrics of a folder; if its run has not begun or cannot be read, only ``homophily_up``."""
    found: dict[str, list[str]] = {name: [] for name in _METRICS}
    found["homophily_up"].append(_line("homophily_up", {}, float(health_of(folder).good)))
    for name, line in _lines(folder):
        found[name].append(line)
    out = []
    for name, lines in found.items():
        if lines:
            kind, about = _METRICS[name]
            out += [f"# HELP {name} {about}\n", f"# TYPE {name} {kind}\n", *lines]
    return "".join(out)


def _lines(folder: Path) -> list[tuple[str, str]]:
    """The name of the metric and the line of each sample."""
    try:
        begun = vitals_of(folder)
        found = [
            (name, _line(name, {**_labels(one), **more}, value))
            for one in begun
            for name, more, value in (*_run(one), *_peer(one))
            if value is not None
        ]
        if is_run(folder):
            return found
        whole = ComparisonProgress.of(folder, begun)
        counts = {"homophily_runs": whole.runs, "homophily_runs_finished": whole.finished}
        return [*((name, _line(name, {}, value)) for name, value in counts.items()), *found]
    except UNREADABLE:  # /health says why
        return []


def _labels(one: Vitals) -> Labels:
    if one.status:
        return {"peer": str(one.status.get("peer", "")), "federation": str(one.status.get("federation", ""))}
    config = one.run.config
    return {"run": one.path.name, "method": config.method.name, "seed": str(config.seed)}


def _run(one: Vitals) -> Iterator[Sample]:
    last = one.last
    yield "homophily_round", {}, one.round
    yield "homophily_rounds", {}, one.rounds
    yield "homophily_score", {"headline": one.headline}, None if private_peer(one.path) else one.score
    yield "homophily_same_cluster_merges_ratio", {}, last.get("same_cluster_merges")
    yield "homophily_models_sent_per_peer", {}, last.get("models_sent_per_peer")
    yield "homophily_bytes_sent_per_peer", {}, last.get("bytes_sent_per_peer")
    yield "homophily_diverged_peers", {}, len(last["diverged"]) if "diverged" in last else None
    promise = one.run.config.privacy
    yield "homophily_epsilon_spent", {}, (one.status.get("privacy") or last).get("epsilon_spent")
    yield "homophily_epsilon_promised", {}, None if promise is None else promise.epsilon
    yield "homophily_seconds_total", {}, last.get("seconds")
    yield "homophily_seconds_left", {}, one.seconds_left


def _peer(one: Vitals) -> Iterator[Sample]:
    status = one.status
    if not status:
        return
    yield "homophily_neighbours_online", {}, len(status.get("neighbours", []))
    yield "homophily_unreachable_peers", {}, len(status.get("unreachable", []))
    failed = status.get("failed_connections")
    yield "homophily_failed_connections", {}, None if failed is None else len(failed)
    yield "homophily_bytes_received_total", {}, status.get("bytes_received")
    yield "homophily_bytes_served_total", {}, status.get("bytes_served")
    yield "homophily_certificate_expiry_timestamp_seconds", {}, status.get("certificate_expires")
    yield "homophily_status_timestamp_seconds", {}, status.get("time")
    for refused in by_kind(status.get("refused") or {}):
        yield "homophily_refusals_total", {"kind": refused.kind}, refused.count


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{f'{{{inside}}}' if inside else ''} {value!r}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
