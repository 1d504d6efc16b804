"""What running peers do with a new membership document."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from homophily import TrackedRun, Tracker
from homophily.errors import UserError
from homophily.peer import Peer, federation_folder, process
from homophily.peer.settings import PeerSettings
from homophily.peer.setup import PeerSetup, prepare_peer
from homophily.runs.reader import Run
from tests.patience import MINUTE, until
from tests.peer.clinics import NAMES, Clinics, opened, peer_file
from tests.peer.linked import free_port
from tests.trackers.reading import approximately, points


def test_running_peers_apply_a_new_document_and_one_that_was_away_catches_up(office: Path, clinics: Clinics) -> None:
    clinics.start(0, 1)
    clinics.all_meet(0, 1)  # cid is away
    federation_folder.add(office, "dan")
    federation_folder.issue_key(office, "dan", ["127.0.0.1"], 365)
    clinics.deliver(0)
    clinics.deliver(3)
    clinics.start(3)
    clinics.all_meet(0, 1, 3)
    began = time.monotonic()
    federation_folder.remove(office, "bob")
    clinics.deliver(0)
    assert clinics.end(1) == 1  # it learns from the others that it is not a member any more
    clinics.all_meet(0, 3)
    assert time.monotonic() - began < MINUTE
    assert "bob is not a member of clinics" in (clinics.folder / "bob" / "peer.log").read_text()
    clinics.kill(0)
    clinics.start(2)  # cid has the document of the start, in which dan is unknown and bob is a member
    clinics.all_meet(2, 3)
    assert clinics.status(2)["membership"] == 6
    assert json.loads((clinics.folder / "cid/membership.json").read_text()) == json.loads(
        (office / "membership.json").read_text()
    )


def test_a_peer_that_waits_for_a_member_that_is_removed_starts_with_the_others(office: Path, clinics: Clinics) -> None:
    for i in (0, 1):
        clinics.files[i].write_text(clinics.files[i].read_text() + "wait_for = 2\n")
    clinics.start(0, 1)
    states = [clinics.folder / name / "status.json" for name in ("ann", "bob")]
    until(lambda: all(path.exists() for path in states), "they wait")
    until(lambda: all(len(clinics.status(i)["reachable"]) == 1 for i in (0, 1)), "for cid")
    federation_folder.remove(office, "cid")
    clinics.deliver(0)
    clinics.all_meet(0, 1)


def test_a_document_that_comes_while_another_is_applied_applies_too(
    office: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its members are those of the next round, not of the one after."""
    port = free_port()
    (tmp_path / "inbox-ann.json").write_bytes((office / "membership.json").read_bytes())
    with Peer(peer_file(tmp_path, "ann", port, [])) as peer:
        prepared: list[int] = []

        def prepare(settings: PeerSettings) -> PeerSetup:
            found = prepare_peer(settings)
            prepared.append(len(settings.peer.allow))
            if len(prepared) == 1:
                federation_folder.remove(office, "bob")
                peer._govern(opened(office))
            return found

        monkeypatch.setattr(process, "prepare_peer", prepare)
        federation_folder.remove(office, "cid")
        peer._govern(opened(office))
        peer.step()
        assert prepared == [2, 1]


def file_of_the_only_member(office: Path, folder: Path) -> Path:
    """The file of ann, who is left in the federation and has its newest document."""
    federation_folder.remove(office, "bob")
    federation_folder.remove(office, "cid")
    (folder / "inbox-ann.json").write_bytes((office / "membership.json").read_bytes())
    return peer_file(folder, "ann", free_port(), [])


class Noting(Tracker):
    """Notes what it is called for, and with which round."""

    calls: ClassVar[list[tuple[str, int]]] = []

    def open(self, run: TrackedRun, identity: dict[str, Any] | None) -> dict[str, Any]:
        self.calls.append(("open", run.logged))
        self._round = run.logged
        return {}

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self.calls.append(("log", round))
        self._round = round

    def flush(self) -> None:
        self.calls.append(("flush", self._round))


def test_trackers_are_closed_before_a_new_document_opens_them_again(
    office: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Noting, "calls", [])
    file = file_of_the_only_member(office, tmp_path)
    file.write_text(f'tracker = ["tensorboard", "{__name__}:Noting"]\n' + file.read_text())
    with Peer(file) as peer:
        peer.step()
        federation_folder.add(office, "dan")
        peer._govern(opened(office))
        peer.step()
    assert Noting.calls == [("open", 0), ("log", 1), ("flush", 1), ("open", 1), ("log", 2)]
    expected = [(line["round"], line["accuracy"]) for line in Run(tmp_path / "ann").metrics()]
    assert [round for round, _ in expected] == [1, 2]
    assert points("tensorboard", tmp_path / "ann", "accuracy") == approximately(expected)


