"""From text to a falling loss in one minute, on any machine with Python.

    zindex quickstart            or            python examples/01_quickstart.py

Three small corpora come from Python's own installation: the standard library's source code, its
docstrings, and the language reference. They are tokenised, converted to Zarr, indexed and blended
on a Dask cluster of this machine, and a small GPT is trained on the blend.
"""

import argparse
import ast
import logging
import math
import os
import shutil
import sys
import sysconfig
import textwrap
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
import xarray
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import zindex
from zindex.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from zindex.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from zindex.datasets.indexed_dataset import IndexedDatasetBuilder
from zindex.inspection.tables.plan_table import report_run

SEED, SEQUENCE_LENGTH, BATCH_SIZE, SPLIT = 1234, 128, 16, "95,5,0"
NUM_VALID = 6 * BATCH_SIZE
WEIGHTS = {"code": 0.5, "docstrings": 0.3, "reference": 0.2}
EOD = 0  # the token that ends a document


def read_corpora(num_files: int | None) -> dict[str, list[str]]:
    """Return the documents of three corpora that every Python installation holds."""
    library = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idlelib", "pydoc_data"}
    paths = [path.relative_to(library) for path in sorted(library.rglob("*.py"))]
    files = [library / path for path in paths if not left_out.intersection(path.parts)]
    sources = [file.read_text("utf-8", "replace") for file in files[:num_files]]
    return {
        "code": [text for text in sources if text.strip()],
        "docstrings": [text for text in map(join_docstrings, sources) if text],
        "reference": list(topics.values())[:num_files],
    }


def join_docstrings(source: str) -> str:
    """Return all docstrings of a module as one text."""
    try:
        nodes = ast.walk(ast.parse(source))
    except SyntaxError:  # some installations carry files of another Python
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return "\n\n".join(
        text for node in nodes if isinstance(node, kinds) and (text := ast.get_docstring(node))
    )


def train_tokenizer(texts: list[str], vocab_size: int) -> tuple[int, Callable[..., Any]]:
    """Return a vocabulary size and a function from texts to token ids."""
    try:
        from tokenizers import ByteLevelBPETokenizer
    except ImportError:  # bytes are tokens too
        return 257, lambda batch: [[1 + byte for byte in text.encode()] for text in batch]
    # Avoids a warning when the DataLoader forks.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    model = ByteLevelBPETokenizer()
    model.train_from_iterator(
        texts, vocab_size=vocab_size, special_tokens=["<eod>"], show_progress=False
    )
    return model.get_vocab_size(), lambda batch: [item.ids for item in model.encode_batch(batch)]


@dataclass
class Tokenizer:
    """What a Megatron dataset must know of the tokenizer."""

    vocab_size: int
    eod: int = EOD
    unique_identifiers: dict[str, Any] = field(default_factory=lambda: {"class": "Quickstart"})


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each added to its input."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, of shape (batch, length, width), after both layers."""
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        added: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + added


