"""Small stores of each kind of training, as folders of raw arrays."""

from pathlib import Path

import numpy as np

from tests.keyed.upstream_files import documents, masks, positions, write_bin


def write_sft(folder: Path, lengths: tuple[int, ...] = (40, 25, 60), num_shards: int = 2) -> Path:
    """Write documents whose tokens count up over all shards."""
    for shard in range(num_shards):
        tokens = documents(lengths, start=shard * sum(lengths))
        groups = {"sequence": tokens, "loss_mask": masks(tokens), "position_ids": positions(tokens)}
        write_bin(folder / f"shard_{shard:04d}", groups, record_keys=list(groups))
    return folder


def write_dpo(folder: Path, num_pairs: int = 10) -> Path:
    """Write pairs: answer ``i`` has ``i + 1`` tokens ``i``, the other one has two more."""
    groups: dict[str, list[np.ndarray]] = {}
    for key, more in (("chosen", 0), ("rejected", 2)):
        tokens = [np.full(i + 1 + more, i, "int32") for i in range(num_pairs)]
        groups |= {key: tokens, f"{key}_mask": [values >= 0 for values in tokens]}
    write_bin(folder, groups, record_keys=list(groups))
    return folder


def write_grpo(folder: Path, num_records: int = 6) -> Path:
    """Write prompts with two responses each, by our own layout of groups."""
    from zindex.keyed.saving import save_bin

    sizes = range(1, num_records + 1)
    responses = [[np.full(i, i, "int32"), np.full(i + 1, i, "int32")] for i in sizes]
    save_bin(
        folder,
        {
            "prompts": [np.full(i, i, "int32") for i in sizes],
            "responses": responses,
            "masks": [[item > 0 for item in group] for group in responses],
            "rewards": [[np.full(1, i, "float32"), np.zeros(1, "float32")] for i in sizes],
        },
    )
    return folder
