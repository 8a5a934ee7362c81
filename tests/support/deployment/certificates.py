"""Certificates that tests create for servers on this machine."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def self_signed(folder: Path) -> Path:
    """Write tls.crt, a certificate for 127.0.0.1 that is valid for an hour, its key tls.key, and both.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tutti")])
    now = dt.datetime.now(dt.UTC)
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(addresses, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key_pem = key.private_bytes(serialization.Encoding.PEM, *plain)
    for file, text in (("tls.crt", pem), ("tls.key", key_pem), ("both.pem", pem + key_pem)):
        (folder / file).write_bytes(text)
    return folder
