"""Heartbeats of a rank in a key-value store."""

import logging
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

#: Writes one heartbeat to the store that it gets.
Send = Callable[[Any], object]


class RankHeartbeat:
    """Heartbeats from a thread with a connection of its own, which no request of the rank delays.

    Parameters
    ----------
    store
        A ``torch.distributed.Store``.
    interval
        Seconds before the first heartbeat, and between two. Work that ends sooner writes none.
    """

    def __init__(self, store: Any, interval: float) -> None:
        self._store, self._interval = store, interval
        self._lock = threading.Lock()
        self._sending: list[Send] = []
        self._is_idle = threading.Event()

    def start(self, send: Send) -> None:
        """Send a heartbeat at regular intervals; its first start counts if it was started twice."""
        with self._lock:
            self._sending.append(send)
            if len(self._sending) == 1:
                self._is_idle = threading.Event()
                run = threading.Thread(
                    target=self._run, args=[self._is_idle], name="zindex-heartbeat", daemon=True
                )
                run.start()

    def stop(self, send: Send) -> None:
        """Undo one start."""
        with self._lock:
            if send in self._sending:
                self._sending.remove(send)
            if not self._sending:
                self._is_idle.set()

    def _run(self, is_idle: threading.Event) -> None:
        connection = None
        while not is_idle.wait(self._interval):
            try:
                if connection is None:
                    connection = getattr(self._store, "clone", lambda: self._store)()
                for send in dict.fromkeys(self._sending):
                    send(connection)
            except Exception as error:
                logger.info("torch's key-value store takes no heartbeat: %s", error)
                return
