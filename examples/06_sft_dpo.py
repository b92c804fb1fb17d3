"""Fine-tune a small GPT on questions and answers, and then align it with preference pairs.

    python examples/06_sft_dpo.py

The questions are about functions of Python's standard library, and the answers are their
docstrings. They are written as jsonl, and tokenised through a chat template into two stores:
conversations, of which only the answers are trained, and pairs of the correct answer and a
truncated one about another function. A small GPT is trained on the conversations, and then by DPO
on the pairs. The questions at the end are held out from both.
"""

import argparse
import ast
import copy
import json
import random
import sys
import sysconfig
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from torch import nn
from torch.nn import functional

from zindex.ingest.keyed.tokenize import describe_tokens, tokenize
from zindex.keyed import DatasetFactory
from zindex.keyed.loader import keyed_loader
from zindex.store.open import Store
from zindex.store.record_reader import RecordReader

quickstart = import_module("01_quickstart")  # in the same folder

SEED, SEQUENCE_LENGTH, BATCH_SIZE, WIDTH, BETA = 1234, 96, 16, 96, 0.1
# Both stores hold out the same records: record i of each is about the same function.
SPLIT = "90,10,0"
SPECIAL = ["<|im_start|>", "<|im_end|>"]  # those of the template ChatML
Batch = dict[str, torch.Tensor]


