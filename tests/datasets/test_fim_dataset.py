"""Samples filled in the middle, against a plain reading of the rules."""

import pickle
from collections import OrderedDict
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import zindex
from tests.conftest import FakeTokenizer
from tests.datasets.configs import build_datasets, plain_config
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.fim_dataset import GPTFIMDataset, GPTFIMDatasetConfig, replay_draws
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.utils import Split
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.loading.megatron_samplers import MegatronPretrainingSampler, ReplayedDraws
from zindex.plan.keys import fill_key
from zindex.samples.fim import RandomStream

SPECIAL = {"prefix": "<P>", "middle": "<M>", "suffix": "<S>", "pad": "<F>", "eod": "<E>"}
P, M, S, F, E, SPLIT = range(100, 106)


class Letters:
    """A library of letters and of the pair "ab", so that cutting a text changes its tokens."""

    ids: ClassVar = {"<P>": P, "<M>": M, "<S>": S, "<F>": F, "<E>": E, "<split>": SPLIT}

    def text_to_ids(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text.replace("ab", "{")]

    def ids_to_text(self, ids: Any, remove_special_tokens: bool = False) -> str:
        kept = [i for i in ids if i < P or not remove_special_tokens]
        return "".join("<>" if i >= P else chr(ord("a") + i) for i in kept).replace("{", "ab")

    def tokens_to_ids(self, tokens: list[str]) -> list[Any]:
        return [self.ids.get(token) for token in tokens]


class Tokenizer(FakeTokenizer):
    def __init__(self) -> None:
        super().__init__(vocab_size=106, eod=E, pad=F)
        self._tokenizer = Letters()


class OldTokenizer(FakeTokenizer):
    """What has no library below it."""

    def __init__(self) -> None:
        super().__init__(vocab_size=106, eod=E, pad=F)
        self.vocab = Letters.ids

    def tokenize(self, text: str) -> list[int]:
        return Letters().text_to_ids(text)

    def detokenize(self, ids: list[int]) -> str:
        return Letters().ids_to_text(ids, remove_special_tokens=True)


def make_config(tokenizer: Any = None, **settings: Any) -> GPTFIMDatasetConfig:
    defaults: dict[str, Any] = {
        "random_seed": 7,
        "sequence_length": 24,
        "blend": (["h"], None),
        "split": "100,0,0",
        "eod_mask_loss": True,
        "create_attention_mask": True,
        "tokenizer": tokenizer or Tokenizer(),
        "fim_rate": 0.6,
        "fim_spm_rate": 0.5,
        "fim_extra_tokens": SPECIAL,
    }
    return plain_config(GPTFIMDatasetConfig, **(defaults | settings))


def write(write_corpus: Any, name: str = "corpus", seed: int = 3) -> str:
    """Write letters with end and split tokens in between, some in a row."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 40, 20).tolist()
    tokens = generator.integers(0, 26, sum(lengths))
    tokens[generator.random(len(tokens)) < 0.06] = E
    tokens[generator.random(len(tokens)) < 0.06] = SPLIT
    path: str = write_corpus(lengths, name=name, tokens=tokens)
    return path


def open_dataset(
    path: str, cls: Any = GPTFIMDataset, num_samples: Any = 60, **settings: Any
) -> Any:
    split = settings.pop("index_split", Split.train)
    config = settings.pop("config", None) or make_config(**settings)
    low_level = cls.build_low_level_dataset(path, config)
    return cls(low_level, path, range(len(low_level)), num_samples, split, config)


class PlainDraws:
    """Megatron's draws."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.RandomState(seed)

    def draw(self, rate: float) -> bool:
        return bool(self.generator.binomial(1, rate))

    def cut(self, length: int) -> list[int]:
        return sorted(self.generator.randint(0, length + 1, size=2).tolist())


