"""The signed membership document: who signs it, which version wins, and the settings that it brings."""

from __future__ import annotations

import json
import logging
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homophily.errors import UserError
from homophily.peer import certificates, federation_folder
from homophily.peer.identity import Authority, Identity, Refused
from homophily.peer.membership_document import open_document, sign_document
from homophily.peer.membership_keeper import MembershipKeeper
from homophily.peer.network import address_of
from homophily.peer.refusals import Refusals
from homophily.peer.settings import PeerSettings, load
from tests.patience import until
from tests.peer.clinics import NAMES, opened, peer_file
from tests.peer.linked import free_port


def test_every_change_is_a_new_version_that_the_authority_signs(office: Path) -> None:
    assert (opened(office).version, sorted(opened(office).members)) == (4, list(NAMES))
    federation_folder.remove(office, "cid")
    assert (opened(office).version, sorted(opened(office).members)) == (5, ["ann", "bob"])
    serial = certificates.read_certificate(office / "cid.pem").serial_number
    assert opened(office).revoked == (f"{serial:x}",)
    with pytest.raises(UserError, match="'cid' is not a member of clinics; members: ann, bob"):
        federation_folder.remove(office, "cid")


def test_a_document_of_another_signer_or_federation_is_refused(office: Path, tmp_path: Path) -> None:
    ca = certificates.read_certificate(office / "ca.pem")
    mallory, _ = certificates.authority(certificates.init(tmp_path / "other").parent)
    with pytest.raises(Refused, match="not signed by this authority"):
        open_document(sign_document(opened(office), mallory), ca, "clinics")
    data = (office / "membership.json").read_bytes()
    with pytest.raises(Refused, match="not signed by this authority"):
        open_document(data.replace(b"ann", b"eve"), ca, "clinics")
    with pytest.raises(Refused, match="of another federation"):
        open_document(data, ca, "banks")


@pytest.mark.parametrize(
    "changes",
    [{"version": 0}, {"version": "4"}, {"expires": None}, {"members": {"Ann": {"addresses": [], "generation": 1}}},
     {"members": {"ann": {"addresses": ["here"], "generation": 1}}}, {"members": []}, {"revoked": ["xyz"]},
     {"settings": 3}, {"more": 1}],
)  # fmt: skip
def test_every_field_is_checked(office: Path, changes: dict[str, Any]) -> None:
    key, ca = certificates.authority(office)
    body = json.loads(json.loads((office / "membership.json").read_bytes())["body"])

    text = json.dumps({**body, **changes})
    signature = b64encode(key.sign(b"homophily membership 1\n" + text.encode())).decode()
    with pytest.raises(Refused, match="malformed membership document"):
        open_document(json.dumps({"body": text, "signature": signature}).encode(), ca, "clinics")


def keeper(office: Path, tmp_path: Path, applied: list[int], offered: list[bytes]) -> MembershipKeeper:
    known = (office / "membership.json").read_bytes(), opened(office)
    log = logging.getLogger("homophily.peer.test")
    ca = certificates.read_certificate(office / "ca.pem")
    return MembershipKeeper(
        known, ca, tmp_path / "stored.json", tmp_path / "watched.json",
        lambda document: applied.append(document.version), offered.append, Refusals(log), log,
    )  # fmt: skip


def test_the_newest_version_wins_and_a_rollback_changes_nothing(office: Path, tmp_path: Path) -> None:
    applied: list[int] = []
    offered: list[bytes] = []
    kept, old = keeper(office, tmp_path, applied, offered), (office / "membership.json").read_bytes()
    federation_folder.remove(office, "cid")
    new = (office / "membership.json").read_bytes()
    assert not kept.consider(new)
    assert kept.consider(old)  # it is older
    assert not kept.consider(new)
    assert (applied, offered) == ([5], [new])
    assert (tmp_path / "stored.json").read_bytes() == new
    key, _ = certificates.authority(office)
    fork = sign_document(replace(opened(office), members={}), key)
    kept.consider(fork)
    assert applied == [5]


def test_the_end_of_a_document_is_announced_once_per_version(
    office: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation_folder, "_DAYS", 29)
    federation_folder.remove(office, "cid")
    monkeypatch.undo()
    kept = keeper(office, tmp_path, [], [])
    with caplog.at_level(logging.INFO, "homophily.peer.test"):
        kept.start()
        until(lambda: caplog.messages, "a warning")
        federation_folder.remove(office, "bob")
        (tmp_path / "watched.json").write_bytes((office / "membership.json").read_bytes())
        until(lambda: kept.document.version == 6, "the file is read")
        time.sleep(2.5)  # another look
        kept.stop()
    first, *others = caplog.messages
    assert first.startswith("the membership document version 5 expires on ")
    assert not any("expires on" in message for message in others)


