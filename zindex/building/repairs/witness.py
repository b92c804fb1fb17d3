"""What speaks for rebuilt shards where neither a root zarr.json nor a manifest is left to do so.

``plan.json`` proves only itself: whoever changed it could change its digest too. What is rebuilt
from it must therefore agree with shards that are still sound, or with what the user names.
"""

from collections.abc import Mapping

from zindex import schema
from zindex.errors import VerificationError
from zindex.store.commit import StorePlan
from zindex.store.shard import Receipt
from zindex.store.verify import ShardId

# Arrays from which the others are made again: that they agree with themselves says nothing.
_GIVEN = (schema.DATASET_WEIGHT.name, schema.DATASET_COUNT.name)


def check_witness(
    plan: StorePlan, sound: Mapping[ShardId, Receipt], rebuilt: Mapping[ShardId, Receipt]
) -> None:
    """Check that shards which were sound before agree with those that were rebuilt.

    Parameters
    ----------
    plan
        The plan of the store, of which nothing but plan.json is known.
    sound
        Receipts of the shards that passed their own checksums before the repair.
    rebuilt
        Receipts of all shards as they are now.

    Raises
    ------
    VerificationError
        If one of them holds values that no rebuilt shard of its array holds, or none is left.
    """
    is_tokens = plan.kind == "tokens"
    need = "restore one of them, or name the run file that built it"
    if is_tokens:
        need = "restore one of them, or name the unchanged .bin/.idx pair with --source"
    lost = "its zarr.json and its manifest are both damaged"
    # Shards may have been swapped: their values are then those of another one.
    held = {_content(receipt) for receipt in rebuilt.values()}
    witnesses = 0
    for (name, shard), receipt in sound.items():
        if rebuilt[name, shard] != receipt and _content(receipt) not in held:
            key = next(layout for layout in plan.layouts if layout.name == name).shard_key(shard)
            raise VerificationError(
                f"{key} of {plan.root} passes its own checksums, and holds other values than what "
                f"plan.json and the source give, while {lost}; {need}"
            )
        witnesses += name not in _GIVEN
    # The source of tokens was compared with all of the plan.
    if not (witnesses or is_tokens or all(name in _GIVEN for name, _ in rebuilt)):
        raise VerificationError(
            f"{plan.root} must have a sound shard that agrees with its plan.json, it has none, and "
            f"{lost}; {need}, or remove the store and build it again"
        )


def _content(receipt: Receipt) -> tuple[str, int, int]:
    """Return what tells the values of a shard from those of others of its array."""
    return receipt.array, receipt.nbytes, receipt.crc32c
