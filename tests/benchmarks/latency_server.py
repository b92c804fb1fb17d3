"""A folder over HTTP with ranges, every answer late by a fixed time: an object store far away.

``python -m tests.benchmarks.latency_server FOLDER PORT SECONDS``

It speaks no more HTTP than a client of object stores does, so that a machine which also runs what
is measured has cores left for that.
"""

import asyncio
import re
import sys
from email.utils import formatdate
from functools import cache
from pathlib import Path
from urllib.parse import unquote

_REQUEST = re.compile(rb"(GET|HEAD) /([^ ]*) HTTP/1\.1\r\n")
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)\r\n", re.IGNORECASE)


class LatencyServer:
    """Serves files below a folder; all of them stay in memory."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder.resolve()
        self.seconds = seconds
        self.read = cache(self._read)

    def _read(self, path: bytes) -> tuple[memoryview, str] | None:
        file = (self.folder / unquote(path.decode())).resolve()
        if not file.is_relative_to(self.folder) or not file.is_file():
            return None
        return memoryview(file.read_bytes()), formatdate(file.stat().st_mtime, usegmt=True)

    def answer(self, head: bytes) -> list[bytes | memoryview]:
        """Return the answer to a request of these header lines."""
        request = _REQUEST.match(head)
        found = self.read(request[2]) if request is not None else None
        if request is None or found is None:
            return [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"]
        content, modified = found
        size, start, stop, status = len(content), 0, len(content), "200 OK"
        lines = [f"Last-Modified: {modified}"]  # obstore needs a date that is one
        wanted = _RANGE.search(head)
        if wanted is not None:
            start = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[2]))
            stop = min(size, int(wanted[2]) + 1) if wanted[1] and wanted[2] else size
            status = "206 Partial Content" if start < size else "416 Range Not Satisfiable"
            span = f"{start}-{stop - 1}" if start < size else "*"
            lines.append(f"Content-Range: bytes {span}/{size}")
        body = content[start : max(start, stop)]
        lines.append(f"Content-Length: {len(body)}")
        text = "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()
        return [text] if request[1] == b"HEAD" else [text, body]


class Connection(asyncio.Protocol):
    """One connection, whose requests come one after the other."""

    def __init__(self, server: LatencyServer) -> None:
        self.server = server
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what answers are written to."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer a request that is complete, late."""
        self.received += data
        head, end, rest = self.received.partition(b"\r\n\r\n")
        if end:
            self.received = rest
            loop = asyncio.get_running_loop()
            loop.call_later(self.server.seconds, self._write, head + b"\r\n")

    def _write(self, head: bytes) -> None:
        self.transport.writelines(self.server.answer(head))


async def serve(folder: str, port: int, seconds: float) -> None:
    """Serve until the process is ended."""
    server = LatencyServer(Path(folder), seconds)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", port, backlog=1024)
    await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
