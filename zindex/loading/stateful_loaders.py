"""States of torchdata's StatefulDataLoader, which keeps one of each loader worker."""

from collections.abc import Mapping
from typing import Any

from zindex.errors import StateMismatchError


def join_workers(state: Any) -> Any:
    """Return the state of a rank from that of its ``StatefulDataLoader``; any other as it is.

    Raises
    ------
    StateMismatchError
        If it is not of the last batch, or the dataset is not a mixture.
    """
    if not isinstance(state, Mapping):
        return state  # which is refused where it is read
    if "_snapshot" in state:
        snapshot = state["_snapshot"]
        workers, last = snapshot["_worker_snapshots"], snapshot["_last_yielded_worker_id"]
    elif "fetcher_state" in state:
        workers, last = {"worker_0": state}, 0
    else:
        return dict(state)
    if state.get("_steps_since_snapshot"):
        raise StateMismatchError(
            "the state of a StatefulDataLoader must be of its last batch, got one of "
            f"{state['_steps_since_snapshot']} batches before; set snapshot_every_n_steps=1"
        )
    joined: dict[str, Any] = {}
    for number in range(len(workers)):
        own = workers[f"worker_{number}"]["dataset_state"] or {}
        if "own" not in own:
            raise StateMismatchError(
                "the state of a StatefulDataLoader must have that of a MergedDataset in each "
                f"worker, got none in worker {number}; wrap no other dataset around it"
            )
        if joined and joined["origin"]["id"] != own["origin"]["id"]:
            raise StateMismatchError(
                "all workers of a StatefulDataLoader must be in one iteration, got the origins "
                f"{joined['origin']['id']} and {own['origin']['id']}; take another state"
            )
        joined.update(own)
    rank, num_ranks = joined["own"]
    origin_id, [_, num_slots] = joined[f"turn @{rank}/{num_ranks}"]
    # A worker says that the slot before that of worker 0 was last.
    before, _ = workers[f"worker_{last}"]["dataset_state"][f"turn @{rank}/{num_ranks}"][1]
    turn = [(before + last + 1) % num_slots, num_slots]
    return joined | {f"turn @{rank}/{num_ranks}": [origin_id, turn]}
