"""A private certificate authority, and the certificates that it issues to peers.

Keys are Ed25519. A peer uses one key both for TLS and to sign what it sends.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from homophily.errors import UserError

AUTHORITY = "ca"
NAME_RULE = f"must be 1 to 63 characters of a-z, 0-9 and - (not first or last), and not {AUTHORITY!r}"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_HOST = re.compile(r"[a-zA-Z0-9.-]{1,253}")
SERVICE_HOST = "authority.homophily.invalid"  # in the certificate of the authority's service, and in no other
_CLOCK_SKEW = timedelta(days=1)  # a certificate is valid on machines whose clocks are this far behind


def is_name(name: str) -> bool:
    """Whether a string can be a peer's name; names are part of the keys under which peers publish."""
    return _NAME.fullmatch(name) is not None and name != AUTHORITY


def init(folder: Path, days: int = 3650) -> Path:
    """Make a new authority in a folder: ca.pem for all peers, and ca.key, which must stay secret."""
    certificate, key = _paths(folder, AUTHORITY)
    _refuse_to_overwrite(certificate, key)
    secret = Ed25519PrivateKey.generate()
    name = _subject("homophily authority")
    built = (
        _builder(name, name, secret.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(secret.public_key()), critical=False)
    )
    return _write_pair(folder, certificate, key, built.sign(secret, None), secret)


def issue(folder: Path, name: str, hosts: Sequence[str] = (), days: int = 365, common_name: str = "") -> Path:
    """Make a key and a certificate for a peer, signed by the authority in the folder.

    hosts: host names and addresses at which other peers reach it; common_name: left out, the name.
    """
    if not is_name(name):
        raise UserError(f"peer name {name!r}: {NAME_RULE}")
    certificate, key = _paths(folder, name)
    _refuse_to_overwrite(certificate, key)
    secret = Ed25519PrivateKey.generate()
    made = sign(folder, name, secret.public_key(), hosts, days, common_name)
    return _write_pair(folder, certificate, key, made, secret)


def sign(
    folder: Path, name: str, key: Ed25519PublicKey, hosts: Sequence[str], days: int, common_name: str = ""
) -> x509.Certificate:
    """A certificate for a peer's public key, signed by the authority in the folder."""
    if SERVICE_HOST in (host.lower() for host in hosts):
        raise UserError(f"--host {SERVICE_HOST}: this name belongs to the authority's service")
    return _signed(folder, common_name or name, key, [name, *hosts], days)


def sign_service(folder: Path, key: Ed25519PublicKey, days: int) -> x509.Certificate:
    """A certificate for the authority's own service; no peer can have its common name."""
    return _signed(folder, SERVICE_HOST, key, [SERVICE_HOST], days)


def _signed(folder: Path, common_name: str, key: Ed25519PublicKey, hosts: Sequence[str], days: int) -> x509.Certificate:
    signer, issuer = authority(folder)
    reached = [_host(host) for host in dict.fromkeys(hosts)]
    built = (
        _builder(_subject(common_name), issuer.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectAlternativeName(reached), critical=False)
        .add_extension(x509.ExtendedKeyUsage(list(_TLS_ROLES)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return built.sign(signer, None)


_TLS_ROLES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def request(key: Ed25519PrivateKey, name: str) -> str:
    """A certificate request in PEM form, which proves that its sender has the private key."""
    built = x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).sign(key, None)
    return built.public_bytes(serialization.Encoding.PEM).decode()


def new_key(path: Path) -> Ed25519PrivateKey:
    """Make a private key in a file that only its owner may read."""
    secret = Ed25519PrivateKey.generate()
    _write(path.parent, [(path, key_text(secret), 0o600)])
    return secret


def key_text(key: Ed25519PrivateKey) -> bytes:
    """A private key in PEM form, not encrypted."""
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read the certificate {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not a certificate in PEM form") from error


def read_key(path: Path) -> Ed25519PrivateKey:
    try:
        found = serialization.load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise UserError(f"cannot read the key {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is not an unencrypted private key in PEM form") from error
    if not isinstance(found, Ed25519PrivateKey):
        raise UserError(f"{path} is not an Ed25519 key: make one with homophily cert issue")
    return found


def issued_to(text: str, issuer: x509.Certificate, name: str, key: Ed25519PrivateKey) -> str:
    """A certificate in PEM form, if it is of this issuer for this name and key. Raises ValueError."""
    found = x509.load_pem_x509_certificate(text.encode())
    try:
        found.verify_directly_issued_by(issuer)
    except (TypeError, InvalidSignature):
        raise ValueError("certificate of another authority") from None
    if name_in(found) != name or found.public_key() != key.public_key():
        raise ValueError("certificate for another name or key")
    return text


def name_in(certificate: x509.Certificate) -> str:
    """The name of the peer that a certificate is for: its common name, up to a dot."""
    return common_name_in(certificate).partition(".")[0]


def hosts_in(certificate: x509.Certificate) -> list[str]:
    """The host names and addresses that a certificate is for."""
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def common_name_in(certificate: x509.Certificate) -> str:
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


def authority(folder: Path) -> tuple[Ed25519PrivateKey, x509.Certificate]:
    certificate, key = _paths(folder, AUTHORITY)
    if not key.exists():
        raise UserError(f"there is no authority in {folder}: make one with homophily cert init --folder {folder}")
    return read_key(key), read_certificate(certificate)


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.pem", folder / f"{name}.key"


def _refuse_to_overwrite(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise UserError(f"{path} already exists: move it away to make a new one")


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not _HOST.fullmatch(name):
            raise UserError(f"--host {name}: must be a host name or an IP address, without a port") from None
        return x509.DNSName(name)


def _builder(subject: x509.Name, issuer: x509.Name, key: Ed25519PublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_pair(folder: Path, certificate: Path, key: Path, made: x509.Certificate, secret: Ed25519PrivateKey) -> Path:
    """Write the key, which only its owner may read, and then the certificate."""
    text = made.public_bytes(serialization.Encoding.PEM)
    _write(folder, [(key, key_text(secret), 0o600), (certificate, text, 0o666)])
    return certificate


def _write(folder: Path, files: Sequence[tuple[Path, bytes, int]]) -> None:
    """Write new files, each with its permissions, or none of them."""
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content, mode in files:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                written.append(path)
                file.write(content)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise UserError(f"cannot write into {folder}: {error.strerror}") from error
