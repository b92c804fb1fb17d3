"""Object stores for tests: a server in a process of its own, and what lies in a bucket of it."""

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A secret that must be found nowhere but in the environment.
CANARY = "canary7Secret0Key"


def free_port() -> int:
    """Return a port that is free, and that the system gives to no connection of a process."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_for_port(port: int, process: "subprocess.Popen[bytes] | None" = None) -> None:
    """Return once something listens."""
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process is not None and process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}") from None
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@dataclass(frozen=True)
class ObjectServer:
    """An S3 server, and the environment in which it is reached."""

    endpoint: str
    environment: Mapping[str, str]

    @property
    def client(self) -> Any:
        """A client that shares nothing with the one under test."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
        )


def environment(
    endpoint: str, access_key: str = "user", secret_key: str = CANARY
) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def moto_server(folder: Path) -> Iterator[ObjectServer]:
    """Run moto's server, which holds all in memory."""
    port = free_port()
    server = Path(__file__).with_name("moto_process.py")
    command = [sys.executable, str(server), "-H", "127.0.0.1", "-p", str(port)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with open(folder / "moto.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=clean)
    try:
        wait_for_port(port, process)
        endpoint = f"http://127.0.0.1:{port}"
        yield ObjectServer(endpoint, environment(endpoint))
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own for one test."""

    server: ObjectServer
    name: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def secret(self) -> str:
        """What must be found nowhere but in the environment."""
        return self.server.environment["AWS_SECRET_ACCESS_KEY"]

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin so."""
        pages = self.server.client.get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self.name, Prefix=prefix)
        return [item["Key"] for page in found for item in page.get("Contents", ())]

    def read(self, key: str) -> bytes:
        return bytes(self.server.client.get_object(Bucket=self.name, Key=key)["Body"].read())

    def write(self, key: str, content: bytes) -> None:
        self.server.client.put_object(Bucket=self.name, Key=key, Body=content)

    def remove(self, *keys: str) -> None:
        for key in keys:
            self.server.client.delete_object(Bucket=self.name, Key=key)

    def contents(self, prefix: str = "") -> dict[str, bytes]:
        """Return every object below a prefix, by its key from there."""
        return {key.removeprefix(prefix): self.read(key) for key in self.keys(prefix)}

    def stamps(self, prefix: str = "") -> dict[str, str]:
        """Return when each shard below a prefix was written."""
        pages = self.server.client.get_paginator("list_objects_v2")
        return {
            item["Key"]: str(item["LastModified"])
            for page in pages.paginate(Bucket=self.name, Prefix=prefix)
            for item in page.get("Contents", ())
            if "/c/" in item["Key"]
        }
