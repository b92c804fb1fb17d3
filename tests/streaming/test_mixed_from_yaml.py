"""Tar images with captions, jsonl text and a Zarr corpus, mixed as YAML files say, and resumed."""

import io
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

import zindex
from tests.conftest import WriteCorpus
from tests.sources.archives import write_jsonl, write_tar
from tests.streaming.simulated_ranks import acting_as
from zindex.errors import ConfigError, ZindexError
from zindex.execution.executor import SerialExecutor
from zindex.streaming import (
    PadCollate,
    instantiate_from_yaml,
    merge_states,
    mixed_collate,
    stack_collate,
    to_state,
)

WORDS = ["[UNK]", *"abcdefghij", "</s>"]

FILES = {
    "mix.yaml": """
target: cogdata.streaming.MergedDataset
name: mix
params:
  datasets:
  - include: sets/images.yaml
    percent: 0.25
  - include: sets/text.yaml
    percent: 0.5
  - target: cogdata.streaming.MergedDataset
    percent: 0.25
    params:
      datasets:
      - include: sets/corpus.yaml
      seed: 3
      cyclic: ${variables:cyclic}
  cyclic: ${variables:cyclic}
  seed: 1
""",
    "sets/images.yaml": """
name: images
percent: 1
length: 12 # images
target: cogdata.streaming.MetaDistributedWebDataset
params:
  path: ${variables:root}/img_{0..1}.tar
  meta_names: [caption]
  process_fn:
    target: cogdata.streaming.processfns.ImageTextPairProcessFnBuilder
    params:
      img_size: ${variables:img_size}
      max_text_len: 4
      tokenizer_name: ${variables:root}
""",
    "sets/text.yaml": """
name: text
percent: 1
target: cogdata.streaming.JsonlIterableDataset
params:
  path: ${variables:root}/text_{0..2}.jsonl
  part_nbytes: 60
  process_fn:
    target: cogdata.streaming.processfns.TextJonslProcessFnBuilder
    params:
      max_sequence_length: ${variables:max_text_len}
      tokenizer_name: ${variables:root}
      append_eod: </s>
""",
    "sets/corpus.yaml": """
name: corpus
percent: 1
target: ZarrText
params: {path: "${variables:root}/corpus.zarr", sequence_length: "${variables:max_text_len}"}
""",
}


