"""One real peer from start to end: it joins the other peers and runs the rounds.

Its state folder holds every round that is over, so that a peer can be stopped at any time.
"""

from __future__ import annotations

import logging
import resource
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from homophily.atomic_io import locked, write_json
from homophily.errors import UserError
from homophily.experiments.callbacks import Callback, Callbacks
from homophily.experiments.runner import ActiveRun, RoundPlayer, form, torch_settings
from homophily.experiments.tracking import Tracking
from homophily.federation.merging import merges
from homophily.peer import handshakes
from homophily.peer.authority_client import RENEWED_BEFORE, AuthorityClient, begun
from homophily.peer.certificates import read_certificate
from homophily.peer.logs import LogSettings, peer_log, peer_logger
from homophily.peer.membership_document import MembershipDocument
from homophily.peer.membership_keeper import MembershipKeeper, newest
from homophily.peer.network import NamedObserver, PeerNetwork, address_of
from homophily.peer.refusals import Refusals
from homophily.peer.releases import TrainedOnce
from homophily.peer.settings import PeerSettings, load, outside_loopback
from homophily.peer.setup import PeerSetup, govern, prepare_peer
from homophily.peer.state_folder import check_state_config, open_state
from homophily.peer.transport import ZenohLinks
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.exchange import PeerExchange
from homophily.simulation.recording import RecordedPeers
from homophily.simulation.rounds import RunState
from homophily.simulation.user_objects import UserObjects

_OFFER_SECONDS = 0.5
_CPU = torch.device("cpu")


class _MembersChanged(Exception):
    """A peer that waits for others may have to wait for other ones."""


