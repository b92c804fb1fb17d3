"""Stores over HTTPS: certificates are checked, and an authority of one's own can be named."""

import ipaddress
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import reset_cache
from tests.store.stores import ONE, build_arrays, count_up
from zindex.errors import StoreUnavailableError
from zindex.io import object_calls
from zindex.store.open import open_store


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, with ranges, and says nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        span = self.headers.get("Range")
        if span is None or not path.is_file():
            return super().do_GET()
        content = path.read_bytes()
        first, _, last = span.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(content) - int(last))
        stop = min(len(content), int(last) + 1) if first and last else len(content)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Last-Modified", self.date_time_string())
        self.end_headers()
        self.wfile.write(content[start:stop])
        return None


def write_certificate(folder: Path, host: str) -> Path:
    """Write a certificate that vouches for itself, with its key behind it."""
    x509 = pytest.importorskip("cryptography.x509", reason="needs cryptography")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "zindex test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = folder / f"{host}.pem"
    path.write_bytes(
        made.public_bytes(pem) + key.private_bytes(pem, plain, serialization.NoEncryption())
    )
    return path


@pytest.fixture(params=["127.0.0.1", "127.0.0.2"])
def served(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Path, str]]:
    """The URL of a store, the certificate of its server, and whom that is made out to."""
    pytest.importorskip("obstore", reason="needs the extra 'cloud'")
    monkeypatch.setattr(object_calls, "NUM_ATTEMPTS", 1)
    build_arrays(tmp_path / "store", {ONE: count_up(10)})
    certificate = write_certificate(tmp_path, request.param)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    handler = partial(Quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        object_calls.forget_clients()
        reset_cache()
        try:
            yield f"https://127.0.0.1:{server.server_port}/store", certificate, request.param
        finally:
            server.shutdown()
            thread.join()
            object_calls.forget_clients()


def test_a_certificate_must_be_trusted(
    served: tuple[str, Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, certificate, host = served
    message = (
        r"a certificate that is not trusted \((\w+)\); name the file of its authority in SSL_CERT"
    )
    with pytest.raises(StoreUnavailableError, match=message):
        open_store(url)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    object_calls.forget_clients()
    if host == "127.0.0.1":
        np.testing.assert_array_equal(open_store(url)["one"], count_up(10))
    else:  # it is made out to another one
        with pytest.raises(StoreUnavailableError, match=r"not trusted \(NotValidForName"):
            open_store(url)
