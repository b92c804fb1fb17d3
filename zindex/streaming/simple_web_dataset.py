"""Tar archives without metadata, under the name and with the arguments of cogdata."""

from zindex.processing.process_function import ProcessFn
from zindex.sources.sample_files import Paths
from zindex.streaming.files_dataset import MetaDistributedWebDataset


class SimpleDistributedWebDataset(MetaDistributedWebDataset):
    """Samples of tar archives without metadata.

    Parameters
    ----------
    path
        As for `MetaDistributedWebDataset`.
    process_fn
        As for `MetaDistributedWebDataset`.
    seed
        Accepted for compatibility and ignored: the seed is set on `MergedDataset`.
    shuffle_buffer
        As for `MetaDistributedWebDataset`.
    """

    def __init__(
        self,
        path: Paths,
        process_fn: ProcessFn | None = None,
        seed: int | None = None,
        *,
        shuffle_buffer: int = 1000,
    ) -> None:
        super().__init__(path, process_fn, shuffle_buffer=shuffle_buffer)
        self.seed = seed
