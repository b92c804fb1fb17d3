"""Datasets of conversations, of texts and for fill-in-the-middle, against Megatron-LM's.

They are in ``megatron.training``, which is in checkouts of Megatron-LM but not in wheels.
"""

import random
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.conftest import numbers
from tests.datasets.test_fim_dataset import SPECIAL, SPLIT, Letters, Tokenizer, write
from tests.datasets.test_fim_dataset import make_config as make_fim_config
from tests.module_files import import_file
from tests.oracle.conftest import assert_same_item, megatron_version
from tests.samples.conversations.speakers import Speaker, draw_records, make_config
from zindex.datasets import fim_dataset, sft_dataset, varlen_dataset
from zindex.datasets.utils import Split
from zindex.errors import ZindexError

WORDS = ["", "ab", "c d", "<e>", "\u00e9"]


def load(name: str) -> ModuleType:
    """Return a module of Megatron's training datasets, without the package above it."""
    pytest.importorskip("megatron.core")
    import megatron

    for root in megatron.__path__:
        path = Path(root) / "training" / "datasets" / f"{name}.py"
        if path.is_file():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return import_file(f"their_{name}", path)
    pytest.skip(f"needs {name} of a checkout of Megatron-LM")


class Same(Speaker):
    """The speaker for both sides, with an identity."""

    unique_identifiers = {"class": "Speaker"}  # noqa: RUF012
    force_eod = True  # for Megatron's 0.15


def their_config(config: Any) -> Any:
    """Return Megatron's configuration with the settings of ours that a sample depends on."""
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig

    theirs = GPTDatasetConfig(
        random_seed=config.random_seed,
        sequence_length=config.sequence_length,
        tokenizer=config.tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    for name in ("context_parallel_size", "sequence_parallel_size", "data_parallel_size"):
        setattr(theirs, name, getattr(config, name) or 1)
    return theirs


@pytest.mark.filterwarnings("ignore:the pad token must have an id of its own")
@pytest.mark.parametrize("number", numbers(12, 300))
def test_conversations(number: int) -> None:
    """Rows of conversations by the rules of the version that is compared."""
    theirs = load("sft_dataset")
    draw = random.Random(number)
    rules = "0.16" if (0, 16) <= megatron_version() <= (0, 18) else "main"
    config = make_config(
        Same(),
        sequence_length=draw.randrange(6, 60),
        context_parallel_size=draw.choice([1, 1, 2, 4]),
        sequence_parallel_size=draw.choice([0, 2, 4]),
        sft_rules=rules,
    )
    records = [record["messages"] for record in draw_records(number)]
    count = len(records)
    indices = np.arange(draw.randrange(count - 1), count)
    args = ("p", indices, 3 * count, Split.train)
    expected = theirs.SFTDataset(records, *args, their_config(config))
    ours = sft_dataset.SFTDataset(records, *args, config)
    assert len(ours) == len(expected)
    batch = ours.__getitems__(range(count))
    for position in range(count):
        try:
            item = expected[position]
        except TypeError:
            if rules == "main":
                raise
            continue  # 0.16.1 fails on what has to be truncated
        assert_same_item(ours[position], item, f"{number} {position}")
        assert_same_item(batch[position], item, f"{number} {position}")


def draw_record(draw: random.Random) -> tuple[dict[str, Any], list[str]]:
    """Return a record in any layout, with values that are missing or wrong at times."""

    def text() -> Any:
        return draw.choice(
            [*WORDS, None, "x" * draw.randrange(9), 3 if draw.random() < 0.1 else ""]
        )

    names = ["human", "gpt", "system", "User", "tool", "observation", "bing", None, "else"]
    kind = draw.randrange(4)
    if kind == 0:
        turns = [{"role": draw.choice(["system", "user", "assistant", None]), "content": text()}
                 for _ in range(draw.randrange(5))]  # fmt: skip
        return {"messages": turns, "text": "t"}, ["text", "messages"]
    if kind == 1:
        turns = [{"from": draw.choice(names), "value": text()} for _ in range(draw.randrange(5))]
        return {"conversations": turns}, ["conversations"]
    if kind == 2:
        fields = ["instruction", "prompt", "question", "output", "answer", "input", "context"]
        chosen = {name: text() for name in fields if draw.random() < 0.6}
        return chosen | {"query": text(), "response": text()}, [*chosen, "query", "response"]
    return {"text": text()}, ["text", "id"]


@pytest.mark.parametrize("number", numbers(40, 2000))
def test_records_of_any_layout(number: int) -> None:
    theirs = load("varlen_dataset")
    record, columns = draw_record(random.Random(number))
    convert, layout = theirs._select_converter(columns)
    own, own_layout = varlen_dataset._select_converter(columns)
    assert own_layout == layout
    try:
        expected = convert(record)
    except ValueError:
        with pytest.raises(ZindexError):
            own(record)
        return
    assert own(record) == expected


class Library(Letters):
    """Megatron looks up a single token, too."""

    def tokens_to_ids(self, tokens: Any) -> Any:
        return self.ids[tokens] if isinstance(tokens, str) else super().tokens_to_ids(tokens)


@pytest.mark.parametrize("number", numbers(12, 300))
def test_middles(write_corpus: Any, number: int) -> None:
    """Samples equal Megatron's with its draws, which depend on what was read before."""
    theirs = load("fim_dataset")
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    draw = random.Random(number)
    own = {"fim_draws": "sequential"}
    tokenizer = Tokenizer()
    tokenizer._tokenizer = Library()
    tokenizer.unique_identifiers = {"class": "Tokenizer"}  # type: ignore[attr-defined]
    settings: dict[str, Any] = {
        "fim_rate": draw.choice([0.0, 0.5, 1.0]),
        "fim_spm_rate": draw.choice([0.0, 0.5, 1.0]),
        "fim_extra_tokens": SPECIAL,
        "fim_split_sample": draw.choice([None, "<split>"]),
        "fim_fragment_rate": 0.7,
        "fim_no_prefix": draw.choice([None, "a"]),
        "sequence_length": draw.choice([8, 24, 60]),
        "random_seed": number,
        "create_attention_mask": bool(draw.randrange(2)),
    }
    path = write(write_corpus, name=f"c{number}", seed=number)
    config = make_fim_config(tokenizer, **settings | own)
    low_level = fim_dataset.GPTFIMDataset.build_low_level_dataset(path, config)
    args = (path, np.arange(20, dtype=np.int32), 40, Split.train)
    ours = fim_dataset.GPTFIMDataset(low_level, *args, config)
    common = {
        name: getattr(config, name)
        for name in (
            "blend",
            "split",
            "reset_position_ids",
            "reset_attention_mask",
            "eod_mask_loss",
        )
    }
    from megatron.core.datasets.utils import Split as TheirSplit

    expected = theirs.GPTFIMDataset(
        IndexedDataset(path), *args[:3], TheirSplit.train,
        theirs.GPTFIMDatasetConfig(tokenizer=tokenizer, **settings | common),
    )  # fmt: skip
    assert len(ours) == len(expected)
    assert ours.unique_description_hash == expected.unique_description_hash
    plain = fim_dataset.GPTFIMDataset(
        low_level, *args, make_fim_config(tokenizer, **settings | {"fim_rate": 0.0})
    )
    for position in range(len(ours)):
        expected.masks_and_position_ids_are_cached = False
        text = [*plain[position]["tokens"], plain[position]["labels"][-1]]
        is_cut = settings["fim_split_sample"] is None and SPLIT in text
        name = f"{number} {position}{' with a split token' if is_cut else ''}"
        assert_same_item(ours[position], expected[position], name)
