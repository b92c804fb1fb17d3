"""Text to a corpus and to records: zindex with one and two processes against plain loops.

``python -m tests.benchmarks.bench_tokenize --megabytes 25 --runs 3``

The texts are lines of JSON with words by Zipf's law, and the tokenizer is byte pairs learnt from
them. The loop reads a line, encodes its text, and adds a document, as Megatron's tool does in one
process; the batch loop encodes many texts with one call. Each encodes on one core. Ours starts its
processes, encodes, writes what it has encoded twice (once beside the corpus, so that a death costs
little), and syncs. All make the same pair, or the store that a conversion of it would be.

Records are short texts, conversations by a chat template, and pairs of answers. Their plain loop
renders many by ``apply_chat_template`` of transformers, encodes the texts together, and writes the
ids, all on one core; ours, in one process, also finds and stores what is trained.
"""

import importlib
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
from tests.benchmarks.turns import MADE, Figures, clock, digest, make_parser, take_turns
from zindex.io.system_calls import peak_nbytes

_NUM_WORDS, _MEAN_WORDS, _PIECES = 50_000, 300, 8000
_BATCH = 1024
# Mean words of short texts, of prompts and of answers.
_SHORT, _ASKED, _ANSWERED = 20, 25, 60
_TRAINED, _LETTERS = 2000, "eeeettttaaaooiinnsshhrrddlluucmfwygpbvk"


def write_texts(path: Path, nbytes: int) -> None:
    """Write lines of JSON of some bytes together."""
    _write_lines(path, nbytes, lambda say: {"text": say(_MEAN_WORDS)})


def write_records(kind: str, path: Path, nbytes: int) -> None:
    """Write objects of a kind of record."""

    def ask(say: Callable[[int], str]) -> dict[str, str]:
        return {"role": "user", "content": say(_ASKED)}

    def answer(say: Callable[[int], str]) -> dict[str, str]:
        return {"role": "assistant", "content": say(_ANSWERED)}

    system = {"role": "system", "content": "You are a helpful assistant."}
    makers: dict[str, Callable[[Any], dict[str, Any]]] = {
        "short": lambda say: {"text": say(_SHORT)},
        "chats": lambda say: {"messages": [system, ask(say), answer(say), ask(say), answer(say)]},
        "pairs": lambda say: {
            "prompt": [system, ask(say)],
            "chosen": [answer(say)],
            "rejected": [answer(say)],
        },
    }
    _write_lines(path, nbytes, makers[kind])


def _write_lines(path: Path, nbytes: int, make: Callable[[Any], dict[str, Any]]) -> None:
    """Write lines of JSON of some bytes together, given what says a text of some mean length."""
    rng = np.random.default_rng(1)
    letters = rng.choice(list(_LETTERS), (_NUM_WORDS, 12))
    lengths = rng.integers(2, 12, _NUM_WORDS)
    words = np.array(
        ["".join(row[:length]) for row, length in zip(letters, lengths, strict=True)], object
    )

    def say(mean: int) -> str:
        count = int(rng.exponential(mean)) + 1
        ranks = (_NUM_WORDS ** rng.random(count)).astype(np.int64) - 1
        return " ".join(words[ranks]) + "."

    written = 0
    with open(path, "w") as stream:
        while written < nbytes:
            written += stream.write(json.dumps(make(say)) + "\n")


def learn_tokenizer(texts: Path, path: Path) -> None:
    """Learn byte pairs from the first texts, and write a chat template to the same folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from zindex.text.chat_template import CHATML

    with open(texts) as stream:
        lines = [json.loads(line)["text"] for line, _ in zip(stream, range(_TRAINED), strict=False)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<eod>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=_PIECES, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.save(str(path))
    settings = {"eos_token": "<eod>", "chat_template": CHATML}
    (path.parent / "tokenizer_config.json").write_text(json.dumps(settings))


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


def records_loop(objects: Path, tokenizer: Path, target: Path) -> None:
    """Render and encode batch after batch, and write the joined ids."""
    from transformers import PreTrainedTokenizerFast

    whole = PreTrainedTokenizerFast.from_pretrained(tokenizer.parent)
    encoder = whole.backend_tokenizer
    end = encoder.token_to_id("<eod>")
    parts: list[np.ndarray] = []
    with open(objects) as stream:
        while lines := list(islice(stream, _BATCH)):
            rows = [json.loads(line) for line in lines]
            if objects.stem == "short":
                found = encoder.encode_batch(
                    [row["text"] for row in rows], add_special_tokens=False
                )
                parts += [np.array([*item.ids, end], np.int32) for item in found]
                continue
            texts = _render(whole, objects.stem, rows)
            found = encoder.encode_batch(texts, add_special_tokens=False)
            parts += [np.array(item.ids, np.int32) for item in found]
    np.concatenate(parts).tofile(f"{target}.bin")


def _render(tokenizer: Any, kind: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return the texts of conversations, or of each prompt and the answers after it."""
    render = partial(tokenizer.apply_chat_template, tokenize=False)
    texts: list[str]
    if kind == "chats":
        texts = render([row["messages"] for row in rows])
        return texts
    prompts = render([row["prompt"] for row in rows], add_generation_prompt=True)
    answers = [
        render([row["prompt"] + row[name] for row in rows]) for name in ("chosen", "rejected")
    ]
    texts = []
    for prompt, *own in zip(prompts, *answers, strict=True):
        texts += [prompt, *(one[len(prompt) :].rstrip("\n") for one in own)]
    return texts


