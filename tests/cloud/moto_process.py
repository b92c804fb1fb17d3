"""Moto's server, in which an object is created by one of several concurrent requests, as in S3.

It ends with the process that started it.
"""

import os
import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

from zindex.execution.worker_tasks import die_with

_lock = threading.Lock()
_put_object = S3Response.put_object


def put_object(response: S3Response) -> Any:
    """Look whether there is the object, and write it, without other requests in between."""
    with _lock:
        return _put_object(response)


if __name__ == "__main__":
    die_with(os.getppid())
    S3Response.put_object = put_object  # type: ignore[method-assign]
    main()