class Peer:
    """One real peer: ``with Peer(settings) as peer: for metrics in peer: ...``, or simply ``Peer(settings).result()``.

    It resumes from its state folder.
    """

    def __init__(
        self,
        settings: PeerSettings | Path | str,
        *,
        insecure: bool = False,
        callbacks: Sequence[Callback] = (),
        alone: bool = False,
        json_log: bool = False,
        log_to_stderr: bool = False,
    ) -> None:
        """settings: a peer's file, or what was loaded from one; insecure: no TLS, on loopback addresses only;
        callbacks: called after every round; alone: this process runs nothing else, so that failed handshakes can be
        counted from its standard output; json_log: a JSON object for each line of the log; log_to_stderr: print it
        too."""
        self.settings = settings if isinstance(settings, PeerSettings) else load(Path(settings))
        if insecure and (outside := outside_loopback(self.settings.peer)):
            raise UserError(
                f"--insecure is allowed only if peer.listen and peer.connect are loopback addresses, not {outside[0]}"
            )
        self._insecure, self._alone, self._callbacks = insecure, alone, Callbacks(callbacks)
        self.settings, self._newer = begun(self.settings) if not insecure else (self.settings, None)
        self._setup = prepare_peer(self.settings)
        peer = self.settings.peer
        self._log_settings = LogSettings(json_log, log_to_stderr, int(peer.log_mb * 2**20), peer.log_files)
        self._log = peer_logger(self.settings.peer.name)
        self._stack = ExitStack()
        self._failures: handshakes.ConnectFailures | None = None  # not known unless alone
        self._active: ActiveRun | None = None
        self._result: Run | None = None
        self._next: MembershipDocument | None = None  # if it has changed, it applies after this round
        self._changed = threading.Event()

    def __enter__(self) -> Peer:
        """Open the state folder and join the other peers."""
        _allow_many_files()
        with ExitStack() as stack:
            stack.enter_context(locked(self.settings.state))
            writer = open_state(self._setup)
            stack.enter_context(peer_log(writer.path / "peer.log", self.settings.peer.name, self._log_settings))
            refusals = Refusals(self._log)
            if self._alone:  # before the first link: zenoh reads the settings of its log only once
                self._failures = stack.enter_context(handshakes.watch_handshakes(refusals, self._log))
            links = ZenohLinks(address_of(self.settings, self._insecure))
            stack.callback(links.close)
            links.bound_strangers(refusals, self._log)
            self._links, self._refusals = links, refusals
            self._keeper = self._membership_keeper(links, refusals)
            self._network = PeerNetwork.on(links, self._setup, refusals)
            stack.callback(lambda: self._network.close())
            self._tracking = Tracking(self._setup.config)
            active = self._joined(writer)
            if self._keeper is not None:
                self._keeper.start()
                stack.callback(self._keeper.stop)
                client = self._authority_client(self._keeper)
                client.start()
                stack.callback(client.stop)
            plan = self._setup.training.plan
            stack.enter_context(torch_settings(self._setup.config, plan, self._setup.device))
            stack.enter_context(stopping())
            self._log_start(active.round)
            self._behind, self._diverged = 0, False
            self._active, self._stack = active, stack.pop_all()
        return self

    def _joined(self, writer: RunWriter) -> ActiveRun:
        """This peer's run, with the network as its source of models."""
        active = _active_run(self._setup, self._network, writer, self._callbacks.observed_by(self._tracking))
        receive = (lambda data: None) if self._keeper is None else self._keeper.receive
        self._network.start(self._setup, self._links, receive)
        self._player, self._together = RoundPlayer([active]), False
        return active

    def _membership_keeper(self, links: ZenohLinks, refusals: Refusals) -> MembershipKeeper | None:
        if self.settings.document is None:
            return None
        peer, stored = self.settings.peer, self.settings.stored_document
        authority, watched = read_certificate(self.settings.path(peer.ca)), self.settings.path(peer.membership)
        if self._newer is not None:
            known = self._newer, self.settings.document
        else:
            known = newest([path for path in (stored, watched) if path.exists()], authority, peer.federation)
        return MembershipKeeper(known, authority, stored, watched, self._govern, links.offer, refusals, self._log)

    def _authority_client(self, keeper: MembershipKeeper) -> AuthorityClient:
        return AuthorityClient(self.settings, lambda: keeper.document, keeper.receive, keeper.apply_again, self._log)

    def _govern(self, document: MembershipDocument) -> None:
        """Refuse at once whom a new document leaves out or revokes, and renew the links; ``_rejoin`` does the rest."""
        self._next = document
        self._changed.set()
        try:
            settings = self._settings_under(document)
        except UserError:  # this peer is not a member any more, and stops after the round
            self._setup.authority.apply({}, (), document.expires)
            return
        govern(self._setup.authority, settings)
        time.sleep(_OFFER_SECONDS)  # for the neighbours to receive the document over the present links
        try:
            self._links.renew(address_of(settings, self._insecure))
        except UserError as error:
            self._log.error("the links could not be opened again: %s; trying again", error)
            assert self._keeper is not None
            self._keeper.apply_again()

    def _settings_under(self, document: MembershipDocument) -> PeerSettings:
        """The settings under a new document; its shared settings are left out if this peer's file contradicts them."""
        try:
            return self.settings.under(document)
        except UserError as error:
            before = self.settings.document
            if before is None or self.settings.peer.name not in document.members:
                raise
            self._log.error("%s; this peer plays on with the settings of before", error)
            return self.settings.under(replace(document, settings=before.settings))

    def _rejoin(self) -> None:
        """Continue after a round with the members and settings of a new membership document."""
        self._changed.clear()  # first: the document may change again from now on
        document = self._next
        assert document is not None
        writer = self._opened().writer
        self.settings = self._settings_under(document)
        try:
            setup, tracking = self._rejoined_setup(writer)
        except UserError as error:
            why = "this peer plays on with the settings of before"
            self._log.error("the settings of membership document version %d: %s; %s", document.version, error, why)
            before = self._setup.settings.document
            assert before is not None
            self.settings = self.settings.under(replace(document, settings=before.settings))
            setup, tracking = self._rejoined_setup(writer)
        published, status = self._network.transfer.published, self._network.announcer.status
        self._network.close(links=False)
        self._setup = setup
        self._network = PeerNetwork.on(self._links, setup, self._refusals)
        self._network.transfer.published = published
        self._network.announcer.continue_from(status)
        self._tracking.close(self._opened())  # the new document may change the config, and the trackers in it
        self._tracking = tracking
        self._active = self._joined(writer)

    def _rejoined_setup(self, writer: RunWriter) -> tuple[PeerSetup, Tracking]:
        setup = prepare_peer(self.settings)
        check_state_config(writer.path, Run(writer.path).config, setup.config, self.settings)
        writer.check(form(setup.training.task), setup.config, digest=None)  # peer.classes may have changed
        return setup, Tracking(setup.config)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        self._active = None

    def _log_start(self, round: int) -> None:
        peer, rounds, expires = self.settings.peer, self._setup.config.rounds, self._setup.identity.expires
        listens = f"listens on {', '.join(peer.listen)}" if peer.listen else "does not listen (peer.listen is empty)"
        self._log.info("%s %s; its state folder holds %d of %d rounds", peer.name, listens, round, rounds)
        for note in self._setup.notes:
            self._log.warning("%s", note)
        renews = self.settings.document is not None and self.settings.document.authority
        if expires - datetime.now(UTC) < RENEWED_BEFORE and not renews:
            self._log.warning(
                "the certificate %s expires on %s: issue a new one and restart this peer",
                self.settings.certificate,
                expires.date(),
            )

    @property
    def round(self) -> int:
        """The number of rounds that are over."""
        return self._opened().round

    @property
    def finished(self) -> bool:
        return self._opened().state.finished

    def _opened(self) -> ActiveRun:
        if self._active is None:
            raise UserError("this peer has not joined: use it as `with Peer(settings) as peer`, or call result()")
        return self._active

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while not self.finished:
            yield self.step()

    def step(self) -> dict[str, Any]:
        """Run one round and return its metrics. Before the first round, wait until enough other peers are online.

        A peer that has missed rounds, or whose models are too old for the others, continues at their round.
        """
        while self._changed.is_set():
            self._rejoin()
        active, pacing = self._opened(), self._network.pacing
        if active.state.finished:
            raise UserError(f"the run in {active.path} has finished: increase rounds in the peer's file to continue it")
        last = self._setup.config.rounds
        self._wait_for_start()
        active.state.round = pacing.catch_up(active.round, last, self._behind)
        self._behind = last if pacing.policy.lockstep else pacing.policy.behind
        metrics = self._player.step()[0]
        _report_divergence(self._log, metrics, was=self._diverged)
        self._diverged = bool(metrics["diverged"])
        active.save()  # the state folder holds every round that is over
        self._write_status(metrics)
        return metrics

    def _wait_for_start(self) -> None:
        while not self._together:
            try:
                self._network.pacing.wait_for_start(self.round, waiting=self._while_waiting)
                self._together = True
                self._write_status({})  # the first round may take long, and this peer does not wait any more
            except _MembersChanged:
                self._rejoin()

    def _while_waiting(self) -> None:
        self._write_status({})
        if self._changed.is_set():
            raise _MembersChanged

    def result(self) -> Run:
        """Run all remaining rounds, write the final scores and the model, and return the finished run."""
        if self._result is None and self._active is None:
            with self:
                return self.result()
        if self._result is None:
            self._wait_for_start()
            for _ in self:
                pass
            (self._result,) = self._player.finish()
            self._network.announcer.announce(finished=True)
            self._log.info(
                "%s has finished; it stays online until the other peers have its last model", self.settings.peer.name
            )
            self._network.pacing.linger()
        return self._result

    def _write_status(self, metrics: dict[str, Any]) -> None:
        active, network, peer = self._opened(), self._network, self.settings.peer
        reachable = network.members.hops()
        away = {name for name in peer.allow if name not in reachable} - {peer.name}
        status = {
            "peer": peer.name,
            "federation": peer.federation,
            "time": time.time(),
            "round": active.round,
            "rounds": self._setup.config.rounds,
            "waiting": not self._together,
            "headline": metrics.get("headline"),
            "score": metrics.get(metrics.get("headline", "")),
            "neighbours": sorted(network.links.neighbours()),
            "reachable": reachable,
            "merged": metrics.get("merged", []),
            "similarities": metrics.get("similarities", {}),
            "left_out": metrics.get("left_out", []),
            "models_left_out": metrics.get("models_left_out"),
            "unreachable": sorted(away.union(metrics.get("unreachable", []))),
            "heard": {name: round(seconds, 1) for name, seconds in network.members.ages().items()},
            "failed_connections": None if self._failures is None else self._failures.current(),
            "bytes_received": active.state.exchange.traffic.bytes,
            "bytes_served": network.transfer.bytes_served,
            "refused": network.transfer.refusals.counts(),
            "certificate_expires": self._setup.identity.expires.timestamp(),
            "membership": None if self._keeper is None else self._keeper.document.version,
            "privacy": None if network.releases is None else network.releases.account.summary(active.round),
            "notes": list(self._setup.notes),
        }
        write_json(active.path / "status.json", status)


