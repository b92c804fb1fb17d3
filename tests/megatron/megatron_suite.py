"""Runs Megatron Core's own unit tests of its datasets against zindex.

    python -m tests.megatron.megatron_suite CHECKOUT [pytest options]

CHECKOUT is a checkout of NVIDIA/Megatron-LM, whose ``tests/unit_tests/data`` and
``tests/unit_tests/test_sequence_packing.py`` are run as they are. Their
``import megatron.core.datasets...`` is answered by ``zindex.megatron.install()``, before anything
of Megatron is imported; all that is not datasets stays Megatron's. Nothing is downloaded, and
nothing in the checkout is changed. Options go to pytest: ``-k test_builder``, ``-x``.

One process is enough, with or without CUDA. Without it, ``torch.cuda``'s and NCCL's part in
setting up a process group is played by the CPU and Gloo; no stand-in touches a dataset.

The samplers of ``megatron.training.datasets.data_samplers`` are replaced by those of
``zindex.loading.megatron_samplers``, so that the tests of samplers say something of ours.

The last lines tell what passed, failed and was skipped in each file, and what was left out and
why. The exit status is 0 if all that ran passed.
"""

import importlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import typing
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("tests", "unit_tests", "data")
#: Tests of datasets that are elsewhere, where a checkout has them.
OTHERS = (FOLDER.parent / "test_sequence_packing.py",)

_TOOLS = "tests a script of Megatron's tools/, which runs in a process of its own"
_BATCHES = "tests how Megatron's training loop deals batches to ranks on CUDA"
_CUDA_RANKS = "makes tensors on CUDA, on 8 ranks"
_EXAMPLES = "tests examples/multimodal, which reads with Energon and not with these datasets"
_CUT = "wants an EOFError of a file that was cut; here that is a VerificationError"
_DRAWS = "holds for some draws: a middle of few tokens is cut off, and the draws are keyed here"
_OPENED_BY = "wants local files read by the open() of another package, where that is enabled"
_OWN_DESCRIPTOR = "wants a forked child to share a descriptor; here it opens its own"
_PATCHES = "puts a list in place of IndexedDataset, in a module that does not open it here"
_OPENED = "counts how often a .bin is opened; here it is once more, to check its size"
_REMOVED = "tests what Megatron removed before 2025"
_RETRIES = "tests how Megatron asks msc:// again; here only that client's own retries count"
_ROWS = "wants rows of different lengths, where test_mock_sft_padding.py wants rows of one"
_PLANS = "tests a module of Megatron's own that zindex does not answer for"

#: Files or tests that say nothing of zindex's datasets, or that ask for inner workings of
#: Megatron's, and why each of them.
LEFT_OUT: Mapping[str, str] = {
    "test_blendable_dataset.py": _REMOVED,
    "test_builder_mock_gpt_dataset.py": _REMOVED,
    "test_cp_utils.py": _BATCHES,
    "test_data_schedule_process_groups.py": _BATCHES,
    "test_explicit_assistant_loss.py": _EXAMPLES,
    "test_file_bin_reader.py::test_multi_storage_client_enabled_*": _OPENED_BY,
    "test_file_bin_reader.py::test_opens_once_across_reads": _OPENED,
    "test_file_bin_reader.py::test_reads_after_fork_share_*": _OWN_DESCRIPTOR,
    "test_file_bin_reader.py::test_retry_reopens_descriptor": _OPENED,
    "test_file_bin_reader.py::test_truncated_file_raises_*": _CUT,
    "test_fim_dataset.py::test_fim_gpt_dataset?None-0.0?": _DRAWS,
    "test_get_batch.py": _BATCHES,
    "test_hybrid_pipeline_inputs.py": _BATCHES,
    "test_mock_gpt_dataset.py": _REMOVED,
    "test_mock_qwen35vl_dataset.py": _EXAMPLES,
    "test_mock_dataset_lengths.py::test_mock_verification_*": _PATCHES,
    "test_mock_dataset_lengths.py::test_shared_sft_path_*-thd?": _ROWS,
    "test_multimodal_dataloader_*.py": _EXAMPLES,
    "test_multimodal_knapsacks.py": _EXAMPLES,
    "test_multimodal_task_encoder.py": _EXAMPLES,
    "test_object_storage_utils.py::test_an_unusable_*": "refuses gs://, which can be read here",
    "test_object_storage_utils.py::test_a*": _RETRIES,
    "test_object_storage_utils.py::test_each_wait_*": _RETRIES,
    "test_object_storage_utils.py::test_the_last_attempt_*": _RETRIES,
    "test_packed_batch_padding.py": _BATCHES,
    "test_packed_schedule_*.py": _BATCHES,
    "test_prepare_cache.py": "tests a script of tools/ and the .npy files of Megatron's cache",
    "test_preprocess_data_fast.py": _TOOLS,
    "test_preprocess_data_spark.py": _TOOLS,
    "test_preprocess_mmdata.py": _TOOLS,
    "test_preprocessing_worker_failure.py": _TOOLS,
    "test_pretrain_gpt_dataset_config.py": "tests Megatron's command line",
    "test_qwen3vl_dataset.py": _EXAMPLES,
    "test_sequence_packing_api.py": _PLANS,
    "test_sequence_packing.py::test_get_batch_*": _CUDA_RANKS,
    "test_sequence_packing.py::test_wrap_dataloader*": _CUDA_RANKS,
    "test_sequential_input_count.py": _TOOLS,
    "test_sft_dataset.py": "tests megatron.core.datasets.sft_dataset, which no release has",
    "test_single_sentence_split.py": _TOOLS,
    "test_sparse_attention_padding_mask.py": _BATCHES,
    "test_tp_cp_.py": _BATCHES,
}

