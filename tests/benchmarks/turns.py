"""Contenders that take turns, each run in a process of its own that prints its figures."""

import argparse
import json
import statistics
import subprocess
import sys


def make_parser(description: str, *, num_worker_arguments: int) -> argparse.ArgumentParser:
    """Return a parser of what all of these benchmarks take.

    Parameters
    ----------
    description
        The benchmark's docstring.
    num_worker_arguments
        Arguments of a run in a process of its own, which ``--worker`` takes.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="where to work; a temporary folder by default")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--worker", nargs=num_worker_arguments, help=argparse.SUPPRESS)
    return parser


def take_turns(
    module: str, contenders: list[str] | tuple[str, ...], num_runs: int, *arguments: object
) -> dict[str, dict[str, float]]:
    """Return the median of each figure of each contender.

    Parameters
    ----------
    module
        What is run, with ``--worker``, the contender and the arguments. The last line that it
        prints is its figures as JSON.
    contenders
        Their names.
    num_runs
        Runs of each.
    arguments
        The same for all.
    """
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(num_runs):
        for name in contenders:
            command = [sys.executable, "-m", module, "--worker", name, *map(str, arguments)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    return {
        name: {key: statistics.median(run[key] for run in each) for key in each[0]}
        for name, each in runs.items()
    }
