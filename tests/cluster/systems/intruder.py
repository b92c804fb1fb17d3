"""Strangers at a cluster's scheduler: a plain client, and one with a certificate of its own.

``python -m tests.cluster.systems.intruder HOST PORT`` prints what became of each as JSON.
"""

import json
import logging
import sys

from distributed import Client
from distributed.security import Security


def attempt(address: str, security: Security | None) -> str:
    """Return the error with which a client was refused, or "connected"."""
    try:
        Client(address, security=security, timeout=4).close()
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return "connected"


def main(host: str, port: str) -> None:
    logging.disable(logging.CRITICAL)
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    outcomes = {
        "plain": attempt(f"tcp://{place}", None),
        "other": attempt(f"tls://{place}", Security.temporary()),
    }
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
