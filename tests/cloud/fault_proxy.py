"""A proxy before an object store that answers some requests badly, or not at all."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from tests.cloud.servers import CANARY

#: What goes wrong with a request: its method, its path and its number say. None: nothing.
#:
#: * a status, such as ``503``: an answer of this status; the store sees nothing
#: * ``reset``: the connection breaks in the middle of the answer's body
#: * ``short``: half of the body, as if that were all
#: * ``stall``: one byte of the body and then silence
#: * ``lost``: the store does what was asked, and the answer is lost
#: * ``wrong``: the body with a bit flipped
Fault = str | int | None
Faults = Callable[[str, str, int], Fault]


class FaultProxy:
    """Forwards requests, except where it is told not to."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.faults: Faults = lambda method, path, number: None
        self.requests: list[tuple[str, str]] = []
        self.endpoint = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        listening = site._server.sockets[0]  # type: ignore[union-attr]
        port = listening.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            self._ready.set()
            await self._over.wait()
            # asyncio forgets a connection that it accepts while its server closes.
            self._loop.remove_reader(listening.fileno())
            await asyncio.sleep(0)
            await runner.cleanup()
        await self._close_all()

    async def _close_all(self) -> None:
        """Close what was cut, or came while the server closed."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while sockets := [t for t in self._loop._transports.values() if t._sock is not None]:  # type: ignore[attr-defined]
            for transport in sockets:
                transport.abort()
            await asyncio.sleep(0)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        number = len(self.requests)
        self.requests.append((request.method, request.path))
        fault = self.faults(request.method, request.path, number)
        if isinstance(fault, int):
            # Stores quote what they were sent: such text must not end up in messages.
            text = f"<Error><Code>Injected</Code><AWSAccessKeyId>{CANARY}</AWSAccessKeyId></Error>"
            return web.Response(status=fault, text=text)
        headers = {k: v for k, v in request.headers.items() if k.lower() != "host"}
        url = URL(self.target + request.raw_path, encoded=True)
        content = await request.read()
        async with self._session.request(
            request.method, url, data=content, headers=headers
        ) as answer:
            body = await answer.read()
            return await self._reply(request, answer, body, fault)

    async def _reply(
        self, request: web.Request, answer: Any, body: bytes, fault: Fault
    ) -> web.StreamResponse:
        hop = ("connection", "transfer-encoding", "server", "date")
        headers = {k: v for k, v in answer.headers.items() if k.lower() not in hop}
        if fault == "lost":
            self._cut(request)
        if fault == "wrong" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault == "short":
            body = body[: len(body) // 2]
            headers["Content-Length"] = str(len(body))
        reply = web.StreamResponse(status=answer.status, headers=headers)
        await reply.prepare(request)
        if fault in ("reset", "stall") and request.method == "GET":
            await reply.write(body[: 1 if fault == "stall" else len(body) // 2])
            if fault == "stall":
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._over.wait(), 30)
            self._cut(request)
        if request.method != "HEAD":
            await reply.write(body)
        await reply.write_eof()
        return reply

    def _cut(self, request: web.Request) -> None:
        """End the connection without another word."""
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError


@contextmanager
def fault_proxy(target: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(target)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
