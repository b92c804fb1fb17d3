"""A process that reads a store, and then loads it in a worker: ``loader_process URL``."""

import json
import sys

import zindex


class Rows:
    """The rows of an array as a dataset; opening it reads."""

    def __init__(self, url: str) -> None:
        self.rows = zindex.open_store(url)["one"]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> int:
        return int(self.rows[place])


def main(url: str) -> None:
    with zindex.loader(Rows(url), micro_batch_size=5, num_workers=1) as batches:
        print(json.dumps([batch.tolist() for batch in batches]))


if __name__ == "__main__":
    main(sys.argv[1])
