"""Two nodes of two ranks train, while their idle processors build the blend that they read.

    python examples/04_alongside.py

Both nodes are this machine: two ``torchrun`` processes with two ranks each, as on two real nodes.
Every rank enters ``zindex.cluster.alongside``; rank 0 starts the build immediately, and all ranks
create their model meanwhile. Once the blend is built, they train. The figure shows which rank did
what, and when.
"""

import argparse
import json
import os
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
from zindex.cluster import alongside

quickstart = import_module("01_quickstart")  # in the same folder

NUM_NODES, RANKS_PER_NODE = 2, 2
SEQUENCE_LENGTH, MICRO_BATCH_SIZE = 128, 4
WEIGHTS = {"code": 0.5, "docstrings": 0.3, "reference": 0.2}


def train(arguments: argparse.Namespace) -> None:
    """Build and train in one rank of a job."""
    run = arguments.folder / "run.yaml"
    with alongside(arguments.folder / "cluster", threads=1) as cluster:
        building = cluster.begin_build(run)
        with building.span("make-model"):
            distributed.init_process_group("gloo")
            torch.manual_seed(1)
            torch.set_num_threads(1)
            model = DistributedDataParallel(quickstart.TinyGPT(arguments.vocab_size))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        building.wait()
        with building.span("open-loader"):
            batches = zindex.loader(run, micro_batch_size=MICRO_BATCH_SIZE)
        with building.span("train"):
            for batch in batches:
                loss = model(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                distributed.all_reduce(loss)
        if cluster.job.rank == 0:
            building.timeline.write(arguments.folder / "timeline.json")
            print(f"   the last loss of {batches.consumed_samples} samples: {loss.item() / 4:.3f}")
        del model  # it would end the threads of gloo with the GIL held, and they need it to end
        distributed.destroy_process_group()


def launch(arguments: argparse.Namespace) -> list[int]:
    """Run this file on both nodes under torchrun, and return the exit codes."""
    nodes = []
    for node in range(NUM_NODES):
        command = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={NUM_NODES}"),
            *(f"--nproc-per-node={RANKS_PER_NODE}", f"--node-rank={node}"),
            *("--master-addr=127.0.0.1", f"--master-port={arguments.port}"),
            *(__file__, f"--folder={arguments.folder}", f"--vocab-size={arguments.vocab_size}"),
            "--rank",
        ]
        with open(arguments.folder / f"node-{node}.txt", "w") as errors:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            nodes.append(subprocess.Popen(command, env=environment, stderr=errors))
    return [node.wait() for node in nodes]