def test_a_damaged_folder_of_an_authority_is_an_error_of_one_sentence(office: Path) -> None:
    document = office / "membership.json"
    document.write_text(document.read_text().replace("ann", "eve"))
    with pytest.raises(
        UserError, match=r"membership\.json is damaged: membership document not signed by this authority"
    ):
        federation_folder.current(office)


def test_signed_messages_of_a_revoked_certificate_are_refused_by_name_and_serial(office: Path) -> None:
    authority = Authority(office / "ca.pem", NAMES)
    cid = Identity("cid", office / "cid.pem", office / "cid.key")
    authority.open(cid.seal({}))
    serial = f"{certificates.read_certificate(office / 'cid.pem').serial_number:x}"
    federation_folder.revoke(office, "cid")
    document = opened(office)
    authority.apply(document.common_names, document.revoked, document.expires)
    with pytest.raises(Refused, match=f"certificate {serial} of cid is revoked"):
        authority.open(cid.seal({}))
    authority.apply(document.common_names, (), document.expires)  # by its common name, too
    with pytest.raises(Refused, match=f"certificate {serial} of cid is revoked"):
        authority.open(cid.seal({}))
    for kind in ("pem", "key"):
        (office / f"cid.{kind}").unlink()
    federation_folder.issue_key(office, "cid", ["127.0.0.1"], 365)
    authority.open(Identity("cid", office / "cid.pem", office / "cid.key").seal({}))
    authority.apply(document.common_names, (), time.time() - 1)
    with pytest.raises(Refused, match="membership document expired on"):
        authority.open(Identity("ann", office / "ann.pem", office / "ann.key").seal({}))


def test_a_refusal_names_the_membership_document_or_the_list_that_leaves_a_peer_out(
    office: Path, tmp_path: Path
) -> None:
    path = peer_file(tmp_path, "ann", free_port(), [], 'deny = ["cid"]\n')
    federation_folder.remove(office, "bob")
    (tmp_path / "inbox-ann.json").write_bytes((office / "membership.json").read_bytes())
    for kind in ("pem", "key"):
        (office / f"bob.{kind}").unlink()
    certificates.issue(office, "bob", ["127.0.0.1"])  # one that is not revoked
    settings = load(path)
    assert settings.document is not None
    authority = Authority(office / "ca.pem", settings.peer.allow, settings.absence)
    for name, absence in (("bob", "not in the membership document"), ("cid", "in peer.deny")):
        with pytest.raises(Refused, match=f"^name {absence}$"):
            authority.open(Identity(name, office / f"{name}.pem", office / f"{name}.key").seal({}))
    assert replace(settings, document=None).absence("bob") == "not in peer.allow"


def test_a_peers_file_takes_members_and_settings_from_the_document_and_can_only_narrow(
    office: Path, tmp_path: Path
) -> None:
    file = peer_file(tmp_path, "ann", free_port(), [], 'deny = ["cid"]\n')
    (tmp_path / "inbox-ann.json").write_bytes((office / "membership.json").read_bytes())
    found = load(file)
    assert (found.peer.allow, found.config.rounds) == (["ann", "bob"], 100000)
    file.write_text("rounds = 7\n" + file.read_text())
    with pytest.raises(UserError, match=r"rounds = 7, but the membership document version 4 has 100000 for all"):
        load(file)
    federation_folder.remove(office, "ann")
    (tmp_path / "inbox-ann.json").write_bytes((office / "membership.json").read_bytes())
    with pytest.raises(UserError, match="ann is not a member of clinics by the membership document version 5"):
        load(file)


