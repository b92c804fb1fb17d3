"""Windows of keyed stores as samples, against slices of the joined arrays."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from tests.keyed.small_stores import write_sft
from tests.keyed.upstream_files import write_bin
from zindex.errors import ConfigError, NotLoadedError, PlanError, SourceError
from zindex.formats.keyed.schema_presets import SFT
from zindex.keyed import DatasetFactory, MmapStore, keyed_loader
from zindex.keyed.window_dataset import WindowDataset
from zindex.loading.collate import collate
from zindex.loading.device import pack_documents

LENGTHS = (5, 1, 9, 3, 4)
TOTAL = sum(LENGTHS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of documents: tokens count up from 100, masks and positions tell them apart."""
    root = tmp_path_factory.mktemp("sft")
    tokens = np.arange(100, 100 + 2 * TOTAL, dtype=np.int32)
    cuts = np.cumsum(LENGTHS * 2)[:-1]
    documents = np.split(tokens, cuts)
    for shard in range(2):
        own = documents[shard * len(LENGTHS) : (shard + 1) * len(LENGTHS)]
        write_bin(
            root / f"shard_{shard:04d}",
            {
                "sequence": own,
                "loss_mask": [values % 3 == 0 for values in own],
                "position_ids": [np.arange(len(values), dtype=np.int32) for values in own],
            },
            record_keys=["sequence", "loss_mask", "position_ids"],
        )
    return root


def load(folder: Path, window_size: int, *args: Any, kind: str = "sft", **options: Any) -> Any:
    return DatasetFactory.load(kind, folder, window_size, *args, **options)


@pytest.mark.parametrize("shift", [0, 5])
def test_replaced_positions_are_said(
    tmp_path: Path, shift: int, caplog: pytest.LogCaptureFixture
) -> None:
    documents = [np.arange(5), np.arange(4)]
    values = {"sequence": documents, "loss_mask": [item > 0 for item in documents]}
    positions = {"position_ids": [item + shift for item in documents]}
    write_bin(tmp_path, values | positions, record_keys=["sequence", "loss_mask", "position_ids"])
    for documents_setting, count in (("ignore", 0), ("mark", 1), ("pack", 1)):
        caplog.clear()
        with caplog.at_level("INFO"):
            load(tmp_path, 4, documents=documents_setting)
        found = [item for item in caplog.records if "replaces the stored" in item.getMessage()]
        assert [item.levelname for item in found] == ["WARNING" if shift else "INFO"] * count
        assert all(f"documents={documents_setting!r}" in item.getMessage() for item in found)


def test_d6_samples_of_seq(folder: Path) -> None:
    dataset = load(folder, 4, kind="seq")
    sample = dataset[-1]
    assert list(sample) == ["input_ids", "target_ids"]
    assert (sample["input_ids"][1:] == sample["target_ids"][:-1]).all()
    assert dataset.required_keys == ["sequence"]
    assert dataset.keys == ["loss_mask", "position_ids", "sequence"]
    assert dataset.count == 2 * TOTAL


@pytest.mark.parametrize("stride", [1, 3, 4, 9])
def test_strides_are_places_from_window_to_window(folder: Path, stride: int) -> None:
    dataset = load(folder, 4, stride)
    assert [dataset.get_index(i)[0] for i in range(len(dataset))] == list(
        range(0, 2 * TOTAL - 4, stride)
    )
    batch = collate(dataset.__getitems__(range(len(dataset))))
    assert batch["input_ids"][:, 0].tolist() == list(range(100, 100 + 2 * TOTAL - 4, stride))


def test_a_batch_is_its_samples(folder: Path) -> None:
    dataset = load(folder, 5)
    numbers = [3, 0, -1, 3, 2]
    batch = dataset.__getitems__(numbers)
    one_by_one = default_collate([dataset[number] for number in numbers])
    for stacked in (dataset.collate(batch), default_collate(list(batch))):
        assert list(stacked) == list(one_by_one)
        assert all(torch.equal(stacked[name], one_by_one[name]) for name in stacked)
    assert all(tensor.is_contiguous() for tensor in dataset.collate(batch).values())
    assert len(dataset.__getitems__([])) == 0


def test_indices_are_those_of_a_list(folder: Path) -> None:
    dataset = load(folder, 6)
    everything = list(dataset)
    assert len(everything) == len(dataset)
    assert torch.equal(dataset[-1]["input_ids"], everything[-1]["input_ids"])
    for index in (len(dataset), -len(dataset) - 1, 99):
        with pytest.raises(IndexError, match=f"index {index} is out of range"):
            dataset[index]
        with pytest.raises(IndexError, match=f"index {index} is out of range"):
            dataset.get_index(index)
    for index in ("0", None):
        with pytest.raises(TypeError):
            dataset[index]