def _allow_many_files() -> None:
    """Raise the limit on open files: every connection takes one, a stranger's too until its handshake fails."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _active_run(setup: PeerSetup, network: PeerNetwork, writer: RunWriter, callbacks: Callbacks) -> ActiveRun:
    """The peer's run after the last round that its state folder holds."""
    exchange = PeerExchange(
        setup.method,
        merges.get(setup.config.merge),
        setup.evaluator,
        network.source,
        NamedObserver(network.source, setup.notes, _recorded(setup) if setup.config.record else None),
        1,
        _CPU,
        guard=setup.training.merge_guard(setup.config),
    )
    experiment = setup.training.experiment(setup.config, setup.start, exchange)
    if network.releases is not None:
        engine = TrainedOnce(experiment.engine, network.releases)
        experiment = replace(experiment, engine=engine, account=network.releases.account)
    active = ActiveRun(RunState(experiment), writer, setup.config, UserObjects(), callbacks)
    active.restore()
    writer.write_config(setup.config)  # only after the state was restored without an error
    return active


def _recorded(setup: PeerSetup) -> RecordedPeers:
    """A real peer records itself, and the names of the peers that it may meet."""
    me, row = setup.me, torch.zeros(1, dtype=torch.int64)
    names = {me.id: setup.settings.peer.name, **me.contacts}
    return RecordedPeers(row, torch.tensor([me.id]), len(names), None, names)


def _report_divergence(log: logging.Logger, line: dict[str, Any], was: bool) -> None:
    """Log that this peer's model has diverged, or that it has recovered. was: it had diverged in the round before."""
    if line["diverged"] and not was:
        log.warning(
            "the model of this peer diverged in round %d (NaN or infinity); it recovers only by merging: "
            "consider a lower training.lr",
            line["round"],
        )
    elif was and not line["diverged"]:
        log.info("the model of this peer recovered in round %d", line["round"])


@contextmanager
def stopping() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C. It does nothing outside the main thread, which alone receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
