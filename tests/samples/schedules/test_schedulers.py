"""Global batches that are packed, in processes of their own and in this one."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.forked import run_python
from tests.samples.schedules import packing_process
from tests.samples.schedules.packing_process import LIMIT, draw_samples, summarize
from zindex.datasets import data_schedule
from zindex.datasets.data_schedule import (
    BalancedScheduler,
    BasePackingScheduler,
    DpBalancedScheduler,
    _sanitize_thd_padding_values,
    get_batch_on_this_rank_for_sequence_packing,
    wrap_data_iterator,
)
from zindex.errors import ConfigError, SourceError
from zindex.samples.schedules.packed_samples import TOKEN_KEYS, find_share

SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("dp", "cp", "tp", "pp"), 1),
    "vpp": None,
    "scheduler": "dp_balanced",
    "num_samples": 6,
    "takes_batches": True,
    "theirs": None,
    "times": False,
}


def run(folder: Path, **settings: Any) -> list[Any]:
    """Return what each rank says."""
    folder.mkdir()
    settings = SETTINGS | settings | {"folder": str(folder)}
    run_python("-m", "tests.samples.schedules.packing_process", json.dumps(settings), check=True)
    num_ranks = settings["dp"] * settings["cp"] * settings["tp"] * settings["pp"]
    return [json.loads((folder / str(rank)).read_text()) for rank in range(num_ranks)]


@pytest.mark.parametrize(
    ("sizes", "scheduler"),
    [
        ({"dp": 2}, "balanced"),
        pytest.param({"dp": 2, "cp": 2}, "dp_balanced", marks=pytest.mark.slow),
    ],
)
def test_ranks_get_their_packs(tmp_path: Path, sizes: Any, scheduler: str) -> None:
    said = run(tmp_path / "ours", **sizes, scheduler=scheduler)
    num_ranks, context = sizes["dp"], sizes.get("cp", 1)
    kind = {"balanced": BalancedScheduler, "dp_balanced": DpBalancedScheduler}[scheduler]
    read = [draw_samples(rank, SETTINGS) for rank in range(num_ranks)]
    for step in range(packing_process.NUM_STEPS):
        own = slice(step * SETTINGS["num_samples"], (step + 1) * SETTINGS["num_samples"])
        samples = [sample for rank in read for sample in rank[own]]
        lengths = [int(sample["padded_seq_len"]) for sample in samples]
        planner = kind(LIMIT // context, context, num_ranks, None)
        groups = planner.get_groups_and_subsamples(list(enumerate(lengths)))
        for rank in range(num_ranks * context):
            count, sums, batches = said[rank][step]
            assert (count, sums) == (len(groups), [sum(lengths), sum(n**2 for n in lengths)])
            for group, batch in zip(groups, batches, strict=True):
                packed = [samples[number] for number in group[rank]]
                bounds = torch.tensor([0, *(lengths[number] for number in group[rank])]).cumsum(0)
                mine = find_share(bounds, context, rank % context)
                for place, name in enumerate(
                    ["tokens", "labels", "loss_mask", None, "position_ids"]
                ):
                    if name is not None:
                        values = torch.cat([sample[name] for sample in packed])
                        real = torch.cat([sample["loss_mask"] for sample in packed]) > 0
                        assert batch[place] == summarize((values * real)[mine][None])


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [
        {"dp": 2},
        {"dp": 2, "tp": 2},
        {"dp": 2, "cp": 2, "takes_batches": False},
        {"pp": 3},
        {"dp": 2, "pp": 2, "vpp": 2},
        {"pp": 3, "vpp": 2, "takes_batches": False},
    ],
)
def test_results_equal_megatrons(tmp_path: Path, sizes: Any, megatron_checkout: str) -> None:
    ours = run(tmp_path / "ours", **sizes)
    assert ours == run(tmp_path / "theirs", **sizes, theirs=megatron_checkout)


def make_config(**settings: Any) -> SimpleNamespace:
    defaults = {
        "max_seqlen_per_dp_cp_rank": LIMIT,
        "virtual_pipeline_model_parallel_size": None,
        "sequence_packing_scheduler": "balanced",
    }
    return SimpleNamespace(**(defaults | settings))


def test_one_rank(groups: Any) -> None:
    samples = draw_samples(0, SETTINGS)
    count = len(samples)
    config = make_config(hidden_size=16)
    packed, number, num_tokens, _ = wrap_data_iterator(iter(samples), config, count, groups)
    assert num_tokens == sum(int(sample["padded_seq_len"]) for sample in samples)
    batches = [
        get_batch_on_this_rank_for_sequence_packing(packed, pg_collection=groups)
        for _ in range(number)
    ]
    assert sum(batch[0].numel() for batch in batches) == num_tokens
    tokens, labels, loss_mask, attention_mask, _, params, padding = batches[0]
    assert attention_mask is None
    assert torch.equal(padding, loss_mask == 0)
    assert not tokens[padding].any()
    assert not labels[padding].any()
    assert params.qkv_format == "thd"
    assert params.max_seqlen_q == int(params.cu_seqlens_q.diff().max())


def test_virtual_stages(groups: Any) -> None:
    settings = {"virtual_pipeline_model_parallel_size": 2, "microbatch_group_size_per_vp_stage": 3}
    samples = draw_samples(0, SETTINGS)
    config = make_config(sequence_packing_scheduler="dp_balanced", **settings)
    iterators, number, *_ = wrap_data_iterator([iter(samples), None], config, len(samples), groups)
    assert number % 3 == 0
    first, second = (next(iterator) for iterator in iterators)
    assert set(TOKEN_KEYS) <= set(first)
    assert list(second) == ["max_seqlen", "cu_seqlens", "cu_seqlens_padded"]


def test_a_scheduler_of_ones_own(groups: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Alone(BasePackingScheduler):
        def get_groups_and_subsamples(self, sample_id_seqlens: Any) -> Any:
            return [[[number]] for number, _ in sample_id_seqlens]

    kinds = data_schedule.scheduler_map
    monkeypatch.setitem(kinds, data_schedule.PackingSchedulerEnum.BALANCED, Alone)
    samples = draw_samples(0, SETTINGS)
    packed, number, *_ = wrap_data_iterator(iter(samples), make_config(), len(samples), groups)
    assert number == len(samples)
    assert torch.equal(next(packed)["tokens"], samples[0]["tokens"])
    with pytest.raises(NotImplementedError):
        BasePackingScheduler(8, 1, 1, None).get_groups_and_subsamples([])


def test_errors(groups: Any) -> None:
    samples = draw_samples(0, SETTINGS)
    with pytest.raises(ConfigError, match=r"sequence_packing_scheduler must be .* got 'other'"):
        wrap_data_iterator(iter([]), make_config(sequence_packing_scheduler="other"), 1, groups)
    del samples[0]["labels"]
    with pytest.raises(SourceError, match="sub-samples must have labels, got tokens, loss_mask"):
        wrap_data_iterator(iter(samples), make_config(), 1, groups)
    with pytest.raises(SourceError, match="must yield samples or lists of them, got str"):
        wrap_data_iterator(iter(["a"]), make_config(), 1, groups)
    packed = {"tokens": torch.arange(2), "position_ids": torch.arange(2)}
    with pytest.raises(SourceError, match="must have labels, loss_mask, cu_seqlens"):
        get_batch_on_this_rank_for_sequence_packing(iter([packed]), pg_collection=groups)
    bounds = torch.tensor([0, 2], dtype=torch.int32)
    packed |= {"labels": torch.arange(2), "loss_mask": torch.arange(2), "max_seqlen": 2}
    packed |= {"cu_seqlens": bounds, "cu_seqlens_padded": bounds}
    with pytest.raises(SourceError, match=r"loss_mask .* must be torch.float32, got torch.int64"):
        get_batch_on_this_rank_for_sequence_packing(iter([packed]), pg_collection=groups)
    with pytest.raises(SourceError, match=r"tokens .* the shape \(3,\) .* got \(2,\)"):
        _sanitize_thd_padding_values(packed, torch.zeros(3, dtype=torch.bool))
    groups.pp = None
    with pytest.raises(ConfigError, match="wrap_data_iterator needs the process groups dp_cp, dp,"):
        wrap_data_iterator(iter([]), make_config(), 1, groups)
