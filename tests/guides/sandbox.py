"""The small files that the guides name: texts, pairs, dialogues, images and a tokenizer."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np

import zindex
from tests.text.small_tokenizer import save_tokenizer
from zindex.execution.executor import SerialExecutor
from zindex.formats.bin_writer import PairWriter

TEXTS = [f"Document {number} says {' and '.join(['more'] * number)}." for number in range(40)]
RUN = """\
sequence_length: 64
seed: 1234
split: "90,10,0"
index: ./index
samples: {train: 1000, valid: 10}
datasets:
  - {path: corpora/web.zarr, weight: 0.7}
  - {path: data/code, weight: 0.3}
"""


def make_sandbox(folder: Path) -> None:
    """Write all files that the guides start from."""
    save_tokenizer(folder / "models")
    for name, start in (("web", 0), ("code", 1000)):
        write_pair(folder / "data" / name, start)
    zindex.convert(
        str(folder / "data" / "web"), folder / "corpora" / "web.zarr", client=SerialExecutor()
    )
    texts: list[dict[str, object]] = [
        {"id": f"doc-{number}", "url": f"https://example.org/{number}", "text": text}
        for number, text in enumerate(TEXTS)
    ]
    write_lines(folder / "texts" / "a.jsonl", texts[:20])
    write_lines(folder / "texts" / "b.jsonl", texts[20:])
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"What is {number} and one?"},
                {"role": "assistant", "content": f"It is {number + 1}."},
            ]
        }
        for number in range(30)
    ]
    pairs = [
        {"prompt": f"Count to {number}.", "chosen": f"I count to {number}.", "rejected": "No."}
        for number in range(30)
    ]
    write_lines(folder / "chats.jsonl", chats)
    write_lines(folder / "pairs.jsonl", pairs)
    for number in range(2):
        write_images(folder / "images", number)


def write_run(folder: Path) -> None:
    """Write and build a run over the corpora of the sandbox."""
    path = folder / "run.yaml"
    path.write_text(RUN)
    zindex.build(path, SerialExecutor())


def write_pair(prefix: Path, start: int) -> None:
    """Write a pair of 400 documents."""
    prefix.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(start)
    writer = PairWriter(f"{prefix}.bin", np.uint16, has_modes=False)
    for _ in range(400):
        length = int(rng.integers(20, 200))
        writer.append(rng.integers(0, 256, length), [length], None)
        writer.end_document()
    writer.finalize(f"{prefix}.idx")


def write_lines(path: Path, records: list[dict[str, object]]) -> None:
    """Write records as JSON lines."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_images(folder: Path, number: int) -> None:
    """Write a tar of images and the jsonl of their captions."""
    from PIL import Image

    folder.mkdir(exist_ok=True)
    captions = []
    with tarfile.open(folder / f"{number:02d}.tar", "w") as archive:
        for image in range(20):
            key = f"{number:02d}{image:02d}"
            stream = io.BytesIO()
            Image.new("RGB", (32, 32), (10 * image, 0, 0)).save(stream, "png")
            for suffix, content in (("png", stream.getvalue()), ("id", key.encode())):
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            captions.append({"key": key, "caption": f"red of strength {image}"})
    write_lines(folder / f"{number:02d}.meta.jsonl", captions)
