"""An index for a dataset that is opened before it was built: build it here, or wait for it."""

import random
import time

from zindex.building.executor import Executor, SerialExecutor, open_executor, run_builds
from zindex.building.index import build_index, find_index, index_store_plan
from zindex.building.source import LengthSource
from zindex.errors import NotReadyError, StoreNotFoundError
from zindex.plan.index_plan import IndexPlan
from zindex.store.commit import read_status
from zindex.store.open import Store

# Rows below which starting a cluster costs more than the build.
_SERIAL_ROWS = 1 << 22
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0


def ensure_index(
    plan: IndexPlan,
    source: LengthSource,
    folder: str,
    *,
    is_builder: bool = True,
    timeout: float = 3600.0,
) -> Store:
    """Return the committed index of a plan, building it or waiting for it if it is not there.

    Parameters
    ----------
    plan, source
        What to build, from which lengths.
    folder
        Directory of the index stores.
    is_builder
        Whether this process builds; the others look for the commit now and then, and no process
        waits in a collective.
    timeout
        Seconds that a waiting process waits at most.

    Raises
    ------
    NotReadyError
        If the wait is over and the index is not committed.
    """
    store_plan = index_store_plan(plan, folder)
    store = find_index(store_plan)
    if store is not None:
        return store
    if is_builder:
        if plan.num_rows + plan.num_samples <= _SERIAL_ROWS:
            return _build(plan, source, folder, SerialExecutor())
        with open_executor() as executor:
            return _build(plan, source, folder, executor)
    deadline = time.monotonic() + timeout
    wait = _FIRST_WAIT
    while time.monotonic() < deadline:
        # Jitter keeps thousands of ranks from asking the file system in the same instant.
        time.sleep(wait * random.uniform(0.5, 1.0))
        wait = min(2 * wait, _LONGEST_WAIT)
        store = find_index(store_plan)
        if store is not None:
            return store
    try:
        num_done = read_status(store_plan.root).num_done
    except StoreNotFoundError:
        num_done = 0
    raise NotReadyError(
        f"{store_plan.root} must be committed within {timeout:.0f} s, {num_done} of "
        f"{store_plan.num_shards} shards are finished; check the building rank, or build ahead "
        "with `zindex build`",
        num_done=num_done,
        num_shards=store_plan.num_shards,
    )


def _build(plan: IndexPlan, source: LengthSource, folder: str, executor: Executor) -> Store:
    return run_builds(build_index(plan, source, folder, executor)).store