def test_the_tail_is_filled_up_or_short(folder: Path) -> None:
    tokens = np.arange(100, 100 + 2 * TOTAL)
    full, padded, short = (load(folder, 6, tail=tail) for tail in ("drop", "pad", "short"))
    assert len(padded) == len(short) == len(full) + 1
    begin = 6 * len(full)
    rest = 2 * TOTAL - 1 - begin
    assert padded.get_index(-1) == (begin, begin + rest)
    sample = padded[-1]
    assert sample["input_ids"].tolist() == [*tokens[begin:-1].tolist(), *[0] * (6 - rest)]
    assert sample["target_ids"].tolist() == [*tokens[begin + 1 :].tolist(), *[-100] * (6 - rest)]
    assert not sample["loss_mask"][rest:].any()
    cut = short[-1]
    assert {name: len(value) for name, value in cut.items()} == dict.fromkeys(sample, rest)
    assert all(torch.equal(value, sample[name][:rest]) for name, value in cut.items())
    assert torch.equal(short[0]["input_ids"], full[0]["input_ids"])
    assert load(folder, 6, tail="pad", pad_id=7)[-1]["input_ids"][rest:].tolist() == [7] * (
        6 - rest
    )


@pytest.mark.parametrize("documents", ["ignore", "respect", "mark"])
def test_short_windows_are_filled_up_to_the_longest_of_a_batch(
    folder: Path, documents: str
) -> None:
    short, padded = (load(folder, 6, documents=documents, tail=tail) for tail in ("short", "pad"))
    numbers = range(len(short))
    batch = short.collate(short.__getitems__(numbers))
    wanted = padded.collate(padded.__getitems__(numbers))
    kept = wanted["target_ids"] != -100
    for name in ("input_ids", "target_ids", "loss_mask"):
        assert torch.equal(batch[name][kept], wanted[name][kept])
    assert (batch["target_ids"][~kept] == -100).all()
    assert not batch["loss_mask"][~kept].any()
    *_, last = keyed_loader(short, 4, tail="exact", shuffle=False)
    assert last["input_ids"].shape[1] <= 6


def test_windows_of_documents_begin_with_them(folder: Path) -> None:
    dataset = load(folder, 4, documents="respect", tail="pad")
    begins = np.cumsum((0, *LENGTHS * 2))[:-1]
    firsts = [int(sample["input_ids"][0]) - 100 for sample in dataset]
    wanted = [
        begin + k
        for begin, length in zip(begins.tolist(), LENGTHS * 2, strict=True)
        for k in range(0, length - 1, 4)
    ]
    assert firsts == wanted
    places = np.concatenate([np.arange(length) for length in LENGTHS * 2])
    for sample in dataset:
        kept = sample["target_ids"] != -100
        inputs = sample["input_ids"][kept]
        assert sample["position_ids"][kept].tolist() == places[inputs - 100].tolist()
        assert (sample["target_ids"][kept] == inputs + 1).all()


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    window_size=st.integers(1, 7),
    documents=st.sampled_from(["mark", "pack"]),
)
def test_marked_targets_stay_in_their_documents(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], window_size: int, documents: Any
) -> None:
    folder = tmp_path_factory.mktemp("marked")
    tokens = np.split(np.arange(sum(lengths), dtype=np.int32), np.cumsum(lengths)[:-1])
    masks = [np.ones(length, np.bool_) for length in lengths]
    write_bin(folder, {"sequence": tokens, "loss_mask": masks}, ["sequence", "loss_mask"])
    dataset = load(folder, window_size, documents=documents, tail="pad")
    owners = np.repeat(np.arange(len(lengths)), lengths)
    begins = np.repeat(np.cumsum(lengths) - lengths, lengths)
    targets = []
    for sample in dataset:
        kept = sample["target_ids"] != -100
        assert torch.equal(kept, sample["loss_mask"])
        inputs, outputs = sample["input_ids"][kept].numpy(), sample["target_ids"][kept].numpy()
        assert (outputs == inputs + 1).all()
        assert (owners[inputs] == owners[outputs]).all()
        if documents == "pack":
            starts = sample["position_ids"][kept].numpy() + begins[inputs]
            longer = np.repeat(lengths, lengths)[inputs] > window_size + 1
            assert (starts[~longer] == inputs[~longer]).all()
        places = sample["document_ids"]
        assert ((places >= 0) | ~kept).all()
        for number in set(places.tolist()) - {-1}:
            own = torch.nonzero(places == number)[:, 0]
            assert torch.equal(own, torch.arange(own[0], own[0] + len(own)))
            assert sample["position_ids"][own].tolist() == list(range(len(own)))
        targets += outputs.tolist()
    assert sorted(targets) == [k for k in range(sum(lengths)) if k not in set(begins.tolist())]


