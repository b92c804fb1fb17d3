"""From text to batches: what a model is given and trained on is what the text says."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import read_ids, save_tokenizer
from zindex.execution.executor import SerialExecutor
from zindex.ingest.keyed.export_keyed import export_keyed
from zindex.ingest.keyed.tokenize import tokenize
from zindex.keyed import DatasetFactory
from zindex.store.open import open_store
from zindex.store.record_reader import RecordReader
from zindex.text.chat_template import CHATML
from zindex.text.media import read_media

ASK, SAY, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"


def make(folder: Path, rows: list[dict[str, Any]], train_type: Any, **settings: Any) -> Path:
    """Return the place of a store of some objects."""
    save_tokenizer(folder / "tokenizer", chat_template=CHATML)
    root = folder / f"{train_type}.zarr"
    tokenize(
        write_jsonl(folder / f"{train_type}.jsonl", rows),
        root,
        train_type,
        tokenizer=folder / "tokenizer",
        client=SerialExecutor(),
        **settings,
    )
    return root


def test_targets_are_what_comes_next(tmp_path: Path) -> None:
    root = make(tmp_path, [{"text": "hello"}, {"text": "you"}], "seq")
    dataset = DatasetFactory.load("seq", root, 9)
    [sample] = list(dataset)
    assert read_ids(sample["input_ids"]) == "hello<eod>you"
    assert read_ids(sample["target_ids"]) == "ello<eod>you<eod>"


def test_masks_are_aligned_to_targets(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "completion": "añ" * i} for i in range(1, 6)]
    root = make(tmp_path, rows, "sft")
    dataset = DatasetFactory.load("sft", root, 64, documents="respect", tail="pad")
    assert len(dataset) == 5
    for i, sample in enumerate(dataset, start=1):
        trained = sample["target_ids"][sample["loss_mask"]]
        assert read_ids(trained) == "añ" * i + "<|im_end|>"
        # The first trained target is predicted from the last token of the prompt.
        first = int(torch.nonzero(sample["loss_mask"])[0])
        given = read_ids(sample["input_ids"][: first + 1])
        assert given == f"{ASK}q{i}{END}{SAY}"
        assert sample["position_ids"][: first + 1].tolist() == list(range(first + 1))


def test_fault_25_a_document_that_is_trained_wholly_shifts_no_mask(tmp_path: Path) -> None:
    rows = [{"text": "abc"}, {"prompt": "q", "completion": "de"}, {"text": "f"}]
    root = make(tmp_path, rows, "sft")
    dataset = DatasetFactory.load("sft", root, 64, documents="respect", tail="pad")
    found = [read_ids(sample["target_ids"][sample["loss_mask"]]) for sample in dataset]
    # The first token of a text is no target.
    assert found == ["bc<eod>", "de<|im_end|>", "<eod>"]
    assert len(dataset.opened) == dataset.opened.column("loss_mask").length


def test_pairs_begin_alike(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "chosen": "good", "rejected": "bad" * i} for i in range(1, 4)]
    dataset = DatasetFactory.load("dpo", make(tmp_path, rows, "dpo"), 1)
    batch = dataset.collate([dataset[i] for i in range(3)])
    prompt = f"{ASK}q{END}{SAY}"
    for i, (ids, mask) in enumerate(zip(batch["rejected"], batch["rejected_mask"], strict=True)):
        assert read_ids(ids[mask]) == "bad" * (i + 1) + "<|im_end|>"
        assert read_ids(ids[: int(torch.nonzero(mask)[0])]) == prompt
    assert (batch["chosen"] == batch["chosen"][0]).all()


def test_groups_of_any_size(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": "q" * (i + 1),
            "responses": ["x" * k for k in range(i + 1)],
            "rewards": [0.5] * i + [1],
        }
        for i in range(3)
    ]
    dataset = DatasetFactory.load("grpo", make(tmp_path, rows, "grpo"), 1)
    sample = dataset[2]
    assert read_ids(sample["prompts"]) == f"{ASK}qqq{END}{SAY}"
    assert [read_ids(ids) for ids in sample["responses"]] == [
        "x" * k + "<|im_end|>" for k in range(3)
    ]
    assert sample["rewards"].tolist() == [0.5, 0.5, 1.0]
    batch = dataset.collate([dataset[i] for i in range(3)])
    assert batch["group_mask"].tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


@pytest.mark.parametrize("storage_type", ["bin", "h5", "jsonl"])
@pytest.mark.parametrize("train_type", ["sft", "grpo"])
def test_tokens_go_out_again(tmp_path: Path, train_type: str, storage_type: Any) -> None:
    rows = {
        "sft": [{"prompt": "q", "completion": "a" * i} for i in range(1, 5)],
        "grpo": [{"prompt": "q", "responses": ["a", "bc"], "rewards": [1, 0]}] * 3,
    }[train_type]
    root = make(tmp_path, rows, train_type)
    export_keyed(root, tmp_path / "out", storage_type=storage_type, client=SerialExecutor())
    if storage_type == "jsonl":
        assert len(list((tmp_path / "out").rglob("*.jsonl"))) == 1
        return
    ours = DatasetFactory.load(train_type, root, 16)
    again = DatasetFactory.load(train_type, tmp_path / "out", 16)
    assert len(ours) == len(again) > 0
    for one, other in zip(ours, again, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert all(map(torch.equal, one[name], other[name]))
    for key in ours.keys:
        assert ours.opened.column(key).dtype == again.opened.column(key).dtype


def test_images_are_packed_by_their_tokens(tmp_path: Path) -> None:
    def talk(width: int) -> dict[str, Any]:
        image = {"type": "image", "image": "a.png", "height": 28, "width": 28 * width}
        asked = [image, {"type": "text", "text": "q"}]
        answer = {"role": "assistant", "content": "a"}
        return {"messages": [{"role": "user", "content": asked}, answer]}

    template = CHATML.replace(
        "message['content'] + '<|im_end|>' }}{% endif %}",
        "'<bod>' + message['content'][1]['text'] + '<|im_end|>' }}{% endif %}",
    )
    media = {"placeholder": "<bod>", "min_pixels": 1}
    rows = [talk(width) for width in (30, 4, 5)]
    root = make(tmp_path, rows, "sft", chat_template=template, media=media)
    dataset = DatasetFactory.load("sft", root, 72, documents="pack")
    samples = [sample["input_ids"][sample["document_ids"] >= 0] for sample in dataset]
    assert sorted(int((ids == 259).sum()) for ids in samples) == [9, 30]
    reader = RecordReader(open_store(root))
    for number, width in enumerate((30, 4, 5)):
        record = reader.read(number)
        [item] = read_media(record["media"])
        assert (record["sequence"][item.start : item.stop] == 259).all()
        assert item.stop - item.start == width
