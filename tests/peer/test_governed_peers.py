"""Peers that run under an authority's service: the documented commands, renewal and revocation."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from homophily.peer import federation_folder
from homophily.peer.doctor import examine
from homophily.peer.network import address_of
from homophily.peer.settings import load
from homophily.peer.transport import NoAnswer, ZenohLinks
from tests.docs.pages import NOT_RUN, blocks
from tests.patience import MINUTE, eventually, until
from tests.peer.clinics import NAMES, Clinics
from tests.peer.linked import QUIET, free_port, opened
from tests.peer.site import Site
from tests.peer.test_joining import Office

SHOWN = [command for block in blocks("docs/deploy.md") if block.language == "sh" for command in block.commands]


def shown(words: str) -> list[str]:
    """The arguments of the first command of docs/deploy.md that begins with these words."""
    return next(command for command in SHOWN if command.startswith(f"homophily {words}")).split()[1:]


def test_the_commands_of_the_page_make_a_member(tmp_path: Path) -> None:
    office, new = Site(tmp_path / "authority"), Site(tmp_path / "hospital")
    (office.folder / "shared.toml").write_text("rounds = 3\n")
    at = f"127.0.0.1:{free_port()}"
    with closing(office), closing(new):
        said = office.type(*[at if word == "127.0.0.1:17440" else word for word in shown("federation init")])
        assert "next, on this machine:      homophily federation serve\n" in said
        assert said.endswith("then, for each new member:  homophily federation invite NAME")
        office.start("serve.log", *shown("federation serve"))
        until(lambda: f"the authority listens on {at}" in office.printed("serve.log"), "the service starts")
        token = office.type(*shown("federation invite hospital-d"))
        join = new.start("join.log", *[token if word == "TOKEN" else word for word in shown("join TOKEN")])
        until(lambda: "code: " in new.printed("join.log"), "a code")
        code = re.search(r"code: (\d{3}) (\d{3})", new.printed("join.log"))
        assert code is not None
        assert "hospital-d" in office.type(*shown("federation requests"))
        office.type(*shown("federation confirm")[:-1], code[1] + code[2])
        assert join.wait(30) == 0, new.printed("join.log")
    said = "peer.toml: hospital-d has joined tumours; start it with: homophily peer peer.toml"
    assert said in new.printed("join.log")
    settings = load(new.folder / "peer.toml")
    assert (settings.config.rounds, settings.peer.allow) == (3, ["hospital-d"])
    not_run = ("federation serve", "join", "federation confirm")
    assert {"homophily " + " ".join(shown(words)) for words in not_run} <= NOT_RUN.keys()


@pytest.fixture
def governed(tmp_path: Path) -> Iterator[tuple[Office, Clinics]]:
    """Three peers, of which ann's certificate ends in ten days."""
    office = Office(tmp_path, rounds=100_000)
    for name in NAMES:
        federation_folder.add(office.folder, name)
        federation_folder.issue_key(office.folder, name, ["127.0.0.1"], 10 if name == "ann" else 365)
    clinics = Clinics(tmp_path, NAMES)
    yield office, clinics
    clinics.close()
    office.service.close()


def test_a_running_peer_renews_its_certificate_and_a_revoked_one_is_out_within_a_minute(
    governed: tuple[Office, Clinics],
) -> None:
    office, clinics = governed
    clinics.start(0, 1, 2)
    clinics.all_meet(0, 1, 2)
    until(lambda: clinics.status(0)["certificate_expires"] > time.time() + 300 * 86400, "ann has a new certificate")
    assert "was renewed; it is valid until" in (clinics.folder / "ann/peer.log").read_text()
    clinics.go_on(0, 1, 2)
    clinics.all_meet(0, 1, 2)  # the links continue
    federation_folder.revoke(office.folder, "bob")
    began = time.monotonic()
    assert clinics.end(1) == 1
    clinics.all_meet(0, 2)
    until(lambda: all("bob" not in clinics.status(i)["neighbours"] for i in (0, 2)), "no link of bob is left")
    assert time.monotonic() - began < MINUTE
    assert "other peers will refuse" in (clinics.folder / "bob/peer.log").read_text()


