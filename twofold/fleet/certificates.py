"""Certificates of a fleet: its own authority, one certificate for hubs and one for nodes, and the contexts of TLS.

A fleet trusts its own authority and nothing else, and certificates name a role instead of a host: a hub accepts peers
with a node's certificate, a node a peer with a hub's, wherever they run. TLS 1.3 only.
"""

from __future__ import annotations

import os
import ssl
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from twofold.core.errors import ParameterError, UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

Role = Literal["hub", "node"]
HOST: Final = "hub.twofold.invalid"
"""The name in a hub's certificate; no host has a name of the reserved domain .invalid."""
AUTHORITY: Final = "ca.pem"
YEARS: Final = 10


def create(folder: Path, now: datetime | None = None) -> None:
    """Writes ``ca.pem``, ``ca-key.pem``, ``hub.pem`` and ``node.pem`` (each of the last two with its key).

    Raises ParameterError if the folder has one of them, UsageError without the package cryptography.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - optional
    except ModuleNotFoundError as error:
        raise UsageError(
            "Making certificates requires the package cryptography.",
            hint=f"Run: {sys.executable} -m pip install cryptography",
        ) from error
    names = (AUTHORITY, "ca-key.pem", "hub.pem", "node.pem")
    found = [name for name in names if (folder / name).exists()]
    if found:
        raise ParameterError(f"{folder} has {found[0]} already.", param="folder", hint="Choose another folder.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("twofold fleet", key, None, None, now)
    _write(folder / AUTHORITY, _pem(authority))
    _write(folder / "ca-key.pem", _key_pem(key))
    for role in ("hub", "node"):
        own = ec.generate_private_key(ec.SECP256R1())
        signed = _certificate(f"twofold {role}", own, (authority, key), role, now)
        _write(folder / f"{role}.pem", _key_pem(own) + _pem(signed))


def context(folder: Path, role: Role) -> ssl.SSLContext:
    """The TLS context of a hub or a node with the certificates in ``folder``. Raises ParameterError if they are missing
    or peers would not accept them."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if role == "hub" else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    try:
        made.load_verify_locations(folder / AUTHORITY)
        made.load_cert_chain(folder / f"{role}.pem")
        _try(folder, role)
    except OSError as error:  # TLS errors are such, too
        raise ParameterError(
            f"The certificates in {folder} cannot be used: {error}.",
            param="fleet_certs",
            hint=f"`twofold fleet init {folder}` makes them; a {role} needs {AUTHORITY} and {role}.pem.",
        ) from error
    return made


def _try(folder: Path, role: Role) -> None:
    """A handshake with a peer that has the same files and verifies ``role``. Raises ssl.SSLError if that fails: a peer
    elsewhere would close the connection without a word."""
    own = folder / f"{role}.pem"
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    verifier = client
    if role == "node":
        client.check_hostname, client.verify_mode, verifier = False, ssl.CERT_NONE, server
    verifier.verify_mode = ssl.CERT_REQUIRED
    verifier.load_verify_locations(folder / AUTHORITY)
    server.load_cert_chain(own)
    client.load_cert_chain(own)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = server.wrap_bio(up, down, server_side=True), client.wrap_bio(down, up, server_hostname=HOST)
    for _ in range(3):  # hello, certificates, and the end of the handshake
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, EllipticCurvePrivateKey] | None,
    role: Role | None,
    now: datetime,
) -> x509.Certificate:
    """A certificate for ``role``, signed by ``issuer``; without both, an authority's own."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = key if issuer is None else issuer[1]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of machines differ
        .not_valid_after(now + timedelta(days=365 * YEARS))
        .add_extension(
            x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if role is not None:
        usage = ExtendedKeyUsageOID.SERVER_AUTH if role == "hub" else ExtendedKeyUsageOID.CLIENT_AUTH
        names = [x509.DNSName(HOST if role == "hub" else "node.twofold.invalid")]
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    else:
        use = {"key_cert_sign": True, "crl_sign": True, "digital_signature": False, "content_commitment": False}
        rest = ("key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only")
        builder = builder.add_extension(x509.KeyUsage(**use, **dict.fromkeys(rest, False)), critical=True)
    return builder.sign(signer, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes) -> None:
    """Writes a file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
