"""Train on images, text and a Zarr corpus mixed by a YAML file, and resume on other ranks.

    python examples/05_streaming.py

The images are drawn here, with captions that describe them; the texts are Python's language
reference and standard library. A small model is trained on two ranks, then its job resumes on three
ranks, and finally on one, each time with a different number of loader workers. At the end every
sample of one epoch has been delivered exactly once: the state records the position of each source,
independent of the number of prefetched samples.
"""

import argparse
import hashlib
import io
import json
import random
import sys
import tarfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from tokenizers import ByteLevelBPETokenizer
from torch import distributed, multiprocessing, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import zindex
from zindex.datasets.indexed_dataset import IndexedDatasetBuilder
from zindex.errors import ConfigError
from zindex.inspection.tables.length_report import report_lengths
from zindex.streaming import (
    JsonlIterableDataset,
    MergedDataset,
    TextLength,
    gather_states,
    instantiate_from_yaml,
    mixed_collate,
    progress,
    to_state,
)

quickstart = import_module("01_quickstart")  # in the same folder

CONFIG = Path(__file__).with_suffix(".yaml")
SEED, BATCH_SIZE, EOD = 1234, 8, "<eod>"
SEQUENCE_LENGTH, WIDTH = 128, 64  # the first as in the YAML file
# Ranks, loader workers and steps of each job; the last job runs to the end.
JOBS = [(2, 2, 12), (3, 1, 12), (1, 0, None)]

Sample = dict[str, Any]


def draw_shapes(number: int) -> Iterator[tuple[bytes, str]]:
    """Yield images as PNG, and their captions."""
    rng = random.Random(SEED)
    for _ in range(number):
        color = rng.choice(["red", "green", "blue", "yellow", "purple", "orange"])
        shape = rng.choice(["circle", "square", "triangle"])
        size, side = rng.choice(["small", "large"]), rng.choice(["left", "right"])
        radius, middle = (6 if size == "small" else 14), (16 if side == "left" else 48)
        left, top, right, bottom = middle - radius, 32 - radius, middle + radius, 32 + radius
        image = Image.new("RGB", (64, 64), "white")
        pen = ImageDraw.Draw(image)
        if shape == "circle":
            pen.ellipse((left, top, right, bottom), color)
        elif shape == "square":
            pen.rectangle((left, top, right, bottom), color)
        else:
            pen.polygon([(middle, top), (left, bottom), (right, bottom)], color)
        stream = io.BytesIO()
        image.save(stream, "png")
        yield stream.getvalue(), f"a {size} {color} {shape} on the {side}"


