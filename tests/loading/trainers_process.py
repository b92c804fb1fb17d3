"""Train by the loops of others, as ``test_trainers`` asks for it.

    python trainers_process.py folder recipe

A process of its own, since the warnings of these libraries are none of ours.
"""

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# The module ``datasets`` of this folder is not the library that transformers looks for.
sys.path = [path for path in sys.path if Path(path) != Path(__file__).parent]
warnings.simplefilter("ignore")
os.environ["ACCELERATE_USE_CPU"] = "true"

import torch  # noqa: E402
from torch import nn  # noqa: E402

import zindex  # noqa: E402
from tests.text.small_tokenizer import make_tokenizer  # noqa: E402

VOCAB_SIZE, LENGTH, BATCH_SIZE = 260, 16, 4


def make_run(folder: Path) -> dict[str, Any]:
    """Tokenise some texts, and return a run over them, which keep their tokenizer."""
    texts = [f"{'abc' * (number % 7)} and {number}" for number in range(60)]
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    place = folder / "texts.zarr"
    zindex.tokenize_corpus(path, place, tokenizer=make_tokenizer(), append_eod="<eod>")
    return {
        "datasets": [str(place)],
        "sequence_length": LENGTH,
        "index": str(folder / "index"),
        "split": "90,10,0",
    }