def test_a_peer_without_the_package_of_a_shared_tracker_plays_on(
    office: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    file = file_of_the_only_member(office, tmp_path)
    (tmp_path / "shared.toml").write_text('rounds = 100000\nmethod = "random"\ntracker = "wandb"\n')
    with Peer(file) as peer:
        peer.step()
        peer._govern(federation_folder.share(office, tmp_path / "shared.toml"))
        assert peer.step()["round"] == 2
    log = (tmp_path / "ann/peer.log").read_text()
    assert re.search("needs wandb: pip install .*; this peer plays on with the settings of before", log)


def test_a_peer_that_cannot_join_leaves_no_links_open(
    office: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    (tmp_path / "inbox-ann.json").write_bytes((office / "membership.json").read_bytes())

    def refuse(*arguments: Any) -> None:
        raise UserError("the ledger is missing")

    monkeypatch.setattr(PeerSetup, "releases", refuse)
    with pytest.raises(UserError, match="the ledger is missing"), Peer(peer_file(tmp_path, "ann", port, [])):
        pass
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_running_peer_says_which_shared_settings_it_refuses_and_plays_on(office: Path, clinics: Clinics) -> None:
    clinics.start(0)
    until(lambda: clinics.round(0) > 0, "ann plays")
    log = clinics.folder / "ann" / "peer.log"
    shared = clinics.folder / "shared.toml"
    for number, (text, reason) in enumerate([
        ("rounds = 90000", "rounds = 90000, but .*ann holds a state with 100000: rounds can only be increased; "
         "the value is that of the membership document version 5: ask the authority for the old one"),
        ("rounds = 100000\n[peer]\nclasses = 3", "cannot resume .*ann: the network, or the shape of the data, differs"),
    ]):  # fmt: skip
        shared.write_text(f'method = "random"\n{text}\n')
        version = federation_folder.share(office, shared).version
        clinics.deliver(0)
        line = (
            f"the settings of membership document version {version}: {reason}.*; this peer plays on with the settings"
        )
        until(lambda line=line: re.search(line, log.read_text()) is not None, f"a line of the log ({number})")
        clinics.go_on(0)
    assert clinics.status(0)["rounds"] == 100_000
    shared.write_text('rounds = 90000\nmethod = "random"\n')
    federation_folder.share(office, shared)
    clinics.deliver(0)
    clinics.kill(0)
    with pytest.raises(
        UserError, match=r"holds a state with 100000.* membership document version 7: ask the authority"
    ):
        Peer(clinics.files[0]).result()


def test_a_peer_that_denies_most_members_plays_with_the_others(office: Path, clinics: Clinics) -> None:
    federation_folder.add(office, "dan")
    federation_folder.issue_key(office, "dan", ["127.0.0.1"], 365)
    for i in range(4):
        clinics.deliver(i)
    clinics.files[0].write_text(clinics.files[0].read_text() + 'deny = ["cid", "dan"]\n')
    clinics.start(0, 1, 2, 3)
    until(lambda: clinics.met(1) == {"ann", "cid", "dan"}, "bob meets all")  # more members than ann allows
    until(lambda: clinics.met(0) == {"bob"}, "ann meets bob alone")
    assert not any("malformed" in why for why in clinics.status(0)["refused"])


def test_members_that_only_dial_out_pass_models_through_the_one_that_can_be_reached(
    office: Path, tmp_path: Path
) -> None:
    """Their files name no address and no mesh: both are in the document."""
    (tmp_path / "shared.toml").write_text(
        'rounds = 100000\nmethod = { name = "random", hops = 2 }\n[peer]\nmesh = "partial"\n'
    )
    federation_folder.share(office, tmp_path / "shared.toml")
    clinics, port = Clinics(tmp_path, NAMES), free_port()
    federation_folder.add(office, "ann", [f"127.0.0.1:{port}"])
    try:
        for i, name in enumerate(NAMES):
            clinics.deliver(i)
            clinics.files[i] = peer_file(tmp_path, name, port, [])
            if i > 0:
                text = clinics.files[i].read_text()
                clinics.files[i].write_text(text.replace(f'listen = ["127.0.0.1:{port}"]\n', ""))
        clinics.start(0, 1, 2)
        clinics.all_meet(0, 1, 2)
        assert clinics.status(1)["reachable"] == {"ann": 1, "cid": 2}
    finally:
        clinics.close()