def fill_plainly(
    tokens: list[int],
    config: GPTFIMDatasetConfig,
    split: str,
    sample: int,
    sequential: PlainDraws | None = None,
) -> list[int]:
    """Return a filled sample, step by step as the rules say."""
    draws: Any = sequential or RandomStream(fill_key(config.random_seed, split, sample))
    letters = Letters()

    def permute(piece: list[int], rate: Any) -> list[int]:
        if not draws.draw(rate):
            return piece
        text = letters.ids_to_text(piece, remove_special_tokens=True)
        if config.fim_no_prefix is not None and text.startswith(config.fim_no_prefix):
            return piece
        cuts = draws.cut(len(text))
        parts = [text[: cuts[0]], text[cuts[0] : cuts[1]], text[cuts[1] :]]
        prefix, middle, suffix = [letters.text_to_ids(part) for part in parts]
        if draws.draw(config.fim_spm_rate or 0):
            return [P, S, *suffix, M, *prefix, *middle]
        return [P, *prefix, S, *suffix, M, *middle]

    def fill(text: list[int]) -> list[int]:
        if not config.fim_split_sample or SPLIT not in text:
            return permute(text, config.fim_rate)
        if not draws.draw(config.fim_rate or 0):
            return text
        return pieces(text, SPLIT, lambda piece: permute(piece, config.fim_fragment_rate))

    def pieces(text: list[int], separator: int, change: Any) -> list[int]:
        done: list[int] = []
        piece: list[int] = []
        for token in text:
            if token != separator:
                piece.append(token)
            elif piece:
                done += [*change(piece), separator]
                piece = []
            elif separator == SPLIT and not sequential:
                done.append(separator)
        return done + change(piece)

    filled = pieces(tokens, E, fill)
    return (filled + [F] * len(tokens))[: len(tokens)]


@pytest.mark.parametrize("kind", ["prefix", "store"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fim_rate": 1.0, "fim_spm_rate": 1.0},
        {"fim_split_sample": "<split>", "fim_fragment_rate": 0.7},
        {"fim_no_prefix": "a", "fim_rate": 1.0, "add_extra_token_to_sequence": False},
        {"order": "scalable", "tokenizer": OldTokenizer()},
    ],
)
def test_samples_are_those_of_the_rules(write_corpus: Any, kind: str, settings: Any) -> None:
    path = write(write_corpus)
    if kind == "store":
        zindex.convert(path, f"{path}.zarr", client=SerialExecutor())
        path = f"{path}.zarr"
    dataset = open_dataset(path, **settings)
    plain = open_dataset(path, GPTDataset, **settings)
    changed = 0
    for position in range(len(dataset)):
        text, documents = dataset._query_document_sample_shuffle_indices(position)
        before, theirs = plain._query_document_sample_shuffle_indices(position)
        sample = int(dataset.shuffle_index[position])
        expected = fill_plainly(before.tolist(), dataset.config, "train", sample)
        assert text.tolist() == expected
        assert text.dtype == np.int64
        np.testing.assert_array_equal(documents, theirs)
        changed += expected != before.tolist()
    assert changed > 20


@pytest.mark.parametrize("extra", [True, False])
def test_a_short_sample_is_filled_before_it_is_padded(write_corpus: Any, extra: bool) -> None:
    path = write_corpus([30], tokens=np.arange(30) % 26)
    settings: dict[str, Any] = {
        "index_split": Split.valid,
        "num_samples": None,
        "fim_rate": 1.0,
        "add_extra_token_to_sequence": extra,
        "drop_last_partial_validation_sequence": False,
    }
    dataset = open_dataset(path, **settings)
    plain = open_dataset(path, GPTDataset, **settings)
    last = int(np.argmax(np.asarray(dataset.shuffle_index[:])))
    count = 30 - 24
    text, _ = dataset._query_document_sample_shuffle_indices(last)
    before, _ = plain._query_document_sample_shuffle_indices(last)
    assert text[count:].tolist() == [F] * (len(text) - count)
    assert text[:count].tolist() == fill_plainly(
        before[:count].tolist(), dataset.config, "valid", 1
    )
    assert_same(dataset[last], dataset.__getitems__([last])[0])


