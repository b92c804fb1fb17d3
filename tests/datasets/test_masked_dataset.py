"""What BERT and T5 datasets have in common: settings, samples, and subclasses."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.samples.masking.corpora import PieceTokenizer, write_sentences
from zindex.datasets.bert_dataset import (
    BERTMaskedWordPieceDataset,
    BERTMaskedWordPieceDatasetConfig,
)
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.masked_dataset import MaskedWordPieceDataset, MaskedWordPieceDatasetConfig
from zindex.datasets.utils import Split
from zindex.errors import ConfigError, PlanError, VerificationError

MakeConfig = Callable[..., BERTMaskedWordPieceDatasetConfig]

MASKING: dict[str, Any] = {
    "masking_probability": 0.15,
    "short_sequence_probability": 0.1,
    "masking_max_ngram": 3,
    "masking_do_full_word": True,
    "masking_do_permutation": False,
    "masking_use_longer_ngrams": False,
    "masking_use_geometric_distribution": False,
}


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    def make(**settings: Any) -> BERTMaskedWordPieceDatasetConfig:
        defaults: dict[str, Any] = {
            "random_seed": 1,
            "sequence_length": 40,
            "blend": (["c"], None),
            "split": "1",
            "tokenizer": PieceTokenizer(np.random.default_rng(0)),
            "path_to_cache": str(tmp_path / "cache"),
            "classification_head": True,
        }
        return BERTMaskedWordPieceDatasetConfig(**(defaults | MASKING | settings))

    return make


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    write_sentences(str(tmp_path / "c"), np.random.default_rng(5))
    return str(tmp_path / "c")


def open_dataset(
    low_level: Any, config: Any, num_samples: int | None = 30, cls: Any = BERTMaskedWordPieceDataset
) -> Any:
    indices = range(cls.numel_low_level_dataset(low_level))
    return cls(low_level, "c", indices, num_samples, Split.train, config)


def assert_same(ours: dict[str, Any], others: dict[str, Any]) -> None:
    assert list(ours) == list(others)
    for name, value in others.items():
        np.testing.assert_array_equal(ours[name], value)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"tokenizer": None}, "tokenizer must be given for masked datasets, got None"),
        ({"masking_max_ngram": None}, "masking_max_ngram must be given for masked datasets"),
        ({"classification_head": None}, "classification_head must be given for masked datasets"),
        ({"bert_rules": "0.14"}, r"bert_rules must be one of 0\.17, main, got '0\.14'"),
        ({"masking_probability": 1.0}, r"masking_probability must be above 0 .* got 1\.0"),
        ({"masking_probability": 0}, "masking_probability must be above 0 .* got 0;"),
        ({"short_sequence_probability": 1.5}, r"must lie in \[0, 1\], got 1\.5"),
        ({"masking_max_ngram": 0}, "masking_max_ngram must be at least 1 word, got 0"),
        (
            {"masking_do_permutation": True, "masking_use_geometric_distribution": True},
            "masking_do_permutation must be False with masking_use_geometric_distribution",
        ),
        ({"sequence_length": 4}, "of BERT datasets must be at least 5, .* got 4"),
        ({"tokenizer": object()}, "BERT datasets must have cls, sep, mask, object has no cls, sep"),
    ],
)
def test_settings_are_refused(make_config: MakeConfig, settings: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_config(**settings)


def test_a_setting_without_effect_is_logged(
    make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    make_config(masking_use_longer_ngrams=True, masking_use_geometric_distribution=True)
    assert "masking_use_longer_ngrams has no effect" in caplog.text


def test_a_configuration_pickles_without_its_vocabulary(make_config: MakeConfig) -> None:
    config = make_config()
    assert len(config.vocabulary.ids) == 60
    again = pickle.loads(pickle.dumps(config))
    assert "vocabulary" not in vars(again)
    assert (again.vocabulary.ids == config.vocabulary.ids).all()


def test_positions(make_config: MakeConfig, prefix: str) -> None:
    dataset = open_dataset(IndexedDataset(prefix), make_config())
    assert len(dataset) >= 30
    # As in Megatron Core, the same sentences are masked by the draws of the position as given.
    assert dataset[-1]["text"].tolist() != dataset[len(dataset) - 1]["text"].tolist()
    scalable = open_dataset(IndexedDataset(prefix), make_config(order="scalable"))
    assert_same(scalable[-1], scalable[len(scalable) - 1])
    padding = dataset[None]
    assert_same(padding | {"loss_mask": None}, dataset[0] | {"loss_mask": None})
    assert not padding["loss_mask"].any()
    with pytest.raises(IndexError, match=f"index {len(dataset)} is out of range"):
        dataset[len(dataset)]
    batch = dataset.__getitems__([3, None, -1])
    assert_same(batch[1], padding)
    assert_same(batch[2], dataset[-1])
    assert batch.tensors["text"].shape == (3, 40)
    assert batch.tensors["truncated"].tolist() == [item["truncated"] for item in batch]


def test_numbers_of_samples(make_config: MakeConfig, prefix: str) -> None:
    source = IndexedDataset(prefix)
    epoch = open_dataset(source, make_config(), None)
    assert len(open_dataset(source, make_config(), 1)) == len(epoch)
    assert len(open_dataset(source, make_config(), 2 * len(epoch) + 1)) >= 2 * len(epoch) + 1
    nothing = open_dataset(source, make_config(), 0)
    assert len(nothing) == 0
    with pytest.raises(IndexError):
        nothing[0]


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_items_are_keyed(make_config: MakeConfig, prefix: str, order: str) -> None:
    """Neither the order of reads nor pickles matter, of permutation neither."""
    config = make_config(order=order, masking_do_permutation=True)
    dataset = open_dataset(IndexedDataset(prefix), config)
    items = [dataset[i] for i in range(10)]
    again = pickle.loads(pickle.dumps(dataset))
    for i in reversed(range(10)):
        assert_same(again[i], items[i])
    other = open_dataset(IndexedDataset(prefix), make_config(order=order, random_seed=2))
    assert any((other[i]["text"] != items[i]["text"]).any() for i in range(10))
    assert dataset.fingerprint == again.fingerprint != other.fingerprint


def test_the_index_may_be_deferred(make_config: MakeConfig, prefix: str, tmp_path: Path) -> None:
    dataset = open_dataset(IndexedDataset(prefix), make_config(defer_npy_index_mmap=True))
    assert not (tmp_path / "cache").exists()
    assert_same(dataset[2], open_dataset(IndexedDataset(prefix), make_config())[2])


class Sentences:
    """Sentences in memory."""

    def __init__(self, source: IndexedDataset) -> None:
        self.sequence_lengths = np.array(source.sequence_lengths)
        self.document_indices = np.array(source.document_indices)
        self.tokens = [np.array(source[i]) for i in range(len(source))]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Any:
        return self.tokens[index]


def test_sentences_in_memory(make_config: MakeConfig, prefix: str) -> None:
    source = IndexedDataset(prefix)
    stored = open_dataset(source, make_config())
    dataset = open_dataset(Sentences(source), make_config(path_to_cache=None))
    assert dataset.fingerprint == stored.fingerprint
    np.testing.assert_array_equal(dataset.sample_index, stored.sample_index[:])
    again = pickle.loads(pickle.dumps(dataset))
    for i in range(5):
        assert_same(again[i], stored[i])


@pytest.mark.parametrize("in_memory", [False, True])
def test_documents_without_samples(
    make_config: MakeConfig, write_corpus: WriteCorpus, in_memory: bool
) -> None:
    source = IndexedDataset(write_corpus([9, 9, 9]))  # one sentence each
    with pytest.raises(PlanError, match=r"documents of at least 2 sentences.* 3 give no sample"):
        open_dataset(Sentences(source) if in_memory else source, make_config())


def test_samples_are_not_followed(make_config: MakeConfig, prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be followed .* got follow=3\.0"):
        open_dataset(IndexedDataset(prefix), make_config(follow=3.0))


def test_unknown_tokens_are_refused(make_config: MakeConfig, prefix: str) -> None:
    tokenizer = PieceTokenizer(np.random.default_rng(0), size=30)
    dataset = open_dataset(IndexedDataset(prefix), make_config(tokenizer=tokenizer))
    match = r"know every token of sample \d+ of train of c, its inv_vocab has no id [345]\d;"
    with pytest.raises(ConfigError, match=match):
        dataset.__getitems__(list(range(20)))


def test_an_index_of_other_data_is_refused(make_config: MakeConfig, prefix: str) -> None:
    source = IndexedDataset(prefix)
    dataset = open_dataset(source, make_config())
    for row, match in (
        (
            [2, 2, 9],
            r"must be a run of its \d+ sentences and a length, its index gives \[2, 2, 9\]",
        ),
        ([0, len(source) + 1, 9], "sample 0 of train of c must be a run of its"),
        ([0, 1, 9], "must have at least two sentences, its index gives 1; restore"),
        ([0, len(source), 90], "must have at most 40 tokens, its index gives 93; restore"),
    ):
        dataset.sample_index = np.array([row], np.uint32)
        with pytest.raises(VerificationError, match=match):
            dataset[0]


class InMegatronsManner(MaskedWordPieceDataset):
    """A subclass as it is written for Megatron Core."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sample_index = self._build_sample_index(self.config.sequence_length - 2, 1)

    @staticmethod
    def _key_config_attributes() -> list[str]:
        return [*super(InMegatronsManner, InMegatronsManner)._key_config_attributes(), "split"]

    def __getitem__(self, idx: Any) -> dict[str, Any]:
        first, last, target = self.sample_index[idx]
        tokens = [token for i in range(first, last) for token in self.dataset[i]]
        seed = (self.config.random_seed + idx) % 2**32
        masked = self._create_masked_lm_predictions(
            tokens[:target], target, np.random.RandomState(seed=seed)
        )
        return {"tokens": np.array(masked[0]), "positions": np.array(masked[1])}

    def _get_token_mask(self, numpy_random_state: np.random.RandomState) -> int | None:
        return None if numpy_random_state.random() < 0.5 else 1000


