"""An in-memory server with the XML interfaces of Google's and Azure's object stores.

It implements what clients use, after the public reference. It shows what a client requests, not
how the real store behaves.
"""

import hashlib
import json
import re
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.cloud.servers import CANARY

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass
class DialectServer:
    """The objects of a server, by bucket and key, and what was asked of it."""

    port: int = 0
    objects: dict[tuple[str, str], tuple[bytes, dict[str, str]]] = field(default_factory=dict)
    #: Method, path with query, and headers in small letters.
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class DialectBucket:
    """A bucket of such a server; used as `tests.cloud.servers.Bucket` is."""

    server: DialectServer
    scheme: str
    name: str = "bucket-1"
    secret: str = b64encode(CANARY.encode()).decode()

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead to the server."""
        if self.scheme == "az":
            return {
                "AZURE_STORAGE_ACCOUNT_NAME": "account",
                "AZURE_STORAGE_ACCOUNT_KEY": self.secret,
                "AZURE_STORAGE_ENDPOINT": self.server.endpoint,
                "AZURE_ALLOW_HTTP": "true",
            }
        account = {
            "gcs_base_url": self.server.endpoint,
            "disable_oauth": True,
            "client_email": "",
            "private_key_id": "",
            "private_key": self.secret,
        }
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account), "GOOGLE_ALLOW_HTTP": "true"}

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin so."""
        return sorted(key for _, key in self.server.objects if key.startswith(prefix))

    def write(self, key: str, content: bytes) -> None:
        self.server.objects[self.name, key] = content, {}

    def remove(self, *keys: str) -> None:
        for key in keys:
            del self.server.objects[self.name, key]

    def contents(self, prefix: str = "") -> dict[str, bytes]:
        """Return every object below a prefix, by its key from there."""
        objects = self.server.objects
        return {key.removeprefix(prefix): objects[self.name, key][0] for key in self.keys(prefix)}


class _Handler(BaseHTTPRequestHandler):
    """Answers one request after another."""

    protocol_version = "HTTP/1.1"
    server_state: ClassVar[DialectServer]
    #: Header with which an object is only created, and the status of one that is there.
    conflict: ClassVar[tuple[str, int]]
    #: What headers of facts about an object begin with.
    facts: ClassVar[str]

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        headers = {name.lower(): value for name, value in self.headers.items()}
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        with self.server_state.lock:
            self.server_state.requests.append((self.command, self.path, headers))
            status, more, content = self.answer(bucket, key, query, headers, body)
        self.send_response(status)
        for name, value in more.items():
            self.send_header(name, value)
        size = more.get("Content-Length", str(len(content)))
        if "Content-Length" not in more:
            self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = handle_any  # noqa: N815

    def answer(
        self, bucket: str, key: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body."""
        objects = self.server_state.objects
        if query.get("comp") == "batch":
            return self.remove_batch(body)
        if not key:
            return 200, {"Content-Type": "application/xml"}, self.list_keys(bucket, query)
        if self.command == "PUT":
            name, status = self.conflict
            if name in headers and (bucket, key) in objects:
                return status, {}, b"<Error><Code>exists</Code></Error>"
            source = headers.get("x-goog-copy-source") or headers.get("x-ms-copy-source")
            if source is not None:
                found = unquote(urlsplit(source).path).lstrip("/").partition("/")
                objects[bucket, key] = objects[found[0], found[2]]
                return 202, _describe(objects[bucket, key][0]), b""
            facts = {n: v for n, v in headers.items() if n.startswith(self.facts)}
            objects[bucket, key] = body, facts
            return 201, _describe(body), b""
        if (bucket, key) not in objects:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        content, facts = objects[bucket, key]
        if self.command == "DELETE":
            del objects[bucket, key]
            return 204, {}, b""
        described = _describe(content) | facts
        if self.command == "HEAD":
            return 200, described | {"Content-Length": str(len(content))}, b""
        wanted = _RANGE.fullmatch(headers.get("range", headers.get("x-ms-range", "")))
        if wanted is None:
            return 200, described, content
        if not wanted[1] and self.facts.startswith("x-ms"):
            return 400, {}, b"<Error><Code>InvalidHeaderValue</Code></Error>"
        size = len(content)
        start = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[2]))
        stop = min(size, int(wanted[2]) + 1) if wanted[1] and wanted[2] else size
        if start >= size:
            return 416, {"Content-Range": f"bytes */{size}"}, b""
        span = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"}
        return 206, described | span, content[start:stop]

    def remove_batch(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Remove the objects that a batch names, as Azure does."""
        parts = []
        for number, path in enumerate(re.findall(rb"DELETE /(\S+) HTTP", body)):
            bucket, _, key = unquote(path.decode()).partition("/")
            found = self.server_state.objects.pop((bucket, key), None)
            status = "404 The specified blob does not exist." if found is None else "202 Accepted"
            code = "x-ms-error-code: BlobNotFound\r\n" if found is None else ""
            parts.append(
                f"--batch\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
                f"HTTP/1.1 {status}\r\n{code}x-ms-request-id: 1\r\n\r\n"
            )
        content = "".join([*parts, "--batch--\r\n"]).encode()
        return 202, {"Content-Type": "multipart/mixed; boundary=batch"}, content

    def list_keys(self, bucket: str, query: dict[str, str]) -> bytes:
        """Return the keys of a bucket below a prefix as XML."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        found, folders = [], set()
        for where, key in sorted(self.server_state.objects):
            if where != bucket or not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                found.append((key, self.server_state.objects[where, key][0]))
        return self.as_xml(found, sorted(folders)).encode()

    def as_xml(self, found: list[tuple[str, bytes]], folders: list[str]) -> str:
        raise NotImplementedError


def _describe(content: bytes) -> dict[str, str]:
    """Return the headers that tell an object from others."""
    return {
        "ETag": f'"{hashlib.md5(content).hexdigest()}"',
        "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT",  # the ETag tells versions apart
        "x-goog-generation": "1",
        "x-ms-version": "2023-11-03",
    }


class _Google(_Handler):
    """Google's interface, which lists as S3 does."""

    conflict = ("x-goog-if-generation-match", 412)
    facts = "x-goog-meta-"

    def as_xml(self, found: list[tuple[str, bytes]], folders: list[str]) -> str:
        rows = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>a</ETag></Contents>"
            for key, content in found
        ]
        rows += [
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders
        ]
        return f"<ListBucketResult>{''.join(rows)}</ListBucketResult>"


class _Azure(_Handler):
    """Azure's interface."""

    conflict = ("if-none-match", 409)
    facts = "x-ms-meta-"

    def as_xml(self, found: list[tuple[str, bytes]], folders: list[str]) -> str:
        rows = [
            f"<Blob><Name>{escape(key)}</Name><Properties><Content-Length>{len(content)}"
            "</Content-Length><Last-Modified>Mon, 01 Jan 2024 00:00:00 GMT</Last-Modified>"
            "<Content-Type>application/octet-stream</Content-Type><Etag>a</Etag></Properties>"
            "</Blob>"
            for key, content in found
        ]
        rows += [f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in folders]
        return (
            f"<EnumerationResults><Blobs>{''.join(rows)}</Blobs><NextMarker/></EnumerationResults>"
        )


@contextmanager
def dialect_server(scheme: str) -> Iterator[DialectServer]:
    """Run a server that speaks as the stores of a scheme: ``"gs"`` or ``"az"``."""
    state = DialectServer()
    kind = {"gs": _Google, "az": _Azure}[scheme]
    handler = type("Handler", (kind,), {"server_state": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        state.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