def assert_same(item: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert list(item) == list(other)
    for name in item:
        assert item[name].dtype == other[name].dtype, name
        assert torch.equal(item[name], other[name]), name


@pytest.mark.parametrize("reset", [True, False])
def test_batches_are_items_in_any_order(write_corpus: Any, tmp_path: Any, reset: bool) -> None:
    path = write(write_corpus)
    dataset = open_dataset(
        path,
        reset_position_ids=reset,
        reset_attention_mask=reset,
        defer_npy_index_mmap=True,
        path_to_cache=str(tmp_path / "cache"),
    )
    positions = [5, -1, None, 5, 0, 17]
    again = pickle.loads(pickle.dumps(dataset))
    for item, position in zip(again.__getitems__(positions), positions, strict=True):
        assert_same(item, dataset[position])
    assert list(dataset[0]) == ["tokens", "labels", "attention_mask", "loss_mask", "position_ids"]


def test_splits_and_seeds_draw_differently(write_corpus: Any) -> None:
    path = write(write_corpus)
    train = open_dataset(path, fim_rate=1.0)
    test = open_dataset(path, fim_rate=1.0, index_split=Split.test)
    both = [
        np.stack([item["tokens"] for item in data.__getitems__(range(60))])
        for data in (train, test)
    ]
    assert (both[0] != both[1]).any()


def test_a_blend_by_the_builder(write_corpus: Any) -> None:
    paths = [write(write_corpus, f"c{i}", seed=i) for i in range(2)]
    config = make_config(blend=(paths, [0.3, 0.7]), split="90,10,0")
    train, valid, test = build_datasets(GPTFIMDataset, [80, 4, 0], config)
    assert test is None
    assert len(train) >= 80
    assert len(valid) >= 4
    batch = train.__getitems__(range(20))
    for position, item in enumerate(batch):
        expected = train[position]
        assert item.pop("dataset_id") == expected.pop("dataset_id")
        assert_same(item, expected)
    assert isinstance(train.datasets[0], GPTFIMDataset)
    assert train.datasets[0].eod_tok_id == E


def test_loader_workers_read_a_blend_of_different_configurations(write_corpus: Any) -> None:
    """Members are read one by one, and workers send the text of each item, not its tensors."""
    datasets = [
        open_dataset(write(write_corpus, f"c{i}", seed=i), eod_mask_loss=True, fim_rate=rate)
        for i, rate in enumerate([0.3, 0.9])
    ]
    blend = BlendedDataset(datasets, [1, 1], 8, datasets[0].config)
    loader = torch.utils.data.DataLoader(
        blend, batch_size=4, num_workers=1, multiprocessing_context="fork"
    )
    for start, batch in zip((0, 4), loader, strict=True):
        items = [blend[position] for position in range(start, start + 4)]
        assert batch.pop("dataset_id").tolist() == [item.pop("dataset_id") for item in items]
        assert_same(batch, {name: torch.stack([i[name] for i in items]) for name in items[0]})


def test_methods_of_a_subclass_are_called(write_corpus: Any) -> None:
    class Own(GPTFIMDataset):
        def __getitem__(self, idx: Any) -> dict[str, torch.Tensor]:
            return super().__getitem__(idx) | {"own": torch.tensor(1)}

    dataset = open_dataset(write(write_corpus), Own)
    assert "own" in dataset.__getitems__([1])[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fim_rate": None}, "fim_rate must be a probability, got None"),
        ({"fim_rate": "0.5"}, "fim_rate must be a probability, got 0.5"),
        ({"fim_rate": float("nan")}, "fim_rate must be a probability, got nan"),
        ({"fim_spm_rate": 1.5}, r"fim_spm_rate must be a probability, got 1\.5"),
        ({"fim_split_sample": "<split>"}, "fim_fragment_rate must be a probability, got None"),
        ({"fim_extra_tokens": {"prefix": "<P>"}}, "it lacks middle, suffix, pad, eod"),
        ({"inter_document_masking": True}, "inter_document_masking cannot be had of samples"),
        ({"with_provenance": True}, "with_provenance cannot be had of samples"),
        ({"fim_draws": "random"}, "fim_draws must be .* got 'random'"),
    ],
)
def test_settings_are_checked(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(**settings)


@pytest.mark.parametrize("tokenizer", [Tokenizer(), OldTokenizer()])
def test_unknown_tokens_are_refused(write_corpus: Any, tokenizer: Any) -> None:
    path = write(write_corpus)
    special = SPECIAL | {"suffix": "<unknown>"}
    message = r"fim_extra_tokens\['suffix'\] must name one token of the tokenizer, got '<unknown>'"
    with pytest.raises(ConfigError, match=message):
        open_dataset(path, tokenizer=tokenizer, fim_extra_tokens=special)


def test_tokens_must_be_distinct(write_corpus: Any) -> None:
    """Libraries give one id for all tokens that they do not know."""
    tokenizer = Tokenizer()
    tokenizer._tokenizer.tokens_to_ids = lambda tokens: [0 for _ in tokens]  # type: ignore[method-assign]
    message = r"prefix, middle and suffix .* must have ids of their own, got \[0, 0, 0\], as of"
    with pytest.raises(ConfigError, match=message):
        open_dataset(write(write_corpus), tokenizer=tokenizer)


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor])
def test_ids_may_come_in_any_sequence(write_corpus: Any, kind: Any) -> None:
    class Kind(Letters):
        def text_to_ids(self, text: str) -> Any:
            return kind(super().text_to_ids(text))

        def tokens_to_ids(self, tokens: list[str]) -> Any:
            return kind(super().tokens_to_ids(tokens))

    path = write(write_corpus)
    tokenizer = Tokenizer()
    tokenizer._tokenizer = Kind()
    dataset, expected = open_dataset(path, tokenizer=tokenizer), open_dataset(path)
    for position in range(10):
        assert_same(dataset[position], expected[position])


