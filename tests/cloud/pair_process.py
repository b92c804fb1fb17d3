"""A process that reads a pair, and then from forked workers: ``pair_process URL CACHE``."""

import json
import sys

from zindex.datasets.indexed_dataset import IndexedDataset, ObjectStorageConfig


def main(url: str, cache: str) -> None:
    from torch.utils.data import DataLoader

    dataset = IndexedDataset(url, object_storage_config=ObjectStorageConfig(cache))
    print(json.dumps(dataset[0].tolist()))
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", collate_fn=list
    )
    print(json.dumps([[int(token) for token in item] for item in loader]))


if __name__ == "__main__":
    main(*sys.argv[1:])
