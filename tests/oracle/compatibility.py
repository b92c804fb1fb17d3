"""Which of Megatron Core's datasets ours equal, for each version: the table of the guide.

    python -m tests.oracle.compatibility VERSION[=FOLDER] ... [--cases N | --slow] [--write]

The tests of this folder are run with each version in place of the installed one: a release, which
pip installs into a temporary folder, or a folder with a ``megatron`` package, such as a checkout of
Megatron-LM. Releases lack ``megatron.training``, with SFT and fill-in-the-middle. A failure must be
in `DIFFERENCES`, by its test and its message, with the reason; the exit status is 1 otherwise.
``--write`` records the outcome and writes the table into the guide; ``--cases N`` runs only the
first N cases of each test.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("compatibility.json")
GUIDE = ROOT / "zindex" / "megatron" / "README.md"
START, END = "<!-- table of compatibility -->", "<!-- end of the table -->"
#: Variable of the environment: Megatron's compiled helpers, for a checkout without them.
HELPERS = "ZINDEX_TEST_HELPERS_CPP"
#: Variable of the environment: a checkout with fill-in-the-middle.
CHECKOUT = "MEGATRON_CHECKOUT"

#: Rows of the table -> the tests that they count.
AREAS: Mapping[str, Sequence[str]] = {
    "`.bin/.idx` pairs: bytes, items, merges": ("test_indexed_dataset.py::*", "test_merge.py::*"),
    "GPT datasets and mock data: indices and items": (
        "test_gpt_dataset.py::*",
        "test_sentence_mapping.py::test_sample_indices*",
    ),
    "builder: splits, sizes, blends": (
        "test_blended_dataset.py::*",
        "test_blend_build.py::*",
        "test_blend_kernels.py::*",
        "test_sentence_mapping.py::test_blends*",
    ),
    "BERT and T5: mappings and items": (
        "test_masked_datasets.py::*",
        "test_sentence_mapping.py::*",
    ),
    "SFT": ("test_training_datasets.py::test_conversations*",),
    "multimodal: mock samples, pairs with modes": ("test_multimodal_dataset.py::*",),
    "records of varlen datasets": ("test_training_datasets.py::test_records*",),
    "fill in the middle, with draws in sequence": (
        "test_training_datasets.py::test_middles*",
        "test_fim_dataset.py::*",
    ),
    "subclasses that override steps": ("test_overrides.py::*",),
    "`.npy` caches: read, converted, written": (
        "test_megatron_caches.py::*",
        "test_export_cache.py::*",
    ),
    "tokenizers and `preprocess_data`": (
        "test_preprocess_data.py::*",
        "test_text_tokenizers.py::*",
    ),
}
#: Tests that compare no data, and are not run.
NO_COMPARISONS = ("test_compatibility.py", "test_names.py")


class Difference(NamedTuple):
    """Tests that fail on some versions, what their messages contain, and why."""

    versions: str
    test: str
    message: str
    reason: str


#: What differs, by the prefix of the version; messages are regular expressions.
DIFFERENCES: Sequence[Difference] = (
    Difference(
        "0.14 0.15",
        "test_*.py::test_mock*",
        r"'tokens', tensor\(\[[^]]*\]\), tensor\(\[[^]]*\d{4}"
        "|vocabulary 50 .*'(tokens|twice)', tensor",
        "mock documents before 0.16 have ids beyond the vocabulary",
    ),
    Difference(
        "0. main",
        "test_training_datasets.py::test_conversations_with_other_padding*--1]",
        r"pad -1 \d+', 'tokens', tensor",
        "padding of conversations with a negative id; ours pads inputs with the end of document, "
        "as no embedding has a negative id",
    ),
    Difference(
        "0. main",
        "test_training_datasets.py::test_conversations_with_other_padding*-98]",
        r"pad 98 \d+', 'loss_mask', tensor",
        "padding of conversations with the end of document; the loss of ours leaves out padding, "
        "not the ends of conversations",
    ),
    Difference(
        "0.16",
        "test_training_datasets.py::test_middles*",
        r"\('\d+ \d+ with a split token', 'tokens'",
        "fill in the middle of 0.16 cuts a text that contains its special tokens; as in main, ours "
        "removes them",
    ),
    Difference(
        "0.14 0.15",
        "test_masked_datasets.py::test_items_are_megatrons*",
        r"no attribute 'pad'|:\n( \[\d+\]: 0 \(ACTUAL\), \d+ \(DESIRED\)\n)+Max",
        "padding of BERT and T5 before 0.16 has the id of the tokenizer, which must have one; as "
        "since then, ours has 0, and padding in the text is masked, too",
    ),
    Difference(
        "main",
        "test_text_tokenizers.py::test_without_files?null?",
        "Tokenizer path must be specified",
        "the tokenizer without a file is called `null-text`",
    ),
)


def find_area(test: str) -> str | None:
    """Return the row that counts a test: ``test_file.py::test_name[case]``."""
    for area, patterns in AREAS.items():
        if any(fnmatch(test, pattern) for pattern in patterns):
            return area
    return None


def find_reason(version: str, test: str, message: str) -> str | None:
    """Return why a test fails on a version with a message, if that is known."""
    for item in DIFFERENCES:
        is_listed = version.startswith(tuple(item.versions.split())) and fnmatch(test, item.test)
        if is_listed and re.search(item.message, message):
            return item.reason
    return None


class Outcomes:
    """The pytest plugin: runs the first cases of each test, and notes their outcomes."""

    def __init__(self, num_cases: int | None) -> None:
        self.num_cases = num_cases
        self.passed: list[str] = []
        self.failed: dict[str, str] = {}

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out the later cases of each test."""
        if self.num_cases is None:
            return
        counts: Counter[str] = Counter()
        kept = []
        for item in items:
            name = item.nodeid.partition("[")[0]
            counts[name] += 1
            if counts[name] <= self.num_cases:
                kept.append(item)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of a test."""
        path, *place = report.nodeid.partition("::")
        name = "".join([Path(path).name, *place])
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed[name] = str(crash.message if crash else report.longrepr)
        elif report.passed and report.when == "call":
            self.passed.append(name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self.failed[Path(report.nodeid).name] = str(report.longrepr)[-300:]


def run_inside(output: str, num_cases: int | None, options: Sequence[str]) -> None:
    """Run the tests in this process, and write their outcomes as JSON."""
    outcomes = Outcomes(num_cases)
    arguments = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    # Failures are named with their messages, or are known differences.
    arguments += ["--tb=no", "-rN"]
    # Warnings of other versions.
    arguments += ["-W", "ignore:Could not determine rank", "-W", "ignore:.*pad token"]
    folder = Path(__file__).parent
    arguments += [f"--ignore={folder / name}" for name in NO_COMPARISONS]
    pytest.main([*arguments, str(folder), *options], plugins=[outcomes])
    found = {"passed": outcomes.passed, "failed": outcomes.failed}
    Path(output).write_text(json.dumps(found))


@contextmanager
def find_megatron(source: str, folder: Path) -> Iterator[dict[str, str]]:
    """Give the variables of the environment with which a version is imported."""
    _, _, place = source.rpartition("=")
    if "=" not in source:
        place = str(folder / source)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        subprocess.run([*command, place, f"megatron-core=={source}"], check=True)
    variables = {"PYTHONPATH": os.pathsep.join([os.path.abspath(place), str(ROOT)])}
    trained = Path(place, "megatron", "training", "datasets", "fim_dataset.py")
    variables[CHECKOUT] = os.path.abspath(place) if trained.is_file() else ""
    datasets = Path(place, "megatron", "core", "datasets")
    if not list(datasets.glob("helpers_cpp*.so")):
        variables[HELPERS] = str(compile_helpers(datasets / "helpers.cpp", folder))
    yield variables


def compile_helpers(source: Path, folder: Path) -> Path:
    """Compile Megatron's helpers, which a checkout has as C++ only."""
    import sysconfig

    import torch

    headers = [Path(torch.__file__).parent / "include", Path(sysconfig.get_path("include"))]
    target = folder / "helpers_cpp.so"
    options = ["-O3", "-shared", "-std=c++17", "-fPIC", *(f"-I{path}" for path in headers)]
    subprocess.run(["c++", *options, str(source), "-o", str(target)], check=True)
    return target