def test_the_configuration_must_be_of_its_class(write_corpus: Any) -> None:
    config = plain_config(blend=(["h"], None), split="1,0,0", tokenizer=Tokenizer())
    with pytest.raises(ConfigError, match=r"needs a GPTFIMDatasetConfig .* got a GPTDatasetConfig"):
        open_dataset(write(write_corpus), config=config)


def test_unique_identifiers_are_megatrons(write_corpus: Any) -> None:
    dataset = open_dataset(write(write_corpus))
    assert isinstance(dataset.unique_identifiers, OrderedDict)
    assert dataset.unique_identifiers["class"] == "GPTFIMDataset"
    assert "fim_rate" not in dataset.unique_identifiers


SEQUENTIAL: list[dict[str, Any]] = [
    {},
    {"fim_split_sample": "<split>", "fim_fragment_rate": 0.7},
    {"fim_no_prefix": "a", "fim_rate": 1.0},
]


def read_plainly(dataset: Any, positions: Any, draws: dict[str, PlainDraws]) -> list[list[int]]:
    """Return the texts of samples of a blend or a dataset, read in this order."""
    found = []
    for position in positions:
        member, sample = dataset, position
        if hasattr(dataset, "datasets"):
            member = dataset.datasets[dataset.dataset_index[position]]
            sample = int(dataset.dataset_sample_index[position])
        path = member.dataset_path
        config = member.config
        plain = open_dataset(path, GPTDataset, member.num_samples, config=config)
        before, _ = plain._query_document_sample_shuffle_indices(sample)
        stream = draws.setdefault(path, PlainDraws(config.random_seed))
        found.append(fill_plainly(before.tolist(), config, "train", 0, stream)[:-1])
    return found