@pytest.fixture
def root(tmp_path: Path, write_corpus: WriteCorpus) -> Path:
    """Write the data, and the files that describe them."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for number in range(2):
        members = []
        for key in range(6):
            name, stream = f"{number}{key}", io.BytesIO()
            Image.fromarray(np.full((3, 3, 3), 20 * key, np.uint8)).save(stream, "png")
            members += [(f"{name}.id", b""), (f"{name}.png", stream.getvalue())]
            members.append((f"{name}.txt", f"a {WORDS[key + 1]}".encode()))
        write_tar(tmp_path / f"img_{number}.tar", members)
        rows = [{"key": f"{number}{key}", "caption": f"c{key}"} for key in range(6)]
        write_jsonl(tmp_path / f"img_{number}.meta.jsonl", rows)
    for number in range(3):
        texts = [{"text": " ".join(WORDS[1 : 2 + i % 9])} for i in range(7)]
        write_jsonl(tmp_path / f"text_{number}.jsonl", texts)
    prefix = write_corpus([7] * 5)
    zindex.convert(prefix, str(tmp_path / "corpus.zarr"), client=SerialExecutor())
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def load(root: Path, *, cyclic: bool = False, **more: Any) -> Any:
    variables = {"root": str(root), "img_size": 2, "max_text_len": 5, "cyclic": cyclic}
    return instantiate_from_yaml(root / "mix.yaml", variables | more)


def name_of(sample: dict[str, Any]) -> tuple[Any, ...]:
    """Return the identity of a sample, independent of its worker."""
    if "__index__" in sample:
        return sample["__datasetname__"], tuple(sample["tokens"].tolist())
    tokens = sample["txt" if "img" in sample else "tokens"]
    return sample["__datasetname__"], sample["__url__"], sample["__key__"], tuple(tokens.tolist())


def check_delivered(root: Path, samples: Any, num_workers: int) -> None:
    """Check that samples are one epoch: each image and window, and each token of the texts."""
    counts = []
    for given in (samples, load(root)):
        found: Counter[Any] = Counter()
        for sample in given:
            if sample["__datasetname__"] == "text":
                num_labels = int(sample["loss_mask"].sum())
                found[int(sample["tokens"][0])] += 1
                found.update(sample["labels"][:num_labels].tolist())
            else:
                found[name_of(sample)] += 1
        counts.append(found)
    found, expected = counts
    assert {k: n for k, n in found.items() if type(k) is tuple} == {
        k: n for k, n in expected.items() if type(k) is tuple
    }
    # Workers pack other sequences, and each may be left with one token, which has no label.
    assert (found - expected).total() <= 1
    assert (expected - found).total() <= num_workers


def test_every_sample_once(root: Path) -> None:
    dataset = load(root)
    samples = list(dataset)
    names = Counter(map(name_of, samples))
    assert set(names.values()) == {1}
    counts = Counter(sample["__datasetname__"] for sample in samples)
    assert counts["images"] == 12
    assert counts["corpus"] == 7
    image = next(sample for sample in samples if sample["__datasetname__"] == "images")
    assert image["img"].shape == (3, 2, 2)
    assert image["caption"].startswith("c")
    # All tokens of the texts come, once.
    packed = [sample for sample in samples if sample["__datasetname__"] == "text"]
    assert all(sample["attention_mask"].shape == (1, 5, 5) for sample in packed)
    assert dataset.name == "mix"


@pytest.mark.parametrize("cut", [1, 6, 13, 22])
@pytest.mark.parametrize("sizes", [(1, 3), (2, 2), (3, 0)])
def test_resumed_anywhere_within_packed_text(root: Path, cut: int, sizes: tuple[int, int]) -> None:
    before, after = sizes
    delivered, states = [], []
    for rank in range(before):
        dataset = load(root)
        dataset.set_data_parallel(before, rank)
        state: dict[str, Any] = {}
        for number, sample in enumerate(dataset):
            if number >= cut // before:
                break
            delivered.append(sample)
            state.update(to_state(sample))
        states.append(state)
    merged = json.loads(json.dumps(merge_states(states)))
    for worker in range(max(after, 1)):
        dataset = load(root)
        dataset.set_dataloader_states(merged)
        with acting_as(worker, after, dataset):
            delivered += dataset
    check_delivered(root, delivered, max(after, 1))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_in_loader_workers(root: Path, method: str) -> None:
    loader = torch.utils.data.DataLoader(
        load(root),
        batch_size=3,
        num_workers=2,
        collate_fn=mixed_collate,
        multiprocessing_context=method,
    )
    check_delivered(root, [sample for batch in loader for sample in batch], 2)


def test_collates_keep_the_state(root: Path) -> None:
    samples = list(load(root).datasets[2])[:3]
    assert to_state(stack_collate(samples)) == to_state(samples)
    assert to_state(PadCollate(["tokens"])(samples)) == to_state(samples)
    assert stack_collate(samples)["tokens"].shape == (3, 5)
    made = load(root, cyclic=True)
    made.customized_yield_fn = pair
    samples = [sample for sample, _ in zip(made, range(4), strict=False)]
    assert to_state(stack_collate(samples)) == to_state(samples)


def pair(source: Any) -> Any:
    """Yield two samples as one."""
    for first in source:
        yield {"names": [first["__datasetname__"], next(source, first)["__datasetname__"]]}


@pytest.mark.parametrize(
    "path",
    [
        "pipe:touch SENTINEL",
        "pipe:cat x; touch SENTINEL",
        "rclone://x; touch SENTINEL",
        "rclone://remote/a.tar",
        "|touch SENTINEL",
        "$(touch SENTINEL)",
        "`touch SENTINEL`",
        "gopher://x/a",
        "a.tar; touch SENTINEL",
    ],
)
@pytest.mark.parametrize(
    "target", ["MetaDistributedWebDataset", "JsonlIterableDataset", "ZarrText"]
)
def test_hostile_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, path: str
) -> None:
    def ran(*arguments: Any, **settings: Any) -> None:
        pytest.fail(f"it ran {arguments}")

    monkeypatch.setattr("subprocess.Popen", ran)
    for name in ("system", "popen", "posix_spawn", "execv", "execve"):
        monkeypatch.setattr(os, name, ran)
    monkeypatch.chdir(tmp_path)
    more = ", sequence_length: 4" if target == "ZarrText" else ""
    Path("a.yaml").write_text(f"target: {target}\nparams: {{path: {json.dumps(path)}{more}}}")
    with pytest.raises(ZindexError):
        list(instantiate_from_yaml("a.yaml"))
    assert os.listdir(tmp_path) == ["a.yaml"]


def test_mistakes_name_the_file_that_has_them(root: Path) -> None:
    (root / "sets/text.yaml").write_text(FILES["sets/text.yaml"].replace("append_eod", "apend_eod"))
    message = f"{root}/sets/text.yaml, line 13, column 7: an argument must be one that"
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(root, more=1)
    (root / "sets/text.yaml").write_text(FILES["sets/text.yaml"].replace(":max_text_len", ":max"))
    with pytest.raises(
        ConfigError, match=r"sets/text\.yaml, line 11, column 28: .*\{variables:max"
    ):
        load(root)
