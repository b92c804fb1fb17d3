"""Benchmarks in forks of a process that has imported the large libraries already.

Importing torch, Megatron Core and Dask takes several seconds, more than a short form needs.
"""

import multiprocessing
import os
import runpy
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [__name__, "distributed", "megatron.core.datasets.gpt_dataset", "zindex.datasets.gpt_dataset"]
)


def run_module(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], output: Path
) -> str:
    """Run a module as ``python -m`` does, and return what it prints; it must exit with 0."""
    process = _SERVER.Process(target=_run, args=(module, arguments, environment, output))
    process.start()
    process.join()
    assert process.exitcode == 0, f"{module} ended with {process.exitcode}"
    return output.read_text()


def _run(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], output: Path
) -> None:
    os.environ |= environment
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), sys.stdout.fileno())
    sys.argv = [module, *arguments]
    warnings.simplefilter("ignore")
    runpy.run_module(module, run_name="__main__", alter_sys=True)