def test_splits_share_no_document(folder: Path) -> None:
    seen: list[set[int]] = []
    for name in ("train", "valid"):
        dataset = load(
            folder,
            4,
            documents="respect",
            tail="pad",
            split=name,
            split_weights="70,30",
            split_seed=1,
        )
        seen.append({int(token) for sample in dataset for token in sample["input_ids"] if token})
    everything = load(folder, 4, documents="respect", tail="pad")
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == {
        int(token) for sample in everything for token in sample["input_ids"] if token
    }
    with pytest.raises(
        ConfigError, match=r"must be 'respect' or 'pack', got 'ignore' and split='tr"
    ):
        load(folder, 4, split="train")
    with pytest.raises(
        ConfigError, match="split_weights must come with the split to take, got '9,1'"
    ):
        load(folder, 4, documents="pack", split_weights="9,1")


def test_the_fingerprint_covers_everything_that_determines_samples(
    folder: Path, tmp_path: Path
) -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"stride": 3},
        {"tail": "pad"},
        {"documents": "respect"},
        {"documents": "pack"},
        {"pad_id": 1},
        {"documents": "pack", "split": "train", "split_weights": "50,50"},
    ]
    found = [load(folder, 4, **options).fingerprint for options in settings]
    found += [load(folder, 5).fingerprint, load(folder, 4, kind="seq").fingerprint]
    found.append(load(write_sft(tmp_path), 4).fingerprint)
    assert len(set(found)) == len(found)
    assert load(folder, 4).fingerprint == found[0]


def test_it_pickles_as_a_description(folder: Path) -> None:
    dataset = load(folder, 6)
    sample = dataset[2]
    text = pickle.dumps(dataset)
    assert len(text) < 10_000
    again = pickle.loads(text)
    assert all(torch.equal(again[2][name], value) for name, value in sample.items())


def test_nothing_can_be_read_before_load(tmp_path: Path) -> None:
    dataset = DatasetFactory.create("sft", 4)
    assert (len(dataset), dataset.count, dataset.keys) == (0, 0, [])
    for call in (lambda: dataset[0], lambda: dataset.fingerprint, lambda: dataset.get_index(0)):
        with pytest.raises(
            NotLoadedError, match=r"Dataset not loaded: call load\(load_path\) first"
        ):
            call()


def test_short_documents_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    documents = [np.arange(length) for length in (2, 3, 40, 2)]
    write_bin(tmp_path, {"sequence": documents}, record_keys=["sequence"])
    settings: dict[str, Any] = {"kind": "seq", "documents": "respect", "tail": "pad"}
    load(tmp_path, 4, **settings)
    assert not caplog.text
    load(tmp_path, 32, **settings)
    assert "are padding to 73 %, with tail='pad' and documents='respect'" in caplog.text


