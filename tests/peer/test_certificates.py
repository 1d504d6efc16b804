"""The authority and the certificates that it issues."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID

from homophily.errors import UserError
from homophily.peer.certificates import init, is_name, issue, name_in, read_certificate, read_key


def extension(certificate: x509.Certificate, kind: type[x509.ExtensionType]) -> x509.ExtensionType:
    return certificate.extensions.get_extension_for_class(kind).value


def test_a_certificate_is_signed_by_the_authority_and_names_its_peer_and_hosts(folder: Path) -> None:
    authority = read_certificate(init(folder))
    made = read_certificate(issue(folder, "alice", ["127.0.0.1", "alice.example.org"]))
    made.verify_directly_issued_by(authority)
    assert name_in(made) == "alice"
    reached = extension(made, x509.SubjectAlternativeName)
    assert isinstance(reached, x509.SubjectAlternativeName)
    assert reached.get_values_for_type(x509.DNSName) == ["alice", "alice.example.org"]
    assert [str(address) for address in reached.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_a_peer_cannot_issue_certificates(folder: Path) -> None:
    init(folder)
    made = read_certificate(issue(folder, "alice"))
    constraints, usage = extension(made, x509.BasicConstraints), extension(made, x509.KeyUsage)
    assert isinstance(constraints, x509.BasicConstraints)
    assert isinstance(usage, x509.KeyUsage)
    assert not constraints.ca
    assert not usage.key_cert_sign


def test_one_certificate_serves_both_ends_of_a_link(folder: Path) -> None:
    init(folder)
    uses = extension(read_certificate(issue(folder, "alice")), x509.ExtendedKeyUsage)
    assert isinstance(uses, x509.ExtendedKeyUsage)
    assert set(uses) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}


def test_keys_are_ed25519_and_readable_by_their_owner_only(folder: Path) -> None:
    init(folder)
    issue(folder, "alice")
    for name in ("ca", "alice"):
        path = folder / f"{name}.key"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        public = read_certificate(folder / f"{name}.pem").public_key()
        assert isinstance(public, Ed25519PublicKey)
        assert read_key(path).public_key() == public


def test_nothing_is_overwritten(folder: Path) -> None:
    init(folder)
    issue(folder, "alice")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match=r"ca\.pem already exists"):
        init(folder)
    with pytest.raises(UserError, match=r"alice\.pem already exists"):
        issue(folder, "alice")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_full_disk_leaves_no_partial_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_file = os.open

    def fills_up(path: Path, *rest: int) -> int:
        if str(path).endswith(".pem"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_file(path, *rest)

    with monkeypatch.context() as disk:
        disk.setattr(os, "open", fills_up)
        with pytest.raises(UserError, match="No space left on device"):
            init(folder)
    init(folder)


def test_without_an_authority_nothing_is_issued(folder: Path) -> None:
    with pytest.raises(UserError, match="homophily cert init"):
        issue(folder, "alice")


@pytest.mark.parametrize("name", ["", "Alice", "al ice", "a/b", "a*", "-a", "a-", "ä", "ca", "a" * 64, "../a", "a\n"])
def test_some_names_are_invalid(folder: Path, name: str) -> None:
    init(folder)
    assert not is_name(name)
    with pytest.raises(UserError, match=r"peer name .*: must be 1 to 63"):
        issue(folder, name)
    assert not list(folder.parent.glob("a*"))


@pytest.mark.parametrize("name", ["a", "7", "peer-12", "a" * 63])
def test_some_names_are_valid(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("host", ["", "127.0.0.1:7447", "bücher.example", "a b", "a/b"])
def test_a_host_is_a_name_or_an_address(folder: Path, host: str) -> None:
    init(folder)
    with pytest.raises(UserError, match="--host"):
        issue(folder, "alice", [host])
    assert not (folder / "alice.key").exists()


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the certificate"):
        read_certificate(tmp_path / "nobody.pem")
    with pytest.raises(UserError, match="cannot read the key"):
        read_key(tmp_path / "nobody.key")
    (tmp_path / "odd.pem").write_bytes(b"\x00 not PEM")
    with pytest.raises(UserError, match="not a certificate in PEM form"):
        read_certificate(tmp_path / "odd.pem")
    with pytest.raises(UserError, match="not an unencrypted private key"):
        read_key(tmp_path / "odd.pem")


def test_other_key_types_and_encrypted_keys_are_refused(folder: Path, tmp_path: Path) -> None:
    init(folder)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    other = rsa.generate_private_key(65537, 2048)
    (tmp_path / "rsa.key").write_bytes(other.private_bytes(*form, serialization.NoEncryption()))
    with pytest.raises(UserError, match="not an Ed25519 key"):
        read_key(tmp_path / "rsa.key")
    locked = read_key(folder / "ca.key").private_bytes(*form, serialization.BestAvailableEncryption(b"secret"))
    (tmp_path / "locked.key").write_bytes(locked)
    with pytest.raises(UserError, match="not an unencrypted private key"):
        read_key(tmp_path / "locked.key")