def test_a_document_sets_the_keys_of_peer_on_which_all_must_agree_and_no_others(office: Path, tmp_path: Path) -> None:
    inbox, shared = tmp_path / "inbox-ann.json", tmp_path / "shared.toml"
    federation_folder.add(office, "bob", ["127.0.0.1:7001"])

    def loaded(peer: str, more: str = "") -> PeerSettings:
        shared.write_text(f'method = "random"\n{peer}')
        federation_folder.share(office, shared)
        inbox.write_bytes((office / "membership.json").read_bytes())
        return load(peer_file(tmp_path, "ann", free_port(), [], more))

    partial = loaded('[peer]\nmesh = "partial"\npace = "lockstep"\nclasses = 5\n')
    assert (partial.peer.mesh, partial.peer.pace, partial.peer.classes) == ("partial", "lockstep", 5)
    assert partial.under(partial.document or opened(office)).peer == partial.peer
    own = loaded('[peer]\nmesh = "partial"\n', 'mesh = "partial"\nclasses = 3\n')
    assert (own.peer.mesh, own.peer.pace, own.peer.classes) == ("partial", "free", 3)
    with pytest.raises(UserError, match=r"peer\.mesh = 'full', but the membership document version \d+ has 'partial'"):
        loaded('[peer]\nmesh = "partial"\n', 'mesh = "full"\n')
    assert loaded("").peer.mesh == "full"
    with pytest.raises(UserError, match=r"of the table \[peer\] only mesh, pace, classes can be shared by all peers"):
        loaded("[peer]\ndeadline = 5\n")
    with pytest.raises(UserError, match=r"peer\.mesh"):
        loaded('[peer]\nmesh = "some"\n')


@pytest.mark.parametrize(("mesh", "connect", "dialled"), [
    ("full", [], ["127.0.0.1:7001"]), ("full", [7002], ["127.0.0.1:7002", "127.0.0.1:7001"]),
    ("partial", [], ["127.0.0.1:7001"]), ("partial", [7002], ["127.0.0.1:7002"]),
])  # fmt: skip
def test_whom_a_member_dials(office: Path, tmp_path: Path, mesh: str, connect: list[int], dialled: list[str]) -> None:
    federation_folder.add(office, "ann", ["127.0.0.1:7001"])
    (tmp_path / "inbox-bob.json").write_bytes((office / "membership.json").read_bytes())
    found = load(peer_file(tmp_path, "bob", free_port(), connect, f'mesh = "{mesh}"\n'))
    assert list(address_of(found, insecure=False).connect) == dialled
    denying = load(peer_file(tmp_path, "bob", free_port(), connect, f'mesh = "{mesh}"\ndeny = ["ann"]\n'))
    assert list(address_of(denying, insecure=False).connect) == [f"127.0.0.1:{port}" for port in connect]


def test_a_shared_file_of_constants_becomes_part_of_the_document(office: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/scale.toml").write_text("mean = [1.5, 2.0]\nstd = [2.0, 4.0]\nclasses = 2\n")
    shared = tmp_path / "elsewhere/shared.toml"
    shared.write_text('rounds = 7\ndata = { scale = "scale.toml", train = 40 }\n')
    found = federation_folder.share(office, shared).settings["data"]
    assert found == {"scale": {"mean": [1.5, 2.0], "std": [2.0, 4.0], "classes": 2}, "train": 40}
    (tmp_path / "elsewhere/scale.toml").unlink()
    with pytest.raises(UserError, match=r"cannot read the file .*scale\.toml"):
        federation_folder.share(office, shared)


@pytest.mark.parametrize(("text", "refused"), [
    ("rounds = 90000", "rounds = 100000 refuse rounds = 90000"),
    ("rounds = 200000", None),
    ("rounds = 100000\nseed = 4", "seed = 0 refuse seed = 4"),
    ("rounds = 100000\ndata = { scale = { mean = [1.0], std = [2.0] } }", "other constants refuse the new data.scale"),
    ("rounds = 100000\n[peer]\nclasses = 3", "no peer.classes refuse peer.classes = 3"),
    ('rounds = 100000\n[peer]\nmesh = "partial"', None),
])  # fmt: skip
def test_settings_that_state_folders_refuse_are_shared_with_a_note(
    text: str, refused: str | None, office: Path, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    shared = tmp_path / "shared.toml"
    method = "" if "method" in text else 'method = "random"\n'
    shared.write_text(f"{method}{text}\n")
    code, out, err = command("federation", "share", str(shared), "--folder", str(office))
    assert (code, "version" in out) == (0, True)
    note = "" if refused is None else f"note: members that have played a round with {refused}: while they run"
    assert err.startswith(note)
    assert bool(err) == (refused is not None)
    for name in NAMES:
        federation_folder.remove(office, name)
    shared.write_text("rounds = 3\n")
    assert command("federation", "share", str(shared), "--folder", str(office))[2] == ""  # nobody has played
