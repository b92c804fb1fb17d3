"""The torch datasets of a run, as its YAML file describes them."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from zindex.building.edits.journal import find_journals
from zindex.building.planning import PlannedBlend, PlannedIndex, PlannedPacking, plan_run
from zindex.config import RunConfig, as_config
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.edited_dataset import EditedDataset
from zindex.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from zindex.datasets.packed_dataset import PackedGPTDataset
from zindex.datasets.ranks import collect, open_builds, open_meeting
from zindex.datasets.utils import Split
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.store.open import Store

#: A dataset of a run: cut out of a stream, or packed.
Member = GPTDataset | PackedGPTDataset


def open_run(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    tokenizer: Any,
    *,
    follow: float | None = None,
    **settings: Any,
) -> dict[str, BlendedDataset | EditedDataset | list[Member]]:
    """Return the datasets that a run describes; what ``zindex build`` has not built is built.

    A run that was edited comes with its edits; see `zindex.edit`.

    Under ``torch.distributed`` every rank calls this. Rank 0 builds what is missing, the others
    look for the commits, and nobody waits at a barrier.

    Parameters
    ----------
    config
        A ``RunConfig``, the mapping of one, or the path of its YAML file.
    tokenizer
        The tokenizer: its special tokens, its vocabulary size and its identity are used.
    follow
        Seconds that a sample waits at most for what is still being built of it: the datasets are
        returned at once, and built behind them. None waits here until all is built; so does a run
        that was edited.
    settings
        Further settings of ``GPTDatasetConfig``; masks and positions are as in plain text unless
        they say otherwise.

    Returns
    -------
    datasets
        By split: the blend, with its edits if there are any, or, in a run without blends, the
        datasets in the run's order.

    Raises
    ------
    ZindexError
        If data are missing, damaged or too small, or another rank failed.
    """
    config = as_config(config)
    plan = plan_run(config)
    journals = find_journals(config, plan)
    followed = None if journals else follow
    gpt_config = _make_config(config, tokenizer, {"follow": followed} | settings)
    with open_meeting() as meeting, open_builds(gpt_config, meeting) as builds:
        with collect(builds):
            members = _open_members(plan.members, gpt_config)
            blends = {item.split: _open_blend(item, members, gpt_config) for item in plan.blends}
            edited = {
                split: EditedDataset(blends[split], journal, gpt_config)
                for split, journal in journals.items()
            }
        builds.finish()
    if config.blend_kind is not None:
        return {**blends, **edited}
    datasets: dict[str, list[Member]] = {}
    for item in plan.members:
        datasets.setdefault(item.plan.split, []).append(members[item.dataset, item.plan.split])
    return dict(datasets)


def _make_config(config: RunConfig, tokenizer: Any, settings: dict[str, Any]) -> GPTDatasetConfig:
    """Return the torch side's configuration of a run."""
    plain = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    if config.packing is not None:  # packed attention needs no mask, which would be large
        plain["inter_document_masking"] = True
    return GPTDatasetConfig(
        random_seed=config.seed,
        sequence_length=config.sequence_length,
        blend=([dataset.path for dataset in config.members], None),
        split=config.split,
        path_to_cache=config.index,
        tokenizer=tokenizer,
        mid_level_dataset_surplus=config.surplus,
        add_extra_token_to_sequence=config.add_extra_token_to_sequence,
        drop_last_partial_validation_sequence=config.drop_last_partial_validation_sequence,
        order=config.order,
        store=config.store,
        shuffle=config.shuffle,
        grid=config.grid,
        packing=config.packing,
        **(plain | settings),
    )


def _open_members(
    items: Sequence[PlannedIndex | PlannedPacking], config: GPTDatasetConfig
) -> dict[tuple[str, str], Member]:
    """Return the dataset of every index, by path and split."""
    tokens: dict[str, Any] = {}
    members: dict[tuple[str, str], Member] = {}
    for item in items:
        path, plan = item.dataset, item.plan
        if path not in tokens:
            opened = item.source.reader
            tokens[path] = (
                ZarrIndexedDataset.of(path, opened)
                if isinstance(opened, Store)
                else GPTDataset.build_low_level_dataset(path, config)
            )
        documents, split = range(plan.start, plan.stop), Split[plan.split]
        kind = GPTDataset if isinstance(item, PlannedIndex) else PackedGPTDataset
        members[path, plan.split] = kind(
            tokens[path], path, documents, item.num_requested, split, config
        )
    return members


def _open_blend(
    item: PlannedBlend, members: dict[tuple[str, str], Member], config: GPTDatasetConfig
) -> BlendedDataset:
    """Return the blend of one split over its members."""
    datasets = [members[path, item.split] for path in item.datasets]
    if item.sizes.weights is None:
        assert item.sizes.sizes is not None
        return BlendedDataset(datasets, item.sizes.sizes, None, config)
    return BlendedDataset(datasets, item.sizes.weights, item.sizes.num_samples, config)
