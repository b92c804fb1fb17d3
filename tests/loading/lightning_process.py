"""Train with Lightning, stop, and resume, as ``test_integrations`` asks for it.

    python lightning_process.py folder

A process of its own, since Lightning's own warnings are none of ours.
"""

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import lightning  # noqa: E402
import torch  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from torch.utils.data import StackDataset  # noqa: E402

from tests.loading.datasets import Numbers  # noqa: E402
from zindex.loading.loader import loader  # noqa: E402
from zindex.streaming import (  # noqa: E402
    MergedDataset,
    StreamLoader,
    stack_collate,
    stream_loader,
)

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(lightning.LightningModule):
    """A model of one number that notes down its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []
        self.evaluated: list[list[int]] = []

    def training_step(self, batch: dict[str, Any]) -> torch.Tensor:
        self.seen.append(batch["sample"].tolist())
        return self.weight * batch["sample"].sum()

    def validation_step(self, batch: dict[str, Any]) -> None:
        self.evaluated.append(batch["sample"].tolist())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(
    folder: Path,
    *,
    resume: str | None = None,
    valid: bool = False,
    epochs: int = 1,
    batches: Any = None,
    **settings: Any,
) -> Model:
    """Return the model after training on the numbers to 24 in fours, or on other batches."""
    model = Model()
    num_epochs = settings.pop("num_epochs", 1)
    num_workers = settings.pop("num_workers", 0)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(
                folder, "{step}", every_n_train_steps=2, save_top_k=-1, save_last=False
            ),
            ModelCheckpoint(folder, "end-{epoch}", save_top_k=-1, every_n_epochs=1),
        ],
        **settings,
    )
    if batches is not None:
        trainer.fit(model, batches, ckpt_path=resume)
        return model
    held_out = loader(Numbers(5), micro_batch_size=2, tail="exact", num_epochs=None)
    with loader(
        Numbers(24), micro_batch_size=4, num_epochs=num_epochs, num_workers=num_workers
    ) as train:
        trainer.fit(model, train, held_out if valid else None, ckpt_path=resume)
    return model


def open_stream(*, cyclic: bool) -> StreamLoader:
    """Return a stream of numbers, whose length is known only if it is not cyclic."""
    numbers: Any = StackDataset(sample=range(40))
    numbers.name, numbers.percent = "numbers", 1
    return stream_loader(MergedDataset([numbers], cyclic=cyclic), 4, collate=stack_collate)


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    found["whole"] = fit(folder / "whole", valid=True, num_sanity_val_steps=2).__dict__
    found["whole"] = {name: found["whole"][name] for name in ("seen", "evaluated")}
    place = folder / "workers"
    stopped = fit(place, max_steps=4, num_workers=2)
    resumed = fit(place / "again", resume=str(place / "step=4.ckpt"), num_workers=2)
    found["workers"] = [stopped.seen, resumed.seen]
    two = {"epochs": 2, "num_epochs": None}
    found["two epochs"] = fit(folder / "two", **two).seen
    for name in ("step=2", "step=6", "end-epoch=0", "step=8"):
        resumed = fit(folder / name, resume=str(folder / "two" / f"{name}.ckpt"), **two)
        found[name] = resumed.seen
    for cyclic in (False, True):
        place = folder / f"stream-{cyclic}"
        whole = fit(place, batches=open_stream(cyclic=cyclic), max_steps=9)
        checkpoint = str(place / "step=4.ckpt")
        rest = fit(
            place / "rest", resume=checkpoint, batches=open_stream(cyclic=cyclic), max_steps=9
        )
        found[f"stream-{cyclic}"] = whole.seen, rest.seen
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