class Model(nn.Module):
    """A model of pairs of tokens, called as those of transformers are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(VOCAB_SIZE, 16)
        self.head = nn.Linear(16, VOCAB_SIZE)

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor
    ) -> Any:
        logits = self.head(self.tokens(input_ids))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss)


def open_batches(run: Any, **settings: Any) -> Any:
    return zindex.loader(run, micro_batch_size=BATCH_SIZE, format="hf", **settings)


def accelerate(run: Any, folder: Path) -> Any:
    from accelerate import Accelerator

    accelerator, batches = Accelerator(), open_batches(run)
    model = Model()
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 0.05))
    accelerator.register_for_checkpointing(batches)
    losses, seen = [], []
    for step, batch in enumerate(batches):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seen.append(batch["input_ids"].tolist())
        if step == 3:
            accelerator.save_state(str(folder / "state"))
    accelerator.load_state(str(folder / "state"))
    return losses, seen, [batch["input_ids"].tolist() for batch in batches]


def lightning(run: Any, folder: Path) -> Any:
    from lightning import LightningModule, Trainer

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    losses, seen = [], []

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any) -> torch.Tensor:
            loss = self.model(**batch).loss
            losses.append(loss.item())
            seen.append(batch["input_ids"].tolist())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 0.05)

    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Module(), open_batches(run))
    return losses, seen, []


def fsdp2(run: Any, folder: Path) -> Any:
    """The loop of torchtitan: a mesh, sharded modules, and this rank's batches."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))["dp"]
    model = Model()
    fully_shard(model.head, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    batches = open_batches(
        run, data_parallel_rank=mesh.get_local_rank(), data_parallel_size=mesh.size()
    )
    losses, seen = [], []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seen.append(batch["input_ids"].tolist())
    dist.destroy_process_group()
    return losses, seen, []


def deepspeed(run: Any, folder: Path) -> Any:
    """ZeRO 1, whose checkpoints hold the state of the loader."""
    import deepspeed

    place = {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= place | {"DS_ACCELERATOR": "cpu"}
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1
    )
    optimizer = {"type": "Adam", "params": {"lr": 0.05, "torch_adam": True}}
    config = {
        "train_micro_batch_size_per_gpu": BATCH_SIZE,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "optimizer": optimizer,
    }

    def start() -> Any:
        model = Model()
        settings: Any = {"model_parameters": model.parameters(), "config": config}
        return deepspeed.initialize(model=model, **settings)[0]

    engine, batches, losses, seen = start(), open_batches(run), [], []
    for step, batch in enumerate(batches):
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        seen.append(batch["input_ids"].tolist())
        if step == 3:
            engine.save_checkpoint(str(folder), client_state={"loader": batches.state_dict()})
    _, kept = start().load_checkpoint(str(folder))
    torch.distributed.destroy_process_group()
    rest = open_batches(run, state=kept["loader"])
    return losses, seen, [batch["input_ids"].tolist() for batch in rest]


def nanogpt(run: Any, folder: Path) -> Any:
    """The loop of nanoGPT, whose ``get_batch`` gives tokens and the next ones."""
    model, losses, seen = Model(), [], []
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    batches = iter(zindex.loader(run, micro_batch_size=BATCH_SIZE, num_epochs=None))

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        batch = next(batches)
        return batch["tokens"], batch["labels"]

    for _ in range(len(open_batches(run))):
        tokens, labels = get_batch()
        logits = model.head(model.tokens(tokens))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seen.append(tokens.tolist())
    return losses, seen, []


def transformers_of_dataset(run: Any, folder: Path) -> Any:
    """The trainer reads the dataset of the loader; its own checkpoints skip what was read."""
    import transformers

    dataset = open_batches(run).dataset
    own = {"train_dataset": dataset, "eval_dataset": open_batches(run, split="valid").dataset}
    model, seen, losses = make_llama()
    trainer = transformers.Trainer(model=model, args=make_arguments(folder), **own)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
    again, rest, _ = make_llama()
    resumed = transformers.Trainer(model=again, args=make_arguments(folder), **own)
    resumed.train(resume_from_checkpoint=str(folder / "out" / "checkpoint-4"))
    return losses, seen, rest


def transformers_of_loader(run: Any, folder: Path) -> Any:
    """The trainer reads the loader, whose state is in its checkpoints."""
    import transformers

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return batches

    class SaveLoader(transformers.TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
            path.write_text(json.dumps(batches.state_dict()))

    batches = open_batches(run)
    model, seen, losses = make_llama()
    Trainer(model=model, args=make_arguments(folder), callbacks=[SaveLoader()]).train()
    checkpoint = folder / "out" / "checkpoint-4"
    batches = open_batches(run, state=json.loads((checkpoint / "loader.json").read_text()))
    again, rest, _ = make_llama()
    resumed = Trainer(model=again, args=make_arguments(folder, ignore_data_skip=True))
    resumed.train(resume_from_checkpoint=str(checkpoint))
    return losses, seen, rest


def make_llama() -> tuple[Any, list[Any], list[float]]:
    """Return a small model, and what it has seen and lost."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB_SIZE, num_hidden_layers=1, **sizes))
    seen: list[Any] = []
    losses: list[float] = []

    def note(module: Any, args: Any, given: Any, output: Any) -> None:
        if module.training:
            seen.append(given["input_ids"].tolist())
            losses.append(output.loss.item())

    model.register_forward_hook(note, with_kwargs=True)
    return model, seen, losses


def make_arguments(folder: Path, **settings: Any) -> Any:
    import transformers

    return transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH_SIZE,
        per_device_eval_batch_size=1,
        dataloader_drop_last=True,
        train_sampling_strategy="sequential",
        learning_rate=0.05,
        save_steps=4,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **settings,
    )


def main(folder: Path, recipe: str) -> None:
    known = (
        *(accelerate, lightning, fsdp2, deepspeed, nanogpt),
        *(transformers_of_dataset, transformers_of_loader),
    )
    recipes: dict[str, Callable[[Any, Path], Any]] = {item.__name__: item for item in known}
    run = make_run(folder)
    expected = [batch["input_ids"].tolist() for batch in open_batches(run)]
    losses, seen, rest = recipes[recipe](run, folder)
    print(
        json.dumps(
            {
                "num_steps": len(expected),
                "is_in_order": seen == expected,
                "has_resumed": not rest or rest == expected[4:],
                "num_resumed": len(rest),
                "losses": losses,
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