def compare(source: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the outcomes of all tests on one version."""
    with tempfile.TemporaryDirectory() as folder, find_megatron(source, Path(folder)) as variables:
        output = Path(folder, "outcomes.json")
        command = [sys.executable, "-m", "tests.oracle.compatibility", "--inside", str(output)]
        command += ["--cases", str(options.cases)] if options.cases else []
        command += ["--slow"] if options.slow else []
        subprocess.run([*command, "-"], env=os.environ | variables, cwd=ROOT, check=True)
        found: dict[str, Any] = json.loads(output.read_text())
    return found


def summarize(version: str, found: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the cells of a version, and the problems: failures that are not named."""
    cells: dict[str, Any] = {area: {"equal": 0, "differences": {}} for area in AREAS}
    problems = []
    for test in found["passed"]:
        area = find_area(test)
        if area is not None:
            cells[area]["equal"] += 1
    for test, message in found["failed"].items():
        area, reason = find_area(test), find_reason(version, test, message)
        if area is None or reason is None:
            problems.append(f"{version}: {test}: {message[:300]}")
        else:
            counts = cells[area]["differences"]
            counts[reason] = counts.get(reason, 0) + 1
    return cells, problems


def render(record: Mapping[str, Any]) -> str:
    """Return the table of all versions as Markdown, with the reasons below it."""
    reasons: list[str] = []

    def cell(found: Mapping[str, Any]) -> str:
        text = f"{found['equal']:,} equal" if found["equal"] else ""
        if not found["equal"] and not found["differences"]:
            return "not there"
        for reason, count in found["differences"].items():
            if reason not in reasons:
                reasons.append(reason)
            text += f"{', ' if text else ''}{count:,} differ ({reasons.index(reason) + 1})"
        return text

    lines = [f"| | {' | '.join(record)} |", f"|---|{'---|' * len(record)}"]
    for area in AREAS:
        found = " | ".join(cell(cells[area]) for cells in record.values())
        lines += [f"| {area} | {found} |"]
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, start=1)]
    return "\n".join([*lines, "", *notes]).rstrip()


def write(record: Mapping[str, Any]) -> None:
    """Record the outcome, and write the table into the guide."""
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    text = GUIDE.read_text("utf-8")
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    GUIDE.write_text(f"{before}{START}\n{render(record)}\n{END}{after}", "utf-8")


def main(arguments: Sequence[str]) -> int:
    """Compare with some versions; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("versions", nargs="+", help="a release, or NAME=FOLDER")
    parser.add_argument("--slow", action="store_true", help="run all cases")
    parser.add_argument("--cases", type=int, help="run at most this many cases of each test")
    parser.add_argument("--write", action="store_true", help="record the outcome")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        run_inside(options.inside, options.cases, ["-m", ""] if options.slow else [])
        return 0
    record, problems = {}, []
    for source in options.versions:
        version = source.partition("=")[0]
        record[version], found = summarize(version, compare(source, options))
        problems += found
        print(version, json.dumps(record[version], indent=1))
    print(*problems, sep="\n")
    if options.write and not problems:
        write(record)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
