"""The small files that the commands of the guides name, which `zindex quickstart` writes.

A folder has pairs of tokens (data/), one of them as a Zarr store (corpora/), a tokenizer (models/),
documents (texts/), dialogues, preference pairs, tar archives of images with captions (images/), and
a run over the corpora, built.
"""

import io
import json
import tarfile
import textwrap
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

import zindex
from zindex.datasets.indexed_dataset import IndexedDatasetBuilder

SPECIAL = ("<|im_start|>", "<|im_end|>", "<eod>", "<bod>")
NUM_DOCUMENTS = 400
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


def write_guide_files(folder: Path) -> None:
    """Write all files into a new folder."""
    tokenizer = write_tokenizer(folder / "models")
    prose = (line for text in topics.values() for line in textwrap.wrap(text, 160))
    source = Path(textwrap.__file__).read_text("utf-8") + Path(tarfile.__file__).read_text("utf-8")
    pieces = (source[start : start + 160] for start in range(0, len(source), 160))
    for name, texts in (("web", prose), ("code", pieces)):
        write_pair(folder / "data" / name, islice(texts, NUM_DOCUMENTS), tokenizer)
    zindex.convert(str(folder / "data/web"), folder / "corpora/web.zarr")
    documents = [
        {"id": f"doc-{n}", "url": f"https://example.org/{n}", "text": write_text(n)}
        for n in range(40)
    ]
    write_lines(folder / "texts/a.jsonl", documents[:20])
    write_lines(folder / "texts/b.jsonl", documents[20:])
    chats = [(f"What is {n} and one?", f"It is {n + 1}.") for n in range(30)]
    write_lines(
        folder / "chats.jsonl",
        [
            {
                "messages": [
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": answer},
                ]
            }
            for question, answer in chats
        ],
    )
    pairs = [
        {"prompt": f"Count to {n}.", "chosen": f"I count to {n}.", "rejected": "No."}
        for n in range(30)
    ]
    write_lines(folder / "pairs.jsonl", pairs)
    for number in range(2):
        write_images(folder / "images", number)
    (folder / "run.yaml").write_text(RUN)
    zindex.build(folder / "run.yaml")


def write_text(number: int) -> str:
    return f"Document {number} says {' and '.join(['more'] * number)}."


def make_tokenizer() -> Any:
    """Return a tokenizer of bytes and special tokens, which puts <bod> before each text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        "<bod> $A", None, [("<bod>", tokenizer.token_to_id("<bod>"))]
    )
    return tokenizer


def write_tokenizer(folder: Path) -> Any:
    tokenizer = make_tokenizer()
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<eod>", "bos_token": {"content": "<bod>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


def write_pair(prefix: Path, texts: Iterable[str], tokenizer: Any) -> None:
    prefix.parent.mkdir(exist_ok=True)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    builder.add_documents(ids, eod_token=tokenizer.token_to_id("<eod>"))
    builder.finalize(f"{prefix}.idx")


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_images(folder: Path, number: int) -> None:
    """Write a tar archive of images, and the jsonl file of their captions."""
    from PIL import Image

    folder.mkdir(exist_ok=True)
    captions: list[dict[str, Any]] = []
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
