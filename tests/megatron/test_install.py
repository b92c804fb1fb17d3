"""Megatron's scripts on zindex: the same losses, and no name missing."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.forked import WITHOUT_MEGATRON, run_python
from zindex.datasets.blended_megatron_dataset_config import DEFAULTS
from zindex.errors import ConfigError
from zindex.megatron.install import ALIASES, install

SCRIPT = Path(__file__).with_name("train_gpt.py")
ROOT = Path(__file__).parents[2]

needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed"
)


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in a process of its own, whose imports nobody has touched."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        timeout=200,
    )


@pytest.fixture
def data_path(write_corpus: WriteCorpus) -> list[str]:
    """Two corpora and their weights, as Megatron's command line has them."""
    generator = np.random.default_rng(7)
    found = []
    for weight, name in (("0.3", "a"), ("0.7", "b")):
        lengths = generator.integers(3, 40, 60)
        tokens = generator.integers(0, 60, lengths.sum())
        found += [weight, write_corpus(lengths, name=name, tokens=tokens)]
    return found


@needs_megatron
def test_unmodified_script_trains_to_the_same_losses(data_path: list[str], tmp_path: Path) -> None:
    def train(run: Any, *before: str) -> dict[str, Any]:
        done = run(*before, str(SCRIPT), str(tmp_path / f"cache{len(before)}"), *data_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    theirs = train(run_python, "-W", "ignore")
    ours = train(run, "-m", "zindex.megatron")
    assert theirs.pop("module") == "megatron.core.datasets.blended_dataset"
    assert ours.pop("module") == "zindex.datasets.blended_dataset"
    assert ours == theirs


@needs_megatron
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in ALIASES if name.startswith("megatron.core.")])
def test_no_name_of_megatron_core_is_missing(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip("this version of Megatron Core has no such module")
    theirs = importlib.import_module(name)
    ours = importlib.import_module(ALIASES[name])
    missing = sorted(own_names(theirs) - set(dir(ours)))
    assert not missing


def own_names(module: ModuleType) -> set[str]:
    """Return what a module defines itself: what others import from it."""
    return {
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("__")
    }


@needs_megatron
def test_every_way_to_import_is_redirected() -> None:
    done = run_python(
        "-c",
        WITHOUT_MEGATRON + "import zindex.megatron; zindex.megatron.install()\n"
        "import megatron.core.datasets.gpt_dataset\n"
        "from megatron.core.datasets import indexed_dataset, utils\n"
        "from megatron.core.datasets.utils import Split\n"
        "import zindex.datasets.gpt_dataset as ours\n"
        "import zindex.datasets.utils, importlib\n"
        "assert megatron.core.datasets.gpt_dataset is ours\n"
        "assert indexed_dataset.__name__ == 'zindex.datasets.indexed_dataset'\n"
        "assert utils is zindex.datasets.utils and Split is utils.Split\n"
        "assert ours.__spec__.name == ours.__name__\n"
        "assert importlib.import_module('megatron.core.utils').__name__ == 'megatron.core.utils'\n"
        "zindex.megatron.install(order='scalable')\n"
        "from megatron.core.datasets.gpt_dataset import GPTDatasetConfig\n"
        "from zindex.datasets.blended_megatron_dataset_config import DEFAULTS\n"
        "assert DEFAULTS.order == 'scalable'",
    )
    assert done.returncode == 0, done.stderr


def test_names_of_another_megatron_come_from_there(tmp_path: Path) -> None:
    """A made-up Megatron, newer than any."""
    folder = tmp_path / "megatron" / "core" / "datasets"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "utils.py").write_text(
        "from megatron.core.datasets.indexed_dataset import DType\n"
        "class Split: pass\n"
        "class NewerThanAny: dtype = DType\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import zindex.datasets.indexed_dataset, zindex.datasets.utils as ours\n"
        "from megatron.core.datasets.utils import NewerThanAny, Split\n"
        "assert Split is ours.Split\n"
        "from megatron.core.datasets.blended_megatron_dataset_config import DEFAULTS\n"
        "assert (DEFAULTS.order, DEFAULTS.store) == ('scalable', 'minimal')\n"
        "assert NewerThanAny.dtype is zindex.datasets.indexed_dataset.DType\n"
        "assert not hasattr(ours, 'NewestOfAll')\n"
        "try:\n"
        "    from megatron.core.datasets.helpers import nothing\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = run(*("-m", "zindex.megatron", "--order", "scalable", "--store", "minimal", str(script)))
    assert done.returncode == 0, done.stderr
    assert "cannot import name 'nothing' from 'zindex.datasets.helpers'" in done.stdout
    assert (
        "megatron.core.datasets.utils.NewerThanAny is Megatron's own: zindex has no such name"
        in done.stderr
    )


def test_a_script_that_is_missing_or_needs_megatron(tmp_path: Path) -> None:
    done = run("-m", "zindex.megatron", str(tmp_path / "none.py"))
    assert done.returncode == 1
    assert (
        done.stderr == f"Error: there is no script {tmp_path}/none.py; check the path, or give -m\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "raise ModuleNotFoundError(\"No module named 'megatron'\", name='megatron')\n"
    )
    done = run("-m", "zindex.megatron", str(script))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "ModuleNotFoundError: No module named 'megatron'",
        "zindex replaces the datasets of Megatron, which must be installed itself: install "
        "megatron-core, or import zindex.datasets in the script",
    ]


@needs_megatron
def test_too_late_is_said() -> None:
    done = run_python(
        "-c", "import megatron.core.datasets.utils, zindex.megatron\nzindex.megatron.install()"
    )
    assert done.returncode == 1
    assert "install must come before Megatron's datasets are imported, but" in done.stderr
    # How many depends on what Megatron's package imports.
    assert "there already; make it the first line" in done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "random"}, "order must be one of megatron, scalable, got 'random'"),
        ({"seed": 1}, "must be one of order, store, shuffle, .*, fim_draws, got 'seed'"),
    ],
)
def test_unknown_defaults_are_refused_and_change_nothing(
    settings: dict[str, Any], message: str
) -> None:
    before = list(sys.meta_path)
    with pytest.raises(ConfigError, match=message):
        install(store="minimal", **settings)
    assert DEFAULTS.store == "all"
    assert sys.meta_path == before
