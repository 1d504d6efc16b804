"""The page's data of a folder that changes: read again only after a change, and kept if a read fails."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from homophily.atomic_io import in_use
from homophily.errors import UserError
from homophily.report.live.prometheus import PRIVATE, private_peer
from homophily.report.live.vitals import UNREADABLE, ComparisonProgress, Vitals, vitals_of
from homophily.report.page.document import data_of, page_of, views_of
from homophily.report.page.figures import Absent, Tab, View
from homophily.report.page.sources import is_comparison, is_run, shortened

_NOT_SHOWN = ("checkpoints", "leases")  # no part of the page; large, or changed by each sign of life
_NAMED = 12  # peers in trouble that are named
_WARNED = 30 * 86400  # seconds before a certificate expires
_DEPTH = 2  # a comparison, its runs, their history


@dataclass(frozen=True)
class Snapshot:
    """The views of a folder at one time."""

    version: str
    changed: float | None  # when a file changed last, in seconds since 1970; None: there is none
    views: list[View]
    body: bytes  # the views as JSON
    late_at: float | None = None  # when the rounds that go on have taken too long, if no file changes until then


class Following:
    """One folder. It is thread-safe."""

    def __init__(self, folder: Path, shared: bool = False) -> None:
        """shared: other machines can read the page, so a peer with [privacy] that begins in the folder is hidden."""
        self.folder, self._shared = folder, shared
        self._lock = threading.Lock()
        self._last: Snapshot | None = None

    def version(self) -> str:
        """Changes whenever a file of the folder changes, when its process stops, and when rounds take too long."""
        last = self._last
        late = last is not None and last.late_at is not None and time.time() > last.late_at
        seen = hashlib.sha256(repr((in_use(self.folder), late)).encode())
        for name, changed, size in _files(self.folder, _DEPTH):
            seen.update(f"{name}\0{changed}\0{size}\n".encode("utf-8", "surrogateescape"))
        return seen.hexdigest()[:32]

    def snapshot(self) -> Snapshot:
        """The present views. If they cannot be read, the last ones that could."""
        with self._lock:
            version = self.version()  # before the files are read: a later change gives another version
            if self._last is None or self._last.version != version:
                self._last = self._read(version, self._last)
            return self._last

    def page(self) -> tuple[str, str]:
        """The HTML with the present views inside, and its Content-Security-Policy."""
        return page_of(self.snapshot().views, live=True)

    def _read(self, version: str, last: Snapshot | None) -> Snapshot:
        late_at = None
        try:
            if self._shared and private_peer(self.folder):
                views = [_nothing(self.folder, f"{PRIVATE}; open the page on the peer's own machine")]
            else:
                found = views_of([self.folder])
                begun = vitals_of(self.folder)
                views = [_with_progress(view, self.folder, begun) for view in found]
                late_at = max((at for one in begun if (at := one.late_at) is not None), default=None)
        except UNREADABLE as error:
            if last is not None and last.changed is not None:
                return replace(last, version=version)
            views = [_nothing(self.folder, str(error))]
        times = [changed for _, changed, _ in _files(self.folder, _DEPTH)]
        return Snapshot(version, max(times) / 1e9 if times else None, views, data_of(views).encode(), late_at)


def _files(folder: Path, depth: int) -> Iterator[tuple[str, int, int]]:
    """Paths, times and sizes of all files that the page may show."""
    try:
        entries = sorted(os.scandir(folder), key=lambda one: one.name)
    except OSError:  # it does not exist, or was removed meanwhile
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if depth and entry.name not in _NOT_SHOWN and not entry.name.endswith(".part"):
                    yield from _files(Path(entry.path), depth - 1)
            elif not entry.name.endswith(".part"):
                about = entry.stat(follow_symlinks=False)
                yield entry.path, about.st_mtime_ns, about.st_size
        except FileNotFoundError:
            continue


def _with_progress(view: View, folder: Path, begun: Sequence[Vitals]) -> View:
    """The view with what changes while a run runs; the facts stay at their places, so that nothing jumps."""
    if not is_run(folder):
        whole, late = ComparisonProgress.of(folder, begun), [one for one in begun if one.late is not None]
        if len(late) < sum(one.late_at is not None for one in begun):
            late = []  # another run advances: runs that take turns wait for each other
        facts = dict(view.facts) | {"runs finished": f"{whole.finished} of {whole.runs}"}
        facts["time left"] = _left(whole.seconds_left)
        return replace(view, facts=list(facts.items()), notes=[*view.notes, *_stalled(late)])
    (now,) = begun
    last, facts = now.last, dict(view.facts)
    if not now.run.finished:
        facts["progress"] = f"{now.round} of {now.rounds}"  # short, so that no round needs a second line
    if not now.run.finished and not now.status:
        same, sent = last.get("same_cluster_merges"), last.get("bytes_sent_per_peer")
        facts["same-cluster merges"] = "-" if same is None else f"{100 * same:.0f}%"
        facts["MB sent per peer"] = "-" if sent is None else f"{sent / 1e6:.3g}"
    facts["time left"] = _left(now.seconds_left)
    facts["diverged peers"] = str(len(last.get("diverged", [])))
    if now.status:
        facts["unreachable peers"] = str(len(now.status.get("unreachable", [])))
    return replace(view, facts=list(facts.items()), notes=[*view.notes, *_trouble(now, view.peers)])


def _trouble(now: Vitals, names: Sequence[str]) -> Iterator[str]:
    """Name the peers in trouble while a run goes on; the notes of a finished run name them already."""
    if now.run.finished:
        return
    if now.late is not None:
        yield now.late
    diverged, away = now.last.get("diverged", []), now.status.get("unreachable", [])
    if diverged and now.status:
        yield f"the model of this peer had diverged in round {now.round}"
    elif diverged:
        which = enumerated([names[peer] if names else f"peer {peer}" for peer in diverged])
        yield f"diverged in round {now.round}: {which}"
    if now.status.get("waiting") and in_use(now.path):
        yield "waits for other peers before its first round since it started"
    if away:
        yield f"unreachable: {enumerated(away)}"
    if in_use(now.path):
        failed = now.status.get("failed_connections") or {}
        for address, reason in sorted(failed.items())[:_NAMED]:
            yield f"connection to {shortened(str(address))} fails: {reason}"
    if (expires := now.status.get("certificate_expires")) is not None and expires < time.time() + _WARNED:
        day = datetime.fromtimestamp(expires, UTC).date()
        yield f"the certificate of this peer {'expired' if expires < time.time() else 'expires'} on {day}"


def _stalled(late: Sequence[Vitals]) -> Iterator[str]:
    """Name the runs of a comparison whose rounds do not end."""
    for one in late[:_NAMED]:
        yield f"{one.path.name}: {one.late}"


def enumerated(names: Sequence[str]) -> str:
    """The first dozen names, and how many there are beside them."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(shortened(str(name)) for name in names[:_NAMED]) + more


def _left(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def duration(seconds: float) -> str:
    """Seconds in words: 8 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _nothing(folder: Path, why: str) -> View:
    """The view of a folder in which no run has begun, or that this version cannot read."""
    try:
        compared = is_comparison(folder)
    except UserError:
        compared = None
    if is_run(folder) or compared is None:
        absent = Absent("unreadable", "This folder cannot be shown", why)
        return View(str(folder), "A folder that cannot be read", "unreadable", [], [Tab("Problem", [absent])])
    if not compared:
        why = f"no run has begun in {folder}; the page shows it as soon as it does"
    state = "running" if in_use(folder) else "stopped" if compared else "waiting"
    return View(
        str(folder), "Waiting for the first round", state, [],
        [Tab("Waiting", [Absent("waiting", "Nothing to show yet", why)])],
    )  # fmt: skip
