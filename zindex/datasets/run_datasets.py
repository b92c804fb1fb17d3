"""Open the torch datasets of a run file."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from zindex.config import RunConfig, as_config
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.edited_dataset import EditedDataset
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.packed_dataset import PackedGPTDataset
from zindex.datasets.rank_requests import describe_run
from zindex.datasets.ranks import collect, open_builds, open_step
from zindex.datasets.utils import Split
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.formats.token_dtypes import highest_id
from zindex.indexing.open_sources import read_notes
from zindex.indexing.run_plan import PlannedBlend, PlannedIndex, RunPlan, plan_run
from zindex.maintenance.edits.journal import find_journals
from zindex.plan.index_plan import IndexPlan
from zindex.samples.lengths import adopt_source
from zindex.store.open import Store
from zindex.text.kept_tokenizer import check_fit, choose_tokenizer, distinct_notes
from zindex.text.tokenizers.open_tokenizer import as_tokenizer

#: A dataset of a run: of a stream, or packed.
Member = GPTDataset | PackedGPTDataset


def open_run(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    tokenizer: Any = None,
    *,
    follow: float | None = None,
    **settings: Any,
) -> dict[str, BlendedDataset | EditedDataset | list[Member]]:
    """Return the datasets of a run, building missing indices.

    The datasets of an edited run include its edits; see `zindex.edit`.

    Under ``torch.distributed`` call it on every rank. Rank 0 builds what is missing; the other
    ranks poll for the commits, without a barrier.

    Parameters
    ----------
    config
        A ``RunConfig``, the mapping of one, or the path of its YAML file.
    tokenizer
        The tokenizer, whose special tokens, vocabulary size and identity are used: a path, a
        Megatron tokenizer, or an object of tokenizers, transformers, tiktoken or sentencepiece; see
        `zindex.text.tokenizers.open_tokenizer.as_tokenizer`. None uses the one kept in the corpora.
    follow
        Timeout in seconds of a sample whose part of an index is not built yet: the datasets are
        returned immediately and built in the background. None, or an edited run, builds all indices
        first.
    settings
        Further settings of ``GPTDatasetConfig``; by default masks and positions are those of plain
        text.

    Returns
    -------
    datasets
        By split: the blend with its edits or, for a run without blends, the datasets in the run's
        order.

    Raises
    ------
    ConfigError
        If the tokenizer is invalid or does not match the corpora, or ranks open different runs.
    ZindexError
        If data are missing, damaged or too small, or another rank failed.
    """
    config = as_config(config)
    plan = plan_run(config)
    journals = find_journals(config, plan)
    tokenizer, is_known = _find_tokenizer(plan, tokenizer)
    followed = None if journals else follow
    gpt_config = _make_config(
        config, tokenizer, {"follow": followed, "check_ids": not is_known} | settings
    )
    with open_step() as step, open_builds(gpt_config, step) as builds:
        step.agree(describe_run(config, gpt_config))
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


def _find_tokenizer(plan: RunPlan, given: Any) -> tuple[Any, bool]:
    """Return the given tokenizer, or the one kept in the corpora.

    It matches the corpora that keep theirs; the second value is whether it has all possible ids,
    because every corpus keeps its tokenizer or has tokens of a narrow dtype.
    """
    sources = {item.dataset: item.source for item in plan.members}
    notes = read_notes(list(sources.values()))
    tokenizer = choose_tokenizer(notes) if given is None else as_tokenizer(given)
    known = distinct_notes(notes)
    for path, note in known if given is not None or len(known) > 1 else ():
        check_fit(tokenizer, path, note)
    num_ids = tokenizer.vocab_size
    unknown = [path for path, note in notes.items() if note is None or note.vocab_size is None]
    return tokenizer, num_ids is None or all(
        highest_id(sources[path].token_dtype) < num_ids for path in unknown
    )


def _make_config(config: RunConfig, tokenizer: Any, settings: dict[str, Any]) -> GPTDatasetConfig:
    """Return the configuration of a run's datasets."""
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
    items: Sequence[PlannedIndex[Any]], config: GPTDatasetConfig
) -> dict[tuple[str, str], Member]:
    """Return the dataset of every index, by path and split."""
    tokens: dict[str, Any] = {}
    members: dict[tuple[str, str], Member] = {}
    for item in items:
        path, plan = item.dataset, item.plan
        if path not in tokens:
            opened = item.source.reader
            tokens[path] = (
                ZarrIndexedDataset(path, store=opened)
                if isinstance(opened, Store)
                else GPTDataset.build_low_level_dataset(path, config)
            )
            adopt_source(tokens[path], item.source)
        documents, split = range(plan.start, plan.stop), Split[plan.split]
        kind = GPTDataset if isinstance(plan, IndexPlan) else PackedGPTDataset
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