#: What some tests need beside Megatron: modules, or paths that begin with a slash.
NEEDS: Mapping[str, Sequence[str]] = {
    "test_bin_reader.py": ("nltk", "requests"),
    "test_fim_dataset.py": ("transformers", "/opt/data/tokenizers/huggingface"),
    "test_preprocess_data.py": ("nltk", "requests", "/opt/data/tokenizers/megatron"),
}

#: Modules that some tests look for in ours, to patch what they hold; nothing of ours needs them.
PATCHED: Mapping[str, Sequence[str]] = {"zindex.datasets.indexed_dataset": ("time",)}

_SAMPLERS = "megatron.training.datasets.data_samplers"
_DOWNLOADS = "tests.test_utils.python_scripts.download_unit_tests_dataset"


def find_reason(name: str) -> str | None:
    """Return why a file or a test is left out, or None if it is run.

    Parameters
    ----------
    name
        ``test_file.py``, or ``test_file.py::test_name``.
    """
    for pattern, reason in LEFT_OUT.items():
        if fnmatch(name, pattern):
            return reason
    for pattern, needs in NEEDS.items():
        missing = [need for need in needs if not _is_there(need)] if fnmatch(name, pattern) else []
        if missing:
            return f"needs {' and '.join(missing)}"
    return None


def _is_there(need: str) -> bool:
    if need.startswith("/"):
        return os.path.exists(need)
    return importlib.util.find_spec(need) is not None


class Suite:
    """The pytest plugin: leaves out what has a reason, and counts the rest by file."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.reasons: dict[str, str] = {}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the files that have a reason."""
        name = collection_path.name
        reason = find_reason(name) if name.startswith("test_") and name.endswith(".py") else None
        if reason is None:
            return None
        self.reasons[name] = reason
        return True

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out the tests that have a reason."""
        reasons = [find_reason(f"{item.path.name}::{item.name}") for item in items]
        out = [item for item, reason in zip(items, reasons, strict=True) if reason]
        for item, reason in zip(items, reasons, strict=True):
            if reason:
                self.reasons[f"{item.path.name}::{item.name}"] = reason
        items[:] = [item for item, reason in zip(items, reasons, strict=True) if not reason]
        if out:
            config.hook.pytest_deselected(items=out)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that cannot be imported as a failure."""
        if report.failed:
            self.counts[Path(report.nodeid).name]["not importable"] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test: once, unless its setup or teardown fails as well."""
        if report.when == "call" or report.outcome != "passed":
            name = Path(report.nodeid.partition("::")[0]).name
            self.counts[name][report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Tell what came of each file, and whose the datasets were."""
        terminalreporter.section("Megatron's tests on zindex")
        for name, counts in sorted(self.counts.items()):
            told = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
            terminalreporter.line(f"{name}: {told}")
        for name, reason in sorted(self.reasons.items()):
            terminalreporter.line(f"{name}: left out: {reason}")
        ours, theirs = find_owners()
        terminalreporter.line(f"answered by zindex: {', '.join(ours) or 'none'}")
        terminalreporter.line(f"Megatron's own: {', '.join(theirs) or 'none'}")


def find_owners() -> tuple[list[str], list[str]]:
    """Return the imported modules of Megatron's datasets that are zindex's, and the others."""
    start = "megatron.core.datasets."
    ours, theirs = [], []
    for name, module in sorted(sys.modules.items()):
        if name.startswith((start, "megatron.training.datasets.")):
            is_ours = module.__name__.startswith("zindex.")
            (ours if is_ours else theirs).append(name.removeprefix(start))
    return ours, theirs


