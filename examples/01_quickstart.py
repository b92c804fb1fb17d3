"""From text to a falling loss in seconds, on any machine with Python.

    zindex quickstart            or            python examples/01_quickstart.py

The data are three small corpora from the Python installation: source code of the standard library,
its docstrings, and the language reference. They are tokenised, converted to Zarr, indexed and
blended, and a small GPT is trained on the blend. The folder `guides` gets small files, for the
commands of the guides.
"""

import argparse
import inspect
import logging
import math
import os
import re
import shutil
import sys
import sysconfig
import textwrap
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
import zarr
from guide_files import write_guide_files  # in the same folder
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import zindex
from zindex.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from zindex.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from zindex.datasets.indexed_dataset import IndexedDatasetBuilder
from zindex.inspection.tables.plan_table import report_run
from zindex.text.kept_tokenizer import open_tokenizer
from zindex.text.tokenizers.null_tokenizer import ByteLevelTokenizer
from zindex.text.tokenizers.open_tokenizer import as_tokenizer
from zindex.text.tokenizers.text_tokenizer import TextTokenizer

SEED, SEQUENCE_LENGTH, BATCH_SIZE, SPLIT = 1234, 128, 8, "95,5,0"
NUM_VALID = 12 * BATCH_SIZE
WEIGHTS = {"code": 0.5, "docstrings": 0.3, "reference": 0.2}
EOD = 0  # the token that ends a document


def read_corpora(num_files: int) -> dict[str, list[str]]:
    """Return the documents of three corpora that every Python installation contains."""
    sources = [path.read_text("utf-8", "replace") for path in islice(find_modules(), num_files)]
    return {
        "code": [text for text in sources if text.strip()],
        "docstrings": [text for text in map(join_docstrings, sources) if text],
        "reference": list(topics.values())[:num_files],
    }


def find_modules() -> Iterator[Path]:
    """Yield the modules of the standard library, without installed packages."""
    left_out = {"site-packages", "dist-packages", "test", "tests", "idlelib", "pydoc_data"}
    for place in sorted(Path(sysconfig.get_path("stdlib")).iterdir()):
        if place.suffix == ".py":
            yield place
        elif place.name not in left_out:
            paths = sorted(place.rglob("*.py"))
            yield from (path for path in paths if not left_out.intersection(path.parts))


def join_docstrings(source: str) -> str:
    """Return all triple-quoted strings of a module as one text."""
    return "\n\n".join(map(inspect.cleandoc, re.findall('"""(.*?)"""', source, re.DOTALL)))


