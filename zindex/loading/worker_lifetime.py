"""End loader workers whose rank has died, also by SIGKILL or in a system call."""

import multiprocessing
import os
import signal
import threading

# Seconds between looks at the parent, if the system does not report its end.
_INTERVAL = 1.0
_watched: set[int] = set()


def exit_with_parent() -> None:
    """Kill this process, a loader worker, as soon as the process that started it is dead.

    Call it in the worker, from ``worker_init_fn`` or while it iterates; it does nothing in a main
    process, and when called again.

    Notes
    -----
    Torch's workers notice only between two batches, and never with the start method
    ``"forkserver"``. A thread waits, because ``PR_SET_PDEATHSIG`` of Linux also kills workers when
    the thread that started them ends, such as one that prefetches.
    """
    parent = multiprocessing.parent_process()
    if parent is None or os.getpid() in _watched:
        return
    _watched.add(os.getpid())
    started_by = os.getppid()

    def watch() -> None:
        # A forked sibling may keep the parent's end of the pipe open, so its id is looked at, too.
        while parent.is_alive() and os.getppid() == started_by:
            parent.join(_INTERVAL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="zindex-parent", daemon=True).start()