def test_the_doctor_asks_the_authority_and_dials_members_that_dial_this_peer(governed: tuple[Office, Clinics]) -> None:
    office, clinics = governed
    (bob,), (cid,) = (load(file).peer.listen for file in clinics.files[1:])
    federation_folder.add(office.folder, "bob", [bob])
    version = federation_folder.add(office.folder, "cid", [cid]).version  # ann's file has an older document
    clinics.start(1)
    until(lambda: clinics.round(1) > 0, "bob plays")
    found = {check.subject: check for check in examine(clinics.files[0])}
    assert found["authority"].text == f"answers, and has version {version}, which is used for what follows"
    assert found["certificate"].text.endswith(": start the peer, which renews it")
    assert found[f"dial {bob}"].text.startswith("bob, connected in ")
    assert found[f"dial {cid}"].text.startswith("connection refused: ")
    assert f"member {bob}" not in found
    assert found["bob: settings"].ok
    assert "round trip" in found["bob: link"].text
    federation_folder.add(office.folder, "cid", [bob])  # a mistake of the authority
    federation_folder.add(office.folder, "bob")
    wrong = {check.subject: check for check in examine(clinics.files[0])}[f"member {bob}"]
    assert (wrong.ok, wrong.text) == (
        False,
        "bob answers, but this is the address of cid in the membership document: ask the authority to correct it: "
        "homophily federation add cid --address HOST:PORT",
    )
    document = federation_folder.add(office.folder, "bob", [f"127.0.0.1:{free_port()}"])  # it cannot be reached there
    clinics.start(0)
    until(lambda: clinics.round(0) > 0, "ann plays")
    until(lambda: clinics.status(0)["membership"] == document.version, "ann has the newest document")
    until(lambda: "bob" in clinics.status(0)["neighbours"], "bob has dialled ann")
    office.service.close()

    def dialled() -> bool:  # not while the links close and open again, with ann's new certificate or the new document
        found.update((check.subject, check) for check in examine(clinics.files[0]))
        return any(check.text == "bob has dialled this peer" and check.ok for check in found.values())

    until(dialled, "the doctor sees that bob has dialled ann")
    assert not found["authority"].ok
    assert "cannot be reached: Connection re" in found["authority"].text


def test_a_new_state_folder_begins_with_the_authoritys_document(governed: tuple[Office, Clinics]) -> None:
    office, clinics = governed
    shared = office.folder.parent / "other.toml"
    shared.write_text('rounds = 90_000\nmethod = "random"\n')  # fewer: a state folder of 100,000 would refuse them
    version = federation_folder.share(office.folder, shared).version
    clinics.start(0)  # the document beside its file is the one with which it joined
    until(lambda: clinics.round(0) > 0, "ann plays")
    assert (clinics.status(0)["rounds"], clinics.status(0)["membership"]) == (90_000, version)
    assert "the settings of membership document" not in (clinics.folder / "ann/peer.log").read_text()


class Thief:
    """A process with a copy of a peer's key that only listens and asks, and ignores membership documents."""

    def __init__(self, clinics: Clinics, peer: int) -> None:
        stolen = address_of(load(clinics.files[peer]), insecure=False)
        dialled = tuple(address for file in clinics.files for address in load(file).peer.listen)
        self.heard: list[float] = []
        self.links = opened(ZenohLinks(replace(stolen, listen=(), connect=dialled, observer=True)))
        self.links.observe(lambda sealed: self.heard.append(time.monotonic()))

    def answer_of(self, name: str) -> str:
        """What a member says to a request of the thief. A member that lets it in declines a request for nothing."""
        try:
            self.links.request(name, "nothing", timeout=2.0)
        except NoAnswer as error:
            return str(error)
        return "an answer"


def test_a_stolen_key_of_a_removed_member_is_refused_within_a_minute(governed: tuple[Office, Clinics]) -> None:
    office, clinics = governed
    clinics.start(0, 2)
    clinics.all_meet(0, 2)
    thief = Thief(clinics, 1)
    assert eventually(lambda: thief.heard)
    until(lambda: "no answer" not in (thief.answer_of("ann"), thief.answer_of("cid")), "members let the thief in")
    Site(office.folder.parent).type("federation", "remove", "bob")
    began = time.monotonic()
    until(lambda: time.monotonic() - thief.heard[-1] > 10 * QUIET, "members stop to send to the thief")
    assert thief.heard[-1] - began < MINUTE
    heard = len(thief.heard)
    for late in (thief, Thief(clinics, 1)):  # also if it dials anew
        assert (late.answer_of("ann"), late.answer_of("cid")) == ("no answer", "no answer")
    clinics.go_on(0, 2)
    clinics.all_meet(0, 2)
    assert (len(thief.heard), late.heard) == (heard, [])
    for peer in (0, 2):
        assert "bob" not in clinics.status(peer)["reachable"]
        assert "connection of a name not in the membership document (bob)" in clinics.status(peer)["refused"]