def tokenize_records(objects: Path, tokenizer: Path, target: Path) -> None:
    """Encode as a user does, in one process."""
    from zindex.ingest.keyed.tokenize import tokenize

    kind = _KINDS[objects.stem]
    end = "<eod>" if kind == "seq" else True
    tokenize(objects, target, kind, tokenizer=tokenizer, append_eod=end, num_processes=1)


ONE, TWO = "zindex, 1 process, .bin/.idx", "zindex, 2 processes, .bin/.idx"
#: How many times as fast as one process two must be.
BAR = 1.7
BATCHES = "plain batch loop"
#: How many times as fast as the plain batch loop one process must be.
ONE_BAR = 1.0
# Less takes no longer than the start of processes.
_LEAST_MEGABYTES = 25
RECORDS = "zindex, 1 process, records"
RENDERED = "plain batch loop, records"
# Kinds of records, by the name of their file, and what they are.
_KINDS = {"short": "seq", "chats": "sft", "pairs": "dpo"}
_TITLES = {"short": "short texts", "chats": "conversations", "pairs": "pairs of answers"}
TEXTS = "texts"
CONTENDERS: dict[str, Callable[[Path, Path, Path], None]] = {
    "plain loop": loop,
    BATCHES: batch_loop,
    ONE: partial(tokenize, processes=1, to="bin"),
    TWO: partial(tokenize, processes=2, to="bin"),
    "zindex, 2 processes, Zarr": partial(tokenize, processes=2, to="zarr"),
    RENDERED: records_loop,
    RECORDS: tokenize_records,
}


def read_back(target: Path, kind: str) -> Any:
    """Return the tokens that a contender wrote."""
    if not target.is_dir():
        return np.fromfile(f"{target}.bin", np.uint16 if kind == TEXTS else np.int32)
    from zindex.store.open import open_store
    from zindex.store.record_reader import RecordReader
    from zindex.store.tokens import open_tokens

    store = open_store(target)
    if kind == TEXTS:
        return open_tokens(store).read(0, store.spec["num_tokens"])
    reader = RecordReader(store)
    records = reader.read_many(range(len(reader)))
    if kind != "pairs":
        return np.concatenate([record["sequence"] for record in records])
    found = []
    for record in records:  # the prompt, which both begin with, is encoded once
        count = int(np.argmax(record["chosen_mask"]))
        found += [record["chosen"], record["rejected"][count:]]
    return np.concatenate(found)


def run_worker(name: str, texts: str, tokenizer: str) -> None:
    """Encode once in this process and print the figures as JSON."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    kind = Path(texts).stem
    if kind != TEXTS:  # to import them takes seconds
        importlib.import_module("zindex.ingest.keyed.tokenize")
        importlib.import_module("transformers").PreTrainedTokenizerFast  # noqa: B018
    with tempfile.TemporaryDirectory(dir=Path(texts).parent) as folder:
        target = Path(folder) / "corpus"
        os.sync()
        seconds = clock(lambda: CONTENDERS[name](Path(texts), Path(tokenizer), target))
        tokens = read_back(target, kind)
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
    parser.add_argument("--kinds", nargs="+", choices=[TEXTS, *_KINDS], default=[TEXTS, *_KINDS])
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    tables = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        texts, tokenizer = Path(folder) / "texts.jsonl", Path(folder) / "tokenizer.json"
        write_texts(texts, int(arguments.megabytes * 1e6))
        learn_tokenizer(texts, tokenizer)
        for kind in arguments.kinds:
            objects = texts.with_name(f"{kind}.jsonl")
            if kind != TEXTS:
                write_records(kind, objects, int(arguments.megabytes * 1e6))
            names = [
                x for x in arguments.contenders if (x in (RECORDS, RENDERED)) == (kind != TEXTS)
            ]
            runs = take_turns(__spec__.name, names, arguments.runs, objects, tokenizer)
            make = make_table if kind == TEXTS else partial(make_records_table, kind)
            tables.append(make(runs, arguments.megabytes))
            show(tables[-1])
    Record.of("bench_tokenize", tables, arguments.folder).write(arguments.json)


def make_records_table(kind: str, runs: dict[str, list[Figures]], megabytes: float) -> Table:
    """Return the table of a kind of records."""
    table = Table.of_runs(
        f"{kind}-{megabytes:g}",
        f"{megabytes:g} MB of {_TITLES[kind]} in jsonl, in the page cache, to records",
        runs,
        rival=RENDERED,
        notes=[
            f"byte pairs of {_PIECES:,} pieces, each encoder on one core; GB/s: of the jsonl",
            f"plain batch loop: {_BATCH:,} objects at once, ids joined and written; no masks"
            + ("" if kind == "short" else ", texts by apply_chat_template of transformers"),
            "zindex: a thread encodes while another one reads, renders and writes; masks found and "
            "stored, what was encoded written twice, and synced",
            "without imports",
        ],
    )
    return table.with_bar(RECORDS, ONE_BAR) if megabytes >= _LEAST_MEGABYTES else table


def make_table(runs: dict[str, list[Figures]], megabytes: float) -> Table:
    """Return the table of texts."""
    table = Table.of_runs(
        f"texts-{megabytes:g}",
        f"{megabytes:g} MB of texts in jsonl, in the page cache, to a corpus",
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
    if megabytes < _LEAST_MEGABYTES:
        return table
    return table.with_bar(TWO, BAR).with_bar(ONE, ONE_BAR)


if __name__ == "__main__":
    main()
