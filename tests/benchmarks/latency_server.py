"""A folder over HTTP with ranges, every answer late by a fixed time: an object store far away.

``python -m tests.benchmarks.latency_server FOLDER PORT SECONDS``
"""

import asyncio
import re
import sys
from email.utils import formatdate
from functools import lru_cache
from pathlib import Path

from aiohttp import web

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class LatencyServer:
    """Serves files below a folder; all of them stay in memory."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder.resolve()
        self.seconds = seconds
        self.read = lru_cache(maxsize=None)(self._read)

    def _read(self, path: str) -> tuple[memoryview, str] | None:
        file = (self.folder / path).resolve()
        if not file.is_relative_to(self.folder) or not file.is_file():
            return None
        return memoryview(file.read_bytes()), formatdate(file.stat().st_mtime, usegmt=True)

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request, late."""
        await asyncio.sleep(self.seconds)
        found = self.read(request.match_info["path"])
        if found is None:
            return web.Response(status=404)
        content, modified = found
        # obstore needs a date that is one.
        headers = {"Last-Modified": modified, "Accept-Ranges": "bytes"}
        match = _RANGE.fullmatch(request.headers.get("Range", ""))
        if match is None:
            return web.Response(body=bytes(content), headers=headers)
        size = len(content)
        start = int(match[1]) if match[1] else max(0, size - int(match[2]))
        stop = min(size, int(match[2]) + 1) if match[1] and match[2] else size
        if start >= size:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return web.Response(status=206, body=bytes(content[start:stop]), headers=headers)


def main(folder: str, port: str, seconds: str) -> None:
    """Serve until the process is ended."""
    app = web.Application()
    app.router.add_get("/{path:.*}", LatencyServer(Path(folder), float(seconds)).handle)
    web.run_app(app, host="127.0.0.1", port=int(port), access_log=None, print=None)


if __name__ == "__main__":
    main(*sys.argv[1:4])
