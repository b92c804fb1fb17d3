"""A client of two threads for every test of ingestion."""

from collections.abc import Iterator
from typing import Any

import pytest

from zindex.execution.executor import embedded_client


@pytest.fixture(scope="package")
def client() -> Iterator[Any]:
    with embedded_client(2) as client:
        yield client