def draw(timeline: Path, picture: Path) -> None:
    """Draw the spans of a timeline: a row for rank 0 and each thread of a worker, named stages."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    events = json.loads(timeline.read_text())["traceEvents"]
    spans = sorted((each for each in events if each["ph"] == "X"), key=lambda each: each["ts"])
    (job,) = {event["pid"] for event in spans if event["name"] == "make-model"}
    rows = name_rows(spans, job)
    figure, axes = plt.subplots(figsize=(11, 1.2 + 0.7 * len(rows)), layout="constrained")
    end = max(event["ts"] + event["dur"] for event in spans) / 1e6
    colours: dict[str, Any] = {}
    free = dict.fromkeys(rows.values(), 0.0)  # where the next name of each row fits
    places = {name: place for place, name in enumerate(free)}
    for event in spans:
        # The job's own steps by name, tasks by kind.
        stage = event["name" if event["pid"] == job else "cat"]
        colour = colours.setdefault(stage, plt.get_cmap("tab10")(len(colours) % 10))
        row, start = rows[event["pid"], event["tid"]], event["ts"] / 1e6
        length = max(event["dur"] / 1e6, end / 500)
        axes.barh(places[row], length, left=start, color=colour, height=0.4)
        room = end * (len(stage) + 2) / 180
        if length >= room:
            middle = start + length / 2, places[row]
            axes.annotate(stage, middle, fontsize=7, color="white", ha="center", va="center")
        elif start >= free[row]:
            axes.annotate(stage, (start, places[row] - 0.25), fontsize=7, color=colour, va="bottom")
            free[row] = start + room
    axes.set_yticks(range(len(free)), list(free), fontsize=8)
    axes.set(xlabel="seconds since the build began", xlim=(0, 1.05 * end))
    axes.set_ylim(len(free) - 0.5, -0.7)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=150)


def name_rows(spans: list[dict[str, Any]], job: int) -> dict[tuple[int, int], str]:
    """Return the row of each thread: threads of rank 0 share one, except for those that build."""
    training = {event["tid"] for event in spans if event["name"] == "make-model"}
    rows, threads = dict[tuple[int, int], str](), dict[int, list[int]]()
    for pid, tid in sorted({(event["pid"], event["tid"]) for event in spans}):
        if pid == job:
            rows[pid, tid] = "rank 0" if tid in training else "rank 0, its build"
            continue
        own = threads.setdefault(pid, [])
        own.append(tid)
        rows[pid, tid] = f"worker {len(threads)}" + f", thread {len(own)}" * (len(own) > 1)
    order = sorted(rows.items(), key=lambda pair: pair[1])
    return dict(order)


def report(timeline: Path) -> dict[str, Any]:
    """Describe what ran while rank 0 created its model."""
    events = json.loads(timeline.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    (model,) = [event for event in spans if event["name"] == "make-model"]
    end = model["ts"] + model["dur"]
    meanwhile = [event for event in spans if event["pid"] != model["pid"] and event["ts"] < end]
    print(
        f"   rank 0 created its model in {model['dur'] / 1e6:.1f} s; {len(meanwhile)} of "
        f"{len(spans)} build steps started meanwhile, on the workers"
    )
    return {"meanwhile": len(meanwhile)}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("alongside"), help="where to write")
    parser.add_argument(
        "--files", type=int, default=100, help="documents per corpus (default: 100)"
    )
    parser.add_argument("--steps", type=int, default=10, help="steps to train (default: 10)")
    parser.add_argument("--vocab-size", type=int, default=1024, help="tokens (default: 1024)")
    parser.add_argument("--port", type=int, default=29577, help="of torchrun (default: 29577)")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    if arguments.rank:
        train(arguments)
        return 0
    arguments.folder = quickstart.prepare_folder(arguments.folder)
    start = time.monotonic()

    quickstart.say(1, "Tokenise text that Python brings along, and convert it")
    names, tokenizer = quickstart.write_corpora(
        arguments.folder / "corpora", arguments.files, arguments.vocab_size
    )
    prefixes = [arguments.folder / "corpora" / name for name in names]
    zindex.convert(prefixes, arguments.folder / "corpora", tokenizer=tokenizer)
    arguments.vocab_size = tokenizer.vocab_size
    num_samples = arguments.steps * MICRO_BATCH_SIZE * NUM_NODES * RANKS_PER_NODE
    run = {
        "sequence_length": SEQUENCE_LENGTH,
        "split": "100,0,0",
        "index": "index",
        "order": "scalable",
        "samples": {"train": num_samples},
        "datasets": [
            {"path": f"corpora/{name}.zarr", "weight": weight} for name, weight in WEIGHTS.items()
        ],
    }
    (arguments.folder / "run.yaml").write_text(json.dumps(run, indent=2))

    quickstart.say(2, f"Start {NUM_NODES} nodes of {RANKS_PER_NODE} ranks, with a cluster")
    codes = launch(arguments)
    if any(codes):
        sys.exit("".join((arguments.folder / f"node-{i}.txt").read_text() for i in range(2)))

    quickstart.say(3, "Show which rank did what, and when")
    report(arguments.folder / "timeline.json")
    try:
        draw(arguments.folder / "timeline.json", arguments.folder / "timeline.png")
        print(f"   plot: {arguments.folder / 'timeline.png'}")
    except ImportError as error:
        print(f"   no plot: {error}")
    print(f"done in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
