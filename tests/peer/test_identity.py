"""Sealed messages open only if they are unaltered, and signed by a certified peer in peer.allow."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from homophily.errors import UserError
from homophily.peer.certificates import read_certificate, read_key
from homophily.peer.identity import MAX_SEALED_BYTES, Authority, Identity, Refused, peer_id
from tests.peer.people import People, parts, sealed_by

DAY = timedelta(days=1)


def changed(sealed: bytes, **parts_: Any) -> bytes:
    return json.dumps({**parts(sealed), **parts_}).encode()


def certificate(
    people: People, name: str | None, key: Any, since: timedelta = -DAY, until: timedelta = DAY, signer: Any = None
) -> str:
    """A certificate that the authority might have issued on a bad day; name None: without one."""
    now, authority = datetime.now(UTC), read_certificate(people.ca)
    named = [] if name is None else [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    built = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(named))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + since)
        .not_valid_after(now + until)
    )
    signer = signer or read_key(people.folder / "ca.key")
    algorithm = None if isinstance(signer, Ed25519PrivateKey) else hashes.SHA256()
    return b64encode(built.sign(signer, algorithm).public_bytes(Encoding.DER)).decode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(body=st.dictionaries(st.text(max_size=8).filter(lambda key: key != "origin"), JSON, max_size=6))
def test_a_sealed_message_opens_unchanged_with_the_name_of_its_origin(people: People, body: dict[str, Any]) -> None:
    assert people.authority.open(people.identity("alice").seal(body)) == {**body, "origin": "alice"}


def test_a_peer_cannot_sign_in_the_name_of_another(people: People) -> None:
    assert people.authority.open(people.identity("alice").seal({"origin": "bob"}))["origin"] == "alice"
    key = read_key(people.folder / "alice.key")
    forged = sealed_by(key, parts(people.identity("alice").seal({}))["certificate"], {"origin": "bob"})
    with pytest.raises(Refused, match="signed by a peer that is not its origin"):
        people.authority.open(forged)


@given(data=st.data())
def test_no_byte_can_be_altered(people: People, data: st.DataObject) -> None:
    """Whatever is still opened says the same; flipped bits of base64 that mean nothing are all that may pass."""
    sealed = people.identity("alice").seal({"round": 7})
    place = data.draw(st.integers(0, len(sealed) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    altered = sealed[:place] + bytes([sealed[place] ^ bit]) + sealed[place + 1 :]
    with suppress(Refused):
        assert people.authority.open(altered) == {"round": 7, "origin": "alice"}


def test_an_altered_body_is_refused(people: People) -> None:
    sealed = people.identity("alice").seal({"round": 7})
    with pytest.raises(Refused, match="wrong signature"):
        people.authority.open(changed(sealed, body=parts(sealed)["body"].replace("7", "8")))


@pytest.mark.parametrize("signature", ["", "AAAA", "not base64!", "é", "\ud800", "A" * 88])
def test_a_wrong_signature_is_refused(people: People, signature: str) -> None:
    with pytest.raises(Refused, match="wrong signature"):
        people.authority.open(changed(people.identity("alice").seal({}), signature=signature))


def test_one_message_cannot_carry_the_signature_of_another(people: People) -> None:
    alice = people.identity("alice")
    with pytest.raises(Refused, match="wrong signature"):
        people.authority.open(changed(alice.seal({"round": 1}), signature=parts(alice.seal({"round": 2}))["signature"]))


def test_a_certificate_of_another_authority_is_refused(people: People, strangers: People) -> None:
    with pytest.raises(Refused, match="certificate not issued by this authority"):
        people.authority.open(strangers.identity("alice").seal({}))


@pytest.mark.parametrize("text", ["", "AAAA", "not base64!", "é", "\ud800"])
def test_a_string_that_is_not_a_certificate_is_refused(people: People, text: str) -> None:
    with pytest.raises(Refused, match="certificate not issued by this authority"):
        people.authority.open(changed(people.identity("alice").seal({}), certificate=text))


def test_a_certificate_that_a_peer_issued_is_refused(people: People) -> None:
    people.identity("alice")
    key, signer = Ed25519PrivateKey.generate(), read_key(people.folder / "alice.key")
    forged = certificate(people, "bob", key, signer=signer)
    with pytest.raises(Refused, match="certificate not issued by this authority"):
        people.authority.open(sealed_by(key, forged, {"origin": "bob"}))


def test_a_certificate_signed_with_another_kind_of_key_is_refused(people: People) -> None:
    key = Ed25519PrivateKey.generate()
    forged = certificate(people, "bob", key, signer=ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(Refused, match="certificate not issued by this authority"):
        people.authority.open(sealed_by(key, forged, {"origin": "bob"}))


def test_a_certificate_of_an_unknown_version_is_refused(people: People) -> None:
    key = Ed25519PrivateKey.generate()
    der = b64decode(certificate(people, "bob", key))
    version = der.index(b"\xa0\x03\x02\x01\x02")
    odd = der[: version + 4] + b"\x07" + der[version + 5 :]
    with pytest.raises(Refused, match="certificate not issued by this authority"):
        people.authority.open(sealed_by(key, b64encode(odd).decode(), {"origin": "bob"}))


def test_a_certificate_with_an_unknown_signature_algorithm_is_refused(people: People) -> None:
    key = Ed25519PrivateKey.generate()
    der = b64decode(certificate(people, "bob", key))
    odd = der.replace(b"\x06\x03\x2b\x65\x70", b"\x06\x03\x2b\x65\x7f")  # the identifier of Ed25519
    with pytest.raises(Refused, match="certificate not issued by this authority"):
        people.authority.open(sealed_by(key, b64encode(odd).decode(), {"origin": "bob"}))


def test_a_name_not_in_allow_is_refused(people: People) -> None:
    with pytest.raises(Refused, match=r"name not in peer\.allow"):
        people.authority.open(people.identity("mallory").seal({}))
    assert Authority(people.ca, ["mallory"]).open(people.identity("mallory").seal({})) == {"origin": "mallory"}


def test_a_certificate_without_a_name_is_refused(people: People) -> None:
    key = Ed25519PrivateKey.generate()
    with pytest.raises(Refused, match=r"name not in peer\.allow"):
        people.authority.open(sealed_by(key, certificate(people, None, key), {"origin": ""}))


def test_an_expired_or_not_yet_valid_certificate_is_refused(people: People) -> None:
    key = Ed25519PrivateKey.generate()
    early = certificate(people, "bob", key, since=DAY, until=2 * DAY)
    late = certificate(people, "bob", key, since=-2 * DAY, until=-DAY)
    with pytest.raises(Refused, match="certificate of bob not valid yet: check the clock"):
        people.authority.open(sealed_by(key, early, {"origin": "bob"}))
    for _ in range(2):  # also when it is known
        with pytest.raises(Refused, match="certificate of bob expired on 20"):
            people.authority.open(sealed_by(key, late, {"origin": "bob"}))


def test_a_certificate_of_a_key_of_another_kind_is_refused(people: People) -> None:
    odd = certificate(people, "bob", ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(Refused, match="certificate not usable"):
        people.authority.open(changed(people.identity("bob").seal({}), certificate=odd))


def test_a_message_that_is_too_large_is_not_parsed(people: People) -> None:
    fits = people.identity("alice").seal({"text": "x" * (MAX_SEALED_BYTES - 2000)})
    assert people.authority.open(fits)["origin"] == "alice"
    with pytest.raises(Refused, match="too large"):
        people.authority.open(people.identity("alice").seal({"text": "x" * MAX_SEALED_BYTES}))
    with pytest.raises(Refused, match="too large"):
        people.authority.open(b"[" * (MAX_SEALED_BYTES + 1))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b'{"a":' * 10_000, "not JSON"),
        (b"1" * 60_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"NaN", "not a JSON object"),
        (b"{}", "missing body"),
        (b'{"body": 1}', "missing body"),
        (b'{"body": ""}', "missing signature"),
        (b'{"body": "", "signature": [""]}', "missing signature"),
        (b'{"body": "", "signature": ""}', "missing certificate"),
    ],
)
def test_malformed_sealed_messages_are_refused(people: People, data: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why):
        people.authority.open(data)


@pytest.mark.parametrize("text", ["[" * 20_000, "[]", "3", "", '"\\ud800"', '{"origin": ["alice"]}', "{}"])
def test_a_signed_but_malformed_body_is_refused(people: People, text: str) -> None:
    key, of_alice = read_key(people.folder / "alice.key"), parts(people.identity("alice").seal({}))["certificate"]
    with pytest.raises(Refused):
        people.authority.open(sealed_by(key, of_alice, text))


def test_lone_surrogates_in_a_body_are_refused(people: People) -> None:
    sealed = changed(people.identity("alice").seal({}), body='{"origin": "alice", "a": "\ud800"}')
    with pytest.raises(Refused, match="wrong signature"):
        people.authority.open(sealed)


def test_an_identity_is_a_name_a_certificate_and_its_key(people: People) -> None:
    for name in ("alice", "bob"):
        people.identity(name)
    files = people.folder
    with pytest.raises(UserError, match=r"is the certificate of 'alice', but peer\.name is 'bob'"):
        Identity("bob", files / "alice.pem", files / "bob.key")
    with pytest.raises(UserError, match="is not the private key of"):
        Identity("bob", files / "bob.pem", files / "alice.key")
    with pytest.raises(UserError, match="cannot read the certificate"):
        Identity("nobody", files / "nobody.pem", files / "bob.key")


@given(a=st.text(max_size=63), b=st.text(max_size=63))
def test_ids_differ_if_names_differ(a: str, b: str) -> None:
    assert 0 <= peer_id(a) < 2**63
    assert (peer_id(a) == peer_id(b)) == (a == b)
