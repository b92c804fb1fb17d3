"""Text to a corpus: zindex with one and two processes against plain loops.

``python -m tests.benchmarks.bench_tokenize --megabytes 25 --runs 3``

The texts are lines of JSON with words by Zipf's law, and the tokenizer is byte pairs learnt from
them. The loop reads a line, encodes its text, and adds a document, as Megatron's tool does in one
process; the batch loop encodes many texts with one call. Each encodes on one core. Ours starts its
processes, encodes, writes what it has encoded twice (once beside the corpus, so that a death costs
little), and syncs. All make the same pair, or the store that a conversion of it would be.
"""

import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.record import Record, Table, show
from tests.benchmarks.turns import MADE, clock, digest, make_parser, take_turns
from zindex.io.system_calls import peak_nbytes

_NUM_WORDS, _MEAN_WORDS, _PIECES = 50_000, 300, 8000
_BATCH = 1024
_TRAINED, _LETTERS = 2000, "eeeettttaaaooiinnsshhrrddlluucmfwygpbvk"


def write_texts(path: Path, nbytes: int) -> None:
    """Write lines of JSON of some bytes together."""
    rng = np.random.default_rng(1)
    letters = rng.choice(list(_LETTERS), (_NUM_WORDS, 12))
    lengths = rng.integers(2, 12, _NUM_WORDS)
    words = np.array(
        ["".join(row[:length]) for row, length in zip(letters, lengths, strict=True)], object
    )
    written = 0
    with open(path, "w") as stream:
        while written < nbytes:
            count = int(rng.exponential(_MEAN_WORDS)) + 1
            ranks = (_NUM_WORDS ** rng.random(count)).astype(np.int64) - 1
            written += stream.write(json.dumps({"text": " ".join(words[ranks]) + "."}) + "\n")


def learn_tokenizer(texts: Path, path: Path) -> None:
    """Learn byte pairs from the first texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    with open(texts) as stream:
        lines = [json.loads(line)["text"] for line, _ in zip(stream, range(_TRAINED), strict=False)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=_PIECES, special_tokens=["<eod>"], show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.save(str(path))


def loop(texts: Path, tokenizer: Path, target: Path) -> None:
    """Encode document after document."""
    from tokenizers import Tokenizer

    from zindex.datasets.indexed_dataset import IndexedDatasetBuilder

    encoder = Tokenizer.from_file(str(tokenizer))
    end = encoder.token_to_id("<eod>")
    builder = IndexedDatasetBuilder(f"{target}.bin", dtype=np.uint16)
    with open(texts) as stream:
        for line in stream:
            ids = encoder.encode(json.loads(line)["text"], add_special_tokens=False).ids
            if ids:
                ids.append(end)
            builder.add_document(ids, [len(ids)] if ids else [])
    builder.finalize(f"{target}.idx")


def batch_loop(texts: Path, tokenizer: Path, target: Path) -> None:
    """Encode batch after batch, and write the joined ids: the least that any tool does."""
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer))
    end = encoder.token_to_id("<eod>")
    parts: list[np.ndarray] = []
    with open(texts) as stream:
        while lines := list(islice(stream, _BATCH)):
            batch = [json.loads(line)["text"] for line in lines]
            found = encoder.encode_batch(batch, add_special_tokens=False)
            parts += [np.array([*item.ids, end], np.uint16) for item in found if item.ids]
    np.concatenate(parts).tofile(f"{target}.bin")


def tokenize(texts: Path, tokenizer: Path, target: Path, *, processes: int, to: Any) -> None:
    """Encode as a user does."""
    from zindex.ingest.corpora.tokenize_corpus import tokenize_corpus

    tokenize_corpus(
        texts,
        target,
        tokenizer=tokenizer,
        append_eod="<eod>",
        to=to,
        num_processes=processes,
    )


ONE, TWO = "zindex, 1 process, .bin/.idx", "zindex, 2 processes, .bin/.idx"
#: How many times as fast as one process two must be.
BAR = 1.7
BATCHES = "plain batch loop"
#: How many times as fast as the plain batch loop one process must be.
ONE_BAR = 1.0
CONTENDERS: dict[str, Callable[[Path, Path, Path], None]] = {
    "plain loop": loop,
    BATCHES: batch_loop,
    ONE: partial(tokenize, processes=1, to="bin"),
    TWO: partial(tokenize, processes=2, to="bin"),
    "zindex, 2 processes, Zarr": partial(tokenize, processes=2, to="zarr"),
}


def read_back(target: Path) -> Any:
    """Return the tokens that a contender wrote."""
    if target.is_dir():
        from zindex.store.open import open_store
        from zindex.store.tokens import open_tokens

        store = open_store(target)
        return open_tokens(store).read(0, store.spec["num_tokens"])
    return np.fromfile(f"{target}.bin", np.uint16)


def run_worker(name: str, texts: str, tokenizer: str) -> None:
    """Encode once in this process and print the figures as JSON."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory(dir=Path(texts).parent) as folder:
        target = Path(folder) / "corpus"
        os.sync()
        seconds = clock(lambda: CONTENDERS[name](Path(texts), Path(tokenizer), target))
        tokens = read_back(target)
        figures: dict[str, Any] = {
            "seconds": seconds,
            "tokens_per_second": len(tokens) / seconds,
            "nbytes_per_second": os.path.getsize(texts) / seconds,
            "peak_nbytes": peak_nbytes(),
            MADE: {"tokens": digest(tokens)},
        }
    print(json.dumps(figures))


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--megabytes", type=float, default=25)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=[*CONTENDERS])
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        texts, tokenizer = Path(folder) / "texts.jsonl", Path(folder) / "tokenizer.json"
        write_texts(texts, int(arguments.megabytes * 1e6))
        learn_tokenizer(texts, tokenizer)
        runs = take_turns(__spec__.name, arguments.contenders, arguments.runs, texts, tokenizer)
    table = Table.of_runs(
        f"texts-{arguments.megabytes:g}",
        f"{arguments.megabytes:g} MB of texts in jsonl, in the page cache, to a corpus",
        runs,
        rival={name: ONE if name != ONE else BATCHES for name in CONTENDERS},
        notes=[
            f"byte pairs of {_PIECES:,} pieces, each encoder on one core; GB/s: of the jsonl",
            "plain loop: a line, its text encoded, a document added, not synced",
            f"plain batch loop: {_BATCH:,} texts encoded together, ids joined and written",
            "zindex: with the start of its processes, what was encoded written twice, and synced",
            "peak memory: without that of the processes that it starts",
        ],
    )
    if arguments.megabytes >= 25:  # less takes no longer than the start of processes
        table = table.with_bar(TWO, BAR).with_bar(ONE, ONE_BAR)
    show(table)
    Record.of("bench_tokenize", [table], arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
