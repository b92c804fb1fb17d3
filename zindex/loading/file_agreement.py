"""Let all ranks read the same files, also if some were added while the ranks listed them."""

from typing import Any

import torch

from zindex.errors import SourceError
from zindex.samples.collectives import gather_objects, is_distributed
from zindex.sources.part_files import PartFiles


def agree_on_files(datasets: list[Any], num_ranks: int) -> None:
    """Let the datasets have the files that the first rank has listed: a collective call.

    Parameters
    ----------
    datasets
        All datasets of this rank, in the same order on all.
    num_ranks
        Data-parallel ranks. Unless these are all processes of ``torch.distributed``, others may
        have no such datasets, and nothing is done.

    Raises
    ------
    SourceError
        If a rank does not have these files, on all ranks.
    """
    if not is_distributed() or num_ranks != torch.distributed.get_world_size():
        return
    found = {
        dataset.name: dataset
        for dataset in datasets
        if isinstance(getattr(dataset, "files", None), PartFiles)
    }
    own = {name: dataset.files.fingerprint() for name, dataset in found.items()}
    prints = gather_objects(own)
    if all(other == prints[0] for other in prints):
        return
    lists = gather_objects({name: found[name].files.names_and_sizes() for name in found})[0]
    fault = ""
    for name in lists.keys() & found.keys():
        try:
            found[name].__dict__ = found[name].as_listed(lists[name]).__dict__
        except SourceError as error:
            fault = f"of {name!r}, {error}"
    wrong = [(rank, text) for rank, text in enumerate(gather_objects(fault)) if text]
    if wrong:
        rank, text = wrong[0]
        raise SourceError(
            f"all ranks must have the files of rank 0, but on rank {rank} {text}; wait until files "
            "are on all nodes, or start again"
        )
