"""Train on two ranks, kill the job, and resume on one rank with an identical token stream.

    python examples/03_train.py

The corpora and the small GPT are those of the quickstart. The same run is trained twice under
``torchrun``: once on one rank without interruption, and once on two ranks that are killed, followed
by one rank that resumes from their last checkpoint. Each rank writes a digest of every sample that
it trains on, and the two streams are compared sample by sample.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import zindex

quickstart = import_module("01_quickstart")  # in the same folder

SEED, SEQUENCE_LENGTH, GLOBAL_BATCH_SIZE, CHECKPOINT_EVERY = 1234, 128, 16, 5
WEIGHTS = {"code": 0.5, "docstrings": 0.3, "reference": 0.2}


def write_run(run_file: Path, num_samples: int) -> None:
    """Write the YAML file of the run."""
    datasets = "".join(
        f"  - {{path: corpora/{name}.zarr, weight: {weight}}}\n" for name, weight in WEIGHTS.items()
    )
    run_file.write_text(
        f"sequence_length: {SEQUENCE_LENGTH}\nseed: {SEED}\nsplit: '100,0,0'\nindex: index\n"
        f"samples: {{train: {num_samples}}}\ndatasets:\n{datasets}"
    )


def train(arguments: argparse.Namespace) -> None:
    """Train as one rank of a job, from its checkpoint if there is one."""
    distributed.init_process_group("gloo")
    rank, num_ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model = DistributedDataParallel(quickstart.TinyGPT(arguments.vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # The loader determines its rank, opens the built run, and uses the tokenizer of the corpora.
    micro_batch_size = GLOBAL_BATCH_SIZE // num_ranks
    batches = zindex.loader(arguments.folder / "run.yaml", micro_batch_size=micro_batch_size)

    job = arguments.folder / arguments.job
    checkpoint = job / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.load_state_dict(saved["loader"])
        print(f"   rank {rank} of {num_ranks} resumes from {saved['loader']}", flush=True)

    with open(job / f"samples-{num_ranks}-{rank}.txt", "a", buffering=1) as samples:
        for batch in batches:
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            step = batches.consumed_samples // GLOBAL_BATCH_SIZE
            first = batches.consumed_samples - GLOBAL_BATCH_SIZE + rank * micro_batch_size
            for number, tokens in enumerate(batch["tokens"], start=first):
                digest = hashlib.sha256(tokens.numpy().tobytes()).hexdigest()
                samples.write(f"{number} {digest}\n")
            distributed.all_reduce(loss)
            if rank == 0 and step % CHECKPOINT_EVERY == 0:
                save(model, optimizer, batches.state_dict(), checkpoint)
                print(f"   step {step:3}  loss {loss.item() / num_ranks:.3f}", flush=True)
            if step == arguments.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
    del model  # it would end the threads of gloo with the GIL held, and they need it to end
    distributed.destroy_process_group()


def save(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    checkpoint: Path,
) -> None:
    """Replace the checkpoint atomically, so that a killed job leaves a complete one."""
    content = {
        "model": model.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": state,
    }
    torch.save(content, checkpoint.with_suffix(".new"))
    checkpoint.with_suffix(".new").replace(checkpoint)


def launch(job: str, num_ranks: int, arguments: argparse.Namespace, die_at: int = 0) -> int:
    """Run this file on some ranks under torchrun, and return its exit code."""
    (arguments.folder / job).mkdir(exist_ok=True)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={num_ranks}", __file__, f"--folder={arguments.folder}"),
        *(f"--job={job}", f"--die-at={die_at}", f"--vocab-size={arguments.vocab_size}"),
    ]
    with open(arguments.folder / job / "errors.txt", "a") as errors:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=environment, stderr=errors).returncode


def read_samples(job: Path) -> dict[int, set[str]]:
    """Return the digests of the samples of a job, by position in the run."""
    found: dict[int, set[str]] = {}
    for file in job.glob("samples-*.txt"):
        for line in file.read_text().splitlines():
            number, digest = line.split()
            found.setdefault(int(number), set()).add(digest)
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("train"), help="where to write")
    parser.add_argument(
        "--files", type=int, default=200, help="documents per corpus (default: 200)"
    )
    parser.add_argument("--steps", type=int, default=30, help="steps to train (default: 30)")
    parser.add_argument("--vocab-size", type=int, default=2048, help="tokens (default: 2048)")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--die-at", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    if arguments.job is not None:
        train(arguments)
        return 0
    arguments.folder = quickstart.prepare_folder(arguments.folder)
    start = time.monotonic()
    num_samples = arguments.steps * GLOBAL_BATCH_SIZE

    quickstart.say(1, "Tokenise text that Python brings along, convert it, and build a run of it")
    names, tokenizer = quickstart.write_corpora(
        arguments.folder / "corpora", arguments.files, arguments.vocab_size
    )
    prefixes = [arguments.folder / "corpora" / name for name in names]
    zindex.convert(prefixes, arguments.folder / "corpora", tokenizer=tokenizer)
    arguments.vocab_size = tokenizer.vocab_size
    write_run(arguments.folder / "run.yaml", num_samples)
    zindex.build(arguments.folder / "run.yaml")

    quickstart.say(2, f"Train {arguments.steps} steps on one rank, without interruption")
    if launch("unbroken", 1, arguments):
        sys.exit((arguments.folder / "unbroken" / "errors.txt").read_text())

    die_at = arguments.steps // 2 + 2
    quickstart.say(3, f"Train on two ranks, and kill the job (SIGKILL) after step {die_at}")
    code = launch("broken", 2, arguments, die_at)
    state = torch.load(arguments.folder / "broken" / "checkpoint.pt")["loader"]
    print(f"   torchrun ended with code {code}; its last checkpoint holds {json.dumps(state)}")

    quickstart.say(4, "Resume from its checkpoint on one rank")
    if launch("broken", 1, arguments):
        sys.exit((arguments.folder / "broken" / "errors.txt").read_text())

    quickstart.say(5, "Compare the samples that both trained on, by digests of their tokens")
    unbroken = read_samples(arguments.folder / "unbroken")
    broken = read_samples(arguments.folder / "broken")
    print(f"   {len(unbroken)} samples without interruption, {len(broken)} with one")
    is_same = unbroken == broken and sorted(broken) == list(range(num_samples))
    print(f"same token stream: {is_same} ({time.monotonic() - start:.0f} s in all)")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
