"""Mutual TLS: every process of a cluster authenticates with the certificate of its run.

The certificate is self-signed and shared by all roles. Its files are in a directory that only
their owner may enter.
"""

import datetime
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zindex.errors import ConfigError
from zindex.io.system_errors import reason_of
from zindex.lazy import need

#: File names of the certificate and its key.
PAIR = _CERTIFICATE, _KEY = "cluster.crt", "cluster.key"
# Tolerates clock differences. Only new connections check it, and each start makes a new one.
_BEFORE, _AFTER = datetime.timedelta(days=1), datetime.timedelta(days=30)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, both in PEM format."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        return "Certificate(...)"

    def write(self, folder: Path) -> None:
        """Write both files; their directory must be private."""
        for name, text in ((_CERTIFICATE, self.certificate), (_KEY, self.key)):
            partial = folder / f"{name}.{os.getpid()}.partial"
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w") as stream:
                stream.write(text)
            partial.replace(folder / name)


def make_certificate() -> Certificate:
    """Create a certificate for one run.

    Raises
    ------
    ConfigError
        If the package cryptography is not installed.
    """
    remedy = "zindex[cluster], or give encryption='none' where no one else can reach the network"
    x509 = need("cryptography.x509", "a cluster with TLS", remedy)
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "zindex cluster")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _AFTER)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(pem, form, serialization.NoEncryption())
    return Certificate(certificate.public_bytes(pem).decode(), secret.decode())


def read_certificate(folder: Path) -> Certificate:
    """Read the certificate from a directory.

    Raises
    ------
    ConfigError
        If it does not exist, or other users may read the key.
    """
    key = folder / _KEY
    try:
        mode = key.stat().st_mode & 0o777
        if mode & 0o077:
            raise ConfigError(
                f"{key} must be readable by its owner alone, its mode is {mode:o}; end the cluster "
                "and start it again, with another certificate"
            )
        return Certificate((folder / _CERTIFICATE).read_text(), key.read_text())
    except OSError as error:
        raise ConfigError(
            f"{folder} must hold the certificate of a running cluster, the system says: "
            f"{reason_of(error)}; give the folder that the cluster was started with"
        ) from error


def make_security(folder: Path | None) -> Any:
    """Return the ``Security`` of ``distributed`` for a certificate directory; None for None."""
    if folder is None:
        return None
    from distributed.security import Security

    read_certificate(folder)
    certificate, key = str(folder / _CERTIFICATE), str(folder / _KEY)
    roles = ("client", "scheduler", "worker")
    return Security(
        require_encryption=True,
        tls_ca_file=certificate,
        **{f"tls_{role}_cert": certificate for role in roles},
        **{f"tls_{role}_key": key for role in roles},
    )
