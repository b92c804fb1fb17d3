"""Batches of a keyed dataset, for each rank of a training job, resumable at any step."""

from collections.abc import Callable, Mapping
from typing import Any

from zindex.errors import ConfigError
from zindex.keyed.base_dataset import BaseDataset
from zindex.keyed.sampler import check_not_empty, check_number, find_ranks
from zindex.loading.loader import Loader, loader
from zindex.loading.sampler import Tail


def keyed_loader(
    dataset: Any,
    batch_size: int,
    *,
    num_epochs: int | None = 1,
    shuffle: bool = True,
    seed: int = 42,
    tail: Tail = "drop_last",
    rank: int | None = None,
    num_ranks: int | None = None,
    num_workers: int = 0,
    prefetch: int | None = None,
    multiprocessing_context: Any = None,
    pin_memory: bool | None = None,
    collate: Callable[[Any], Any] | None = None,
    state: Mapping[str, Any] | None = None,
) -> Loader:
    """Return the batches of a keyed dataset for this rank, read ahead, with a state.

    Parameters
    ----------
    dataset
        What ``DatasetFactory.load`` returned, or any other map-style dataset with a ``collate``.
    batch_size
        Samples of this rank in each batch, the same on all ranks.
    num_epochs
        Passes over the dataset, with batches across their ends; None makes one pass in every
        iteration, for validation, and for trainers that count epochs themselves.
    shuffle, seed
        Give each pass an order of its own.
    tail
        What becomes of the last samples if they are too few for a full batch of every rank:
        ``"drop_last"`` leaves them out; ``"exact"`` divides them, and ranks that have none get a
        batch of no samples, of which no mean may be taken; ``"pad"`` divides them and fills up with
        samples without any weight: masks of False, and targets of -100.
    rank, num_ranks
        This rank, and how many share the samples; by default of ``torch.distributed``, or of
        ``torchrun``'s environment.
    num_workers, prefetch, multiprocessing_context, pin_memory
        As for `zindex.loader`: without workers, threads read ahead.
    collate
        Makes a batch of several samples; by default as the dataset does it.
    state
        Where to begin: what ``state_dict()`` returned, on any number of ranks.

    Returns
    -------
    batches
        An iterable of batches with ``state_dict()`` and ``load_state_dict()``, which count what the
        trainer was handed. With ``ResumableDistributedSampler`` in its own order and with the same
        seed, the states are the same, and so are the samples of each step of all ranks.

    Raises
    ------
    ConfigError, PlanError
        If a setting is wrong, or there is not one step.
    NotLoadedError
        If the dataset is not loaded.
    StateMismatchError
        If the state belongs to other samples.

    Notes
    -----
    The same with torch's ``DataLoader`` alone, in AstrAI's order or any other::

        sampler = ResumableDistributedSampler(dataset, order="astrai_randperm")
        batches = DataLoader(dataset, batch_size, sampler=sampler, collate_fn=dataset.collate)
        for epoch in range(sampler.epoch, num_epochs):
            for batch in batches:
                ...
                sampler.count_delivered(batch_size_of(batch))
                save(sampler.state_dict())

    ``count_delivered`` is needed with workers, which take indices ahead of the trainer. Validation
    takes ``shuffle=False, tail="exact"``, so that no sample counts twice.
    """
    if isinstance(dataset, BaseDataset):
        dataset.opened  # noqa: B018 - says so if it is not loaded
    found = collate or getattr(dataset, "collate", None)
    if found is None:
        raise ConfigError(
            f"a keyed loader needs a dataset that has a collate, got {type(dataset).__name__}; "
            "give collate"
        )
    ranks = find_ranks(None, rank, num_ranks)
    micro_batch_size = check_number("batch_size", batch_size, 1)
    check_not_empty(len(dataset), "a loader")
    return loader(
        dataset,
        micro_batch_size=micro_batch_size,
        data_parallel_rank=ranks[0],
        data_parallel_size=ranks[1],
        num_epochs=num_epochs,
        shuffle=shuffle,
        seed=seed,
        tail=tail,
        num_workers=num_workers,
        prefetch=prefetch,
        multiprocessing_context=multiprocessing_context,
        pin_memory=pin_memory,
        collate=found,
        state=state,
    )
