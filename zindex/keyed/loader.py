"""Batches of a keyed dataset for each rank of a training job, resumable at any step."""

from collections.abc import Mapping
from typing import Any, Unpack

from zindex.errors import ConfigError, check_whole
from zindex.keyed.base_dataset import BaseDataset
from zindex.keyed.packed_batches import PackedDataset
from zindex.keyed.sampler import find_ranks
from zindex.loading.loader import Loader, ReadSettings, loader
from zindex.plan.tail import Tail, TailName
from zindex.plan.token_batches import TokenBudget


def keyed_loader(
    dataset: Any,
    batch_size: int | TokenBudget,
    *,
    num_epochs: int | None = 1,
    shuffle: bool = True,
    seed: int = 42,
    tail: Tail | TailName = Tail.DROP_LAST,
    rank: int | None = None,
    num_ranks: int | None = None,
    state: Mapping[str, Any] | None = None,
    **reading: Unpack[ReadSettings],
) -> Loader:
    """Return prefetched, resumable batches of a keyed dataset for this rank.

    Parameters
    ----------
    dataset
        A dataset of ``DatasetFactory.load``, or any map-style dataset with a ``collate``.
    batch_size
        Samples of this rank in each batch, the same on all ranks; or a `zindex.keyed.TokenBudget`,
        for batches of samples of any number with nearly equal tokens. With its layout ``"packed"``
        they are those of a `zindex.keyed.PackedDataset`, which the dataset may also be itself.
    num_epochs
        Passes over the dataset, with batches across their ends; None makes one pass per iteration,
        for validation and for trainers that count epochs themselves.
    shuffle, seed
        Shuffle each pass.
    tail
        How to treat a last step that is not full, see `zindex.plan.tail.Tail`: ``"drop_last"``
        drops it; ``"exact"`` divides it, and ranks without samples get an empty batch, which has no
        mean; ``"pad"`` divides it and adds samples without weight: masks of False, targets of -100.
    rank, num_ranks
        This rank, and how many share the samples; by default of ``torch.distributed``, or of
        ``torchrun``'s environment.
    state
        State to resume from, as ``state_dict()`` returned it on any number of ranks.
    reading
        ``num_workers``, ``prefetch``, ``multiprocessing_context``, ``pin_memory`` and ``collate``
        (by default the dataset's), as for `zindex.loader`: without workers, threads prefetch.

    Returns
    -------
    batches
        An iterable of batches with ``state_dict()`` and ``load_state_dict()``, which count
        delivered samples. States, and the samples of each step of all ranks, equal those of
        ``ResumableDistributedSampler`` in its default order with the same seed.

    Raises
    ------
    ConfigError, PlanError
        If a setting is invalid, or there is not a single step.
    NotLoadedError
        If the dataset is not loaded.
    StateMismatchError
        If the state belongs to other samples.

    Notes
    -----
    The equivalent with torch's ``DataLoader``, in AstrAI's order or any other::

        sampler = ResumableDistributedSampler(dataset, order="astrai_randperm")
        batches = DataLoader(dataset, batch_size, sampler=sampler, collate_fn=dataset.collate)
        for epoch in range(sampler.epoch, num_epochs):
            for batch in batches:
                ...
                sampler.count_delivered(batch_size_of(batch))
                save(sampler.state_dict())

    ``count_delivered`` is needed with workers, which prefetch indices. With a budget of tokens::

        packed = PackedDataset(dataset)
        sampler = TokenBatchSampler(packed, TokenBudget(16_384), num_epochs=3)
        for batch in DataLoader(packed, batch_sampler=sampler, collate_fn=packed.collate):
            ...
            sampler.count_delivered()
            save(sampler.state_dict())

    For validation use
    ``shuffle=False, tail="exact"``, so that no sample counts twice.
    """
    if isinstance(dataset, BaseDataset):
        dataset.opened  # noqa: B018 - raises NotLoadedError
    if isinstance(batch_size, TokenBudget):
        if batch_size.layout == "packed" and isinstance(dataset, BaseDataset):
            dataset = PackedDataset(dataset)
        if batch_size.layout == "padded" and isinstance(dataset, PackedDataset):
            raise ConfigError(
                "a PackedDataset must come with a budget of layout='packed', got 'padded'; give "
                "the dataset that is packed, or the other layout"
            )
    else:
        batch_size = check_whole("batch_size", batch_size, 1)
    reading["collate"] = reading.get("collate") or getattr(dataset, "collate", None)
    if reading["collate"] is None:
        raise ConfigError(
            f"a keyed loader needs a dataset that has a collate, got {type(dataset).__name__}; "
            "give collate, or load a store with DatasetFactory.load"
        )
    rank, num_ranks = find_ranks(None, rank, num_ranks)
    return loader(
        dataset,
        micro_batch_size=batch_size,
        data_parallel_rank=rank,
        data_parallel_size=num_ranks,
        num_epochs=num_epochs,
        shuffle=shuffle,
        seed=seed,
        tail=tail,
        state=state,
        **reading,
    )
