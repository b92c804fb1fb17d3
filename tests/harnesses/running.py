"""The command line of harnesses: seeded trials, each with a time limit, and their figures."""

import argparse
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

Trial = Callable[[random.Random], str]


class Hang(BaseException):
    """A trial lasted too long; no handler of errors catches it."""


@contextmanager
def time_limit(seconds: float) -> Any:
    """Raise `Hang` in the main thread after some seconds."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_trials(trial: Trial, num_trials: int, seed: int, *, seconds: float = 100) -> Counter[str]:
    """Run trials; print the seed of each that fails, and return how many had which outcome.

    The seed of trial k is ``seed + k``, so that ``--trials 1 --seed S`` repeats one.
    """
    outcomes: Counter[str] = Counter()
    for number in range(seed, seed + num_trials):
        try:
            with time_limit(seconds):
                outcome = trial(random.Random(number))
        except Hang:
            outcome = "hangs"
            print(f"seed {number} hangs", file=sys.stderr)
        except Exception:
            outcome = "wrong"
            print(f"seed {number} is wrong", file=sys.stderr)
            traceback.print_exc()
        outcomes[outcome] += 1
    return outcomes


def main(trial: Trial) -> int:
    """Run trials as the command line says, and print one row for the table of results."""
    return report(partial(run_trials, trial))


def report(run: Callable[[int, int], Counter[str]]) -> int:
    """Do the same with a call that runs so many trials of a seed and returns their outcomes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    start = time.perf_counter()
    outcomes = run(given.trials, given.seed)
    seconds = time.perf_counter() - start
    others = ", ".join(f"{name}: {count:,}" for name, count in sorted(outcomes.items()))
    print(f"trials {given.trials:,}, seed {given.seed}, {seconds:.0f} s; {others}")
    return int(bool(outcomes["wrong"] or outcomes["hangs"]))
