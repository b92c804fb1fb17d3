"""A process that ends while an object store does not answer: python -m tests.cloud.end_process."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.store.stores import ONE, count_up, plan_arrays
from zindex.io import object_client
from zindex.io.objects import ObjectPath, place_of
from zindex.store.open import open_reader


def main(url: str) -> None:
    """Ask for chunks and files, in threads that the interpreter joins, and end."""
    root = place_of(url)
    assert isinstance(root, ObjectPath)
    [layout] = plan_arrays(root, {ONE: count_up(100)}).layouts  # type: ignore[arg-type]
    began = threading.Barrier(3)

    def read() -> None:
        began.wait()
        open_reader(root, layout).read(0, 100)

    def write() -> None:
        began.wait()
        object_client.get(root / "file", limit=100)

    pool = ThreadPoolExecutor(2)
    promises = [pool.submit(read), pool.submit(write)]
    began.wait()
    # Somebody has asked, and nobody answers.
    sys.stdin.readline()
    assert not any(promise.done() for promise in promises)
    print("ends", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
