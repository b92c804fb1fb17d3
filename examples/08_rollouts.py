"""Train on rollouts while they are generated, kill the trainer, and replay the run exactly.

    python examples/08_rollouts.py

Two workers let a small policy answer sums such as 3 + 4, score groups of answers, and append them
to one store. A trainer (GRPO) follows the store: it takes the newest groups, at most one policy
version old, and publishes a new policy after every round. It is killed and resumes from its last
checkpoint. At the end a second trainer replays the run from its start: it gets the same records in
the same order, and its weights are equal, although the store was compacted meanwhile.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zindex.growing.eviction import find_unused, remove_unused
from zindex.keyed import (
    GrowingDataset,
    GrowingWriter,
    compact,
    evict,
    growing_loader,
    open_growing,
    release,
)

quickstart = import_module("01_quickstart")  # in the same folder

SEED, NUM_DIGITS, GROUP_SIZE = 1234, 10, 8
BATCH_SIZE, STEPS_PER_ROUND, CHECKPOINT_STEPS = 16, 2, 7
PAUSE = 0.02  # seconds that a worker waits between two generations of records
Batch = dict[str, torch.Tensor]


class Policy(nn.Module):
    """Answers the sum of two digits with its last digit, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(2 * NUM_DIGITS, 32)
        self.answer = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2 * NUM_DIGITS))

    def forward(self, prompts: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities: shape (prompts, 2, digits)."""
        logits: torch.Tensor = self.answer(self.embed(prompts).sum(1)).unflatten(1, (2, NUM_DIGITS))
        return logits.log_softmax(-1)

    def score(self, prompts: torch.Tensor, responses: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of each token of responses: shape (prompts, group, 2)."""
        known = self(prompts)[:, None].expand(-1, responses.shape[1], -1, -1)
        return known.gather(-1, responses[..., None])[..., 0]


def save(path: Path, value: Any) -> None:
    """Save a value so that readers see it whole or not at all."""
    torch.save(value, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def generate(folder: Path, worker: int) -> None:
    """Append groups of answers by the newest policy, until the trainer has finished."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED + worker)
    policy, known = Policy(), None
    with GrowingWriter(folder / "rollouts", max_records=8) as writer:
        while not (folder / "finished").exists():
            if known != (known := (folder / "policy.pt").stat().st_mtime_ns):
                published = torch.load(folder / "policy.pt")
                policy.load_state_dict(published["weights"])
                writer.set_version(published["version"])
            prompts = torch.randint(NUM_DIGITS, (8, 2))
            sums = prompts.sum(1) % NUM_DIGITS
            prompts[:, 1] += NUM_DIGITS
            with torch.no_grad():
                answers = torch.distributions.Categorical(logits=policy(prompts))
                responses = answers.sample((GROUP_SIZE,)).transpose(0, 1)
                scores = policy.score(prompts, responses)
            rewards = (responses == sums[:, None, None]).float().mean(-1)
            for row in range(len(prompts)):
                record = {
                    "prompts": prompts[row],
                    "responses": responses[row],
                    "masks": torch.ones(GROUP_SIZE, 2, dtype=torch.bool),
                    "rewards": rewards[row],
                    "logprobs": scores[row],
                }
                writer.add(record)
            time.sleep(PAUSE)


def find_loss(policy: Policy, batch: Batch) -> torch.Tensor:
    """Return the loss of GRPO: advantages in each group, and clipped ratios of probabilities."""
    rewards = batch["rewards"]
    spread = rewards.std(1, keepdim=True) + 0.1
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / spread)[..., None]
    ratios = (policy.score(batch["prompts"], batch["responses"]) - batch["logprobs"]).exp()
    gains = torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
    return -(gains * batch["masks"]).sum() / batch["masks"].sum()


def train(folder: Path, name: str, num_steps: int) -> None:
    """Train from the last checkpoint of this name, and publish policies."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-2)
    size = BATCH_SIZE * STEPS_PER_ROUND
    rounds = GrowingDataset(
        "grpo", folder / "rollouts", round_size=size, staleness=1, records_per_version=size
    )
    batches = growing_loader(rounds, BATCH_SIZE, rank=0, num_ranks=1)
    checkpoint, step = folder / f"{name}.pt", 0
    if checkpoint.exists():
        found = torch.load(checkpoint)
        step = found["step"]
        policy.load_state_dict(found["policy"])
        optimizer.load_state_dict(found["optimizer"])
        batches.load_state_dict(found["loader"])
    with (folder / f"{name}.jsonl").open("a") as log:
        for batch in batches:
            loss = find_loss(policy, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ages = step // STEPS_PER_ROUND - batch["policy_version"].float()
            step += 1
            facts = {
                "step": step,
                "reward": batch["rewards"].mean().item(),
                "age": ages.mean().item(),
                "records": hashlib.sha256(batch["responses"].numpy().tobytes()).hexdigest()[:12],
            }
            log.write(json.dumps(facts) + "\n")
            log.flush()
            if name == "train" and step % STEPS_PER_ROUND == 0:
                version = step // STEPS_PER_ROUND
                save(folder / "policy.pt", {"version": version, "weights": policy.state_dict()})
            if step % CHECKPOINT_STEPS == 0 or step == num_steps:
                states = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict()}
                save(checkpoint, states | {"loader": batches.state_dict(), "step": step})
            if step == num_steps:
                return


def read_log(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return what a trainer logged; steps after a checkpoint are there twice if it was killed."""
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(work: Any, *arguments: Any) -> Any:
    """Start a process; it inherits the imports of this one."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def train_and_kill(folder: Path, num_steps: int) -> None:
    """Train, kill the trainer two thirds of the way, and train on."""
    trainer = run(train, folder, "train", num_steps)
    while trainer.is_alive() and len(read_log(folder, "train")) < 2 * num_steps // 3:
        time.sleep(0.01)
    os.kill(trainer.pid, signal.SIGKILL)
    trainer.join()
    last, kept = read_log(folder, "train")[-1]["step"], torch.load(folder / "train.pt")
    print(f"   killed after step {last}; the last checkpoint is of step {kept['step']}:")
    print(f"   {kept['loader']}")
    trainer = run(train, folder, "train", num_steps)
    trainer.join()


def report(folder: Path) -> None:
    """Print the rewards of the run, and how old its records were."""
    steps = {item["step"]: item for item in read_log(folder, "train")}
    for step in range(max(1, len(steps) // 6), len(steps) + 1, max(1, len(steps) // 6)):
        facts = steps[step]
        print(f"   step {step:4}  reward {facts['reward']:.2f}  policy age {facts['age']:.2f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("rollouts"), help="where to write")
    parser.add_argument("--steps", type=int, default=60, help="of the trainer (default: 60)")
    parser.add_argument("--workers", type=int, default=2, help="that generate (default: 2)")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    folder = quickstart.prepare_folder(arguments.folder)
    torch.manual_seed(SEED)
    policy = Policy()
    torch.optim.Adam(policy.parameters())  # imports much, which all processes then inherit
    save(folder / "policy.pt", {"version": 0, "weights": policy.state_dict()})

    quickstart.say(1, f"Generate and score with {arguments.workers} workers, which share one store")
    workers = [run(generate, folder, number) for number in range(arguments.workers)]
    while not (folder / "rollouts" / "_zindex" / "log").exists():
        time.sleep(0.01)

    quickstart.say(2, "Train on the newest rollouts, and kill the trainer")
    train_and_kill(folder, arguments.steps)
    (folder / "finished").touch()
    for worker in workers:
        worker.join()
    report(folder)
    store = open_growing(folder / "rollouts")
    print(f"   the store has {store.num_records:,} groups in {store.generation:,} generations")

    quickstart.say(3, "Compact the store, and replay the run from its first step")
    print(f"   generations were moved to {compact(folder / 'rollouts')} Zarr stores")
    trainer = run(train, folder, "replay", arguments.steps)
    trainer.join()
    logs = [read_log(folder, name) for name in ("train", "replay")]
    replayed = {item["step"]: item for item in logs[1]}
    is_equal = all(item == replayed[item["step"]] for item in logs[0])
    kept = [torch.load(folder / f"{name}.pt")["policy"] for name in ("train", "replay")]
    is_equal &= all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])

    quickstart.say(4, "Evict old versions, and remove what no state can reach")
    evict(folder / "rollouts", keep_versions=4)
    release(folder / "rollouts", "train", torch.load(folder / "train.pt")["loader"])
    unused = find_unused(folder / "rollouts", hours=0)
    remove_unused(unused)
    print(f"   {len(unused)} files and stores were removed")

    rewards = [item["reward"] for item in logs[1]]
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    words = "equal" if is_equal else "different"
    print(
        f"\nThe reward rose from {first:.2f} to {last:.2f} in {len(rewards)} steps. The replay had "
        f"{words} records, rewards and weights in all {len(logs[0])} steps of the killed run."
    )
    if not is_equal or last <= first:
        print("Error: the replay must be equal, and the reward must rise; train for more --steps")
        return 1
    return 0


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())
