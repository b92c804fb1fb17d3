"""Loaders and samplers inside the checkpoints of others, as they are."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.forked import ROOT, run_python
from tests.loading.datasets import Numbers
from zindex.loading.loader import loader
from zindex.loading.sampler import ElasticSampler

HERE = Path(__file__).parent


def run_script(name: str, folder: Path) -> list[Any]:
    """Run a script of this folder, and return its output as one JSON value per line."""
    command = ["-W", "ignore", str(HERE / name), str(folder)]
    done = run_python(*command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def count_up(start: int, stop: int, step: int) -> list[list[int]]:
    return [list(range(i, min(i + step, stop))) for i in range(start, stop, step)]


def test_torch_checkpoints_are_saved_on_two_ranks_and_loaded_on_others(tmp_path: Path) -> None:
    two, three, one = run_script("checkpoint_process.py", tmp_path)
    assert two == count_up(0, 12, 6)
    assert three == count_up(12, 32, 9)
    assert one == count_up(12, 32, 3)


def test_lightning_resumes_at_the_right_batch(tmp_path: Path) -> None:
    (found,) = run_script("lightning_process.py", tmp_path)
    epoch = count_up(0, 24, 4)
    # The sanity check takes two batches of the validation, which then restarts.
    assert found["whole"]["seen"] == epoch
    assert found["whole"]["evaluated"] == [[0, 1], [2, 3], *count_up(0, 5, 2)]
    assert found["workers"] == [epoch[:4], epoch[4:]]
    assert found["two epochs"] == epoch * 2
    for name, step in {"step=2": 2, "step=6": 6, "end-epoch=0": 6, "step=8": 8}.items():
        assert found[name] == (epoch * 2)[step:]
    # Lightning reads a batch ahead of an endless stream, which its checkpoint must not count.
    for cyclic in (False, True):
        whole, rest = found[f"stream-{cyclic}"]
        assert len(whole) == 9
        assert rest == whole[4:]


# torchdata calls what torch no longer wants called.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_epochs", [1, None])
def test_torchdata_keeps_the_state_of_the_sampler(num_workers: int, num_epochs: int | None) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def open_both() -> tuple[ElasticSampler, Any]:
        sampler = ElasticSampler(21, 4, num_epochs=num_epochs, tail="exact")
        return sampler, StatefulDataLoader(
            Numbers(21), batch_sampler=sampler, num_workers=num_workers
        )

    def samples_of(batches: Any) -> list[list[int]]:
        return [batch["sample"].tolist() for batch in batches]

    epoch = count_up(0, 21, 4)
    for step in range(1, 7) if num_workers == 0 else (4, 6):
        _, before = open_both()
        batches = iter(before)
        assert samples_of(next(batches) for _ in range(step)) == epoch[:step]
        state = json.loads(json.dumps(before.state_dict()))
        sampler, after = open_both()
        after.load_state_dict(state)
        rest = samples_of(after)
        # After its last batch a pass is followed by the next one.
        assert rest == (epoch if num_epochs is None and step == 6 else epoch[step:])
        assert sampler.state_dict()["consumed_samples"] % 21 == 0
        del batches, before, after


def test_accelerate_checkpoints_a_loader(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        batches = loader(Numbers(20), micro_batch_size=4)
        assert accelerator.prepare(batches) is batches
        accelerator.register_for_checkpointing(batches)
        iterator = iter(batches)
        seen = [next(iterator)["sample"].tolist() for _ in range(2)]
        accelerator.save_state(str(tmp_path))
        seen += [batch["sample"].tolist() for batch in iterator]
        accelerator.load_state(str(tmp_path))
        again = [batch["sample"].tolist() for batch in batches]
    assert seen == count_up(0, 20, 4)
    assert again == seen[2:]