class TinyGPT(nn.Module):
    """Two blocks between token embeddings and logits."""

    def __init__(self, vocab_size: int, width: int = 128, num_blocks: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(SEQUENCE_LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads=4) for _ in range(num_blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)
        nn.init.zeros_(self.head.weight)  # the first loss is ln(vocab_size) exactly

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch as the datasets give it."""
        x = self.tokens(batch["tokens"]) + self.positions(batch["position_ids"])
        logits = self.head(self.norm(self.blocks(x)))
        mask = batch["loss_mask"].flatten().bool()
        labels = batch["labels"].flatten()
        return functional.cross_entropy(logits.flatten(0, 1)[mask], labels[mask])


def train(
    model: TinyGPT, batches: Iterable[dict[str, torch.Tensor]], num_steps: int
) -> list[float]:
    """Train on the batches and return the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    losses, start = list[float](), time.monotonic()
    for step, batch in enumerate(batches, start=1):
        loss = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        losses.append(loss.item())
        if step == 1 or step % max(1, num_steps // 10) == 0:
            seconds = time.monotonic() - start
            print(f"   step {step:4}  loss {losses[-1]:.3f}  {seconds:5.1f} s", flush=True)
    return losses


def write_corpora(folder: Path, num_files: int | None, vocab_size: int) -> tuple[list[str], int]:
    """Write three ``.bin/.idx`` pairs, and return their names and the vocabulary size."""
    corpora = read_corpora(num_files)
    vocab_size, encode = train_tokenizer(
        [text for texts in corpora.values() for text in texts], vocab_size
    )
    for name, texts in corpora.items():
        builder = IndexedDatasetBuilder(f"{folder / name}.bin", dtype=np.uint16)
        builder.add_documents(encode(texts), eod_token=EOD)
        builder.finalize(f"{folder / name}.idx")
        print(f"   {name:10}  {len(texts):4} documents, {sum(map(len, texts)):9,} characters")
    print(f"   a vocabulary of {vocab_size:,} tokens")
    return list(corpora), vocab_size


def build_indices(run_file: Path) -> None:
    """Build every index and the blends of a run on a Dask cluster of this machine."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        print(f"   scheduler {cluster.scheduler_address}, 2 worker processes")
        zindex.build(run_file, client, progress=True)


def say(number: int, text: str) -> None:
    print(f"\n{number}. {text}", flush=True)


def show_progress() -> None:
    """Show what zindex logs, unless the command line does so already."""
    logger = logging.getLogger("zindex")
    if not logger.handlers:
        logger.setLevel(logging.INFO)
        logger.addHandler(logging.StreamHandler())
    # The builder would log its whole configuration.
    logging.getLogger("zindex.datasets").setLevel(logging.WARNING)


def prepare_folder(folder: Path) -> Path:
    """Return an empty folder; only what an earlier quickstart made is removed."""
    marker = folder / "MADE_BY_ZINDEX_QUICKSTART"
    if marker.exists():
        shutil.rmtree(folder)
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"Error: {folder} holds other files; choose another one with --folder")
    (folder / "corpora").mkdir(parents=True)
    marker.touch()
    return folder.resolve()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="zindex quickstart", description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("quickstart"), help="where to write")
    parser.add_argument("--files", type=int, help="documents per corpus at most (default: all)")
    parser.add_argument("--steps", type=int, default=250, help="steps to train (default: 250)")
    parser.add_argument("--vocab-size", type=int, default=2048, help="tokens (default: 2048)")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    show_progress()
    torch.manual_seed(SEED)
    folder = prepare_folder(arguments.folder)
    start = time.monotonic()

    say(1, "Tokenise text that Python brings along, into three .bin/.idx corpora")
    names, vocab_size = write_corpora(folder / "corpora", arguments.files, arguments.vocab_size)

    say(2, "Convert them to Zarr; any Zarr reader opens the result, for example xarray")
    prefixes = [folder / "corpora" / name for name in names]
    stores = [str(s.root) for s in zindex.convert(prefixes, folder / "corpora", progress=True)]
    print(textwrap.indent(str(xarray.open_zarr(stores[0]).drop_attrs()), "   "))

    say(3, "Plan a run that blends them by weight: this computes sizes and writes nothing")
    num_train, weights = arguments.steps * BATCH_SIZE, [WEIGHTS[name] for name in names]
    run_file = folder / "run.yaml"
    datasets = "".join(
        f"  - {{path: {path}, weight: {weight}}}\n"
        for path, weight in zip(stores, weights, strict=True)
    )
    run_file.write_text(
        f"sequence_length: {SEQUENCE_LENGTH}\nseed: {SEED}\nsplit: {SPLIT!r}\nindex: index\n"
        f"samples: {{train: {num_train}, valid: {NUM_VALID}}}\ndatasets:\n{datasets}"
    )
    print(textwrap.indent(report_run(zindex.load_config(run_file)).to_text(), "   "))

    say(4, f"Build it on Dask, as `zindex build {run_file.name}` does")
    build_indices(run_file)

    say(5, "Open it as torch datasets, by the names that Megatron Core uses")
    config = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=SEQUENCE_LENGTH,
        blend=(stores, weights),
        split=SPLIT,
        path_to_cache=str(folder / "index"),
        tokenizer=Tokenizer(vocab_size),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = (num_train, NUM_VALID, 0)
    samples, held_out, _ = BlendedMegatronDatasetBuilder(
        GPTDataset, sizes, lambda: True, config
    ).build()
    print(f"   {len(samples):,} samples to train on, {len(held_out)} held out")

    say(
        6,
        f"Train a small GPT; without learning its loss stays at ln {vocab_size} = "
        f"{math.log(vocab_size):.3f}",
    )
    model = TinyGPT(vocab_size)
    loader = DataLoader(samples, BATCH_SIZE, num_workers=2, drop_last=True)
    losses = train(model, loader, arguments.steps)
    with torch.no_grad():
        valid = np.mean([model(batch).item() for batch in DataLoader(held_out, BATCH_SIZE)])
    end = float(np.mean(losses[-10:]))
    print(
        f"\nThe loss fell from {losses[0]:.3f} to {end:.3f} in {len(losses)} steps "
        f"({valid:.3f} on held-out documents); {time.monotonic() - start:.0f} s in all."
    )
    if end > 0.8 * losses[0]:
        print("Error: the loss must fall by a fifth at least; train for more --steps")
        return 1
    print(f"Look around in {folder}, or go on with the README.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
