"""BERT and T5 samples: a zindex store against Megatron Core's pair, on the same corpus.

``python -m tests.benchmarks.bench_masked --documents 1e4 --seconds 1 --runs 3``

Settings are those of Megatron's ``pretrain_bert.py`` (with its classification head) and
``pretrain_t5.py``, for 512 tokens. Documents are sentences of words by Zipf's law, in one to four
pieces of a vocabulary as large as BERT's. Packages take turns, each in a process of its own, which
reads some samples in every way before the clock starts: all of them must be the same.
"""

import json
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, digest, make_parser, take_part, take_turns
from zindex.io.system_calls import peak_nbytes

THEIRS, OURS = "megatron-core", "zindex"
ITEMS, BATCHES, LOADER = "items", "batches of 32", "DataLoader"
#: Package and way, as rows are called.
CONTENDERS = {
    "megatron-core, items": (THEIRS, ITEMS),
    "megatron-core, DataLoader": (THEIRS, LOADER),
    "zindex, items": (OURS, ITEMS),
    "zindex, batches of 32": (OURS, BATCHES),
    "zindex, DataLoader": (OURS, LOADER),
}
RIVALS = {
    "zindex, items": "megatron-core, items",
    "zindex, batches of 32": "megatron-core, items",
    "zindex, DataLoader": "megatron-core, DataLoader",
}
MASKING: dict[str, Any] = {
    "masking_probability": 0.15,
    "short_sequence_probability": 0.1,
    "masking_do_full_word": True,
    "masking_do_permutation": False,
    "masking_use_longer_ngrams": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "bert": {
        "masking_max_ngram": 3,
        "masking_use_geometric_distribution": False,
        "classification_head": True,
    },
    "t5": {
        "masking_max_ngram": 10,
        "masking_use_geometric_distribution": True,
        "sequence_length_decoder": 128,
    },
}
_LENGTH, _BATCH = 512, 32
_NUM_PIECES, _NUM_SPECIAL, _FULL_STOP = 30_522, 1000, 1012
_NUM_WORDS, _MEAN_WORDS, _MEAN_SENTENCES = 50_000, 20, 25


class Pieces:
    """What masked datasets ask of a tokenizer: special tokens as BERT has them, then pieces."""

    vocab_size = _NUM_PIECES
    pad, cls, sep, mask, bos, eos = 0, 101, 102, 103, 104, 105
    additional_special_tokens_ids: ClassVar[list[int]] = [*range(_NUM_PIECES, _NUM_PIECES + 100)]
    unique_identifiers: ClassVar[OrderedDict[str, str]] = OrderedDict(name="pieces")
    # Every fifth piece continues a word.
    inv_vocab: ClassVar[dict[int, str]] = {
        number: f"{'##' if number > _FULL_STOP and number % 5 == 0 else ''}p{number}"
        for number in range(_NUM_PIECES)
    }


def write_sentences(prefix: str, num_documents: int) -> None:
    """Write documents of sentences, each with a full stop."""
    from zindex.formats.bin_writer import PairWriter

    rng = np.random.default_rng(0)
    numbers = np.arange(_FULL_STOP + 1, _NUM_PIECES)
    is_more = numbers % 5 == 0
    width = 4
    words = rng.choice(numbers[is_more], (_NUM_WORDS, width))
    words[:, 0] = rng.choice(numbers[~is_more], _NUM_WORDS)
    sizes = rng.choice(np.arange(1, width + 1), _NUM_WORDS, p=[0.7, 0.2, 0.07, 0.03])
    words, sizes = np.vstack([words, [_FULL_STOP] * width]), np.append(sizes, 1)
    writer = PairWriter(f"{prefix}.bin", np.uint16)
    for _ in range(num_documents):
        counts = rng.lognormal(np.log(_MEAN_WORDS) - 0.18, 0.6, rng.geometric(1 / _MEAN_SENTENCES))
        ends = np.cumsum(counts.astype(np.int64) + 2)
        drawn = (_NUM_WORDS ** rng.random(ends[-1])).astype(np.int64) - 1
        drawn[ends - 1] = _NUM_WORDS  # the full stop
        bounds = np.cumsum(sizes[drawn])[ends - 1]
        tokens = words[drawn][np.arange(width) < sizes[drawn, None]]
        writer.append(tokens, np.diff(bounds, prepend=0))
        writer.end_document()
    writer.finalize(f"{prefix}.idx")


def open_dataset(package: str, kind: str, folder: Path) -> Any:
    """Return one epoch of the samples of one package."""
    if package == OURS:
        from zindex.datasets import bert_dataset, t5_dataset
        from zindex.datasets.utils import Split
    else:
        from megatron.core.datasets import bert_dataset, t5_dataset
        from megatron.core.datasets.utils import Split

    modules: Any = {"bert": bert_dataset, "t5": t5_dataset}
    name = f"{kind.upper()}MaskedWordPieceDataset"
    cls, make_config = (getattr(modules[kind], each) for each in (name, f"{name}Config"))
    path = str(folder / ("corpus.zarr" if package == OURS else "corpus"))
    config = make_config(
        random_seed=1234,
        sequence_length=_LENGTH,
        blend=([path], None),
        split="1",
        tokenizer=Pieces(),
        path_to_cache=str(folder / f"cache-{package}"),
        allow_ambiguous_pad_tokens=True,
        **MASKING,
        **KINDS[kind],
    )
    low_level = cls.build_low_level_dataset(path, config)
    documents = np.arange(cls.numel_low_level_dataset(low_level), dtype=np.int32)
    return cls(low_level, path, documents, 1, Split.train, config)  # epochs are never cut


