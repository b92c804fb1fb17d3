"""Dask's settings for builds: each is one that Dask knows, and a process can take them."""

import dask
import distributed  # noqa: F401  (its defaults are what the settings change)
import pytest

from zindex.cluster.settings import WORKER_TTL, dask_settings


@pytest.mark.parametrize("key", dask_settings())
def test_dask_knows_the_setting(key: str) -> None:
    missing = object()
    assert dask.config.get(key, missing) is not missing


def test_a_hanging_worker_is_noticed_within_a_minute() -> None:
    """Dask looks once in the time that a worker may be silent."""
    with dask.config.set(dask_settings()):
        ttl = dask.utils.parse_timedelta(dask.config.get("distributed.scheduler.worker-ttl"))
    assert ttl == WORKER_TTL
    assert 2 * ttl <= 60


def test_nothing_leads_to_other_machines() -> None:
    routes = dask_settings()["distributed.scheduler.http.routes"]
    assert not [route for route in routes if "proxy" in route]