def read_functions() -> Iterator[tuple[str, str]]:
    """Yield questions about functions of the standard library, and their answers."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.glob("*.py")):
        try:
            nodes = ast.walk(ast.parse(path.read_text("utf-8", "replace")))
        except SyntaxError:  # some installations contain files of another Python version
            continue
        for node in nodes:
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
            if text is not None:
                names = ", ".join(argument.arg for argument in node.args.args)
                answer = " ".join(text.split("\n\n")[0].split())
                if 20 <= len(answer) <= 160:
                    yield f"What does {path.stem}.{node.name}({names}) do?", answer


def write_data(folder: Path, number: int, vocab_size: int) -> int:
    """Write the jsonl files and a tokenizer; return the size of its vocabulary."""
    found = list(dict(read_functions()).items())[:number]
    answers = sorted({answer for _, answer in found})
    rng = random.Random(SEED)
    chats, pairs = [], []
    for question, answer in found:
        asked = {"role": "user", "content": question}
        chats.append({"messages": [asked, {"role": "assistant", "content": answer}]})
        other = rng.choice([text for text in rng.sample(answers, 2) if text != answer]).split()
        broken = " ".join(other[: max(1, len(other) // 2)])
        pairs.append({"prompt": question, "chosen": answer, "rejected": broken})
    for name, rows in (("chats", chats), ("pairs", pairs)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        [text for pair in found for text in pair],
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        show_progress=False,
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return int(tokenizer.get_vocab_size())


def make_stores(folder: Path) -> tuple[Store, Store]:
    """Return the stores of conversations and of pairs."""
    settings = {"tokenizer": folder / "tokenizer.json", "chat_template": "chatml"}
    chats, pairs = (
        tokenize(
            folder / f"{name}.jsonl",
            folder / f"{name}.zarr",
            train_type,
            max_length=SEQUENCE_LENGTH,
            **settings,
        )
        for name, train_type in (("chats", "sft"), ("pairs", "dpo"))
    )
    return chats, pairs


def show_store(store: Store, tokenizer: Tokenizer) -> None:
    """Print the content of a store, and its first record."""
    facts = describe_tokens(store)
    counts = {item["name"]: item["num_values"] for item in store.spec["fields"]}
    del counts["__key__"]
    print(f"   {store.root.name}: {store.spec['num_records']:,} records for {facts['train_type']}")
    print("   values: " + ", ".join(f"{count:,} in {name}" for name, count in counts.items()))
    record = RecordReader(store).read(0)
    for key, mask in (("sequence", "loss_mask"), ("chosen", "chosen_mask")):
        if key in record:
            ids = record[key]
            for what, chosen in (("given", ~record[mask]), ("trained", record[mask])):
                text = tokenizer.decode(ids[chosen].tolist(), skip_special_tokens=False)
                print(f"   {what:7} {text!r}")


class TinyChat(nn.Module):
    """Two blocks between token embeddings and logits."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, WIDTH)
        self.positions = nn.Embedding(SEQUENCE_LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(quickstart.Block(WIDTH, num_heads=4) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocab_size, bias=False)
        nn.init.zeros_(self.head.weight)  # the first loss is ln(vocab_size) exactly

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token at each position."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits

    def find_loss(self, batch: Batch) -> torch.Tensor:
        """Return the loss of windows of conversations, over the trained targets."""
        mask = batch["loss_mask"]
        logits = self(batch["input_ids"])
        return functional.cross_entropy(logits[mask], batch["target_ids"][mask])

    def score(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of each answer; a mask says which tokens are answers."""
        logits, targets, trained = self(ids[:, :-1]), ids[:, 1:], mask[:, 1:]
        found = -functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        return (found * trained).sum(1)


def train_sft(model: TinyChat, store: Store, num_steps: int) -> tuple[float, float, float]:
    """Train on conversations; return the first, mean last and held-out loss."""
    # Windows of one conversation each, so that no question sees another one.
    data, held_out = (
        DatasetFactory.load(
            "sft",
            store.root,
            SEQUENCE_LENGTH,
            documents="respect",
            tail="pad",
            split=split,
            split_weights=SPLIT,
        )
        for split in ("train", "valid")
    )
    print(f"   {len(data):,} windows to train on, {len(held_out):,} held out")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = list[float]()
    batches = keyed_loader(data, BATCH_SIZE, num_epochs=100, seed=SEED)
    for step, batch in enumerate(batches, start=1):
        loss = model.find_loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 1 or step % max(1, num_steps // 6) == 0:
            print(f"   step {step:4}  loss {losses[-1]:.3f}", flush=True)
        if step == num_steps:
            break
    with torch.no_grad():
        batches = keyed_loader(held_out, BATCH_SIZE, shuffle=False)
        valid = [model.find_loss(batch).item() for batch in batches]
    return losses[0], sum(losses[-10:]) / len(losses[-10:]), sum(valid) / len(valid)


def find_margins(model: TinyChat, reference: TinyChat, batch: Batch) -> torch.Tensor:
    """Return how much more the model prefers the chosen answers than the reference does."""
    chosen, rejected = ((batch[name], batch[f"{name}_mask"]) for name in ("chosen", "rejected"))
    with torch.no_grad():
        known = reference.score(*chosen) - reference.score(*rejected)
    return model.score(*chosen) - model.score(*rejected) - known


def train_dpo(model: TinyChat, store: Store, num_steps: int) -> tuple[float, float]:
    """Train on pairs; return the mean held-out margin, and the number of pairs ranked correctly."""
    data, held_out = (
        DatasetFactory.load("dpo", store.root, SEQUENCE_LENGTH, split=split, split_weights=SPLIT)
        for split in ("train", "valid")
    )
    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    batches = keyed_loader(data, BATCH_SIZE, num_epochs=100, seed=SEED)
    for step, batch in enumerate(batches, start=1):
        margins = find_margins(model, reference, batch)
        loss = -functional.logsigmoid(BETA * margins).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % max(1, num_steps // 6) == 0:
            print(
                f"   step {step:4}  loss {loss.item():.3f}  margin {margins.mean().item():6.2f}",
                flush=True,
            )
        if step == num_steps:
            break
    with torch.no_grad():
        batches = keyed_loader(held_out, BATCH_SIZE, shuffle=False)
        found = torch.cat([find_margins(model, reference, batch) for batch in batches])
    return found.mean().item(), (found > 0).float().mean().item()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("sft_dpo"), help="where to write")
    parser.add_argument("--questions", type=int, default=3000, help="at most (default: 3000)")
    parser.add_argument("--vocab-size", type=int, default=1024, help="tokens (default: 1024)")
    parser.add_argument("--steps", type=int, default=100, help="on dialogues (default: 100)")
    parser.add_argument("--pair-steps", type=int, default=40, help="on pairs (default: 40)")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # more threads would slow down such a small model
    folder = quickstart.prepare_folder(arguments.folder)
    start = time.monotonic()

    quickstart.say(1, "Write questions about the standard library, and train a tokenizer")
    vocab_size = write_data(folder, arguments.questions, arguments.vocab_size)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    quickstart.say(2, "Tokenise conversations and pairs, like `zindex tokenize --for sft` and dpo")
    chats, pairs = make_stores(folder)
    for store in (chats, pairs):
        show_store(store, tokenizer)

    quickstart.say(3, "Fine-tune on the conversations (loss on answers only)")
    model = TinyChat(vocab_size)
    first, last, valid = train_sft(model, chats, arguments.steps)

    quickstart.say(4, "Train on the pairs with DPO, to prefer the right answers")
    margin, share = train_dpo(model, pairs, arguments.pair_steps)

    print(
        f"\nThe loss fell from {first:.3f} to {last:.3f} ({valid:.3f} on held-out conversations). "
        f"On held-out pairs the margin is {margin:.2f}, and {share:.0%} prefer the right answer "
        f"more than before; {time.monotonic() - start:.0f} s in all."
    )
    if last > 0.8 * first or margin <= 0:
        print(
            "Error: the loss must fall by a fifth, and the margin must grow; train for more --steps"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