def test_a_subclass_in_megatrons_manner(make_config: MakeConfig, prefix: str) -> None:
    dataset = open_dataset(IndexedDataset(prefix), make_config(), cls=InMegatronsManner)
    assert len(dataset) == len(dataset.sample_index) >= 30
    again = pickle.loads(pickle.dumps(dataset))
    items = [dataset[i] for i in range(30)]
    assert any((item["tokens"] == 1000).any() for item in items)
    for item, other in zip(items, again.__getitems__(list(range(30))), strict=True):
        assert_same(item, other)


class Silent(InMegatronsManner):
    def __init__(self, *args: Any) -> None:
        MaskedWordPieceDataset.__init__(self, *args)


def test_a_subclass_defines_the_size_of_samples(make_config: MakeConfig, prefix: str) -> None:
    dataset = open_dataset(IndexedDataset(prefix), make_config(), cls=Silent)
    with pytest.raises(ConfigError, match="Silent must say how much its samples hold, it says not"):
        len(dataset)


def test_unknown_tokens_are_refused_in_subclasses(make_config: MakeConfig, prefix: str) -> None:
    tokenizer = PieceTokenizer(np.random.default_rng(0), size=30)
    config = make_config(tokenizer=tokenizer)
    dataset = open_dataset(IndexedDataset(prefix), config, cls=InMegatronsManner)
    with pytest.raises(ConfigError, match="know every token of its data, its inv_vocab has no id"):
        [dataset[i] for i in range(20)]


def test_settings_are_part_of_the_key() -> None:
    names = MaskedWordPieceDataset._key_config_attributes()
    assert names[-7:] == list(MASKING)
    assert set(MASKING) < set(MaskedWordPieceDatasetConfig.__dataclass_fields__)


class Reversed(BERTMaskedWordPieceDataset):
    """Samples in the other order."""

    def _build_sample_index(self, sequence_length: int, min_sentences_per_sample: int) -> Any:
        assert (sequence_length, min_sentences_per_sample) == (37, 2)
        return super()._build_sample_index(sequence_length, min_sentences_per_sample)[:][::-1]


def test_a_subclass_makes_the_samples(prefix: str, make_config: MakeConfig) -> None:
    low_level = IndexedDataset(prefix)
    plain, own = (
        open_dataset(low_level, make_config(), cls=cls)
        for cls in (BERTMaskedWordPieceDataset, Reversed)
    )
    assert np.array_equal(own.sample_index, plain.sample_index[:][::-1])
    assert own[0]["truncated"] == plain[len(plain) - 1]["truncated"]
    assert own.fingerprint != plain.fingerprint