def read(dataset: Any, way: str, positions: Sequence[int]) -> Iterator[Any]:
    """Yield batches of samples as one way gives them."""
    from torch.utils.data import BatchSampler, DataLoader

    from zindex.datasets.masked_dataset import MaskedWordPieceDataset
    from zindex.loading.collate import collate

    # Any iterable of positions is a sampler.
    batches: Any = BatchSampler(positions, _BATCH, drop_last=False)  # type: ignore[arg-type]
    if way == LOADER:
        is_ours = isinstance(dataset, MaskedWordPieceDataset)
        yield from DataLoader(
            dataset, batch_sampler=batches, collate_fn=collate if is_ours else None
        )
    for batch in batches if way != LOADER else ():
        yield dataset.__getitems__(batch) if way == BATCHES else [dataset[i] for i in batch]


def digest_samples(batches: Iterable[Any]) -> str:
    """Return what the same samples have in common, with all their names and dtypes."""
    found = []
    for batch in batches:
        if isinstance(batch, dict):
            arrays = {name: tensor.numpy() for name, tensor in batch.items()}
        else:
            items = [batch[place] for place in range(len(batch))]
            arrays = {name: np.stack([item[name] for item in items]) for name in items[0]}
        found.append(f"{list(arrays)} {digest(*arrays.values())}")
    return digest(np.frombuffer("\n".join(found).encode(), np.uint8))


def measure(package: str, kind: str, folder: Path, count: int, seconds: float) -> dict[str, Any]:
    """Return the samples per second of every way, and the digest of the first samples."""
    dataset = open_dataset(package, kind, folder)
    everything = range(len(dataset) // _BATCH * _BATCH)
    ways = [(name, way) for name, (other, way) in CONTENDERS.items() if other == package]
    made = {name: digest_samples(read(dataset, way, everything[:count])) for name, way in ways}
    if len({*made.values()}) != 1:
        raise AssertionError(f"{package} must make the same {kind} samples in every way: {made}")
    if package == OURS:  # chunks are checked at their first touch, and then read by another kernel
        for positions in (everything, everything[:count]):
            for _ in read(dataset, BATCHES, positions):
                pass
    figures: dict[str, Any] = {}
    for name, way in ways:
        done, elapsed, start = 0, 0.0, time.perf_counter()
        while elapsed < seconds:
            for _ in read(dataset, way, everything):
                done += _BATCH
                elapsed = time.perf_counter() - start
                if elapsed >= seconds:
                    break
        figures[f"{kind}/{name}/samples_per_second"] = done / elapsed
    return figures | {MADE: {f"{kind} samples": next(iter(made.values()))}}


def run_worker(package: str, folder: str, count: int, seconds: float) -> None:
    """Read both kinds in this process and print the figures as JSON."""
    import torch

    made: dict[str, str] = {}
    figures: dict[str, Any] = {}
    if package == THEIRS:  # which asks for its rank
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    for kind in KINDS:
        found = measure(package, kind, Path(folder), count, seconds)
        made |= found.pop(MADE)
        figures |= found
    if package == THEIRS:
        torch.distributed.destroy_process_group()
    for kind in KINDS:
        for name, (other, _) in CONTENDERS.items():
            if other == package:
                figures[f"{kind}/{name}/peak_nbytes"] = peak_nbytes()
    print(json.dumps(figures | {MADE: made}))


def main() -> None:
    """Run the benchmark."""
    from zindex.execution.executor import SerialExecutor
    from zindex.ingest.convert import convert

    parser = make_parser(__doc__, num_worker_arguments=4)
    parser.add_argument("--documents", type=float, default=1e4)
    parser.add_argument("--samples", type=int, default=256, help="that are compared in each run")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each way of reading")
    arguments = parser.parse_args()
    if arguments.worker:
        package, place, count, seconds = arguments.worker
        run_worker(package, place, int(count), float(seconds))
        return
    num_documents = int(arguments.documents)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        prefix = Path(folder) / "corpus"
        write_sentences(str(prefix), num_documents)
        convert(prefix, f"{prefix}.zarr", client=SerialExecutor())
        work = (folder, arguments.samples, arguments.seconds)
        runs = take_turns(__spec__.name, (THEIRS, OURS), arguments.runs, *work)
    tables = [
        Table.of_runs(
            f"{kind}-{name_size(num_documents)}",
            f"{kind.upper()} samples of {_LENGTH} tokens, {num_documents:,} documents of sentences "
            "in the page cache",
            {
                name: take_part(runs[package], f"{kind}/{name}")
                for name, (package, _) in CONTENDERS.items()
            },
            rival=RIVALS,
            ratio_of="samples_per_second",
            notes=[
                f"one process without loader workers, batches of {_BATCH}; the first "
                f"{arguments.samples} samples are equal in every way and run",
                "peak memory: of a process that reads BERT's and T5's samples in all ways",
            ],
        )
        for kind in KINDS
    ]
    for table in tables:
        show(table)
    Record.of("bench_masked", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
