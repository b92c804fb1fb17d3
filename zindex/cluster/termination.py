"""Close a node before SIGTERM ends its process, for example when its pod is evicted."""

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_END = b"\0"  # no signal has this number


@contextmanager
def before_termination(close: Callable[[], None], *, at_once: bool) -> Iterator[None]:
    """Call a function when this process receives SIGTERM, and then let the signal end it.

    Launchers and containers send SIGTERM to the ranks, and kill all other processes once these have
    ended. A thread calls the function, because the main thread may be blocked in a collective
    operation, where Python runs no signal handler. Does nothing outside the main thread.

    Parameters
    ----------
    close
        Function to call; it must return within the grace period of the launcher, often 30 s.
    at_once
        Whether to call it also if the process has a handler of its own for SIGTERM, which decides
        when it ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def handle(number: int, frame: Any) -> None:
        with suppress(OSError):  # an event loop may have taken over the wakeup descriptor
            sender.send(bytes([number]))
        thread.join()  # this process ends there

    def watch() -> None:
        while (number := receiver.recv(1)) != _END:
            if number[0] != signal.SIGTERM:
                continue
            is_last = signal.getsignal(signal.SIGTERM) is handle
            if is_last or at_once:
                close()
            if is_last:
                # Python sets handlers in the main thread only, which may be blocked.
                ctypes.CDLL(None).signal(signal.SIGTERM, None)
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=watch, name="zindex-termination", daemon=True)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, handle)
    earlier = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    if earlier != -1:  # of an event loop
        signal.set_wakeup_fd(earlier)
    _handlers.append(handle)
    thread.start()
    try:
        yield
    finally:
        _handlers.remove(handle)
        signal.set_wakeup_fd(earlier)
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sender.send(_END)
        thread.join()
        receiver.close()
        sender.close()


_handlers: list[Callable[[int, Any], None]] = []
_mask = threading.local()


def _hold() -> None:
    """Hold back SIGTERM during a fork, whose child would report it to this process."""
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _forget() -> None:
    """Restore the defaults in a forked process, such as a loader worker."""
    if _handlers:
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) in _handlers:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _handlers.clear()
    _let_go()


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_forget)
