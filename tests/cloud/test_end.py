"""A process ends at once, whatever an object store does."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_process_ends_while_a_store_does_not_answer() -> None:
    """It is left behind with its requests, of which each would last for minutes."""
    pytest.importorskip("obstore", reason="needs the extra 'cloud'")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(100)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/store"
        command = [sys.executable, "-m", "tests.cloud.end_process", url]
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            # One request for a file, and one for a chunk or for a shard's index.
            asked = [server.accept()[0] for _ in range(2)]
            out, _ = process.communicate("\n", timeout=100)
        finally:
            process.kill()
            process.wait()
        assert (process.returncode, out) == (0, "ends\n")
        for connection in asked:
            connection.close()