def write_data(folder: Path, num_images: int, num_files: int, vocab_size: int) -> int:
    """Write tars with captions, jsonl, a Zarr corpus and a tokenizer; return its vocabulary."""
    folder.mkdir()
    corpora = quickstart.read_corpora(num_files)
    shapes = list(draw_shapes(num_images))
    texts = [*corpora["code"], *corpora["reference"], *(caption for _, caption in shapes)]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts, vocab_size=vocab_size, special_tokens=[EOD], show_progress=False
    )
    tokenizer.save(str(folder / "tokenizer.json"))

    for file in range(4):
        keys = range(file, num_images, 4)
        with tarfile.open(folder / f"shapes_{file}.tar", "w") as archive:
            for key in keys:
                # The metadata are added to samples with a member .id.
                for suffix, content in (("id", b""), ("png", shapes[key][0])):
                    member = tarfile.TarInfo(f"{key:06}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        lines = [{"key": f"{key:06}", "caption": shapes[key][1]} for key in keys]
        write_lines(folder / f"shapes_{file}.meta.jsonl", lines)
    for file in range(3):
        lines = [{"text": text} for text in corpora["reference"][file::3]]
        write_lines(folder / f"reference_{file}.jsonl", lines)

    builder = IndexedDatasetBuilder(f"{folder / 'code'}.bin", dtype=np.uint16)
    documents = [item.ids for item in tokenizer.encode_batch(corpora["code"])]
    builder.add_documents(documents, eod_token=tokenizer.token_to_id(EOD))
    builder.finalize(f"{folder / 'code'}.idx")
    zindex.convert(folder / "code", folder / "code.zarr")
    return int(tokenizer.get_vocab_size())


def write_lines(path: Path, lines: list[Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def open_data(folder: Path, *, cyclic: bool = False) -> MergedDataset:
    """Return the objects of the YAML file: one epoch of everything, or an infinite stream."""
    dataset = instantiate_from_yaml(CONFIG, {"folder": folder, "cyclic": cyclic})
    assert isinstance(dataset, MergedDataset)
    return dataset


class TinyCaptioner(nn.Module):
    """A small GPT; if a text is the caption of an image, every token sees that image."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, WIDTH)
        self.positions = nn.Embedding(SEQUENCE_LENGTH, WIDTH)
        self.image = nn.Sequential(
            nn.Conv2d(3, WIDTH, 8, stride=8), nn.GELU(), nn.Flatten(), nn.Linear(16 * WIDTH, WIDTH)
        )
        self.blocks = nn.Sequential(*(quickstart.Block(WIDTH, num_heads=4) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocab_size, bias=False)
        nn.init.zeros_(self.head.weight)  # the first loss is ln(vocab_size) exactly

    def forward(self, batch: list[Sample]) -> torch.Tensor:
        """Return the loss of a batch of both kinds of samples."""
        losses = []
        texts = [sample for sample in batch if "tokens" in sample]
        pairs = [sample for sample in batch if "img" in sample]
        if texts:
            x = self.embed(stack(texts, "tokens"))
            mask = stack(texts, "loss_mask").bool()
            losses.append(self.find_losses(x, stack(texts, "labels"), mask))
        if pairs:
            tokens, mask = stack(pairs, "txt"), stack(pairs, "txt_mask")
            x = self.embed(tokens[:, :-1]) + self.image(stack(pairs, "img"))[:, None]
            losses.append(self.find_losses(x, tokens[:, 1:], mask[:, 1:]))
        # A batch may have no image, but DDP waits for a gradient of every parameter.
        unused = sum(parameter.sum() for parameter in self.image.parameters())
        return torch.cat(losses).mean() + 0 * unused

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of tokens and their positions."""
        embedded: torch.Tensor = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return embedded

    def find_losses(
        self, x: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the losses of the labels that count."""
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits[mask], labels[mask], reduction="none")


def stack(samples: list[Sample], field: str) -> torch.Tensor:
    return torch.stack([sample[field] for sample in samples])


def train(rank: int, job: int, folder: Path, vocab_size: int) -> None:
    """Train as one rank of a job, from the checkpoint if there is one."""
    num_ranks, num_workers, num_steps = JOBS[job]
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting-{job}", rank=rank, world_size=num_ranks
    )
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = DistributedDataParallel(TinyCaptioner(vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    dataset = open_data(folder / "data")
    state: dict[str, Any] = {}
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt")
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state = json.loads(saved["data"])
        dataset.set_dataloader_states(state)
    loader = DataLoader(dataset, BATCH_SIZE, num_workers=num_workers, collate_fn=mixed_collate)

    # Ranks reach the end of the epoch at different steps; join() lets the others continue.
    with open(folder / f"samples-{job}-{rank}.txt", "w") as samples, model.join():
        for step, batch in enumerate(loader, start=1):
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state.update(to_state(batch))  # the progress of training up to this batch
            samples.writelines(f"{name}\n" for sample in batch for name in identify(sample))
            if rank == 0 and (step == 1 or step % 12 == 0):
                print(f"   step {step:3}  loss {loss.item():.3f}", flush=True)
            if step == num_steps:
                break
    state = gather_states(state)
    if rank == 0:
        content = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "data": json.dumps(state),
        }
        torch.save(content, folder / "checkpoint.pt")
    del model  # it would end the threads of gloo with the GIL held, and they need it to end
    distributed.destroy_process_group()


def identify(sample: Sample) -> list[str]:
    """Return the name of a sample in its source, and a digest of its tensors.

    Sequences of packed texts depend on the number of loader workers, so these are named by label.
    """
    if sample["__datasetname__"] == "reference":
        labels = sample["labels"][sample["loss_mask"] > 0]
        return [f"reference {token}" for token in labels.tolist()]
    place = f"{Path(sample['__url__']).name} {sample['__key__']}" if "__url__" in sample else "-"
    tensors = [value for _, value in sorted(sample.items()) if isinstance(value, torch.Tensor)]
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in tensors)).hexdigest()
    return [f"{sample['__datasetname__']} {sample.get('__index__', place)} {digest}"]


def show_advice(folder: Path) -> None:
    """Print statistics and recommendations for the sources of a long run, and plot them."""
    dataset = open_data(folder / "data", cyclic=True)
    report = report_lengths(dataset, num_samples=5000, num_ranks=8, num_workers=2)
    print(textwrap.indent(report.to_text(), "   "))

    print("\n   The texts before packing, to choose a sequence length:")
    texts = JsonlIterableDataset(folder / "data" / "reference_{0..2}.jsonl")
    texts.name = "reference"
    unpacked = report_lengths(texts, length_of=TextLength(folder / "data" / "tokenizer.json"))
    print(textwrap.indent(unpacked.to_text(), "   "))
    try:
        report.draw(folder / "lengths.svg")
        unpacked.draw(folder / "unpacked.svg")
        print(f"   Plots: {folder / 'lengths.svg'} and unpacked.svg")
    except ConfigError as error:
        print(f"   No plots: {error}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("streaming"), help="where to write")
    parser.add_argument("--images", type=int, default=600, help="images to draw (default: 600)")
    parser.add_argument("--files", type=int, default=16, help="texts per corpus (default: 16)")
    parser.add_argument("--vocab-size", type=int, default=1024, help="tokens (default: 1024)")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    folder = quickstart.prepare_folder(arguments.folder)
    # Ranks fork from a process that has imported these (optimizers the last) and has no threads.
    multiprocessing.set_forkserver_preload(["torch.distributed", "01_quickstart", "torch._dynamo"])
    start = time.monotonic()

    quickstart.say(1, "Write images as tar, texts as jsonl and code as Zarr")
    vocab_size = write_data(
        folder / "data", arguments.images, arguments.files, arguments.vocab_size
    )

    quickstart.say(2, f"Open them with {CONFIG.name}, and print statistics")
    show_advice(folder)

    for job, (num_ranks, num_workers, num_steps) in enumerate(JOBS):
        what = f"{num_steps} steps" if num_steps else "to the end of the epoch"
        quickstart.say(
            3 + job, f"Train {what}; ranks: {num_ranks}, loader workers of each: {num_workers}"
        )
        multiprocessing.start_processes(
            train, (job, folder, vocab_size), num_ranks, start_method="forkserver"
        )
        if num_steps:
            state = json.loads(torch.load(folder / "checkpoint.pt")["data"])
            found = progress(open_data(folder / "data"), state)
            print(textwrap.indent(found.to_text(), "   "))

    quickstart.say(3 + len(JOBS), "Compare the trained samples with one epoch of the sources")
    epoch = Counter(name for one in open_data(folder / "data") for name in identify(one))
    files = sorted(folder.glob("samples-*.txt"))
    trained = Counter(line for file in files for line in file.read_text().splitlines())
    lost, repeated = sum((epoch - trained).values()), sum((trained - epoch).values())
    print(
        f"   {epoch.total():,} items and tokens in an epoch, {trained.total():,} trained on\n"
        f"lost: {lost}, repeated: {repeated} ({time.monotonic() - start:.0f} s in all)"
    )
    # The first token that a loader worker reads is no label, and a last one alone has none.
    return 0 if lost <= 8 and repeated <= 2 else 1


if __name__ == "__main__":
    sys.exit(main())