def test_too_short_a_store_has_no_window(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_bin(tmp_path, {"sequence": [np.arange(4, dtype=np.int32)]})
    dataset = load(tmp_path, 4, kind="seq")
    assert "has no window of 4 values: choose a shorter one, or tail='pad'" in caplog.text
    assert len(dataset) == 0
    assert list(dataset) == []
    with pytest.raises(PlanError, match="Data too short: a window of 4 needs 5 values, got 4"):
        dataset.get_index(0)
    assert len(load(tmp_path, 4, kind="seq", tail="pad")) == 1


def test_packed_samples_are_not_windows(folder: Path) -> None:
    with pytest.raises(ConfigError, match="get_index needs windows, got documents='pack'"):
        load(folder, 4, documents="pack").get_index(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"documents": "both"}, "documents must be one of ignore, respect, mark, pack, got 'both'"),
        ({"tail": "keep"}, "tail must be one of drop_last, pad, exact, got 'keep'"),
        ({"documents": "pack", "stride": 2}, "left out and tail not be 'exact', got stride=2"),
        ({"documents": "pack", "tail": "short"}, "got stride=None and tail='exact'"),
        ({"stride": 0}, "stride must be a whole number of at least 1, got 0"),
    ],
)
def test_settings_are_checked(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(folder, 4, **options)


def test_documents_must_be_known(tmp_path: Path) -> None:
    write_bin(tmp_path, {"sequence": [np.arange(9, dtype=np.int32)]})
    with pytest.raises(SourceError, match="must know where its documents begin to respect, mark"):
        load(tmp_path, 4, kind="seq", documents="respect")


def test_tokens_must_be_whole_numbers(tmp_path: Path) -> None:
    write_bin(tmp_path, {"sequence": [np.arange(9, dtype=np.float32)]})
    with pytest.raises(SourceError, match=r"sequence of .* must hold whole numbers, got float32"):
        load(tmp_path, 4, kind="seq")


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_masks_of_numbers_are_true_where_not_zero(tmp_path: Path, dtype: str) -> None:
    mask = np.array([0, 1, 1, 0, 1, 0, 0], dtype)
    write_bin(tmp_path, {"sequence": [np.arange(7, dtype=np.uint16)], "loss_mask": [mask]})
    dataset = load(tmp_path, 3)
    assert [sample["loss_mask"].tolist() for sample in dataset] == [
        [True, True, False],
        [True, False, False],
    ]
    padded = load(tmp_path, 4, tail="pad")
    assert padded[1]["loss_mask"].tolist() == [False, False, False, False]


def test_a_store_that_is_loaded_can_be_opened(folder: Path) -> None:
    store = MmapStore().load(folder)
    one, other = WindowDataset(SFT, 4).open(store), WindowDataset(SFT, 6).open(store)
    assert one.storage is other.storage is store
    assert torch.equal(one[0]["input_ids"], other[0]["input_ids"][:4])


def test_documents_of_a_batch_fit_attention_kernels(folder: Path) -> None:
    dataset = load(folder, 10, documents="pack")
    batch = dataset.collate(dataset.__getitems__(range(len(dataset))))
    packed = pack_documents(batch["document_ids"])
    kept = batch["document_ids"] >= 0
    assert torch.equal(packed.position_ids[kept], batch["position_ids"][kept])
    assert packed.cu_seqlens[-1] == batch["input_ids"].numel()


@pytest.mark.parametrize("documents", ["ignore", "respect", "mark", "pack"])
@pytest.mark.parametrize("is_one_shard", [True, False])
def test_keys_whose_records_drift_apart_are_refused(
    tmp_path: Path, documents: str, is_one_shard: bool
) -> None:
    # The sums agree: of the shard in one case, of all shards in the other.
    tokens = [np.zeros(3, np.int32), np.zeros(2, np.int32)]
    marks = [np.ones(2, np.bool_), np.ones(3, np.bool_)]
    shards = [(tokens, marks)] if is_one_shard else list(zip(tokens, marks, strict=True))
    for number, (sequence, mask) in enumerate(shards):
        groups: Any = {"sequence": sequence, "loss_mask": mask}
        if not is_one_shard:
            groups = {key: [values] for key, values in groups.items()}
        write_bin(tmp_path / str(number), groups, record_keys=list(groups))
    with pytest.raises(
        SourceError, match="sequence and loss_mask of a record must be of one length, got 3 and 2"
    ):
        load(tmp_path, 2, documents=documents)
    # By AstrAI's rule they are still read, and no window exceeds a key.
    assert len(list(load(tmp_path, 2, documents=documents, strict=False))) > 0


@pytest.mark.parametrize(("documents", "num_targets"), [("respect", 4), ("pack", 5)])
def test_documents_end_where_the_shortest_key_does(
    tmp_path: Path, documents: str, num_targets: int
) -> None:
    groups = {
        "sequence": [np.zeros(3, np.int32), np.zeros(9, np.int32)],
        "loss_mask": [np.ones(3, np.bool_), np.ones(4, np.bool_)],
    }
    write_bin(tmp_path, groups, record_keys=list(groups))
    dataset = load(tmp_path, 2, documents=documents, strict=False)
    targets = torch.cat([sample["target_ids"] for sample in dataset])
    assert (targets != -100).sum() == num_targets


def test_short_windows_of_marked_documents(folder: Path) -> None:
    padded, short = (load(folder, 6, documents="mark", tail=tail) for tail in ("pad", "short"))
    assert len(padded) == len(short)
    batch = short.__getitems__(range(len(short)))
    lengths = [6] * (len(short) - 1) + [(2 * TOTAL - 1) % 6]
    for sample, full, length in zip(batch, padded, lengths, strict=True):
        assert list(sample) == list(full)
        assert all(torch.equal(value, full[name][:length]) for name, value in sample.items())