class _Anything:
    """Has every attribute, and as a decorator returns the function."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not settings else self

    def __getitem__(self, key: Any) -> Any:
        return self


class _Triton(ModuleType):
    """A module of Triton, whose kernels are never run."""

    __path__: list[str] = []  # noqa: RUF012
    __version__ = "3.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


def import_megatron_core() -> None:
    """Import Megatron Core, with a stand-in for Triton, which is for GPUs, if that is missing."""
    try:
        importlib.import_module("megatron.core")
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        import torch

        torch.compile(lambda value: value)  # imports what would take the stand-in for Triton
        for name in ("triton", "triton.language", "triton.language.extra", "triton.testing"):
            sys.modules[name] = _Triton(name)
        importlib.import_module("megatron.core")


def stand_in_for_cuda() -> None:
    """Let process groups be set up without CUDA: by Gloo, on one CPU."""
    import torch

    start_group = torch.distributed.init_process_group
    wait = torch.distributed.barrier

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        start_group("gloo", *args, **kwargs)

    def barrier(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_ids", None)
        return wait(*args, **kwargs)

    stand_ins: dict[str, Any] = {
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "synchronize": lambda *args: None,
    }
    for name, value in stand_ins.items():
        setattr(torch.cuda, name, value)
    torch.distributed.init_process_group = init_process_group
    torch.distributed.barrier = barrier


def stand_in_for_transformer_engine() -> None:
    """Have Megatron's conftest, which asks for the engine's version, told a very old one."""
    from packaging.version import Version

    utils = importlib.import_module("megatron.core.utils")
    if utils.get_te_version() is None:
        utils.get_te_version = lambda: Version("0")  # type: ignore[attr-defined]


def replace_samplers() -> None:
    """Put our samplers in place of Megatron's where its training package can be imported."""
    try:
        theirs = importlib.import_module(_SAMPLERS)
    except ImportError as error:
        print(f"samplers stay untested: {_SAMPLERS} cannot be imported: {error}")
        return
    ours = importlib.import_module("zindex.loading.megatron_samplers")
    for name in [name for name in vars(ours) if name in vars(theirs)]:
        if getattr(getattr(ours, name), "__module__", None) == ours.__name__:
            setattr(theirs, name, getattr(ours, name))


def offer_patched_modules() -> None:
    """Give our modules the names of others that Megatron's tests patch through them."""
    for name, others in PATCHED.items():
        module = importlib.import_module(name)
        for other in others:
            if not hasattr(module, other):
                setattr(module, other, importlib.import_module(other))


def refuse_downloads() -> None:
    """Have Megatron's conftest find no data rather than download them; it goes on then."""

    def download_and_extract_asset(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("this suite downloads nothing")

    module = ModuleType(_DOWNLOADS)
    module.download_and_extract_asset = download_and_extract_asset  # type: ignore[attr-defined]
    sys.modules[_DOWNLOADS] = module


def run_inside(checkout: Path, options: Sequence[str]) -> int:
    """Run the tests in this process, which has imported nothing of Megatron yet."""
    import torch

    from zindex.megatron import install

    # Megatron's package `tests` must be found, and not ours; ours is imported from no other path.
    sys.path[:] = [str(checkout), *(path for path in sys.path if Path(path).resolve() != ROOT)]
    install()
    refuse_downloads()
    if not hasattr(typing, "override"):  # Megatron's training package needs Python 3.12
        typing.override = lambda function: function  # type: ignore[attr-defined]
    import_megatron_core()
    if not torch.cuda.is_available():
        stand_in_for_cuda()
    stand_in_for_transformer_engine()
    replace_samplers()
    offer_patched_modules()
    suite = Suite()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [f"--basetemp={folder}/base", "-p", "no:cacheprovider", "-W", "ignore"]
        arguments.append("--continue-on-collection-errors")
        paths = [str(path) for path in (FOLDER, *OTHERS) if path.exists()]
        status = pytest.main([*arguments, *paths, *options], plugins=[suite])
    has_passed = any(counts["passed"] for counts in suite.counts.values())
    return int(status) or (0 if has_passed else 1)


def main(arguments: Sequence[str]) -> int:
    """Run the tests in a process of its own, in the checkout, and return its status."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    checkout = Path(arguments[0]).resolve()
    if not (checkout / FOLDER).is_dir():
        print(f"CHECKOUT must be one of Megatron-LM, which has {FOLDER}; got {checkout}")
        return 2
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    settings = {"PYTHONPATH": path, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    settings |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, __file__, "--inside", str(checkout), *arguments[1:]]
    return subprocess.run(command, cwd=checkout, env=os.environ | settings).returncode


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(run_inside(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main(sys.argv[1:]))