def train_tokenizer(texts: list[str], vocab_size: int) -> TextTokenizer:
    """Return a tokenizer whose documents end with token 0."""
    try:
        from tokenizers import ByteLevelBPETokenizer
    except ImportError:  # bytes are tokens too
        return ByteLevelTokenizer(vocab_size=256, eos_id=EOD, pad_id=None)
    # Avoids a warning when the DataLoader forks.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    model = ByteLevelBPETokenizer()
    model.train_from_iterator(
        texts, vocab_size=vocab_size, special_tokens=["<|endoftext|>"], show_progress=False
    )
    found: TextTokenizer = as_tokenizer(model)
    return found


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
    """A block between token embeddings and logits."""

    def __init__(self, vocab_size: int, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(SEQUENCE_LENGTH, width)
        self.block = Block(width, num_heads=4)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)
        nn.init.normal_(self.positions.weight, std=0.02)
        nn.init.zeros_(self.head.weight)  # the first loss is ln(vocab_size) exactly

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch of the datasets."""
        x = self.tokens(batch["tokens"]) + self.positions(batch["position_ids"])
        logits = self.head(self.norm(self.block(x)))
        mask = batch["loss_mask"].flatten().bool()
        labels = batch["labels"].flatten()
        return functional.cross_entropy(logits.flatten(0, 1)[mask], labels[mask])


def train(
    model: TinyGPT, batches: Iterable[dict[str, torch.Tensor]], num_steps: int
) -> list[float]:
    """Train on the batches and return the loss of each step."""
    losses, start = list[float](), time.monotonic()
    weights = list(model.parameters())
    moments = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]
    for step, batch in enumerate(batches, start=1):
        loss = model(batch)
        gradients = torch.autograd.grad(loss, weights)
        # Adam, without torch.optim, whose import takes as long as half of these steps.
        rate = 0.01 * min(1.0, step / 10) * math.sqrt(1 - 0.95**step) / (1 - 0.9**step)
        with torch.no_grad():
            for weight, gradient, (mean, square) in zip(weights, gradients, moments, strict=True):
                mean.lerp_(gradient, 0.1)
                square.lerp_(gradient * gradient, 0.05)
                weight -= rate * mean / (square.sqrt() + 1e-8)
        losses.append(loss.item())
        if step == 1 or step % max(1, num_steps // 10) == 0:
            seconds = time.monotonic() - start
            print(f"   step {step:4}  loss {losses[-1]:.3f}  {seconds:5.1f} s", flush=True)
    return losses


def write_corpora(folder: Path, num_files: int, vocab_size: int) -> tuple[list[str], TextTokenizer]:
    """Write three ``.bin/.idx`` pairs, and return their names and the tokenizer."""
    corpora = read_corpora(num_files)
    tokenizer = train_tokenizer([text for texts in corpora.values() for text in texts], vocab_size)
    for name, texts in corpora.items():
        builder = IndexedDatasetBuilder(f"{folder / name}.bin", dtype=np.uint16)
        builder.add_documents(tokenizer.encode_batch(texts), eod_token=EOD)
        builder.finalize(f"{folder / name}.idx")
        print(f"   {name:10}  {len(texts):4} documents, {sum(map(len, texts)):9,} characters")
    print(f"   a vocabulary of {tokenizer.vocab_size:,} tokens")
    return list(corpora), tokenizer


def show_sample(tokens: torch.Tensor, tokenizer: TextTokenizer) -> None:
    """Print how a sample begins, as text."""
    print(f"   the first sample: {tokenizer.detokenize(tokens[:24].tolist())!r} ...")


def say(number: int, text: str) -> None:
    print(f"\n{number}. {text}", flush=True)


def show_progress() -> None:
    """Show zindex's log messages, unless the command line already does."""
    logger = logging.getLogger("zindex")
    if not logger.handlers:
        logger.setLevel(logging.INFO)
        logger.addHandler(logging.StreamHandler())
    # The builder would log its whole configuration.
    logging.getLogger("zindex.datasets").setLevel(logging.WARNING)


def prepare_folder(folder: Path) -> Path:
    """Return an empty folder; only the output of an earlier quickstart is removed."""
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
    parser.add_argument("--files", type=int, default=80, help="documents per corpus (default: 80)")
    parser.add_argument("--steps", type=int, default=100, help="steps to train (default: 100)")
    parser.add_argument("--vocab-size", type=int, default=1024, help="tokens (default: 1024)")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    show_progress()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # Threads that wait for each other slow down such a small model.
    folder = prepare_folder(arguments.folder)
    start = time.monotonic()

    say(1, "Tokenise text that ships with Python into three .bin/.idx corpora")
    names, tokenizer = write_corpora(folder / "corpora", arguments.files, arguments.vocab_size)

    say(2, "Convert them to Zarr, with their tokenizer; any Zarr reader opens the result")
    prefixes = [folder / "corpora" / name for name in names]
    converted = zindex.convert(prefixes, folder / "corpora", tokenizer=tokenizer, progress=True)
    stores = [str(store.root) for store in converted]
    for name, array in zarr.open_group(stores[0], mode="r").arrays():
        print(
            f"   {name:15} {array.shape} {array.dtype}, dimension {array.metadata.dimension_names}"
        )

    say(3, "Plan a run that blends them by weight (computes sizes, writes nothing)")
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

    say(4, f"Build it on all cores, like `zindex build {run_file.name}`")
    zindex.build(run_file, progress=True)

    say(5, "Open it as torch datasets, with the classes of Megatron Core, and decode a sample")
    tokenizer = open_tokenizer(stores[0])  # a corpus keeps its own
    vocab_size = tokenizer.vocab_size
    config = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=SEQUENCE_LENGTH,
        blend=(stores, weights),
        split=SPLIT,
        path_to_cache=str(folder / "index"),
        tokenizer=tokenizer,
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
    show_sample(samples[0]["tokens"], tokenizer)

    say(
        6,
        f"Train a small GPT; the loss of a uniform guess is ln {vocab_size} = "
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
    try:
        write_guide_files(folder / "guides")
        print(f"The commands of the guides run in {folder / 'guides'}.")
    except ImportError as error:
        print(f"No files for the guides ({error}); install zindex[quickstart]")
    if end > 0.8 * losses[0]:
        print("Error: the loss must fall by at least a fifth; train for more --steps")
        return 1
    print(f"The results are in {folder}; the README has the next steps.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