@pytest.mark.parametrize("settings", SEQUENTIAL)
def test_sequential_draws_are_those_of_all_reads(write_corpus: Any, settings: Any) -> None:
    dataset = open_dataset(write(write_corpus), fim_draws="sequential", **settings)
    order = np.random.default_rng(0).integers(0, 60, 40).tolist()
    draws: dict[str, PlainDraws] = {}
    items = [*dataset.__getitems__(order[:25]), *(dataset[position] for position in order[25:])]
    expected = read_plainly(dataset, order, draws)
    assert [item["tokens"].tolist() for item in items] == expected
    [stream] = draws.values()
    assert dataset.np_rng.get_state()[1].tolist() == stream.generator.get_state()[1].tolist()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_replayed_job_has_the_draws_of_the_first(write_corpus: Any, num_workers: int) -> None:
    paths = [write(write_corpus, f"c{i}", seed=i) for i in range(2)]

    def open_blend() -> Any:
        settings = {"split": "100,0,0", "fim_draws": "sequential"}
        config = make_config(blend=(paths, [0.3, 0.7]), **settings)
        return build_datasets(GPTFIMDataset, [60, 0, 0], config)[0]

    def read(first: int, init: Any = None) -> list[list[list[int]]]:
        dataset = open_blend()
        sampler = MegatronPretrainingSampler(60, first, 3, 1, 2)
        loader = torch.utils.data.DataLoader(
            dataset,
            batch_sampler=sampler,
            num_workers=num_workers,
            worker_init_fn=init,
            multiprocessing_context="fork",
        )
        return [batch["tokens"].tolist() for batch in loader]

    whole = read(0)
    dataset = open_blend()
    expected: list[Any] = [None] * 10
    batches = list(MegatronPretrainingSampler(60, 0, 3, 1, 2))
    for worker in range(num_workers):
        draws: dict[str, PlainDraws] = {}
        for number in range(worker, 10, num_workers):
            expected[number] = read_plainly(dataset, batches[number], draws)
    assert whole == expected
    called: list[int] = []
    init = ReplayedDraws(MegatronPretrainingSampler(60, 0, 3, 1, 2), 3, then=called.append)
    assert read(18, init) == whole[3:]
    assert read(18) != whole[3:]
    replay_draws(dataset, batches[:3])
    another = open_blend()
    for batch in batches[:3]:
        another.__getitems__(batch)
    found = [
        [item["tokens"].tolist() for item in replayed.__getitems__(batches[3])]
        for replayed in (dataset, another)
    ]
    assert found[0] == found[1]


def test_a_subclass_may_fill_in_its_own_way(write_corpus: Any) -> None:
    class Own(GPTFIMDataset):
        def _fim_permute_sequence(self, sequence: Any, rate: float) -> Any:
            return sequence[::-1]

    path = write(write_corpus)
    with pytest.raises(ConfigError, match="Own overrides how texts are filled, which needs Megat"):
        open_dataset(path, Own)
    dataset = open_dataset(path, Own, fim_draws="sequential")
    text, _ = dataset._query_document_sample_shuffle_indices(3)
    before, _ = open_dataset(path, GPTDataset)._query_document_sample_shuffle_indices(3)
    parts = "".join(map(chr, before)).split(chr(E))
    expected = chr(E).join([part[::-1] for part in parts if part])
    assert "".join(map(chr, text)).startswith(expected[:20])
    for kind, settings in ((Own, {"fim_draws": "sequential"}), (GPTFIMDataset, {})):
        with pytest.raises(ConfigError, match=r"can be replayed of GPTFIMDataset with fim_draws="):
            replay_draws(open_dataset(path, kind, **settings), [[0]])


def test_loaders_of_zindex_refuse_draws_in_order(write_corpus: Any) -> None:
    dataset = open_dataset(write(write_corpus), fim_draws="sequential")
    with pytest.raises(ConfigError, match="must not depend on the reads before them, as with fim"):
        zindex.loader(dataset, micro_batch_size=2, data_parallel_rank=0, data_parallel_size=1)
