"""The loops of others train on batches as the guide shows: in the run's order, and resumed."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from tests.forked import ROOT, run_python

SCRIPT = Path(__file__).parent / "trainers_process.py"
# Recipes that resume from the fourth step.
RESUMED = ("accelerate", "deepspeed", "transformers_of_dataset", "transformers_of_loader")


@pytest.mark.parametrize(
    "recipe",
    [
        *("accelerate", "lightning", "fsdp2", "deepspeed", "nanogpt"),
        *("transformers_of_dataset", "transformers_of_loader"),
    ],
)
def test_a_recipe_trains(tmp_path: Path, recipe: str) -> None:
    library = recipe.partition("_")[0]
    if library not in ("fsdp2", "nanogpt") and importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = ["-W", "ignore", str(SCRIPT), str(tmp_path), recipe]
    done = run_python(*command, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["is_in_order"]
    assert found["num_steps"] == len(found["losses"]) > 8
    assert found["losses"][-1] < 0.9 * found["losses"][0]
    assert found["has_resumed"]
    assert found["num_resumed"] == (found["num_steps"] - 4 if recipe in RESUMED else 0)
